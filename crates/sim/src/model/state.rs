//! What RFC 8656 and RFC 8016 say a server remembers, on a page: the reference that everything else here and in the engine is held against.
//!
//! | what | said in | here |
//! |---|---|---|
//! | the 5-tuple that names an allocation | §3.2, §6 | [`Tuple`] |
//! | relayed addresses and their time to expiry, by family | §6, §8.1 | [`Allocation::relays`] |
//! | who made it, and with which transaction | §6, §7.2 | [`Allocation::user`], [`Allocation::transaction`] |
//! | permissions: an IP address and its time | §9 | [`Allocation::permissions`] |
//! | channels: a number, one peer, a time | §12 | [`Allocation::channels`] |
//! | the port kept for a token | §7.2 step 8 | [`Reservation`] |
//!
//! What RFC 8016 adds for a client that may move:
//!
//! | what | said in | here |
//! |---|---|---|
//! | the ticket that is good; those before it only name the allocation | §3.2.2, §3.3 | [`Mobility::ticket`], [`Model::tickets`](super::Model::tickets) |
//! | the new 5-tuple, beside the old one until data comes on it | §3.2.2 | [`Mobility::new_path`] |
//! | the request that was answered last, for its retransmission | §3.2.2 | [`Mobility::resumed`] |
//!
//! Whatever ends is gone with what depends on it: a family takes its permissions and channels along (§8.1), the last family the
//! allocation.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// The addresses of a 5-tuple; the protocol is always UDP.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tuple {
    /// The listener's address.
    pub server: SocketAddr,
    /// The client's address.
    pub client: SocketAddr,
}

impl fmt::Debug for Tuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}->{}", self.client, self.server)
    }
}

/// An allocation as RFC 8656 §6 lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// A number that no other allocation of the run has.
    pub serial: u64,
    /// The shard that serves the client.
    pub shard: usize,
    /// Who owns it.
    pub user: String,
    /// The Allocate request's transaction.
    pub transaction: [u8; 12],
    /// Relayed transport addresses and when each ends: the families of a dual allocation are
    /// refreshed one by one or together (§8.1).
    pub relays: BTreeMap<SocketAddr, u64>,
    /// The family that was asked for and could not be had, with its error code.
    pub missing: Option<(bool, u16)>,
    /// The token that was handed out.
    pub token: Option<[u8; 8]>,
    /// Permissions and when they end.
    pub permissions: BTreeMap<IpAddr, u64>,
    /// Channels, their peers and when they end.
    pub channels: BTreeMap<u16, (SocketAddr, u64)>,
    /// What RFC 8016 adds, if its client asked for that.
    pub mobility: Option<Mobility>,
}

/// A port that waits for its token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Whose request reserved it, and who is charged for it until its token is redeemed.
    pub user: String,
    /// The reserved address.
    pub address: SocketAddr,
    /// Until when.
    pub expires: u64,
    /// Whether the server is bound to know of it: a crash may lose a reservation or bring one back
    /// that was redeemed.
    pub certain: bool,
}

/// Holds what is remembered of an allocation that was asked for with MOBILITY-TICKET.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mobility {
    /// The ticket that is good.
    pub ticket: Vec<u8>,
    /// The 5-tuple that was resumed on and has carried no data yet.
    pub new_path: Option<Tuple>,
    /// The last resume.
    pub resumed: Option<Resumed>,
}

/// A resume that was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resumed {
    /// Where it came from.
    pub from: Tuple,
    /// Its transaction.
    pub transaction: [u8; 12],
    /// The ticket that it brought.
    pub ticket: Vec<u8>,
    /// Up to when its retransmission is recognised.
    pub until: u64,
}

impl Allocation {
    /// Returns the second 5-tuple, if there are two.
    #[must_use]
    pub fn new_path(&self) -> Option<Tuple> {
        self.mobility.as_ref()?.new_path
    }

    /// Returns the relayed address of the family of `peer`.
    #[must_use]
    pub fn relay_towards(&self, peer: IpAddr) -> Option<SocketAddr> {
        let same = |relay: &&SocketAddr| relay.is_ipv4() == peer.is_ipv4();
        self.relays.keys().find(same).copied()
    }

    /// Returns the channel bound to `peer`.
    #[must_use]
    pub fn channel_of(&self, peer: SocketAddr) -> Option<u16> {
        let mut bound = self.channels.iter();
        bound
            .find(|(_, (other, _))| *other == peer)
            .map(|(number, _)| *number)
    }

    /// Returns whether a relayed address of this family is held.
    #[must_use]
    pub fn has_family(&self, v6: bool) -> bool {
        self.relays.keys().any(|relay| relay.is_ipv6() == v6)
    }

    /// Gives up the relayed address of one family with its permissions and channels.
    pub fn release_family(&mut self, v6: bool) {
        self.relays.retain(|relay, _| relay.is_ipv6() != v6);
        self.permissions.retain(|peer, _| peer.is_ipv6() != v6);
        self.channels.retain(|_, (peer, _)| peer.is_ipv6() != v6);
    }

    /// Returns when the last of its relayed addresses ends.
    #[must_use]
    pub fn expires(&self) -> u64 {
        self.relays.values().copied().max().unwrap_or(0)
    }

    /// Returns every moment at which a part of it runs out.
    pub fn deadlines(&self) -> impl Iterator<Item = u64> {
        let channels = self.channels.values().map(|(_, expires)| *expires);
        let rest = self.relays.values().chain(self.permissions.values());
        rest.copied().chain(channels)
    }
}
