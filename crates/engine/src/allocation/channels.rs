//! The channels of one allocation (RFC 8656 §12).

use core::net::IpAddr;

use turnbuckle_wire::ChannelNumber;

use crate::address::PeerAddress;
use crate::id::Family;
use crate::policy::AllowedPeer;
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
    /// Returns the channel with this number as it stands in a message, even if it has expired.
    #[inline]
    pub(crate) fn of_number(&self, number: u16) -> Option<&Channel> {
        let index = self
            .by_number
            .binary_search_by_key(&number, |channel| channel.number.get())
            .ok()?;
        self.by_number.get(index)
    }

    /// Returns the channel bound to this peer, even if it has expired.
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

    /// Shows the channels bound to any port of this address, even those that have expired.
    pub(crate) fn of_ip(&self, ip: IpAddr, each: impl FnMut(&Channel)) {
        let is_there = |channel: &&Channel| channel.peer.ip() == ip;
        if self.by_number.len() <= SCAN_MAX {
            return self.by_number.iter().filter(is_there).for_each(each);
        }
        let first = self
            .by_peer
            .partition_point(|&index| self.peer_at(index).ip() < ip);
        let sorted = self.by_peer[first..].iter();
        let them = sorted.map(|&index| &self.by_number[usize::from(index)]);
        them.take_while(is_there).for_each(each);
    }

    /// Returns all channels, even those that have expired.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Channel> {
        self.by_number.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Binds a channel, or refreshes its binding. The pair must not conflict with another one.
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
