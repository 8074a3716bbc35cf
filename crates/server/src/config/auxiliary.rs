//! Auxiliary listeners: addresses that each have a port of their own.

use std::net::{IpAddr, SocketAddr};

use super::addresses::local_addresses;
use super::draft::Draft;
use super::machine::Machine;
use super::settings::NatDiscovery;

const KEY: &str = "aux-server";

/// The addresses given, host names looked up and wildcards replaced; one that is listened on anyway is a mistake.
pub(super) fn auxiliary(
    draft: &mut Draft,
    listeners: &[IpAddr],
    discovery: Option<&NatDiscovery>,
    machine: &Machine,
) -> Vec<SocketAddr> {
    let has_tls = draft.tls.files().is_some();
    let mut ports = vec![draft.listening_port];
    ports.extend(has_tls.then_some(draft.tls.port));
    if let Some(discovery) = discovery {
        ports.push(discovery.port);
        ports.extend(discovery.tls_port);
    }
    let mut found = Vec::new();
    for (text, origin) in std::mem::take(&mut draft.auxiliary) {
        let (host, port) = match host_and_port(&text) {
            Ok(parts) => parts,
            Err(message) => {
                draft.misfit(&origin, KEY, message, "passed over");
                continue;
            }
        };
        let host = [(host.to_owned(), origin.clone())];
        for address in local_addresses(draft, KEY, &host, machine, &machine.addresses) {
            let auxiliary = SocketAddr::new(address, port);
            let is_listener = listeners.contains(&address) && ports.contains(&port);
            if is_listener || found.contains(&auxiliary) {
                let message = format!(
                    "`{auxiliary}` is listened on already; allowed: each address and port once"
                );
                draft.misfit(&origin, KEY, message, "passed over");
            } else {
                found.push(auxiliary);
            }
        }
    }
    found
}

/// Takes `address:port` or `[IPv6 address]:port` apart.
fn host_and_port(text: &str) -> Result<(&str, u16), String> {
    let parts = match text.strip_prefix('[') {
        Some(rest) => rest.split_once("]:"),
        None => text
            .rsplit_once(':')
            .filter(|(host, _)| !host.contains(':')),
    };
    let port = parts.and_then(|(host, port)| {
        let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port
            .parse()
            .ok()
            .filter(|&port: &u16| is_number && port != 0)?;
        Some((host, port))
    });
    port.ok_or_else(|| {
        format!(
            "`{}` has no port from 1 to 65535 behind the address; allowed: address:port or [IPv6 address]:port",
            text.escape_debug()
        )
    })
}
