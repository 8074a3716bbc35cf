//! Serves clients that send UDP datagrams, directly or through a proxy with the PROXY protocol.

pub(in crate::shard) mod proxied;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use turnbuckle_datapath::{Payload, Received, Run, SendQueue};
use turnbuckle_engine::{AddressRange, AllocationId, ClientTuple, Endpoint, Transport};

use self::proxied::ProxiedClients;
use super::proxy::Proxies;
use super::{Destination, Front, Wrapping};
use crate::counters::{ShardCounters, UdpDrop};
use crate::shard::hub::Hub;
use crate::shard::name;
use crate::shard::train::Segments;

/// The front of clients by UDP.
pub(in crate::shard) struct UdpFront {
    counters: Arc<ShardCounters>,
    /// Whether datagrams without DTLS are accepted.
    serves_plain: bool,
    /// The proxies whose headers are accepted.
    proxies: Proxies,
    proxied: ProxiedClients,
}

impl UdpFront {
    pub(in crate::shard) fn new(
        serves_plain: bool,
        proxies: Proxies,
        counters: Arc<ShardCounters>,
    ) -> Self {
        Self {
            counters,
            serves_plain,
            proxies,
            proxied: ProxiedClients::default(),
        }
    }

    /// Accepts headers from these proxies, and from nobody else.
    pub(in crate::shard) fn set_proxies(&mut self, sources: &[AddressRange]) {
        sources.clone_into(&mut self.proxies.datagram_sources);
    }

    /// Returns the proxies whose headers are accepted.
    pub(in crate::shard) fn proxies(&self) -> &[AddressRange] {
        &self.proxies.datagram_sources
    }

    /// Limits the number of remembered proxies.
    pub(in crate::shard) fn turn_started(&mut self) {
        self.proxied.turn_started();
    }

    /// Forgets what was remembered of an allocation that has ended.
    pub(in crate::shard) fn ended(&mut self, allocation: AllocationId) {
        self.proxied.ended(allocation);
    }

    /// Returns of how many allocations the proxy is known.
    #[cfg(test)]
    pub(in crate::shard) fn known_proxies(&self) -> usize {
        self.proxied.allocations()
    }

    /// Returns whether datagrams from `ip` begin with a header of the PROXY protocol.
    #[inline]
    pub(in crate::shard) fn is_proxy(&self, ip: IpAddr) -> bool {
        self.proxies.may_speak_for_datagram(ip)
    }

    /// Handles the message or the train that begins at `start`. Returns where it ends.
    #[inline]
    pub(in crate::shard) fn received(
        &mut self,
        client: ClientTuple,
        allocation: Option<AllocationId>,
        segments: &Segments<'_, impl Payload>,
        start: usize,
        hub: &mut Hub,
        tx: &mut SendQueue,
    ) -> usize {
        if !self.serves_plain {
            self.counters.dropped(UdpDrop::ServiceDisabled, 1);
            return start + segments.segment;
        }
        hub.message(client, allocation, segments, start, self, tx)
    }

    /// Handles the datagram that ends with `segments`, sent by `source` through a proxy, or by the proxy itself.
    pub(in crate::shard) fn received_through_proxy(
        &mut self,
        (listener, proxy): (Endpoint, SocketAddr),
        source: Option<SocketAddr>,
        segments: &Segments<'_, impl Payload>,
        start: usize,
        hub: &mut Hub,
        tx: &mut SendQueue,
    ) {
        if !self.serves_plain {
            return self.counters.dropped(UdpDrop::ServiceDisabled, 1);
        }
        let client = match source {
            Some(source) => {
                let client = name::proxied_client(listener, source);
                self.proxied.received(client, proxy);
                client
            }
            None => ClientTuple::udp(listener, proxy),
        };
        let allocation = hub.engine.client(&client);
        // The end of one that is still being opened is told to nobody, so nothing would take its proxy out again.
        let is_open = |id: &AllocationId| hub.engine.session_at(id.slot()).is_some();
        if let Some(allocation) = allocation.filter(|id| source.is_some() && is_open(id)) {
            self.proxied.allocated(allocation, proxy);
        }
        hub.message(client, allocation, segments, start, self, tx);
    }
}

impl Front for UdpFront {
    fn serves(&self, transport: Transport) -> bool {
        transport == Transport::Udp
    }

    fn has_client(&self, _: &ClientTuple) -> bool {
        true
    }

    #[inline]
    fn data_address(&self, client: &ClientTuple, allocation: AllocationId) -> Option<SocketAddr> {
        self.proxied.data_address(client, allocation)
    }

    #[inline]
    fn forward(
        &mut self,
        to: Destination,
        message: &Received<'_>,
        run: Run,
        wrapping: Wrapping<'_>,
        tx: &mut SendQueue,
    ) {
        let Wrapping { header, padding } = wrapping;
        self.counters.datagrams.client_out.queued(run.count as u64);
        let listener = name::datagrams(to.client.listener);
        tx.forward(listener, to.remote, message, run, header, padding);
    }

    fn reply(&mut self, to: ClientTuple, answer: &[u8], tx: &mut SendQueue) {
        match self.proxied.answer_address(&to) {
            Some(remote) => {
                self.counters.datagrams.client_out.queued(1);
                tx.reply(name::datagrams(to.listener), remote, answer);
            }
            None => self.counters.dropped(UdpDrop::SocketClosed, 1),
        }
    }
}
