//! Lines from the shards to the thread that prints.
//!
//! Invariant: a shard never waits for a reader. A line that finds the queue full is dropped and counted. The next line that finds room reports the
//! count.

mod coturn;
mod pace;
mod reasons;
mod request;
mod sink;
mod summary;
mod text;
mod trace;

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use turnbuckle_engine::{Change, Created, EndCause, Ended, Refusal, Time};

pub(crate) use self::coturn::Lines;
use self::pace::Pace;
use self::reasons::{Warnings, why};
pub use self::request::Seal;
use self::request::word;
pub(crate) use self::request::{Answer, Asked, Denied, Path};
pub use self::sink::{Outputs, Sink};
use self::summary::Summaries;
pub use self::summary::Summary;
use self::text::{name, phrase, socket};
use self::trace::Traces;
use crate::config::{Config, Level, Persona};
use crate::control::events::Event;
use crate::counters::ShardCounters;
use crate::handle::{SessionNumbers, Trace, number_of_shard};
use crate::shard::serving::Logged;

/// Lines per second about requests, of one shard, where they are not paced by session.
const REQUESTS: Pace = Pace::new(20, 20);

/// Time after which lost lines are reported in a line of their own.
const LOST_AFTER: Duration = Duration::from_secs(1);

/// What the lines of a relay are written to. It must not block.
pub trait Output: Write {
    /// What lines can be written to.
    type Next;

    /// Opens what a configuration that was read again has lines written to. Nothing changes by it, but that a new file is there.
    ///
    /// # Errors
    ///
    /// What cannot be opened.
    fn prepare(&self, config: &Config) -> Result<Self::Next, String>;

    /// Writes lines there from now on.
    fn take(&mut self, next: Self::Next);

    /// Takes the summary of a session that has ended.
    fn session_ended(&mut self, summary: Summary);

    /// Leaves out lines below `level` from now on.
    fn set_level(&mut self, level: Level);

    /// Returns the number of lines that it has lost.
    fn lost(&self) -> u64;
}

/// Holds which lines a shard logs.
#[derive(Clone, Debug)]
pub(crate) struct Scope {
    pub(crate) persona: Persona,
    /// What may change while it runs.
    pub(crate) logged: Logged,
    /// What sessions are numbered by.
    pub(crate) numbers: SessionNumbers,
    /// Which shard it is, and of how many.
    pub(crate) shard: usize,
    pub(crate) shards: usize,
    /// The realm that is printed for clients that were sent no other one.
    pub(crate) realm: Box<str>,
}

/// One shard's sender to the log.
pub(crate) struct Log {
    events: SyncSender<Event>,
    scope: Scope,
    /// Writes coturn's lines, if they are printed in place of our own.
    coturn: Option<coturn::Sessions>,
    requests: Pace,
    /// Refusals that have a line without `verbose`.
    warnings: Warnings,
    /// Users who are traced.
    traces: Traces,
    /// What summaries need to know of sessions, if there are any.
    summaries: Option<Summaries>,
    counters: Arc<ShardCounters>,
    /// Lines lost since the last one that found room.
    lost: u64,
    /// When they are reported, if no line finds room before.
    lost_due: Option<Time>,
}

impl Log {
    pub(crate) fn new(
        events: SyncSender<Event>,
        scope: Scope,
        counters: Arc<ShardCounters>,
    ) -> Self {
        let (shard, shards) = (scope.shard, scope.shards);
        let numbers = scope.numbers.clone();
        let sessions = || {
            let logged = scope.logged;
            let mut sessions =
                coturn::Sessions::new(logged.wanted, shard, shards, &scope.realm, numbers);
            sessions.has_challenged = !logged.stateless_nonces;
            sessions
        };
        Self {
            coturn: (scope.persona == Persona::Turnserver).then(sessions),
            summaries: scope.logged.summaries.then(Summaries::default),
            events,
            scope,
            requests: REQUESTS,
            warnings: Warnings::new(shards),
            traces: Traces::default(),
            counters,
            lost: 0,
            lost_due: None,
        }
    }

    /// Logs a warning for the operator.
    pub(crate) fn warn(&mut self, text: &str) {
        self.line(format!("warning: shard {}: {text}", self.scope.shard));
    }

    /// Returns whether [`Self::answered`] has to be called for a response. Only error responses count unless requests are logged.
    #[inline]
    pub(crate) fn wants_answer(&self, answer: &[u8], why: Option<Refusal>) -> bool {
        // The low bit of the class, which stands apart from the method (RFC 8489 §5).
        let is_error = || answer.get(1).is_some_and(|byte| byte & 0x10 != 0);
        self.traces.are_any() || why.is_some_and(Warnings::are_of) || self.is_logged(is_error)
    }

    /// Returns whether a response has a line in the log.
    #[inline]
    fn is_logged(&self, is_error: impl FnOnce() -> bool) -> bool {
        match &self.coturn {
            Some(_) => self.scope.logged.wanted.sessions || is_error(),
            None => self.scope.logged.requests || self.scope.logged.wanted.sessions && is_error(),
        }
    }

    /// Logs this from now on.
    pub(crate) fn set_logged(&mut self, logged: Logged) {
        self.scope.logged = logged;
        match logged.summaries {
            // Of sessions that have begun before it has no relayed addresses.
            true => _ = self.summaries.get_or_insert_default(),
            false => self.summaries = None,
        }
        if let Some(sessions) = &mut self.coturn {
            sessions.set_wanted(logged.wanted);
        }
    }

    /// Begins a trace of one user.
    pub(crate) fn trace(&mut self, trace: Trace) {
        self.traces.begin(trace);
    }

    /// Returns whether lines about sessions are printed in coturn's form.
    pub(crate) fn tells_as_coturn(&self) -> bool {
        self.coturn.is_some() && self.scope.logged.wanted.sessions
    }

    /// Returns the number of a session that begins: the one that its client has in the log already, or a new one.
    pub(crate) fn number(&self, created: &Created) -> u64 {
        let known = self.coturn.as_ref().and_then(|it| it.known(&created.path));
        known.unwrap_or_else(|| self.scope.numbers.next())
    }

    /// Has all numbers that are given from now on be higher than this one.
    pub(crate) fn number_after(&self, number: u64) {
        self.scope.numbers.raise(number);
    }

    /// Logs a change of durable state of the session with this number if sessions are logged.
    pub(crate) fn change(&mut self, change: &Change, number: u64, now: Time) {
        let summaries = self.summaries.as_mut();
        let summary = summaries.and_then(|summaries| {
            summaries.changed(change, number_of_shard(self.scope.shard, number))
        });
        let shard = self.scope.shard;
        let global = number_of_shard(shard, number);
        self.traces.changed(shard, change, global, now);
        self.describe(change, number, now);
        if let Some(summary) = summary {
            self.send(Event::SessionEnded(Box::new(summary)));
        }
    }

    /// Takes note of a session that was there before this process. Its beginning is in the log already.
    pub(crate) fn restored(&mut self, change: &Change, number: u64, now: Time) {
        if let Some(summaries) = &mut self.summaries {
            summaries.changed(change, number_of_shard(self.scope.shard, number));
        }
        if let Some(sessions) = &mut self.coturn {
            sessions.changed(change, number, now);
        }
    }

    fn describe(&mut self, change: &Change, number: u64, now: Time) {
        let lines = match &mut self.coturn {
            Some(sessions) => sessions.changed(change, number, now),
            None if !self.scope.logged.wanted.sessions => return,
            None => {
                let number = number_of_shard(self.scope.shard, number);
                describe(change, number, now).into_iter().collect()
            }
        };
        self.lines(lines);
    }

    /// Logs the end of an allocation that a request asked for, before the response to that request is logged.
    pub(crate) fn releasing(&mut self, ended: &Ended) {
        let line = self.coturn.as_ref().and_then(|it| it.releasing(ended));
        self.lines(line);
    }

    /// Logs a response to a client. `denied` holds the peer that was refused.
    pub(crate) fn answered(
        &mut self,
        path: Path,
        answer: &Answer,
        asked: &Asked,
        denied: Option<Denied>,
        now: Time,
    ) {
        let reason = match &denied {
            Some(denied) => Some(format!("peer {}", denied.why)),
            None => answer.why.map(|refusal| {
                let realm = answer.realm.as_ref().or(asked.realm.as_ref());
                why(refusal, realm.map_or("", |realm| realm))
            }),
        };
        let reason = reason.as_deref();
        let shard = self.scope.shard;
        self.traces.answered(shard, path, answer, asked, reason);
        let warning =
            reason.and_then(|reason| (self.warnings).line(path, answer, asked, reason, now));
        self.lines(warning);
        if !self.is_logged(|| answer.error.is_some()) {
            return;
        }
        if let Some(sessions) = &mut self.coturn {
            let denied = denied.and_then(|denied| Some((denied.peer, denied.range?)));
            let lines = sessions.answered(path, answer, asked, denied, reason, now);
            return self.lines(lines);
        }
        // The first request of a client has no credentials, and neither has what strangers send.
        let has_credentials = asked.user.is_some() || answer.is_proven;
        if !has_credentials && !self.scope.logged.requests {
            return;
        }
        if let Some(left_out) = self.requests.admit(now) {
            let result = result(answer, reason);
            let before = match left_out {
                0 => String::new(),
                count => format!(" ({count} lines before this one were left out)"),
            };
            let user = asked.user.as_ref().filter(|_| answer.error.is_some());
            let user = user.map_or(String::new(), |user| format!(", username=<{user}>"));
            self.line(format!(
                "{} by {} from {}{user}: {result}{before}",
                word(answer.method),
                path.transport.as_str(),
                path.client
            ));
        }
    }

    /// Logs a request that does not get its error response of this `code` because `source` has reached its limit of responses.
    pub(crate) fn suppressed(&mut self, source: IpAddr, code: u16, now: Time) {
        if let Some(sessions) = self
            .coturn
            .as_mut()
            .filter(|_| self.scope.logged.limits_answers)
        {
            let line = sessions.suppressed(source, code, now);
            self.lines(line);
        }
    }

    /// Notes the cipher suite and version that protect a client's connection.
    pub(crate) fn sealed(&mut self, path: Path, seal: Seal, now: Time) {
        if let Some(sessions) = &mut self.coturn {
            sessions.sealed(path, seal, now);
        }
    }

    /// Logs a new connection.
    pub(crate) fn connected(&mut self, client: SocketAddr, now: Time) {
        if let Some(sessions) = self.coturn.as_mut().filter(|it| it.wanted().sessions) {
            let lines = sessions.connected(client, now);
            self.lines(lines);
        }
    }

    /// Logs that a connection was closed. It is called before the end of the connection's allocation is logged.
    pub(crate) fn disconnected(&mut self, path: Path, is_orderly: bool, now: Time) {
        if let Some(sessions) = self.coturn.as_mut().filter(|it| it.wanted().sessions) {
            let lines = sessions.disconnected(path, is_orderly, now);
            self.lines(lines);
        }
    }

    /// Prints the lines that are due.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        match (self.lost, self.lost_due) {
            (0, _) => self.lost_due = None,
            (_, None) => self.lost_due = Some(now + LOST_AFTER),
            (lost, Some(due)) if due <= now => {
                self.lost_due = Some(now + LOST_AFTER);
                let shard = self.scope.shard;
                let text = format!("warning: shard {shard}: {lost} lines of the log were lost");
                if self.send(Event::Line(text)) {
                    self.lost = 0;
                }
            }
            _ => {}
        }
        if let Some(sessions) = &mut self.coturn
            && sessions.next_timeout().is_some_and(|due| due <= now)
        {
            let lines = sessions.expired(now);
            self.lines(lines);
        }
    }

    /// Returns the next time at which [`Self::handle_timeout`] may print a line.
    pub(crate) fn next_timeout(&self) -> Option<Time> {
        let due = self.coturn.as_ref().and_then(|it| it.next_timeout());
        due.into_iter().chain(self.lost_due).min()
    }

    fn lines(&mut self, lines: impl IntoIterator<Item = String>) {
        for line in lines {
            self.line(line);
        }
    }

    fn line(&mut self, mut text: String) {
        if self.lost > 0 {
            let lost = self.lost;
            text = match &self.coturn {
                // A line of its own: programs read coturn's to their ends.
                Some(_) => format!("warning: {lost} lines before the next one were lost\n{text}"),
                None => format!("{text} ({lost} lines before this one were lost)"),
            };
        }
        if self.send(Event::Line(text)) {
            self.lost = 0;
        }
    }

    /// Returns whether there was room. If there was not, the line is counted as lost.
    fn send(&mut self, event: Event) -> bool {
        match self.events.try_send(event) {
            Ok(()) => true,
            // guard: V-50-queue
            Err(_) => {
                self.lost += 1;
                self.counters.log.log_lost.add(1);
                false
            }
        }
    }
}

/// Returns what a request was answered, and why.
fn result(answer: &Answer, reason: Option<&str>) -> String {
    match (answer.error, reason) {
        (None, _) => "success".to_owned(),
        (Some(code), None) => format!("error {code}: {}", phrase(code)),
        (Some(code), Some(reason)) => format!("error {code}: {}, {reason}", phrase(code)),
    }
}

/// Returns the cause of a session's end as text.
fn reason(cause: EndCause) -> &'static str {
    match cause {
        EndCause::Cancelled => "ended by the operator",
        EndCause::Disconnected => "the client disconnected",
        EndCause::Expired => "allocation expired",
        EndCause::Forbidden => "its peer is forbidden by now",
        EndCause::Idle => "nothing was relayed",
        EndCause::Lost => "its sockets are lost",
        EndCause::Released(_) => "released by the client",
        EndCause::Unreachable => "its peer cannot be reached",
        EndCause::UserGone => "its user is not let in any more",
    }
}

/// Returns one line in the form of coturn's verbose log. Names are escaped because a user chooses them (V-73).
fn describe(change: &Change, number: u64, now: Time) -> Option<String> {
    let line = match change {
        Change::Created(created) => format!(
            "session {:018}: new{}, realm=<{}>, username=<{}>, lifetime={}, client={}, relay={}",
            number,
            (created.brought.tunnel_to).map_or(String::new(), |peer| format!(", tunnel to {peer}")),
            name(&created.user.realm),
            name(&created.user.name),
            created.expires.since(now).as_secs(),
            created.path.client,
            created
                .relays
                .iter()
                .map(|relay| relay.external.to_string())
                .collect::<Vec<_>>()
                .join("+"),
        ),
        Change::Refreshed { expires, .. } => format!(
            "session {:018}: refreshed, lifetime={}",
            number,
            expires.since(now).as_secs()
        ),
        Change::PermissionInstalled { peer, expires, .. } => format!(
            "session {:018}: peer {peer} lifetime updated: {}",
            number,
            expires.since(now).as_secs()
        ),
        Change::PermissionExpired { peer, .. } => {
            format!("session {:018}: peer {peer} deleted", number)
        }
        Change::PeerBound {
            connection, client, ..
        } => format!(
            "session {:018}: connection {:08x}: bound by {client}",
            number, connection.0
        ),
        Change::PeerConnected {
            connection,
            peer,
            is_incoming,
            ..
        } => format!(
            "session {:018}: connection {:08x}: {} peer {peer}",
            number,
            connection.0,
            if *is_incoming { "from" } else { "to" }
        ),
        Change::PeerDisconnected {
            connection, cause, ..
        } => format!(
            "session {:018}: connection {:08x}: closed, reason: {}",
            number,
            connection.0,
            cause.as_str()
        ),
        Change::Ended(ended) => format!(
            "session {:018}: closed, reason: {}, usage: rp={}, rb={}, sp={}, sb={}, peer usage: rp={}, rb={}, sp={}, sb={}",
            number,
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
            number, moved.path.client
        ),
        Change::Resumed(resumed) => format!(
            "session {:018}: resumed, client={}",
            number, resumed.path.client
        ),
        Change::PeerLimitReached {
            allocation,
            peer,
            limit,
        } => format!(
            "session {:018}: reached its limit of {limit} peers on a shared relay socket (at {peer}); further peers are refused",
            allocation.to_u64()
        ),
        Change::Reauthorized { .. }
        | Change::PeerClaimed { .. }
        | Change::ChannelExpired { .. }
        | Change::ChannelInstalled { .. }
        | Change::FamilyEnded { .. } => return None,
    };
    Some(line)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    //= V-50
    #[test]
    fn lines_that_find_the_queue_full_are_dropped_and_counted() {
        let (sender, lines) = sync_channel(2);
        let scope = Scope {
            persona: Persona::Turnbuckle,
            logged: Logged::NOTHING,
            numbers: SessionNumbers::after(0),
            shard: 0,
            shards: 1,
            realm: "example.org".into(),
        };
        let counters = Arc::new(ShardCounters::default());
        let mut log = Log::new(sender, scope, Arc::clone(&counters));
        for number in 0..10 {
            log.warn(&number.to_string());
        }
        let next = || match lines.try_recv() {
            Ok(Event::Line(line)) => Some(line),
            _ => None,
        };
        assert_eq!(next().as_deref(), Some("warning: shard 0: 0"));
        assert_eq!(next().as_deref(), Some("warning: shard 0: 1"));
        assert_eq!(next(), None);
        assert_eq!(counters.log.log_lost.get(), 8);
        // Nothing more is to be said, and still it is said, in a while.
        let start = Time::from_secs(1);
        log.handle_timeout(start);
        assert_eq!(log.next_timeout(), Some(start + LOST_AFTER));
        log.handle_timeout(start + LOST_AFTER);
        let expected = "warning: shard 0: 8 lines of the log were lost";
        assert_eq!(next().as_deref(), Some(expected));
        log.handle_timeout(start + LOST_AFTER * 2);
        assert_eq!((next(), log.next_timeout()), (None, None));
        for number in 0..10 {
            log.warn(&number.to_string());
        }
        next();
        next();
        log.warn("again");
        log.warn("and again");
        let expected = "warning: shard 0: again (8 lines before this one were lost)";
        assert_eq!(next().as_deref(), Some(expected));
        assert_eq!(next().as_deref(), Some("warning: shard 0: and again"));
    }
}
