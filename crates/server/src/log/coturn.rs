//! The lines that coturn writes about sessions, which scripts read.

use std::collections::BTreeMap;
use std::sync::Arc;

use turnbuckle_engine::{AllocationId, Change, Time, Traffic, User};

/// Knows whose each session is, which some of the lines say and not every change does.
#[derive(Default)]
pub(super) struct Sessions {
    users: BTreeMap<u64, Arc<User>>,
}

impl Sessions {
    /// What coturn would write about `change`, in its order. Names are escaped: a user chooses them (V-73).
    pub(super) fn lines(&mut self, shard: usize, change: &Change, now: Time) -> Vec<String> {
        match change {
            Change::Created(created) => {
                let id = created.allocation.to_u64();
                self.users.insert(id, Arc::clone(&created.user));
                let lifetime = created.expires.since(now).as_secs();
                self.request(shard, created.allocation, "new", lifetime, "ALLOCATE")
            }
            Change::Refreshed {
                allocation,
                expires,
                ..
            } => {
                let lifetime = expires.since(now).as_secs();
                self.request(shard, *allocation, "refreshed", lifetime, "REFRESH")
            }
            Change::PermissionInstalled {
                allocation,
                peer,
                expires,
            } => vec![format!(
                "{}: peer {peer} lifetime updated: {}",
                session(shard, *allocation),
                expires.since(now).as_secs()
            )],
            Change::PermissionExpired { allocation, peer } => {
                vec![format!(
                    "{}: peer {peer} deleted",
                    session(shard, *allocation)
                )]
            }
            Change::Ended(ended) => {
                self.users.remove(&ended.allocation.to_u64());
                let session = session(shard, ended.allocation);
                let (realm, user) = names(&ended.user);
                let whose = format!("realm=<{realm}>, username=<{user}>");
                let totals = &ended.totals;
                let usage = |received: &Traffic, sent: &Traffic| {
                    format!(
                        "rp={}, rb={}, sp={}, sb={}",
                        received.datagrams, received.bytes, sent.datagrams, sent.bytes
                    )
                };
                vec![
                    format!(
                        "{session}: usage: {whose}, {}",
                        usage(&totals.client_received, &totals.client_sent)
                    ),
                    format!(
                        "{session}: peer usage: {whose}, {}",
                        usage(&totals.peer_received, &totals.peer_sent)
                    ),
                    format!(
                        "{session}: closed (2nd stage), user <{user}> realm <{realm}> origin <>, local {}, remote {}, reason: {}",
                        ended.server,
                        ended.client,
                        super::reason(ended.cause),
                    ),
                    format!("{session}: delete: {whose}"),
                ]
            }
            _ => Vec::new(),
        }
    }

    /// The two lines of a request that changed the lifetime of a session.
    fn request(
        &self,
        shard: usize,
        allocation: AllocationId,
        what: &str,
        lifetime_s: u64,
        method: &str,
    ) -> Vec<String> {
        let session = session(shard, allocation);
        let user = self.users.get(&allocation.to_u64());
        let (realm, user) = user.map(names).unwrap_or_default();
        vec![
            format!("{session}: {what}, realm=<{realm}>, username=<{user}>, lifetime={lifetime_s}"),
            format!(
                "{session}: realm <{realm}> user <{user}>: incoming packet {method} processed, success"
            ),
        ]
    }
}

fn names(user: &Arc<User>) -> (String, String) {
    let escaped = |text: &str| text.escape_debug().to_string();
    (escaped(&user.realm), escaped(&user.name))
}

/// Eighteen digits: three for the thread, and fifteen for the session within it.
fn session(shard: usize, allocation: AllocationId) -> String {
    const SESSIONS: u64 = 1_000_000_000_000_000;
    format!("session {shard:03}{:015}", allocation.to_u64() % SESSIONS)
}
