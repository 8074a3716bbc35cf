//! How many allocations a user and a realm have: a ledger and units that give back on drop.
//!
//! The invariant: the count under a name is the number of its [`QuotaUnit`]s that exist (I5). A dual allocation is one allocation
//! and takes one unit. A reserved port takes one as well, until its token turns it into an allocation's.

use core::fmt;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::config::Config;
use crate::credential::User;
use crate::refusal::Limit;
use crate::reject::Reject;

/// Counts by realm and quota name, and their bounds. Realms and names without a unit are not kept.
#[derive(Debug)]
pub(crate) struct QuotaLedger(Mutex<State>);

#[derive(Debug)]
struct State {
    counts: Counts,
    bounds: Bounds,
}

#[derive(Debug, Default)]
struct Counts {
    total: u32,
    by_realm: BTreeMap<Box<str>, RealmCounts>,
}

#[derive(Debug, Default)]
struct RealmCounts {
    total: u32,
    by_name: BTreeMap<Box<str>, u32>,
}

/// How many there may be.
#[derive(Debug)]
struct Bounds {
    usual: Bound,
    /// Of realms that have bounds of their own.
    by_realm: BTreeMap<Box<str>, Bound>,
}

#[derive(Clone, Copy, Debug)]
struct Bound {
    user_max: u32,
    total_max: u32,
}

impl Bound {
    const NONE: Self = Self {
        user_max: u32::MAX,
        total_max: u32::MAX,
    };

    fn new(user: Option<u32>, total: Option<u32>) -> Self {
        Self {
            user_max: user.unwrap_or(u32::MAX),
            total_max: total.unwrap_or(u32::MAX),
        }
    }
}

impl Bounds {
    fn of(config: &Config) -> Self {
        let limits = &config.limits;
        let own = config.realms.limits.iter();
        Self {
            usual: Bound::new(limits.user_quota, limits.total_quota),
            by_realm: own
                .map(|(realm, own)| (realm.clone(), Bound::new(own.user_quota, own.total_quota)))
                .collect(),
        }
    }

    fn of_realm(&self, realm: &str) -> Bound {
        self.by_realm.get(realm).copied().unwrap_or(self.usual)
    }
}

impl QuotaLedger {
    pub(crate) fn new(config: &Config) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            counts: Counts::default(),
            bounds: Bounds::of(config),
        })))
    }

    /// Sets other bounds. Units that are out stay out, even if they are more than would be given now.
    pub(crate) fn set_bounds(&self, config: &Config) {
        let bounds = Bounds::of(config);
        self.lock().bounds = bounds;
    }

    /// Returns whether the user and its realm may have `count` more, so that nothing else is taken for a request that fails.
    pub(crate) fn has_room(&self, user: &User, count: u32) -> bool {
        let state = self.lock();
        let bound = state.bounds.of_realm(&user.realm);
        state.counts.have_room(user, count, bound)
    }

    /// Returns the refusal of `count` more, by the bound that is reached.
    pub(crate) fn reached(&self, user: &User, count: u32) -> Reject {
        let state = self.lock();
        let bound = state.bounds.of_realm(&user.realm);
        let of_realm = state.counts.by_realm.get(&user.realm);
        let of_user = of_realm.and_then(|of_realm| of_realm.by_name.get(&user.quota_name));
        let of_user = of_user.copied().unwrap_or(0);
        Reject::QuotaReached(match of_user.saturating_add(count) > bound.user_max {
            true => Limit::User(bound.user_max),
            false => Limit::Realm(bound.total_max),
        })
    }

    /// Takes units for `user`, all or none; `None` when that is more than the user or its realm may have.
    pub(crate) fn take<const COUNT: usize>(
        self: &Arc<Self>,
        user: &Arc<User>,
    ) -> Option<[QuotaUnit; COUNT]> {
        let mut state = self.lock();
        let bound = state.bounds.of_realm(&user.realm);
        let count = u32::try_from(COUNT).unwrap_or(u32::MAX);
        let is_taken = state.counts.take_within(user, count, bound);
        is_taken.then(|| core::array::from_fn(|_| self.unit(user)))
    }

    /// Makes the unit of a reservation that of an allocation of `user`: the same one for whom it is charged to, whatever the bounds are;
    /// for somebody else one within its own bounds. Hands it back if there is none.
    pub(crate) fn turn_over(
        &self,
        mut unit: QuotaUnit,
        user: &Arc<User>,
    ) -> Result<QuotaUnit, QuotaUnit> {
        let holder = &unit.user;
        // mutant: redeemed-for-whom-it-was-reserved
        if holder.realm != user.realm || holder.quota_name != user.quota_name {
            let mut state = self.lock();
            let bound = state.bounds.of_realm(&user.realm);
            state.counts.give_back(holder);
            if !state.counts.take_within(user, 1, bound) {
                state.counts.take_within(holder, 1, Bound::NONE);
                drop(state);
                return Err(unit);
            }
        }
        unit.user = Arc::clone(user);
        Ok(unit)
    }

    /// Takes a unit whatever the bounds are: for an allocation that was granted before, by this process or the one before it.
    pub(crate) fn take_again(self: &Arc<Self>, user: &Arc<User>) -> Option<QuotaUnit> {
        let is_taken = self.lock().counts.take_within(user, 1, Bound::NONE);
        is_taken.then(|| self.unit(user))
    }

    fn unit(self: &Arc<Self>, user: &Arc<User>) -> QuotaUnit {
        QuotaUnit {
            ledger: Arc::clone(self),
            user: Arc::clone(user),
        }
    }

    /// Returns how many units are out for all users.
    pub(crate) fn total(&self) -> u32 {
        self.lock().counts.total
    }

    /// Returns how many units are out for `quota_name` of `realm`.
    pub(crate) fn of_name(&self, realm: &str, quota_name: &str) -> u32 {
        let state = self.lock();
        let of_realm = state.counts.by_realm.get(realm);
        let count = of_realm.and_then(|of_realm| of_realm.by_name.get(quota_name));
        count.copied().unwrap_or(0)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    fn have_room(&self, user: &User, count: u32, bound: Bound) -> bool {
        let of_realm = self.by_realm.get(&user.realm);
        let (of_user, total) = of_realm.map_or((0, 0), |of_realm| {
            let of_user = of_realm.by_name.get(&user.quota_name);
            (of_user.copied().unwrap_or(0), of_realm.total)
        });
        // guard: V-43-quota
        of_user.saturating_add(count) <= bound.user_max
            && total.saturating_add(count) <= bound.total_max
    }

    fn take_within(&mut self, user: &User, count: u32, bound: Bound) -> bool {
        if !self.have_room(user, count, bound) {
            return false;
        }
        let of_realm = match self.by_realm.get_mut(&user.realm) {
            Some(of_realm) => of_realm,
            None => self.by_realm.entry(user.realm.clone()).or_default(),
        };
        self.total += count;
        of_realm.total += count;
        match of_realm.by_name.get_mut(&user.quota_name) {
            Some(held) => *held += count,
            None => {
                of_realm.by_name.insert(user.quota_name.clone(), count);
            }
        }
        true
    }

    fn give_back(&mut self, user: &User) {
        // mutant: quota-leaks
        self.total -= 1;
        let Some(of_realm) = self.by_realm.get_mut(&user.realm) else {
            return;
        };
        of_realm.total -= 1;
        match of_realm.by_name.get_mut(&user.quota_name) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                of_realm.by_name.remove(&user.quota_name);
            }
        }
        if of_realm.total == 0 {
            self.by_realm.remove(&user.realm);
        }
    }
}

/// The right to one allocation or reserved port, charged to a user; gives it back on drop.
pub(crate) struct QuotaUnit {
    ledger: Arc<QuotaLedger>,
    user: Arc<User>,
}

impl QuotaUnit {
    /// Returns the user it is charged to.
    pub(crate) fn user(&self) -> &Arc<User> {
        &self.user
    }

    /// Takes over the user as the record of an allocation has it. Returns whether the unit is charged to that one.
    pub(crate) fn take_up(&mut self, user: &Arc<User>) -> bool {
        let is_charged = self.user.realm == user.realm && self.user.quota_name == user.quota_name;
        if is_charged {
            self.user = Arc::clone(user);
        }
        is_charged
    }

    /// Replaces the user by the same one with another token. The name under which the unit is charged stays.
    pub(crate) fn renew(&mut self, user: &Arc<User>) {
        self.user = Arc::new(user.charged_as(&self.user.quota_name));
    }
}

impl Drop for QuotaUnit {
    fn drop(&mut self) {
        // guard: V-43-release
        self.ledger.lock().counts.give_back(&self.user);
    }
}

impl fmt::Debug for QuotaUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuotaUnit").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    #[test]
    fn parallel_requests_get_the_whole_quota_and_no_more() {
        //= V-43
        const QUOTA: usize = 10;
        let mut config = Config::default();
        config.limits.user_quota = Some(10);
        let user = Arc::new(User::with_md5_key("alice", "realm", [0; 16]));
        for _ in 0..50 {
            let ledger = QuotaLedger::new(&config);
            let start = Barrier::new(4);
            let held: Vec<_> = thread::scope(|scope| {
                let ask = || {
                    start.wait();
                    let asked = (0..QUOTA).filter(|_| ledger.has_room(&user, 1));
                    asked.filter_map(|_| ledger.take::<1>(&user)).collect()
                };
                let threads: [_; 4] = core::array::from_fn(|_| scope.spawn(ask));
                let units = threads.map(|thread| -> Vec<[QuotaUnit; 1]> { thread.join().unwrap() });
                units.into_iter().flatten().collect()
            });
            assert_eq!(held.len(), QUOTA);
            drop(held);
            assert_eq!(ledger.total(), 0);
        }
    }
}
