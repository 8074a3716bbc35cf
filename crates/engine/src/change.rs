//! The one stream of changes to durable state.
//!
//! Every change leaves the engine as a [`Change`], in the order it took effect, and an engine is rebuilt from the same
//! values ([`crate::Engine::rebuild`]). Whatever else wants to know what happens here (journal, kernel tables, metrics,
//! session lists) reads this stream.

use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroU32;
use std::sync::Arc;

use turnbuckle_wire::{ChannelNumber, TransactionId};

use crate::auth::CanonicalOrigin;
use crate::credential::User;
use crate::id::{AllocationId, Connection, ConnectionId, Family, RelayProtocol, Transport};
use crate::reservation::ReservationToken;
use crate::tcp::peer_end::PeerEnd;
use crate::time::Time;
use crate::tunnel_end::TunnelEnd;

/// One change of durable state.
#[derive(Clone, Debug)]
pub enum Change {
    /// A channel ended by its lifetime.
    ChannelExpired {
        /// The allocation.
        allocation: AllocationId,
        /// The channel.
        number: ChannelNumber,
    },
    /// A channel was bound, or bound again for another lifetime.
    ChannelInstalled {
        /// The allocation.
        allocation: AllocationId,
        /// The channel.
        number: ChannelNumber,
        /// The peer as the client knows it.
        peer: SocketAddr,
        /// When it ends.
        expires: Time,
    },
    /// An allocation or a tunnel came to be.
    Created(Box<Created>),
    /// An allocation is gone, with its permissions and channels, or a tunnel.
    Ended(Box<Ended>),
    /// One of two relayed transport addresses is gone, with the channels and permissions of its family.
    FamilyEnded {
        /// The allocation, which continues with its other family.
        allocation: AllocationId,
        /// The family that is gone.
        family: Family,
        /// Why.
        cause: EndCause,
        /// When.
        time: Time,
    },
    /// A peer of a shared relay socket belongs to an allocation from now on. The claim ends with the last permission and channel for
    /// that peer; another one that claims it later has it.
    PeerClaimed {
        /// The allocation.
        allocation: AllocationId,
        /// The peer.
        peer: SocketAddr,
    },
    /// An allocation was refused a peer because it has as many on shared relay sockets as it may have. Reported once for each
    /// allocation; nothing durable has changed.
    PeerLimitReached {
        /// The allocation.
        allocation: AllocationId,
        /// The peer that it was refused.
        peer: SocketAddr,
        /// How many peers it may have.
        limit: u16,
    },
    /// A peer data connection was joined with a connection of the client (RFC 6062 §5.4).
    PeerBound {
        /// The allocation.
        allocation: AllocationId,
        /// The connection.
        connection: ConnectionId,
        /// Where the client data connection comes from.
        client: SocketAddr,
    },
    /// A peer data connection came to be (RFC 6062 §5.2, §5.3).
    PeerConnected {
        /// The allocation.
        allocation: AllocationId,
        /// The connection.
        connection: ConnectionId,
        /// The peer as the client knows it.
        peer: SocketAddr,
        /// Whether the peer began it.
        is_incoming: bool,
    },
    /// A peer data connection is gone.
    PeerDisconnected {
        /// The allocation.
        allocation: AllocationId,
        /// The connection.
        connection: ConnectionId,
        /// Why.
        cause: PeerEnd,
    },
    /// An allocation has another 5-tuple (RFC 8016).
    Moved(Box<Moved>),
    /// A permission ended by its lifetime.
    PermissionExpired {
        /// The allocation.
        allocation: AllocationId,
        /// The peer.
        peer: IpAddr,
    },
    /// A permission was installed or given another lifetime.
    PermissionInstalled {
        /// The allocation.
        allocation: AllocationId,
        /// The peer.
        peer: IpAddr,
        /// When it ends.
        expires: Time,
        /// Whether there was none before. One that is read from a record counts as new.
        is_new: bool,
    },
    /// The client of an allocation has another token (RFC 7635 §9).
    Reauthorized {
        /// The allocation.
        allocation: AllocationId,
        /// The same user, with the new token.
        user: Arc<User>,
    },
    /// An allocation was given another lifetime.
    Refreshed {
        /// The allocation.
        allocation: AllocationId,
        /// The relayed transport address this is about; `None` for all it has.
        family: Option<Family>,
        /// When it ends now.
        expires: Time,
        /// What it has relayed up to now.
        usage: Usage,
    },
    /// A client that may have moved was given another ticket (RFC 8016 §3.2.2).
    Resumed(Box<Resumed>),
}

impl Change {
    /// Returns whether this is about a tunnel, of which nothing is durable.
    pub fn is_of_tunnel(&self) -> bool {
        if let Self::Created(created) = self {
            return created.brought.tunnel_to.is_some();
        }
        matches!(self, Self::Ended(ended) if ended.tunnel_to.is_some())
    }

    /// Returns the allocation that this is about.
    pub fn allocation(&self) -> AllocationId {
        match self {
            Self::ChannelExpired { allocation, .. }
            | Self::ChannelInstalled { allocation, .. }
            | Self::FamilyEnded { allocation, .. }
            | Self::PeerBound { allocation, .. }
            | Self::PeerClaimed { allocation, .. }
            | Self::PeerConnected { allocation, .. }
            | Self::PeerDisconnected { allocation, .. }
            | Self::PeerLimitReached { allocation, .. }
            | Self::PermissionExpired { allocation, .. }
            | Self::PermissionInstalled { allocation, .. }
            | Self::Reauthorized { allocation, .. }
            | Self::Refreshed { allocation, .. } => *allocation,
            Self::Created(created) => created.allocation,
            Self::Ended(ended) => ended.allocation,
            Self::Moved(moved) => moved.allocation,
            Self::Resumed(resumed) => resumed.allocation,
        }
    }
}

/// Everything about a new allocation or tunnel.
///
/// Nothing of a tunnel is durable: an engine is rebuilt without it, and whoever keeps records for that leaves it out.
#[derive(Clone, Debug)]
pub struct Created {
    /// Its name.
    pub allocation: AllocationId,
    /// The client's 5-tuple.
    pub path: Path,
    /// Who asked for it.
    pub user: Arc<User>,
    /// The transaction that created it; zero for a tunnel.
    pub transaction: TransactionId,
    /// What runs between the relayed transport addresses and peers.
    pub protocol: RelayProtocol,
    /// The relayed transport addresses, one or two.
    pub relays: Vec<Relayed>,
    /// The error code reported for a second family that could not be had (RFC 8656 §7.2 step 9).
    pub missing_family: Option<(Family, u16)>,
    /// The port reserved beside it (EVEN-PORT with the R bit).
    pub reservation: Option<Reserved>,
    /// What its request brought.
    pub brought: Brought,
    /// How fast it may relay in each direction, in bytes of payload per second; `None` for no bound.
    pub bytes_per_s: Option<NonZeroU32>,
    /// When it was created.
    pub created: Time,
    /// When it ends unless it is refreshed, or a tunnel unless something is relayed.
    pub expires: Time,
}

/// What the request that created an allocation brought, and what later ones are judged by.
#[derive(Clone, Copy, Debug, Default)]
pub struct Brought {
    /// The token it redeemed.
    pub redeemed: Option<ReservationToken>,
    /// Whether the client was given a mobility ticket (RFC 8016).
    pub is_mobile: bool,
    /// Its ORIGIN.
    pub origin: Option<CanonicalOrigin>,
    /// The peer of a tunnel, the unspecified address for a bound one; `None` for an allocation.
    pub tunnel_to: Option<SocketAddr>,
}

/// The new 5-tuple of an allocation.
#[derive(Clone, Debug)]
pub struct Moved {
    /// The allocation.
    pub allocation: AllocationId,
    /// The 5-tuple.
    pub path: Path,
    /// When.
    pub time: Time,
}

/// A second path to an allocation, beside the one that carries its data.
#[derive(Clone, Debug)]
pub struct Resumed {
    /// The allocation.
    pub allocation: AllocationId,
    /// The client's 5-tuple.
    pub path: Path,
    /// The request.
    pub transaction: TransactionId,
    /// The number of the ticket that is good from now on.
    pub number: u32,
    /// Up to when the request is recognised if it comes again.
    pub until: Time,
}

/// A relayed transport address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relayed {
    /// The address bound on this host.
    pub local: SocketAddr,
    /// The address clients and peers see.
    pub external: SocketAddr,
}

/// A reserved port and its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// The token.
    pub token: ReservationToken,
    /// The address on this host that waits for it.
    pub local: SocketAddr,
    /// Until when.
    pub expires: Time,
}

/// Everything about the end of an allocation or a tunnel.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Its name, not used again for a long time.
    pub allocation: AllocationId,
    /// The client's 5-tuple.
    pub path: Path,
    /// Whose it was.
    pub user: Arc<User>,
    /// The peer of a tunnel, the unspecified address for a bound one; `None` for an allocation.
    pub tunnel_to: Option<SocketAddr>,
    /// Why.
    pub cause: EndCause,
    /// When it was created.
    pub created: Time,
    /// When it ended.
    pub time: Time,
    /// The transaction that had created it; zero for a tunnel.
    pub created_by: TransactionId,
    /// The token that it redeemed. The token works once, although the reservation is still on record if its client still has an
    /// allocation.
    pub redeemed: Option<ReservationToken>,
    /// The 5-tuple which that came from, if the allocation has moved since.
    pub created_from: Option<Path>,
    /// The totals it relayed in its lifetime.
    pub totals: Usage,
}

/// A 5-tuple, as records name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The listener's address.
    pub server: SocketAddr,
    /// The client's address.
    pub client: SocketAddr,
    /// What carries messages between the two.
    pub transport: Transport,
    /// The host's name for the connection. By UDP it distinguishes the clients of proxies from others.
    pub connection: Connection,
}

/// Why an allocation or a tunnel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndCause {
    /// The operator ended it ([`crate::Engine::cancel`]).
    Cancelled,
    /// The client's connection was closed, by either side or by an error.
    Disconnected,
    /// Its lifetime ran out.
    Expired,
    /// The policy forbids the peer of a tunnel by now.
    Forbidden,
    /// Nothing was relayed by a tunnel for too long.
    Idle,
    /// A rebuild could not carry it over: its relay socket, listener or port is not there any more.
    Lost,
    /// The client asked for it: a Refresh with lifetime zero, and that request's transaction.
    Released(TransactionId),
    /// The network says that the peer of a tunnel cannot be reached.
    Unreachable,
    /// The user of a tunnel would not be let in any more: removed, with another password, or expired.
    UserGone,
}

impl EndCause {
    /// Returns how the end of an open tunnel is on record; `None` for one that was never open.
    pub(crate) const fn of_tunnel(end: TunnelEnd) -> Option<Self> {
        Some(match end {
            TunnelEnd::Cancelled => Self::Cancelled,
            TunnelEnd::Forbidden => Self::Forbidden,
            TunnelEnd::Idle => Self::Idle,
            TunnelEnd::NotOpened => return None,
            TunnelEnd::Unreachable => Self::Unreachable,
            TunnelEnd::UserGone => Self::UserGone,
        })
    }
}

/// Datagrams and bytes on one side of a relay in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// UDP datagrams; for TCP relays, readings of a stream.
    pub datagrams: u64,
    /// Bytes of UDP payload, or of streams.
    pub bytes: u64,
}

impl Traffic {
    /// Returns what came after `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            datagrams: self.datagrams.wrapping_sub(earlier.datagrams),
            bytes: self.bytes.wrapping_sub(earlier.bytes),
        }
    }

    pub(crate) fn add(&mut self, datagrams: u32, bytes: u64) {
        self.datagrams = self.datagrams.wrapping_add(u64::from(datagrams));
        self.bytes = self.bytes.wrapping_add(bytes);
    }
}

/// Datagrams of an allocation's channels that were relayed or dropped without asking the engine, with the bytes of their payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unasked {
    /// Relayed to peers.
    pub to_peers: Traffic,
    /// Relayed to the client.
    pub to_client: Traffic,
    /// For peers, dropped because it was beyond the allocation's rate.
    pub beyond_to_peers: Traffic,
    /// For the client, dropped because it was beyond the allocation's rate.
    pub beyond_to_client: Traffic,
}

/// The traffic of an allocation: coturn's rp, rb, sp, sb, on the client's side and on the peers'.
///
/// Received is everything that came for the allocation; sent is what had a route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Data from the client, with its ChannelData headers; for Send indications the payload alone.
    pub client_received: Traffic,
    /// Data to the client, with its ChannelData headers; for Data indications the payload alone.
    pub client_sent: Traffic,
    /// Data from peers.
    pub peer_received: Traffic,
    /// Data to peers.
    pub peer_sent: Traffic,
}

impl Usage {
    /// Adds datagrams of channels that were handled without asking the engine.
    pub fn absorb(&mut self, traffic: &Unasked) {
        let framed = |traffic: Traffic| Traffic {
            bytes: traffic
                .bytes
                .wrapping_add(traffic.datagrams.wrapping_mul(4)),
            ..traffic
        };
        let add = |sum: &mut Traffic, more: Traffic| {
            sum.datagrams = sum.datagrams.wrapping_add(more.datagrams);
            sum.bytes = sum.bytes.wrapping_add(more.bytes);
        };
        add(&mut self.client_received, framed(traffic.to_peers));
        add(&mut self.client_received, framed(traffic.beyond_to_peers));
        add(&mut self.peer_sent, traffic.to_peers);
        add(&mut self.peer_received, traffic.to_client);
        add(&mut self.peer_received, traffic.beyond_to_client);
        add(&mut self.client_sent, framed(traffic.to_client));
    }

    /// Returns what came after `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            client_received: self.client_received.since(&earlier.client_received),
            client_sent: self.client_sent.since(&earlier.client_sent),
            peer_received: self.peer_received.since(&earlier.peer_received),
            peer_sent: self.peer_sent.since(&earlier.peer_sent),
        }
    }

    /// Returns the datagrams of both sides in both directions.
    pub fn datagrams(&self) -> u64 {
        let all = [
            self.client_received,
            self.client_sent,
            self.peer_received,
            self.peer_sent,
        ];
        all.iter().map(|traffic| traffic.datagrams).sum()
    }
}
