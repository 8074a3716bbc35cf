//! V-54, V-80, V-87, V-90, V-91, V-93 and V-94 for clients who ask for tunnels of UDP by HTTP/3.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use openssl::base64::encode_block;

use turnbuckle_client::Credentials;
use turnbuckle_client::blocking::Tunnel;
use turnbuckle_masque::h3::{FIELDS_SIZE_MAX, qpack};
use turnbuckle_quic::Closed;
use turnbuckle_wire::Varint;

use crate::harness::{
    ABOUT_TCP, ABOUT_UDP, Authority, Canary, Key, NameServer, PASSWORD, QuicLink, REALM, Record,
    Server, Site, Tls, USER, World, always, first_then, forge_icmp, forge_icmp_about,
    peer_receives, peer_socket,
};
use crate::realms::turnadmin;
use crate::streams::start;
use crate::tls::tls_address;

/// The harness's user with the password, and with another one (RFC 7617).
pub(crate) const RIGHT: &str = "Basic YWxpY2U6d29uZGVybGFuZC03";
pub(crate) const WRONG: &str = "Basic YWxpY2U6bG9va2luZy1nbGFzcw==";
/// Codes of RFC 9114 §8.1.
const EXCESSIVE_LOAD: u64 = 0x0107;
const MISSING_SETTINGS: u64 = 0x010a;

/// Starts a relay that opens tunnels, and returns its clients' trust in it too.
pub(crate) fn relay(site: Site, options: &[&str]) -> (Server, Tls) {
    relay_for(site, "--masque=tls", options)
}

/// Starts a relay as [`relay`] does, with another value of `masque`.
pub(crate) fn relay_for(site: Site, masque: &str, options: &[&str]) -> (Server, Tls) {
    let authority = Authority::new();
    let certificate = authority.options(Key::P256);
    let certificate: Vec<&str> = certificate.iter().map(String::as_str).collect();
    let own = ["--quic", masque];
    let server = start(site, &[&own, &certificate[..], options].concat());
    let mut tls = authority.client();
    tls.alpn = vec![b"h3"];
    (server, tls)
}

pub(crate) fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let len = Varint::new(payload.len() as u64).expect("short");
    [&[kind][..], len.as_bytes(), payload].concat()
}

/// Returns a request for a tunnel.
pub(crate) fn request(target: SocketAddr, credentials: &str) -> Vec<u8> {
    request_of((&target.ip().to_string(), target.port()), credentials)
}

/// Returns a request for a tunnel to a host as it stands in the path.
fn request_of((host, port): (&str, u16), credentials: &str) -> Vec<u8> {
    let path = format!("/.well-known/masque/udp/{host}/{port}/");
    section(&path, credentials, &[])
}

/// Returns a request with a path, and with further fields.
fn section(path: &str, credentials: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let fields = [
        (":method", "CONNECT"),
        (":protocol", "connect-udp"),
        (":scheme", "https"),
        (":authority", "relay.test"),
        (":path", path),
        ("proxy-authorization", credentials),
    ];
    frame(1, &qpack::encode(&[&fields, more].concat()))
}

/// Says that it takes DATAGRAM frames.
pub(crate) fn send_settings(link: &mut QuicLink) {
    link.open(false, &[0, 4, 2, 0x33, 1]);
}

/// Opens a tunnel, and returns its stream.
#[track_caller]
pub(crate) fn tunnel(link: &mut QuicLink, target: SocketAddr) -> u64 {
    tunnel_of(link, target, RIGHT)
}

/// Opens a tunnel for a user, and returns its stream.
#[track_caller]
fn tunnel_of(link: &mut QuicLink, target: SocketAddr, credentials: &str) -> u64 {
    granted(link, &request(target, credentials))
}

/// Returns a request for a bound tunnel (§6 of draft-ietf-masque-connect-udp-listen).
pub(crate) fn bound_request() -> Vec<u8> {
    let path = "/.well-known/masque/udp/%2A/%2A/";
    section(path, RIGHT, &[("connect-udp-bind", "?1")])
}

/// Opens a bound tunnel, and returns its stream.
#[track_caller]
pub(crate) fn bound_tunnel(link: &mut QuicLink) -> u64 {
    granted(link, &bound_request())
}

/// Sends a request that is granted, and returns its stream.
#[track_caller]
fn granted(link: &mut QuicLink, request: &[u8]) -> u64 {
    let stream = link.open(true, request);
    assert_eq!(status(link, stream), 200);
    stream
}

/// Returns the status of the answer on a stream, for which it waits.
#[track_caller]
pub(crate) fn status(link: &mut QuicLink, stream: u64) -> u16 {
    link.run_until(|seen| {
        let answer = seen.answers.get(&stream);
        answer.is_some_and(|answer| section_of(answer).is_some()) || seen.closed.is_some()
    });
    let answer = link.seen(|seen| seen.answers.get(&stream).cloned().unwrap_or_default());
    let section = section_of(&answer).expect("an answer");
    let fields = qpack::decode(section, FIELDS_SIZE_MAX).expect("a section");
    let status = fields.iter().find(|field| *field.name == *b":status");
    let status = String::from_utf8_lossy(&status.expect("a status").value).parse();
    status.expect("a number")
}

/// Returns the field section that a stream begins with, if it has come.
fn section_of(stream: &[u8]) -> Option<&[u8]> {
    let (kind, rest) = stream.split_first()?;
    assert_eq!(*kind, 1, "HEADERS");
    let (len, len_len) = Varint::read(rest)?;
    rest.get(len_len..len_len + usize::try_from(len).ok()?)
}

/// Returns a payload in a datagram for a stream.
fn datagram(stream: u64, payload: &[u8]) -> Vec<u8> {
    let quarter = u8::try_from(stream / 4).expect("few streams");
    [&[quarter, 0], payload].concat()
}

#[track_caller]
pub(crate) fn relays(link: &mut QuicLink, stream: u64, peer: &UdpSocket) {
    let before = link.seen(|seen| seen.datagrams.len());
    link.datagram(&datagram(stream, b"up"));
    let (payload, relayed) = link.run_until_heard(peer);
    assert_eq!(payload, b"up");
    peer.send_to(b"down", relayed).expect("a relay socket");
    link.run_until(|seen| seen.datagrams.len() > before);
    let last = link.seen(|seen| seen.datagrams.last().cloned());
    assert_eq!(last, Some(datagram(stream, b"down")));
}

//= V-93
#[test]
fn a_client_has_three_attempts_to_say_who_it_is() {
    let site = Site::new();
    let (server, tls) = relay(site, &[]);
    let peer = peer_socket(site.ip(9));
    let target = peer.local_addr().expect("bound");
    let mut link = QuicLink::connect(&tls, site.ip(3), server.address());
    send_settings(&mut link);
    tunnel(&mut link, target);
    for attempt in 1..=3 {
        let wrong = link.open(true, &request(target, WRONG));
        link.run_until(|seen| {
            seen.closed.is_some() || seen.answers.get(&wrong).is_some_and(|it| !it.is_empty())
        });
        let is_over = link.seen(|seen| seen.closed.is_some());
        assert_eq!(is_over, attempt == 3, "attempt {attempt}");
    }
    let closed = link.seen(|seen| seen.closed.clone());
    assert_eq!(closed, Some(Closed::Remote(EXCESSIVE_LOAD)));
    let mut other = QuicLink::connect(&tls, site.ip(4), server.address());
    send_settings(&mut other);
    let stream = tunnel(&mut other, target);
    relays(&mut other, stream, &peer);
    assert_eq!(server.stop().closed_as("requests_exceeded"), 1);
}

#[test]
fn clients_have_to_show_a_certificate_for_tunnels_too_if_authorities_are_given() {
    let site = Site::new();
    let (authority, other) = (Authority::new(), Authority::new());
    let certificate = authority.options(Key::P256);
    let certificate: Vec<&str> = certificate.iter().map(String::as_str).collect();
    let asked = format!("--CA-file={}", authority.root_file().display());
    let own = ["--quic", "--masque=tls", &asked];
    let server = start(site, &[&own, &certificate[..]].concat());
    let peer = peer_socket(site.ip(9));
    let target = peer.local_addr().expect("bound");
    let (user, ip) = (Credentials::user(USER, PASSWORD), target.ip().to_string());
    let host = (&*ip, target.port());
    let with = |alpn: &'static [u8], identity: Option<&Authority>| {
        let mut tls = authority.client();
        tls.alpn = vec![alpn];
        tls.identity = identity.map(|it| it.issue(Key::P256));
        tls
    };
    for identity in [None, Some(&other)] {
        let mut link = QuicLink::begin(&with(b"h3", identity), site.ip(3), server.address());
        link.run_until(|seen| seen.closed.is_some());
        let is_answered = link.seen(|seen| !seen.control.is_empty());
        assert!(!is_answered, "the relay has said nothing but that");
        // TLS 1.3 tells a client only after it has sent its last flight, so it is the first answer that does not come.
        let tls = with(b"http/1.1", identity);
        let answer = tls.connect(tls_address(site)).map(Tunnel::new);
        let answer = answer.and_then(|mut it| it.ask("relay", host, &user, &[]));
        assert!(answer.is_err(), "{answer:?}");
    }
    let tls = with(b"h3", Some(&authority));
    let mut link = QuicLink::connect(&tls, site.ip(3), server.address());
    send_settings(&mut link);
    let stream = tunnel(&mut link, target);
    relays(&mut link, stream, &peer);
    // A certificate stands for no user.
    let nobody = link.open(true, &request(target, WRONG));
    assert_eq!(status(&mut link, nobody), 407);
    let stream = with(b"http/1.1", Some(&authority)).connect(tls_address(site));
    let mut tunnel = Tunnel::new(stream.expect("a handshake"));
    let answer = tunnel.ask("relay", host, &user, b"up");
    assert!(answer.expect("an answer").is_open);
    assert_eq!(peer_receives(&peer).0, b"up");
    assert_eq!(server.stop().closed_as("handshake_failed"), 4);
}

//= V-87
//= H3-03
#[test]
fn a_client_that_keeps_its_settings_to_itself_holds_no_tunnel() {
    let site = Site::new();
    let (server, tls) = relay(site, &[]);
    let peer = peer_socket(site.ip(9));
    let target = peer.local_addr().expect("bound");
    let mut late = QuicLink::connect(&tls, site.ip(3), server.address());
    let stream = late.open(true, &request(target, RIGHT));
    late.run_for(Duration::from_millis(300));
    let is_answered = late.seen(|seen| seen.answers.contains_key(&stream));
    assert!(!is_answered, "the answer waits");
    send_settings(&mut late);
    late.run_until(|seen| seen.answers.get(&stream).is_some_and(|it| !it.is_empty()));
    relays(&mut late, stream, &peer);
    let mut silent = QuicLink::connect(&tls, site.ip(4), server.address());
    silent.open(true, &request(target, RIGHT));
    silent.run_until(|seen| seen.closed.is_some());
    let closed = silent.seen(|seen| seen.closed.clone());
    assert_eq!(closed, Some(Closed::Remote(MISSING_SETTINGS)));
    relays(&mut late, stream, &peer);
    assert_eq!(server.stop().closed_as("message_late"), 1);
}

//= V-80
#[test]
fn who_has_a_tunnel_keeps_its_place_and_who_has_none_any_more_does_not() {
    let site = Site::new();
    let few = "--max-dtls-sessions-without-allocation-per-address=1";
    let (server, tls) = relay(site, &[few, "--relay-threads=1"]);
    let peer = peer_socket(site.ip(9));
    let target = peer.local_addr().expect("bound");
    let mut first = QuicLink::connect(&tls, site.ip(3), server.address());
    send_settings(&mut first);
    let stream = tunnel(&mut first, target);
    let mut others: Vec<QuicLink> = (0..3)
        .map(|_| QuicLink::connect(&tls, site.ip(3), server.address()))
        .collect();
    relays(&mut first, stream, &peer);
    first.finish(stream);
    first.run_for(Duration::from_millis(200));
    // It came last among those that have none, so that others make room before it does.
    for _ in 0..2 {
        others.push(QuicLink::connect(&tls, site.ip(3), server.address()));
    }
    first.run_until(|seen| seen.closed.is_some());
    let closed = first.seen(|seen| seen.closed.clone());
    assert_eq!(closed, Some(Closed::Remote(EXCESSIVE_LOAD)));
    drop(others);
    server.stop();
}

//= V-91
//= DGR-01
//= UDPX-24
#[test]
fn what_is_for_one_tunnel_comes_through_no_other() {
    let site = Site::new();
    let (server, tls) = relay(site, &[]);
    let peers: Vec<UdpSocket> = (0..2).map(|_| peer_socket(site.ip(9))).collect();
    let mut links: Vec<QuicLink> = [3, 4]
        .map(|host| QuicLink::connect(&tls, site.ip(host), server.address()))
        .into_iter()
        .collect();
    for (link, peer) in links.iter_mut().zip(&peers) {
        send_settings(link);
        assert_eq!(tunnel(link, peer.local_addr().expect("bound")), 0);
    }
    // The streams have the same number, and each is its own connection's.
    for (link, peer) in links.iter_mut().zip(&peers) {
        relays(link, 0, peer);
        for quarter in 1..60 {
            link.datagram(&[quarter, 0, b'x']);
        }
        relays(link, 0, peer);
    }
    let accounting = server.stop();
    assert_eq!(accounting.dropped_as("no_tunnel"), 2 * 59);
}

//= V-54
#[test]
fn the_user_database_is_asked_once_before_a_request_is_refused() {
    let site = Site::new();
    let folder = tempfile::tempdir().expect("a directory");
    let database = folder.path().join("turndb");
    let add = |user: &str| {
        turnadmin(&database, &["-a", "-u", user, "-r", REALM, "-p", "x"]);
    };
    add("first");
    let named = format!("--userdb={}", database.display());
    let (server, tls) = relay(site, &[&named, "--userdb-ask"]);
    let peer = peer_socket(site.ip(9));
    let target = peer.local_addr().expect("bound");
    let basic = |pair: &str| format!("Basic {}", encode_block(pair.as_bytes()));
    let connect = || {
        let mut link = QuicLink::connect(&tls, site.ip(3), server.address());
        send_settings(&mut link);
        link
    };
    let mut link = connect();
    for pair in ["nobody:x", "first:y"] {
        let stream = link.open(true, &request(target, &basic(pair)));
        assert_eq!(status(&mut link, stream), 407, "{pair}");
    }
    // Who has come since is served at the first request; six of them, because the database is also read four times a second, which may come first, and
    // an address may not ask more often. If the database has not answered within the time that a request may wait, which a busy machine may bring
    // about, the request is refused, and the next user is tried, by a connection of its own: one that is refused too often ends.
    let (mut served, mut refused) = (0, 0);
    while served < 6 {
        let user = format!("user-{}", served + refused);
        assert!(refused < 20, "{served} were served");
        link = connect();
        add(&user);
        let stream = link.open(true, &request(target, &basic(&format!("{user}:x"))));
        match status(&mut link, stream) {
            407 => refused += 1,
            status => {
                assert_eq!(status, 200, "{user}");
                relays(&mut link, stream, &peer);
                served += 1;
            }
        }
    }
    // A request that is given up while it waits leaves those beside it alone.
    let beside = tunnel_of(&mut link, target, &basic("first:x"));
    let stream = link.open(true, &request(target, &basic("sixth:x")));
    link.finish(stream);
    link.run_for(Duration::from_millis(400));
    relays(&mut link, beside, &peer);
    drop(link);
    let accounting = server.stop();
    // Nobody is asked for a while after several answers that were late.
    let unanswered = accounting.asked_with("late") + accounting.asked_with("broken");
    assert!(unanswered >= refused, "{accounting:?}");
    assert!(
        accounting.asked_with("vain") + unanswered - refused >= 2,
        "{accounting:?}"
    );
    assert!(accounting.asked_with("found") >= 1, "{accounting:?}");
}

//= V-94
#[test]
fn an_icmp_error_ends_a_tunnel_only_if_it_says_that_its_peer_cannot_be_reached() {
    let site = Site::new();
    let (server, tls) = relay(site, &[]);
    let peer = peer_socket(site.ip(9));
    let target = peer.local_addr().expect("bound");
    let mut link = QuicLink::connect(&tls, site.ip(3), server.address());
    send_settings(&mut link);
    let stream = tunnel(&mut link, target);
    link.datagram(&datagram(stream, b"up"));
    let (_, relayed) = link.run_until_heard(&peer);
    // About others: another host, another port of the peer's, and TCP. About the peer: too big, and too long on its way.
    let other = SocketAddr::new(site.ip(8), target.port());
    if !forge_icmp(site.ip(66), relayed, other) {
        return;
    }
    let port = SocketAddr::new(target.ip(), target.port() ^ 1);
    assert!(forge_icmp(site.ip(66), relayed, port));
    for (protocol, kind_and_code) in [
        (ABOUT_TCP, [3, 3]),
        (ABOUT_UDP, [3, 4]),
        (ABOUT_UDP, [11, 0]),
        (ABOUT_UDP, [12, 0]),
    ] {
        let forged = forge_icmp_about(protocol, kind_and_code, site.ip(66), relayed, target);
        assert!(forged);
    }
    relays(&mut link, stream, &peer);
    // Who knows both ends of the flow is on its path, where it can be cut anyway.
    assert!(forge_icmp(site.ip(66), relayed, target));
    let before = link.seen(|seen| seen.datagrams.len());
    link.run_for(Duration::from_millis(200));
    link.datagram(&datagram(stream, b"nobody is there"));
    link.run_for(Duration::from_millis(200));
    assert_eq!(link.seen(|seen| seen.datagrams.len()), before);
    let accounting = server.stop();
    assert_eq!(accounting.dropped_as("icmp_ends_tunnel"), 1);
    assert_eq!(accounting.dropped_as("no_tunnel"), 1);
}

//= V-90
//= V-15
//= UDPX-03
#[test]
fn a_name_leads_to_the_address_that_was_allowed_and_keeps_nobody_else_waiting() {
    let Some(_world) = World::enter() else {
        return;
    };
    let (peer_ip, forbidden) = (World::client(9), IpAddr::from([10, 77, 0, 1]));
    let slow = ["a", "b", "c", "d", "e", "f", "g", "h", "i"]
        .map(|label| &*format!("{label}.slow.test").leak());
    let records = [
        ("rebinds.test", first_then(peer_ip, forbidden)),
        ("both.test", always(&[forbidden, peer_ip])),
        (
            "inside.test",
            always(&[forbidden, IpAddr::from([127, 0, 0, 1])]),
        ),
    ];
    let silent = slow.map(|name| (name, Record::Silence));
    let _names = NameServer::start(records.into_iter().chain(silent));
    let authority = Authority::new();
    let certificate = authority.options(Key::P256);
    let certificate: Vec<&str> = certificate.iter().map(String::as_str).collect();
    let own = [&World::RELAYS[..], &["--quic", "--masque=tls"]].concat();
    let server = Server::start(World::server(), &[&own[..], &certificate].concat());
    let mut tls = authority.client();
    tls.alpn = vec![b"h3"];
    let peer = peer_socket(peer_ip);
    let port = peer.local_addr().expect("bound").port();
    let canary = Canary::at(SocketAddr::new(forbidden, port));
    let mut link = QuicLink::connect(&tls, World::client(3), server.address());
    send_settings(&mut link);
    let ask = |link: &mut QuicLink, host: &str| link.open(true, &request_of((host, port), RIGHT));
    // The address of the first answer is the one that is used, however the name changes.
    let stream = ask(&mut link, "rebinds.test");
    assert_eq!(status(&mut link, stream), 200);
    let again = ask(&mut link, "rebinds.test");
    assert_eq!(status(&mut link, again), 403);
    relays(&mut link, stream, &peer);
    let both = ask(&mut link, "both.test");
    assert_eq!(status(&mut link, both), 200);
    relays(&mut link, both, &peer);
    for (host, expected) in [
        ("inside.test", 403),
        ("nobody.test", 502),
        (&*"a.".repeat(150), 400),
        (&*"a".repeat(60_000), 431),
    ] {
        let stream = ask(&mut link, host);
        assert_eq!(status(&mut link, stream), expected, "{host:.20}");
    }
    canary.assert_silent();
    // Nobody answers about these: the ninth is refused at once, and whoever needs no name is served meanwhile.
    let [.., last] = slow.map(|name| ask(&mut link, name));
    assert_eq!(status(&mut link, last), 429);
    let beside = ask(&mut link, &peer_ip.to_string());
    assert_eq!(status(&mut link, beside), 200);
    relays(&mut link, beside, &peer);
    drop(link);
    server.stop();
}
