//! V-89 and V-91 for bound tunnels (draft-ietf-masque-connect-udp-listen): by HTTP/3 and by HTTP/1.1 they lead to whom TURN would, and to their clients
//! comes what they have contexts for.

use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use turnbuckle_client::blocking::{Tunnel, tcp};
use turnbuckle_masque::bind::ContextCapsule;

use crate::control::Steered;
use crate::harness::{QuicLink, Site, peer_receives, peer_socket};
use crate::http3::{RIGHT, bound_request, bound_tunnel, frame, relay, relay_for, send_settings};

const WAIT: Duration = Duration::from_secs(20);
/// The code of a stream whose message is malformed (RFC 9114 §8.1).
const MESSAGE_ERROR: u64 = 0x010e;
/// The type of a DATAGRAM capsule (RFC 9297 §3.5).
const DATAGRAM: u8 = 0;

/// Returns a capsule whose type and length are short.
fn capsule(kind: u8, value: &[u8]) -> Vec<u8> {
    let len = u8::try_from(value.len()).expect("short");
    assert!(kind < 64 && len < 64);
    [&[kind, len][..], value].concat()
}

fn kind(capsule: ContextCapsule) -> u8 {
    u8::try_from(capsule.kind()).expect("short")
}

fn assign(context: u8, peer: Option<SocketAddr>) -> Vec<u8> {
    let address = peer.map_or_else(|| vec![0], in_bytes);
    capsule(
        kind(ContextCapsule::Assign),
        &[&[context][..], &address].concat(),
    )
}

/// Returns an address in a registration, or in a datagram of the uncompressed context.
fn in_bytes(address: SocketAddr) -> Vec<u8> {
    let IpAddr::V4(ip) = address.ip() else {
        panic!("IPv4")
    };
    [&[4][..], &ip.octets(), &address.port().to_be_bytes()].concat()
}

/// The client of a bound tunnel, whichever version of HTTP it speaks.
enum Client {
    Http1(Tunnel),
    Http3 {
        link: Box<QuicLink>,
        stream: u64,
        /// Datagrams that were taken.
        taken: usize,
    },
}

impl Client {
    /// Sends a capsule, and returns the one that answers it.
    fn register(&mut self, bytes: &[u8]) -> (u64, Vec<u8>) {
        match self {
            Self::Http1(tunnel) => {
                tunnel.send_raw(bytes).unwrap();
                tunnel.receive_capsule(WAIT).unwrap().expect("an answer")
            }
            Self::Http3 { link, stream, .. } => {
                let before = link.seen(|seen| seen.answers[stream].len());
                link.write(*stream, &frame(0, bytes));
                link.run_until(|seen| seen.answers[stream].len() > before);
                let all = link.seen(|seen| seen.answers[stream].clone());
                // DATA, its length, and the capsule.
                let [0, len, kind, _, value @ ..] = &all[before..] else {
                    panic!("{all:02x?}")
                };
                assert_eq!(usize::from(*len), value.len() + 2);
                (u64::from(*kind), value.to_vec())
            }
        }
    }

    /// Sends a capsule that is not answered.
    fn send_capsule(&mut self, bytes: &[u8]) {
        match self {
            Self::Http1(tunnel) => tunnel.send_raw(bytes).unwrap(),
            Self::Http3 { link, stream, .. } => {
                link.write(*stream, &frame(0, bytes));
                link.send();
            }
        }
    }

    fn close(&mut self, context: u8) {
        self.send_capsule(&capsule(kind(ContextCapsule::Close), &[context]));
    }

    /// Waits until the relay has ended the tunnel for what it was sent.
    fn assert_ended(&mut self) {
        match self {
            Self::Http1(tunnel) => assert!(tunnel.is_closed(WAIT), "the connection is open"),
            Self::Http3 { link, .. } => {
                link.run_until(|seen| !seen.rejected.is_empty());
                assert_eq!(link.seen(|seen| seen.rejected.clone()), [MESSAGE_ERROR]);
                // The connection is there, and other requests on it are served.
                bound_tunnel(link);
            }
        }
    }

    /// Sends a datagram: a context and what follows it.
    fn send(&mut self, datagram: &[u8]) {
        match self {
            Self::Http1(tunnel) => tunnel.send_raw(&capsule(DATAGRAM, datagram)).unwrap(),
            Self::Http3 { link, stream, .. } => {
                let quarter = u8::try_from(*stream / 4).expect("few streams");
                link.datagram(&[&[quarter][..], datagram].concat());
                link.send();
            }
        }
    }

    /// Waits for a datagram.
    fn receive(&mut self) -> Vec<u8> {
        match self {
            Self::Http1(tunnel) => {
                let capsule = tunnel.receive_capsule(WAIT).unwrap();
                let (0, value) = capsule.expect("a datagram") else {
                    panic!("another capsule")
                };
                value
            }
            Self::Http3 { link, taken, .. } => {
                let before = *taken;
                link.run_until(|seen| seen.datagrams.len() > before);
                *taken += 1;
                link.seen(|seen| seen.datagrams[before][1..].to_vec())
            }
        }
    }

    /// Returns what a peer receives next, and from where.
    fn heard_at(&mut self, peer: &UdpSocket) -> (Vec<u8>, SocketAddr) {
        match self {
            Self::Http1(_) => peer_receives(peer),
            Self::Http3 { link, .. } => link.run_until_heard(peer),
        }
    }

    /// Exchanges datagrams with a peer for whom the client has `context`. All that was sent before has been seen then.
    fn exchange(&mut self, context: u8, peer: &UdpSocket) -> SocketAddr {
        self.send(&[&[context][..], b"there"].concat());
        let (payload, relayed) = self.heard_at(peer);
        assert_eq!(payload, b"there");
        peer.send_to(b"back", relayed).unwrap();
        assert_eq!(self.receive(), [&[context][..], b"back"].concat());
        relayed
    }
}

/// Opens a bound tunnel by HTTP/1.1.
fn by_http1(server: SocketAddr) -> Client {
    let mut tunnel = Tunnel::new(tcp(server).unwrap());
    let request = format!(
        "GET /.well-known/masque/udp/%2A/%2A/ HTTP/1.1\r\nHost: relay\r\nConnection: Upgrade\r\n\
         Upgrade: connect-udp\r\nCapsule-Protocol: ?1\r\nConnect-UDP-Bind: ?1\r\n\
         Proxy-Authorization: {RIGHT}\r\n\r\n"
    );
    tunnel.send_raw(request.as_bytes()).unwrap();
    let answer = tunnel.answer().unwrap();
    assert!(answer.is_open, "{answer:?}");
    let fields = answer.fields.to_ascii_lowercase();
    assert!(fields.contains("connect-udp-bind: ?1"), "{fields}");
    assert!(fields.contains("proxy-public-address: \""), "{fields}");
    Client::Http1(tunnel)
}

/// Opens a bound tunnel by HTTP/3.
fn by_http3(mut link: QuicLink) -> Client {
    send_settings(&mut link);
    let stream = bound_tunnel(&mut link);
    let (link, taken) = (Box::new(link), 0);
    Client::Http3 {
        link,
        stream,
        taken,
    }
}

/// Exchanges datagrams in contexts of both kinds.
fn use_contexts(client: &mut Client, peers: &[UdpSocket; 2]) {
    let [first, second] = [0, 1].map(|index: usize| peers[index].local_addr().unwrap());
    assert_eq!(client.register(&assign(2, None)), (0x12, vec![2]));
    let datagram = |context: u8, to| [&[context][..], &in_bytes(to), b"there"].concat();
    for (peer, address) in peers.iter().zip([first, second]) {
        client.send(&datagram(2, address));
        let (payload, relayed) = client.heard_at(peer);
        assert_eq!(payload, b"there");
        peer.send_to(b"back", relayed).unwrap();
        let expected = [&[2][..], &in_bytes(address), b"back"].concat();
        assert_eq!(client.receive(), expected);
    }
    assert_eq!(client.register(&assign(4, Some(first))), (0x12, vec![4]));
    client.exchange(4, &peers[0]);
    client.close(2);
    // Without its uncompressed context it hears whom it has registered.
    let relayed = client.exchange(4, &peers[0]);
    peers[1].send_to(b"not wanted", relayed).unwrap();
    client.send(&datagram(2, second));
    client.exchange(4, &peers[0]);
}

//= BIND-02
//= BIND-04
//= BIND-05
//= BIND-06
//= V-91
#[test]
fn a_bound_tunnel_leads_to_whom_its_client_names_and_brings_what_it_has_contexts_for() {
    let site = Site::new();
    let peers = [9, 10].map(|host| peer_socket(site.ip(host)));
    let (server, tls) = relay_for(site, "--masque=plain", &["--masque-bind"]);
    use_contexts(&mut by_http1(server.address()), &peers);
    let link = QuicLink::connect(&tls, site.ip(3), server.address());
    use_contexts(&mut by_http3(link), &peers);
    let accounting = server.stop();
    assert_eq!(accounting.dropped_as("no_context"), 2);
    assert_eq!(accounting.dropped_as("context_unknown"), 2);
}

//= BIND-03
#[test]
fn a_registration_that_breaks_a_rule_ends_its_tunnel_and_no_other() {
    let site = Site::new();
    let peers = [9, 10].map(|host| peer_socket(site.ip(host)));
    let [first, second] = peers.each_ref().map(|peer| peer.local_addr().unwrap());
    let (server, tls) = relay_for(site, "--masque=plain", &["--masque-bind"]);
    let mut beside = by_http1(server.address());
    assert_eq!(beside.register(&assign(4, Some(first))), (0x12, vec![4]));
    let wrong = [
        // Not a client's numbers, and such that it has registered.
        assign(0, Some(second)),
        assign(3, Some(second)),
        assign(2, Some(second)),
        assign(4, Some(second)),
        // What it has contexts for.
        assign(6, None),
        assign(6, Some(first)),
        // An answer to nothing.
        capsule(kind(ContextCapsule::Ack), &[2]),
    ];
    for wrong in &wrong {
        let link = QuicLink::connect(&tls, site.ip(3), server.address());
        for mut client in [by_http1(server.address()), by_http3(link)] {
            assert_eq!(client.register(&assign(2, None)), (0x12, vec![2]));
            assert_eq!(client.register(&assign(4, Some(first))), (0x12, vec![4]));
            client.exchange(4, &peers[0]);
            client.send_capsule(wrong);
            client.assert_ended();
        }
    }
    beside.exchange(4, &peers[0]);
    let accounting = server.stop();
    let malformed = 2 * u64::try_from(wrong.len()).unwrap();
    assert_eq!(accounting.dropped_as("malformed_capsule"), malformed);
}

//= BIND-01
#[test]
fn a_bound_tunnel_is_not_opened_unless_the_operator_wants_it() {
    let site = Site::new();
    let (server, tls) = relay(site, &[]);
    let mut link = QuicLink::connect(&tls, site.ip(3), server.address());
    send_settings(&mut link);
    let stream = link.open(true, &bound_request());
    link.run_until(|seen| seen.answers.get(&stream).is_some_and(|it| !it.is_empty()));
    let answer = link.seen(|seen| seen.answers[&stream].clone());
    // The static entry of 400 (RFC 9204, appendix A).
    let refused = [0, 0, 0xFF, 0x04];
    assert!(answer.windows(4).any(|it| it == refused), "{answer:02x?}");
    server.stop();
}

//= V-89
#[test]
fn a_bound_tunnel_leads_to_nobody_who_is_denied_by_any_context_also_after_a_reload() {
    let site = Site::new();
    let [denied, later, open] = [9, 10, 11].map(|host| peer_socket(site.ip(host)));
    let [denied_at, later_at, open_at] =
        [&denied, &later, &open].map(|peer| peer.local_addr().unwrap());
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("relay.conf");
    let deny = |peers: &[SocketAddr]| {
        let lines = peers
            .iter()
            .map(|peer| format!("denied-peer-ip={}\n", peer.ip()));
        fs::write(&file, lines.collect::<String>()).unwrap();
    };
    deny(&[denied_at]);
    let config = format!("--config={}", file.display());
    let options = ["--masque=plain", "--masque-bind", "--allow-loopback-peers"];
    let steered = Steered::start(site, &[&options[..], &[&config]].concat());
    let mut client = by_http1(steered.server.address());
    assert_eq!(client.register(&assign(2, None)), (0x12, vec![2]));
    assert_eq!(
        client.register(&assign(4, Some(denied_at))),
        (0x13, vec![4])
    );
    assert_eq!(client.register(&assign(4, Some(later_at))), (0x12, vec![4]));
    assert_eq!(client.register(&assign(6, Some(open_at))), (0x12, vec![6]));
    let own = steered.server.address();
    assert_eq!(client.register(&assign(8, Some(own))), (0x13, vec![8]));
    for forbidden in [denied_at, own] {
        client.send(&[&[2][..], &in_bytes(forbidden), b"x"].concat());
    }
    let relayed = client.exchange(4, &later);
    deny(&[denied_at, later_at]);
    steered.ctl(&["reload"]).expect(0);
    client.send(b"\x04x");
    client.send(&[&[2][..], &in_bytes(later_at), b"x"].concat());
    for peer in [&denied, &later] {
        peer.send_to(b"x", relayed).unwrap();
    }
    client.exchange(6, &open);
    for peer in [&denied, &later] {
        peer.set_nonblocking(true).unwrap();
        assert!(peer.recv(&mut [0; 9]).is_err(), "it is denied");
    }
    assert_eq!(steered.server.stop().dropped_as("peer_forbidden"), 6);
}
