//! Writes the lines that coturn writes about sessions. Scripts read them.
//!
//! coturn's session is a client, with or without an allocation. In this server only an allocation is durable state. The log alone remembers a
//! client without one for a limited time, see `coturn/strangers.rs`. Lines about such a client are rate-limited, because anybody can cause them
//! (V-50). All text that a client chooses is escaped (V-73).

mod refusals;
mod session;
mod strangers;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use turnbuckle_engine::{Change, Created, EndCause, Ended, Time, Transport, Usage};
use turnbuckle_wire::Method;

use self::refusals::{CHALLENGE, Refusals};
use self::session::LoggedSession;
use self::strangers::{Stranger, Strangers};
use self::words::{closed, disconnected, disconnection, family, names, phrase, suffix, title};
use super::pace::Pace;
use super::request::{Answer, Asked, Path, Seal, word};
use super::text::name;
use crate::handle::SessionNumbers;

/// Lines per second about the requests of one session, and how many at once.
const REQUESTS: Pace = Pace::new(10, 200);

/// Lines per second about unauthenticated clients, for the whole server. With some 150 bytes each they stay below 10 KB/s (V-50).
const STRANGER_LINES_PER_S: u64 = 32;

/// Which lines are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lines {
    /// Those about sessions (`verbose`).
    pub(crate) sessions: bool,
    /// Those about Binding requests too (`log-binding`).
    pub(crate) binding: bool,
}

/// Holds the user of each session, because some lines print the user and not every change names it.
pub(super) struct Sessions {
    wanted: Lines,
    shard: usize,
    /// The realm of clients that were sent no other one.
    realm: String,
    numbers: SessionNumbers,
    by_allocation: BTreeMap<u64, LoggedSession>,
    allocation_by_path: BTreeMap<Path, u64>,
    strangers: Strangers,
    stranger_lines: Pace,
    /// Limits lines about clients that have no allocation.
    refused_lines: Pace,
    refusals: Refusals,
    /// Whether the line about the first challenge was printed.
    pub(super) has_challenged: bool,
}

impl Sessions {
    /// Returns the record of sessions of thread `shard` of `shards`.
    pub(super) fn new(
        wanted: Lines,
        shard: usize,
        shards: usize,
        realm: &str,
        numbers: SessionNumbers,
    ) -> Self {
        let per_s = (STRANGER_LINES_PER_S / shards.max(1) as u64).max(1);
        Self {
            wanted,
            shard,
            realm: name(realm),
            numbers,
            by_allocation: BTreeMap::new(),
            allocation_by_path: BTreeMap::new(),
            strangers: Strangers::default(),
            stranger_lines: Pace::new(per_s, per_s),
            refused_lines: REQUESTS,
            refusals: Refusals::default(),
            has_challenged: false,
        }
    }

    /// Returns which lines are wanted.
    pub(super) fn wanted(&self) -> Lines {
        self.wanted
    }

    /// Prints these lines from now on.
    pub(super) fn set_wanted(&mut self, wanted: Lines) {
        self.wanted = wanted;
    }

    /// Returns the number of a client that has no allocation yet.
    pub(super) fn known(&self, path: &turnbuckle_engine::Path) -> Option<u64> {
        self.strangers.number(&Path::from(path))
    }

    /// Returns the lines that coturn writes about `change` of the session with this number, in coturn's order.
    pub(super) fn changed(&mut self, change: &Change, number: u64, now: Time) -> Vec<String> {
        let lines = match change {
            Change::Created(created) => self.created(created, number, now),
            Change::Refreshed {
                allocation,
                expires,
                usage,
                ..
            } => self.refreshed(allocation.to_u64(), expires.since(now).as_secs(), usage),
            Change::Reauthorized { allocation, user } => {
                if let Some(session) = self.by_allocation.get_mut(&allocation.to_u64()) {
                    (session.realm, session.user) = names(user);
                }
                Vec::new()
            }
            Change::Moved(moved) => {
                let path = Path::from(&moved.path);
                // These lines serve tests of mobility, so they do not depend on the logging of sessions.
                return self.moved(moved.allocation.to_u64(), path, now);
            }
            Change::Resumed(resumed) => {
                return self.resumed(resumed.allocation.to_u64(), resumed.path.client, now);
            }
            Change::PermissionInstalled {
                allocation,
                peer,
                expires,
                ..
            } => {
                let lifetime = expires.since(now).as_secs();
                self.permission(allocation.to_u64(), *peer, Some(lifetime))
            }
            Change::PermissionExpired { allocation, peer } => {
                self.permission(allocation.to_u64(), *peer, None)
            }
            Change::Ended(ended) => self.ended(ended),
            Change::PeerLimitReached { peer, limit, .. } => {
                // A warning, at most once for each allocation: it does not depend on the logging of sessions.
                return vec![format!(
                    "warning: multiplex-peer: allocation reached its {limit} peer-endpoint limit (at {peer}); \
                     further endpoints are rejected"
                )];
            }
            Change::PeerClaimed { .. }
            | Change::ChannelExpired { .. }
            | Change::ChannelInstalled { .. }
            | Change::FamilyEnded { .. }
            | Change::PeerBound { .. }
            | Change::PeerConnected { .. }
            | Change::PeerDisconnected { .. } => Vec::new(),
        };
        match self.wanted.sessions {
            true => lines,
            false => Vec::new(),
        }
    }

    /// Returns the line that precedes the response to the request that ends a session.
    pub(super) fn releasing(&self, ended: &Ended) -> Option<String> {
        let is_wanted = self.wanted.sessions && matches!(ended.cause, EndCause::Released(_));
        let session = self.by_allocation.get(&ended.allocation.to_u64());
        let session = session.filter(|_| is_wanted)?;
        Some(format!(
            "{}: refreshed, {}, lifetime=0{}",
            self.title(session.number),
            session.whose(),
            suffix(session.seal.as_ref()),
        ))
    }

    /// Returns the lines that coturn writes about a response. `denied` holds the peer that an operator's rule denies, and that rule. `reason` says why the
    /// request was refused, in a line that is not coturn's.
    pub(super) fn answered(
        &mut self,
        path: Path,
        answer: &Answer,
        asked: &Asked,
        denied: Option<(IpAddr, String)>,
        reason: Option<&str>,
        now: Time,
    ) -> Vec<String> {
        let mut lines = Vec::new();
        let is_challenge = answer.error == Some(401) && asked.user.is_none();
        if is_challenge && path.transport == Transport::Udp && !self.has_challenged {
            self.has_challenged = true;
            // This line is written separately, because the others are rate-limited and may be left out.
            return [
                vec![CHALLENGE.to_owned()],
                self.answered(path, answer, asked, denied, reason, now),
            ]
            .concat();
        }
        let session = self.allocation_by_path.get(&path).copied();
        let session = session.and_then(|id| self.by_allocation.get_mut(&id));
        let is_known = session.is_some() || self.strangers.knows(&path);
        let is_wanted = self.wanted.sessions
            && (answer.method != Method::BINDING || self.wanted.binding || answer.error.is_some());
        let is_worth_a_line = is_wanted || asked.user.is_some() || denied.is_some();
        let (number, realm, user, origin, pace) = match session {
            Some(session) => {
                let (realm, user) = (session.realm.clone(), session.user.clone());
                let origin = session.origin.clone();
                let pace = match answer.is_proven {
                    true => &mut session.requests,
                    false => &mut self.stranger_lines,
                };
                (session.number, realm, user, origin, pace)
            }
            None if !is_worth_a_line => return lines,
            None => {
                let stranger = self.strangers.at(&path, now, || self.numbers.next());
                if let Some(user) = &asked.user {
                    stranger.user.clone_from(user);
                }
                if let Some(realm) = asked.realm.as_ref().or(answer.realm.as_ref()) {
                    stranger.realm = Some(realm.clone());
                }
                if answer.method == Method::ALLOCATE && stranger.origin.is_none() {
                    stranger.origin.clone_from(&asked.origin);
                }
                let (number, user) = (stranger.number, stranger.user.clone());
                let origin = stranger.origin.clone().unwrap_or_default();
                let realm = stranger.realm.clone();
                let realm = realm.unwrap_or_else(|| self.realm.clone());
                let pace = match answer.is_proven {
                    true => &mut self.refused_lines,
                    false => &mut self.stranger_lines,
                };
                (number, realm, user, origin, pace)
            }
        };
        let title = title(self.shard, number);
        if answer.error == Some(401)
            && let Some(user) = &asked.user
        {
            lines.push(format!(
                "error: {title}: check_stun_auth: user {user} credentials are incorrect"
            ));
        }
        if let Some((peer, range)) = denied {
            lines.push(format!(
                "error: {title}: A peer IP {peer} denied in the range: {range} in server {}",
                self.shard
            ));
        }
        if is_wanted {
            let origin = match origin.is_empty() {
                true => String::new(),
                false => format!("origin <{origin}> "),
            };
            let whose = format!("{title}: {origin}realm <{realm}> user <{user}>");
            let said = |what: &str, result: &str| {
                format!("{whose}: incoming packet {what} processed, {result}")
            };
            match answer.error {
                None => lines.push(said(word(answer.method), "success")),
                Some(code) => {
                    let result = format!("error {code}: {}", phrase(answer, code, is_known));
                    let is_logged = answer.method != Method::BINDING || self.wanted.binding;
                    if (answer.is_proven || answer.method == Method::BINDING) && is_logged {
                        lines.push(said(word(answer.method), &result));
                    }
                    lines.push(said("message", &result));
                    let reason = reason.map(|reason| format!("{title}: refused: {reason}"));
                    lines.extend(reason);
                }
            }
        }
        let mut admitted = Vec::with_capacity(lines.len());
        for line in lines {
            if let Some(left_out) = pace.admit(now) {
                if left_out > 0 {
                    admitted.push(format!(
                        "{title}: {left_out} lines before this one were left out"
                    ));
                }
                admitted.push(line);
            }
        }
        admitted
    }

    /// Returns the line that coturn writes about a request that does not get its error response because its source has reached its limit of responses.
    pub(super) fn suppressed(&mut self, source: IpAddr, code: u16, now: Time) -> Option<String> {
        let pace = &mut self.stranger_lines;
        self.refusals
            .line(source, code, now, || pace.admit(now).is_some())
    }

    /// Notes the cipher suite and version that protect a client's connection.
    pub(super) fn sealed(&mut self, path: Path, seal: Seal, now: Time) {
        if self.allocation_by_path.contains_key(&path) {
            return; // known since the allocation began
        }
        let stranger = self.strangers.at(&path, now, || self.numbers.next());
        stranger.seal = Some(seal);
    }

    /// Returns the lines that coturn writes about a new connection.
    pub(super) fn connected(&mut self, client: SocketAddr, now: Time) -> Vec<String> {
        let line = format!("{} tcp or tls connected to: {client}", family(client.ip()));
        self.paced(line, now).into_iter().collect()
    }

    /// Returns the lines that coturn writes about a closed connection. If the client had no allocation, they include the end of its session.
    pub(super) fn disconnected(&mut self, path: Path, is_orderly: bool, now: Time) -> Vec<String> {
        let mut lines = Vec::new();
        let session = self.allocation_by_path.get(&path);
        if let Some(session) = session.and_then(|id| self.by_allocation.get_mut(id)) {
            session.is_broken = !is_orderly;
            let title = title(self.shard, session.number);
            lines.push(disconnected(&title, &path, is_orderly));
        } else if let Some(stranger) = self.strangers.take(&path) {
            let title = self.title(stranger.number);
            let cause = disconnection(path.transport, !is_orderly);
            lines.extend(self.paced(disconnected(&title, &path, is_orderly), now));
            lines.extend(self.paced(self.gone(&stranger, &cause), now));
        }
        lines
    }

    /// Returns the lines about clients that got no allocation before they expired.
    pub(super) fn expired(&mut self, now: Time) -> Vec<String> {
        let mut lines = Vec::new();
        while let Some(stranger) = self.strangers.pop_due(now) {
            let line = self.gone(
                &stranger,
                "allocation watchdog determined stale session state",
            );
            lines.extend(self.paced(line, now));
        }
        lines
    }

    /// Returns the next time at which [`Self::expired`] may return a line.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.strangers.next_end().filter(|_| self.wanted.sessions)
    }

    /// Returns the line about the end of a client without an allocation.
    fn gone(&self, stranger: &Stranger, cause: &str) -> String {
        let title = self.title(stranger.number);
        let origin = stranger.origin.as_deref().unwrap_or_default();
        closed(
            &title,
            &stranger.user,
            stranger.realm.as_ref().unwrap_or(&self.realm),
            origin,
            &stranger.path,
            cause,
        )
    }

    /// Returns a line about an unauthenticated client, unless the rate limit leaves it out.
    fn paced(&mut self, line: String, now: Time) -> Option<String> {
        let is_admitted = self.wanted.sessions && self.stranger_lines.admit(now).is_some();
        is_admitted.then_some(line)
    }

    fn created(&mut self, created: &Created, number: u64, now: Time) -> Vec<String> {
        let id = created.allocation.to_u64();
        let path = Path::from(&created.path);
        let stranger = self.strangers.take(&path);
        let (realm, user) = names(&created.user);
        let (origin, seal) = stranger.map_or((None, None), |known| (known.origin, known.seal));
        let session = LoggedSession {
            number,
            path,
            realm,
            user,
            origin: origin.unwrap_or_default(),
            seal,
            peers: BTreeSet::new(),
            is_broken: false,
            reported: Usage::default(),
            requests: REQUESTS,
            resumed: None,
        };
        let mut lines: Vec<_> = created
            .relays
            .iter()
            .map(|relay| {
                let family = family(relay.local.ip());
                format!("{family} Local relay addr: {}", relay.local)
            })
            .collect();
        lines.push(format!(
            "{}: new, {}, lifetime={}{}",
            self.title(number),
            session.whose(),
            created.expires.since(now).as_secs(),
            suffix(session.seal.as_ref()),
        ));
        self.allocation_by_path.insert(path, id);
        self.by_allocation.insert(id, session);
        lines
    }

    fn refreshed(&mut self, id: u64, lifetime_s: u64, usage: &Usage) -> Vec<String> {
        let shard = self.shard;
        let Some(session) = self.by_allocation.get_mut(&id) else {
            return Vec::new();
        };
        let title = title(shard, session.number);
        let mut lines = vec![format!(
            "{title}: refreshed, {}, lifetime={lifetime_s}{}",
            session.whose(),
            suffix(session.seal.as_ref()),
        )];
        if session.is_usage_due(usage) {
            lines.extend(session.used(&title, usage));
        }
        lines
    }

    /// Notes that a client continues from another address. Returns the line about it.
    fn moved(&mut self, id: u64, path: Path, now: Time) -> Vec<String> {
        let Some(session) = self.by_allocation.get_mut(&id) else {
            return Vec::new();
        };
        self.allocation_by_path.remove(&session.path);
        session.path = path;
        session.resumed = None;
        self.strangers.take(&path);
        self.allocation_by_path.insert(path, id);
        let title = title(self.shard, session.number);
        let is_admitted = session.requests.admit(now).is_some();
        let line = format!(
            "{title}: mobility handoff completed, remote {}",
            path.client
        );
        is_admitted.then_some(line).into_iter().collect()
    }

    /// Notes that a client that may have moved got a new mobility ticket. Returns the line about it.
    fn resumed(&mut self, id: u64, client: SocketAddr, now: Time) -> Vec<String> {
        let Some(session) = self.by_allocation.get_mut(&id) else {
            return Vec::new();
        };
        let before = session.resumed.replace(client);
        let title = title(self.shard, session.number);
        let line = before
            .filter(|_| session.requests.admit(now).is_some())
            .map(|before| format!("{title}: remote {before} superseded by newer mobility resume"));
        line.into_iter().collect()
    }

    /// Notes a permission's new lifetime or its end. Returns the lines about it.
    fn permission(&mut self, id: u64, peer: IpAddr, lifetime_s: Option<u64>) -> Vec<String> {
        let Some(session) = self.by_allocation.get_mut(&id) else {
            return Vec::new();
        };
        let title = title(self.shard, session.number);
        let line = match lifetime_s {
            Some(lifetime_s) => {
                if self.wanted.sessions {
                    session.peers.insert(peer);
                }
                format!("{title}: peer {peer} lifetime updated: {lifetime_s}")
            }
            None => {
                session.peers.remove(&peer);
                format!("{title}: peer {peer} deleted")
            }
        };
        vec![line]
    }

    fn ended(&mut self, ended: &Ended) -> Vec<String> {
        let Some(mut session) = self.by_allocation.remove(&ended.allocation.to_u64()) else {
            return Vec::new();
        };
        self.allocation_by_path.remove(&session.path);
        let title = self.title(session.number);
        let cause = match ended.cause {
            EndCause::Disconnected => disconnection(ended.path.transport, session.is_broken),
            EndCause::Expired | EndCause::Released(_) => "allocation timeout".to_owned(),
            EndCause::Idle => "allocation timeout".to_owned(),
            EndCause::Cancelled
            | EndCause::Forbidden
            | EndCause::Lost
            | EndCause::Unreachable
            | EndCause::UserGone => "general".to_owned(),
        };
        let path = Path::from(&ended.path);
        let mut lines = session.used(&title, &ended.totals).to_vec();
        lines.push(closed(
            &title,
            &session.user,
            &session.realm,
            &session.origin,
            &path,
            &cause,
        ));
        lines.push(format!("{title}: delete: {}", session.whose()));
        let peers = session.peers.iter();
        lines.extend(peers.map(|peer| format!("{title}: peer {peer} deleted")));
        lines
    }

    fn title(&self, number: u64) -> String {
        title(self.shard, number)
    }
}

#[cfg(test)]
mod tests;
