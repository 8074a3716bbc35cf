//! What a server tells of changes: invalidation messages for all keys with certain beginnings (`CLIENT TRACKING ON BCAST`, Redis 6 and Valkey).
//!
//! It names the key of each write, deletion and expiry, in whatever numbered database, and says when everything was deleted. A connection that is
//! lost loses messages, so it ends the following: all is read anew over the next one.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use redis::{PushInfo, PushKind, Value, cmd};
use tokio::sync::Notify;

use super::connect::{RedisConnection, RedisFailure};
use super::keys::{FOLLOWED, Key};
use super::words::RedisAddress;

/// Keys that are remembered one by one. Beyond it reading everything is cheaper.
const KEYS_MAX: usize = 16_384;

/// The connection over which the server tells of changes.
pub(super) struct Pushes {
    connection: RedisConnection,
    notices: Arc<Notices>,
}

/// What the server has told and nobody has taken yet.
#[derive(Default)]
struct Notices {
    state: Mutex<State>,
    arrived: Notify,
}

#[derive(Default)]
struct State {
    keys: BTreeSet<Key>,
    is_everything: bool,
    is_lost: bool,
}

/// What may have changed since it was asked last.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Changed {
    Nothing,
    Keys(BTreeSet<Key>),
    Everything,
    /// Everything, which is held back.
    EverythingLater,
}

impl Pushes {
    /// Has the server tell of changes. Returns `None` if it cannot, or does not let this user ask for it.
    pub(super) async fn begin(address: &RedisAddress) -> Result<Option<Self>, RedisFailure> {
        let notices = Arc::new(Notices::default());
        let teller = Arc::clone(&notices);
        let opened =
            RedisConnection::open_for_pushes(address, Box::new(move |push| teller.push(push)))
                .await;
        let mut connection = match opened {
            Ok(connection) => connection,
            Err(failure) if failure.is_answer() => return Ok(None),
            Err(failure) => return Err(failure),
        };
        let mut command = cmd("CLIENT");
        command.arg("TRACKING").arg("ON").arg("BCAST");
        for beginning in FOLLOWED {
            command.arg("PREFIX").arg(beginning);
        }
        match connection.ask::<Value>(&command).await {
            Ok(_) => Ok(Some(Self {
                connection,
                notices,
            })),
            Err(failure) if failure.is_answer() => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Takes what has changed. That everything has is held back unless `may_be_everything`.
    pub(super) fn take(&self, may_be_everything: bool) -> Result<Changed, RedisFailure> {
        let mut state = self.notices.state();
        if state.is_lost {
            return Err(RedisFailure::silence("the connection is lost"));
        }
        Ok(state.take(may_be_everything))
    }

    /// Waits until something is told that has not been taken.
    pub(super) async fn notified(&self) {
        self.notices.arrived.notified().await;
    }

    /// Asks the server for a sign of life.
    pub(super) async fn heartbeat(&mut self) -> Result<(), RedisFailure> {
        self.connection.heartbeat().await
    }
}

impl Notices {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, push: PushInfo) {
        let mut state = self.state();
        match push.kind {
            PushKind::Disconnection => state.is_lost = true,
            PushKind::Invalidate => {
                for keys in push.data {
                    state.invalidate(keys);
                }
            }
            _ => return,
        }
        if state.is_lost || state.is_everything || !state.keys.is_empty() {
            self.arrived.notify_one();
        }
    }
}

impl State {
    fn take(&mut self, may_be_everything: bool) -> Changed {
        match self.is_everything {
            true if may_be_everything => {
                *self = Self::default();
                Changed::Everything
            }
            true => Changed::EverythingLater,
            false if self.keys.is_empty() => Changed::Nothing,
            false => Changed::Keys(std::mem::take(&mut self.keys)),
        }
    }

    fn invalidate(&mut self, keys: Value) {
        let Value::Array(keys) = keys else {
            // No list of keys: all of them are gone.
            self.is_everything = true;
            return;
        };
        for key in keys {
            if let Value::BulkString(name) = key
                && let Some(key) = Key::of(&name)
            {
                self.keys.insert(key);
            }
        }
        if self.keys.len() > KEYS_MAX {
            self.keys.clear();
            self.is_everything = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[String]) -> Value {
        let names = names.iter();
        Value::Array(
            names
                .map(|name| Value::BulkString(name.clone().into_bytes()))
                .collect(),
        )
    }

    #[test]
    fn keys_of_sessions_are_not_remembered_and_too_many_keys_are_everything() {
        let mut state = State::default();
        state.invalidate(names(&[
            "turn/realm/r/user/u/allocation/000000000000000001/status".to_owned(),
            "turn/realm/r/user/u/key".to_owned(),
        ]));
        assert_eq!(state.keys.len(), 1);
        let many: Vec<_> = (0..=KEYS_MAX)
            .map(|number| format!("turn/realm/r/user/{number}/key"))
            .collect();
        state.invalidate(names(&many));
        assert!(state.is_everything && state.keys.is_empty());
    }

    #[test]
    fn that_everything_has_changed_is_held_back_while_the_reader_rests_and_is_not_nothing() {
        let mut state = State::default();
        assert_eq!(state.take(true), Changed::Nothing);
        state.invalidate(Value::Nil);
        assert_eq!(state.take(false), Changed::EverythingLater);
        assert_eq!(state.take(true), Changed::Everything);
        assert_eq!(state.take(true), Changed::Nothing);
    }

    #[test]
    fn a_message_without_keys_is_everything() {
        let mut state = State::default();
        state.invalidate(Value::Nil);
        assert!(state.is_everything);
    }
}
