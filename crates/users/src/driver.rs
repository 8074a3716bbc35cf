//! The verbs that every database has.

use crate::change::{Change, Listed, Listing};
use crate::error::DatabaseError;
use crate::records::{Answer, News, Records, Wanted};

/// An open connection to a database. After an error the connection is of no use any more and a new one is made.
///
/// Each verb ends by itself within a bounded time, also when the database hangs.
#[expect(
    async_fn_in_trait,
    reason = "the futures stay on the one thread that drives them"
)]
pub trait Driver {
    /// Says what has changed since the call before. The first call of a connection reads everything. A later one that rests from reading says so
    /// ([`News::Part`]), and not that nothing has changed. `known` is what all calls before have told, on whatever connection.
    ///
    /// # Errors
    ///
    /// The database cannot be read.
    async fn follow(&mut self, wanted: &Wanted, known: &Records) -> Result<News, DatabaseError>;

    /// Waits until [`Self::follow`] is worth another call: for the time between two looks, or until the database tells of a change. May be
    /// dropped before it is done.
    async fn await_change(&mut self);

    /// Asks for the key of one user and for the secrets of its realm.
    ///
    /// # Errors
    ///
    /// The database cannot be read.
    async fn ask(&mut self, realm: &str, name: &str) -> Result<Answer, DatabaseError>;

    /// Carries out a change, as a whole or not at all.
    ///
    /// # Errors
    ///
    /// The database cannot be written.
    async fn change(&mut self, change: Change<'_>) -> Result<(), DatabaseError>;

    /// Lists rows of one realm, or of all if none is named, in any order.
    ///
    /// # Errors
    ///
    /// The database cannot be read.
    async fn list(
        &mut self,
        listing: Listing,
        realm: Option<&str>,
    ) -> Result<Vec<Listed>, DatabaseError>;
}
