//! Reserved ports and their tokens, RFC 8656 §7.2.

use core::time::Duration;
use std::sync::Arc;

use turnbuckle_engine::{DropReason, RelayOpenError};
use turnbuckle_wire::Method;

use crate::support::*;

/// Allocates a pair; returns the port in use and the token of the other.
fn reserve(server: &mut Server, remote: &str) -> (u16, [u8; 8]) {
    let mut client = server.client(remote);
    let answer = server.ask(&mut client, Method::ALLOCATE, |writer| {
        writer.requested_transport(17).even_port(true);
    });
    let message = answer.success();
    let relayed = message.xor_relayed_address().unwrap().unwrap();
    (
        relayed.port(),
        message.reservation_token().unwrap().unwrap(),
    )
}

fn redeem(server: &mut Server, remote: &str, token: [u8; 8]) -> Answer {
    let mut client = server.client(remote);
    server.ask(&mut client, Method::ALLOCATE, |writer| {
        writer.requested_transport(17).reservation_token(token);
    })
}

//= TURN-040
//= TURN-042
#[test]
fn a_token_buys_the_next_port_from_any_client_and_once() {
    let mut server = Server::start();
    let (port, token) = reserve(&mut server, CLIENT);
    assert_eq!(port % 2, 0);
    assert_eq!(server.commons.reserved_ports(), 1);
    let mut other = server.client_of("bob", "builder", "[2606:4700::7]:9");
    let answer = server.ask(&mut other, Method::ALLOCATE, |writer| {
        writer.requested_transport(17).reservation_token(token);
    });
    assert_eq!(
        answer
            .success()
            .xor_relayed_address()
            .unwrap()
            .unwrap()
            .port(),
        port + 1
    );
    //= TURN-026
    assert_eq!(
        redeem(&mut server, "203.0.113.8:1", token).code(),
        Some(508),
        "used"
    );
}

//= TURN-040
#[test]
fn a_token_is_good_at_every_engine_of_the_server() {
    let mut first = Server::start();
    let (port, token) = reserve(&mut first, CLIENT);
    let mut second = Server::joining(Arc::clone(&first.config), Arc::clone(&first.commons), 2);
    let answer = redeem(&mut second, "203.0.113.8:1", token);
    assert_eq!(
        answer
            .success()
            .xor_relayed_address()
            .unwrap()
            .unwrap()
            .port(),
        port + 1
    );
}

//= TURN-026
//= TURN-042
#[test]
fn a_reservation_holds_for_at_least_30_seconds_and_then_gives_its_port_back() {
    let mut server = Server::with(|config| {
        config.lifetimes.reservation = Duration::from_secs(5); // shorter than the RFC allows
        config.relays.ports = 50_000..=50_001;
    });
    let (_, token) = reserve(&mut server, CLIENT);
    server.wait(Duration::from_millis(29_900));
    let mut other = server.client("203.0.113.8:1");
    let answer = server.ask(&mut other, Method::ALLOCATE, |writer| {
        writer.requested_transport(17);
    });
    assert_eq!(answer.code(), Some(508), "the port is kept");
    server.wait(Duration::from_millis(200));
    assert_eq!(server.commons.reserved_ports(), 0);
    assert_eq!(
        redeem(&mut server, "203.0.113.8:2", token).code(),
        Some(508),
        "expired"
    );
    let mut other = server.client("203.0.113.8:3");
    assert_eq!(server.allocate(&mut other).port(), 50_001);
}

//= TURN-042
#[test]
fn a_reservation_gives_its_port_back_although_the_engine_that_made_it_is_gone() {
    let mut first = Server::with(|config| config.relays.ports = 50_000..=50_001);
    let mut second = Server::joining(Arc::clone(&first.config), Arc::clone(&first.commons), 2);
    reserve(&mut first, CLIENT);
    let commons = Arc::clone(&first.commons);
    drop(first);
    let mut taken = second.client("203.0.113.8:1");
    assert_eq!(second.allocate(&mut taken).port(), 50_000);
    second.wait_s(59);
    let mut client = second.client("203.0.113.8:2");
    let answer = second.ask(&mut client, Method::ALLOCATE, |writer| {
        writer.requested_transport(17);
    });
    assert_eq!(answer.code(), Some(508), "the port is kept");
    second.wait_s(2);
    assert_eq!(commons.reserved_ports(), 1, "nobody's timer");
    let mut client = second.client("203.0.113.8:3");
    assert_eq!(second.allocate(&mut client).port(), 50_001);
}

//= TURN-026
#[test]
fn an_expired_token_is_refused_even_before_its_timer_fires() {
    let mut server = Server::start();
    let (_, token) = reserve(&mut server, CLIENT);
    server.oversleep(Duration::from_secs(60));
    assert_eq!(
        redeem(&mut server, "203.0.113.8:2", token).code(),
        Some(508)
    );
}

//= TURN-042
#[test]
fn a_reservation_outlives_the_allocation_that_made_it() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    let answer = server.ask(&mut client, Method::ALLOCATE, |writer| {
        writer.requested_transport(17).even_port(true);
    });
    let token = answer.success().reservation_token().unwrap().unwrap();
    server.refresh(&mut client, 0).success();
    redeem(&mut server, "203.0.113.8:1", token).success();
}

//= TURN-111
//= V-20
#[test]
fn tokens_are_eight_random_bytes() {
    let mut server = Server::start();
    let mut tokens: Vec<_> = (0..64)
        .map(|n| reserve(&mut server, &format!("203.0.113.7:{}", 1 + n)).1)
        .collect();
    let ones: u32 = tokens.iter().flatten().map(|byte| byte.count_ones()).sum();
    assert!((1_900..2_200).contains(&ones), "{ones} of 4096 bits");
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 64);
}

#[test]
fn no_more_than_the_limit_of_reservations() {
    let mut server = Server::with(|config| config.limits.reservations = 1);
    reserve(&mut server, CLIENT);
    let mut client = server.client("203.0.113.8:1");
    let answer = server.ask(&mut client, Method::ALLOCATE, |writer| {
        writer.requested_transport(17).even_port(true);
    });
    assert_eq!(answer.code(), Some(508));
    assert_eq!(server.sockets.len(), 1);
}

#[test]
fn a_pair_that_another_process_has_half_of_is_left_alone() {
    let mut server = Server::with(|config| config.relays.ports = 50_000..=50_003);
    server.in_use.push("192.0.2.1:50000".parse().unwrap());
    let (port, _) = reserve(&mut server, CLIENT);
    assert_eq!(port, 50_002);
    let (_, counts) = server.commons.ports().next().unwrap();
    assert_eq!(counts.leased, 2, "nothing is kept of the pair that failed");
}

//= V-07
//= TURN-042
#[test]
fn nothing_is_sent_to_a_reserved_port_before_its_token_is_redeemed() {
    let mut server = Server::start();
    let (port, token) = reserve(&mut server, CLIENT);
    let mut sender = server.client("203.0.113.8:1");
    server.allocate(&mut sender);
    let beside = format!("192.0.2.1:{}", port + 1);
    server.permit(&mut sender, &beside).success();
    let sent = server.send(&mut sender, &beside, b"to another program");
    assert_eq!(sent.unwrap_err(), DropReason::PeerForbidden);
    redeem(&mut server, "203.0.113.9:1", token).success();
    server.send(&mut sender, &beside, b"to its holder").unwrap();
}

/// Returns the ports that the host holds.
fn held(server: &Server) -> Vec<u16> {
    let held = server.held.lock().unwrap();
    held.iter().map(core::net::SocketAddr::port).collect()
}

//= V-44
//= TURN-042
#[test]
fn a_reserved_port_is_held_until_its_token_is_redeemed_at_whichever_engine() {
    let mut server = Server::start();
    let (port, token) = reserve(&mut server, CLIENT);
    assert_eq!(held(&server), [port + 1]);
    let mut other = Server::joining(Arc::clone(&server.config), Arc::clone(&server.commons), 2);
    other.held = Arc::clone(&server.held);
    redeem(&mut other, "203.0.113.8:1", token).success();
    assert_eq!(held(&server), [0_u16; 0], "in use");
    assert_eq!(other.sockets.len(), 1);
}

//= TURN-042
#[test]
fn a_reserved_port_that_nobody_asks_for_is_closed_when_its_time_is_over() {
    let mut server = Server::start();
    let (port, _) = reserve(&mut server, CLIENT);
    let lasts = server.config.lifetimes.reservation;
    server.wait(lasts - Duration::from_millis(100));
    assert_eq!(held(&server), [port + 1]);
    server.wait(Duration::from_millis(200));
    assert_eq!(held(&server), [0_u16; 0]);
}

//= TURN-042
#[test]
fn a_port_whose_sibling_another_program_has_is_not_the_first_of_a_pair() {
    let mut server = Server::with(|config| config.relays.ports = 50_000..=50_003);
    server.in_use.push("192.0.2.1:50001".parse().unwrap());
    let (port, _) = reserve(&mut server, CLIENT);
    assert_eq!(port, 50_002);
    assert_eq!(held(&server), [50_003]);
    assert_eq!(server.sockets.len(), 1, "nothing is left of the other pair");
}

#[test]
fn a_pair_that_is_opened_too_late_is_closed() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    server.opens_at_once = false;
    let transaction = client.next_transaction();
    let request = client.request(Method::ALLOCATE, transaction, |writer| {
        writer.requested_transport(17).even_port(true);
    });
    let _ = server.receive(client.tuple, &request);
    server.wait_s(11);
    server.open_wishes();
    assert_eq!(held(&server), [0_u16; 0]);
    server.assert_nothing_is_held();
}

/// Returns the code of the answer to an Allocate request with EVEN-PORT that reserves; `None` for success.
fn try_to_reserve(server: &mut Server, remote: &str) -> Option<u16> {
    let mut client = server.client(remote);
    let answer = server.ask(&mut client, Method::ALLOCATE, |writer| {
        writer.requested_transport(17).even_port(true);
    });
    answer.code()
}

fn try_to_allocate(server: &mut Server, remote: &str) -> Option<u16> {
    let mut client = server.client(remote);
    let answer = server.ask(&mut client, Method::ALLOCATE, |writer| {
        writer.requested_transport(17);
    });
    answer.code()
}

/// Returns how many units of the quota alice, bob and all have.
fn charged(server: &Server) -> [u32; 3] {
    let commons = &server.commons;
    let of = |name| commons.quota_used(REALM, name);
    [of("alice"), of("bob"), commons.quota_used_total()]
}

//= V-43
#[test]
fn a_reserved_port_counts_as_an_allocation_of_its_user_until_it_ends() {
    for is_total in [false, true] {
        let mut server = Server::with(|config| match is_total {
            true => config.limits.total_quota = Some(3),
            false => config.limits.user_quota = Some(3),
        });
        reserve(&mut server, CLIENT);
        assert_eq!(charged(&server), [2, 0, 2]);
        let refused = try_to_reserve(&mut server, "203.0.113.8:1");
        assert_eq!(refused, Some(486), "one is left, and it takes two");
        assert_eq!(charged(&server), [2, 0, 2], "nothing is kept of that");
        assert_eq!(try_to_allocate(&mut server, "203.0.113.8:2"), None);
        assert_eq!(try_to_allocate(&mut server, "203.0.113.8:3"), Some(486));
        server.wait_s(61);
        assert_eq!(charged(&server), [2, 0, 2]);
        assert_eq!(try_to_allocate(&mut server, "203.0.113.8:4"), None);
        server.wait_s(700);
        server.assert_nothing_is_held();
    }
}

//= V-43
#[test]
fn who_redeems_a_token_of_its_own_takes_no_more_than_was_charged_for_the_port() {
    let mut server = Server::with(|config| config.limits.user_quota = Some(2));
    let (_, token) = reserve(&mut server, CLIENT);
    assert_eq!(try_to_allocate(&mut server, "203.0.113.8:1"), Some(486));
    redeem(&mut server, "203.0.113.8:2", token).success();
    assert_eq!(charged(&server), [2, 0, 2]);
    server.wait_s(700);
    server.assert_nothing_is_held();
}

//= V-43
#[test]
fn who_redeems_what_another_user_has_reserved_is_charged_in_its_place() {
    let mut server = Server::with(|config| {
        config.limits.user_quota = Some(2);
        config.limits.total_quota = Some(3);
    });
    let mut bobs = ["203.0.113.9:1", "203.0.113.9:2", "203.0.113.9:3"]
        .map(|remote| server.client_of("bob", "builder", remote));
    let (_, token) = reserve(&mut server, CLIENT);
    server.allocate(&mut bobs[0]);
    assert_eq!(charged(&server), [2, 1, 3]);
    let ask = |server: &mut Server, bob: &mut Client| {
        let answer = server.ask(bob, Method::ALLOCATE, |writer| {
            writer.requested_transport(17).reservation_token(token);
        });
        answer.code()
    };
    assert_eq!(ask(&mut server, &mut bobs[1]), None, "of all none is more");
    assert_eq!(charged(&server), [1, 2, 3]);
    server.wait_s(700);
    server.assert_nothing_is_held();
}

//= V-43
#[test]
fn a_token_is_still_good_when_who_brought_it_had_no_quota_left() {
    let mut server = Server::with(|config| config.limits.user_quota = Some(2));
    let mut bobs = ["203.0.113.9:1", "203.0.113.9:2", "203.0.113.9:3"]
        .map(|remote| server.client_of("bob", "builder", remote));
    let (port, token) = reserve(&mut server, CLIENT);
    server.allocate(&mut bobs[0]);
    server.allocate(&mut bobs[1]);
    let answer = server.ask(&mut bobs[2], Method::ALLOCATE, |writer| {
        writer.requested_transport(17).reservation_token(token);
    });
    assert_eq!(answer.code(), Some(486));
    assert_eq!(charged(&server), [2, 2, 4]);
    assert_eq!(held(&server), [port + 1]);
    server.refresh(&mut bobs[0], 0).success();
    let answer = server.ask(&mut bobs[2], Method::ALLOCATE, |writer| {
        writer.requested_transport(17).reservation_token(token);
    });
    answer.success();
    assert_eq!(charged(&server), [1, 2, 3]);
}

//= V-43
#[test]
fn a_reservation_that_has_ended_keeps_nobody_out_even_before_its_timer_fires() {
    let mut server = Server::with(|config| config.limits.user_quota = Some(2));
    reserve(&mut server, CLIENT);
    assert_eq!(try_to_allocate(&mut server, "203.0.113.8:1"), Some(486));
    server.oversleep(Duration::from_secs(61));
    assert_eq!(try_to_allocate(&mut server, "203.0.113.8:2"), None);
}

//= V-43
#[test]
fn a_pair_that_cannot_be_had_costs_nothing() {
    let mut server = Server::with(|config| config.limits.user_quota = Some(2));
    server.opens_at_once = false;
    let mut client = server.client(CLIENT);
    let transaction = client.next_transaction();
    let request = client.request(Method::ALLOCATE, transaction, |writer| {
        writer.requested_transport(17).even_port(true);
    });
    let _ = server.receive(client.tuple, &request);
    assert_eq!(charged(&server), [2, 0, 2]);
    server.refuse_wishes(RelayOpenError::OutOfResources);
    assert_eq!(charged(&server), [0, 0, 0]);
}
