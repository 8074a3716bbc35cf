//! Counts members by source address, for limits that a single source cannot use up.
//!
//! [`SourceCounts`] holds the counts only. [`Crowd`] also holds the members, and selects the one that is displaced by a new one.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
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
    /// Returns the count of the address's source.
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
}

/// The limits of a [`Crowd`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct CrowdLimits {
    /// Members of all sources.
    pub(crate) total: usize,
    /// Members of one source.
    pub(crate) per_source: usize,
}

impl CrowdLimits {
    /// Returns the share of one shard, rounded up, in a limit per source that holds for all `shards` shards together.
    pub(crate) fn share(per_source: u32, shards: usize) -> usize {
        (per_source as usize).div_ceil(shards.max(1))
    }
}

/// Holds the members without an allocation, by source and in the order of their arrival.
///
/// A new member displaces the oldest member of the source that has the most. So a source with one member keeps it as long as another source has
/// two. Among sources with equally many members, the one with the oldest member is chosen. Each operation takes time logarithmic in the number of
/// members.
///
/// Invariant: a source is in `sources_by_count` exactly if it has members, under their number and their oldest arrival.
#[derive(Debug)]
pub(crate) struct Crowd<K> {
    limits: CrowdLimits,
    // Addresses are chosen by clients: the hash is keyed (V-53).
    members_by_source: HashMap<IpAddr, BTreeMap<u64, K>>,
    sources_by_count: BTreeSet<(usize, Reverse<u64>, IpAddr)>,
    len: usize,
    /// Counts up with each member.
    arrivals: u64,
}

/// The source and arrival number under which a member of a [`Crowd`] is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CrowdPlace {
    source: IpAddr,
    arrival: u64,
}

/// The limit of a [`Crowd`] that one more member would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exceeded {
    /// The limit of the source.
    Source,
    /// The limit of all sources together.
    Total,
}

impl<K: Copy> Crowd<K> {
    pub(crate) fn new(limits: CrowdLimits) -> Self {
        Self {
            limits,
            members_by_source: HashMap::new(),
            sources_by_count: BTreeSet::new(),
            len: 0,
            arrivals: 0,
        }
    }

    /// Sets other limits. Where there are more members than that, each new one displaces one.
    pub(crate) fn set_limits(&mut self, limits: CrowdLimits) {
        self.limits = limits;
    }

    /// Adds a member with this address.
    pub(crate) fn add(&mut self, address: IpAddr, key: K) -> CrowdPlace {
        self.arrivals += 1;
        let place = CrowdPlace {
            source: source(address),
            arrival: self.arrivals,
        };
        self.change(place.source, |members| members.insert(place.arrival, key));
        self.len += 1;
        place
    }

    /// Removes a member.
    pub(crate) fn remove(&mut self, place: CrowdPlace) {
        if self
            .change(place.source, |members| members.remove(&place.arrival))
            .is_some()
        {
            self.len -= 1;
        }
    }

    /// Returns the member that one more from `address` would displace. Returns `None` while there is room. Without an address only the limit of all
    /// sources applies.
    pub(crate) fn displaced_by(&self, address: Option<IpAddr>) -> Option<(K, Exceeded)> {
        let members = address.and_then(|address| self.members_by_source.get(&source(address)));
        let is_full_of = |members: &BTreeMap<u64, K>| {
            // guard: V-42-address, V-47-address
            members.len() >= self.limits.per_source
        };
        if let Some(members) = members.filter(|members| is_full_of(members)) {
            return Some((*members.first_key_value()?.1, Exceeded::Source));
        }
        // guard: V-42-half-open, V-47-crowd
        let is_full = self.len >= self.limits.total;
        let oldest = is_full.then(|| self.oldest_of_busiest()).flatten()?;
        Some((oldest, Exceeded::Total))
    }

    /// Returns the oldest member of the source that has the most.
    pub(crate) fn oldest_of_busiest(&self) -> Option<K> {
        // guard: V-42-slow, V-47-slow, V-48-slow
        let (_, _, busiest) = self.sources_by_count.last()?;
        let (_, oldest) = self.members_by_source.get(busiest)?.first_key_value()?;
        Some(*oldest)
    }

    /// Returns the number of members.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Changes the members of a source and puts it where it belongs among the others.
    fn change(
        &mut self,
        source: IpAddr,
        change: impl FnOnce(&mut BTreeMap<u64, K>) -> Option<K>,
    ) -> Option<K> {
        let rank = |members: &BTreeMap<u64, K>| {
            let (oldest, _) = members.first_key_value()?;
            Some((members.len(), Reverse(*oldest), source))
        };
        let members = self.members_by_source.entry(source).or_default();
        let before = rank(members);
        let changed = change(members);
        let after = rank(members);
        if let Some(before) = before {
            self.sources_by_count.remove(&before);
        }
        match after {
            Some(after) => {
                self.sources_by_count.insert(after);
            }
            None => {
                self.members_by_source.remove(&source);
            }
        }
        changed
    }
}

/// Returns the source that an address is counted under.
fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crowd(total: usize, per_source: usize) -> Crowd<u32> {
        Crowd::new(CrowdLimits { total, per_source })
    }

    fn at(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_oldest_of_the_source_with_the_most_makes_room() {
        let mut crowd = crowd(6, 100);
        let (slow, few, many) = (at("192.0.2.1"), at("192.0.2.2"), at("192.0.2.3"));
        let mut places = Vec::new();
        for (key, from) in [slow, few, few, many, many, many].into_iter().enumerate() {
            assert_eq!(crowd.displaced_by(Some(from)), None);
            places.push(crowd.add(from, u32::try_from(key).unwrap()));
        }
        // Whoever comes, and however often: the oldest of all stays as long as somebody has two.
        let mut gone = Vec::new();
        for _ in 0..4 {
            let (key, exceeded) = crowd.displaced_by(Some(at("192.0.2.9"))).unwrap();
            assert_eq!(exceeded, Exceeded::Total);
            crowd.remove(places[key as usize]);
            gone.push(key);
            places.push(crowd.add(at(&format!("198.51.100.{}", gone.len())), 5 + key));
        }
        assert_eq!(gone[..3], [3, 1, 4]);
        assert_eq!(gone[3], 0, "all have one now, and the oldest goes");
        assert_eq!(crowd.len(), 6);
    }

    #[test]
    fn a_source_that_has_all_it_may_have_displaces_its_own_oldest() {
        let mut crowd = crowd(100, 2);
        let first = crowd.add(at("2001:db8::1"), 1);
        crowd.add(at("2001:db8::2"), 2);
        crowd.add(at("2001:db8:0:1::1"), 3);
        let here = Some(at("2001:db8::3"));
        assert_eq!(crowd.displaced_by(here), Some((1, Exceeded::Source)));
        assert_eq!(crowd.displaced_by(Some(at("2001:db8:0:1::2"))), None);
        assert_eq!(crowd.displaced_by(None), None);
        crowd.remove(first);
        crowd.remove(first); // once
        assert_eq!(crowd.len(), 2);
        assert_eq!(crowd.displaced_by(here), None);
    }

    #[test]
    fn what_is_gone_leaves_nothing() {
        let mut crowd = crowd(1000, 1000);
        let places: Vec<_> = (0..500_u32)
            .map(|key| {
                crowd.add(
                    IpAddr::from([10, 0, 0, u8::try_from(key % 7).unwrap()]),
                    key,
                )
            })
            .collect();
        for place in places {
            crowd.remove(place);
        }
        assert_eq!(crowd.len(), 0);
        assert!(crowd.members_by_source.is_empty() && crowd.sources_by_count.is_empty());
    }

    #[test]
    fn a_limit_for_the_server_is_divided_among_its_shards() {
        assert_eq!(CrowdLimits::share(1024, 1), 1024);
        assert_eq!(CrowdLimits::share(1024, 16), 64);
        assert_eq!(CrowdLimits::share(10, 16), 1, "each shard takes one");
    }
}
