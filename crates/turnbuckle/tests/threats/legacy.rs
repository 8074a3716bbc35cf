//! What only old clients need: served where it is switched on, on whatever transport they come, and nowhere else.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use crate::harness::{Authority, Client, Inbound, Key, Server, Site, peer_receives, peer_socket};
use crate::streams::start;

/// The last number of RFC 5766, whose first byte is QUIC's by now (RFC 9443 §3).
const NUMBER: u16 = 0x7FFF;
/// A Binding request of RFC 3489: sixteen bytes of it are transaction id, none a magic cookie.
const CLASSIC: [u8; 20] = *b"\0\x01\0\0sixteen-bytes-id";

/// Returns a client of each transport.
pub(crate) fn clients(site: Site, authority: &Authority, server: &Server) -> [Client; 4] {
    let dtls = authority.dtls_client();
    [
        Client::new(site.ip(2), server),
        Client::over_tcp(server),
        Client::on_stream(authority.client().link(server.address()), server),
        Client::over_dtls(dtls.connect(site.ip(2), server.address()).unwrap(), server),
    ]
}

/// Starts a server for clients of each transport.
pub(crate) fn start_with(site: Site, authority: &Authority, options: &[&str]) -> Server {
    let certificate = authority.options(Key::P256);
    let certificate: Vec<&str> = certificate.iter().map(String::as_str).collect();
    start(site, &[&["--dtls"], &certificate[..], options].concat())
}

#[test]
fn channel_numbers_of_rfc_5766_carry_data_on_every_transport_where_they_are_switched_on() {
    let (site, authority) = (Site::new(), Authority::new());
    let server = start_with(site, &authority, &["--rfc5766-channel-numbers"]);
    for mut client in clients(site, &authority, &server) {
        let peer = peer_socket(site.ip(9));
        client.allocate();
        client
            .channel_bind(NUMBER, peer.local_addr().unwrap())
            .expect(200);
        client.send_channel_data(NUMBER, b"there");
        let (data, relayed) = peer_receives(&peer);
        assert_eq!(data, b"there");
        peer.send_to(b"and back", relayed).unwrap();
        let expected = Inbound::Channel {
            number: NUMBER,
            data: b"and back".to_vec(),
        };
        assert_eq!(client.receive(), expected);
    }
}

#[test]
fn channel_numbers_of_rfc_5766_are_no_numbers_unless_they_are_switched_on() {
    let (site, authority) = (Site::new(), Authority::new());
    let server = start_with(site, &authority, &[]);
    for mut client in clients(site, &authority, &server) {
        client.allocate();
        let peer = peer_socket(site.ip(9)).local_addr().unwrap();
        client.channel_bind(NUMBER, peer).expect(400);
    }
}

/// Returns what comes for `request` from a socket at `address`, if anything does.
fn answer_to(request: &[u8], site: Site, server: &Server) -> Option<(SocketAddr, Vec<u8>)> {
    let socket = UdpSocket::bind((site.ip(2), 0)).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    let mut buffer = [0; 1500];
    for _ in 0..12 {
        socket.send_to(request, server.address()).unwrap();
        if let Ok((len, from)) = socket.recv_from(&mut buffer) {
            assert_eq!(from, server.address());
            return Some((socket.local_addr().unwrap(), buffer[..len].to_vec()));
        }
    }
    None
}

//= STUN-068
#[test]
fn a_client_of_rfc_3489_learns_its_address_where_that_is_switched_on() {
    let site = Site::new();
    let server = start(site, &["--rfc3489-compatibility"]);
    let (client, answer) = answer_to(&CLASSIC, site, &server).expect("an answer");
    let SocketAddr::V4(client) = client else {
        panic!("a client of IPv4")
    };
    let mapped = [
        &[0, 1, 0, 8, 0, 1][..],
        &client.port().to_be_bytes(),
        &client.ip().octets(),
    ];
    assert_eq!(answer[..4], [1, 1, 0, 24], "a Binding response");
    assert_eq!(answer[4..20], CLASSIC[4..]);
    assert_eq!(answer[20..32], mapped.concat());
}

#[test]
fn a_client_of_rfc_3489_gets_no_answer_unless_that_is_switched_on() {
    let site = Site::new();
    let server = start(site, &["--relay-threads=1"]);
    let socket = UdpSocket::bind((site.ip(2), 0)).unwrap();
    for _ in 0..8 {
        socket.send_to(&CLASSIC, server.address()).unwrap();
    }
    Client::new(site.ip(2), &server).settle();
    let accounting = server.stop();
    assert_eq!(accounting.dropped_as("malformed_stun"), 8);
}
