//! Tries whether relay sockets can be opened at relay addresses.

use std::io;
use std::net::{IpAddr, UdpSocket};

use crate::config::Config;

/// Returns why no relay socket can be opened at addresses that the configuration names, in a line each.
pub(crate) fn unusable(config: &Config) -> Vec<String> {
    let addresses = &config.addresses;
    // What the machine has is not asked twice: an address that is gone by now is not relayed from soon.
    let named = (!addresses.later.relays_are_found).then_some(&addresses.relays);
    why_none(named.into_iter().flatten().copied())
}

/// Returns why no relay socket can be opened at some of `relays`, in a line each.
pub(crate) fn why_none(relays: impl Iterator<Item = IpAddr>) -> Vec<String> {
    let why = |relay| {
        Some(format!(
            "cannot relay from {relay}: {}",
            probe(relay).err()?
        ))
    };
    relays.filter_map(why).collect()
}

/// Opens a socket as relay sockets are opened, at whatever port the kernel chooses.
fn probe(relay: IpAddr) -> io::Result<()> {
    match UdpSocket::bind((relay, 0)) {
        // The ports are taken, and the address is there.
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => Err(error),
        _ => Ok(()),
    }
}
