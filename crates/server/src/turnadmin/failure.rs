//! Why a command of `turnadmin` fails.

use turnbuckle_users::DatabaseError;

/// Why a command was not carried out. Never holds a password, key or secret.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line makes no sense: the usage follows.
    Usage(String),
    /// Something is missing or went wrong.
    Refused(String),
}

impl From<DatabaseError> for Failure {
    fn from(error: DatabaseError) -> Self {
        Self::Refused(error.to_string())
    }
}
