//! A client's identity: a user with a password, or a name vouched for by a shared secret.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha1::Sha1;
use turnbuckle_masque::BasicCredentials;
use turnbuckle_wire::{IntegrityKey, PasswordAlgorithm, long_term_key_md5, long_term_key_sha256};

use crate::token::SharedKey;

/// A username and its password, or a key in its place.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    username: String,
    password: String,
    /// In place of a password: tokens are made of it.
    shared_key: Option<SharedKey>,
}

impl std::fmt::Debug for Credentials {
    /// Leaves the password out.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials")
            .field("username", &self.username)
            .finish_non_exhaustive()
    }
}

impl Credentials {
    /// Returns a user with a password.
    pub fn user(username: &str, password: &str) -> Self {
        Self {
            username: username.to_owned(),
            password: password.to_owned(),
            shared_key: None,
        }
    }

    /// Returns what stands for them in a field of HTTP (RFC 7617).
    pub(crate) fn basic(&self) -> String {
        BasicCredentials::field(&self.username, &self.password)
    }

    /// Returns the credentials of a client with tokens of an authorization server (RFC 7635). They are the name of its key, which is USERNAME, and
    /// the key that it shares with the server, for AES-256-GCM.
    pub fn third_party(key_name: &str, key: &[u8]) -> Self {
        Self {
            username: key_name.to_owned(),
            password: String::new(),
            shared_key: Some(SharedKey::new(key)),
        }
    }

    /// Returns what tokens are made of.
    pub(crate) fn shared_key(&self) -> Option<&SharedKey> {
        self.shared_key.as_ref()
    }

    /// Returns a time-limited user of the "REST API": the name says when it ends (seconds since 1970), the password is its HMAC.
    /// `separator` stands between time and name; servers expect `:` unless configured otherwise.
    pub fn rest(name: &str, secret: &str, expires_unix_s: u64, separator: char) -> Self {
        let username = format!("{expires_unix_s}{separator}{name}");
        let password = match Hmac::<Sha1>::new_from_slice(secret.as_bytes()) {
            Ok(mut mac) => {
                mac.update(username.as_bytes());
                BASE64_STANDARD.encode(mac.finalize().into_bytes())
            }
            // HMAC takes keys of any length.
            Err(_) => String::new(),
        };
        Self {
            username,
            password,
            shared_key: None,
        }
    }

    /// Returns USERNAME.
    pub fn username(&self) -> &str {
        &self.username
    }

    /// Returns the password; `None` if there is a key in its place.
    pub fn password(&self) -> Option<&str> {
        self.shared_key.is_none().then_some(&self.password)
    }

    /// Returns the key of the long-term mechanism (RFC 8489 §9.2.2), for the integrity attribute that goes with `algorithm`.
    pub fn key(&self, realm: &[u8], algorithm: Option<PasswordAlgorithm>) -> IntegrityKey {
        let (name, password) = (self.username.as_bytes(), self.password.as_bytes());
        match algorithm {
            Some(PasswordAlgorithm::Sha256) => {
                IntegrityKey::sha256(&long_term_key_sha256(name, realm, password))
            }
            // A server that knows algorithms answers with SHA-256 integrity whatever the key was made with.
            Some(_) => IntegrityKey::sha256(&long_term_key_md5(name, realm, password)),
            None => IntegrityKey::sha1(&long_term_key_md5(name, realm, password)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Credentials;

    #[test]
    fn a_rest_password_is_the_hmac_of_the_name() {
        // From `printf %s 1700000000:alice | openssl dgst -sha1 -hmac secret -binary | base64`.
        let credentials = Credentials::rest("alice", "secret", 1_700_000_000, ':');
        assert_eq!(credentials.username(), "1700000000:alice");
        assert_eq!(credentials.password, "d8soP47RbdIKLDUOpnJPVQyq5Ts=");
        assert!(!format!("{credentials:?}").contains("d8soP47RbdIKLDUOpnJPVQyq5Ts="));
    }
}
