//! What a server's connections take from the heap.

use std::time::Duration;

use allocation_counter::measure;
use turnbuckle_quic::{Connection, ConnectionName, Limits};

use crate::world::{App, World};

/// Connections of which each has its share of what tables have taken ahead.
const CONNECTIONS: u32 = 112;

/// Returns the heap that each of a server's idle connections holds, which has had `work` done, bytes.
fn held_by_each(limits: Limits, work: impl Fn(&mut World, ConnectionName)) -> i64 {
    let held_by = |count| {
        let mut world = World::with(limits);
        for place in 0..count as usize {
            world.connected();
            work(&mut world, ConnectionName::at(place));
        }
        world.run_for(Duration::from_secs(5));
        assert_eq!(world.server.connection_count(), count as usize);
        -measure(|| drop(world.server)).bytes_current
    };
    (held_by(CONNECTIONS + 1) - held_by(1)) / i64::from(CONNECTIONS)
}

#[test]
fn an_idle_connection_holds_16_kib_and_streams_that_may_be_opened_are_what_it_holds_more() {
    let allowing = |streams| {
        let limits = Limits {
            streams: 8,
            ..Limits::default()
        };
        held_by_each(limits, move |world, name| {
            let allow = |connection: &mut Connection<'_>, _: &mut App| {
                connection.allow_streams(streams);
            };
            world.server.with(world.now, name, allow).unwrap();
        })
    };
    let held = [8, 16, 128].map(allowing);
    println!("8, 16, 128 streams: {held:?} bytes for each connection");
    assert!((10_000..=16 << 10).contains(&held[0]), "{held:?}");
    assert!(held[1] - held[0] < 500, "{held:?}");
    assert!((8_000..=10_500).contains(&(held[2] - held[0])), "{held:?}");
}

#[test]
fn a_connection_that_has_ended_holds_next_to_nothing() {
    let held_by = |count| {
        let mut world = World::new();
        let names: Vec<_> = (0..count).map(|_| world.connected()).collect();
        for name in names {
            let close = |connection: &mut Connection<'_>, _: &mut App| connection.close(0, "done");
            world.client.with(world.now, name, close).unwrap();
        }
        world.run_for(Duration::from_secs(60));
        assert_eq!(world.server.connection_count(), 0);
        -measure(|| drop(world.server)).bytes_current
    };
    let held = (held_by(CONNECTIONS + 1) - held_by(1)) / i64::from(CONNECTIONS);
    println!("{held} bytes for each connection that has ended");
    assert!(held < 1_024, "{held}");
}
