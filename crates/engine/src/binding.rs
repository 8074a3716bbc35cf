//! STUN Binding (RFC 8489 §12), tolerant of what ICE agents put in, with NAT behaviour discovery where it is served.

use turnbuckle_wire::IntegrityKey;

use crate::command::Outcome;
use crate::drop_reason::DropReason;
use crate::engine::Engine;
use crate::outbox::REPLY_LEN_MAX;
use crate::random::Random;
use crate::reply::{Request, unknown_attributes};

impl<R: Random> Engine<R> {
    /// Answers a Binding request: no allocation, no memory of it.
    ///
    /// USERNAME and MESSAGE-INTEGRITY are for a peer's ICE agent and not looked at, unless `secure_stun` asks for credentials.
    pub(crate) fn binding(&mut self, request: &Request<'_>) -> Outcome {
        if !self.config.secure_stun {
            return match self.answer_binding(request, None) {
                // guard: V-49-budget
                Ok(answer_len) => self.spend_unverified(request, answer_len),
                Err(reason) => Outcome::Dropped(reason),
            };
        }
        match self.authenticate(request) {
            Ok(proof) => match self.answer_binding(request, Some(&proof.response_key)) {
                Ok(_) => Outcome::Done,
                Err(reason) => Outcome::Dropped(reason),
            },
            Err(rejection) => self.challenge(request, &rejection),
        }
    }

    /// Queues the answer and returns its length.
    fn answer_binding(
        &mut self,
        request: &Request<'_>,
        key: Option<&IntegrityKey>,
    ) -> Result<usize, DropReason> {
        if unknown_attributes(&request.message, self.served(request))
            .next()
            .is_some()
        {
            return Ok(self.reply_unknown_attributes(request, key));
        }
        let mut envelope = request.envelope();
        let plan = match self.plan_discovery(request, key.is_some()) {
            Ok(plan) => plan,
            Err(reject) => return Ok(self.reply_reject(&envelope, key, reject)),
        };
        if let Some(plan) = &plan {
            // RESPONSE-PORT may name one of our own listeners, which would take the answer for a message (V-41).
            // guard: V-41-response-port
            if !self.is_possible_source(plan.to.remote) {
                return Err(DropReason::SourceInvalid);
            }
            envelope.to = plan.to;
        }
        let mapped_address = self.config.mapped_address || plan.is_some();
        let padding_len = plan.as_ref().and_then(|plan| plan.padding_len);
        let len_max = REPLY_LEN_MAX + padding_len.unwrap_or_default();
        let answer_len = self.reply_success_within(len_max, &envelope, key, |writer| {
            // mutant: mapped-address-of-server
            writer.xor_mapped_address(request.from.remote);
            if mapped_address {
                writer.mapped_address(request.from.remote);
            }
            if let Some(plan) = &plan {
                writer
                    .response_origin(plan.origin)
                    .other_address(plan.other);
            }
            if let Some(len) = padding_len {
                writer.padding(len);
            }
        });
        Ok(answer_len)
    }
}
