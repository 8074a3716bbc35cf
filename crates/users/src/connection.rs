//! A database for programs that wait for it.

use tokio::runtime::{Builder, Runtime};

use crate::change::{Change, Listed, Listing};
use crate::database::Database;
use crate::driver::Driver as _;
use crate::error::DatabaseError;
use crate::records::{Answer, Changed, Records, Wanted};
use crate::source::Source;

/// A connection whose calls block, for `turnadmin` and for tests.
pub struct Connection {
    runtime: Runtime,
    database: Database,
}

impl Connection {
    /// Connects to a database.
    ///
    /// # Errors
    ///
    /// The database cannot be reached or opened.
    pub fn open(source: &Source) -> Result<Self, DatabaseError> {
        let runtime = runtime().map_err(|error| DatabaseError::passing(source, error))?;
        let database = runtime.block_on(Database::connect(source, true))?;
        Ok(Self { runtime, database })
    }

    /// Brings `records` up to date. They are empty, or what the call before has left. Returns what that has changed.
    ///
    /// # Errors
    ///
    /// The database cannot be read.
    pub fn follow(
        &mut self,
        wanted: &Wanted,
        records: &mut Records,
    ) -> Result<Changed, DatabaseError> {
        let news = self.runtime.block_on(self.database.follow(wanted, records));
        news.map(|news| records.take(news))
    }

    /// Asks for the key of one user and for the secrets of its realm.
    ///
    /// # Errors
    ///
    /// The database cannot be read.
    pub fn ask(&mut self, realm: &str, name: &str) -> Result<Answer, DatabaseError> {
        self.runtime.block_on(self.database.ask(realm, name))
    }

    /// Carries out a change, as a whole or not at all.
    ///
    /// # Errors
    ///
    /// The database cannot be written.
    pub fn change(&mut self, change: Change<'_>) -> Result<(), DatabaseError> {
        self.runtime.block_on(self.database.change(change))
    }

    /// Lists rows of one realm, or of all if none is named, sorted by realm and name.
    ///
    /// # Errors
    ///
    /// The database cannot be read.
    pub fn list(
        &mut self,
        listing: Listing,
        realm: Option<&str>,
    ) -> Result<Vec<Listed>, DatabaseError> {
        self.runtime.block_on(self.database.list(listing, realm))
    }
}

/// Makes the runtime of one thread that drives connections.
pub(crate) fn runtime() -> std::io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}
