//! What passes between shards reaches whom it is for, and nobody else.

use std::io::Write as _;

use turnbuckle_wire::Method;

use super::several::{Client, Several};

/// UDP and TCP in REQUESTED-TRANSPORT.
const UDP: u8 = 17;
const TCP: u8 = 6;

/// A client allocates a relay of this protocol, with no ticket.
fn allocate(shards: &mut Several, client: &mut Client, protocol: u8) {
    let answer = client.request(shards, Method::ALLOCATE, |writer| {
        writer.requested_transport(protocol);
    });
    answer.expect(200);
}

/// The attacker's control connection and peer data connection are at shard `data`; what it moved, and a connection of a victim, at
/// shard 0; and the connection that it comes to shard 1 on has the number that the victim's has at shard 0.
fn the_victim_is_left_alone(count: u16, host: u8, data: usize) {
    let mut shards = Several::start(count, host, &[]);
    let peer = shards.listening_peer();
    let mut owner = shards.datagrams(0, "mallory");
    let ticket = owner.allocate(&mut shards).ticket();
    let mut control = shards.connection(data, "mallory");
    allocate(&mut shards, &mut control, TCP);
    let answer = control.request(&mut shards, Method::CONNECT, |writer| {
        writer.xor_peer_address(peer.local_addr().unwrap());
    });
    let answer = answer.expect(200);
    let connection = answer.message().connection_id().unwrap().unwrap();
    let (mut evil, _) = shards.until(|| peer.accept().ok());

    let mut victims: Vec<_> = (0..4).map(|_| shards.connection(0, "alice")).collect();
    for victim in &mut victims {
        allocate(&mut shards, victim, UDP);
    }
    let mut others = Vec::new();
    for _ in 0..4 {
        others.push(shards.connection(1, "mallory"));
    }
    let mut moved = others.pop().unwrap();
    moved.resume(&mut shards, &ticket).expect(200);
    let segment = [
        moved.signed(Method::REFRESH, |writer| {
            writer.lifetime(0);
        }),
        moved.signed(Method::CONNECTION_BIND, |writer| {
            writer.connection_id(connection);
        }),
    ];
    moved.send(&segment.concat());
    moved.answer(&mut shards).expect(200);
    let bound = moved.answer(&mut shards);
    evil.write_all(b"for the victim").unwrap();
    shards.settle();
    for victim in &mut victims {
        assert!(victim.is_left_alone());
        let answer = victim.request(&mut shards, Method::REFRESH, |_| {});
        answer.expect(200);
    }
    bound.expect(400);

    // It was not spent: a connection of its own gets it.
    let mut own = shards.connection(1, "mallory");
    let answer = own.request(&mut shards, Method::CONNECTION_BIND, |writer| {
        writer.connection_id(connection);
    });
    answer.expect(200);
    assert_eq!(own.read(&mut shards, 14), b"for the victim");
    shards.settle();
    let accounting = shards.accounting();
    assert!(accounting.balances(), "{}", accounting.line());
}

//= V-30
#[test]
fn a_client_who_has_moved_joins_no_connection_of_the_shard_that_has_its_allocation() {
    the_victim_is_left_alone(2, 0, 0);
}

//= V-30
#[test]
fn a_client_who_has_moved_takes_no_connection_along_to_a_third_shard() {
    the_victim_is_left_alone(3, 1, 2);
}
