//! Channels (RFC 8656 §12) and ChannelBind (RFC 8656 §12.2).

use turnbuckle_wire::ChannelNumber;

use crate::address::PeerAddress;
use crate::auth::Proof;
use crate::change::Change;
use crate::engine::Engine;
use crate::id::{AllocationId, Family, RelayProtocol};
use crate::policy::AllowedPeer;
use crate::random::Random;
use crate::reject::Reject;
use crate::reply::Request;
use crate::time::Time;

/// Up to this many channels a scan is as fast as anything; beyond, `by_peer` is kept.
const SCAN_MAX: usize = 16;

/// The channels of one allocation. A number has one peer and a peer one number.
#[derive(Debug, Default)]
pub(crate) struct Channels {
    /// Sorted by number.
    by_number: Vec<Channel>,
    /// Positions in `by_number`, sorted by peer; empty while there are few.
    by_peer: Vec<u16>,
}

/// A channel binding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Channel {
    pub(crate) peer: AllowedPeer,
    pub(crate) number: ChannelNumber,
    pub(crate) expires: Time,
}

impl Channels {
    /// The channel with this number as it stands in a message, alive or not.
    #[inline]
    pub(crate) fn of_number(&self, number: u16) -> Option<&Channel> {
        let index = self
            .by_number
            .binary_search_by_key(&number, |channel| channel.number.get())
            .ok()?;
        self.by_number.get(index)
    }

    /// The channel bound to this peer, alive or not.
    #[inline]
    pub(crate) fn of_peer(&self, peer: PeerAddress) -> Option<&Channel> {
        if self.by_number.len() <= SCAN_MAX {
            return self
                .by_number
                .iter()
                .find(|channel| channel.peer.peer() == peer);
        }
        let position = self
            .by_peer
            .binary_search_by_key(&peer, |&index| self.peer_at(index))
            .ok()?;
        self.by_number.get(usize::from(self.by_peer[position]))
    }

    pub(crate) fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Binds, or binds again. The pair must not conflict with another one.
    pub(crate) fn install(&mut self, number: ChannelNumber, peer: AllowedPeer, expires: Time) {
        let channel = Channel {
            peer,
            number,
            expires,
        };
        match self
            .by_number
            .binary_search_by_key(&number, |channel| channel.number)
        {
            Ok(index) => self.by_number[index] = channel,
            Err(index) => {
                if self.by_number.is_empty() {
                    self.by_number.reserve_exact(1); // most allocations have one
                }
                self.by_number.insert(index, channel);
                self.index_peers();
            }
        }
    }

    pub(crate) fn nearest_deadline(&self) -> Option<Time> {
        self.by_number.iter().map(|channel| channel.expires).min()
    }

    /// Removes what has run out.
    pub(crate) fn expire(&mut self, now: Time, expired: impl FnMut(&Channel)) {
        self.retain(|channel| now < channel.expires, expired);
    }

    pub(crate) fn remove_family(&mut self, family: Family) {
        self.retain(
            |channel| Family::of(&channel.peer.peer().address()) != family,
            |_| {},
        );
    }

    /// Removes what `keep` does not want to keep.
    pub(crate) fn retain(
        &mut self,
        keep: impl Fn(&Channel) -> bool,
        mut removed: impl FnMut(&Channel),
    ) {
        let count = self.by_number.len();
        self.by_number.retain(|channel| {
            let kept = keep(channel);
            if !kept {
                removed(channel);
            }
            kept
        });
        if self.by_number.len() != count {
            self.index_peers();
        }
    }

    fn index_peers(&mut self) {
        self.by_peer.clear();
        if self.by_number.len() > SCAN_MAX {
            self.by_peer.extend((0_u16..).take(self.by_number.len()));
            let by_number = &self.by_number;
            self.by_peer
                .sort_unstable_by_key(|&index| by_number[usize::from(index)].peer.peer());
        }
    }

    fn peer_at(&self, index: u16) -> PeerAddress {
        self.by_number[usize::from(index)].peer.peer()
    }
}

impl<R: Random> Engine<R> {
    /// RFC 8656 §12.2.
    pub(crate) fn bind_channel(
        &mut self,
        request: &Request<'_>,
        proof: &Proof,
    ) -> Result<(), Reject> {
        let now = request.now.time;
        let id = self.allocation_of(request, proof)?;
        if self
            .live(id)
            .is_some_and(|allocation| allocation.protocol() == RelayProtocol::Tcp)
        {
            return Err(Reject::Forbidden); // there is nothing that a channel of a stream could carry
        }
        let (number, peer) = self.check_channel(id, request)?;
        let permission_expires = now + self.config.lifetimes.permission;
        self.install_permission(id, peer.ip(), permission_expires);
        self.install_channel(id, number, peer, now + self.config.lifetimes.channel);
        // mutant: two-answers
        self.reply_success(&request.envelope(), Some(&proof.response_key), |_| {});
        Ok(())
    }

    fn check_channel(
        &mut self,
        id: AllocationId,
        request: &Request<'_>,
    ) -> Result<(ChannelNumber, AllowedPeer), Reject> {
        let message = &request.message;
        let (Ok(Some(number)), Ok(Some(peer))) =
            (message.channel_number(), message.xor_peer_address())
        else {
            return Err(Reject::BadRequest(
                "CHANNEL-NUMBER or XOR-PEER-ADDRESS missing or malformed",
            ));
        };
        let valid = if self.config.rfc5766_channel_numbers {
            ChannelNumber::from_rfc5766(number)
        } else {
            ChannelNumber::try_from(number)
        };
        let Ok(number) = valid else {
            if (0x5000..=0x7FFF).contains(&number) {
                // legal for RFC 5766 clients
                self.statistics.channel_numbers_reserved += 1;
            }
            return Err(Reject::BadRequest("Channel number out of range"));
        };
        let address = PeerAddress::new(peer);
        let allocation = self.live(id).ok_or(Reject::AllocationMismatch)?;
        let channels = &allocation.channels;
        let bound_elsewhere = channels
            .of_number(number.get())
            .is_some_and(|channel| channel.peer.peer() != address)
            || channels
                .of_peer(address)
                .is_some_and(|channel| channel.number != number);
        // guard: V-29-conflict
        if bound_elsewhere || address.port() == 0 {
            return Err(Reject::BadRequest(
                "Channel or peer bound otherwise, or peer port 0",
            ));
        }
        if !allocation.serves(peer) {
            // mutant: family-not-checked
            return Err(Reject::PeerFamilyMismatch);
        }
        let policy = self.policy_of(allocation.quota.user());
        let peer = policy.check(peer).map_err(|_| Reject::Forbidden)?;
        if !self.commons.ports.may_reach(peer) {
            return Err(Reject::Forbidden);
        }
        let limits = &self.config.limits;
        // guard: V-45-channels
        let channel_fits = channels.of_number(number.get()).is_some()
            || channels.len() < usize::from(limits.channels_per_allocation);
        let permission_fits = allocation.permissions.contains(peer.ip())
            || allocation.permissions.len() < usize::from(limits.permissions_per_allocation);
        if channel_fits && permission_fits {
            Ok((number, peer))
        } else {
            Err(Reject::InsufficientCapacity)
        }
    }

    /// Binds a channel that has been checked.
    pub(crate) fn install_channel(
        &mut self,
        id: AllocationId,
        number: ChannelNumber,
        peer: AllowedPeer,
        expires: Time,
    ) {
        if let Some(allocation) = self.live_mut(id) {
            allocation.channels.install(number, peer, expires);
            let peer = peer.peer().address();
            self.changes.push_back(Change::ChannelInstalled {
                allocation: id,
                number,
                peer,
                expires,
            });
            self.wake_by(id, expires);
        }
    }
}
