//! Between an Allocate request and its answer: the host opens relay sockets, or cannot.

use core::net::SocketAddr;

use turnbuckle_engine::{Outcome, RelayOpenError};
use turnbuckle_wire::Method;

use crate::support::*;

#[test]
fn tries_other_ports_when_another_process_has_one() {
    let mut server = Server::with(|config| config.relays.ports = 50_000..=50_009);
    server.in_use = (50_000..50_009)
        .map(|port| SocketAddr::from(([192, 0, 2, 1], port)))
        .collect();
    let mut client = server.client(CLIENT);
    assert_eq!(
        server.allocate(&mut client).port(),
        50_009,
        "the one that is left is found in ten attempts"
    );
    // the others were given back: once they are free they can be had
    server.in_use.clear();
    for n in 0..9 {
        let mut client = server.client(&format!("203.0.113.7:{}", 1 + n));
        server.allocate(&mut client);
    }
}

#[test]
fn gives_up_after_a_bounded_number_of_ports() {
    let mut server = Server::with(|config| config.limits.relay_open_attempts = 3);
    server.opens_at_once = false;
    let mut client = server.client(CLIENT);
    let transaction = client.next_transaction();
    let request = client.request(Method::ALLOCATE, transaction, |writer| {
        writer.requested_transport(17);
    });
    server.replies.clear();
    assert_eq!(server.receive(client.tuple, &request), Outcome::Done);
    for attempt in 1..=3 {
        assert!(
            server.replies.is_empty(),
            "no answer before attempt {attempt} has failed"
        );
        assert_eq!(server.wishes.len(), 1);
        server.refuse_wishes(RelayOpenError::AddressInUse);
    }
    assert_eq!(server.only_reply_to(client.tuple).code(), Some(508));
    assert!(server.wishes.is_empty());
    server.assert_nothing_is_held();
}

#[test]
fn answers_508_at_once_when_the_host_is_out_of_resources() {
    for error in [RelayOpenError::OutOfResources, RelayOpenError::Other] {
        let mut server = Server::start();
        server.opens_at_once = false;
        let mut client = server.client(CLIENT);
        let transaction = client.next_transaction();
        let request = client.request(Method::ALLOCATE, transaction, |writer| {
            writer.requested_transport(17);
        });
        server.replies.clear();
        assert_eq!(server.receive(client.tuple, &request), Outcome::Done);
        server.refuse_wishes(error);
        assert_eq!(
            server.only_reply_to(client.tuple).code(),
            Some(508),
            "{error:?}"
        );
        server.assert_nothing_is_held();
    }
}

#[test]
fn gives_up_on_a_host_that_does_not_answer_and_closes_what_comes_late() {
    let mut server = Server::start();
    server.opens_at_once = false;
    let mut client = server.client(CLIENT);
    let transaction = client.next_transaction();
    let request = client.request(Method::ALLOCATE, transaction, |writer| {
        writer.requested_transport(17);
    });
    server.replies.clear();
    assert_eq!(server.receive(client.tuple, &request), Outcome::Done);
    server.wait_s(11);
    assert_eq!(server.only_reply_to(client.tuple).code(), Some(508));
    server.open_wishes();
    assert!(server.replies.is_empty(), "one answer only");
    server.assert_nothing_is_held();
}
