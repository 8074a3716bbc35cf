//! Sessions as an operator sees them: numbers, pages of a list, filters.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use turnbuckle_engine::{CanonicalOrigin, RelayProtocol, Relayed, Transport, Usage};

use super::Reply;
use crate::log::Seal;

/// Sessions of one page at most.
pub const SESSIONS_PER_PAGE_MAX: usize = 256;

/// Peers that are listed for one session.
pub(crate) const PEERS_LISTED_MAX: usize = 16;

/// Session numbers of one shard. coturn's session numbers have eighteen digits, three of them for the thread.
const NUMBERS_PER_SHARD: u64 = 1_000_000_000_000_000;

/// Session numbers that a shard may use up in each second without using those of a later start.
const NUMBERS_PER_S: u64 = 10_000;

/// Gives each session of a shard its number, which no later one has.
///
/// The first number follows the time of the start, so that the numbers of a server that is started again do not come back. One that
/// takes over goes on above the highest on record.
#[derive(Clone, Debug)]
pub struct SessionNumbers(Arc<AtomicU64>);

impl SessionNumbers {
    /// Begins with the time of day.
    pub(crate) fn of_now() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let unix_s = now.map_or(0, |since| since.as_secs());
        Self::after(unix_s.wrapping_mul(NUMBERS_PER_S))
    }

    /// Begins after `last`.
    pub(crate) fn after(last: u64) -> Self {
        Self(Arc::new(AtomicU64::new(last % NUMBERS_PER_SHARD)))
    }

    /// Has later numbers be higher than this one.
    pub(crate) fn raise(&self, last: u64) {
        self.0.fetch_max(last % NUMBERS_PER_SHARD, Relaxed);
    }

    /// Returns the next number. Only the thread of the shard calls this.
    pub(crate) fn next(&self) -> u64 {
        let next = (self.0.load(Relaxed) + 1) % NUMBERS_PER_SHARD;
        self.0.store(next, Relaxed);
        next
    }
}

/// Returns the number of a session among those of all shards.
pub(crate) fn number_of_shard(shard: usize, number: u64) -> u64 {
    (shard as u64)
        .wrapping_mul(NUMBERS_PER_SHARD)
        .wrapping_add(number % NUMBERS_PER_SHARD)
}

/// Returns the shard that a session number belongs to.
pub fn shard_of(number: u64) -> usize {
    usize::try_from(number / NUMBERS_PER_SHARD).unwrap_or(usize::MAX)
}

/// An allocation with what belongs to it, or a tunnel, at one moment.
#[derive(Clone, Debug)]
pub struct Session {
    /// Its number, the same in log, events and lists.
    pub number: u64,
    /// The realm of its user.
    pub realm: Box<str>,
    /// The name of its user.
    pub user: Box<str>,
    /// The part of it that stays when a time-limited credential is renewed; else the whole name.
    pub user_id: Box<str>,
    /// The ORIGIN that its client named when it began.
    pub origin: Option<CanonicalOrigin>,
    /// How its client is reached.
    pub client: ClientSide,
    /// The relayed transport addresses, one or two.
    pub relays: Vec<Relayed>,
    /// What runs between them and peers.
    pub protocol: RelayProtocol,
    /// For how long it is there.
    pub time: SessionTime,
    /// What it has relayed.
    pub usage: Usage,
    /// Whether it may move to another 5-tuple (RFC 8016).
    pub is_mobile: bool,
    /// Whom it may reach.
    pub peers: SessionPeers,
}

/// For how long a session has been there, and may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionTime {
    /// Time since it was created.
    pub age: Duration,
    /// Time until it ends unless it is refreshed, or a tunnel unless something is relayed.
    pub expires_in: Duration,
}

/// Whom a session may reach, and how fast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionPeers {
    /// Peers that an allocation has a permission for, the first 16 of them, or the one of a tunnel.
    pub allowed: Vec<IpAddr>,
    /// The peer of a tunnel; `None` for an allocation.
    pub tunnel_to: Option<SocketAddr>,
    /// How fast it may relay in each direction, in bytes of payload per second; `None` for no bound.
    pub bytes_per_s: Option<NonZeroU32>,
}

/// A client's 5-tuple, and what protects it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientSide {
    /// The listener's address.
    pub server: SocketAddr,
    /// The client's address.
    pub address: SocketAddr,
    /// What carries messages between the two.
    pub transport: Transport,
    /// Cipher suite and version of TLS or DTLS.
    pub seal: Option<Seal>,
}

/// What a session has to be like. A field that is `None` admits all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionFilter {
    /// One of these numbers, in order.
    pub numbers: Option<Vec<u64>>,
    /// The realm.
    pub realm: Option<String>,
    /// The whole name of the user, or the part of it without the time of a time-limited credential.
    pub user: Option<String>,
    /// A part of the user's name.
    pub user_part: Option<String>,
    /// The origin, in the form in which it is looked up.
    pub origin: Option<String>,
    /// What carries messages between client and server.
    pub transport: Option<Transport>,
    /// The client's IP address.
    pub client: Option<IpAddr>,
    /// A peer that there is a permission for.
    pub peer: Option<IpAddr>,
    /// The least age.
    pub age_min: Option<Duration>,
}

impl SessionFilter {
    /// Returns whether every session passes.
    pub fn admits_all(&self) -> bool {
        *self == Self::default()
    }

    /// Returns whether a session of this `number` and `age` passes.
    pub(crate) fn admits(
        &self,
        number: u64,
        age: Duration,
        session: &turnbuckle_engine::Session<'_>,
    ) -> bool {
        let is = |wanted: &Option<String>, found: &str| {
            wanted.as_ref().is_none_or(|wanted| wanted == found)
        };
        let user = session.user();
        let part = self.user_part.as_ref();
        let path = session.path();
        let numbers = self.numbers.as_ref();
        numbers.is_none_or(|numbers| numbers.binary_search(&number).is_ok())
            && is(&self.realm, &user.realm)
            && (self.user.as_ref()).is_none_or(|wanted| user.is_called(wanted))
            && part.is_none_or(|part| user.name.contains(part.as_str()))
            && self.origin.as_ref().is_none_or(|wanted| {
                let found = session.origin().map(CanonicalOrigin::as_bytes);
                found == Some(wanted.as_bytes())
            })
            && self.transport.is_none_or(|it| it == path.transport)
            && self.client.is_none_or(|it| it == path.client.ip())
            && self.age_min.is_none_or(|it| it <= age)
            && self
                .peer
                .is_none_or(|peer| session.peers().any(|it| it == peer))
    }
}

/// A part of the list of a shard's sessions.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The sessions, in the order of their places in the table.
    pub sessions: Vec<Session>,
    /// Where the next page begins; `None` after the last.
    pub next: Option<u32>,
}

/// What is done with the sessions of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// They are listed.
    List,
    /// They are ended, and listed as they were before.
    End,
}

/// A wish for a page.
pub(crate) struct PageRequest {
    pub(crate) purpose: Purpose,
    /// The place in the table at which the page begins.
    pub(crate) from: u32,
    pub(crate) filter: SessionFilter,
    /// How many sessions there may be, at most [`SESSIONS_PER_PAGE_MAX`].
    pub(crate) max: usize,
    pub(crate) reply: Reply<Page>,
    /// Held until the page is answered. It counts the pages of a shard that are under way.
    #[expect(dead_code, reason = "that it is held is all that is wanted of it")]
    pub(crate) under_way: Arc<()>,
}
