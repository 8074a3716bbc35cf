//! The sessions that there are, and what the server has to be told when one begins, changes or ends.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use turnbuckle_server::handle::{Event, EventKind, Identity, Session, shard_of};
use turnbuckle_users::RedisWrite;

use super::words;

/// A session.
struct Known {
    session: Arc<Identity>,
    lifetime: Duration,
    is_refreshed: bool,
    /// Whether the server was told that it has begun.
    is_told: bool,
    /// Whether its status is under its key, as far as that was looked at.
    is_set: bool,
}

impl Known {
    fn status(&self) -> Vec<u8> {
        let has_begun_before = self.is_refreshed && self.is_told;
        let verb = if has_begun_before { "refreshed" } else { "new" };
        words::status(verb, &self.session.client, self.lifetime)
    }

    /// Has the server set the status and told of it.
    fn write(&self, writes: &mut Vec<RedisWrite>) {
        let (key, value) = (words::status_key(&self.session), self.status());
        writes.push(RedisWrite::Set {
            key: key.clone(),
            value: value.clone(),
        });
        writes.push(RedisWrite::Publish {
            channel: key,
            message: value,
        });
    }
}

/// Sessions by their numbers.
#[derive(Default)]
pub(super) struct Live(BTreeMap<u64, Known>);

impl Live {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Takes note of an event, and adds what the server is to be told of it. Returns the server's address of a session that has begun or changed.
    pub(super) fn note(
        &mut self,
        event: Event,
        writes: &mut Vec<RedisWrite>,
    ) -> Option<SocketAddr> {
        match event.kind {
            EventKind::Restarted => {
                self.0.retain(|number, known| {
                    let is_over = shard_of(*number) == event.shard;
                    if is_over {
                        delete(&known.session, writes);
                    }
                    !is_over
                });
                None
            }
            EventKind::Created { session, lifetime } => {
                let (number, server) = (session.number, session.client.server);
                let known = Known {
                    session,
                    lifetime,
                    is_refreshed: false,
                    is_told: true,
                    is_set: true,
                };
                known.write(writes);
                self.0.insert(number, known);
                Some(server)
            }
            EventKind::Refreshed { session, lifetime } => {
                let known = self.0.get_mut(&session.number)?;
                known.lifetime = lifetime;
                known.is_refreshed = true;
                known.write(writes);
                None
            }
            EventKind::Changed { session } => {
                let known = self.0.get_mut(&session.number)?;
                if words::prefix(&session) != words::prefix(&known.session) {
                    delete(&known.session, writes);
                }
                let server = session.client.server;
                known.session = session;
                known.is_refreshed = true;
                known.write(writes);
                Some(server)
            }
            EventKind::Used { session, since } => {
                writes.extend(words::traffic(&session, "traffic", &since));
                None
            }
            EventKind::Ended {
                session,
                since,
                totals,
                ..
            } => {
                self.0.remove(&session.number);
                writes.extend(words::traffic(&session, "traffic", &since));
                delete(&session, writes);
                writes.extend(words::traffic(&session, "total_traffic", &totals));
                None
            }
        }
    }

    /// Takes note of a session that a shard has listed. `before` is what was known.
    pub(super) fn list(&mut self, session: Session, before: &Self) {
        let known = before.0.get(&session.number);
        let identity = Identity {
            number: session.number,
            quota_name: session.user.clone(),
            realm: session.realm,
            user: session.user,
            client: session.client,
        };
        let listed = Known {
            session: Arc::new(identity),
            lifetime: known.map_or(session.time.expires_in, |known| known.lifetime),
            is_refreshed: known.is_some_and(|known| known.is_refreshed),
            is_told: known.is_some_and(|known| known.is_told),
            is_set: false,
        };
        self.0.insert(session.number, listed);
    }

    /// Counts sessions that were to begin with these writes, which came to nothing, as ones of which the server was told nothing.
    pub(super) fn doubt(&mut self, writes: &[RedisWrite]) {
        for write in writes {
            if let RedisWrite::Set { key, value } = write
                && value.starts_with(b"new ")
                && let Some(number) = words::number(key)
                && let Some(known) = self.0.get_mut(&number)
            {
                known.is_told = false;
            }
        }
    }

    /// Begins to look which statuses are missing.
    pub(super) fn begin_mending(&mut self) {
        for known in self.0.values_mut() {
            known.is_set = false;
        }
    }

    /// Returns whether a key belongs to a session, and notes whether the value is that of its status.
    pub(super) fn has(&mut self, key: &[u8], value: &[u8]) -> bool {
        let number = words::number(key);
        let Some(known) = number.and_then(|number| self.0.get_mut(&number)) else {
            return false;
        };
        let is_its = words::status_key(&known.session) == key;
        known.is_set |= is_its && known.status() == value;
        is_its
    }

    /// Sets statuses that are missing or old, and tells of the sessions that the server has not heard of.
    pub(super) fn missing(&self, writes: &mut Vec<RedisWrite>) {
        for known in self.0.values() {
            match (known.is_told, known.is_set) {
                (false, _) => known.write(writes),
                (true, false) => writes.push(RedisWrite::Set {
                    key: words::status_key(&known.session),
                    value: known.status(),
                }),
                (true, true) => {}
            }
        }
    }

    /// Notes that the server has everything.
    pub(super) fn mended(&mut self) {
        for known in self.0.values_mut() {
            known.is_refreshed &= known.is_told;
            known.is_told = true;
        }
    }

    /// Tells that all sessions are over.
    pub(super) fn over(&mut self, writes: &mut Vec<RedisWrite>) {
        for known in std::mem::take(&mut self.0).into_values() {
            delete(&known.session, writes);
        }
    }
}

/// Has the server delete a status and tell of it.
fn delete(session: &Identity, writes: &mut Vec<RedisWrite>) {
    let key = words::status_key(session);
    writes.push(RedisWrite::Delete { key: key.clone() });
    writes.push(words::deleted(key));
}
