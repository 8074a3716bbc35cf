//! Basic credentials (RFC 7617): a name and a password, in the field of a request.

use core::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The longest value that is decoded, in characters: the longest name of TURN (RFC 8489 §14.3) and a password of twice that.
const ENCODED_LEN_MAX: usize = 2048;

/// A name and a password, as they were sent.
#[derive(Clone, PartialEq, Eq)]
pub struct BasicCredentials {
    /// The name.
    pub name: Box<str>,
    /// The password.
    pub password: Box<str>,
}

impl fmt::Debug for BasicCredentials {
    /// Leaves the password out.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("BasicCredentials")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl BasicCredentials {
    /// Returns the value of Authorization or Proxy-Authorization for a name and a password.
    #[must_use]
    pub fn field(name: &str, password: &str) -> String {
        let pair = STANDARD.encode(format!("{name}:{password}"));
        format!("Basic {pair}")
    }

    /// Reads the value of Authorization or Proxy-Authorization. `None` for another scheme, and for what is none.
    #[must_use]
    pub fn of_field(value: &[u8]) -> Option<Self> {
        let (scheme, rest) = value.split_at_checked(5)?;
        if !scheme.eq_ignore_ascii_case(b"Basic") || rest.first() != Some(&b' ') {
            return None;
        }
        let encoded = rest.trim_ascii();
        if encoded.len() > ENCODED_LEN_MAX {
            return None;
        }
        let decoded = String::from_utf8(STANDARD.decode(encoded).ok()?).ok()?;
        let (name, password) = split(&decoded)?;
        Some(Self {
            name: name.into(),
            password: password.into(),
        })
    }
}

/// Divides name and password: at the first colon (RFC 7617 §2), but at the last one where the first stands behind nothing but digits. A
/// time-limited name is the second of its end, a colon and a name, and its password is base64, which has no colon.
fn split(pair: &str) -> Option<(&str, &str)> {
    let (first, _) = pair.split_once(':')?;
    let is_time_limited = !first.is_empty() && first.bytes().all(|byte| byte.is_ascii_digit());
    match is_time_limited {
        true => pair.rsplit_once(':'),
        false => pair.split_once(':'),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pair: &str) -> Option<(String, String)> {
        let field = format!("Basic {}", STANDARD.encode(pair));
        let credentials = BasicCredentials::of_field(field.as_bytes())?;
        Some((credentials.name.into(), credentials.password.into()))
    }

    fn pair(name: &str, password: &str) -> Option<(String, String)> {
        Some((name.into(), password.into()))
    }

    #[test]
    fn a_password_may_have_colons_and_a_time_limited_name_has_one() {
        assert_eq!(of("alice:wonderland"), pair("alice", "wonderland"));
        assert_eq!(of("alice:a:b"), pair("alice", "a:b"));
        assert_eq!(of("alice:"), pair("alice", ""));
        assert_eq!(of(":x"), pair("", "x"));
        assert_eq!(
            of("1893456000:alice:c2VjcmV0"),
            pair("1893456000:alice", "c2VjcmV0")
        );
        assert_eq!(of("1893456000:c2VjcmV0"), pair("1893456000", "c2VjcmV0"));
        assert_eq!(of("Ålice:ö"), pair("Ålice", "ö"));
        assert_eq!(of("alice"), None);
    }

    #[test]
    fn what_is_not_basic_is_nobody() {
        for field in [
            "",
            "Basic",
            "Basic ",
            "BasicYTpi",
            "Bearer YTpi",
            "Basic YTpi YTpi",
            "Basic ****",
            "Basic /w==",
            "basicx YTpi",
        ] {
            assert_eq!(
                BasicCredentials::of_field(field.as_bytes()),
                None,
                "{field}"
            );
        }
        let of_field = |field: &str| BasicCredentials::of_field(field.as_bytes());
        assert!(of_field("bASIC   YTpi ").is_some());
        let endless = format!(
            "Basic {}",
            STANDARD.encode(format!("a:{}", "b".repeat(1600)))
        );
        assert_eq!(of_field(&endless), None);
    }

    #[test]
    fn a_password_is_not_shown() {
        let credentials = BasicCredentials::of_field(b"Basic YTpi").unwrap();
        assert_eq!(
            format!("{credentials:?}"),
            "BasicCredentials { name: \"a\", .. }"
        );
    }
}
