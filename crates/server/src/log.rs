//! Lines from the shards to the thread that prints.
//!
//! Invariant: a shard never waits for a reader. A line that finds the queue full is dropped and counted, and the count
//! is told with the next line that finds room.

mod coturn;
mod sink;

use std::sync::mpsc::SyncSender;

use turnbuckle_engine::{Change, EndCause, Time};

pub use self::sink::Sink;
use crate::config::Persona;
use crate::serve::Event;

/// Lines that may wait to be printed.
pub(crate) const QUEUE_LINES: usize = 1024;

/// One shard's way to the log.
pub(crate) struct Log {
    events: SyncSender<Event>,
    /// Whether changes of sessions are logged (`verbose`).
    sessions: bool,
    shard: usize,
    /// For coturn's lines instead of our own.
    coturn: Option<coturn::Sessions>,
    lost: u64,
}

impl Log {
    pub(crate) fn new(
        events: SyncSender<Event>,
        sessions: bool,
        shard: usize,
        persona: Persona,
    ) -> Self {
        Self {
            events,
            sessions,
            shard,
            coturn: (persona == Persona::Turnserver).then(coturn::Sessions::default),
            lost: 0,
        }
    }

    /// Something an operator should see.
    pub(crate) fn warn(&mut self, text: &str) {
        self.line(format!("warning: shard {}: {text}", self.shard));
    }

    /// A change of durable state; printed when sessions are logged.
    pub(crate) fn change(&mut self, change: &Change, now: Time) {
        if !self.sessions {
            return;
        }
        let lines = match &mut self.coturn {
            Some(sessions) => sessions.lines(self.shard, change, now),
            None => describe(change, now).into_iter().collect(),
        };
        for line in lines {
            self.line(line);
        }
    }

    fn line(&mut self, mut text: String) {
        if self.lost > 0 {
            text = format!("{text} ({} lines before this one were lost)", self.lost);
        }
        match self.events.try_send(Event::Line(text)) {
            Ok(()) => self.lost = 0,
            Err(_) => self.lost += 1,
        }
    }
}

/// Why a session ended, in words.
fn reason(cause: EndCause) -> &'static str {
    match cause {
        EndCause::Disconnected => "the client disconnected",
        EndCause::Expired => "allocation expired",
        EndCause::Lost => "its sockets are lost",
        EndCause::Released(_) => "released by the client",
    }
}

/// One line in the manner of coturn's verbose log. Names are escaped: a user chooses them (V-73).
fn describe(change: &Change, now: Time) -> Option<String> {
    let line = match change {
        Change::Created(created) => format!(
            "session {:018}: new, realm=<{}>, username=<{}>, lifetime={}, client={}, relay={}",
            created.allocation.to_u64(),
            created.user.realm.escape_debug(),
            created.user.name.escape_debug(),
            created.expires.since(now).as_secs(),
            created.client,
            created
                .relays
                .iter()
                .map(|relay| relay.external.to_string())
                .collect::<Vec<_>>()
                .join("+"),
        ),
        Change::Refreshed {
            allocation,
            expires,
            ..
        } => format!(
            "session {:018}: refreshed, lifetime={}",
            allocation.to_u64(),
            expires.since(now).as_secs()
        ),
        Change::PermissionInstalled {
            allocation,
            peer,
            expires,
        } => format!(
            "session {:018}: peer {peer} lifetime updated: {}",
            allocation.to_u64(),
            expires.since(now).as_secs()
        ),
        Change::PermissionExpired { allocation, peer } => {
            format!("session {:018}: peer {peer} deleted", allocation.to_u64())
        }
        Change::PeerBound {
            allocation,
            connection,
            client,
        } => format!(
            "session {:018}: connection {:08x}: bound by {client}",
            allocation.to_u64(),
            connection.0
        ),
        Change::PeerConnected {
            allocation,
            connection,
            peer,
            is_incoming,
        } => format!(
            "session {:018}: connection {:08x}: {} peer {peer}",
            allocation.to_u64(),
            connection.0,
            if *is_incoming { "from" } else { "to" }
        ),
        Change::PeerDisconnected {
            allocation,
            connection,
            cause,
        } => format!(
            "session {:018}: connection {:08x}: closed, reason: {}",
            allocation.to_u64(),
            connection.0,
            cause.as_str()
        ),
        Change::Ended(ended) => format!(
            "session {:018}: closed, reason: {}, usage: rp={}, rb={}, sp={}, sb={}, peer usage: rp={}, rb={}, sp={}, sb={}",
            ended.allocation.to_u64(),
            reason(ended.cause),
            ended.totals.client_received.datagrams,
            ended.totals.client_received.bytes,
            ended.totals.client_sent.datagrams,
            ended.totals.client_sent.bytes,
            ended.totals.peer_received.datagrams,
            ended.totals.peer_received.bytes,
            ended.totals.peer_sent.datagrams,
            ended.totals.peer_sent.bytes,
        ),
        Change::Moved(moved) => format!(
            "session {:018}: moved, client={}",
            moved.allocation.to_u64(),
            moved.client
        ),
        Change::Resumed(resumed) => format!(
            "session {:018}: resumed, client={}",
            resumed.allocation.to_u64(),
            resumed.client
        ),
        Change::Reauthorized { .. }
        | Change::ChannelExpired { .. }
        | Change::ChannelInstalled { .. }
        | Change::FamilyEnded { .. } => return None,
    };
    Some(line)
}
