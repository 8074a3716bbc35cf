//! The sessions of a shard: which client each one is, and until when it has to have done what.
//!
//! Invariant: a session has one timer, which fires no later than its deadline; at that moment the deadline is looked at again. While it
//! shakes hands the timer fires more often, for OpenSSL to send again what may be lost.
//!
//! A session without an allocation counts against the limits of its shard and of its source, as a connection does. What it may keep of its
//! handshake is bounded too: beyond a share of its own it takes memory from a budget of all.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use turnbuckle_engine::{ClientTuple, Connection, DropReason, Time, Transport, Wheel};

use super::Address;
use super::hello::{before_protected, claims};
use super::session::Session;
use crate::counters::CloseReason;
use crate::serial::serial;
use crate::sources::{Crowd, CrowdLimits, CrowdPlace, Exceeded};

/// How long sessions may take for what, and how many there may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DtlsLimits {
    /// From the hello with a cookie to the end of the handshake.
    pub(crate) handshake: Duration,
    /// From there to the first message.
    pub(crate) first_message: Duration,
    /// Without an allocation, from one datagram to the next.
    pub(crate) idle: Duration,
    /// Without an allocation, whatever is said.
    pub(crate) unallocated: Duration,
    /// Sessions of one shard without an allocation.
    pub(crate) crowd: CrowdLimits,
    /// Sessions of one shard.
    pub(crate) sessions: usize,
}

/// Datagrams that one handshake may take, with a client's chain of certificates and everything sent three times.
pub(super) const HANDSHAKE_DATAGRAMS_MAX: u32 = 48;
/// Bytes of a handshake that each session may keep: those of a client without a certificate are fewer.
const HANDSHAKE_SHARE: usize = 8 * 1024;
/// What all sessions of a shard may keep beyond their shares.
pub(super) const HANDSHAKE_BUDGET: usize = 4 * 1024 * 1024;
/// Numbers that a client's handshake messages may have; it sends four, and a Finished that is protected (RFC 6347 §4.2.4).
const MESSAGES_MAX: usize = 8;
/// Protected records that may come before the handshake is over: a Finished may overtake what is in front of it, and be sent again.
const EARLY_RECORDS_MAX: usize = 2;
/// What OpenSSL keeps of one of these: a whole buffer (`dtls1_buffer_record`).
const EARLY_RECORD_LEN: usize = 17 * 1024;

/// How often a session in its handshake is asked whether something is to be sent again.
const RETRANSMISSION_CHECK: Duration = Duration::from_millis(250);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Handshake,
    /// No message has come.
    Silent,
    /// A message has come.
    Proven,
}

/// One session and its client.
pub(super) struct Entry {
    pub(super) session: Session,
    pub(super) client: ClientTuple,
    pub(super) address: Address,
    /// Of the hello that it began with: another hello from the same address is another client's.
    pub(super) random: [u8; 32],
    /// Datagrams that its handshake may still take.
    handshake_left: u32,
    /// The length that each of its handshake messages claims to have.
    claimed: [usize; MESSAGES_MAX],
    /// Protected records that came before the handshake was over.
    early: usize,
    /// Bytes that it has taken from the budget of handshakes.
    borrowed: usize,
    /// Where it is counted while it has no allocation.
    place: Option<CrowdPlace>,
    /// Since when.
    unallocated_since: Time,
    phase: Phase,
    /// When the phase began; for a proven session, when it last said something.
    since: Time,
    /// When the timer fires.
    check: Time,
}

/// What a timer found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// The time of this session is over.
    Over(Connection, CloseReason),
    /// This one may have to send something again.
    Retransmit(Connection),
}

/// All sessions of a shard.
pub(super) struct Sessions {
    limits: DtlsLimits,
    places: Vec<Option<Entry>>,
    free: Vec<u32>,
    // Addresses are chosen by clients: the hash is keyed (V-53).
    by_address: HashMap<Address, Connection>,
    wheel: Wheel,
    /// Those without an allocation.
    crowd: Crowd<Connection>,
    /// What is left of the budget of handshakes, in bytes.
    handshake_budget: usize,
}

impl Sessions {
    pub(super) fn new(limits: DtlsLimits) -> Self {
        Self {
            limits,
            places: Vec::new(),
            free: Vec::new(),
            by_address: HashMap::new(),
            wheel: Wheel::new(Time::ZERO),
            crowd: Crowd::new(limits.crowd),
            handshake_budget: HANDSHAKE_BUDGET,
        }
    }

    /// The session of a client.
    #[inline]
    pub(super) fn find(&self, address: Address) -> Option<Connection> {
        self.by_address.get(&address).copied()
    }

    #[inline]
    pub(super) fn get(&self, name: Connection) -> Option<&Entry> {
        let place = self.places.get(index(name) as usize)?;
        place
            .as_ref()
            .filter(|entry| entry.client.connection == name)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, name: Connection) -> Option<&mut Entry> {
        let place = self.places.get_mut(index(name) as usize)?;
        place
            .as_mut()
            .filter(|entry| entry.client.connection == name)
    }

    /// Whether there is room for one more.
    pub(super) fn has_room(&self) -> bool {
        self.by_address.len() < self.limits.sessions
    }

    /// Whether there is, or one without an allocation may have to make it.
    pub(super) fn may_have_room(&self) -> bool {
        self.has_room() || self.crowd.len() > 0
    }

    /// The bytes that are left of the budget of handshakes.
    #[cfg(test)]
    pub(super) fn handshake_budget(&self) -> usize {
        self.handshake_budget
    }

    /// How many have no allocation.
    #[cfg(test)]
    pub(super) fn unallocated_count(&self) -> usize {
        self.crowd.len()
    }

    /// The session that has to go before one more begins, and why: the oldest from `source` if that has as many without an allocation as it may
    /// have, else, if the shard has, the oldest of the source with the most. `has_allocation` tells which of them have got one meanwhile.
    pub(super) fn displaced_by(
        &mut self,
        source: IpAddr,
        mut has_allocation: impl FnMut(&ClientTuple) -> bool,
    ) -> Option<(Connection, CloseReason)> {
        loop {
            let displaced = self.crowd.displaced_by(Some(source)).or_else(|| {
                let is_full = !self.has_room();
                let oldest = is_full.then(|| self.crowd.oldest_of_busiest()).flatten();
                Some((oldest?, Exceeded::Total))
            });
            let (name, exceeded) = displaced?;
            let stays = self
                .get(name)
                .is_none_or(|entry| has_allocation(&entry.client));
            self.discount(name);
            if !stays {
                let reason = match exceeded {
                    Exceeded::Source => CloseReason::CrowdedAddress,
                    Exceeded::Total => CloseReason::Crowded,
                };
                return Some((name, reason));
            }
        }
    }

    /// Takes a session in; there is none of this client.
    pub(super) fn add(
        &mut self,
        now: Time,
        address: Address,
        session: Session,
        random: [u8; 32],
    ) -> ClientTuple {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            u32::try_from(self.places.len() - 1).unwrap_or(u32::MAX)
        });
        let name = Connection::new(place, serial());
        let check = now + RETRANSMISSION_CHECK.min(self.limits.handshake);
        self.wheel.schedule(place, check);
        self.by_address.insert(address, name);
        let counted = self.crowd.add(address.client.ip(), name);
        let client = ClientTuple {
            listener: address.listener,
            remote: address.client,
            transport: Transport::Dtls,
            connection: name,
        };
        self.places[place as usize] = Some(Entry {
            session,
            client,
            address,
            random,
            handshake_left: HANDSHAKE_DATAGRAMS_MAX,
            claimed: [0; MESSAGES_MAX],
            early: 0,
            borrowed: 0,
            place: Some(counted),
            unallocated_since: now,
            phase: Phase::Handshake,
            since: now,
            check,
        });
        client
    }

    /// Forgets a session.
    pub(super) fn remove(&mut self, name: Connection) -> Option<Entry> {
        self.discount(name);
        self.give_back(name);
        let place = self.places.get_mut(index(name) as usize)?;
        let entry = place.take_if(|entry| entry.client.connection == name)?;
        self.by_address.remove(&entry.address);
        self.wheel.cancel(index(name));
        self.free.push(index(name));
        Some(entry)
    }

    /// The names of all.
    pub(super) fn names(&self) -> Vec<Connection> {
        let entries = self.places.iter().flatten();
        entries.map(|entry| entry.client.connection).collect()
    }

    /// Notes that keys are agreed on.
    pub(super) fn handshake_done(&mut self, now: Time, name: Connection) {
        let limits = self.limits;
        self.give_back(name);
        if let Some(entry) = self.get_mut(name)
            && entry.phase == Phase::Handshake
        {
            entry.phase = Phase::Silent;
            entry.since = now;
            entry.check = entry.deadline(&limits).0;
            let check = entry.check;
            self.wheel.schedule(index(name), check);
        }
    }

    /// Notes that a message came.
    #[inline]
    pub(super) fn heard(&mut self, now: Time, name: Connection) {
        let limits = self.limits;
        let Some(entry) = self.get_mut(name) else {
            return;
        };
        entry.since = now;
        if entry.phase != Phase::Proven {
            entry.phase = Phase::Proven;
            let (deadline, _) = entry.deadline(&limits);
            if deadline < entry.check {
                entry.check = deadline;
                self.wheel.schedule(index(name), deadline);
            }
        }
    }

    /// Notes whether the client of a session has an allocation.
    #[inline]
    pub(super) fn allocated(&mut self, now: Time, name: Connection, has_allocation: bool) {
        let Some(entry) = self.get(name) else {
            return;
        };
        // guard: V-42-held, V-42-proof
        if entry.place.is_none() == has_allocation {
            return;
        }
        if has_allocation {
            return self.discount(name);
        }
        let place = self.crowd.add(entry.client.remote.ip(), name);
        let limits = self.limits;
        if let Some(entry) = self.get_mut(name) {
            entry.place = Some(place);
            entry.unallocated_since = now;
            let (deadline, _) = entry.deadline(&limits);
            if deadline < entry.check {
                entry.check = deadline;
                self.wheel.schedule(index(name), deadline);
            }
        }
    }

    /// The part of a datagram that a session takes in its handshake, charged for what it may keep of it.
    ///
    /// # Errors
    ///
    /// Why nothing of it is taken: it is one too many, no client sends such messages, or the memory for handshakes is used up.
    pub(super) fn admit<'a>(
        &mut self,
        name: Connection,
        datagram: &'a [u8],
    ) -> Result<&'a [u8], DropReason> {
        let budget = self.handshake_budget;
        let entry = self.get_mut(name).ok_or(DropReason::DtlsNoSession)?;
        let left = entry.handshake_left.checked_sub(1);
        let handshake_left = left.ok_or(DropReason::DtlsRejected)?;
        // Without keys OpenSSL would keep each of them in a buffer of its own.
        // guard: V-42-early
        let (part, early) = before_protected(datagram, EARLY_RECORDS_MAX - entry.early);
        if part.is_empty() {
            return Err(DropReason::DtlsRejected);
        }
        let mut claimed = entry.claimed;
        for claim in claims(part) {
            let len = claimed.get_mut(usize::from(claim.sequence));
            let len = len.ok_or(DropReason::DtlsMalformed)?;
            *len = claim.message_len.max(*len);
        }
        let early = entry.early + early;
        let kept = claimed.iter().sum::<usize>() + early * EARLY_RECORD_LEN;
        // guard: V-42-budget
        let wanted = kept.saturating_sub(HANDSHAKE_SHARE);
        let left = (budget + entry.borrowed).checked_sub(wanted);
        let left = left.ok_or(DropReason::DtlsCrowded)?;
        entry.handshake_left = handshake_left;
        entry.claimed = claimed;
        entry.early = early;
        entry.borrowed = wanted;
        self.handshake_budget = left;
        Ok(part)
    }

    /// Gives back what a session has taken from the budget of handshakes.
    fn give_back(&mut self, name: Connection) {
        if let Some(entry) = self.get_mut(name) {
            let borrowed = std::mem::take(&mut entry.borrowed);
            self.handshake_budget += borrowed;
        }
    }

    /// Counts a session no longer among those without an allocation, if it was.
    fn discount(&mut self, name: Connection) {
        if let Some(place) = self.get_mut(name).and_then(|entry| entry.place.take()) {
            self.crowd.remove(place);
        }
    }

    /// The next session that its timer is about. `has_allocation` tells who may be idle.
    pub(super) fn pop_due(
        &mut self,
        now: Time,
        budget: &mut u32,
        mut has_allocation: impl FnMut(&ClientTuple) -> bool,
    ) -> Option<Due> {
        while let Some(index) = self.wheel.pop_due(now, budget) {
            let limits = self.limits;
            let Some(Some(entry)) = self.places.get_mut(index as usize) else {
                continue;
            };
            let name = entry.client.connection;
            let (mut deadline, reason) = entry.deadline(&limits);
            if deadline <= now
                && matches!(reason, CloseReason::Idle | CloseReason::Unallocated)
                && has_allocation(&entry.client)
            {
                if let Some(place) = entry.place.take() {
                    self.crowd.remove(place);
                }
                deadline = now + limits.idle;
            }
            if deadline <= now {
                return Some(Due::Over(name, reason));
            }
            if entry.phase == Phase::Handshake {
                entry.check = deadline.min(now + RETRANSMISSION_CHECK);
                self.wheel.schedule(index, entry.check);
                return Some(Due::Retransmit(name));
            }
            entry.check = deadline;
            self.wheel.schedule(index, deadline);
        }
        None
    }

    /// When [`pop_due`](Self::pop_due) has something to do.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.wheel.next_timeout()
    }
}

impl Entry {
    /// Until when something has to have happened, and what is the matter if it has not.
    fn deadline(&self, limits: &DtlsLimits) -> (Time, CloseReason) {
        let (deadline, reason) = match self.phase {
            // guard: V-42-deadline
            Phase::Handshake => (self.since + limits.handshake, CloseReason::HandshakeLate),
            Phase::Silent => (
                self.since + limits.first_message,
                CloseReason::FirstMessageLate,
            ),
            Phase::Proven => (self.since + limits.idle, CloseReason::Idle),
        };
        let latest = self.unallocated_since + limits.unallocated;
        // guard: V-42-time
        if self.place.is_some() && latest < deadline {
            return (latest, CloseReason::Unallocated);
        }
        (deadline, reason)
    }
}

/// The place of a session.
fn index(name: Connection) -> u32 {
    name.place
}
