//! Follows the user database for the shards.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

use turnbuckle_engine::{Commons, Config as EngineConfig};

use super::error::ServeError;
use super::events::Event;
use super::pending::Pending;
use super::shards::Shards;
use crate::config::{Config, Persona};
use crate::users::{DatabaseError, Follower, Wanted};

/// The user database as it was read at start, if there is one.
pub(super) struct OpenedUsers {
    follower: Option<Follower>,
    /// The settings that the engines start with.
    pub(super) engine: Arc<EngineConfig>,
}

impl OpenedUsers {
    /// Opens and reads the database that `config` names. `engine` holds the settings from the configuration alone.
    ///
    /// # Errors
    ///
    /// The database cannot be opened or read. As `turnserver` the server waits for it in that case.
    pub(super) fn open(
        config: &Config,
        engine: Arc<EngineConfig>,
        out: &mut impl Write,
    ) -> Result<Self, ServeError> {
        let follower = open(config, &engine).map_err(|error| ServeError::new(error.to_string()))?;
        let mut opened = Self { follower, engine };
        if let Some(follower) = &mut opened.follower {
            opened.engine = follower.current();
            for complaint in follower.take_complaints() {
                let _ = writeln!(out, "{complaint}");
            }
        }
        Ok(opened)
    }

    /// Returns whether there is a database that has been read.
    pub(super) fn is_open(&self) -> bool {
        self.follower.as_ref().is_some_and(Follower::is_open)
    }

    /// Starts the thread that follows the database, if there is one.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub(super) fn follow(
        self,
        events: &SyncSender<Event>,
        commons: Arc<Commons>,
    ) -> io::Result<FollowedUsers> {
        let follows = match self.follower {
            Some(follower) => {
                let (stop, is_stopped) = sync_channel(0);
                follower.start(events.clone(), is_stopped)?;
                Some(stop)
            }
            None => None,
        };
        Ok(FollowedUsers {
            commons,
            pending: None,
            _follows: follows,
        })
    }
}

/// Holds changes of users while the relay runs.
pub(super) struct FollowedUsers {
    commons: Arc<Commons>,
    /// New settings that not all shards have taken yet.
    pending: Option<Pending<Arc<EngineConfig>>>,
    /// Ends the thread that follows the database when it is dropped.
    _follows: Option<SyncSender<()>>,
}

impl FollowedUsers {
    /// Notes new users, peer rules and quotas for the shards.
    pub(super) fn changed(&mut self, engine: Arc<EngineConfig>, shards: &mut Shards) {
        self.commons.set_quotas(&engine);
        shards.begin_with_engine(&engine);
        self.pending = Some(Pending::new(engine, shards.all().len()));
    }

    /// Returns whether a shard has not taken the new settings yet.
    pub(super) fn has_news(&self) -> bool {
        self.pending.is_some()
    }

    /// Sends the new settings to the shards that have not taken them yet and have room in their queue.
    pub(super) fn publish(&mut self, shards: &Shards) {
        self.pending
            .take_if(|users| users.deliver(|shard, engine| shards.reconfigure(shard, engine)));
    }
}

fn open(config: &Config, engine: &Arc<EngineConfig>) -> Result<Option<Follower>, DatabaseError> {
    let Some(database) = &config.authentication.database else {
        return Ok(None);
    };
    let wanted = Wanted {
        users: database.has_users,
        secrets: database.has_secrets,
        peers: database.has_peer_rules,
        realms: database.has_realms,
        token_keys: config.authentication.third_parties.is_some(),
    };
    let realm = config.authentication.realm.to_string();
    let (path, base) = (database.path.clone(), Arc::clone(engine));
    match config.persona {
        Persona::Turnbuckle => Follower::open(path, realm, wanted, base).map(Some),
        // coturn starts without the database, and tries it again with every request.
        Persona::Turnserver => Ok(Some(Follower::open_or_wait(path, realm, wanted, base))),
    }
}
