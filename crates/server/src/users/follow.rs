//! Follows changes of a database on a thread of its own.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::Duration;

use turnbuckle_engine::Config as EngineConfig;

use super::database::{Database, DatabaseError, Version};
use super::records::{Denied, Records, Wanted};
use crate::control::events::Event;

/// Time between two checks for changes of the database. A check reads one counter. coturn sees a new user at once and any other change after five
/// seconds.
const INTERVAL: Duration = Duration::from_millis(250);

/// A database that is followed.
pub(crate) struct Follower {
    path: PathBuf,
    realm: String,
    wanted: Wanted,
    /// The engine's settings from the configuration alone.
    base: Arc<EngineConfig>,
    /// `None` while the database could not be opened.
    database: Option<Database>,
    /// The state that was read.
    version: Option<Version>,
    /// Ranges that the database denies.
    denied: Denied,
    /// The error of the last read, if it has been logged.
    trouble: Option<String>,
    /// The settings that the engines have now.
    current: Arc<EngineConfig>,
    /// The settings that they had before. They are kept until the next change, when no shard uses them any more. So this thread frees the memory,
    /// and no shard has to.
    previous: Arc<EngineConfig>,
    complaints: Vec<String>,
}

impl Follower {
    /// Opens the database and reads it for the first time.
    ///
    /// # Errors
    ///
    /// It cannot be opened or read.
    pub(crate) fn open(
        path: PathBuf,
        realm: String,
        wanted: Wanted,
        base: Arc<EngineConfig>,
    ) -> Result<Self, DatabaseError> {
        let mut follower = Self::closed(path, realm, wanted, base);
        follower.look()?;
        Ok(follower)
    }

    /// Opens the database as [`Self::open`] does. If it cannot be opened or read, this is logged, and the thread that follows it tries again.
    pub(crate) fn open_or_wait(
        path: PathBuf,
        realm: String,
        wanted: Wanted,
        base: Arc<EngineConfig>,
    ) -> Self {
        let mut follower = Self::closed(path, realm, wanted, base);
        if let Err(error) = follower.look() {
            let text = error.to_string();
            follower.complaints.push(format!(
                "{text}; it is tried again, and serves nobody until then"
            ));
            follower.trouble = Some(text);
        }
        follower
    }

    fn closed(path: PathBuf, realm: String, wanted: Wanted, base: Arc<EngineConfig>) -> Self {
        Self {
            path,
            realm,
            wanted,
            database: None,
            version: None,
            denied: Denied::default(),
            trouble: None,
            previous: Arc::clone(&base),
            current: Arc::clone(&base),
            base,
            complaints: Vec::new(),
        }
    }

    /// Returns whether the database has been read.
    pub(crate) fn is_open(&self) -> bool {
        self.version.is_some()
    }

    /// Returns the settings that the engines start with.
    pub(crate) fn current(&self) -> Arc<EngineConfig> {
        Arc::clone(&self.current)
    }

    /// Takes the descriptions of rows that could not be used when the database was last read.
    pub(crate) fn take_complaints(&mut self) -> Vec<String> {
        let complaints = std::mem::take(&mut self.complaints).into_iter();
        complaints
            .map(|text| format!("warning: user database: {text}"))
            .collect()
    }

    /// Follows the database on a thread of its own until `stop` is dropped or the receiver of changes is gone.
    pub(crate) fn start(
        mut self,
        events: SyncSender<Event>,
        stop: Receiver<()>,
    ) -> std::io::Result<()> {
        std::thread::Builder::new()
            .name("users".into())
            .spawn(move || {
                while let Err(RecvTimeoutError::Timeout) = stop.recv_timeout(INTERVAL) {
                    let line = match self.look() {
                        Ok(changed) => {
                            if let Some(engine) = changed
                                && events.send(Event::Users(engine)).is_err()
                            {
                                return;
                            }
                            let trouble = self.trouble.take();
                            trouble.map(|_| "user database: read again".to_owned())
                        }
                        Err(error) => {
                            let text = error.to_string();
                            let is_new = self.trouble.as_ref() != Some(&text);
                            self.trouble = Some(text.clone());
                            is_new.then(|| {
                                format!("warning: {text}; users stay as they were read last")
                            })
                        }
                    };
                    for line in line.into_iter().chain(self.take_complaints()) {
                        if events.send(Event::Line(line)).is_err() {
                            return;
                        }
                    }
                }
            })?;
        Ok(())
    }

    /// Returns new settings for the engines if the database has changed or is read for the first time.
    fn look(&mut self) -> Result<Option<Arc<EngineConfig>>, DatabaseError> {
        let mut version = match &self.database {
            Some(database) => Some(database.version()?),
            None => None,
        };
        if version.is_some() && version == self.version {
            return Ok(None);
        }
        let is_open =
            |database: &Database| version.is_some_and(|version| !database.is_replaced(&version));
        let database = match self.database.take().filter(is_open) {
            Some(database) => database,
            None => {
                let database = Database::open(&self.path)?;
                // The version is read before the rows. So a commit in between is read twice and is never missed.
                version = Some(database.version()?);
                database
            }
        };
        let database = self.database.insert(database);
        let mut records = Records::read_after(database, &self.realm, self.wanted, &self.denied)?;
        self.denied = records.take_denied();
        let (engine, complaints) = records.added_to(&self.base);
        self.version = version;
        self.complaints = complaints;
        self.previous = std::mem::replace(&mut self.current, Arc::clone(&engine));
        Ok(Some(engine))
    }
}

#[cfg(test)]
mod tests;
