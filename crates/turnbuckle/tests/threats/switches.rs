//! V-89 and V-93 for all doors at once: what an operator switches off is off at every door, and whoever proves nothing has one
//! budget at all of them.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use turnbuckle_client::Credentials;
use turnbuckle_client::blocking::Tunnel;
use turnbuckle_wire::Method;

use crate::control::Steered;
use crate::harness::{
    Authority, Client, Key, PASSWORD, QuicLink, Server, Site, StreamLink, Tls, USER, connect_from,
    peer_socket,
};
use crate::http3::{self, RIGHT, WRONG, send_settings};
use crate::streams::start;

/// How long a reload may take to reach all shards.
const WAIT: Duration = Duration::from_secs(20);

/// Protocol numbers of REQUESTED-TRANSPORT.
const UDP: u8 = 17;
const TCP: u8 = 6;

/// What a client asks for, and over what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Door {
    /// An allocation over UDP.
    Udp,
    /// An allocation over TCP, with UDP relay addresses.
    Tcp,
    /// An allocation with TCP relay addresses.
    TcpRelay,
    /// A tunnel over HTTP/1.1.
    Http1,
    /// A tunnel over HTTP/3.
    Http3,
}

const DOORS: [Door; 5] = [
    Door::Udp,
    Door::Tcp,
    Door::TcpRelay,
    Door::Http1,
    Door::Http3,
];

/// The lines that forbid relaying, and which of [`DOORS`] they leave open.
const SWITCHES: [(&str, &[Door]); 3] = [
    ("stun-only\nno-tcp-relay=false\n", &[]),
    ("no-udp-relay\nno-tcp-relay=false\n", &[Door::TcpRelay]),
    (
        "no-tcp-relay\n",
        &[Door::Udp, Door::Tcp, Door::Http1, Door::Http3],
    ),
];

/// A client that has not asked for anything yet.
enum Visitor {
    Turn(Box<Client>, u8),
    Http1(Tunnel),
    Http3(Box<QuicLink>),
}

impl Visitor {
    fn at(door: Door, site: Site, server: &Server, tls: &Tls) -> Self {
        let turn = |mut client: Client, protocol| {
            client.fetch_challenge();
            Self::Turn(Box::new(client), protocol)
        };
        match door {
            Door::Udp => turn(Client::new(site.ip(2), server), UDP),
            Door::Tcp => turn(Client::over_tcp(server), UDP),
            Door::TcpRelay => turn(Client::over_tcp(server), TCP),
            Door::Http1 => Self::Http1(Tunnel::new(connect_from(site.ip(2), server.address()))),
            Door::Http3 => {
                let mut link = QuicLink::connect(tls, site.ip(2), server.address());
                send_settings(&mut link);
                Self::Http3(Box::new(link))
            }
        }
    }

    /// Asks, and waits until the server is through with it.
    fn ask(&mut self, target: SocketAddr) {
        match self {
            Self::Turn(client, protocol) => {
                let request = client.signed(Method::ALLOCATE, |writer| {
                    writer.requested_transport(*protocol);
                });
                client.send_raw(&request);
                client.settle();
            }
            Self::Http1(tunnel) => {
                http1_status(tunnel, target, PASSWORD);
            }
            Self::Http3(link) => {
                let stream = link.open(true, &http3::request(target, RIGHT));
                http3::status(link, stream);
            }
        }
    }
}

fn http1_status(tunnel: &mut Tunnel, target: SocketAddr, password: &str) -> u16 {
    let (host, user) = (target.ip().to_string(), Credentials::user(USER, password));
    let answer = tunnel.ask("relay", (&host, target.port()), &user, &[]);
    answer.unwrap().status
}

/// Returns at which doors something is open, once for each session.
fn open_doors(steered: &Steered) -> Vec<Door> {
    let sessions = steered.sessions(&[]);
    let mut doors: Vec<Door> = sessions
        .iter()
        .map(|session| {
            let of = |key: &str| session[key].as_str().unwrap_or_default();
            let is_tunnel = !session["tunnel_to"].is_null();
            match (of("transport"), of("relay_protocol"), is_tunnel) {
                ("UDP", "UDP", false) => Door::Udp,
                ("TCP", "UDP", false) => Door::Tcp,
                ("TCP", "TCP", false) => Door::TcpRelay,
                ("TCP", "UDP", true) => Door::Http1,
                ("QUIC", "UDP", true) => Door::Http3,
                _ => panic!("{session}"),
            }
        })
        .collect();
    doors.sort();
    doors
}

/// Waits until `doors` are open, each as often as it is in there.
#[track_caller]
fn await_doors(steered: &Steered, doors: &[Door], when: &str) {
    let until = Instant::now() + WAIT;
    loop {
        let open = open_doors(steered);
        if open == doors {
            return;
        }
        assert!(Instant::now() < until, "{when}: {open:?}, not {doors:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

//= V-89
#[test]
fn a_switch_that_forbids_relaying_holds_at_every_door() {
    for (switch, left) in SWITCHES {
        let (site, authority) = (Site::new(), Authority::new());
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("relay.conf");
        fs::write(&file, "no-tcp-relay=false\n").unwrap();
        let config = format!("--config={}", file.display());
        let [chain, key] = authority.options(Key::P256);
        let options = ["--masque=plain", "--quic", "--allow-loopback-peers"];
        let steered = Steered::start(site, &[&options[..], &[&config, &chain, &key]].concat());
        let mut tls = authority.client();
        tls.alpn = vec![b"h3"];
        let peer = peer_socket(site.ip(9));
        let target = peer.local_addr().unwrap();
        let arrive = |door| Visitor::at(door, site, &steered.server, &tls);

        let mut open = DOORS.map(arrive);
        open.iter_mut().for_each(|visitor| visitor.ask(target));
        await_doors(&steered, &DOORS, "before");
        // Clients that have a nonce or a connection already, so that the switch alone can refuse them.
        let mut new = DOORS.map(arrive);
        fs::write(&file, switch).unwrap();
        steered.ctl(&["reload"]).expect(0);
        await_doors(&steered, left, switch);
        new.iter_mut().for_each(|visitor| visitor.ask(target));
        let mut both = [left, left].concat();
        both.sort();
        await_doors(&steered, &both, switch);
        steered.server.stop();
    }
}

/// Answers in a second, over all doors.
const RATE: u32 = 3;
/// Wrong passwords at each door.
const GUESSES: u32 = 12;

/// One address before all doors.
struct Guesser {
    ip: IpAddr,
    server: SocketAddr,
    target: SocketAddr,
    quic: Tls,
}

impl Guesser {
    fn tunnel(&self) -> Tunnel {
        Tunnel::new(connect_from(self.ip, self.server))
    }

    /// Asks for a tunnel over HTTP/1.1, with a connection of its own. Returns the status.
    fn http1(&self, password: &str) -> u16 {
        http1_status(&mut self.tunnel(), self.target, password)
    }

    /// Connects over HTTP/3.
    fn quic(&self) -> QuicLink {
        let mut link = QuicLink::connect(&self.quic, self.ip, self.server);
        send_settings(&mut link);
        link
    }

    /// Asks for a tunnel on a connection of HTTP/3. Returns the status.
    fn http3(&self, link: &mut QuicLink, credentials: &str) -> u16 {
        let stream = link.open(true, &http3::request(self.target, credentials));
        http3::status(link, stream)
    }
}

/// Makes wrong guesses, which return whether they were answered as wrong. Returns how many were.
#[track_caller]
fn guess_at(door: &str, mut guess: impl FnMut() -> bool) -> u32 {
    let begun = Instant::now();
    let answered = (0..GUESSES).map(|_| u32::from(guess())).sum();
    let most = u64::from(RATE) * (begun.elapsed().as_secs() + 2);
    println!(
        "{}: {answered} of {GUESSES} answered in {:?}",
        door,
        begun.elapsed()
    );
    assert!(
        u64::from(answered) <= most,
        "{}: {answered}, at most {most}",
        door
    );
    answered
}

//= V-93
#[test]
fn failed_proofs_of_one_address_have_one_budget_at_all_doors() {
    let (site, authority) = (Site::new(), Authority::new());
    let [chain, key] = authority.options(Key::P256);
    let rate = format!("--unauthorized-ratelimit-rps={RATE}");
    let options = ["--dtls", "--quic", "--masque=plain", &chain, &key];
    let limit = ["--unauthorized-ratelimit", &rate];
    let server = start(site, &[&options[..], &limit].concat());
    let (ip, at) = (site.ip(2), server.address());
    let mut quic = authority.client();
    quic.alpn = vec![b"h3"];
    let peer = peer_socket(site.ip(9));
    let guesser = Guesser {
        ip,
        server: at,
        target: peer.local_addr().unwrap(),
        quic,
    };
    let is_refused = |status: u16| {
        assert!([407, 429].contains(&status), "{status}");
        status == 407
    };
    let links: Vec<_> = (0..GUESSES).map(|_| guesser.quic()).collect();
    let begun = Instant::now();
    let mut links = links.into_iter();
    let mut answered = guess_at("HTTP/3", || {
        is_refused(guesser.http3(&mut links.next().unwrap(), WRONG))
    });
    answered += guess_at("HTTP/1.1", || is_refused(guesser.http1("a guess")));
    for door in ["UDP", "TCP", "TLS", "DTLS"] {
        // The first contact costs one answer too, and has to have it.
        std::thread::sleep(Duration::from_millis(400));
        let mut client = match door {
            "UDP" => Client::new(ip, &server),
            "TCP" => Client::on_stream(StreamLink::new(connect_from(ip, at)), &server),
            "TLS" => {
                let secured = authority.client().on(connect_from(ip, at)).unwrap();
                Client::on_stream(StreamLink::new(secured), &server)
            }
            _ => Client::over_dtls(authority.dtls_client().connect(ip, at).unwrap(), &server),
        };
        client.allocate();
        // What proves who it is costs nothing.
        let probe = client.signed(Method::REFRESH, |writer| {
            writer.lifetime(600);
        });
        client.password = "a guess".to_owned();
        answered += guess_at(door, || {
            let guess = client.signed(Method::REFRESH, |_| {});
            client.answers(&guess, 401, &probe)
        });
    }
    let most = u64::from(RATE) * (begun.elapsed().as_secs() + 2);
    assert!(u64::from(answered) <= most, "{answered}, at most {most}");
    // The right password is not one of them.
    assert_eq!(
        (
            guesser.http1(PASSWORD),
            guesser.http3(&mut guesser.quic(), RIGHT)
        ),
        (101, 200)
    );
    server.stop();
}

#[test]
fn a_request_for_something_else_than_a_tunnel_is_answered_over_http_1() {
    let site = Site::new();
    let server = start(site, &["--masque=plain"]);
    for head in ["GET / HTTP/1.1", "POST /.well-known/masque/tcp/ HTTP/1.1"] {
        let mut tunnel = Tunnel::new(connect_from(site.ip(2), server.address()));
        let request = format!("{head}\r\nHost: relay\r\n\r\n");
        tunnel.send_raw(request.as_bytes()).unwrap();
        assert_eq!(tunnel.answer().unwrap().status, 404, "{head}");
        assert!(tunnel.is_closed(WAIT), "{head}");
    }
    server.stop();
}
