//! The routes of relayed data: a channel message to its peer, a peer's datagram to its client; and which of them stay the same for a while, so that
//! they may be taken without asking each time.

use core::net::{IpAddr, SocketAddr};

use turnbuckle_wire::ChannelNumber;

use crate::allocation::channels::Channel;
use crate::allocation::{Allocation, Entry};
use crate::bandwidth::{Direction, Shaper, share};
use crate::change::Unasked;
use crate::command::{ClientRoute, Flow, Framing, PeerRoute};
use crate::drop_reason::DropReason;
use crate::engine::Engine;
use crate::id::{AllocationId, Connection, Family, RelayHandle, RelayProtocol, Transport};
use crate::random::Random;
use crate::time::Time;
use crate::tunnel;

impl<R: Random> Engine<R> {
    /// Routes a train of `datagrams` channel messages of one channel with `bytes` bytes of payload in all (RFC 8656 §12.6).
    ///
    /// `channel` is the number as it stands in the message. The traffic is counted here.
    ///
    /// # Errors
    ///
    /// The reason to drop the whole train under.
    #[inline]
    pub fn route_channel_data(
        &mut self,
        now: Time,
        id: AllocationId,
        channel: u16,
        datagrams: u32,
        bytes: u64,
    ) -> Result<PeerRoute, DropReason> {
        let Some(Entry::Live(allocation)) = self.allocations.table.at_mut(id) else {
            return Err(DropReason::NoAllocation);
        };
        allocation
            .usage
            .client_received
            .add(datagrams, framed(datagrams, bytes));
        let Some(channel) = allocation
            .channels
            .of_number(channel)
            // mutant: channel-never-ends
            .filter(|channel| now < channel.expires)
        else {
            let is_number = (0x4000..=0x4FFF).contains(&channel);
            return Err(if is_number {
                DropReason::ChannelNotBound
            } else {
                DropReason::ChannelReserved
            });
        };
        let peer = channel.peer;
        let family = Family::of(&peer.peer().address());
        let relay = allocation
            .live_relay(family, now)
            .ok_or(DropReason::NoAllocation)?
            .endpoint;
        // the permission may be over while the channel lives, and data does not renew it
        // guard: V-13-data.from-client
        if !allocation.permissions.permits(peer.ip(), now) {
            return Err(DropReason::NoPermission);
        }
        let user = allocation.account.user();
        let policies = &self.rules.policies;
        if !self.rules.commons.ports.may_reach(peer)
            || policies.forbids_by_now(id, user, peer.peer())
        {
            return Err(DropReason::PeerForbidden);
        }
        let admitted = allocation
            .account
            .shape(Direction::ToPeers, now, datagrams, bytes)?;
        let bytes = share(bytes, datagrams, admitted);
        allocation.usage.peer_sent.add(admitted, bytes);
        Ok(PeerRoute {
            relay,
            peer,
            datagrams: admitted,
        })
    }

    /// Returns the relay handle of the allocation that a peer of a shared relay socket belongs to. What arrives from the peer, data and
    /// ICMP errors about what was sent to it, is that allocation's and nobody else's.
    ///
    /// # Errors
    ///
    /// The reason to drop a datagram of that peer under: it belongs to no allocation.
    #[inline]
    pub fn owner_of_peer(&self, peer: SocketAddr) -> Result<RelayHandle, DropReason> {
        let peer = self.rules.policies.usual.admit(peer);
        let owner = self.allocations.claims.owner(peer);
        let allocation = owner.ok_or(DropReason::PeerUnclaimed)?;
        Ok(RelayHandle {
            allocation,
            family: Family::of(&peer.address()),
        })
    }

    /// Routes a train of `datagrams` datagrams from one peer with `bytes` bytes in all (RFC 8656 §11.3).
    ///
    /// `peer` is the source as the socket saw it. The traffic is counted here.
    ///
    /// # Errors
    ///
    /// The reason to drop the whole train under.
    #[inline]
    pub fn route_from_peer(
        &mut self,
        now: Time,
        relay: RelayHandle,
        peer: SocketAddr,
        datagrams: u32,
        bytes: u64,
    ) -> Result<ClientRoute, DropReason> {
        let allocation = match self.allocations.table.at_mut(relay.allocation) {
            Some(Entry::Live(allocation)) => allocation,
            Some(Entry::Tunnel(tunnel)) => {
                let (id, rules) = (relay.allocation, &self.rules);
                let train = (datagrams, bytes);
                return tunnel::admit_from_peer(now, id, tunnel, peer, train, rules);
            }
            Some(Entry::Pending(_)) | None => return Err(DropReason::RelayClosed),
        };
        let policies = &self.rules.policies;
        let peer = policies.usual.admit(peer);
        allocation
            .live_relay(relay.family, now)
            .ok_or(DropReason::RelayClosed)?;
        allocation.usage.peer_received.add(datagrams, bytes);
        // guard: V-13-data.from-peer
        if !allocation.permissions.permits(peer.ip(), now) {
            return Err(DropReason::NoPermission);
        }
        if policies.forbids_by_now(relay.allocation, allocation.account.user(), peer) {
            return Err(DropReason::NoPermission);
        }
        if let Some(mobility) = &allocation.mobility
            && mobility.is_parked
        {
            return Err(DropReason::ClientAway);
        }
        let admitted = allocation
            .account
            .shape(Direction::ToClient, now, datagrams, bytes)?;
        let bytes = share(bytes, datagrams, admitted);
        let client = allocation.client;
        let channel = allocation
            .channels
            .of_peer(peer)
            // mutant: indication-despite-channel
            .filter(|channel| now < channel.expires);
        let (framing, sent) = match channel {
            Some(channel) => (Framing::Channel(channel.number), framed(admitted, bytes)),
            None => (
                Framing::DataIndication {
                    peer: peer.address(),
                },
                bytes,
            ),
        };
        allocation.usage.client_sent.add(admitted, sent);
        Ok(ClientRoute {
            client,
            framing,
            datagrams: admitted,
        })
    }

    /// Routes a train of `datagrams` payloads of a tunnel's client with `bytes` bytes in all to the tunnel's peer. Of a bound tunnel that is the one that
    /// the client has `named`, and is judged here. The traffic is counted here.
    ///
    /// # Errors
    ///
    /// The reason to drop the whole train under.
    #[inline]
    pub fn route_to_peer(
        &mut self,
        now: Time,
        tunnel: AllocationId,
        named: Option<SocketAddr>,
        datagrams: u32,
        bytes: u64,
    ) -> Result<PeerRoute, DropReason> {
        let (rules, allocations) = (&self.rules, &mut self.allocations);
        let train = (datagrams, bytes);
        tunnel::route_to_peer(now, tunnel, named, train, rules, allocations)
    }

    /// Returns how many of `datagrams` payloads with `bytes` bytes in all go to the client of a bound tunnel, after [`Self::route_from_peer`] has said
    /// [`Framing::Bound`] and the client wants them.
    ///
    /// # Errors
    ///
    /// The reason to drop the whole train under.
    #[inline]
    pub fn charge_to_client(
        &mut self,
        now: Time,
        tunnel: AllocationId,
        datagrams: u32,
        bytes: u64,
    ) -> Result<u32, DropReason> {
        tunnel::charge_to_client(now, tunnel, (datagrams, bytes), &mut self.allocations)
    }

    /// Returns whether the client of a bound tunnel may name `peer`: now, for each datagram is judged by itself.
    pub fn may_name(&self, tunnel: AllocationId, peer: SocketAddr) -> bool {
        tunnel::may_name(tunnel, peer, &self.rules, &self.allocations)
    }

    /// Shows each channel of an allocation whose data may be relayed both ways without asking again, until [`Flow::expires`] or the next change of
    /// the allocation or of the peer policies. [`Engine::absorb`] is to be told what was relayed.
    ///
    /// These are channels of clients that send plain UDP datagrams by themselves, to peers of the client's own address family that are not relayed
    /// transport addresses of this server. The allocation is not one that can move, and if it has a rate, its buckets can be charged by others.
    pub fn flows(&self, now: Time, id: AllocationId, each: impl FnMut(Flow)) {
        let Some(allocation) = self.allocations.live(id) else {
            return;
        };
        let channels = allocation.channels.iter();
        let flows = channels.filter_map(|channel| self.flow_of(now, id, allocation, channel));
        flows.for_each(each);
    }

    /// Returns the flow of one channel, as [`Self::flows`] shows it.
    pub fn flow(&self, now: Time, id: AllocationId, number: ChannelNumber) -> Option<Flow> {
        let allocation = self.allocations.live(id)?;
        let channel = allocation.channels.of_number(number.get())?;
        self.flow_of(now, id, allocation, channel)
    }

    /// Shows the channels of an allocation whose peers have this address.
    pub fn channels_of(&self, id: AllocationId, ip: IpAddr, mut each: impl FnMut(ChannelNumber)) {
        if let Some(allocation) = self.allocations.live(id) {
            let channels = &allocation.channels;
            channels.of_ip(ip, |channel| each(channel.number));
        }
    }

    fn flow_of(
        &self,
        now: Time,
        id: AllocationId,
        allocation: &Allocation,
        channel: &Channel,
    ) -> Option<Flow> {
        let client = &allocation.client;
        // guard: offload-proxied
        let is_direct = client.connection == Connection::default();
        let is_plain = client.transport == Transport::Udp
            && is_direct
            && allocation.protocol() == RelayProtocol::Udp
            && allocation.mobility.is_none();
        if !is_plain {
            return None;
        }
        let meter = allocation.account.shaper().map(Shaper::meter);
        if meter == Some(None) {
            return None; // Only this engine can charge its buckets.
        }
        let policies = &self.rules.policies;
        let user = allocation.account.user();
        let family = Family::of(&client.remote);
        let peer = channel.peer;
        // A relayed transport address is checked for each datagram, because another allocation may give it up at any time.
        if peer.is_relayed() || Family::of(&peer.peer().address()) != family {
            return None;
        }
        if policies.usual.admit(peer.address()) != peer.peer() {
            return None; // It answers from another address than it is reached at.
        }
        let relay = allocation.live_relay(family, now)?;
        let permission = allocation.permissions.expires(peer.ip())?;
        let expires = channel.expires.min(permission).min(relay.expires);
        let is_forbidden = policies.forbids_by_now(id, user, peer.peer());
        (now < expires && !is_forbidden).then(|| Flow {
            channel: channel.number,
            client: client.remote,
            listener: self.rules.listeners.address(client.listener),
            relay: relay.lease.local(),
            peer,
            expires,
            meter: meter.flatten(),
        })
    }

    /// Counts traffic of an allocation that was relayed, or dropped beyond its rate, without asking.
    pub fn absorb(&mut self, id: AllocationId, traffic: &Unasked) {
        if let Some(allocation) = self.allocations.live_mut(id) {
            allocation.usage.absorb(traffic);
        }
    }
}

/// Returns how many bytes channel messages with `bytes` bytes of payload have.
fn framed(datagrams: u32, bytes: u64) -> u64 {
    bytes + 4 * u64::from(datagrams)
}
