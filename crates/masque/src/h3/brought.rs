//! What comes through tunnels: HTTP datagrams, in DATAGRAM frames or in capsules.

use std::net::SocketAddr;

use bytes::Bytes;
use turnbuckle_wire::{UDP_CONTEXT, UDP_PAYLOAD_MAX, Varint};

use super::code::{Code, Wrong};
use super::frames::{frame, kind};
use super::streams::Streams;
use crate::bind::{Answer, Contexts, Unread};
use crate::capsules::{BoundPiece, Capsules, Passed, Piece};
use crate::granted::Granted;

/// Bytes of capsules that may wait in a stream that the client does not read.
pub(super) const CAPSULES_WAITING_MAX: usize = 64 * 1024;

/// How many datagrams and capsules were dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// For a stream that has no open tunnel, or more than is kept until it is open (RFC 9297 §2.1, RFC 9298 §5).
    pub no_tunnel: u64,
    /// With a context that nobody has registered (RFC 9298 §4).
    pub context_unknown: u64,
    /// Capsules of a type that is not known (RFC 9297 §3.2).
    pub capsule_unknown: u64,
    /// Without an address in a context that wants one, or with one that nothing can be sent to (draft-ietf-masque-connect-udp-listen §4).
    pub no_address: u64,
    /// What cannot be a datagram, and ends its tunnel or the connection (RFC 9297 §2.1, §3.3, RFC 9298 §5).
    pub malformed: u64,
}

/// A UDP payload that has come through a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload<T> {
    /// The tunnel.
    pub tunnel: T,
    /// Where it goes, if the tunnel is bound; otherwise that is known.
    pub to: Option<SocketAddr>,
    /// The payload.
    pub bytes: Bytes,
}

/// What has come through tunnels.
#[derive(Debug)]
pub(super) struct Brought<T> {
    pub(super) payloads: Vec<Payload<T>>,
    pub(super) dropped: Dropped,
    /// Contexts whose addresses the host is to judge: stream, context and address.
    pub(super) unjudged: Vec<(u64, u64, SocketAddr)>,
}

/// An open tunnel.
#[derive(Debug)]
pub(super) struct Open<T> {
    pub(super) tunnel: T,
    pub(super) capsules: Capsules,
    /// The beginning of a capsule.
    pub(super) kept: Vec<u8>,
    /// The answer, if it waits for the client's settings.
    pub(super) answer: Option<Granted>,
    /// What the client has registered, if the tunnel is bound.
    pub(super) contexts: Option<Box<Contexts>>,
    /// Capsules that are to be sent.
    pub(super) unsent: Vec<u8>,
}

impl<T> Open<T> {
    pub(super) fn new(tunnel: T, granted: Granted) -> Self {
        Self {
            tunnel,
            capsules: Capsules::default(),
            kept: Vec::new(),
            contexts: granted.is_bound().then(Box::default),
            answer: Some(granted),
            unsent: Vec::new(),
        }
    }

    /// Sends the capsules that are to be sent, behind the answer.
    pub(super) fn flush(&mut self, streams: &mut impl Streams, stream: u64) -> Result<(), Wrong> {
        if self.unsent.is_empty() {
            return Ok(());
        }
        // guard: V-87-answers
        if streams.waiting_len(stream) + self.unsent.len() > CAPSULES_WAITING_MAX {
            return Err(Wrong::Stream(Code::EXCESSIVE_LOAD));
        }
        if self.answer.is_none() {
            streams.write(stream, frame(kind::DATA, &self.unsent));
            self.unsent.clear();
        }
        Ok(())
    }
}

impl<T: Copy> Brought<T> {
    /// Takes an HTTP datagram for a tunnel: a context and a payload (RFC 9298 §5).
    pub(super) fn datagram(&mut self, open: &Open<T>, datagram: &Bytes) -> Result<(), Wrong> {
        if let Some(contexts) = &open.contexts {
            return self.bound(open.tunnel, contexts, datagram, Code::DATAGRAM_ERROR);
        }
        match Varint::read(datagram) {
            Some((UDP_CONTEXT, len)) if datagram.len() - len <= UDP_PAYLOAD_MAX => {
                self.payload(open.tunnel, None, datagram.slice(len..));
                Ok(())
            }
            Some((UDP_CONTEXT, _)) | None => {
                self.dropped.malformed += 1;
                Err(Wrong::Stream(Code::DATAGRAM_ERROR))
            }
            Some(_) => {
                self.dropped.context_unknown += 1;
                Ok(())
            }
        }
    }

    /// Takes an HTTP datagram for a bound tunnel. One that is malformed ends the stream with `code`.
    fn bound(
        &mut self,
        tunnel: T,
        contexts: &Contexts,
        datagram: &Bytes,
        code: Code,
    ) -> Result<(), Wrong> {
        match contexts.read(datagram) {
            Ok((to, start)) => self.payload(tunnel, Some(to), datagram.slice(start..)),
            Err(Unread::UnknownContext) => self.dropped.context_unknown += 1,
            Err(Unread::Address) => self.dropped.no_address += 1,
            Err(Unread::Malformed(_)) => {
                self.dropped.malformed += 1;
                return Err(Wrong::Stream(code));
            }
        }
        Ok(())
    }

    fn payload(&mut self, tunnel: T, to: Option<SocketAddr>, bytes: Bytes) {
        self.payloads.push(Payload { tunnel, to, bytes });
    }

    /// Takes what the stream of a tunnel goes on with: capsules.
    pub(super) fn data(
        &mut self,
        stream: u64,
        open: &mut Open<T>,
        part: &[u8],
    ) -> Result<(), Wrong> {
        let mut kept = std::mem::take(&mut open.kept);
        if kept.is_empty() {
            let end = self.capsules(stream, open, part)?;
            open.kept = part[end..].to_vec();
        } else {
            kept.extend_from_slice(part);
            let end = self.capsules(stream, open, &kept)?;
            kept.drain(..end);
            open.kept = kept;
        }
        Ok(())
    }

    /// Takes the capsules that `bytes` begin with. Returns where the last one ends.
    fn capsules(&mut self, stream: u64, open: &mut Open<T>, bytes: &[u8]) -> Result<usize, Wrong> {
        if open.contexts.is_some() {
            return self.bound_capsules(stream, open, bytes);
        }
        let mut start = 0;
        loop {
            let rest = &bytes[start..];
            match open.capsules.next(rest, usize::MAX) {
                Err(_) => return Err(self.malformed()),
                Ok(Piece::Incomplete { .. }) => return Ok(start),
                Ok(Piece::Passed { len, why }) => {
                    start += len;
                    self.passed(why);
                }
                Ok(Piece::Datagrams(run)) => {
                    for index in 0..run.count {
                        let is_last = index + 1 == run.count;
                        let from = run.start + index * run.stride;
                        let len = if is_last { run.last_len } else { run.len };
                        let payload = Bytes::copy_from_slice(&rest[from..from + len]);
                        self.payload(open.tunnel, None, payload);
                    }
                    start += run.end;
                }
            }
        }
    }

    fn bound_capsules(
        &mut self,
        stream: u64,
        open: &mut Open<T>,
        bytes: &[u8],
    ) -> Result<usize, Wrong> {
        let Some(contexts) = &mut open.contexts else {
            return Ok(0);
        };
        let mut start = 0;
        loop {
            let rest = &bytes[start..];
            match open.capsules.next_bound(rest) {
                Err(_) => return Err(self.malformed()),
                Ok(BoundPiece::Incomplete { .. }) => return Ok(start),
                Ok(BoundPiece::Passed { len, why }) => {
                    start += len;
                    self.passed(why);
                }
                Ok(BoundPiece::Datagram(datagram)) => {
                    start += datagram.end;
                    let datagram = Bytes::copy_from_slice(&rest[datagram]);
                    self.bound(open.tunnel, contexts, &datagram, Code::MESSAGE_ERROR)?;
                }
                Ok(BoundPiece::Context(kind, value)) => {
                    start += value.end;
                    match contexts.received(kind, &rest[value]) {
                        Err(_) => return Err(self.malformed()),
                        Ok(Answer::None) => {}
                        Ok(Answer::Capsule(capsule)) => open.unsent.extend(capsule),
                        Ok(Answer::Judge { context, peer }) => {
                            self.unjudged.push((stream, context, peer));
                        }
                    }
                }
            }
        }
    }

    fn passed(&mut self, why: Option<Passed>) {
        match why {
            Some(Passed::UnknownCapsule) => self.dropped.capsule_unknown += 1,
            Some(Passed::UnknownContext) => self.dropped.context_unknown += 1,
            None => {}
        }
    }

    fn malformed(&mut self) -> Wrong {
        self.dropped.malformed += 1;
        Wrong::Stream(Code::MESSAGE_ERROR)
    }
}
