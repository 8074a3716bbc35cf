//! Whether relay sockets can be opened at relay addresses, and whether others can reach them.

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

/// Returns what to write where all relay addresses are private and no public address is known for them.
pub(crate) fn unreachable(config: &Config) -> Option<String> {
    let addresses = &config.addresses;
    let has_external =
        !addresses.external.is_empty() || !addresses.later.external_of_all.is_empty();
    let relays: Vec<_> = addresses.relays.iter().collect();
    if has_external || relays.is_empty() || !relays.iter().all(|relay| is_private(**relay)) {
        return None;
    }
    let lines: Vec<_> = relays
        .iter()
        .map(|relay| format!("`external-ip=PUBLIC/{relay}`"))
        .collect();
    Some(format!(
        "all relay addresses are private, so only their own network reaches them; behind a 1:1 NAT write {} \
         with the public address for PUBLIC",
        lines.join(" and ")
    ))
}

/// Returns whether an address is of a private network or a carrier's (RFC 1918, 4193 and 6598). Loopback is not.
fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_private() || matches!(v4.octets(), [100, 64..=127, ..]),
        IpAddr::V6(v6) => v6.is_unique_local(),
    }
}
