//! The sessions, or users, that relay most: since their beginning, or right now.
//!
//! What is relayed now is the difference of two walks over all sessions. So it costs the shards twice as much as a list, and nothing while nobody asks.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::time::Duration;

use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use turnbuckle_server::handle::{Commands, Session, SessionFilter, Traffic};

use super::answer::{Refusal, SESSIONS_MAX, at_most, read, silent};
use super::filter::{FILTERS, Measure, Per};
use super::session::object;
use crate::pages::{Action, Walk};

/// Entries of the list, if the query does not say.
const TOP: usize = 10;

/// Seconds between the two walks, if the query does not say, and at most.
const SECONDS: u64 = 2;
const SECONDS_MAX: u64 = 30;

/// What was received, from the client and from peers.
#[derive(Clone, Copy, Default)]
struct Received {
    client: Traffic,
    peer: Traffic,
}

impl Received {
    fn of(session: &Session) -> Self {
        Self {
            client: session.usage.client_received,
            peer: session.usage.peer_received,
        }
    }

    fn add(&mut self, more: &Self) {
        for (sum, more) in [(&mut self.client, more.client), (&mut self.peer, more.peer)] {
            sum.datagrams += more.datagrams;
            sum.bytes += more.bytes;
        }
    }

    fn since(&self, before: &Self) -> Self {
        let since = |now: Traffic, before: Traffic| Traffic {
            datagrams: now.datagrams.saturating_sub(before.datagrams),
            bytes: now.bytes.saturating_sub(before.bytes),
        };
        Self {
            client: since(self.client, before.client),
            peer: since(self.peer, before.peer),
        }
    }

    fn weight(&self, by: Measure) -> u64 {
        match by {
            Measure::Bytes | Measure::Rate => self.client.bytes.saturating_add(self.peer.bytes),
            Measure::Datagrams => self.client.datagrams.saturating_add(self.peer.datagrams),
        }
    }
}

/// The first walk, and when it began.
struct Before {
    at: Instant,
    received: HashMap<u64, Received>,
}

impl Before {
    async fn look(commands: &Commands, filter: SessionFilter) -> Result<Self, Refusal> {
        let at = Instant::now();
        let mut received = HashMap::new();
        let mut walk = Walk::new(commands, Action::List, filter, (0, 0));
        while let Some(page) = walk.page(SESSIONS_MAX).await.map_err(silent)? {
            let sessions = page.sessions.iter();
            received.extend(sessions.map(|session| (session.number, Received::of(session))));
        }
        Ok(Self { at, received })
    }

    /// Returns what a session has received since. One that was not there has begun since.
    fn since(&self, session: &Session) -> Received {
        let before = self.received.get(&session.number);
        let before = before.copied().unwrap_or_default();
        Received::of(session).since(&before)
    }

    /// Returns what was received since as bytes per second.
    fn rate(&self, received: &Received) -> Value {
        let milliseconds = u64::try_from(self.at.elapsed().as_millis()).unwrap_or(u64::MAX);
        let per_s = |bytes: u64| bytes.saturating_mul(1000) / milliseconds.max(1);
        json!({
            "client_received": per_s(received.client.bytes),
            "peer_received": per_s(received.peer.bytes),
        })
    }
}

/// The sum of a user's sessions.
#[derive(Default)]
struct OfUser {
    sessions: u64,
    all: Received,
    now: Received,
}

/// Answers with the sessions or users that relay most.
pub(super) async fn top(commands: &Commands, query: &str) -> Result<String, Refusal> {
    let query = read(query, &[&FILTERS, &["max", "by", "per", "seconds"]])?;
    let max = at_most(query.max.unwrap_or(TOP))?;
    let by = query.by.unwrap_or(Measure::Bytes);
    let seconds = query.seconds.unwrap_or(SECONDS);
    if !(1..=SECONDS_MAX).contains(&seconds) {
        let why = format!("`seconds` is 1 to {SECONDS_MAX}");
        return Err((StatusCode::BAD_REQUEST, why));
    }
    let before = match by {
        Measure::Rate => {
            let before = Before::look(commands, query.filter.clone()).await?;
            sleep(Duration::from_secs(seconds)).await;
            Some(before)
        }
        Measure::Bytes | Measure::Datagrams => None,
    };
    let counted = |session: &Session| match &before {
        Some(before) => before.since(session),
        None => Received::of(session),
    };
    let rate = |received: &Received| before.as_ref().map(|before| before.rate(received));
    let mut sessions = Heaviest::new(max);
    let mut users: BTreeMap<(Box<str>, Box<str>), OfUser> = BTreeMap::new();
    let mut walk = Walk::new(commands, Action::List, query.filter.clone(), (0, 0));
    while let Some(page) = walk.page(SESSIONS_MAX).await.map_err(silent)? {
        for session in page.sessions {
            let now = counted(&session);
            match query.per.unwrap_or(Per::Session) {
                Per::Session => sessions.put(now.weight(by), session.number, || {
                    let mut value = object(&session);
                    value["bytes_per_s"] = rate(&now).unwrap_or(Value::Null);
                    value
                }),
                Per::User => {
                    let all = Received::of(&session);
                    let user = users.entry((session.realm, session.user_id)).or_default();
                    user.sessions += 1;
                    user.all.add(&all);
                    user.now.add(&now);
                }
            }
        }
    }
    let mut heaviest = Heaviest::new(max);
    for (number, ((realm, user), sum)) in (0..).zip(users) {
        heaviest.put(sum.now.weight(by), number, || {
            json!({
                "user": user,
                "realm": realm,
                "sessions": sum.sessions,
                "usage": {
                    "client_received": traffic(&sum.all.client),
                    "peer_received": traffic(&sum.all.peer),
                },
                "bytes_per_s": rate(&sum.now),
            })
        });
    }
    let answer = match query.per.unwrap_or(Per::Session) {
        Per::Session => json!({ "sessions": sessions.sorted() }),
        Per::User => json!({ "users": heaviest.sorted() }),
    };
    Ok(answer.to_string())
}

fn traffic(traffic: &Traffic) -> Value {
    json!({ "datagrams": traffic.datagrams, "bytes": traffic.bytes })
}

/// Weight and number, the heaviest first.
type Rank = Reverse<(u64, Reverse<u64>)>;

/// Keeps the heaviest.
struct Heaviest {
    max: usize,
    /// The least of those kept is on top.
    kept: BinaryHeap<(Rank, Kept)>,
}

impl Heaviest {
    fn new(max: usize) -> Self {
        Self {
            max,
            kept: BinaryHeap::new(),
        }
    }

    /// Keeps what `value` makes if it is among the heaviest. Of two of one weight that of the lesser number is the first.
    fn put(&mut self, weight: u64, number: u64, value: impl FnOnce() -> Value) {
        let rank = Reverse((weight, Reverse(number)));
        if self.kept.len() == self.max && self.kept.peek().is_some_and(|(least, _)| rank >= *least)
        {
            return;
        }
        self.kept.push((rank, Kept(value())));
        if self.kept.len() > self.max {
            self.kept.pop();
        }
    }

    fn sorted(self) -> Vec<Value> {
        let sorted = self.kept.into_sorted_vec().into_iter();
        sorted.map(|(_, Kept(value))| value).collect()
    }
}

/// A value in a heap, whose place there is not its own matter.
struct Kept(Value);

impl PartialEq for Kept {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Kept {}

impl PartialOrd for Kept {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Kept {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}
