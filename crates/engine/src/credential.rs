//! Users and their keys: configured users, and time-limited credentials made from a shared secret ("TURN REST API").
//!
//! The invariant: what is kept is keys, never passwords (RFC 8656 §6), and a look-up does the same work whether or not the user
//! exists (V-25, V-26). A name nobody has is checked against a key nobody knows, and every secret is tried for every
//! name that no user answers to.

mod prepare;
mod recent;
mod rest;

use core::fmt;
use std::sync::Arc;

use foldhash::fast::FixedState;
use turnbuckle_wire::{
    IntegrityKey, PasswordAlgorithm, long_term_key_md5, long_term_key_sha256, userhash,
};

pub use self::prepare::CredentialError;
pub(crate) use self::prepare::{prepare_name, prepare_password, prepare_realm};
use self::recent::RecentUsers;
use self::rest::RestName;
pub(crate) use self::rest::RestSecret;
use crate::random::{Random, random_u64};

/// A user who proved who it is. Shared by every allocation of the user.
pub struct User {
    /// The username, after OpaqueString preparation.
    pub name: Box<str>,
    /// The realm the user belongs to.
    pub realm: Box<str>,
    /// The name quotas count: the id part of a time-limited username, the whole name otherwise.
    pub quota_name: Box<str>,
    /// When the credential ends, in seconds since 1970; `None` for one that does not.
    pub expires_unix_s: Option<u64>,
    keys: Keys,
}

impl User {
    /// Whether `other` has the same username and realm; on an allocation of another user the answer is 441 (RFC 8656 §5).
    /// A renewed time-limited credential has another username, and so is another user.
    pub fn is_same_as(&self, other: &Self) -> bool {
        self.name == other.name && self.realm == other.realm
    }

    pub(crate) fn with_password(name: &str, realm: &str, password: &str) -> Self {
        let keys = Keys::derive(name.as_bytes(), realm.as_bytes(), password.as_bytes());
        Self::with_keys(name, realm, keys)
    }

    pub(crate) fn with_md5_key(name: &str, realm: &str, md5: [u8; 16]) -> Self {
        Self::with_keys(name, realm, Keys { md5, sha256: None })
    }

    fn with_keys(name: &str, realm: &str, keys: Keys) -> Self {
        Self {
            name: name.into(),
            realm: realm.into(),
            quota_name: name.into(),
            expires_unix_s: None,
            keys,
        }
    }

    pub(crate) fn has_sha256_key(&self) -> bool {
        self.keys.sha256.is_some()
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.keys
    }

    fn has_expired(&self, unix_s: u64) -> bool {
        self.expires_unix_s.is_some_and(|expires| expires < unix_s)
    }
}

impl fmt::Debug for User {
    /// Leaves the keys out.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("User")
            .field("name", &self.name)
            .field("realm", &self.realm)
            .field("quota_name", &self.quota_name)
            .field("expires_unix_s", &self.expires_unix_s)
            .finish_non_exhaustive()
    }
}

/// The long-term keys of one user. 49 bytes: HMAC states would be ten times that for every user who holds an allocation.
#[derive(Clone)]
pub(crate) struct Keys {
    md5: [u8; 16],
    /// `None` for a user configured by its MD5 key, whose password is unknown here.
    sha256: Option<[u8; 32]>,
}

/// Which integrity attribute a message carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Integrity {
    Sha1,
    Sha256,
}

impl Keys {
    fn derive(name: &[u8], realm: &[u8], password: &[u8]) -> Self {
        Self {
            md5: long_term_key_md5(name, realm, password),
            sha256: Some(long_term_key_sha256(name, realm, password)),
        }
    }

    fn random(random: &mut impl Random) -> Self {
        let (mut md5, mut sha256) = ([0; 16], [0; 32]);
        random.fill(&mut md5);
        random.fill(&mut sha256);
        Self {
            md5,
            sha256: Some(sha256),
        }
    }

    /// The key for one integrity attribute; `None` when the user has no key of that algorithm.
    pub(crate) fn integrity_key(
        &self,
        algorithm: PasswordAlgorithm,
        integrity: Integrity,
    ) -> Option<IntegrityKey> {
        let bytes: &[u8] = match algorithm {
            PasswordAlgorithm::Md5 => &self.md5,
            PasswordAlgorithm::Sha256 => self.sha256.as_ref()?,
            PasswordAlgorithm::Unknown(_) => return None,
        };
        Some(match integrity {
            Integrity::Sha1 => IntegrityKey::sha1(bytes),
            Integrity::Sha256 => IntegrityKey::sha256(bytes),
        })
    }
}

/// Who a request says it is from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Claim<'a> {
    Username(&'a [u8]),
    Userhash([u8; 32]),
}

/// How a claim is to be judged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Seconds since 1970, on a clock that never goes back.
    pub unix_s: u64,
    /// Whether a credential past its end is still good.
    pub accept_expired: bool,
    /// The algorithm of the key to check with.
    pub algorithm: PasswordAlgorithm,
    /// Refuse whatever the check says, after the same work.
    pub refuse: bool,
}

/// Everyone who may prove who it is.
pub(crate) struct Credentials {
    realm: Arc<str>,
    /// Configured users sorted by USERHASH, which names and hashes alike are looked up by. A binary search takes the same steps
    /// to the place where a hash stands or would stand; a hash table takes one comparison more for a user it has.
    users: Box<[(u128, Arc<User>)]>,
    secrets: Box<[RestSecret]>,
    separator: char,
    /// Users of time-limited credentials who proved who they are, so that their next request does not derive the key again.
    recent: RecentUsers,
    /// Holds keys that nobody knows.
    nobody: Arc<User>,
}

impl Credentials {
    pub(crate) fn new(
        realm: Arc<str>,
        users: &[Arc<User>],
        secrets: &[RestSecret],
        separator: char,
        random: &mut impl Random,
    ) -> Self {
        let mut by_userhash: Vec<_> = users
            .iter()
            .map(|user| {
                let hash = userhash(user.name.as_bytes(), realm.as_bytes());
                (leading(&hash), Arc::clone(user))
            })
            .collect();
        by_userhash.sort_unstable_by_key(|&(hash, _)| hash);
        let nobody = User::with_keys("", &realm, Keys::random(random));
        Self {
            users: by_userhash.into(),
            secrets: secrets.into(),
            separator,
            recent: RecentUsers::new(FixedState::with_seed(random_u64(random))),
            nobody: Arc::new(nobody),
            realm,
        }
    }

    fn configured(&self, hash: u128) -> Option<&Arc<User>> {
        let at = self.users.partition_point(|&(known, _)| known < hash);
        let (known, user) = self.users.get(at)?;
        (*known == hash).then_some(user)
    }

    /// Finds the user for whom `check` accepts the key. Takes the same steps for every claim that ends in `None`.
    pub(crate) fn verify(
        &mut self,
        claim: Claim<'_>,
        terms: Terms,
        check: impl Fn(&Keys) -> bool,
    ) -> Option<Arc<User>> {
        let (hash, name) = match claim {
            Claim::Username(name) => (userhash(name, self.realm.as_bytes()), Some(name)),
            Claim::Userhash(hash) => (hash, None),
        };
        let configured = self.configured(leading(&hash));
        let recent = self.recent.find(&hash).filter(|_| name.is_some());
        let known = configured.or(recent);
        let user = known.unwrap_or(&self.nobody);
        // One expression for both, so that a key nobody knows is checked like any other.
        let can_check = terms.algorithm != PasswordAlgorithm::Sha256 || user.has_sha256_key();
        let keys = if can_check {
            &user.keys
        } else {
            &self.nobody.keys
        };
        let is_proved = check(keys);
        let is_good = terms.accept_expired || !user.has_expired(terms.unix_s);
        if is_proved && is_good && can_check && known.is_some() && !terms.refuse {
            return Some(Arc::clone(user));
        }

        let text = name.and_then(|name| core::str::from_utf8(name).ok());
        let rest = text.and_then(|name| RestName::parse(name, self.separator));
        let signed = name.unwrap_or(&hash);
        for secret in &self.secrets {
            let password = secret.password(signed);
            let keys = Keys::derive(signed, self.realm.as_bytes(), &password);
            let is_proved = check(&keys);
            if let Some(rest) = &rest
                && is_proved
                && (terms.accept_expired || rest.expires_unix_s >= terms.unix_s)
                && !terms.refuse
            {
                let user = Arc::new(User {
                    name: rest.name.into(),
                    realm: (*self.realm).into(),
                    quota_name: rest.quota_name().into(),
                    expires_unix_s: Some(rest.expires_unix_s),
                    keys,
                });
                self.recent.insert(hash, Arc::clone(&user));
                return Some(user);
            }
        }
        None
    }
}

/// Half of a SHA-256 digest, which nobody finds two names for.
fn leading(hash: &[u8; 32]) -> u128 {
    hash.first_chunk()
        .map_or(0, |half| u128::from_be_bytes(*half))
}

#[cfg(test)]
impl Credentials {
    /// How many users are remembered beside the configured ones.
    pub(crate) fn recent_len(&self) -> usize {
        self.recent.len()
    }
}

#[cfg(test)]
mod tests;
