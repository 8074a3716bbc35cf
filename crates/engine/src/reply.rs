//! The answers to requests.
//!
//! Exactly one answer leaves for each request. What goes to a source that proved nothing passes the budget for such bytes and
//! carries nothing that could be left out (V-40, V-65). By UDP it has three times the bytes of its request at most, where the parts that the
//! RFCs require fit that, and an answer whose required parts fit what every path carries is not longer than that either.

use turnbuckle_wire::{Class, IntegrityKey, MessageWriter, WriteError};

use crate::command::Outcome;
use crate::config::{Config, Fingerprint};
use crate::drop_reason::DropReason;
use crate::out::Out;
use crate::reject::{Reject, reason_phrase};
use crate::request::{Envelope, REPLY_LEN_MAX, Request, Served, unknown_attributes};
use crate::rules::Rules;

/// More types than this are not listed in UNKNOWN-ATTRIBUTES: a request that fits a path MTU has fewer.
const UNKNOWN_ATTRIBUTES_MAX: usize = 232;

/// The extent to which an answer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// All of it, with the optional parts: SOFTWARE, reason phrases, and what an operator adds.
    Whole,
    /// Only what the RFCs require.
    Required,
}

impl Out {
    /// Queues a success response. `key` is what the request was authenticated with, if it was.
    pub(crate) fn reply_success(
        &mut self,
        config: &Config,
        envelope: &Envelope,
        key: Option<&IntegrityKey>,
        write: impl Fn(&mut MessageWriter<'_>, Extent),
    ) -> usize {
        let len_max = envelope.len_max(key);
        self.reply_success_within(config, len_max, REPLY_LEN_MAX, envelope, key, write)
    }

    /// Queues a success response with all its optional parts if it then has at most `len_max` bytes. With its required parts alone
    /// it has at most `required_len_max` bytes.
    pub(crate) fn reply_success_within(
        &mut self,
        config: &Config,
        len_max: usize,
        required_len_max: usize,
        envelope: &Envelope,
        key: Option<&IntegrityKey>,
        write: impl Fn(&mut MessageWriter<'_>, Extent),
    ) -> usize {
        self.outbox
            .reply_within(required_len_max, envelope.to, |buffer| {
                shortened(len_max, |extent| {
                    let mut writer = MessageWriter::new(
                        buffer,
                        Class::Success,
                        envelope.method,
                        envelope.transaction,
                    );
                    write(&mut writer, extent);
                    finish(config, envelope, key, extent, writer)
                })
            })
    }

    /// Queues an error response to a request that proved who sent it.
    pub(crate) fn reply_error(
        &mut self,
        config: &Config,
        envelope: &Envelope,
        key: Option<&IntegrityKey>,
        code: u16,
    ) {
        self.write_error(config, envelope, key, code, |_, _| {});
    }

    /// Queues an error response that says why a request is refused.
    pub(crate) fn reply_reject(
        &mut self,
        config: &Config,
        envelope: &Envelope,
        key: Option<&IntegrityKey>,
        reject: Reject,
    ) -> usize {
        let phrase = reject.phrase(config.answers.detailed_reasons);
        let len = self.write_error_as(config, envelope, key, (reject.code(), phrase), |_, _| {});
        self.outbox.explain(reject.refusal());
        len
    }

    /// Queues a 420 response that lists every type that was not understood (RFC 8489 §6.3.1.1).
    pub(crate) fn reply_unknown_attributes(
        &mut self,
        config: &Config,
        request: &Request<'_>,
        served: Served,
        key: Option<&IntegrityKey>,
    ) -> usize {
        let unknown = unknown_attributes(&request.message, served).take(UNKNOWN_ATTRIBUTES_MAX);
        self.write_error(
            config,
            &request.envelope(),
            key,
            Reject::UnknownAttributes.code(),
            |writer, _| {
                writer.unknown_attributes(unknown.clone());
            },
        )
    }

    /// Queues an error response.
    pub(crate) fn write_error(
        &mut self,
        config: &Config,
        envelope: &Envelope,
        key: Option<&IntegrityKey>,
        code: u16,
        write: impl Fn(&mut MessageWriter<'_>, Extent),
    ) -> usize {
        self.write_error_as(config, envelope, key, (code, reason_phrase(code)), write)
    }

    fn write_error_as(
        &mut self,
        config: &Config,
        envelope: &Envelope,
        key: Option<&IntegrityKey>,
        (code, phrase): (u16, &str),
        write: impl Fn(&mut MessageWriter<'_>, Extent),
    ) -> usize {
        let has_reason = key.is_some() || config.answers.detailed_reasons;
        self.outbox.reply(envelope.to, |buffer| {
            shortened(envelope.len_max(key), |extent| {
                let mut writer =
                    MessageWriter::new(buffer, Class::Error, envelope.method, envelope.transaction);
                let has_reason = has_reason && extent == Extent::Whole;
                // guard: V-40-reasons
                writer.error_code(code, if has_reason { phrase } else { "" });
                write(&mut writer, extent);
                finish(config, envelope, key, extent, writer)
            })
        })
    }

    /// Charges the answer that was queued last, of `answer_len` bytes, to the budget of a source that proved nothing. Withdraws the
    /// answer if it exceeds that budget.
    pub(crate) fn spend_unverified(
        &mut self,
        rules: &Rules,
        request: &Request<'_>,
        answer_len: usize,
    ) -> Outcome {
        self.spend(rules, request, answer_len, false)
    }

    /// Charges the answer to a wrong password. Its bytes are charged over every transport, so that a guess costs as much over a
    /// connection as over UDP.
    pub(crate) fn spend_guess(
        &mut self,
        rules: &Rules,
        request: &Request<'_>,
        answer_len: usize,
    ) -> Outcome {
        self.spend(rules, request, answer_len, true)
    }

    fn spend(
        &mut self,
        rules: &Rules,
        request: &Request<'_>,
        answer_len: usize,
        is_guess: bool,
    ) -> Outcome {
        if answer_len == 0 {
            return Outcome::Dropped(DropReason::ReplyQueueFull); // nothing was queued
        }
        // mutant: shards-have-budgets-of-their-own
        let source = request.from.remote.ip();
        // A client that completed a handshake has a proven address: its answers count, but their bytes reach nobody else (V-40).
        let is_free = request.from.transport.proves_address() && !is_guess;
        let (request_len, answer_len) = match is_free {
            true => (0, 0),
            false => (request.message.as_bytes().len(), answer_len),
        };
        if rules
            .commons
            .unverified
            .admit(request.now.time, source, request_len, answer_len)
        {
            Outcome::Done
        } else {
            self.withheld = self.outbox.take_back();
            Outcome::Dropped(DropReason::UnverifiedBudget)
        }
    }
}

/// Writes all of an answer if that has no more than `len_max` bytes, and what is required of it otherwise.
fn shortened(
    len_max: usize,
    mut write: impl FnMut(Extent) -> Result<usize, WriteError>,
) -> Result<usize, WriteError> {
    match write(Extent::Whole) {
        Ok(len) if len <= len_max => Ok(len),
        _ => write(Extent::Required),
    }
}

/// Appends what every answer ends with: SOFTWARE, integrity, FINGERPRINT.
fn finish(
    config: &Config,
    envelope: &Envelope,
    key: Option<&IntegrityKey>,
    extent: Extent,
    mut writer: MessageWriter<'_>,
) -> Result<usize, WriteError> {
    // guard: V-65-software
    if let Some(software) = &config.answers.software
        && extent == Extent::Whole
        && (key.is_some() || config.answers.software_to_unverified)
    {
        writer.software(software);
    }
    if let Some(key) = key {
        writer.integrity(key);
    }
    let is_wanted = config.answers.fingerprint == Fingerprint::Always && extent == Extent::Whole;
    if envelope.has_fingerprint || is_wanted {
        writer.fingerprint();
    }
    writer.finish()
}
