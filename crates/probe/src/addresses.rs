//! Peers that no relay should reach unless its operator says so, and the ways to write them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A peer, with the row of the threat list that it belongs to.
#[derive(Clone, Debug)]
pub(super) struct Forbidden {
    pub(super) row: &'static str,
    pub(super) form: &'static str,
    pub(super) ip: IpAddr,
}

/// IPv4 ranges: row, first address, prefix length. Of each six addresses are tried: two at either end, two between.
const RANGES_V4: [(&str, [u8; 4], u32); 19] = [
    ("V-01", [127, 0, 0, 0], 8),
    ("V-02", [0, 0, 0, 0], 8),
    ("V-05", [169, 254, 0, 0], 16),
    ("V-05", [169, 254, 169, 252], 30),
    ("V-05", [192, 0, 0, 192], 32),
    ("V-05", [168, 63, 129, 16], 32),
    ("V-05", [100, 100, 100, 200], 32),
    ("V-06", [10, 0, 0, 0], 8),
    ("V-06", [100, 64, 0, 0], 10),
    ("V-06", [172, 16, 0, 0], 12),
    ("V-06", [192, 0, 0, 0], 24),
    ("V-06", [192, 0, 2, 0], 24),
    ("V-06", [192, 88, 99, 0], 24),
    ("V-06", [192, 168, 0, 0], 16),
    ("V-06", [198, 18, 0, 0], 15),
    ("V-06", [198, 51, 100, 0], 24),
    ("V-06", [203, 0, 113, 0], 24),
    ("V-06", [240, 0, 0, 0], 4),
    ("V-11", [224, 0, 0, 0], 4),
];

/// IPv6 addresses that are forbidden themselves, and not for an embedded IPv4 address.
const V6: [(&str, &str); 30] = [
    ("V-01", "::1"),
    ("V-02", "::"),
    ("V-05", "fe80::"),
    ("V-05", "fe80::1"),
    ("V-05", "febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
    ("V-05", "fec0::1"),
    ("V-05", "feff::1"),
    ("V-05", "fc00::"),
    ("V-05", "fc00::1"),
    ("V-05", "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
    ("V-05", "fd00:ec2::254"),
    ("V-05", "fd20:ce::254"),
    ("V-06", "100::1"),
    ("V-06", "100:0:0:1::1"),
    ("V-06", "2001:2::1"),
    ("V-06", "2001:10::1"),
    ("V-06", "2001:20::1"),
    ("V-06", "2001:30::1"),
    ("V-06", "2001:db8::1"),
    ("V-06", "2001:db8:ffff::1"),
    ("V-06", "3fff::1"),
    ("V-06", "5f00::1"),
    ("V-11", "ff00::1"),
    ("V-11", "ff01::1"),
    ("V-11", "ff02::1"),
    ("V-11", "ff02::fb"),
    ("V-11", "ff05::2"),
    ("V-11", "ff08::1"),
    ("V-11", "ff0e::1"),
    ("V-11", "ff3e::1"),
];

type Embed = fn(Ipv4Addr) -> Ipv6Addr;

/// Ways to write an IPv4 address as an IPv6 one (V-03, V-04).
const EMBEDDINGS: [(&str, &str, Embed); 17] = [
    ("V-03", "mapped", |v4| v4.to_ipv6_mapped()),
    ("V-04", "compatible", |v4| low("::", v4)),
    ("V-04", "translated", |v4| low("::ffff:0:0:0", v4)),
    ("V-04", "NAT64", |v4| low("64:ff9b::", v4)),
    ("V-04", "local NAT64 /96", |v4| low("64:ff9b:1::", v4)),
    ("V-04", "local NAT64 /96 of a subnet", |v4| {
        low("64:ff9b:1:7:8:9::", v4)
    }),
    ("V-04", "local NAT64 /48", |v4| split("64:ff9b:1::", v4, 48)),
    ("V-04", "local NAT64 /56", |v4| {
        split("64:ff9b:1:700::", v4, 56)
    }),
    ("V-04", "local NAT64 /64", |v4| {
        split("64:ff9b:1:7::", v4, 64)
    }),
    ("V-04", "6to4", |v4| {
        Ipv6Addr::from_bits(0x2002 << 112 | u128::from(v4.to_bits()) << 80)
    }),
    ("V-04", "6to4 with a host", |v4| {
        Ipv6Addr::from_bits(0x2002 << 112 | u128::from(v4.to_bits()) << 80 | 1)
    }),
    ("V-04", "Teredo", |v4| {
        low("2001:0:1400:1::", Ipv4Addr::from_bits(!v4.to_bits()))
    }),
    ("V-04", "Teredo with the address as server", |v4| {
        Ipv6Addr::from_bits(0x2001 << 112 | u128::from(v4.to_bits()) << 64)
    }),
    ("V-04", "ISATAP, link-local", |v4| low("fe80::5efe:0:0", v4)),
    ("V-04", "ISATAP, link-local, unique", |v4| {
        low("fe80::200:5efe:0:0", v4)
    }),
    ("V-04", "ISATAP, global", |v4| {
        low("2a00:5:0:1:0:5efe:0:0", v4)
    }),
    ("V-04", "ISATAP, global, unique", |v4| {
        low("2a00:5:0:1:200:5efe:0:0", v4)
    }),
];

fn low(prefix: &str, v4: Ipv4Addr) -> Ipv6Addr {
    let prefix = prefix.parse().unwrap_or(Ipv6Addr::UNSPECIFIED);
    Ipv6Addr::from_bits(prefix.to_bits() | u128::from(v4.to_bits()))
}

/// Returns an IPv4 address embedded behind a prefix of 48 to 64 bits, around the octet that stays zero (RFC 6052 §2.2).
fn split(prefix: &str, v4: Ipv4Addr, len: u32) -> Ipv6Addr {
    let prefix: Ipv6Addr = prefix.parse().unwrap_or(Ipv6Addr::UNSPECIFIED);
    let v4 = u128::from(v4.to_bits());
    let before = 64 - len;
    let head = v4 >> (32 - before);
    let tail = v4 & ((1 << (32 - before)) - 1);
    let rest = 32 - before;
    Ipv6Addr::from_bits(prefix.to_bits() | head << 64 | tail << (56 - rest))
}

/// Returns all forbidden peers: every IPv4 address in every form, the IPv6 ones, and the server's own.
pub(super) fn forbidden(server: IpAddr) -> Vec<Forbidden> {
    let mut plain: Vec<(&str, Ipv4Addr)> = Vec::new();
    for (row, first, len) in RANGES_V4 {
        let first = Ipv4Addr::from(first).to_bits();
        let hosts = u32::MAX.checked_shr(len).unwrap_or(0);
        for offset in [0, 1, hosts / 3, hosts / 2, hosts.saturating_sub(1), hosts] {
            let found = (row, Ipv4Addr::from_bits(first | offset.min(hosts)));
            if !plain.contains(&found) {
                plain.push(found);
            }
        }
    }
    if let IpAddr::V4(own) = server {
        plain.push(("V-07", own));
    }
    let mut all = Vec::new();
    for &(row, v4) in &plain {
        let ip = v4.into();
        all.push(Forbidden {
            row,
            form: "IPv4",
            ip,
        });
        for (row, form, embed) in EMBEDDINGS {
            all.push(Forbidden {
                row,
                form,
                ip: embed(v4).into(),
            });
        }
    }
    let v6 = V6
        .iter()
        .filter_map(|(row, text)| Some((*row, text.parse().ok()?)));
    let own = server.is_ipv6().then_some(("V-07", server));
    all.extend(v6.chain(own).map(|(row, ip)| Forbidden {
        row,
        form: "IPv6",
        ip,
    }));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embeddings_are_those_of_the_rfcs() {
        let v4 = Ipv4Addr::new(192, 0, 2, 33);
        let of = |name: &str| {
            let found = EMBEDDINGS.iter().find(|(_, form, _)| *form == name);
            found.map(|(_, _, embed)| embed(v4).to_string())
        };
        // RFC 6052 §2.4 with another prefix, RFC 4380 §4, RFC 3056 §2, RFC 5214 §6.1.
        for (form, text) in [
            ("mapped", "::ffff:192.0.2.33"),
            ("NAT64", "64:ff9b::c000:221"),
            ("local NAT64 /48", "64:ff9b:1:c000:2:2100::"),
            ("local NAT64 /56", "64:ff9b:1:7c0:0:221::"),
            ("local NAT64 /64", "64:ff9b:1:7:c0:2:2100:0"),
            ("6to4", "2002:c000:221::"),
            ("Teredo", "2001:0:1400:1::3fff:fdde"),
            ("ISATAP, link-local", "fe80::5efe:c000:221"),
        ] {
            assert_eq!(of(form).as_deref(), Some(text), "{form}");
        }
    }

    #[test]
    fn there_are_enough_for_twenty_thousand_probes_on_four_allocations() {
        let all = forbidden(IpAddr::from([20, 0, 0, 1]));
        assert!(all.len() * 4 * 4 >= 20_000, "{}", all.len());
    }
}
