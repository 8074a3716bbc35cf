//! The `turnbuckle` command line.
//!
//! Subcommands are clap's; the options of `serve` and `check` are those of the option table in `turnbuckle_server::config` and pass through unread.
#![forbid(unsafe_code)]

mod adopts;
mod check;
mod doctor;
mod links;
mod options;
mod serve;
mod turnserver;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// TURN/STUN relay for Linux
#[derive(Parser)]
#[command(
    name = "turnbuckle",
    version,
    disable_help_subcommand = true,
    arg_required_else_help = true
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the relay (`turnbuckle serve --help` lists its options)
    #[command(disable_help_flag = true)]
    Serve {
        /// Options, as in a turnserver.conf with two dashes
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<OsString>,
    },
    /// Say what a configuration amounts to, what is refused and what differs from coturn; exit code 1 if it is refused
    #[command(disable_help_flag = true)]
    Check {
        /// File, then options of `serve`; `--as turnserver` for those of coturn, `--all` for the defaults too, `--json` for a report that programs read
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<OsString>,
    },
    /// Say what this machine offers a configuration, for relaying in the kernel above all; exit code 1 if something it insists on is missing
    #[command(disable_help_flag = true)]
    Doctor {
        /// File, then options of `serve`; `--json` for a report that programs read
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<OsString>,
    },
    /// Say whether this program could take over from a relay that runs; started by that relay's keeper alone
    #[command(disable_help_flag = true, hide = true)]
    Adopts {
        /// Number of a descriptor, then the command line of the relay
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
    Ctl(turnbuckle_control::ctl::Arguments),
    /// Put links with coturn's names to this program into a directory: started by them it is turnserver, turnadmin and the turnutils
    InstallLinks(links::Arguments),
    /// Print the option table
    Options(options::Arguments),
    /// Put load on a relay and count what becomes of every packet
    Load(Box<turnbuckle_load::load::Arguments>),
    /// Stand behind a relay while it is measured: reflect, swallow, or send by itself
    Peer(turnbuckle_load::peer::Arguments),
    /// Accept connections as fast as possible and count them; the other end is connect-client
    AcceptServer(turnbuckle_load::connections::AcceptServer),
    /// Connect as fast as possible and print connections per second
    ConnectClient(turnbuckle_load::connections::ConnectClient),
    /// Take QUIC connections, and swallow and send bytes over them; the other end is quic-client
    QuicServer(turnbuckle_load::quic::ServerArguments),
    /// Move bytes over QUIC connections, check each of them, and print how fast they went
    QuicClient(turnbuckle_load::quic::ClientArguments),
    /// Stand between clients and a server as a path that delays, loses and reorders datagrams
    Link(turnbuckle_load::link::Arguments),
    /// Attack a server with what has gone wrong in others, and say where it held; exit code 1 if it did not
    Probe(Box<turnbuckle_probe::Arguments>),
    Bench(Box<turnbuckle_lab::Arguments>),
}

fn main() -> ExitCode {
    let mut words = std::env::args_os();
    let program = words.next().unwrap_or_default();
    let name = Path::new(&program).file_name().unwrap_or_default();
    // Started by one of coturn's names, the binary is that program.
    let result = match name.to_str() {
        Some("turnutils_natdiscovery") => turnbuckle_load::natdiscovery::run(words),
        Some("turnutils_peer") => turnbuckle_load::peer::run_as_coturns(words),
        Some("turnutils_stunclient") => turnbuckle_load::stunclient::run(words),
        Some("turnutils_uclient") => turnbuckle_load::uclient::run(words),
        Some("turnserver") => turnserver::run(words),
        Some("turnadmin") => Ok(ExitCode::from(turnbuckle_server::turnadmin(
            words,
            &mut io::stdout(),
            &mut io::stderr(),
        ))),
        _ => subcommand(),
    };
    result.unwrap_or_else(|error| {
        // Nothing is left to be said if standard error is gone too.
        let _ = writeln!(io::stderr(), "{}: {error:#}", name.display());
        match name.to_str() {
            Some(name) if name.starts_with("turnutils_") => ExitCode::from(255), // as coturn's
            _ => ExitCode::FAILURE,
        }
    })
}

fn subcommand() -> anyhow::Result<ExitCode> {
    match Arguments::parse().command {
        Command::Serve { options } => serve::run(options),
        Command::Check { options } => check::run(options),
        Command::Doctor { options } => doctor::run(options),
        Command::Adopts { words } => adopts::run(words),
        Command::Ctl(arguments) => Ok(turnbuckle_control::ctl::run(&arguments)?),
        Command::InstallLinks(arguments) => links::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Options(arguments) => options::run(&arguments),
        Command::Load(arguments) => turnbuckle_load::load::run(&arguments),
        Command::Peer(arguments) => turnbuckle_load::peer::run(&arguments),
        Command::AcceptServer(arguments) => arguments.run(),
        Command::ConnectClient(arguments) => arguments.run(),
        Command::QuicServer(arguments) => turnbuckle_load::quic::serve(&arguments),
        Command::QuicClient(arguments) => turnbuckle_load::quic::measure(&arguments),
        Command::Link(arguments) => turnbuckle_load::link::run(&arguments),
        Command::Probe(arguments) => turnbuckle_probe::run(&arguments),
        Command::Bench(arguments) => turnbuckle_lab::run(&arguments).map(|all_measured| {
            if all_measured {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }),
    }
}

/// Prints to standard output; a reader that went away is no failure.
fn print(text: &str) -> io::Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Returns the columns for help texts: the terminal's, at least 60 and at most 100.
fn width() -> usize {
    let columns =
        rustix::termios::tcgetwinsize(io::stdout()).map_or(80, |size| usize::from(size.ws_col));
    if columns == 0 {
        80
    } else {
        columns.clamp(60, 100)
    }
}

/// Returns the line that `--version` prints.
fn version() -> String {
    format!("turnbuckle {}\n", env!("CARGO_PKG_VERSION"))
}
