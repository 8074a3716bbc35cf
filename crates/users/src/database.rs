//! The closed list of databases.

use crate::change::{Change, Listed, Listing};
use crate::driver::Driver;
use crate::error::DatabaseError;
#[cfg(feature = "mongo")]
use crate::mongo::Mongo;
use crate::mysql::Mysql;
use crate::postgres::Postgres;
use crate::records::{Answer, News, Records, Wanted};
use crate::redis::Redis;
use crate::source::Source;
use crate::sqlite::Sqlite;

/// A connection to a database of any kind.
pub enum Database {
    /// A file.
    Sqlite(Sqlite),
    /// A Redis or Valkey server.
    Redis(Box<Redis>),
    /// A PostgreSQL server.
    Postgres(Box<Postgres>),
    /// A MySQL or MariaDB server.
    Mysql(Box<Mysql>),
    /// A MongoDB server.
    #[cfg(feature = "mongo")]
    Mongo(Box<Mongo>),
}

/// Carries out the same on whatever database it is.
macro_rules! each {
    ($database:expr, $driver:ident => $work:expr) => {
        match $database {
            Self::Sqlite($driver) => $work,
            Self::Redis($driver) => $work,
            Self::Postgres($driver) => $work,
            Self::Mysql($driver) => $work,
            #[cfg(feature = "mongo")]
            Self::Mongo($driver) => $work,
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
            Source::Postgres(source) => {
                let postgres = Postgres::connect(source).await?;
                Ok(Self::Postgres(Box::new(postgres)))
            }
            Source::Mysql(source) => Ok(Self::Mysql(Box::new(Mysql::connect(source).await?))),
            #[cfg(feature = "mongo")]
            Source::Mongo(source) => Ok(Self::Mongo(Box::new(Mongo::connect(source).await?))),
            #[cfg(not(feature = "mongo"))]
            Source::Mongo(source) => Err(DatabaseError::permanent(source, crate::mongo::WITHOUT)),
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
