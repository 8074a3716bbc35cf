//! Requests and indications in the form that the methods handle.

use turnbuckle_wire::{AttributeType, IntegrityKey, Message, Method, TransactionId};

use crate::id::ClientTuple;
use crate::time::Now;

/// The longest reply, but for PADDING, whose purpose is to be longer: what fits an IPv6 packet of the minimum MTU (RFC 8489 §6.1).
pub(crate) const REPLY_LEN_MAX: usize = 1232;

/// How many bytes a source that proved nothing gets for each of its own.
const FACTOR_MAX: usize = 3;
/// The longest datagram that fits every path of IPv4, in bytes (RFC 8489 §6.1).
const IPV4_LEN_MAX: usize = 548;
/// An Allocate request with what it has to have, REQUESTED-TRANSPORT: the shortest first request of a TURN client. What is shorter is no client's.
const FIRST_REQUEST_LEN: usize = 28;

/// A parsed request or indication, with where and when it came.
#[derive(Debug)]
pub(crate) struct Request<'m> {
    pub(crate) message: Message<'m>,
    pub(crate) from: ClientTuple,
    pub(crate) now: Now,
    /// Whether another shard has the connection that the request came on.
    pub(crate) is_handed_on: bool,
    /// Whether the host may be told to ask a user database first.
    pub(crate) may_ask: bool,
}

/// The parts of a request that its answer repeats (RFC 8489 §6.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Envelope {
    pub(crate) to: ClientTuple,
    pub(crate) method: Method,
    pub(crate) transaction: TransactionId,
    /// Whether the request carried FINGERPRINT.
    pub(crate) has_fingerprint: bool,
    /// Bytes of the request.
    pub(crate) request_len: usize,
}

/// Attributes that are understood or not, by configuration and by where a request came in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Served {
    /// CONNECTION-ID.
    pub(crate) connections: bool,
    /// Those of RFC 5780, in Binding requests.
    pub(crate) discovery: bool,
    /// DONT-FRAGMENT.
    pub(crate) dont_fragment: bool,
    /// RESPONSE-PORT and PADDING, in Binding requests, though nothing comes of them.
    pub(crate) passes_over_discovery: bool,
    /// ACCESS-TOKEN.
    pub(crate) tokens: bool,
}

impl Request<'_> {
    pub(crate) fn envelope(&self) -> Envelope {
        Envelope {
            to: self.from,
            method: self.message.method(),
            transaction: self.message.transaction_id(),
            has_fingerprint: self.message.has_fingerprint(),
            request_len: self.message.as_bytes().len(),
        }
    }

    /// Returns whether the request is too short to be answered with a challenge: it came by UDP and is shorter than any first
    /// request of a client.
    pub(crate) fn is_too_short_for_challenge(&self) -> bool {
        // with `secure-stun` a Binding request is a header alone
        let is_binding = self.message.method() == Method::BINDING;
        // guard: V-40-header
        !self.from.transport.proves_address()
            && !is_binding
            && self.message.as_bytes().len() < FIRST_REQUEST_LEN
    }
}

impl Envelope {
    /// Returns the length up to which the answer keeps its optional parts, in bytes. `key` is the key that authenticated the
    /// request, if it was authenticated.
    pub(crate) fn len_max(&self, key: Option<&IntegrityKey>) -> usize {
        if self.to.transport.proves_address() {
            return usize::MAX;
        }
        let of_path = match self.to.remote.is_ipv4() {
            true => IPV4_LEN_MAX,
            false => REPLY_LEN_MAX,
        };
        // guard: V-40-three-times
        match key {
            Some(_) => of_path,
            None => of_path.min(FACTOR_MAX * self.request_len),
        }
    }
}

/// When an Allocate request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answered {
    /// By the answer to the request it repeats.
    InProgress,
    /// When the host has opened the sockets.
    Later,
    /// It has been.
    Now,
}

/// Returns the comprehension-required attributes of `message` that this server does not understand (RFC 8489 §6.3.1).
///
/// The codec knows more types than the engine serves; those count as unknown here. PRIORITY and USE-CANDIDATE are ICE's: agents
/// send them in Binding requests to whoever is there, and a server without ICE answers as if they were absent.
pub(crate) fn unknown_attributes<'m>(
    message: &Message<'m>,
    served: Served,
) -> impl Iterator<Item = AttributeType> + Clone + use<'m> {
    let is_binding = message.method() == Method::BINDING;
    message
        .attributes()
        .map(|attribute| attribute.kind)
        .filter(move |&kind| match kind {
            // mutant: 420-lists-nothing
            AttributeType::ACCESS_TOKEN => !served.tokens,
            // known, so outside of its methods it is to be ignored (RFC 8489 §6.3)
            AttributeType::CONNECTION_ID => !served.connections,
            AttributeType::PADDING | AttributeType::RESPONSE_PORT
                if is_binding && served.passes_over_discovery =>
            {
                false
            }
            AttributeType::CHANGE_REQUEST
            | AttributeType::PADDING
            | AttributeType::RESPONSE_PORT => !(is_binding && served.discovery),
            AttributeType::DONT_FRAGMENT => !served.dont_fragment,
            PRIORITY | USE_CANDIDATE if is_binding => false,
            _ => kind.is_comprehension_required() && !kind.is_known(),
        })
}

/// RFC 8445 §7.1.1.
const PRIORITY: AttributeType = AttributeType::new(0x0024);
/// RFC 8445 §7.1.2.
const USE_CANDIDATE: AttributeType = AttributeType::new(0x0025);
