//! Connections that hide nothing: they are as those with TLS in all but that, and the same in each run.

use std::net::SocketAddr;
use std::time::Duration;

use crate::payload;
use crate::world::{DELAY, World};

/// Has a client send from two addresses with new keys meanwhile. Returns all that was on the link: when, to whom, and the bytes.
fn history() -> Vec<(Duration, SocketAddr, Vec<u8>)> {
    let mut world = World::clear();
    let began = world.now;
    let name = world.connected();
    world.send(name, payload(100_000));
    world.run_for(DELAY * 3);
    world.client_address = SocketAddr::from(([10, 0, 0, 77], 6000));
    world
        .client
        .with(world.now, name, |connection, _| connection.update_keys());
    world.run_until(World::echoed);
    assert_eq!(world.at_server.lock().unwrap().bytes, payload(100_000));
    assert_eq!(world.at_client.lock().unwrap().bytes, payload(100_000));
    let sent = world.sent.into_iter();
    sent.map(|it| (it.at - began, it.to, it.bytes)).collect()
}

#[test]
fn without_secrets_everything_on_the_link_is_the_same_again() {
    let first = history();
    assert!(first.len() > 100, "{}", first.len());
    assert!(first == history(), "another history");
}

#[test]
fn without_secrets_what_is_sent_can_be_read() {
    let mut world = World::clear();
    let name = world.connected();
    world.send(name, &b"in the clear"[..]);
    world.run_until(World::echoed);
    let is_readable = |bytes: &[u8]| bytes.windows(12).any(|it| it == b"in the clear");
    assert!(world.sent.iter().any(|it| is_readable(&it.bytes)));
}

#[test]
fn without_secrets_a_packet_that_was_changed_proves_nothing() {
    let mut world = World::clear();
    let name = world.connected();
    world.client.with(world.now, name, |connection, _| {
        connection.send_datagram(payload(100).into())
    });
    world.turn();
    let datagram = world.link.pop_back().expect("it has just been sent");
    let from = world.client_address;
    let seen = |world: &World| world.at_server.lock().unwrap().datagrams.len();
    // All but the first byte and the connection id, by which a packet is nobody's.
    for at in 13..datagram.bytes.len() {
        let mut changed = datagram.bytes.clone();
        changed[at] ^= 1;
        world.give_server(from, &changed);
        assert_eq!(seen(&world), 0, "byte {at}");
    }
    // One of another connection is not this one's, whatever its id.
    let other = world.connected();
    world.client.with(world.now, other, |connection, _| {
        connection.send_datagram(payload(100).into())
    });
    world.turn();
    let mut foreign = world.link.pop_back().expect("it has just been sent").bytes;
    foreign[..13].copy_from_slice(&datagram.bytes[..13]);
    world.give_server(from, &foreign);
    assert_eq!(seen(&world), 0);
    world.give_server(from, &datagram.bytes);
    assert_eq!(seen(&world), 1, "as it was sent it is taken");
}
