//! The contexts that one client has registered (§3 to §5 of the draft).

use std::collections::BTreeMap;
use std::net::SocketAddr;

use turnbuckle_wire::{CapsuleHeader, UDP_PAYLOAD_MAX, Varint};

use super::address;
use super::numbers::{ContextCapsule, NO_VERSION};
use crate::capsules::Malformed;

/// How many contexts a client may have registered in one tunnel.
pub const CONTEXTS_MAX: usize = 1024;

/// What one client has registered in one tunnel.
///
/// Invariant: an address has at most one context, and at most one context is uncompressed.
#[derive(Clone, Debug, Default)]
pub struct Contexts {
    /// The addresses of contexts; none for the one that is uncompressed.
    by_id: BTreeMap<u64, Option<SocketAddr>>,
    by_peer: BTreeMap<SocketAddr, u64>,
    uncompressed: Option<u64>,
}

/// What follows from a capsule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing is to be said.
    None,
    /// This capsule is to be sent.
    Capsule(Vec<u8>),
    /// The host is to judge an address, and to say so by [`Contexts::judged`].
    Judge {
        /// The context.
        context: u64,
        /// The address.
        peer: SocketAddr,
    },
}

/// Why a datagram goes nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// It has no address although its context wants one, or one that nothing can be sent to.
    Address,
    /// It ends its stream.
    Malformed(Malformed),
    /// Its context is not registered.
    UnknownContext,
}

/// What stands before a payload in a datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head(Vec<u8>);

impl Head {
    /// Returns the bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns what stands before a payload of this length in a DATAGRAM capsule (RFC 9297 §3.5).
    #[must_use]
    pub fn in_capsule(&self, payload_len: usize) -> Option<Vec<u8>> {
        let kind = Varint::new(CapsuleHeader::DATAGRAM)?;
        let len = Varint::new(u64::try_from(self.0.len() + payload_len).ok()?)?;
        Some([kind.as_bytes(), len.as_bytes(), &self.0].concat())
    }
}

impl Contexts {
    /// Handles a capsule with this value.
    ///
    /// # Errors
    ///
    /// The capsule is malformed, and with it the stream.
    pub fn received(&mut self, kind: ContextCapsule, value: &[u8]) -> Result<Answer, Malformed> {
        let (context, len) = Varint::read(value).ok_or(Malformed::Registration)?;
        let rest = value.get(len..).unwrap_or_default();
        // Clients allocate even numbers, and 0 is the context of tunnels that are not bound (RFC 9298 §4). The relay allocates none, so that there
        // is nothing to acknowledge.
        // guard: V-91-contexts
        if context == 0 || !context.is_multiple_of(2) || kind == ContextCapsule::Ack {
            return Err(Malformed::Registration);
        }
        match kind {
            ContextCapsule::Assign => self.assign(context, rest),
            ContextCapsule::Ack | ContextCapsule::Close => {
                // mutant: shards-keep-closed-contexts
                self.remove(context);
                match rest.is_empty() {
                    true => Ok(Answer::None),
                    false => Err(Malformed::Registration),
                }
            }
        }
    }

    fn assign(&mut self, context: u64, value: &[u8]) -> Result<Answer, Malformed> {
        let peer = match value {
            [NO_VERSION] => None,
            _ => match address::read(value) {
                Some((peer, len)) if len == value.len() => Some(peer),
                _ => return Err(Malformed::Registration),
            },
        };
        let is_taken = match peer {
            None => self.uncompressed.is_some(),
            Some(peer) => self.by_peer.contains_key(&peer),
        };
        if is_taken || self.by_id.contains_key(&context) {
            return Err(Malformed::Registration);
        }
        // guard: V-87-contexts
        if self.by_id.len() >= CONTEXTS_MAX {
            return Ok(Answer::Capsule(capsule(ContextCapsule::Close, context)));
        }
        self.by_id.insert(context, peer);
        Ok(match peer {
            None => {
                self.uncompressed = Some(context);
                Answer::Capsule(capsule(ContextCapsule::Ack, context))
            }
            Some(peer) => {
                self.by_peer.insert(peer, context);
                Answer::Judge { context, peer }
            }
        })
    }

    /// Takes the host's verdict on the address of a context. Returns the capsule to be sent; none for a context that there is no more.
    pub fn judged(&mut self, context: u64, is_allowed: bool) -> Option<Vec<u8>> {
        if !self.by_id.contains_key(&context) {
            return None;
        }
        let answer = match is_allowed {
            true => ContextCapsule::Ack,
            false => {
                self.remove(context);
                ContextCapsule::Close
            }
        };
        Some(capsule(answer, context))
    }

    fn remove(&mut self, context: u64) {
        match self.by_id.remove(&context) {
            Some(Some(peer)) => {
                self.by_peer.remove(&peer);
            }
            Some(None) => self.uncompressed = None,
            None => {}
        }
    }

    /// Returns where an HTTP datagram of the client goes, and where in it the payload begins.
    ///
    /// # Errors
    ///
    /// Why it goes nowhere.
    pub fn read(&self, datagram: &[u8]) -> Result<(SocketAddr, usize), Unread> {
        let (context, len) =
            Varint::read(datagram).ok_or(Unread::Malformed(Malformed::NoContext))?;
        let peer = self.by_id.get(&context).ok_or(Unread::UnknownContext)?;
        let (to, start) = match peer {
            Some(peer) => (*peer, len),
            None => {
                let rest = datagram.get(len..).unwrap_or_default();
                let (named, address_len) = address::read(rest).ok_or(Unread::Address)?;
                (named, len + address_len)
            }
        };
        if datagram.len() - start > UDP_PAYLOAD_MAX {
            return Err(Unread::Malformed(Malformed::TooLong));
        }
        match to.port() {
            0 => Err(Unread::Address),
            _ => Ok((to, start)),
        }
    }

    /// Returns what stands before a payload that has come from `source`; `None` if the client has no context for it, and so does not want it.
    #[must_use]
    pub fn head(&self, source: SocketAddr) -> Option<Head> {
        let compressed = self.by_peer.get(&source).copied();
        // guard: V-91-uninvited
        let context = compressed.or(self.uncompressed)?;
        let mut bytes = Vec::with_capacity(Varint::LEN_MAX + address::LEN_MAX);
        bytes.extend_from_slice(Varint::new(context)?.as_bytes());
        if compressed.is_none() {
            address::put(&mut bytes, source);
        }
        Some(Head(bytes))
    }

    /// Returns whether the client wants what comes from `source`.
    #[must_use]
    pub fn wants(&self, source: SocketAddr) -> bool {
        self.uncompressed.is_some() || self.by_peer.contains_key(&source)
    }
}

/// Returns the capsule by which a client registers a context, which is uncompressed without a `peer` (§3.1 of the draft).
#[must_use]
pub fn assign(context: u64, peer: Option<SocketAddr>) -> Vec<u8> {
    let mut value = Vec::with_capacity(Varint::LEN_MAX + address::LEN_MAX);
    value.extend(Varint::new(context).iter().flat_map(Varint::as_bytes));
    match peer {
        Some(peer) => address::put(&mut value, peer),
        None => value.push(NO_VERSION),
    }
    let numbers = [ContextCapsule::Assign.kind(), value.len() as u64];
    let numbers = numbers.into_iter().filter_map(Varint::new);
    let mut bytes: Vec<u8> = numbers.flat_map(|it| it.as_bytes().to_vec()).collect();
    bytes.append(&mut value);
    bytes
}

/// Returns what stands before a payload for `peer` in an uncompressed context (§4 of the draft).
#[must_use]
pub fn addressed(context: u64, peer: SocketAddr) -> Head {
    let mut bytes = Vec::with_capacity(Varint::LEN_MAX + address::LEN_MAX);
    bytes.extend(Varint::new(context).iter().flat_map(Varint::as_bytes));
    address::put(&mut bytes, peer);
    Head(bytes)
}

/// Returns a capsule that has a context and nothing else.
fn capsule(kind: ContextCapsule, context: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(2 + Varint::LEN_MAX);
    // Each of these is a number that was read as one, or smaller.
    let context = Varint::new(context);
    let len = context.map_or(0, |context| context.as_bytes().len()) as u64;
    let numbers = [Varint::new(kind.kind()), Varint::new(len), context];
    bytes.extend(numbers.iter().flatten().flat_map(Varint::as_bytes));
    bytes
}

#[cfg(test)]
mod tests;
