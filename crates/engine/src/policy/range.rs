//! Address ranges as an operator writes them: `192.0.2.1`, `192.0.2.0/24`, `192.0.2.10-192.0.2.20`.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::num::ParseIntError;
use core::str::FromStr;

use crate::address::canonical_ip;

/// A contiguous range of addresses of one family. A range of IPv4-mapped addresses covers those forms and no IPv4 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressRange {
    /// Of the same family as `last`, and not above it.
    first: IpAddr,
    last: IpAddr,
}

impl AddressRange {
    /// Makes the range of all addresses from `first` to `last`, both included.
    ///
    /// # Errors
    ///
    /// The two are of different families, or the wrong way round.
    pub fn new(first: IpAddr, last: IpAddr) -> Result<Self, RangeError> {
        match (first, last) {
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => {
                Err(RangeError::MixedFamilies)
            }
            _ if first > last => Err(RangeError::Reversed),
            _ => Ok(Self { first, last }),
        }
    }

    /// Makes the range of the addresses that share their first `len` bits with `network`.
    ///
    /// # Errors
    ///
    /// `len` is more than the family has bits, or `network` has bits set behind them.
    pub fn prefix(network: IpAddr, len: u8) -> Result<Self, RangeError> {
        let range = match network {
            IpAddr::V4(v4) if len <= 32 => Self::v4_prefix(v4, len),
            IpAddr::V6(v6) if len <= 128 => Self::v6_prefix(v6, len),
            IpAddr::V4(_) | IpAddr::V6(_) => return Err(RangeError::PrefixTooLong),
        };
        if network == range.first {
            Ok(range)
        } else {
            Err(RangeError::HostBits(range.first))
        }
    }

    pub(crate) const fn v4_prefix(network: Ipv4Addr, len: u8) -> Self {
        let hosts = if len >= 32 { 0 } else { u32::MAX >> len };
        let first = network.to_bits() & !hosts;
        Self {
            first: IpAddr::V4(Ipv4Addr::from_bits(first)),
            last: IpAddr::V4(Ipv4Addr::from_bits(first | hosts)),
        }
    }

    pub(crate) const fn v6_prefix(network: Ipv6Addr, len: u8) -> Self {
        let hosts = if len >= 128 { 0 } else { u128::MAX >> len };
        let first = network.to_bits() & !hosts;
        Self {
            first: IpAddr::V6(Ipv6Addr::from_bits(first)),
            last: IpAddr::V6(Ipv6Addr::from_bits(first | hosts)),
        }
    }

    /// Returns the first address.
    pub fn first(&self) -> IpAddr {
        self.first
    }

    /// Returns the last address.
    pub fn last(&self) -> IpAddr {
        self.last
    }

    /// Returns whether every address is IPv4-mapped (`::ffff:0:0/96`).
    pub fn is_mapped(&self) -> bool {
        let is_mapped = |ip: IpAddr| ip != canonical_ip(ip);
        is_mapped(self.first) && is_mapped(self.last)
    }

    /// Returns the IPv4 addresses that a range of IPv4-mapped ones spells; any other range as it is.
    #[must_use]
    pub fn canonical(self) -> Self {
        match self.is_mapped() {
            true => Self {
                first: canonical_ip(self.first),
                last: canonical_ip(self.last),
            },
            false => self,
        }
    }

    /// Returns whether `ip` is one of the addresses.
    pub fn contains(&self, ip: IpAddr) -> bool {
        ip.is_ipv4() == self.first.is_ipv4() && self.first <= ip && ip <= self.last
    }
}

impl From<IpAddr> for AddressRange {
    fn from(ip: IpAddr) -> Self {
        Self {
            first: ip,
            last: ip,
        }
    }
}

/// Returns an address as a number within its family.
pub(crate) fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

impl FromStr for AddressRange {
    type Err = RangeError;

    fn from_str(text: &str) -> Result<Self, RangeError> {
        let address = |text: &str| text.parse::<IpAddr>().map_err(|_| RangeError::NotAnAddress);
        let text = text.trim();
        if let Some((network, len)) = text.split_once('/') {
            let len = len
                .parse()
                .map_err(|_: ParseIntError| RangeError::PrefixTooLong)?;
            Self::prefix(address(network)?, len)
        } else if let Some((first, last)) = text.split_once('-') {
            Self::new(address(first.trim())?, address(last.trim())?)
        } else {
            address(text).map(Self::from)
        }
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bits, same) = match (self.first, self.last) {
            (IpAddr::V4(first), IpAddr::V4(last)) => {
                (32, (first.to_bits() ^ last.to_bits()).leading_zeros())
            }
            _ => (
                128,
                (number(self.first) ^ number(self.last)).leading_zeros(),
            ),
        };
        let is_prefix = Self::prefix(self.first, u8::try_from(same).unwrap_or(0)) == Ok(*self);
        if self.first == self.last {
            self.first.fmt(formatter)
        } else if is_prefix && same < bits {
            write!(formatter, "{}/{same}", self.first)
        } else {
            write!(formatter, "{}-{}", self.first, self.last)
        }
    }
}

/// Why a text is not an address range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeError {
    /// Bits are set behind the prefix; holds the network that was probably meant.
    HostBits(IpAddr),
    /// One end is IPv4, the other IPv6.
    MixedFamilies,
    /// Not an address.
    NotAnAddress,
    /// The prefix length is not a number, or more than the family has bits.
    PrefixTooLong,
    /// The first address is above the last.
    Reversed,
}

impl fmt::Display for RangeError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HostBits(network) => write!(
                formatter,
                "bits are set behind the prefix length; the network begins at {network}"
            ),
            Self::MixedFamilies => formatter.write_str("one end is IPv4, the other IPv6"),
            Self::NotAnAddress => formatter.write_str(
                "not an address; allowed are one address, first-last, and network/prefix-length",
            ),
            Self::PrefixTooLong => {
                formatter.write_str("the prefix length is not within 0..32 (IPv4) or 0..128 (IPv6)")
            }
            Self::Reversed => formatter.write_str("the first address is above the last"),
        }
    }
}

impl core::error::Error for RangeError {}
