//! Command lines of scenarios about packets; those about connections have their own.

use anyhow::{Context as _, Result};

use crate::case::{Case, Commands, MEANWHILE_PEER_PORT, PEER_PORT, values};
use crate::connections;
use crate::hosts::Addresses;
use crate::scenario::Transport;

/// Returns the command lines of a case.
///
/// # Errors
/// A placeholder that means nothing, or a server without a command line for the transport.
pub(crate) fn commands(
    case: &Case<'_>,
    addresses: &Addresses,
    relay_cpus: usize,
    tmp: &str,
) -> Result<Commands> {
    if case.scenario.question.is_about_connections() {
        return connections::commands(case, addresses, relay_cpus, tmp);
    }
    let values = |turnbuckle: &str| values(case, addresses, relay_cpus, tmp, turnbuckle);
    let load = |words: &str, peer_port: u16, warm_up_s: f64, window_s: f64| -> Result<_> {
        let values = values(&addresses.turnbuckle_on_load);
        let transport = match case.server.transport(case.scenario.transport) {
            Transport::Udp => String::new(),
            // What runs beside what is measured may come by another one.
            _ if words.contains("--transport") => String::new(),
            other => format!(" --transport {}", other.name()),
        };
        let server = if case.scenario.direct {
            String::new()
        } else {
            format!("--server {{listen}}:{{port}} --user {{user}}:{{password}}{transport}")
        };
        values.words(&format!(
            "{{turnbuckle}} load {words} {server} --peer {{peer}}:{peer_port} --warm-up {warm_up_s} --duration {window_s} --json"
        ))
    };
    let peer = |words: &str, port: u16| {
        values(&addresses.turnbuckle_on_peer).words(&format!(
            "{{turnbuckle}} peer {words} --listen {{peer}}:{port} --json"
        ))
    };
    let scenario = case.scenario;
    let meanwhile_port = match scenario.words.meanwhile_peer {
        Some(_) => MEANWHILE_PEER_PORT,
        None => PEER_PORT,
    };
    Ok(Commands {
        server: if scenario.direct {
            None
        } else {
            let command = case.server.command(scenario.transport);
            let command = command.context("no command line for this transport")?;
            Some(values(&addresses.turnbuckle_on_relay).words(command)?)
        },
        peer: peer(&scenario.words.peer, PEER_PORT)?,
        load: load(
            &scenario.words.load,
            PEER_PORT,
            case.warm_up_s,
            case.window_s,
        )?,
        // It begins before the attack and ends by a signal after it.
        meanwhile: scenario
            .words
            .meanwhile
            .as_deref()
            .map(|words| load(words, meanwhile_port, 0.5, 3600.0))
            .transpose()?,
        meanwhile_peer: scenario
            .words
            .meanwhile_peer
            .as_deref()
            .map(|words| peer(words, MEANWHILE_PEER_PORT))
            .transpose()?,
    })
}
