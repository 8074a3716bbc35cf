//! Who sent a request: RFC 8489 §9.2.4 in its order, on plain passwords.

use std::collections::BTreeMap;

use turnbuckle_wire::{
    AttributeType, IntegrityKey, Message, Method, PasswordAlgorithm, long_term_key_md5,
    long_term_key_sha256, userhash,
};

use super::state::Tuple;

/// Who exists, with what password.
#[derive(Clone, Debug, Default)]
pub struct Secrets {
    /// The realm.
    pub realm: String,
    /// Passwords by username.
    pub passwords: BTreeMap<String, String>,
    /// The last second since 1970 in which a username is good, for those that end.
    pub ends_unix_s: BTreeMap<String, u64>,
}

/// Every nonce the server gave away, and when.
#[derive(Clone, Debug, Default)]
pub struct Nonces {
    issued: BTreeMap<Tuple, BTreeMap<Vec<u8>, Issued>>,
    lifetime_s: u64,
}

/// When a nonce was given away, and the PASSWORD-ALGORITHMS beside it.
#[derive(Clone, Debug)]
struct Issued {
    unix_s: u64,
    algorithms: Option<Vec<u8>>,
}

impl Nonces {
    /// Makes it without nonces; each that is given away will be good for `lifetime_s` seconds.
    #[must_use]
    pub fn new(lifetime_s: u64) -> Self {
        Self {
            issued: BTreeMap::new(),
            lifetime_s,
        }
    }

    /// Notes the challenge that a client was sent in the second `unix_s`.
    pub fn note(&mut self, client: Tuple, challenge: &Message<'_>, unix_s: u64) {
        let Some(nonce) = challenge.raw(AttributeType::NONCE) else {
            return;
        };
        let lifetime_s = self.lifetime_s;
        let held = self.issued.entry(client).or_default();
        held.retain(|_, issued| unix_s < issued.unix_s + lifetime_s);
        let algorithms = challenge.raw(AttributeType::PASSWORD_ALGORITHMS);
        held.entry(nonce.to_vec()).or_insert_with(|| Issued {
            unix_s,
            algorithms: algorithms.map(<[u8]>::to_vec),
        });
    }

    /// Returns whether some other client was sent this nonce (STUN-043).
    #[must_use]
    pub fn known_elsewhere(&self, client: Tuple, nonce: &[u8]) -> bool {
        let mut others = self.issued.iter().filter(|(other, _)| **other != client);
        others.any(|(_, held)| held.contains_key(nonce))
    }

    fn fresh(&self, client: Tuple, nonce: &[u8], unix_s: u64) -> Option<&Issued> {
        let issued = self.issued.get(&client).and_then(|held| held.get(nonce));
        issued.filter(|issued| unix_s < issued.unix_s + self.lifetime_s)
    }
}

/// What a request proves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proof {
    /// Who sent it, if it proves that.
    pub user: Option<String>,
    /// The error codes it may get if it does not.
    pub codes: Vec<u16>,
    /// Whether the answer is protected by MESSAGE-INTEGRITY-SHA256.
    pub sha256: bool,
}

impl Proof {
    fn refused(codes: &[u16]) -> Self {
        Self {
            user: None,
            codes: codes.to_vec(),
            sha256: false,
        }
    }
}

impl Secrets {
    /// Judges a request.
    #[must_use]
    pub fn prove(
        &self,
        nonces: &Nonces,
        client: Tuple,
        unix_s: u64,
        message: &Message<'_>,
    ) -> Proof {
        if !message.has_integrity_sha1() && !message.has_integrity_sha256() {
            // A datagram that is shorter than any first request of a client is not worth a challenge.
            let is_too_short = message.as_bytes().len() < 28 && message.method() != Method::BINDING;
            return Proof::refused(if is_too_short { &[400] } else { &[401] });
        }
        let has = |attribute| message.raw(attribute).is_some();
        let named = has(AttributeType::USERNAME) || has(AttributeType::USERHASH);
        let nonce = message.raw(AttributeType::NONCE);
        let (true, true, Some(nonce)) = (named, has(AttributeType::REALM), nonce) else {
            return Proof::refused(&[400]);
        };
        // USERHASH only counts where there is no USERNAME.
        let readable = message.username().is_ok()
            && (has(AttributeType::USERNAME) || message.userhash().is_ok())
            && message.realm().is_ok()
            && message.nonce().is_ok();
        if !readable {
            return Proof::refused(&[400]);
        }
        let fresh = nonces.fresh(client, nonce, unix_s);
        let list = message.raw(AttributeType::PASSWORD_ALGORITHMS);
        let chosen = message.password_algorithm();
        match fresh {
            _ if list.is_none() && chosen == Ok(None) => {}
            // Only a nonce of the server's own says whether it offered a choice.
            None => return Proof::refused(&[400, 401, 438]),
            Some(issued) => {
                let offered = message.password_algorithms().ok().flatten();
                let listed = |choice| offered.is_some_and(|list| list.contains(choice));
                let same = list == issued.algorithms.as_deref();
                if !same || !matches!(chosen, Ok(Some(choice)) if listed(choice)) {
                    return Proof::refused(&[400]);
                }
            }
        }
        let sha256 = chosen == Ok(Some(PasswordAlgorithm::Sha256));
        let user = self.named(message).filter(|user| {
            // An allocation outlives the credential that it was made with.
            let ended = message.method() == Method::ALLOCATE
                && self.ends_unix_s.get(user).is_some_and(|end| unix_s > *end);
            let realm = message.raw(AttributeType::REALM) == Some(self.realm.as_bytes());
            let key = self.key(user, sha256);
            let sound = key.is_some_and(|key| message.check_integrity(&key).is_ok());
            !ended && realm && sound
        });
        match user {
            // One that was never issued is refused before the user is looked up, one that is too old after it.
            None if fresh.is_none() => Proof::refused(&[401, 438]),
            None => Proof::refused(&[401]),
            Some(_) if fresh.is_none() => Proof::refused(&[438]),
            Some(user) => Proof {
                user: Some(user),
                codes: Vec::new(),
                sha256,
            },
        }
    }

    /// Returns the key of a user.
    #[must_use]
    pub fn key(&self, user: &str, sha256: bool) -> Option<IntegrityKey> {
        let password = self.passwords.get(user)?.as_bytes();
        let (user, realm) = (user.as_bytes(), self.realm.as_bytes());
        Some(if sha256 {
            IntegrityKey::sha256(&long_term_key_sha256(user, realm, password))
        } else {
            IntegrityKey::sha1(&long_term_key_md5(user, realm, password))
        })
    }

    fn named(&self, message: &Message<'_>) -> Option<String> {
        if let Ok(Some(name)) = message.username() {
            return String::from_utf8(name.to_vec()).ok();
        }
        let hash = message.userhash().ok().flatten()?;
        let matches = |user: &&String| userhash(user.as_bytes(), self.realm.as_bytes()) == hash;
        // Nobody has written down the names that a web service signs, so they have no hashes.
        let mut configured = self.passwords.keys();
        configured
            .find(|user| !self.ends_unix_s.contains_key(*user) && matches(user))
            .cloned()
    }
}

/// Returns the name that quotas count: of a time-limited username the id part.
#[must_use]
pub fn quota_name(user: &str) -> &str {
    match user.split_once(':') {
        Some((_, id)) => id,
        None => user,
    }
}
