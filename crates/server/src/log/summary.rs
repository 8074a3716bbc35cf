//! One record for each session that ends: whose it was, where, for how long, and what it relayed.
//!
//! Invariant: every form of the log writes the same fields, from [`Summary::fields`]. Values are those of the client, unescaped: each form escapes
//! what ends a value there (V-73).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use turnbuckle_engine::{Change, EndCause, Ended, Path, Usage};

/// A session that has ended.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Its number, as lines about it print it.
    session: String,
    realm: Box<str>,
    user: Box<str>,
    path: Path,
    /// The relayed transport addresses that it began with, as clients see them.
    relays: Vec<SocketAddr>,
    cause: EndCause,
    lifetime: Duration,
    totals: Usage,
}

/// The value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value<'a> {
    Text(Cow<'a, str>),
    Number(u64),
}

impl Value<'_> {
    /// Returns the value as text.
    pub(super) fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Text(text) => Cow::Borrowed(text),
            Self::Number(number) => Cow::Owned(number.to_string()),
        }
    }
}

impl Summary {
    pub(super) fn new(session: String, relays: Vec<SocketAddr>, ended: &Ended) -> Self {
        Self {
            session,
            realm: ended.user.realm.clone(),
            user: ended.user.name.clone(),
            path: ended.path,
            relays,
            cause: ended.cause,
            lifetime: ended.time.since(ended.created),
            totals: ended.totals,
        }
    }

    /// Returns the line for people. It holds nothing that a client chose.
    pub(in crate::log) fn message(&self) -> String {
        format!(
            "session {}: ended, reason: {}",
            self.session,
            word(self.cause)
        )
    }

    /// Returns all fields by their names.
    pub(super) fn fields(&self) -> Vec<(&'static str, Value<'_>)> {
        let text = |text: &str| Value::Text(Cow::Owned(text.to_owned()));
        let relays: Vec<String> = self.relays.iter().map(SocketAddr::to_string).collect();
        let duration_ms = u64::try_from(self.lifetime.as_millis()).unwrap_or(u64::MAX);
        let totals = &self.totals;
        vec![
            ("session", Value::Text(Cow::Borrowed(&self.session))),
            ("realm", Value::Text(Cow::Borrowed(&self.realm))),
            ("user", Value::Text(Cow::Borrowed(&self.user))),
            ("client", text(&self.path.client.to_string())),
            ("server", text(&self.path.server.to_string())),
            ("transport", text(self.path.transport.as_str())),
            ("relay", text(&relays.join(","))),
            ("duration_ms", Value::Number(duration_ms)),
            ("reason", text(word(self.cause))),
            ("client_in", Value::Number(totals.client_received.datagrams)),
            (
                "client_in_bytes",
                Value::Number(totals.client_received.bytes),
            ),
            ("client_out", Value::Number(totals.client_sent.datagrams)),
            ("client_out_bytes", Value::Number(totals.client_sent.bytes)),
            ("peer_in", Value::Number(totals.peer_received.datagrams)),
            ("peer_in_bytes", Value::Number(totals.peer_received.bytes)),
            ("peer_out", Value::Number(totals.peer_sent.datagrams)),
            ("peer_out_bytes", Value::Number(totals.peer_sent.bytes)),
        ]
    }
}

/// Remembers the relayed transport addresses of sessions, which the engine does not name again at their end.
#[derive(Default)]
pub(super) struct Summaries {
    relays_by_allocation: BTreeMap<u64, Vec<SocketAddr>>,
}

impl Summaries {
    /// Follows a change of the session with this number. Returns its summary if it ends.
    pub(super) fn changed(&mut self, change: &Change, number: u64) -> Option<Summary> {
        match change {
            Change::Created(created) => {
                let relays = created.relays.iter().map(|relay| relay.external).collect();
                self.relays_by_allocation
                    .insert(created.allocation.to_u64(), relays);
                None
            }
            Change::Ended(ended) => {
                let id = ended.allocation.to_u64();
                let relays = self.relays_by_allocation.remove(&id).unwrap_or_default();
                Some(Summary::new(format!("{number:018}"), relays, ended))
            }
            _ => None,
        }
    }
}

/// Returns the cause of a session's end as one word.
fn word(cause: EndCause) -> &'static str {
    match cause {
        EndCause::Cancelled => "cancelled",
        EndCause::Disconnected => "disconnected",
        EndCause::Expired => "expired",
        EndCause::Forbidden => "forbidden",
        EndCause::Idle => "idle",
        EndCause::Lost => "lost",
        EndCause::Released(_) => "released",
        EndCause::Unreachable => "unreachable",
        EndCause::UserGone => "user_gone",
    }
}

#[cfg(test)]
impl Summary {
    /// Returns the summary of a session of `user`.
    pub(in crate::log) fn of_user(user: &str) -> Self {
        use turnbuckle_engine::{Connection, Traffic, Transport};

        let traffic = |datagrams| Traffic {
            datagrams,
            bytes: datagrams * 100,
        };
        Self {
            session: "000000000000000007".to_owned(),
            realm: "example.org".into(),
            user: user.into(),
            path: Path {
                server: SocketAddr::from(([192, 0, 2, 1], 3478)),
                client: SocketAddr::from(([198, 51, 100, 7], 4000)),
                transport: Transport::Tls,
                connection: Connection::default(),
            },
            relays: vec![SocketAddr::from(([192, 0, 2, 1], 50_000))],
            cause: EndCause::Expired,
            lifetime: Duration::from_millis(1_500),
            totals: Usage {
                client_received: traffic(1),
                client_sent: traffic(2),
                peer_received: traffic(3),
                peer_sent: traffic(4),
            },
        }
    }
}
