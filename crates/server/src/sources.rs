//! How many of something come from where, for limits that one address cannot use up for all.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

/// Counts by source: an IPv4 address, or the prefix of 64 bits that one IPv6 customer has at least.
///
/// Invariant: there are as many entries as sources that count for something; none is zero.
#[derive(Debug, Default)]
pub(crate) struct SourceCounts {
    // Addresses are chosen by clients: the hash is keyed (V-53).
    count_by_source: HashMap<IpAddr, u32>,
}

impl SourceCounts {
    /// How many come from where this address is.
    pub(crate) fn count(&self, address: IpAddr) -> u32 {
        let count = self.count_by_source.get(&source(address));
        count.copied().unwrap_or(0)
    }

    /// Counts one more.
    pub(crate) fn add(&mut self, address: IpAddr) {
        *self.count_by_source.entry(source(address)).or_default() += 1;
    }

    /// Counts one less.
    pub(crate) fn remove(&mut self, address: IpAddr) {
        let source = source(address);
        if let Some(count) = self.count_by_source.get_mut(&source) {
            *count -= 1;
            if *count == 0 {
                self.count_by_source.remove(&source);
            }
        }
    }

    /// Whether nothing is counted.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.count_by_source.is_empty()
    }
}

/// What an address counts under.
fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
        v4 => v4,
    }
}
