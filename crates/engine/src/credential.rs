//! Users and their keys.

/// A user who proved who it is. Shared by every allocation of the user.
#[derive(Debug)]
pub struct User {
    /// The USERNAME of the request.
    pub name: Box<str>,
    /// The realm the user belongs to.
    pub realm: Box<str>,
    /// The name quotas count: the id part of a time-limited username, the whole name otherwise.
    pub quota_name: Box<str>,
    /// When the credential ends, in seconds since 1970; `None` for one that does not.
    pub expires_unix_s: Option<u64>,
}
