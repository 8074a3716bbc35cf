//! What an endpoint does with the datagrams of its clients and of strangers, in virtual time.
#![expect(clippy::unwrap_used, reason = "a test fails by it")]

mod clear;
mod memory;
mod shards;
mod strangers;
mod world;

use std::net::SocketAddr;
use std::time::Duration;

use turnbuckle_quic::{Bytes, Closed, Dropped, Event, Limits};
use world::{DELAY, World, client_address};

fn payload(len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at * 7 + at / 251).to_be_bytes()[7])
        .collect()
}

#[test]
fn a_stream_goes_there_and_back_after_a_retry() {
    let mut world = World::new();
    let name = world.connect();
    world.turn();
    // The first Initial arrives: all that becomes of it is a Retry.
    world.run_for(DELAY);
    world.turn();
    assert_eq!(world.server.connection_count(), 0);
    assert_eq!(world.server.totals().answered, 1);
    let answer = world.link.back().unwrap();
    assert_eq!(
        answer.bytes[0] & 0xf0,
        0xf0,
        "a Retry: {:02x?}",
        answer.bytes
    );
    assert!(answer.bytes.len() < 200, "{}", answer.bytes.len());
    world.run_until(|world| world.at_client.lock().unwrap().is_connected);
    world.send(name, payload(300_000));
    world.run_until(World::echoed);
    assert_eq!(world.at_server.lock().unwrap().bytes, payload(300_000));
    assert_eq!(world.at_client.lock().unwrap().bytes, payload(300_000));
    assert_eq!(world.server.totals().begun, 1);
    assert_eq!(world.server.totals().answered, 1);
    let lost = world.client.with(world.now, name, |connection, _| {
        connection.statistics().lost
    });
    assert_eq!(lost, Some(0));
}

#[test]
fn datagrams_go_there_and_back_in_trains() {
    let mut world = World::new();
    let name = world.connected();
    let sent: Vec<_> = (0..40)
        .map(|number| Bytes::from(vec![number; 1100]))
        .collect();
    for payload in &sent {
        let payload = payload.clone();
        let taken = world.client.with(world.now, name, |connection, _| {
            connection.send_datagram(payload)
        });
        assert_eq!(taken, Some(Ok(())));
    }
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.at_server.lock().unwrap().datagrams, sent);
    assert_eq!(world.at_client.lock().unwrap().datagrams, sent);
    let too_large = Bytes::from(vec![0; 3000]);
    let refused = world.client.with(world.now, name, |connection, _| {
        connection.send_datagram(too_large)
    });
    assert!(refused.is_some_and(|refused| refused.is_err()));
}

#[test]
fn a_connection_goes_on_when_its_client_has_another_address() {
    let mut world = World::new();
    let name = world.connected();
    world.send(name, payload(200_000));
    world.run_for(DELAY * 3);
    assert!(!world.echoed());
    // As a NAT does it: the client does not know.
    world.client_address = SocketAddr::from(([10, 0, 0, 77], 6000));
    world.run_until(World::echoed);
    assert_eq!(world.at_client.lock().unwrap().bytes, payload(200_000));
    let to_new = world.bytes_to(world.client_address);
    assert!(
        to_new > 150_000,
        "the answer went to the new address: {to_new}"
    );
}

#[test]
fn an_address_that_only_sends_is_sent_three_times_as_much_at_most() {
    let mut world = World::new();
    let name = world.connected();
    world.send(name, payload(100_000));
    world.run_for(DELAY * 2);
    // Someone who sees a packet sends it on from an address of a third party, before the client's own arrives.
    let victim = SocketAddr::from(([10, 9, 9, 9], 53));
    world
        .client
        .with(world.now, name, |connection, _| connection.update_keys());
    world.send(name, vec![1; 100]);
    world.turn();
    let stolen = world.last_short();
    world.link.clear();
    world.give_server(victim, &stolen);
    world.run_for(Duration::from_secs(3));
    let to_victim = world.bytes_to(victim);
    assert!(
        to_victim > 0,
        "the server asked whether the victim is there"
    );
    assert!(
        to_victim <= 3 * stolen.len().max(1200),
        "{to_victim} for {}",
        stolen.len()
    );
    world.run_until(World::echoed);
}

#[test]
fn keys_are_updated_in_mid_transfer() {
    let mut world = World::new();
    let name = world.connected();
    world.send(name, payload(150_000));
    for _ in 0..5 {
        world.run_for(DELAY * 3);
        world
            .client
            .with(world.now, name, |connection, _| connection.update_keys());
    }
    world.run_until(World::echoed);
    assert_eq!(world.at_client.lock().unwrap().bytes, payload(150_000));
}

#[test]
fn a_connection_that_the_server_has_forgotten_ends_by_a_stateless_reset() {
    let mut world = World::new();
    let name = world.connected();
    world.restart_server(0, 3);
    world.send(name, payload(1000));
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.at_client.lock().unwrap().closed, Some(Closed::Reset));
}

#[test]
fn a_connection_on_which_nothing_comes_ends() {
    let mut world = World::new();
    world.connected();
    assert_eq!(world.server.connection_count(), 1);
    world.run_for(Duration::from_secs(29));
    assert_eq!(world.server.connection_count(), 1);
    world.run_for(Duration::from_secs(2));
    assert_eq!(world.server.connection_count(), 0);
    assert_eq!(world.at_client.lock().unwrap().closed, Some(Closed::Idle));
    assert_eq!(world.at_server.lock().unwrap().closed, Some(Closed::Idle));
    assert!(world.age() > Duration::from_secs(31));
    let idle = world.server.next_deadline(world.now);
    assert_eq!(idle, None, "nothing of it is left");
}

#[test]
fn an_application_hears_of_the_end_at_once_with_what_its_connection_has_seen() {
    let mut world = World::new();
    let name = world.connected();
    world.send(name, payload(100_000));
    world.run_until(World::echoed);
    world.client.with(world.now, name, |connection, _| {
        connection.close(42, "done")
    });
    let seen = world.at_client.lock().unwrap();
    assert_eq!(seen.closed, Some(Closed::Local));
    assert!(seen.statistics.sent > 70, "{:?}", seen.statistics);
    drop(seen);
    world.run_for(Duration::from_secs(5));
    let seen = world.at_server.lock().unwrap();
    assert!(seen.statistics.sent > 70, "{:?}", seen.statistics);
}

#[test]
fn closing_is_told_to_the_other_side() {
    let mut world = World::new();
    let name = world.connected();
    world.client.with(world.now, name, |connection, _| {
        connection.close(42, "done")
    });
    world.run_for(Duration::from_secs(5));
    assert_eq!(
        world.at_server.lock().unwrap().closed,
        Some(Closed::Remote(42))
    );
    assert_eq!(world.at_client.lock().unwrap().closed, Some(Closed::Local));
    assert_eq!(
        (
            world.server.connection_count(),
            world.client.connection_count()
        ),
        (0, 0)
    );
}

#[test]
fn a_handshake_that_does_not_go_on_is_ended() {
    let limits = Limits {
        handshake: Duration::from_secs(2),
        ..Limits::default()
    };
    let mut world = World::with(limits);
    world.connect();
    world.run_until(|world| world.server.connection_count() == 1);
    // The client is gone.
    world.client_address = SocketAddr::from(([10, 0, 0, 1], 1));
    world.link.clear();
    world.restart_client();
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.server.connection_count(), 1);
    world.run_for(Duration::from_secs(10));
    assert_eq!(world.server.connection_count(), 0);
    assert_eq!(world.server.totals().handshakes_late, 1);
    assert_eq!(
        world.at_server.lock().unwrap().closed,
        Some(Closed::HandshakeLate)
    );
}

#[test]
fn a_panic_ends_one_connection_and_nothing_else() {
    let mut world = World::new();
    let doomed = world.connected();
    let sound = world.connected();
    assert_eq!(world.server.connection_count(), 2);
    world.send(doomed, &b"panic"[..]);
    world.run_for(Duration::from_millis(100));
    assert_eq!(world.server.totals().panicked, 1);
    assert_eq!(world.server.connection_count(), 1);
    world.send(sound, payload(50_000));
    world.run_until(World::echoed);
    assert_eq!(world.at_client.lock().unwrap().bytes, payload(50_000));
}

#[test]
fn no_more_connections_begin_than_there_may_be() {
    let limits = Limits {
        connections: 1,
        ..Limits::default()
    };
    let mut world = World::with(limits);
    world.connected();
    let second = world.connect();
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.server.connection_count(), 1);
    assert!(world.server.totals().of(Dropped::Full) > 0);
    assert!(world.client.with(world.now, second, |_, _| ()).is_some());
}

#[test]
fn data_that_arrives_with_the_end_of_the_handshake_is_not_lost() {
    let mut world = World::new();
    // The client's last handshake packet and its first window of data leave in one turn, and arrive in one.
    let name = world.connect_and_send(payload(10_000));
    world.run_until(World::echoed);
    let lost = world.client.with(world.now, name, |connection, _| {
        connection.statistics().lost
    });
    assert_eq!(lost, Some(0));
}

/// Returns what the server's host is told meanwhile, but for what applications are shown.
fn events(world: &mut World) -> Vec<Event> {
    let events = std::iter::from_fn(|| world.server.poll_event());
    events
        .filter(|event| !matches!(event, Event::Stirred(_)))
        .collect()
}

#[test]
fn the_host_is_told_of_each_beginning_each_move_and_each_end_once() {
    let mut world = World::new();
    let client = world.connected();
    let told = events(&mut world);
    let [Event::Begun(name, from), Event::Connected(connected)] = told[..] else {
        panic!("{told:?}");
    };
    assert_eq!((from, connected), (client_address(), name));
    world.client_address = SocketAddr::from(([10, 0, 0, 77], 6000));
    world.send(client, payload(1000));
    world.run_until(World::echoed);
    assert_eq!(
        events(&mut world),
        [Event::Moved(name, world.client_address)]
    );
    world.server.with(world.now, name, |connection, _| {
        connection.close(7, "enough")
    });
    world.run_for(Duration::from_secs(5));
    assert_eq!(events(&mut world), [Event::Ended(name, Closed::Local)]);
    assert_eq!(
        world.at_client.lock().unwrap().closed,
        Some(Closed::Remote(7))
    );
    // The next one may have the same name.
    world.connected();
    let told = events(&mut world);
    assert!(matches!(told[0], Event::Begun(..)), "{told:?}");
}

#[test]
fn who_comes_while_connections_are_refused_is_told_so_after_a_retry() {
    let mut world = World::new();
    let there = world.connected();
    world.server.refuse(true);
    world.connect();
    world.run_for(Duration::from_secs(1));
    let closed = world.at_client.lock().unwrap().closed.clone();
    assert!(matches!(closed, Some(Closed::Failed(_))), "{closed:?}");
    assert_eq!(world.server.totals().begun, 1);
    world.send(there, payload(1000));
    world.run_until(World::echoed);
    world.server.refuse(false);
    world.connected();
    assert_eq!(world.server.totals().begun, 2);
}

#[test]
fn stopping_tells_every_client_and_forgets_who_waits() {
    let mut world = World::new();
    world.connected();
    world.budget.is_busy = true;
    world.give_server(SocketAddr::from(([10, 0, 0, 9], 9)), &[0xc0; 1200]);
    assert_eq!(world.server.waiting_count(), 1);
    world.server.stop(world.now, 5, "over");
    assert_eq!(world.server.waiting_count(), 0);
    assert_eq!(world.server.totals().of(Dropped::Stopped), 1);
    world.run_for(Duration::from_secs(5));
    assert_eq!(
        world.at_client.lock().unwrap().closed,
        Some(Closed::Remote(5))
    );
    assert_eq!(world.server.connection_count(), 0);
}
