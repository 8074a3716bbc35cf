//! Command lines of scenarios about connections.

use anyhow::{Context as _, Result};

use super::Cell;
use super::cell::Place;
use crate::case::{Case, Commands, LISTEN_PORT, PEER_PORT, values};
use crate::hosts::Addresses;
use crate::scenario::Question;

/// Addresses of the server's host in the namespaces, besides the one on which relays listen: each has all ports anew.
pub(crate) const FURTHER_ADDRESSES: [&str; 7] = [
    "10.99.1.11",
    "10.99.1.12",
    "10.99.1.13",
    "10.99.1.14",
    "10.99.1.15",
    "10.99.1.16",
    "10.99.1.17",
];
/// As many over loopback.
const LOOPBACK_ADDRESSES: [&str; 8] = [
    "127.0.0.1",
    "127.0.0.2",
    "127.0.0.3",
    "127.0.0.4",
    "127.0.0.5",
    "127.0.0.6",
    "127.0.0.7",
    "127.0.0.8",
];
/// A storm lasts until it is ended.
const WITHOUT_END_S: f64 = 3600.0;

/// Returns the command lines of a case: in a storm `load` are the calls, and `meanwhile` is the storm.
pub(crate) fn commands(
    case: &Case<'_>,
    addresses: &Addresses,
    relay_cpus: usize,
    tmp: &str,
) -> Result<Commands> {
    let cell = case.cell.context("a case about connections has a cell")?;
    let scenario = case.scenario;
    let values = |turnbuckle: &str| values(case, addresses, relay_cpus, tmp, turnbuckle);
    let is_storm = scenario.question == Question::Storm;
    let load = if is_storm {
        values(&addresses.turnbuckle_on_load).words(&format!(
            "{{turnbuckle}} load {} --server {{listen}}:{{port}} --user {{user}}:{{password}} --peer {{peer}}:{PEER_PORT} --warm-up {} --duration {} --json",
            scenario.words.load, case.warm_up_s, case.window_s
        ))?
    } else {
        let more = cell.variant.as_ref().map_or("", |(_, words)| words);
        let words = format!("{} {more}", scenario.words.load);
        connect(case, cell, addresses, &words, case.warm_up_s, case.window_s)
            .and_then(|words| values(client_program(cell, addresses)).words(&words))?
    };
    let meanwhile = match &cell.variant {
        Some((_, words)) if is_storm => Some(
            connect(case, cell, addresses, words, 0.0, WITHOUT_END_S)
                .and_then(|words| values(client_program(cell, addresses)).words(&words))?,
        ),
        _ => None,
    };
    Ok(Commands {
        // What listens for TCP and TLS, as servers for datagrams alone do not.
        server: Some(
            values(&addresses.turnbuckle_on_relay).words(
                case.server
                    .all_transports
                    .as_ref()
                    .unwrap_or(&case.server.command),
            )?,
        ),
        peer: match is_storm {
            true => values(&addresses.turnbuckle_on_peer).words(&format!(
                "{{turnbuckle}} peer {} --listen {{peer}}:{PEER_PORT} --json",
                scenario.words.peer
            ))?,
            false => Vec::new(),
        },
        load,
        meanwhile,
        meanwhile_peer: None,
    })
}

fn client_program<'a>(cell: &Cell, addresses: &'a Addresses) -> &'a str {
    match cell.place {
        Place::Loopback => &addresses.turnbuckle_on_relay,
        Place::Namespaces => &addresses.turnbuckle_on_load,
    }
}

fn connect(
    case: &Case<'_>,
    cell: &Cell,
    addresses: &Addresses,
    words: &str,
    warm_up_s: f64,
    window_s: f64,
) -> Result<String> {
    let port = case.scenario.connections.port.unwrap_or(LISTEN_PORT);
    let mut targets: Vec<&str> = match cell.place {
        Place::Loopback => LOOPBACK_ADDRESSES.to_vec(),
        Place::Namespaces => vec![&addresses.listen],
    };
    // What listens on all addresses: relays do on theirs alone.
    if cell.workers.is_some() && cell.place == Place::Namespaces && addresses.are_namespaces {
        targets.extend(FURTHER_ADDRESSES);
    }
    if cell.workers.is_none() {
        targets.truncate(1);
    }
    if words.contains("-4 ") {
        targets.clear();
    }
    let targets: Vec<String> = targets
        .iter()
        .map(|target| format!("-4 {target}"))
        .collect();
    Ok(format!(
        "{{turnbuckle}} connect-client -p {port} {} {words} --warm-up {warm_up_s} -l {window_s} --json",
        targets.join(" ")
    ))
}
