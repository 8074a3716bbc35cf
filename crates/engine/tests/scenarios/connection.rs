//! Clients that come by TCP, TLS or DTLS: who they are, and what becomes of their allocation when the connection is gone.

use turnbuckle_engine::{
    Change, ClientTuple, Connection, EndCause, Outcome, Transport, UnverifiedLimits,
};
use turnbuckle_wire::{Message, Method};

use crate::support::*;

fn over(transport: Transport, connection: u32) -> ClientTuple {
    ClientTuple {
        transport,
        connection: Connection::new(connection, 0),
        ..tuple(CLIENT)
    }
}

/// Returns a client on this connection.
fn client_on(server: &mut Server, connection: ClientTuple) -> Client {
    let mut client = server.client(CLIENT);
    client.tuple = connection;
    client
}

//= TURN-009
#[test]
fn a_client_of_each_transport_has_an_allocation_of_its_own() {
    let mut server = Server::start();
    let tuples = [
        over(Transport::Udp, 0),
        over(Transport::Tcp, 7),
        over(Transport::Tls, 8),
        over(Transport::Dtls, 8),
    ];
    for tuple in tuples {
        let mut client = client_on(&mut server, tuple);
        server.allocate(&mut client);
        assert!(server.engine.client(&tuple).is_some());
    }
    assert_eq!(server.engine.statistics().allocations, 4);
    let transports: Vec<_> = server
        .changes
        .iter()
        .filter_map(|change| match change {
            Change::Created(created) => Some(created.path.transport),
            _ => None,
        })
        .collect();
    assert_eq!(transports, tuples.map(|tuple| tuple.transport));
}

//= TCP-26
#[test]
fn an_allocation_ends_with_its_connection_and_gives_everything_back() {
    let mut server = Server::start();
    let tuple = over(Transport::Tcp, 7);
    let mut client = client_on(&mut server, tuple);
    server.allocate(&mut client);
    server.changes.clear();
    server.engine.disconnected(server.now, &tuple);
    server.pump();
    assert!(
        matches!(&server.changes[..], [Change::Ended(ended)]
            if ended.cause == EndCause::Disconnected && ended.path.transport == Transport::Tcp),
        "{:?}",
        server.changes
    );
    server.assert_nothing_is_held();
    server.engine.disconnected(server.now, &tuple); // and once more does no harm
    server.pump();
}

#[test]
fn a_connection_that_ends_before_its_relay_socket_is_open_leaves_nothing() {
    for open_late in [true, false] {
        let mut server = Server::start();
        server.opens_at_once = false;
        let tuple = over(Transport::Tls, 7);
        let mut client = client_on(&mut server, tuple);
        let transaction = client.next_transaction();
        let request = client.request(Method::ALLOCATE, transaction, |writer| {
            writer.requested_transport(17);
        });
        server.replies.clear();
        assert_eq!(server.receive(tuple, &request), Outcome::Done);
        server.engine.disconnected(server.now, &tuple);
        server.pump();
        assert_eq!(server.only_reply_to(tuple).code(), Some(508));
        if open_late {
            server.open_wishes();
        }
        assert_eq!(server.engine.statistics().pending, 0);
        server.assert_nothing_is_held();
    }
}

#[test]
fn a_later_connection_from_the_same_address_is_another_client() {
    let mut server = Server::start();
    let first = over(Transport::Tcp, 7);
    let mut client = client_on(&mut server, first);
    server.allocate(&mut client);
    client.tuple = over(Transport::Tcp, 8);
    assert!(server.engine.client(&client.tuple).is_none());
    server.allocate(&mut client);
    server.engine.disconnected(server.now, &first);
    server.pump();
    assert!(server.engine.client(&client.tuple).is_some());
}

/// A forged UDP source may use up what one address is granted; who has a connection is not silenced by that.
#[test]
fn bytes_to_a_connection_are_not_taken_from_the_budget_of_its_address() {
    let mut server = Server::with(|config| {
        config.unverified = UnverifiedLimits {
            bytes: turnbuckle_engine::Rate { burst: 1, per_s: 0 },
            ..UnverifiedLimits::default()
        };
    });
    let request = bare(Method::BINDING, [1; 12].into(), |_| {});
    assert!(matches!(
        server.receive(over(Transport::Udp, 0), &request),
        Outcome::Dropped(_)
    ));
    for transport in [Transport::Tcp, Transport::Tls, Transport::Dtls] {
        assert_eq!(server.receive(over(transport, 7), &request), Outcome::Done);
    }
}

//= DTLS-01
#[test]
fn a_request_that_comes_again_over_dtls_is_answered_as_over_udp() {
    for transport in [Transport::Udp, Transport::Dtls] {
        let mut server = Server::start();
        let mut client = client_on(&mut server, over(transport, 0));
        let transaction = client.next_transaction();
        let request = client.request(Method::ALLOCATE, transaction, |writer| {
            writer.requested_transport(17);
        });
        server.replies.clear();
        for _ in 0..2 {
            assert_eq!(server.receive(client.tuple, &request), Outcome::Done);
            server.pump();
        }
        let relayed: Vec<_> = server
            .replies
            .iter()
            .map(|(_, answer)| {
                Message::parse(answer)
                    .unwrap()
                    .xor_relayed_addresses()
                    .next()
            })
            .collect();
        assert_eq!(relayed.len(), 2);
        assert!(relayed[0].is_some() && relayed[0] == relayed[1]);
        assert_eq!(server.engine.statistics().allocations, 1);
    }
}

/// Guessing passwords costs as many answers over a connection as over UDP.
#[test]
fn answers_to_strangers_are_limited_over_connections_too() {
    let request = first_request([1; 12].into());
    for transport in [
        Transport::Udp,
        Transport::Tcp,
        Transport::Tls,
        Transport::Dtls,
    ] {
        let mut server = Server::with(|config| config.unverified.answers_per_s = Some(3));
        // one after the other, and each from a connection of its own
        let answered = (0..10)
            .filter(|&n| server.receive(over(transport, n), &request) == Outcome::Done)
            .count();
        assert_eq!(answered, 3, "{transport:?}");
    }
}

/// The bytes of answers to wrong passwords are charged to the source; first requests and stale nonces are not.
//= V-40
#[test]
fn a_wrong_password_costs_bytes_of_the_budget_over_connections_too() {
    for transport in [
        Transport::Udp,
        Transport::Tcp,
        Transport::Tls,
        Transport::Dtls,
    ] {
        let mut server = Server::with(|config| {
            config.unverified.bytes = turnbuckle_engine::Rate {
                burst: 800,
                per_s: 0,
            };
        });
        let mut client = client_on(&mut server, over(transport, 0));
        let good = client.key.clone();
        client.key = turnbuckle_wire::IntegrityKey::sha1(b"a guess");
        let guess = |server: &mut Server, client: &mut Client| {
            let transaction = client.next_transaction();
            let request = client.request(Method::ALLOCATE, transaction, |writer| {
                writer.requested_transport(17);
            });
            server.receive(client.tuple, &request)
        };
        let answered = (0..100)
            .filter(|_| guess(&mut server, &mut client) == Outcome::Done)
            .count();
        assert!((1..10).contains(&answered), "{transport:?}: {answered}");
        client.key = good;
        assert_eq!(
            guess(&mut server, &mut client),
            Outcome::Done,
            "the right one"
        );
    }
}

/// What is documented per source holds for the whole server, whichever engine the kernel chooses for a 5-tuple.
//= V-40
#[test]
fn a_source_has_one_budget_at_all_engines_of_a_server() {
    let request = bare(Method::ALLOCATE, [1; 12].into(), |writer| {
        writer.requested_transport(17);
    });
    let mut first = Server::with(|config| config.unverified.answers_per_s = Some(100));
    let join = |seed| Server::joining(first.config.clone(), first.commons.clone(), seed);
    let mut others = [join(2), join(3), join(4)];
    let mut engines: Vec<&mut Server> = others.iter_mut().chain([&mut first]).collect();
    let mut answered = 0;
    for n in 0..2_000_u32 {
        let server = &mut engines[n as usize % 4];
        let from = over(Transport::Udp, n);
        if server.receive(from, &request) == Outcome::Done {
            answered += 1;
        }
    }
    assert_eq!(answered, 100, "of 500 at each of four engines");
}
