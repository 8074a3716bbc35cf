//! Bound tunnels: a port of each family, and peers that are named with each datagram.

use core::net::SocketAddr;

use turnbuckle_engine::{
    AllocationId, DropReason, Family, Framing, IcmpError, InterfaceAddress, Outcome, RelayHandle,
    TunnelTarget,
};

use crate::support::*;
use crate::tunnel::{connection, session};

const OTHER: &str = "93.184.216.21:7001";

fn bound(server: &mut Server) -> AllocationId {
    let session = session(server);
    let opened = server
        .engine
        .open_tunnel(server.now, &session, connection(1), None);
    server.pump();
    opened.unwrap()
}

fn relay(server: &Server, family: Family) -> RelayHandle {
    let is_of_it = |address: &SocketAddr| Family::of(address) == family;
    let mut sockets = server.sockets.values();
    let socket = sockets.find(|socket| is_of_it(&socket.address));
    socket.unwrap().handle
}

fn to(server: &mut Server, tunnel: AllocationId, peer: &str) -> Result<SocketAddr, DropReason> {
    let (now, peer) = (server.now.time, Some(peer.parse().unwrap()));
    let route = server.engine.route_to_peer(now, tunnel, peer, 1, 100)?;
    Ok(route.peer.address())
}

fn from(server: &mut Server, relay: RelayHandle, peer: &str) -> Result<Framing, DropReason> {
    let (now, peer) = (server.now.time, peer.parse().unwrap());
    let route = server.engine.route_from_peer(now, relay, peer, 1, 100)?;
    assert_eq!(route.client, connection(1));
    Ok(route.framing)
}

#[test]
fn a_bound_tunnel_has_a_port_of_each_family_and_relays_both_ways_with_whom_its_client_names() {
    let mut server = Server::start();
    let tunnel = bound(&mut server);
    let [Wanted::Opened(client, TunnelTarget::Bound { relays })] = server.wanted[..] else {
        panic!("{:?}", server.wanted)
    };
    assert_eq!(client, connection(1));
    let [Some(v4), Some(v6)] = relays else {
        panic!("{relays:?}")
    };
    assert!(v4.is_ipv4() && v6.is_ipv6());
    let shown = server.engine.session_at(tunnel.slot()).unwrap();
    assert_eq!(shown.tunnel_to(), Some("0.0.0.0:0".parse().unwrap()));
    assert_eq!(shown.relays().count(), 2);
    for peer in [PEER, OTHER, PEER_V6] {
        let address: SocketAddr = peer.parse().unwrap();
        assert_eq!(to(&mut server, tunnel, peer), Ok(address));
        let relay = relay(&server, Family::of(&address));
        let framing = from(&mut server, relay, peer).unwrap();
        assert_eq!(framing, Framing::Bound { peer: address });
        let now = server.now.time;
        let charged = server.engine.charge_to_client(now, tunnel, 1, 100);
        assert_eq!(charged, Ok(1));
    }
    let shown = server.engine.session_at(tunnel.slot()).unwrap();
    let usage = *shown.usage();
    for traffic in [
        usage.client_received,
        usage.peer_sent,
        usage.peer_received,
        usage.client_sent,
    ] {
        assert_eq!((traffic.datagrams, traffic.bytes), (3, 300));
    }
    server.engine.disconnected(server.now, &connection(1));
    server.pump();
    assert_eq!(to(&mut server, tunnel, PEER), Err(DropReason::NoTunnel));
    server.assert_nothing_is_held();
}

//= V-89
#[test]
fn a_bound_tunnel_reaches_nobody_whom_the_policy_forbids_and_hears_nothing_of_them() {
    let mut server = Server::start();
    let tunnel = bound(&mut server);
    for peer in FORBIDDEN {
        let address: SocketAddr = peer.parse().unwrap();
        assert!(!server.engine.may_name(tunnel, address), "{peer}");
        let sent = to(&mut server, tunnel, peer);
        assert_eq!(sent, Err(DropReason::PeerForbidden), "{peer}");
    }
    for peer in ["10.0.0.1:80", "[fc00::1]:80"] {
        let relay = relay(&server, Family::of(&peer.parse().unwrap()));
        let heard = from(&mut server, relay, peer);
        assert_eq!(heard, Err(DropReason::PeerForbidden), "{peer}");
    }
    assert!(server.engine.may_name(tunnel, PEER.parse().unwrap()));
}

//= V-89
#[test]
fn rules_that_change_hold_for_the_next_datagram_of_a_bound_tunnel() {
    let mut server = Server::start();
    let tunnel = bound(&mut server);
    to(&mut server, tunnel, PEER).unwrap();
    let interface = InterfaceAddress {
        ip: "93.184.216.20".parse().unwrap(),
        prefix_len: 32,
    };
    let now = server.now.time;
    (server.engine).set_host_addresses(now, vec![interface], &[]);
    server.pump();
    assert_eq!(
        to(&mut server, tunnel, PEER),
        Err(DropReason::PeerForbidden)
    );
    let relay = relay(&server, Family::V4);
    let heard = from(&mut server, relay, PEER);
    assert_eq!(heard, Err(DropReason::PeerForbidden));
    assert!(!server.engine.may_name(tunnel, PEER.parse().unwrap()));
    // The others are as before.
    assert!(to(&mut server, tunnel, OTHER).is_ok());
    assert_eq!(server.wanted.len(), 1, "it does not end");
}

#[test]
fn a_bound_tunnel_has_the_families_that_the_relay_has() {
    let mut server = Server::with(|config| {
        let addresses = &mut config.relays.addresses;
        addresses.retain(|relay| relay.local.is_ipv4());
    });
    let tunnel = bound(&mut server);
    let v6 = PEER_V6.parse().unwrap();
    assert!(!server.engine.may_name(tunnel, v6));
    let sent = to(&mut server, tunnel, PEER_V6);
    assert_eq!(sent, Err(DropReason::PeerFamilyMismatch));
    assert!(to(&mut server, tunnel, PEER).is_ok());
}

//= V-91
#[test]
fn what_is_bound_and_what_has_a_target_are_not_taken_for_each_other() {
    let mut server = Server::start();
    let tunnel = bound(&mut server);
    let now = server.now.time;
    let nobody = server.engine.route_to_peer(now, tunnel, None, 1, 100);
    assert_eq!(nobody, Err(DropReason::NoTunnel));
    let session = session(&mut server);
    let target = Some(PEER.parse().unwrap());
    let (now, client) = (server.now, connection(2));
    let usual = server.engine.open_tunnel(now, &session, client, target);
    server.pump();
    let elsewhere = to(&mut server, usual.unwrap(), OTHER);
    assert_eq!(elsewhere, Err(DropReason::NoTunnel));
}

//= V-94
#[test]
fn no_icmp_error_ends_a_bound_tunnel() {
    let mut server = Server::start();
    let tunnel = bound(&mut server);
    to(&mut server, tunnel, PEER).unwrap();
    let error = IcmpError {
        peer: PEER.parse().unwrap(),
        v6: false,
        kind: 3,
        code: 3,
        mtu: 0,
    };
    let relay = relay(&server, Family::V4);
    let outcome = server.engine.handle_icmp(server.now, relay, error);
    assert_eq!(outcome, Outcome::Dropped(DropReason::IcmpNotRelayed));
    assert!(to(&mut server, tunnel, PEER).is_ok());
}
