//! Holds a change for all shards until each of them has taken it.

/// A value and the shards that have not taken it yet. A shard that is far behind has no room for it in its queue.
pub(crate) struct Pending<T> {
    value: T,
    shards: Vec<usize>,
}

impl<T> Pending<T> {
    /// Returns a change for the first `count` shards.
    pub(crate) fn new(value: T, count: usize) -> Self {
        Self {
            value,
            shards: (0..count).collect(),
        }
    }

    pub(crate) fn value(&self) -> &T {
        &self.value
    }

    /// Returns whether a shard has not taken it yet.
    pub(crate) fn waits_for(&self, shard: usize) -> bool {
        self.shards.contains(&shard)
    }

    /// Offers the value to the shards that are left. `tell` returns whether a shard took it. Returns whether all shards have taken it.
    pub(crate) fn deliver(&mut self, mut deliver: impl FnMut(usize, &T) -> bool) -> bool {
        let value = &self.value;
        self.shards.retain(|&shard| !deliver(shard, value));
        self.shards.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_that_has_no_room_is_told_again_and_the_others_are_not() {
        let mut delivered = Vec::new();
        let mut pending = Pending::new("news", 3);
        let mut round = |has_room: &dyn Fn(usize) -> bool| {
            pending.deliver(|shard, _| {
                delivered.push(shard);
                has_room(shard)
            })
        };
        assert!(!round(&|shard| shard != 1));
        assert!(!round(&|_| false));
        assert!(round(&|_| true));
        assert_eq!(delivered, [0, 1, 2, 1, 1]);
        assert_eq!(*pending.value(), "news");
    }
}
