//! A client of UDP proxying in HTTP/3 (RFC 9298 §3.4), that waits for each response.
//!
//! It has no dynamic table of QPACK, and passes over the frames of HTTP/3 that it knows nothing of.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use turnbuckle_masque::Target;
use turnbuckle_masque::h3::{self, FIELDS_SIZE_MAX, qpack};
use turnbuckle_quic::{
    Application, Bytes, Closed, Connection, ConnectionName, Endpoint, Keys, Limits, Outlet, Path,
    Settings, Statistics, Strangers, StreamId, StreamState, Via, WallClock,
};
use turnbuckle_wire::{UDP_CONTEXT, Varint};

use super::tunnel::{ANSWER_WAIT, TunnelAnswer};
use crate::certificates::{Signatures, taking_any};
use crate::credentials::Credentials;

/// How long a handshake may take.
const HANDSHAKE_WAIT: Duration = Duration::from_secs(5);
/// How long one wait for a datagram takes, while timers may run out.
const TICK: Duration = Duration::from_millis(5);
/// Bytes of the longest datagram that is read.
const DATAGRAM_LEN_MAX: usize = 2048;
/// The control stream: SETTINGS with H3_DATAGRAM (RFC 9114 §6.2.1, RFC 9297 §2.1.1).
const CONTROL: [u8; 5] = [0x00, 0x04, 0x02, 0x33, 0x01];
/// The frame with a field section (RFC 9114 §7.2.2).
const HEADERS: u64 = 0x01;
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
#[derive(Default)]
struct Seen {
    is_connected: bool,
    /// The bytes on the streams of requests, and whether more may come.
    answers: BTreeMap<u64, (Vec<u8>, bool)>,
    closed: Option<Closed>,
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
        let seen = Arc::<Mutex<Seen>>::default();
        let (endpoint, name) = begin(server, tls, name, Arc::clone(&seen))?;
        let mut link = Self {
            endpoint,
            name,
            socket,
            seen,
        };
        link.run_until(HANDSHAKE_WAIT, |seen| seen.is_connected)?;
        let opened = link.with(|connection| {
            let stream = connection.open_uni()?;
            connection
                .write(stream, &mut Bytes::from_static(&CONTROL))
                .ok()
        });
        opened.ok_or(ErrorKind::ConnectionAborted)?;
        Ok(link)
    }

    /// Asks for a tunnel to `host`, as it stands in the path, as a user, and sends `early` for the target with the request.
    /// Returns the number of the request's stream, and the answer.
    ///
    /// # Errors
    /// The connection has failed, or no answer has come.
    pub fn ask(
        &mut self,
        authority: &str,
        (host, port): (&str, u16),
        user: &Credentials,
        early: &[u8],
    ) -> io::Result<(u64, TunnelAnswer)> {
        let request = h3::asking(authority, &Target::path(host, port), &user.basic());
        let stream = self.open(Bytes::from(request))?;
        if !early.is_empty() {
            self.send(stream, early);
        }
        self.run_until(ANSWER_WAIT, |seen| {
            let answer = seen.answers.get(&stream);
            answer.is_some_and(|(bytes, is_open)| !is_open || section_of(bytes).is_some())
        })?;
        let answer = self.seen().answers.remove(&stream);
        let (bytes, _) = answer.unwrap_or_default();
        let answer = section_of(&bytes).and_then(answer_of);
        let answer = answer.ok_or(ErrorKind::InvalidData)?;
        if !answer.is_open {
            self.end(stream);
        }
        Ok((stream, answer))
    }

    /// Sends a datagram to the target of the tunnel on `stream`, in a DATAGRAM frame (RFC 9297 §2.1). One that is too long is lost, as in a network.
    fn send(&mut self, stream: u64, payload: &[u8]) {
        let mut bytes = integers([stream / 4, UDP_CONTEXT]);
        bytes.extend_from_slice(payload);
        self.with(|connection| connection.send_datagram(Bytes::from(bytes)).ok());
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
                self.seen()
                    .answers
                    .insert(stream.to_u64(), (Vec::new(), true));
                let written = self.with(|connection| connection.write(stream, &mut request).ok());
                written.ok_or(ErrorKind::ConnectionAborted)?;
                // A datagram that comes before its request is nobody's.
                self.transmit();
                return Ok(stream.to_u64());
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
            Some(closed) => Err(io::Error::other(format!("closed: {closed:?}"))),
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

/// Returns numbers as HTTP/3 has them.
fn integers(numbers: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for number in numbers.into_iter().filter_map(Varint::new) {
        bytes.extend_from_slice(number.as_bytes());
    }
    bytes
}

/// Returns the first field section of a stream, if it has come whole.
fn section_of(bytes: &[u8]) -> Option<&[u8]> {
    let mut rest = bytes;
    loop {
        let (kind, kind_len) = Varint::read(rest)?;
        rest = rest.get(kind_len..)?;
        let (len, len_len) = Varint::read(rest)?;
        rest = rest.get(len_len..)?;
        let (frame, after) = rest.split_at_checked(usize::try_from(len).ok()?)?;
        if kind == HEADERS {
            return Some(frame);
        }
        rest = after;
    }
}

fn answer_of(section: &[u8]) -> Option<TunnelAnswer> {
    let (mut status, mut fields) = (None, String::new());
    for field in qpack::decode(section, FIELDS_SIZE_MAX).ok()? {
        let value = String::from_utf8_lossy(&field.value);
        match &*field.name {
            b":status" => status = value.parse().ok(),
            name => fields += &format!("{}: {value}\r\n", String::from_utf8_lossy(name)),
        }
    }
    let status = status?;
    Some(TunnelAnswer {
        status,
        is_open: (200..300).contains(&status),
        fields,
    })
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
        let mut seen = self.seen();
        // The server's own streams, and answers that nobody waits for, are passed over.
        if let Some((answer, is_open)) = seen.answers.get_mut(&stream.to_u64()) {
            answer.extend_from_slice(&bytes);
            *is_open = matches!(state, Ok(StreamState::Open));
        }
    }

    fn closed(&mut self, cause: Closed, _: &Statistics) {
        self.seen().closed = Some(cause);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_the_first_section_that_is_whole() {
        let section = qpack::encode(&[(":status", "403"), ("proxy-status", "a; error=b")]);
        let mut bytes = vec![0x21, 0x02, 0xaa, 0xbb]; // a frame of a type that means nothing
        bytes.extend(integers([HEADERS, section.len() as u64]));
        bytes.extend_from_slice(&section);
        assert_eq!(section_of(&bytes[..bytes.len() - 1]), None);
        let answer = section_of(&bytes).and_then(answer_of).unwrap();
        assert_eq!(
            (answer.status, &*answer.fields, answer.is_open),
            (403, "proxy-status: a; error=b\r\n", false)
        );
    }
}
