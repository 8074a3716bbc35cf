//! Finished transactions that must not take effect once more (V-22, RFC 8489 §6.3.1).
//!
//! A captured Refresh with lifetime zero, or the Allocate request of an allocation that has ended, still carries a valid
//! integrity attribute. On the same 5-tuple it would end, or create, an allocation the client knows nothing of. So the
//! transactions that ended or had created an allocation are remembered for as long as a nonce can live.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;

use turnbuckle_wire::TransactionId;

use crate::id::{AllocationId, ClientTuple};
use crate::time::Time;

/// No nonce is accepted for longer (RFC 8656 §5).
const MEMORY: Duration = Duration::from_secs(3600);

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
    by_transaction: BTreeMap<(C, [u8; 12]), (Deed, Time)>,
    oldest_first: VecDeque<(C, [u8; 12])>,
}

impl<C: Copy + Ord> Tombstones<C> {
    pub(crate) fn new(count_max: u32) -> Self {
        Self {
            count_max: count_max as usize,
            by_transaction: BTreeMap::new(),
            oldest_first: VecDeque::new(),
        }
    }

    /// Remembers a transaction; forgets the oldest one when there are too many.
    pub(crate) fn bury(&mut self, client: C, transaction: TransactionId, deed: Deed, now: Time) {
        let key = (client, *transaction.as_bytes());
        if self
            .by_transaction
            .insert(key, (deed, now + MEMORY))
            .is_none()
        {
            self.oldest_first.push_back(key);
        }
        while self.oldest_first.len() > self.count_max || self.oldest_is_forgotten(now) {
            if let Some(oldest) = self.oldest_first.pop_front() {
                self.by_transaction.remove(&oldest);
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
    fn remembers_the_latest_and_for_an_hour() {
        let mut tombstones = Tombstones::new(3);
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
    }

    #[test]
    fn an_old_memory_makes_room() {
        let mut tombstones = Tombstones::new(3);
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
    }
}
