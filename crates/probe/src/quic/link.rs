//! One QUIC connection whose packets are made by hand (RFC 9000, 9001), so that they may hold what no stack sends.
//!
//! It shakes hands as a client does, by rustls' part of it, acknowledges what comes, and repeats its handshake messages if nothing comes. It keeps no
//! window, measures nothing and takes streams for granted: whatever else it sends is the probe's.

mod packets;

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::pki_types::ServerName;
use rustls::quic::{ClientConnection, DirectionalKeys, KeyChange, Keys, Version};

use super::wire::{Frame, Reader, crypto, integers, put, read_frame, without_extension};

/// Bytes of a datagram with an Initial packet (RFC 9000 §14.1).
pub(super) const INITIAL_LEN: usize = 1200;
/// Bytes of the connection ids that the probe chooses.
const ID_LEN: usize = 8;
/// Time after which handshake messages are sent again.
const REPEAT: Duration = Duration::from_millis(200);
/// How long one wait for a datagram takes.
const TICK: Duration = Duration::from_millis(20);
/// The extension with the transport parameters (RFC 9001 §8.2).
const PARAMETERS_EXTENSION: u16 = 57;

/// Packet number spaces, and 0-RTT packets, which share the last one's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    Initial,
    Handshake,
    Application,
    Early,
}

impl Space {
    fn index(self) -> usize {
        match self {
            Self::Initial => 0,
            Self::Handshake => 1,
            Self::Application | Self::Early => 2,
        }
    }
}

/// What a client says of itself.
#[derive(Clone)]
pub(super) struct Offer {
    pub(super) tls: Arc<ClientConfig>,
    pub(super) name: ServerName<'static>,
    /// Encoded transport parameters, without the source connection id.
    pub(super) parameters: Vec<u8>,
    /// The source connection id is among them.
    pub(super) names_source: bool,
    /// There are transport parameters at all.
    pub(super) has_parameters: bool,
    /// Bytes of the destination connection id of the first packet.
    pub(super) id_len: usize,
    /// What is sent as a token, if no Retry has come.
    pub(super) token: Vec<u8>,
}

/// What has come of a connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// The code that it was closed with; `true`: one of the application.
    pub(super) closed: Option<(u64, bool)>,
    pub(super) is_confirmed: bool,
    pub(super) has_version_negotiation: bool,
    pub(super) has_retry: bool,
    /// Packets that were authentic.
    pub(super) packets_in: u64,
    /// A packet of the handshake has come.
    pub(super) has_answer: bool,
    pub(super) path_responses: u64,
    pub(super) retired: u64,
    pub(super) bytes_in: usize,
    pub(super) datagrams_in: usize,
}

#[derive(Default)]
struct Packets {
    keys: Option<Keys>,
    next: u64,
    /// Numbers of the packets that came, the last few.
    received: Vec<u64>,
    owes_ack: bool,
    /// Handshake bytes: what was sent, what has come from which offset on, and up to where it was read.
    sent: Vec<u8>,
    pieces: Vec<(u64, Vec<u8>)>,
    read: u64,
}

/// One connection.
pub(super) struct Link {
    socket: UdpSocket,
    tls: ClientConnection,
    spaces: [Packets; 3],
    early: Option<DirectionalKeys>,
    /// The connection id that packets go to, and this side's.
    pub(super) remote_id: Vec<u8>,
    pub(super) local_id: Vec<u8>,
    pub(super) token: Vec<u8>,
    /// Handshake packets are sent too; before, the server keeps its keys for Initial packets.
    goes_on: bool,
    /// Nothing is sent, whatever comes.
    is_mute: bool,
    /// A ClientHello has transport parameters; also one that answers a HelloRetryRequest.
    has_parameters: bool,
    last_sent: Instant,
    pub(super) seen: Seen,
}

impl Link {
    /// Prepares a connection from any port, and sends nothing yet.
    ///
    /// # Errors
    /// There is no such address to send to, or TLS refuses the offer.
    pub(super) fn new(server: SocketAddr, offer: &Offer) -> anyhow::Result<Self> {
        let local: SocketAddr = match server {
            SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
            SocketAddr::V6(_) => ([0; 8], 0).into(),
        };
        let socket = UdpSocket::bind(local)?;
        socket.connect(server)?;
        socket.set_read_timeout(Some(TICK))?;
        let local_id = random(ID_LEN);
        let remote_id = random(offer.id_len);
        let mut parameters = offer.parameters.clone();
        if offer.names_source {
            put(&mut parameters, 0x0f);
            put(&mut parameters, local_id.len() as u64);
            parameters.extend(&local_id);
        }
        let mut tls = ClientConnection::new(
            Arc::clone(&offer.tls),
            Version::V1,
            offer.name.clone(),
            parameters,
        )?;
        let mut hello = Vec::new();
        tls.write_hs(&mut hello);
        let early = tls.zero_rtt_keys();
        let mut link = Self {
            has_parameters: offer.has_parameters,
            socket,
            tls,
            spaces: Default::default(),
            early,
            remote_id,
            local_id,
            token: offer.token.clone(),
            goes_on: false,
            is_mute: false,
            last_sent: Instant::now(),
            seen: Seen::default(),
        };
        link.say(0, &hello);
        link.make_initial_keys();
        Ok(link)
    }

    fn make_initial_keys(&mut self) {
        let suite = TLS13_AES_128_GCM_SHA256.tls13();
        let quic = suite.and_then(|suite| suite.quic.map(|quic| (suite, quic)));
        self.spaces[0].keys = quic.map(|(suite, quic)| {
            let side = rustls::Side::Client;
            Keys::initial(Version::V1, suite, quic, &self.remote_id, side)
        });
    }

    /// Returns whether 0-RTT packets can be sent.
    pub(super) fn has_early_keys(&self) -> bool {
        self.early.is_some()
    }

    /// Returns whether keys for Handshake packets are there.
    pub(super) fn has_handshake_keys(&self) -> bool {
        self.spaces[1].keys.is_some()
    }

    /// Returns how many handshake bytes were sent in a space, behind which a further message begins.
    pub(super) fn crypto_offset(&self, space: Space) -> u64 {
        self.spaces[space.index()].sent.len() as u64
    }

    /// Returns the first datagram, padded to `len` bytes.
    pub(super) fn first_datagram(&mut self, len: usize) -> Vec<u8> {
        let frames = crypto(0, &self.spaces[0].sent.clone());
        self.packet(Space::Initial, &frames, false, len)
    }

    /// Sends the first flight, or all flights there are again.
    pub(super) fn send_flights(&mut self) {
        self.last_sent = Instant::now();
        for space in [Space::Initial, Space::Handshake] {
            let sent = self.spaces[space.index()].sent.clone();
            let may = space == Space::Initial || self.goes_on;
            if sent.is_empty() || !may {
                continue;
            }
            // The first flight of a client with a large key share takes two datagrams.
            for (index, part) in sent.chunks(1000).enumerate() {
                self.send(space, &crypto(index as u64 * 1000, part));
            }
        }
    }

    /// Sends frames in a packet of their own.
    pub(super) fn send(&mut self, space: Space, frames: &[u8]) {
        self.send_with(space, frames, false);
    }

    /// Sends frames in a packet whose reserved bits are set if `reserved`.
    pub(super) fn send_with(&mut self, space: Space, frames: &[u8], reserved: bool) {
        let len = if space == Space::Initial {
            INITIAL_LEN
        } else {
            0
        };
        let packet = self.packet(space, frames, reserved, len);
        self.send_datagram(&packet);
    }

    /// Sends a datagram. One that the kernel refuses is one that is lost.
    pub(super) fn send_datagram(&self, datagram: &[u8]) {
        if !self.is_mute {
            let _ = self.socket.send(datagram);
        }
    }

    /// Takes what comes for one tick, and answers it.
    pub(super) fn turn(&mut self) {
        self.receive();
        let is_shaking = !self.seen.is_confirmed && self.seen.closed.is_none();
        if is_shaking && self.last_sent.elapsed() > REPEAT {
            self.send_flights();
        }
    }

    /// Takes what comes for one tick, and sends nothing.
    pub(super) fn listen(&mut self) {
        self.is_mute = true;
        self.receive();
        self.is_mute = false;
    }

    /// Takes what has come already, and answers it. Returns whether anything has.
    pub(super) fn take_at_once(&mut self) -> bool {
        let before = self.seen.datagrams_in;
        let _ = self.socket.set_nonblocking(true);
        self.receive();
        let _ = self.socket.set_nonblocking(false);
        self.seen.datagrams_in > before
    }

    /// Takes one datagram that has come already, whatever it is. Returns its length.
    ///
    /// # Errors
    /// None has.
    pub(super) fn come_at_once(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.set_nonblocking(true)?;
        let came = self.socket.recv(buffer);
        self.socket.set_nonblocking(false)?;
        came
    }

    /// Takes one datagram and answers it.
    fn receive(&mut self) {
        let mut buffer = vec![0; 65_536];
        match self.socket.recv(&mut buffer) {
            Ok(len) => {
                self.seen.bytes_in += len;
                self.seen.datagrams_in += 1;
                self.take_datagram(&mut buffer[..len]);
                self.advance();
                self.acknowledge();
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // The server has ended, or has not begun.
            Err(_) => std::thread::sleep(TICK),
        }
    }

    /// Has what is for another connection be for this one.
    pub(super) fn take_place_of(&mut self, other: &Self) {
        self.local_id.clone_from(&other.local_id);
        self.remote_id.clone_from(&other.remote_id);
        self.token.clone_from(&other.token);
        self.make_initial_keys();
    }

    /// Takes what comes until `done`, for so long at most. Returns whether it is done.
    pub(super) fn run_until(&mut self, time: Duration, done: impl Fn(&Self) -> bool) -> bool {
        let deadline = Instant::now() + time;
        while !done(self) {
            if Instant::now() > deadline {
                return false;
            }
            self.turn();
        }
        true
    }

    /// Begins the handshake and stops when keys for Handshake packets are there.
    pub(super) fn shake_half(&mut self, time: Duration) -> bool {
        self.send_flights();
        self.run_until(time, |link| {
            link.has_handshake_keys() || link.seen.closed.is_some()
        }) && self.seen.closed.is_none()
    }

    /// Shakes hands to the end. Returns whether the server has confirmed it.
    pub(super) fn shake(&mut self, time: Duration) -> bool {
        if !self.shake_half(time) {
            return false;
        }
        self.goes_on = true;
        self.send_flights();
        self.run_until(time, |link| {
            link.seen.is_confirmed || link.seen.closed.is_some()
        }) && self.seen.closed.is_none()
    }

    /// Returns whether the server acknowledges what it is sent on this connection.
    pub(super) fn is_alive(&mut self, time: Duration) -> bool {
        while self.take_at_once() {}
        let before = self.seen.packets_in;
        let deadline = Instant::now() + time;
        while Instant::now() < deadline && self.seen.closed.is_none() {
            self.send(Space::Application, &integers([super::wire::frame::PING]));
            if self.run_until(REPEAT, |link| link.seen.packets_in > before) {
                return self.seen.closed.is_none();
            }
        }
        false
    }

    fn take_datagram(&mut self, datagram: &mut [u8]) {
        let mut rest = datagram;
        while !rest.is_empty() {
            let Some(len) = self.take_packet(rest) else {
                return;
            };
            rest = &mut std::mem::take(&mut rest)[len..];
        }
    }

    fn take_retry(&mut self, remote_id: Vec<u8>, token: Vec<u8>) {
        if self.seen.has_retry || self.seen.has_answer {
            return;
        }
        self.seen.has_retry = true;
        self.remote_id = remote_id;
        self.token = token;
        self.make_initial_keys();
        self.send_flights();
    }

    fn take_frames(&mut self, space: Space, payload: &[u8]) {
        let mut reader = Reader(payload);
        let mut answers = Vec::new();
        while let Some(frame) = read_frame(&mut reader) {
            let packets = &mut self.spaces[space.index()];
            packets.owes_ack |= !matches!(frame, Frame::Silent | Frame::Close(..));
            match frame {
                Frame::Crypto(offset, bytes) => packets.pieces.push((offset, bytes.to_vec())),
                Frame::HandshakeDone => self.seen.is_confirmed = true,
                Frame::PathResponse => self.seen.path_responses += 1,
                Frame::RetireConnectionId => self.seen.retired += 1,
                Frame::Close(code, of_application) => {
                    self.seen.closed.get_or_insert((code, of_application));
                }
                Frame::PathChallenge(data) => {
                    put(&mut answers, super::wire::frame::PATH_RESPONSE);
                    answers.extend(data);
                }
                Frame::Silent | Frame::Other => {}
            }
        }
        if !answers.is_empty() {
            self.send(Space::Application, &answers);
        }
    }

    /// Shows TLS what has come in order, and keeps what it says.
    fn advance(&mut self) {
        for space in [Space::Initial, Space::Handshake, Space::Application] {
            let packets = &mut self.spaces[space.index()];
            while let Some(at) = packets.pieces.iter().position(|(offset, bytes)| {
                *offset <= packets.read && offset + bytes.len() as u64 > packets.read
            }) {
                let (offset, bytes) = packets.pieces.swap_remove(at);
                let known = usize::try_from(packets.read - offset).unwrap_or(usize::MAX);
                packets.read = offset + bytes.len() as u64;
                if self.tls.read_hs(&bytes[known..]).is_err() {
                    return;
                }
            }
            let read = packets.read;
            packets
                .pieces
                .retain(|(offset, bytes)| offset + bytes.len() as u64 > read);
            self.write_tls();
        }
    }

    fn write_tls(&mut self) {
        loop {
            let mut message = Vec::new();
            let space = usize::from(self.spaces[1].keys.is_some());
            let change = self.tls.write_hs(&mut message);
            if !message.is_empty() {
                self.say(space, &message);
                if self.goes_on {
                    self.send_flights();
                }
            }
            match change {
                None => return,
                Some(KeyChange::Handshake { keys }) => self.spaces[1].keys = Some(keys),
                Some(KeyChange::OneRtt { keys, .. }) => self.spaces[2].keys = Some(keys),
            }
        }
    }

    /// Has a message of TLS be sent in a space behind those before it.
    fn say(&mut self, space: usize, message: &[u8]) {
        let sent = &mut self.spaces[space].sent;
        if space == 0 && !self.has_parameters {
            sent.extend(without_extension(message, PARAMETERS_EXTENSION));
        } else {
            sent.extend(message);
        }
    }

    /// Acknowledges what has come, as far as packets may be sent.
    fn acknowledge(&mut self) {
        for space in [Space::Initial, Space::Handshake, Space::Application] {
            let may = space == Space::Initial || self.goes_on;
            let packets = &mut self.spaces[space.index()];
            if !packets.owes_ack || !may {
                continue;
            }
            packets.owes_ack = false;
            let mut numbers = packets.received.clone();
            numbers.sort_unstable();
            numbers.dedup();
            let Some(&largest) = numbers.last() else {
                continue;
            };
            let mut smallest = largest;
            for &number in numbers.iter().rev().skip(1) {
                if number + 1 != smallest {
                    break;
                }
                smallest = number;
            }
            self.send(space, &integers([0x02, largest, 0, 0, largest - smallest]));
        }
    }
}

/// Returns so many random bytes.
pub(super) fn random(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    openssl::rand::rand_bytes(&mut bytes).expect("OpenSSL has randomness");
    bytes
}
