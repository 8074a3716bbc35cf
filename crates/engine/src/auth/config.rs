//! What an operator says about users, secrets and nonces.

use core::fmt;
use std::sync::Arc;

use turnbuckle_wire::PasswordAlgorithm;

use super::token::ThirdParties;
use crate::credential::{
    CredentialError, Credentials, RestSecret, User, UserTable, prepare_name, prepare_password,
    prepare_realm,
};
use crate::nonce::{NonceKey, NonceLifetime};
use crate::random::Random;

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

/// When a time-limited credential has to be within its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpiryCheck {
    /// In every request: an allocation ends when its credential does (at its next Refresh, permission or channel request).
    EveryRequest,
    /// In Allocate requests only: an allocation may outlive the credential it was made with (coturn).
    NewAllocations,
}

/// Realm, users, secrets and nonce policy. Holds keys, never passwords (RFC 8656 §6).
#[derive(Clone)]
pub struct AuthConfig {
    realm: Arc<str>,
    users: UserTable,
    secrets: Vec<RestSecret>,
    /// What separates expiry and id in a time-limited username; `:` usually.
    pub rest_separator: char,
    /// Which password algorithms are offered and accepted.
    pub password_algorithms: PasswordAlgorithmChoice,
    /// Whether clients are asked to send USERHASH instead of USERNAME (RFC 8489 §9.2). Never asked while there are shared
    /// secrets, because a username nobody has written down cannot be found by its hash.
    pub username_anonymity: bool,
    /// When time-limited credentials have to be within their time.
    pub expiry: ExpiryCheck,
    /// How long a nonce is good for.
    pub nonce_lifetime: NonceLifetime,
    /// The key of nonces, the same in every shard, in a fleet and after a restart; `None` for a random one in each engine.
    pub nonce_key: Option<NonceKey>,
    /// The key before that, whose nonces are still accepted.
    pub previous_nonce_key: Option<NonceKey>,
    /// Authorization servers whose tokens are taken (RFC 7635), and this server's name to them.
    pub third_parties: Option<ThirdParties>,
}

impl Default for AuthConfig {
    /// No realm and no users: nobody can authenticate.
    fn default() -> Self {
        Self {
            realm: "".into(),
            users: UserTable::default(),
            secrets: Vec::new(),
            rest_separator: ':',
            password_algorithms: PasswordAlgorithmChoice::Any,
            username_anonymity: true,
            expiry: ExpiryCheck::EveryRequest,
            nonce_lifetime: NonceLifetime::default(),
            nonce_key: None,
            previous_nonce_key: None,
            third_parties: None,
        }
    }
}

impl AuthConfig {
    /// Most shared secrets: each costs about a microsecond for every request that fails.
    pub const REST_SECRETS_MAX: usize = 16;

    /// A realm without users.
    ///
    /// # Errors
    ///
    /// The realm is empty, has 128 characters or more, or characters that RFC 8265 §4.2 does not allow.
    pub fn new(realm: &str) -> Result<Self, CredentialError> {
        let realm = prepare_realm(realm)?.into();
        Ok(Self {
            realm,
            ..Self::default()
        })
    }

    /// The realm, as prepared.
    pub fn realm(&self) -> &str {
        &self.realm
    }

    /// Adds a user. Of the password only keys derived from it are kept.
    ///
    /// # Errors
    ///
    /// The name is taken, too long, or name or password has characters that RFC 8265 §4.2 does not allow.
    pub fn add_user(&mut self, name: &str, password: &str) -> Result<(), CredentialError> {
        let (name, password) = (prepare_name(name)?, prepare_password(password)?);
        self.add(User::with_password(&name, &self.realm, &password))
    }

    /// Adds a user by `MD5(name:realm:password)`. While there is such a user SHA-256 is not offered, because the client
    /// would choose it and its key is unknown.
    ///
    /// # Errors
    ///
    /// As [`Self::add_user`].
    pub fn add_user_by_md5_key(
        &mut self,
        name: &str,
        key: [u8; 16],
    ) -> Result<(), CredentialError> {
        let name = prepare_name(name)?;
        self.add(User::with_md5_key(&name, &self.realm, key))
    }

    /// Adds many users by their MD5 keys, as [`Self::add_user_by_md5_key`] does, and returns the names that cannot be used. A name that
    /// is taken stays with who has it.
    pub fn add_users_by_md5_key<'a>(
        &mut self,
        keys: impl IntoIterator<Item = (&'a str, [u8; 16])>,
    ) -> Vec<&'a str> {
        let mut unusable = Vec::new();
        let realm = Arc::clone(&self.realm);
        let users = keys
            .into_iter()
            .filter_map(|(name, key)| match prepare_name(name) {
                Ok(prepared) => Some(User::with_md5_key(&prepared, &realm, key)),
                Err(_) => {
                    unusable.push(name);
                    None
                }
            });
        self.users.extend(users);
        unusable
    }

    /// Adds a user written as coturn does: `name:password`, or `name:0x` and the 32 hexadecimal digits of its MD5 key.
    ///
    /// # Errors
    ///
    /// Neither form, or as [`Self::add_user`].
    pub fn add_user_text(&mut self, text: &str) -> Result<(), CredentialError> {
        let (name, secret) = text.split_once(':').ok_or(CredentialError::Form)?;
        match secret.strip_prefix("0x") {
            Some(digits) => {
                let key = md5_key(digits).ok_or(CredentialError::Form)?;
                self.add_user_by_md5_key(name, key)
            }
            None => self.add_user(name, secret),
        }
    }

    /// Adds a secret that time-limited credentials are made from. Credentials made from any of the secrets are good.
    ///
    /// # Errors
    ///
    /// The secret is empty, or there are [`Self::REST_SECRETS_MAX`] already.
    pub fn add_rest_secret(&mut self, secret: &[u8]) -> Result<(), CredentialError> {
        if secret.is_empty() {
            return Err(CredentialError::Empty);
        }
        if self.secrets.len() >= Self::REST_SECRETS_MAX {
            return Err(CredentialError::TooMany);
        }
        self.secrets.push(RestSecret::new(secret));
        Ok(())
    }

    /// Whether anybody can authenticate.
    pub fn has_credentials(&self) -> bool {
        self.users.len() > 0 || !self.secrets.is_empty()
    }

    /// The users known only by their MD5 key, who cannot log in with [`PasswordAlgorithmChoice::Sha256Only`].
    pub fn users_without_sha256(&self) -> impl Iterator<Item = &str> {
        let users = self.users.iter().filter(|user| !user.has_sha256_key());
        users.map(|user| &*user.name)
    }

    /// The list of PASSWORD-ALGORITHMS, the best first; empty for none.
    pub(super) fn offered_algorithms(&self) -> &'static [PasswordAlgorithm] {
        match self.password_algorithms {
            PasswordAlgorithmChoice::Any if self.users_without_sha256().next().is_some() => {
                &[PasswordAlgorithm::Md5]
            }
            PasswordAlgorithmChoice::Any => &[PasswordAlgorithm::Sha256, PasswordAlgorithm::Md5],
            PasswordAlgorithmChoice::Md5Only => &[],
            PasswordAlgorithmChoice::Sha256Only => &[PasswordAlgorithm::Sha256],
        }
    }

    pub(super) fn offers_username_anonymity(&self) -> bool {
        self.username_anonymity && self.secrets.is_empty()
    }

    pub(super) fn realm_arc(&self) -> Arc<str> {
        Arc::clone(&self.realm)
    }

    pub(super) fn credentials(&self, random: &mut impl Random) -> Credentials {
        let realm = self.realm_arc();
        Credentials::new(
            realm,
            self.users.clone(),
            &self.secrets,
            self.rest_separator,
            random,
        )
    }

    fn add(&mut self, user: User) -> Result<(), CredentialError> {
        if self.users.insert(user) {
            Ok(())
        } else {
            Err(CredentialError::Duplicate)
        }
    }
}

impl fmt::Debug for AuthConfig {
    /// Leaves secrets and keys out.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("AuthConfig")
            .field("realm", &self.realm)
            .field("users", &self.users.len())
            .field("rest_secrets", &self.secrets.len())
            .field("password_algorithms", &self.password_algorithms)
            .field("username_anonymity", &self.username_anonymity)
            .field("expiry", &self.expiry)
            .field("nonce_lifetime", &self.nonce_lifetime)
            .finish_non_exhaustive()
    }
}

/// The 16 bytes of 32 hexadecimal digits.
fn md5_key(digits: &str) -> Option<[u8; 16]> {
    let is_hexadecimal = digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = u128::from_str_radix(digits, 16).ok();
    number.filter(|_| is_hexadecimal).map(u128::to_be_bytes)
}
