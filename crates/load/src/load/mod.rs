//! `turnbuckle load`: the load generator.
//!
//! Listener threads own the clients' sockets, speak TURN for them and count what comes back ([`listener`], whatever moves the messages:
//! [`udp`], [`streams`], [`dtls`]). Sender threads share the sockets of UDP and send nothing but data; a connection is read and written by one thread, so
//! there the listeners send as well, and so they do by DTLS. Each client has a socket of its own, so that a server's shards all get their part. Nothing is inferred: every
//! packet says whose it is, which one it is and when it was due ([`crate::packet`]), and what became of it is counted
//! ([`track`]).

mod access;
pub(crate) mod arguments;
mod drive;
mod driver;
mod dtls;
mod figures;
mod junk;
mod listener;
mod masque;
mod moves;
mod phase;
mod report;
mod roaming;
mod run;
mod sender;
mod sending;
mod session;
mod streams;
pub(crate) mod tcp_relay;
mod tls;
mod track;
mod udp;

use std::process::ExitCode;

use anyhow::bail;
use turnbuckle_client::descriptors;

pub use self::arguments::Arguments;
pub(crate) use self::arguments::Mode;
pub(crate) use self::report::{Summary, Totals};
pub(crate) use self::run::Run;
use crate::negative;
use crate::output;
use crate::stop::Stop;

/// Runs the generator.
///
/// # Errors
/// A socket cannot be opened, a thread not be placed, or no client gets an allocation.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if let Err(problem) = arguments.check() {
        output::note(&format!("turnbuckle load: {problem}"));
        return Ok(ExitCode::from(2));
    }
    match arguments.mode {
        Mode::Negative => return negative(arguments),
        Mode::TcpRelay => return tcp_relay::run(arguments),
        _ => {}
    }
    allow_descriptors(arguments.volume.clients);
    let stop = Stop::on_signals()?;
    // From the start: a server that does not answer is waited for as long as RFC 8489 §6.2.1 says, 39.5 s.
    let progress = report::Progress::new(arguments);
    let mut run = Run::open(arguments)?;
    run.open_clients()?;
    run.measure(&stop, &|now, totals| progress.show(now, totals));
    drop(progress);
    let report = run.finish()?;
    report.print();
    Ok(report.exit_code())
}

/// Runs the checks of [`negative::run`], which needs no threads.
fn negative(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let (Some(server), Some(credentials)) = (arguments.ends.server, arguments.who()?) else {
        bail!("no server, or nobody to be");
    };
    let report = negative::run(&negative::Task {
        server,
        credentials,
        peer: arguments.ends.peer.first().copied(),
        seed: arguments.seed(),
        groups: vec![negative::Group::Requests, negative::Group::Protocol],
    })?;
    report.print(arguments.verdict.json);
    Ok(if report.is_clean() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Lets this process have two descriptors per client and some besides, as far as the system allows.
pub(crate) fn allow_descriptors(clients: usize) {
    descriptors::allow(clients as u64 * 2 + 256);
}
