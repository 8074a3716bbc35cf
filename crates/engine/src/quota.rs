//! How many allocations a user and the whole server have: a ledger and units that give back on drop.
//!
//! The invariant: the count under a name is the number of [`QuotaUnit`]s alive for it (I5). A dual allocation is one
//! allocation and takes one unit.

use core::fmt;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::credential::User;

/// Counts by quota name. Names without a unit are not kept.
#[derive(Debug)]
pub(crate) struct QuotaLedger {
    user_max: AtomicU32,
    total_max: AtomicU32,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    total: u32,
    by_name: BTreeMap<Box<str>, u32>,
}

impl QuotaLedger {
    pub(crate) fn new(user_max: Option<u32>, total_max: Option<u32>) -> Arc<Self> {
        Arc::new(Self {
            user_max: user_max.unwrap_or(u32::MAX).into(),
            total_max: total_max.unwrap_or(u32::MAX).into(),
            counts: Mutex::default(),
        })
    }

    /// Sets other bounds. Units that are out stay out, even if they are more than would be given now.
    pub(crate) fn set_bounds(&self, user_max: Option<u32>, total_max: Option<u32>) {
        // Each bound is read on its own: no order between the two is needed.
        self.user_max
            .store(user_max.unwrap_or(u32::MAX), Ordering::Relaxed);
        self.total_max
            .store(total_max.unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// Takes a unit for one allocation of `user`; `None` when the user or the server has all it may have.
    pub(crate) fn take(self: &Arc<Self>, user: &Arc<User>) -> Option<QuotaUnit> {
        let (user_max, total_max) = (&self.user_max, &self.total_max);
        self.take_within(
            user,
            user_max.load(Ordering::Relaxed),
            total_max.load(Ordering::Relaxed),
        )
    }

    /// Takes a unit whatever the bounds are: for an allocation that was granted before, by this process or the one before it.
    pub(crate) fn take_again(self: &Arc<Self>, user: &Arc<User>) -> Option<QuotaUnit> {
        self.take_within(user, u32::MAX, u32::MAX)
    }

    fn take_within(
        self: &Arc<Self>,
        user: &Arc<User>,
        user_max: u32,
        total_max: u32,
    ) -> Option<QuotaUnit> {
        let mut counts = self.lock();
        let of_user = counts.by_name.get(&user.quota_name).copied().unwrap_or(0);
        if of_user >= user_max || counts.total >= total_max {
            return None;
        }
        counts.total += 1;
        counts.by_name.insert(user.quota_name.clone(), of_user + 1);
        Some(QuotaUnit {
            ledger: Arc::clone(self),
            user: Arc::clone(user),
        })
    }

    /// Units out for all users.
    pub(crate) fn total(&self) -> u32 {
        self.lock().total
    }

    /// Units out for `quota_name`.
    pub(crate) fn of_name(&self, quota_name: &str) -> u32 {
        self.lock().by_name.get(quota_name).copied().unwrap_or(0)
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
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
        let mut counts = self.ledger.lock();
        counts.total -= 1;
        match counts.by_name.get_mut(&self.user.quota_name) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                counts.by_name.remove(&self.user.quota_name);
            }
        }
    }
}

impl fmt::Debug for QuotaUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuotaUnit").finish_non_exhaustive()
    }
}
