//! Auxiliary listeners: addresses that each have a port of their own.

use std::net::{IpAddr, SocketAddr};

use crate::entry::Group;
use crate::findings::Findings;
use crate::host::{PASSED_OVER, local_addresses};
use crate::machine::Machine;
use crate::problem::Origin;
use crate::row::{Row, Setting, Topic, each};
use crate::value::Kind;

const KEY: &str = "aux-server";

/// The given values about auxiliary listeners.
#[derive(Default)]
pub(crate) struct GivenAuxiliary(Vec<(String, Origin)>);

impl Topic for GivenAuxiliary {
    type Settings = Vec<SocketAddr>;
}

type Key = Row<GivenAuxiliary>;

pub(crate) const ROWS: &[Key] = &[Key::new(
    "O-008",
    "aux-server",
    Group::Addresses,
    Kind::AddressPort,
    "Further address to listen on, with its port, by UDP and by TCP; TLS is recognised \
         there, nobody is sent to another server, and NAT behaviour discovery is not served.",
)
.repeatable()
.stricter("the port has to be given")
.example("10.1.2.3:443")
.works(Setting {
    take: |given, written| {
        given.0.push(written.placed_text());
        Ok(())
    },
    show: |auxiliary| each(auxiliary),
})];

/// Returns the addresses given, host names looked up and wildcards replaced; one that is listened on anyway, with one of `ports`, is a mistake.
pub(crate) fn finish(
    given: GivenAuxiliary,
    listeners: &[IpAddr],
    ports: &[u16],
    machine: &Machine,
    findings: &mut Findings,
) -> Vec<SocketAddr> {
    let mut found = Vec::new();
    for (text, origin) in given.0 {
        let (host, port) = match host_and_port(&text) {
            Ok(parts) => parts,
            Err(message) => {
                findings.misfit(&origin, KEY, message, PASSED_OVER);
                continue;
            }
        };
        let host = [(host.to_owned(), origin.clone())];
        for address in local_addresses(KEY, &host, machine, &machine.addresses, findings) {
            let auxiliary = SocketAddr::new(address, port);
            let is_listener = listeners.contains(&address) && ports.contains(&port);
            if is_listener || found.contains(&auxiliary) {
                let message = format!(
                    "`{auxiliary}` is listened on already; allowed: each address and port once"
                );
                findings.misfit(&origin, KEY, message, PASSED_OVER);
            } else {
                found.push(auxiliary);
            }
        }
    }
    found
}

/// Splits `address:port` or `[IPv6 address]:port`.
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
            "`{}` has no port from 1 to 65535 behind the address; allowed: address:port or \
             [IPv6 address]:port",
            text.escape_debug()
        )
    })
}
