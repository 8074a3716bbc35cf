//! All backends do the same work: the same seeded traffic gives the same bytes in the same order at every destination.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::net::SocketAddr;

use common::{BACKENDS, LISTENER, Source, bind, datapath, loopback, socket};
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use turnbuckle_datapath::{
    Backend, DatagramHandler, EndpointId, EndpointKind, Received, Run, SendQueue, StreamHandler,
    TurnHandler,
};

/// Where a datagram goes and how it is changed follows from its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Action {
    sink: usize,
    strip: usize,
    prefix: &'static [u8],
    trailer: u8,
}

const SINKS: usize = 3;

fn action(first: u8) -> Action {
    let prefix: &[u8] = match first / 16 % 4 {
        0 => &[],
        1 => &[0x40, 1, 2, 3],
        2 => &[7; 36],
        _ => &[9; 64],
    };
    Action {
        sink: usize::from(first) % SINKS,
        strip: if first & 4 == 0 { 0 } else { 4 },
        prefix,
        trailer: if prefix.len() > 4 { first % 4 } else { 0 },
    }
}

/// Returns what must arrive for one datagram. An empty one is passed on to the first sink.
fn expected(datagram: &[u8]) -> (usize, Vec<u8>) {
    let Some(first) = datagram.first() else {
        return (0, Vec::new());
    };
    let Action {
        sink,
        strip,
        prefix,
        trailer,
    } = action(*first);
    let payload = datagram.get(strip..).unwrap_or(&[]);
    (
        sink,
        [prefix, payload, &[0; 3][..usize::from(trailer)]].concat(),
    )
}

struct Relay {
    from: [EndpointId; SINKS],
    to: [SocketAddr; SINKS],
    failed: u32,
}

impl TurnHandler for Relay {}

impl DatagramHandler for Relay {
    fn received(&mut self, message: &Received<'_>, tx: &mut SendQueue) {
        let mut start = 0;
        let mut rest = message.segments().peekable();
        while let Some(datagram) = rest.next() {
            let Some(first) = datagram.first() else {
                tx.forward(self.from[0], self.to[0], message, Run::single(0, 0), &[], 0);
                continue;
            };
            // Neighbours with the same action make one run, as one channel's datagrams do.
            let action = action(*first);
            let (mut count, mut last) = (1, datagram);
            while let Some(next) = rest.next_if(|next| next.first() == Some(first)) {
                (count, last) = (count + 1, next);
            }
            let run = Run {
                start: start + action.strip.min(datagram.len()),
                stride: message.segment,
                len: datagram.len().saturating_sub(action.strip),
                last_len: last.len().saturating_sub(action.strip),
                count,
            };
            // A last datagram shorter than what is stripped would begin beyond the message.
            let run = if last.len() < action.strip && count > 1 {
                let short = Run::single(message.bytes.len(), 0);
                tx.forward(
                    self.from[action.sink],
                    self.to[action.sink],
                    message,
                    Run {
                        count: count - 1,
                        last_len: run.len,
                        ..run
                    },
                    action.prefix,
                    action.trailer,
                );
                short
            } else {
                run
            };
            tx.forward(
                self.from[action.sink],
                self.to[action.sink],
                message,
                run,
                action.prefix,
                action.trailer,
            );
            start += count * message.segment;
        }
    }

    fn send_failed(&mut self, _: EndpointId, datagrams: u32, _: turnbuckle_datapath::SendFailure) {
        self.failed += datagrams;
    }
}

impl StreamHandler for Relay {}

/// Draws a burst, and returns what the source sends in one go, and the size of its datagrams.
fn burst(random: &mut SmallRng) -> (Vec<u8>, usize) {
    let segment = match random.random_range(0..10) {
        0 => return (Vec::new(), 1),
        1 => 1,
        2 => random.random_range(2..9),
        3..6 => random.random_range(9..300),
        _ => random.random_range(300..1400),
    };
    let count = random.random_range(1..40);
    let last_len = if random.random_bool(0.5) {
        segment
    } else {
        random.random_range(1..=segment)
    };
    let mut bytes: Vec<u8> = (0..(count - 1) * segment + last_len)
        .map(|_| random.random())
        .collect();
    // First bytes in stretches, so that there are runs.
    let mut first = random.random();
    for datagram in bytes.chunks_mut(segment) {
        if random.random_bool(0.3) {
            first = random.random();
        }
        datagram[0] = first;
    }
    (bytes, segment)
}

fn relays_seeded_traffic(backend: Backend, v6: bool, seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut source = Source::new(v6);
    let mut datapath = datapath(backend);
    let (_, entrance) = bind(&mut datapath, LISTENER, loopback(v6));
    let sinks = [(); SINKS].map(|()| socket(loopback(v6)));
    let mut relay = Relay {
        from: [(); SINKS].map(|()| bind(&mut datapath, EndpointKind::Relay, loopback(v6)).0),
        to: std::array::from_fn(|index| sinks[index].local_addr().unwrap()),
        failed: 0,
    };
    let mut buffer = vec![0; 65_536];
    for round in 0..60 {
        let mut due: [Vec<Vec<u8>>; SINKS] = [const { Vec::new() }; SINKS];
        let mut sent = 0;
        for _ in 0..random.random_range(1..4) {
            let (bytes, segment) = burst(&mut random);
            source.send(entrance, &bytes, segment);
            let datagrams: Vec<&[u8]> = if bytes.is_empty() {
                vec![&[]]
            } else {
                bytes.chunks(segment).collect()
            };
            sent += datagrams.len() as u64;
            for datagram in datagrams {
                let (sink, result) = expected(datagram);
                due[sink].push(result);
            }
        }
        let target = datapath.counters().receive.datagrams.get() + sent;
        common::receive(&mut datapath, &mut relay, target);
        for (sink, due) in sinks.iter().zip(due) {
            for (index, due) in due.into_iter().enumerate() {
                let len = sink
                    .recv(&mut buffer)
                    .unwrap_or_else(|error| panic!("round {round}, {index}: {error}"));
                assert!(
                    buffer[..len] == due,
                    "{backend} seed {seed} round {round} datagram {index}"
                );
            }
        }
        assert_eq!(relay.failed, 0, "{backend} seed {seed} round {round}");
    }
    let counters = datapath.counters();
    assert_eq!(
        counters.receive.datagrams.get(),
        counters.send.datagrams.get()
    );
    match backend {
        Backend::Gso => {
            assert!(counters.receive.gro_buffers.get() > 0 && counters.send.gso_sends.get() > 0);
            assert!(
                counters.send.calls.get() < counters.send.datagrams.get() / 3,
                "trains save calls"
            );
        }
        Backend::Mmsg => assert!(
            counters.send.calls.get() < counters.send.datagrams.get() / 3,
            "batches save calls"
        ),
        Backend::Single => assert_eq!(counters.send.calls.get(), counters.send.datagrams.get()),
    }
}

#[test]
fn every_backend_relays_the_same_bytes_in_the_same_order() {
    for backend in BACKENDS {
        for seed in 0..4 {
            relays_seeded_traffic(backend, seed % 2 == 1, seed);
        }
    }
}

#[test]
fn the_largest_datagram_passes_every_backend() {
    for backend in BACKENDS {
        let mut datapath = datapath(backend);
        let (_, entrance) = bind(&mut datapath, LISTENER, loopback(false));
        let client = socket(loopback(false));
        let largest: Vec<u8> = (0..65_507_u32)
            .map(|index| index.to_le_bytes()[0])
            .collect();
        client.send_to(&largest, entrance).unwrap();
        datapath
            .turn(Some(common::TEST_TIMEOUT), &mut common::Echo)
            .unwrap();
        let mut buffer = vec![0; 70_000];
        let len = client.recv(&mut buffer).unwrap();
        assert!(buffer[..len] == largest, "{backend}");
    }
}
