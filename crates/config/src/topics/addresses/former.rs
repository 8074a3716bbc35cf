//! Relay addresses of the calls that a server before has left to this one.
//!
//! What is relayed from may follow from the addresses of the machine, and those may be others by now, or stand in another order. A relay that runs
//! keeps what it has begun with; the one after it goes on with the same addresses as long as it finds calls there.

use std::net::IpAddr;

use turnbuckle_engine::{RelayAddress, Relayed};

use super::Addresses;

/// Where calls relay from that a server before has left to this one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FormerRelays {
    /// Addresses that are not relayed from any more: calls go on there, and none begins but on a shared socket. Each once.
    pub addresses: Vec<RelayAddress>,
    /// Where sockets are that calls share, of IPv4 and of IPv6, if there are any; new calls share them too.
    pub shared: [Option<IpAddr>; 2],
}

impl Addresses {
    /// Has calls go on that relay from `relayed`, an address with a socket of each call's own.
    pub fn keep_relay(&mut self, relayed: &Relayed) {
        let local = relayed.local.ip();
        let former = &mut self.former.addresses;
        if self.relays.contains(&local) || former.iter().any(|it| it.local == local) {
            return;
        }
        // Not what the configuration says of it now: clients and peers know the call by this one.
        let external = relayed.external.ip();
        former.push(RelayAddress {
            local,
            external: (external != local).then_some(external),
        });
    }

    /// Has calls go on that share the socket at `relayed`. Since new calls get it too, an address that an operator has taken out of the configuration
    /// is not kept: it would be in use for ever.
    pub fn keep_shared_relay(&mut self, relayed: &Relayed) {
        let local = relayed.local.ip();
        if !self.relays.contains(&local) && !self.later.relays_are_found {
            return;
        }
        let kept = self.former.shared[usize::from(local.is_ipv6())].get_or_insert(local);
        if *kept == local {
            self.keep_relay(relayed);
        }
    }

    /// Returns where relay sockets are bound that calls share, of IPv4 and of IPv6: where there are some already, else on the first relay address of
    /// the family.
    #[must_use]
    pub fn shared_relays(&self) -> [Option<IpAddr>; 2] {
        [false, true].map(|is_ipv6| {
            let mut relays = self.relays.iter().copied();
            let first = relays.find(|relay| relay.is_ipv6() == is_ipv6);
            self.former.shared[usize::from(is_ipv6)].or(first)
        })
    }
}
