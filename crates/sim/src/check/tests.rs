//! Every invariant can fail: a run that keeps all of them is tampered with, one fact at a time.
//!
//! What the comparison with the model finds first is taken out of its way by tampering with the model.

use std::net::SocketAddr;
use std::sync::Arc;

use super::invariants::Ledger;
use super::{Output, Watched};
use crate::features::Features;
use crate::model::Tuple;
use crate::queue::SECOND;
use crate::scenario::Scenario;
use crate::trace::Trace;
use crate::violation::Violation;
use crate::world::World;

/// Returns a moment at which clients hold allocations with permissions and channels.
fn busy_moment() -> (Watched, u64) {
    let mut world = World::new(Scenario::with_features(3, Features::NONE), Trace::new(0));
    for _ in 0..10_000 {
        world.step().expect("a run without faults");
        let mut held = world.watched.model.allocations.values();
        if held.any(|held| !held.permissions.is_empty() && !held.channels.is_empty()) {
            let now = world.now();
            assert_eq!(world.watched.invariants(now), Ok(()));
            return (world.watched, now);
        }
    }
    unreachable!("no client ever held a channel");
}

fn rule(result: Result<(), Violation>) -> &'static str {
    result.expect_err("the invariant is blind").rule
}

fn holder(watched: &Watched) -> Tuple {
    let mut held = watched.model.allocations.iter();
    let (tuple, _) = held
        .find(|(_, held)| !held.channels.is_empty())
        .expect("somebody holds a channel");
    *tuple
}

#[test]
fn i1_notices_a_datagram_to_a_forbidden_peer() {
    let (mut watched, _) = busy_moment();
    let from = holder(&watched);
    let relay = *watched.model.allocations[&from]
        .relays
        .keys()
        .next()
        .unwrap();
    for peer in [
        "127.0.0.1:53",
        "10.1.2.3:53",
        "45.10.0.1:3478",
        "80.0.1.1:0",
    ] {
        let peer: SocketAddr = peer.parse().unwrap();
        let sent = watched.send_to_peer(from, relay, peer, b"data", &mut Output::default());
        assert_eq!(rule(sent), "I1", "{peer}");
    }
    let allowed: SocketAddr = "80.0.1.1:4000".parse().unwrap();
    let sent = watched.send_to_peer(from, relay, allowed, b"data", &mut Output::default());
    assert_eq!(sent, Ok(()));
}

#[test]
fn i2_notices_data_without_a_live_permission() {
    let (mut watched, now) = busy_moment();
    let from = holder(&watched);
    let held = watched.model.allocations.get_mut(&from).unwrap();
    let (number, (peer, _)) = held.channels.iter().next().unwrap();
    let (number, peer) = (*number, *peer);
    let relay = held.relay_towards(peer.ip()).unwrap();
    held.permissions.clear();
    let data = crate::message::channel_data(number, b"data");
    let outward = watched.from_client(now, from, &data).map(|_| ());
    assert_eq!(rule(outward), "I2");
    let inward = watched.from_peer(now, relay, peer, b"data").map(|_| ());
    assert_eq!(rule(inward), "I2");
}

#[test]
fn i3_notices_bytes_beyond_the_budget() {
    let limits = Scenario::draw(0).config.unverified;
    let mut ledger = Ledger::new(limits.clone());
    let source = "90.0.0.1".parse().unwrap();
    let mut send = |now| ledger.unverified_reply(now, source, Some(7), 100, 100);
    let burst = limits.bytes.burst / 100;
    for _ in 0..burst {
        assert_eq!(send(0), Ok(()));
    }
    let beyond = (0..20).map(|_| send(0)).find(Result::is_err);
    assert_eq!(rule(beyond.unwrap()), "I3");
    assert_eq!(send(60 * SECOND), Ok(()), "the budget comes back");
}

#[test]
fn a_source_whose_bucket_has_room_may_be_refused_nothing_while_another_floods() {
    let limits = Scenario::draw(0).config.unverified;
    let mut ledger = Ledger::new(limits.clone());
    let source = "90.0.0.1".parse().unwrap();
    for _ in 0..limits.bytes.burst / 100 {
        assert_eq!(
            ledger.unverified_reply(0, source, Some(7), 100, 100),
            Ok(())
        );
    }
    assert!(ledger.may_be_over_budget(0, Some(7)));
    assert!(!ledger.may_be_over_budget(0, Some(8)));
    assert!(!ledger.may_be_over_budget(60 * SECOND, Some(7)));
}

#[test]
fn i3_notices_sources_that_all_share_one_bucket() {
    let mut ledger = Ledger::new(Scenario::draw(0).config.unverified);
    let beyond = (0..9_u8)
        .map(|host| ledger.unverified_reply(0, [90, 0, 0, host].into(), Some(7), 100, 100))
        .find(Result::is_err);
    assert_eq!(rule(beyond.unwrap()), "I3");
}

#[test]
fn i4_notices_a_port_that_leaked() {
    let (mut watched, now) = busy_moment();
    let from = holder(&watched);
    let held = watched.model.allocations.get_mut(&from).unwrap();
    held.relays.clear();
    assert_eq!(rule(watched.invariants(now)), "I4");
}

#[test]
fn i5_notices_a_quota_unit_that_leaked() {
    let (mut watched, now) = busy_moment();
    let from = holder(&watched);
    let held = watched.model.allocations.get_mut(&from).unwrap();
    held.user.push('x');
    assert_eq!(rule(watched.invariants(now)), "I5");
}

#[test]
fn i6_notices_what_outlives_its_time() {
    let (mut watched, now) = busy_moment();
    let from = holder(&watched);
    let held = watched.model.allocations.get_mut(&from).unwrap();
    for expires in held.permissions.values_mut() {
        *expires = now - 2 * SECOND;
    }
    assert_eq!(rule(watched.invariants(now)), "I6");
}

#[test]
fn i7_notices_a_table_beyond_its_limit() {
    for shrink in 0..3 {
        let (mut watched, now) = busy_moment();
        let mut config = (*watched.server.config).clone();
        match shrink {
            0 => config.limits.allocations = 0,
            1 => config.limits.permissions_per_allocation = 0,
            _ => config.limits.channels_per_allocation = 0,
        }
        watched.server.config = Arc::new(config);
        assert_eq!(rule(watched.invariants(now)), "I7");
    }
}

#[test]
fn i10_notices_a_second_source_address() {
    let mut ledger = Ledger::new(Scenario::draw(0).config.unverified);
    let address = |text: &str| text.parse::<SocketAddr>().unwrap();
    assert_eq!(
        ledger.seen_by_peer(Some(1), address("45.10.0.2:50000")),
        Ok(())
    );
    assert_eq!(
        ledger.seen_by_peer(Some(1), address("[2a01:10::2]:50000")),
        Ok(())
    );
    assert_eq!(
        ledger.seen_by_peer(Some(1), address("45.10.0.2:50000")),
        Ok(())
    );
    let moved = ledger.seen_by_peer(Some(1), address("45.10.0.2:50001"));
    assert_eq!(rule(moved), "I10");
    assert_eq!(
        rule(ledger.seen_by_peer(None, address("45.10.0.2:50000"))),
        "I10"
    );
}

#[test]
fn the_copy_made_of_the_change_stream_notices_what_was_left_out() {
    let (mut watched, now) = busy_moment();
    let from = holder(&watched);
    let held = watched.model.allocations.get_mut(&from).unwrap();
    held.permissions.clear();
    assert_eq!(rule(watched.follow(now, &[], 0)), "changes");
}

#[test]
fn a_socket_that_nobody_owns_is_noticed() {
    let (mut watched, now) = busy_moment();
    let from = holder(&watched);
    let held = watched.model.allocations.get_mut(&from).unwrap();
    let (relay, expires) = held.relays.pop_first().unwrap();
    let other = SocketAddr::new(relay.ip(), relay.port() + 1);
    held.relays.insert(other, expires);
    assert_eq!(rule(watched.invariants(now)), "sockets");
}
