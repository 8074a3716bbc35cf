//! A client's end of connections of QUIC, one after the other, each with HTTP/3 on it. Nothing is hidden on them, and all that is sent follows from the
//! seed; `turnbuckle_quic` has the packets, `turnbuckle_masque` the requests.
//!
//! It does not know from which address its datagrams leave: that may change between two of them, as a NAT does it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use turnbuckle_masque::h3::{Client, Code, Happened};
use turnbuckle_quic::{
    Application, Bytes, Closed, Connection, ConnectionName, Endpoint, Event, Keys, Limits, Outlet,
    Path, Settings, Strangers, StreamError, StreamId, StreamState, Via, WallClock,
};

use crate::random::Seeded;

/// Time after which a connection on which nothing comes ends, on both sides: longer than any shard stands still.
const IDLE: Duration = Duration::from_secs(15);
/// Bytes of a datagram that every path must carry (RFC 9000 §14).
const DATAGRAM_LEN: u16 = 1200;
/// The name of the server in requests.
const AUTHORITY: &str = "relay.test";

/// What has become of a connection and of what was asked for on it. Tunnels are named by their owners.
#[derive(Debug)]
pub(super) enum News {
    /// The handshake is done.
    Connected,
    Tunnel(Happened<u32>),
    /// The tunnel's target has sent this.
    Payload(u32, Bytes),
    /// The server has done what HTTP/3 forbids.
    Broken(&'static str),
    Ended(Closed),
}

/// A client's end.
pub(super) struct Link {
    endpoint: Endpoint<Http>,
    /// What the endpoint's clock shows when that of the world shows zero.
    epoch: Instant,
    /// The connection, while there is one.
    name: Option<ConnectionName>,
}

impl Link {
    pub(super) fn new(mut random: Seeded) -> Self {
        let (mut secret, mut seed) = ([0; 32], [0; 32]);
        random.fill_bytes(&mut secret);
        random.fill_bytes(&mut seed);
        let settings = Settings {
            keys: Keys::new(&secret),
            shard: 0,
            seed,
            // Only servers look at it.
            wall_clock: WallClock(Arc::new(|| SystemTime::UNIX_EPOCH)),
            path: Path {
                mtu_initial: DATAGRAM_LEN,
                mtu_max: None,
                ..Path::default()
            },
            limits: Limits {
                idle: IDLE,
                ..Limits::default()
            },
        };
        Self {
            endpoint: Endpoint::new(settings, |_| Http::default()),
            epoch: Instant::now(),
            name: None,
        }
    }

    /// Begins a connection.
    pub(super) fn connect(&mut self, now: u64, server: SocketAddr) {
        let now = self.instant(now);
        let connected = self.endpoint.connect_clear(now, server, Http::default());
        self.name = Some(connected.expect("there is room for a connection"));
    }

    /// Takes a datagram of the server's.
    pub(super) fn receive(&mut self, now: u64, server: SocketAddr, bytes: &[u8]) {
        let (now, via) = (self.instant(now), Via::default());
        let len = bytes.len();
        self.endpoint
            .handle(now, server, via, bytes, len, &mut Anybody);
        self.endpoint.serve_strangers(now, &mut Anybody);
    }

    /// Does what is due, and returns the datagrams that leave.
    pub(super) fn send(&mut self, now: u64) -> Vec<Vec<u8>> {
        let now = self.instant(now);
        self.endpoint.handle_timeouts(now);
        let mut datagrams = Datagrams(Vec::new());
        self.endpoint.transmit(now, &mut datagrams);
        datagrams.0
    }

    /// Returns when it has something to do by itself.
    pub(super) fn due(&self, now: u64) -> Option<u64> {
        let due = self.endpoint.next_deadline(self.instant(now))?;
        u64::try_from((due - self.epoch).as_nanos()).ok()
    }

    /// Takes what has happened since this was called last.
    pub(super) fn news(&mut self, now: u64) -> Vec<News> {
        let mut news = Vec::new();
        while let Some(event) = self.endpoint.poll_event() {
            // One that this side has closed is of no interest any more.
            match event {
                Event::Connected(name) if self.name == Some(name) => news.push(News::Connected),
                Event::Stirred(name) if self.name == Some(name) => {
                    news.extend(self.with(now, |_, http| http.take()).unwrap_or_default());
                }
                Event::Ended(name, cause) if self.name == Some(name) => {
                    self.name = None;
                    news.push(News::Ended(cause));
                }
                _ => {}
            }
        }
        news
    }

    /// Asks for a tunnel, if the server has said that it serves any and lets another stream begin. Returns the stream.
    pub(super) fn ask(
        &mut self,
        now: u64,
        owner: u32,
        target: SocketAddr,
        credentials: (&str, &str),
    ) -> Option<u64> {
        self.with(now, |connection, Http { client, .. }| {
            if client.serves() != Some(true) {
                return None;
            }
            let stream = connection.open()?;
            let number = stream.to_u64();
            let request = client.ask(number, owner, AUTHORITY, target, credentials);
            write(connection, stream, request);
            Some(number)
        })?
    }

    /// Sends a payload by the tunnel of a stream. Returns whether there was room for it.
    pub(super) fn send_payload(&mut self, now: u64, stream: u64, payload: &[u8]) -> bool {
        let frame = [&Client::<u32>::datagram_head(stream), payload].concat();
        let sent = self.with(now, |connection, _| connection.send_datagram(frame.into()));
        matches!(sent, Some(Ok(())))
    }

    /// Gives up the tunnel of a stream.
    pub(super) fn give_up(&mut self, now: u64, stream: u64) {
        self.with(now, |connection, http| {
            connection.abandon(StreamId::from_u64(stream), Code::REQUEST_CANCELLED.0);
            // It cannot break a rule by that.
            let _ = http.client.ended(stream);
        });
    }

    /// Closes the connection and says so.
    pub(super) fn close(&mut self, now: u64) {
        self.with(now, |connection, _| {
            connection.close(Code::NO_ERROR.0, "the client leaves");
        });
    }

    fn with<T>(
        &mut self,
        now: u64,
        work: impl FnOnce(&mut Connection<'_>, &mut Http) -> T,
    ) -> Option<T> {
        let now = self.instant(now);
        self.endpoint.with(now, self.name?, work)
    }

    fn instant(&self, now: u64) -> Instant {
        self.epoch + Duration::from_nanos(now)
    }
}

/// HTTP/3 on one connection.
#[derive(Debug, Default)]
struct Http {
    client: Client<u32>,
    payloads: Vec<(u32, Bytes)>,
    broken: Option<&'static str>,
}

impl Http {
    fn take(&mut self) -> Vec<News> {
        let happened = std::iter::from_fn(|| self.client.poll());
        let mut news: Vec<_> = happened.map(News::Tunnel).collect();
        let payloads = self.payloads.drain(..);
        news.extend(payloads.map(|(owner, bytes)| News::Payload(owner, bytes)));
        news.extend(self.broken.take().map(News::Broken));
        news
    }
}

impl Application for Http {
    fn connected(&mut self, connection: &mut Connection<'_>) {
        if let Some(control) = connection.open_uni() {
            write(connection, control, self.client.control());
        }
    }

    fn readable(&mut self, connection: &mut Connection<'_>, stream: StreamId) {
        let mut bytes = Vec::new();
        let state = connection.read(stream, |part| bytes.extend_from_slice(part));
        let number = stream.to_u64();
        let read = self.client.received(number, &bytes);
        let read = read.and_then(|()| match state {
            Ok(StreamState::Open) | Err(StreamError::Unknown) => Ok(()),
            Ok(StreamState::Finished) | Err(_) => self.client.ended(number),
        });
        if let Err(violation) = read {
            self.broken = Some(violation.why);
        }
    }

    fn datagram(&mut self, _: &mut Connection<'_>, payload: Bytes) {
        match self.client.datagram(&payload) {
            Ok(payload) => self.payloads.extend(payload),
            Err(violation) => self.broken = Some(violation.why),
        }
    }
}

/// Writes what a stream begins with, for which every server has room.
fn write(connection: &mut Connection<'_>, stream: StreamId, bytes: Vec<u8>) {
    let mut bytes = Bytes::from(bytes);
    let _ = connection.write(stream, &mut bytes);
}

/// A client answers whoever sends to it, and has time.
struct Anybody;

impl Strangers for Anybody {
    fn has_time(&mut self) -> bool {
        true
    }

    fn admits(&mut self, _: IpAddr, _: usize, _: usize) -> bool {
        true
    }
}

/// The datagrams that leave.
struct Datagrams(Vec<Vec<u8>>);

impl Outlet for Datagrams {
    fn buffer(&mut self) -> Vec<u8> {
        Vec::new()
    }

    fn send(&mut self, _: Via, _: SocketAddr, bytes: Vec<u8>, segment: usize) {
        self.0.extend(bytes.chunks(segment).map(<[u8]>::to_vec));
    }
}
