//! `turnbuckle probe`: what has gone wrong in TURN servers, tried against any of them.
//!
//! The matrix ([`matrix`]) names every peer that no client should reach, by every path, in every spelling; canaries on the server's
//! host hear what gets through all the same. The other attacks are those that need nothing but the server's address
//! and one or two users. Rows are those of the threat list in the tests of this project.
//!
//! A run opens a few hundred allocations for moments and sends some megabytes; it is not meant for servers of others.

mod addresses;
mod attacks;
mod canary;
mod matrix;
pub(crate) mod negative;
mod report;
mod session;

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, bail};

use self::canary::Canary;
use self::report::Report;
use self::session::{Session, Target};
use crate::client::Credentials;
use crate::load::server_address;

/// Command line of `turnbuckle probe`.
#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// The server's address; its port is 3478 unless given
    #[arg(value_name = "ADDRESS[:PORT]", value_parser = server_address)]
    server: SocketAddr,
    /// A user and its password
    #[arg(long, value_name = "NAME:PASSWORD", value_parser = user)]
    user: Credentials,
    /// Another user of the server, for attacks on the first one's allocation
    #[arg(long, value_name = "NAME:PASSWORD", value_parser = user)]
    other_user: Option<Credentials>,
    /// Listen on this port of every address of this host, by UDP and TCP, and say what arrives: for runs on the server's own host; probes
    /// name the port even when nobody listens
    #[arg(long, value_name = "PORT")]
    canary: Option<u16>,
    /// A peer's address that the server may reach and the canary hears, to show that it does hear; may be given several times
    #[arg(long, value_name = "ADDRESS", requires = "canary")]
    allowed: Vec<IpAddr>,
    /// Only the rows whose id begins so, as in V-0 or V-40
    #[arg(long, value_name = "ID", default_value = "")]
    only: String,
    /// Leave out what has to wait for deadlines of the server (some 30 seconds)
    #[arg(long)]
    quick: bool,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
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
    other_user: Option<Credentials>,
    canary: Option<Canary>,
    /// The port of forbidden peers.
    port: u16,
    allowed: Vec<IpAddr>,
    only: String,
    quick: bool,
}

impl Context {
    fn wants(&self, row: &str) -> bool {
        row.starts_with(&self.only)
    }
}

/// The port of peers when no canary listens.
const PORT: u16 = 7000;

/// Runs the attacks; the exit code says whether the server held.
///
/// # Errors
/// The server does not answer or does not know the user, or the canary's port is taken.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let started = Instant::now();
    let canary = arguments.canary.map(Canary::everywhere).transpose();
    let canary = canary.context("cannot listen for the canary")?;
    let context = Context {
        target: Target {
            server: arguments.server,
            credentials: arguments.user.clone(),
            observed: RefCell::default(),
        },
        other_user: arguments.other_user.clone(),
        port: canary.as_ref().map_or(PORT, Canary::port),
        canary,
        allowed: arguments.allowed.clone(),
        only: arguments.only.clone(),
        quick: arguments.quick,
    };
    greet(&context)?;
    let mut report = Report::default();
    if [
        "V-01", "V-02", "V-03", "V-04", "V-05", "V-06", "V-07", "V-11",
    ]
    .iter()
    .any(|row| context.wants(row))
    {
        matrix::run(&context, &mut report)?;
    }
    attacks::run(&context, &mut report)?;
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

/// Makes sure that the server is there and knows the user, so that a refusal later on means something.
fn greet(context: &Context) -> anyhow::Result<()> {
    let mut session = Session::udp(&context.target)?;
    match session.allocate(session::UDP, |_| {}) {
        Ok(_) => {
            let _ = session.refresh(0);
            Ok(())
        }
        Err(0) => bail!("{} does not answer", context.target.server),
        Err(code) => bail!(
            "{} answers the user's Allocate with {code}; attacks need a user who may allocate",
            context.target.server
        ),
    }
}
