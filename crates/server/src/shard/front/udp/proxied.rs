//! Keeps the proxies of clients that come through a UDP proxy. Each of their datagrams names its client. Datagrams to the client are sent to the
//! proxy.
//!
//! To the engine such a client is one that sent the datagram itself, except that its name is another one
//! ([`proxied_client`](crate::shard::name::proxied_client)): a sender that uses the same address directly is a different client. The proxy's
//! address is kept here. A client with several proxies is answered through the last one that it used. Nothing is ever sent to the address that a
//! proxy claims. A DTLS session belongs to its client behind one proxy, and remembers that proxy itself.

use std::collections::HashMap;
use std::net::SocketAddr;

use turnbuckle_engine::{AllocationId, ClientTuple};

use crate::shard::name::is_proxied;

/// Number of recent clients whose proxies are remembered for responses that take longer than a turn. At most twice as many are kept.
const RECENT_MAX: usize = 4096;

/// Holds the proxy through which each client is reached.
#[derive(Default)]
pub(super) struct ProxiedClients {
    /// Proxies of the most recent clients, for responses.
    recent: HashMap<ClientTuple, SocketAddr>,
    /// Proxies of the clients before these.
    earlier: HashMap<ClientTuple, SocketAddr>,
    /// Proxies of clients with an allocation, for data from peers.
    proxy_by_allocation: HashMap<AllocationId, SocketAddr>,
}

impl ProxiedClients {
    /// Returns where a response to `client` goes. Returns `None` if its proxy is not known any more.
    #[inline]
    pub(super) fn answer_address(&self, client: &ClientTuple) -> Option<SocketAddr> {
        match is_proxied(client) {
            // guard: proxy-datagram-answer
            true => {
                let recent = self.recent.get(client);
                recent.or_else(|| self.earlier.get(client)).copied()
            }
            false => Some(client.remote),
        }
    }

    /// Returns where data for `client`, who has `allocation`, goes.
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

    /// Limits the number of remembered clients without an allocation.
    pub(super) fn turn_started(&mut self) {
        if self.recent.len() >= RECENT_MAX {
            // Only the older ones are forgotten, because responses to the others may be under way.
            std::mem::swap(&mut self.recent, &mut self.earlier);
            self.recent.clear();
        }
    }

    /// Notes the proxy that a client's datagram came through.
    pub(super) fn received(&mut self, client: ClientTuple, proxy: SocketAddr) {
        self.recent.insert(client, proxy);
    }

    /// Notes the proxy that a datagram of the client with this allocation came through.
    pub(super) fn allocated(&mut self, allocation: AllocationId, proxy: SocketAddr) {
        self.proxy_by_allocation.insert(allocation, proxy);
    }

    /// Returns of how many allocations the proxy is known.
    #[cfg(test)]
    pub(super) fn allocations(&self) -> usize {
        self.proxy_by_allocation.len()
    }

    /// Forgets the proxy of an allocation that has ended.
    pub(super) fn ended(&mut self, allocation: AllocationId) {
        self.proxy_by_allocation.remove(&allocation);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnbuckle_engine::Endpoint;

    #[test]
    fn the_proxy_of_a_client_is_remembered_while_others_of_its_number_are_heard() {
        let client = |n: u32| {
            let remote = SocketAddr::from((std::net::Ipv4Addr::from(0xC612_0000 + n), 5000));
            crate::shard::name::proxied_client(Endpoint(1), remote)
        };
        let proxy = SocketAddr::from(([192, 0, 2, 1], 3478));
        let mut proxied = ProxiedClients::default();
        let recent_max = u32::try_from(RECENT_MAX).unwrap();
        for n in 0..10 * recent_max {
            proxied.turn_started();
            proxied.recent.insert(client(n), proxy);
            // The next turn, when the answer comes.
            proxied.turn_started();
            let earliest = n.saturating_sub(recent_max - 1);
            for n in [n, earliest] {
                assert_eq!(proxied.answer_address(&client(n)), Some(proxy));
            }
            assert!(proxied.recent.len() + proxied.earlier.len() <= 2 * RECENT_MAX);
        }
    }
}
