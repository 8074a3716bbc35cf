//! What the rules cost per train: the hash lookup and the route of each direction, with few and with many allocations.
//!
//! `cargo bench -p turnbuckle-engine --bench route`. The allocations are visited in an order that no prefetcher guesses, so
//! the larger numbers are those of memory that is not in the cache.

#![expect(
    clippy::unwrap_used,
    reason = "a measuring tool stops where it cannot go on"
)]

use core::hint::black_box;
use core::net::SocketAddr;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use turnbuckle_engine::{
    AuthConfig, ClientTuple, Command, Commons, Config, Endpoint, Engine, Now, Outcome, Random,
    RelayAddress, RelayConfig, RelayHandle, Time,
};
use turnbuckle_wire::{
    Class, IntegrityKey, Message, MessageWriter, Method, TransactionId, long_term_key_md5,
};

const NOW: Now = Now {
    time: Time::from_secs(1_000),
    unix_s: 1_800_000_000,
};
const CHANNEL: u16 = 0x4000;

/// Not secret here, and cheap, so that it does not hide what is measured.
struct Numbers(u64);

impl Random for Numbers {
    fn fill(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            *byte = self.0.to_be_bytes()[0];
        }
    }
}

/// An engine with allocations that have one channel each.
struct Laboratory {
    engine: Engine<Numbers>,
    /// In an order of their own.
    flows: Vec<(ClientTuple, RelayHandle, SocketAddr)>,
    next: usize,
}

impl Laboratory {
    fn with_flows(count: u32) -> Self {
        let mut auth = AuthConfig::new("example.org").unwrap();
        auth.add_user("alice", "wonderland").unwrap();
        let relays = (1..=4).map(|n| RelayAddress {
            local: [192, 0, 2, n].into(),
            external: None,
        });
        let config = Config {
            auth,
            relays: RelayConfig {
                addresses: relays.collect(),
                ..RelayConfig::default()
            },
            ..Config::default()
        };
        let commons = Commons::new(&config);
        let mut engine = Engine::new(Arc::new(config), commons, Numbers(1));
        engine.add_listener(Endpoint(1), "192.0.2.1:3478".parse().unwrap());
        let mut flows: Vec<_> = (0..count).map(|n| set_up(&mut engine, n)).collect();
        let mut numbers = 1_u64;
        for last in (1..flows.len()).rev() {
            numbers = numbers
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let other = (numbers >> 33) % (u64::try_from(last).unwrap() + 1);
            flows.swap(last, usize::try_from(other).unwrap());
        }
        Self {
            engine,
            flows,
            next: 0,
        }
    }

    fn next(&mut self) -> (ClientTuple, RelayHandle, SocketAddr) {
        self.next = (self.next + 1) % self.flows.len();
        self.flows[self.next]
    }
}

fn set_up(engine: &mut Engine<Numbers>, n: u32) -> (ClientTuple, RelayHandle, SocketAddr) {
    let [_, b, c, d] = n.to_be_bytes();
    let client = ClientTuple::udp(Endpoint(1), SocketAddr::from(([100, b, c, d], 40_000)));
    let peer = SocketAddr::from(([93, 184 + b, c, d.max(1)], 7_000));
    let (challenge, _) = exchange(
        engine,
        client,
        &request(Method::ALLOCATE, |writer| {
            writer.requested_transport(17);
        }),
    );
    let message = Message::parse(&challenge).unwrap();
    let nonce = message.nonce().unwrap().unwrap();
    let key = long_term_key_md5(b"alice", b"example.org", b"wonderland");
    let key = IntegrityKey::sha1(&key);
    let mut handle = None;
    for method in [Method::ALLOCATE, Method::CHANNEL_BIND] {
        let bytes = request(method, |writer| {
            writer.requested_transport(17).xor_peer_address(peer);
            writer.channel_number(CHANNEL.try_into().unwrap());
            writer.username(b"alice").realm(b"example.org").nonce(nonce);
            writer.integrity(&key);
        });
        let (answer, opened) = exchange(engine, client, &bytes);
        assert_eq!(Message::parse(&answer).unwrap().class(), Class::Success);
        handle = handle.or(opened);
    }
    (client, handle.unwrap(), peer)
}

fn exchange(
    engine: &mut Engine<Numbers>,
    client: ClientTuple,
    bytes: &[u8],
) -> (Vec<u8>, Option<RelayHandle>) {
    assert_eq!(engine.handle_stun(NOW, client, bytes), Outcome::Done);
    let (mut reply, mut opened) = (Vec::new(), None);
    loop {
        let mut request = None;
        engine.with_commands(|command| match command {
            Command::Reply { bytes, .. } => reply = bytes.to_vec(),
            Command::OpenRelay {
                request: wish,
                handle,
                ..
            } => {
                request = Some(wish);
                opened = Some(handle);
            }
            Command::ClosePeer { .. }
            | Command::CloseRelay { .. }
            | Command::Connect { .. }
            | Command::Join { .. }
            | Command::TunnelEnded { .. }
            | Command::TunnelOpened { .. } => {}
        });
        let Some(request) = request else { break };
        engine.relay_opened(NOW, request, Ok(Endpoint(2).into()));
    }
    while engine.poll_change().is_some() {}
    (reply, opened)
}

fn request(method: Method, write: impl FnOnce(&mut MessageWriter<'_>)) -> Vec<u8> {
    message(Class::Request, method, write)
}

fn message(class: Class, method: Method, write: impl FnOnce(&mut MessageWriter<'_>)) -> Vec<u8> {
    let mut buffer = vec![0; 1_500];
    let id = TransactionId::new(*b"transaction!");
    let mut writer = MessageWriter::new(&mut buffer, class, method, id);
    write(&mut writer);
    let len = writer.finish().unwrap();
    buffer.truncate(len);
    buffer
}

fn route(criterion: &mut Criterion) {
    for count in [1, 100, 10_000] {
        let mut lab = Laboratory::with_flows(count);
        let mut group = criterion.benchmark_group("route");
        group.bench_function(BenchmarkId::new("channel_data", count), |bencher| {
            bencher.iter(|| {
                let (client, ..) = lab.next();
                let id = lab.engine.client(&client).unwrap();
                black_box(lab.engine.route_channel_data(NOW.time, id, CHANNEL, 1, 160))
            });
        });
        group.bench_function(BenchmarkId::new("from_peer", count), |bencher| {
            bencher.iter(|| {
                let (_, relay, peer) = lab.next();
                black_box(lab.engine.route_from_peer(NOW.time, relay, peer, 1, 160))
            });
        });
        let sends: Vec<_> = (0..lab.flows.len())
            .map(|_| {
                let (client, _, peer) = lab.next();
                let bytes = message(Class::Indication, Method::SEND, |writer| {
                    writer.xor_peer_address(peer).data(&[7; 160]);
                });
                (client, bytes)
            })
            .collect();
        let mut turn = 0;
        group.bench_function(BenchmarkId::new("send", count), |bencher| {
            bencher.iter(|| {
                turn = (turn + 1) % sends.len();
                let (client, bytes) = &sends[turn];
                black_box(lab.engine.handle_stun(NOW, *client, bytes))
            });
        });
        group.finish();
    }
}

fn binding(criterion: &mut Criterion) {
    let mut lab = Laboratory::with_flows(1);
    let bytes = request(Method::BINDING, |_| {});
    let mut n = 0_u32;
    criterion.bench_function("binding", |bencher| {
        bencher.iter(|| {
            n = n.wrapping_add(1);
            let [_, b, c, d] = n.to_be_bytes();
            let remote = SocketAddr::from(([101, b, c, d], 40_000));
            let listener = Endpoint(1);
            let from = ClientTuple::udp(listener, remote);
            let outcome = black_box(lab.engine.handle_stun(NOW, from, &bytes));
            lab.engine.with_commands(|command| {
                black_box(command);
            });
            outcome
        });
    });
}

criterion_group!(benches, route, binding);
criterion_main!(benches);
