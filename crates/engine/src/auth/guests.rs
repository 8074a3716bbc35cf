//! Clients that are served without credentials because of where they are.
//!
//! Invariant: a guest is a user whom no credential can name, so that nobody becomes one by a password, and a guest becomes nobody else. All guests
//! are one user: of each other's allocations they are kept by their 5-tuples alone.

use core::net::IpAddr;
use std::sync::Arc;

use super::AuthConfig;
use crate::credential::User;
use crate::policy::AddressRange;

/// The name of guests. No user has it, because a name has at least one character.
const NAME: &str = "";

/// The sources that are served without credentials.
pub(super) struct Guests {
    sources: Box<[AddressRange]>,
    user: Arc<User>,
}

impl Guests {
    pub(super) fn new(config: &AuthConfig) -> Self {
        Self {
            sources: config.guest_sources.clone().into(),
            // The key is for nobody: who is asked for one is looked up among the users.
            user: Arc::new(User::with_md5_key(NAME, config.realm(), [0; 16])),
        }
    }

    /// Returns whether nobody is served without credentials.
    pub(super) fn are_none(&self) -> bool {
        self.sources.is_empty()
    }

    /// Returns whom a request from `source` is from, if it is a guest's.
    pub(super) fn user_at(&self, source: IpAddr) -> Option<Arc<User>> {
        // guard: V-21-guests
        let is_guest = self.sources.iter().any(|range| range.contains(source));
        is_guest.then(|| Arc::clone(&self.user))
    }
}
