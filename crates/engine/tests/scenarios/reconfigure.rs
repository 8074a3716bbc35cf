//! Users, peer rules and quotas that change while clients are there.

use turnbuckle_engine::{Action, Change, DropReason, Outcome, Rule};
use turnbuckle_wire::{AttributeType, Method};

use crate::support::*;

#[test]
fn a_user_who_is_added_or_removed_is_so_for_the_next_request() {
    let mut server = Server::start();
    let mut alice = server.client(CLIENT);
    server.allocate(&mut alice);

    let mut next = config();
    next.auth = turnbuckle_engine::AuthConfig::new(REALM).unwrap();
    let key = turnbuckle_wire::long_term_key_md5(b"carol", REALM.as_bytes(), b"singer");
    let added = next
        .auth
        .add_users_by_md5_key([("carol", key), ("car\u{7}ol", key)]);
    assert_eq!(added.unusable, ["car\u{7}ol"]);
    server.engine.reconfigure(server.now.time, &next.into());

    let transaction = alice.next_transaction();
    let request = alice.request(Method::REFRESH, transaction, |_| {});
    let refused = server.exchange(alice.tuple, &request);
    assert_eq!(
        refused.code(),
        Some(438),
        "other algorithms are offered now"
    );
    server.challenge(&mut alice);
    let transaction = alice.next_transaction();
    let request = alice.request(Method::REFRESH, transaction, |_| {});
    let refused = server.exchange(alice.tuple, &request);
    assert_eq!(refused.code(), Some(401), "alice is gone");
    assert_eq!(
        server.engine.statistics().allocations,
        1,
        "what she has lives on until it expires"
    );
    let mut carol = server.client_of("carol", "singer", "203.0.113.9:9");
    server.allocate(&mut carol);
}

#[test]
fn who_is_not_known_while_users_are_due_is_neither_served_nor_refused() {
    let mut server = Server::start();
    let mut alice = server.client(CLIENT);
    server.allocate(&mut alice);

    let mut next = config();
    next.auth = turnbuckle_engine::AuthConfig::new(REALM).unwrap();
    next.answers.are_users_due = true;
    server.engine.reconfigure(server.now.time, &next.into());
    let transaction = alice.next_transaction();
    let request = alice.request(Method::REFRESH, transaction, |_| {});
    let outcome = server.receive(alice.tuple, &request);
    assert!(
        matches!(outcome, Outcome::Dropped(DropReason::UsersDue)),
        "{outcome:?}"
    );
    // Who has not said who he is gets his nonce.
    server.client("203.0.113.9:9");

    server.engine.reconfigure(server.now.time, &config().into());
    server.exchange(alice.tuple, &request).success();
}

#[test]
fn while_rules_for_peers_are_due_no_peer_is_new_and_those_with_a_permission_go_on() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    server.allocate(&mut client);
    server.permit(&mut client, PEER).success();

    let mut next = config();
    next.answers.are_peer_rules_due = true;
    server.engine.reconfigure(server.now.time, &next.into());
    server.permit(&mut client, PEER).success();
    server.bind(&mut client, 0x4000, PEER).success();
    let other = "93.184.216.21:7000";
    for peers in [&[other][..], &[PEER, other]] {
        let waits = named(&mut server, &mut client, Method::CREATE_PERMISSION, peers);
        assert_eq!(waits, Outcome::Dropped(DropReason::UsersDue), "{peers:?}");
    }
    let waits = named(&mut server, &mut client, Method::CHANNEL_BIND, &[other]);
    assert_eq!(waits, Outcome::Dropped(DropReason::UsersDue));
    assert_eq!(
        server.send(&mut client, other, b"x"),
        Err(DropReason::NoPermission)
    );
    assert!(server.send(&mut client, PEER, b"x").is_ok());
    server.refresh(&mut client, 600).success();

    server.engine.reconfigure(server.now.time, &config().into());
    server.permit(&mut client, other).success();
    server.bind(&mut client, 0x4001, other).success();
}

/// Sends a request that names peers, and for the first of them a channel.
fn named(server: &mut Server, client: &mut Client, method: Method, peers: &[&str]) -> Outcome {
    let transaction = client.next_transaction();
    let request = client.request(method, transaction, |writer| {
        if method == Method::CHANNEL_BIND {
            writer.bytes(AttributeType::CHANNEL_NUMBER, &[0x40, 1, 0, 0]);
        }
        for peer in peers {
            writer.xor_peer_address(peer.parse().unwrap());
        }
    });
    server.replies.clear();
    let outcome = server.receive(client.tuple, &request);
    assert!(server.replies.is_empty());
    outcome
}

#[test]
fn a_peer_that_is_denied_from_now_on_loses_its_permission_and_another_keeps_it() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    server.allocate(&mut client);
    let other = "93.184.216.21:7000";
    server.permit(&mut client, PEER).success();
    server.permit(&mut client, other).success();
    server.take_changes();

    let mut next = config();
    next.policy.rules.push(Rule {
        action: Action::Deny,
        range: "93.184.216.20".parse().unwrap(),
    });
    server.engine.reconfigure(server.now.time, &next.into());
    server.pump();

    let changes = server.take_changes();
    assert!(
        matches!(&changes[..], [Change::PermissionExpired { peer, .. }] if peer.to_string() == "93.184.216.20"),
        "{changes:?}"
    );
    assert_eq!(
        server.send(&mut client, PEER, b"x"),
        Err(DropReason::PeerForbidden)
    );
    assert!(server.send(&mut client, other, b"x").is_ok());
    assert_eq!(server.permit(&mut client, PEER).code(), Some(403));
}

#[test]
fn a_quota_that_shrinks_ends_nothing_and_refuses_the_next() {
    let mut server = Server::start();
    let mut first = server.client(CLIENT);
    server.allocate(&mut first);
    let mut next = config();
    next.limits.user_quota = Some(1);
    server.commons.reconfigure(&next);
    let mut second = server.client("203.0.113.9:9");
    let refused = server.ask(&mut second, Method::ALLOCATE, |writer| {
        writer.requested_transport(17);
    });
    assert_eq!(refused.code(), Some(486));
    server.refresh(&mut first, 600).success();
    next.limits.user_quota = None;
    server.commons.reconfigure(&next);
    server.allocate(&mut second);
}

#[test]
fn a_rate_that_is_set_later_is_that_of_allocations_to_come() {
    let mut server = Server::start();
    let mut first = server.client(CLIENT);
    server.allocate(&mut first);
    let mut next = config();
    next.limits.bandwidth.bytes_per_s = core::num::NonZeroU32::new(1_000);
    server.commons.reconfigure(&next);
    let mut second = server.client("203.0.113.9:9");
    server.allocate(&mut second);
    for client in [&mut first, &mut second] {
        server.permit(client, PEER).success();
    }
    assert!(server.send(&mut first, PEER, &[0; 1_200]).is_ok());
    assert!(server.send(&mut second, PEER, &[0; 900]).is_ok());
    assert!(server.send(&mut first, PEER, &[0; 1_200]).is_ok());
    assert!(server.send(&mut second, PEER, &[0; 900]).is_err());
}

#[test]
fn a_capacity_that_is_set_later_counts_what_is_promised_already_and_one_that_goes_leaves_room() {
    let mut server = Server::with(|config| {
        config.limits.bandwidth.bytes_per_s = core::num::NonZeroU32::new(1_000);
    });
    let mut first = server.client(CLIENT);
    server.allocate(&mut first);
    assert_eq!(server.commons.bandwidth_reserved(), 1_000);
    let mut next = config();
    next.limits.bandwidth.bytes_per_s = core::num::NonZeroU32::new(1_000);
    next.limits.bandwidth.capacity_bytes_per_s = core::num::NonZeroU32::new(1_000);
    server.commons.reconfigure(&next);
    let mut second = server.client("203.0.113.9:9");
    let refused = server.ask(&mut second, Method::ALLOCATE, |writer| {
        writer.requested_transport(17);
    });
    assert_eq!(refused.code(), Some(486));
    next.limits.bandwidth.capacity_bytes_per_s = None;
    server.commons.reconfigure(&next);
    server.allocate(&mut second);
    server.refresh(&mut first, 0).success();
    assert_eq!(server.commons.bandwidth_reserved(), 1_000);
}

#[test]
fn mobility_that_is_switched_off_refuses_tickets_and_switched_on_again_takes_those_that_are_out() {
    let (mut server, _, relayed, ticket) = crate::mobility::start();
    let mut moved = server.client(crate::mobility::MOVED);
    server.engine.reconfigure(server.now.time, &config().into());
    let refused = crate::mobility::resume(&mut server, &mut moved, &ticket);
    assert_eq!(refused.code(), Some(405));
    let mut next = config();
    crate::mobility::mobile(&mut next);
    server.engine.reconfigure(server.now.time, &next.into());
    crate::mobility::resume(&mut server, &mut moved, &ticket).success();
    assert!(server.peer_data(relayed, PEER).is_ok());
}

#[test]
fn tcp_relays_that_are_switched_on_are_to_be_had_from_then_on_and_off_again_no_more() {
    let mut server = Server::start();
    let ask = |server: &mut Server, from: &str| {
        let mut client = server.client(from);
        client.tuple.transport = turnbuckle_engine::Transport::Tcp;
        let answer = server.ask(&mut client, Method::ALLOCATE, |writer| {
            writer.requested_transport(6);
        });
        answer.code()
    };
    assert_eq!(ask(&mut server, "203.0.113.9:1"), Some(442));
    let mut next = config();
    next.relays.tcp = Some(turnbuckle_engine::TcpRelays::default());
    server.commons.reconfigure(&next);
    server.engine.reconfigure(server.now.time, &next.into());
    assert_eq!(ask(&mut server, "203.0.113.9:2"), None);
    server.engine.reconfigure(server.now.time, &config().into());
    assert_eq!(ask(&mut server, "203.0.113.9:3"), Some(442));
}

/// An allocation that waits for its socket while it is switched off is over as soon as it has one.
#[test]
fn a_pending_allocation_ends_when_its_kind_is_switched_off() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    let transaction = client.next_transaction();
    let request = client.request(Method::ALLOCATE, transaction, |writer| {
        writer.requested_transport(17);
    });
    let now = server.now;
    let _ = server.engine.handle_stun(now, client.tuple, &request);
    assert_eq!(server.engine.statistics().pending, 1);
    let mut next = config();
    next.service = turnbuckle_engine::Service::StunOnly;
    server.engine.reconfigure(now.time, &next.into());
    server.pump();
    assert_eq!(server.engine.statistics().pending, 0);
    assert_eq!(server.engine.statistics().allocations, 0);
}

#[test]
fn strangers_have_the_budget_of_the_moment() {
    let mut server = Server::start();
    let tuple = server.client("203.0.113.9:9").tuple;
    let is_answered = |server: &mut Server, n: u8| {
        let transaction = turnbuckle_wire::TransactionId::new([n; 12]);
        let request = bare(Method::BINDING, transaction, |_| {});
        !matches!(server.receive(tuple, &request), Outcome::Dropped(_))
    };
    assert!(is_answered(&mut server, 1));
    let mut next = config();
    next.unverified.bytes = turnbuckle_engine::Rate { burst: 1, per_s: 1 };
    server.commons.reconfigure(&next);
    assert!(!is_answered(&mut server, 2));
    server.commons.reconfigure(&config());
    server.wait(core::time::Duration::from_secs(1));
    assert!(is_answered(&mut server, 3));
}
