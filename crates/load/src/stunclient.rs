//! `turnutils_stunclient`: what a STUN server sees of this host, with the flags and the lines of coturn's.
//!
//! With `-c` requests go on until a signal and their delays are told. Where the server takes part in NAT behaviour discovery, or
//! with `-f`, two more requests try the rest of RFC 5780: an answer from the other address and port to a port that the
//! request names, and one with PADDING.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use lexopt::{Arg, Parser, ValueExt as _};
use turnbuckle_wire::ChangeRequest;

use crate::flags::{Wrong, address, number};
use crate::output;
use crate::reflection::report::ReflectionReport;
use crate::reflection::{Ask, Failure, Port};
use crate::stop::Stop;

const USAGE: &str = "\
Usage: turnutils_stunclient [options] address
Options:
  -p  Server port (default: 3478).
  -L  Local address.
  -f  Ask for all of RFC 5780, whether or not the server says that it has a second address.
  -c  Continuous: ask until a signal, then say how long answers took.
  -i  With -c, milliseconds from one request to the next (default: 1000).
  -t  Milliseconds to wait for an answer (default: 3000).
";

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Options {
    server: SocketAddr,
    local: Option<IpAddr>,
    is_forced: bool,
    is_continuous: bool,
    interval: Duration,
    timeout: Duration,
}

/// Runs the client with the flags of turnutils_stunclient, without the program's name.
///
/// # Errors
/// The host has no such local address, or no way to the server.
pub fn run(words: impl IntoIterator<Item = OsString>) -> anyhow::Result<ExitCode> {
    let options = match Options::parse(words) {
        Ok(options) => options,
        Err(problem) => {
            output::note(&format!("turnutils_stunclient: {problem}\n{USAGE}"));
            return Ok(problem.exit_code());
        }
    };
    let port = Port::open(options.local, 0, options.server)?;
    let result = if options.is_continuous {
        ask_on(&options, &port, &Stop::on_signals()?)
    } else {
        ask_once(&options, &port).map(|()| ExitCode::SUCCESS)
    };
    match result {
        Ok(code) => Ok(code),
        Err(Failure::Io(error)) => Err(error.into()),
        Err(failure) => {
            output::line(&failure.to_string());
            Ok(ExitCode::FAILURE)
        }
    }
}

fn ask_once(options: &Options, port: &Port) -> Result<(), Failure> {
    let ask =
        |port: &Port, ask: Ask| port.ask(options.server, &ask, options.timeout, &Stop::default());
    let mut report = ReflectionReport::start();
    let first = ask(port, Ask::default())?;
    report.answer(&first, None);
    if first.other.is_none() && !options.is_forced {
        return Ok(());
    }
    let change = Some(ChangeRequest {
        change_ip: true,
        change_port: true,
    });
    let second = ask(
        port,
        Ask {
            change,
            // The port that the first answer found, so that this also works behind a translator.
            response_port: Some(first.xor_mapped.port()),
            is_padded: false,
        },
    )?;
    report.answer(&second, None);
    let fresh = Port::open(options.local, 0, options.server).map_err(Failure::Io)?;
    let third = ask(
        &fresh,
        Ask {
            change,
            response_port: None,
            is_padded: true,
        },
    )?;
    report.answer(&third, None);
    Ok(())
}

/// Asks until a signal. The exit code says whether an answer ever came.
fn ask_on(options: &Options, port: &Port, stop: &Stop) -> Result<ExitCode, Failure> {
    let report = ReflectionReport::start();
    let mut seen = None;
    let (mut sent, mut delays) = (0_u64, Vec::new());
    let mut due = Instant::now();
    while !stop.is_ended() {
        sent += 1;
        match port.ask(options.server, &Ask::default(), options.timeout, stop) {
            Ok(reflection) => {
                if seen.replace(reflection.xor_mapped) != Some(reflection.xor_mapped) {
                    report.reflexive(reflection.xor_mapped);
                }
                let ms = reflection.delay.as_secs_f64() * 1e3;
                output::line(&format!("{sent}: time={ms:.3} ms"));
                delays.push(ms);
            }
            Err(Failure::Timeout) => {
                let ms = options.timeout.as_millis();
                output::line(&format!("{sent}: timeout after {ms} ms"));
            }
            Err(Failure::Ended) => {
                sent -= 1;
                break;
            }
            Err(failure) => return Err(failure),
        }
        due = (due + options.interval).max(Instant::now());
        while !stop.is_ended() && Instant::now() < due {
            let left = due.saturating_duration_since(Instant::now());
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
    }
    for line in statistics(sent, &delays) {
        output::line(&line);
    }
    Ok(match delays.is_empty() {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}

/// Returns the closing lines, for delays in milliseconds.
fn statistics(sent: u64, delays: &[f64]) -> Vec<String> {
    let received = delays.len();
    let lost = sent.saturating_sub(received as u64);
    let loss = lost as f64 * 100.0 / sent.max(1) as f64;
    let mut lines = vec![
        "\n--- A STUN latency statistics ---".to_owned(),
        format!("{sent} requests sent, {received} responses received, {loss:.1}% packet loss"),
    ];
    if received > 0 {
        let min = delays.iter().copied().fold(f64::INFINITY, f64::min);
        let max = delays.iter().copied().fold(0.0, f64::max);
        let mean = delays.iter().sum::<f64>() / received as f64;
        lines.push(format!(
            "round-trip min/avg/max = {min:.3}/{mean:.3}/{max:.3} ms"
        ));
    }
    lines
}

impl Options {
    /// Reads the command line without the program's name.
    ///
    /// # Errors
    /// A sentence: which flag, what is wrong, what is allowed.
    fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Self, Wrong> {
        let mut server = None;
        let mut port = 3478;
        let mut options = Self {
            server: SocketAddr::from(([0; 4], 0)),
            local: None,
            is_forced: false,
            is_continuous: false,
            interval: Duration::from_secs(1),
            timeout: Duration::from_secs(3),
        };
        let mut parser = Parser::from_args(words);
        while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
            match argument {
                Arg::Short('p') => port = number("-p", &mut parser, 1, u16::MAX)?,
                Arg::Short('L') => options.local = Some(address("-L", &mut parser)?),
                Arg::Short('f') => options.is_forced = true,
                Arg::Short('c') => options.is_continuous = true,
                Arg::Short('i') => {
                    let ms = number("-i", &mut parser, 1, 3_600_000)?;
                    options.interval = Duration::from_millis(ms);
                }
                Arg::Short('t') => {
                    let ms = number("-t", &mut parser, 1, 3_600_000)?;
                    options.timeout = Duration::from_millis(ms);
                }
                Arg::Value(value) if server.is_none() => {
                    server = Some(value.string().map_err(|error| error.to_string())?);
                }
                other => return Err(Wrong::unknown(other)),
            }
        }
        let server = server.ok_or("the address of the server is missing")?;
        options.server = server_address(&server, port, options.local)?;
        Ok(options)
    }
}

/// Looks up where `host` is, in the family of `local` if that is given.
pub(crate) fn server_address(
    host: &str,
    port: u16,
    local: Option<IpAddr>,
) -> Result<SocketAddr, String> {
    let found = (host, port).to_socket_addrs();
    let mut found = found.map_err(|error| format!("{host}: {error}"))?;
    let fits = |address: &SocketAddr| local.is_none_or(|ip| ip.is_ipv4() == address.is_ipv4());
    found
        .find(fits)
        .ok_or_else(|| format!("{host}: no address of the family of -L"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, Wrong> {
        Options::parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn flags_may_stand_anywhere_and_have_the_defaults_of_the_original() {
        let plain = parse("192.0.2.1").unwrap();
        assert_eq!(plain.server, "192.0.2.1:3478".parse().unwrap());
        assert_eq!(plain.timeout, Duration::from_secs(3));
        assert_eq!(plain.interval, Duration::from_secs(1));
        assert!(!plain.is_forced && !plain.is_continuous);
        let full = parse("-cf ::1 -p 4000 -i 20 -t300 -L ::2").unwrap();
        assert_eq!(full.server, "[::1]:4000".parse().unwrap());
        assert_eq!(full.local, Some("::2".parse().unwrap()));
        assert_eq!(full.interval, Duration::from_millis(20));
        assert_eq!(full.timeout, Duration::from_millis(300));
        assert!(full.is_forced && full.is_continuous);
    }

    #[test]
    fn a_wrong_line_is_refused_with_what_is_allowed() {
        for (line, expected) in [
            ("", "address of the server is missing"),
            ("192.0.2.1 192.0.2.2", "192.0.2.2"),
            ("-p 0 192.0.2.1", "-p 0: allowed: 1 to 65535"),
            ("-t never 192.0.2.1", "-t never: allowed: 1 to 3600000"),
            ("-x 192.0.2.1", "-x"),
            ("192.0.2.1 -L", "-L needs a value"),
            ("192.0.2.1 -L ::1", "no address of the family of -L"),
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }

    #[test]
    fn the_closing_lines_count_what_came_back() {
        assert_eq!(
            statistics(4, &[2.0, 1.0, 6.0]),
            [
                "\n--- A STUN latency statistics ---",
                "4 requests sent, 3 responses received, 25.0% packet loss",
                "round-trip min/avg/max = 1.000/3.000/6.000 ms",
            ]
        );
        assert_eq!(
            statistics(2, &[])[1..],
            ["2 requests sent, 0 responses received, 100.0% packet loss"]
        );
        assert!(statistics(0, &[])[1].contains("0 requests"));
    }
}
