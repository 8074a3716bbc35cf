//! Ways to write an address, or a name that leads to one, as the host of a tunnel's target (RFC 9298 §2, §3.1).
//!
//! Some are right, most are what a parser or a resolver somewhere takes for an address all the same.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A host as it stands in the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Spelling {
    /// How it is written.
    pub(super) form: &'static str,
    pub(super) host: String,
}

/// Names that lead to the server's own host on most machines.
pub(super) const NAMES: [&str; 9] = [
    "localhost",
    "LOCALHOST",
    "localhost.",
    "%6cocalhost",
    "localhost%2e",
    "localhost.localdomain",
    "a.localhost",
    "ip6-localhost",
    "ip6-loopback",
];

/// Returns all spellings of an address.
pub(super) fn spellings(ip: IpAddr) -> Vec<Spelling> {
    let spelled = match ip {
        IpAddr::V4(ip) => of_v4(ip),
        IpAddr::V6(ip) => of_v6(ip),
    };
    let spelled = spelled.into_iter();
    spelled
        .map(|(form, host)| Spelling { form, host })
        .collect()
}

fn of_v4(ip: Ipv4Addr) -> Vec<(&'static str, String)> {
    let [a, b, c, d] = ip.octets();
    let plain = ip.to_string();
    let bits = ip.to_bits();
    let (low16, low24) = (bits & 0xffff, bits & 0xff_ffff);
    vec![
        ("plain", plain.clone()),
        ("all of it encoded", encoded(&plain)),
        ("encoded twice", encoded(&plain).replace('%', "%25")),
        ("dots encoded, small", plain.replace('.', "%2e")),
        ("dots encoded, capital", plain.replace('.', "%2E")),
        ("a dot at the end", format!("{plain}.")),
        ("octal", format!("0{a:o}.0{b:o}.0{c:o}.0{d:o}")),
        ("leading zeros", format!("{a:03}.{b:03}.{c:03}.{d:03}")),
        ("hexadecimal", format!("{a:#x}.{b:#x}.{c:#x}.{d:#x}")),
        ("one number", format!("{bits}")),
        ("one number, hexadecimal", format!("{bits:#010x}")),
        ("one number, capital", format!("0X{bits:08X}")),
        ("one number, octal", format!("0{bits:o}")),
        ("three parts", format!("{a}.{b}.{low16}")),
        ("two parts", format!("{a}.{low24}")),
        ("in brackets", format!("[{plain}]")),
        ("with a zone", format!("{plain}%25lo")),
        ("a blank before it", format!("%20{plain}")),
        ("a zero byte behind it", format!("{plain}%00.example.org")),
        ("with a user", format!("example.org%40{plain}")),
    ]
}

fn of_v6(ip: Ipv6Addr) -> Vec<(&'static str, String)> {
    let short = ip.to_string();
    let colons = |text: &str| text.replace(':', "%3A");
    let groups = ip.segments().map(|group| format!("{group:04x}"));
    let whole = groups.join(":");
    let [.., high, low] = ip.segments();
    let tail = Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    let dotted = format!("{}:{tail}", groups[..6].join(":"));
    vec![
        ("short", colons(&short)),
        ("colons encoded, small", short.replace(':', "%3a")),
        ("colons as they are", short.clone()),
        ("all of it encoded", encoded(&short)),
        ("encoded twice", encoded(&short).replace('%', "%25")),
        ("in full", colons(&whole)),
        ("in capitals", colons(&whole.to_ascii_uppercase())),
        ("with dots", colons(&dotted)),
        ("in brackets", format!("[{}]", colons(&short))),
        ("in encoded brackets", format!("%5B{}%5D", colons(&short))),
        ("with a zone", format!("{}%25lo", colons(&short))),
        ("with a zone's number", format!("{}%251", colons(&short))),
        ("with a length", format!("{}%2F128", colons(&short))),
        ("a dot at the end", format!("{}.", colons(&short))),
    ]
}

/// Returns a text with every byte percent-encoded.
fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut all, byte| {
        // Writing to a String does not fail.
        let _ = write!(all, "%{byte:02x}");
        all
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addresses::forbidden;

    fn of(ip: &str, form: &str) -> String {
        let spelled = spellings(ip.parse().unwrap());
        let found = spelled.into_iter().find(|it| it.form == form);
        found.expect("there is such a form").host
    }

    #[test]
    fn an_address_is_spelled_as_inet_aton_and_uris_would_have_it() {
        for (form, host) in [
            ("octal", "0177.00.00.01"),
            ("hexadecimal", "0x7f.0x0.0x0.0x1"),
            ("one number", "2130706433"),
            ("one number, octal", "017700000001"),
            ("three parts", "127.0.1"),
            ("two parts", "127.1"),
            (
                "encoded twice",
                "%2531%2532%2537%252e%2530%252e%2530%252e%2531",
            ),
        ] {
            assert_eq!(of("127.0.0.1", form), host, "{form}");
        }
        for (form, host) in [
            ("short", "%3A%3Affff%3A127.0.0.1"),
            (
                "with dots",
                "0000%3A0000%3A0000%3A0000%3A0000%3Affff%3A127.0.0.1",
            ),
            ("in encoded brackets", "%5B%3A%3Affff%3A127.0.0.1%5D"),
            ("with a zone", "%3A%3Affff%3A127.0.0.1%25lo"),
        ] {
            assert_eq!(of("::ffff:127.0.0.1", form), host, "{form}");
        }
    }

    #[test]
    fn there_are_twenty_thousand_targets_for_each_door() {
        let peers = forbidden(IpAddr::from([20, 0, 0, 1]));
        let count: usize = peers.iter().map(|peer| spellings(peer.ip).len()).sum();
        assert!(count >= 20_000, "{count}");
    }
}
