//! `turnbuckle probe`: what has gone wrong in TURN servers, tried against any of them.
//!
//! The matrix ([`matrix`]) names every peer that no client should reach, by every path, in every spelling; canaries on the server's
//! host hear what gets through all the same. The other attacks are those that need nothing but the server's address
//! and one or two users; each is tried by every transport that it concerns. Rows are those of the threat list (`threats.txt`); `--list` says which can be
//! tried from outside.
//!
//! A run opens a few hundred allocations for moments and sends some megabytes; attacks of many strangers go as far as they are told to. It is not meant for
//! servers of others.

mod addresses;
mod attacks;
mod canary;
mod link;
mod list;
mod matrix;
pub(crate) mod negative;
mod report;
mod session;
mod statistics;

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use self::canary::Canary;
use self::link::Transport;
use self::report::Report;
use self::session::{Session, Target};
use crate::client::Credentials;
use crate::load::server_address;

/// Command line of `turnbuckle probe`.
#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// The server's address; its port is 3478 unless given
    #[arg(value_name = "ADDRESS[:PORT]", value_parser = server_address, required_unless_present = "list")]
    server: Option<SocketAddr>,
    /// A user and its password
    #[arg(long, value_name = "NAME:PASSWORD", value_parser = user, required_unless_present = "list")]
    user: Option<Credentials>,
    /// Another user of the server, for attacks on the first one's allocation
    #[arg(long, value_name = "NAME:PASSWORD", value_parser = user)]
    other_user: Option<Credentials>,
    /// The shared secret of time-limited users, for names that have expired
    #[arg(long)]
    secret: Option<String>,
    /// How many allocations a user may have, to ask for more
    #[arg(long, value_name = "COUNT")]
    quota: Option<usize>,
    /// Try only these, as far as the server speaks them
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Transport::ALL)]
    transports: Vec<Transport>,
    /// Where the server speaks TLS and DTLS
    #[arg(long, value_name = "PORT", default_value_t = TLS_PORT)]
    tls_port: u16,
    /// Listen on this port of every address of this host, by UDP and TCP, and say what arrives: for runs on the server's own host; probes
    /// name the port even when nobody listens
    #[arg(long, value_name = "PORT")]
    canary: Option<u16>,
    /// A peer's address that the server may reach and the canary hears, to show that it does hear; may be given several times
    #[arg(long, value_name = "ADDRESS", requires = "canary")]
    allowed: Vec<IpAddr>,
    /// Connects to closed and to silent ports, of each, whose failures are timed (V-12)
    #[arg(long, value_name = "COUNT", default_value_t = 24)]
    connects: usize,
    /// Strangers in the attacks of many at once, from 1 to 60,000
    #[arg(long, value_name = "COUNT", default_value_t = 200, value_parser = clap::value_parser!(u16).range(1..=60_000))]
    strangers: u16,
    /// An address of this host that they come from; may be given several times
    #[arg(long = "source", value_name = "ADDRESS")]
    sources: Vec<IpAddr>,
    /// Connections per second that a slow client's has to compete with, from 1 to 100,000
    #[arg(long, value_name = "COUNT", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    flood_rate: u32,
    /// How long each of their attacks lasts, from 1 to 600 seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=600))]
    attack_seconds: u16,
    /// Only the attacks of many strangers, and all at the same time
    #[arg(long, conflicts_with = "quick")]
    only_strangers: bool,
    /// Only the rows whose id begins so, as in V-0 or V-40
    #[arg(long, value_name = "ID", default_value = "")]
    only: String,
    /// Leave out what has to wait for deadlines of the server (some 40 seconds)
    #[arg(long)]
    quick: bool,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
    /// Print all rows of the threat list and how each is tried, and end
    #[arg(long)]
    list: bool,
}

fn user(text: &str) -> Result<Credentials, String> {
    match text.split_once(':') {
        Some((name, password)) if !name.is_empty() && !password.is_empty() => {
            Ok(Credentials::user(name, password))
        }
        _ => Err("allowed: a name, a colon, a password".to_owned()),
    }
}

/// Everything that the attacks share.
struct Context {
    target: Target,
    /// What the server speaks, of what is to be tried; never nothing.
    transports: Vec<Transport>,
    other_user: Option<Credentials>,
    secret: Option<String>,
    quota: Option<usize>,
    connects: usize,
    canary: Option<Canary>,
    /// The port of forbidden peers.
    port: u16,
    allowed: Vec<IpAddr>,
    only: String,
    quick: bool,
    /// How many strangers there are in attacks of many, where they come from, and for how long.
    strangers: usize,
    sources: Vec<IpAddr>,
    flood_rate: u32,
    attack_time: Duration,
    only_strangers: bool,
}

impl Context {
    fn wants(&self, row: &str) -> bool {
        row.starts_with(&self.only)
    }

    fn speaks(&self, transport: Transport) -> bool {
        self.transports.contains(&transport)
    }

    /// The transport of what is tried by one alone.
    fn first(&self) -> Transport {
        self.transports.first().copied().unwrap_or(Transport::Udp)
    }
}

/// Where TLS and DTLS are spoken (RFC 8656 §3.1).
const TLS_PORT: u16 = 5349;
/// The port of peers when no canary listens.
const PORT: u16 = 7000;

/// Runs the attacks; the exit code says whether the server held.
///
/// # Errors
/// The server does not answer or does not know the user, or the canary's port is taken.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if arguments.list {
        list::print();
        return Ok(ExitCode::SUCCESS);
    }
    let (Some(server), Some(user)) = (arguments.server, arguments.user.clone()) else {
        bail!("takes a server's address and a user");
    };
    crate::connections::raise_descriptor_limit();
    let started = Instant::now();
    let canary = arguments.canary.map(Canary::everywhere).transpose();
    let canary = canary.context("cannot listen for the canary")?;
    let target = Target::new(server, arguments.tls_port, user)?;
    let mut report = Report::default();
    let transports = greet(&target, &arguments.transports, &mut report)?;
    let context = Context {
        target,
        transports,
        other_user: arguments.other_user.clone(),
        secret: arguments.secret.clone(),
        quota: arguments.quota,
        connects: arguments.connects,
        port: canary.as_ref().map_or(PORT, Canary::port),
        canary,
        allowed: arguments.allowed.clone(),
        only: arguments.only.clone(),
        quick: arguments.quick,
        strangers: arguments.strangers.into(),
        sources: arguments.sources.clone(),
        flood_rate: arguments.flood_rate,
        attack_time: Duration::from_secs(arguments.attack_seconds.into()),
        only_strangers: arguments.only_strangers,
    };
    if !context.only_strangers && matrix::ROWS.iter().any(|(row, _)| context.wants(row)) {
        matrix::run(&context, &mut report)?;
    }
    attacks::run(&context, &mut report);
    let seconds = started.elapsed().as_secs_f64();
    if arguments.json {
        report.print_json(seconds);
    } else {
        report.print(seconds);
    }
    Ok(if report.is_clean() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Makes sure that the server is there and knows the user, so that a refusal later on means something. Returns by what it can be spoken to.
fn greet(
    target: &Target,
    wanted: &[Transport],
    report: &mut Report,
) -> anyhow::Result<Vec<Transport>> {
    let mut spoken = Vec::new();
    for &transport in wanted {
        let address = target.address(transport);
        let name = transport.name();
        match Session::over(target, transport).map(|mut session| {
            let allocated = session.allocate(session::UDP, |_| {});
            let _ = session.refresh(0);
            allocated
        }) {
            Ok(Ok(_)) => spoken.push(transport),
            Ok(Err(0)) => report.note(format!("not tried by {name}: {address} does not answer")),
            Ok(Err(code)) => bail!(
                "{address} answers the user's Allocate by {name} with {code}; attacks need a user who may allocate"
            ),
            Err(error) => report.note(format!("not tried by {name}: {address}: {error}")),
        }
    }
    if spoken.is_empty() {
        bail!("{} does not answer", target.server);
    }
    Ok(spoken)
}
