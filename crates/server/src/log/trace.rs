//! Traces of single users, which a holder of the relay's handle has asked for.
//!
//! Invariant: without a trace nothing here costs anything, and with one nothing is done for relayed data. A trace that is over, or that nobody reads
//! any more, is forgotten at the next request or change.

use std::collections::BTreeSet;
use std::time::Instant;

use turnbuckle_engine::{Change, Time};

use super::request::{Answer, Asked, Path, word};
use super::text::name;
use super::{describe, result, socket};
use crate::handle::{Trace, Traced};

/// Traces of one shard at a time. Further ones take the place of the oldest.
const TRACES_MAX: usize = 4;

/// The traces of one shard.
#[derive(Default)]
pub(super) struct Traces(Vec<Followed>);

struct Followed {
    trace: Trace,
    /// The user's name as it is printed.
    user: String,
    /// The numbers of the user's sessions.
    sessions: BTreeSet<u64>,
}

impl Traces {
    /// Begins a trace.
    pub(super) fn begin(&mut self, trace: Trace) {
        if self.0.len() >= TRACES_MAX {
            self.0.remove(0);
        }
        self.0.push(Followed {
            user: name(&trace.user),
            sessions: trace.sessions.iter().copied().collect(),
            trace,
        });
    }

    /// Returns whether there are any.
    #[inline]
    pub(super) fn are_any(&self) -> bool {
        !self.0.is_empty()
    }

    /// Shows a change of the session with this number among those of all shards.
    pub(super) fn changed(&mut self, shard: usize, change: &Change, number: u64, now: Time) {
        if !self.are_any() {
            return;
        }
        let line = describe(change, number, now).or_else(|| detail(change, number, now));
        self.tell(shard, |followed| {
            if let Change::Created(created) = change
                && (created.user).is_called(&followed.trace.user)
            {
                followed.sessions.insert(number);
            }
            let is_of_user = followed.sessions.contains(&number);
            if matches!(change, Change::Ended(_)) {
                followed.sessions.remove(&number);
            }
            line.clone().filter(|_| is_of_user)
        });
    }

    /// Shows a response to a request with credentials.
    pub(super) fn answered(
        &mut self,
        shard: usize,
        path: Path,
        answer: &Answer,
        asked: &Asked,
        reason: Option<&str>,
    ) {
        self.tell(shard, |followed| {
            let names = [asked.user.as_deref(), asked.id.as_deref()];
            if !names.contains(&Some(&followed.user)) {
                return None;
            }
            let peers = asked.peers.iter().map(|peer| format!(" {peer}"));
            let peers: String = peers.collect();
            let result = result(answer, reason);
            Some(format!(
                "{}{peers} by {} from {}: {result}",
                word(answer.method),
                socket(path.transport),
                path.client
            ))
        });
    }

    /// Has each trace say its line, and forgets those that are over.
    fn tell(&mut self, shard: usize, mut line: impl FnMut(&mut Followed) -> Option<String>) {
        let now = Instant::now();
        self.0.retain_mut(|followed| {
            // guard: V-50-trace-ends
            if now >= followed.trace.until {
                return false;
            }
            match line(followed) {
                Some(text) => (followed.trace.outlet)(Traced { shard, text }),
                None => true,
            }
        });
    }
}

/// Returns a line about a change that the log has none about.
fn detail(change: &Change, number: u64, now: Time) -> Option<String> {
    match change {
        Change::ChannelInstalled {
            number: channel,
            peer,
            expires,
            ..
        } => Some(format!(
            "session {number:018}: channel {:#06x} of peer {peer} lifetime updated: {}",
            channel.get(),
            expires.since(now).as_secs()
        )),
        Change::ChannelExpired { .. } => Some(format!("session {number:018}: channel deleted")),
        Change::Reauthorized { .. } => Some(format!("session {number:018}: another token")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, sync_channel};
    use std::time::Duration;

    use turnbuckle_engine::AllocationId;
    use turnbuckle_wire::ChannelNumber;

    use super::*;

    fn trace(user: &str, sessions: &[u64], lasts: Duration) -> (Trace, Receiver<Traced>) {
        let (outlet, lines) = sync_channel(16);
        let trace = Trace {
            user: user.into(),
            sessions: sessions.into(),
            until: Instant::now() + lasts,
            outlet: Arc::new(move |traced| outlet.try_send(traced).is_ok()),
        };
        (trace, lines)
    }

    fn expired() -> Change {
        Change::ChannelExpired {
            allocation: AllocationId::from_u64(1),
            number: ChannelNumber::MIN,
        }
    }

    #[test]
    fn a_trace_is_of_one_users_sessions_and_ends_by_itself_or_when_nobody_reads() {
        let mut traces = Traces::default();
        let (lasting, lines) = trace("ann", &[7], Duration::from_secs(600));
        let (over, _kept) = trace("ann", &[7], Duration::ZERO);
        let (unread, _) = trace("ann", &[7], Duration::from_secs(600));
        for trace in [lasting, over, unread] {
            traces.begin(trace);
        }
        traces.changed(3, &expired(), 7, Time::ZERO);
        traces.changed(3, &expired(), 8, Time::ZERO);
        assert_eq!(traces.0.len(), 1, "one is over, and one is not read");
        let found: Vec<_> = lines.try_iter().collect();
        let text = "session 000000000000000007: channel deleted".to_owned();
        assert_eq!(found, [Traced { shard: 3, text }]);
    }
}
