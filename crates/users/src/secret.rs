//! Bytes that must not appear in logs, dumps or messages.

use std::fmt;

/// A password, shared secret or key. Its content is reachable by [`Secret::expose`] alone: `Debug` prints a mask and there is no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Box<[u8]>);

/// What is printed in the place of a secret.
pub const MASK: &str = "********";

impl Secret {
    /// Keeps `bytes`.
    pub fn new(bytes: impl Into<Box<[u8]>>) -> Self {
        Self(bytes.into())
    }

    /// Returns the content, for whoever computes with it.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}
