//! V-28 and V-29: other people's allocations and channels.

use std::net::SocketAddr;

use turnbuckle_wire::Method;

use crate::harness::{Canary, Client, Inbound, Server, Site, channel, peer_receives, peer_socket};

fn relay(site: Site) -> Server {
    let relay_ip = format!("--relay-ip={}", site.ip(1));
    Server::start(site.server(), &[&relay_ip, "--allow-loopback-peers"])
}

//= V-28
//= TURN-005
#[test]
fn another_user_on_the_5_tuple_is_refused_and_harms_nobody() {
    let site = Site::new();
    let server = relay(site);
    let mut owner = Client::new(site.ip(2), &server);
    let relayed = owner.allocate();
    let peer = peer_socket(site.ip(7));
    owner
        .channel_bind(channel(0), peer.local_addr().unwrap())
        .expect(200);
    let canary = Canary::at(SocketAddr::new(site.ip(8), 0));
    let elsewhere = SocketAddr::new(site.ip(8), canary.port());

    let mut attacker = owner.as_other_user();
    attacker.refresh(0).expect(441);
    attacker.refresh(3600).expect(441);
    attacker.create_permission(&[elsewhere]).expect(441);
    attacker.channel_bind(channel(1), elsewhere).expect(441);
    attacker
        .channel_bind(channel(0), peer.local_addr().unwrap())
        .expect(441);
    let code = attacker.allocate_with(|_| {}).code();
    assert!([437, 441].contains(&code), "Allocate answered {code}");

    attacker.send_indication(elsewhere, b"Send indication");
    attacker.send_channel_data(channel(1), b"ChannelData");
    owner.settle();
    canary.assert_silent();
    owner.send_channel_data(channel(0), b"out");
    assert_eq!(peer_receives(&peer), (b"out".to_vec(), relayed));
    peer.send_to(b"in", relayed).unwrap();
    assert_eq!(
        owner.receive(),
        Inbound::Channel {
            number: channel(0),
            data: b"in".to_vec()
        }
    );
    owner.refresh(600).expect(200);
}

//= V-28
//= TURN-015
#[test]
fn data_from_another_port_or_address_is_not_the_clients() {
    let site = Site::new();
    let server = relay(site);
    let mut owner = Client::new(site.ip(2), &server);
    owner.allocate();
    let canary = Canary::at(SocketAddr::new(site.ip(7), 0));
    let peer = SocketAddr::new(site.ip(7), canary.port());
    owner.channel_bind(channel(0), peer).expect(200);
    for host in [2, 3] {
        let mut stranger = Client::new(site.ip(host), &server);
        stranger.send_channel_data(channel(0), b"ChannelData");
        stranger.send_indication(peer, b"Send indication");
        stranger.settle();
        // The same user, with valid credentials, and yet not the client.
        stranger
            .request(Method::REFRESH, |writer| {
                writer.lifetime(0);
            })
            .expect(437);
        stranger.create_permission(&[peer]).expect(437);
        stranger.channel_bind(channel(0), peer).expect(437);
    }
    canary.assert_silent();
    owner.send_channel_data(channel(0), b"the owner");
    owner.settle();
    assert_eq!(canary.hits(), ["the owner"]);
    assert_eq!(server.stop().dropped_as("no_allocation"), 4);
}

//= V-29
//= TURN-082
//= TURN-086
#[test]
fn a_channel_is_neither_rebound_nor_doubled() {
    let site = Site::new();
    let server = relay(site);
    let mut client = Client::new(site.ip(2), &server);
    let relayed = client.allocate();
    let (one, two) = (peer_socket(site.ip(7)), peer_socket(site.ip(8)));
    let (peer_one, peer_two) = (one.local_addr().unwrap(), two.local_addr().unwrap());
    client.channel_bind(channel(0), peer_one).expect(200);
    client.channel_bind(channel(0), peer_two).expect(400); // same number, other peer
    client.channel_bind(channel(1), peer_one).expect(400); // other number, same peer
    let other_port = SocketAddr::new(peer_one.ip(), peer_one.port() ^ 1);
    client.channel_bind(channel(0), other_port).expect(400); // same number, other port
    client.channel_bind(channel(0), peer_one).expect(200); // the same again
    client.channel_bind(channel(1), peer_two).expect(200); // another pair
    for (number, socket) in [(channel(0), &one), (channel(1), &two)] {
        client.send_channel_data(number, b"out");
        assert_eq!(peer_receives(socket), (b"out".to_vec(), relayed));
        socket.send_to(b"in", relayed).unwrap();
        assert_eq!(
            client.receive(),
            Inbound::Channel {
                number,
                data: b"in".to_vec()
            }
        );
    }
    assert_eq!(server.stop().dropped, 0);
}

//= V-29
//= TURN-079
#[test]
fn numbers_outside_the_range_are_never_channels() {
    let site = Site::new();
    let server = relay(site);
    let mut client = Client::new(site.ip(2), &server);
    client.allocate();
    let canary = Canary::at(SocketAddr::new(site.ip(7), 0));
    let peer = SocketAddr::new(site.ip(7), canary.port());
    let numbers = [
        0x0000, 0x3FFF, 0x5000, 0x5001, 0x6000, 0x7FFF, 0x8000, 0xFFFF,
    ];
    for number in numbers {
        client.channel_bind(number, peer).expect(400);
        client.send_channel_data(number, b"ChannelData");
    }
    client.settle();
    canary.assert_silent();
    client.channel_bind(0x4FFF, peer).expect(200);
    client.send_channel_data(0x4FFF, b"the last channel");
    client.settle();
    assert_eq!(canary.hits(), ["the last channel"]);
}

//= V-29
//= TURN-087
#[test]
fn a_channel_number_means_something_else_in_another_allocation() {
    let site = Site::new();
    let server = relay(site);
    let (mut one, mut two) = (
        Client::new(site.ip(2), &server),
        Client::other(site.ip(2), &server),
    );
    let relays = [one.allocate(), two.allocate()];
    let peers = [peer_socket(site.ip(7)), peer_socket(site.ip(8))];
    one.channel_bind(channel(0), peers[0].local_addr().unwrap())
        .expect(200);
    // Not bound here, whatever it is over there.
    two.send_channel_data(channel(0), b"unbound");
    two.settle();
    two.channel_bind(channel(0), peers[1].local_addr().unwrap())
        .expect(200);
    one.send_channel_data(channel(0), b"of one");
    two.send_channel_data(channel(0), b"of two");
    assert_eq!(peer_receives(&peers[0]), (b"of one".to_vec(), relays[0]));
    assert_eq!(peer_receives(&peers[1]), (b"of two".to_vec(), relays[1]));
    // A peer that is one client's is a stranger to the other.
    peers[0].send_to(b"in", relays[1]).unwrap();
    two.assert_silent();
    let accounting = server.stop();
    assert_eq!(accounting.dropped_as("channel_not_bound"), 1);
    assert_eq!(accounting.dropped_as("no_permission"), 1);
}
