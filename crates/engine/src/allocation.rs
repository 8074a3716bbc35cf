//! One allocation: what RFC 8656 §6 says it consists of, and its deadlines. Beside it a tunnel, which has parts of the same.

pub(crate) mod channels;
pub(crate) mod lease;
pub(crate) mod mobility;
pub(crate) mod opening;
pub(crate) mod permissions;
pub(crate) mod relay;
pub(crate) mod tunnel;

use core::net::SocketAddr;
use std::sync::Arc;

use turnbuckle_wire::{IntegrityKey, Message, TransactionId};

use self::channels::Channels;
use self::mobility::Mobility;
use self::opening::Openings;
use self::permissions::Permissions;
use self::relay::Relay;
use self::tunnel::Tunnel;
use crate::account::Account;
use crate::auth::CanonicalOrigin;
use crate::change::Usage;
use crate::config::Config;
use crate::credential::User;
use crate::id::{ClientTuple, Family, RelayProtocol};
use crate::ports::PortKind;
use crate::quota::QuotaUnit;
use crate::reject::Reject;
use crate::request::{Envelope, Request};
use crate::reservation::ReservationToken;
use crate::table::HasClient;
use crate::time::Time;

/// An entry of the table of clients.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all entries are live, and boxing them would cost the hot path a cache line"
)]
pub(crate) enum Entry {
    Live(Allocation),
    Pending(Box<Pending>),
    Tunnel(Box<Tunnel>),
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
    /// Its user, the unit it takes of the user's quota, and its rate.
    pub(crate) account: Account,
    /// The request that created it, so that a retransmission is recognised.
    pub(crate) transaction: TransactionId,
    /// The state that lets it move, if the client requested that.
    pub(crate) mobility: Option<Box<Mobility>>,
    pub(crate) rare: Option<Box<Rare>>,
}

/// Values that few allocations have. They are needed to repeat the answer that created the allocation, or to check later requests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rare {
    /// The ORIGIN of the request that created it.
    pub(crate) origin: Option<CanonicalOrigin>,
    /// The token that it was given.
    pub(crate) token: Option<ReservationToken>,
    /// The token that it redeemed.
    pub(crate) redeemed: Option<ReservationToken>,
    pub(crate) missing_family: Option<(Family, u16)>,
}

impl Rare {
    /// Returns the value in a box, or `None` if all of it is empty.
    pub(crate) fn boxed(self) -> Option<Box<Self>> {
        let has_any = self.token.is_some()
            || self.redeemed.is_some()
            || self.missing_family.is_some()
            || self.origin.is_some();
        has_any.then(|| Box::new(self))
    }
}

/// The properties that a valid Allocate request asks for.
#[derive(Debug)]
pub(crate) struct Wish {
    /// By [`Family::index`].
    pub(crate) families: [bool; 2],
    pub(crate) port: PortKind,
    pub(crate) protocol: RelayProtocol,
    /// The token to redeem.
    pub(crate) token: Option<ReservationToken>,
    /// LIFETIME.
    pub(crate) lifetime: Option<u32>,
    /// Whether the client asked for an allocation that can move.
    pub(crate) is_mobile: bool,
}

/// An authenticated Allocate request that waits for the host to open its relay sockets.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) envelope: Envelope,
    pub(crate) key: Option<IntegrityKey>,
    pub(crate) account: Account,
    /// The unit of the port that it reserves.
    pub(crate) reserves: Option<QuotaUnit>,
    /// Its ORIGIN.
    pub(crate) origin: Option<CanonicalOrigin>,
    pub(crate) wish: Wish,
    pub(crate) openings: Openings,
}

impl Allocation {
    pub(crate) fn relay(&self, family: Family) -> Option<&Relay> {
        self.relays[family.index()].as_ref()
    }

    /// Returns the relay socket for peers of `family`, unless it has expired.
    #[inline]
    pub(crate) fn live_relay(&self, family: Family, now: Time) -> Option<&Relay> {
        self.relay(family).filter(|relay| now < relay.expires)
    }

    /// Returns the transport protocol between its relayed transport addresses and peers. It is the same for both families.
    pub(crate) fn protocol(&self) -> RelayProtocol {
        let mut relays = self.relays.iter().flatten();
        relays
            .next()
            .map_or(RelayProtocol::Udp, |relay| relay.lease.protocol())
    }

    /// Returns the 5-tuples that the client uses: one, or two while the client moves.
    pub(crate) fn paths(&self) -> impl Iterator<Item = ClientTuple> + use<> {
        let mobility = self.mobility.as_deref();
        let new_path = mobility.and_then(|mobility| mobility.new_path);
        core::iter::once(self.client).chain(new_path)
    }

    /// Returns whether its client has ever been on another path (RFC 8016).
    pub(crate) fn has_moved(&self) -> bool {
        let mobility = self.mobility.as_deref();
        mobility.is_some_and(|mobility| mobility.number > 1)
    }

    /// Returns whether a request carries the same ORIGIN as the request that created the allocation, or none if that request had
    /// none.
    fn has_origin_of(&self, message: &Message<'_>) -> bool {
        match self.rare.as_ref().and_then(|rare| rare.origin.as_ref()) {
            Some(origin) => origin.is_among(message),
            None => CanonicalOrigin::first_of(message).is_none(),
        }
    }

    /// Makes sure that a request about it comes from where it has to, if that plays a part.
    pub(crate) fn check_origin(
        &self,
        request: &Request<'_>,
        config: &Config,
    ) -> Result<(), Reject> {
        match config.relays.check_origin && !self.has_origin_of(&request.message) {
            true => Err(Reject::WrongCredentials),
            false => Ok(()),
        }
    }

    /// Returns whether peers of the family of `peer` can be reached. An IPv4-mapped address is of the IPv6 family, as it stands in
    /// the message.
    pub(crate) fn serves(&self, peer: SocketAddr) -> bool {
        self.relay(Family::of(&peer)).is_some()
    }

    /// Returns when the last of its relayed transport addresses expires.
    pub(crate) fn expires(&self) -> Time {
        self.relays
            .iter()
            .flatten()
            .map(|relay| relay.expires)
            .max()
            .unwrap_or(Time::ZERO)
    }

    /// Returns the earliest deadline of its parts.
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
    /// Returns the user that it belongs to.
    pub(crate) fn user(&self) -> &Arc<User> {
        match self {
            Self::Live(allocation) => allocation.account.user(),
            Self::Pending(pending) => pending.account.user(),
            Self::Tunnel(tunnel) => &tunnel.user,
        }
    }

    /// Returns what it waits for from the host, if it is not in use yet.
    pub(crate) fn openings_mut(&mut self) -> Option<&mut Openings> {
        match self {
            Self::Live(_) => None,
            Self::Pending(pending) => Some(&mut pending.openings),
            Self::Tunnel(tunnel) => tunnel.openings_mut(),
        }
    }
}

impl HasClient for Entry {
    #[inline]
    fn client(&self) -> &ClientTuple {
        match self {
            Self::Live(allocation) => &allocation.client,
            Self::Pending(pending) => &pending.envelope.to,
            Self::Tunnel(tunnel) => &tunnel.client,
        }
    }
}
