//! Finished transactions that must not take effect once more (V-22, RFC 8489 §6.3.1).
//!
//! A captured Refresh request with lifetime zero still carries a valid integrity attribute, and so does the Allocate request of an
//! allocation that has ended. On the same 5-tuple the first would end an allocation, and the second would create one, without the
//! client's knowledge. So the transactions that ended or had created an allocation are recorded for as long as a nonce can be
//! valid. A record that is discarded earlier, because the table is full, is counted.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;

use turnbuckle_wire::TransactionId;

use crate::id::{AllocationId, ClientTuple};
use crate::time::Time;

/// The effect of a finished transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// It had created an allocation that has ended since, or it ended one.
    Over,
    /// It ended one family of this allocation.
    EndedFamily(AllocationId),
}

/// Listener and client of plain UDP, as all engines of a server name them.
pub(crate) type Addresses = (SocketAddr, SocketAddr);

/// The transactions that ended allocations that had moved, for all engines: another engine may have the client's next allocation
/// (RFC 8016).
pub(crate) type SharedTombstones = Mutex<Tombstones<Addresses>>;

/// The most recent finished transactions, by client and transaction id.
#[derive(Debug)]
pub(crate) struct Tombstones<C = ClientTuple> {
    count_max: usize,
    /// How long a nonce can be valid.
    memory: Duration,
    /// Number of records that were discarded while the nonces of their transactions could still be valid.
    forgotten_early: u64,
    by_transaction: BTreeMap<Key<C>, (Effect, Time)>,
    oldest_first: VecDeque<Key<C>>,
}

/// The transaction id first: it is random, so that a comparison ends at its first bytes.
type Key<C> = ([u8; 12], C);

impl<C: Copy + Ord> Tombstones<C> {
    pub(crate) fn new(count_max: u32, memory: Duration) -> Self {
        Self {
            count_max: count_max as usize,
            memory,
            forgotten_early: 0,
            by_transaction: BTreeMap::new(),
            oldest_first: VecDeque::new(),
        }
    }

    /// Records a transaction. Discards the oldest record when there are too many.
    pub(crate) fn record(
        &mut self,
        client: C,
        transaction: TransactionId,
        effect: Effect,
        now: Time,
    ) {
        let key = (*transaction.as_bytes(), client);
        if self
            .by_transaction
            .insert(key, (effect, now + self.memory))
            .is_none()
        {
            self.oldest_first.push_back(key);
        }
        while self.oldest_first.len() > self.count_max || self.oldest_is_forgotten(now) {
            let Some(oldest) = self.oldest_first.pop_front() else {
                break;
            };
            if let Some((_, until)) = self.by_transaction.remove(&oldest) {
                self.forgotten_early += u64::from(now < until);
            }
        }
    }

    /// Returns what this transaction did before, if there is a record of it.
    pub(crate) fn find(&self, client: C, transaction: TransactionId, now: Time) -> Option<Effect> {
        let &(effect, until) = self
            .by_transaction
            .get(&(*transaction.as_bytes(), client))?;
        (now < until).then_some(effect)
    }

    pub(crate) fn forgotten_early(&self) -> u64 {
        self.forgotten_early
    }

    pub(crate) fn len(&self) -> usize {
        self.by_transaction.len()
    }

    fn oldest_is_forgotten(&self, now: Time) -> bool {
        let oldest = self
            .oldest_first
            .front()
            .and_then(|key| self.by_transaction.get(key));
        oldest.is_some_and(|&(_, until)| until <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Endpoint;

    const CLIENT: ClientTuple = ClientTuple::udp(
        Endpoint(1),
        SocketAddr::new(core::net::IpAddr::V4(core::net::Ipv4Addr::LOCALHOST), 9),
    );

    #[test]
    fn remembers_the_latest_for_an_hour_and_counts_what_it_had_no_room_for() {
        let mut tombstones = Tombstones::new(3, Duration::from_secs(3600));
        for n in 0..5 {
            tombstones.record(
                CLIENT,
                TransactionId::new([n; 12]),
                Effect::Over,
                Time::from_secs(n.into()),
            );
        }
        let known = |n, seconds| {
            tombstones
                .find(
                    CLIENT,
                    TransactionId::new([n; 12]),
                    Time::from_secs(seconds),
                )
                .is_some()
        };
        assert_eq!(
            [0, 1, 2, 3, 4].map(|n| known(n, 10)),
            [false, false, true, true, true]
        );
        assert!(known(4, 3_603) && !known(4, 3_604));
        assert_eq!(tombstones.forgotten_early(), 2);
    }

    #[test]
    fn an_old_memory_makes_room() {
        let mut tombstones = Tombstones::new(3, Duration::from_secs(3600));
        tombstones.record(
            CLIENT,
            TransactionId::new([1; 12]),
            Effect::Over,
            Time::from_secs(0),
        );
        tombstones.record(
            CLIENT,
            TransactionId::new([2; 12]),
            Effect::Over,
            Time::from_secs(3_600),
        );
        assert_eq!(tombstones.by_transaction.len(), 1);
        assert_eq!(tombstones.oldest_first.len(), 1);
        assert_eq!(tombstones.forgotten_early(), 0, "its time was over");
    }
}
