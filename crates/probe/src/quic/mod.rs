//! `turnbuckle probe quic`: the rules of QUIC (RFC 9000, 9001) that a server has to hold against clients that do not, tried against any of them.
//!
//! [`rules`] has what a connection is closed for, [`strangers`] what those get who have proven nothing, [`floods`] what a connection may be made to do
//! very often. The client is made by hand ([`link`], [`wire`]), because no stack sends any of it.

mod floods;
mod link;
mod rules;
mod strangers;
mod wire;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use turnbuckle_client::certificates::{Signatures, taking_any};
use turnbuckle_client::server_address;

use self::link::{Link, Offer};
use crate::output;
use crate::report::{Report, Verdict};

/// Command line of `turnbuckle probe quic`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Arguments {
    /// The server's address; its port is 3478 unless given
    #[arg(value_name = "ADDRESS[:PORT]", value_parser = server_address, required_unless_present = "list")]
    server: Option<SocketAddr>,
    /// The protocol that is asked for (ALPN)
    #[arg(long, value_name = "NAME", default_value = "h3")]
    alpn: String,
    /// The name that is asked for; its certificate is not checked
    #[arg(long, value_name = "NAME", default_value = "relay.example.org")]
    server_name: String,
    /// Frames of each flood
    #[arg(long, value_name = "COUNT", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    frames: u32,
    /// How long an answer may take, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(50..=60_000))]
    patience_ms: u32,
    /// Only the rows whose rule begins so, as in 'RFC 9000 §19'
    #[arg(long, value_name = "RULE", default_value = "")]
    only: String,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
    /// Print all rows, and end
    #[arg(long)]
    list: bool,
}

/// What all rows need.
struct Context {
    server: SocketAddr,
    offer: Offer,
    patience: Duration,
    frames: u32,
}

impl Context {
    /// Prepares a connection with the usual offer.
    fn link(&self) -> anyhow::Result<Link> {
        Link::new(self.server, &self.offer)
    }

    /// Shakes hands as a client should.
    fn connected(&self) -> Result<Link, Verdict> {
        let mut link = self.link().map_err(|error| unable(&error))?;
        match link.shake(self.patience) {
            true => Ok(link),
            false => Err(Verdict::Failed(format!(
                "a handshake by the rules failed: {}",
                said(&link)
            ))),
        }
    }

    /// Returns that the server held, if it still shakes hands.
    fn still_serves(&self, text: impl Into<String>) -> Verdict {
        match self.connected() {
            Ok(_) => Verdict::Held(text.into()),
            Err(verdict) => verdict,
        }
    }
}

/// One thing that is tried.
struct Row {
    /// The rule that it is about.
    rule: &'static str,
    what: &'static str,
    act: fn(&Context) -> Verdict,
}

fn rows() -> impl Iterator<Item = &'static Row> {
    rules::ROWS
        .iter()
        .chain(strangers::ROWS)
        .chain(floods::ROWS)
}

/// Runs it; the exit code says whether the server held.
///
/// # Errors
/// The server does not shake hands at all.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if arguments.list {
        for row in rows() {
            output::line(&format!("{:<18} {}", row.rule, row.what));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let Some(server) = arguments.server else {
        bail!("takes a server's address");
    };
    let started = Instant::now();
    let context = Context {
        server,
        offer: offer(arguments)?,
        patience: Duration::from_millis(arguments.patience_ms.into()),
        frames: arguments.frames,
    };
    if let Err(Verdict::Failed(text) | Verdict::NotTried(text)) = context.connected() {
        bail!(
            "{server} is no server of QUIC version 1 with {}: {text}",
            arguments.alpn
        );
    }
    let mut report = Report::default();
    for row in rows().filter(|row| row.rule.starts_with(&arguments.only)) {
        report.add(row.rule, row.what, None, (row.act)(&context));
    }
    let seconds = started.elapsed().as_secs_f64();
    if arguments.json {
        report.print_json(seconds);
    } else {
        report.print(seconds);
    }
    Ok(match report.is_clean() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn offer(arguments: &Arguments) -> anyhow::Result<Offer> {
    let mut tls = taking_any(Signatures::Checked)?;
    tls.alpn_protocols = vec![arguments.alpn.clone().into_bytes()];
    // For packets with early data, where a server takes them.
    tls.resumption = Resumption::in_memory_sessions(16);
    tls.enable_early_data = true;
    let name = ServerName::try_from(arguments.server_name.clone());
    Ok(Offer {
        tls: Arc::new(tls),
        name: name.context("--server-name")?,
        parameters: rules::parameters(),
        names_source: true,
        has_parameters: true,
        id_len: 8,
        token: Vec::new(),
    })
}

/// Says what has become of a connection.
fn said(link: &Link) -> String {
    match link.seen.closed {
        Some((code, false)) => format!("closed with {code:#06x}"),
        Some((code, true)) => format!("closed by the application with {code:#06x}"),
        None if link.seen.datagrams_in == 0 => "nothing came".to_owned(),
        None => "it went on".to_owned(),
    }
}

fn unable(error: &anyhow::Error) -> Verdict {
    Verdict::NotTried(error.to_string())
}
