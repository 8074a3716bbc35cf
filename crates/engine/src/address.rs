//! Canonical addresses, and the IPv4 addresses that hide inside IPv6 ones.
//!
//! The invariant: a [`PeerAddress`] is the only form in which the rest of the engine sees a peer, and it cannot hold an
//! IPv4-mapped address. Forms that carry an IPv4 address without being one (NAT64, ISATAP and so on) stay IPv6 addresses,
//! because packets to them leave as IPv6; [`embedded_v4`] finds the IPv4 address for the policy to judge (V-03, V-04).

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The transport address of a peer, in its one canonical form: IPv4-mapped IPv6 becomes IPv4, scope and flow label are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerAddress(SocketAddr);

impl PeerAddress {
    /// The one that no other comes before.
    pub(crate) const FIRST: Self = Self(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0));

    /// Canonicalises `address`.
    pub fn new(address: SocketAddr) -> Self {
        Self(SocketAddr::new(canonical_ip(address.ip()), address.port()))
    }

    /// Returns the transport address.
    pub fn address(self) -> SocketAddr {
        self.0
    }

    /// Returns the IP address, which is what permissions are about (RFC 8656 §9).
    pub fn ip(self) -> IpAddr {
        self.0.ip()
    }

    /// Returns the port; 0 where a client named none.
    pub fn port(self) -> u16 {
        self.0.port()
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// Returns the address itself, or the IPv4 address that an IPv4-mapped one (`::ffff:0:0/96`) is another spelling of.
pub(crate) fn canonical_ip(ip: IpAddr) -> IpAddr {
    ip.to_canonical()
}

/// Ways to write an IPv4 address into an IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Embedding {
    /// `::a.b.c.d`, RFC 4291 §2.5.5.1.
    Compatible,
    /// `::0:5efe:a.b.c.d` or `::200:5efe:a.b.c.d` under any prefix, RFC 5214 §6.1.
    Isatap,
    /// `::ffff:a.b.c.d`, RFC 4291 §2.5.5.2.
    Mapped,
    /// `64:ff9b:1::/48`, RFC 8215.
    Nat64LocalUse,
    /// A prefix of the operator's own translator, RFC 6052 §2.2.
    Nat64Operator,
    /// `64:ff9b::/96`, RFC 6052 §2.1.
    Nat64WellKnown,
    /// `2002:aabb:ccdd::/48`, RFC 3056.
    SixToFour,
    /// `2001:0::/32` with the client's address inverted in the low 32 bits, RFC 4380 §4.
    Teredo,
    /// `::ffff:0:a.b.c.d`, RFC 2765 §2.1.
    Translated,
}

impl Embedding {
    /// Returns a few words for an operator.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Compatible => "IPv4-compatible",
            Self::Isatap => "ISATAP",
            Self::Mapped => "IPv4-mapped",
            Self::Nat64LocalUse => "local-use NAT64",
            Self::Nat64Operator => "the operator's NAT64",
            Self::Nat64WellKnown => "NAT64",
            Self::SixToFour => "6to4",
            Self::Teredo => "Teredo",
            Self::Translated => "IPv4-translated",
        }
    }
}

/// A NAT64 prefix of one of the lengths of RFC 6052 §2.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Nat64Prefix {
    /// The prefix, all other bits zero.
    bits: u128,
    /// 32, 40, 48, 56, 64 or 96.
    len: u8,
}

impl Nat64Prefix {
    /// Makes a prefix of `len` bits: 32, 40, 48, 56, 64 or 96. Returns `None` for another length, for bits set behind the prefix, and for a 96-bit prefix with
    /// bits 64 to 71 set (RFC 6052 §2.2).
    pub fn new(prefix: Ipv6Addr, len: u8) -> Option<Self> {
        let bits = prefix.to_bits();
        let reserved_octet = 0xff_u128 << 56;
        (matches!(len, 32 | 40 | 48 | 56 | 64 | 96)
            && bits & host_mask(len) == 0
            && bits & reserved_octet == 0)
            .then_some(Self { bits, len })
    }

    /// Returns the IPv4-embedded address of `address` under this prefix, suffix zero.
    pub fn embed(self, address: Ipv4Addr) -> Ipv6Addr {
        let v4 = u128::from(address.to_bits());
        let bits = if self.len == 96 {
            v4
        } else {
            let (before, after) = self.split();
            // `before + after == 32`; the high part ends at bit 64, the low part starts at bit 72.
            let high = (v4 >> after) << 64;
            let low = (v4 & low_bits(after)) << (56 - after);
            debug_assert!(before <= 32, "the part in front of the reserved octet");
            high | low
        };
        Ipv6Addr::from_bits(self.bits | bits)
    }

    /// Returns the IPv4 address inside `address` if this prefix covers it. The reserved octet is ignored, because a translator may
    /// ignore it too.
    pub fn extract(self, address: Ipv6Addr) -> Option<Ipv4Addr> {
        if !self.covers(address) {
            return None;
        }
        let bits = address.to_bits();
        let v4 = if self.len == 96 {
            bits & low_bits(32)
        } else {
            let (before, after) = self.split();
            let high = (bits >> 64) & low_bits(before);
            let low = (bits >> (56 - after)) & low_bits(after);
            (high << after) | low
        };
        u32::try_from(v4).ok().map(Ipv4Addr::from_bits)
    }

    fn covers(self, address: Ipv6Addr) -> bool {
        (address.to_bits() ^ self.bits) & !host_mask(self.len) == 0
    }

    /// Returns the number of bits of the IPv4 address before and after the reserved octet (bits 64 to 71), for lengths below 96.
    fn split(self) -> (u32, u32) {
        let before = 64_u32.saturating_sub(u32::from(self.len)).min(32);
        (before, 32 - before)
    }
}

/// Text that is no [`Nat64Prefix`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseNat64PrefixError {
    /// Not an IPv6 address, a slash and a number.
    Form,
    /// No length of RFC 6052 §2.2, or bits set where there must be none.
    Length,
}

impl fmt::Display for ParseNat64PrefixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Form => "is no prefix; allowed: prefix/length, such as 2001:db8:64::/96",
            Self::Length => {
                "is no prefix of a translator; allowed: a length of 32, 40, 48, 56, 64 or 96, with no bit set behind it nor from 64 to 71 (RFC 6052 §2.2)"
            }
        })
    }
}

impl core::error::Error for ParseNat64PrefixError {}

impl core::str::FromStr for Nat64Prefix {
    type Err = ParseNat64PrefixError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (prefix, len) = text.split_once('/').ok_or(ParseNat64PrefixError::Form)?;
        let prefix = prefix.parse().map_err(|_| ParseNat64PrefixError::Form)?;
        let len = len.parse().map_err(|_| ParseNat64PrefixError::Form)?;
        Self::new(prefix, len).ok_or(ParseNat64PrefixError::Length)
    }
}

impl fmt::Display for Nat64Prefix {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", Ipv6Addr::from_bits(self.bits), self.len)
    }
}

/// Returns every IPv4 address that `address`, in canonical form, may carry, with the form it is in. An address can match more than one form.
///
/// `::` and `::1` are not IPv4-compatible addresses and yield nothing.
pub(crate) fn embedded_v4(
    address: Ipv6Addr,
    operator: &[Nat64Prefix],
) -> impl Iterator<Item = (Embedding, Ipv4Addr)> {
    let bits = address.to_bits();
    let low = Ipv4Addr::from_bits(truncate(bits));
    let fixed = [
        (bits >> 32 == 0 && bits > 1).then_some((Embedding::Compatible, low)),
        (bits >> 32 == 0xffff_0000).then_some((Embedding::Translated, low)),
        (bits >> 32 == 0x0064_ff9b_u128 << 64).then_some((Embedding::Nat64WellKnown, low)),
        (bits >> 80 == 0x0064_ff9b_0001 && !operator.iter().any(|prefix| prefix.covers(address)))
            .then_some((Embedding::Nat64LocalUse, local_use_v4(bits))),
        // Bit 6 of the interface identifier says whether the IPv4 address is globally unique; both are ISATAP.
        ((bits >> 32) & 0xfdff_ffff == 0x0000_5efe).then_some((Embedding::Isatap, low)),
        (bits >> 96 == 0x2001_0000)
            .then_some((Embedding::Teredo, Ipv4Addr::from_bits(!truncate(bits)))),
        (bits >> 112 == 0x2002).then_some((
            Embedding::SixToFour,
            Ipv4Addr::from_bits(truncate(bits >> 80)),
        )),
    ];
    let translated = operator.iter().filter_map(move |prefix| {
        let v4 = prefix.extract(address)?;
        Some((Embedding::Nat64Operator, v4))
    });
    fixed.into_iter().flatten().chain(translated)
}

/// Returns the IPv4 address inside an address of `64:ff9b:1::/48`, when none of the operator's prefixes determines its position.
///
/// Each site decides how it divides the /48 (RFC 8215 §5). With bits 48 to 95 zero the low 32 bits are right for a /96, and under
/// any shorter prefix the address inside belongs to 0.0.0.0/8. With other bits set the address cannot be known. The result is then
/// 0.0.0.0, which no rule ever allows.
/// 0.0.0.0 stands for that, because no rule ever allows it.
fn local_use_v4(bits: u128) -> Ipv4Addr {
    if (bits >> 32) & low_bits(48) == 0 {
        Ipv4Addr::from_bits(truncate(bits))
    } else {
        Ipv4Addr::UNSPECIFIED
    }
}

/// Returns whether `ip` is a Teredo or 6to4 address, from which neither allocations nor peers are accepted (RFC 8656 §21.4).
pub(crate) fn is_tunnel(ip: IpAddr) -> bool {
    match canonical_ip(ip) {
        IpAddr::V4(_) => false,
        IpAddr::V6(v6) => v6.to_bits() >> 96 == 0x2001_0000 || v6.to_bits() >> 112 == 0x2002,
    }
}

/// Returns a number with ones in the low `count` bits; `count <= 127`.
fn low_bits(count: u32) -> u128 {
    (1_u128 << count) - 1
}

/// Returns a number with ones in the bits behind a prefix of `len` bits.
fn host_mask(len: u8) -> u128 {
    u128::MAX.checked_shr(u32::from(len)).unwrap_or(0)
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the low 32 bits are wanted"
)]
fn truncate(bits: u128) -> u32 {
    bits as u32
}

#[cfg(test)]
mod tests;
