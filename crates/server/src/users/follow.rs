//! The thread that follows a database.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::Duration;

use turnbuckle_engine::Config as EngineConfig;

use super::database::{Database, DatabaseError, Version};
use super::records::{Records, Wanted};
use crate::serve::Event;

/// How often the database is asked whether it has changed: a counter is read. coturn sees a new user at once and anything else after five seconds.
const INTERVAL: Duration = Duration::from_millis(250);

/// A database that is followed.
pub(crate) struct Follower {
    path: PathBuf,
    realm: String,
    wanted: Wanted,
    /// What the configuration says by itself.
    base: Arc<EngineConfig>,
    database: Database,
    version: Version,
    /// What the engines have now.
    current: Arc<EngineConfig>,
    /// What they had before. Kept until the next change, when no shard has it any more, so that this thread frees its memory and none of them.
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
        let database = Database::open(&path)?;
        // Before the rows: what is committed in between is read twice rather than never.
        let version = database.version()?;
        let (current, complaints) = Records::read(&database, &realm, wanted)?.added_to(&base);
        Ok(Self {
            path,
            realm,
            wanted,
            base,
            database,
            version,
            previous: Arc::clone(&current),
            current,
            complaints,
        })
    }

    /// What the engines begin with.
    pub(crate) fn current(&self) -> Arc<EngineConfig> {
        Arc::clone(&self.current)
    }

    /// Rows that could not be used when the database was last read, in words; once.
    pub(crate) fn take_complaints(&mut self) -> Vec<String> {
        let complaints = std::mem::take(&mut self.complaints).into_iter();
        complaints
            .map(|text| format!("warning: user database: {text}"))
            .collect()
    }

    /// Follows the database on a thread of its own until `stop` is dropped or nobody hears any more.
    pub(crate) fn start(
        mut self,
        events: SyncSender<Event>,
        stop: Receiver<()>,
    ) -> std::io::Result<()> {
        std::thread::Builder::new()
            .name("users".into())
            .spawn(move || {
                let mut trouble: Option<String> = None;
                while let Err(RecvTimeoutError::Timeout) = stop.recv_timeout(INTERVAL) {
                    let line = match self.look() {
                        Ok(None) => trouble
                            .take()
                            .map(|_| "user database: read again".to_owned()),
                        Ok(Some(engine)) => {
                            trouble = None;
                            if events.send(Event::Users(engine)).is_err() {
                                return;
                            }
                            None
                        }
                        Err(error) => {
                            let text = error.to_string();
                            let is_new = trouble.as_ref() != Some(&text);
                            trouble = Some(text.clone());
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

    /// What the engines are to have from now on, if the database has changed.
    fn look(&mut self) -> Result<Option<Arc<EngineConfig>>, DatabaseError> {
        let mut version = self.database.version()?;
        if version == self.version {
            return Ok(None);
        }
        if self.database.is_replaced(&version) {
            self.database = Database::open(&self.path)?;
            version = self.database.version()?;
        }
        let records = Records::read(&self.database, &self.realm, self.wanted)?;
        let (engine, complaints) = records.added_to(&self.base);
        self.version = version;
        self.complaints = complaints;
        self.previous = std::mem::replace(&mut self.current, Arc::clone(&engine));
        Ok(Some(engine))
    }
}

#[cfg(test)]
mod tests;
