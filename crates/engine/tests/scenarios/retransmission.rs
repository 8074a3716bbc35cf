//! The same request twice, and old requests again: RFC 8489 §6.3.1, RFC 8656 §5, §7.2 and §8.2.

use turnbuckle_engine::{DropReason, Outcome};
use turnbuckle_wire::{AddressFamily, Method};

use crate::support::*;

//= STUN-023
//= STUN-024
//= TURN-011
//= TURN-050
#[test]
fn a_repeated_allocate_gets_the_same_answer_and_no_second_allocation() {
    let mut server = Server::with(|config| config.relays.addresses.truncate(1));
    type Write = fn(&mut turnbuckle_wire::MessageWriter<'_>);
    let writes: [Write; 3] = [
        |_| {},
        |writer| {
            writer.even_port(true);
        },
        |writer| {
            writer.additional_address_family(AddressFamily::V6); // of which only IPv4 is to be had
        },
    ];
    for (n, write) in writes.into_iter().enumerate() {
        let mut client = server.client(&format!("203.0.113.7:{}", 1 + n));
        let transaction = client.next_transaction();
        let request = client.request(Method::ALLOCATE, transaction, |writer| {
            writer.requested_transport(17);
            write(writer);
        });
        let first = server.exchange(client.tuple, &request);
        first.success();
        let reserved = server.commons.reserved_ports();
        for _ in 0..3 {
            assert_eq!(
                server.exchange(client.tuple, &request),
                first,
                "to the last byte"
            );
        }
        assert_eq!(server.engine.statistics().allocations, n + 1);
        assert_eq!(
            server.commons.quota_used(REALM, "alice") as usize,
            n + 1 + reserved
        );
        assert_eq!(server.commons.reserved_ports(), reserved);
        server.oversleep(core::time::Duration::from_millis(5_500));
        let later = server.exchange(client.tuple, &request);
        assert_eq!(
            later.lifetime(),
            595,
            "what is left of the lifetime, rounded up"
        );
        assert_eq!(
            later.message().xor_relayed_address(),
            first.message().xor_relayed_address()
        );
        assert_eq!(
            later.message().reservation_token(),
            first.message().reservation_token()
        );
    }
}

//= V-28
#[test]
fn another_user_is_not_told_what_an_allocation_has() {
    let mut server = Server::start();
    let mut alice = server.client(CLIENT);
    let transaction = alice.next_transaction();
    let write = |writer: &mut turnbuckle_wire::MessageWriter<'_>| {
        writer.requested_transport(17).even_port(true);
    };
    let request = alice.request(Method::ALLOCATE, transaction, write);
    server.exchange(alice.tuple, &request).success();
    let bob = server.client_of("bob", "builder", CLIENT);
    let request = bob.request(Method::ALLOCATE, transaction, write);
    let answer = server.exchange(bob.tuple, &request);
    assert_eq!(answer.code(), Some(437), "by the same transaction id");
    assert!(answer.message().xor_relayed_address().unwrap().is_none());
}

//= STUN-023
#[test]
fn a_repeated_allocate_waits_for_the_answer_that_is_on_its_way() {
    let mut server = Server::start();
    server.opens_at_once = false;
    let mut client = server.client(CLIENT);
    let transaction = client.next_transaction();
    let request = client.request(Method::ALLOCATE, transaction, |writer| {
        writer.requested_transport(17);
    });
    server.replies.clear();
    assert_eq!(server.receive(client.tuple, &request), Outcome::Done);
    assert_eq!(
        server.receive(client.tuple, &request),
        Outcome::Dropped(DropReason::RequestInProgress)
    );
    assert_eq!(server.wishes.len(), 1);
    assert!(server.replies.is_empty());
    let other = server.ask(&mut client, Method::ALLOCATE, |writer| {
        writer.requested_transport(17);
    });
    assert_eq!(other.code(), Some(437), "another request is another matter");
    assert_eq!(
        server.refresh(&mut client, 0).code(),
        Some(437),
        "there is no allocation yet"
    );
    server.open_wishes();
    server.only_reply_to(client.tuple).success();
    assert_eq!(server.engine.statistics().allocations, 1);
}

//= STUN-023
#[test]
fn repeated_refresh_permission_and_channel_requests_change_nothing() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    server.allocate(&mut client);
    let requests = [
        Method::REFRESH,
        Method::CREATE_PERMISSION,
        Method::CHANNEL_BIND,
    ]
    .map(|method| {
        let transaction = client.next_transaction();
        client.request(method, transaction, |writer| {
            writer.lifetime(700).xor_peer_address(PEER.parse().unwrap());
            writer.channel_number(0x4000.try_into().unwrap());
        })
    });
    for request in requests {
        let first = server.exchange(client.tuple, &request);
        first.success();
        for _ in 0..3 {
            assert_eq!(server.exchange(client.tuple, &request), first);
        }
    }
}

//= TURN-053
#[test]
fn a_repeated_refresh_of_zero_gets_437() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    server.allocate(&mut client);
    let transaction = client.next_transaction();
    let release = client.request(Method::REFRESH, transaction, |writer| {
        writer.lifetime(0);
    });
    assert_eq!(server.exchange(client.tuple, &release).lifetime(), 0);
    assert_eq!(server.exchange(client.tuple, &release).code(), Some(437));
}

/// A client repeats a request for 39.5 s (RFC 8489 §6.2.1), and a request may be on its way for a while.
//= STUN-025
#[test]
fn a_request_that_comes_again_within_forty_seconds_is_no_second_one() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    let transaction = client.next_transaction();
    let allocate = client.request(Method::ALLOCATE, transaction, |writer| {
        writer.requested_transport(17);
    });
    let first = server.exchange(client.tuple, &allocate);
    let relayed = first.success().xor_relayed_address().unwrap().unwrap();
    for _ in 0..4 {
        server.wait_s(10);
        server.permit(&mut client, PEER).success(); // another transaction in between
        let again = server.exchange(client.tuple, &allocate);
        let known = again.success().xor_relayed_address().unwrap().unwrap();
        assert_eq!(known, relayed);
        assert_eq!(server.engine.statistics().allocations, 1);
    }
    let transaction = client.next_transaction();
    let release = client.request(Method::REFRESH, transaction, |writer| {
        writer.lifetime(0);
    });
    server.exchange(client.tuple, &release).success();
    for _ in 0..4 {
        server.wait_s(10);
        for request in [&allocate, &release] {
            let answer = server.exchange(client.tuple, request);
            assert_eq!(answer.code(), Some(437));
            server.assert_nothing_is_held();
        }
    }
}

/// An attacker who saw the client's Refresh of zero sends it again when the client has a new allocation on the same 5-tuple. Its
/// nonce and its integrity are still good.
//= STUN-025
//= V-22
#[test]
fn a_replayed_release_does_not_end_a_later_allocation() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    server.allocate(&mut client);
    let transaction = client.next_transaction();
    let release = client.request(Method::REFRESH, transaction, |writer| {
        writer.lifetime(0);
    });
    server.exchange(client.tuple, &release).success();
    for wait_s in [0, 41, 500] {
        server.wait_s(wait_s);
        server.allocate(&mut client);
        assert_eq!(
            server.exchange(client.tuple, &release).code(),
            Some(437),
            "after {wait_s} s"
        );
        assert_eq!(server.engine.statistics().allocations, 1);
        server.refresh(&mut client, 0).success();
    }
}

//= STUN-023
//= V-22
#[test]
fn a_late_allocate_does_not_create_an_allocation_again() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    let transaction = client.next_transaction();
    let allocate = client.request(Method::ALLOCATE, transaction, |writer| {
        writer.requested_transport(17);
    });
    server.exchange(client.tuple, &allocate).success();
    server.refresh(&mut client, 0).success();
    assert_eq!(server.exchange(client.tuple, &allocate).code(), Some(437));
    server.assert_nothing_is_held();
    server.allocate(&mut client);
}

//= TURN-054
//= V-22
#[test]
fn a_repeated_release_of_one_family_succeeds_and_is_not_replayed_on_the_next() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    server.allocate_dual(&mut client);
    let transaction = client.next_transaction();
    let release = client.request(Method::REFRESH, transaction, |writer| {
        writer
            .lifetime(0)
            .requested_address_family(AddressFamily::V6);
    });
    let first = server.exchange(client.tuple, &release);
    assert_eq!(first.lifetime(), 0);
    assert_eq!(
        server.exchange(client.tuple, &release),
        first,
        "a retransmission"
    );
    assert_eq!(server.sockets.len(), 1);
    server.refresh(&mut client, 0).success();
    let [_, v6] = server.allocate_dual(&mut client);
    assert_eq!(
        server.exchange(client.tuple, &release).code(),
        Some(437),
        "a replay"
    );
    assert!(server.socket_at(v6).is_some());
}

//= V-22
#[test]
fn the_memory_of_finished_transactions_is_bounded() {
    let mut server = Server::with(|config| config.limits.tombstones = 4);
    let mut client = server.client(CLIENT);
    let mut releases = Vec::new();
    for _ in 0..4 {
        server.allocate(&mut client);
        let transaction = client.next_transaction();
        let release = client.request(Method::REFRESH, transaction, |writer| {
            writer.lifetime(0);
        });
        server.exchange(client.tuple, &release).success();
        releases.push(release);
    }
    server.allocate(&mut client);
    // each allocation left two: the last two releases are remembered
    assert_eq!(
        server.exchange(client.tuple, &releases[3]).code(),
        Some(437)
    );
    assert_eq!(
        server.exchange(client.tuple, &releases[2]).code(),
        Some(437)
    );
    assert_eq!(server.engine.statistics().allocations, 1);
}

//= V-22
#[test]
fn a_captured_request_creates_nothing_although_thousands_of_other_allocations_ended_since() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    let transaction = client.next_transaction();
    let captured = client.request(Method::ALLOCATE, transaction, |writer| {
        writer.requested_transport(17);
    });
    server.exchange(client.tuple, &captured).success();
    server.refresh(&mut client, 0).success();
    for n in 0..3_000_u16 {
        let [high, low] = n.to_be_bytes();
        let mut other = server.client(&format!("198.18.{high}.{low}:9"));
        server.allocate(&mut other);
        server.refresh(&mut other, 0).success();
    }
    server.take_changes();
    assert_eq!(server.exchange(client.tuple, &captured).code(), Some(437));
    assert_eq!(server.engine.statistics().tombstones_forgotten_early, 0);
}
