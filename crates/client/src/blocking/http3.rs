//! A client of UDP proxying in HTTP/3 (RFC 9298 §3.4), that waits for each response.
//!
//! What is said on the streams is [`Client`]'s, as that of the load generator.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use turnbuckle_masque::h3::{self, Client, Happened};
use turnbuckle_masque::{Target, bind};
use turnbuckle_quic::{
    Application, Bytes, Closed, Connection, ConnectionName, Endpoint, Keys, Limits, Outlet, Path,
    Settings, Statistics, Strangers, StreamError, StreamId, StreamState, Via, WallClock,
};
use turnbuckle_wire::Varint;

use super::tunnel::{ANSWER_WAIT, is_granted, take_capsule};
use crate::certificates::{Signatures, taking_any};
use crate::credentials::Credentials;

/// How long a handshake may take.
const HANDSHAKE_WAIT: Duration = Duration::from_secs(5);
/// How long one wait for a datagram takes, while timers may run out.
const TICK: Duration = Duration::from_millis(5);
/// Bytes of the longest datagram that is read.
const DATAGRAM_LEN_MAX: usize = 2048;
/// The code of a connection that ends without an error (RFC 9114 §8.1).
const NO_ERROR: u32 = 0x0100;

/// A connection that asks for tunnels. It trusts any certificate.
pub struct Http3 {
    endpoint: Endpoint<App>,
    name: ConnectionName,
    socket: UdpSocket,
    seen: Arc<Mutex<Seen>>,
}

/// What has come.
struct Seen {
    is_connected: bool,
    /// What is said, each tunnel being named by its stream.
    http: Client<u64>,
    /// What has become of requests that are waited for, by their streams; of a tunnel that is open also that it has ended.
    answers: BTreeMap<u64, Happened<u64>>,
    closed: Option<String>,
}

impl Http3 {
    /// Connects to a server, and asks for `name` in the handshake.
    ///
    /// # Errors
    /// The server does not shake hands in five seconds, or not for HTTP/3.
    pub fn connect(server: SocketAddr, name: &str) -> io::Result<Self> {
        let unspecified: IpAddr = match server {
            SocketAddr::V4(_) => [0; 4].into(),
            SocketAddr::V6(_) => [0; 16].into(),
        };
        let socket = UdpSocket::bind((unspecified, 0))?;
        socket.connect(server)?;
        socket.set_read_timeout(Some(TICK))?;
        let mut tls = taking_any(Signatures::Checked).map_err(io::Error::other)?;
        tls.alpn_protocols = vec![b"h3".to_vec()];
        let seen = Arc::new(Mutex::new(Seen {
            is_connected: false,
            http: Client::keeping_capsules(),
            answers: BTreeMap::new(),
            closed: None,
        }));
        let (endpoint, name) = begin(server, tls, name, Arc::clone(&seen))?;
        let mut link = Self {
            endpoint,
            name,
            socket,
            seen,
        };
        link.run_until(HANDSHAKE_WAIT, |seen| seen.is_connected)?;
        let mut control = Bytes::from(link.seen().http.control());
        let opened = link.with(|connection| {
            let stream = connection.open_uni()?;
            connection.write(stream, &mut control).ok()
        });
        opened.ok_or(ErrorKind::ConnectionAborted)?;
        Ok(link)
    }

    /// Asks for a tunnel to `host`, as it stands in the path, as a user, and sends `early` for the target with the request.
    /// Returns the number of the request's stream, and the status code that it is refused with; `None` if there is a tunnel.
    ///
    /// # Errors
    /// The connection has failed, or no answer has come.
    pub fn ask(
        &mut self,
        authority: &str,
        (host, port): (&str, u16),
        user: &Credentials,
        early: &[u8],
    ) -> io::Result<(u64, Option<u16>)> {
        let request = h3::asking(authority, &Target::path(host, port), &user.basic());
        let stream = self.open(Bytes::from(request))?;
        if !early.is_empty() {
            let head = Client::<u64>::datagram_head(stream);
            self.send(&[&head, early].concat());
        }
        Ok((stream, self.answer(stream)?))
    }

    /// Asks for a bound tunnel as a user (draft-ietf-masque-connect-udp-listen), with the same result.
    ///
    /// # Errors
    /// The connection has failed, or no answer has come.
    pub fn ask_bound(
        &mut self,
        authority: &str,
        user: &Credentials,
    ) -> io::Result<(u64, Option<u16>)> {
        let request = h3::asking_bound(authority, &user.basic());
        let stream = self.open(Bytes::from(request))?;
        Ok((stream, self.answer(stream)?))
    }

    /// Waits for the answer to a request.
    fn answer(&mut self, stream: u64) -> io::Result<Option<u16>> {
        self.run_until(ANSWER_WAIT, |seen| seen.answers.contains_key(&stream))?;
        let answer = self.seen().answers.remove(&stream);
        match answer {
            Some(Happened::Opened(_)) => Ok(None),
            Some(Happened::Refused(_, status)) => {
                self.end(stream);
                Ok(Some(status))
            }
            Some(Happened::Ended(_)) | None => Err(ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Registers a context in the bound tunnel on `stream`, which is uncompressed without a `peer`. Returns whether the server takes it.
    ///
    /// # Errors
    /// The connection or the tunnel has failed, or no answer has come.
    pub fn register(
        &mut self,
        stream: u64,
        context: u64,
        peer: Option<SocketAddr>,
    ) -> io::Result<bool> {
        let capsule = Client::<u64>::in_stream(&bind::assign(context, peer));
        let mut capsule = Bytes::from(capsule);
        let written = self.with(|connection| {
            let stream = StreamId::from_u64(stream);
            connection.write(stream, &mut capsule).ok()
        });
        written.ok_or(ErrorKind::BrokenPipe)?;
        let deadline = Instant::now() + ANSWER_WAIT;
        loop {
            let capsule = match self.seen().http.capsules(stream) {
                Some(unread) => take_capsule(unread),
                None => return Err(ErrorKind::UnexpectedEof.into()),
            };
            match capsule {
                Some((kind, value)) => {
                    if let Some(is_granted) = is_granted(kind, &value, context) {
                        return Ok(is_granted);
                    }
                }
                None if Instant::now() > deadline => return Err(ErrorKind::TimedOut.into()),
                None => self.turn(),
            }
            self.check()?;
        }
    }

    /// Sends a datagram to `peer` in an uncompressed context of the bound tunnel on `stream`.
    pub fn send_to(&mut self, stream: u64, context: u64, peer: SocketAddr, payload: &[u8]) {
        let quarter = Varint::new(stream / 4);
        let quarter = quarter.as_ref().map_or(&[][..], Varint::as_bytes);
        let head = bind::addressed(context, peer);
        self.send(&[quarter, head.as_bytes(), payload].concat());
    }

    /// Sends a DATAGRAM frame (RFC 9297 §2.1). One that is too long is lost, as in a network.
    fn send(&mut self, bytes: &[u8]) {
        let bytes = Bytes::copy_from_slice(bytes);
        self.with(|connection| connection.send_datagram(bytes).ok());
        self.transmit();
    }

    /// Ends a tunnel.
    pub fn end(&mut self, stream: u64) {
        self.with(|connection| {
            let stream = StreamId::from_u64(stream);
            // What the server wants no more of is abandoned, so that it lets another stream be opened (RFC 9000 §3.5).
            if connection.finish(stream).is_err() {
                connection.abandon(stream, NO_ERROR);
            }
            Some(())
        });
        self.transmit();
    }

    /// Opens a stream with a request, once the server lets one be opened.
    fn open(&mut self, mut request: Bytes) -> io::Result<u64> {
        let deadline = Instant::now() + ANSWER_WAIT;
        loop {
            if let Some(stream) = self.with(|connection| connection.open()) {
                let number = stream.to_u64();
                self.seen().http.asked(number, number);
                let written = self.with(|connection| connection.write(stream, &mut request).ok());
                written.ok_or(ErrorKind::ConnectionAborted)?;
                // A datagram that comes before its request is nobody's.
                self.transmit();
                return Ok(number);
            }
            self.check()?;
            if Instant::now() > deadline {
                return Err(ErrorKind::TimedOut.into());
            }
            self.turn();
        }
    }

    fn with<T>(&mut self, act: impl FnOnce(&mut Connection<'_>) -> Option<T>) -> Option<T> {
        let now = Instant::now();
        let done = self
            .endpoint
            .with(now, self.name, |connection, _| act(connection));
        done.flatten()
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self) -> io::Result<()> {
        match &self.seen().closed {
            None => Ok(()),
            Some(why) => Err(io::Error::other(format!("closed: {why}"))),
        }
    }

    /// Sends and receives until `done`.
    fn run_until(&mut self, wait: Duration, done: impl Fn(&Seen) -> bool) -> io::Result<()> {
        let deadline = Instant::now() + wait;
        while !done(&self.seen()) {
            self.check()?;
            if Instant::now() > deadline {
                return Err(ErrorKind::TimedOut.into());
            }
            self.turn();
        }
        Ok(())
    }

    /// Sends what is due, and takes one datagram if one comes soon.
    fn turn(&mut self) {
        self.transmit();
        let mut buffer = [0; DATAGRAM_LEN_MAX];
        // An ICMP error is a datagram that did not come.
        if let (Ok(len), Ok(from)) = (self.socket.recv(&mut buffer), self.socket.peer_addr()) {
            let (now, via) = (Instant::now(), Via::default());
            let bytes = buffer.get(..len).unwrap_or_default();
            self.endpoint
                .handle(now, from, via, bytes, len.max(1), &mut Server);
        }
    }

    fn transmit(&mut self) {
        let now = Instant::now();
        self.endpoint.serve_strangers(now, &mut Server);
        self.endpoint.handle_timeouts(now);
        self.endpoint.transmit(now, &mut Wire(&self.socket));
        while self.endpoint.poll_event().is_some() {}
    }
}

impl Drop for Http3 {
    /// Says goodbye, so that the server keeps nothing for a client that is gone.
    fn drop(&mut self) {
        self.endpoint.stop(Instant::now(), NO_ERROR, "");
        self.transmit();
    }
}

fn begin(
    server: SocketAddr,
    tls: ClientConfig,
    name: &str,
    seen: Arc<Mutex<Seen>>,
) -> io::Result<(Endpoint<App>, ConnectionName)> {
    let mut seed = [0; 32];
    openssl::rand::rand_bytes(&mut seed)?;
    let settings = Settings {
        keys: Keys::random().map_err(io::Error::other)?,
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
    let nobody = Arc::clone(&seen);
    // Nobody connects to an endpoint that has no certificates.
    let mut endpoint = Endpoint::new(settings, move |_| App(Arc::clone(&nobody)));
    let connection = endpoint.connect(Instant::now(), Arc::new(tls), server, name, App(seen));
    let connection = connection.map_err(|refused| io::Error::other(refused.0))?;
    Ok((endpoint, connection))
}

struct App(Arc<Mutex<Seen>>);

impl App {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Application for App {
    fn connected(&mut self, _: &mut Connection<'_>) {
        self.seen().is_connected = true;
    }

    fn readable(&mut self, connection: &mut Connection<'_>, stream: StreamId) {
        let mut bytes = Vec::new();
        let state = connection.read(stream, |part| bytes.extend_from_slice(part));
        let number = stream.to_u64();
        let mut seen = self.seen();
        let read = seen.http.received(number, &bytes);
        let read = read.and_then(|()| match state {
            Ok(StreamState::Open) | Err(StreamError::Unknown) => Ok(()),
            Ok(StreamState::Finished) | Err(_) => seen.http.ended(number),
        });
        while let Some(happened) = seen.http.poll() {
            let (Happened::Opened(name) | Happened::Refused(name, _) | Happened::Ended(name)) =
                happened;
            seen.answers.insert(name, happened);
        }
        if let Err(violation) = read {
            seen.closed.get_or_insert_with(|| violation.why.to_owned());
            connection.close(violation.code.0, violation.why);
        }
    }

    fn closed(&mut self, cause: Closed, _: &Statistics) {
        let mut seen = self.seen();
        seen.closed.get_or_insert_with(|| format!("{cause:?}"));
    }
}

struct Wire<'a>(&'a UdpSocket);

impl Outlet for Wire<'_> {
    fn buffer(&mut self) -> Vec<u8> {
        Vec::new()
    }

    fn send(&mut self, _: Via, _: SocketAddr, bytes: Vec<u8>, segment: usize) {
        for datagram in bytes.chunks(segment) {
            // What the kernel refuses is lost, and sent again.
            let _ = self.0.send(datagram);
        }
    }
}

/// What comes before the handshake is over is the server's alone, because the socket is connected.
struct Server;

impl Strangers for Server {
    fn has_time(&mut self) -> bool {
        true
    }

    fn admits(&mut self, _: IpAddr, _: usize, _: usize) -> bool {
        false
    }
}
