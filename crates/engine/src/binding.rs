//! STUN Binding (RFC 8489 §12), tolerant of what ICE agents put in.

use turnbuckle_wire::IntegrityKey;

use crate::command::Outcome;
use crate::engine::Engine;
use crate::random::Random;
use crate::reply::{Request, unknown_attributes};

impl<R: Random> Engine<R> {
    /// Answers a Binding request: no allocation, no memory of it.
    ///
    /// USERNAME and MESSAGE-INTEGRITY are for a peer's ICE agent and not looked at, unless `secure_stun` asks for credentials.
    pub(crate) fn binding(&mut self, request: &Request<'_>) -> Outcome {
        if !self.config.secure_stun {
            let answer_len = self.answer_binding(request, None);
            return self.spend_unverified(request, answer_len);
        }
        match self.authenticate(request) {
            Ok(proof) => {
                self.answer_binding(request, Some(&proof.response_key));
                Outcome::Done
            }
            Err(rejection) => self.challenge(request, &rejection),
        }
    }

    fn answer_binding(&mut self, request: &Request<'_>, key: Option<&IntegrityKey>) -> usize {
        if unknown_attributes(&request.message, self.serves_dont_fragment(request))
            .next()
            .is_some()
        {
            return self.reply_unknown_attributes(request, key);
        }
        let mapped_address = self.config.mapped_address;
        self.reply_success(&request.envelope(), key, |writer| {
            writer.xor_mapped_address(request.from.remote);
            if mapped_address {
                writer.mapped_address(request.from.remote);
            }
        })
    }
}
