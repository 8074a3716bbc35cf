//! A table of address ranges: which of many overlapping ranges decides for an address.

use std::collections::BTreeSet;

/// One range as it goes in. Where several cover an address, the one with the smallest `(width, rank)` decides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<T> {
    /// The first number of the range.
    pub first: u128,
    /// The last number of the range; `first <= last`.
    pub last: u128,
    /// Breaks ties between ranges of the same width; the smaller wins.
    pub rank: (u8, usize),
    /// The value of the range.
    pub value: T,
}

/// Disjoint intervals in ascending order, found by binary search.
#[derive(Clone, Debug)]
pub(crate) struct RangeTable<T> {
    intervals: Vec<Interval<T>>,
}

#[derive(Clone, Debug)]
struct Interval<T> {
    first: u128,
    last: u128,
    value: T,
}

impl<T: Copy + PartialEq> RangeTable<T> {
    /// Cuts overlapping ranges into disjoint intervals, in `O(n log n)`.
    pub(crate) fn new(entries: &[Entry<T>]) -> Self {
        // Every place where the set of covering ranges changes: a range begins, or the number after its end.
        let mut edges: Vec<(u128, bool, usize)> = Vec::with_capacity(entries.len() * 2);
        for (index, entry) in entries.iter().enumerate() {
            edges.push((entry.first, true, index));
            if let Some(after) = entry.last.checked_add(1) {
                edges.push((after, false, index));
            }
        }
        edges.sort_unstable();

        let mut intervals: Vec<Interval<T>> = Vec::with_capacity(edges.len());
        let mut covering = BTreeSet::new();
        let mut edges = edges.into_iter().peekable();
        while let Some((at, begins, index)) = edges.next() {
            if let Some(entry) = entries.get(index) {
                // guard: V-09-width
                let key = (entry.last - entry.first, entry.rank, index);
                if begins {
                    covering.insert(key);
                } else {
                    covering.remove(&key);
                }
            }
            let next = edges.peek().map(|&(next, ..)| next);
            if next == Some(at) {
                continue; // more changes at this place
            }
            let last = next.map_or(u128::MAX, |next| next - 1);
            let winner = covering
                .first()
                .and_then(|&(.., index)| entries.get(index))
                .map(|entry| entry.value);
            if let Some(value) = winner {
                push(&mut intervals, at, last, value);
            }
        }
        intervals.shrink_to_fit();
        Self { intervals }
    }

    /// Returns the value of the range that decides for `number`, or `None` if no range covers it.
    pub(crate) fn find(&self, number: u128) -> Option<T> {
        let after = self
            .intervals
            .partition_point(|interval| interval.first <= number);
        let interval = self.intervals.get(after.checked_sub(1)?)?;
        // guard: V-09-end
        (number <= interval.last).then_some(interval.value)
    }
}

/// Appends an interval, or widens the last one if its value is the same.
fn push<T: PartialEq>(intervals: &mut Vec<Interval<T>>, first: u128, last: u128, value: T) {
    match intervals.last_mut() {
        Some(before) if before.value == value && before.last.checked_add(1) == Some(first) => {
            before.last = last;
        }
        _ => intervals.push(Interval { first, last, value }),
    }
}

#[cfg(test)]
mod tests;
