//! Keeps, for one front, the phase and the deadline of each connection or session, and the limits on those without an allocation.
//!
//! Invariant: each has one timer, which fires no later than its deadline. When it fires, the deadline is checked again. So extending a deadline,
//! which every message does, costs nothing.
//!
//! A client without an allocation counts against the limits of the shard and of its source, however many messages it sends, because an
//! unauthenticated message proves nothing. It is counted from its arrival until its client has an allocation, and again after that allocation ends.
//!
//! The memory of handshakes is bounded too. Beyond a share of its own, each takes memory from a budget that all of them share.

mod crowd;

use std::net::IpAddr;
use std::time::Duration;

use turnbuckle_engine::{Time, Wheel};

pub(crate) use self::crowd::{Crowd, CrowdLimits, CrowdPlace, Exceeded, SourceCounts};
use crate::counters::CloseReason;

/// The time and number limits of connections or sessions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BookLimits {
    /// From the first byte of a handshake to its end.
    pub(crate) handshake: Duration,
    /// From the arrival, or the end of the handshake, to the end of the first message.
    pub(crate) first_message: Duration,
    /// From the first byte of a message to its last.
    pub(crate) message: Duration,
    /// Without an allocation, from one message to the next.
    pub(crate) idle: Duration,
    /// Without an allocation, in total.
    pub(crate) unallocated: Duration,
    /// Number of those without an allocation, for one shard.
    pub(crate) crowd: CrowdLimits,
}

/// Bytes of a handshake that may wait for each: those of a client without a certificate are fewer.
pub(crate) const HANDSHAKE_SHARE: usize = 8 * 1024;
/// Bytes that may wait for all of a shard beyond their shares.
pub(crate) const HANDSHAKE_BUDGET: usize = 4 * 1024 * 1024;

/// The phase of a connection or session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It is in its handshake.
    Handshake,
    /// No message has come.
    Silent,
    /// A message has come.
    Proven,
}

/// The book's entry of one connection or session. The front keeps it beside the connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    /// Its place in the front's table, by which its timer is named.
    place: u32,
    phase: Phase,
    /// The beginning of the phase. After the first message, the time of the last message.
    since: Time,
    /// The time at which the incomplete message began.
    begun: Option<Time>,
    /// When the timer fires.
    check: Time,
    /// Its place in the crowd while it has no allocation.
    counted: Option<CrowdPlace>,
    /// The time since which it has no allocation.
    unallocated_since: Time,
    /// Bytes that it has taken from the budget of handshakes.
    borrowed: usize,
}

/// The action after a timer has fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// A check of the handshake is due, which sends a lost flight again.
    Handshake,
    /// Nothing yet.
    Later,
    /// Its time is over.
    Over(CloseReason),
}

/// The book of one front. `K` identifies its connections or sessions.
pub(crate) struct Book<K> {
    limits: BookLimits,
    /// Interval of checks during a handshake, if there are any.
    handshake_check: Option<Duration>,
    wheel: Wheel,
    /// Those without an allocation.
    crowd: Crowd<K>,
    /// Remaining budget of handshakes, in bytes.
    handshake_budget: usize,
}

impl<K: Copy> Book<K> {
    pub(crate) fn new(limits: BookLimits, handshake_check: Option<Duration>) -> Self {
        Self {
            limits,
            handshake_check,
            wheel: Wheel::new(Time::ZERO),
            crowd: Crowd::new(limits.crowd),
            handshake_budget: HANDSHAKE_BUDGET,
        }
    }

    /// Sets other limits. Those that are there stay; their deadlines are judged by them from the next check on.
    pub(crate) fn set_limits(&mut self, limits: BookLimits) {
        self.limits = limits;
        self.crowd.set_limits(limits.crowd);
    }

    /// Adds a connection or session that has no allocation.
    pub(crate) fn enter(
        &mut self,
        now: Time,
        place: u32,
        (key, source): (K, IpAddr),
        phase: Phase,
    ) -> Standing {
        let limits = &self.limits;
        let check = now
            + match phase {
                Phase::Handshake => self
                    .handshake_check
                    .map_or(limits.handshake, |check| check.min(limits.handshake)),
                Phase::Silent => limits.first_message,
                Phase::Proven => limits.idle,
            };
        self.wheel.schedule(place, check);
        Standing {
            place,
            phase,
            since: now,
            begun: None,
            check,
            counted: Some(self.crowd.add(source, key)),
            unallocated_since: now,
            borrowed: 0,
        }
    }

    /// Removes a connection or session that is closed.
    pub(crate) fn strike(&mut self, standing: &mut Standing) {
        self.discount(standing);
        self.give_back(standing);
        self.wheel.cancel(standing.place);
    }

    /// Takes one off the count of those without an allocation, if it was counted.
    #[inline]
    pub(crate) fn discount(&mut self, standing: &mut Standing) {
        if let Some(place) = standing.counted.take() {
            self.crowd.remove(place);
        }
    }

    /// Counts one for `source`. It must not be counted yet.
    pub(crate) fn count(&mut self, standing: &mut Standing, (key, source): (K, IpAddr)) {
        standing.counted = Some(self.crowd.add(source, key));
    }

    /// Notes that one is joined with a peer data connection, so that no message is expected on it.
    pub(crate) fn exempt(&mut self, standing: &mut Standing) {
        self.discount(standing);
        standing.phase = Phase::Proven;
        standing.begun = None;
    }

    /// Notes whether the client has an allocation.
    #[inline]
    pub(crate) fn allocated(
        &mut self,
        now: Time,
        standing: &mut Standing,
        who: (K, IpAddr),
        has_allocation: bool,
    ) {
        if standing.counted.is_none() == has_allocation {
            return;
        }
        if has_allocation {
            return self.discount(standing);
        }
        self.count(standing, who);
        standing.unallocated_since = now;
        self.watch(standing);
    }

    /// Notes received bytes: whether there were whole messages, and whether another one has begun.
    #[inline]
    pub(crate) fn progressed(
        &mut self,
        now: Time,
        standing: &mut Standing,
        messages: bool,
        is_begun: bool,
    ) {
        if messages {
            standing.phase = Phase::Proven;
            standing.since = now;
            standing.begun = is_begun.then_some(now);
        } else if is_begun && standing.phase == Phase::Proven && standing.begun.is_none() {
            standing.begun = Some(now);
        } else {
            return;
        }
        self.watch(standing);
    }

    /// Notes that a handshake has begun.
    pub(crate) fn handshake_begun(&mut self, now: Time, standing: &mut Standing) {
        standing.phase = Phase::Handshake;
        standing.since = now;
        self.watch(standing);
    }

    /// Notes that a handshake is over.
    pub(crate) fn handshake_done(&mut self, now: Time, standing: &mut Standing) {
        self.give_back(standing);
        if standing.phase == Phase::Handshake {
            standing.phase = Phase::Silent;
            standing.since = now;
            if self.handshake_check.is_some() {
                // The frequent checks of the handshake end here.
                standing.check = Time::MAX;
            }
            self.watch(standing);
        }
    }

    /// Notes how many bytes of a handshake are kept. Returns whether the handshake's share and the common budget allow them.
    pub(crate) fn borrow(&mut self, standing: &mut Standing, bytes: usize) -> bool {
        // guard: V-42-budget, V-48-budget
        let wanted = bytes.saturating_sub(HANDSHAKE_SHARE);
        let left = (self.handshake_budget + standing.borrowed).checked_sub(wanted);
        let Some(left) = left else {
            return false;
        };
        standing.borrowed = wanted;
        self.handshake_budget = left;
        true
    }

    /// Gives the bytes that one has taken back to the budget of handshakes.
    pub(crate) fn give_back(&mut self, standing: &mut Standing) {
        self.handshake_budget += std::mem::take(&mut standing.borrowed);
    }

    /// Returns the one that a new one from `source` displaces, and the exceeded limit. If the source has reached its limit, it is the oldest of
    /// that source. If the shard has reached its limit or `is_full`, it is the oldest of the source with the most. Without a source only the
    /// shard's limit applies.
    pub(crate) fn displaced_by(
        &self,
        source: Option<IpAddr>,
        is_full: bool,
    ) -> Option<(K, CloseReason)> {
        match self.crowd.displaced_by(source) {
            Some((key, Exceeded::Source)) => Some((key, CloseReason::CrowdedAddress)),
            Some((key, Exceeded::Total)) => Some((key, CloseReason::Crowded)),
            None => {
                let oldest = is_full.then(|| self.crowd.oldest_of_busiest()).flatten()?;
                Some((oldest, CloseReason::Crowded))
            }
        }
    }

    /// Returns how many have no allocation.
    pub(crate) fn crowd_len(&self) -> usize {
        self.crowd.len()
    }

    /// Returns the time of the next timer, for [`pop_due`](Self::pop_due).
    pub(crate) fn next_timeout(&self) -> Option<Time> {
        self.wheel.next_timeout()
    }

    /// Returns the place of the next one whose timer fires, which is to be [judged](Self::judge).
    pub(crate) fn pop_due(&mut self, now: Time, budget: &mut u32) -> Option<u32> {
        self.wheel.pop_due(now, budget)
    }

    /// Returns the action for one whose timer has fired, and sets the timer again unless the deadline has passed. With `has_allocation` it may be
    /// idle. `relayed_until` is its deadline if it is joined with a peer data connection.
    pub(crate) fn judge(
        &mut self,
        now: Time,
        standing: &mut Standing,
        relayed_until: Option<Time>,
        has_allocation: impl FnOnce() -> bool,
    ) -> Due {
        let (mut deadline, reason) = match relayed_until {
            Some(deadline) => (deadline, CloseReason::Stalled),
            None => standing.deadline(&self.limits),
        };
        if deadline <= now
            && matches!(reason, CloseReason::Idle | CloseReason::Unallocated)
            && has_allocation()
        {
            self.discount(standing);
            deadline = now + self.limits.idle;
        }
        if deadline <= now {
            return Due::Over(reason);
        }
        let is_watched = standing.phase == Phase::Handshake;
        let next = self.handshake_check.filter(|_| is_watched);
        self.set(
            standing,
            next.map_or(deadline, |next| deadline.min(now + next)),
        );
        match next {
            Some(_) => Due::Handshake,
            None => Due::Later,
        }
    }

    /// Sets the timer so that it fires no later than the deadline.
    #[inline]
    fn watch(&mut self, standing: &mut Standing) {
        let (deadline, _) = standing.deadline(&self.limits);
        self.watch_until(standing, deadline);
    }

    /// Sets the timer so that it fires no later than `deadline`.
    #[inline]
    pub(crate) fn watch_until(&mut self, standing: &mut Standing, deadline: Time) {
        if deadline < standing.check {
            self.set(standing, deadline);
        }
    }

    fn set(&mut self, standing: &mut Standing, check: Time) {
        standing.check = check;
        self.wheel.schedule(standing.place, check);
    }

    /// Returns how long one may be idle without an allocation.
    pub(crate) fn idle(&self) -> Duration {
        self.limits.idle
    }

    /// Returns the bytes that are left of the budget of handshakes.
    #[cfg(test)]
    pub(crate) fn handshake_budget(&self) -> usize {
        self.handshake_budget
    }
}

impl Standing {
    /// Returns whether a message has come.
    #[inline]
    pub(crate) fn is_proven(&self) -> bool {
        self.phase == Phase::Proven
    }

    /// Returns the present deadline, and the reason to close when it has passed.
    fn deadline(&self, limits: &BookLimits) -> (Time, CloseReason) {
        let (deadline, reason) = match (self.phase, self.begun) {
            // guard: V-42-deadline, V-48-half
            (Phase::Handshake, _) => (self.since + limits.handshake, CloseReason::HandshakeLate),
            // guard: V-47-silence
            (Phase::Silent, _) => (
                self.since + limits.first_message,
                CloseReason::FirstMessageLate,
            ),
            // guard: V-47-half
            (Phase::Proven, Some(begun)) => (begun + limits.message, CloseReason::MessageLate),
            (Phase::Proven, None) => (self.since + limits.idle, CloseReason::Idle),
        };
        let latest = self.unallocated_since + limits.unallocated;
        // guard: V-42-time, V-47-time
        if self.counted.is_some() && latest < deadline {
            return (latest, CloseReason::Unallocated);
        }
        (deadline, reason)
    }
}
