//! `turnutils_peer`: the reflector behind the flags of coturn's.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::process::ExitCode;

use lexopt::{Arg, Parser, ValueExt as _};

use super::{Arguments, Mode};
use crate::cli::{BackendChoice, Threads};
use crate::output;

const USAGE: &str = "\
Usage: turnutils_peer [options]
  -p  Port (default: 3480); the one behind it is served as well.
  -L  Address to receive at, may be given several times (default: all).
  -v  Say when it begins and what it did.
Not here, and refused: -d (a device).
";

/// Runs the reflector with the flags of turnutils_peer, without the program's name.
///
/// # Errors
/// What [`super::run`] returns.
pub fn run_as_turnutils_peer(
    words: impl IntoIterator<Item = OsString>,
) -> anyhow::Result<ExitCode> {
    match parse(words) {
        Ok(arguments) => super::run(&arguments),
        Err(problem) => {
            output::note(&format!("turnutils_peer: {problem}\n{USAGE}"));
            Ok(ExitCode::from(255))
        }
    }
}

fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Arguments, String> {
    let mut port = 3480_u16;
    let mut addresses = Vec::<IpAddr>::new();
    let mut is_verbose = false;
    let mut parser = Parser::from_args(words);
    while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
        match argument {
            Arg::Short('v') => is_verbose = true,
            Arg::Short('p') => {
                let value = parser.value().and_then(|value| value.string());
                port = value
                    .ok()
                    .and_then(|value| value.parse().ok())
                    .filter(|port| (1..u16::MAX).contains(port))
                    .ok_or("-p: allowed: 1 to 65534")?;
            }
            Arg::Short('L') => {
                let value = parser.value().and_then(|value| value.string());
                let address = value.ok().and_then(|value| value.parse().ok());
                addresses.push(address.ok_or("-L: allowed: an IP address")?);
            }
            Arg::Short('d') => return Err("-d: a device is not here; -L is".to_owned()),
            other => return Err(other.unexpected().to_string()),
        }
    }
    if addresses.is_empty() {
        addresses.push(Ipv4Addr::UNSPECIFIED.into());
        // A machine without IPv6 is no failure where nobody asked for it.
        if UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).is_ok() {
            addresses.push(Ipv6Addr::UNSPECIFIED.into());
        }
    }
    let ports = [port, port + 1];
    let listen = addresses
        .iter()
        .flat_map(|&ip| ports.map(|port| SocketAddr::new(ip, port)));
    Ok(Arguments {
        mode: Mode::Reflect,
        listen: listen.collect(),
        threads: Threads::Auto,
        cpus: None,
        backend: BackendChoice::AUTO,
        coalesce_us: 0,
        rate: None,
        size: 120,
        duration: None,
        json: false,
        is_quiet: !is_verbose,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_line(line: &str) -> Result<Arguments, String> {
        parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn two_ports_of_each_address_are_served() {
        let arguments = parse_line("-p 3500 -L 127.0.0.1 -L ::1 -v").unwrap();
        let expected = [
            "127.0.0.1:3500",
            "127.0.0.1:3501",
            "[::1]:3500",
            "[::1]:3501",
        ];
        assert_eq!(arguments.listen, expected.map(|at| at.parse().unwrap()));
        assert!(!arguments.is_quiet);
        let first = parse_line("").unwrap().listen[0];
        assert_eq!(first, "0.0.0.0:3480".parse().unwrap());
    }

    #[test]
    fn wrong_flags_are_refused_with_what_is_allowed() {
        for (line, expected) in [
            ("-p 65535", "1 to 65534"),
            ("-p", "1 to 65534"),
            ("-L here", "an IP address"),
            ("-d eth0", "-L is"),
            ("-x", "-x"),
            ("stray", "stray"),
        ] {
            let error = parse_line(line).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
