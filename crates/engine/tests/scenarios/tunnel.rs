//! Tunnels: sessions with an account, each tunnel with a port and one peer.

use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroU32;
use core::time::Duration;
use std::sync::Arc;

use turnbuckle_engine::{
    AllocationId, Asks, AuthConfig, Bandwidth, Change, ClientTuple, Commons, Connection,
    CredentialExpiry, DropReason, EndCause, Engine, Framing, IcmpError, InterfaceAddress, Outcome,
    Realm, RelayHandle, Transport, TunnelEnd, TunnelRefusal, TunnelSession, TunnelTarget, User,
};

use crate::authentication::rest;
use crate::support::*;

/// Returns the connection of this number of a client.
pub(crate) fn connection(number: u64) -> ClientTuple {
    ClientTuple {
        transport: Transport::Tls,
        connection: Connection::new(7, number),
        ..tuple(CLIENT)
    }
}

pub(crate) fn session(server: &mut Server) -> TunnelSession {
    let user = server
        .engine
        .check_password(server.now, REALM, "alice", "wonderland");
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
    let (client, target) = (connection(number), Some(target.parse().unwrap()));
    let id = server
        .engine
        .open_tunnel(server.now, session, client, target);
    server.pump();
    id
}

/// Returns the relay socket of a tunnel.
fn handle(server: &Server, tunnel: AllocationId) -> RelayHandle {
    let mut sockets = server.sockets.values();
    let socket = sockets.find(|socket| socket.handle.allocation() == tunnel);
    socket.expect("the tunnel has a socket").handle
}

fn to_peer(server: &mut Server, tunnel: AllocationId) -> Result<SocketAddr, DropReason> {
    let route = server
        .engine
        .route_to_peer(server.now.time, tunnel, None, 1, 100)?;
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
        .map(|(number, target)| {
            Wanted::Opened(
                connection(number),
                TunnelTarget::Peer(target.parse().unwrap()),
            )
        })
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
    for target in FORBIDDEN {
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

#[test]
fn no_tunnel_is_opened_while_rules_for_peers_are_due() {
    let mut server = Server::start();
    let session = session(&mut server);
    let mut next = config();
    next.answers.are_peer_rules_due = true;
    server.engine.reconfigure(server.now.time, &next.into());
    let refused = open(&mut server, &session, 1, PEER);
    assert_eq!(refused, Err(TunnelRefusal::RulesDue));
    server.engine.reconfigure(server.now.time, &config().into());
    open(&mut server, &session, 1, PEER).unwrap();
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
    server
        .engine
        .set_host_addresses(server.now.time, vec![interface], &[]);
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
            .filter(|&tunnel| {
                server
                    .engine
                    .route_to_peer(now, tunnel, None, 1, 100)
                    .is_ok()
            })
            .count()
    };
    assert_eq!(sent(&mut server), 10);
    let beyond = server
        .engine
        .route_to_peer(server.now.time, tunnels[0], None, 1, 100);
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
    let opened = Wanted::Opened(connection(1), TunnelTarget::Peer(PEER.parse().unwrap()));
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
        let user = server
            .engine
            .check_password(server.now, REALM, name, password);
        user.ok().map(|user| user.quota_name.to_string())
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

/// Returns what is said of tunnels: whether it began, whose it is, its peer, and why it ended with how much.
fn told(server: &mut Server) -> Vec<String> {
    let changes = server.take_changes();
    let changes = changes.iter().map(|change| match change {
        Change::Created(created) => {
            let (user, peer) = (&created.user.name, created.brought.tunnel_to.unwrap());
            assert!(change.is_of_tunnel() && created.relays.len() == 1);
            format!("{user} to {peer}")
        }
        Change::Ended(ended) => {
            assert!(change.is_of_tunnel());
            let totals = [
                ended.totals.client_received,
                ended.totals.peer_sent,
                ended.totals.peer_received,
                ended.totals.client_sent,
            ];
            let totals = totals.map(|traffic| (traffic.datagrams, traffic.bytes));
            format!("{:?} {totals:?}", ended.cause)
        }
        other => panic!("{other:?}"),
    });
    changes.collect()
}

#[test]
fn a_tunnel_is_a_session_to_whoever_follows_changes_and_to_an_operator() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    server.allocate(&mut client);
    server.take_changes();
    let session = session(&mut server);
    let tunnels = [1, 2].map(|number| open(&mut server, &session, number, PEER).unwrap());
    let began = format!("alice to {PEER}");
    assert_eq!(told(&mut server), [began.clone(), began.clone()]);
    let relay = handle(&server, tunnels[0]);
    server.wait_s(50);
    to_peer(&mut server, tunnels[0]).unwrap();
    from_peer(&mut server, relay, PEER).unwrap();
    from_peer(&mut server, relay, PEER).unwrap();
    assert!(from_peer(&mut server, relay, "93.184.216.21:7000").is_err());
    server.wait_s(30);

    let slots = 0..server.engine.session_slots();
    let held: Vec<_> = slots
        .filter_map(|slot| server.engine.session_at(slot))
        .collect();
    assert_eq!(held.len(), 3);
    let of_tunnels: Vec<_> = held.iter().filter(|it| it.tunnel_to().is_some()).collect();
    let [first, second] = of_tunnels[..] else {
        panic!("two")
    };
    assert_eq!((first.id(), second.id()), (tunnels[0], tunnels[1]));
    assert_eq!(first.tunnel_to(), Some(PEER.parse().unwrap()));
    assert_eq!(
        first.peers().collect::<Vec<_>>(),
        ["93.184.216.20".parse::<IpAddr>().unwrap()]
    );
    assert_eq!(
        (&*first.user().name, first.client()),
        ("alice", &connection(1))
    );
    assert_eq!(first.usage().peer_received.datagrams, 3);
    assert_eq!(first.relays().count(), 1);
    let now = server.now.time;
    let times = |it: &turnbuckle_engine::Session<'_>| {
        (
            now.since(it.created()).as_secs(),
            it.expires().since(now).as_secs(),
        )
    };
    assert_eq!((times(first), times(second)), ((80, 100), (80, 50)));

    // The operator ends one, the other ends with its connection.
    server.engine.cancel(server.now, tunnels[0]);
    server.engine.disconnected(server.now, &connection(2));
    server.pump();
    let ended = Wanted::Ended(connection(1), TunnelEnd::Cancelled);
    assert_eq!(server.wanted.last(), Some(&ended));
    let totals = "[(1, 100), (1, 100), (3, 300), (2, 200)]";
    let nothing = "[(0, 0), (0, 0), (0, 0), (0, 0)]";
    let expected = [
        format!("{:?} {totals}", EndCause::Cancelled),
        format!("{:?} {nothing}", EndCause::Disconnected),
    ];
    assert_eq!(told(&mut server), expected);
    assert_eq!(server.engine.statistics().allocations, 1);

    // Each other end has its cause, and one that was never open is not told of at all.
    open(&mut server, &session, 3, PEER).unwrap();
    server.wait_s(131);
    let tunnel = open(&mut server, &session, 4, PEER).unwrap();
    let unreachable = IcmpError {
        peer: PEER.parse().unwrap(),
        kind: 3,
        code: 3,
        mtu: 0,
        v6: false,
    };
    let relay = handle(&server, tunnel);
    let _ = server.engine.handle_icmp(server.now, relay, unreachable);
    server.opens_at_once = false;
    open(&mut server, &session, 5, PEER).unwrap();
    server.wait_s(11);
    let expected = [
        began.clone(),
        format!("{:?} {nothing}", EndCause::Idle),
        began,
        format!("{:?} {nothing}", EndCause::Unreachable),
    ];
    assert_eq!(told(&mut server), expected);
}

/// Sends something half a minute later, and once a minute from then on, until `tunnel` is gone, for an hour at most. Returns after how many seconds it was.
fn lives_s(server: &mut Server, tunnel: AllocationId) -> u64 {
    server.wait_s(30);
    (30..3600)
        .step_by(60)
        .find(|_| {
            let is_gone = to_peer(server, tunnel).is_err();
            server.wait_s(60);
            is_gone
        })
        .unwrap_or(3600)
}

//= V-93
#[test]
fn a_tunnel_whose_user_is_removed_ends_when_an_allocation_would_that_is_refreshed_no_more() {
    type Change = fn(&mut AuthConfig);
    let changed: [(&str, Change, u64); 4] = [
        (
            "the same",
            |auth| auth.add_user("alice", "wonderland").unwrap(),
            3600,
        ),
        (
            "removed",
            |auth| auth.add_user("bob", "builder").unwrap(),
            630,
        ),
        (
            "another password",
            |auth| auth.add_user("alice", "mirror").unwrap(),
            630,
        ),
        (
            "another realm",
            |auth| *auth = AuthConfig::new("elsewhere.org").unwrap(),
            630,
        ),
    ];
    for (what, change, expected_s) in changed {
        let mut server = Server::start();
        let session = session(&mut server);
        let tunnel = open(&mut server, &session, 1, PEER).unwrap();
        let mut next = config();
        next.auth = AuthConfig::new(REALM).unwrap();
        change(&mut next.auth);
        server.engine.reconfigure(server.now.time, &next.into());
        assert_eq!(lives_s(&mut server, tunnel), expected_s, "{what}");
        let ended = Wanted::Ended(connection(1), TunnelEnd::UserGone);
        assert_eq!(
            server.wanted.last() == Some(&ended),
            expected_s == 630,
            "{what}"
        );
    }
}

#[test]
fn a_tunnel_of_a_time_limited_user_ends_as_the_check_of_its_expiry_says() {
    for (expiry, expected_s) in [
        (CredentialExpiry::Request, 1230),
        (CredentialExpiry::Allocation, 3600),
    ] {
        let mut server = Server::with(|config| {
            config.auth.add_rest_secret(b"north").unwrap();
            config.auth.credential_expiry = expiry;
        });
        let (name, password) = rest(server.now.unix_s + 1000, "dave");
        let user = server
            .engine
            .check_password(server.now, REALM, &name, &password)
            .unwrap();
        let from = connection(0).remote;
        let session = server.engine.open_session(server.now, from, &user).unwrap();
        let tunnel = open(&mut server, &session, 1, PEER).unwrap();
        assert_eq!(lives_s(&mut server, tunnel), expected_s, "{expiry:?}");
    }
}

/// Returns a time-limited user of one person, whose name is over in so many seconds.
fn for_a_while(server: &mut Server, seconds: u64) -> Arc<User> {
    let (name, password) = rest(server.now.unix_s + seconds, "dave");
    let checked = (server.engine).check_password(server.now, REALM, &name, &password);
    checked.unwrap()
}

//= V-93
#[test]
fn each_tunnel_of_a_session_is_judged_by_the_name_that_it_was_asked_for_with() {
    let mut server = Server::with(|config| {
        config.limits.user_quota = Some(1);
        config.auth.add_rest_secret(b"north").unwrap();
        config.auth.credential_expiry = CredentialExpiry::Request;
    });
    let first = for_a_while(&mut server, 1000);
    let from = connection(0).remote;
    let session = server.engine.open_session(server.now, from, &first);
    let mut session = session.unwrap();
    let old = open(&mut server, &session, 1, PEER).unwrap();
    server.wait_s(25);

    // Another tunnel of the same person, with a name that is over much later. The quota is that of one.
    let second = for_a_while(&mut server, 10_000);
    assert!(session.renew(&second));
    let new = open(&mut server, &session, 2, PEER).unwrap();
    let names = [old, new].map(|tunnel| {
        let held = server.engine.session_at(tunnel.slot()).unwrap();
        held.user().name.clone()
    });
    assert_eq!(names, [first.name.clone(), second.name.clone()]);
    server.take_changes();

    // The first name is over after 1,000 s, and looked up after 1,200. The second is good all the time.
    let mut ended_s = [None, None];
    for second_s in (25..3000).step_by(50) {
        for (tunnel, ended_s) in [old, new].into_iter().zip(&mut ended_s) {
            if to_peer(&mut server, tunnel).is_err() {
                ended_s.get_or_insert(second_s);
            }
        }
        server.wait_s(50);
    }
    assert_eq!(ended_s, [Some(1225), None]);
    let ended = Wanted::Ended(connection(1), TunnelEnd::UserGone);
    assert_eq!(server.wanted.last(), Some(&ended));
    let told: Vec<_> = (server.take_changes().into_iter())
        .map(|change| match change {
            Change::Ended(ended) => ended.user.name.to_string(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(told, [first.name.to_string()]);

    // One that is opened when the session's first name has long been over lives too.
    let later = open(&mut server, &session, 3, PEER).unwrap();
    assert_eq!(lives_s(&mut server, later), 3600);
}

//= V-93
#[test]
fn a_tunnel_that_is_asked_for_with_the_new_password_outlives_that_of_the_old_one() {
    let mut server = Server::start();
    let mut session = session(&mut server);
    let old = open(&mut server, &session, 1, PEER).unwrap();
    let mut next = config();
    next.auth = AuthConfig::new(REALM).unwrap();
    next.auth.add_user("alice", "mirror").unwrap();
    next.auth.add_user("bob", "builder").unwrap();
    server.engine.reconfigure(server.now.time, &next.into());
    let mut check = |name, password| {
        let checked = (server.engine).check_password(server.now, REALM, name, password);
        checked.unwrap()
    };
    let (alice, bob) = (check("alice", "mirror"), check("bob", "builder"));
    assert!(!session.renew(&bob), "it is charged to somebody else");
    assert_eq!(&*session.user().name, "alice");
    assert!(session.renew(&alice));
    let new = open(&mut server, &session, 2, PEER).unwrap();
    server.wait_s(100);
    for _ in 0..6 {
        to_peer(&mut server, new).unwrap();
        let _ = to_peer(&mut server, old);
        server.wait_s(100);
    }
    assert_eq!(to_peer(&mut server, old), Err(DropReason::NoTunnel));
    assert!(to_peer(&mut server, new).is_ok());
    let ended = Wanted::Ended(connection(1), TunnelEnd::UserGone);
    assert_eq!(server.wanted.last(), Some(&ended));
}

#[test]
fn the_realm_is_that_of_the_origin_or_of_the_hosts_name_or_the_first() {
    let mut server = Server::with(|config| {
        for name in ["crinna.org", "uffrith.org"] {
            let mut realm = Realm::new(name).unwrap();
            realm.add_user("whirrun", name).unwrap();
            config.auth.add_realm(realm);
        }
        config
            .auth
            .add_origin("https://turn.crinna.org:5349", "crinna.org")
            .unwrap();
        config
            .auth
            .add_origin("https://uffrith.org", "crinna.org")
            .unwrap();
    });
    for (is_secure, authority, realm) in [
        (true, "turn.crinna.org:5349", "crinna.org"),
        (true, "TURN.Crinna.org:5349", "crinna.org"),
        (true, "turn.crinna.org", REALM),
        (false, "turn.crinna.org:5349", REALM),
        (true, "uffrith.org", "crinna.org"),
        (true, "uffrith.org:443", "crinna.org"),
        (true, "uffrith.org:5349", "uffrith.org"),
        (false, "Uffrith.org:3478", "uffrith.org"),
        (true, "192.0.2.1:5349", REALM),
        (true, "[2001:db8::1]:5349", REALM),
        (true, "\u{7f}\u{1}", REALM),
        (true, "", REALM),
    ] {
        let found = server.engine.realm_of_authority(is_secure, authority);
        assert_eq!(&*found, realm, "{authority}");
    }
    let mut is_user = |realm: &str, password: &str| -> Option<Arc<User>> {
        let now = server.now;
        (server.engine)
            .check_password(now, realm, "whirrun", password)
            .ok()
    };
    let user = is_user("crinna.org", "crinna.org").unwrap();
    assert_eq!(&*user.realm, "crinna.org");
    assert!(is_user("uffrith.org", "crinna.org").is_none());
    assert!(is_user(REALM, "crinna.org").is_none());
    assert!(is_user("nowhere.org", "crinna.org").is_none());
}

//= V-54
#[test]
fn a_database_is_to_be_asked_about_whom_it_may_have() {
    for asks in [Asks::Never, Asks::Users] {
        let mut server = Server::with(|config| config.auth.asks = asks);
        let now = server.now;
        let mut question = |name: &str, password: &str| {
            let checked = server.engine.check_password(now, REALM, name, password);
            let question = checked.err()?.question?;
            Some((question.realm.to_string(), question.name.to_string()))
        };
        assert_eq!(question("alice", "wonderland"), None);
        for name in ["alice", "carol"] {
            let expected = Some((REALM.to_owned(), name.to_owned()));
            let expected = expected.filter(|_| asks == Asks::Users);
            assert_eq!(question(name, "mirror"), expected);
        }
        for (name, password) in [("car\0ol", "x"), ("", "x"), ("carol", "")] {
            assert_eq!(question(name, password), None, "{name:?}");
        }
    }
}
