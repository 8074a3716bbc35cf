//! The ranges that are denied by default: the IANA special-purpose address registries and what clouds add to them.

use core::net::{Ipv4Addr, Ipv6Addr};

use super::Forbidden;
use super::range::AddressRange;

/// A range that is denied unless a rule or a switch allows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Builtin {
    pub(crate) name: &'static str,
    pub(crate) range: AddressRange,
    pub(crate) why: Forbidden,
}

const fn v4(name: &'static str, first: [u8; 4], len: u8, why: Forbidden) -> Builtin {
    let [a, b, c, d] = first;
    let range = AddressRange::v4_prefix(Ipv4Addr::new(a, b, c, d), len);
    Builtin { name, range, why }
}

const fn v6(name: &'static str, first: [u16; 8], len: u8, why: Forbidden) -> Builtin {
    let [a, b, c, d, e, f, g, h] = first;
    let range = AddressRange::v6_prefix(Ipv6Addr::new(a, b, c, d, e, f, g, h), len);
    Builtin { name, range, why }
}

/// Denied always; no rule opens these.
#[rustfmt::skip] // one block a line reads as the registry does
pub(crate) const NEVER: &[Builtin] = &[
    // guard: V-02-this-host
    v4("this network", [0, 0, 0, 0], 8, Forbidden::Unspecified),
    // guard: V-05-link-local
    v4("link-local", [169, 254, 0, 0], 16, Forbidden::LinkLocal),
    v4("limited broadcast", [255, 255, 255, 255], 32, Forbidden::Broadcast),
    // guard: V-05-metadata.alibaba
    v4("Alibaba Cloud metadata", [100, 100, 100, 200], 32, Forbidden::Metadata),
    // guard: V-05-metadata.azure
    v4("Azure platform services", [168, 63, 129, 16], 32, Forbidden::Metadata),
    // guard: V-05-metadata.oracle
    v4("Oracle Cloud metadata", [192, 0, 0, 192], 32, Forbidden::Metadata),
    // guard: V-02-this-host.v6
    v6("unspecified", [0, 0, 0, 0, 0, 0, 0, 0], 128, Forbidden::Unspecified),
    // guard: V-05-link-local.v6
    v6("link-local", [0xfe80, 0, 0, 0, 0, 0, 0, 0], 10, Forbidden::LinkLocal),
    v6("site-local", [0xfec0, 0, 0, 0, 0, 0, 0, 0], 10, Forbidden::LinkLocal),
    // guard: V-04-tunnels
    v6("Teredo", [0x2001, 0, 0, 0, 0, 0, 0, 0], 32, Forbidden::Tunnel),
    // guard: V-04-tunnels.6to4
    v6("6to4", [0x2002, 0, 0, 0, 0, 0, 0, 0], 16, Forbidden::Tunnel),
    // guard: V-05-metadata.aws
    v6("AWS platform services", [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0], 32, Forbidden::Metadata),
    // guard: V-05-metadata.google
    v6("Google Cloud metadata", [0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254], 128, Forbidden::Metadata),
    // guard: V-05-metadata.scaleway
    v6("Scaleway metadata", [0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42], 128, Forbidden::Metadata),
];

/// Denied unless the loopback switch is on.
#[rustfmt::skip] // one block a line reads as the registry does
pub(crate) const LOOPBACK: &[Builtin] = &[
    v4("loopback", [127, 0, 0, 0], 8, Forbidden::Loopback),
    v6("loopback", [0, 0, 0, 0, 0, 0, 0, 1], 128, Forbidden::Loopback),
];

/// Denied unless the multicast switch is on.
#[rustfmt::skip] // one block a line reads as the registry does
pub(crate) const MULTICAST: &[Builtin] = &[
    v4("multicast", [224, 0, 0, 0], 4, Forbidden::Multicast),
    v6("multicast", [0xff00, 0, 0, 0, 0, 0, 0, 0], 8, Forbidden::Multicast),
];

/// Denied under both personas unless an allow rule covers it.
#[rustfmt::skip] // one block a line reads as the registry does
pub(crate) const UNIQUE_LOCAL: &[Builtin] =
    &[v6("unique-local", [0xfc00, 0, 0, 0, 0, 0, 0, 0], 7, Forbidden::SpecialPurpose)];

/// The rest of the IANA special-purpose registries (RFC 6890 and later entries), outermost blocks only.
/// Denied by the strict persona unless an allow rule covers it.
///
/// The registries of record: <https://www.iana.org/assignments/iana-ipv4-special-registry> and
/// <https://www.iana.org/assignments/iana-ipv6-special-registry>.
#[rustfmt::skip] // one block a line reads as the registry does
pub(crate) const SPECIAL_PURPOSE: &[Builtin] = &[
    v4("private use", [10, 0, 0, 0], 8, Forbidden::SpecialPurpose),
    v4("shared address space", [100, 64, 0, 0], 10, Forbidden::SpecialPurpose),
    v4("private use", [172, 16, 0, 0], 12, Forbidden::SpecialPurpose),
    v4("IETF protocol assignments", [192, 0, 0, 0], 24, Forbidden::SpecialPurpose),
    v4("documentation", [192, 0, 2, 0], 24, Forbidden::SpecialPurpose),
    v4("AS112", [192, 31, 196, 0], 24, Forbidden::SpecialPurpose),
    v4("AMT", [192, 52, 193, 0], 24, Forbidden::SpecialPurpose),
    v4("6to4 relay anycast", [192, 88, 99, 0], 24, Forbidden::SpecialPurpose),
    v4("private use", [192, 168, 0, 0], 16, Forbidden::SpecialPurpose),
    v4("direct delegation AS112", [192, 175, 48, 0], 24, Forbidden::SpecialPurpose),
    v4("benchmarking", [198, 18, 0, 0], 15, Forbidden::SpecialPurpose),
    v4("documentation", [198, 51, 100, 0], 24, Forbidden::SpecialPurpose),
    v4("documentation", [203, 0, 113, 0], 24, Forbidden::SpecialPurpose),
    v4("reserved", [240, 0, 0, 0], 4, Forbidden::SpecialPurpose),
    v6("discard-only", [0x100, 0, 0, 0, 0, 0, 0, 0], 64, Forbidden::SpecialPurpose),
    v6("dummy prefix", [0x100, 0, 0, 1, 0, 0, 0, 0], 64, Forbidden::SpecialPurpose),
    v6("IETF protocol assignments", [0x2001, 0, 0, 0, 0, 0, 0, 0], 23, Forbidden::SpecialPurpose),
    v6("documentation", [0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32, Forbidden::SpecialPurpose),
    v6("direct delegation AS112", [0x2620, 0x4f, 0x8000, 0, 0, 0, 0, 0], 48, Forbidden::SpecialPurpose),
    v6("documentation", [0x3fff, 0, 0, 0, 0, 0, 0, 0], 20, Forbidden::SpecialPurpose),
    v6("segment routing", [0x5f00, 0, 0, 0, 0, 0, 0, 0], 16, Forbidden::SpecialPurpose),
];
