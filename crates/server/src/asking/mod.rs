//! Asks the user database about a user whose request would be refused.
//!
//! Invariant: nobody waits here. A shard that has a question gets it through the bounds ([`bounds`]) to the queue of the thread that has the
//! database, or is told at once that the request is refused without. The answer comes back by the main thread, behind the settings that it has
//! changed, so that a shard has these when it hears of it.
//! [Decision 43](../../../../docs/decisions/0043-a-request-is-refused-after-one-question.md) has the reasons.

mod bounds;

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use turnbuckle_counters::reasons;
use turnbuckle_engine::{Question, Time};
use turnbuckle_users::Question as Query;

use self::bounds::{About, Bounds};

reasons! {
    /// What became of a request whose user is unknown or has another key.
    pub(crate) enum AskResult {
        /// The database was asked and does not answer.
        Away = "away",
        /// Not asked: the database did not answer shortly before.
        Broken = "broken",
        /// The database was asked, and a user or secrets are new.
        Found = "found",
        /// The database was asked, and has not answered in time.
        Late = "late",
        /// Not asked: the address has asked too often.
        LimitedAddress = "limited_address",
        /// Not asked: as many questions wait already as may.
        LimitedQueue = "limited_queue",
        /// Not asked: everyone together has asked too often.
        LimitedRate = "limited_rate",
        /// Not asked: too many requests wait at this shard, or this one is too long to wait.
        LimitedRoom = "limited_room",
        /// The database was asked, and nothing is new.
        Vain = "vain",
        /// Not asked: the same address has asked the same in vain shortly before.
        VainBefore = "vain_before",
    }
}

/// An answer, for the shard that has asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answered {
    /// The number of the request that waits.
    pub(crate) number: u32,
    pub(crate) result: AskResult,
}

/// The bounds of a server, which all shards share with the thread that has the database. Locked for a question and for an answer, never for a
/// request that is good.
#[derive(Clone, Default)]
pub(crate) struct SharedBounds(Arc<Mutex<Bounds>>);

impl SharedBounds {
    /// Takes note of what a question came to.
    pub(crate) fn ended(&self, now: Time, result: AskResult) {
        self.lock().ended(now, result);
    }

    fn lock(&self) -> MutexGuard<'_, Bounds> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes questions of all shards.
#[derive(Clone)]
pub(crate) struct Asker {
    /// Returns whether there was room for a question.
    put: Arc<dyn Fn(Query) -> bool + Send + Sync>,
    bounds: SharedBounds,
}

impl Asker {
    /// Asks by `put`, which returns whether there was room for a question.
    pub(crate) fn new(
        put: impl Fn(Query) -> bool + Send + Sync + 'static,
        bounds: SharedBounds,
    ) -> Self {
        Self {
            put: Arc::new(put),
            bounds,
        }
    }

    /// Puts a question that `source` has brought. The answer is for `shard`, under `number`.
    ///
    /// # Errors
    ///
    /// Why nobody is asked.
    pub(crate) fn ask(
        &self,
        now: Time,
        source: IpAddr,
        question: &Question,
        (shard, number): (usize, u32),
    ) -> Result<(), AskResult> {
        let mut bounds = self.bounds.lock();
        bounds.admit(now, About::of(source, question))?;
        let query = Query {
            realm: (*question.realm).to_owned(),
            name: (*question.name).to_owned(),
            tag: tag(shard, number),
        };
        if (self.put)(query) {
            Ok(())
        } else {
            bounds.ended(now, AskResult::LimitedQueue);
            Err(AskResult::LimitedQueue)
        }
    }

    /// Takes note that a question of `source` was in vain.
    pub(crate) fn was_vain(&self, now: Time, source: IpAddr, question: &Question) {
        self.bounds
            .lock()
            .was_vain(now, About::of(source, question));
    }
}

/// Packs where an answer goes.
fn tag(shard: usize, number: u32) -> u64 {
    (shard as u64) << 32 | u64::from(number)
}

/// Returns the shard and the number in a tag.
#[expect(clippy::cast_possible_truncation, reason = "the two halves are wanted")]
pub(crate) fn of_tag(tag: u64) -> (usize, u32) {
    ((tag >> 32) as usize, tag as u32)
}
