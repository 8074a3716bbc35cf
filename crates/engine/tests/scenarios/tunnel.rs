//! Tunnels: sessions with an account, each tunnel with a port and one peer.

use core::net::SocketAddr;
use core::num::NonZeroU32;
use core::time::Duration;
use std::sync::Arc;

use turnbuckle_engine::{
    AllocationId, Bandwidth, ClientTuple, Commons, Connection, DropReason, Engine, Framing,
    IcmpError, InterfaceAddress, Outcome, RelayHandle, Transport, TunnelEnd, TunnelRefusal,
    TunnelSession,
};

use crate::authentication::rest;
use crate::support::*;

/// The connection of this number of a client.
fn connection(number: u64) -> ClientTuple {
    ClientTuple {
        transport: Transport::Tls,
        connection: Connection::new(7, number),
        ..tuple(CLIENT)
    }
}

fn session(server: &mut Server) -> TunnelSession {
    let user = server
        .engine
        .check_password(server.now, "alice", "wonderland");
    let from = connection(0).remote;
    server
        .engine
        .open_session(server.now, from, &user.unwrap())
        .unwrap()
}

fn open(
    server: &mut Server,
    session: &TunnelSession,
    number: u64,
    target: &str,
) -> Result<AllocationId, TunnelRefusal> {
    let (client, target) = (connection(number), target.parse().unwrap());
    let id = server
        .engine
        .open_tunnel(server.now, session, client, target);
    server.pump();
    id
}

/// The relay socket of a tunnel.
fn handle(server: &Server, tunnel: AllocationId) -> RelayHandle {
    let mut sockets = server.sockets.values();
    let socket = sockets.find(|socket| socket.handle.allocation() == tunnel);
    socket.expect("the tunnel has a socket").handle
}

fn to_peer(server: &mut Server, tunnel: AllocationId) -> Result<SocketAddr, DropReason> {
    let route = server
        .engine
        .route_to_peer(server.now.time, tunnel, 1, 100)?;
    Ok(route.peer.address())
}

fn from_peer(
    server: &mut Server,
    relay: RelayHandle,
    peer: &str,
) -> Result<ClientTuple, DropReason> {
    let (now, peer) = (server.now.time, peer.parse().unwrap());
    let route = server.engine.route_from_peer(now, relay, peer, 1, 100)?;
    assert_eq!(route.framing, Framing::Tunnel);
    Ok(route.client)
}

//= UDPX-05
//= UDPX-06
//= V-91
#[test]
fn a_tunnel_relays_both_ways_to_its_peer_alone_and_ends_with_its_connection() {
    let mut server = Server::start();
    let session = session(&mut server);
    let targets = [PEER, "93.184.216.20:7001", PEER_V6];
    let tunnels: Vec<AllocationId> = (0..)
        .zip(targets)
        .map(|(number, target)| open(&mut server, &session, number, target).unwrap())
        .collect();
    let opened: Vec<Wanted> = (0..)
        .zip(targets)
        .map(|(number, target)| Wanted::Opened(connection(number), target.parse().unwrap()))
        .collect();
    assert_eq!(server.wanted, opened);
    assert_eq!(server.engine.statistics().tunnels, 3);
    assert_eq!(server.engine.statistics().allocations, 0);
    let relays: Vec<RelayHandle> = tunnels.iter().map(|&id| handle(&server, id)).collect();
    for (mine, &tunnel) in tunnels.iter().enumerate() {
        let target: SocketAddr = targets[mine].parse().unwrap();
        assert_eq!(to_peer(&mut server, tunnel), Ok(target));
        for source in targets.iter().copied().chain(["93.184.216.21:7000"]) {
            let found = from_peer(&mut server, relays[mine], source);
            let number = u64::try_from(mine).unwrap();
            match source == targets[mine] {
                true => assert_eq!(found, Ok(connection(number))),
                false => assert_eq!(found, Err(DropReason::TunnelSource), "{source}"),
            }
        }
    }
    for number in 0..3 {
        server.engine.disconnected(server.now, &connection(number));
        server.pump();
    }
    assert_eq!(to_peer(&mut server, tunnels[0]), Err(DropReason::NoTunnel));
    let late = from_peer(&mut server, relays[0], PEER);
    assert_eq!(late, Err(DropReason::RelayClosed));
    assert_eq!(server.wanted, opened, "nobody is told who is gone");
    drop(session);
    server.assert_nothing_is_held();
}

//= V-43
#[test]
fn a_session_takes_one_unit_of_the_quota_however_many_tunnels_it_has_and_gives_it_back() {
    let mut server = Server::with(|config| config.limits.user_quota = Some(2));
    let first = session(&mut server);
    for number in 0..5 {
        open(&mut server, &first, number, PEER).unwrap();
    }
    assert_eq!(server.commons.quota_used(REALM, "alice"), 1);
    // TURN and tunnels have one quota.
    let mut client = server.client(CLIENT);
    server.allocate(&mut client);
    assert_eq!(server.commons.quota_used(REALM, "alice"), 2);
    let user = Arc::clone(first.user());
    let third = server
        .engine
        .open_session(server.now, client.tuple.remote, &user);
    assert_eq!(third.unwrap_err(), TunnelRefusal::QuotaReached);
    drop(first);
    assert_eq!(
        server.commons.quota_used(REALM, "alice"),
        2,
        "its tunnels are there"
    );
    for number in 0..5 {
        server.engine.disconnected(server.now, &connection(number));
    }
    server.pump();
    assert_eq!(server.commons.quota_used(REALM, "alice"), 1);
    session(&mut server);
}

#[test]
fn a_session_has_128_tunnels_at_most_and_a_connection_one() {
    let mut server = Server::start();
    let session = session(&mut server);
    for number in 0..128 {
        open(&mut server, &session, number, PEER).unwrap();
    }
    let beyond = open(&mut server, &session, 128, PEER);
    assert_eq!(beyond, Err(TunnelRefusal::QuotaReached));
    server.engine.disconnected(server.now, &connection(0));
    server.pump();
    open(&mut server, &session, 128, PEER).unwrap();
    server.engine.disconnected(server.now, &connection(1));
    let twice = open(&mut server, &session, 5, PEER);
    assert_eq!(twice, Err(TunnelRefusal::QuotaReached));
}

//= UDPX-23
//= V-89
#[test]
fn whom_the_policy_forbids_to_allocations_it_forbids_to_tunnels() {
    let mut server = Server::start();
    let session = session(&mut server);
    for target in [
        "127.0.0.1:80",
        "0.0.0.0:80",
        "10.0.0.1:80",
        "169.254.169.254:80",
        "224.0.0.1:80",
        "255.255.255.255:80",
        "[::1]:80",
        "[::ffff:127.0.0.1]:80",
        "[::ffff:93.184.216.20]:7000",
        "[64:ff9b::7f00:1]:80",
        "[fe80::1]:80",
        "[fc00::1]:80",
        "[2002:7f00:1::]:80",
        "203.0.113.1:3478",
    ] {
        let refused = open(&mut server, &session, 1, target);
        assert_eq!(refused, Err(TunnelRefusal::Forbidden), "{target}");
    }
    assert_eq!(server.sockets.len(), 0);
    let only_v4 = Server::with(|config| {
        config
            .relays
            .addresses
            .retain(|relay| relay.local.is_ipv4());
    });
    let mut server = only_v4;
    let session = self::session(&mut server);
    let refused = open(&mut server, &session, 1, PEER_V6);
    assert_eq!(refused, Err(TunnelRefusal::Unroutable));
}

//= V-89
#[test]
fn a_tunnel_whose_peer_is_forbidden_by_now_carries_nothing_and_ends() {
    let mut server = Server::start();
    let session = session(&mut server);
    let tunnel = open(&mut server, &session, 1, PEER).unwrap();
    let interface = InterfaceAddress {
        ip: "93.184.216.20".parse().unwrap(),
        prefix_len: 32,
    };
    server.engine.set_host_addresses(vec![interface], &[]);
    assert_eq!(to_peer(&mut server, tunnel), Err(DropReason::NoTunnel));
    server.pump();
    let ended = Wanted::Ended(connection(1), TunnelEnd::Forbidden);
    assert_eq!(server.wanted.last(), Some(&ended));
    assert_eq!(server.sockets.len(), 0);
}

//= UDPX-08
#[test]
fn a_tunnel_without_traffic_ends_after_130_seconds_and_not_before() {
    let mut server = Server::start();
    let session = session(&mut server);
    let tunnel = open(&mut server, &session, 1, PEER).unwrap();
    let relay = handle(&server, tunnel);
    server.wait_s(125);
    to_peer(&mut server, tunnel).unwrap();
    server.wait_s(125);
    from_peer(&mut server, relay, PEER).unwrap();
    server.wait_s(125);
    // Who may not send keeps nothing open.
    assert!(from_peer(&mut server, relay, "93.184.216.21:7000").is_err());
    server.wait_s(4);
    assert_eq!(server.wanted.len(), 1);
    server.wait_s(2);
    let ended = Wanted::Ended(connection(1), TunnelEnd::Idle);
    assert_eq!(server.wanted.last(), Some(&ended));
    drop(session);
    server.assert_nothing_is_held();
}

//= UDPX-07
//= V-94
#[test]
fn a_tunnel_ends_when_the_network_says_that_its_peer_cannot_be_reached_and_for_no_other_error() {
    let mut server = Server::start();
    let session = session(&mut server);
    let tunnel = open(&mut server, &session, 1, PEER).unwrap();
    let relay = handle(&server, tunnel);
    let error = |peer: &str, kind, code| IcmpError {
        peer: peer.parse().unwrap(),
        kind,
        code,
        mtu: 1_400,
        v6: false,
    };
    for other in [
        error("93.184.216.20:7001", 3, 3), // not what the tunnel sends to
        error("93.184.216.21:7000", 3, 3),
        error(PEER, 3, 4), // too big
        error(PEER, 11, 0),
        error(PEER, 0, 0),
    ] {
        let outcome = server.engine.handle_icmp(server.now, relay, other);
        assert_eq!(outcome, Outcome::Dropped(DropReason::IcmpNotRelayed));
        assert!(to_peer(&mut server, tunnel).is_ok(), "{other:?}");
    }
    let outcome = server
        .engine
        .handle_icmp(server.now, relay, error(PEER, 3, 3));
    assert_eq!(outcome, Outcome::Dropped(DropReason::IcmpEndsTunnel));
    server.pump();
    let ended = Wanted::Ended(connection(1), TunnelEnd::Unreachable);
    assert_eq!(server.wanted.last(), Some(&ended));
    assert_eq!(to_peer(&mut server, tunnel), Err(DropReason::NoTunnel));
}

#[test]
fn the_tunnels_of_a_session_have_one_rate_together() {
    let mut server = Server::with(|config| {
        config.limits.bandwidth = Bandwidth {
            bytes_per_s: NonZeroU32::new(1_000),
            capacity_bytes_per_s: NonZeroU32::new(1_500),
        };
    });
    let first = session(&mut server);
    let tunnels = [1, 2].map(|number| open(&mut server, &first, number, PEER).unwrap());
    let sent = |server: &mut Server| {
        let now = server.now.time;
        tunnels
            .into_iter()
            .cycle()
            .take(40)
            .filter(|&tunnel| server.engine.route_to_peer(now, tunnel, 1, 100).is_ok())
            .count()
    };
    assert_eq!(sent(&mut server), 10);
    let beyond = server
        .engine
        .route_to_peer(server.now.time, tunnels[0], 1, 100);
    assert_eq!(beyond, Err(DropReason::BandwidthExceeded));
    server.wait_s(1);
    assert_eq!(sent(&mut server), 10);
    // What is left of the capacity is the next one's, and then there is none.
    let second = session(&mut server);
    let user = Arc::clone(first.user());
    let from = connection(0).remote;
    let third = server.engine.open_session(server.now, from, &user);
    assert_eq!(third.unwrap_err(), TunnelRefusal::NoCapacity);
    drop(second);
    assert_eq!(server.commons.bandwidth_reserved(), 1_000);
}

#[test]
fn another_port_is_tried_when_a_program_has_it_and_without_a_socket_there_is_no_tunnel() {
    let mut server = Server::with(|config| config.relays.ports = 50_000..=50_001);
    let session = session(&mut server);
    server.in_use.push("192.0.2.1:50000".parse().unwrap());
    open(&mut server, &session, 1, PEER).unwrap();
    let opened = Wanted::Opened(connection(1), PEER.parse().unwrap());
    assert_eq!(server.wanted, [opened]);
    open(&mut server, &session, 2, PEER).unwrap();
    let ended = Wanted::Ended(connection(2), TunnelEnd::NotOpened);
    assert_eq!(server.wanted, [opened, ended]);
    // A host that never answers is not waited for, nor is one whose client is gone.
    server.in_use.clear();
    server.opens_at_once = false;
    open(&mut server, &session, 3, PEER).unwrap();
    server.wait_s(11);
    let ended = Wanted::Ended(connection(3), TunnelEnd::NotOpened);
    assert_eq!(server.wanted.last(), Some(&ended));
    server.open_wishes();
    open(&mut server, &session, 4, PEER).unwrap();
    server.engine.disconnected(server.now, &connection(4));
    server.open_wishes();
    assert_eq!(server.sockets.len(), 1);
    server.engine.disconnected(server.now, &connection(1));
    server.pump();
    drop(session);
    server.assert_nothing_is_held();
}

#[test]
fn nothing_of_a_tunnel_is_on_record_and_after_a_restart_its_port_and_its_quota_are_free() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    server.allocate(&mut client);
    let session = session(&mut server);
    for number in 0..4 {
        open(&mut server, &session, number, PEER).unwrap();
    }
    let history = server.take_changes();
    let commons = Commons::new(&server.config);
    let engine = Engine::rebuild(
        Arc::clone(&server.config),
        Arc::clone(&commons),
        Seeded::new(1),
        server.now,
        listeners(),
        history,
        |address| server.endpoint_at(address),
    );
    assert_eq!(engine.statistics().allocations, 1);
    assert_eq!(engine.statistics().tunnels, 0);
    assert_eq!(commons.quota_used_total(), 1);
    let leased: u32 = commons.ports().map(|(_, ports)| ports.leased).sum();
    assert_eq!(leased, 1);
}

#[test]
fn a_server_that_drains_opens_no_session_and_no_tunnel() {
    let mut server = Server::start();
    let session = session(&mut server);
    let tunnel = open(&mut server, &session, 1, PEER).unwrap();
    server.engine.drain();
    let user = Arc::clone(session.user());
    let from = connection(0).remote;
    let refused = server.engine.open_session(server.now, from, &user);
    assert_eq!(refused.unwrap_err(), TunnelRefusal::Draining);
    let refused = open(&mut server, &session, 2, PEER);
    assert_eq!(refused, Err(TunnelRefusal::Draining));
    assert!(to_peer(&mut server, tunnel).is_ok());
}

//= V-93
#[test]
fn a_password_is_one_of_turn_whether_its_user_is_kept_as_password_key_or_secret() {
    use turnbuckle_wire::long_term_key_md5;
    let mut server = Server::with(|config| {
        let key = long_term_key_md5(b"carol", REALM.as_bytes(), b"singing");
        config.auth.add_user_by_md5_key("carol", key).unwrap();
        config.auth.add_rest_secret(b"north").unwrap();
    });
    let (now_s, later) = (server.now.unix_s, Duration::from_secs(60).as_secs());
    let (good, good_password) = rest(now_s + later, "dave");
    let (old, old_password) = rest(now_s - later, "dave");
    let mut is_user = |name: &str, password: &str| {
        let user = server.engine.check_password(server.now, name, password);
        user.map(|user| user.quota_name.to_string())
    };
    assert_eq!(is_user("alice", "wonderland").as_deref(), Some("alice"));
    assert_eq!(is_user("carol", "singing").as_deref(), Some("carol"));
    assert_eq!(is_user(&good, &good_password).as_deref(), Some("dave"));
    for (name, password) in [
        ("alice", "wonderlanD"),
        ("alice", ""),
        ("alice", "won\u{7}derland"),
        ("bob", "wonderland"),
        ("mallory", "wonderland"),
        ("", ""),
        (&good, "wonderland"),
        (&old, &old_password),
        (&good.replace("dave", "eve"), &good_password),
    ] {
        assert_eq!(is_user(name, password), None, "{name} {password}");
    }
}
