//! A server, a client and a link of 10 ms each way, in virtual time. Everything on the link is a vector of bytes that a test can look at, keep, change and send.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use turnbuckle_quic::{
    Application, Bytes, Closed, Connection, ConnectionName, Dropped, Endpoint, Ids, Keys, Limits,
    Outlet, Path, Settings, Statistics, Strangers, StreamId, StreamState, Via, WallClock,
};

pub(crate) const DELAY: Duration = Duration::from_millis(10);

pub(crate) fn client_address() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 5000))
}

pub(crate) fn server_address() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 2], 443))
}

/// What an application has seen.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) is_connected: bool,
    pub(crate) bytes: Vec<u8>,
    pub(crate) is_finished: bool,
    pub(crate) datagrams: Vec<Bytes>,
    pub(crate) closed: Option<Closed>,
    /// What the connection had seen then.
    pub(crate) statistics: Statistics,
}

/// Sends streams back when they have ended, and datagrams at once, if it is a server's; panics over a stream that says `panic`.
pub(crate) struct App {
    is_server: bool,
    pub(crate) seen: Arc<Mutex<Seen>>,
    pending: BTreeMap<StreamId, (Bytes, bool)>,
    /// What is sent at once when the handshake is done, if it is anything.
    first: Bytes,
}

impl App {
    fn new(is_server: bool, seen: &Arc<Mutex<Seen>>) -> Self {
        Self {
            is_server,
            seen: Arc::clone(seen),
            pending: BTreeMap::new(),
            first: Bytes::new(),
        }
    }

    /// Sends `bytes` and the end on a stream, as far as it takes them.
    pub(crate) fn send(&mut self, connection: &mut Connection<'_>, stream: StreamId, bytes: Bytes) {
        self.pending.insert(stream, (bytes, false));
        self.writable(connection, stream);
    }
}

impl Application for App {
    fn connected(&mut self, connection: &mut Connection<'_>) {
        self.seen.lock().unwrap().is_connected = true;
        let first = std::mem::take(&mut self.first);
        if !first.is_empty() {
            let stream = connection.open().expect("a stream");
            self.send(connection, stream, first);
        }
    }

    fn readable(&mut self, connection: &mut Connection<'_>, stream: StreamId) {
        let mut new = Vec::new();
        let state = connection.read(stream, |bytes| new.extend_from_slice(bytes));
        assert!(!self.is_server || new != b"panic", "as the stream says");
        let mut seen = self.seen.lock().unwrap();
        seen.bytes.extend_from_slice(&new);
        if state == Ok(StreamState::Finished) {
            seen.is_finished = true;
            let echo = Bytes::from(seen.bytes.clone());
            drop(seen);
            if self.is_server {
                self.send(connection, stream, echo);
            }
        }
    }

    fn writable(&mut self, connection: &mut Connection<'_>, stream: StreamId) {
        let Some((bytes, is_finished)) = self.pending.get_mut(&stream) else {
            return;
        };
        while !bytes.is_empty() && connection.write(stream, bytes).is_ok_and(|len| len > 0) {}
        if bytes.is_empty() && !*is_finished {
            *is_finished = true;
            connection.finish(stream).unwrap();
        }
    }

    fn datagram(&mut self, connection: &mut Connection<'_>, payload: Bytes) {
        self.seen.lock().unwrap().datagrams.push(payload.clone());
        if self.is_server {
            connection.send_datagram(payload).unwrap();
        }
    }

    fn closed(&mut self, cause: Closed, statistics: &Statistics) {
        let mut seen = self.seen.lock().unwrap();
        seen.closed = Some(cause);
        seen.statistics = *statistics;
    }
}

/// What strangers get.
#[derive(Debug)]
pub(crate) struct Budget {
    pub(crate) answers_left: u32,
    pub(crate) is_busy: bool,
}

impl Strangers for Budget {
    fn has_time(&mut self) -> bool {
        !self.is_busy
    }

    fn admits(&mut self, _: IpAddr, _: usize, _: usize) -> bool {
        let has_one = self.answers_left > 0;
        self.answers_left = self.answers_left.saturating_sub(1);
        has_one
    }
}

/// A datagram on the link.
#[derive(Clone, Debug)]
pub(crate) struct Datagram {
    pub(crate) at: Instant,
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) bytes: Vec<u8>,
}

pub(crate) struct Port<'a> {
    pub(crate) at: Instant,
    pub(crate) from: SocketAddr,
    pub(crate) link: &'a mut VecDeque<Datagram>,
}

impl Outlet for Port<'_> {
    fn buffer(&mut self) -> Vec<u8> {
        Vec::new()
    }

    fn send(&mut self, _: Via, to: SocketAddr, bytes: Vec<u8>, segment: usize) {
        let datagrams = bytes.chunks(segment).map(|datagram| Datagram {
            at: self.at,
            from: self.from,
            to,
            bytes: datagram.to_vec(),
        });
        self.link.extend(datagrams);
    }
}

pub(crate) struct World {
    pub(crate) now: Instant,
    began: Instant,
    /// Seconds that the calendar is ahead.
    pub(crate) calendar: Arc<Mutex<u64>>,
    pub(crate) server: Endpoint<App>,
    pub(crate) client: Endpoint<App>,
    pub(crate) client_address: SocketAddr,
    is_clear: bool,
    pub(crate) link: VecDeque<Datagram>,
    /// All that was ever on the link, in the order in which it was sent.
    pub(crate) sent: Vec<Datagram>,
    pub(crate) budget: Budget,
    pub(crate) at_server: Arc<Mutex<Seen>>,
    pub(crate) at_client: Arc<Mutex<Seen>>,
}

fn tls() -> &'static (Arc<rustls::ServerConfig>, Arc<rustls::ClientConfig>) {
    static TLS: OnceLock<(Arc<rustls::ServerConfig>, Arc<rustls::ClientConfig>)> = OnceLock::new();
    TLS.get_or_init(|| {
        let certified =
            rcgen::generate_simple_self_signed(vec!["relay.example".to_owned()]).unwrap();
        let certificate = CertificateDer::from(certified.cert);
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(
            certified.signing_key.serialize_der(),
        ));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut server = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], key)
            .unwrap();
        server.alpn_protocols = vec![b"test".to_vec()];
        let mut roots = rustls::RootCertStore::empty();
        roots.add(certificate).unwrap();
        let mut client = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        client.alpn_protocols = vec![b"test".to_vec()];
        (Arc::new(server), Arc::new(client))
    })
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(Limits::default())
    }

    /// Returns a world in which connections hide nothing, as in a simulator.
    pub(crate) fn clear() -> Self {
        let mut world = Self::new();
        world.server.serve_clear();
        world.is_clear = true;
        world
    }

    /// Returns a world whose server has these limits.
    pub(crate) fn with(limits: Limits) -> Self {
        let began = Instant::now();
        let calendar = Arc::new(Mutex::new(0));
        let at_server = Arc::default();
        let at_client = Arc::default();
        let server = Self::endpoint(&calendar, 0, 1, limits, true, &at_server);
        let client = Self::endpoint(&calendar, 0, 2, Limits::default(), false, &at_client);
        Self {
            now: began,
            began,
            calendar,
            server,
            client,
            client_address: client_address(),
            is_clear: false,
            link: VecDeque::new(),
            sent: Vec::new(),
            budget: Budget {
                answers_left: u32::MAX,
                is_busy: false,
            },
            at_server,
            at_client,
        }
    }

    fn endpoint(
        calendar: &Arc<Mutex<u64>>,
        shard: u8,
        seed: u8,
        limits: Limits,
        is_server: bool,
        seen: &Arc<Mutex<Seen>>,
    ) -> Endpoint<App> {
        let settings = Self::settings(calendar, shard, seed, limits, is_server);
        let seen = Arc::clone(seen);
        let mut endpoint = Endpoint::new(settings, move |_| App::new(is_server, &seen));
        if is_server {
            endpoint.serve(Arc::clone(&tls().0)).unwrap();
        }
        endpoint
    }

    /// Returns one shard of a server, each of whose connections has an application that sees nothing of the others.
    pub(crate) fn shard(index: u8) -> Endpoint<App> {
        let (calendar, limits) = (Arc::default(), Limits::default());
        let settings = Self::settings(&calendar, index, index + 1, limits, true);
        let mut endpoint = Endpoint::new(settings, |_| App::new(true, &Arc::default()));
        endpoint.serve(Arc::clone(&tls().0)).unwrap();
        endpoint
    }

    /// Returns a client that connects to the server.
    pub(crate) fn client(
        now: Instant,
        seed: u8,
        seen: &Arc<Mutex<Seen>>,
    ) -> (Endpoint<App>, ConnectionName) {
        let mut client = Self::endpoint(&Arc::default(), 0, seed, Limits::default(), false, seen);
        let (config, app) = (Arc::clone(&tls().1), App::new(false, seen));
        let name = client
            .connect(now, config, server_address(), "relay.example", app)
            .unwrap();
        (client, name)
    }

    /// Returns the reader of the server's connection ids.
    pub(crate) fn server_ids() -> Ids {
        Self::keys(true).ids()
    }

    /// Returns the keys of one side: each has keys of its own.
    fn keys(is_server: bool) -> Keys {
        Keys::new(&[if is_server { 7 } else { 8 }; 32])
    }

    fn settings(
        calendar: &Arc<Mutex<u64>>,
        shard: u8,
        seed: u8,
        limits: Limits,
        is_server: bool,
    ) -> Settings {
        let calendar = Arc::clone(calendar);
        Settings {
            keys: Self::keys(is_server),
            shard,
            seed: [seed; 32],
            wall_clock: WallClock(Arc::new(move || {
                SystemTime::UNIX_EPOCH
                    + Duration::from_secs(1_700_000_000 + *calendar.lock().unwrap())
            })),
            path: Path::default(),
            limits,
        }
    }

    /// Replaces the server by one that knows no connection: `seed` differs at each start, the keys are the same.
    pub(crate) fn restart_server(&mut self, shard: u8, seed: u8) {
        let limits = Limits::default();
        self.server = Self::endpoint(&self.calendar, shard, seed, limits, true, &self.at_server);
    }

    /// Replaces the client by one that knows no connection.
    pub(crate) fn restart_client(&mut self) {
        let limits = Limits::default();
        self.client = Self::endpoint(&self.calendar, 0, 9, limits, false, &self.at_client);
    }

    pub(crate) fn connect(&mut self) -> ConnectionName {
        self.connect_and_send(Bytes::new())
    }

    /// Connects, and sends `first` on a stream as soon as the handshake is done.
    pub(crate) fn connect_and_send(&mut self, first: impl Into<Bytes>) -> ConnectionName {
        let mut app = App::new(false, &self.at_client);
        app.first = first.into();
        let (now, server) = (self.now, server_address());
        let connected = match self.is_clear {
            true => self.client.connect_clear(now, server, app),
            false => {
                let client = Arc::clone(&tls().1);
                self.client
                    .connect(now, client, server, "relay.example", app)
            }
        };
        connected.unwrap()
    }

    /// Connects and waits until the handshake is done.
    pub(crate) fn connected(&mut self) -> ConnectionName {
        let name = self.connect();
        self.run_until(|world| world.at_client.lock().unwrap().is_connected);
        self.run_for(Duration::from_millis(100));
        name
    }

    /// Opens a stream and sends `bytes` on it.
    pub(crate) fn send(&mut self, name: ConnectionName, bytes: impl Into<Bytes>) {
        let bytes = bytes.into();
        let sent = self.client.with(self.now, name, |connection, app| {
            let stream = connection.open().expect("a stream");
            app.send(connection, stream, bytes);
        });
        assert!(sent.is_some(), "the connection is there");
    }

    /// Hands the server a datagram from anywhere.
    pub(crate) fn give_server(&mut self, from: SocketAddr, bytes: &[u8]) {
        self.server.handle(
            self.now,
            from,
            Via::default(),
            bytes,
            bytes.len(),
            &mut self.budget,
        );
    }

    /// Lets both sides do what is due at this moment.
    pub(crate) fn turn(&mut self) {
        let now = self.now;
        let at = now + DELAY;
        for (endpoint, from) in [
            (&mut self.server, server_address()),
            (&mut self.client, self.client_address),
        ] {
            endpoint.serve_strangers(now, &mut self.budget);
            endpoint.handle_timeouts(now);
            let link = &mut self.link;
            let before = link.len();
            endpoint.transmit(now, &mut Port { at, from, link });
            self.sent.extend(self.link.iter().skip(before).cloned());
        }
        assert_eq!(self.unaccounted(), 0, "{:?}", self.server.totals());
    }

    /// Returns how many datagrams the server has lost track of.
    fn unaccounted(&self) -> u64 {
        let totals = self.server.totals();
        let dropped: u64 = Dropped::ALL.iter().map(|&reason| totals.of(reason)).sum();
        let waiting = u64::try_from(self.server.waiting_count()).unwrap();
        totals.received - totals.delivered - totals.begun - totals.answered - dropped - waiting
    }

    /// Goes on to the next moment at which something happens, at most to `end`. Returns whether `end` is reached.
    fn step(&mut self, end: Instant) -> bool {
        self.turn();
        let arrival = self.link.front().map(|datagram| datagram.at);
        let deadlines = [
            self.server.next_deadline(self.now),
            self.client.next_deadline(self.now),
        ];
        let next = deadlines.into_iter().flatten().chain(arrival).min();
        let Some(next) = next.filter(|&next| next <= end) else {
            self.now = end;
            return true;
        };
        self.now = self.now.max(next);
        while let Some(datagram) = self.link.front()
            && datagram.at <= self.now
        {
            let Datagram {
                from, to, bytes, ..
            } = self.link.pop_front().unwrap();
            if to == server_address() {
                self.give_server(from, &bytes);
            } else if to == self.client_address {
                self.client.handle(
                    self.now,
                    from,
                    Via::default(),
                    &bytes,
                    bytes.len(),
                    &mut self.budget,
                );
            }
        }
        false
    }

    pub(crate) fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while !self.step(end) {}
    }

    /// Goes on until `done`, for a minute of virtual time at most.
    pub(crate) fn run_until(&mut self, done: impl Fn(&Self) -> bool) {
        let end = self.now + Duration::from_secs(60);
        while !done(self) {
            assert!(!self.step(end), "not within a minute");
        }
    }

    pub(crate) fn echoed(&self) -> bool {
        self.at_client.lock().unwrap().is_finished
    }

    /// Returns how long this world has lived.
    pub(crate) fn age(&self) -> Duration {
        self.now - self.began
    }

    /// Returns how many bytes have been sent to an address.
    pub(crate) fn bytes_to(&self, to: SocketAddr) -> usize {
        let to_it = self.sent.iter().filter(|datagram| datagram.to == to);
        to_it.map(|datagram| datagram.bytes.len()).sum()
    }

    /// Returns what the client sent last that begins with a short header.
    pub(crate) fn last_short(&self) -> Vec<u8> {
        let from_client =
            |datagram: &&Datagram| datagram.to == server_address() && datagram.bytes[0] & 0x80 == 0;
        self.sent
            .iter()
            .rev()
            .find(from_client)
            .unwrap()
            .bytes
            .clone()
    }

    /// Returns the client's Initial packets with a token, and those without.
    pub(crate) fn initials(&self) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
        let initials = self
            .sent
            .iter()
            .filter(|datagram| datagram.to == server_address() && datagram.bytes[0] & 0xb0 == 0x80);
        initials
            .map(|datagram| datagram.bytes.clone())
            .partition(|bytes| {
                // Header, version, two ids with their lengths, then the length of the token.
                let destination_len = usize::from(bytes[5]);
                let source_len = usize::from(bytes[6 + destination_len]);
                bytes[7 + destination_len + source_len] != 0
            })
    }
}

/// Random numbers that are the same in each run (xorshift64*).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(end.max(1)).unwrap()).unwrap()
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next().to_be_bytes()[0]).collect()
    }
}
