//! A client by QUIC that trusts one authority, on a socket that a test can look at, replace and share.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use turnbuckle_quic::{
    Application, Bytes, Closed, Connection, ConnectionName, Endpoint, Keys, Limits, Outlet, Path,
    Settings, Statistics, Strangers, StreamError, StreamId, Via, WallClock,
};

use super::tls::{NAME, Tls};

/// How long to wait for what must come.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long to wait for a datagram at a time.
const TICK: Duration = Duration::from_millis(5);

/// What a client has seen.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) is_connected: bool,
    /// What came on unidirectional streams, one after the other.
    pub(crate) control: Vec<u8>,
    /// What came on the streams of requests.
    pub(crate) answers: BTreeMap<u64, Vec<u8>>,
    /// Payloads of DATAGRAM frames.
    pub(crate) datagrams: Vec<Vec<u8>>,
    /// The codes with which requests were rejected.
    pub(crate) rejected: Vec<u64>,
    pub(crate) closed: Option<Closed>,
}

/// One connection.
pub(crate) struct QuicLink {
    endpoint: Endpoint<App>,
    name: ConnectionName,
    socket: UdpSocket,
    seen: Arc<Mutex<Seen>>,
    /// All that was sent.
    pub(crate) sent: Vec<Vec<u8>>,
    /// Bytes of the longest datagram that has come.
    pub(crate) longest: usize,
}

impl QuicLink {
    /// Begins a connection from `ip`, and sends nothing yet.
    pub(crate) fn begin(tls: &Tls, ip: IpAddr, server: SocketAddr) -> Self {
        let socket = UdpSocket::bind((ip, 0)).expect("an address of this host");
        socket.set_read_timeout(Some(TICK)).expect("a timeout");
        let mut seed = [0; 32];
        rustls::crypto::aws_lc_rs::default_provider()
            .secure_random
            .fill(&mut seed)
            .expect("randomness");
        let settings = Settings {
            keys: Keys::random().expect("randomness"),
            shard: 0,
            seed,
            wall_clock: WallClock::default(),
            path: Path {
                mtu_initial: 1200,
                mtu_max: None,
                ..Path::default()
            },
            limits: Limits::default(),
        };
        let seen = Arc::default();
        let mut endpoint = Endpoint::new(settings, |_| unreachable!("a client"));
        let application = App {
            seen: Arc::clone(&seen),
        };
        let name = endpoint
            .connect(
                Instant::now(),
                Arc::new(tls.config()),
                server,
                NAME,
                application,
            )
            .expect("a connection");
        Self {
            endpoint,
            name,
            socket,
            seen,
            sent: Vec::new(),
            longest: 0,
        }
    }

    /// Connects and shakes hands.
    pub(crate) fn connect(tls: &Tls, ip: IpAddr, server: SocketAddr) -> Self {
        let mut link = Self::begin(tls, ip, server);
        link.run_until(|seen| seen.is_connected && !seen.control.is_empty());
        link
    }

    /// Looks at what has been seen so far.
    pub(crate) fn seen<T>(&self, look: impl FnOnce(&Seen) -> T) -> T {
        look(&self.seen.lock().expect("no panic"))
    }

    /// Returns the socket, for whom it is shared with.
    pub(crate) fn socket(&self) -> UdpSocket {
        self.socket.try_clone().expect("dup")
    }

    /// Goes on from another port, without noticing it itself, as behind a NAT.
    pub(crate) fn rebind(&mut self) {
        let ip = self.socket.local_addr().expect("bound").ip();
        self.socket = UdpSocket::bind((ip, 0)).expect("an address of this host");
        self.socket.set_read_timeout(Some(TICK)).expect("a timeout");
    }

    /// Begins a request. Returns whether there was a stream for it.
    pub(crate) fn request(&mut self) -> bool {
        let begun = self
            .endpoint
            .with(Instant::now(), self.name, |connection, _| {
                let Some(stream) = connection.open() else {
                    return false;
                };
                // HEADERS with a field section of no fields.
                let mut bytes = Bytes::from_static(&[0x01, 0x02, 0x00, 0x00]);
                connection.write(stream, &mut bytes).is_ok() && connection.finish(stream).is_ok()
            });
        begun == Some(true)
    }

    /// Opens a stream, both ways or one way, and begins it with `bytes`. Returns its number.
    #[track_caller]
    pub(crate) fn open(&mut self, is_request: bool, bytes: &[u8]) -> u64 {
        let opened = self
            .endpoint
            .with(Instant::now(), self.name, |connection, _| {
                let stream = match is_request {
                    true => connection.open(),
                    false => connection.open_uni(),
                };
                let stream = stream.expect("a stream");
                let mut bytes = Bytes::copy_from_slice(bytes);
                let written = connection.write(stream, &mut bytes);
                assert!(written.is_ok() && bytes.is_empty(), "it has room");
                stream.to_u64()
            });
        opened.expect("the connection is there")
    }

    /// Sends more on a stream that it has opened.
    #[track_caller]
    pub(crate) fn write(&mut self, stream: u64, bytes: &[u8]) {
        let mut bytes = Bytes::copy_from_slice(bytes);
        self.endpoint
            .with(Instant::now(), self.name, |connection, _| {
                let written = connection.write(StreamId::from_u64(stream), &mut bytes);
                assert!(written.is_ok() && bytes.is_empty(), "it has room");
            });
    }

    /// Sends a DATAGRAM frame.
    pub(crate) fn datagram(&mut self, payload: &[u8]) {
        let payload = Bytes::copy_from_slice(payload);
        self.endpoint
            .with(Instant::now(), self.name, |connection, _| {
                // A connection that is over takes none.
                let _ = connection.send_datagram(payload);
            });
    }

    /// Ends what is sent on a stream.
    pub(crate) fn finish(&mut self, stream: u64) {
        self.endpoint
            .with(Instant::now(), self.name, |connection, _| {
                let _ = connection.finish(StreamId::from_u64(stream));
            });
    }

    /// Closes the connection, and does not wait for more.
    pub(crate) fn say_goodbye(mut self) {
        self.endpoint
            .with(Instant::now(), self.name, |connection, _| {
                connection.close(0x0100, "H3_NO_ERROR");
            });
        self.send();
    }

    /// Has a request rejected, as the relay does with all.
    #[track_caller]
    pub(crate) fn assert_served(&mut self) {
        let before = self.seen(|seen| seen.rejected.len());
        assert!(self.request(), "there is a stream");
        self.run_until(|seen| seen.rejected.len() > before);
        let code = self.seen(|seen| seen.rejected.last().copied());
        assert_eq!(code, Some(0x010b), "H3_REQUEST_REJECTED");
    }

    /// Sends and receives until `done`.
    #[track_caller]
    pub(crate) fn run_until(&mut self, done: impl Fn(&Seen) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !self.seen(&done) {
            assert!(Instant::now() < deadline, "in vain: {:?}", self.seen);
            self.turn();
        }
    }

    /// Sends and receives until a datagram of `len` bytes or more has come.
    #[track_caller]
    pub(crate) fn run_until_longest(&mut self, len: usize) {
        let deadline = Instant::now() + PATIENCE;
        while self.longest < len {
            assert!(Instant::now() < deadline, "{} bytes", self.longest);
            self.turn();
        }
    }

    /// Sends and receives until something has come to `peer`, and returns what, and from where. The path may have no room for a datagram at once: what
    /// was sent before is under way until its acknowledgement has been read.
    #[track_caller]
    pub(crate) fn run_until_heard(&mut self, peer: &UdpSocket) -> (Vec<u8>, SocketAddr) {
        let deadline = Instant::now() + PATIENCE;
        let mut buffer = [0; 2048];
        peer.set_nonblocking(true).expect("a socket");
        let (len, from) = loop {
            self.turn();
            match peer.recv_from(&mut buffer) {
                Ok(received) => break received,
                Err(error) => assert!(Instant::now() < deadline, "the peer hears nothing: {error}"),
            }
        };
        peer.set_nonblocking(false).expect("a socket");
        (buffer[..len].to_vec(), from)
    }

    /// Sends and receives for so long.
    pub(crate) fn run_for(&mut self, time: Duration) {
        let deadline = Instant::now() + time;
        while Instant::now() < deadline {
            self.turn();
        }
    }

    /// Sends what is due, and takes one datagram if one comes soon.
    pub(crate) fn turn(&mut self) {
        self.send();
        let mut buffer = [0; 2048];
        if let Ok((len, from)) = self.socket.recv_from(&mut buffer) {
            self.longest = self.longest.max(len);
            let (now, via) = (Instant::now(), Via::default());
            self.endpoint
                .handle(now, from, via, &buffer[..len], len, &mut Everybody);
        }
    }

    /// Sends what is due.
    pub(crate) fn send(&mut self) {
        let now = Instant::now();
        self.endpoint.serve_strangers(now, &mut Everybody);
        self.endpoint.handle_timeouts(now);
        let mut wire = Wire {
            socket: &self.socket,
            sent: &mut self.sent,
        };
        self.endpoint.transmit(now, &mut wire);
        while self.endpoint.poll_event().is_some() {}
    }

    /// Returns what was sent last that begins with a short header.
    pub(crate) fn last_short(&self) -> Vec<u8> {
        let short = self.sent.iter().rev().find(|bytes| bytes[0] & 0x80 == 0);
        short.expect("a short header").clone()
    }
}

struct Wire<'a> {
    socket: &'a UdpSocket,
    sent: &'a mut Vec<Vec<u8>>,
}

impl Outlet for Wire<'_> {
    fn buffer(&mut self) -> Vec<u8> {
        Vec::new()
    }

    fn send(&mut self, _: Via, to: SocketAddr, bytes: Vec<u8>, segment: usize) {
        for datagram in bytes.chunks(segment) {
            // A relay that has ended takes nothing.
            let _ = self.socket.send_to(datagram, to);
            self.sent.push(datagram.to_vec());
        }
    }
}

/// A client has time for whoever answers.
struct Everybody;

impl Strangers for Everybody {
    fn has_time(&mut self) -> bool {
        true
    }

    fn admits(&mut self, _: IpAddr, _: usize, _: usize) -> bool {
        false
    }
}

struct App {
    seen: Arc<Mutex<Seen>>,
}

impl Application for App {
    fn connected(&mut self, _: &mut Connection<'_>) {
        self.seen.lock().expect("no panic").is_connected = true;
    }

    fn readable(&mut self, connection: &mut Connection<'_>, stream: StreamId) {
        let mut seen = self.seen.lock().expect("no panic");
        let Seen {
            control, answers, ..
        } = &mut *seen;
        let place = match stream.is_bidirectional() {
            true => answers.entry(stream.to_u64()).or_default(),
            false => control,
        };
        let read = connection.read(stream, |bytes| place.extend_from_slice(bytes));
        if let Err(StreamError::Reset(code)) = read {
            seen.rejected.push(code);
        }
    }

    fn datagram(&mut self, _: &mut Connection<'_>, payload: Bytes) {
        let mut seen = self.seen.lock().expect("no panic");
        seen.datagrams.push(payload.to_vec());
    }

    fn closed(&mut self, cause: Closed, _: &Statistics) {
        self.seen.lock().expect("no panic").closed = Some(cause);
    }
}
