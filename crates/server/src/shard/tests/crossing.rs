//! What passes between shards reaches whom it is for, and nobody else.

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::time::Duration;

use turnbuckle_wire::{ChannelNumber, Method};

use super::several::{Client, Several, Turns as _};

/// UDP and TCP in REQUESTED-TRANSPORT.
const UDP: u8 = 17;
const TCP: u8 = 6;

/// Allocates a relay of this protocol for a client, with no ticket.
fn allocate(shards: &mut Several, client: &mut Client, protocol: u8) {
    let answer = client.request(shards, Method::ALLOCATE, |writer| {
        writer.requested_transport(protocol);
    });
    answer.expect(200);
}

/// Fails unless a victim is left alone. The attacker's control connection and peer data connection are at shard `data`; what it moved, and a connection of a
/// victim, at shard 0; and the connection that it comes to shard 1 on has the number that the victim's has at shard 0.
fn the_victim_is_left_alone(count: u16, data: usize) {
    let mut shards = Several::start(count, &[]);
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
    assert_balanced(&shards);
}

//= V-30
#[test]
fn a_client_who_has_moved_joins_no_connection_of_the_shard_that_has_its_allocation() {
    the_victim_is_left_alone(2, 0);
}

//= V-30
#[test]
fn a_client_who_has_moved_takes_no_connection_along_to_a_third_shard() {
    the_victim_is_left_alone(3, 2);
}

/// Returns a client by TCP at shard 1, of an allocation at shard 0 with a channel to `peer`, and where that is relayed.
fn moved_to_shard_1(shards: &mut Several, peer: &UdpSocket) -> (Client, SocketAddr) {
    let mut owner = shards.datagrams(0, "mallory");
    let answer = owner.allocate(shards);
    let mut moved = shards.connection(1, "mallory");
    moved.resume(shards, &answer.ticket()).expect(200);
    moved.bind_channel(shards, channel(), peer.local_addr().unwrap());
    moved.send_channel_data(channel(), b"here I am");
    shards.until(|| peer.recv(&mut [0; 64]).ok());
    (moved, answer.relayed())
}

fn channel() -> ChannelNumber {
    ChannelNumber::try_from(0x4001).unwrap()
}

/// Sends this often on a channel, while shard 0 stands still and shard 1 hears all of it.
fn flood(shards: &mut Several, moved: &mut Client, messages: u64) {
    let received = shards.received_by(1);
    for _ in 0..messages / 50 {
        for _ in 0..50 {
            moved.send_channel_data(channel(), b"flood");
        }
        shards.turn_shard(1);
    }
    shards.turn_shard_until(1, |shards| shards.received_by(1) == received + messages);
}

/// Closes a connection to shard 1, which says so, while shard 0 stands still.
fn close(shards: &mut Several, moved: Client) {
    let (_, ended) = shards.connections_of(1);
    drop(moved);
    shards.turn_shard_until(1, |shards| shards.connections_of(1).1 == ended + 1);
    shards.turn_shard(1);
}

fn assert_balanced(shards: &Several) {
    let accounting = shards.accounting();
    assert!(accounting.balances(), "{}", accounting.line());
}

//= V-30
#[test]
fn what_is_for_a_client_who_is_gone_reaches_nobody_else_however_often_its_place_is_used_again() {
    let mut shards = Several::start(2, &[]);
    let peer = shards.peer();
    let (mut moved, relayed) = moved_to_shard_1(&mut shards, &peer);
    // An answer and data that come when the client is gone and its place has had a thousand others.
    let request = moved.signed(Method::REFRESH, |_| {});
    let received = shards.received_by(1);
    moved.send(&request);
    shards.turn_shard_until(1, |shards| shards.received_by(1) == received + 1);
    flood(&mut shards, &mut moved, 6000);
    close(&mut shards, moved);
    shards.churn(1, 1023);
    let mut victim = shards.connection_alone(1, "alice");
    for _ in 0..2 {
        peer.send_to(b"for the client who is gone", relayed)
            .unwrap();
        shards.settle();
    }
    assert!(victim.is_left_alone());
    assert_balanced(&shards);
}

//= V-30
#[test]
fn the_end_of_a_connection_is_heard_by_every_shard_that_has_heard_of_it() {
    let mut shards = Several::start(3, &[]);
    // The connection is gone before an answer has come to any of its requests.
    let mut owners = [0, 2].map(|shard| shards.datagrams(shard, "mallory"));
    let tickets = owners
        .each_mut()
        .map(|owner| owner.allocate(&mut shards).ticket());
    let mut moved = shards.connection(1, "mallory");
    for ticket in &tickets {
        let request = moved.signed_resume(ticket);
        moved.send(&request);
    }
    let received = shards.received_by(1);
    shards.turn_shard_until(1, |shards| shards.received_by(1) == received + 2);
    close(&mut shards, moved);
    shards.settle();
    assert_eq!([0, 1, 2].map(|shard| shards.roamers_of(shard)), [(0, 0); 3]);
    assert_balanced(&shards);
}

//= V-30
#[test]
fn the_end_of_a_connection_is_heard_although_no_message_finds_room() {
    let mut shards = Several::start(2, &[]);
    let peer = shards.peer();
    let (mut moved, _) = moved_to_shard_1(&mut shards, &peer);
    assert_eq!((shards.roamers_of(0).0, shards.roamers_of(1).1), (1, 1));
    flood(&mut shards, &mut moved, 6000);
    close(&mut shards, moved);
    shards.settle();
    assert_eq!((shards.roamers_of(0).0, shards.roamers_of(1).1), (0, 0));
    assert_balanced(&shards);
}

//= V-30
#[test]
fn a_client_who_floods_another_shard_leaves_room_for_the_next_one_and_time_for_its_own() {
    let mut shards = Several::start(2, &[]);
    let peers = [shards.peer(), shards.peer()];
    let [mut loud, mut quiet] = peers
        .each_ref()
        .map(|peer| moved_to_shard_1(&mut shards, peer).0);
    flood(&mut shards, &mut loud, 6000);
    flood(&mut shards, &mut quiet, 50);
    let before = shards.sent_to_peers_by(0);
    shards.turn_shard(0);
    let in_one_turn = shards.sent_to_peers_by(0) - before;
    assert!((1..=512).contains(&in_one_turn), "{in_one_turn}");
    shards.settle();
    let mut received = 0;
    while peers[1].recv(&mut [0; 64]).is_ok() {
        received += 1;
    }
    assert_eq!(received, 50);
    assert_balanced(&shards);
}

/// Returns a client of the listener, where all shards listen, whom the kernel has assigned to shard 1.
fn assigned_to_shard_1(shards: &mut Several, new: impl Fn() -> Client) -> Client {
    for _ in 0..64 {
        let before = shards.received_by(1);
        let mut client = new();
        let answer = client.request(shards, Method::REFRESH, |_| {});
        answer.expect(437);
        if shards.received_by(1) > before {
            return client;
        }
    }
    panic!("the kernel assigns nobody to shard 1");
}

#[test]
fn a_client_moves_to_a_listener_after_one_that_a_shard_could_not_open() {
    let mut shards = Several::start(2, &[]);
    let [first, second] = [0, 1].map(|number| shards.later(number));
    let taken = (
        UdpSocket::bind(first).unwrap(),
        TcpListener::bind(first).unwrap(),
    );
    shards.listen_too(0, first).unwrap_err();
    drop(taken);
    shards.listen_too(1, first).unwrap();
    for shard in [0, 1] {
        shards.listen_too(shard, second).unwrap();
    }
    let new: [&dyn Fn() -> Client; 2] = [&|| Client::by_datagrams(second, "mallory"), &|| {
        Client::by_connection(second, "mallory")
    }];
    for new in new {
        let mut owner = shards.datagrams(0, "mallory");
        let ticket = owner.allocate(&mut shards).ticket();
        let mut moved = assigned_to_shard_1(&mut shards, new);
        moved.resume(&mut shards, &ticket).expect(200);
        let answer = moved.request(&mut shards, Method::REFRESH, |_| {});
        answer.expect(200);
    }
    assert_balanced(&shards);
}

#[test]
fn a_client_who_has_moved_on_is_not_forgotten_when_the_shard_that_he_has_left_looks_for_him() {
    let mut shards = Several::start(3, &[]);
    let time = shards.stop_time();
    let mut owners = [0, 2].map(|shard| shards.datagrams(shard, "mallory"));
    let [first, second] = owners
        .each_mut()
        .map(|owner| owner.allocate(&mut shards).ticket());
    let mut moved = shards.datagrams(1, "mallory");
    moved.resume(&mut shards, &first).expect(200);
    let ended = moved.request(&mut shards, Method::REFRESH, |writer| {
        writer.lifetime(0);
    });
    ended.expect(200);
    // Shard 0 has looked not long ago who is still there, so it does that again when shard 2 has the client.
    moved.resume(&mut shards, &second).expect(200);
    assert_eq!((shards.roamers_of(0).0, shards.roamers_of(2).0), (1, 1));
    let mut now = time.lock().unwrap();
    now.time = now.time + Duration::from_secs(2);
    drop(now);
    shards.settle();
    assert_eq!((shards.roamers_of(0).0, shards.roamers_of(2).0), (0, 1));
    let answer = moved.request(&mut shards, Method::REFRESH, |_| {});
    answer.expect(200);
    let peer = shards.peer();
    moved.bind_channel(&mut shards, channel(), peer.local_addr().unwrap());
    moved.send_channel_data(channel(), b"here I am");
    shards.until(|| peer.recv(&mut [0; 64]).ok());
    assert_balanced(&shards);
}

//= V-40
#[test]
fn messages_that_are_on_their_way_between_shards_when_they_end_are_counted() {
    for first in [0, 1] {
        let mut shards = Several::start(2, &[]);
        let peer = shards.peer();
        let (mut moved, relayed) = moved_to_shard_1(&mut shards, &peer);
        // Some wait when the first shard ends, and some are sent afterwards, either way.
        flood(&mut shards, &mut moved, 50);
        for _ in 0..50 {
            peer.send_to(b"for the client", relayed).unwrap();
        }
        shards.turn_shard(0);
        shards.stop(first);
        let other = 1 - first;
        moved.send_channel_data(channel(), b"late");
        peer.send_to(b"late", relayed).unwrap();
        for _ in 0..10 {
            shards.turn_shard(other);
        }
        shards.stop(other);
        assert_balanced(&shards);
    }
}
