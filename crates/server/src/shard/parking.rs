//! Requests that wait until the user database has been asked about their user.
//!
//! Invariant: a STUN request that is parked is in and not yet out, and leaves once: it is handled finally ([`Parking::due`]), or dropped with its
//! connection or its shard. None waits longer than [`WAIT_MAX`] for an answer about its user. A request for a tunnel is kept by its front, counts when
//! it is answered, and only waits here.
//!
//! A request of a connection waits here too while a relay that goes on with calls has not read its users yet ([`Parking::wait_for_users`]): its client
//! does not send it again, as one does by UDP.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use turnbuckle_engine::{ClientTuple, Question, Time};

use crate::asking::{Answered, AskResult, Asker};
use crate::counters::ShardCounters;

/// Requests of a shard that may wait.
const PARKED_MAX: usize = 512;
/// Bytes of a request that may wait.
const REQUEST_LEN_MAX: usize = 1500;
/// How long a request waits at the longest.
const WAIT_MAX: Duration = Duration::from_millis(300);
/// A request that has waited is handled after a multiple of this time, so that its answer does not tell how long the database took (V-26).
const GRID: Duration = Duration::from_millis(10);
/// Where a STUN message has its transaction id (RFC 8489 §5).
const TRANSACTION: std::ops::Range<usize> = 8..20;

/// The requests of a shard that wait, in the order in which they came.
pub(in crate::shard) struct Parking {
    asker: Option<Asker>,
    shard: usize,
    counters: Arc<ShardCounters>,
    parked: VecDeque<Parked>,
    /// The number of the next request.
    next: u32,
    /// The earliest moment at which one is due.
    due: Time,
}

/// A request that waits.
struct Parked {
    number: u32,
    client: ClientTuple,
    /// The STUN message; `None` for a request that its front keeps.
    request: Option<Box<[u8]>>,
    /// What was asked; `None` where it waits for the database to be read.
    question: Option<Question>,
    since: Time,
    due: Time,
    /// Whether the database has answered, or was not asked.
    is_answered: bool,
}

/// A request whose wait is over.
pub(in crate::shard) struct Due {
    pub(in crate::shard) client: ClientTuple,
    /// The STUN message; `None` for a request that its front keeps.
    pub(in crate::shard) request: Option<Box<[u8]>>,
}

impl Parking {
    pub(in crate::shard) fn new(now: Time, counters: Arc<ShardCounters>) -> Self {
        // A shard that is started anew takes no answer to a question of the one before.
        #[expect(clippy::cast_possible_truncation, reason = "the fast half is wanted")]
        let next = now.as_nanos() as u32;
        Self {
            asker: None,
            shard: 0,
            counters,
            parked: VecDeque::new(),
            next,
            due: Time::MAX,
        }
    }

    /// Has requests of shard number `shard` wait for `asker` from now on.
    pub(in crate::shard) fn connect(&mut self, shard: usize, asker: Option<Asker>) {
        self.shard = shard;
        self.asker = asker;
    }

    /// Returns whether no request waits.
    #[inline]
    pub(in crate::shard) fn is_empty(&self) -> bool {
        self.parked.is_empty()
    }

    /// Returns when the next request is due.
    pub(in crate::shard) fn next_timeout(&self) -> Option<Time> {
        (!self.is_empty()).then_some(self.due)
    }

    /// Returns whether the same request waits already.
    pub(in crate::shard) fn has(&self, client: &ClientTuple, request: &[u8]) -> bool {
        let transaction = request.get(TRANSACTION);
        let is_same = |parked: &Parked| {
            let waits = parked.request.as_deref();
            parked.client == *client && waits.is_some_and(|it| it.get(TRANSACTION) == transaction)
        };
        self.parked.iter().any(is_same)
    }

    /// Has a STUN request wait for the answer to `question`, or one that its front keeps. Returns false if nobody is asked.
    pub(in crate::shard) fn park(
        &mut self,
        now: Time,
        client: ClientTuple,
        request: Option<&[u8]>,
        question: Question,
    ) -> bool {
        let Some(asker) = &self.asker else {
            return false;
        };
        let number = self.next;
        let is_short = request.is_none_or(|request| request.len() <= REQUEST_LEN_MAX);
        // guard: V-54-ask-room
        let asked = match self.parked.len() < PARKED_MAX && is_short {
            true => asker.ask(now, client.remote.ip(), &question, (self.shard, number)),
            false => Err(AskResult::LimitedRoom),
        };
        if let Err(why) = asked {
            self.counters.asks.asks.of(why).add(1);
            return false;
        }
        self.next = self.next.wrapping_add(1);
        self.parked.push_back(Parked {
            number,
            client,
            request: request.map(Into::into),
            question: Some(question),
            since: now,
            // guard: V-54-ask-wait
            due: now + WAIT_MAX,
            is_answered: false,
        });
        self.settled();
        true
    }

    /// Has a STUN request of a connection be tried again after [`WAIT_MAX`]. Returns false if there is no room.
    pub(in crate::shard) fn wait_for_users(
        &mut self,
        now: Time,
        client: ClientTuple,
        request: &[u8],
    ) -> bool {
        if self.parked.len() >= PARKED_MAX || request.len() > REQUEST_LEN_MAX {
            return false;
        }
        self.parked.push_back(Parked {
            number: self.next,
            client,
            request: Some(request.into()),
            question: None,
            since: now,
            due: now + WAIT_MAX,
            is_answered: true,
        });
        self.next = self.next.wrapping_add(1);
        self.settled();
        true
    }

    /// Takes an answer of the database. The settings that it has changed are those of the engine already.
    pub(in crate::shard) fn answered(&mut self, now: Time, answer: Answered) {
        let Some(parked) = (self.parked.iter_mut()).find(|it| it.number == answer.number) else {
            return; // it has waited long enough, or its client is gone
        };
        // guard: V-26-grid
        parked.due = parked.due.min(on_grid(parked.since, now));
        parked.is_answered = true;
        self.counters.asks.asks.of(answer.result).add(1);
        if answer.result == AskResult::Vain
            && let (Some(asker), Some(question)) = (&self.asker, &parked.question)
        {
            asker.was_vain(now, parked.client.remote.ip(), question);
        }
        self.settled();
    }

    /// Takes out a request whose wait is over, the oldest first.
    pub(in crate::shard) fn due(&mut self, now: Time) -> Option<Due> {
        if self.due > now {
            return None;
        }
        let at = self.parked.iter().position(|parked| parked.due <= now)?;
        self.take(at)
    }

    /// Takes out the oldest request of a client, whether or not its wait is over.
    pub(in crate::shard) fn of(&mut self, client: &ClientTuple) -> Option<Due> {
        let at = (self.parked.iter()).position(|parked| parked.client == *client)?;
        self.take(at)
    }

    /// Forgets all requests, and returns how many STUN requests there were.
    pub(in crate::shard) fn clear(&mut self) -> u64 {
        let count = self.stun_requests();
        self.parked.clear();
        self.settled();
        count
    }

    fn take(&mut self, at: usize) -> Option<Due> {
        let parked = self.parked.remove(at)?;
        if !parked.is_answered {
            self.counters.asks.asks.of(AskResult::Late).add(1);
        }
        self.settled();
        Some(Due {
            client: parked.client,
            request: parked.request,
        })
    }

    fn settled(&mut self) {
        let due = self.parked.iter().map(|parked| parked.due).min();
        self.due = due.unwrap_or(Time::MAX);
        self.counters.asks.parked.set(self.stun_requests());
    }

    fn stun_requests(&self) -> u64 {
        let parked = self.parked.iter();
        parked.filter(|parked| parked.request.is_some()).count() as u64
    }
}

/// Returns the first moment, not before `now`, that is a multiple of [`GRID`] after `since`.
fn on_grid(since: Time, now: Time) -> Time {
    let steps = now.since(since).as_nanos().div_ceil(GRID.as_nanos());
    since + GRID * u32::try_from(steps).unwrap_or(u32::MAX)
}
