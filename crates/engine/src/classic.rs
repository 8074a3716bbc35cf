//! Classic STUN (RFC 3489), whose messages have no magic cookie: an error over DTLS (RFC 8489 §11), and over UDP answered only where
//! an operator wants that.
//!
//! Its one dangerous part is left out: RESPONSE-ADDRESS has an answer sent to whomever the request names (RFC 3489 §12.1). Here an
//! answer goes to the address the request came from, whatever the port, and is charged to the budget of every other answer to a
//! source that proved nothing (V-40). What was only ever good with a shared secret is refused, because nobody has one.

use core::net::{IpAddr, SocketAddr};

use crate::command::Outcome;
use crate::config::Service;
use crate::discovery::Discovery;
use crate::drop_reason::DropReason;
use crate::id::ClientTuple;
use crate::out::Out;
use crate::rules::Rules;
use crate::time::Now;

/// The two bits of a message type that encode its class (RFC 8489 §5).
const CLASS_BITS: u16 = 0x0110;
/// ERROR-CODE 500 without a reason (RFC 8489 §14.8).
const ERROR_500: [u8; 8] = [0, 9, 0, 4, 0, 0, 5, 0];

/// Message types (RFC 3489 §11.1).
const BINDING_REQUEST: u16 = 0x0001;
const BINDING_RESPONSE: u16 = 0x0101;
const BINDING_ERROR: u16 = 0x0111;

/// Attribute types (RFC 3489 §11.2).
const MAPPED_ADDRESS: u16 = 0x0001;
const RESPONSE_ADDRESS: u16 = 0x0002;
const CHANGE_REQUEST: u16 = 0x0003;
const SOURCE_ADDRESS: u16 = 0x0004;
const CHANGED_ADDRESS: u16 = 0x0005;
const USERNAME: u16 = 0x0006;
const MESSAGE_INTEGRITY: u16 = 0x0008;
const ERROR_CODE: u16 = 0x0009;
const UNKNOWN_ATTRIBUTES: u16 = 0x000A;
const REFLECTED_FROM: u16 = 0x000B;

/// More types are not listed in UNKNOWN-ATTRIBUTES.
const UNKNOWN_MAX: usize = 8;
/// An answer of four addresses, the longest there is.
const ANSWER_LEN_MAX: usize = HEADER_LEN + 4 * 12;
const HEADER_LEN: usize = 20;

/// A Binding request (RFC 3489 §8.1).
struct Request<'m> {
    transaction: &'m [u8; 16],
    change_ip: bool,
    change_port: bool,
    response_address: Option<SocketAddr>,
    has_username: bool,
    has_integrity: bool,
    unknown: Unknown,
}

/// The types in UNKNOWN-ATTRIBUTES.
#[derive(Clone, Default)]
struct Unknown {
    kinds: [u16; UNKNOWN_MAX],
    count: usize,
}

/// An answer in the making.
struct Answer {
    bytes: [u8; ANSWER_LEN_MAX],
    len: usize,
}

/// Where an answer goes, and which addresses it names.
struct Plan {
    to: ClientTuple,
    source: SocketAddr,
    changed: Option<SocketAddr>,
    /// Of an answer that goes to another port.
    reflected_from: Option<SocketAddr>,
}

/// Answers a request without magic cookie with 500; anything else of the kind is ignored. `bytes` came over DTLS.
pub(crate) fn refuse_classic(
    now: Now,
    from: ClientTuple,
    bytes: &[u8],
    rules: &Rules,
    out: &mut Out,
) -> Outcome {
    let Some((header, attributes)) = bytes.split_first_chunk::<20>() else {
        return Outcome::Dropped(DropReason::MalformedStun);
    };
    let [t0, t1, l0, l1, transaction @ ..] = *header;
    let kind = u16::from_be_bytes([t0, t1]);
    let is_request = kind & (0xC000 | CLASS_BITS) == 0;
    if !is_request || usize::from(u16::from_be_bytes([l0, l1])) != attributes.len() {
        return Outcome::Dropped(DropReason::MalformedStun);
    }
    let mut answer = Answer::new(kind | CLASS_BITS, &transaction);
    answer.push(&ERROR_500);
    send_classic(now, from, from, bytes.len(), answer, rules, out)
}

/// Answers a Binding request of RFC 3489 that came over UDP.
pub(crate) fn classic_binding(
    now: Now,
    from: ClientTuple,
    bytes: &[u8],
    rules: &Rules,
    out: &mut Out,
) -> Outcome {
    let Some(request) = Request::parse(bytes) else {
        return Outcome::Dropped(DropReason::MalformedStun);
    };
    if rules.config.service == Service::TurnOnly {
        return Outcome::Dropped(DropReason::ServiceDisabled);
    }
    if !from.remote.is_ipv4() || !rules.listeners.is_possible_source(from.remote) {
        return Outcome::Dropped(DropReason::SourceInvalid);
    }
    if request.has_integrity {
        // 430: no secret of that name is known; 432: there is no name
        let number = if request.has_username { 30 } else { 32 };
        let mut answer = Answer::new(BINDING_ERROR, request.transaction);
        answer.error(number);
        return send_classic(now, from, from, bytes.len(), answer, rules, out);
    }
    let discovery = rules.listeners.discovery(from.listener).copied();
    let plan = match request.plan(from, rules.listeners.address(from.listener), discovery) {
        Ok(plan) => plan,
        Err(unknown) => {
            let mut answer = Answer::new(BINDING_ERROR, request.transaction);
            answer.error(20);
            answer.unknown(&unknown);
            return send_classic(now, from, from, bytes.len(), answer, rules, out);
        }
    };
    if !rules.listeners.is_possible_source(plan.to.remote) {
        return Outcome::Dropped(DropReason::SourceInvalid);
    }
    let mut answer = Answer::new(BINDING_RESPONSE, request.transaction);
    answer.address(MAPPED_ADDRESS, from.remote);
    answer.address(SOURCE_ADDRESS, plan.source);
    for (kind, address) in [
        (CHANGED_ADDRESS, plan.changed),
        (REFLECTED_FROM, plan.reflected_from),
    ] {
        if let Some(address) = address {
            answer.address(kind, address);
        }
    }
    send_classic(now, from, plan.to, bytes.len(), answer, rules, out)
}

/// Queues the answer to a request of `request_len` bytes from `from`, if the budget for strangers allows it.
fn send_classic(
    now: Now,
    from: ClientTuple,
    to: ClientTuple,
    request_len: usize,
    answer: Answer,
    rules: &Rules,
    out: &mut Out,
) -> Outcome {
    if !out.outbox.has_room(rules.config.limits.reply_queue_bytes) {
        return Outcome::Dropped(DropReason::ReplyQueueFull);
    }
    let answer = answer.finish();
    let bytes = &answer.bytes[..answer.len];
    let source = from.remote.ip();
    if !rules
        .commons
        .unverified
        .admit(now.time, source, request_len, bytes.len())
    {
        out.withheld = None;
        return Outcome::Dropped(DropReason::UnverifiedBudget);
    }
    out.outbox.reply(to, |buffer| {
        buffer[..bytes.len()].copy_from_slice(bytes);
        Ok(bytes.len())
    });
    Outcome::Done
}

impl<'m> Request<'m> {
    /// Parses a Binding request of RFC 3489. Returns `None` for anything else.
    fn parse(bytes: &'m [u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk::<4>()?;
        let (transaction, mut rest) = rest.split_first_chunk::<16>()?;
        let [t0, t1, l0, l1] = *head;
        let is_binding = u16::from_be_bytes([t0, t1]) == BINDING_REQUEST;
        if !is_binding || usize::from(u16::from_be_bytes([l0, l1])) != rest.len() {
            return None;
        }
        let mut request = Self {
            transaction,
            change_ip: false,
            change_port: false,
            response_address: None,
            has_username: false,
            has_integrity: false,
            unknown: Unknown::default(),
        };
        while !rest.is_empty() {
            let (&[k0, k1, l0, l1], values) = rest.split_first_chunk::<4>()?;
            let len = usize::from(u16::from_be_bytes([l0, l1]));
            let (value, next) = values.split_at_checked(len)?;
            // values of other lengths would leave what follows unaligned, for which RFC 3489 has no rule
            if len % 4 != 0 {
                return None;
            }
            match u16::from_be_bytes([k0, k1]) {
                CHANGE_REQUEST => {
                    let flags = u32::from_be_bytes(value.try_into().ok()?);
                    request.change_ip = flags & 4 != 0;
                    request.change_port = flags & 2 != 0;
                }
                RESPONSE_ADDRESS => {
                    let &[_, 1, p0, p1, ref ip @ ..] = <&[u8; 8]>::try_from(value).ok()? else {
                        return None;
                    };
                    let port = u16::from_be_bytes([p0, p1]);
                    request.response_address = Some(SocketAddr::from((*ip, port)));
                }
                USERNAME => request.has_username = true,
                MESSAGE_INTEGRITY => request.has_integrity = true,
                kind if kind <= 0x7FFF => request.unknown.push(kind),
                _ => {}
            }
            rest = next;
        }
        Some(request)
    }

    /// Returns the way of the answer (RFC 3489 §8.1, table 1): from `listener` where no change is requested.
    ///
    /// # Errors
    ///
    /// The types of attributes that are not understood, or whose wishes are not served: 420.
    fn plan(
        &self,
        from: ClientTuple,
        listener: SocketAddr,
        discovery: Option<Discovery>,
    ) -> Result<Plan, Unknown> {
        // A proxy's client cannot be reached from elsewhere.
        let is_bare = from == ClientTuple::udp(from.listener, from.remote);
        let discovery = discovery.filter(|_| is_bare);
        let alternates = discovery.and_then(|discovery| discovery.alternates);
        let mut unknown = self.unknown.clone();
        let mut plan = Plan {
            to: from,
            source: discovery.map_or(listener, |discovery| discovery.origin),
            changed: discovery.map(|discovery| discovery.other),
            reflected_from: None,
        };
        match (alternates, plan.changed) {
            (Some(alternates), Some(changed)) => {
                if self.change_ip {
                    plan.source.set_ip(changed.ip());
                }
                if self.change_port {
                    plan.source.set_port(changed.port());
                }
                plan.to.listener = match (self.change_ip, self.change_port) {
                    (true, true) => alternates.change_both,
                    (true, false) => alternates.change_ip,
                    (false, true) => alternates.change_port,
                    (false, false) => from.listener,
                };
            }
            _ if self.change_ip || self.change_port => unknown.push(CHANGE_REQUEST),
            _ => {}
        }
        match self.response_address {
            Some(address)
                if alternates.is_some()
                    && address.ip() == from.remote.ip()
                    && address.port() != 0 =>
            {
                plan.to.remote = address;
                plan.reflected_from = Some(from.remote);
            }
            Some(_) => unknown.push(RESPONSE_ADDRESS),
            None => {}
        }
        if unknown.count == 0 {
            Ok(plan)
        } else {
            Err(unknown)
        }
    }
}

impl Unknown {
    fn push(&mut self, kind: u16) {
        if let Some(place) = self.kinds.get_mut(self.count) {
            *place = kind;
            self.count += 1;
        }
    }
}

impl Answer {
    fn new(kind: u16, transaction: &[u8; 16]) -> Self {
        let mut answer = Self {
            bytes: [0; ANSWER_LEN_MAX],
            len: 0,
        };
        answer.push(&kind.to_be_bytes());
        answer.push(&[0; 2]); // the length, known at the end
        answer.push(transaction);
        answer
    }

    /// Appends ERROR-CODE 4xx without a reason.
    fn error(&mut self, number: u8) {
        self.attribute(ERROR_CODE, 4);
        self.push(&[0, 0, 4, number]);
    }

    /// Appends UNKNOWN-ATTRIBUTES; of an odd number of types one stands twice (RFC 3489 §11.2.10).
    fn unknown(&mut self, unknown: &Unknown) {
        let kinds = unknown.kinds.get(..unknown.count).unwrap_or_default();
        let repeated = kinds.last().filter(|_| kinds.len() % 2 == 1);
        let count = kinds.len().next_multiple_of(2);
        self.attribute(UNKNOWN_ATTRIBUTES, 2 * count);
        for kind in kinds.iter().chain(repeated) {
            self.push(&kind.to_be_bytes());
        }
    }

    fn address(&mut self, kind: u16, address: SocketAddr) {
        let IpAddr::V4(ip) = address.ip() else {
            return; // RFC 3489 knows no other family
        };
        self.attribute(kind, 8);
        self.push(&[0, 1]);
        self.push(&address.port().to_be_bytes());
        self.push(&ip.octets());
    }

    fn attribute(&mut self, kind: u16, len: usize) {
        self.push(&kind.to_be_bytes());
        self.push(&u16::try_from(len).unwrap_or(0).to_be_bytes());
    }

    fn push(&mut self, bytes: &[u8]) {
        let room = self.bytes.get_mut(self.len..).unwrap_or_default();
        for (to, from) in room.iter_mut().zip(bytes) {
            *to = *from;
            self.len += 1;
        }
    }

    fn finish(mut self) -> Self {
        let len = u16::try_from(self.len.saturating_sub(HEADER_LEN)).unwrap_or(0);
        self.bytes[2..4].copy_from_slice(&len.to_be_bytes());
        self
    }
}
