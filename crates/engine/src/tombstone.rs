//! Finished transactions that must not take effect once more (V-22, RFC 8489 §6.3.1).
//!
//! A captured Refresh with lifetime zero, or the Allocate request of an allocation that has ended, still carries a valid
//! integrity attribute. On the same 5-tuple it would end, or create, an allocation the client knows nothing of. So the
//! transactions that ended or had created an allocation are remembered for as long as a nonce can live. What has to be forgotten
//! earlier, for want of room, is counted.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;

use turnbuckle_wire::TransactionId;

use crate::id::{AllocationId, ClientTuple};
use crate::time::Time;

/// What a finished transaction did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    /// It had created an allocation that has ended since, or it ended one.
    Over,
    /// It ended one family of this allocation.
    EndedFamily(AllocationId),
}

/// Listener and client of plain UDP, as all engines of a server name them.
pub(crate) type Addresses = (SocketAddr, SocketAddr);

/// What ended allocations that had moved, for all engines: a client's next allocation may be another engine's (RFC 8016).
pub(crate) type SharedTombstones = Mutex<Tombstones<Addresses>>;

/// The last so many finished transactions, by client and name.
#[derive(Debug)]
pub(crate) struct Tombstones<C = ClientTuple> {
    count_max: usize,
    /// How long a nonce can be good.
    memory: Duration,
    /// Transactions that were forgotten while their nonces could still be good.
    forgotten_early: u64,
    by_transaction: BTreeMap<(C, [u8; 12]), (Deed, Time)>,
    oldest_first: VecDeque<(C, [u8; 12])>,
}

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

    /// Remembers a transaction; forgets the oldest one when there are too many.
    pub(crate) fn bury(&mut self, client: C, transaction: TransactionId, deed: Deed, now: Time) {
        let key = (client, *transaction.as_bytes());
        if self
            .by_transaction
            .insert(key, (deed, now + self.memory))
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

    /// What this transaction did before, if it is remembered.
    pub(crate) fn find(&self, client: C, transaction: TransactionId, now: Time) -> Option<Deed> {
        let &(deed, until) = self
            .by_transaction
            .get(&(client, *transaction.as_bytes()))?;
        (now < until).then_some(deed)
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
            tombstones.bury(
                CLIENT,
                TransactionId::new([n; 12]),
                Deed::Over,
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
        tombstones.bury(
            CLIENT,
            TransactionId::new([1; 12]),
            Deed::Over,
            Time::from_secs(0),
        );
        tombstones.bury(
            CLIENT,
            TransactionId::new([2; 12]),
            Deed::Over,
            Time::from_secs(3_600),
        );
        assert_eq!(tombstones.by_transaction.len(), 1);
        assert_eq!(tombstones.oldest_first.len(), 1);
        assert_eq!(tombstones.forgotten_early(), 0, "its time was over");
    }
}
