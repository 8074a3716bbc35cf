//! One realm and its users.

use core::fmt;
use std::sync::Arc;

use crate::credential::{
    CredentialError, RestSecret, Row, User, UserTable, prepare_name, prepare_password,
    prepare_realm,
};

/// What came of adding many users ([`Realm::add_users_by_md5_key`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsersAdded<'a> {
    /// The names that cannot be used.
    pub unusable: Vec<&'a str>,
    /// Whether each of the others is written as it is prepared, so that no two of them stand for one user.
    pub are_prepared: bool,
}

/// Users and shared secrets of one realm. Holds keys, never passwords (RFC 8656 §6).
#[derive(Clone)]
pub struct Realm {
    name: Arc<str>,
    users: UserTable,
    /// Those of the users whose password is written otherwise than it is prepared, with the keys of the password as it is written: many
    /// clients make their key of that.
    written: UserTable,
    secrets: Vec<RestSecret>,
}

impl Realm {
    /// Most shared secrets: each costs about a microsecond for every request that fails.
    pub const REST_SECRETS_MAX: usize = 16;

    /// Makes a realm without users.
    ///
    /// # Errors
    ///
    /// The name has 128 bytes or more, or characters that RFC 8265 §4.2 does not allow.
    pub fn new(name: &str) -> Result<Self, CredentialError> {
        Ok(Self::prepared(prepare_realm(name)?.into()))
    }

    /// Makes a realm without users whose name is in its prepared form.
    pub(crate) fn prepared(name: Arc<str>) -> Self {
        Self {
            name,
            users: UserTable::default(),
            written: UserTable::default(),
            secrets: Vec::new(),
        }
    }

    #[cfg(test)]
    pub(crate) fn with(name: &str, users: UserTable, secrets: Vec<RestSecret>) -> Self {
        Self {
            name: name.into(),
            users,
            written: UserTable::default(),
            secrets,
        }
    }

    /// Returns the name, as prepared.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Adds a user. Of the password only keys derived from it are kept: from the password as RFC 8265 §4.2 prepares it, and from the bytes
    /// that are given, where these differ or cannot be prepared.
    ///
    /// # Errors
    ///
    /// The password is empty. The name is taken, too long, or has characters that RFC 8265 §4.2 does not allow.
    pub fn add_user(
        &mut self,
        name: &str,
        password: impl AsRef<[u8]>,
    ) -> Result<(), CredentialError> {
        let (name, written) = (prepare_name(name)?, password.as_ref());
        let of = |password| User::with_password(&name, &self.name, password);
        let prepared = match prepare_password(written) {
            Err(CredentialError::Empty) => return Err(CredentialError::Empty),
            prepared => prepared.ok(),
        };
        let prepared = prepared.as_ref().map_or(written, |text| text.as_bytes());
        let (user, as_written) = (of(prepared), of(written));
        self.add(&user)?;
        if prepared != written {
            self.written.put(Row::of(&as_written));
        }
        Ok(())
    }

    /// Adds a user by `MD5(name:realm:password)`. While there is such a user SHA-256 is not offered in the realm, because the
    /// client would choose it and its key is unknown.
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
        self.add(&User::with_md5_key(&name, &self.name, key))
    }

    /// Adds many users by their MD5 keys, as [`Self::add_user_by_md5_key`] does. A name that is taken stays with who has it.
    pub fn add_users_by_md5_key<'a>(
        &mut self,
        keys: impl IntoIterator<Item = (&'a str, [u8; 16])>,
    ) -> UsersAdded<'a> {
        let mut added = UsersAdded {
            unusable: Vec::new(),
            are_prepared: true,
        };
        let rows = keys
            .into_iter()
            .filter_map(|(name, key)| match prepare_name(name) {
                Ok(prepared) => {
                    added.are_prepared &= prepared == name;
                    Some(Row::with_md5_key(prepared, &self.name, key))
                }
                Err(_) => {
                    added.unusable.push(name);
                    None
                }
            });
        self.users.extend(rows);
        added
    }

    /// Takes over the users of another realm of this name, in place of those that it has. They are shared and not copied.
    pub fn share_users(&mut self, other: &Self) {
        if self.name == other.name {
            self.users = other.users.clone();
            self.written = other.written.clone();
        }
    }

    /// Adds a user by its MD5 key, or gives the user of this name this key. Returns whether that changed anything.
    ///
    /// # Errors
    ///
    /// The name is too long or has characters that RFC 8265 §4.2 does not allow.
    pub fn put_user_by_md5_key(
        &mut self,
        name: &str,
        key: [u8; 16],
    ) -> Result<bool, CredentialError> {
        let name = prepare_name(name)?;
        let has_other = self.written.remove(&name, &self.name);
        Ok(self.users.put(Row::with_md5_key(name, &self.name, key)) | has_other)
    }

    /// Removes the user of this name, as prepared. Returns whether there was one.
    pub fn remove_user(&mut self, name: &str) -> bool {
        self.written.remove(name, &self.name);
        self.users.remove(name, &self.name)
    }

    /// Returns whether a name is written as it is prepared (RFC 8265 §4.2). One that cannot be used is not.
    pub fn is_prepared(name: &str) -> bool {
        prepare_name(name).is_ok_and(|prepared| prepared == name)
    }

    /// Returns whether there is a user of this name, as prepared.
    pub fn has_user(&self, name: &str) -> bool {
        self.users.has(name, &self.name)
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

    /// Adds a secret that time-limited credentials are made from, as it is written and, where that differs, as RFC 8265 §4.2 prepares it.
    /// Credentials made from any of the secrets are good.
    ///
    /// # Errors
    ///
    /// The secret is empty, or there are [`Self::REST_SECRETS_MAX`] already.
    pub fn add_rest_secret(&mut self, secret: &[u8]) -> Result<(), CredentialError> {
        let prepared = match prepare_password(secret) {
            Err(CredentialError::Empty) => return Err(CredentialError::Empty),
            prepared => prepared.ok(),
        };
        let prepared = prepared.as_ref().map(|text| text.as_bytes());
        let forms = [
            Some(secret),
            prepared.filter(|prepared| *prepared != secret),
        ];
        let forms = forms.into_iter().flatten();
        if self.secrets.len() + forms.clone().count() > Self::REST_SECRETS_MAX {
            return Err(CredentialError::TooMany);
        }
        self.secrets.extend(forms.map(RestSecret::new));
        Ok(())
    }

    /// Adds the secrets of another realm, as far as they fit.
    pub fn share_rest_secrets(&mut self, other: &Self) {
        let room = Self::REST_SECRETS_MAX.saturating_sub(self.secrets.len());
        let shared = other.secrets.iter().take(room).cloned();
        self.secrets.extend(shared);
    }

    /// Removes all secrets.
    pub fn clear_rest_secrets(&mut self) {
        self.secrets.clear();
    }

    /// Returns whether the secrets are those of `other`, in any order.
    pub fn has_secrets_of(&self, other: &Self) -> bool {
        let has = |secret: &RestSecret| other.secrets.iter().any(|it| it.is_same_as(secret));
        self.secrets.len() == other.secrets.len() && self.secrets.iter().all(has)
    }

    /// Returns whether the realm has any credentials with which a client can authenticate.
    pub fn has_credentials(&self) -> bool {
        self.users.len() > 0 || !self.secrets.is_empty()
    }

    /// Returns the users of whom only the MD5 key is configured. They cannot authenticate with
    /// [`super::PasswordAlgorithmChoice::Sha256Only`].
    pub fn users_without_sha256(&self) -> impl Iterator<Item = &str> {
        self.users.names_without_sha256()
    }

    pub(crate) fn users(&self) -> &UserTable {
        &self.users
    }

    pub(crate) fn written(&self) -> &UserTable {
        &self.written
    }

    pub(crate) fn secrets(&self) -> &[RestSecret] {
        &self.secrets
    }

    pub(super) fn name_arc(&self) -> &Arc<str> {
        &self.name
    }

    fn add(&mut self, user: &User) -> Result<(), CredentialError> {
        if self.users.insert(Row::of(user)) {
            Ok(())
        } else {
            Err(CredentialError::Duplicate)
        }
    }
}

impl fmt::Debug for Realm {
    /// Leaves secrets and keys out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Realm")
            .field("name", &self.name)
            .field("users", &self.users.len())
            .field("rest_secrets", &self.secrets.len())
            .finish()
    }
}

/// Returns the 16 bytes of 32 hexadecimal digits.
fn md5_key(digits: &str) -> Option<[u8; 16]> {
    let is_hexadecimal = digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = u128::from_str_radix(digits, 16).ok();
    number.filter(|_| is_hexadecimal).map(u128::to_be_bytes)
}
