//! What the engine takes from the heap: nothing for a relayed datagram, little for an allocation, nothing for strangers.
//!
//! In a file of its own because the counting allocator is for the whole process.

#![expect(
    clippy::unwrap_used,
    reason = "a panic is how a test fails, in its helpers too"
)]

use core::hint::black_box;
use core::net::SocketAddr;
use std::sync::Arc;

use allocation_counter::measure;
use turnbuckle_engine::{
    AuthConfig, ClientTuple, Command, Commons, Config, Endpoint, Engine, IcmpError, Now, Outcome,
    Random, RelayAddress, RelayConfig, RelayHandle, Time,
};
use turnbuckle_wire::{
    Class, IntegrityKey, Message, MessageWriter, Method, TransactionId, long_term_key_md5,
};

const NOW: Now = Now {
    time: Time::from_secs(1_000),
    unix_s: 1_800_000_000,
};
const PEER: SocketAddr = SocketAddr::new(
    core::net::IpAddr::V4(core::net::Ipv4Addr::new(93, 184, 216, 20)),
    7_000,
);

struct Counter(u64);

impl Random for Counter {
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

struct Host {
    engine: Engine<Counter>,
    /// The relay sockets by endpoint.
    handles: Vec<RelayHandle>,
    reply: Vec<u8>,
    replies: usize,
}

impl Host {
    fn new() -> Self {
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
        let mut engine = Engine::new(Arc::new(config), commons, Counter(1));
        engine.add_listener(Endpoint(1), "192.0.2.1:3478".parse().unwrap());
        Self {
            engine,
            handles: Vec::with_capacity(20_000),
            reply: Vec::with_capacity(2_000),
            replies: 0,
        }
    }

    fn receive(&mut self, from: ClientTuple, bytes: &[u8]) -> Outcome {
        let outcome = self.engine.handle_stun(NOW, from, bytes);
        loop {
            let mut open = None;
            let (reply, replies) = (&mut self.reply, &mut self.replies);
            self.engine.with_commands(|command| match command {
                Command::Reply { bytes, .. } => {
                    reply.clear();
                    reply.extend(bytes);
                    *replies += 1;
                }
                Command::OpenRelay {
                    request, handle, ..
                } => open = Some((request, handle)),
                Command::ClosePeer { .. }
                | Command::CloseRelay { .. }
                | Command::Connect { .. }
                | Command::Join { .. }
                | Command::TunnelEnded { .. }
                | Command::TunnelOpened { .. } => {}
            });
            let Some((request, handle)) = open else { break };
            let endpoint = Endpoint(u32::try_from(self.handles.len()).unwrap());
            self.handles.push(handle);
            self.engine.relay_opened(NOW, request, Ok(endpoint.into()));
        }
        while self.engine.poll_change().is_some() {}
        outcome
    }

    /// Makes an allocation with a permission and a channel, and returns its client.
    fn set_up(&mut self, n: u32, buffer: &mut [u8]) -> ClientTuple {
        let client = client(n);
        let len = write(buffer, Class::Request, Method::ALLOCATE, |writer| {
            writer.requested_transport(17);
        });
        assert_eq!(self.receive(client, &buffer[..len]), Outcome::Done);
        let challenge = core::mem::take(&mut self.reply);
        let nonce = Message::parse(&challenge)
            .unwrap()
            .nonce()
            .unwrap()
            .unwrap();
        let key = IntegrityKey::sha1(&long_term_key_md5(b"alice", b"example.org", b"wonderland"));
        for method in [Method::ALLOCATE, Method::CHANNEL_BIND] {
            let len = write(buffer, Class::Request, method, |writer| {
                writer
                    .requested_transport(17)
                    .channel_number(0x4000.try_into().unwrap())
                    .xor_peer_address(PEER);
                writer
                    .username(b"alice")
                    .realm(b"example.org")
                    .nonce(nonce)
                    .integrity(&key);
            });
            assert_eq!(self.receive(client, &buffer[..len]), Outcome::Done);
            assert_eq!(Message::parse(&self.reply).unwrap().class(), Class::Success);
        }
        self.reply = challenge;
        client
    }
}

fn client(n: u32) -> ClientTuple {
    let [_, b, c, d] = n.to_be_bytes();
    ClientTuple::udp(Endpoint(1), SocketAddr::from(([100, b, c, d], 40_000)))
}

fn write(
    buffer: &mut [u8],
    class: Class,
    method: Method,
    write: impl FnOnce(&mut MessageWriter<'_>),
) -> usize {
    let mut writer =
        MessageWriter::new(buffer, class, method, TransactionId::new(*b"transaction!"));
    write(&mut writer);
    writer.finish().unwrap()
}

#[test]
fn relaying_takes_nothing_from_the_heap() {
    let mut host = Host::new();
    let mut buffer = [0; 1_500];
    let client = host.set_up(1, &mut buffer);
    let relay = host.handles[0];
    let len = write(&mut buffer, Class::Indication, Method::SEND, |writer| {
        writer.xor_peer_address(PEER).data(&[7; 1_000]);
    });
    let error = IcmpError {
        peer: PEER,
        kind: 3,
        code: 3,
        mtu: 0,
        v6: false,
    };
    let all_ways = |host: &mut Host| {
        for _ in 0..1_000 {
            let id = host.engine.client(black_box(&client)).unwrap();
            black_box(
                host.engine
                    .route_channel_data(NOW.time, id, 0x4000, 10, 10_000),
            )
            .unwrap();
            black_box(
                host.engine
                    .route_channel_data(NOW.time, id, 0x4001, 10, 10_000),
            )
            .unwrap_err();
            black_box(
                host.engine
                    .route_from_peer(NOW.time, relay, PEER, 10, 10_000),
            )
            .unwrap();
            black_box(host.engine.transaction_id());
            assert!(matches!(
                host.engine.handle_stun(NOW, client, &buffer[..len]),
                Outcome::Relay(_)
            ));
            assert_eq!(host.engine.handle_icmp(NOW, relay, error), Outcome::Done);
            host.engine.with_commands(|_| {});
            black_box(host.engine.next_timeout());
            host.engine.handle_timeout(NOW);
        }
    };
    all_ways(&mut host); // the buffer for replies is made once
    let heap = measure(|| all_ways(&mut host));
    assert_eq!(heap.count_total, 0, "{heap:?}");
}

//= V-21
#[test]
fn strangers_leave_nothing_on_the_heap() {
    let mut host = Host::new();
    let mut buffer = [0; 1_500];
    let mut flood = |host: &mut Host, range: core::ops::Range<u32>| {
        for n in range {
            let from = client(n);
            let len = write(&mut buffer, Class::Request, Method::ALLOCATE, |writer| {
                writer.requested_transport(17);
                if n % 2 == 0 {
                    writer
                        .username(b"alice")
                        .realm(b"example.org")
                        .nonce(b"obMatJos2AAAA0123456789");
                    writer.integrity(&IntegrityKey::sha1(b"no key"));
                }
            });
            assert!(!matches!(
                host.receive(from, &buffer[..len]),
                Outcome::Relay(_)
            ));
            let len = write(&mut buffer, Class::Request, Method::BINDING, |_| {});
            assert!(!matches!(
                host.receive(from, &buffer[..len]),
                Outcome::Relay(_)
            ));
        }
    };
    flood(&mut host, 0..1_000);
    let heap = measure(|| flood(&mut host, 1_000..11_000));
    assert_eq!((heap.bytes_current, heap.count_current), (0, 0), "{heap:?}");
    assert_eq!(heap.count_total, 0, "not even for a moment: {heap:?}");
    assert!(
        host.replies > 15_000,
        "and most were answered: {}",
        host.replies
    );
}

#[test]
fn an_idle_allocation_with_a_permission_and_a_channel_costs_little() {
    const COUNT: u32 = 10_000;
    let mut host = Host::new();
    let mut buffer = [0; 1_500];
    let heap = measure(|| {
        for n in 0..COUNT {
            host.set_up(n, &mut buffer);
        }
    });
    assert_eq!(host.engine.statistics().allocations, COUNT as usize);
    let each = heap.bytes_current / i64::from(COUNT);
    println!("{each} bytes of heap per idle allocation");
    assert!(each < 700, "{each} bytes each, {heap:?}");
}
