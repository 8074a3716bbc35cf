//! The verbs that every database has, and the closed list of databases.

use crate::change::{Change, Listed, Listing};
use crate::error::DatabaseError;
use crate::records::{Answer, News, Records, Wanted};
use crate::redis::Redis;
use crate::source::Source;
use crate::sqlite::Sqlite;

/// An open connection to a database. After an error the connection is of no use any more and a new one is made.
///
/// Each verb ends by itself within a bounded time, also when the database hangs.
#[expect(
    async_fn_in_trait,
    reason = "the futures stay on the one thread that drives them"
)]
pub trait Driver {
    /// Says what has changed since the call before. The first call of a connection reads everything. `known` is what all calls before have told,
    /// on whatever connection.
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

/// A connection to a database of any kind.
pub enum Database {
    /// A file.
    Sqlite(Sqlite),
    /// A Redis or Valkey server.
    Redis(Box<Redis>),
}

/// Carries out the same on whatever database it is.
macro_rules! each {
    ($database:expr, $driver:ident => $work:expr) => {
        match $database {
            Self::Sqlite($driver) => $work,
            Self::Redis($driver) => $work,
        }
    };
}

impl Database {
    /// Connects to a database. A file and tables in it that are missing are created, the file only where `may_create`.
    ///
    /// # Errors
    ///
    /// The database cannot be reached or opened.
    pub async fn connect(source: &Source, may_create: bool) -> Result<Self, DatabaseError> {
        match source {
            Source::Sqlite(path) => Sqlite::open(path, may_create).map(Self::Sqlite),
            Source::Redis(address) => {
                let redis = Redis::open(address).await?;
                Ok(Self::Redis(Box::new(redis)))
            }
        }
    }
}

impl Driver for Database {
    async fn follow(&mut self, wanted: &Wanted, known: &Records) -> Result<News, DatabaseError> {
        each!(self, driver => driver.follow(wanted, known).await)
    }

    async fn await_change(&mut self) {
        each!(self, driver => driver.await_change().await);
    }

    async fn ask(&mut self, realm: &str, name: &str) -> Result<Answer, DatabaseError> {
        each!(self, driver => driver.ask(realm, name).await)
    }

    async fn change(&mut self, change: Change<'_>) -> Result<(), DatabaseError> {
        each!(self, driver => driver.change(change).await)
    }

    async fn list(
        &mut self,
        listing: Listing,
        realm: Option<&str>,
    ) -> Result<Vec<Listed>, DatabaseError> {
        let mut listed = each!(self, driver => driver.list(listing, realm).await)?;
        // Here and not in the database: each sorts text by rules of its own.
        listed.sort_unstable();
        Ok(listed)
    }
}
