//! One port for everything: proxies that say for whom they speak, strangers that say so too, and HTTP.
//!
//! Who may claim an address can have answers and media sent there, and appears in logs and limits as its owner; so a header counts
//! from configured addresses alone, and there it must not be missing.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use turnbuckle_wire::{Class, Message, Method};

use crate::control::Steered;
use crate::harness::{
    Authority, Client, Key, Server, Site, StreamLink, channel, connect_from, peer_receives,
    peer_socket, plain,
};
use crate::streams::{relay_both_ways, start};

/// Where the client is that a proxy speaks for.
const CLIENT: &str = "198.51.100.7:4660";

fn header_1(client: &str) -> Vec<u8> {
    let client: SocketAddr = client.parse().unwrap();
    let (family, server) = match client {
        SocketAddr::V4(_) => ("TCP4", "192.0.2.1"),
        SocketAddr::V6(_) => ("TCP6", "2001:db8::1"),
    };
    let (ip, port) = (client.ip(), client.port());
    format!("PROXY {family} {ip} {server} {port} 3478\r\n").into_bytes()
}

/// Returns a header of version 2 for an IPv4 client; `transport` is 1 for a stream, 2 for a datagram.
fn header_2(client: &str, transport: u8) -> Vec<u8> {
    let client: SocketAddr = client.parse().unwrap();
    let IpAddr::V4(ip) = client.ip() else {
        panic!("IPv4 only")
    };
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21".to_vec();
    header.extend([0x10 | transport, 0, 12]);
    header.extend(ip.octets());
    header.extend([192, 0, 2, 1]);
    header.extend(client.port().to_be_bytes());
    header.extend(3478_u16.to_be_bytes());
    header
}

/// A header that says that the proxy speaks for itself.
const LOCAL: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";

fn binding() -> Vec<u8> {
    plain(Class::Request, Method::BINDING, |_| {})
}

/// Returns the address that a Binding success tells its client.
fn mapped(answer: &[u8]) -> SocketAddr {
    let message = Message::parse(answer).expect("STUN");
    message
        .xor_mapped_address()
        .expect("well formed")
        .expect("XOR-MAPPED-ADDRESS")
}

/// Starts a relay for which `host` 5 of the site is a proxy.
fn start_behind_proxy(site: Site, options: &[&str]) -> Server {
    let source = format!("--proxy-protocol-source={}", site.ip(5));
    start(site, &[&[source.as_str()], options].concat())
}

fn link_from(site: Site, host: u8, server: SocketAddr) -> StreamLink {
    StreamLink::new(connect_from(site.ip(host), server))
}

#[test]
fn the_client_is_whom_the_proxy_names_in_either_version() {
    let site = Site::new();
    let server = start_behind_proxy(site, &[]);
    for (header, expected) in [
        (header_1(CLIENT), Some(CLIENT)),
        (header_1("[2001:db8::7]:4660"), Some("[2001:db8::7]:4660")),
        (header_2(CLIENT, 1), Some(CLIENT)),
        (b"PROXY UNKNOWN\r\n".to_vec(), None),
        (LOCAL.to_vec(), None),
    ] {
        // In one piece, and byte by byte.
        for piece in [usize::MAX, 1] {
            let mut link = link_from(site, 5, server.address());
            for bytes in [&header[..], &binding()].concat().chunks(piece.min(1000)) {
                link.write(bytes);
            }
            let answer = link.read_message().expect("an answer");
            match expected {
                Some(client) => assert_eq!(mapped(&answer), client.parse().unwrap()),
                None => assert_eq!(mapped(&answer).ip(), site.ip(5)),
            }
        }
    }
    let mut link = link_from(site, 5, server.address());
    link.write(&header_1(CLIENT));
    let mut client = Client::on_stream(link, &server);
    relay_both_ways(&mut client, site.ip(9));
    // Those who come directly are not disturbed.
    relay_both_ways(&mut Client::over_tcp(&server), site.ip(9));
}

#[test]
fn a_header_of_somebody_who_is_no_proxy_closes_the_connection_and_is_counted() {
    let site = Site::new();
    let server = start_behind_proxy(site, &[]);
    for header in [header_1(CLIENT), header_2(CLIENT, 1), LOCAL.to_vec()] {
        let mut link = link_from(site, 6, server.address());
        link.write(&[&header[..], &binding()].concat());
        assert_eq!(link.read_to_close(), b"");
    }
    let accounting = server.stop();
    assert_eq!(accounting.closed_as("proxy_refused"), 3);
    assert_eq!(accounting.dropped_as("service_disabled"), 3);
}

/// A proxy that adds no header would let its clients add one of their own.
#[test]
fn a_proxy_has_to_begin_with_a_header_and_with_one_alone() {
    let site = Site::new();
    let server = start_behind_proxy(site, &[]);
    let oversized = [b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xFF\xFF", &[0; 40][..]].concat();
    let malformed: [Vec<u8>; 6] = [
        binding(),
        b"PROXY TCP4 198.51.100.7 192.0.2.1 4660\r\n".to_vec(),
        b"PROXY TCP4 0.0.0.0 192.0.2.1 4660 3478\r\n".to_vec(),
        [b"PROXY TCP4 ", &[b'1'; 200][..]].concat(),
        header_2(CLIENT, 2),
        oversized,
    ];
    for bytes in &malformed {
        let mut link = link_from(site, 5, server.address());
        link.write(bytes);
        assert_eq!(link.read_to_close(), b"", "{bytes:?}");
    }
    let mut link = link_from(site, 5, server.address());
    link.write(&[header_1(CLIENT), header_1("198.51.100.8:1"), binding()].concat());
    assert_eq!(link.read_to_close(), b"");
    let accounting = server.stop();
    assert_eq!(accounting.closed_as("proxy_header"), malformed.len() as u64);
    assert_eq!(accounting.closed_as("proxy_refused"), 1);
}

#[test]
fn a_header_that_trickles_is_closed_by_the_deadline() {
    let site = Site::new();
    let server = start_behind_proxy(site, &["--stream-deadline=2"]);
    let started = Instant::now();
    let mut connections: Vec<_> = (0..20)
        .map(|_| connect_from(site.ip(5), server.address()))
        .collect();
    let header = header_1(CLIENT);
    // Bytes that go on coming move no deadline.
    for byte in header.iter().take(10) {
        for connection in &mut connections {
            // Late in the series it may be closed already.
            let _ = connection.write_all(&[*byte]);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    for connection in &mut connections {
        connection
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let end = connection.read(&mut [0; 8]);
        assert!(!matches!(end, Ok(1..)), "{end:?}");
    }
    assert!(started.elapsed() < Duration::from_secs(19));
    assert_eq!(server.stop().closed_as("proxy_late"), 20);
}

#[test]
fn tls_works_behind_a_header_on_the_proxies_own_port_where_nobody_else_is_served() {
    let site = Site::new();
    let authority = Authority::new();
    let [certificate, key] = authority.options(Key::P256);
    let server = start_behind_proxy(site, &["--tcp-proxy-port=8443", &certificate, &key]);
    let port = SocketAddr::new(site.ip(1), 8443);
    let greeting = server.greeting();
    assert!(
        greeting.contains(&format!("listening on TCP and TLS {port} for proxies")),
        "{greeting}"
    );
    let mut connection = connect_from(site.ip(5), port);
    connection.write_all(&header_2(CLIENT, 1)).unwrap();
    let mut link = StreamLink::new(authority.client().on(connection).unwrap());
    link.write(&binding());
    let answer = link.read_message().expect("an answer");
    assert_eq!(mapped(&answer), CLIENT.parse().unwrap());
    relay_both_ways(&mut Client::on_stream(link, &server), site.ip(9));
    // Without TLS too.
    let mut link = link_from(site, 5, port);
    link.write(&[header_1(CLIENT), binding()].concat());
    assert!(link.read_message().is_some());
    // From elsewhere nothing is heard, and the ordinary ports are closed.
    let mut stranger = link_from(site, 6, port);
    assert_eq!(stranger.read_to_close(), b"");
    for port in [3478, 5349] {
        let address = SocketAddr::new(site.ip(1), port);
        std::net::TcpStream::connect(address).expect_err("nobody listens");
    }
    assert_eq!(server.stop().closed_as("proxy_refused"), 1);
}

#[test]
fn a_client_behind_a_proxy_for_udp_relays_both_ways_and_is_answered_through_the_proxy() {
    let site = Site::new();
    let source = format!("--udp-proxy-protocol-source={}", site.ip(5));
    // One shard, so that both clients are known to the same one.
    let server = start(site, &[&source, "--relay-threads=1"]);
    // The address that the proxy claims is that of another client, who would hear whatever went there.
    let mut direct = Client::new(site.ip(8), &server);
    let claimed = direct.local_address();
    let mut client = Client::new(site.ip(5), &server);
    client.put_first(&header_2(&claimed.to_string(), 2));
    let answer = client.exchange(&binding());
    assert_eq!(mapped(&answer.0), claimed);
    relay_both_ways(&mut client, site.ip(9));
    direct.assert_silent();
    // Nor is it the same client: what is the proxied one's is not the direct one's.
    let peer = peer_socket(site.ip(9));
    let address = peer.local_addr().unwrap();
    client.channel_bind(channel(4), address).expect(200);
    direct.send_channel_data(channel(4), b"as if I were behind the proxy");
    direct.settle();
    client.send_channel_data(channel(4), b"behind the proxy");
    let (first, _) = peer_receives(&peer);
    assert_eq!(first, b"behind the proxy");
    direct.allocate();
    client.refresh(600).expect(200);
    // The proxy's own questions, say whether the server is there, are answered to itself.
    client.put_first(LOCAL);
    let answer = client.exchange(&binding());
    assert_eq!(mapped(&answer.0), client.local_address());
    assert_eq!(server.stop().dropped_as("no_allocation"), 1);
}

#[test]
fn datagrams_with_a_header_count_from_a_proxy_alone_and_those_without_from_all_others_alone() {
    let site = Site::new();
    let source = format!("--udp-proxy-protocol-source={}", site.ip(5));
    let server = start(site, &[&source, "--relay-threads=1"]);
    let mut canary = Client::new(site.ip(7), &server);
    let mut dropped = 0;
    // A stranger with a header; a proxy without one, with half of one, one for connections, one and nothing else, one of version 1.
    for (host, datagram) in [
        (6, [&header_2(CLIENT, 2)[..], &binding()].concat()),
        (6, [LOCAL, &binding()].concat()),
        (5, binding()),
        (5, header_2(CLIENT, 2)[..20].to_vec()),
        (5, [&header_2(CLIENT, 1)[..], &binding()].concat()),
        (5, header_2(CLIENT, 2)),
        (5, [&header_1(CLIENT)[..], &binding()].concat()),
        (5, [&header_2("0.0.0.0:9", 2)[..], &binding()].concat()),
    ] {
        let mut client = Client::new(site.ip(host), &server);
        client.send_raw(&datagram);
        dropped += 1;
        canary.settle();
        assert!(client.has_received_nothing(), "{datagram:?}");
    }
    assert_eq!(server.stop().dropped_as("protocol_unknown"), dropped);
}

#[test]
fn who_is_a_proxy_for_udp_is_as_a_reload_says() {
    let site = Site::new();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("relay.conf");
    let name = |host: u8| {
        let line = format!("udp-proxy-protocol-source={}\n", site.ip(host));
        std::fs::write(&file, line).unwrap();
    };
    name(5);
    let config = format!("--config={}", file.display());
    let steered = Steered::start(site, &[&config, "--relay-threads=1"]);
    let server = &steered.server;
    let mut canary = Client::new(site.ip(7), server);
    let header = header_2(CLIENT, 2);
    let mut is_proxy_and_other_is_none = |proxy: u8, other: u8| {
        let [mut behind, mut direct] =
            [proxy, other].map(|host| Client::new(site.ip(host), server));
        behind.put_first(&header);
        let answer = behind.exchange(&binding());
        assert_eq!(mapped(&answer.0), CLIENT.parse().unwrap());
        let answer = direct.exchange(&binding());
        assert_eq!(mapped(&answer.0), direct.local_address());
        for (host, datagram) in [
            (proxy, binding()),
            (other, [&header[..], &binding()].concat()),
        ] {
            let mut client = Client::new(site.ip(host), server);
            client.send_raw(&datagram);
            canary.settle();
            assert!(client.has_received_nothing(), "{datagram:?}");
        }
    };
    is_proxy_and_other_is_none(5, 6);
    name(6);
    steered.ctl(&["reload"]).expect(0);
    is_proxy_and_other_is_none(6, 5);
    assert_eq!(steered.server.stop().dropped_as("protocol_unknown"), 4);
}

#[test]
fn dtls_works_behind_a_header_and_is_answered_through_the_proxy_that_it_came_through() {
    let site = Site::new();
    let authority = Authority::new();
    let source = format!("--udp-proxy-protocol-source={}-{}", site.ip(5), site.ip(6));
    let [certificate, key] = authority.options(Key::P256);
    // One shard, so that all are known to the same one.
    let options = [&source, "--dtls", &certificate, &key, "--relay-threads=1"];
    let server = start(site, &options);
    // The address that the proxy claims is that of another client, who would hear whatever went there.
    let mut direct = Client::new(site.ip(8), &server);
    let claimed = header_2(&direct.local_address().to_string(), 2);
    let mut session = authority.dtls_client().begin(site.ip(5), server.address());
    session.put_first(&claimed);
    session.shake_hands().unwrap();
    let mut client = Client::over_dtls(session, &server);
    let answer = client.exchange(&binding());
    assert_eq!(mapped(&answer.0), direct.local_address());
    relay_both_ways(&mut client, site.ip(9));
    direct.assert_silent();
    // Through another proxy, or without one, the same records are nobody's.
    client.exchange(&binding());
    let record = client.session().last_sent().to_vec();
    let mut other = Client::new(site.ip(6), &server);
    other.put_first(&claimed);
    for mut from in [other, direct] {
        from.send_raw(&record);
        from.assert_silent();
    }
    client.refresh(600).expect(200);
    assert_eq!(server.stop().dropped_as("dtls_no_session"), 2);
}

#[test]
fn a_proxy_for_udp_gets_no_further_than_others_where_only_dtls_is_served() {
    let site = Site::new();
    let authority = Authority::new();
    let source = format!("--udp-proxy-protocol-source={}", site.ip(5));
    let [certificate, key] = authority.options(Key::P256);
    let port = format!("--tls-listening-port={}", site.server().port());
    let options = [&source, "--no-udp", "--dtls", &certificate, &key, &port];
    let server = start(site, &options);
    let mut proxy = Client::new(site.ip(5), &server);
    proxy.send_raw(&[&header_2(CLIENT, 2)[..], &binding()].concat());
    Client::over_tcp(&server).settle();
    assert!(proxy.has_received_nothing());
    assert_eq!(server.stop().dropped_as("service_disabled"), 1);
}

#[test]
fn http_is_closed_without_a_word_or_answered_if_that_is_wanted() {
    let site = Site::new();
    let request = b"GET /index.html HTTP/1.1\r\nHost: relay.example.org\r\n\r\n";
    let server = start(site, &[]);
    let mut link = StreamLink::tcp(server.address());
    link.write(request);
    assert_eq!(link.read_to_close(), b"");
    let accounting = server.stop();
    assert_eq!(accounting.closed_as("http"), 1);
    assert_eq!(accounting.dropped_as("service_disabled"), 1);

    let site = Site::new();
    let authority = Authority::new();
    let [certificate, key] = authority.options(Key::P256);
    let redirect = "--acme-redirect=https://acme.example.org/c/";
    let server = start_behind_proxy(
        site,
        &["--respond-http-unsupported", redirect, &certificate, &key],
    );
    let told = |link: &mut StreamLink, request: &[u8]| {
        for piece in request.chunks(7) {
            link.write(piece);
        }
        String::from_utf8(link.read_to_close()).unwrap()
    };
    let answer = told(&mut StreamLink::tcp(server.address()), request);
    assert!(
        answer.starts_with("HTTP/1.1 400 Bad Request\r\n"),
        "{answer}"
    );
    let mut secure = authority.client().link(server.address());
    let answer = told(&mut secure, request);
    assert!(
        answer.starts_with("HTTP/1.1 400 Bad Request\r\n"),
        "{answer}"
    );
    let challenge = b"GET /.well-known/acme-challenge/t0ken HTTP/1.1\r\n\r\n";
    let answer = told(&mut StreamLink::tcp(server.address()), challenge);
    assert!(
        answer.contains("\r\nLocation: https://acme.example.org/c/t0ken\r\n"),
        "{answer}"
    );
    // Through a proxy as well, and TURN goes on at the same port.
    let mut link = link_from(site, 5, server.address());
    link.write(&header_1(CLIENT));
    assert!(told(&mut link, request).starts_with("HTTP/1.1 400 "));
    relay_both_ways(&mut Client::over_tcp(&server), site.ip(9));
    assert_eq!(server.stop().closed_as("http"), 4);
}
