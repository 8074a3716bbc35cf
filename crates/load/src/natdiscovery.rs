//! `turnutils_natdiscovery`: how a translator on the way maps, filters and keeps, with the flags and the lines of coturn's.
//!
//! Read [`Tests`]: one method per test, in the steps of RFC 5780 §4. Each begins with a port that nobody has heard of, because what
//! went before decides what a filter lets in.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use lexopt::{Arg, Parser, ValueExt as _};
use turnbuckle_wire::ChangeRequest;

use crate::flags::{Wrong, address, number};
use crate::output;
use crate::reflection::report::{ReflectionReport, title, verdict};
use crate::reflection::{Ask, Failure, Port, Reflection};
use crate::stop::Stop;
use crate::stunclient::server_address;

/// How long an answer is awaited, as in the original.
const TIMEOUT: Duration = Duration::from_secs(3);

const USAGE: &str = "\
Usage: turnutils_natdiscovery [options] address
Options:
  -m  Find out how the translator maps.
  -f  Find out how the translator filters.
  -t  Find out whether a mapping lives for -T seconds without traffic.
  -c  Find out what becomes of one port of two addresses (needs -A).
  -H  Find out whether the translator leads its own addresses back (hairpinning).
  -P  With 1500 bytes of PADDING, in all tests but -t.
  -p  Server port (default: 3478).
  -L  Local address.
  -l  Local port (with -L).
  -A  The other local address of -c.
  -T  Seconds of -t.
";

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Options {
    local: Option<IpAddr>,
    local_port: u16,
    is_padded: bool,
    tries_mapping: bool,
    tries_filtering: bool,
    /// Seconds.
    lifetime: Option<u64>,
    /// The other local address.
    collision: Option<IpAddr>,
    tries_hairpinning: bool,
}

/// Runs the tests with the flags of turnutils_natdiscovery, without the program's name. As there, the exit code is 0 whatever was found out.
///
/// # Errors
/// The host has no such local address, or no way to the server.
pub fn run(words: impl IntoIterator<Item = OsString>) -> anyhow::Result<ExitCode> {
    let (options, server) = match Options::parse(words) {
        Ok(parsed) => parsed,
        Err(problem) => {
            output::note(&format!("turnutils_natdiscovery: {problem}\n{USAGE}"));
            return Ok(problem.exit_code());
        }
    };
    let mut tests = Tests {
        server,
        report: ReflectionReport::start(),
        options: &options,
    };
    if options.tries_mapping {
        printed(tests.mapping())?;
    }
    if options.tries_filtering {
        printed(tests.filtering())?;
    }
    if let Some(seconds) = options.lifetime {
        printed(tests.lifetime(Duration::from_secs(seconds)))?;
    }
    if options.tries_hairpinning {
        printed(tests.hairpinning())?;
    }
    if let Some(other) = options.collision {
        printed(tests.collision(other))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints why a test went no further; what the host cannot do ends the program.
fn printed(result: Result<(), Failure>) -> anyhow::Result<()> {
    match result {
        Ok(()) => Ok(()),
        Err(Failure::Io(error)) => Err(error.into()),
        Err(failure) => {
            output::line(&failure.to_string());
            Ok(())
        }
    }
}

/// The tests of RFC 5780 §4, and those of coturn's program besides.
struct Tests<'a> {
    server: SocketAddr,
    report: ReflectionReport,
    options: &'a Options,
}

impl Tests<'_> {
    /// Finds out how a NAT maps addresses (RFC 5780 §4.3).
    fn mapping(&mut self) -> Result<(), Failure> {
        title("Mapping Behavior Discovery");
        let port = self.port()?;
        let Some((first, other)) = self.introduction(&port)? else {
            return Ok(());
        };
        if first.xor_mapped == port.local {
            verdict("No NAT! (Endpoint Independent Mapping)");
            return Ok(());
        }
        let other_address = SocketAddr::new(other.ip(), self.server.port());
        let second = self.ask(&port, other_address, None)?;
        if second.xor_mapped == first.xor_mapped {
            verdict("NAT with Endpoint Independent Mapping!");
            return Ok(());
        }
        let third = self.ask(&port, other, None)?;
        verdict(if third.xor_mapped == second.xor_mapped {
            "NAT with Address Dependent Mapping!"
        } else {
            "NAT with Address and Port Dependent Mapping!"
        });
        Ok(())
    }

    /// Finds out how a NAT filters datagrams (RFC 5780 §4.4).
    fn filtering(&mut self) -> Result<(), Failure> {
        title("Filtering Behavior Discovery");
        let port = self.port()?;
        if self.introduction(&port)?.is_none() {
            return Ok(());
        }
        for (change_ip, found) in [
            (true, "NAT with Endpoint Independent Filtering!"),
            (false, "NAT with Address Dependent Filtering!"),
        ] {
            let change = ChangeRequest {
                change_ip,
                change_port: true,
            };
            match self.ask(&port, self.server, Some(change)) {
                Ok(_) => {
                    verdict(found);
                    return Ok(());
                }
                Err(failure @ Failure::Timeout) => output::line(&failure.to_string()),
                Err(failure) => return Err(failure),
            }
        }
        verdict("NAT with Address and Port Dependent Filtering!");
        Ok(())
    }

    /// Tries one lifetime of a mapping (RFC 5780 §4.6): an answer says that the mapping was still there.
    fn lifetime(&mut self, idle: Duration) -> Result<(), Failure> {
        title("Mapping Lifetime Behavior Discovery");
        let idling = self.port()?;
        let plain = Ask::default();
        let first = idling.ask(self.server, &plain, TIMEOUT, &Stop::default())?;
        self.report.answer(&first, Some(idling.local));
        std::thread::sleep(idle);
        let asking = self.fresh_port()?;
        let ask = Ask {
            response_port: Some(first.xor_mapped.port()),
            ..plain
        };
        let second = asking.ask_for(&idling, self.server, &ask, TIMEOUT, &Stop::default())?;
        self.report.answer(&second, Some(asking.local));
        Ok(())
    }

    /// Finds out whether a datagram to the address that the server sees comes back.
    fn hairpinning(&mut self) -> Result<(), Failure> {
        title("Hairpinning Behavior Discovery");
        let port = self.port()?;
        let first = self.ask(&port, self.server, None)?;
        let ask = Ask {
            is_padded: self.options.is_padded,
            ..Ask::default()
        };
        self.fresh_port()?
            .knock(&port, first.xor_mapped, &ask, TIMEOUT)?;
        output::line("Received a request (maybe a successful hairpinning)");
        Ok(())
    }

    /// Finds out what becomes of one port of two addresses.
    fn collision(&mut self, other: IpAddr) -> Result<(), Failure> {
        title("Collision Behavior Discovery");
        let one = self.port()?;
        self.ask(&one, self.server, None)?;
        let port = one.local.port();
        let other = Port::open(Some(other), port, self.server).map_err(Failure::Io)?;
        self.ask(&other, self.server, None)?;
        Ok(())
    }

    /// Sends the first request of a test, and returns the answer and the server's other address; `None` if it has none, which ends the test.
    fn introduction(&mut self, port: &Port) -> Result<Option<(Reflection, SocketAddr)>, Failure> {
        let first = self.ask(port, self.server, None)?;
        if first.other.is_none() {
            output::note(
                "turnutils_natdiscovery: the server names no other address (OTHER-ADDRESS), so that this cannot be found out",
            );
        }
        Ok(first.other.map(|other| (first, other)))
    }

    /// Asks from `port` and prints the answer.
    fn ask(
        &mut self,
        port: &Port,
        server: SocketAddr,
        change: Option<ChangeRequest>,
    ) -> Result<Reflection, Failure> {
        let ask = Ask {
            change,
            is_padded: self.options.is_padded,
            response_port: None,
        };
        let reflection = port.ask(server, &ask, TIMEOUT, &Stop::default())?;
        self.report.answer(&reflection, Some(port.local));
        Ok(reflection)
    }

    /// Opens the port that was asked for, or one that nobody has heard of.
    fn port(&self) -> Result<Port, Failure> {
        let Options {
            local, local_port, ..
        } = *self.options;
        Port::open(local, local_port, self.server).map_err(Failure::Io)
    }

    fn fresh_port(&self) -> Result<Port, Failure> {
        Port::open(self.options.local, 0, self.server).map_err(Failure::Io)
    }
}

impl Options {
    /// Reads the command line without the program's name.
    ///
    /// # Errors
    /// A sentence: which flag, what is wrong, what is allowed.
    fn parse(words: impl IntoIterator<Item = OsString>) -> Result<(Self, SocketAddr), Wrong> {
        let mut server = None;
        let mut port = 3478;
        let mut options = Self::default();
        let (mut other, mut seconds) = (None, None);
        let (mut tries_lifetime, mut tries_collision) = (false, false);
        let mut parser = Parser::from_args(words);
        while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
            match argument {
                Arg::Short('m') => options.tries_mapping = true,
                Arg::Short('f') => options.tries_filtering = true,
                Arg::Short('t') => tries_lifetime = true,
                Arg::Short('c') => tries_collision = true,
                Arg::Short('H') => options.tries_hairpinning = true,
                Arg::Short('P') => options.is_padded = true,
                Arg::Short('p') => port = number("-p", &mut parser, 1, u16::MAX)?,
                Arg::Short('L') => options.local = Some(address("-L", &mut parser)?),
                Arg::Short('l') => options.local_port = number("-l", &mut parser, 1, u16::MAX)?,
                Arg::Short('A') => other = Some(address("-A", &mut parser)?),
                Arg::Short('T') => seconds = Some(number("-T", &mut parser, 1, 86_400)?),
                Arg::Value(value) if server.is_none() => {
                    server = Some(value.string().map_err(|error| error.to_string())?);
                }
                unexpected => return Err(Wrong::unknown(unexpected)),
            }
        }
        if tries_lifetime {
            options.lifetime = Some(seconds.ok_or("-t: the seconds are missing; give -T")?);
        }
        if tries_collision {
            options.collision = Some(other.ok_or("-c: the other address is missing; give -A")?);
        }
        if options.local_port != 0 && options.local.is_none() {
            return Err("-l: the local address is missing; give -L".into());
        }
        let tries_something = options.tries_mapping
            || options.tries_filtering
            || options.tries_hairpinning
            || tries_lifetime
            || tries_collision;
        if !tries_something {
            return Err("give one or more of -m, -f, -t, -c and -H".into());
        }
        let server = server.ok_or("the address of the server is missing")?;
        let server = server_address(&server, port, options.local)?;
        Ok((options, server))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<(Options, SocketAddr), Wrong> {
        Options::parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn each_flag_asks_for_its_test() {
        let (options, server) =
            parse("-mfHP -t -T 20 -c -A 192.0.2.9 -L 192.0.2.8 -l 5555 -p 4000 192.0.2.1").unwrap();
        assert_eq!(server, "192.0.2.1:4000".parse().unwrap());
        assert_eq!(
            options,
            Options {
                local: Some("192.0.2.8".parse().unwrap()),
                local_port: 5555,
                is_padded: true,
                tries_mapping: true,
                tries_filtering: true,
                lifetime: Some(20),
                collision: Some("192.0.2.9".parse().unwrap()),
                tries_hairpinning: true,
            }
        );
        let (options, server) = parse("-m 192.0.2.1").unwrap();
        assert_eq!(server.port(), 3478);
        assert_eq!((options.lifetime, options.collision), (None, None));
    }

    #[test]
    fn a_test_without_what_it_needs_is_refused() {
        for (line, expected) in [
            ("192.0.2.1", "one or more of -m"),
            ("-m", "address of the server is missing"),
            ("-t 192.0.2.1", "give -T"),
            ("-c 192.0.2.1", "give -A"),
            ("-m -l 5555 192.0.2.1", "give -L"),
            ("-t -T 0 192.0.2.1", "allowed: 1 to 86400"),
            ("-m --what 192.0.2.1", "--what"),
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
