//! The server-wide register of peer data connections: which CONNECTION-IDs are in use and by whom, and how often each user
//! connects.
//!
//! The invariant: an id is in the ledger as long as its [`ConnectionLease`] exists, and a user is charged for as many attempts as
//! there are [`PendingUnit`]s of that user. The lock is taken when a connection begins, is bound or ends, never for its bytes.

use core::fmt;
use core::net::SocketAddr;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::config::TcpRelays;
use crate::credential::User;
use crate::id::ConnectionId;
use crate::time::Time;
use crate::unverified::Rate;

/// Number of users above which those that are charged for nothing are removed now and then.
const USERS_KEPT: usize = 1024;

#[derive(Debug)]
pub(crate) struct ConnectionLedger {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Attempts of one user that may be under way.
    pending_max: u32,
    /// How fast one user may begin them.
    rate: Rate,
    owner_by_id: BTreeMap<ConnectionId, Owner>,
    by_user: BTreeMap<Who, Attempts>,
    /// Number of users at which the next removal of idle users takes place.
    purge_at: usize,
}

/// The realm and the quota name of a user.
type Who = (Box<str>, Box<str>);

/// The owner of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    /// The user of the allocation that the connection belongs to.
    pub(crate) user: Arc<User>,
    /// The shard that has its allocation.
    pub(crate) shard: u32,
    /// The client's address on the control connection.
    pub(crate) client: SocketAddr,
    /// The address of the listener that the control connection came to.
    pub(crate) listener: SocketAddr,
}

/// The attempts of one user that are under way, and the state of the user's rate limit.
#[derive(Debug)]
struct Attempts {
    pending: u32,
    /// The generic cell rate algorithm's theoretical arrival time.
    due: Time,
}

impl ConnectionLedger {
    pub(crate) fn new(limits: Option<&TcpRelays>) -> Arc<Self> {
        let limits = limits.cloned().unwrap_or_default();
        Arc::new(Self {
            state: Mutex::new(State {
                pending_max: limits.pending_per_user,
                rate: limits.connects_per_user,
                owner_by_id: BTreeMap::new(),
                by_user: BTreeMap::new(),
                purge_at: 0,
            }),
        })
    }

    /// Sets other limits for attempts to come. Without TCP relays there are none to come.
    pub(crate) fn set_limits(&self, limits: Option<&TcpRelays>) {
        if let Some(limits) = limits {
            let mut state = self.lock();
            state.pending_max = limits.pending_per_user;
            state.rate = limits.connects_per_user;
        }
    }

    /// Takes an id nobody has, made with `random`.
    pub(crate) fn lease(
        self: &Arc<Self>,
        owner: Owner,
        mut random: impl FnMut() -> u32,
    ) -> ConnectionLease {
        let mut state = self.lock();
        loop {
            // ends soon: a host has far fewer sockets than there are numbers
            let id = ConnectionId(random());
            if id.0 != 0 && !state.owner_by_id.contains_key(&id) {
                state.owner_by_id.insert(id, owner);
                return ConnectionLease {
                    ledger: Arc::clone(self),
                    id,
                };
            }
        }
    }

    /// Returns the owner of a connection.
    pub(crate) fn owner_of(&self, id: ConnectionId) -> Option<Owner> {
        self.lock().owner_by_id.get(&id).cloned()
    }

    /// Notes that the user of a connection has another token.
    pub(crate) fn renew(&self, id: ConnectionId, user: &Arc<User>) {
        if let Some(owner) = self.lock().owner_by_id.get_mut(&id) {
            owner.user = Arc::clone(user);
        }
    }

    /// Charges a user for one more attempt to connect; `None` when it has too many under way, or begins them too fast (V-12).
    pub(crate) fn charge(
        self: &Arc<Self>,
        realm: &str,
        quota_name: &str,
        now: Time,
    ) -> Option<PendingUnit> {
        let who: Who = (realm.into(), quota_name.into());
        let mut state = self.lock();
        let State {
            pending_max, rate, ..
        } = *state;
        let step = Duration::from_secs(1) / rate.per_s.max(1);
        let tolerance = step * rate.burst.saturating_sub(1);
        if state.by_user.len() > state.purge_at.max(USERS_KEPT) {
            state
                .by_user
                .retain(|_, attempts| attempts.pending > 0 || now < attempts.due);
            state.purge_at = state.by_user.len() * 2;
        }
        let attempts = state.by_user.entry(who.clone()).or_insert(Attempts {
            pending: 0,
            due: now,
        });
        // guard: V-12-rate
        if attempts.pending >= pending_max || attempts.due > now + tolerance {
            return None;
        }
        attempts.pending += 1;
        attempts.due = attempts.due.max(now) + step;
        Some(PendingUnit {
            ledger: Arc::clone(self),
            who,
        })
    }

    /// Returns how many ids are out.
    pub(crate) fn len(&self) -> usize {
        self.lock().owner_by_id.len()
    }

    /// Returns how many attempts users are charged for.
    pub(crate) fn pending(&self) -> u32 {
        let state = self.lock();
        state
            .by_user
            .values()
            .map(|attempts| attempts.pending)
            .sum()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to one CONNECTION-ID; gives it back on drop.
pub(crate) struct ConnectionLease {
    ledger: Arc<ConnectionLedger>,
    id: ConnectionId,
}

impl ConnectionLease {
    pub(crate) fn id(&self) -> ConnectionId {
        self.id
    }
}

impl Drop for ConnectionLease {
    fn drop(&mut self) {
        // mutant: name-given-back-early
        self.ledger.lock().owner_by_id.remove(&self.id);
    }
}

impl fmt::Debug for ConnectionLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConnectionLease({})", self.id.0)
    }
}

/// One attempt of a user's that is under way, from the Connect request to the ConnectionBind; ends on drop.
pub(crate) struct PendingUnit {
    ledger: Arc<ConnectionLedger>,
    who: Who,
}

impl Drop for PendingUnit {
    fn drop(&mut self) {
        let mut state = self.ledger.lock();
        if let Some(attempts) = state.by_user.get_mut(&self.who) {
            // mutant: attempt-charged-for-ever
            attempts.pending -= 1;
        }
    }
}

impl fmt::Debug for PendingUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingUnit").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(pending: u32, burst: u32, per_s: u32) -> Arc<ConnectionLedger> {
        ConnectionLedger::new(Some(&TcpRelays {
            pending_per_user: pending,
            connects_per_user: Rate { burst, per_s },
            ..TcpRelays::default()
        }))
    }

    //= V-12
    #[test]
    fn a_user_begins_a_burst_at_once_and_then_so_many_a_second() {
        let ledger = ledger(1_000, 10, 2);
        let begun = |from_s: u64, seconds: u64| -> usize {
            (from_s * 100..(from_s + seconds) * 100)
                .filter(|hundredths| {
                    let now = Time::from_nanos(hundredths * 10_000_000);
                    ledger.charge("realm", "alice", now).is_some()
                })
                .count()
        };
        assert_eq!(begun(1_000, 10), 10 + 20 - 1);
        assert_eq!(
            begun(2_000, 10),
            10 + 20 - 1,
            "a rest brings the burst back"
        );
        assert!(
            ledger
                .charge("realm", "bob", Time::from_secs(2_010))
                .is_some()
        );
    }

    #[test]
    fn what_is_under_way_is_bounded_and_given_back() {
        let ledger = ledger(2, 1_000, 1_000);
        let now = Time::from_secs(1);
        let (one, two) = (
            ledger.charge("realm", "alice", now),
            ledger.charge("realm", "alice", now),
        );
        assert!(one.is_some() && two.is_some());
        assert!(ledger.charge("realm", "alice", now).is_none());
        drop(one);
        assert!(ledger.charge("realm", "alice", now).is_some());
        drop(two);
        assert_eq!(ledger.pending(), 0);
    }

    #[test]
    fn users_that_do_nothing_are_forgotten() {
        let ledger = ledger(2, 10, 10);
        for n in 0..10_000_u64 {
            let now = Time::from_secs(10 * n);
            drop(ledger.charge("realm", &format!("user-{n}"), now));
        }
        assert!(ledger.lock().by_user.len() <= USERS_KEPT + 1);
    }

    #[test]
    fn an_id_is_nobody_elses_until_it_is_given_back() {
        let ledger = ledger(1, 1, 1);
        let mut numbers = [0, 7, 7, 8].into_iter();
        let mut random = || numbers.next().unwrap();
        let user = Arc::new(User::with_md5_key("alice", "realm", [0; 16]));
        let owner = |shard| Owner {
            user: Arc::clone(&user),
            shard,
            client: SocketAddr::from(([203, 0, 113, 7], 50_000)),
            listener: SocketAddr::from(([192, 0, 2, 1], 3478)),
        };
        let seven = ledger.lease(owner(1), &mut random);
        let eight = ledger.lease(owner(2), &mut random);
        assert_eq!((seven.id().0, eight.id().0), (7, 8));
        let shard_of = |id| ledger.owner_of(ConnectionId(id)).map(|owner| owner.shard);
        assert_eq!((shard_of(7), shard_of(8)), (Some(1), Some(2)));
        drop(seven);
        assert_eq!((shard_of(7), shard_of(8)), (None, Some(2)));
        assert_eq!(ledger.len(), 1);
    }
}
