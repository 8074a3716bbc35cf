//! The sessions of a shard: which client each one is, and until when it has to have done what.
//!
//! Invariant: a session has one timer, which fires no later than its deadline; at that moment the deadline is looked at again. While it
//! shakes hands the timer fires more often, for OpenSSL to send again what may be lost.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use turnbuckle_engine::{ClientTuple, Connection, Time, Transport, Wheel};

use super::Address;
use super::session::Session;
use crate::counters::CloseReason;
use crate::serial::serial;
use crate::sources::SourceCounts;

/// How long sessions may take for what, and how many there may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DtlsLimits {
    /// From the hello with a cookie to the end of the handshake.
    pub(crate) handshake: Duration,
    /// From there to the first message.
    pub(crate) first_message: Duration,
    /// Without an allocation, from one datagram to the next.
    pub(crate) idle: Duration,
    /// Sessions of one shard from which no message has come yet; beyond it the oldest goes.
    pub(crate) unproven: usize,
    /// The same from one address or IPv6 prefix, with those that wait to begin; beyond it no further one does.
    pub(crate) unproven_per_address: u32,
    /// Sessions of one shard.
    pub(crate) sessions: usize,
}

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
    pub(super) handshake_left: u32,
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
    /// Sessions that had not proven themselves when they were put here, oldest first.
    unproven: VecDeque<Connection>,
    unproven_count: usize,
    /// Where these come from.
    unproven_sources: SourceCounts,
}

impl Sessions {
    pub(super) fn new(limits: DtlsLimits) -> Self {
        Self {
            limits,
            places: Vec::new(),
            free: Vec::new(),
            by_address: HashMap::new(),
            wheel: Wheel::new(Time::ZERO),
            unproven: VecDeque::new(),
            unproven_count: 0,
            unproven_sources: SourceCounts::default(),
        }
    }

    /// Allows so many.
    #[cfg(test)]
    pub(super) fn allow(&mut self, sessions: usize) {
        self.limits.sessions = sessions;
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

    /// How many sessions from where this address is have proven nothing.
    pub(super) fn unproven_of(&self, address: IpAddr) -> u32 {
        self.unproven_sources.count(address)
    }

    /// The session that has to go before another one may begin: the oldest from which nothing has come, if there are too many.
    pub(super) fn crowded(&mut self) -> Option<Connection> {
        while let Some(&oldest) = self.unproven.front()
            && !self.is_unproven(oldest)
        {
            self.unproven.pop_front();
        }
        // guard: V-42-half-open
        let is_crowded = self.unproven_count >= self.limits.unproven;
        self.unproven.front().copied().filter(|_| is_crowded)
    }

    /// Takes a session in; there is none of this client.
    pub(super) fn add(
        &mut self,
        now: Time,
        address: Address,
        session: Session,
        random: [u8; 32],
        handshake_left: u32,
    ) -> ClientTuple {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            u32::try_from(self.places.len() - 1).unwrap_or(u32::MAX)
        });
        let name = Connection::new(place, serial());
        let check = now + RETRANSMISSION_CHECK.min(self.limits.handshake);
        self.wheel.schedule(place, check);
        self.by_address.insert(address, name);
        // What is left of those that are gone is cleared away before it is more than what is there.
        if self.unproven.len() > 2 * self.unproven_count + 64 {
            let mut unproven = std::mem::take(&mut self.unproven);
            unproven.retain(|name| self.is_unproven(*name));
            self.unproven = unproven;
        }
        self.unproven.push_back(name);
        self.unproven_count += 1;
        self.unproven_sources.add(address.client.ip());
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
            handshake_left,
            phase: Phase::Handshake,
            since: now,
            check,
        });
        client
    }

    /// Forgets a session.
    pub(super) fn remove(&mut self, name: Connection) -> Option<Entry> {
        if self.is_unproven(name) {
            self.proved(name);
        }
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
            self.proved(name);
        }
    }

    /// Counts a session no longer among those that have proven nothing.
    fn proved(&mut self, name: Connection) {
        self.unproven_count -= 1;
        if let Some(entry) = self.get(name) {
            let source = entry.client.remote.ip();
            self.unproven_sources.remove(source);
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
            if deadline <= now && reason == CloseReason::Idle && has_allocation(&entry.client) {
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

    fn is_unproven(&self, name: Connection) -> bool {
        self.get(name)
            .is_some_and(|entry| entry.phase != Phase::Proven)
    }
}

impl Entry {
    /// Until when something has to have happened, and what is the matter if it has not.
    fn deadline(&self, limits: &DtlsLimits) -> (Time, CloseReason) {
        match self.phase {
            // guard: V-42-deadline
            Phase::Handshake => (self.since + limits.handshake, CloseReason::HandshakeLate),
            Phase::Silent => (
                self.since + limits.first_message,
                CloseReason::FirstMessageLate,
            ),
            Phase::Proven => (self.since + limits.idle, CloseReason::Idle),
        }
    }
}

/// The place of a session.
fn index(name: Connection) -> u32 {
    name.place
}
