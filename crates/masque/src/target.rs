//! The target of a tunnel, from the path of its request (RFC 9298 §2, §3).
//!
//! The template is `/.well-known/masque/udp/{target_host}/{target_port}/` and no other. What the two variables hold is decoded once, and
//! has to be an IPv6 address, an IPv4 address or a name as DNS has them: nothing else is handed to a resolver.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use percent_encoding::percent_decode;

/// What stands before the variables.
const PREFIX: &str = "/.well-known/masque/udp/";
/// The longest name of a host, in characters (RFC 1035 §2.3.4, without the dot at its end).
const NAME_LEN_MAX: usize = 253;
/// The longest part of a name between two dots.
const LABEL_LEN_MAX: usize = 63;

/// Where a tunnel is to lead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The host.
    pub host: Host,
    /// The UDP port; 0 with [`Host::Any`] and with no other.
    pub port: u16,
}

/// The host of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// An address, as it was written.
    Ip(IpAddr),
    /// A name to be resolved, in small letters.
    Name(Box<str>),
    /// Asterisks: whomever the client names later (draft-ietf-masque-connect-udp-listen §2).
    Any,
}

/// Why a path names no target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetError {
    /// The path does not begin as the template does: the request is for something else.
    OtherPath,
    /// It does, and does not go on as the template does.
    Form,
    /// A percent sign without two hexadecimal digits behind it.
    Escape,
    /// No host, or nothing that can be one.
    Host,
    /// No port, or none from 1 to 65535.
    Port,
}

impl fmt::Display for TargetError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::OtherPath => "not a path of the template",
            Self::Form => "not /.well-known/masque/udp/{target_host}/{target_port}/",
            Self::Escape => "a percent sign without two hexadecimal digits",
            Self::Host => {
                "the host is no IPv4 address, no IPv6 address with %3A for its colons and no name"
            }
            Self::Port => "the port is no number from 1 to 65535",
        })
    }
}

impl core::error::Error for TargetError {}

impl Target {
    /// Reads the path of a request, with the query if there is one.
    ///
    /// # Errors
    ///
    /// Why it names no target.
    pub fn of_path(path: &[u8]) -> Result<Self, TargetError> {
        let variables = path
            .strip_prefix(PREFIX.as_bytes())
            .ok_or(TargetError::OtherPath)?;
        let mut parts = variables.split(|&byte| byte == b'/');
        let (Some(host), Some(port), Some(b""), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(TargetError::Form);
        };
        if decoded(host)? == b"*" && decoded(port)? == b"*" {
            return Ok(Self {
                host: Host::Any,
                port: 0,
            });
        }
        Ok(Self {
            host: Host::of_variable(host)?,
            port: port_of(&decoded(port)?)?,
        })
    }

    /// Returns the path of a request for a tunnel to `host` and `port`, which are written as they are: escaped already, or wrong on purpose.
    pub fn path(host: &str, port: impl fmt::Display) -> String {
        format!("{PREFIX}{host}/{port}/")
    }
}

impl Host {
    fn of_variable(variable: &[u8]) -> Result<Self, TargetError> {
        // RFC 9298 §3: the colons of an IPv6 address have to be percent-encoded. Nothing else that is allowed has any.
        // guard: V-89-colons
        if variable.contains(&b':') {
            return Err(TargetError::Host);
        }
        let decoded = decoded(variable)?;
        let text = core::str::from_utf8(&decoded).map_err(|_| TargetError::Host)?;
        if let Ok(address) = text.parse::<Ipv4Addr>() {
            return Ok(Self::Ip(address.into()));
        }
        if let Ok(address) = text.parse::<Ipv6Addr>() {
            return Ok(Self::Ip(address.into()));
        }
        match is_name(text) {
            true => Ok(Self::Name(text.to_ascii_lowercase().into())),
            false => Err(TargetError::Host),
        }
    }
}

/// Returns the bytes that a variable stands for.
fn decoded(variable: &[u8]) -> Result<Vec<u8>, TargetError> {
    let mut rest = variable;
    while let Some(at) = rest.iter().position(|&byte| byte == b'%') {
        let digits = rest.get(at + 1..at + 3).unwrap_or_default();
        // guard: V-89-escape
        if digits.len() < 2 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(TargetError::Escape);
        }
        rest = rest.get(at + 3..).unwrap_or_default();
    }
    Ok(percent_decode(variable).collect())
}

fn port_of(digits: &[u8]) -> Result<u16, TargetError> {
    let is_number = (1..=5).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
    let text = core::str::from_utf8(digits).ok().filter(|_| is_number);
    let port = text.and_then(|text| text.parse().ok());
    port.filter(|&port| port != 0).ok_or(TargetError::Port)
}

/// Returns whether a resolver may be asked for `text`: labels of letters, digits, hyphens and underscores, the last not a number, so that
/// no old way to write an IPv4 address (127.1, 0x7f000001) is one.
fn is_name(text: &str) -> bool {
    let text = text.strip_suffix('.').unwrap_or(text);
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let is_label =
        |label: &str| (1..=LABEL_LEN_MAX).contains(&label.len()) && label.bytes().all(is_letter);
    let last = text.rsplit('.').next().unwrap_or_default();
    let is_number = last.starts_with(|letter: char| letter.is_ascii_digit())
        && (last.bytes().all(|byte| byte.is_ascii_digit())
            || last.starts_with("0x")
            || last.starts_with("0X"));
    text.len() <= NAME_LEN_MAX && text.split('.').all(is_label) && !is_number
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(host: &str, port: &str) -> Result<Target, TargetError> {
        Target::of_path(format!("/.well-known/masque/udp/{host}/{port}/").as_bytes())
    }

    #[test]
    fn the_examples_of_the_rfc_are_targets() {
        let target = of("192.0.2.6", "443").unwrap();
        assert_eq!(target.host, Host::Ip([192, 0, 2, 6].into()));
        assert_eq!(target.port, 443);
        let address: IpAddr = "2001:db8::42".parse().unwrap();
        for host in [
            "2001%3Adb8%3A%3A42",
            "2001%3adb8%3a%3a42",
            "%32001%3Adb8%3A%3A42",
        ] {
            assert_eq!(of(host, "443").unwrap().host, Host::Ip(address), "{host}");
        }
        let name = Host::Name("target.example.org".into());
        assert_eq!(of("Target.Example.ORG", "%34%34%33").unwrap().host, name);
    }

    //= UDPX-02
    #[test]
    fn a_host_that_is_none_and_a_port_that_is_none_are_refused() {
        let hosts = [
            "",
            "2001:db8::42",
            "[2001%3Adb8%3A%3A42]",
            "fe80%3A%3A1%25eth0",
            "a%2Fb",
            "a%00b",
            "a b",
            "a..b",
            ".",
            "%C3%A9",
            "127.1",
            "2130706433",
            "0x7f000001",
            "0x7f.0.0.1",
            "127.0.0.01.1",
            "1.2.3.4.5",
            "*",
        ];
        for host in hosts {
            assert_eq!(of(host, "443"), Err(TargetError::Host), "{host}");
        }
        for host in ["-%", "%3", "%zz"] {
            assert_eq!(of(host, "443"), Err(TargetError::Escape), "{host}");
        }
        let long = ["a".repeat(63).as_str(); 4].join(".");
        assert_eq!(of(&long, "1"), Err(TargetError::Host));
        assert!(of(&long[2..], "1").is_ok());
        assert_eq!(of(&"a".repeat(64), "1"), Err(TargetError::Host));
        for port in [
            "", "0", "65536", "+1", "-1", " 1", "1 ", "0x1", "000001", "%2b1",
        ] {
            assert_eq!(of("192.0.2.6", port), Err(TargetError::Port), "{port}");
        }
        assert!(of("192.0.2.6", "65535").is_ok());
    }

    #[test]
    fn only_the_template_is_a_path_and_the_whole_of_it() {
        for path in [
            "/.well-known/masque/udp/a/1",
            "/.well-known/masque/udp/a/1/b",
            "/.well-known/masque/udp/a/1/?x",
            "/.well-known/masque/udp//1//",
            "/.well-known/masque/udp/",
        ] {
            assert_eq!(
                Target::of_path(path.as_bytes()),
                Err(TargetError::Form),
                "{path}"
            );
        }
        for path in [
            "",
            "/",
            "/.well-known/masque/ip/a/1/",
            "/.Well-known/masque/udp/a/1/",
        ] {
            assert_eq!(
                Target::of_path(path.as_bytes()),
                Err(TargetError::OtherPath),
                "{path}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_path_is_a_target_that_a_resolver_or_a_policy_may_be_shown_or_none(
            rest in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let path = [PREFIX.as_bytes(), &rest].concat();
            if let Ok(Target { host, port }) = Target::of_path(&path) {
                prop_assert!(port > 0);
                if let Host::Name(name) = host {
                    prop_assert!(is_name(&name));
                }
            }
        }

        #[test]
        fn every_address_is_read_as_what_it_is(v6 in any::<u128>(), v4 in any::<u32>(), port in 1_u16..) {
            let addresses = [IpAddr::from(Ipv6Addr::from(v6)), IpAddr::from(Ipv4Addr::from(v4))];
            for address in addresses {
                let host = address.to_string().replace(':', "%3A");
                let target = of(&host, &port.to_string()).unwrap();
                prop_assert_eq!(target, Target { host: Host::Ip(address), port });
            }
        }
    }
}
