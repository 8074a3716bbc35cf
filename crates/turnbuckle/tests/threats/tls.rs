//! V-48: clients that come by TLS, what they may ask for, and certificates that change under them.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use turnbuckle_wire::{Class, Method};

use crate::harness::{
    Authority, Client, Inbound, Key, QuicLink, Server, Site, channel, connect, peer_receives,
    peer_socket, plain,
};
use crate::streams::{relay_both_ways, start};

/// Returns the port for TLS of the relay of a site.
pub(crate) fn tls_address(site: Site) -> SocketAddr {
    SocketAddr::new(site.server().ip(), 5349)
}

fn start_with(site: Site, certificate: &[String; 2], options: &[&str]) -> Server {
    let certificate: Vec<&str> = certificate.iter().map(String::as_str).collect();
    start(site, &[&certificate[..], options].concat())
}

//= TURN-009
#[test]
fn a_client_over_tls_relays_both_ways_with_every_kind_of_key_on_both_ports() {
    for key in [Key::P256, Key::P384, Key::Rsa] {
        let site = Site::new();
        let authority = Authority::new();
        let server = start_with(site, &authority.options(key), &[]);
        assert!(server.greeting().contains("listening on TCP and TLS"));
        for address in [tls_address(site), server.address()] {
            for version in rustls::DEFAULT_VERSIONS {
                let mut tls = authority.client();
                tls.versions = vec![version];
                let mut client = Client::on_stream(tls.link(address), &server);
                relay_both_ways(&mut client, site.ip(9));
            }
        }
        // Plain TCP is served on both as well.
        let mut plain = Client::over_tcp(&server);
        relay_both_ways(&mut plain, site.ip(9));
    }
}

/// A message in many records, many messages in one, and records cut across TCP segments.
#[test]
fn records_and_messages_need_not_agree() {
    let site = Site::new();
    let authority = Authority::new();
    let server = start_with(site, &authority.options(Key::P256), &[]);
    let peer = peer_socket(site.ip(9));
    let address = peer.local_addr().unwrap();
    let mut client = Client::on_stream(authority.client().link(tls_address(site)), &server);
    client.allocate();
    let number = channel(1);
    client.channel_bind(number, address).expect(200);
    let mut bytes = Vec::new();
    for n in 0..60_u8 {
        let len: u16 = if n % 3 == 0 { 1400 } else { 33 };
        bytes.extend_from_slice(&number.to_be_bytes());
        bytes.extend_from_slice(&len.to_be_bytes());
        bytes.extend_from_slice(&vec![n; len.into()]);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    for piece_len in [1, 7, 1000, 20_000] {
        let pieces = if piece_len == 1 {
            &bytes[..3000]
        } else {
            &bytes
        };
        for piece in pieces.chunks(piece_len) {
            client.send_raw(piece);
        }
        if piece_len == 1 {
            client.send_raw(&bytes[3000..]);
        }
        for n in 0..60 {
            let (data, _) = peer_receives(&peer);
            assert_eq!(data, vec![n; if n % 3 == 0 { 1400 } else { 33 }]);
        }
    }
}

/// Media towards a client that does not read is dropped beneath the encryption, never inside it.
#[test]
fn a_slow_reader_over_tls_loses_media_and_no_byte_of_the_records() {
    const DATAGRAMS: u64 = 12_000;
    let site = Site::new();
    let authority = Authority::new();
    let server = start_with(site, &authority.options(Key::P256), &["--relay-threads=1"]);
    let peer = peer_socket(site.ip(9));
    let address = peer.local_addr().unwrap();
    let mut slow = Client::on_stream(authority.client().link(tls_address(site)), &server);
    let relayed = slow.allocate();
    slow.channel_bind(channel(0), address).expect(200);
    let mut pace = Client::over_tcp(&server);
    for n in 0..DATAGRAMS {
        let mut data = vec![0; 1000];
        data[..8].copy_from_slice(&n.to_be_bytes());
        peer.send_to(&data, relayed).unwrap();
        if n % 20 == 0 {
            pace.settle();
        }
    }
    let mut numbers = Vec::new();
    while numbers.last() != Some(&(DATAGRAMS - 1)) {
        let Inbound::Channel { data, .. } = slow.receive() else {
            panic!("channel messages only")
        };
        numbers.push(u64::from_be_bytes(data[..8].try_into().unwrap()));
    }
    assert!(numbers.is_sorted());
    slow.refresh(600).expect(200);
    assert!(server.stop().dropped_as("stream_congested") > 0);
}

/// RFC 7443: both names are known; one that is not is refused (RFC 7301 §3.2).
//= STUN-089
#[test]
fn application_protocols_are_agreed_on() {
    let site = Site::new();
    let authority = Authority::new();
    let _server = start_with(site, &authority.options(Key::P256), &[]);
    let mut tls = authority.client();
    let known: [&[u8]; 2] = [b"stun.turn", b"stun.nat-discovery"];
    for name in known {
        tls.alpn = vec![b"http/1.1", name];
        let stream = tls.connect(tls_address(site)).unwrap();
        assert_eq!(stream.conn.alpn_protocol(), Some(name));
    }
    tls.alpn = vec![b"h2"];
    assert!(tls.connect(tls_address(site)).is_err());
    tls.alpn = Vec::new();
    let stream = tls.connect(tls_address(site)).unwrap();
    assert_eq!(stream.conn.alpn_protocol(), None);
}

//= STUN-016
#[test]
fn versions_suites_and_groups_are_those_configured() {
    let site = Site::new();
    let authority = Authority::new();
    let server = start_with(
        site,
        &authority.options(Key::P256),
        &[
            "--no-tlsv1_2",
            "--cipher-list=TLS_CHACHA20_POLY1305_SHA256",
            "--ec-curve-name=prime256v1",
        ],
    );
    let mut tls = authority.client();
    let stream = tls.connect(tls_address(site)).unwrap();
    let suite = stream.conn.negotiated_cipher_suite().unwrap().suite();
    assert_eq!(suite, rustls::CipherSuite::TLS13_CHACHA20_POLY1305_SHA256);
    let group = stream.conn.negotiated_key_exchange_group().unwrap();
    assert_eq!(group.name(), rustls::NamedGroup::secp256r1);
    tls.versions = vec![&rustls::version::TLS12];
    assert!(tls.connect(tls_address(site)).is_err());
    drop(stream);
    assert_eq!(server.stop().closed_as("handshake_failed"), 1);
}

#[test]
fn clients_have_to_show_a_certificate_if_authorities_are_given() {
    let site = Site::new();
    let (authority, other) = (Authority::new(), Authority::new());
    let file = format!("--CA-file={}", authority.root_file().display());
    let server = start_with(site, &authority.options(Key::P256), &[&file]);
    let mut tls = authority.client();
    // TLS 1.3 tells a client only after it has sent its last flight, so it is the first answer that does not come.
    let is_served = |tls: &crate::harness::Tls| {
        let Ok(mut stream) = tls.connect(tls_address(site)) else {
            return false;
        };
        let request = plain(Class::Request, Method::BINDING, |_| {});
        stream.write_all(&request).is_ok() && stream.read(&mut [0; 100]).is_ok_and(|len| len > 0)
    };
    assert!(!is_served(&tls));
    tls.identity = Some(other.issue(Key::P256));
    assert!(!is_served(&tls));
    tls.identity = Some(authority.issue(Key::P256));
    assert!(is_served(&tls));
    assert_eq!(server.stop().closed_as("handshake_failed"), 2);
}

#[test]
fn without_a_certificate_or_with_no_tls_there_is_none() {
    let authority = Authority::new();
    for is_switched_off in [false, true] {
        let site = Site::new();
        let server = if is_switched_off {
            start_with(site, &authority.options(Key::P256), &["--no-tls"])
        } else {
            start(site, &[])
        };
        assert!(std::net::TcpStream::connect(tls_address(site)).is_err());
        assert!(authority.client().connect(server.address()).is_err());
        assert_eq!(server.stop().dropped_as("service_disabled"), 1);
    }
}

#[test]
fn with_no_tcp_only_tls_is_served_and_only_on_its_port() {
    let site = Site::new();
    let authority = Authority::new();
    let server = start_with(site, &authority.options(Key::P256), &["--no-tcp"]);
    assert!(std::net::TcpStream::connect(server.address()).is_err());
    let mut client = Client::on_stream(authority.client().link(tls_address(site)), &server);
    relay_both_ways(&mut client, site.ip(9));
    let mut plain_client = connect(tls_address(site));
    plain_client
        .write_all(&plain(Class::Request, Method::BINDING, |_| {}))
        .unwrap();
    plain_client
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    assert!(!plain_client.read(&mut [0; 100]).is_ok_and(|len| len > 0));
    drop(client);
    assert_eq!(server.stop().dropped_as("service_disabled"), 1);
}

/// V-48: handshakes that stop, lie, or only begin.
#[test]
fn handshakes_that_go_wrong_end_by_an_alert_or_the_deadline() {
    let site = Site::new();
    let authority = Authority::new();
    let server = start_with(
        site,
        &authority.options(Key::P256),
        &["--stream-deadline=4"],
    );
    let attempts: [&[u8]; 6] = [
        b"\x16",
        b"\x16\x03\x01\x40\x00",
        b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00",
        b"\x16\x03\x01\xFF\xFF\x01\x00\x00",
        b"\x16\x03\x01\x00\x01\x01",
        b"\x16\x16\x16\x16\x16\x16\x16\x16\x16\x16\x16\x16\x16\x16",
    ];
    let connections = attempts.map(|attempt| {
        let mut connection = connect(tls_address(site));
        connection.write_all(attempt).unwrap();
        connection
    });
    for mut connection in connections {
        // An alert, the end, or a reset; never an answer, and always before long.
        let mut answer = Vec::new();
        let _ = connection.read_to_end(&mut answer);
        assert!(answer.is_empty() || answer[0] == 0x15, "{answer:?}");
    }
    let mut client = Client::on_stream(authority.client().link(tls_address(site)), &server);
    relay_both_ways(&mut client, site.ip(9));
    drop(client);
    let accounting = server.stop();
    let (failed, late) = (
        accounting.closed_as("handshake_failed"),
        accounting.closed_as("handshake_late"),
    );
    assert_eq!(failed + late, attempts.len() as u64, "{accounting:?}");
    assert!(failed > 0 && late > 0, "{accounting:?}");
}

/// While many shake hands, media of those who are through goes on without loss.
#[test]
fn a_flood_of_handshakes_loses_no_media() {
    let site = Site::new();
    let authority = Authority::new();
    let server = start_with(site, &authority.options(Key::Rsa), &["--relay-threads=1"]);
    let tls = authority.client();
    let peer = peer_socket(site.ip(9));
    let address = peer.local_addr().unwrap();
    let mut client = Client::on_stream(tls.link(tls_address(site)), &server);
    let relayed = client.allocate();
    client.channel_bind(channel(0), address).expect(200);
    let attackers: Vec<_> = (0..3)
        .map(|_| {
            let tls = tls.clone();
            thread::spawn(move || {
                for _ in 0..100 {
                    tls.connect(tls_address(site)).unwrap();
                }
            })
        })
        .collect();
    let mut rounds = 0_u64;
    while !attackers.iter().all(thread::JoinHandle::is_finished) || rounds < 100 {
        let data = rounds.to_be_bytes();
        client.send_channel_data(channel(0), &data);
        assert_eq!(peer_receives(&peer).0, data);
        peer.send_to(&data, relayed).unwrap();
        let expected = Inbound::Channel {
            number: channel(0),
            data: data.to_vec(),
        };
        assert_eq!(client.receive(), expected);
        rounds += 1;
    }
    for attacker in attackers {
        attacker.join().unwrap();
    }
}

/// Returns how often certificates are swapped.
fn swaps() -> usize {
    let count = std::env::var("TURNBUCKLE_SWAPS").ok();
    count.map_or(1_000, |count| count.parse().expect("a number"))
}

/// Has one client after the other shake hands until it is dropped; each has to succeed.
struct Meanwhile<'scope> {
    is_over: &'scope AtomicBool,
    hands: Vec<thread::ScopedJoinHandle<'scope, usize>>,
}

impl<'scope> Meanwhile<'scope> {
    fn begin<'env>(
        scope: &'scope thread::Scope<'scope, 'env>,
        is_over: &'scope AtomicBool,
        clients: Vec<Box<dyn Fn() + Send + 'scope>>,
    ) -> Self {
        let hands = clients.into_iter().map(|shake| {
            scope.spawn(move || {
                let mut count = 0;
                while !is_over.load(Ordering::Relaxed) {
                    shake();
                    count += 1;
                }
                count
            })
        });
        Self {
            is_over,
            hands: hands.collect(),
        }
    }

    /// Returns how many handshakes there were of each kind.
    fn end(mut self) -> Vec<usize> {
        self.is_over.store(true, Ordering::Relaxed);
        let hands = std::mem::take(&mut self.hands).into_iter();
        hands.map(|hand| hand.join().unwrap()).collect()
    }
}

impl Drop for Meanwhile<'_> {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// Certificates that change while clients shake hands, by TLS of both versions, by DTLS and by QUIC: every handshake succeeds, with one or the other,
/// and a connection goes on with what it began with.
//= V-64
#[test]
fn no_handshake_fails_while_certificates_are_swapped() {
    let site = Site::new();
    let authority = Authority::new();
    let pairs = [Key::P256, Key::P384].map(|key| authority.issue(key));
    // Both in one file, so that every state of it is whole.
    let contents = pairs.each_ref().map(|(chain, key)| format!("{chain}{key}"));
    let leaves = pairs.each_ref().map(|(chain, _)| leaf(chain));
    let file = authority.write("both.pem", &contents[0]);
    let options = [
        format!("--cert={}", file.display()),
        format!("--pkey={}", file.display()),
    ];
    let server = start_with(site, &options, &["--dtls", "--quic"]);
    let tls = authority.client();
    let mut old = Client::on_stream(tls.link(tls_address(site)), &server);
    old.allocate();
    let is_over = AtomicBool::new(false);
    let (seen, meanwhile) = thread::scope(|scope| {
        let tls_of = |version: usize| {
            let mut tls = authority.client();
            tls.versions = vec![rustls::DEFAULT_VERSIONS[version]];
            move || drop(tls.connect(tls_address(site)).unwrap())
        };
        let dtls = authority.dtls_client();
        let mut quic = authority.client();
        quic.alpn = vec![b"h3"];
        let meanwhile = Meanwhile::begin(
            scope,
            &is_over,
            vec![
                Box::new(tls_of(0)),
                Box::new(tls_of(1)),
                Box::new(move || {
                    let session = dtls.connect(site.ip(3), tls_address(site));
                    session.unwrap().say_goodbye();
                }),
                Box::new(move || {
                    QuicLink::connect(&quic, site.ip(4), tls_address(site)).say_goodbye();
                }),
            ],
        );
        let seen = swap_again_and_again(site, &authority, &server, &mut old, &contents, &leaves);
        (seen, meanwhile.end())
    });
    let swaps = swaps();
    println!("{swaps} swaps, handshakes with either: {seen:?}, meanwhile {meanwhile:?}");
    assert!(meanwhile.iter().all(|count| *count > 10), "{meanwhile:?}");
    old.refresh(600).expect(200);
    assert_eq!(server.stop().closed_as("handshake_failed"), 0);
}

/// Swaps two certificates, each time until a new client is shown the other one. Returns how often either was shown.
///
/// An old client goes on meanwhile: where something else keeps the processors busy, the swaps take longer than an allocation lives that nobody refreshes.
fn swap_again_and_again(
    site: Site,
    authority: &Authority,
    server: &Server,
    old: &mut Client,
    contents: &[String; 2],
    leaves: &[Vec<u8>; 2],
) -> [usize; 2] {
    let tls = authority.client();
    let mut seen = [0_usize; 2];
    for swap in 1..=swaps() {
        if swap % 100 == 0 {
            old.refresh(600).expect(200);
        }
        let wanted = swap % 2;
        authority.write("both.pem", &contents[wanted]);
        server.reload_certificates();
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let stream = tls.connect(tls_address(site)).unwrap();
            let shown = stream.conn.peer_certificates().unwrap()[0].to_vec();
            let which = leaves.iter().position(|leaf| *leaf == shown).unwrap();
            seen[which] += 1;
            if which == wanted {
                break;
            }
            assert!(Instant::now() < deadline, "the new certificate never comes");
        }
    }
    seen
}

/// Returns the certificate of its owner in a chain.
fn leaf(chain: &str) -> Vec<u8> {
    use rustls::pki_types::pem::PemObject as _;
    let first = rustls::pki_types::CertificateDer::from_pem_slice(chain.as_bytes());
    first.unwrap().to_vec()
}

/// Two files change one after the other. In between they do not belong together, and the old pair stays in use.
#[test]
fn a_renewal_is_noticed_without_a_signal_and_half_of_one_changes_nothing() {
    let site = Site::new();
    let authority = Authority::new();
    let server = start_with(site, &authority.options(Key::P256), &[]);
    let tls = authority.client();
    let shown = || {
        let stream = tls.connect(tls_address(site)).unwrap();
        stream.conn.peer_certificates().unwrap()[0].to_vec()
    };
    let before = shown();
    let (chain, key) = authority.issue(Key::P384);
    authority.write("chain.pem", &chain);
    server.wait_for_line("warning: certificates not changed: cert ");
    assert_eq!(shown(), before);
    authority.write("key.pem", &key);
    server.wait_for_line("certificates read again");
    assert_eq!(shown(), leaf(&chain));
    // Rubbish changes nothing either.
    authority.write("chain.pem", "not a certificate");
    server.reload_certificates();
    server.wait_for_line("no certificate in it");
    assert_eq!(shown(), leaf(&chain));
}

/// RFC 8446 §6.1: whoever ends a connection says so, whichever side begins.
#[test]
fn a_connection_over_tls_ends_with_close_notify() {
    let (site, authority) = (Site::new(), Authority::new());
    let server = start_with(site, &authority.options(Key::P256), &["--masque=tls"]);
    for version in rustls::DEFAULT_VERSIONS {
        let mut tls = authority.client();
        tls.versions = vec![version];
        let mut stream = tls.connect(tls_address(site)).unwrap();
        stream.conn.send_close_notify();
        stream.flush().unwrap();
        // Without close_notify rustls reports an end that was not expected.
        assert_eq!(stream.read(&mut [0; 9]).unwrap(), 0, "the client ends it");
        tls.alpn = vec![b"http/1.1"];
        let mut stream = tls.connect(tls_address(site)).unwrap();
        let request = b"GET / HTTP/1.1\r\nHost: relay\r\n\r\n";
        stream.write_all(request).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
    }
    server.stop();
}

/// RFC 7301 §3.2: the alert comes behind a ServerHello in TLS 1.3, and alone in TLS 1.2.
#[test]
fn a_client_that_offers_other_protocols_alone_is_told_so_in_every_version() {
    let (site, authority) = (Site::new(), Authority::new());
    let server = start_with(site, &authority.options(Key::P256), &[]);
    for version in rustls::DEFAULT_VERSIONS {
        let mut tls = authority.client();
        tls.versions = vec![version];
        tls.alpn = vec![b"http/1.1"];
        let refused = tls.connect(tls_address(site)).err().unwrap().to_string();
        assert!(refused.contains("NoApplicationProtocol"), "{refused}");
    }
    server.stop();
}

#[test]
fn a_certificate_that_has_expired_is_served_with_a_warning() {
    let (site, authority) = (Site::new(), Authority::new());
    let (chain, key) = authority.issue_for(Key::P256, 2000..2001);
    let option = |name: &str, file: &str, content: &str| {
        format!("--{name}={}", authority.write(file, content).display())
    };
    let options = [
        option("cert", "chain.pem", &chain),
        option("pkey", "key.pem", &key),
    ];
    let server = start_with(site, &options, &[]);
    let greeting = server.greeting();
    assert!(greeting.contains("chain.pem has expired"), "{greeting}");
    Client::new(site.ip(2), &server).allocate();
    let (chain, key) = authority.issue(Key::P256);
    authority.write("key.pem", &key);
    authority.write("chain.pem", &chain);
    server.wait_for_line("days left, until");
    server.stop();
}
