//! Who sent, and how much.

use std::collections::HashMap;
use std::net::SocketAddr;

/// Sources that are told apart by each thread; what others send counts in the sums only.
pub(super) const SOURCES_MAX: usize = 100_000;

/// What came from one source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) datagrams: u64,
    pub(super) bytes: u64,
}

impl Seen {
    pub(super) fn add(&mut self, other: Self) {
        self.datagrams += other.datagrams;
        self.bytes += other.bytes;
    }
}

/// A bounded table of sources.
#[derive(Debug, Default)]
pub(super) struct Sources(HashMap<SocketAddr, Seen>);

impl Sources {
    /// Counts what a source sent, and returns whether the source is new.
    pub(super) fn count(&mut self, source: SocketAddr, seen: Seen) -> bool {
        if let Some(known) = self.0.get_mut(&source) {
            known.add(seen);
            return false;
        }
        if self.0.len() < SOURCES_MAX {
            self.0.insert(source, seen);
            return true;
        }
        false
    }

    pub(super) fn into_list(self) -> Vec<(SocketAddr, Seen)> {
        self.0.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_beyond_the_limit_take_no_memory() {
        let mut sources = Sources::default();
        let one = Seen {
            datagrams: 1,
            bytes: 10,
        };
        for number in 0..u32::try_from(SOURCES_MAX).unwrap() + 5 {
            let source = SocketAddr::from((number.to_be_bytes(), 1));
            assert_eq!(sources.count(source, one), (number as usize) < SOURCES_MAX);
        }
        let known = SocketAddr::from(([0, 0, 0, 0], 1));
        assert!(!sources.count(known, one));
        let list = sources.into_list();
        assert_eq!(list.len(), SOURCES_MAX);
        let seen = list.iter().find(|(source, _)| *source == known).unwrap().1;
        assert_eq!(seen.bytes, 20);
    }
}
