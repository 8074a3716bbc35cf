//! `turnutils_peer`: the reflector with the flags of coturn's, on a port and the next one.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::thread;

use lexopt::{Arg, Parser};

use super::{Arguments, At, Mode, Running, TICK};
use crate::cli::{BackendChoice, Threads};
use crate::flags::{Wrong, address, number, text};
use crate::output;
use crate::stop::Stop;

const USAGE: &str = "\
Usage: turnutils_peer [options]
Options:
  -p  Port; the next one is served too (default: 3480).
  -d  Network interface to listen on.
  -L  Address to listen at; may be given several times (default: 0.0.0.0 and ::).
  -v  Say when it begins and ends.
";

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Options {
    port: u16,
    addresses: Vec<IpAddr>,
    device: Option<String>,
    is_verbose: bool,
}

/// Runs the reflector with the flags of turnutils_peer, without the program's name.
///
/// # Errors
/// An address cannot be bound, or an interface not be used.
pub fn run_as_coturns(words: impl IntoIterator<Item = OsString>) -> anyhow::Result<ExitCode> {
    let options = match Options::parse(words) {
        Ok(options) => options,
        Err(problem) => {
            output::note(&format!("turnutils_peer: {problem}\n{USAGE}"));
            return Ok(problem.exit_code());
        }
    };
    let stop = Stop::on_signals()?;
    let running = Running::start(&options.arguments(), &stop)?;
    if options.is_verbose {
        running.announce();
    }
    while !stop.is_ended() && !running.has_ended() {
        thread::sleep(TICK);
    }
    running.end(&stop)?;
    if options.is_verbose {
        output::line("ended");
    }
    Ok(ExitCode::SUCCESS)
}

impl Options {
    /// Reads the command line without the program's name.
    ///
    /// # Errors
    /// A sentence: which flag, what is wrong, what is allowed.
    fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Self, Wrong> {
        let mut options = Self {
            port: 3480,
            addresses: Vec::new(),
            device: None,
            is_verbose: false,
        };
        let mut parser = Parser::from_args(words);
        while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
            match argument {
                Arg::Short('p') => options.port = number("-p", &mut parser, 1, u16::MAX - 1)?,
                Arg::Short('d') => options.device = Some(text("-d", &mut parser)?),
                Arg::Short('L') => options.addresses.push(address("-L", &mut parser)?),
                Arg::Short('v') => options.is_verbose = true,
                other => return Err(Wrong::unknown(other)),
            }
        }
        if options.addresses.is_empty() {
            let any = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
            options.addresses.extend::<[IpAddr; 2]>(any);
        }
        Ok(options)
    }

    fn arguments(&self) -> Arguments {
        let ports = [self.port, self.port + 1];
        let listen = self.addresses.iter();
        Arguments {
            mode: Mode::Reflect,
            at: At {
                listen: listen
                    .flat_map(|&address| ports.map(|port| SocketAddr::new(address, port)))
                    .collect(),
                ports: 1,
            },
            threads: Threads::Auto,
            cpus: None,
            backend: BackendChoice::AUTO,
            coalesce_us: 0,
            rate: None,
            size: 120,
            duration: None,
            json: false,
            tcp: false,
            device: self.device.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, Wrong> {
        Options::parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn two_ports_at_every_address_of_both_families_unless_told_otherwise() {
        let listen = |line: &str| -> Vec<String> {
            let arguments = parse(line).unwrap().arguments();
            arguments
                .at
                .listen
                .iter()
                .map(ToString::to_string)
                .collect()
        };
        assert_eq!(
            listen(""),
            ["0.0.0.0:3480", "0.0.0.0:3481", "[::]:3480", "[::]:3481"]
        );
        assert_eq!(
            listen("-p 4000 -L 127.0.0.1 -L ::1 -v"),
            [
                "127.0.0.1:4000",
                "127.0.0.1:4001",
                "[::1]:4000",
                "[::1]:4001"
            ]
        );
        assert_eq!(parse("-d lo").unwrap().device.as_deref(), Some("lo"));
    }

    #[test]
    fn a_wrong_line_is_refused_with_what_is_allowed() {
        for (line, expected) in [
            ("-p 65535", "-p 65535: allowed: 1 to 65534"),
            ("-L", "-L needs a value"),
            ("127.0.0.1", "127.0.0.1"),
            ("-x", "-x"),
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
