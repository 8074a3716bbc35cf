//! Relay sockets that allocations share (`multiplex-peer`): whose a peer's datagram is, and what nobody can have.

use std::net::SocketAddr;

use crate::harness::{Client, Inbound, Server, Site, channel, peer_receives, peer_socket};

/// Starts a relay on loopback with so many shards; with one, all clients share one socket.
fn relay(site: Site, shards: u16, options: &[&str]) -> Server {
    let relay_ip = format!("--relay-ip={}", site.ip(1));
    let shards = format!("--relay-threads={shards}");
    let common = [
        relay_ip.as_str(),
        "--allow-loopback-peers",
        &shards,
        "--multiplex-peer",
    ];
    let options: Vec<&str> = common.into_iter().chain(options.iter().copied()).collect();
    Server::start(site.server(), &options)
}

fn data(peer: SocketAddr, data: &[u8]) -> Inbound {
    Inbound::Data {
        peer,
        data: data.to_vec(),
    }
}

//= V-29
#[test]
fn a_peers_datagram_reaches_the_client_whose_peer_it_is_and_nobody_else() {
    let site = Site::new();
    let server = relay(site, 1, &[]);
    let descriptors = server.descriptors();
    let mut one = Client::new(site.ip(2), &server);
    let mut other = Client::other(site.ip(3), &server);
    let relayed = one.allocate();
    assert_eq!(other.allocate(), relayed, "they share it");
    assert_eq!(relayed, SocketAddr::new(site.ip(1), 3480));
    assert_eq!(server.descriptors(), descriptors, "no socket was opened");

    let (first, second, third) = (
        peer_socket(site.ip(7)),
        peer_socket(site.ip(7)),
        peer_socket(site.ip(7)),
    );
    let at = [&first, &second, &third].map(|socket| socket.local_addr().unwrap());
    one.create_permission(&[at[0]]).expect(200);
    other.channel_bind(channel(0), at[1]).expect(200);
    other.send_channel_data(channel(0), b"by channel");
    assert_eq!(peer_receives(&second), (b"by channel".to_vec(), relayed));
    one.send_indication(at[0], b"by indication");
    assert_eq!(peer_receives(&first), (b"by indication".to_vec(), relayed));
    first.send_to(b"to the one", relayed).unwrap();
    assert_eq!(one.receive(), data(at[0], b"to the one"));
    second.send_to(b"to the other", relayed).unwrap();
    assert_eq!(
        other.receive(),
        Inbound::Channel {
            number: channel(0),
            data: b"to the other".to_vec()
        }
    );
    // Both have a permission for the address, and neither has named this port.
    third.send_to(b"to nobody", relayed).unwrap();
    one.assert_silent();
    other.assert_silent();

    other.create_permission(&[at[0]]).expect(400);
    other.channel_bind(channel(1), at[0]).expect(400);
    other.send_indication(at[0], b"not mine");
    other.settle();
    first.send_to(b"still to the one", relayed).unwrap();
    assert_eq!(one.receive(), data(at[0], b"still to the one"));
    other.assert_silent();

    one.refresh(0).expect(200);
    first.send_to(b"too late", relayed).unwrap();
    other.assert_silent();
    other.create_permission(&[at[0]]).expect(200);
    first.send_to(b"to the new owner", relayed).unwrap();
    assert_eq!(other.receive(), data(at[0], b"to the new owner"));
    assert_eq!(server.descriptors(), descriptors, "none was closed");
    let accounting = server.stop();
    assert_eq!(accounting.dropped_as("peer_unclaimed"), 2);
    assert_eq!(accounting.dropped_as("peer_taken"), 1);
}

//= V-45
#[test]
fn an_allocation_has_no_more_peers_on_a_shared_socket_than_its_limit() {
    let site = Site::new();
    let server = relay(site, 1, &["--multiplex-peer-max-peers=2"]);
    let mut client = Client::new(site.ip(2), &server);
    client.allocate();
    let peers: Vec<_> = std::iter::repeat_with(|| peer_socket(site.ip(7)))
        .take(3)
        .collect();
    let at: Vec<_> = peers
        .iter()
        .map(|peer| peer.local_addr().unwrap())
        .collect();
    client.create_permission(&at).expect(508);
    client.create_permission(&at[..2]).expect(200);
    client.channel_bind(channel(0), at[2]).expect(508);
    client.send_indication(at[2], b"beyond");
    client.send_indication(at[1], b"within");
    assert_eq!(peer_receives(&peers[1]).0, b"within");
    let accounting = server.stop();
    assert_eq!(accounting.dropped_as("peer_limit"), 1);
}

//= V-07
#[test]
fn no_client_reaches_a_shared_relay_socket_as_a_peer() {
    let site = Site::new();
    let server = relay(site, 2, &["--user-quota=1"]);
    let mut client = Client::new(site.ip(2), &server);
    client.allocate();
    // Those of both shards, and the address as a whole claims nothing.
    for port in [3480, 3482] {
        let own = SocketAddr::new(site.ip(1), port);
        client.create_permission(&[own]).expect(403);
        client.channel_bind(channel(0), own).expect(403);
        client.send_indication(own, b"to itself");
    }
    client.settle();
    client
        .allocate_with(|writer| {
            writer.requested_transport(17);
        })
        .expect(437);
    client.refresh(0).expect(200);
    // The quota is exact: what has ended counts for nobody.
    for _ in 0..3 {
        client.fetch_challenge();
        client.allocate();
        client.refresh(0).expect(200);
    }
    assert_eq!(server.stop().dropped_as("peer_forbidden"), 2);
}

#[test]
fn even_port_and_reservation_tokens_are_refused_over_shared_relay_sockets() {
    let site = Site::new();
    let server = relay(site, 1, &[]);
    let mut client = Client::new(site.ip(2), &server);
    for reserves in [false, true] {
        client
            .allocate_with(|writer| {
                writer.requested_transport(17).even_port(reserves);
            })
            .expect(508);
    }
    client
        .allocate_with(|writer| {
            writer.requested_transport(17).reservation_token([7; 8]);
        })
        .expect(400);
    client.allocate();
    server.stop();
}
