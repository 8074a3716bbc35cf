//! The limit of the data rate, on the wire and in the accounts.

use std::net::UdpSocket;

use crate::harness::{Authority, Client, Inbound, Server, Site, channel, peer_socket};
use crate::legacy::{clients, start_with};

/// At a thousand bytes a second a minute would pass before all of them could go.
const DATAGRAMS: u32 = 64;
const PAYLOAD: [u8; 500] = [7; 500];

fn limited(site: Site, authority: &Authority) -> Server {
    start_with(site, authority, &["--max-bps=1000"])
}

/// Returns how many datagrams have come.
fn count(socket: &UdpSocket) -> u32 {
    socket.set_nonblocking(true).unwrap();
    let mut buffer = [0; 2048];
    (0..DATAGRAMS)
        .take_while(|_| socket.recv(&mut buffer).is_ok())
        .count()
        .try_into()
        .unwrap()
}

//= TURN-013
#[test]
fn what_a_client_sends_beyond_its_rate_is_dropped_and_counted() {
    let (site, authority) = (Site::new(), Authority::new());
    for transport in 0..4 {
        let server = limited(site, &authority);
        let mut client = clients(site, &authority, &server)
            .into_iter()
            .nth(transport)
            .unwrap();
        client.allocate();
        let peer = peer_socket(site.ip(7));
        client
            .channel_bind(channel(0), peer.local_addr().unwrap())
            .expect(200);
        for _ in 0..DATAGRAMS {
            client.send_channel_data(channel(0), &PAYLOAD);
        }
        client.settle();
        let received = count(&peer);
        assert!(
            (1..DATAGRAMS).contains(&received),
            "{transport}: {received}"
        );
        let accounting = server.stop();
        let dropped = accounting.dropped_as("bandwidth_exceeded");
        assert_eq!(u64::from(DATAGRAMS - received), dropped);
    }
}

//= TURN-013
#[test]
fn what_peers_send_beyond_the_rate_is_dropped_and_counted() {
    let (site, authority) = (Site::new(), Authority::new());
    let server = limited(site, &authority);
    let mut client = Client::new(site.ip(2), &server);
    let relayed = client.allocate();
    let peer = peer_socket(site.ip(7));
    client
        .create_permission(&[peer.local_addr().unwrap()])
        .expect(200);
    for _ in 0..DATAGRAMS {
        peer.send_to(&PAYLOAD, relayed).unwrap();
    }
    client.settle();
    for _ in 0..2 {
        assert!(matches!(client.receive(), Inbound::Data { .. }));
    }
    let dropped = server.stop().dropped_as("bandwidth_exceeded");
    assert!((1..=62).contains(&dropped), "{dropped}");
}
