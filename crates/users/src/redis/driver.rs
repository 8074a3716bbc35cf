//! Reads, follows, asks and changes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use redis::{Pipeline, cmd};

use super::connect::{RedisConnection, RedisFailure};
use super::keys::{Key, REALM_OPTIONS, pattern};
use super::mirror::{Entry, Mirror};
use super::pushes::{Changed, Pushes};
use super::words::RedisAddress;
use crate::change::{Change, Listed, Listing};
use crate::driver::Driver;
use crate::error::DatabaseError;
use crate::realm_users::{Gathered, RealmUsers};
use crate::records::{Answer, Delta, News, Records, Users, Wanted, user_key};
use crate::rest::{Reading, Rests};
use crate::secret::Secret;

/// Keys that one `SCAN` or `MGET` names. The server does nothing else meanwhile, so it is a millisecond's work.
const AT_ONCE: usize = 1_000;

/// Time after which a server that has told nothing is asked whether it is still there.
const HEARTBEAT: Duration = Duration::from_secs(2);

/// Time between two reads of everything where the server tells of no changes.
const INTERVAL: Duration = Duration::from_secs(1);

/// Time for which changes are gathered before they are read, so that many at once are read at once.
const GATHERING: Duration = Duration::from_millis(10);

/// An open connection to a Redis or Valkey server.
pub struct Redis {
    address: RedisAddress,
    commands: RedisConnection,
    follows: Follows,
}

/// What following has to know of the calls before.
struct Follows {
    /// `None` before the first call, and for a server that tells of no changes.
    pushes: Option<Pushes>,
    /// What is not a user.
    mirror: Mirror,
    /// The realms whose users have been read.
    realms: Vec<String>,
    /// Whether everything was read once.
    is_read: bool,
    /// Rests after everything was read.
    rests: Rests,
}

impl Redis {
    /// Connects to the server.
    ///
    /// # Errors
    ///
    /// It cannot be reached, or refuses name, password or database.
    pub(crate) async fn open(address: &RedisAddress) -> Result<Self, DatabaseError> {
        let opened = RedisConnection::open(address).await;
        Ok(Self {
            commands: opened.map_err(|failure| error(address, &failure))?,
            address: address.clone(),
            follows: Follows {
                pushes: None,
                mirror: Mirror::default(),
                realms: Vec::new(),
                is_read: false,
                rests: Rests::new(),
            },
        })
    }

    async fn news(&mut self, wanted: &Wanted) -> Result<News, RedisFailure> {
        if !self.follows.is_read {
            // What changes from here on is told. What is read afterwards is at least as new.
            self.follows.pushes = Pushes::begin(&self.address).await?;
            return self.everything(wanted).await;
        }
        let is_rested = !self.follows.rests.is_resting(Instant::now());
        let Some(pushes) = &mut self.follows.pushes else {
            return match is_rested {
                true => self.everything(wanted).await,
                false => Ok(News::not_yet()),
            };
        };
        match pushes.take(is_rested)? {
            quiet @ (Changed::Nothing | Changed::EverythingLater) => {
                pushes.heartbeat().await?;
                self.commands.heartbeat().await?;
                Ok(match quiet {
                    Changed::Nothing => News::Nothing,
                    _ => News::not_yet(),
                })
            }
            Changed::Keys(keys) => self.some(keys, wanted).await,
            Changed::Everything => self.everything(wanted).await,
        }
    }

    /// Reads all keys that are wanted.
    async fn everything(&mut self, wanted: &Wanted) -> Result<News, RedisFailure> {
        let reading = Reading::begin();
        let (mut users, mut others) = (BTreeMap::<_, Gathered>::new(), Vec::new());
        self.scan("turn/*", |key| match key {
            _ if !is_wanted(&key, wanted) => {}
            Key::User { realm, name } => users.entry(realm).or_default().take(&name, None),
            other => others.push(other),
        })
        .await?;
        self.follows.mirror = Mirror::default();
        for (key, entry) in self.fetch(others).await? {
            self.follows.mirror.set(key, entry);
        }
        let tables = self.follows.mirror.tables(&wanted.realm);
        self.follows.realms = tables.realm_names(&wanted.realm);
        let mut read = Users::new();
        for realm in self.follows.realms.clone() {
            let found = users.remove(&realm).unwrap_or_default().in_order();
            let of_realm = self.users(&realm, &found).await?;
            read.insert(realm, of_realm);
        }
        self.follows.is_read = true;
        self.follows.rests.begin(&reading);
        Ok(News::Whole(Records {
            users: read,
            tables,
        }))
    }

    /// Reads these users of a realm, as far as they are still there. No more answers than one are held at once.
    async fn users(&mut self, realm: &str, found: &RealmUsers) -> Result<RealmUsers, RedisFailure> {
        let mut read = Gathered::default();
        let mut names = found.names().peekable();
        while names.peek().is_some() {
            let some = names.by_ref().take(AT_ONCE);
            let keys = some.map(|name| Key::User {
                realm: realm.to_owned(),
                name: name.to_owned(),
            });
            for (key, entry) in self.fetch(keys.collect()).await? {
                if let (Key::User { name, .. }, Some(Entry::Text(digits))) = (key, entry) {
                    read.take(&name, user_key(&digits));
                }
            }
        }
        Ok(read.in_order())
    }

    /// Reads these keys, of which something has been told.
    async fn some(&mut self, keys: BTreeSet<Key>, wanted: &Wanted) -> Result<News, RedisFailure> {
        let keys = keys.into_iter().filter(|key| is_wanted(key, wanted));
        let mut delta = Delta::default();
        let mut has_other = false;
        for (key, entry) in self.fetch(keys.collect()).await? {
            match (key, entry) {
                (Key::User { realm, name }, entry) => {
                    if !self.follows.realms.contains(&realm) {
                        continue;
                    }
                    if let Some(Entry::Text(digits)) = entry {
                        let users = delta.put.entry(realm).or_default();
                        users.put(&name, user_key(&digits));
                    } else {
                        delta.deleted.entry(realm).or_default().insert(name);
                    }
                }
                (key, entry) => has_other |= self.follows.mirror.set(key, entry),
            }
        }
        if has_other {
            let tables = self.follows.mirror.tables(&wanted.realm);
            if tables.realm_names(&wanted.realm) != self.follows.realms {
                return self.everything(wanted).await;
            }
            delta.tables = Some(tables);
        }
        Ok(match delta == Delta::default() {
            true => News::Nothing,
            false => News::Delta(delta),
        })
    }

    /// Shows the keys of coturn's among those that a pattern matches, some of them perhaps twice.
    async fn scan(&mut self, pattern: &str, mut show: impl FnMut(Key)) -> Result<(), RedisFailure> {
        let mut cursor = 0_u64;
        loop {
            let mut command = cmd("SCAN");
            command.arg(cursor).arg("MATCH").arg(pattern);
            let (next, names): (u64, Vec<Vec<u8>>) =
                self.commands.ask(command.arg("COUNT").arg(AT_ONCE)).await?;
            names
                .iter()
                .filter_map(|name| Key::of(name))
                .for_each(&mut show);
            cursor = next;
            if cursor == 0 {
                return Ok(());
            }
        }
    }

    /// Returns what is under these keys; nothing where a key is gone or holds another type of value.
    async fn fetch(&mut self, keys: Vec<Key>) -> Result<Vec<(Key, Option<Entry>)>, RedisFailure> {
        let mut fetched = Vec::with_capacity(keys.len());
        let (texts, others): (Vec<_>, Vec<_>) = keys.into_iter().partition(Key::is_text);
        let mut texts = texts.into_iter().peekable();
        while texts.peek().is_some() {
            let chunk: Vec<_> = texts.by_ref().take(AT_ONCE).collect();
            let mut command = cmd("MGET");
            for key in &chunk {
                command.arg(key.name());
            }
            let values: Vec<Option<Vec<u8>>> = self.commands.ask(&command).await?;
            let entries = values.into_iter().map(|value| value.map(Entry::text));
            fetched.extend(chunk.into_iter().zip(entries));
        }
        for chunk in others.chunks(AT_ONCE) {
            let mut pipeline = Pipeline::new();
            for key in chunk {
                match key {
                    Key::Token(_) => pipeline.cmd("HMGET").arg(key.name()).arg(TOKEN_KEY_FIELDS),
                    Key::Admin(_) => pipeline.cmd("HMGET").arg(key.name()).arg(ADMIN_FIELDS),
                    _ => pipeline.cmd("SMEMBERS").arg(key.name()),
                };
            }
            let values = self.commands.ask_each(&mut pipeline).await?;
            let entries = values.into_iter().map(Entry::several);
            fetched.extend(chunk.iter().cloned().zip(entries));
        }
        Ok(fetched)
    }

    async fn answer(&mut self, realm: &str, name: &str) -> Result<Answer, RedisFailure> {
        let (realm, name) = (realm.to_owned(), name.to_owned());
        let keys = vec![
            Key::User {
                realm: realm.clone(),
                name,
            },
            Key::Secrets { realm },
        ];
        let mut answer = Answer::default();
        for (_, entry) in self.fetch(keys).await? {
            match entry {
                Some(Entry::Text(digits)) => answer.key = user_key(&digits),
                Some(Entry::Several(secrets)) => {
                    answer.secrets = secrets.into_iter().flatten().map(Secret::new).collect();
                }
                None => {}
            }
        }
        Ok(answer)
    }

    async fn write(&mut self, change: Change<'_>) -> Result<(), RedisFailure> {
        // With MULTI and EXEC: all of it or nothing.
        let mut pipeline = redis::pipe();
        pipeline.atomic();
        match change {
            Change::PutUser { realm, name, key } => {
                let user = Key::User {
                    realm: realm.to_owned(),
                    name: name.to_owned(),
                };
                pipeline.cmd("SET").arg(user.name()).arg(key);
            }
            Change::DeleteUser { realm, name } => {
                let user = Key::User {
                    realm: realm.to_owned(),
                    name: name.to_owned(),
                };
                pipeline.cmd("DEL").arg(user.name());
            }
            Change::AddSecret { realm, secret } => {
                pipeline.cmd("SADD").arg(secrets(realm)).arg(secret);
            }
            Change::DeleteSecret { realm, secret } => {
                pipeline.cmd("SREM").arg(secrets(realm)).arg(secret);
            }
            Change::DeleteSecrets { realm } => {
                pipeline.cmd("DEL").arg(secrets(realm));
            }
            Change::PutOrigin { origin, realm } => {
                let origin = Key::Origin(origin.to_owned());
                pipeline.cmd("SET").arg(origin.name()).arg(realm);
            }
            Change::DeleteOrigin { origin } => {
                let origin = Key::Origin(origin.to_owned());
                pipeline.cmd("DEL").arg(origin.name());
            }
            Change::PutRealmOptions { realm, options } => {
                for &(option, value) in options {
                    let realm = realm.to_owned();
                    let name = Key::RealmOption { realm, option }.name();
                    match value {
                        0 => pipeline.cmd("DEL").arg(name),
                        value => pipeline.cmd("SET").arg(name).arg(value),
                    };
                }
            }
            Change::PutAdmin {
                name,
                realm,
                password,
            } => {
                let name = Key::Admin(name.to_owned()).name();
                // One who administered a realm before may be for all now, and that is a field that is not there.
                pipeline.cmd("DEL").arg(&name);
                let fields = pipeline
                    .cmd("HMSET")
                    .arg(name)
                    .arg("password")
                    .arg(password);
                if !realm.is_empty() {
                    fields.arg("realm").arg(realm);
                }
            }
            Change::DeleteAdmin { name } => {
                let name = Key::Admin(name.to_owned()).name();
                pipeline.cmd("DEL").arg(name);
            }
        }
        self.commands.carry_out(&pipeline).await
    }

    async fn listed(
        &mut self,
        listing: Listing,
        realm: Option<&str>,
    ) -> Result<Vec<Listed>, RedisFailure> {
        let mut keys = BTreeSet::new();
        for pattern in patterns(listing, realm) {
            self.scan(&pattern, |key| {
                keys.insert(key);
            })
            .await?;
        }
        let is_of_realm = |key: &Key| match (key.realm(), realm) {
            (Some(its), Some(realm)) => its == realm,
            _ => true,
        };
        keys.retain(|key| is_listed(key, listing) && is_of_realm(key));
        if listing == Listing::Users {
            return Ok(keys.into_iter().filter_map(user).collect());
        }
        let fetched = self.fetch(keys.into_iter().collect()).await?;
        let rows = fetched
            .into_iter()
            .flat_map(|(key, entry)| rows(key, entry));
        Ok(rows
            .filter(|row| realm.is_none_or(|realm| row.realm == realm))
            .collect())
    }
}

/// The fields of a token key in the order in which [`Mirror`] reads them.
const TOKEN_KEY_FIELDS: &[&str] = &["ikm_key", "timestamp", "lifetime", "as_rs_alg", "realm"];

const ADMIN_FIELDS: &[&str] = &["password", "realm"];

fn is_wanted(key: &Key, wanted: &Wanted) -> bool {
    match key {
        Key::User { .. } => wanted.users,
        Key::Secrets { .. } => wanted.secrets,
        Key::AllowedPeers { .. } | Key::DeniedPeers { .. } => wanted.peers,
        Key::RealmOption { .. } | Key::Origin(_) => wanted.realms,
        Key::Token(_) => wanted.token_keys,
        Key::Admin(_) => false,
    }
}

fn is_listed(key: &Key, listing: Listing) -> bool {
    match key {
        Key::User { .. } => listing == Listing::Users,
        Key::Secrets { .. } => listing == Listing::Secrets,
        Key::RealmOption { .. } => listing == Listing::RealmOptions,
        Key::Origin(_) => listing == Listing::Origins,
        Key::Admin(_) => listing == Listing::Admins,
        Key::AllowedPeers { .. } | Key::DeniedPeers { .. } | Key::Token(_) => false,
    }
}

/// Returns patterns that match the names of all keys to list, and perhaps others.
fn patterns(listing: Listing, realm: Option<&str>) -> Vec<String> {
    match listing {
        Listing::Users => vec![pattern(realm, "user/*/key")],
        Listing::Secrets => vec![pattern(realm, "secret")],
        Listing::RealmOptions => REALM_OPTIONS.map(|option| pattern(realm, option)).into(),
        Listing::Origins => vec!["turn/origin/*".to_owned()],
        Listing::Admins => vec!["turn/admin_user/*".to_owned()],
    }
}

fn secrets(realm: &str) -> String {
    let realm = realm.to_owned();
    Key::Secrets { realm }.name()
}

fn user(key: Key) -> Option<Listed> {
    match key {
        Key::User { realm, name } => Some(Listed {
            realm,
            name,
            value: String::new(),
        }),
        _ => None,
    }
}

/// Returns what is listed of a key and what is under it.
fn rows(key: Key, entry: Option<Entry>) -> Vec<Listed> {
    let row = |realm: String, name: String, value: String| Listed { realm, name, value };
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    match (key, entry) {
        (Key::Secrets { realm }, Some(Entry::Several(secrets))) => {
            let secrets = secrets.into_iter().flatten();
            secrets
                .map(|secret| row(realm.clone(), text(secret), String::new()))
                .collect()
        }
        (Key::RealmOption { realm, option }, Some(Entry::Text(value))) => {
            vec![row(realm, option.to_owned(), value)]
        }
        (Key::Origin(origin), Some(Entry::Text(realm))) => vec![row(realm, origin, String::new())],
        (Key::Admin(name), Some(Entry::Several(fields))) => {
            let realm = fields.into_iter().nth(1).flatten().map(text);
            vec![row(realm.unwrap_or_default(), name, String::new())]
        }
        _ => Vec::new(),
    }
}

impl Driver for Redis {
    async fn follow(&mut self, wanted: &Wanted, _: &Records) -> Result<News, DatabaseError> {
        let news = self.news(wanted).await;
        news.map_err(|failure| error(&self.address, &failure))
    }

    async fn await_change(&mut self) {
        let Some(pushes) = &self.follows.pushes else {
            return tokio::time::sleep(INTERVAL).await;
        };
        if tokio::time::timeout(HEARTBEAT, pushes.notified())
            .await
            .is_ok()
        {
            tokio::time::sleep(GATHERING).await;
        }
    }

    async fn ask(&mut self, realm: &str, name: &str) -> Result<Answer, DatabaseError> {
        let answer = self.answer(realm, name).await;
        answer.map_err(|failure| error(&self.address, &failure))
    }

    async fn change(&mut self, change: Change<'_>) -> Result<(), DatabaseError> {
        let written = self.write(change).await;
        written.map_err(|failure| error(&self.address, &failure))
    }

    async fn list(
        &mut self,
        listing: Listing,
        realm: Option<&str>,
    ) -> Result<Vec<Listed>, DatabaseError> {
        let listed = self.listed(listing, realm).await;
        listed.map_err(|failure| error(&self.address, &failure))
    }
}

fn error(address: &RedisAddress, failure: &RedisFailure) -> DatabaseError {
    let address = format!("redis {address}");
    match failure.is_permanent() {
        true => DatabaseError::permanent(address, failure),
        false => DatabaseError::passing(address, failure),
    }
}
