//! Passwords that a client sends instead of proving that it knows them, inside of TLS. What is compared are the keys that TURN has, so
//! the same users and secrets serve, and databases that hold keys alone do.

use std::sync::Arc;

use turnbuckle_wire::{PasswordAlgorithm, long_term_key_md5};

use super::config::place;
use super::{Asks, Authenticator, CanonicalOrigin, CredentialExpiry};
use crate::command::Question;
use crate::credential::{Claim, Terms, User, prepare_name, prepare_password};
use crate::refusal::Refusal;
use crate::time::Now;

/// A name and a password that are no user's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongPassword {
    /// Whom a user database is to be asked about before the client is refused; `None` if it need not be asked.
    pub question: Option<Question>,
    /// The users of a database have not been read yet, so that it may be somebody's ([`crate::AnswerConfig::are_users_due`]).
    pub are_users_due: bool,
    /// Why, for the operator alone.
    pub why: Refusal,
}

impl Authenticator {
    /// Returns the user of `realm` with this name and password. The work is the same whether or not there is such a user (V-26).
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn check_password(
        &mut self,
        now: Now,
        realm: &str,
        name: &str,
        password: &str,
        are_users_due: bool,
    ) -> Result<Arc<User>, WrongPassword> {
        let unix_s = self.calendar.advance(now);
        let realm = self.realms.at(place(&self.realms.list, realm).unwrap_or(0));
        let prepared = prepare_password(password.as_bytes());
        let terms = Terms {
            unix_s,
            accept_expired: false,
            algorithm: PasswordAlgorithm::Md5,
            refuse: password.is_empty(),
        };
        // As it is sent, which databases have the key of, and as it is prepared. What cannot be prepared is tried as it is sent twice.
        let keys = [password, prepared.as_deref().unwrap_or(password)].map(|password| {
            let (name, realm) = (name.as_bytes(), realm.name().as_bytes());
            long_term_key_md5(name, realm, password.as_bytes())
        });
        let claim = Claim::Username(name.as_bytes());
        let user = self
            .credentials
            // guard: V-93-whole
            .verify(realm, claim, terms, |known| {
                known.is_md5(&keys[0]) | known.is_md5(&keys[1])
            });
        user.map_err(|why| {
            // No database has a user of another name (see `proof::question`).
            let is_name = prepare_name(name).is_ok_and(|prepared| *prepared == *name);
            let may_be_asked = self.asks != Asks::Never && !terms.refuse && is_name;
            let question = may_be_asked.then(|| Question {
                realm: Arc::clone(realm.name_arc()),
                name: name.into(),
            });
            WrongPassword {
                question,
                are_users_due,
                why,
            }
        })
    }

    /// Returns whether a Refresh request of this user would be let in, with the key that the user had.
    pub(crate) fn accepts_still(&mut self, now: Now, user: &User) -> bool {
        let unix_s = self.calendar.advance(now);
        let Ok(at) = place(&self.realms.list, &user.realm) else {
            return false;
        };
        let terms = Terms {
            unix_s,
            accept_expired: self.credential_expiry == CredentialExpiry::Allocation,
            algorithm: PasswordAlgorithm::Md5,
            refuse: false,
        };
        let claim = Claim::Username(user.name.as_bytes());
        let found = self
            .credentials
            .verify(self.realms.at(at), claim, terms, |keys| {
                keys.has_md5_of(user.keys())
            });
        found.is_ok()
    }

    /// Returns the realm of whom a request in HTTP is for: that of the origin, or the one of the host's name, or else the first. As with the
    /// ORIGIN and the REALM of a STUN message, it is the client that chooses.
    pub(crate) fn realm_of_authority(&self, is_secure: bool, authority: &str) -> Arc<str> {
        let scheme = if is_secure { "https" } else { "http" };
        let origin = CanonicalOrigin::of(format!("{scheme}://{authority}").as_bytes());
        let of_origin = origin.and_then(|origin| self.realms.origins.realm_at(&origin));
        let host = host(authority).to_ascii_lowercase();
        let name = of_origin.unwrap_or(&host);
        let at = place(&self.realms.list, name).unwrap_or(0);
        Arc::clone(self.realms.at(at).name_arc())
    }
}

/// Returns the host of an authority: what is before the port, if there is one.
fn host(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    }
}
