//! What the changes say of one allocation.

use core::net::{IpAddr, SocketAddr};
use std::collections::{BTreeMap, BTreeSet};

use turnbuckle_wire::ChannelNumber;

use crate::address::PeerAddress;
use crate::change::{Created, Path, Resumed, Usage};
use crate::id::Family;
use crate::time::Time;

/// The state of one allocation that has not ended, as the changes record it.
pub(super) struct Record {
    pub(super) created: Created,
    /// By [`Family::index`]; `None` for a family it has no more, or never had.
    pub(super) expires: [Option<Time>; 2],
    pub(super) usage: Usage,
    pub(super) permissions: BTreeMap<IpAddr, Time>,
    pub(super) channels: BTreeMap<ChannelNumber, (SocketAddr, Time)>,
    /// Peers of shared relay sockets, as far as nobody else has claimed them since.
    pub(super) claims: BTreeSet<PeerAddress>,
    /// The 5-tuple that it was created on.
    pub(super) first: Path,
    /// The last resume.
    pub(super) resumed: Option<Resumed>,
    /// Whether the path it opened has carried no data yet.
    pub(super) has_new_path: bool,
}

impl Record {
    pub(super) fn new(created: Created) -> Self {
        let mut expires = [None, None];
        for relayed in &created.relays {
            expires[Family::of(&relayed.local).index()] = Some(created.expires);
        }
        let (permissions, channels) = (BTreeMap::new(), BTreeMap::new());
        Self {
            first: created.path,
            created,
            expires,
            usage: Usage::default(),
            permissions,
            channels,
            claims: BTreeSet::new(),
            resumed: None,
            has_new_path: false,
        }
    }

    pub(super) fn extend(&mut self, family: Option<Family>, expires: Time, usage: Usage) {
        for held in [Family::V4, Family::V6] {
            if family.is_none_or(|family| family == held) {
                let slot = &mut self.expires[held.index()];
                *slot = slot.map(|_| expires);
            }
        }
        self.usage = usage;
    }

    /// Returns the client's 5-tuples: the allocation's own, and the new path beside it.
    pub(super) fn paths(&self) -> impl Iterator<Item = Path> + use<> {
        let new_path = self.resumed.as_ref().filter(|_| self.has_new_path);
        let new_path = new_path.map(|resumed| resumed.path);
        core::iter::once(self.created.path).chain(new_path)
    }

    /// Returns the 5-tuple of the request that created the allocation, if the allocation has moved since.
    pub(super) fn created_from(&self) -> Option<Path> {
        (self.first != self.created.path).then_some(self.first)
    }

    pub(super) fn end_family(&mut self, family: Family) {
        self.expires[family.index()] = None;
        self.permissions
            .retain(|peer, _| peer.is_ipv4() != (family == Family::V4));
        self.channels
            .retain(|_, (peer, _)| Family::of(peer) != family);
        self.release();
    }

    /// Gives back the peers that no permission and no channel holds any more.
    pub(super) fn release(&mut self) {
        let channels = &self.channels;
        let has_channel = |peer: &PeerAddress| {
            let mut peers = channels.values().map(|(bound, _)| PeerAddress::new(*bound));
            peers.any(|bound| bound == *peer)
        };
        self.claims
            .retain(|peer| self.permissions.contains_key(&peer.ip()) || has_channel(peer));
    }
}
