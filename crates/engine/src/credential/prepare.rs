//! Preparation of configured names, realms and passwords (RFC 8489 §14.3, §14.9, §9.2.2).

use core::fmt;
use std::borrow::Cow;

use precis_profiles::OpaqueString;
use precis_profiles::precis_core::profile::Profile as _;

/// Why a configured name, realm or password cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialError {
    /// Two users have one name.
    Duplicate,
    /// Empty where something is needed.
    Empty,
    /// Not `name:password` and not `name:0x` with 32 hexadecimal digits; for an origin, no text that can be one.
    Form,
    /// An origin for a realm that there is not.
    NoSuchRealm,
    /// Holds a character that OpaqueString does not allow (RFC 8265 §4.2), such as a control character.
    Prohibited,
    /// A name of 509 bytes or more, or a realm of 128 bytes or more.
    TooLong,
    /// More shared secrets than [`super::super::auth::AuthConfig::REST_SECRETS_MAX`].
    TooMany,
}

impl fmt::Display for CredentialError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Duplicate => "two users have this name",
            Self::Empty => "empty",
            Self::Form => "allowed are name:password and name:0x followed by 32 hexadecimal digits",
            Self::NoSuchRealm => "there is no such realm",
            Self::Prohibited => {
                "holds a character that RFC 8265 does not allow, such as a control character"
            }
            Self::TooLong => "too long: a name has at most 508 bytes, a realm at most 127 bytes",
            Self::TooMany => {
                "too many shared secrets: every wrong password is checked against each of them"
            }
        })
    }
}

impl core::error::Error for CredentialError {}

/// Prepares a username, which clients have to send in this form: fewer than 509 bytes after OpaqueString.
pub(crate) fn prepare_name(name: &str) -> Result<Cow<'_, str>, CredentialError> {
    let name = opaque_string(name)?;
    if name.len() >= 509 {
        return Err(CredentialError::TooLong);
    }
    Ok(name)
}

/// Prepares a realm: fewer than 128 bytes after OpaqueString, as coturn has room for. RFC 8489 §14.9 allows as many characters, but
/// a challenge would not fit every path then. The realm may be empty, as that of coturn is where nobody configured one.
pub(crate) fn prepare_realm(realm: &str) -> Result<String, CredentialError> {
    if realm.is_empty() {
        return Ok(String::new());
    }
    let realm = opaque_string(realm)?;
    if realm.len() >= 128 {
        return Err(CredentialError::TooLong);
    }
    Ok(realm.into_owned())
}

/// Prepares a password with OpaqueString. One that is not UTF-8 cannot be prepared.
pub(crate) fn prepare_password(password: &[u8]) -> Result<Cow<'_, str>, CredentialError> {
    let text = core::str::from_utf8(password);
    opaque_string(text.map_err(|_| CredentialError::Prohibited)?)
}

fn opaque_string(text: &str) -> Result<Cow<'_, str>, CredentialError> {
    if text.is_empty() {
        return Err(CredentialError::Empty);
    }
    // Stands for itself (RFC 8265 §4.2.2). So it is with nearly all of the names that a database holds by the million.
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return Ok(Cow::Borrowed(text));
    }
    let prepared = OpaqueString::new().enforce(text);
    prepared.map_err(|_| CredentialError::Prohibited)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printable_ascii_stands_for_itself() {
        for byte in 0..=127 {
            let text = format!("a{}b", char::from(byte));
            let prepared = OpaqueString::new().enforce(text.as_str());
            let expected = prepared.map_err(|_| CredentialError::Prohibited);
            assert_eq!(opaque_string(&text), expected, "{byte:#x}");
        }
        for text in [" ", " a ", "  a"] {
            let prepared = OpaqueString::new().enforce(text);
            assert_eq!(opaque_string(text), Ok(prepared.unwrap()), "{text:?}");
        }
    }
}
