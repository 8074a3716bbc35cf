//! What those get who have proven nothing.

use std::net::SocketAddr;
use std::time::Duration;

use turnbuckle_quic::{Closed, Dropped, Limits, Via};

use crate::payload;
use crate::world::{DELAY, Random, World, client_address};

/// Returns a world in which a client has just connected, and its Initial with a token.
fn with_token() -> (World, Vec<u8>) {
    let mut world = World::new();
    world.connected();
    let (with, without) = world.initials();
    assert_eq!(without.len(), 1);
    (world, with[0].clone())
}

#[test]
fn a_token_is_good_for_its_address_its_time_and_its_server_alone() {
    let (mut world, initial) = with_token();
    let elsewhere = SocketAddr::from(([10, 0, 0, 3], 5000));
    for (what, from, seconds) in [
        ("another address", elsewhere, 0),
        ("a minute later", client_address(), 60),
    ] {
        world.restart_server(0, 4);
        *world.calendar.lock().unwrap() = seconds;
        world.give_server(from, &initial);
        world.turn();
        assert_eq!(world.server.connection_count(), 0, "{what}");
        assert_eq!(world.server.totals().begun, 0, "{what}");
    }
    *world.calendar.lock().unwrap() = 0;
    world.restart_server(0, 5);
    world.give_server(client_address(), &initial);
    world.turn();
    assert_eq!(world.server.totals().begun, 1, "the token itself was good");
}

#[test]
fn a_token_that_comes_again_begins_nothing_further() {
    let (mut world, initial) = with_token();
    for _ in 0..50 {
        world.give_server(client_address(), &initial);
        world.run_for(DELAY);
    }
    assert_eq!(world.server.totals().begun, 1);
    assert_eq!(world.server.connection_count(), 1);
}

#[test]
fn a_connection_that_ends_with_its_first_packet_leaves_nothing_behind() {
    let mut world = World::new();
    let name = world.connect();
    world.turn();
    world.run_for(DELAY); // a Retry is on its way back
    world.turn();
    let answer = world.link.pop_back().expect("a Retry");
    world.now = answer.at;
    let server = answer.from;
    let bytes = answer.bytes;
    let len = bytes.len();
    world.client.handle(
        world.now,
        server,
        Via::default(),
        &bytes,
        len,
        &mut world.budget,
    );
    world.client.with(world.now, name, |connection, _| {
        connection.close(0, "another time")
    });
    world.run_for(DELAY * 3);
    assert!(!world.initials().0.is_empty(), "with the token it says so");
    assert_eq!(world.server.connection_count(), 0);
    assert_eq!(world.server.next_deadline(world.now), None);
    assert_eq!(world.server.poll_event(), None, "nobody has begun anything");
    // The next one begins as ever.
    world.connected();
    assert_eq!(world.server.totals().begun, 1);
}

#[test]
fn a_flood_of_initials_from_many_addresses_leaves_nothing_behind() {
    let mut world = World::new();
    world.connect();
    world.turn();
    let initial = world.initials().1[0].clone();
    world.link.clear();
    world.sent.clear();
    let (mut bytes_in, mut random) = (0, Random(1));
    for _ in 0..2_000 {
        let [a, b, c, d, port, ..] = random.next().to_be_bytes();
        let mut other = initial.clone();
        // Another destination id, so that no two look like one connection; the packet is then not authentic.
        other[6..14].copy_from_slice(&random.bytes(8));
        world.give_server(
            SocketAddr::from(([a, b, c, d], 1024 + u16::from(port))),
            &other,
        );
        bytes_in += other.len();
        world.turn();
    }
    let bytes_out: usize = world.sent.iter().map(|datagram| datagram.bytes.len()).sum();
    assert!(
        bytes_out > 0 && bytes_out * 4 < bytes_in,
        "{bytes_out} of {bytes_in}"
    );
    assert_eq!(world.server.connection_count(), 0);
    assert_eq!(world.server.waiting_count(), 0);
}

#[test]
fn so_many_strangers_wait_and_no_more() {
    let mut world = World::new();
    world.budget.is_busy = true;
    let mut random = Random(2);
    for _ in 0..2_000 {
        let datagram = random.bytes(100);
        world.give_server(client_address(), &datagram);
    }
    let crowded = world.server.totals().of(Dropped::Crowded);
    assert_eq!((world.server.waiting_count(), crowded), (1_024, 976));
    // And by bytes.
    let limits = Limits {
        waiting_bytes: 10_000,
        ..Limits::default()
    };
    let mut world = World::with(limits);
    world.budget.is_busy = true;
    for _ in 0..20 {
        world.give_server(client_address(), &vec![0xc0; 1_200]);
    }
    assert_eq!(world.server.waiting_count(), 8);
}

#[test]
fn an_answer_that_the_budget_has_no_room_for_is_not_sent() {
    let mut world = World::new();
    world.budget.answers_left = 0;
    world.connect();
    world.run_for(Duration::from_millis(100));
    assert_eq!(world.server.totals().answered, 0);
    assert!(world.server.totals().of(Dropped::Unaffordable) > 0);
    assert_eq!(world.bytes_to(client_address()), 0);
}

/// Returns a packet with a long header of another version.
fn of_version(version: u32, len: usize) -> Vec<u8> {
    let mut packet = vec![0xc3];
    packet.extend_from_slice(&version.to_be_bytes());
    packet.extend_from_slice(&[8, 1, 2, 3, 4, 5, 6, 7, 8, 4, 9, 9, 9, 9]);
    packet.resize(len, 0);
    packet
}

#[test]
fn a_version_that_is_not_spoken_is_answered_with_the_one_that_is() {
    let mut world = World::new();
    // Version 2 (RFC 9369), and one that is reserved for such questions.
    for version in [0x6b33_43cf, 0x0a0a_0a0a_u32] {
        world.sent.clear();
        world.give_server(client_address(), &of_version(version, 1200));
        world.turn();
        let [answer] = &world.sent[..] else {
            panic!("one answer: {:?}", world.sent);
        };
        assert_eq!(answer.bytes[1..5], [0; 4], "Version Negotiation");
        // Both ids, the other way round (RFC 9000 §17.2.1).
        assert_eq!(
            answer.bytes[5..19],
            [4, 9, 9, 9, 9, 8, 1, 2, 3, 4, 5, 6, 7, 8]
        );
        assert!(
            answer.bytes[19..]
                .chunks(4)
                .any(|version| version == [0, 0, 0, 1])
        );
        assert!(answer.bytes.len() < 64);
    }
    world.sent.clear();
    world.give_server(client_address(), &of_version(0x6b33_43cf, 1199));
    world.turn();
    assert!(
        world.sent.is_empty(),
        "a short one is not answered (RFC 9000 §5.2.2)"
    );
    assert_eq!(world.server.totals().of(Dropped::Discarded), 1);
}

#[test]
fn resets_are_few_and_smaller_than_what_provokes_them() {
    let mut world = World::new();
    let name = world.connected();
    world.send(name, payload(100));
    world.turn();
    let packet = world.last_short();
    world.restart_server(0, 6);
    world.link.clear();
    world.sent.clear();
    let long = [&packet[..], &[0; 60]].concat();
    for _ in 0..100 {
        world.give_server(client_address(), &long);
    }
    world.turn();
    let resets: Vec<_> = world.sent.drain(..).collect();
    assert_eq!(resets.len(), 1, "one within 20 ms");
    assert!(resets[0].bytes.len() < long.len());
    world.run_for(Duration::from_secs(1));
    world.sent.clear();
    world.give_server(client_address(), &long[..21]);
    world.turn();
    assert!(world.sent.is_empty(), "too short to be told from a packet");
    // What is sent from our own address in our own name comes to an end.
    world.give_server(crate::world::server_address(), &resets[0].bytes);
    world.run_for(Duration::from_secs(5));
    assert!(world.sent.is_empty(), "{:?}", world.sent);
}

#[test]
fn a_packet_for_another_shard_is_neither_used_nor_answered() {
    let mut world = World::new();
    let name = world.connected();
    // The connection's shard is 0; this one is not it.
    world.restart_server(1, 7);
    world.send(name, payload(100));
    world.run_for(Duration::from_secs(1));
    assert!(world.server.totals().of(Dropped::OtherShard) > 0);
    assert_eq!(world.server.totals().answered, 0);
    assert_eq!(world.at_client.lock().unwrap().closed, None::<Closed>);
}

#[test]
fn nothing_that_arrives_disturbs_a_connection() {
    let mut world = World::new();
    let name = world.connected();
    let real: Vec<_> = world
        .sent
        .iter()
        .map(|datagram| datagram.bytes.clone())
        .collect();
    let mut random = Random(3);
    for round in 0..20_000 {
        let mut datagram = match round % 3 {
            0 => {
                let len = random.below(80);
                random.bytes(len)
            }
            1 => {
                let len = 1200 + random.below(300);
                random.bytes(len)
            }
            _ => real[random.below(real.len())].clone(),
        };
        for _ in 0..=random.below(3) {
            if !datagram.is_empty() {
                let at = random.below(datagram.len().min(64));
                datagram[at] ^= random.next().to_be_bytes()[0];
            }
        }
        let len = datagram.len() - random.below(datagram.len() / 2);
        datagram.truncate(len);
        let from = match random.below(2) {
            0 => client_address(),
            _ => SocketAddr::from(([10, 0, 1, 1], 9)),
        };
        world.give_server(from, &datagram);
        if round % 100 == 0 {
            world.turn();
        }
    }
    world.give_server(client_address(), &vec![0x5a; 65_507]);
    world.give_server(client_address(), &[]);
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.server.totals().panicked, 0);
    assert_eq!(world.server.connection_count(), 1);
    world.send(name, payload(20_000));
    world.run_until(World::echoed);
    assert_eq!(world.at_client.lock().unwrap().bytes, payload(20_000));
}
