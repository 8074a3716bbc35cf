//! One allocation: what RFC 8656 §6 says it consists of, and its deadlines.

use core::net::SocketAddr;
use std::sync::Arc;

use turnbuckle_wire::{IntegrityKey, Message, TransactionId};

use crate::auth::CanonicalOrigin;
use crate::bandwidth::{Direction, Shaper};
use crate::change::Usage;
use crate::channel::Channels;
use crate::credential::User;
use crate::drop_reason::DropReason;
use crate::id::{ClientTuple, Endpoint, Family, RelayProtocol};
use crate::mobility::Mobility;
use crate::permission::Permissions;
use crate::ports::{PortKind, PortLease};
use crate::quota::QuotaUnit;
use crate::reply::Envelope;
use crate::reservation::ReservationToken;
use crate::table::HasClient;
use crate::time::Time;

/// What a client can have in the table.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all entries are live, and boxing them would cost the hot path a cache line"
)]
pub(crate) enum Entry {
    Live(Allocation),
    Pending(Box<Pending>),
}

/// An allocation in use. Its size is the larger part of what an idle client costs, so the rare is boxed.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) client: ClientTuple,
    /// By [`Family::index`]; at least one.
    pub(crate) relays: [Option<Relay>; 2],
    pub(crate) permissions: Permissions,
    pub(crate) channels: Channels,
    pub(crate) usage: Usage,
    /// When its timer fires; no deadline of its parts is earlier.
    pub(crate) wake: Time,
    pub(crate) created: Time,
    /// The unit it takes of its user's quota, and the user.
    pub(crate) quota: QuotaUnit,
    /// The request that created it, so that a retransmission is recognised.
    pub(crate) transaction: TransactionId,
    /// How fast it may relay, if there is a bound.
    pub(crate) shaper: Option<Box<Shaper>>,
    /// What it takes to move, if the client asked for that.
    pub(crate) mobility: Option<Box<Mobility>>,
    pub(crate) rare: Option<Box<Rare>>,
}

/// What few allocations have; needed to repeat the answer that created it, or to judge what comes later.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rare {
    /// The ORIGIN of the request that created it, where others have to carry the same.
    pub(crate) origin: Option<CanonicalOrigin>,
    /// The token that it was given.
    pub(crate) token: Option<ReservationToken>,
    /// The token that it redeemed.
    pub(crate) redeemed: Option<ReservationToken>,
    pub(crate) missing_family: Option<(Family, u16)>,
}

impl Rare {
    /// Where there is anything.
    pub(crate) fn boxed(self) -> Option<Box<Self>> {
        let has_any = self.token.is_some()
            || self.redeemed.is_some()
            || self.missing_family.is_some()
            || self.origin.is_some();
        has_any.then(|| Box::new(self))
    }
}

/// A relayed transport address in use. Each family of a dual allocation has its own lifetime (RFC 8656 §8.1).
#[derive(Debug)]
pub(crate) struct Relay {
    pub(crate) endpoint: Endpoint,
    pub(crate) expires: Time,
    pub(crate) lease: PortLease,
}

impl Relay {
    /// The address of `lease`, whose socket the host has: from now on other allocations may send there.
    pub(crate) fn new(endpoint: Endpoint, expires: Time, lease: PortLease) -> Self {
        lease.open();
        Self {
            endpoint,
            expires,
            lease,
        }
    }
}

/// An authenticated Allocate request that waits for the host to open its relay sockets.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) envelope: Envelope,
    pub(crate) key: IntegrityKey,
    pub(crate) quota: QuotaUnit,
    pub(crate) shaper: Option<Box<Shaper>>,
    /// Whether it is to be able to move.
    pub(crate) is_mobile: bool,
    /// Its ORIGIN, where others have to carry the same.
    pub(crate) origin: Option<CanonicalOrigin>,
    /// The LIFETIME asked for.
    pub(crate) lifetime: Option<u32>,
    pub(crate) kind: PortKind,
    pub(crate) protocol: RelayProtocol,
    pub(crate) redeemed: Option<ReservationToken>,
    /// By [`Family::index`].
    pub(crate) openings: [Opening; 2],
    /// Ports another process was found to have: kept until the end so that they are not tried twice.
    pub(crate) in_use: Vec<PortLease>,
    /// When it is given up.
    pub(crate) deadline: Time,
}

/// How far one family of a pending allocation is.
#[derive(Debug)]
pub(crate) enum Opening {
    /// Not asked for.
    Unwanted,
    /// The host has been asked.
    Waiting {
        attempt: u8,
        lease: PortLease,
        sibling: Option<PortLease>,
    },
    /// Done.
    Open {
        endpoint: Endpoint,
        lease: PortLease,
        sibling: Option<PortLease>,
    },
    /// Not to be had, by this error code.
    Failed(u16),
}

impl Allocation {
    pub(crate) fn relay(&self, family: Family) -> Option<&Relay> {
        self.relays[family.index()].as_ref()
    }

    /// The relay socket for a peer, unless its time is over.
    #[inline]
    pub(crate) fn live_relay(&self, family: Family, now: Time) -> Option<&Relay> {
        self.relay(family).filter(|relay| now < relay.expires)
    }

    /// How many of these datagrams may go at the allocation's rate, in their order; at least one.
    ///
    /// # Errors
    ///
    /// None of them may.
    #[inline]
    pub(crate) fn shape(
        &mut self,
        direction: Direction,
        now: Time,
        datagrams: u32,
        bytes: u64,
    ) -> Result<u32, DropReason> {
        match &mut self.shaper {
            None => Ok(datagrams),
            Some(shaper) => match shaper.admit(direction, now, datagrams, bytes) {
                0 => Err(DropReason::BandwidthExceeded),
                count => Ok(count),
            },
        }
    }

    /// What runs between its relayed transport addresses and peers; the same for both families.
    pub(crate) fn protocol(&self) -> RelayProtocol {
        let mut relays = self.relays.iter().flatten();
        relays
            .next()
            .map_or(RelayProtocol::Udp, |relay| relay.lease.protocol())
    }

    /// The 5-tuples it can be reached by: one, or two while the client moves.
    pub(crate) fn paths(&self) -> impl Iterator<Item = ClientTuple> + use<> {
        let mobility = self.mobility.as_deref();
        let new_path = mobility.and_then(|mobility| mobility.new_path);
        core::iter::once(self.client).chain(new_path)
    }

    /// Whether its client has ever been on another path (RFC 8016).
    pub(crate) fn has_moved(&self) -> bool {
        let mobility = self.mobility.as_deref();
        mobility.is_some_and(|mobility| mobility.number > 1)
    }

    /// Whether a request carries the ORIGIN of the one that created it, or none as that did.
    pub(crate) fn has_origin_of(&self, message: &Message<'_>) -> bool {
        match self.rare.as_ref().and_then(|rare| rare.origin.as_ref()) {
            Some(origin) => origin.is_among(message),
            None => CanonicalOrigin::first_of(message).is_none(),
        }
    }

    /// Whether peers of the family of `peer` can be reached. An IPv4-mapped address is of the IPv6 family, as it stands in the message.
    pub(crate) fn serves(&self, peer: SocketAddr) -> bool {
        self.relay(Family::of(&peer)).is_some()
    }

    /// When the last of its relayed transport addresses ends.
    pub(crate) fn expires(&self) -> Time {
        self.relays
            .iter()
            .flatten()
            .map(|relay| relay.expires)
            .max()
            .unwrap_or(Time::ZERO)
    }

    /// The first deadline of any of its parts.
    pub(crate) fn nearest_deadline(&self) -> Time {
        let relays = self.relays.iter().flatten().map(|relay| relay.expires);
        let parts = [
            self.permissions.nearest_deadline(),
            self.channels.nearest_deadline(),
        ];
        relays
            .chain(parts.into_iter().flatten())
            .min()
            .unwrap_or(Time::ZERO)
    }
}

impl Entry {
    /// Whose it is.
    pub(crate) fn user(&self) -> &Arc<User> {
        match self {
            Self::Live(allocation) => allocation.quota.user(),
            Self::Pending(pending) => pending.quota.user(),
        }
    }
}

impl HasClient for Entry {
    #[inline]
    fn client(&self) -> &ClientTuple {
        match self {
            Self::Live(allocation) => &allocation.client,
            Self::Pending(pending) => &pending.envelope.to,
        }
    }
}
