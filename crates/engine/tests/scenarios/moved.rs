//! What a server remembers of clients that have moved (RFC 8016), in all its engines and in those rebuilt.

use std::sync::Arc;

use turnbuckle_engine::{Change, Outcome};
use turnbuckle_wire::{AddressFamily, Method};

use crate::mobility::{MOVED, mobile, rebuilt, resume, start, ticket};
use crate::support::*;

#[test]
fn a_path_that_is_an_allocation_of_another_engine_is_not_taken_over_either() {
    let (owner, _, _, ticket) = start();
    let mut other = Server::joining(Arc::clone(&owner.config), Arc::clone(&owner.commons), 2);
    other.engine.set_shard(1);
    let mut moved = other.client(MOVED);
    other.allocate(&mut moved);
    assert_eq!(resume(&mut other, &mut moved, &ticket).code(), Some(437));
    other.refresh(&mut moved, 0).success();
    let refresh = moved.request(
        Method::REFRESH,
        moved.clone().next_transaction(),
        |writer| {
            writer.mobility_ticket(&ticket);
        },
    );
    assert_eq!(
        other.receive(moved.tuple, &refresh),
        Outcome::Elsewhere { shard: 0 },
        "now that it has none"
    );
}

/// Returns a client on a new path with allocations of both families, and its ticket.
fn resume_with_both_families() -> (Server, Client, Vec<u8>) {
    let mut server = Server::with(mobile);
    let mut client = server.client(CLIENT);
    let answer = server.ask(&mut client, Method::ALLOCATE, |writer| {
        writer
            .requested_transport(17)
            .additional_address_family(AddressFamily::V6)
            .mobility_ticket(b"");
    });
    let ticket = ticket(&answer);
    let moved = server.client(MOVED);
    (server, moved, ticket)
}

//= MOB-14
#[test]
fn a_resume_that_ends_one_family_is_answered_with_the_same_ticket_again() {
    let (mut server, mut moved, ticket_1) = resume_with_both_families();
    let request = moved.request(
        Method::REFRESH,
        moved.clone().next_transaction(),
        |writer| {
            writer
                .lifetime(0)
                .requested_address_family(AddressFamily::V6)
                .mobility_ticket(&ticket_1);
        },
    );
    let ticket_2 = ticket(&server.exchange(moved.tuple, &request));
    assert_eq!(ticket(&server.exchange(moved.tuple, &request)), ticket_2);
    server.refresh(&mut moved, 600).success();
}

//= V-22
#[test]
fn a_rebuilt_engine_remembers_what_ended_on_the_new_path() {
    for ends_family in [false, true] {
        let (mut server, mut moved, ticket) = resume_with_both_families();
        resume(&mut server, &mut moved, &ticket).success();
        let transaction = moved.next_transaction();
        let release = |client: &mut Client| {
            client.request(Method::REFRESH, transaction, |writer| {
                writer.lifetime(0);
                if ends_family {
                    writer.requested_address_family(AddressFamily::V6);
                }
            })
        };
        let request = release(&mut moved);
        server.exchange(moved.tuple, &request).success();
        server.pump();
        let mut after = rebuilt(&server);
        after.challenge(&mut moved);
        if !ends_family {
            after.allocate(&mut moved);
        }
        let again = after.exchange(moved.tuple, &release(&mut moved));
        assert_eq!(again.code(), (!ends_family).then_some(437));
        assert_eq!(after.engine.statistics().allocations, 1);
    }
}

//= V-22
#[test]
fn a_rebuilt_engine_remembers_the_request_that_created_what_moved_and_ended() {
    let mut server = Server::with(mobile);
    let mut client = server.client(CLIENT);
    let transaction = client.next_transaction();
    let allocate = |client: &mut Client| {
        client.request(Method::ALLOCATE, transaction, |writer| {
            writer.requested_transport(17).mobility_ticket(b"");
        })
    };
    let request = allocate(&mut client);
    let ticket = ticket(&server.exchange(client.tuple, &request));
    let mut moved = server.client(MOVED);
    resume(&mut server, &mut moved, &ticket).success();
    server.refresh(&mut moved, 0).success();
    server.pump();
    // A journal may leave out everything about what has ended, but for that it has.
    let is_end = |change: &Change| matches!(change, Change::Ended(_));
    server.changes.retain(is_end);
    let mut after = rebuilt(&server);
    after.challenge(&mut client);
    let again = allocate(&mut client);
    assert_eq!(after.exchange(client.tuple, &again).code(), Some(437));
}

//= V-22
#[test]
fn a_release_ends_no_allocation_that_the_client_makes_with_another_engine() {
    let (mut owner, mut moved, ticket) = resume_with_both_families();
    resume(&mut owner, &mut moved, &ticket).success();
    let transaction = moved.next_transaction();
    let release = |client: &mut Client| {
        client.request(Method::REFRESH, transaction, |writer| {
            writer.lifetime(0);
        })
    };
    let request = release(&mut moved);
    owner.exchange(moved.tuple, &request).success();
    let mut other = Server::joining(Arc::clone(&owner.config), Arc::clone(&owner.commons), 2);
    other.engine.set_shard(1);
    other.challenge(&mut moved);
    other.allocate(&mut moved);
    let request = release(&mut moved);
    assert_eq!(other.exchange(moved.tuple, &request).code(), Some(437));
    assert_eq!(other.engine.statistics().allocations, 1);
}
