//! Classic STUN (RFC 3489) where it must not be: its messages have no magic cookie, and over DTLS that is an error (RFC 8489 §11).

use crate::command::Outcome;
use crate::drop_reason::DropReason;
use crate::engine::Engine;
use crate::id::ClientTuple;
use crate::random::Random;
use crate::time::Now;

/// The two bits of a type that say its class (RFC 8489 §5).
const CLASS_BITS: u16 = 0x0110;
/// ERROR-CODE 500 without a reason (RFC 8489 §14.8).
const ERROR_500: [u8; 8] = [0, 9, 0, 4, 0, 0, 5, 0];

impl<R: Random> Engine<R> {
    /// Answers a request without magic cookie with 500; anything else of the kind is ignored. `bytes` came over DTLS.
    pub(crate) fn refuse_classic(&mut self, now: Now, from: ClientTuple, bytes: &[u8]) -> Outcome {
        let Some((header, attributes)) = bytes.split_first_chunk::<20>() else {
            return Outcome::Dropped(DropReason::MalformedStun);
        };
        let [t0, t1, l0, l1, transaction @ ..] = *header;
        let kind = u16::from_be_bytes([t0, t1]);
        let is_request = kind & (0xC000 | CLASS_BITS) == 0;
        if !is_request || usize::from(u16::from_be_bytes([l0, l1])) != attributes.len() {
            return Outcome::Dropped(DropReason::MalformedStun);
        }
        if !self.outbox.has_room(self.config.limits.reply_queue_bytes) {
            return Outcome::Dropped(DropReason::ReplyQueueFull);
        }
        let mut answer = [0; 28];
        answer[..2].copy_from_slice(&(kind | CLASS_BITS).to_be_bytes());
        answer[3] = 8;
        // Its sixteen bytes are all transaction id.
        answer[4..20].copy_from_slice(&transaction);
        answer[20..].copy_from_slice(&ERROR_500);
        let source = from.remote.ip();
        if !self
            .unverified
            .admit(now.time, source, bytes.len(), answer.len())
        {
            return Outcome::Dropped(DropReason::UnverifiedBudget);
        }
        self.outbox.reply(from, |buffer| {
            buffer[..answer.len()].copy_from_slice(&answer);
            Ok(answer.len())
        });
        Outcome::Done
    }
}
