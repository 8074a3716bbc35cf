//! Reserved ports and their tokens, RFC 8656 §7.2.

use core::time::Duration;
use std::sync::Arc;

use turnbuckle_engine::DropReason;
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
        config.relay_ports = 50_000..=50_001;
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
    let mut server = Server::with(|config| config.relay_ports = 50_000..=50_003);
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
