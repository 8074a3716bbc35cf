//! `turnbuckle probe`: known vulnerabilities of TURN servers, tried against any of them.
//!
//! The matrix ([`matrix`]) names every peer that no client should reach, by every path, in every spelling. Canaries on the server's
//! host receive what gets through all the same. The same peers are targets of tunnels in HTTP ([`tunnels`]), for which a server need not
//! speak TURN. The other attacks need nothing but the server's address and one or two users. Each is tried by every transport that it
//! concerns. Rows are those of the threat list (`threats.txt`); `--list` shows which can be tried from outside.
//!
//! A run opens a few hundred allocations for moments and sends some megabytes. The command line sets the extent of attacks of many
//! strangers. A run is not meant for servers of others.

mod addresses;
mod arguments;
mod attacks;
mod canary;
mod context;
mod list;
mod matrix;
mod output;
mod quic;
mod report;
mod statistics;
mod tunnels;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, bail};
use turnbuckle_client::blocking::{Session, Target};
use turnbuckle_client::{Transport, UDP, descriptors};

pub use crate::arguments::Arguments;
use crate::arguments::{Door, Other};
use crate::canary::Canary;
use crate::context::Context;
use crate::report::Report;

/// Runs the attacks; the exit code says whether the server held.
///
/// # Errors
/// The server does not answer or does not know the user, the canary's port is taken, or a server of QUIC does not shake hands. Or the server opens
/// no tunnels, and nothing else is tried.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if let Some(Other::Quic(arguments)) = &arguments.other {
        return quic::run(arguments);
    }
    if arguments.list {
        list::print();
        return Ok(ExitCode::SUCCESS);
    }
    let (Some(server), Some(user)) = (arguments.server, arguments.users.user.clone()) else {
        bail!("takes a server's address and a user");
    };
    descriptors::raise_limit();
    let started = Instant::now();
    let canary = arguments.peers.canary.map(Canary::everywhere).transpose();
    let canary = canary.context("cannot listen for the canary")?;
    let target = Arc::new(Target::new(server, arguments.ways.tls_port, user)?);
    let mut report = Report::default();
    let is_turn = arguments.ways.doors.contains(&Door::Turn);
    if arguments.crowd.only_strangers && !is_turn {
        bail!(
            "--only-strangers: these attacks are of clients of TURN; --door has to name turn too"
        );
    }
    let transports = match is_turn {
        true => greet(&target, &arguments.ways.transports, &mut report)?,
        false => Vec::new(),
    };
    let context = Context::new(arguments, target, transports, canary);
    let is_alone = context.strangers.alone;
    if is_turn && !is_alone && matrix::ROWS.iter().any(|(row, _)| context.wants(row)) {
        matrix::run(&context, &mut report)?;
    }
    if is_turn {
        attacks::run(&context, &mut report);
    }
    if !is_alone && context.wants(tunnels::ROW.0) {
        let is_there = tunnels::run(&context, &arguments.ways, &mut report);
        if !is_turn && !is_there {
            bail!("{server} opens no tunnels: {}", report.notes().join("; "));
        }
    }
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
    target: &Arc<Target>,
    wanted: &[Transport],
    report: &mut Report,
) -> anyhow::Result<Vec<Transport>> {
    let mut spoken = Vec::new();
    for &transport in wanted {
        let address = target.address(transport);
        let name = transport.name();
        match Session::over(target, transport).map(|mut session| {
            let allocated = session.allocate(UDP, |_| {});
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
