//! V-80 to V-88 and V-95: clients that come by QUIC to the ports of TURN, what they leave behind before they have shown where they are, and what
//! passes for what.

use std::fs::File;
use std::io::Read as _;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use turnbuckle_quic::Closed;

use crate::harness::{
    Accounting, Authority, Client, Crowd, Inbound, Key, Namespace, QuicLink, Server, Site, Tls,
    channel, peer_receives, peer_socket,
};
use crate::streams::{relay_both_ways, start};

/// Initial packets without a token, each from an address of its own, unless the environment's `TURNBUCKLE_STRANGERS` says otherwise.
const STRANGERS: u32 = 10_000;
/// V-80's bound on what strangers may leave.
const GROWTH_MAX: u64 = 1 << 20;
/// H3_NO_ERROR (RFC 9114 §8.1).
const NO_ERROR: u64 = 0x0100;
/// H3_EXCESSIVE_LOAD (RFC 9114 §8.1).
const EXCESSIVE_LOAD: u64 = 0x0107;

/// Starts a relay that serves QUIC, and returns clients of it too.
fn relay(site: Site, options: &[&str]) -> (Server, Tls) {
    let authority = Authority::new();
    let certificate = authority.options(Key::P256);
    let certificate: Vec<&str> = certificate.iter().map(String::as_str).collect();
    let server = start(site, &[&["--quic"], &certificate[..], options].concat());
    let mut tls = authority.client();
    tls.alpn = vec![b"h3"];
    (server, tls)
}

/// Returns the first datagram of a client, which has no token.
fn initial(tls: &Tls, site: Site, server: &Server) -> Vec<u8> {
    let mut link = QuicLink::begin(tls, site.ip(3), server.address());
    link.send();
    let initial = link.sent[0].clone();
    assert!(initial.len() >= 1200, "{}", initial.len());
    initial
}

/// Returns a datagram of a version that nobody speaks.
fn of_unknown_version(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    bytes[..7].copy_from_slice(&[0xc0, 0xfa, 0xce, 0xb0, 0x0c, 8, 1]);
    bytes
}

#[test]
fn clients_shake_hands_on_both_ports_while_turn_is_served_beside_them() {
    let site = Site::new();
    let (server, tls) = relay(site, &[]);
    assert!(
        server
            .greeting()
            .contains("listening on UDP, TCP, TLS and QUIC"),
        "{}",
        server.greeting()
    );
    let mut turn = Client::new(site.ip(2), &server);
    for address in [server.address(), SocketAddr::new(site.ip(1), 5349)] {
        let mut link = QuicLink::connect(&tls, site.ip(3), address);
        relay_both_ways(&mut turn, site.ip(9));
        turn = Client::new(site.ip(2), &server);
        // The control stream begins with its type and SETTINGS.
        assert_eq!(link.seen(|seen| seen.control[..2].to_vec()), [0, 4]);
        link.assert_served();
    }
    let accounting = server.stop();
    assert_eq!(accounting.closed_as("stopped"), 2, "{accounting:#?}");
}

#[test]
fn a_client_that_offers_another_protocol_is_refused() {
    let site = Site::new();
    let (server, mut tls) = relay(site, &[]);
    tls.alpn = vec![b"doq"];
    let mut link = QuicLink::begin(&tls, site.ip(3), server.address());
    link.run_until(|seen| seen.closed.is_some());
    assert!(!link.seen(|seen| seen.is_connected));
    // It is refused at its first flight, so that no connection has begun.
    let closed = link.seen(|seen| seen.closed.clone());
    assert!(matches!(closed, Some(Closed::Failed(_))), "{closed:?}");
}

#[test]
fn a_flood_of_initials_leaves_nothing_behind_and_gets_less_than_it_sent() {
    let site = Site::new();
    let (server, tls) = relay(site, &["--relay-threads=1"]);
    let mut turn = Client::new(site.ip(2), &server);
    turn.allocate();
    let initial = initial(&tls, site, &server);
    let strangers: u32 = std::env::var("TURNBUCKLE_STRANGERS")
        .map_or(STRANGERS, |count| count.parse().expect("a number"));
    let crowd = Crowd::new(server.address());
    let flood = |clients| crowd.flood(clients, |_, bytes| bytes.extend_from_slice(&initial));
    flood(0..strangers.min(2_000));
    let memory = server.user_memory();
    let answers = flood(0..strangers);
    let growth = server.user_memory().saturating_sub(memory);
    println!("{strangers} Initial packets, {answers} answers, user memory +{growth} bytes");
    assert!(growth < GROWTH_MAX, "user memory grew by {growth} bytes");
    assert!(answers > 0, "they are asked for their address");
    turn.refresh(600).expect(200);
    QuicLink::connect(&tls, site.ip(4), server.address()).assert_served();
    let accounting = server.stop();
    let begun = accounting.closed_as("crowded")
        + accounting.closed_as("crowded_address")
        + accounting.closed_as("handshake_late");
    assert_eq!(begun, 0, "no connection was begun: {accounting:#?}");
    assert_eq!(accounting.closed_as("stopped"), 1, "{accounting:#?}");
}

#[test]
fn connections_that_do_nothing_make_room_for_each_other() {
    let site = Site::new();
    let options = [
        "--relay-threads=1",
        "--max-dtls-sessions-without-allocation=5",
    ];
    let (server, tls) = relay(site, &options);
    let links: Vec<_> = (0..12)
        .map(|_| QuicLink::connect(&tls, site.ip(3), server.address()))
        .collect();
    QuicLink::connect(&tls, site.ip(4), server.address()).assert_served();
    drop(links);
    let accounting = server.stop();
    assert_eq!(accounting.closed_as("crowded"), 8, "{accounting:#?}");
}

#[test]
fn a_connection_on_which_nothing_is_asked_for_is_closed_in_time() {
    let site = Site::new();
    let (server, tls) = relay(site, &["--stream-deadline=2"]);
    let mut silent = QuicLink::connect(&tls, site.ip(3), server.address());
    let mut asking = QuicLink::connect(&tls, site.ip(4), server.address());
    asking.assert_served();
    silent.run_until(|seen| seen.closed.is_some());
    let closed = silent.seen(|seen| seen.closed.clone());
    assert_eq!(closed, Some(Closed::Remote(NO_ERROR)));
    asking.assert_served();
    let accounting = server.stop();
    assert_eq!(
        accounting.closed_as("first_message_late"),
        1,
        "{accounting:#?}"
    );
}

#[test]
fn new_clients_are_shown_new_certificates_and_connections_go_on_with_their_own() {
    let site = Site::new();
    let (first, second) = (Authority::new(), Authority::new());
    let whole = |(chain, key): (String, String)| chain + &key;
    let file = first.write("both.pem", &whole(first.issue(Key::P256)));
    let files = ["cert", "pkey"].map(|name| format!("--{name}={}", file.display()));
    let server = start(site, &["--quic", &files[0], &files[1]]);
    let [of_first, of_second] = [&first, &second].map(|authority| {
        let mut tls = authority.client();
        tls.alpn = vec![b"h3"];
        tls
    });
    let mut old = QuicLink::connect(&of_first, site.ip(3), server.address());
    first.write("both.pem", &whole(second.issue(Key::P384)));
    server.reload_certificates();
    server.wait_for_line("certificates read again");
    QuicLink::connect(&of_second, site.ip(4), server.address()).assert_served();
    let mut late = QuicLink::begin(&of_first, site.ip(5), server.address());
    late.run_until(|seen| seen.closed.is_some());
    assert!(!late.seen(|seen| seen.is_connected));
    old.assert_served();
}

#[test]
fn a_token_of_another_server_or_for_another_address_begins_nothing() {
    let (site, other) = (Site::new(), Site::new());
    let (server, tls) = relay(site, &[]);
    let (second, _) = relay(other, &[]);
    let link = QuicLink::connect(&tls, site.ip(3), server.address());
    // Its second flight begins with an Initial that has the token.
    let with_token: Vec<_> = (link.sent.iter().skip(1))
        .filter(|bytes| bytes[0] & 0xf0 == 0xc0 && bytes.len() >= 1200)
        .cloned()
        .collect();
    assert!(!with_token.is_empty());
    let elsewhere = UdpSocket::bind((site.ip(4), 0)).unwrap();
    for bytes in &with_token {
        elsewhere.send_to(bytes, server.address()).unwrap();
        link.socket().send_to(bytes, second.address()).unwrap();
    }
    // A request of TURN that is answered has come behind them.
    for relay in [&server, &second] {
        let mut turn = Client::new(site.ip(2), relay);
        turn.allocate();
        turn.refresh(0).expect(200);
    }
    std::thread::sleep(Duration::from_millis(100));
    let accounting = second.stop();
    let ends = ["stopped", "handshake_late", "handshake_failed", "remote"];
    let begun: u64 = ends.iter().map(|end| accounting.closed_as(end)).sum();
    assert_eq!(begun, 0, "{accounting:#?}");
    let accounting = server.stop();
    let begun: u64 = ends.iter().map(|end| accounting.closed_as(end)).sum();
    assert_eq!(begun, 1, "only the client itself: {accounting:#?}");
}

#[test]
fn an_address_that_proves_nothing_gets_no_more_than_its_budget() {
    let site = Site::new();
    let (server, tls) = relay(site, &["--relay-threads=1"]);
    let initial = initial(&tls, site, &server);
    let stranger = UdpSocket::bind((site.ip(4), 0)).unwrap();
    stranger
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    let (mut received, mut sent) = (0, 0);
    let mut buffer = [0; 2048];
    let mut is_silent = false;
    for _ in 0..400 {
        // Each round fits into a buffer of the kernel.
        for bytes in [&initial, &of_unknown_version(1200)] {
            for _ in 0..8 {
                sent += stranger.send_to(bytes, server.address()).unwrap();
            }
        }
        for _ in 0..16 {
            match stranger.recv_from(&mut buffer) {
                Ok((len, _)) => received += len,
                Err(_) => is_silent = true,
            }
            if is_silent {
                break;
            }
        }
        if is_silent {
            break;
        }
    }
    println!("{sent} bytes sent, {received} received");
    assert!(received * 5 < sent, "{received} bytes for {sent}");
    let accounting = server.stop();
    assert!(
        accounting.dropped_as("unverified_budget") > 0,
        "{accounting:#?}"
    );
}

#[test]
fn a_client_with_an_allocation_and_a_connection_on_one_socket_has_both_served() {
    let site = Site::new();
    let (server, tls) = relay(site, &[]);
    let mut link = QuicLink::connect(&tls, site.ip(3), server.address());
    link.run_for(Duration::from_millis(200));
    let mut turn = Client::on_socket(link.socket(), &server);
    let relayed = turn.allocate();
    let peer = peer_socket(site.ip(9));
    turn.channel_bind(channel(0), peer.local_addr().unwrap())
        .expect(200);
    for round in 0..5 {
        link.assert_served();
        let text = format!("round {round}");
        turn.send_channel_data(channel(0), text.as_bytes());
        assert_eq!(peer_receives(&peer), (text.as_bytes().to_vec(), relayed));
        peer.send_to(text.as_bytes(), relayed).unwrap();
        let data = text.into_bytes();
        let number = channel(0);
        assert_eq!(turn.receive(), Inbound::Channel { number, data });
    }
}

#[test]
fn what_looks_like_quic_on_a_client_with_channels_is_relayed_to_nobody() {
    let site = Site::new();
    let (server, tls) = relay(site, &[]);
    let mut link = QuicLink::connect(&tls, site.ip(3), server.address());
    link.assert_served();
    let captured = link.last_short();
    let mut turn = Client::new(site.ip(2), &server);
    let relayed = turn.allocate();
    let peer = peer_socket(site.ip(9));
    turn.channel_bind(channel(0), peer.local_addr().unwrap())
        .expect(200);
    // No first two bytes of these are the channel's number, whatever the random rest.
    for first in 64..=127_u8 {
        let mut bytes = captured.clone();
        bytes[0] = first;
        bytes[1] = bytes[1].max(1);
        turn.send_raw(&bytes);
        bytes[1..9].rotate_left(3);
        bytes[1] = bytes[1].max(1);
        turn.send_raw(&bytes);
    }
    turn.send_channel_data(channel(0), b"the only one");
    assert_eq!(peer_receives(&peer), (b"the only one".to_vec(), relayed));
    link.assert_served();
}

#[test]
fn datagrams_too_short_for_a_connection_id_are_answered_by_nobody() {
    let site = Site::new();
    let (server, tls) = relay(site, &[]);
    let stranger = UdpSocket::bind((site.ip(4), 0)).unwrap();
    for first in 64..=u8::MAX {
        for len in 1..=17 {
            let mut bytes = vec![12; len];
            bytes[0] = first;
            stranger.send_to(&bytes, server.address()).unwrap();
        }
    }
    // So are those of another version that are short: what answers would be longer (RFC 9000 §5.2.2).
    stranger
        .send_to(&of_unknown_version(20), server.address())
        .unwrap();
    QuicLink::connect(&tls, site.ip(3), server.address()).assert_served();
    stranger.set_nonblocking(true).unwrap();
    assert!(stranger.recv_from(&mut [0; 2048]).is_err(), "an answer");
}

#[test]
fn a_connection_goes_on_whichever_shard_its_datagrams_come_to() {
    let site = Site::new();
    // The kernel's hash spreads them.
    let options = ["--relay-threads=4", "--quic-steering=false"];
    let accounting = after_rebinding(site, &options);
    assert!(accounting.handed_over > 0, "{accounting:#?}");
}

#[test]
fn the_kernel_gives_what_a_client_sends_from_a_new_address_to_the_shard_that_has_its_connection() {
    let accounting = after_rebinding(Site::new(), &["--relay-threads=4"]);
    assert_eq!(accounting.handed_over, 0, "{accounting:#?}");
}

/// Returns what a relay has counted when a client has gone on from sixteen ports, one after the other.
fn after_rebinding(site: Site, options: &[&str]) -> Accounting {
    let (server, tls) = relay(site, options);
    let mut link = QuicLink::connect(&tls, site.ip(3), server.address());
    for _ in 0..16 {
        link.rebind();
        link.assert_served();
    }
    let accounting = server.stop();
    assert_eq!(accounting.closed_as("stopped"), 1, "{accounting:#?}");
    accounting
}

#[test]
fn on_a_path_that_takes_more_than_every_path_must_the_relay_sends_longer_datagrams() {
    let site = Site::new();
    let (server, tls) = relay(site, &[]);
    let mut link = QuicLink::connect(&tls, site.ip(3), server.address());
    link.run_until_longest(1400);
    link.assert_served();
    assert!(link.longest <= 1452, "{}", link.longest);
}

#[test]
fn the_relay_finds_out_what_the_path_takes_and_nothing_is_fragmented() {
    let Some(relays) = Namespace::enter(
        "link set lo up
         link add s0 type veth peer name s1
         address add 10.9.1.1/24 dev s0
         link set s0 up
         route add default via 10.9.1.2",
    ) else {
        return;
    };
    let authority = Authority::new();
    let [certificate, key] = authority.options(Key::P256);
    let address = SocketAddr::from(([10, 9, 1, 1], 3478));
    let server = Server::start(address, &["--quic", &certificate, &key]);
    let script = format!(
        "link set lo up
         sysctl ipv4/ip_forward 1
         -n {} link set s1 netns HERE
         address add 10.9.1.2/24 dev s1
         link set s1 up
         link add r0 mtu 1300 type veth peer name r1 mtu 1300
         address add 10.9.2.2/24 dev r0
         link set r0 up",
        relays.name()
    );
    let routers = Namespace::enter(&script).expect("root");
    let router = thread_file("net/snmp");
    let script = format!(
        "link set lo up
         -n {} link set r1 netns HERE
         address add 10.9.2.1/24 dev r1
         link set r1 up
         route add default via 10.9.2.2",
        routers.name()
    );
    let clients = Namespace::enter(&script).expect("root");
    let mut tls = authority.client();
    tls.alpn = vec![b"h3"];
    let client = [10, 9, 2, 1].into();
    let mut link = QuicLink::connect(&tls, client, address);
    link.run_until_longest(1201);
    link.run_for(Duration::from_millis(500));
    link.assert_served();
    // 1,300 bytes without the headers of IP and UDP.
    assert!(link.longest <= 1272, "{}", link.longest);
    let fragments = fragments_made(router);
    assert_eq!(fragments, 0, "a router makes no fragments");
    drop((clients, routers));
    server.stop();
}

/// Returns a file below /proc of the namespace that the thread is in.
pub(crate) fn thread_file(path: &str) -> File {
    File::open(format!("/proc/thread-self/{path}")).expect("a file of the kernel")
}

/// Returns how many fragments a namespace has made, by its `net/snmp`.
pub(crate) fn fragments_made(mut snmp: File) -> u64 {
    let mut text = String::new();
    snmp.read_to_string(&mut text).expect("text");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Ip: "));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let mut fields = names.split(' ').zip(values.split(' '));
    let (_, value) = fields
        .find(|(name, _)| *name == "FragCreates")
        .expect("the field");
    value.parse().expect("a number")
}

#[test]
fn whoever_begins_ever_more_requests_is_cut_off() {
    let site = Site::new();
    let (server, tls) = relay(site, &[]);
    let mut link = QuicLink::connect(&tls, site.ip(3), server.address());
    let mut other = QuicLink::connect(&tls, site.ip(4), server.address());
    for _ in 0..2_000 {
        link.request();
        link.turn();
        if link.seen(|seen| seen.closed.is_some()) {
            break;
        }
    }
    let closed = link.seen(|seen| seen.closed.clone());
    assert_eq!(closed, Some(Closed::Remote(EXCESSIVE_LOAD)));
    other.assert_served();
    assert_eq!(server.stop().closed_as("requests_exceeded"), 1);
}

#[test]
fn while_the_relay_drains_no_connection_begins_and_those_there_are_go_on() {
    let site = Site::new();
    let (server, tls) = relay(site, &[]);
    let mut turn = Client::new(site.ip(2), &server);
    turn.allocate();
    let mut link = QuicLink::connect(&tls, site.ip(3), server.address());
    server.drain();
    server.wait_for_line("drain");
    let mut late = QuicLink::begin(&tls, site.ip(4), server.address());
    late.run_until(|seen| seen.closed.is_some());
    assert!(!late.seen(|seen| seen.is_connected));
    link.assert_served();
    turn.refresh(0).expect(200);
    server.assert_ends();
}

#[test]
fn keys_of_connections_are_written_nowhere() {
    let site = Site::new();
    let file = std::env::temp_dir().join(format!("turnbuckle-keys-{}", std::process::id()));
    let _ = std::fs::remove_file(&file);
    let path = file.to_str().expect("a path of ours");
    let authority = Authority::new();
    let [certificate, key] = authority.options(Key::P256);
    let options = ["--quic", &certificate, &key];
    let server = Server::start_in(site.server(), &options, &[("SSLKEYLOGFILE", path)]);
    let mut tls = authority.client();
    tls.alpn = vec![b"h3"];
    QuicLink::connect(&tls, site.ip(3), server.address()).assert_served();
    server.stop();
    assert!(!file.exists(), "the keys are in {path}");
}
