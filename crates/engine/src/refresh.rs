//! Refresh (RFC 8656 §8): longer life, or the end.

use core::time::Duration;
use std::sync::Arc;

use turnbuckle_wire::{AddressFamily, AttributeError};

use crate::auth::Proof;
use crate::change::{Change, EndCause};
use crate::config::Lifetimes;
use crate::credential::User;
use crate::engine::Engine;
use crate::id::{AllocationId, Family};
use crate::random::Random;
use crate::reject::Reject;
use crate::reply::{Envelope, Request};
use crate::tombstone::Deed;

impl<R: Random> Engine<R> {
    /// RFC 8656 §8.2.
    pub(crate) fn refresh(&mut self, request: &Request<'_>, proof: &Proof) -> Result<(), Reject> {
        let now = request.now.time;
        let envelope = request.envelope();
        let (id, resume) = match request.message.mobility_ticket() {
            None => (self.allocation_of(request, proof)?, None),
            Some(ticket) => self
                .check_resume(ticket, request, proof)
                .map(|(id, resume)| (id, Some(resume)))?,
        };
        let asked = request
            .message
            .lifetime()
            .map_err(|_| Reject::BadRequest("LIFETIME malformed"))?;
        let is_release = asked == Some(0);
        if is_release {
            match self.find_release(&request.from, envelope.transaction, now) {
                // its own allocation ended with it; the one that is here now is another
                // guard: V-22-replayed-deletion
                Some(Deed::Over) => return Err(Reject::AllocationMismatch),
                Some(Deed::EndedFamily(ended)) if ended == id => {
                    // mutant: answer-without-ticket
                    self.answer_refresh(id, &envelope, proof, Duration::ZERO, resume.is_some());
                    return Ok(());
                }
                Some(Deed::EndedFamily(_)) => return Err(Reject::AllocationMismatch),
                None => {}
            }
        }

        let family = match request.message.requested_address_family() {
            Ok(None) => None,
            Ok(Some(AddressFamily::V4)) => Some(Family::V4),
            Ok(Some(AddressFamily::V6)) => Some(Family::V6),
            Err(AttributeError::UnsupportedFamily(_)) => return Err(Reject::PeerFamilyMismatch),
            Err(AttributeError::Length | AttributeError::Value) => {
                return Err(Reject::BadRequest("REQUESTED-ADDRESS-FAMILY malformed"));
            }
        };
        let unix_s = self.calendar_s(request.now);
        let allocation = self.live(id).ok_or(Reject::AllocationMismatch)?;
        if family.is_some_and(|family| allocation.relay(family).is_none()) {
            return Err(Reject::PeerFamilyMismatch);
        }

        let lifetime = if is_release {
            Duration::ZERO
        } else {
            self.config.lifetimes.granted(asked, &proof.user, unix_s)
        };
        let ends_whole =
            is_release && (family.is_none() || allocation.relays.iter().flatten().count() == 1);
        if let Some(resume) = &resume
            && !ends_whole
        {
            self.resume(id, request, resume);
        }
        if ends_whole {
            if self.new_paths.contains_key(&request.from) {
                self.move_over(id, now); // for the record of where it ended
            }
            self.end(id, EndCause::Released(envelope.transaction), now);
        } else if let Some(family) = family.filter(|_| is_release) {
            self.end_family(id, family, EndCause::Released(envelope.transaction), now);
        } else {
            self.extend(id, family, now + lifetime);
        }
        self.renew(id, proof);
        self.answer_refresh(id, &envelope, proof, lifetime, resume.is_some());
        Ok(())
    }

    /// The success response, the first time and again; with the ticket that is good now for who brought one.
    fn answer_refresh(
        &mut self,
        id: AllocationId,
        envelope: &Envelope,
        proof: &Proof,
        lifetime: Duration,
        brought_ticket: bool,
    ) {
        let ticket = self.ticket(id).filter(|_| brought_ticket);
        self.reply_success(envelope, Some(&proof.response_key), |writer| {
            writer.lifetime(u32::try_from(lifetime.as_secs()).unwrap_or(u32::MAX));
            if let Some(ticket) = ticket {
                writer.mobility_ticket(&ticket);
            }
        });
    }

    /// From now on the token of this request is the client's (RFC 7635 §9).
    fn renew(&mut self, id: AllocationId, proof: &Proof) {
        let Some(allocation) = self.live_mut(id) else {
            return;
        };
        let held = allocation.quota.user();
        if held.name != proof.user.name || !held.is_same_as(&proof.user) {
            allocation.quota.renew(&proof.user);
            let user = Arc::clone(allocation.quota.user());
            self.renew_connections(id, &user);
            self.changes.push_back(Change::Reauthorized {
                allocation: id,
                user,
            });
        }
    }

    fn extend(&mut self, id: AllocationId, family: Option<Family>, expires: crate::time::Time) {
        let Some(allocation) = self.live_mut(id) else {
            return;
        };
        for held in [Family::V4, Family::V6] {
            if family.is_none_or(|family| family == held)
                && let Some(relay) = &mut allocation.relays[held.index()]
            {
                relay.expires = expires;
            }
        }
        // mutant: totals-lost
        let usage = allocation.usage;
        self.changes.push_back(Change::Refreshed {
            allocation: id,
            family,
            expires,
            usage,
        });
        // mutant: stream-omits-refresh
        self.wake_by(id, expires);
    }
}

impl Lifetimes {
    /// The lifetime given when `asked` is wanted: at least the default, at most the maximum (RFC 8656 §7.2, §8.2).
    ///
    /// Who was authorized by a token has no more than what is left of that (RFC 7635 §9) at `unix_s`, in the engine's calendar.
    pub(crate) fn granted(&self, asked: Option<u32>, user: &User, unix_s: u64) -> Duration {
        let asked = Duration::from_secs(asked.unwrap_or(0).into());
        // guard: V-52-lifetime
        let granted = asked.max(self.allocation_default).min(self.allocation_max);
        let granted = granted.min(Duration::from_secs(user.lifetime_max_s));
        match user.expires_unix_s.filter(|_| user.has_token()) {
            Some(until) => granted.min(Duration::from_secs(until.saturating_sub(unix_s))),
            None => granted,
        }
    }
}
