//! A front and the endpoint of its clients, between which each datagram arrives at once.

use std::net::IpAddr;

use rustls::{ClientConfig, RootCertStore};
use turnbuckle_datapath::Memory;
use turnbuckle_quic::{
    Application, ConnectionName, Endpoint, Limits, Outlet, Path, Strangers, Via, WallClock,
};

use super::*;

const CLIENT: ([u8; 4], u16) = ([198, 51, 100, 7], 4000);
const SERVER: ([u8; 4], u16) = ([192, 0, 2, 1], 3478);

pub(super) struct Pair<A> {
    pub(super) front: QuicFront,
    pub(super) hub: Hub,
    pub(super) clients: Endpoint<A>,
    tls: Arc<ClientConfig>,
    pub(super) tx: SendQueue,
    begun: Instant,
    /// How much time has passed. The clock of both goes by turns, so that nothing that is late elsewhere is late here.
    pub(super) passed: Duration,
    /// Whether there are calls by TURN beside.
    pub(super) has_calls: bool,
}

impl<A: Application> Pair<A> {
    /// Returns a front that serves tunnels, and an endpoint of clients.
    pub(super) fn new(hub: Hub, limits: Limits) -> Self {
        Self::with_resolver(hub, limits, Resolver::of_machine())
    }

    /// Returns such a front with a resolver of the test's.
    pub(super) fn with_resolver(hub: Hub, limits: Limits, resolver: Resolver) -> Self {
        let (front, _, certificate) = front_with(Some(resolver), &hub.counters);
        let mut roots = RootCertStore::empty();
        roots.add(certificate).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let settings = Settings {
            keys: Keys::new(&[7; 32]),
            shard: 0,
            seed: [1; 32],
            wall_clock: WallClock::default(),
            path: Path::default(),
            limits,
        };
        Self {
            front,
            hub,
            clients: Endpoint::new(settings, |_| unreachable!("a client")),
            tls: Arc::new(tls),
            tx: SendQueue::new(64),
            begun: Instant::now(),
            passed: Duration::ZERO,
            has_calls: false,
        }
    }

    /// Begins a connection.
    pub(super) fn connect(&mut self, application: A) -> ConnectionName {
        let (now, tls) = (self.now(), Arc::clone(&self.tls));
        let server = SocketAddr::from(SERVER);
        let name = self
            .clients
            .connect(now, tls, server, "relay.example", application);
        name.unwrap()
    }

    pub(super) fn now(&self) -> Instant {
        self.begun + self.passed
    }

    /// Does what is due at the clients, then a turn of the front, and has its datagrams arrive.
    pub(super) fn turn(&mut self) {
        let now = self.now();
        self.clients.handle_timeouts(now);
        let mut sent = Wire::default();
        self.clients.transmit(now, &mut sent);
        self.front
            .turn_started(Time::ZERO + self.passed, self.has_calls);
        for (bytes, segment) in &sent.0 {
            let (from, datagrams) = (from(CLIENT.0, CLIENT.1), (&bytes[..], *segment));
            self.front
                .received(from, Sight::All, datagrams, 0, &mut self.hub);
        }
        self.front.work(&mut self.hub, &mut self.tx);
        self.front.flush(&mut self.hub, &mut self.tx);
        self.arrive();
        self.passed += Duration::from_millis(1);
    }

    /// Has what the front has queued arrive.
    pub(super) fn arrive(&mut self) {
        let now = self.now();
        for datagram in self.tx.datagrams(Nothing) {
            let bytes = datagram.parts.concat();
            let (server, via) = (SocketAddr::from(SERVER), Via::default());
            self.clients
                .handle(now, server, via, &bytes, bytes.len(), &mut Everybody);
        }
        self.tx.clear();
    }
}

/// A client takes whoever answers.
struct Everybody;

impl Strangers for Everybody {
    fn has_time(&mut self) -> bool {
        true
    }

    fn admits(&mut self, _: IpAddr, _: usize, _: usize) -> bool {
        false
    }
}

/// What the clients send.
#[derive(Default)]
struct Wire(Vec<(Vec<u8>, usize)>);

impl Outlet for Wire {
    fn buffer(&mut self) -> Vec<u8> {
        Vec::new()
    }

    fn send(&mut self, _: Via, _: SocketAddr, bytes: Vec<u8>, segment: usize) {
        if !bytes.is_empty() {
            self.0.push((bytes, segment));
        }
    }
}

/// What is received is not forwarded here.
#[derive(Clone, Copy)]
struct Nothing;

impl<'a> Memory<'a> for Nothing {
    fn slot(self, _: u32) -> &'a [u8] {
        &[]
    }

    fn streams(self) -> &'a [u8] {
        &[]
    }
}
