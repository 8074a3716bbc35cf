//! Who a client says it is: a user with a password, or a name that a shared secret vouches for.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha1::Sha1;
use turnbuckle_wire::{IntegrityKey, PasswordAlgorithm, long_term_key_md5, long_term_key_sha256};

/// A username and its password.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    username: String,
    password: String,
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
    /// A user with a password.
    pub fn user(username: &str, password: &str) -> Self {
        Self {
            username: username.to_owned(),
            password: password.to_owned(),
        }
    }

    /// A time-limited user of the "REST API": the name says when it ends (seconds since 1970), the password is its HMAC.
    /// `separator` stands between time and name; servers expect `:` unless they are told otherwise.
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
        Self { username, password }
    }

    /// USERNAME.
    pub fn username(&self) -> &str {
        &self.username
    }

    /// The key of the long-term mechanism (RFC 8489 §9.2.2), for the integrity attribute that goes with `algorithm`.
    pub(crate) fn key(&self, realm: &[u8], algorithm: Option<PasswordAlgorithm>) -> IntegrityKey {
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
