//! What comes through tunnels: HTTP datagrams, in DATAGRAM frames or in capsules.

use std::net::SocketAddr;

use bytes::Bytes;
use turnbuckle_wire::{UDP_CONTEXT, UDP_PAYLOAD_MAX, Varint};

use super::code::{Code, Wrong};
use crate::capsules::{Capsules, Passed, Piece};

/// How many datagrams and capsules were dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// For a stream that has no open tunnel, or more than is kept until it is open (RFC 9297 §2.1, RFC 9298 §5).
    pub no_tunnel: u64,
    /// With a context that nobody has registered (RFC 9298 §4).
    pub context_unknown: u64,
    /// Capsules of a type that is not known (RFC 9297 §3.2).
    pub capsule_unknown: u64,
    /// What cannot be a datagram, and ends its tunnel or the connection (RFC 9297 §2.1, §3.3, RFC 9298 §5).
    pub malformed: u64,
}

/// What has come through tunnels.
#[derive(Debug)]
pub(super) struct Brought<T> {
    pub(super) payloads: Vec<(T, Bytes)>,
    pub(super) dropped: Dropped,
}

/// An open tunnel.
#[derive(Debug)]
pub(super) struct Open<T> {
    pub(super) tunnel: T,
    pub(super) capsules: Capsules,
    /// The beginning of a capsule.
    pub(super) kept: Vec<u8>,
    /// The answer, if it waits for the client's settings.
    pub(super) answer: Option<SocketAddr>,
}

impl<T: Copy> Brought<T> {
    /// Takes an HTTP datagram for a tunnel: a context and a payload (RFC 9298 §5).
    pub(super) fn datagram(&mut self, tunnel: T, datagram: &Bytes) -> Result<(), Wrong> {
        match Varint::read(datagram) {
            Some((UDP_CONTEXT, len)) if datagram.len() - len <= UDP_PAYLOAD_MAX => {
                self.payloads.push((tunnel, datagram.slice(len..)));
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

    /// Takes what a tunnel's stream goes on with: capsules.
    pub(super) fn data(&mut self, open: &mut Open<T>, part: &[u8]) -> Result<(), Wrong> {
        let mut kept = std::mem::take(&mut open.kept);
        if kept.is_empty() {
            let end = self.capsules(open, part)?;
            open.kept = part[end..].to_vec();
        } else {
            kept.extend_from_slice(part);
            let end = self.capsules(open, &kept)?;
            kept.drain(..end);
            open.kept = kept;
        }
        Ok(())
    }

    /// Takes the capsules that `bytes` begin with. Returns where the last one ends.
    fn capsules(&mut self, open: &mut Open<T>, bytes: &[u8]) -> Result<usize, Wrong> {
        let mut start = 0;
        loop {
            let rest = &bytes[start..];
            match open.capsules.next(rest, usize::MAX) {
                Err(_) => {
                    self.dropped.malformed += 1;
                    return Err(Wrong::Stream(Code::MESSAGE_ERROR));
                }
                Ok(Piece::Incomplete { .. }) => return Ok(start),
                Ok(Piece::Passed { len, why }) => {
                    start += len;
                    match why {
                        Some(Passed::UnknownCapsule) => self.dropped.capsule_unknown += 1,
                        Some(Passed::UnknownContext) => self.dropped.context_unknown += 1,
                        None => {}
                    }
                }
                Ok(Piece::Datagrams(run)) => {
                    for index in 0..run.count {
                        let is_last = index + 1 == run.count;
                        let from = run.start + index * run.stride;
                        let len = if is_last { run.last_len } else { run.len };
                        let payload = Bytes::copy_from_slice(&rest[from..from + len]);
                        self.payloads.push((open.tunnel, payload));
                    }
                    start += run.end;
                }
            }
        }
    }
}
