//! A Redis server for whoever keeps something else there than users: keys are found, read, written and deleted, and channels are told.
//!
//! Invariant: a key, a value or a message is an argument of its own, as long as it says it is. Nothing that it contains is read as a command.

use redis::{Pipeline, cmd};

use super::connect::{RedisConnection, RedisFailure};
use super::words::RedisAddress;

/// Keys that one command asks about.
const AT_ONCE: usize = 1_000;

/// A change, or a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisWrite {
    /// Sets a key to a value.
    Set {
        /// The key.
        key: Vec<u8>,
        /// The value.
        value: Vec<u8>,
    },
    /// Deletes a key.
    Delete {
        /// The key.
        key: Vec<u8>,
    },
    /// Tells a channel.
    Publish {
        /// The channel.
        channel: Vec<u8>,
        /// What it is told.
        message: Vec<u8>,
    },
}

/// What went wrong with the server. Its text holds no key, value or password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisError(RedisFailure);

impl std::fmt::Display for RedisError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for RedisError {}

impl From<RedisFailure> for RedisError {
    fn from(failure: RedisFailure) -> Self {
        Self(failure)
    }
}

/// An open connection to a server.
pub struct RedisStore(RedisConnection);

impl RedisStore {
    /// Connects to a server. Must be called within a runtime.
    ///
    /// # Errors
    ///
    /// It cannot be reached, does not answer within the time of its address, or refuses name, password or database.
    pub async fn open(address: &RedisAddress) -> Result<Self, RedisError> {
        Ok(Self(RedisConnection::open(address).await?))
    }

    /// Shows the value of each key that `pattern` matches and that holds text, some of them perhaps twice. Keys are walked with `SCAN`, so those that
    /// come meanwhile may be missing.
    ///
    /// # Errors
    ///
    /// The server is gone, does not answer in time, or answers with an error.
    pub async fn each(
        &mut self,
        pattern: &str,
        mut show: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), RedisError> {
        let mut cursor = 0_u64;
        loop {
            let mut scan = cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(pattern);
            let (next, keys): (u64, Vec<Vec<u8>>) =
                self.0.ask(scan.arg("COUNT").arg(AT_ONCE)).await?;
            if !keys.is_empty() {
                let mut get = cmd("MGET");
                for key in &keys {
                    get.arg(key);
                }
                let values: Vec<Option<Vec<u8>>> = self.0.ask(&get).await?;
                for (key, value) in keys.iter().zip(values) {
                    if let Some(value) = value {
                        show(key, &value);
                    }
                }
            }
            cursor = next;
            if cursor == 0 {
                return Ok(());
            }
        }
    }

    /// Carries these out in their order, all of them at once.
    ///
    /// # Errors
    ///
    /// The server is gone, does not answer in time, or answers one of them with an error.
    pub async fn write(&mut self, writes: &[RedisWrite]) -> Result<(), RedisError> {
        if writes.is_empty() {
            return Ok(());
        }
        let mut pipeline = Pipeline::with_capacity(writes.len());
        for write in writes {
            match write {
                RedisWrite::Set { key, value } => pipeline.cmd("SET").arg(key).arg(value),
                RedisWrite::Delete { key } => pipeline.cmd("DEL").arg(key),
                RedisWrite::Publish { channel, message } => {
                    pipeline.cmd("PUBLISH").arg(channel).arg(message)
                }
            };
        }
        Ok(self.0.carry_out(&pipeline).await?)
    }

    /// Asks for a sign of life.
    ///
    /// # Errors
    ///
    /// The server is gone, does not answer in time, or wants a password.
    pub async fn heartbeat(&mut self) -> Result<(), RedisError> {
        Ok(self.0.heartbeat().await?)
    }
}
