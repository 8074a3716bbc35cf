//! Holds one SQLite file with coturn's tables, and runs every statement on it.

use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, Params, Row};

/// coturn's tables, as it makes them itself where they are missing: types, defaults and keys are those that its programs and other readers expect.
const SCHEMA: &str = "\
CREATE TABLE IF NOT EXISTS turnusers_lt (realm varchar(127) default '', name varchar(512), hmackey char(128), PRIMARY KEY (realm,name));
CREATE TABLE IF NOT EXISTS turn_secret (realm varchar(127) default '', value varchar(127), primary key (realm,value));
CREATE TABLE IF NOT EXISTS allowed_peer_ip (realm varchar(127) default '', ip_range varchar(256), primary key (realm,ip_range));
CREATE TABLE IF NOT EXISTS denied_peer_ip (realm varchar(127) default '', ip_range varchar(256), primary key (realm,ip_range));
CREATE TABLE IF NOT EXISTS turn_origin_to_realm (origin varchar(127), realm varchar(127), primary key (origin));
CREATE TABLE IF NOT EXISTS turn_realm_option (realm varchar(127) default '', opt varchar(32), value varchar(128), primary key (realm,opt));
CREATE TABLE IF NOT EXISTS oauth_key (kid varchar(128), ikm_key varchar(256), timestamp bigint default 0, lifetime integer default 0, \
as_rs_alg varchar(64) default '', realm varchar(127) default '', primary key (kid));
CREATE TABLE IF NOT EXISTS admin_user (name varchar(32), realm varchar(127), password varchar(127), primary key (name));";

/// How long a statement waits for another program that is writing.
const LOCK_WAIT: Duration = Duration::from_secs(5);

/// An open database.
pub(crate) struct Database {
    connection: Connection,
    path: PathBuf,
    /// Device and inode. They show whether another file has replaced this one.
    file: (u64, u64),
}

/// What went wrong with a database. Holds no value of any row.
#[derive(Debug)]
pub(crate) struct DatabaseError {
    path: PathBuf,
    what: String,
}

impl fmt::Display for DatabaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "user database {}: {}", self.path.display(), self.what)
    }
}

impl std::error::Error for DatabaseError {}

/// Identifies a state of the database. It changes when another program commits, or when another file replaces this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Version {
    file: (u64, u64),
    commit: i64,
}

impl Database {
    /// Opens the file and creates the tables that are missing. A missing file is created. A file that may not be written is read as it is.
    ///
    /// # Errors
    ///
    /// It cannot be read, is no database, or lacks tables and cannot be written.
    pub(crate) fn open(path: &Path) -> Result<Self, DatabaseError> {
        let error = |error: rusqlite::Error| DatabaseError {
            path: path.to_owned(),
            what: said(&error),
        };
        let connection = Connection::open_with_flags(
            path,
            OpenFlags::SQLITE_OPEN_READ_WRITE
                | OpenFlags::SQLITE_OPEN_CREATE
                | OpenFlags::SQLITE_OPEN_NO_MUTEX,
        )
        .map_err(error)?;
        connection.busy_timeout(LOCK_WAIT).map_err(error)?;
        // SQLite opens a read-only file without an error. It reports the error at the first write, which creates a missing table.
        connection.execute_batch(SCHEMA).map_err(error)?;
        let file = identity(path).map_err(|error| DatabaseError {
            path: path.to_owned(),
            what: error.to_string(),
        })?;
        Ok(Self {
            connection,
            path: path.to_owned(),
            file,
        })
    }

    /// Returns the version of the database's present state. This is cheap, because it reads one counter only.
    ///
    /// # Errors
    ///
    /// The file is gone or cannot be read.
    pub(crate) fn version(&self) -> Result<Version, DatabaseError> {
        let file = identity(&self.path).map_err(|error| self.error(error.to_string()))?;
        let commit = self
            .connection
            .query_row("PRAGMA data_version", [], |row| row.get(0))
            .map_err(|error| self.error(said(&error)))?;
        Ok(Version { file, commit })
    }

    /// Returns whether another file has replaced this one, so that the database has to be opened again.
    pub(crate) fn is_replaced(&self, version: &Version) -> bool {
        version.file != self.file
    }

    /// Carries out `work` on one state of the database, whatever other programs write meanwhile.
    pub(crate) fn at_once<T>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, DatabaseError>,
    ) -> Result<T, DatabaseError> {
        let transaction = self
            .connection
            .unchecked_transaction()
            .map_err(|error| self.error(said(&error)))?;
        let done = work(self)?;
        transaction
            .commit()
            .map_err(|error| self.error(said(&error)))?;
        Ok(done)
    }

    /// Returns all rows of a query, each converted by `read`.
    pub(crate) fn rows<T>(
        &self,
        query: &str,
        values: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, DatabaseError> {
        let rows = || -> rusqlite::Result<Vec<T>> {
            let mut statement = self.connection.prepare(query)?;
            statement.query_map(values, read)?.collect()
        };
        rows().map_err(|error| self.error(said(&error)))
    }

    /// Changes rows; returns how many.
    pub(crate) fn change(
        &self,
        statement: &str,
        values: impl Params,
    ) -> Result<usize, DatabaseError> {
        self.connection
            .execute(statement, values)
            .map_err(|error| self.error(said(&error)))
    }

    fn error(&self, what: String) -> DatabaseError {
        DatabaseError {
            path: self.path.clone(),
            what,
        }
    }
}

/// Returns the text of a column, of whatever type. Bytes that are not UTF-8 are replaced.
pub(crate) fn text(row: &Row<'_>, column: usize) -> rusqlite::Result<String> {
    use rusqlite::types::ValueRef;
    Ok(match row.get_ref(column)? {
        ValueRef::Null => String::new(),
        ValueRef::Integer(number) => number.to_string(),
        ValueRef::Real(number) => number.to_string(),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => {
            String::from_utf8_lossy(bytes).into_owned()
        }
    })
}

/// Returns the text of an error, without the statement that caused it.
fn said(error: &rusqlite::Error) -> String {
    match error {
        rusqlite::Error::SqliteFailure(code, None) => code.to_string(),
        rusqlite::Error::SqliteFailure(_, Some(text)) => text.clone(),
        other => other.to_string(),
    }
}

fn identity(path: &Path) -> std::io::Result<(u64, u64)> {
    let metadata = std::fs::metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests;
