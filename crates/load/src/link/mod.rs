//! `turnbuckle link`: a path that delays, loses, reorders and corrupts datagrams, the same ones in each run of one seed.
//!
//! It stands between clients and a server, as a NAT does: each client gets a socket of its own towards the server, and after so many datagrams another one,
//! if that is wanted. `fate` decides what becomes of a datagram and touches no socket; `path` moves them. A kernel without netem needs no more than this.

mod fate;
mod path;

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::json;

use self::fate::{Counts, Rules};
use self::path::Path;
use crate::output;
use crate::stop::Stop;

/// Command line of `turnbuckle link`.
#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// Address at which clients' datagrams arrive
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// Address of the server
    #[arg(long, value_name = "ADDRESS:PORT")]
    to: SocketAddr,
    #[command(flatten)]
    what: What,
    /// Number that what becomes of datagrams follows from
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print events as lines of JSON
    #[arg(long)]
    json: bool,
}

/// What becomes of datagrams, on the command line.
#[derive(clap::Args, Clone, Debug)]
struct What {
    /// Time that every datagram takes, one way
    #[arg(long, value_name = "MS", default_value = "0", value_parser = milliseconds)]
    delay: Duration,
    /// Datagrams of a hundred that are lost, each way
    #[arg(long, value_name = "PERCENT", default_value = "0", value_parser = percent)]
    loss: f64,
    /// Datagrams of a hundred that are late, each way: others overtake them
    #[arg(long, value_name = "PERCENT", default_value = "0", value_parser = percent)]
    late: f64,
    /// How late those are
    #[arg(long, value_name = "MS", default_value = "5", value_parser = milliseconds)]
    late_by: Duration,
    /// Datagrams of a hundred that arrive with one bit changed, each way
    #[arg(long, value_name = "PERCENT", default_value = "0", value_parser = percent)]
    corrupt: f64,
    /// Datagrams of a client after which its come from another port, as after a NAT has forgotten it; 0: never
    #[arg(long, value_name = "N", default_value_t = 0)]
    rebind_after: u64,
    /// Address that they come from then; without it the same
    #[arg(long, value_name = "ADDRESS", requires = "rebind_after")]
    rebind_to: Option<IpAddr>,
    /// Datagrams, both ways, after which none arrives for a while, once; 0: never
    #[arg(long, value_name = "N", default_value_t = 0)]
    silent_after: u64,
    /// How long that while is
    #[arg(long, value_name = "MS", default_value = "2000", value_parser = milliseconds)]
    silent_for: Duration,
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(ms) if (0.0..=10_000.0).contains(&ms) => Ok(Duration::from_secs_f64(ms / 1e3)),
        _ => Err("allowed: 0 to 10000 milliseconds".to_owned()),
    }
}

fn percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err("allowed: 0 to 100".to_owned()),
    }
}

/// Moves datagrams until it is told to stop.
///
/// # Errors
/// The address cannot be bound, or waiting fails.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let what = &arguments.what;
    if let Some(address) = what.rebind_to {
        ensure!(
            address.is_ipv4() == arguments.to.is_ipv4(),
            "--rebind-to {address}: allowed is an address of the family of --to {}",
            arguments.to
        );
        std::net::UdpSocket::bind((address, 0))
            .with_context(|| format!("--rebind-to {address}"))?;
    }
    let stop = Stop::on_signals()?;
    let rules = Rules {
        delay: what.delay,
        loss: what.loss / 100.0,
        late: what.late / 100.0,
        late_by: what.late_by,
        corrupt: what.corrupt / 100.0,
        rebind_after: what.rebind_after,
        rebind_to: what.rebind_to,
        silent_after: what.silent_after,
        silent_for: what.silent_for,
    };
    let mut path = Path::new(arguments.listen, arguments.to, rules, arguments.seed)
        .with_context(|| format!("--listen {}", arguments.listen))?;
    let local = path.local()?;
    if arguments.json {
        output::event(
            &json!({"event": "ready", "listen": local.to_string(), "to": arguments.to.to_string()}),
        );
    } else {
        output::line(&format!("{local} to {}", arguments.to));
    }
    while !stop.is_ended() {
        path.turn()?;
    }
    finish(arguments.json, path.counts());
    Ok(ExitCode::SUCCESS)
}

fn finish(as_json: bool, counts: &Counts) {
    if as_json {
        output::event(&json!({
            "event": "result",
            "received_datagrams": counts.received,
            "sent_datagrams": counts.sent,
            "lost_datagrams": counts.lost(),
            "lost_up_datagrams": counts.lost_up,
            "lost_down_datagrams": counts.lost_down,
            "silenced_datagrams": counts.silenced,
            "late_datagrams": counts.late,
            "corrupt_datagrams": counts.corrupt,
            "dropped_datagrams": {
                "crowded": counts.crowded,
                "too_many_clients": counts.too_many_clients,
                "not_sent": counts.not_sent,
                "under_way": counts.under_way(),
            },
            "rebound_clients": counts.rebound,
        }));
    } else {
        output::line(&format!(
            "{} datagrams received, {} sent, {} lost up, {} down and {} while it was silent, {} late, {} corrupt, {} dropped for want of room, {} clients rebound",
            output::grouped(counts.received),
            output::grouped(counts.sent),
            output::grouped(counts.lost_up),
            output::grouped(counts.lost_down),
            output::grouped(counts.silenced),
            output::grouped(counts.late),
            output::grouped(counts.corrupt),
            counts.crowded + counts.too_many_clients + counts.not_sent,
            counts.rebound,
        ));
    }
}
