//! Time-limited credentials from a secret shared with a web service: the username holds the time it ends, the password is
//! base64 of HMAC-SHA1 of the username under the secret.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha1::Sha1;

/// Base64 of 20 bytes.
const PASSWORD_LEN: usize = 28;

/// One shared secret, as the HMAC state that it starts.
#[derive(Clone)]
pub(crate) struct RestSecret(Hmac<Sha1>);

impl RestSecret {
    #[expect(clippy::expect_used, reason = "HMAC takes keys of every length")]
    pub(crate) fn new(secret: &[u8]) -> Self {
        Self(Hmac::new_from_slice(secret).expect("HMAC takes keys of every length"))
    }

    /// Returns whether it is the same secret: then and only then the passwords are the same.
    pub(crate) fn is_same_as(&self, other: &Self) -> bool {
        self.password(b"") == other.password(b"")
    }

    /// Returns the password that belongs to `username`.
    pub(super) fn password(&self, username: &[u8]) -> [u8; PASSWORD_LEN] {
        let mut mac = self.0.clone();
        mac.update(username);
        let mut password = [0; PASSWORD_LEN];
        // Cannot fail: 20 bytes are 28 characters.
        let _ = STANDARD.encode_slice(mac.finalize().into_bytes(), &mut password);
        password
    }
}

/// A username of the form `expiry`, `expiry:id` or `id:expiry`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RestName<'a> {
    pub(super) name: &'a str,
    /// The last second in which the credential is good.
    pub(super) expires_unix_s: u64,
    id: &'a str,
}

impl<'a> RestName<'a> {
    /// Parses a name. Returns `None` for one without an expiry, and for one with control characters, which no name that was prepared has.
    ///
    /// Where both ends are numbers the first is the expiry.
    pub(super) fn parse(name: &'a str, separator: char) -> Option<Self> {
        if name.contains(char::is_control) {
            return None;
        }
        let leading = name.split_once(separator).or(Some((name, "")));
        let trailing = name.rsplit_once(separator).map(|(id, expiry)| (expiry, id));
        [leading, trailing]
            .into_iter()
            .flatten()
            .find_map(|(expiry, id)| {
                let is_number =
                    !expiry.is_empty() && expiry.bytes().all(|byte| byte.is_ascii_digit());
                let expires_unix_s = expiry.parse().ok().filter(|_| is_number)?;
                Some(Self {
                    name,
                    expires_unix_s,
                    id,
                })
            })
    }

    /// Returns the id part, which stays the same when the credential is renewed; the whole name when there is none.
    pub(super) fn quota_name(&self) -> &'a str {
        if self.id.is_empty() {
            self.name
        } else {
            self.id
        }
    }
}
