//! Errors of databases.

use std::fmt;

/// What went wrong with a database. Holds no password and no value of any row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseError {
    /// Names the database, without secrets.
    database: String,
    what: String,
    is_permanent: bool,
}

impl DatabaseError {
    /// Returns an error that may pass by itself: the database is not reached, does not answer, or is locked.
    pub(crate) fn passing(database: impl fmt::Display, what: impl fmt::Display) -> Self {
        Self {
            database: database.to_string(),
            what: what.to_string(),
            is_permanent: false,
        }
    }

    /// Returns an error that stays until somebody mends the configuration or the database: a wrong password, no such database, a refused certificate.
    pub(crate) fn permanent(database: impl fmt::Display, what: impl fmt::Display) -> Self {
        Self {
            is_permanent: true,
            ..Self::passing(database, what)
        }
    }

    /// Returns whether trying again is of no use before somebody has mended something.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        self.is_permanent
    }
}

impl fmt::Display for DatabaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "user database {}: {}", self.database, self.what)
    }
}

impl std::error::Error for DatabaseError {}
