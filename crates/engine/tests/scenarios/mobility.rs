//! Clients that move (RFC 8016): tickets, the two paths of a handover, and who may not.

use std::sync::Arc;

use turnbuckle_engine::{
    Change, ClientTuple, Commons, Config, Connection, DropReason, EndCause, Engine, Outcome,
    Random as _, TicketKey, Transport,
};
use turnbuckle_wire::{AttributeType, Class, Method};

use crate::support::*;

/// Where the client of these tests moves to.
pub(crate) const MOVED: &str = "198.18.0.9:40000";
const CHANNEL: u16 = 0x4000;

pub(crate) fn mobile(config: &mut Config) {
    config.mobility.key = Some(TicketKey::from_secret(b"a secret of this test"));
}

/// Configures mobility, with nonces that are good in every engine of the server.
fn with_key(config: &mut Config) {
    mobile(config);
    let key = turnbuckle_engine::NonceKey::from_secret(b"one of all engines");
    config.auth.nonce_key = Some(key);
}

pub(crate) fn ticket(answer: &Answer) -> Vec<u8> {
    answer.success().mobility_ticket().unwrap().to_vec()
}

/// Allocates and asks for a ticket.
fn allocate(server: &mut Server, client: &mut Client) -> (core::net::SocketAddr, Vec<u8>) {
    let answer = server.ask(client, Method::ALLOCATE, |writer| {
        writer.requested_transport(17).mobility_ticket(b"");
    });
    let relayed = answer.success().xor_relayed_address().unwrap().unwrap();
    (relayed, ticket(&answer))
}

pub(crate) fn resume(server: &mut Server, client: &mut Client, ticket: &[u8]) -> Answer {
    server.ask(client, Method::REFRESH, |writer| {
        writer.mobility_ticket(ticket);
    })
}

/// Makes a client with an allocation and a channel; returns its relayed address and its ticket too.
pub(crate) fn start() -> (Server, Client, core::net::SocketAddr, Vec<u8>) {
    let mut server = Server::with(mobile);
    let mut client = server.client(CLIENT);
    let (relayed, ticket) = allocate(&mut server, &mut client);
    server.bind(&mut client, CHANNEL, PEER).success();
    (server, client, relayed, ticket)
}

/// Handles a channel message as a host does.
fn channel_data(server: &mut Server, client: &Client) -> Result<(), DropReason> {
    let now = server.now;
    let id = server.engine.client_of_data(&client.tuple, now);
    let id = id.ok_or(DropReason::NoAllocation)?;
    let route = server
        .engine
        .route_channel_data(now.time, id, CHANNEL, 1, 10);
    route.map(|_| ())
}

/// Returns whom a peer's datagram reaches.
fn reached(server: &mut Server, relayed: core::net::SocketAddr) -> ClientTuple {
    server.peer_data(relayed, PEER).unwrap().client
}

//= MOB-01
//= MOB-02
//= MOB-05
#[test]
fn a_server_that_forbids_mobility_says_405_and_a_ticket_in_allocate_is_wrong() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    let mut try_allocate = |server: &mut Server, ticket: &[u8]| {
        let answer = server.ask(&mut client, Method::ALLOCATE, |writer| {
            writer.requested_transport(17).mobility_ticket(ticket);
        });
        answer.code()
    };
    assert_eq!(try_allocate(&mut server, b""), Some(405));
    assert_eq!(try_allocate(&mut server, b"ticket"), Some(400));
    let mut allowing = Server::with(mobile);
    assert_eq!(try_allocate(&mut allowing, b"ticket"), Some(400));
    server.allocate(&mut client);
    assert_eq!(resume(&mut server, &mut client, &[7; 56]).code(), Some(405));
}

//= MOB-03
//= MOB-04
#[test]
fn who_asks_gets_a_ticket_and_the_same_one_when_the_answer_was_lost() {
    let mut server = Server::with(mobile);
    let mut client = server.client(CLIENT);
    let transaction = client.next_transaction();
    let request = client.request(Method::ALLOCATE, transaction, |writer| {
        writer.requested_transport(17).mobility_ticket(b"");
    });
    let first = ticket(&server.exchange(client.tuple, &request));
    assert!(first.len() < 64, "small on any path");
    assert_eq!(ticket(&server.exchange(client.tuple, &request)), first);

    let mut plain = server.client("203.0.113.8:1");
    let answer = server.ask(&mut plain, Method::ALLOCATE, |writer| {
        writer.requested_transport(17);
    });
    assert_eq!(answer.success().mobility_ticket(), None);
}

//= MOB-06
//= MOB-11
//= MOB-12
//= MOB-13
#[test]
fn the_old_path_works_both_ways_until_data_comes_on_the_new_one() {
    let (mut server, client, relayed, ticket_1) = start();
    let mut moved = server.client(MOVED);
    let answer = resume(&mut server, &mut moved, &ticket_1);
    assert_eq!(answer.lifetime(), 600);
    assert_ne!(ticket(&answer), ticket_1);

    // two paths: the old one has the data, the new one is answered
    assert_eq!(reached(&mut server, relayed), client.tuple);
    channel_data(&mut server, &client).unwrap();
    server.permit(&mut moved, PEER).success();
    assert_eq!(reached(&mut server, relayed), client.tuple);
    assert_eq!(server.engine.statistics().allocations, 1);

    // data on the new one, and the old one is a stranger
    channel_data(&mut server, &moved).unwrap();
    assert_eq!(reached(&mut server, relayed), moved.tuple);
    assert_eq!(
        channel_data(&mut server, &client),
        Err(DropReason::NoAllocation)
    );
    let mut old = client.clone();
    assert_eq!(server.refresh(&mut old, 600).code(), Some(437));
    assert!(!server.engine.has_new_paths());
    server.refresh(&mut moved, 0).success();
    server.assert_nothing_is_held();
}

//= MOB-12
#[test]
fn a_send_indication_moves_it_too_and_so_does_the_end_of_the_old_connection() {
    let (mut server, _, relayed, ticket) = start();
    let mut moved = server.client(MOVED);
    resume(&mut server, &mut moved, &ticket).success();
    server.send(&mut moved, PEER, b"here").unwrap();
    assert_eq!(reached(&mut server, relayed), moved.tuple);

    let (mut server, client, relayed, ticket) = start_over(Transport::Tls);
    let mut moved = server.client(MOVED);
    resume(&mut server, &mut moved, &ticket).success();
    server.engine.disconnected(server.now, &client.tuple);
    assert_eq!(reached(&mut server, relayed), moved.tuple);
    channel_data(&mut server, &moved).unwrap();
}

fn start_over(transport: Transport) -> (Server, Client, core::net::SocketAddr, Vec<u8>) {
    let mut server = Server::with(mobile);
    let mut client = server.client(CLIENT);
    client.tuple = ClientTuple {
        transport,
        connection: Connection::new(5, 0),
        ..client.tuple
    };
    let (relayed, ticket) = allocate(&mut server, &mut client);
    server.bind(&mut client, CHANNEL, PEER).success();
    (server, client, relayed, ticket)
}

#[test]
fn an_allocation_waits_for_a_client_whose_connection_is_gone_and_is_charged_meanwhile() {
    let (mut server, client, relayed, ticket) = start_over(Transport::Tcp);
    server.engine.disconnected(server.now, &client.tuple);
    server.pump();
    assert_eq!(server.commons.quota_used(REALM, "alice"), 1);
    assert_eq!(server.peer_data(relayed, PEER), Err(DropReason::ClientAway));
    // break before make: there is no old path to wait for
    let mut moved = server.client(MOVED);
    resume(&mut server, &mut moved, &ticket).success();
    assert_eq!(reached(&mut server, relayed), moved.tuple);

    let (mut server, client, _, _) = start_over(Transport::Tcp);
    server.engine.disconnected(server.now, &client.tuple);
    server.wait_s(601);
    server.assert_nothing_is_held();
    // one that cannot move ends with its connection
    let mut server = Server::with(mobile);
    let mut client = server.client(CLIENT);
    client.tuple.transport = Transport::Tcp;
    server.allocate(&mut client);
    server.engine.disconnected(server.now, &client.tuple);
    server.pump();
    server.assert_nothing_is_held();
}

//= MOB-14
//= V-30
#[test]
fn a_used_ticket_is_good_for_the_same_request_again_and_for_nothing_else() {
    let (mut server, _, _, ticket_1) = start();
    let mut moved = server.client(MOVED);
    let transaction = moved.next_transaction();
    let request = moved.request(Method::REFRESH, transaction, |writer| {
        writer.mobility_ticket(&ticket_1);
    });
    let first = server.exchange(moved.tuple, &request);
    let ticket_2 = ticket(&first);
    for _ in 0..3 {
        server.wait_s(10);
        assert_eq!(ticket(&server.exchange(moved.tuple, &request)), ticket_2);
    }
    // even when the client has gone on meanwhile
    channel_data(&mut server, &moved).unwrap();
    assert_eq!(ticket(&server.exchange(moved.tuple, &request)), ticket_2);
    server.wait_s(10);
    assert_eq!(server.exchange(moved.tuple, &request).code(), Some(400));

    let mut third = server.client("198.18.0.10:40000");
    assert_eq!(resume(&mut server, &mut third, &ticket_1).code(), Some(400));
    resume(&mut server, &mut third, &ticket_2).success();
    assert_eq!(resume(&mut server, &mut third, &ticket_2).code(), Some(400));
}

//= MOB-07
//= MOB-08
//= MOB-09
#[test]
fn a_ticket_is_refused_from_where_the_client_is_for_what_has_ended_and_when_it_is_none() {
    let (mut server, mut client, _, ticket) = start();
    assert_eq!(resume(&mut server, &mut client, &ticket).code(), Some(400));
    let mut moved = server.client(MOVED);
    assert_eq!(resume(&mut server, &mut moved, &[9; 56]).code(), Some(400));
    assert_eq!(resume(&mut server, &mut moved, b"").code(), Some(400));
    for bit in 0..ticket.len() * 8 {
        let mut changed = ticket.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(resume(&mut server, &mut moved, &changed).code(), Some(400));
    }
    server.refresh(&mut client, 0).success();
    assert_eq!(resume(&mut server, &mut moved, &ticket).code(), Some(437));
    // the next allocation in the same place is not meant
    allocate(&mut server, &mut client);
    assert_eq!(resume(&mut server, &mut moved, &ticket).code(), Some(437));
}

//= MOB-10
//= MOB-17
//= MOB-18
//= V-28
//= V-30
#[test]
fn a_stolen_ticket_is_of_no_use_to_another_user_or_to_nobody() {
    let (mut server, client, relayed, ticket) = start();
    let mut thief = server.client_of("bob", "builder", MOVED);
    assert_eq!(resume(&mut server, &mut thief, &ticket).code(), Some(441));
    let unsigned = bare(Method::REFRESH, thief.next_transaction(), |writer| {
        writer.mobility_ticket(&ticket);
    });
    assert_eq!(server.exchange(thief.tuple, &unsigned).code(), Some(401));
    // nothing has happened to the owner, nor to the ticket
    assert_eq!(reached(&mut server, relayed), client.tuple);
    let mut moved = server.client(MOVED);
    resume(&mut server, &mut moved, &ticket).success();
}

//= MOB-19
//= V-30
#[test]
fn a_chain_of_ten_thousand_resumes_leaves_one_new_path_and_one_unit_of_quota() {
    let (mut server, client, relayed, mut last) = start();
    let mut paths = Vec::new();
    for n in 0..10_000_u32 {
        let remote = format!("198.18.{}.{}:1000", n / 250, 1 + n % 250);
        let mut moved = server.client(&remote);
        last = ticket(&resume(&mut server, &mut moved, &last));
        assert_eq!(server.commons.quota_used(REALM, "alice"), 1);
        paths.push(moved);
    }
    let alive = paths
        .iter()
        .filter(|path| server.engine.client(&path.tuple).is_some());
    assert_eq!(alive.count(), 1);
    assert_eq!(reached(&mut server, relayed), client.tuple);
    assert_eq!(server.engine.statistics().allocations, 1);
    server.wait_s(601);
    assert!(!server.engine.has_new_paths());
    server.assert_nothing_is_held();
}

//= V-30
//= V-43
#[test]
fn who_has_moved_holds_one_allocation_of_its_quota_and_parked_ones_count() {
    let mut server = Server::with(|config| {
        mobile(config);
        config.limits.user_quota = Some(1);
    });
    let mut client = server.client(CLIENT);
    client.tuple.transport = Transport::Tcp;
    let (_, ticket) = allocate(&mut server, &mut client);
    let mut moved = server.client(MOVED);
    let code = |server: &mut Server, client: &mut Client| {
        let answer = server.ask(client, Method::ALLOCATE, |writer| {
            writer.requested_transport(17).mobility_ticket(b"");
        });
        answer.code()
    };
    assert_eq!(code(&mut server, &mut moved), Some(486));
    server.engine.disconnected(server.now, &client.tuple);
    assert_eq!(code(&mut server, &mut moved), Some(486), "parked is held");
    resume(&mut server, &mut moved, &ticket).success();
    let mut other = server.client("203.0.113.99:1");
    assert_eq!(code(&mut server, &mut other), Some(486));
    server.refresh(&mut moved, 0).success();
    assert_eq!(code(&mut server, &mut other), None);
}

#[test]
fn a_path_that_is_somebodys_allocation_is_not_taken_over() {
    let (mut server, _, _, ticket) = start();
    let mut moved = server.client(MOVED);
    server.allocate(&mut moved);
    assert_eq!(resume(&mut server, &mut moved, &ticket).code(), Some(437));
    assert_eq!(server.engine.statistics().allocations, 2);
}

//= V-22
#[test]
fn the_request_that_created_it_creates_no_second_one_on_the_5_tuple_left_behind() {
    let mut server = Server::with(mobile);
    let mut client = server.client(CLIENT);
    let transaction = client.next_transaction();
    let request = client.request(Method::ALLOCATE, transaction, |writer| {
        writer.requested_transport(17).mobility_ticket(b"");
    });
    let ticket = ticket(&server.exchange(client.tuple, &request));
    server.bind(&mut client, CHANNEL, PEER).success();
    let mut moved = server.client(MOVED);
    resume(&mut server, &mut moved, &ticket).success();
    channel_data(&mut server, &moved).unwrap();
    assert_eq!(server.exchange(client.tuple, &request).code(), Some(437));
    assert_eq!(server.engine.statistics().allocations, 1);
}

#[test]
fn a_client_may_move_to_the_other_family_and_end_what_it_has_in_the_same_request() {
    let (mut server, _, relayed, ticket) = start();
    let mut moved = server.client("[2001:db8:7::9]:40000");
    let answer = resume(&mut server, &mut moved, &ticket);
    let ticket = self::ticket(&answer);
    channel_data(&mut server, &moved).unwrap();
    assert_eq!(reached(&mut server, relayed), moved.tuple);
    let mut again = server.client(MOVED);
    let answer = server.ask(&mut again, Method::REFRESH, |writer| {
        writer.lifetime(0).mobility_ticket(&ticket);
    });
    assert_eq!(answer.lifetime(), 0);
    assert!(!answer.message().contains(AttributeType::MOBILITY_TICKET));
    server.assert_nothing_is_held();
}

//= MOB-06
#[test]
fn a_ticket_of_another_engine_is_handed_over_and_works_there() {
    let mut owner = Server::with(with_key);
    let mut other = beside(&owner);
    let mut client = owner.client(CLIENT);
    let (_, ticket) = allocate(&mut owner, &mut client);
    let mut moved = owner.client(MOVED);
    let request = moved.request(
        Method::REFRESH,
        moved.clone().next_transaction(),
        |writer| {
            writer.mobility_ticket(&ticket);
        },
    );
    assert_eq!(
        other.receive(moved.tuple, &request),
        Outcome::Elsewhere { shard: 0 }
    );
    assert!(other.replies.is_empty());
    owner.exchange(moved.tuple, &request).success();
    let indication = message(
        Class::Indication,
        Method::REFRESH,
        moved.next_transaction(),
        |writer| {
            writer.mobility_ticket(&ticket);
        },
    );
    assert_eq!(
        other.receive(moved.tuple, &indication),
        Outcome::Dropped(DropReason::ClassUnexpected)
    );
}

pub(crate) fn rebuilt(server: &Server) -> Server {
    let commons = Commons::new(&server.config);
    let engine = Engine::rebuild(
        Arc::clone(&server.config),
        Arc::clone(&commons),
        server.random.clone(),
        server.now,
        listeners(),
        server.changes.clone(),
        |address| server.endpoint_at(address),
    );
    let mut rebuilt = Server::around(
        engine,
        Arc::clone(&server.config),
        commons,
        server.random.clone(),
    );
    rebuilt.now = server.now;
    rebuilt.sockets.clone_from(&server.sockets);
    rebuilt
}

//= MOB-20
#[test]
fn a_rebuilt_engine_goes_on_at_every_step_of_a_move() {
    let (mut server, client, relayed, ticket_1) = start();
    let mut at_start = rebuilt(&server);
    let mut moved = at_start.client(MOVED);
    resume(&mut at_start, &mut moved, &ticket_1).success();

    let mut moved = server.client(MOVED);
    let transaction = moved.next_transaction();
    let request = moved.request(Method::REFRESH, transaction, |writer| {
        writer.mobility_ticket(&ticket_1);
    });
    let ticket_2 = ticket(&server.exchange(moved.tuple, &request));
    let mut between = rebuilt(&server);
    assert_eq!(reached(&mut between, relayed), client.tuple);
    between.challenge(&mut moved);
    let again = moved.request(Method::REFRESH, transaction, |writer| {
        writer.mobility_ticket(&ticket_1);
    });
    assert_eq!(ticket(&between.exchange(moved.tuple, &again)), ticket_2);
    channel_data(&mut between, &moved).unwrap();
    assert_eq!(reached(&mut between, relayed), moved.tuple);

    channel_data(&mut server, &moved).unwrap();
    server.pump();
    let mut after = rebuilt(&server);
    assert_eq!(reached(&mut after, relayed), moved.tuple);
    assert_eq!(
        channel_data(&mut after, &client),
        Err(DropReason::NoAllocation)
    );
    let mut third = after.client("198.18.0.10:1");
    assert_eq!(resume(&mut after, &mut third, &ticket_1).code(), Some(400));
    resume(&mut after, &mut third, &ticket_2).success();
    assert_eq!(after.commons.quota_used(REALM, "alice"), 1);
}

//= MOB-20
#[test]
fn a_rebuilt_engine_keeps_a_mobile_allocation_whose_connection_the_old_process_held() {
    let (mut server, _, relayed, ticket) = start_over(Transport::Tls);
    let mut fixed = server.client("203.0.113.50:1");
    fixed.tuple.transport = Transport::Tcp;
    server.allocate(&mut fixed);
    server.pump();
    let mut after = rebuilt(&server);
    after.pump();
    let lost = after.take_changes();
    assert!(
        matches!(&lost[..], [Change::Ended(ended)] if ended.cause == EndCause::Lost),
        "only the one that cannot move"
    );
    assert_eq!(after.peer_data(relayed, PEER), Err(DropReason::ClientAway));
    let mut moved = after.client(MOVED);
    resume(&mut after, &mut moved, &ticket).success();
    assert_eq!(reached(&mut after, relayed), moved.tuple);
    channel_data(&mut after, &moved).unwrap();
}

//= MOB-16
#[test]
fn tickets_under_a_random_key_are_no_ticket_of_another_server() {
    let (mut server, _, _, ticket) = start();
    let mut random = Seeded::new(77);
    let mut seed = [0; 1];
    random.fill(&mut seed);
    let mut other = Server::with(|config| {
        config.mobility.key = Some(TicketKey::random(&mut random));
    });
    let mut client = other.client(MOVED);
    assert_eq!(resume(&mut other, &mut client, &ticket).code(), Some(400));
    let mut moved = server.client(MOVED);
    resume(&mut server, &mut moved, &ticket).success();
}

/// Makes a second engine of the same server.
fn beside(server: &Server) -> Server {
    let mut other = Server::joining(Arc::clone(&server.config), Arc::clone(&server.commons), 2);
    other.engine.set_shard(1);
    other
}

//= V-30
//= V-40
#[test]
fn who_proves_nothing_is_answered_where_it_comes_and_takes_no_room_between_engines() {
    let mut server = Server::with(with_key);
    let mut client = server.client(CLIENT);
    let (_, ticket) = allocate(&mut server, &mut client);
    let mut other = beside(&server);
    let transaction = client.next_transaction();
    let unsigned = bare(Method::REFRESH, transaction, |writer| {
        writer.mobility_ticket(&ticket);
    });
    let forged = tuple(MOVED);
    assert_eq!(other.exchange(forged, &unsigned).code(), Some(401));
    let mut thief = other.client_of("alice", "not hers", MOVED);
    let transaction = thief.next_transaction();
    let wrong = thief.request(Method::REFRESH, transaction, |writer| {
        writer.mobility_ticket(&ticket);
    });
    assert_eq!(other.exchange(forged, &wrong).code(), Some(401));
    // and within what is left for those who prove nothing
    let outcomes = (0..10_000).map(|_| other.receive(forged, &unsigned));
    let mut others = outcomes.filter(|outcome| *outcome != Outcome::Done);
    let dropped = Outcome::Dropped(DropReason::UnverifiedBudget);
    assert_eq!(others.next(), Some(dropped));
    let mut moved = other.client("198.18.0.8:40000");
    let transaction = moved.next_transaction();
    let refresh = moved.request(Method::REFRESH, transaction, |writer| {
        writer.mobility_ticket(&ticket);
    });
    assert_eq!(
        other.receive(moved.tuple, &refresh),
        Outcome::Elsewhere { shard: 0 }
    );
}

/// Returns a client that has moved and knows no other nonce than the one it had.
fn moved_with_old_nonce(client: &Client, remote: &str) -> Client {
    let mut moved = client.clone();
    moved.tuple = tuple(remote);
    moved.transactions += 1 << 20;
    moved
}

fn resume_code(server: &mut Server, client: &mut Client, ticket: &[u8]) -> Option<u16> {
    let transaction = client.next_transaction();
    let request = client.request(Method::REFRESH, transaction, |writer| {
        writer.mobility_ticket(ticket);
    });
    server.exchange(client.tuple, &request).code()
}

#[test]
fn a_client_that_moved_may_resume_with_the_nonce_that_it_had_where_that_is_allowed() {
    for (is_allowed, expected) in [(false, Some(438)), (true, None)] {
        let mut server = Server::with(|config| {
            with_key(config);
            config.mobility.resume_with_old_nonce = is_allowed;
        });
        let mut client = server.client(CLIENT);
        let (_, ticket) = allocate(&mut server, &mut client);
        let mut moved = moved_with_old_nonce(&client, MOVED);
        let transaction = moved.next_transaction();
        let request = moved.request(Method::REFRESH, transaction, |writer| {
            writer.mobility_ticket(&ticket);
        });
        let mut other = beside(&server);
        if is_allowed {
            assert_eq!(
                other.receive(moved.tuple, &request),
                Outcome::Elsewhere { shard: 0 }
            );
        } else {
            assert_eq!(other.exchange(moved.tuple, &request).code(), Some(438));
        }
        let first = server.exchange(moved.tuple, &request);
        assert_eq!(first.code(), expected);
        if is_allowed {
            let again = server.exchange(moved.tuple, &request);
            assert_eq!(again, first, "a retransmission");
        }
    }
}

//= V-22
//= V-30
#[test]
fn an_old_nonce_is_good_with_the_ticket_of_its_own_allocation_and_for_nothing_else() {
    let mut server = Server::with(|config| {
        with_key(config);
        config.mobility.resume_with_old_nonce = true;
    });
    let mut client = server.client(CLIENT);
    let (_, ticket_1) = allocate(&mut server, &mut client);
    // a nonce that was given out to somebody else
    let stranger = server.client("203.0.113.99:9");
    let mut moved = moved_with_old_nonce(&client, MOVED);
    moved.nonce.clone_from(&stranger.nonce);
    assert_eq!(resume_code(&mut server, &mut moved, &ticket_1), Some(438));
    // no ticket, or none that is good
    let mut moved = moved_with_old_nonce(&client, MOVED);
    let transaction = moved.next_transaction();
    let refresh = moved.request(Method::REFRESH, transaction, |_| {});
    assert_eq!(server.exchange(moved.tuple, &refresh).code(), Some(438));
    let forged = [b'A'; 32];
    assert_eq!(resume_code(&mut server, &mut moved, &forged), Some(438));
    // another user's, with that user's own nonce
    let mut bob = server.client_of("bob", "builder", "203.0.113.50:1");
    let (_, bobs) = allocate(&mut server, &mut bob);
    assert_eq!(resume_code(&mut server, &mut moved, &bobs), Some(438));
    // its own
    assert_eq!(resume_code(&mut server, &mut moved, &ticket_1), None);
    // a ticket that is used up, from somewhere else again
    let mut replayed = moved_with_old_nonce(&client, "198.18.0.66:66");
    assert_eq!(
        resume_code(&mut server, &mut replayed, &ticket_1),
        Some(400)
    );
    // any other request of the new 5-tuple needs a nonce of its own
    let transaction = moved.next_transaction();
    let permit = moved.request(Method::CREATE_PERMISSION, transaction, |writer| {
        writer.xor_peer_address(PEER.parse().unwrap());
    });
    assert_eq!(server.exchange(moved.tuple, &permit).code(), Some(438));
}

//= V-22
#[test]
fn an_old_nonce_that_has_run_out_is_stale_with_a_ticket_too() {
    let mut server = Server::with(|config| {
        with_key(config);
        config.mobility.resume_with_old_nonce = true;
    });
    let mut client = server.client(CLIENT);
    let answer = server.ask(&mut client, Method::ALLOCATE, |writer| {
        writer
            .requested_transport(17)
            .lifetime(3600)
            .mobility_ticket(b"");
    });
    let ticket = ticket(&answer);
    server.wait_s(601);
    let mut moved = moved_with_old_nonce(&client, MOVED);
    assert_eq!(resume_code(&mut server, &mut moved, &ticket), Some(438));
}

#[test]
fn two_clients_whose_connections_came_from_one_address_both_come_back() {
    let mut server = Server::with(with_key);
    let mut tickets = Vec::new();
    for serial in [1, 2] {
        let mut client = server.client(CLIENT);
        client.tuple.transport = Transport::Tcp;
        client.tuple.connection = Connection::new(1, serial);
        client.transactions += serial << 20;
        tickets.push(allocate(&mut server, &mut client).1);
        server.engine.disconnected(server.now, &client.tuple);
        server.pump();
    }
    let mut after = rebuilt(&server);
    assert_eq!(after.engine.statistics().allocations, 2);
    for (port, ticket) in (40_000..).zip(&tickets) {
        let mut moved = after.client(&format!("198.18.0.9:{port}"));
        resume(&mut after, &mut moved, ticket).success();
    }
}
