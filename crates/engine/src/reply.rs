//! Requests as the methods see them, and the answers to them.
//!
//! Exactly one answer leaves for each request. What goes to a source that proved nothing passes the budget for such bytes and
//! carries nothing that could be left out (V-40, V-65).

use turnbuckle_wire::{
    AttributeType, Class, IntegrityKey, Message, MessageWriter, Method, TransactionId, WriteError,
};

use crate::command::Outcome;
use crate::config::{Config, Fingerprint};
use crate::drop_reason::DropReason;
use crate::engine::Engine;
use crate::id::ClientTuple;
use crate::outbox::REPLY_LEN_MAX;
use crate::random::Random;
use crate::reject::{Reject, reason_phrase};
use crate::time::Now;

/// More types than this are not listed in UNKNOWN-ATTRIBUTES: a request that fits a path MTU has fewer.
const UNKNOWN_ATTRIBUTES_MAX: usize = 375;

/// A parsed request or indication, with where and when it came.
#[derive(Debug)]
pub(crate) struct Request<'m> {
    pub(crate) message: Message<'m>,
    pub(crate) from: ClientTuple,
    pub(crate) now: Now,
    /// Whether another shard has the connection that it came on.
    pub(crate) is_handed_on: bool,
}

/// What an answer has to repeat of its request (RFC 8489 §6.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Envelope {
    pub(crate) to: ClientTuple,
    pub(crate) method: Method,
    pub(crate) transaction: TransactionId,
    /// Whether the request carried FINGERPRINT.
    pub(crate) has_fingerprint: bool,
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
        }
    }
}

impl<R: Random> Engine<R> {
    /// Queues a success response. `key` is what the request was authenticated with, if it was.
    pub(crate) fn reply_success(
        &mut self,
        envelope: &Envelope,
        key: Option<&IntegrityKey>,
        write: impl FnOnce(&mut MessageWriter<'_>),
    ) -> usize {
        self.reply_success_within(REPLY_LEN_MAX, envelope, key, write)
    }

    /// Queues a success response of at most `len_max` bytes.
    pub(crate) fn reply_success_within(
        &mut self,
        len_max: usize,
        envelope: &Envelope,
        key: Option<&IntegrityKey>,
        write: impl FnOnce(&mut MessageWriter<'_>),
    ) -> usize {
        let config = &self.config;
        self.outbox.reply_within(len_max, envelope.to, |buffer| {
            let mut writer = MessageWriter::new(
                buffer,
                Class::Success,
                envelope.method,
                envelope.transaction,
            );
            write(&mut writer);
            finish(config, envelope, key, writer)
        })
    }

    /// Queues an error response to a request that proved who sent it.
    pub(crate) fn reply_error(&mut self, envelope: &Envelope, key: &IntegrityKey, code: u16) {
        self.write_error(envelope, Some(key), code, |_| {});
    }

    /// Queues an error response that says why a request is refused.
    pub(crate) fn reply_reject(
        &mut self,
        envelope: &Envelope,
        key: Option<&IntegrityKey>,
        reject: Reject,
    ) -> usize {
        let phrase = reject.phrase(self.config.detailed_reasons);
        self.write_error_as(envelope, key, (reject.code(), phrase), |_| {})
    }

    /// Queues a 420 response that lists every type that was not understood (RFC 8489 §6.3.1.1).
    pub(crate) fn reply_unknown_attributes(
        &mut self,
        request: &Request<'_>,
        key: Option<&IntegrityKey>,
    ) -> usize {
        let served = self.served(request);
        let unknown = unknown_attributes(&request.message, served).take(UNKNOWN_ATTRIBUTES_MAX);
        self.write_error(
            &request.envelope(),
            key,
            Reject::UnknownAttributes.code(),
            |writer| {
                writer.unknown_attributes(unknown);
            },
        )
    }

    /// Which of the attributes that are not always understood are understood in `request`.
    pub(crate) fn served(&self, request: &Request<'_>) -> Served {
        Served {
            connections: self.config.tcp.is_some(),
            discovery: self.serves_discovery(request),
            dont_fragment: self.serves_dont_fragment(request),
            passes_over_discovery: self.config.passes_over_discovery,
            tokens: self.config.auth.third_parties.is_some(),
        }
    }

    /// Queues an error response.
    pub(crate) fn write_error(
        &mut self,
        envelope: &Envelope,
        key: Option<&IntegrityKey>,
        code: u16,
        write: impl FnOnce(&mut MessageWriter<'_>),
    ) -> usize {
        self.write_error_as(envelope, key, (code, reason_phrase(code)), write)
    }

    fn write_error_as(
        &mut self,
        envelope: &Envelope,
        key: Option<&IntegrityKey>,
        (code, phrase): (u16, &str),
        write: impl FnOnce(&mut MessageWriter<'_>),
    ) -> usize {
        let config = &self.config;
        let has_reason = key.is_some() || config.detailed_reasons;
        self.outbox.reply(envelope.to, |buffer| {
            let mut writer =
                MessageWriter::new(buffer, Class::Error, envelope.method, envelope.transaction);
            // guard: V-40-reasons
            writer.error_code(code, if has_reason { phrase } else { "" });
            write(&mut writer);
            finish(config, envelope, key, writer)
        })
    }

    /// Settles the answer that was queued last, `answer_len` bytes for a source that proved nothing: it may be over the budget.
    pub(crate) fn spend_unverified(&mut self, request: &Request<'_>, answer_len: usize) -> Outcome {
        self.spend(request, answer_len, false)
    }

    /// The same for the answer to a wrong password, whose bytes are charged whatever it came by: a guess costs as much over a connection as
    /// over UDP.
    pub(crate) fn spend_guess(&mut self, request: &Request<'_>, answer_len: usize) -> Outcome {
        self.spend(request, answer_len, true)
    }

    fn spend(&mut self, request: &Request<'_>, answer_len: usize, is_guess: bool) -> Outcome {
        if answer_len == 0 {
            return Outcome::Dropped(DropReason::ReplyQueueFull); // nothing was queued
        }
        let source = request.from.remote.ip();
        // Who completed a handshake is where it says it is: its answers count, their bytes reach nobody else (V-40).
        let is_free = request.from.transport.proves_address() && !is_guess;
        let (request_len, answer_len) = match is_free {
            true => (0, 0),
            false => (request.message.as_bytes().len(), answer_len),
        };
        if self
            .commons
            .unverified
            .admit(request.now.time, source, request_len, answer_len)
        {
            Outcome::Done
        } else {
            self.outbox.take_back();
            Outcome::Dropped(DropReason::UnverifiedBudget)
        }
    }
}

/// Appends what every answer ends with: SOFTWARE, integrity, FINGERPRINT.
fn finish(
    config: &Config,
    envelope: &Envelope,
    key: Option<&IntegrityKey>,
    mut writer: MessageWriter<'_>,
) -> Result<usize, WriteError> {
    // guard: V-65-software
    if let Some(software) = &config.software
        && (key.is_some() || config.software_to_unverified)
    {
        writer.software(software);
    }
    if let Some(key) = key {
        writer.integrity(key);
    }
    if envelope.has_fingerprint || config.fingerprint == Fingerprint::Always {
        writer.fingerprint();
    }
    writer.finish()
}

/// The comprehension-required attributes of `message` that this server does not understand (RFC 8489 §6.3.1).
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
