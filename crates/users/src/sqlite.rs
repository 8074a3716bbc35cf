//! SQLite: one file with coturn's tables.
//!
//! `data_version` says that another program has committed, and nothing says what. Then all rows are read and compared with those that are known
//! ([decision 63](../../../docs/decisions/0063-rows-that-nobody-names-are-compared.md)).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::{OpenOptions, metadata};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{OpenFlags, Params, Row, params_from_iter};

use crate::change::{Change, Listed, Listing};
use crate::comparison::Comparison;
use crate::driver::Driver;
use crate::error::DatabaseError;
use crate::records::{
    Answer, News, RealmOption, Records, Tables, TokenKeyRow, UserKey, Users, Wanted, user_key,
};
use crate::secret::Secret;
use crate::sql::{Dialect, Statement};

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

/// Time between two checks for changes. A check reads one counter. coturn sees a new user at once and any other change after five seconds.
const INTERVAL: Duration = Duration::from_millis(250);

/// An open file.
pub struct Sqlite {
    connection: rusqlite::Connection,
    path: PathBuf,
    /// Device and inode. They show whether another file has replaced this one.
    file: (u64, u64),
    /// The state that [`Driver::follow`] has read.
    read: Option<Version>,
}

/// Identifies a state of the database. It changes when another program commits, or when another file replaces this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version {
    file: (u64, u64),
    commit: i64,
}

impl Sqlite {
    /// Opens the file and creates the tables that are missing. A missing file is created where `may_create`. A file that may not be written is read
    /// as it is.
    ///
    /// # Errors
    ///
    /// It cannot be read, is no database, or lacks tables and cannot be written.
    pub(crate) fn open(path: &Path, may_create: bool) -> Result<Self, DatabaseError> {
        let error = |error: rusqlite::Error| DatabaseError::permanent(path.display(), said(&error));
        let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        if may_create {
            flags |= OpenFlags::SQLITE_OPEN_CREATE;
            make(path);
        }
        let connection = rusqlite::Connection::open_with_flags(path, flags).map_err(error)?;
        connection.busy_timeout(LOCK_WAIT).map_err(error)?;
        // SQLite opens a read-only file without an error. It reports the error at the first write, which creates a missing table.
        connection.execute_batch(SCHEMA).map_err(error)?;
        let file =
            identity(path).map_err(|error| DatabaseError::permanent(path.display(), error))?;
        Ok(Self {
            connection,
            path: path.to_owned(),
            file,
            read: None,
        })
    }

    /// Returns the version of the database's present state. This is cheap, because it reads one counter only.
    ///
    /// # Errors
    ///
    /// The file is gone or cannot be read.
    fn version(&self) -> Result<Version, DatabaseError> {
        let file = identity(&self.path).map_err(|error| self.error(error.to_string()))?;
        let commit = self
            .connection
            .query_row("PRAGMA data_version", [], |row| row.get(0))
            .map_err(|error| self.error(said(&error)))?;
        Ok(Version { file, commit })
    }

    /// Returns whether another file has replaced this one, so that the database has to be opened again.
    fn is_replaced(&self, version: &Version) -> bool {
        version.file != self.file
    }

    /// Carries out `work` on one state of the database, whatever other programs write meanwhile.
    fn at_once<T>(
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
    fn rows<T>(
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

    fn execute(&self, statement: &Statement) -> Result<(), DatabaseError> {
        let done = self
            .connection
            .execute(&statement.text, params_from_iter(&statement.values));
        done.map(drop).map_err(|error| self.error(said(&error)))
    }

    fn error(&self, what: String) -> DatabaseError {
        DatabaseError::permanent(self.path.display(), what)
    }

    /// Reads everything, and says what of the users is not as it is known.
    fn read(&self, wanted: &Wanted, known: &Users) -> Result<News, DatabaseError> {
        let mut tables = Tables::default();
        let pair = |row: &Row<'_>| Ok((text(row, 0)?, text(row, 1)?));
        if wanted.realms {
            let query = "select origin,realm from turn_origin_to_realm order by origin";
            tables.origins = self.rows(query, [], pair)?;
            let query = "select realm,opt,value from turn_realm_option";
            tables.options = self.rows(query, [], |row| {
                Ok(RealmOption {
                    realm: text(row, 0)?,
                    option: text(row, 1)?,
                    value: text(row, 2)?,
                })
            })?;
        }
        if wanted.peers {
            let query = "select realm,ip_range from allowed_peer_ip order by ip_range";
            tables.allowed = by_realm(self.rows(query, [], pair)?);
            let query = "select realm,ip_range from denied_peer_ip order by ip_range";
            tables.denied = by_realm(self.rows(query, [], pair)?);
        }
        if wanted.token_keys {
            let query =
                "select kid,ikm_key,timestamp,lifetime,as_rs_alg,realm from oauth_key order by kid";
            tables.token_keys = self.rows(query, [], |row| {
                Ok(TokenKeyRow {
                    name: text(row, 0)?,
                    key: Secret::new(text(row, 1)?.into_bytes()),
                    timestamp: text(row, 2)?,
                    lifetime: text(row, 3)?,
                    cipher: text(row, 4)?,
                    realm: text(row, 5)?,
                })
            })?;
        }
        let realms = tables.realm_names(&wanted.realm);
        if wanted.secrets {
            for realm in &realms {
                tables.secrets.insert(realm.clone(), self.secrets(realm)?);
            }
        }
        if !wanted.users {
            let users = Users::new();
            return Ok(News::Whole(Records { users, tables }));
        }
        let mut users = Comparison::new(known, &realms);
        for realm in &realms {
            self.compare(&mut users, realm)
                .map_err(|error| self.error(said(&error)))?;
        }
        Ok(users.news(tables))
    }

    /// Reads the users of a realm.
    fn compare(&self, users: &mut Comparison<'_>, realm: &str) -> rusqlite::Result<()> {
        let mut of_realm = users.realm(realm);
        let query = "select name,hmackey from turnusers_lt where realm=?1";
        let mut statement = self.connection.prepare(query)?;
        let mut rows = statement.query([realm])?;
        while let Some(row) = rows.next()? {
            of_realm.take(&borrowed(row, 0)?, user_key(&borrowed(row, 1)?));
        }
        users.end(realm, of_realm);
        Ok(())
    }

    /// Reads the secrets of a realm. The newest come first, because a rotation has just added them.
    fn secrets(&self, realm: &str) -> Result<Vec<Secret>, DatabaseError> {
        let query = "select value from turn_secret where realm=?1 order by rowid desc";
        self.rows(query, [realm], |row| {
            Ok(Secret::new(text(row, 0)?.into_bytes()))
        })
    }
}

/// Makes an empty file that others cannot read, for it has keys. SQLite gives the files beside it the same rights. What root makes is for the owner of
/// the folder, as which the server runs. Why it cannot be made SQLite says.
fn make(path: &Path) {
    let mut options = OpenOptions::new();
    let made = options.write(true).create_new(true).mode(0o640).open(path);
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    if let Ok(file) = made
        && let Ok(folder) = metadata(folder.unwrap_or_else(|| Path::new(".")))
    {
        // The kernel refuses this unless the process is root.
        let _ = fchown(&file, Some(folder.uid()), Some(folder.gid()));
    }
}

impl Driver for Sqlite {
    async fn follow(&mut self, wanted: &Wanted, known: &Records) -> Result<News, DatabaseError> {
        // The version is read before the rows. So a commit in between is read twice and is never missed.
        let mut version = self.version()?;
        if self.read == Some(version) {
            return Ok(News::Nothing);
        }
        if self.is_replaced(&version) {
            *self = Self::open(&self.path, false)?;
            version = self.version()?;
        }
        let news = self.at_once(|file| file.read(wanted, &known.users))?;
        self.read = Some(version);
        Ok(news)
    }

    async fn await_change(&mut self) {
        tokio::time::sleep(INTERVAL).await;
    }

    async fn ask(&mut self, realm: &str, name: &str) -> Result<Answer, DatabaseError> {
        let query = "select hmackey from turnusers_lt where name=?1 and realm=?2";
        let keys = self.rows(query, [name, realm], |row| text(row, 0))?;
        let key: UserKey = keys.first().and_then(|digits| user_key(digits));
        Ok(Answer {
            key,
            secrets: self.secrets(realm)?,
        })
    }

    async fn change(&mut self, change: Change<'_>) -> Result<(), DatabaseError> {
        let statements = Dialect::Sqlite.change(change);
        self.at_once(|file| {
            statements
                .iter()
                .try_for_each(|statement| file.execute(statement))
        })
    }

    async fn list(
        &mut self,
        listing: Listing,
        realm: Option<&str>,
    ) -> Result<Vec<Listed>, DatabaseError> {
        let statement = Dialect::Sqlite.list(listing, realm);
        self.rows(
            &statement.text,
            params_from_iter(&statement.values),
            |row| {
                Ok(Listed {
                    realm: text(row, 0)?,
                    name: text(row, 1)?,
                    value: text(row, 2)?,
                })
            },
        )
    }
}

/// Collects values by their realms, in their order.
fn by_realm(rows: Vec<(String, String)>) -> BTreeMap<String, Vec<String>> {
    let mut by_realm = BTreeMap::<_, Vec<_>>::new();
    for (realm, value) in rows {
        by_realm.entry(realm).or_default().push(value);
    }
    by_realm
}

/// Returns the text of a column, of whatever type. Bytes that are not UTF-8 are replaced.
fn text(row: &Row<'_>, column: usize) -> rusqlite::Result<String> {
    borrowed(row, column).map(Cow::into_owned)
}

/// Returns the same as [`text`], where it stands if it is text.
fn borrowed<'a>(row: &'a Row<'_>, column: usize) -> rusqlite::Result<Cow<'a, str>> {
    use rusqlite::types::ValueRef;
    Ok(match row.get_ref(column)? {
        ValueRef::Null => Cow::Borrowed(""),
        ValueRef::Integer(number) => number.to_string().into(),
        ValueRef::Real(number) => number.to_string().into(),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => String::from_utf8_lossy(bytes),
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
    let metadata = metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests;
