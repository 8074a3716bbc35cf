//! Relay sockets that allocations share (coturn's `multiplex-peer`).

use core::net::SocketAddr;
use std::sync::Arc;

use turnbuckle_engine::{
    Change, Commons, Config, DropReason, Endpoint, Engine, IcmpError, Outcome, RelayAddress,
    SharedRelays,
};
use turnbuckle_wire::{AddressFamily, Method};

use crate::rebuild::rebuild_with;
use crate::support::*;

const SHARED: Endpoint = Endpoint(50);
const SHARED_V6: Endpoint = Endpoint(51);
const RELAY: &str = "192.0.2.1:3480";
const RELAY_V6: &str = "[2001:db8::1]:3481";
/// A shared relay socket of another engine.
const RELAY_OF_ANOTHER: &str = "192.0.2.1:3482";
const OTHER: &str = "203.0.113.8:50000";
const PEERS_MAX: u16 = 4;

fn at(address: &str) -> SocketAddr {
    address.parse().unwrap()
}

fn start() -> Server {
    start_with(|_| {})
}

fn start_with(change: impl FnOnce(&mut Config)) -> Server {
    let mut server = Server::with(|config| {
        change(config);
        config.relays.shared = Some(SharedRelays {
            addresses: vec![
                [Some(at(RELAY)), Some(at(RELAY_V6))],
                [Some(at(RELAY_OF_ANOTHER)), None],
            ],
            peers_per_allocation: PEERS_MAX,
        });
    });
    server.engine.add_shared_relay(SHARED, at(RELAY));
    server.engine.add_shared_relay(SHARED_V6, at(RELAY_V6));
    server
}

/// Returns two clients with an allocation each.
fn start_with_two() -> (Server, Client, Client) {
    let mut server = start();
    let mut one = server.client(CLIENT);
    let mut other = server.client_of("bob", "builder", OTHER);
    server.allocate(&mut one);
    server.allocate(&mut other);
    (server, one, other)
}

/// Returns the client that a datagram of `peer` goes to, or why to none.
fn receiver(server: &mut Server, peer: &str) -> Result<SocketAddr, DropReason> {
    let handle = server.engine.owner_of_peer(at(peer))?;
    let now = server.now.time;
    let route = server.engine.route_from_peer(now, handle, at(peer), 1, 10);
    route.map(|route| route.client.remote)
}

fn peer(number: usize) -> String {
    format!("93.184.216.20:{}", 7_000 + number)
}

#[test]
fn all_allocations_have_one_relayed_transport_address_and_ask_for_no_socket() {
    let mut server = start();
    server.opens_at_once = false;
    let mut one = server.client(CLIENT);
    let mut other = server.client_of("bob", "builder", OTHER);
    assert_eq!(server.allocate(&mut one), at(RELAY));
    assert_eq!(server.allocate_dual(&mut other), [at(RELAY), at(RELAY_V6)]);
    assert!(server.wishes.is_empty());
    assert_eq!(server.commons.quota_used_total(), 2);
    server.refresh(&mut one, 0).success();
    server.refresh(&mut other, 0).success();
    assert_eq!(server.commons.quota_used_total(), 0);
    server.assert_nothing_is_held();
}

#[test]
fn a_peers_datagram_reaches_the_client_that_named_the_peer_and_nobody_else() {
    let (mut server, mut one, mut other) = start_with_two();
    let (first, second, third) = (&peer(1), &peer(2), &peer(3));
    server.permit(&mut one, first).success();
    server.bind(&mut other, 0x4000, second).success();
    assert_eq!(server.send(&mut one, third, b"data").unwrap().relay, SHARED);
    assert_eq!(receiver(&mut server, first), Ok(at(CLIENT)));
    assert_eq!(receiver(&mut server, second), Ok(at(OTHER)));
    assert_eq!(receiver(&mut server, third), Ok(at(CLIENT)));
    // Both have a permission for the address, and nobody has named the port.
    let unknown = receiver(&mut server, &peer(4));
    assert_eq!(unknown, Err(DropReason::PeerUnclaimed));
    let route = server.channel_data(&other, 0x4000).unwrap();
    assert_eq!(route.relay, SHARED);
}

#[test]
fn a_peer_that_another_allocation_has_is_refused() {
    let (mut server, mut one, mut other) = start_with_two();
    server.permit(&mut one, PEER).success();
    assert_eq!(server.permit(&mut other, PEER).code(), Some(400));
    assert_eq!(server.bind(&mut other, 0x4000, PEER).code(), Some(400));
    // A permission for the address as a whole claims nothing, and lets nothing through.
    server.permit(&mut other, "93.184.216.20:0").success();
    assert_eq!(
        server.send(&mut other, PEER, b"data"),
        Err(DropReason::PeerTaken)
    );
    assert_eq!(receiver(&mut server, PEER), Ok(at(CLIENT)));
    assert_eq!(
        server.channel_data(&other, 0x4000),
        Err(DropReason::ChannelNotBound)
    );
    // Its owner may name it again as often as it wants.
    server.permit(&mut one, PEER).success();
    server.bind(&mut one, 0x4000, PEER).success();
}

#[test]
fn a_request_with_one_taken_peer_claims_none_of_its_peers() {
    let (mut server, mut one, mut other) = start_with_two();
    server.permit(&mut one, PEER).success();
    let answer = server.ask(&mut other, Method::CREATE_PERMISSION, |writer| {
        writer
            .xor_peer_address(at("93.184.216.21:1"))
            .xor_peer_address(at(PEER));
    });
    assert_eq!(answer.code(), Some(400));
    let reason = answer.message().error_code().unwrap().unwrap().reason;
    assert_eq!(
        reason,
        b"Peer address already used by another multiplex-peer allocation"
    );
    assert_eq!(
        receiver(&mut server, "93.184.216.21:1"),
        Err(DropReason::PeerUnclaimed)
    );
    server.permit(&mut one, "93.184.216.21:1").success();
}

#[test]
fn beyond_its_peers_an_allocation_gets_508_and_its_indications_are_dropped() {
    let (mut server, mut one, mut other) = start_with_two();
    for number in 0..usize::from(PEERS_MAX) {
        server.permit(&mut one, &peer(number)).success();
    }
    server.take_changes();
    let beyond = &peer(usize::from(PEERS_MAX));
    let answer = server.permit(&mut one, beyond);
    assert_eq!(answer.code(), Some(508));
    assert_eq!(server.bind(&mut one, 0x4000, beyond).code(), Some(508));
    assert_eq!(
        server.send(&mut one, beyond, b"data"),
        Err(DropReason::PeerLimit)
    );
    let reports: Vec<_> = server.take_changes();
    let reports = reports.iter().filter(|change| {
        matches!(change, Change::PeerLimitReached { peer, limit: PEERS_MAX, .. }
            if *peer == at(beyond))
    });
    assert_eq!(reports.count(), 1, "reported once");
    // What it has it keeps, and others are not concerned.
    server.send(&mut one, &peer(0), b"data").unwrap();
    server.permit(&mut other, beyond).success();
}

#[test]
fn a_request_for_more_peers_than_there_may_be_claims_none() {
    let mut server = start();
    let mut client = server.client(CLIENT);
    server.allocate(&mut client);
    let answer = server.ask(&mut client, Method::CREATE_PERMISSION, |writer| {
        for number in 0..=usize::from(PEERS_MAX) {
            writer.xor_peer_address(at(&peer(number)));
        }
    });
    assert_eq!(answer.code(), Some(508));
    for number in 0..=usize::from(PEERS_MAX) {
        assert_eq!(
            receiver(&mut server, &peer(number)),
            Err(DropReason::PeerUnclaimed)
        );
    }
}

#[test]
fn even_port_gets_508_and_a_reservation_token_400() {
    let mut server = start();
    for reserves in [false, true] {
        let mut client = server.client(CLIENT);
        let answer = server.ask(&mut client, Method::ALLOCATE, |writer| {
            writer.requested_transport(17).even_port(reserves);
        });
        assert_eq!(answer.code(), Some(508));
        let reason = answer.message().error_code().unwrap().unwrap().reason;
        assert_eq!(reason, b"EVEN-PORT is not supported with multiplex-peer");
    }
    let mut client = server.client(CLIENT);
    let answer = server.ask(&mut client, Method::ALLOCATE, |writer| {
        writer.requested_transport(17).reservation_token([7; 8]);
    });
    assert_eq!(answer.code(), Some(400));
    let answer = server.ask(&mut client, Method::ALLOCATE, |writer| {
        writer.requested_transport(17).reservation_token([0; 8]);
    });
    assert_eq!(answer.code(), None, "zeros are no token");
    server.refresh(&mut client, 0).success();
    server.assert_nothing_is_held();
}

#[test]
fn a_family_without_a_shared_socket_is_not_supported() {
    let mut server = Server::with(|config| {
        config.relays.shared = Some(SharedRelays {
            addresses: vec![[Some(at(RELAY)), None]],
            peers_per_allocation: PEERS_MAX,
        });
    });
    server.engine.add_shared_relay(SHARED, at(RELAY));
    let mut client = server.client(CLIENT);
    let answer = server.ask(&mut client, Method::ALLOCATE, |writer| {
        writer
            .requested_transport(17)
            .requested_address_family(AddressFamily::V6);
    });
    assert_eq!(answer.code(), Some(440));
    assert_eq!(server.allocate(&mut client), at(RELAY));
}

#[test]
fn a_peer_is_free_again_when_neither_permission_nor_channel_holds_it() {
    let (mut server, mut one, mut other) = start_with_two();
    server.refresh(&mut one, 3_600).success();
    server.refresh(&mut other, 3_600).success();
    server.permit(&mut one, &peer(1)).success();
    server.bind(&mut one, 0x4000, &peer(2)).success();
    server.wait_s(299);
    assert_eq!(server.permit(&mut other, &peer(1)).code(), Some(400));
    server.wait_s(2);
    server.challenge_if_stale(&mut one);
    server.challenge_if_stale(&mut other);
    // the permission is over, the channel is not
    server.permit(&mut other, &peer(1)).success();
    assert_eq!(server.permit(&mut other, &peer(2)).code(), Some(400));
    assert_eq!(receiver(&mut server, &peer(1)), Ok(at(OTHER)));
    assert_eq!(
        receiver(&mut server, &peer(2)),
        Err(DropReason::NoPermission)
    );
    server.wait_s(299);
    server.permit(&mut other, &peer(2)).success();
    assert_eq!(receiver(&mut server, &peer(2)), Ok(at(OTHER)));
}

#[test]
fn a_hold_that_is_over_holds_nothing_although_its_timer_is_late() {
    let (mut server, mut one, mut other) = start_with_two();
    server.permit(&mut one, PEER).success();
    server.oversleep(core::time::Duration::from_secs(300));
    server.permit(&mut other, PEER).success();
    assert_eq!(receiver(&mut server, PEER), Ok(at(OTHER)));
    // The late timer takes nothing from the new owner.
    server.wait_s(1);
    assert_eq!(receiver(&mut server, PEER), Ok(at(OTHER)));
    assert_eq!(server.permit(&mut one, PEER).code(), Some(400));
}

#[test]
fn what_ends_gives_its_peers_back() {
    let (mut server, mut one, mut other) = start_with_two();
    server.permit(&mut one, PEER).success();
    server.refresh(&mut one, 0).success();
    assert_eq!(receiver(&mut server, PEER), Err(DropReason::PeerUnclaimed));
    server.permit(&mut other, PEER).success();
    // and with one family of two go the peers of that family
    let mut dual = server.client("203.0.113.9:1");
    server.allocate_dual(&mut dual);
    server.permit(&mut dual, &peer(9)).success();
    server.permit(&mut dual, PEER_V6).success();
    let answer = server.ask(&mut dual, Method::REFRESH, |writer| {
        writer
            .lifetime(0)
            .requested_address_family(AddressFamily::V6);
    });
    answer.success();
    assert_eq!(
        receiver(&mut server, PEER_V6),
        Err(DropReason::PeerUnclaimed)
    );
    assert_eq!(receiver(&mut server, &peer(9)), Ok(at("203.0.113.9:1")));
}

#[test]
fn nobody_reaches_a_shared_relay_socket_as_a_peer() {
    // Also where ports of their own, which are peers, lie around it.
    let mut server = start_with(|config| config.relays.ports = 3_000..=4_000);
    let mut one = server.client(CLIENT);
    server.allocate(&mut one);
    for own in [RELAY, RELAY_OF_ANOTHER] {
        assert_eq!(server.permit(&mut one, own).code(), Some(403));
        assert_eq!(server.bind(&mut one, 0x4000, own).code(), Some(403));
    }
    server.permit(&mut one, "192.0.2.1:0").success();
    for own in [RELAY, RELAY_OF_ANOTHER] {
        assert_eq!(
            server.send(&mut one, own, b"data"),
            Err(DropReason::PeerForbidden)
        );
    }
    // Nor after the host has named its addresses again.
    server
        .engine
        .set_host_addresses(server.now.time, Vec::new(), &[]);
    assert_eq!(server.permit(&mut one, RELAY).code(), Some(403));
    assert_eq!(
        server.send(&mut one, RELAY, b"data"),
        Err(DropReason::PeerForbidden)
    );
}

#[test]
fn an_icmp_error_reaches_whose_peer_it_is_about() {
    let (mut server, mut one, mut other) = start_with_two();
    server.permit(&mut one, &peer(1)).success();
    server.permit(&mut other, &peer(2)).success();
    server.replies.clear();
    for (number, client) in [(1, one.tuple), (2, other.tuple)] {
        let handle = server.engine.owner_of_peer(at(&peer(number))).unwrap();
        let error = IcmpError {
            peer: at(&peer(number)),
            kind: 3,
            code: 3,
            mtu: 0,
            v6: false,
        };
        let outcome = server.engine.handle_icmp(server.now, handle, error);
        assert_eq!(outcome, Outcome::Done);
        server.pump();
        server.only_reply_to(client);
    }
}

#[test]
fn a_rebuilt_engine_knows_whose_each_peer_is() {
    let (mut server, mut one, mut other) = start_with_two();
    server.permit(&mut one, &peer(1)).success();
    server.bind(&mut other, 0x4000, &peer(2)).success();
    server.permit(&mut other, "93.184.216.20:0").success();
    server.send(&mut other, &peer(3), b"data").unwrap();
    // A hold that was over when another client claimed the peer.
    server.permit(&mut one, "93.184.216.30:1").success();
    server.wait_s(200);
    server.permit(&mut one, &peer(1)).success();
    server.permit(&mut other, "93.184.216.20:0").success();
    server.oversleep(core::time::Duration::from_secs(100));
    server.permit(&mut other, "93.184.216.30:1").success();

    let history = server.take_changes();
    let commons = Commons::new(&server.config);
    let random = Seeded::new(1);
    let engine = Engine::rebuild(
        Arc::clone(&server.config),
        Arc::clone(&commons),
        random.clone(),
        server.now,
        listeners(),
        history,
        |local| match local {
            local if local == at(RELAY) => Some(SHARED),
            _ => None,
        },
    );
    let mut rebuilt = Server::around(engine, Arc::clone(&server.config), commons, random);
    rebuilt.now = server.now;
    for server in [&mut server, &mut rebuilt] {
        assert_eq!(receiver(server, &peer(1)), Ok(at(CLIENT)));
        assert_eq!(receiver(server, &peer(2)), Ok(at(OTHER)));
        assert_eq!(receiver(server, &peer(3)), Ok(at(OTHER)));
        assert_eq!(receiver(server, "93.184.216.30:1"), Ok(at(OTHER)));
        assert_eq!(receiver(server, &peer(4)), Err(DropReason::PeerUnclaimed));
    }
    assert_eq!(rebuilt.bind(&mut one, 0x4001, &peer(3)).code(), Some(400));
    assert_eq!(rebuilt.channel_data(&other, 0x4000).unwrap().relay, SHARED);
}

#[test]
fn calls_on_a_shared_socket_go_on_at_an_address_that_is_named_no_more() {
    let external = "93.184.1.1".parse().unwrap();
    let mut server = start_with(|config| config.relays.addresses[0].external = Some(external));
    let mut client = server.client(CLIENT);
    let relayed = server.allocate(&mut client);
    server.bind(&mut client, 0x4000, &peer(1)).success();
    let history = server.take_changes();
    let mut config = (*server.config).clone();
    let former = std::mem::replace(
        &mut config.relays.addresses[0],
        RelayAddress {
            local: "192.0.2.2".parse().unwrap(),
            external: None,
        },
    );
    config.relays.former = vec![former];
    let mut rebuilt = rebuild_with(&server, &history, Arc::new(config), |local| {
        (local == at(RELAY)).then_some(SHARED)
    });
    assert_eq!(receiver(&mut rebuilt, &peer(1)), Ok(at(CLIENT)));
    assert_eq!(rebuilt.channel_data(&client, 0x4000).unwrap().relay, SHARED);
    // Whoever comes shares the socket too, and is told the address that peers reach it by.
    let mut other = rebuilt.client(OTHER);
    assert_eq!(rebuilt.allocate(&mut other), relayed);
    assert_eq!(relayed.ip(), external);
}
