//! The virtual clock and what is going to happen.
//!
//! Nothing in the simulator reads a real clock: time jumps from one queued event to the next.
//! Events of the same instant come out in the order in which they were queued, so that a history
//! depends on nothing but its seed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// One millisecond in nanoseconds.
pub const MS: u64 = 1_000_000;
/// One second in nanoseconds.
pub const SECOND: u64 = 1_000_000_000;

/// Events ordered by time, then by when they were queued.
#[derive(Debug)]
pub struct Queue<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    sequence: u64,
    now: u64,
}

#[derive(Debug)]
struct Entry<E> {
    at: u64,
    sequence: u64,
    event: E,
}

impl<E> Queue<E> {
    /// Makes an empty queue whose clock stands at `now` nanoseconds.
    #[must_use]
    pub fn new(now: u64) -> Self {
        Self {
            heap: BinaryHeap::new(),
            sequence: 0,
            now,
        }
    }

    /// Returns the virtual time in nanoseconds.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Queues `event` to happen `delay` nanoseconds from now.
    pub fn after(&mut self, delay: u64, event: E) {
        self.at(self.now.saturating_add(delay), event);
    }

    /// Queues `event` at the time `at`, or now if that has passed.
    pub fn at(&mut self, at: u64, event: E) {
        self.sequence += 1;
        self.heap.push(Reverse(Entry {
            at: at.max(self.now),
            sequence: self.sequence,
            event,
        }));
    }

    /// Takes the next event and sets the clock to it.
    pub fn pop(&mut self) -> Option<E> {
        let Reverse(entry) = self.heap.pop()?;
        self.now = entry.at;
        Some(entry.event)
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.sequence) == (other.at, other.sequence)
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_out_by_time_and_then_in_the_order_queued() {
        let mut queue = Queue::new(10);
        queue.after(5, "c");
        queue.after(1, "a");
        queue.after(5, "d");
        queue.at(0, "now");
        queue.after(1, "b");
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, ["now", "a", "b", "c", "d"]);
        assert_eq!(queue.now(), 15);
    }
}
