//! Passwords that a client sends instead of proving that it knows them, inside of TLS. What is compared are the keys that TURN has, so
//! the same users and secrets serve, and databases that hold keys alone do.

use std::sync::Arc;

use turnbuckle_wire::{PasswordAlgorithm, long_term_key_md5};

use super::Authenticator;
use crate::credential::{Claim, Terms, User, prepare_password};
use crate::time::Now;

impl Authenticator {
    /// Returns the user of the first realm with this name and password. The work is the same whether or not there is such a user (V-26).
    pub(crate) fn check_password(
        &mut self,
        now: Now,
        name: &str,
        password: &str,
    ) -> Option<Arc<User>> {
        let unix_s = self.calendar.advance(now);
        let realm = self.realms.at(0);
        // Who is allowed no such password has none that fits; what is sent is compared all the same.
        let prepared = prepare_password(password);
        let terms = Terms {
            unix_s,
            accept_expired: false,
            algorithm: PasswordAlgorithm::Md5,
            refuse: prepared.is_err(),
        };
        let password = prepared.as_deref().unwrap_or(password);
        let key = long_term_key_md5(
            name.as_bytes(),
            realm.name().as_bytes(),
            password.as_bytes(),
        );
        let claim = Claim::Username(name.as_bytes());
        self.credentials
            // guard: V-93-whole
            .verify(realm, claim, terms, |keys| keys.is_md5(&key))
    }

    /// Returns the realm that passwords are for.
    pub(crate) fn realm_of_passwords(&self) -> &str {
        self.realms.at(0).name()
    }
}
