//! The lines by which coturn says that it serves, for scripts that wait for them.

use std::io::Write;
use std::net::SocketAddr;

use crate::config::Config;
use crate::listening::Listening;

/// Writes them. What cannot be written is for nobody to read.
pub(crate) fn as_coturn(
    config: &Config,
    listening: &Listening,
    threads: usize,
    has_database: bool,
    out: &mut impl Write,
) {
    let mut line = |text: String| {
        let _ = writeln!(out, "{text}");
    };
    let addresses = &config.addresses;
    let tls = &config.tls;
    if tls.files().is_some() {
        line(format!("TLS cipher suite: {}", tls.cipher_suites.join(":")));
    }
    if tls.dtls_files().is_some() {
        // DTLS is 1.2 here, and those are suites of TLS 1.3.
        let suites = tls.cipher_suites.iter().copied();
        let suites: Vec<_> = suites.filter(|name| !name.starts_with("TLS_")).collect();
        line(format!("DTLS cipher suite: {}", suites.join(":")));
    } else if tls.wanted && !tls.dtls_wanted {
        line("DTLS listeners are not started; use --dtls to start them".to_owned());
    }
    if config.authentication.nonce_secret.is_some() {
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
            "SQLite DB connection success: {}",
            database.path.display()
        ));
    }
}

/// The line that scripts wait for before they let clients come; each shard authenticates those it serves.
pub(crate) fn ready_as_coturn(threads: usize, out: &mut impl Write) {
    let _ = writeln!(out, "Total auth threads: {threads}");
}

fn family(listener: &SocketAddr) -> &'static str {
    match listener {
        SocketAddr::V4(_) => "IPv4.",
        SocketAddr::V6(_) => "IPv6.",
    }
}
