//! What a server's connections take from the heap.

use std::net::SocketAddr;
use std::time::Duration;

use allocation_counter::measure;
use turnbuckle_quic::{Bytes, Connection, ConnectionName, Limits, Outlet, Via};

use crate::world::{App, DELAY, Port, World, client_address, server_address};

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

/// Buffers that are used again when what was in them has arrived, as those of a data path.
#[derive(Default)]
struct Buffers {
    free: Vec<Vec<u8>>,
    /// Trains that were sent, each with the length of its datagrams.
    sent: Vec<(Vec<u8>, usize)>,
}

impl Outlet for Buffers {
    fn buffer(&mut self) -> Vec<u8> {
        self.free.pop().unwrap_or_default()
    }

    fn send(&mut self, _: Via, _: SocketAddr, bytes: Vec<u8>, segment: usize) {
        self.sent.push((bytes, segment));
    }
}

#[test]
fn packets_with_datagrams_take_nothing_from_the_heap_once_warm() {
    for len in [160, 1_150] {
        let mut world = World::new();
        let name = world.connected();
        let mut buffers = Buffers::default();
        let (mut taken, mut packets) = (0, 0);
        for round in 0..300 {
            world.now += DELAY;
            let (at, from) = (world.now, client_address());
            for number in 0..8 {
                let payload = Bytes::from(vec![number; len]);
                let send = |connection: &mut Connection<'_>, _: &mut App| {
                    connection.send_datagram(payload)
                };
                world.client.with(at, name, send).unwrap().unwrap();
                // Each goes out by itself, else several would share a packet.
                let link = &mut world.link;
                world.client.transmit(at, &mut Port { at, from, link });
            }
            let came: Vec<_> = world.link.drain(..).collect();
            let received = u64::try_from(came.len()).unwrap();
            world.at_server.lock().unwrap().datagrams.clear();
            let measured = measure(|| {
                for datagram in &came {
                    world.give_server(datagram.from, &datagram.bytes);
                }
                world.server.handle_timeouts(world.now);
                world.server.transmit(world.now, &mut buffers);
            });
            let mut answered = 0;
            for (mut bytes, segment) in std::mem::take(&mut buffers.sent) {
                for datagram in bytes.chunks(segment) {
                    answered += 1;
                    let (at, from, via) = (world.now, server_address(), Via::default());
                    let budget = &mut world.budget;
                    world
                        .client
                        .handle(at, from, via, datagram, datagram.len(), budget);
                }
                bytes.clear();
                buffers.free.push(bytes);
            }
            buffers.sent.reserve(64);
            // Tables and buffers have the room that they need by then.
            if round >= 100 {
                assert_eq!(world.at_server.lock().unwrap().datagrams.len(), 8);
                taken += measured.count_total;
                packets += received + answered;
            }
        }
        let each = taken as f64 / packets as f64;
        println!("{len} bytes: {each:.2} allocations for each of {packets} packets");
        assert!(packets > 1_500 && each < 0.05, "{len}: {each}");
    }
}

#[test]
fn packets_of_streams_with_a_gap_keep_a_bounded_part_of_what_was_received_beside_them() {
    let mut world = World::new();
    let names: Vec<_> = (0..8).map(|_| world.connected()).collect();
    let (at, from) = (world.now, client_address());
    let mut kept = Vec::new();
    for name in names {
        let write = |connection: &mut Connection<'_>, _: &mut App| {
            let stream = connection.open().unwrap();
            connection.write(stream, &mut Bytes::from(vec![7; 12_000]))
        };
        world.client.with(at, name, write).unwrap().unwrap();
        world.link.clear();
        let link = &mut world.link;
        world.client.transmit(at, &mut Port { at, from, link });
        // Without the first all others wait.
        kept.extend(world.link.drain(..).skip(1));
    }
    let mut other = kept[0].bytes.clone();
    *other.last_mut().unwrap() ^= 1;
    let others = (256 << 10) / other.len() + 1;
    let before = world.server.totals().delivered;
    let measured = measure(|| {
        for datagram in &kept {
            world.give_server(from, &datagram.bytes);
            for _ in 0..others {
                world.give_server(from, &other);
            }
        }
    });
    let delivered = world.server.totals().delivered - before;
    println!(
        "{} bytes for {} packets",
        measured.bytes_current,
        kept.len()
    );
    assert!(
        kept.len() > 40 && delivered >= kept.len() as u64,
        "{delivered}"
    );
    assert!(
        measured.bytes_current < 5 << 20,
        "{}",
        measured.bytes_current
    );
}
