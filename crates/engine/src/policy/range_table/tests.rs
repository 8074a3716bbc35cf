//! The table against a naive oracle.

use super::*;
use crate::random::seeded::Seeded;

/// Returns the value of the narrowest range that covers `number`, by looking at all of them.
fn oracle(entries: &[Entry<usize>], number: u128) -> Option<usize> {
    let covering = entries
        .iter()
        .filter(|entry| entry.first <= number && number <= entry.last);
    covering
        .min_by_key(|entry| (entry.last - entry.first, entry.rank))
        .map(|entry| entry.value)
}

fn entry(first: u128, last: u128, rank: u8, value: usize) -> Entry<usize> {
    Entry {
        first,
        last,
        rank: (rank, value),
        value,
    }
}

#[test]
fn agrees_with_the_oracle_on_a_million_triples() {
    //= V-09
    let mut random = Seeded(9);
    let mut looked_up = 0;
    for table in 0..2_000 {
        // Small worlds make ranges meet and touch; large ones are not aligned to anything.
        let world = if table % 2 == 0 { 64 } else { u128::MAX };
        let pick = |random: &mut Seeded| match random.below(16) {
            0 => 0,
            1 => u128::MAX,
            _ => random.u128() % world,
        };
        let entries: Vec<_> = (0..random.below(20))
            .map(|index| {
                let (a, b) = (pick(&mut random), pick(&mut random));
                let rank = u8::try_from(random.below(3)).unwrap();
                entry(a.min(b), a.max(b), rank, usize::try_from(index).unwrap())
            })
            .collect();
        let found = RangeTable::new(&entries);
        for _ in 0..500 {
            let number = match (random.below(4), entries.is_empty()) {
                // Edges are where such a table goes wrong.
                (0..=2, false) => {
                    let index = usize::try_from(random.below(entries.len() as u64)).unwrap();
                    let edge = [entries[index].first, entries[index].last]
                        [usize::from(random.below(2) == 0)];
                    edge.wrapping_add(u128::from(random.below(3)))
                        .wrapping_sub(1)
                }
                _ => pick(&mut random),
            };
            assert_eq!(
                found.find(number),
                oracle(&entries, number),
                "{number} in {entries:?}"
            );
            looked_up += 1;
        }
    }
    assert_eq!(looked_up, 1_000_000);
}

#[test]
fn a_range_over_everything_covers_both_ends() {
    let table = RangeTable::new(&[entry(0, u128::MAX, 0, 7)]);
    assert_eq!((table.find(0), table.find(u128::MAX)), (Some(7), Some(7)));
}

#[test]
fn an_empty_table_covers_nothing() {
    let table = RangeTable::<usize>::new(&[]);
    assert_eq!((table.find(0), table.find(u128::MAX)), (None, None));
}
