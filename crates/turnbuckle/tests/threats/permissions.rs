//! V-13: what a permission lets through, for how long, and what it does not.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use turnbuckle_wire::AddressFamily;

use crate::harness::{
    ABOUT_TCP, ABOUT_UDP, Canary, Client, Inbound, Server, Site, World, channel, forge_icmp,
    forge_icmp_about, peer_receives, peer_socket, relayed,
};

/// Starts a relay on loopback that may reach loopback peers.
fn relay(site: Site, options: &[&str]) -> Server {
    let relay_ip = format!("--relay-ip={}", site.ip(1));
    let options: Vec<&str> = [relay_ip.as_str(), "--allow-loopback-peers"]
        .into_iter()
        .chain(options.iter().copied())
        .collect();
    Server::start(site.server(), &options)
}

//= V-13
//= TURN-060
//= TURN-070
//= TURN-091
#[test]
fn nothing_passes_without_a_permission() {
    let site = Site::new();
    let server = relay(site, &[]);
    let mut client = Client::new(site.ip(2), &server);
    let relayed = client.allocate();
    let canary = Canary::at(SocketAddr::new(site.ip(7), 0));
    let peer = SocketAddr::new(site.ip(7), canary.port());
    client.send_indication(peer, b"Send indication");
    client.send_channel_data(channel(0), b"ChannelData");
    client.settle();
    canary.assert_silent();
    peer_socket(site.ip(7))
        .send_to(b"from a peer", relayed)
        .unwrap();
    client.assert_silent();
    let accounting = server.stop();
    assert_eq!(accounting.dropped_as("no_permission"), 2);
    assert_eq!(accounting.dropped_as("channel_not_bound"), 1);
}

//= V-13
//= TURN-057
//= TURN-066
//= TURN-072
//= TURN-073
#[test]
fn a_permission_is_for_an_address_whatever_the_port() {
    let site = Site::new();
    let server = relay(site, &[]);
    let mut client = Client::new(site.ip(2), &server);
    let relayed = client.allocate();
    let (peer, same_ip, other_ip) = (
        peer_socket(site.ip(7)),
        peer_socket(site.ip(7)),
        peer_socket(site.ip(8)),
    );
    client
        .create_permission(&[peer.local_addr().unwrap()])
        .expect(200);
    for socket in [&peer, &same_ip] {
        let address = socket.local_addr().unwrap();
        socket.send_to(b"in", relayed).unwrap();
        assert_eq!(
            client.receive(),
            Inbound::Data {
                peer: address,
                data: b"in".to_vec()
            }
        );
        client.send_indication(address, b"out");
        assert_eq!(peer_receives(socket), (b"out".to_vec(), relayed));
    }
    other_ip.send_to(b"in", relayed).unwrap();
    client.assert_silent();
    let canary = Canary::at(SocketAddr::new(site.ip(8), 0));
    client.send_indication(SocketAddr::new(site.ip(8), canary.port()), b"out");
    client.settle();
    canary.assert_silent();
    assert_eq!(server.stop().dropped_as("no_permission"), 2);
}

//= V-13
//= TURN-094
#[test]
fn a_permission_ends_and_with_it_what_passes_both_ways() {
    let site = Site::new();
    let server = relay(site, &["--permission-lifetime=4"]);
    let mut client = Client::new(site.ip(2), &server);
    let relayed = client.allocate();
    let (by_indication, by_channel) = (peer_socket(site.ip(7)), peer_socket(site.ip(8)));
    let addresses = [
        by_indication.local_addr().unwrap(),
        by_channel.local_addr().unwrap(),
    ];
    client.create_permission(&addresses[..1]).expect(200);
    client.channel_bind(channel(0), addresses[1]).expect(200);
    client.send_indication(addresses[0], b"in time");
    client.send_channel_data(channel(0), b"in time");
    assert_eq!(peer_receives(&by_indication).0, b"in time");
    assert_eq!(peer_receives(&by_channel).0, b"in time");

    std::thread::sleep(Duration::from_millis(4_200));
    // The channel lives on, its permission does not (TURN-094).
    client.send_indication(addresses[0], b"too late");
    client.send_channel_data(channel(0), b"too late");
    by_indication.send_to(b"too late", relayed).unwrap();
    by_channel.send_to(b"too late", relayed).unwrap();
    client.assert_silent();
    for socket in [&by_indication, &by_channel] {
        socket.set_nonblocking(true).unwrap();
        assert!(
            socket.recv_from(&mut [0; 64]).is_err(),
            "nothing arrives after the permission's end"
        );
    }
    assert_eq!(server.stop().dropped_as("no_permission"), 4);
}

//= V-13
//= TURN-070
//= TURN-092
#[test]
fn neither_data_nor_inbound_traffic_prolongs_a_permission() {
    let site = Site::new();
    let server = relay(site, &["--permission-lifetime=2"]);
    let mut client = Client::new(site.ip(2), &server);
    let relayed = client.allocate();
    let peer = peer_socket(site.ip(7));
    let address = peer.local_addr().unwrap();
    client.channel_bind(channel(0), address).expect(200);
    for _ in 0..11 {
        client.send_indication(address, b"keep it");
        client.send_channel_data(channel(0), b"keep it");
        peer.send_to(b"keep it", relayed).unwrap();
        std::thread::sleep(Duration::from_millis(200));
    }
    client.settle();
    client.forget_data();
    peer.send_to(b"too late", relayed).unwrap();
    client.assert_silent();
}

//= V-13
//= TURN-058
#[test]
fn a_permission_of_one_allocation_is_none_of_another() {
    let site = Site::new();
    let server = relay(site, &[]);
    let (mut owner, mut neighbour) = (
        Client::new(site.ip(2), &server),
        Client::new(site.ip(2), &server),
    );
    owner.allocate();
    let relayed = neighbour.allocate();
    let peer = peer_socket(site.ip(7));
    owner
        .create_permission(&[peer.local_addr().unwrap()])
        .expect(200);
    peer.send_to(b"in", relayed).unwrap();
    neighbour.send_indication(peer.local_addr().unwrap(), b"out");
    neighbour.assert_silent();
    peer.set_nonblocking(true).unwrap();
    assert!(peer.recv_from(&mut [0; 64]).is_err());
    assert_eq!(server.stop().dropped_as("no_permission"), 2);
}

//= V-13
#[test]
fn a_permission_of_one_family_is_none_of_the_other() {
    let Some(_world) = World::enter() else { return };
    let server = Server::start(World::server(), &World::RELAYS);
    let mut client = Client::new(World::client(1), &server);
    let answer = client
        .allocate_with(|writer| {
            writer.additional_address_family(AddressFamily::V6);
        })
        .expect(200);
    let peers = [
        peer_socket([21, 0, 0, 9].into()),
        peer_socket("2a00:9::9".parse().unwrap()),
    ];
    let addresses = peers.each_ref().map(|peer| peer.local_addr().unwrap());
    let relays =
        [AddressFamily::V4, AddressFamily::V6].map(|family| relayed(&answer, family).unwrap());
    client.create_permission(&addresses[..1]).expect(200);
    // An IPv6 spelling of the permitted IPv4 address is no other peer, an IPv6 peer is.
    peers[1].send_to(b"in", relays[1]).unwrap();
    client.send_indication(addresses[1], b"out");
    client.assert_silent();
    peers[1].set_nonblocking(true).unwrap();
    assert!(peers[1].recv_from(&mut [0; 64]).is_err());
    // The permission there is works.
    client.send_indication(addresses[0], b"out");
    assert_eq!(peer_receives(&peers[0]), (b"out".to_vec(), relays[0]));
    assert_eq!(server.stop().dropped_as("no_permission"), 2);
}

//= V-13
//= TURN-064
//= TURN-065
#[test]
fn one_forbidden_peer_in_a_request_leaves_none_permitted() {
    let site = Site::new();
    let server = relay(site, &[]);
    let mut client = Client::new(site.ip(2), &server);
    client.allocate();
    let canary = Canary::at(SocketAddr::new(site.ip(7), 0));
    let good = SocketAddr::new(site.ip(7), canary.port());
    let forbidden = SocketAddr::new(IpAddr::from([169, 254, 169, 254]), 80);
    for peers in [[good, forbidden], [forbidden, good]] {
        client.create_permission(&peers).expect(403);
    }
    client.send_indication(good, b"out");
    client.settle();
    canary.assert_silent();
}

/// Types of ICMPv4 that no peer's host or router on the way sends about a datagram, and errors about what is no datagram.
//= TURN-075
#[test]
fn only_errors_about_datagrams_are_relayed_and_only_the_two_types_of_the_rfc() {
    let site = Site::new();
    let server = relay(site, &[]);
    let mut client = Client::new(site.ip(2), &server);
    let relayed = client.allocate();
    let peer = peer_socket(site.ip(7)).local_addr().unwrap();
    client.create_permission(&[peer]).expect(200);
    let forged = |protocol, kind_and_code| {
        forge_icmp_about(protocol, kind_and_code, site.ip(66), relayed, peer)
    };
    if !forged(ABOUT_TCP, [3, 3]) {
        return;
    }
    // Source quench and parameter problem.
    assert!(forged(ABOUT_UDP, [4, 0]));
    assert!(forged(ABOUT_UDP, [12, 0]));
    client.assert_silent();
    for kind_and_code in [[3, 1], [11, 0]] {
        assert!(forged(ABOUT_UDP, kind_and_code));
        let Inbound::Icmp { icmp, .. } = client.receive() else {
            panic!("an ICMP error is due")
        };
        assert_eq!([icmp.kind.into(), icmp.code], kind_and_code.map(u16::from));
    }
}

//= V-13
//= TURN-077
//= TURN-078
#[test]
fn an_icmp_error_is_relayed_by_the_peer_it_is_about_not_by_its_sender() {
    let site = Site::new();
    let server = relay(site, &[]);
    let mut client = Client::new(site.ip(2), &server);
    let relayed = client.allocate();
    // A permitted peer where nobody listens.
    let gone = peer_socket(site.ip(7)).local_addr().unwrap();
    client.create_permission(&[gone]).expect(200);
    client.send_indication(gone, b"anybody there?");
    let Inbound::Icmp { peer, icmp } = client.receive() else {
        panic!("an ICMP error is due")
    };
    assert_eq!(
        (peer, icmp.kind, icmp.code),
        (gone, 3, 3),
        "port unreachable, from {gone}"
    );
    // The permitted peer itself reports about somebody who is not permitted (V-66 has the same guard).
    if !forge_icmp(site.ip(7), relayed, SocketAddr::new(site.ip(8), 9)) {
        return;
    }
    client.assert_silent();
    // A stranger reports about the permitted peer: any router on the path may.
    assert!(forge_icmp(site.ip(66), relayed, gone));
    assert!(matches!(client.receive(), Inbound::Icmp { peer, .. } if peer == gone));
    assert_eq!(server.stop().dropped_as("icmp_not_relayed"), 1);
}
