//! Clients of proxies for UDP: each datagram names its client, and what goes to the client goes to the proxy.
//!
//! To the engine such a client is one that sent the datagram itself, except that its tuple has [`PROXIED`] for a connection: whoever
//! sends from the same address directly is somebody else. Where its proxy is, is kept here; a client that has several
//! is answered by the one it came through last. Nothing ever goes to the address that a proxy claims. A DTLS session belongs to its client
//! behind one proxy, and remembers that proxy itself.

use std::collections::HashMap;
use std::net::SocketAddr;

use turnbuckle_datapath::{Received, SendQueue};
use turnbuckle_engine::{
    AllocationId, ClientTuple, Connection as ConnectionName, DropReason, Endpoint, Transport,
};

use turnbuckle_wire::Demux;

use super::{Relay, Segments};
use crate::dtls::Address;
use crate::proxy;
use crate::train::protocol;

/// Stands in the tuple of a client that comes through a proxy by UDP.
const PROXIED: ConnectionName = ConnectionName::new(1, 0);
/// Clients whose proxies are remembered for answers that take longer than a turn: of those heard last so many, and at most as many again.
const HEARD_MAX: usize = 4096;

/// Through which proxies clients are reached.
#[derive(Default)]
pub(super) struct ProxiedClients {
    /// Of those heard lately: for answers.
    heard: HashMap<ClientTuple, SocketAddr>,
    /// Of those heard before these.
    heard_before: HashMap<ClientTuple, SocketAddr>,
    /// For what peers send.
    proxy_by_allocation: HashMap<AllocationId, SocketAddr>,
}

impl ProxiedClients {
    /// Where an answer to `client` goes; `None` if its proxy is not known any more.
    #[inline]
    pub(super) fn answer_address(&self, client: &ClientTuple) -> Option<SocketAddr> {
        match is_proxied(client) {
            // guard: proxy-datagram-answer
            true => {
                let heard = self.heard.get(client);
                heard.or_else(|| self.heard_before.get(client)).copied()
            }
            false => Some(client.remote),
        }
    }

    /// Where data for `client`, who has `allocation`, goes.
    #[inline]
    pub(super) fn data_address(
        &self,
        client: &ClientTuple,
        allocation: AllocationId,
    ) -> Option<SocketAddr> {
        match is_proxied(client) {
            true => self.proxy_by_allocation.get(&allocation).copied(),
            false => Some(client.remote),
        }
    }

    /// Keeps what is remembered of clients without an allocation within its bound.
    pub(super) fn turn_started(&mut self) {
        if self.heard.len() >= HEARD_MAX {
            // The older ones go, and not all: answers to the others are still under way.
            std::mem::swap(&mut self.heard, &mut self.heard_before);
            self.heard.clear();
        }
    }

    /// Forgets the proxy of an allocation that is gone.
    pub(super) fn ended(&mut self, allocation: AllocationId) {
        self.proxy_by_allocation.remove(&allocation);
    }
}

fn is_proxied(client: &ClientTuple) -> bool {
    client.transport == Transport::Udp && client.connection == PROXIED
}

impl Relay {
    /// What a proxy sent: each datagram by itself.
    pub(super) fn proxied_message(&mut self, message: &Received<'_>, tx: &mut SendQueue) {
        let mut start = 0;
        while start < message.bytes.len() {
            let end = message.bytes.len().min(start + message.segment);
            match proxy::of_datagram(&message.bytes[start..end]) {
                Ok(header) => {
                    let payload = start + header.len;
                    self.proxied_datagram(header.source, message, payload, end, tx);
                }
                Err(_) => self.counters.dropped(DropReason::ProtocolUnknown, 1),
            }
            start = end;
        }
    }

    /// The datagram from `start` to `end`, sent by `source`, or by the proxy itself.
    fn proxied_datagram(
        &mut self,
        source: Option<SocketAddr>,
        message: &Received<'_>,
        start: usize,
        end: usize,
        tx: &mut SendQueue,
    ) {
        let listener = Endpoint(message.endpoint.to_u32());
        let remote = source.unwrap_or(message.remote);
        let bytes = &message.bytes[..end];
        if start == end {
            return self.counters.dropped(DropReason::ProtocolUnknown, 1);
        }
        if protocol(bytes[start]) == Demux::Dtls {
            let address = Address {
                listener,
                client: remote,
                proxy: source.is_some().then_some(message.remote),
            };
            self.dtls_received(address, (bytes, end - start), start, tx);
            return;
        }
        if !self.serves_plain_udp {
            return self.counters.dropped(DropReason::ServiceDisabled, 1);
        }
        let mut client = ClientTuple::udp(listener, remote);
        if source.is_some() {
            client.connection = PROXIED;
            self.proxied.heard.insert(client, message.remote);
        }
        let allocation = self.engine.client(&client);
        if let Some(allocation) = allocation.filter(|_| source.is_some()) {
            let proxies = &mut self.proxied.proxy_by_allocation;
            proxies.insert(allocation, message.remote);
        }
        let segments = Segments {
            payload: message,
            bytes,
            segment: end - start,
        };
        self.message(client, allocation, &segments, start, tx);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proxy_of_a_client_is_remembered_while_others_of_its_number_are_heard() {
        let client = |n: u32| {
            let remote = SocketAddr::from((std::net::Ipv4Addr::from(0xC612_0000 + n), 5000));
            ClientTuple {
                connection: PROXIED,
                ..ClientTuple::udp(Endpoint(1), remote)
            }
        };
        let proxy = SocketAddr::from(([192, 0, 2, 1], 3478));
        let mut proxied = ProxiedClients::default();
        let heard_max = u32::try_from(HEARD_MAX).unwrap();
        for n in 0..10 * heard_max {
            proxied.turn_started();
            proxied.heard.insert(client(n), proxy);
            // The next turn, when the answer comes.
            proxied.turn_started();
            let earliest = n.saturating_sub(heard_max - 1);
            for n in [n, earliest] {
                assert_eq!(proxied.answer_address(&client(n)), Some(proxy));
            }
            assert!(proxied.heard.len() + proxied.heard_before.len() <= 2 * HEARD_MAX);
        }
    }
}
