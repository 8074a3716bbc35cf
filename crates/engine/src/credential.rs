//! Users and their keys: configured users, and time-limited credentials made from a shared secret ("TURN REST API").
//!
//! The invariant: the server keeps keys, never passwords (RFC 8656 §6), and a look-up does the same work whether or not the user
//! exists (V-25, V-26). A request with an unknown username is checked against a random key, and every shared secret is tried for
//! every username that is not configured.

mod prepare;
mod recent;
mod rest;
mod table;

use core::fmt;
use std::sync::Arc;

use foldhash::fast::FixedState;
use subtle::{Choice, ConditionallySelectable as _, ConstantTimeEq as _};
use turnbuckle_wire::{
    IntegrityKey, PasswordAlgorithm, long_term_key_md5, long_term_key_sha256, userhash,
};

pub use self::prepare::CredentialError;
pub(crate) use self::prepare::{prepare_name, prepare_password, prepare_realm};
use self::recent::RecentUsers;
use self::rest::RestName;
pub(crate) use self::rest::RestSecret;
pub(crate) use self::table::{Row, UserTable};
use crate::auth::{MAC_KEY_LEN, Realm};
use crate::random::{Random, random_u64};
use crate::refusal::Refusal;

/// So much of the key in a token coturn and its client use.
const COTURN_MAC_KEY_LEN: usize = 16;

/// What a journal keeps of a user: all but the keys that are made from a password. A user made of it owns allocations and authenticates nobody; only
/// the key of a token identifies its holder again.
pub struct UserRecord<'a> {
    /// As in [`User`].
    pub name: &'a str,
    /// As in [`User`].
    pub realm: &'a str,
    /// As in [`User`].
    pub quota_name: &'a str,
    /// As in [`User`].
    pub expires_unix_s: Option<u64>,
    /// The longest lifetime that may be granted, in seconds.
    pub lifetime_max_s: u64,
    /// The key that a token brought (RFC 7635).
    pub mac_key: Option<[u8; MAC_KEY_LEN]>,
}

impl UserRecord<'_> {
    /// Returns the user.
    pub fn user(&self) -> User {
        User {
            quota_name: self.quota_name.into(),
            expires_unix_s: self.expires_unix_s,
            mac_key: self.mac_key.map(Box::new),
            lifetime_max_s: self.lifetime_max_s,
            ..User::with_md5_key(self.name, self.realm, [0; 16])
        }
    }
}

/// A user who proved who it is. Shared by every allocation of the user.
pub struct User {
    /// The username, after OpaqueString preparation.
    pub name: Box<str>,
    /// The realm the user belongs to.
    pub realm: Box<str>,
    /// The name quotas count: the id part of a time-limited username, the whole name otherwise.
    pub quota_name: Box<str>,
    /// When the credential expires, in seconds since 1970; `None` if it does not expire.
    pub expires_unix_s: Option<u64>,
    keys: Keys,
    /// The key that a token brought (RFC 7635), in place of the others.
    mac_key: Option<Box<[u8; MAC_KEY_LEN]>>,
    /// The longest lifetime that may be granted: that of the token (RFC 7635 §9), in seconds.
    pub(crate) lifetime_max_s: u64,
}

impl User {
    /// Returns whether `other` has the same username and realm; on an allocation of another user the answer is 441 (RFC 8656 §5). A
    /// renewed time-limited credential has another username, and so is another user. All clients of an authorization server have
    /// one username, so the holder of a token is identified by its key.
    pub fn is_same_as(&self, other: &Self) -> bool {
        let is_same_name = self.name == other.name || self.has_token();
        // guard: V-28-token
        is_same_name && self.realm == other.realm && self.mac_key == other.mac_key
    }

    /// Returns whether a Refresh request of `other` is valid for what this user has. The condition is [`Self::is_same_as`], or that
    /// `other` renews the token of this user, perhaps under the name of another key (RFC 7635 §9). The new token does not identify
    /// the user of the old one, so the 5-tuple has to.
    pub(crate) fn may_become(&self, other: &Self) -> bool {
        let is_renewal = self.has_token() && other.has_token() && self.realm == other.realm;
        is_renewal || self.is_same_as(other)
    }

    /// Returns whether an operator may mean this user by `name`: the whole name, or the part that stays when a time-limited credential is renewed.
    pub fn is_called(&self, name: &str) -> bool {
        *self.name == *name || *self.quota_name == *name
    }

    /// Returns what a journal keeps of it.
    pub fn record(&self) -> UserRecord<'_> {
        UserRecord {
            name: &self.name,
            realm: &self.realm,
            quota_name: &self.quota_name,
            expires_unix_s: self.expires_unix_s,
            lifetime_max_s: self.lifetime_max_s,
            mac_key: self.mac_key.as_deref().copied(),
        }
    }

    /// Returns the same user, charged to the quota of another name.
    pub(crate) fn charged_as(&self, quota_name: &str) -> Self {
        Self {
            name: self.name.clone(),
            realm: self.realm.clone(),
            quota_name: quota_name.into(),
            expires_unix_s: self.expires_unix_s,
            keys: self.keys.clone(),
            mac_key: self.mac_key.clone(),
            lifetime_max_s: self.lifetime_max_s,
        }
    }

    /// Makes the user who holds a token of `name` with a lifetime of `lifetime_s`, good until `until_unix_s`.
    pub(crate) fn with_token(
        name: &str,
        realm: &str,
        mac_key: [u8; MAC_KEY_LEN],
        until_unix_s: u64,
        lifetime_s: u64,
    ) -> Self {
        Self {
            expires_unix_s: Some(until_unix_s),
            mac_key: Some(Box::new(mac_key)),
            lifetime_max_s: lifetime_s,
            ..Self::with_md5_key(name, realm, [0; 16])
        }
    }

    /// Returns whether the user was authorized by a token.
    pub(crate) fn has_token(&self) -> bool {
        self.mac_key.is_some()
    }

    /// Returns the two keys that a client with a token may sign its messages with. One is the whole key, as RFC 7635 §7 requires.
    /// The other is the part of it that clients of coturn's library use: it has the length of a key made from a password.
    pub(crate) fn token_keys(&self) -> Option<[IntegrityKey; 2]> {
        let key = self.mac_key.as_ref()?;
        let (coturns, _) = key.split_first_chunk::<COTURN_MAC_KEY_LEN>()?;
        Some([IntegrityKey::sha1(&key[..]), IntegrityKey::sha1(coturns)])
    }

    pub(crate) fn with_password(name: &str, realm: &str, password: impl AsRef<[u8]>) -> Self {
        let keys = Keys::derive(name.as_bytes(), realm.as_bytes(), password.as_ref());
        Self::with_keys(name, realm, keys)
    }

    pub(crate) fn with_md5_key(name: &str, realm: &str, md5: [u8; 16]) -> Self {
        Self::with_keys(name, realm, Keys::of_md5(md5))
    }

    fn with_keys(name: &str, realm: &str, keys: Keys) -> Self {
        Self {
            name: name.into(),
            realm: realm.into(),
            quota_name: name.into(),
            expires_unix_s: None,
            keys,
            mac_key: None,
            lifetime_max_s: u64::MAX,
        }
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Returns whether its credential has expired.
    pub(crate) fn has_expired(&self, unix_s: u64) -> bool {
        self.left_s(unix_s) == Some(0)
    }

    /// Returns for how many seconds its credential is good, the current one included; `None` if it does not expire. A time-limited
    /// password is still valid in the second that it names, as in coturn; a token is not.
    pub(crate) fn left_s(&self, unix_s: u64) -> Option<u64> {
        let expires = self.expires_unix_s?;
        let end = expires.saturating_add(u64::from(!self.has_token()));
        Some(end.saturating_sub(unix_s))
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
    sha256: [u8; 32],
    /// Not for a user configured by its MD5 key, whose password is unknown here.
    has_sha256: Choice,
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
            sha256: long_term_key_sha256(name, realm, password),
            has_sha256: Choice::from(1),
        }
    }

    /// Makes the keys of a user whose password is unknown here.
    fn of_md5(md5: [u8; 16]) -> Self {
        Self {
            md5,
            sha256: [0; 32],
            has_sha256: Choice::from(0),
        }
    }

    fn random(random: &mut impl Random) -> Self {
        let (mut md5, mut sha256) = ([0; 16], [0; 32]);
        random.fill(&mut md5);
        random.fill(&mut sha256);
        Self {
            md5,
            sha256,
            has_sha256: Choice::from(1),
        }
    }

    /// Returns whether all of it is the same. Takes different time for different keys: for configurations, and not for what clients send.
    fn is_same_as(&self, other: &Self) -> bool {
        let is_same_choice = self.has_sha256.unwrap_u8() == other.has_sha256.unwrap_u8();
        is_same_choice && self.md5 == other.md5 && self.sha256 == other.sha256
    }

    /// Returns `other` if `choice`, else `self`; reads both, and takes no branch.
    fn or(&self, other: &Self, choice: Choice) -> Self {
        let mut chosen = self.clone();
        let parts = [
            (&mut chosen.md5[..], &other.md5[..]),
            (&mut chosen.sha256[..], &other.sha256[..]),
        ];
        for (mine, others) in parts {
            for (mine, others) in mine.iter_mut().zip(others) {
                mine.conditional_assign(others, choice);
            }
        }
        chosen.has_sha256 = Choice::conditional_select(&self.has_sha256, &other.has_sha256, choice);
        chosen
    }

    /// Returns whether this is the key that is made with MD5, in constant time (V-25).
    pub(crate) fn is_md5(&self, key: &[u8; 16]) -> bool {
        self.md5.ct_eq(key).into()
    }

    /// Returns whether the key that is made with MD5 is that of `other`, in constant time (V-25).
    pub(crate) fn has_md5_of(&self, other: &Self) -> bool {
        self.is_md5(&other.md5)
    }

    /// Returns the key for one integrity attribute, or `None` if the user has no key of that algorithm.
    pub(crate) fn integrity_key(
        &self,
        algorithm: PasswordAlgorithm,
        integrity: Integrity,
    ) -> Option<IntegrityKey> {
        let bytes: &[u8] = match algorithm {
            PasswordAlgorithm::Md5 => &self.md5,
            PasswordAlgorithm::Sha256 if self.has_sha256.into() => &self.sha256,
            PasswordAlgorithm::Sha256 => return None,
            PasswordAlgorithm::Unknown(_) => return None,
        };
        Some(match integrity {
            Integrity::Sha1 => IntegrityKey::sha1(bytes),
            Integrity::Sha256 => IntegrityKey::sha256(bytes),
        })
    }
}

/// The user that a request claims to be from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Claim<'a> {
    Username(&'a [u8]),
    Userhash([u8; 32]),
}

/// The conditions under which a claim is accepted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Seconds since 1970, on a clock that never goes back.
    pub unix_s: u64,
    /// Whether an expired credential is accepted.
    pub accept_expired: bool,
    /// The algorithm of the key to check with.
    pub algorithm: PasswordAlgorithm,
    /// Refuse in any case, after the same work.
    pub refuse: bool,
}

/// Finds out who a request is from, among everyone who may prove who it is in a realm.
pub(crate) struct Credentials {
    separator: char,
    /// Users of time-limited credentials who proved who they are, so that their next request does not derive the key again.
    recent: RecentUsers,
    /// Keys that nobody knows.
    nobody: Keys,
}

impl Credentials {
    pub(crate) fn new(separator: char, random: &mut impl Random) -> Self {
        let nobody = Keys::random(random);
        Self {
            separator,
            recent: RecentUsers::new(FixedState::with_seed(random_u64(random))),
            nobody,
        }
    }

    /// Returns the part of a time-limited username that names the user.
    pub(crate) fn id_in_name<'n>(&self, name: &'n str) -> Option<&'n str> {
        Some(RestName::parse(name, self.separator)?.quota_name())
    }

    /// Finds the user of `realm` for whom `check` accepts the key, or why there is none. Takes the same steps for every claim that fails.
    pub(crate) fn verify(
        &mut self,
        realm: &Realm,
        claim: Claim<'_>,
        terms: Terms,
        check: impl Fn(&Keys) -> bool,
    ) -> Result<Arc<User>, Refusal> {
        let (hash, name) = match claim {
            Claim::Username(name) => (userhash(name, realm.name().as_bytes()), Some(name)),
            Claim::Userhash(hash) => (hash, None),
        };
        // The keys of some user are read whether or not the name is configured, because the time of reading them can be measured.
        let found = realm.users().find(&hash);
        let (somebodys, is_configured) = match found {
            Some((user, is_found)) => (user.keys(), is_found),
            None => (self.nobody.clone(), Choice::from(0)),
        };
        // Of two realms whose names hold colons a hash may stand for a user of either.
        let recent = self.recent.find(&hash);
        let recent = recent.filter(|user| *user.realm == *realm.name());
        let recent = recent.filter(|_| name.is_some() && !bool::from(is_configured));
        let (theirs, is_known) = match recent {
            Some(user) => (user.keys.clone(), Choice::from(1)),
            None => (somebodys, is_configured),
        };
        // One expression for both, so that the random key is checked like any other.
        let needs_sha256 = Choice::from(u8::from(terms.algorithm == PasswordAlgorithm::Sha256));
        let can_check = is_known & (!needs_sha256 | theirs.has_sha256);
        // guard: V-26-same-work
        let keys = self.nobody.or(&theirs, can_check);
        let is_proved = check(&keys);
        let has_expired = recent.is_some_and(|user| user.has_expired(terms.unix_s));
        // guard: V-32-expiry
        let is_good = terms.accept_expired || !has_expired;
        if is_proved && is_good && can_check.into() && !terms.refuse {
            let configured = || found.map(|(user, _)| Arc::new(user.user(realm.name())));
            let user = recent.cloned().or_else(configured);
            return user.ok_or(Refusal::UserUnknown);
        }
        if let Some(user) = self.as_written(realm, &hash, terms, &check) {
            return Ok(user);
        }

        let text = name.and_then(|name| core::str::from_utf8(name).ok());
        let rest = text.and_then(|name| RestName::parse(name, self.separator));
        let signed = name.unwrap_or(&hash);
        let mut expired = None;
        for secret in realm.secrets() {
            let password = secret.password(signed);
            let keys = Keys::derive(signed, realm.name().as_bytes(), &password);
            let is_proved = check(&keys);
            // guard: V-32-expiry.rest
            if let Some(rest) = &rest
                && is_proved
                && (terms.accept_expired || rest.expires_unix_s >= terms.unix_s)
                && !terms.refuse
            {
                let user = Arc::new(User {
                    name: rest.name.into(),
                    realm: realm.name().into(),
                    // guard: V-33-name
                    quota_name: rest.quota_name().into(),
                    expires_unix_s: Some(rest.expires_unix_s),
                    keys,
                    mac_key: None,
                    lifetime_max_s: u64::MAX,
                });
                self.recent.insert(hash, Arc::clone(&user));
                return Ok(user);
            }
            if let Some(rest) = &rest
                && is_proved
            {
                expired = Some(Refusal::Expired {
                    at_unix_s: rest.expires_unix_s,
                });
            }
        }
        // A name with an expiry is one that a secret may stand for.
        let is_rest = Choice::from(u8::from(rest.is_some() && !realm.secrets().is_empty()));
        let whys = [Refusal::UserUnknown, Refusal::KeyWrong];
        let why = whys.get(usize::from((is_configured | is_rest).unwrap_u8()));
        let why = why.copied().unwrap_or(Refusal::UserUnknown);
        Err(expired.unwrap_or(why))
    }

    /// Finds the user for whom `check` accepts the key of the password as it was written. Where the realm has such users, the work is the
    /// same for every claim (V-26).
    fn as_written(
        &self,
        realm: &Realm,
        hash: &[u8; 32],
        terms: Terms,
        check: impl Fn(&Keys) -> bool,
    ) -> Option<Arc<User>> {
        let (user, is_known) = realm.written().find(hash)?;
        let theirs = user.keys();
        let needs_sha256 = Choice::from(u8::from(terms.algorithm == PasswordAlgorithm::Sha256));
        let can_check = is_known & (!needs_sha256 | theirs.has_sha256);
        let is_proved = check(&self.nobody.or(&theirs, can_check));
        let is_good = is_proved && can_check.into() && !terms.refuse;
        is_good.then(|| Arc::new(user.user(realm.name())))
    }
}

#[cfg(test)]
impl Credentials {
    /// Returns the number of cached users, which are not configured ones.
    pub(crate) fn recent_len(&self) -> usize {
        self.recent.len()
    }
}

#[cfg(test)]
mod tests;
