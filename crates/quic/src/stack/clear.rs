//! Connections that hide nothing and prove who has sent each packet, for a simulator: what they write follows from what they are given alone.
//!
//! The handshake has the flights of TLS 1.3 (RFC 9001 §4) without their secrets. Either side says its transport parameters, and every key is made of what
//! both have said, so that whoever has heard it can make the keys too. Headers and payloads are sent as they are. A packet ends with a tag that is keyed in
//! this way: one that was changed, or that belongs to another connection, another direction or another key phase, does not prove itself.

use std::any::Any;
use std::sync::Arc;

use aws_lc_rs::hmac;
use bytes::BytesMut;
use quinn_proto::crypto::{
    ClientConfig, CryptoError, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey,
    ServerConfig, Session, UnsupportedVersion,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectError, ConnectionId, Side, TransportError, TransportErrorCode};

/// Bytes of a tag, and those of a header that keys of RFC 9001 §5.4.2 would look at: packets are as long as with TLS.
const TAG_LEN: usize = 16;
const SAMPLE_LEN: usize = 16;
/// Types of handshake messages (RFC 8446 §4).
const CLIENT_HELLO: u8 = 1;
const SERVER_HELLO: u8 = 2;
const ENCRYPTED_EXTENSIONS: u8 = 8;
const CERTIFICATE: u8 = 11;
const FINISHED: u8 = 20;
/// Bytes that stand for a certificate: with them the server's flight takes two datagrams, as it often does.
const CERTIFICATE_LEN: usize = 1500;

/// Begins such connections, from either side.
pub(super) struct Clear;

impl ClientConfig for Clear {
    fn start_session(
        self: Arc<Self>,
        _version: u32,
        _server_name: &str,
        params: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        Ok(Box::new(ClearSession::new(Side::Client, params)))
    }
}

impl ServerConfig for Clear {
    fn initial_keys(
        &self,
        _version: u32,
        first: &ConnectionId,
    ) -> Result<Keys, UnsupportedVersion> {
        Ok(initial_keys(first, Side::Server))
    }

    fn retry_tag(&self, _version: u32, first: &ConnectionId, packet: &[u8]) -> [u8; TAG_LEN] {
        retry_tag(first, &[packet])
    }

    fn start_session(
        self: Arc<Self>,
        _version: u32,
        params: &TransportParameters,
    ) -> Box<dyn Session> {
        Box::new(ClearSession::new(Side::Server, params))
    }
}

/// How far one side is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    /// A client that has said nothing.
    Begun,
    Initial,
    Handshake,
    Data,
}

/// One side of a connection.
struct ClearSession {
    side: Side,
    /// The transport parameters of this side, and of the other one once it has said them.
    own: Vec<u8>,
    other: Option<Vec<u8>>,
    level: Level,
    has_heard_hello: bool,
    has_heard_end: bool,
    /// The key phase that comes next.
    phase: u64,
    /// What has come of a message.
    unread: Vec<u8>,
}

impl ClearSession {
    fn new(side: Side, params: &TransportParameters) -> Self {
        let mut own = Vec::new();
        params.write(&mut own);
        Self {
            side,
            own,
            other: None,
            level: match side {
                Side::Client => Level::Begun,
                Side::Server => Level::Initial,
            },
            has_heard_hello: false,
            has_heard_end: false,
            phase: 0,
            unread: Vec::new(),
        }
    }

    /// Returns what the client has said, and what the server has.
    fn said(&self) -> [&[u8]; 2] {
        let other = self.other.as_deref().unwrap_or_default();
        match self.side {
            Side::Client => [&self.own, other],
            Side::Server => [other, &self.own],
        }
    }

    fn take(&mut self, kind: u8, body: &[u8]) -> Result<(), TransportError> {
        match (self.side, kind) {
            (Side::Server, CLIENT_HELLO) => {
                self.has_heard_hello = true;
                self.other = Some(body.to_vec());
            }
            (Side::Client, SERVER_HELLO) => self.has_heard_hello = true,
            (Side::Client, ENCRYPTED_EXTENSIONS) => self.other = Some(body.to_vec()),
            (Side::Client, CERTIFICATE) => {}
            (_, FINISHED) => self.has_heard_end = true,
            _ => {
                return Err(TransportError {
                    code: TransportErrorCode::PROTOCOL_VIOLATION,
                    frame: None,
                    reason: format!("a handshake message of type {kind}"),
                });
            }
        }
        Ok(())
    }

    /// Returns the keys of handshake packets, which are made of the client's parameters.
    fn handshake_keys(&self) -> Keys {
        let [client, _] = self.said();
        keys(b"handshake", &[client], self.side)
    }

    /// Returns the keys of the next key phase.
    fn data_keys(&mut self) -> KeyPair<Box<dyn PacketKey>> {
        let phase = self.phase.to_be_bytes();
        self.phase += 1;
        let [client, server] = self.said();
        pair(b"data", &[client, server, &phase], self.side)
    }
}

impl Session for ClearSession {
    fn initial_keys(&self, first: &ConnectionId, side: Side) -> Keys {
        initial_keys(first, side)
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        None
    }

    fn early_data_accepted(&self) -> Option<bool> {
        None
    }

    fn is_handshaking(&self) -> bool {
        !self.has_heard_end
    }

    fn read_handshake(&mut self, bytes: &[u8]) -> Result<bool, TransportError> {
        let mut unread = std::mem::take(&mut self.unread);
        unread.extend_from_slice(bytes);
        let mut rest = &unread[..];
        while let Some((kind, body, behind)) = message(rest) {
            rest = behind;
            self.take(kind, body)?;
        }
        self.unread = rest.to_vec();
        Ok(false)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let other = self.other.as_deref();
        let read = other.map(|mut bytes| TransportParameters::read(self.side, &mut bytes));
        Ok(read.transpose()?)
    }

    fn write_handshake(&mut self, out: &mut Vec<u8>) -> Option<Keys> {
        let is_server = self.side.is_server();
        match self.level {
            Level::Begun => {
                self.level = Level::Initial;
                put(out, CLIENT_HELLO, &self.own);
                None
            }
            Level::Initial if self.has_heard_hello => {
                self.level = Level::Handshake;
                if is_server {
                    put(out, SERVER_HELLO, &[]);
                }
                Some(self.handshake_keys())
            }
            Level::Handshake if is_server || self.has_heard_end => {
                self.level = Level::Data;
                if is_server {
                    put(out, ENCRYPTED_EXTENSIONS, &self.own);
                    put(out, CERTIFICATE, &[0; CERTIFICATE_LEN]);
                }
                put(out, FINISHED, &[]);
                Some(Keys {
                    header: bare_headers(),
                    packet: self.data_keys(),
                })
            }
            Level::Initial | Level::Handshake | Level::Data => None,
        }
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        (self.level == Level::Data).then(|| self.data_keys())
    }

    fn is_valid_retry(&self, first: &ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        let split = payload.split_last_chunk::<TAG_LEN>();
        split.is_some_and(|(token, tag)| *tag == retry_tag(first, &[header, token]))
    }

    fn export_keying_material(
        &self,
        _output: &mut [u8],
        _label: &[u8],
        _context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        Err(ExportKeyingMaterialError)
    }
}

/// Writes a handshake message.
fn put(out: &mut Vec<u8>, kind: u8, body: &[u8]) {
    out.push(kind);
    out.extend(u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes());
    out.extend_from_slice(body);
}

/// Returns the type and the body of the first handshake message, and what is behind it; `None` if it is not whole.
fn message(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (kind, rest) = bytes.split_first()?;
    let (len, rest) = rest.split_first_chunk::<4>()?;
    let len = usize::try_from(u32::from_be_bytes(*len)).ok()?;
    let (body, rest) = rest.split_at_checked(len)?;
    Some((*kind, body, rest))
}

/// Returns the keys of Initial packets, which are made of the connection id that the client has chosen (RFC 9001 §5.2).
fn initial_keys(first: &ConnectionId, side: Side) -> Keys {
    keys(b"initial", &[first], side)
}

/// Returns the tag of a Retry packet, which is about the id that it answers (RFC 9001 §5.8).
fn retry_tag(first: &ConnectionId, packet: &[&[u8]]) -> [u8; TAG_LEN] {
    let parts = [&[&first[..]], packet].concat();
    tag(&hmac::Key::new(hmac::HMAC_SHA256, b"retry"), &parts)
}

/// Returns the keys that `side` has where `said` has been said.
fn keys(label: &[u8], said: &[&[u8]], side: Side) -> Keys {
    Keys {
        header: bare_headers(),
        packet: pair(label, said, side),
    }
}

fn bare_headers() -> KeyPair<Box<dyn HeaderKey>> {
    KeyPair {
        local: Box::new(Bare),
        remote: Box::new(Bare),
    }
}

fn pair(label: &[u8], said: &[&[u8]], side: Side) -> KeyPair<Box<dyn PacketKey>> {
    let of = |sender: Side| -> Box<dyn PacketKey> { Box::new(Seal::new(label, said, sender)) };
    KeyPair {
        local: of(side),
        remote: of(!side),
    }
}

/// Leaves headers as they are.
struct Bare;

impl HeaderKey for Bare {
    fn decrypt(&self, _: usize, _: &mut [u8]) {}

    fn encrypt(&self, _: usize, _: &mut [u8]) {}

    fn sample_size(&self) -> usize {
        SAMPLE_LEN
    }
}

/// What the packets of one sender end with.
struct Seal(hmac::Key);

impl Seal {
    fn new(label: &[u8], said: &[&[u8]], sender: Side) -> Self {
        let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, label));
        for part in said {
            context.update(&part.len().to_be_bytes());
            context.update(part);
        }
        context.update(&[u8::from(sender.is_client())]);
        Self(hmac::Key::new(hmac::HMAC_SHA256, context.sign().as_ref()))
    }
}

impl PacketKey for Seal {
    fn encrypt(&self, packet: u64, bytes: &mut [u8], _header_len: usize) {
        if let Some((said, end)) = bytes.split_last_chunk_mut::<TAG_LEN>() {
            *end = tag(&self.0, &[&packet.to_be_bytes(), said]);
        }
    }

    fn decrypt(
        &self,
        packet: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        let (said, end) = payload.split_last_chunk::<TAG_LEN>().ok_or(CryptoError)?;
        if *end != tag(&self.0, &[&packet.to_be_bytes(), header, said]) {
            return Err(CryptoError);
        }
        let len = said.len();
        payload.truncate(len);
        Ok(())
    }

    fn tag_len(&self) -> usize {
        TAG_LEN
    }

    fn confidentiality_limit(&self) -> u64 {
        u64::MAX
    }

    fn integrity_limit(&self) -> u64 {
        u64::MAX
    }
}

fn tag(key: &hmac::Key, parts: &[&[u8]]) -> [u8; TAG_LEN] {
    let mut context = hmac::Context::with_key(key);
    for part in parts {
        context.update(part);
    }
    let signed = context.sign();
    let mut tag = [0; TAG_LEN];
    tag.copy_from_slice(&signed.as_ref()[..TAG_LEN]);
    tag
}
