//! The long-term credential mechanism (RFC 8489 §9.2): from a request to the user who sent it, or to the answer it gets.
//!
//! The invariant: [`Authenticator::authenticate`] stores nothing about a request that it rejects. It rejects an unknown user and a
//! wrong password by the same code, in the same bytes, after the same work (V-21, V-25, V-26).

mod calendar;
mod config;
mod guests;
mod origin;
mod password;
mod realm;
mod token;

use core::net::SocketAddr;
use core::time::Duration;
use std::sync::Arc;

use turnbuckle_wire::{IntegrityKey, Message, Method, PasswordAlgorithm};

pub(crate) use self::calendar::Calendar;
use self::config::place;
pub use self::config::{Asks, AuthConfig, CredentialExpiry, Dialect, PasswordAlgorithmChoice};
use self::guests::Guests;
pub use self::origin::CanonicalOrigin;
use self::origin::Origins;
pub use self::password::WrongPassword;
pub use self::realm::{Realm, UsersAdded};
pub(crate) use self::token::MAC_KEY_LEN;
pub use self::token::{ThirdParties, TokenCipher};
use crate::credential::{Claim, Credentials, Integrity, Terms, User};
use crate::nonce::{Nonce, NonceKey, NonceState, Nonces, Scope, SecurityFeatures};
use crate::random::Random;
use crate::refusal::Refusal;
use crate::time::Now;

/// The result of a successful authentication.
#[derive(Clone, Debug)]
pub struct Proof {
    /// Who sent it.
    pub user: Arc<User>,
    /// The key and the kind of the integrity attribute that the answer carries (RFC 8489 §9.2.4); `None` for a guest, who has no key.
    pub response_key: Option<IntegrityKey>,
    /// How the user's key was derived.
    pub algorithm: PasswordAlgorithm,
}

/// The error answer to a request that proved nothing. Such an answer carries no integrity attribute and no user's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// 400, 401 or 438; 437 or 441 with [`Dialect::wrong_realm_is_mismatch`].
    pub code: u16,
    /// The challenge that the answer carries, for a client that is to try again; `None` with 400, 437 and 441.
    pub challenge: Option<Challenge>,
    /// Whether nothing was wrong but the user or its key, so that a user database may know better. Never without
    /// [`AuthConfig::asks`].
    pub may_be_asked: bool,
    /// Why, for the operator alone; `None` for the first request of a client, which has no credentials.
    pub why: Option<Refusal>,
}

/// REALM, NONCE and PASSWORD-ALGORITHMS of an error answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// REALM.
    pub realm: Arc<str>,
    /// NONCE.
    pub nonce: Nonce,
    /// PASSWORD-ALGORITHMS, the best first; no such attribute when empty.
    pub password_algorithms: &'static [PasswordAlgorithm],
}

/// Holds the users of all realms and authenticates requests.
pub struct Authenticator {
    realms: Realms,
    credentials: Credentials,
    nonces: Nonces,
    /// Whether [`AuthConfig::nonce_key`] was given; else the key is random and stays when the configuration changes.
    has_configured_key: bool,
    algorithms: PasswordAlgorithmChoice,
    dialect: Dialect,
    credential_expiry: CredentialExpiry,
    third_parties: Option<ThirdParties>,
    guests: Guests,
    asks: Asks,
    calendar: Calendar,
}

impl Authenticator {
    /// Begins with the configured nonce key, or a random one.
    pub fn new(config: &AuthConfig, random: &mut impl Random) -> Self {
        let key = config.nonce_key.clone();
        let has_configured_key = key.is_some();
        let key = key.unwrap_or_else(|| NonceKey::random(random));
        let mut nonces = Nonces::new(
            key,
            config.previous_nonce_key.as_ref(),
            config.nonce_lifetime,
        );
        nonces.is_plain = config.dialect.plain_nonces;
        Self {
            realms: config.shared_realms(),
            credentials: Credentials::new(config.rest_separator, random),
            nonces,
            has_configured_key,
            algorithms: config.password_algorithms,
            dialect: config.dialect,
            credential_expiry: config.credential_expiry,
            third_parties: config.third_parties.clone(),
            guests: Guests::new(config),
            asks: config.asks,
            calendar: Calendar::default(),
        }
    }

    /// Judges credentials by a calendar that others have too.
    pub(crate) fn share_calendar(&mut self, calendar: &Calendar) {
        self.calendar = calendar.clone();
    }

    /// Takes over a new configuration. Nonces issued before stay good, if the algorithms offered with them still are:
    /// a random key is kept, a changed one becomes the previous generation.
    pub fn reconfigure(&mut self, config: &AuthConfig, random: &mut impl Random) {
        let mut next = Self::new(config, random);
        next.calendar = self.calendar.clone();
        next.nonces.succeed(
            &self.nonces,
            !next.has_configured_key && !self.has_configured_key,
        );
        *self = next;
    }

    /// Returns how long an allocation of `user` may last from now on: no longer than its token (RFC 7635 §9), nor than its credential
    /// where each request is judged by that.
    pub(crate) fn lifetime_max(&mut self, now: Now, user: &User) -> Duration {
        let unix_s = self.calendar.advance(now);
        let is_bound = user.has_token() || self.credential_expiry == CredentialExpiry::Request;
        let left_s = user.left_s(unix_s).filter(|_| is_bound);
        Duration::from_secs(left_s.unwrap_or(u64::MAX).min(user.lifetime_max_s))
    }

    /// Returns the part of a time-limited username that names the user.
    pub(crate) fn id_in_name<'n>(&self, name: &'n str) -> Option<&'n str> {
        self.credentials.id_in_name(name)
    }

    /// Returns whether any client can be served here: there are credentials, or guests.
    pub fn has_credentials(&self) -> bool {
        self.third_parties.is_some()
            || !self.guests.are_none()
            || self.realms.list.iter().any(Realm::has_credentials)
    }

    /// Begins a new generation of nonces; those of the generation now current are accepted until the next call.
    pub fn rotate_nonce_key(&mut self, key: NonceKey) {
        self.nonces.rotate(key);
    }

    /// Returns a challenge for `client` in the first realm, for answers other than those to a failed authentication.
    pub fn challenge(
        &mut self,
        now: Now,
        random: &mut impl Random,
        client: SocketAddr,
        listener: SocketAddr,
    ) -> Challenge {
        let unix_s = self.calendar.advance(now);
        let realm = self.realms.at(0);
        self.challenge_at(unix_s, random, realm, self.scope(realm, client, listener))
    }

    /// Returns whether `message` carries an integrity attribute and a nonce of this server that has not expired. Without both, it
    /// cannot be authenticated. `session` is the user of the allocation that the message may be about.
    pub fn has_fresh_nonce(
        &mut self,
        now: Now,
        client: SocketAddr,
        listener: SocketAddr,
        message: &Message<'_>,
        session: Option<&Arc<User>>,
    ) -> bool {
        let unix_s = self.calendar.advance(now);
        let has_integrity = message.has_integrity_sha256() || message.has_integrity_sha1();
        has_integrity
            && message.nonce().is_ok_and(|nonce| {
                nonce.is_some_and(|nonce| {
                    let realm = self.realms.of(message, session);
                    let scope = self.scope(realm, client, listener);
                    self.nonces.verify(unix_s, nonce, scope) == NonceState::Fresh
                })
            })
    }

    /// Returns whether `message` from `client` is served without credentials. One that carries an integrity attribute is not: it is
    /// authenticated like any other.
    pub(crate) fn is_guests(&self, client: SocketAddr, message: &Message<'_>) -> bool {
        !message.has_integrity_sha256()
            && !message.has_integrity_sha1()
            && self.guests.user_at(client.ip()).is_some()
    }

    /// Finds out who sent `message` from `client` to `listener`, by the steps of RFC 8489 §9.2.4 in their order. Only a nonce that was
    /// never issued to the client is refused before the user is looked up.
    ///
    /// # Errors
    ///
    /// What to answer when it is not known, with the codes of [`Rejection::code`].
    pub fn authenticate(
        &mut self,
        now: Now,
        random: &mut impl Random,
        client: SocketAddr,
        listener: SocketAddr,
        message: &Message<'_>,
    ) -> Result<Proof, Rejection> {
        self.authenticate_within(now, random, client, listener, message, None)
    }

    /// Authenticates as [`Self::authenticate`] does. `session` is the user of the allocation that the request may be about. A
    /// client that was authorized by a token presents it in Allocate and Refresh requests only (RFC 7635 §9).
    ///
    /// # Errors
    ///
    /// As [`Self::authenticate`].
    pub fn authenticate_within(
        &mut self,
        now: Now,
        random: &mut impl Random,
        client: SocketAddr,
        listener: SocketAddr,
        message: &Message<'_>,
        session: Option<&Arc<User>>,
    ) -> Result<Proof, Rejection> {
        const fn without_challenge(code: u16, why: Refusal) -> Rejection {
            Rejection {
                code,
                challenge: None,
                may_be_asked: false,
                why: Some(why),
            }
        }
        let unix_s = self.calendar.advance(now);
        let realm = self.realms.of(message, session);
        let scope = self.scope(realm, client, listener);

        // Step 1: no integrity attribute. The usual first request of a client.
        let integrity = if message.has_integrity_sha256() {
            Integrity::Sha256
        } else if message.has_integrity_sha1() {
            Integrity::Sha1
        } else if let Some(user) = self.guests.user_at(client.ip()) {
            return Ok(Proof {
                user,
                response_key: None,
                algorithm: PasswordAlgorithm::Md5,
            });
        } else {
            return Err(self.reject(401, None, unix_s, random, realm, scope));
        };

        // Step 2: something that the integrity attribute depends on is missing, or cannot be read.
        let Ok((Some(claim), Some(claimed_realm), Some(nonce))) = claims(message) else {
            return Err(without_challenge(400, Refusal::CredentialsMalformed));
        };
        let is_realm = claimed_realm == realm.name().as_bytes();

        if let Some(user) = self.by_token(unix_s, message, realm, claim, session) {
            let user = user.filter(|_| is_realm);
            let Some((user, response_key)) = user.and_then(|user| {
                let mut keys = user.token_keys()?.into_iter();
                let key = keys.find(|key| message.check_integrity(key).is_ok())?;
                Some((user, key))
            }) else {
                // An address that a forged request names has proven nothing, and its owner is not to blame.
                let stale = self.nonces.verify(unix_s, nonce, scope).refusal();
                let why = Some(stale.unwrap_or(Refusal::TokenInvalid));
                return Err(self.reject(401, why, unix_s, random, realm, scope));
            };
            let nonce_state = self.nonces.verify(unix_s, nonce, scope);
            if let Some(why) = nonce_state.refusal() {
                return Err(self.reject(438, Some(why), unix_s, random, realm, scope));
            }
            return Ok(Proof {
                user,
                response_key: Some(response_key),
                algorithm: PasswordAlgorithm::Md5,
            });
        }

        let method = message.method();
        if !is_realm && self.dialect.wrong_realm_is_mismatch && method != Method::CONNECTION_BIND {
            let is_allocate = method == Method::ALLOCATE;
            let code = if is_allocate { 437 } else { 441 };
            return Err(without_challenge(code, Refusal::RealmForeign));
        }
        // A nonce that was never issued to this client proves nothing, whoever the user is, so that a flood of them costs no look-up. Step 6
        // is for nonces that are too old.
        let nonce_state = self.nonces.verify(unix_s, nonce, scope);
        // guard: V-22-unissued
        if nonce_state == NonceState::Invalid {
            return Err(self.reject(438, nonce_state.refusal(), unix_s, random, realm, scope));
        }

        // Step 3: the algorithm, if the nonce announces a choice.
        let Ok(choice) = self.algorithm(message, nonce, scope.offered) else {
            return Err(without_challenge(400, Refusal::CredentialsMalformed));
        };
        let algorithm = choice.unwrap_or(PasswordAlgorithm::Md5);

        // Steps 4 and 5: the user and the integrity, in one, so that the answer does not reveal which of them was wrong.
        let is_offered = match algorithm {
            PasswordAlgorithm::Md5 => self.algorithms != PasswordAlgorithmChoice::Sha256Only,
            PasswordAlgorithm::Sha256 => true,
            PasswordAlgorithm::Unknown(_) => false,
        };
        // Checked with a random key when the request is refused in any case.
        let checked = if is_offered {
            algorithm
        } else {
            PasswordAlgorithm::Md5
        };
        let terms = Terms {
            unix_s,
            accept_expired: self.credential_expiry == CredentialExpiry::Allocation
                && method != Method::ALLOCATE,
            algorithm: checked,
            refuse: !is_offered || !is_realm,
        };
        let user = self.credentials.verify(realm, claim, terms, |keys| {
            let key = keys.integrity_key(checked, integrity);
            key.is_some_and(|key| message.check_integrity(&key).is_ok())
        });
        let user = match user {
            Ok(user) => user,
            Err(why) => {
                let why = match (is_realm, is_offered) {
                    (false, _) => Refusal::RealmForeign,
                    (true, false) => Refusal::AlgorithmNotOffered,
                    (true, true) => why,
                };
                // A fresh nonce proves the address, so that who asks in the name of others is not answered by a query.
                let may_be_asked = self.asks != Asks::Never
                // guard: V-54-ask-proven
                && nonce_state == NonceState::Fresh
                && !terms.refuse
                && matches!(claim, Claim::Username(_));
                return Err(Rejection {
                    may_be_asked,
                    ..self.reject(
                        401,
                        Some(nonce_state.refusal().unwrap_or(why)),
                        unix_s,
                        random,
                        realm,
                        scope,
                    )
                });
            }
        };

        // Step 6: the nonce.
        if let Some(why) = nonce_state.refusal() {
            return Err(self.reject(438, Some(why), unix_s, random, realm, scope));
        }

        // The key of the answer follows the algorithm that the request chose, not its integrity attribute.
        let answer = match choice {
            // mutant: md5-answer
            Some(_) => Integrity::Sha256,
            None => Integrity::Sha1,
        };
        match user.keys().integrity_key(checked, answer) {
            Some(response_key) => Ok(Proof {
                user,
                response_key: Some(response_key),
                algorithm: checked,
            }),
            None => {
                // verified with this very key
                let why = Some(Refusal::KeyWrong);
                Err(self.reject(401, why, unix_s, random, realm, scope))
            }
        }
    }

    /// Authenticates a client that presents a token, or that presented one before. Returns `Some(None)` if it is refused, and
    /// `None` if the request has nothing to do with tokens.
    fn by_token(
        &self,
        unix_s: u64,
        message: &Message<'_>,
        realm: &Realm,
        claim: Claim<'_>,
        session: Option<&Arc<User>>,
    ) -> Option<Option<Arc<User>>> {
        let third_parties = self.third_parties.as_ref()?;
        let Claim::Username(name) = claim else {
            return None;
        };
        let name = core::str::from_utf8(name).ok()?;
        match message.access_token() {
            Ok(Some(token)) => Some(third_parties.open(name, token, unix_s).map(|grant| {
                let realm = grant.realm.unwrap_or_else(|| realm.name());
                let until_unix_s = grant.until_unix_s;
                let user =
                    User::with_token(name, realm, grant.mac_key, until_unix_s, grant.lifetime_s);
                Arc::new(user)
            })),
            Err(_) => Some(None),
            Ok(None) => {
                let user = session.filter(|user| user.has_token() && &*user.name == name);
                user.map(|user| Some(Arc::clone(user)).filter(|user| !user.has_expired(unix_s)))
            }
        }
    }

    /// Returns the algorithm that the request chose, or `None` if it names none. It is then processed as MD5.
    fn algorithm(
        &self,
        message: &Message<'_>,
        nonce: &[u8],
        offered: &[PasswordAlgorithm],
    ) -> Result<Option<PasswordAlgorithm>, Inconsistent> {
        let features = SecurityFeatures::of(nonce).unwrap_or_default();
        if !features.password_algorithms {
            return Ok(None);
        }
        let list = message.password_algorithms().map_err(|_| Inconsistent)?;
        let choice = message.password_algorithm().map_err(|_| Inconsistent)?;
        let (list, choice) = match (list, choice) {
            (None, None) => return Ok(None),
            (Some(list), Some(choice)) => (list, choice),
            // guard: V-27-missing
            _ => return Err(Inconsistent),
        };
        let is_list_sent = is_list_of(list.as_bytes(), offered);
        // guard: V-27-list
        if is_list_sent && list.contains(choice) {
            Ok(Some(choice))
        } else {
            Err(Inconsistent)
        }
    }

    /// Returns the list of PASSWORD-ALGORITHMS for a realm. A database knows the MD5 key alone of whoever is asked for.
    fn offered(&self, realm: &Realm) -> &'static [PasswordAlgorithm] {
        if self.nonces.is_plain {
            return &[]; // A plain nonce announces no choice.
        }
        self.algorithms.offered(realm, self.asks == Asks::Users)
    }

    fn scope<'r>(&self, realm: &'r Realm, client: SocketAddr, listener: SocketAddr) -> Scope<'r> {
        let offered = self.offered(realm);
        Scope {
            client,
            listener,
            realm: realm.name(),
            features: SecurityFeatures {
                password_algorithms: !offered.is_empty(),
                username_anonymity: self.dialect.username_anonymity
                    && !self.nonces.is_plain
                    && realm.secrets().is_empty()
                    && self.asks == Asks::Never,
            },
            offered,
        }
    }

    fn reject(
        &self,
        code: u16,
        why: Option<Refusal>,
        unix_s: u64,
        random: &mut impl Random,
        realm: &Realm,
        scope: Scope<'_>,
    ) -> Rejection {
        // guard: V-21-state
        let challenge = Some(self.challenge_at(unix_s, random, realm, scope));
        Rejection {
            code,
            challenge,
            may_be_asked: false,
            why,
        }
    }

    fn challenge_at(
        &self,
        unix_s: u64,
        random: &mut impl Random,
        realm: &Realm,
        scope: Scope<'_>,
    ) -> Challenge {
        Challenge {
            realm: Arc::clone(realm.name_arc()),
            nonce: self.nonces.issue(unix_s, random, scope),
            password_algorithms: self.offered(realm),
        }
    }
}

/// All realms, shared by all engines.
#[derive(Clone)]
struct Realms {
    /// The realm of requests that name no other comes first, the others in the order of their names.
    list: Arc<Vec<Realm>>,
    origins: Arc<Origins>,
}

impl Realms {
    /// Returns the realm that a request is for. With a session, it is the session's realm, which cannot change. Otherwise it is the
    /// realm of the request's ORIGIN, or else the one that its REALM names. Nothing is recorded for an unauthenticated request
    /// (V-34).
    fn of(&self, message: &Message<'_>, session: Option<&Arc<User>>) -> &Realm {
        // the realm of a token's holder may be one that its authorization server chose
        let session = session.filter(|user| !user.has_token());
        // guard: V-34-session
        let of_session = session.map(|user| &*user.realm);
        let named = || core::str::from_utf8(message.realm().ok()??).ok();
        let name = of_session
            .or_else(|| self.origins.realm_of(message))
            .or_else(named);
        let at = name.and_then(|name| place(&self.list, name).ok());
        self.at(at.unwrap_or(0))
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "there is a first realm, and the others are found in this very list"
    )]
    fn at(&self, at: usize) -> &Realm {
        &self.list[at]
    }
}

/// Returns whether `value` is the PASSWORD-ALGORITHMS value that this server sends when it offers `offered`.
fn is_list_of(value: &[u8], offered: &[PasswordAlgorithm]) -> bool {
    let mut entries = value.chunks(4);
    let is_each = offered.iter().all(|algorithm| {
        let [high, low] = algorithm.number().to_be_bytes();
        entries.next() == Some(&[high, low, 0, 0]) // no parameters
    });
    is_each && entries.next().is_none()
}

/// The attributes about algorithms contradict each other or the nonce.
struct Inconsistent;

type Claims<'a> = (Option<Claim<'a>>, Option<&'a [u8]>, Option<&'a [u8]>);

/// Returns the user that the request claims to be from, its REALM and its NONCE.
fn claims<'a>(message: &Message<'a>) -> Result<Claims<'a>, turnbuckle_wire::AttributeError> {
    let claim = match message.username()? {
        Some(name) => Some(Claim::Username(name)),
        None => message.userhash()?.map(Claim::Userhash),
    };
    Ok((claim, message.realm()?, message.nonce()?))
}

#[cfg(test)]
mod tests;
