//! The long-term credential mechanism (RFC 8489 §9.2).

/// Realm, users, secrets and nonce policy.
#[derive(Clone, Debug, Default)]
pub struct AuthConfig {
    /// The realm of every challenge, at most 127 characters.
    pub realm: Box<str>,
}
