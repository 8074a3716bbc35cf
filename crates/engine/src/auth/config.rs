//! The configuration of users, secrets and nonces.

use core::fmt;
use std::sync::Arc;

use turnbuckle_wire::PasswordAlgorithm;

use super::Realms;
use super::origin::{CanonicalOrigin, Origins};
use super::realm::{Realm, UsersAdded};
use super::token::ThirdParties;
use crate::credential::CredentialError;
use crate::nonce::{NonceKey, NonceLifetime};
use crate::policy::AddressRange;

/// Which algorithms a key may be derived from a password with (RFC 8489 §18.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PasswordAlgorithmChoice {
    /// SHA-256 where the client can, MD5 otherwise.
    Any,
    /// MD5 for everyone, and PASSWORD-ALGORITHMS is never sent (coturn).
    Md5Only,
    /// SHA-256 for everyone. Clients of RFC 5389, all browsers among them, cannot log in.
    Sha256Only,
}

impl PasswordAlgorithmChoice {
    /// Returns the list of PASSWORD-ALGORITHMS that a realm offers, the best first; empty for none. `expects_md5` says that users may
    /// come of whom only the MD5 key is known.
    pub(super) fn offered(self, realm: &Realm, expects_md5: bool) -> &'static [PasswordAlgorithm] {
        match self {
            Self::Any if expects_md5 || realm.users().lacks_sha256() => &[PasswordAlgorithm::Md5],
            Self::Any => &[PasswordAlgorithm::Sha256, PasswordAlgorithm::Md5],
            Self::Md5Only => &[],
            Self::Sha256Only => &[PasswordAlgorithm::Sha256],
        }
    }
}

/// What a host can ask a user database about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Asks {
    /// Nothing.
    #[default]
    Never,
    /// Shared secrets of a realm.
    Secrets,
    /// Users, and shared secrets. Of these users only the MD5 key is known, so that no other algorithm is offered, and a USERHASH names nobody
    /// who can be asked for, so that none is wanted.
    Users,
}

/// The requests in which a time-limited credential must not have expired. A token (RFC 7635) is judged in every request that brings it, whatever this says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CredentialExpiry {
    /// Allocate requests alone: an allocation may outlive the credential it was made with, as in coturn.
    #[default]
    Allocation,
    /// All requests: an allocation is granted no time beyond that of its credential.
    Request,
}

/// How clients are answered that have not proven who they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// Whether clients are asked to send USERHASH instead of USERNAME (RFC 8489 §9.2). Never asked while there are shared
    /// secrets, because a username nobody has written down cannot be found by its hash.
    pub username_anonymity: bool,
    /// Whether nonces have 16 characters and announce nothing, as before RFC 8489: no algorithm but MD5 is offered then, and no
    /// USERHASH wanted.
    pub plain_nonces: bool,
    /// Whether a REALM that is not the request's realm is answered 437 to Allocate and 441 to other requests, as in coturn, and not
    /// 401 with the right realm.
    pub wrong_realm_is_mismatch: bool,
}

impl Default for Dialect {
    /// Returns that of RFC 8489.
    fn default() -> Self {
        Self {
            username_anonymity: true,
            plain_nonces: false,
            wrong_realm_is_mismatch: false,
        }
    }
}

/// Realms with their users and secrets, and nonce policy. Holds keys, never passwords (RFC 8656 §6).
#[derive(Clone)]
pub struct AuthConfig {
    /// The realm of requests that name no other comes first, the others in the order of their names.
    realms: Arc<Vec<Realm>>,
    origins: Arc<Origins>,
    /// The character between expiry and id in a time-limited username; `:` usually.
    pub rest_separator: char,
    /// Which password algorithms are offered and accepted.
    pub password_algorithms: PasswordAlgorithmChoice,
    /// How those are answered who have not proven who they are.
    pub dialect: Dialect,
    /// In which requests time-limited credentials must not have expired.
    pub credential_expiry: CredentialExpiry,
    /// How long a nonce is good for.
    pub nonce_lifetime: NonceLifetime,
    /// The key of nonces, the same in every shard, in a fleet and after a restart; `None` for a random one in each engine.
    pub nonce_key: Option<NonceKey>,
    /// The key before that, whose nonces are still accepted.
    pub previous_nonce_key: Option<NonceKey>,
    /// Sources whose requests are served without credentials, as guests of the default realm. By UDP a source can be forged: only addresses
    /// that packets from elsewhere cannot bear belong here.
    pub guest_sources: Vec<AddressRange>,
    /// Authorization servers whose tokens are taken (RFC 7635), and this server's name to them.
    pub third_parties: Option<ThirdParties>,
    /// What the host can ask a user database about before a request is refused ([`crate::Outcome::Ask`]).
    pub asks: Asks,
}

impl Default for AuthConfig {
    /// Returns a configuration without realms and users, with which nobody can authenticate.
    fn default() -> Self {
        Self::of(Realm::prepared("".into()))
    }
}

impl AuthConfig {
    /// Most shared secrets of a realm.
    pub const REST_SECRETS_MAX: usize = Realm::REST_SECRETS_MAX;

    /// Returns a configuration of one realm without users.
    ///
    /// # Errors
    ///
    /// As [`Realm::new`].
    pub fn new(realm: &str) -> Result<Self, CredentialError> {
        Ok(Self::of(Realm::new(realm)?))
    }

    fn of(realm: Realm) -> Self {
        Self {
            realms: Arc::new(vec![realm]),
            origins: Arc::default(),
            rest_separator: ':',
            password_algorithms: PasswordAlgorithmChoice::Any,
            dialect: Dialect::default(),
            credential_expiry: CredentialExpiry::default(),
            nonce_lifetime: NonceLifetime::default(),
            nonce_key: None,
            previous_nonce_key: None,
            guest_sources: Vec::new(),
            third_parties: None,
            asks: Asks::Never,
        }
    }

    /// Returns the prepared name of the default realm, for requests that name no realm.
    pub fn realm(&self) -> &str {
        self.first().name()
    }

    /// Returns all realms. The default realm, for requests that name none, comes first.
    pub fn realms(&self) -> impl Iterator<Item = &Realm> {
        self.realms.iter()
    }

    /// Adds a realm, in place of one of its name.
    pub fn add_realm(&mut self, realm: Realm) {
        let realms = Arc::make_mut(&mut self.realms);
        match place(realms, realm.name()) {
            Ok(at) => realms[at] = realm,
            Err(at) => realms.insert(at, realm),
        }
    }

    /// Returns the realm of this name.
    pub fn realm_of_name(&self, name: &str) -> Option<&Realm> {
        let at = place(&self.realms, name).ok()?;
        self.realms.get(at)
    }

    /// Has requests with this ORIGIN be for a realm that has been added.
    ///
    /// # Errors
    ///
    /// There is no such realm, or the text cannot be an origin.
    pub fn add_origin(&mut self, origin: &str, realm: &str) -> Result<(), CredentialError> {
        let origin = CanonicalOrigin::of(origin.as_bytes()).ok_or(CredentialError::Form)?;
        let at = place(&self.realms, realm).map_err(|_| CredentialError::NoSuchRealm)?;
        let realm = self.realms[at].name_arc();
        Arc::make_mut(&mut self.origins).insert(&origin, realm);
        Ok(())
    }

    /// Adds a user to the first realm, as [`Realm::add_user`] does.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn add_user(
        &mut self,
        name: &str,
        password: impl AsRef<[u8]>,
    ) -> Result<(), CredentialError> {
        self.first_mut().add_user(name, password)
    }

    /// Adds a user to the first realm, as [`Realm::add_user_by_md5_key`] does.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn add_user_by_md5_key(
        &mut self,
        name: &str,
        key: [u8; 16],
    ) -> Result<(), CredentialError> {
        self.first_mut().add_user_by_md5_key(name, key)
    }

    /// Adds users to the first realm, as [`Realm::add_users_by_md5_key`] does.
    pub fn add_users_by_md5_key<'a>(
        &mut self,
        keys: impl IntoIterator<Item = (&'a str, [u8; 16])>,
    ) -> UsersAdded<'a> {
        self.first_mut().add_users_by_md5_key(keys)
    }

    /// Adds a user to the first realm, as [`Realm::add_user_text`] does.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn add_user_text(&mut self, text: &str) -> Result<(), CredentialError> {
        self.first_mut().add_user_text(text)
    }

    /// Adds a shared secret to the first realm, as [`Realm::add_rest_secret`] does.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn add_rest_secret(&mut self, secret: &[u8]) -> Result<(), CredentialError> {
        self.first_mut().add_rest_secret(secret)
    }

    /// Returns whether there are any credentials with which a client can authenticate.
    pub fn has_credentials(&self) -> bool {
        self.realms.iter().any(Realm::has_credentials)
    }

    /// Returns the same for the first realm as [`Realm::users_without_sha256`].
    pub fn users_without_sha256(&self) -> impl Iterator<Item = &str> {
        self.first().users_without_sha256()
    }

    pub(super) fn shared_realms(&self) -> Realms {
        Realms {
            list: Arc::clone(&self.realms),
            origins: Arc::clone(&self.origins),
        }
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "there is a first realm from the beginning"
    )]
    fn first(&self) -> &Realm {
        &self.realms[0]
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "there is a first realm from the beginning"
    )]
    fn first_mut(&mut self) -> &mut Realm {
        &mut Arc::make_mut(&mut self.realms)[0]
    }
}

/// Returns the index of the realm of this name, or else the index at which it has to be inserted.
pub(super) fn place(realms: &[Realm], name: &str) -> Result<usize, usize> {
    match realms.split_first() {
        Some((first, others)) if first.name() != name => others
            .binary_search_by(|realm| realm.name().cmp(name))
            .map(|at| at + 1)
            .map_err(|at| at + 1),
        _ => Ok(0),
    }
}

impl fmt::Debug for AuthConfig {
    /// Leaves secrets and keys out.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("AuthConfig")
            .field("realms", &self.realms)
            .field("password_algorithms", &self.password_algorithms)
            .field("dialect", &self.dialect)
            .field("credential_expiry", &self.credential_expiry)
            .field("nonce_lifetime", &self.nonce_lifetime)
            .finish_non_exhaustive()
    }
}
