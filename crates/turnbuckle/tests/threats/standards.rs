//! What the RFCs ask that shows only on the wire, or only there as a whole: header fields, fragments, first bytes, connections.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};
use turnbuckle_wire::{AddressFamily, Class, Method};

use crate::harness::{
    Answer, Authority, Client, Inbound, Key, Server, Site, Tap, World, channel, connect,
    connect_from, peer_receives, peer_socket, plain, relayed, send_marked,
};
use crate::streams::start;

const PEER_V4: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(21, 0, 0, 9));
const PEER_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2a00, 9, 0, 0, 0, 0, 0, 9));
const CLIENT_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2a00, 0x21, 0, 0, 0, 0, 0, 5));
const SERVER_V6: SocketAddr = SocketAddr::new(
    IpAddr::V6(Ipv6Addr::new(0x2a00, 0x20, 0, 0, 0, 0, 0, 1)),
    3478,
);

/// Starts a relay in a [`World`] that listens on both families.
fn start_in_world() -> Server {
    let listen = format!("--listening-ip={}", SERVER_V6.ip());
    Server::start(World::server(), &[&World::RELAYS[..], &[&listen]].concat())
}

/// Returns clients by UDP over IPv4 and IPv6.
fn clients(server: &Server) -> [Client; 2] {
    [
        Client::new(World::client(5), server),
        Client::at(CLIENT_V6, SERVER_V6),
    ]
}

/// Allocates in the family of `peer` and binds channel 0 to it.
fn open(client: &mut Client, peer: SocketAddr) -> SocketAddr {
    let family = AddressFamily::of(peer.ip());
    let answer = client
        .allocate_with(|writer| {
            writer.requested_address_family(family);
        })
        .expect(200);
    client.channel_bind(channel(0), peer).expect(200);
    relayed(&answer, family).expect("of that family")
}

fn channel_message(data: &[u8]) -> Vec<u8> {
    let len = u16::try_from(data.len()).unwrap();
    let mut bytes = channel(0).to_be_bytes().to_vec();
    bytes.extend(len.to_be_bytes());
    bytes.extend(data);
    bytes
}

/// Nothing of the packet that brought data is taken over: what leaves is a packet of this host, of whichever families the two are.
//= TURN-095
//= TURN-096
//= TURN-097
//= TURN-098
//= TURN-099
//= TURN-100
//= TURN-102
#[test]
fn data_leaves_in_packets_of_the_relays_own_making_both_ways() {
    let Some(_world) = World::enter() else {
        return;
    };
    let server = start_in_world();
    let tap = Tap::open();
    for peer_ip in [PEER_V4, PEER_V6] {
        for mut client in clients(&server) {
            let peer = peer_socket(peer_ip);
            let (peer_address, client_address) =
                (peer.local_addr().unwrap(), client.local_address());
            let relayed = open(&mut client, peer_address);
            tap.skip();
            send_marked(client_address, client.server(), &channel_message(b"out"));
            assert_eq!(peer_receives(&peer), (b"out".to_vec(), relayed));
            tap.next(client_address, client.server()).assert_marked();
            tap.next(relayed, peer_address).assert_own();
            send_marked(peer_address, relayed, b"back");
            let expected = Inbound::Channel {
                number: channel(0),
                data: b"back".to_vec(),
            };
            assert_eq!(client.receive(), expected);
            tap.next(peer_address, relayed).assert_marked();
            tap.next(client.server(), client_address).assert_own();
            client.refresh(0).expect(200);
        }
    }
}

//= TURN-106
#[test]
fn data_of_a_tcp_client_leaves_as_any_other() {
    let Some(_world) = World::enter() else {
        return;
    };
    let server = start_in_world();
    let tap = Tap::open();
    let connection = connect_from(World::client(6), server.address());
    setsockopt(&connection, sockopt::Ipv4Tos, &0xB8).unwrap();
    let link = crate::harness::StreamLink::new(connection);
    let mut client = Client::on_stream(link, &server);
    let peer = peer_socket(PEER_V4);
    let peer_address = peer.local_addr().unwrap();
    let relayed = open(&mut client, peer_address);
    client.send_channel_data(channel(0), b"by a marked connection");
    assert_eq!(peer_receives(&peer).0, b"by a marked connection");
    tap.next(relayed, peer_address).assert_own();
    client.send_indication(peer_address, b"by an indication");
    assert_eq!(peer_receives(&peer).0, b"by an indication");
    tap.next(relayed, peer_address).assert_own();
}

/// What is longer than a link takes comes in fragments, is put together, and leaves in fragments of the system's making; nobody is told
/// that it was too big.
//= TURN-103
//= TURN-104
//= TURN-107
#[test]
fn fragments_are_put_together_and_made_anew() {
    let Some(_world) = World::enter() else {
        return;
    };
    let server = start_in_world();
    let set = Command::new("ip")
        .args(["link", "set", "lo", "mtu", "1280"])
        .status();
    assert!(set.unwrap().success());
    let tap = Tap::open();
    let data: Vec<u8> = (0..4000_u16).map(|n| n.to_be_bytes()[1]).collect();
    for peer_ip in [PEER_V4, PEER_V6] {
        let [by_v4, by_v6] = clients(&server);
        for mut client in [by_v4, by_v6, Client::over_tcp(&server)] {
            let peer = peer_socket(peer_ip);
            let peer_address = peer.local_addr().unwrap();
            let relayed = open(&mut client, peer_address);
            tap.skip();
            client.send_channel_data(channel(0), &data);
            assert_eq!(peer_receives(&peer), (data.clone(), relayed));
            let first = tap.next(relayed, peer_address);
            assert!(first.len <= 1280, "{first:?}");
            peer.send_to(&data, relayed).unwrap();
            let expected = Inbound::Channel {
                number: channel(0),
                data: data.clone(),
            };
            assert_eq!(client.receive(), expected);
            client.refresh(0).expect(200);
        }
    }
}

//= TURN-026
//= TURN-040
//= TURN-042
#[test]
fn a_reserved_port_is_kept_for_its_token_which_is_good_once() {
    let site = Site::new();
    let server = start(site, &["--min-port=50000", "--max-port=50001"]);
    let [mut first, mut second, mut third] =
        [2, 3, 4].map(|host| Client::new(site.ip(host), &server));
    let port = |answer: &Answer| relayed(answer, AddressFamily::V4).map(|at| at.port());
    let answer = first.allocate_with(|writer| {
        writer.even_port(true);
    });
    let answer = answer.expect(200);
    assert_eq!(port(&answer), Some(50_000));
    let token = answer.message().reservation_token().unwrap().unwrap();
    second.allocate_with(|_| {}).expect(508);
    let redeem = |client: &mut Client, token| {
        client.allocate_with(|writer| {
            writer.reservation_token(token);
        })
    };
    redeem(&mut second, [token[0] ^ 1; 8]).expect(508);
    let answer = redeem(&mut second, token).expect(200);
    assert_eq!(port(&answer), Some(50_001));
    second.refresh(0).expect(200);
    // Its shard closes the socket after the answer; another shard has no other port to try.
    second.settle();
    redeem(&mut third, token).expect(508);
    third.allocate_with(|_| {}).expect(200);
}

//= TURN-042
//= V-44
#[test]
fn no_other_program_gets_a_reserved_port_and_who_brings_its_token_gets_what_comes_from_then_on() {
    let site = Site::new();
    let bind = |port| UdpSocket::bind((site.ip(1), port));
    let others = bind(50_001).unwrap();
    let server = start(site, &["--min-port=50000", "--max-port=50003"]);
    let [mut first, mut second] = [2, 3].map(|host| Client::new(site.ip(host), &server));
    let answer = first.allocate_with(|writer| {
        writer.even_port(true);
    });
    let answer = answer.expect(200);
    let in_use = |port| bind(port).err().map(|error| error.kind()) == Some(ErrorKind::AddrInUse);
    assert!(in_use(50_002) && in_use(50_003));
    assert!(!in_use(50_000), "of the other pair nothing is left");
    drop(others);

    let reserved = SocketAddr::new(site.ip(1), 50_003);
    let token = answer.message().reservation_token().unwrap().unwrap();
    let peer = peer_socket(site.ip(9));
    peer.send_to(b"too early", reserved).unwrap();
    first.settle();
    let answer = second.allocate_with(|writer| {
        writer.reservation_token(token);
    });
    assert_eq!(
        relayed(&answer.expect(200), AddressFamily::V4),
        Some(reserved)
    );
    let peer_address = peer.local_addr().unwrap();
    second.channel_bind(channel(0), peer_address).expect(200);
    second.send_channel_data(channel(0), b"out");
    assert_eq!(peer_receives(&peer), (b"out".to_vec(), reserved));
    peer.send_to(b"back", reserved).unwrap();
    let expected = Inbound::Channel {
        number: channel(0),
        data: b"back".to_vec(),
    };
    assert_eq!(second.receive(), expected);
    second.refresh(0).expect(200);
    second.settle();
    assert!(!in_use(50_003));
}

//= TURN-107
//= TURN-078
#[test]
fn a_tcp_client_hears_of_icmp_errors_too() {
    let site = Site::new();
    let server = start(site, &[]);
    let mut client = Client::over_tcp(&server);
    client.allocate();
    let peer = peer_socket(site.ip(9)).local_addr().unwrap();
    client.create_permission(&[peer]).expect(200);
    // Nobody is there any more.
    client.send_indication(peer, b"to a closed port");
    let Inbound::Icmp { peer: about, icmp } = client.receive() else {
        panic!("an ICMP error")
    };
    assert_eq!((about, icmp.kind, icmp.code), (peer, 3, 3));
}

/// RFC 7983: what is neither STUN nor a channel is dropped by its first byte, and nothing comes back.
//= MUX-02
//= MUX-03
//= MUX-04
//= MUX-05
//= MUX-06
#[test]
fn every_first_byte_has_its_protocol() {
    let site = Site::new();
    let server = start(site, &["--relay-threads=1"]);
    let mut canary = Client::new(site.ip(3), &server);
    let mut client = Client::new(site.ip(2), &server);
    for first in 4..=u8::MAX {
        let mut datagram = vec![first, 0, 0, 8];
        datagram.resize(28, 0);
        client.send_raw(&datagram);
    }
    canary.settle();
    assert!(client.has_received_nothing());
    let accounting = server.stop();
    // 4 to 19 (ZRTP among them), and 128 to 255 (RTP, QUIC).
    assert_eq!(accounting.dropped_as("protocol_unknown"), 16 + 128);
    // DTLS, which is off.
    assert_eq!(accounting.dropped_as("service_disabled"), 44);
    // ChannelData to 79, and its numbers that RFC 8656 reserves.
    assert_eq!(accounting.dropped_as("no_allocation"), 16 + 48);
}

/// A first byte of 0 to 3 is STUN's: what follows it is judged as a message.
//= MUX-01
#[test]
fn first_bytes_from_0_to_3_are_stun() {
    let site = Site::new();
    let server = start(site, &["--relay-threads=1"]);
    let mut canary = Client::new(site.ip(3), &server);
    let client = peer_socket(site.ip(2));
    for first in 0..=3 {
        // A Binding request, a response to one, and the same of a method that there is not.
        let mut message = plain(Class::Request, Method::BINDING, |_| {});
        message[0] = first;
        client.send_to(&message, server.address()).unwrap();
        message[4] ^= 1; // the magic cookie
        message[3] = 4; // a length beyond the end
        client.send_to(&message, server.address()).unwrap();
    }
    canary.settle();
    assert_eq!(client.recv(&mut [0; 512]).unwrap(), 32, "one answer");
    client.set_nonblocking(true).unwrap();
    assert!(client.recv(&mut [0; 512]).is_err(), "and no second one");
    let accounting = server.stop();
    assert_eq!(accounting.dropped_as("protocol_unknown"), 0);
    assert_eq!(accounting.dropped_as("malformed_stun"), 4);
    assert_eq!(accounting.dropped_as("response_unexpected"), 1);
    assert_eq!(accounting.dropped_as("method_unknown"), 2);
}

//= STUN-010
#[test]
fn nobody_is_called_back_to_be_answered() {
    let site = Site::new();
    let server = start(site, &["--relay-threads=1"]);
    let mut connection = connect_from(site.ip(2), server.address());
    let address = connection.local_addr().unwrap();
    let requests = plain(Class::Request, Method::BINDING, |_| {}).repeat(50);
    setsockopt(
        &connection,
        sockopt::Linger,
        &nix::libc::linger {
            l_onoff: 1,
            l_linger: 0,
        },
    )
    .unwrap();
    connection.write_all(&requests).unwrap();
    // Closed by a reset: nothing waits here any more, and the address is free.
    drop(connection);
    let listener = listen_once_free(address);
    listener.set_nonblocking(true).unwrap();
    Client::new(site.ip(3), &server).settle();
    Client::over_tcp(&server).settle();
    let called = listener.accept().unwrap_err();
    assert_eq!(called.kind(), ErrorKind::WouldBlock);
}

/// Listens where a connection was. A process that another test starts at this moment has a copy of its descriptor until it executes its program, and so
/// long the connection lives.
fn listen_once_free(address: SocketAddr) -> TcpListener {
    let started = Instant::now();
    loop {
        match TcpListener::bind(address) {
            Err(error)
                if error.kind() == ErrorKind::AddrInUse
                    && started.elapsed() < Duration::from_secs(10) =>
            {
                std::thread::sleep(Duration::from_millis(10));
            }
            bound => return bound.unwrap(),
        }
    }
}

/// Returns a ClientHello of TLS 1.2 with these suites and compression methods, the versions it claims, and what key exchange over curves takes.
fn client_hello(version: u8, suites: &[u16], compressions: &[u8]) -> Vec<u8> {
    let mut body = vec![3, version];
    body.extend([0x42; 32]);
    body.push(0);
    let count = u16::try_from(suites.len() * 2).unwrap();
    body.extend(count.to_be_bytes());
    body.extend(suites.iter().flat_map(|suite| suite.to_be_bytes()));
    body.push(u8::try_from(compressions.len()).unwrap());
    body.extend(compressions);
    // supported_groups: P-256; signature_algorithms: ecdsa_secp256r1_sha256; extended_master_secret.
    let extensions = [
        0, 10, 0, 4, 0, 2, 0, 23, 0, 13, 0, 4, 0, 2, 4, 3, 0, 23, 0, 0,
    ];
    let len = u16::try_from(extensions.len()).unwrap();
    body.extend(len.to_be_bytes());
    body.extend(extensions);
    let len = u16::try_from(body.len()).unwrap().to_be_bytes();
    let handshake = [&[1, 0, len[0], len[1]][..], &body].concat();
    let len = u16::try_from(handshake.len()).unwrap().to_be_bytes();
    [&[22, 3, 1, len[0], len[1]][..], &handshake].concat()
}

/// Returns the first record that a server sends: its type and content.
fn first_record(server: SocketAddr, hello: &[u8]) -> (u8, Vec<u8>) {
    let mut connection = connect(server);
    connection
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    connection.write_all(hello).unwrap();
    let mut header = [0; 5];
    connection.read_exact(&mut header).unwrap();
    let mut content = vec![0; usize::from(u16::from_be_bytes([header[3], header[4]]))];
    connection.read_exact(&mut content).unwrap();
    (header[0], content)
}

const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
/// RC4, DES in both strengths, key exchange without forward secrecy, no encryption at all.
const WEAK: [u16; 7] = [0x0005, 0x0009, 0x000A, 0x002F, 0x009C, 0x003B, 0xC007];
const ECDHE_ECDSA_AES128_GCM: u16 = 0xC02B;

//= STUN-013
//= STUN-014
//= STUN-015
//= STUN-016
//= TURN-001
//= DISC-02
#[test]
fn tls_is_spoken_with_forward_secrecy_and_without_compression_or_not_at_all() {
    let site = Site::new();
    let authority = Authority::new();
    let options = authority.options(Key::P256);
    let server = start(site, &[&options[0], &options[1]]);
    let address = server.address();
    // handshake_failure
    assert_eq!(
        first_record(address, &client_hello(3, &WEAK, &[0])),
        (ALERT, vec![2, 40])
    );
    // TLS 1.0 and 1.1: protocol_version
    for version in [1, 2] {
        let hello = client_hello(version, &[ECDHE_ECDSA_AES128_GCM], &[0]);
        assert_eq!(first_record(address, &hello), (ALERT, vec![2, 70]));
    }
    // The good one is chosen although it is the client's last choice, and DEFLATE is not.
    let suites = [&WEAK[..], &[ECDHE_ECDSA_AES128_GCM]].concat();
    let (kind, content) = first_record(address, &client_hello(3, &suites, &[1, 0]));
    assert_eq!((kind, content[0]), (HANDSHAKE, 2), "ServerHello");
    let session_len = usize::from(content[38]);
    let chosen = &content[39 + session_len..];
    assert_eq!(&chosen[..2], ECDHE_ECDSA_AES128_GCM.to_be_bytes());
    assert_eq!(chosen[2], 0, "no compression");
    // And a client without credentials is answered over it.
    let mut link = authority.client().link(address);
    link.write(&plain(Class::Request, Method::BINDING, |_| {}));
    assert!(link.read_message().is_some());
}
