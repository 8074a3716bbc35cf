//! Finds the addresses to relay from, if the configuration names none.

use std::io::Write;
use std::net::IpAddr;
use std::sync::Arc;

use turnbuckle_engine::{Commons, InterfaceAddress};

use super::devices::on_device;
use super::shards::Shards;
use crate::config::Config;
use crate::translate;

/// The addresses that are relayed from.
pub(super) struct Relays {
    commons: Arc<Commons>,
    /// In order.
    addresses: Vec<IpAddr>,
}

impl Relays {
    pub(super) fn new(config: &Config, commons: Arc<Commons>) -> Self {
        let mut addresses = config.addresses.relays.clone();
        addresses.sort_unstable();
        Self { commons, addresses }
    }

    /// Relays from what the machine has now.
    pub(super) fn follow(
        &mut self,
        config: &Config,
        interfaces: &[InterfaceAddress],
        shards: &mut Shards,
        out: &mut impl Write,
    ) {
        let device = config.addresses.devices.relay.as_deref();
        let interfaces = on_device(device, interfaces);
        let usable = interfaces.iter().map(|address| address.ip);
        let usable: Vec<IpAddr> = usable.filter(|ip| !is_link_local(*ip)).collect();
        let mut relays = config.addresses.relays_among(&usable);
        relays.sort_unstable();
        if !config.addresses.later.follows_relays || relays.is_empty() || relays == self.addresses {
            return;
        }
        let added = relays
            .iter()
            .filter(|relay| !self.addresses.contains(relay));
        for relay in added {
            let _ = writeln!(out, "relaying from {relay} from now on");
        }
        let all: Vec<_> = relays
            .iter()
            .map(|&relay| translate::relay_address(config, relay))
            .collect();
        shards.relay_from(&all);
        self.commons.set_relays(&all);
        self.addresses = relays;
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}
