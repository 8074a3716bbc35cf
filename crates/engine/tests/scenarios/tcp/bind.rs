//! ConnectionBind: who may bind a connection, and when (RFC 6062 §5.4).

use super::*;

//= TCP-20
//= TCP-21
#[test]
fn connection_bind_needs_a_stream_and_a_connection_that_waits() {
    let (mut server, mut client, _) = started();
    let id = connect(&mut server, &mut client, PEER);
    let mut udp = server.client("203.0.113.9:1");
    let transaction = udp.next_transaction();
    let request = bare(Method::CONNECTION_BIND, transaction, |writer| {
        writer.connection_id(id.0);
    });
    let refused = server.exchange(udp.tuple, &request);
    assert_eq!(refused.code(), Some(400), "whoever asks");
    let mut data = alice(&mut server, 2);
    let answer = server.ask(&mut data, Method::CONNECTION_BIND, |_| {});
    assert_eq!(answer.code(), Some(400));
    let unknown = ConnectionId(id.0 ^ 1);
    assert_eq!(bind(&mut server, &mut data, unknown).code(), Some(400));
    // the control connection cannot be bound itself
    assert_eq!(bind(&mut server, &mut client, id).code(), Some(400));
    let connecting = begin_connect(&mut server, &mut client, OTHER_PEER);
    assert_eq!(bind(&mut server, &mut data, connecting).code(), Some(400));
    assert_eq!(bind(&mut server, &mut data, id).code(), None);
    assert_eq!(server.wanted, [Wanted::Join(id, data.tuple)]);
    let mut again = alice(&mut server, 3);
    assert_eq!(bind(&mut server, &mut again, id).code(), Some(400));
}

//= TCP-22
#[test]
fn connection_bind_is_for_the_user_of_the_allocation_alone() {
    let (mut server, mut client, _) = started();
    let id = connect(&mut server, &mut client, PEER);
    let request = bare(
        Method::CONNECTION_BIND,
        client.next_transaction(),
        |writer| {
            writer.connection_id(id.0);
        },
    );
    let answer = server.exchange(over(Transport::Tcp, 2), &request);
    assert_eq!(answer.code(), Some(401));
    let mut bob = connection_of(&mut server, "bob", "builder", over(Transport::Tcp, 3));
    assert_eq!(bind(&mut server, &mut bob, id).code(), Some(441));
    assert_eq!(server.wanted, []);
    let mut data = alice(&mut server, 4);
    assert_eq!(bind(&mut server, &mut data, id).code(), None);
}

//= TCP-22
#[test]
fn connection_bind_may_use_the_nonce_of_the_control_connection_from_the_same_host_alone() {
    let (mut server, mut client, _) = started();
    let id = connect(&mut server, &mut client, PEER);
    let other_port = ClientTuple {
        remote: "203.0.113.7:50001".parse().unwrap(),
        ..over(Transport::Tcp, 2)
    };
    let other_host = ClientTuple {
        remote: "203.0.113.8:50000".parse().unwrap(),
        ..over(Transport::Tcp, 3)
    };
    let mut ask = |client: &mut Client, method, from, id: u32| {
        let transaction = client.next_transaction();
        let request = client.request(method, transaction, |writer| {
            writer.connection_id(id);
        });
        server.exchange(from, &request).code()
    };
    let bind = Method::CONNECTION_BIND;
    assert_eq!(ask(&mut client, bind, other_host, id.0), Some(438));
    assert_eq!(ask(&mut client, bind, other_port, id.0 ^ 1), Some(438));
    assert_eq!(
        ask(&mut client, Method::REFRESH, other_port, id.0),
        Some(438)
    );
    assert_eq!(ask(&mut client, bind, other_port, id.0), None);
    assert_eq!(server.wanted, [Wanted::Join(id, other_port)]);
}

/// Returns an engine of the same server, as shard 1, and what a ConnectionBind request to it comes to.
fn bind_elsewhere(
    server: &Server,
    id: ConnectionId,
    user: (&str, &str),
) -> (Server, Box<Handover>) {
    let mut other = Server::joining(Arc::clone(&server.config), Arc::clone(&server.commons), 2);
    other.engine.set_shard(1);
    let mut data = connection_of(&mut other, user.0, user.1, over(Transport::Tls, 9));
    let transaction = data.next_transaction();
    let request = data.request(Method::CONNECTION_BIND, transaction, |writer| {
        writer.connection_id(id.0);
    });
    other.replies.clear();
    let Outcome::HandOver(handover) = other.receive(data.tuple, &request) else {
        panic!("the connection is another engine's");
    };
    assert!(other.replies.is_empty());
    assert_eq!((handover.shard(), handover.connection()), (0, id));
    (other, handover)
}

//= TCP-21
//= TCP-22
#[test]
fn connection_bind_may_come_to_another_engine_than_the_allocation() {
    let (mut server, mut client, _) = started();
    let id = connect(&mut server, &mut client, PEER);
    // the name that the connection has where it is moved to
    let moved = over(Transport::Tls, 30);
    let (_, handover) = bind_elsewhere(&server, id, ("bob", "builder"));
    server.engine.take_over(server.now, moved, *handover);
    server.pump();
    assert_eq!(server.only_reply_to(moved).code(), Some(441));
    let (mut other, handover) = bind_elsewhere(&server, id, ("alice", "wonderland"));
    other.engine.decline(moved, (*handover).clone());
    other.pump();
    assert_eq!(other.only_reply_to(moved).code(), Some(508));
    server
        .engine
        .take_over(server.now, moved, (*handover).clone());
    server.pump();
    assert_eq!(server.only_reply_to(moved).code(), None);
    assert_eq!(server.wanted, [Wanted::Join(id, moved)]);
    // and only once
    server.engine.take_over(server.now, moved, *handover);
    server.pump();
    assert_eq!(server.only_reply_to(moved).code(), Some(400));
    assert_eq!(server.commons.peer_connections(), (1, 0));
}

//= TCP-15
//= TCP-19
#[test]
fn what_nobody_binds_in_30_seconds_is_closed() {
    let (mut server, mut client, relayed) = started();
    server.permit(&mut client, OTHER_PEER);
    let active = connect(&mut server, &mut client, PEER);
    server.wait_s(10);
    let passive = accept(&mut server, relayed, OTHER_PEER).unwrap();
    server.take_changes();
    server.wait(Duration::from_millis(19_999));
    assert_eq!(server.wanted, []);
    server.wait_s(1);
    assert_eq!(server.wanted, [Wanted::Close(active)]);
    server.wait_s(10);
    assert_eq!(
        server.wanted,
        [Wanted::Close(active), Wanted::Close(passive)]
    );
    let gone: Vec<_> = server
        .take_changes()
        .into_iter()
        .map(|change| match change {
            Change::PeerDisconnected {
                connection, cause, ..
            } => (connection, cause),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(gone, [active, passive].map(|id| (id, PeerEnd::BindTimeout)));
    let mut data = alice(&mut server, 2);
    for id in [active, passive] {
        assert_eq!(bind(&mut server, &mut data, id).code(), Some(400));
    }
    assert_eq!(server.commons.peer_connections(), (0, 0));
    assert_balanced(&server);
}

#[test]
fn a_bind_at_the_last_moment_is_in_time_and_a_later_one_is_not() {
    for (millis, code) in [(29_999, None), (30_000, Some(400))] {
        let (mut server, mut client, _) = started();
        let mut data = alice(&mut server, 2);
        let id = connect(&mut server, &mut client, PEER);
        server.oversleep(Duration::from_millis(millis));
        assert_eq!(bind(&mut server, &mut data, id).code(), code);
    }
}

/// An attribute that is known and not expected is ignored (RFC 8489 §6.3); where there are no TCP relays it is not known.
#[test]
fn a_connection_id_outside_of_connection_bind_is_ignored() {
    let (mut server, mut client, _) = started();
    let answer = server.ask(&mut client, Method::REFRESH, |writer| {
        writer.connection_id(1);
    });
    answer.success();
}
