//! How many allocations a user and a realm have: a ledger and units that give back on drop.
//!
//! The invariant: the count under a name is the number of [`QuotaUnit`]s alive for it (I5). A dual allocation is one
//! allocation and takes one unit.

use core::fmt;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::config::Config;
use crate::credential::User;

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
        let own = config.realm_limits.iter();
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

    /// Whether the user or its realm has all it may have, so that nothing else has to be taken for a request in vain.
    pub(crate) fn is_used_up(&self, user: &User) -> bool {
        let state = self.lock();
        let bound = state.bounds.of_realm(&user.realm);
        !state.counts.are_within(user, bound)
    }

    /// Takes a unit for one allocation of `user`; `None` when the user or its realm has all it may have.
    pub(crate) fn take(self: &Arc<Self>, user: &Arc<User>) -> Option<QuotaUnit> {
        let mut state = self.lock();
        let bound = state.bounds.of_realm(&user.realm);
        let is_taken = state.counts.take_within(user, bound);
        is_taken.then(|| self.unit(user))
    }

    /// Takes a unit whatever the bounds are: for an allocation that was granted before, by this process or the one before it.
    pub(crate) fn take_again(self: &Arc<Self>, user: &Arc<User>) -> Option<QuotaUnit> {
        let is_taken = self.lock().counts.take_within(user, Bound::NONE);
        is_taken.then(|| self.unit(user))
    }

    fn unit(self: &Arc<Self>, user: &Arc<User>) -> QuotaUnit {
        QuotaUnit {
            ledger: Arc::clone(self),
            user: Arc::clone(user),
        }
    }

    /// Units out for all users.
    pub(crate) fn total(&self) -> u32 {
        self.lock().counts.total
    }

    /// Units out for `quota_name` of `realm`.
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
    fn are_within(&self, user: &User, bound: Bound) -> bool {
        let of_realm = self.by_realm.get(&user.realm);
        let (of_user, total) = of_realm.map_or((0, 0), |of_realm| {
            let of_user = of_realm.by_name.get(&user.quota_name);
            (of_user.copied().unwrap_or(0), of_realm.total)
        });
        // guard: V-43-quota
        of_user < bound.user_max && total < bound.total_max
    }

    fn take_within(&mut self, user: &User, bound: Bound) -> bool {
        if !self.are_within(user, bound) {
            return false;
        }
        let of_realm = match self.by_realm.get_mut(&user.realm) {
            Some(of_realm) => of_realm,
            None => self.by_realm.entry(user.realm.clone()).or_default(),
        };
        self.total += 1;
        of_realm.total += 1;
        match of_realm.by_name.get_mut(&user.quota_name) {
            Some(count) => *count += 1,
            None => {
                of_realm.by_name.insert(user.quota_name.clone(), 1);
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

/// The right to one allocation, charged to a user; gives it back on drop.
pub(crate) struct QuotaUnit {
    ledger: Arc<QuotaLedger>,
    user: Arc<User>,
}

impl QuotaUnit {
    /// The user it is charged to.
    pub(crate) fn user(&self) -> &Arc<User> {
        &self.user
    }

    /// The same user with another token; the name it is charged under stays.
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
