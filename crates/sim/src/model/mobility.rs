//! Clients that move (RFC 8016): what their requests and their data do to the allocations of the model.
//!
//! A client has one allocation, whichever of two 5-tuples it comes from: [`Model::holder`].

use turnbuckle_wire::{Class, Message, Method};

use super::expect::Expect;
use super::memory::{FINISHED, Finished, Model};
use super::rules::SECOND;
use super::state::{Allocation, Resumed, Tuple};
use super::wrong::Wrong;

/// RFC 8016 §3.2.2 asks for 30 s, RFC 8489 §6.2.1 for 39.5 s.
const RETRANSMISSION: u64 = 40 * SECOND;

/// Understood in Send indications even where the host cannot set DF: they are dropped then (RFC 8656 §11.2).
const DONT_FRAGMENT: u16 = 0x001A;

impl Model {
    /// Returns the 5-tuple under which the allocation of `from` is held: its own, or the old one beside the new path that `from` is.
    #[must_use]
    pub fn holder(&self, from: Tuple) -> Option<Tuple> {
        if self.allocations.contains_key(&from) {
            return Some(from);
        }
        let mut held = self.allocations.iter();
        let (tuple, _) = held.find(|(_, held)| held.new_path() == Some(from))?;
        Some(*tuple)
    }

    /// Returns whether a message is data, which makes a new path the only one, whatever becomes of the data.
    #[must_use]
    pub fn is_data(&self, from: Tuple, message: &Message<'_>) -> bool {
        let unknown = self.unknown(from, message);
        message.class() == Class::Indication
            && message.method() == Method::SEND
            && unknown.iter().all(|kind| *kind == DONT_FRAGMENT)
    }

    /// Takes note of data from `from`. Returns whether an allocation has moved there.
    pub fn data_came(&mut self, from: Tuple, now: u64) -> bool {
        let old = self.holder(from).filter(|old| *old != from);
        let Some((old, mut held)) = old.and_then(|old| self.allocations.remove_entry(&old)) else {
            return false;
        };
        if let Some(mobility) = &mut held.mobility {
            mobility.new_path = None;
        }
        // Nobody may make another one with the request that made this one (V-22).
        let gone = (Finished::Over, now + FINISHED);
        self.finished.insert((old, held.transaction), gone);
        self.allocations.insert(from, held);
        true
    }

    /// Returns the 5-tuple of the allocation that a ticket was given out for, if that is still there.
    #[must_use]
    pub fn of_ticket(&self, ticket: &[u8]) -> Option<Tuple> {
        let serial = self.tickets.get(ticket)?;
        let mut held = self.allocations.iter();
        let (tuple, _) = held.find(|(_, held)| held.serial == *serial)?;
        Some(*tuple)
    }

    /// Returns what is expected of a Refresh request with a ticket: it is judged by that, then like any other (RFC 8016 §3.2.2).
    pub(super) fn resume(
        &self,
        now: u64,
        from: Tuple,
        message: &Message<'_>,
        ticket: &[u8],
        user: &str,
    ) -> Expect {
        if !self.rules.mobility {
            return Expect::error(405);
        }
        if !self.tickets.contains_key(ticket) {
            return Expect::error(400);
        }
        let owner = self.of_ticket(ticket).and_then(|tuple| {
            let held = self.allocations.get(&tuple)?;
            Some((tuple, held, held.mobility.as_ref()?))
        });
        let mut wrong = Wrong::default();
        let Some((tuple, held, mobility)) = owner else {
            // Who has an allocation of its own may get this answer before the ticket is looked at.
            return Expect::error(437);
        };
        if self.repeats(now, from, message, ticket, held) {
            return self.refresh(from, held, message, wrong);
        }
        if held.user != user {
            wrong.also(441);
        }
        if ticket != mobility.ticket || from == tuple || mobility.new_path == Some(from) {
            wrong.also(400);
        }
        if self.pending.contains_key(&from) || self.holder(from).is_some_and(|other| other != tuple)
        {
            wrong.also(437);
        }
        self.refresh(from, held, message, wrong)
    }

    /// Returns whether this is the retransmission of the last resume.
    #[must_use]
    pub fn repeats(
        &self,
        now: u64,
        from: Tuple,
        message: &Message<'_>,
        ticket: &[u8],
        held: &Allocation,
    ) -> bool {
        let resumed = held.mobility.as_ref();
        let resumed = resumed.and_then(|mobility| mobility.resumed.as_ref());
        resumed.is_some_and(|resumed| {
            resumed.from == from
                && resumed.transaction == *message.transaction_id().as_bytes()
                && resumed.ticket == ticket
                && now < resumed.until
        })
    }

    /// Takes note that an allocation was resumed: `next` is the ticket that is good from now on.
    pub fn resumed(
        &mut self,
        now: u64,
        tuple: Tuple,
        from: Tuple,
        transaction: [u8; 12],
        next: &[u8],
    ) {
        let Some(held) = self.allocations.get_mut(&tuple) else {
            return;
        };
        let Some(mobility) = &mut held.mobility else {
            return;
        };
        self.tickets.insert(next.to_vec(), held.serial);
        mobility.new_path = Some(from);
        mobility.resumed = Some(Resumed {
            from,
            transaction,
            ticket: std::mem::replace(&mut mobility.ticket, next.to_vec()),
            until: now + RETRANSMISSION,
        });
    }
}
