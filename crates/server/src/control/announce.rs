//! Prints the lines that describe what the relay serves: its own, and coturn's for scripts that wait for them.

use std::io::Write;
use std::net::SocketAddr;

use turnbuckle_datapath::{CoalescePolicy, RELAY_START_BYTES, grantable_receive_buffer};

use super::listening::Listening;
use crate::config::{Config, Persona};
use crate::shard::discovery::describe_discovery;
use crate::translate;

/// Holds what has been set up, for the lines.
pub(super) struct Running<'a> {
    pub(super) listening: &'a Listening,
    /// How many shards there are.
    pub(super) shards: usize,
    /// The line with the chosen backend and the reason for it.
    pub(super) backend: &'a str,
    /// Whether there is a user database that has been read.
    pub(super) has_database: bool,
}

/// Prints what the relay serves. `ready` prints the last line when everything is set up. Write errors are ignored, because there is no place to
/// report them.
pub(super) fn running(config: &Config, running: &Running<'_>, out: &mut impl Write) {
    let pinned = if config.datapath.pin {
        ", each on its core"
    } else {
        ""
    };
    let when = match config.datapath.coalesce_policy {
        CoalescePolicy::Cpu => "",
        CoalescePolicy::Latency => " when busy",
    };
    let pause = match config.datapath.coalesce.as_micros() {
        0 => "no pause before reading".to_owned(),
        us => format!("pauses of at most {us} us before reading{when}"),
    };
    let _ = writeln!(out, "turnbuckle {}", env!("CARGO_PKG_VERSION"));
    let _ = writeln!(out, "{}", running.backend);
    let _ = writeln!(out, "{} shards{pinned}, {pause}", running.shards);
    let Listening {
        datagrams, streams, ..
    } = running.listening;
    let has_proxy_port = config.protocols.proxies.port.is_some();
    // Second ports for NAT behaviour discovery have lines of their own.
    let is_second_port = |listener: SocketAddr| {
        config
            .addresses
            .discovery
            .as_ref()
            .is_some_and(|discovery| {
                let ports = [Some(discovery.port), discovery.tls_port];
                ports.contains(&Some(listener.port()))
            })
    };
    for &listener in datagrams
        .iter()
        .filter(|listener| !is_second_port(**listener))
    {
        let has_streams = !has_proxy_port && streams.contains(&listener);
        let transports = transports(config, true, has_streams);
        let _ = writeln!(out, "listening on {transports} {listener}");
    }
    for &listener in streams {
        let is_named = datagrams.contains(&listener) || is_second_port(listener);
        if has_proxy_port || !is_named {
            let transports = transports(config, false, true);
            let from = if has_proxy_port { " for proxies" } else { "" };
            let _ = writeln!(out, "listening on {transports} {listener}{from}");
        }
    }
    for line in describe_discovery(config) {
        let _ = writeln!(out, "{line}");
    }
    for &relay in &config.addresses.relays {
        let public = config.addresses.public(relay);
        let seen_as = if public == relay {
            String::new()
        } else {
            format!(", seen as {public}")
        };
        let ports = config.addresses.relay_ports;
        let _ = writeln!(
            out,
            "relaying from {relay}{seen_as}, ports {} to {}",
            ports.min, ports.max
        );
    }
    let former = &config.addresses.former;
    for relay in &former.addresses {
        let local = relay.local;
        // New calls share a socket there, which has a line of its own.
        if !former.shared.contains(&Some(local)) {
            let _ = writeln!(out, "calls go on at {local}, and none begins there");
        }
    }
    shared_relays(config, out);
    if config.persona == Persona::Turnserver {
        as_coturn(config, running, out);
    }
}

/// Writes a warning if new relay sockets cannot hold a burst. To be called when the process has given up its rights, as those sockets are opened then.
pub(super) fn receive_buffers(out: &mut impl Write) {
    // A system that is short of descriptors has others to say so.
    let granted = grantable_receive_buffer(RELAY_START_BYTES).unwrap_or(RELAY_START_BYTES);
    if let Some(warning) = translate::short_receive_buffer(granted) {
        let _ = writeln!(out, "{warning}");
    }
}

/// Writes coturn's lines about relay sockets that allocations share.
fn shared_relays(config: &Config, out: &mut impl Write) {
    let Some(shared) = config.datapath.shared_relays else {
        return;
    };
    let (shards, first) = (config.datapath.shards, shared.first);
    let _ = writeln!(
        out,
        "multiplex-peer: {shards} thread(s), port range {first}-{} (IPv4+IPv6 per thread)",
        shared.last(shards)
    );
    let addresses = translate::shared_addresses(config, shared);
    for (shard, addresses) in addresses.into_iter().enumerate() {
        for address in addresses.into_iter().flatten() {
            let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
            let _ = writeln!(
                out,
                "multiplex-peer: thread {shard} {family} socket bound to {address}"
            );
        }
    }
}

/// Returns the transports of a listener for datagrams, connections or both, as `A, B and C`.
fn transports(config: &Config, has_datagrams: bool, has_streams: bool) -> String {
    let has_tls = config.tls.files().is_some();
    let has_dtls = config.tls.dtls_files().is_some();
    let all = [
        ("UDP", has_datagrams && config.addresses.udp),
        ("TCP", has_streams && config.addresses.tcp),
        ("TLS", has_streams && has_tls),
        ("DTLS", has_datagrams && has_dtls),
        ("QUIC", has_datagrams && config.tls.quic_files().is_some()),
    ];
    let spoken = all.into_iter().filter(|(_, is_spoken)| *is_spoken);
    let spoken: Vec<_> = spoken.map(|(name, _)| name).collect();
    match &spoken[..] {
        [others @ .., last] if !others.is_empty() => format!("{} and {last}", others.join(", ")),
        _ => spoken.concat(),
    }
}

/// Writes coturn's lines.
fn as_coturn(config: &Config, running: &Running<'_>, out: &mut impl Write) {
    let &Running {
        listening,
        shards: threads,
        has_database,
        ..
    } = running;
    let mut line = |text: String| {
        let _ = writeln!(out, "{text}");
    };
    let addresses = &config.addresses;
    let tls = &config.tls;
    if tls.files().is_some() {
        line(format!("TLS cipher suite: {}", tls.cipher_suites.join(":")));
    }
    if tls.dtls_files().is_some() {
        // DTLS is version 1.2 here, and those cipher suites belong to TLS 1.3.
        let suites = tls.cipher_suites.iter().copied();
        let suites: Vec<_> = suites.filter(|name| !name.starts_with("TLS_")).collect();
        line(format!("DTLS cipher suite: {}", suites.join(":")));
    } else if tls.wanted && !tls.dtls_wanted {
        line("DTLS listeners are not started; use --dtls to start them".to_owned());
    }
    if config.authentication.requests.nonce_secret.is_some() {
        line("Stateless nonce key derived from the configured secret".to_owned());
    }
    for listener in &addresses.listeners {
        line(format!("Listener address to use: {}", listener.ip()));
    }
    for relay in &addresses.relays {
        line(format!("Relay address to use: {relay}"));
    }
    line(format!(
        "Default realm: {}",
        config.authentication.realm.escape_debug()
    ));
    line("Wait for relay ports initialization...".to_owned());
    for relay in &addresses.relays {
        line(format!("  relay {relay} initialization..."));
        line(format!("  relay {relay} initialization done"));
    }
    line("Relay ports initialization done".to_owned());
    for thread in 0..threads {
        line(format!("turn server id={thread} created"));
    }
    let tls = match config.tls.files() {
        Some(_) => "TLS/",
        None => "",
    };
    for listener in &listening.streams {
        line(format!(
            "{} {tls}TCP listener opened on : {listener}",
            family(listener)
        ));
    }
    let dtls = match config.tls.dtls_files() {
        Some(_) => "DTLS/",
        None => "",
    };
    for listener in &listening.datagrams {
        line(format!(
            "{} {dtls}UDP listener opened on: {listener}",
            family(listener)
        ));
    }
    line(format!("Total General servers: {threads}"));
    if let Some(database) = config
        .authentication
        .database
        .as_ref()
        .filter(|_| has_database)
    {
        line(format!(
            "{} DB connection success: {}",
            database.source.kind(),
            database.source
        ));
    }
}

/// Prints the line that scripts wait for before they start clients. It names each shard as one authentication thread, because each shard
/// authenticates its own clients.
pub(super) fn ready_as_coturn(threads: usize, out: &mut impl Write) {
    let _ = writeln!(out, "Total auth threads: {threads}");
}

fn family(listener: &SocketAddr) -> &'static str {
    match listener {
        SocketAddr::V4(_) => "IPv4.",
        SocketAddr::V6(_) => "IPv6.",
    }
}
