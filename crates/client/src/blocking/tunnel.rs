//! A client of UDP proxying in HTTP by HTTP/1.1 Upgrade (RFC 9298 §3.2), that waits for each response.

use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use turnbuckle_masque::Target;
use turnbuckle_masque::bind::{self, ContextCapsule};
use turnbuckle_wire::{CapsuleHeader, UDP_CONTEXT, Varint};

use super::received::is_transient;
use super::stream::Carrier;
use crate::credentials::Credentials;

/// How long an answer may take; the server resolves a name for five seconds at most.
pub(super) const ANSWER_WAIT: Duration = Duration::from_secs(8);
/// The longest head of an answer that is read.
const HEAD_LEN_MAX: usize = 16 * 1024;

/// A connection that asks for a tunnel, and carries datagrams in capsules once it has one.
pub struct Tunnel {
    carrier: Box<dyn Carrier>,
    /// What came and was not returned yet.
    unread: Vec<u8>,
}

/// What a request for a tunnel is answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelAnswer {
    /// The status code.
    pub status: u16,
    /// Whether there is a tunnel: with 101 alone (RFC 9298 §3.3).
    pub is_open: bool,
    /// The fields, one a line.
    pub fields: String,
}

impl Tunnel {
    /// Returns a client on a connection that stands.
    pub fn new(carrier: impl Carrier + 'static) -> Self {
        Self {
            carrier: Box::new(carrier),
            unread: Vec::new(),
        }
    }

    /// Asks for a tunnel to `host`, as it stands in the path, as a user, and sends `early` for the target with the request.
    ///
    /// # Errors
    /// The connection has failed, or no answer has come.
    pub fn ask(
        &mut self,
        authority: &str,
        target: (&str, u16),
        user: &Credentials,
        early: &[u8],
    ) -> io::Result<TunnelAnswer> {
        let mut bytes = request(authority, target, user, "");
        if !early.is_empty() {
            bytes.extend(datagram_capsule(early));
        }
        self.send_raw(&bytes)?;
        self.answer()
    }

    /// Asks for a bound tunnel as a user (draft-ietf-masque-connect-udp-listen).
    ///
    /// # Errors
    /// The connection has failed, or no answer has come.
    pub fn ask_bound(&mut self, authority: &str, user: &Credentials) -> io::Result<TunnelAnswer> {
        let field = format!("{}: ?1\r\n", bind::CONNECT_UDP_BIND);
        self.send_raw(&request(authority, ("%2A", "%2A"), user, &field))?;
        self.answer()
    }

    /// Registers a context in a bound tunnel, which is uncompressed without a `peer`. Returns whether the server takes it.
    ///
    /// # Errors
    /// The connection has failed, or no answer has come.
    pub fn register(&mut self, context: u64, peer: Option<SocketAddr>) -> io::Result<bool> {
        self.send_raw(&bind::assign(context, peer))?;
        let deadline = Instant::now() + ANSWER_WAIT;
        while let Some((kind, value)) = self.capsule_by(deadline)? {
            if let Some(is_granted) = is_granted(kind, &value, context) {
                return Ok(is_granted);
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// Sends a datagram to `peer` in an uncompressed context of a bound tunnel.
    ///
    /// # Errors
    /// The connection has failed.
    pub fn send_to(&mut self, context: u64, peer: SocketAddr, payload: &[u8]) -> io::Result<()> {
        let head = bind::addressed(context, peer).in_capsule(payload.len());
        let head = head.ok_or(io::ErrorKind::InvalidInput)?;
        self.send_raw(&[&head, payload].concat())
    }

    /// Reads the answer to a request.
    ///
    /// # Errors
    /// The connection has failed, or no answer has come.
    pub fn answer(&mut self) -> io::Result<TunnelAnswer> {
        let deadline = Instant::now() + ANSWER_WAIT;
        loop {
            let end = self
                .unread
                .windows(4)
                .position(|bytes| bytes == b"\r\n\r\n");
            if let Some(end) = end {
                let rest = self.unread.split_off(end + 4);
                let head = std::mem::replace(&mut self.unread, rest);
                return answer_of(&head).ok_or_else(|| io::ErrorKind::InvalidData.into());
            }
            if self.unread.len() > HEAD_LEN_MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
            if !self.read_more(deadline)? {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }

    /// Sends a datagram to the tunnel's target.
    ///
    /// # Errors
    /// The connection has failed.
    pub fn send(&mut self, payload: &[u8]) -> io::Result<()> {
        self.send_raw(&datagram_capsule(payload))
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// The connection has failed.
    pub fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.carrier.write_out(bytes)
    }

    /// Waits for a datagram of the tunnel's target; `None` if none comes in `wait`. Other capsules are passed over.
    ///
    /// # Errors
    /// The connection has failed or is closed.
    pub fn receive(&mut self, wait: Duration) -> io::Result<Option<Vec<u8>>> {
        let deadline = Instant::now() + wait;
        while let Some((kind, value)) = self.capsule_by(deadline)? {
            let context = Varint::read(&value);
            if let (CapsuleHeader::DATAGRAM, Some((UDP_CONTEXT, len))) = (kind, context) {
                return Ok(value.get(len..).map(<[u8]>::to_vec));
            }
        }
        Ok(None)
    }

    /// Waits for a capsule, and returns its type and its value; `None` if none comes in `wait`.
    ///
    /// # Errors
    /// The connection has failed or is closed.
    pub fn receive_capsule(&mut self, wait: Duration) -> io::Result<Option<(u64, Vec<u8>)>> {
        self.capsule_by(Instant::now() + wait)
    }

    fn capsule_by(&mut self, deadline: Instant) -> io::Result<Option<(u64, Vec<u8>)>> {
        loop {
            if let Some(capsule) = take_capsule(&mut self.unread) {
                return Ok(Some(capsule));
            }
            if !self.read_more(deadline)? {
                return Ok(None);
            }
        }
    }

    /// Returns whether the server closes the connection in `wait`. What comes before that does not matter.
    pub fn is_closed(&mut self, wait: Duration) -> bool {
        let deadline = Instant::now() + wait;
        loop {
            self.unread.clear();
            match self.read_more(deadline) {
                Ok(true) => {}
                Ok(false) => return false,
                Err(_) => return true,
            }
        }
    }

    /// Returns whether anything came in time.
    fn read_more(&mut self, deadline: Instant) -> io::Result<bool> {
        let mut buffer = [0; 65536];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            match self.carrier.read_within(&mut buffer, left) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => {
                    let came = buffer.get(..len).unwrap_or_default();
                    self.unread.extend_from_slice(came);
                    return Ok(true);
                }
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Takes the first whole capsule of what has come: its type and its value.
pub(super) fn take_capsule(unread: &mut Vec<u8>) -> Option<(u64, Vec<u8>)> {
    let header = CapsuleHeader::parse(unread)?;
    let end = header
        .len
        .checked_add(usize::try_from(header.value_len).ok()?)?;
    let value = unread.get(header.len..end)?.to_vec();
    unread.drain(..end);
    Some((header.kind, value))
}

/// Returns what a capsule says to the registration of a context, if it does.
pub(super) fn is_granted(kind: u64, value: &[u8], context: u64) -> Option<bool> {
    let is_ours = Varint::read(value).is_some_and(|(it, _)| it == context);
    match ContextCapsule::of_kind(kind).filter(|_| is_ours)? {
        ContextCapsule::Ack => Some(true),
        ContextCapsule::Close => Some(false),
        ContextCapsule::Assign => None,
    }
}

/// Returns a request for a tunnel to `host`, as it stands in the path, by a user, with another field.
fn request<P: Display>(
    authority: &str,
    (host, port): (&str, P),
    user: &Credentials,
    field: &str,
) -> Vec<u8> {
    let (path, user) = (Target::path(host, port), user.basic());
    format!(
        "GET {path} HTTP/1.1\r\nHost: {authority}\r\nConnection: Upgrade\r\nUpgrade: connect-udp\r\n\
         Capsule-Protocol: ?1\r\n{field}Proxy-Authorization: {user}\r\n\r\n"
    )
    .into_bytes()
}

/// Returns a payload for the target in a DATAGRAM capsule (RFC 9297 §3.5, RFC 9298 §5).
fn datagram_capsule(payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(payload.len() + 6);
    let context = Varint::new(UDP_CONTEXT).map_or(0, |context| context.as_bytes().len());
    let value_len = (payload.len() + context) as u64;
    for number in [CapsuleHeader::DATAGRAM, value_len, UDP_CONTEXT] {
        bytes.extend(Varint::new(number).iter().flat_map(|it| it.as_bytes()));
    }
    bytes.extend_from_slice(payload);
    bytes
}

fn answer_of(head: &[u8]) -> Option<TunnelAnswer> {
    let head = core::str::from_utf8(head).ok()?;
    let (line, fields) = head.split_once("\r\n")?;
    let status = line.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    Some(TunnelAnswer {
        status,
        is_open: status == 101,
        fields: fields.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_stands_behind_the_type_the_length_and_the_context() {
        assert_eq!(datagram_capsule(b"ab"), [0, 3, 0, b'a', b'b']);
        let long = datagram_capsule(&[7; 100]);
        assert_eq!((&long[..4], long.len()), (&[0, 0x40, 101, 0][..], 104));
    }

    #[test]
    fn an_answer_has_its_status_and_its_fields() {
        let answer = answer_of(b"HTTP/1.1 407 Who\r\nA: b\r\n\r\n").unwrap();
        assert_eq!((answer.status, &*answer.fields), (407, "A: b\r\n\r\n"));
        assert!(!answer.is_open);
        // Who does not change protocols has opened no tunnel, however content it is.
        assert!(!answer_of(b"HTTP/1.1 200 OK\r\n\r\n").unwrap().is_open);
        assert!(answer_of(b"HTTP/1.1 101 Go\r\n\r\n").unwrap().is_open);
        assert_eq!(answer_of(b"HTTP/2 200\r\n\r\n"), None);
    }
}
