//! A bounded cache of users who have authenticated.

use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::User;

/// Users of one generation; two generations are kept, so at most twice as many users (about 400 bytes each).
pub(super) const GENERATION_LEN: usize = 2048;

/// Discards the older half at once. So there is no list to keep in order, and a user who returns is added again.
pub(super) struct RecentUsers {
    young: HashMap<[u8; 32], Arc<User>, FixedState>,
    old: HashMap<[u8; 32], Arc<User>, FixedState>,
}

impl RecentUsers {
    pub(super) fn new(hasher: FixedState) -> Self {
        Self {
            young: HashMap::with_hasher(hasher.clone()),
            old: HashMap::with_hasher(hasher),
        }
    }

    pub(super) fn find(&self, userhash: &[u8; 32]) -> Option<&Arc<User>> {
        self.young.get(userhash).or_else(|| self.old.get(userhash))
    }

    pub(super) fn insert(&mut self, userhash: [u8; 32], user: Arc<User>) {
        if self.young.len() >= GENERATION_LEN {
            core::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        }
        self.young.insert(userhash, user);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}
