//! Users in leaves.

use core::cell::Cell;
use std::collections::BTreeMap;

use super::*;
use crate::random::random_u64;
use crate::random::seeded::Seeded;

const REALM: &str = "realm";

fn row(name: &str, key: u8) -> Row<'_> {
    Row::with_md5_key(name.into(), REALM, [key; 16])
}

fn name(number: u64) -> String {
    format!("user{number}")
}

/// Returns a table of so many users.
fn filled(len: u64) -> UserTable {
    let names: Vec<_> = (0..len).map(name).collect();
    let mut table = UserTable::default();
    table.extend(names.iter().map(|name| row(name, 1)));
    table
}

/// Returns the key of a user, and that of nobody for nobody.
fn key(table: &UserTable, name: &str) -> Option<u8> {
    let hash = userhash(name.as_bytes(), REALM.as_bytes());
    let (user, is_found) = table.find(&hash)?;
    assert_eq!(bool::from(is_found), user.name() == name, "{name}");
    bool::from(is_found).then(|| user.keys().md5[0])
}

#[test]
fn many_users_are_added_at_once_and_a_name_stays_with_who_has_it() {
    let mut table = UserTable::default();
    assert!(table.insert(row("bob", 1)));
    let more = ["alice", "bob", "carol", "alice"].into_iter().zip(2..);
    table.extend(more.map(|(name, key)| row(name, key)));
    assert!(!table.insert(row("carol", 9)));
    assert_eq!(table.len(), 3);
    let keys = ["alice", "bob", "carol", "dave"].map(|name| key(&table, name));
    assert_eq!(keys, [Some(2), Some(1), Some(4), None]);
}

#[test]
fn users_who_come_change_and_go_are_found_as_they_are() {
    //= V-26
    let mut random = Seeded(7);
    let mut table = UserTable::default();
    let mut model = BTreeMap::new();
    for turn in 0..6_000 {
        // First they come, then they go.
        let name = name(random_u64(&mut random) % 3_000);
        let new = random_u64(&mut random).to_le_bytes()[0];
        let is_growing = turn < 4_000;
        match random_u64(&mut random) % 8 {
            0 | 1 if is_growing => {
                let is_new = !model.contains_key(&name);
                assert_eq!(table.insert(row(&name, new)), is_new);
                model.entry(name).or_insert(new);
            }
            2.. if is_growing => {
                assert_eq!(
                    table.put(row(&name, new)),
                    model.insert(name.clone(), new) != Some(new)
                );
            }
            _ => assert_eq!(table.remove(&name, REALM), model.remove(&name).is_some()),
        }
        assert_eq!(table.len(), model.len());
    }
    assert!(model.len() > 300);
    for number in 0..3_000 {
        let name = name(number);
        assert_eq!(key(&table, &name), model.get(&name).copied(), "{name}");
        assert_eq!(table.has(&name, REALM), model.contains_key(&name));
    }
    let mut names: Vec<_> = table.names_without_sha256().collect();
    names.sort_unstable();
    assert!(names.into_iter().eq(model.keys()));
    for name in model.keys() {
        assert!(table.lacks_sha256());
        assert!(table.remove(name, REALM));
    }
    assert!(!table.lacks_sha256() && table.leaves.is_empty() && table.len() == 0);
}

#[test]
fn a_change_of_one_user_copies_one_leaf_however_many_users_there_are() {
    let table = filled(50_000);
    for (what, changed) in [
        ("added", {
            let mut next = table.clone();
            assert!(next.insert(row("alice", 2)));
            next
        }),
        ("changed", {
            let mut next = table.clone();
            assert!(next.put(row("user7", 2)));
            assert!(!next.put(row("user7", 2)), "the same key");
            next
        }),
        ("removed", {
            let mut next = table.clone();
            assert!(next.remove("user7", REALM));
            assert!(!next.remove("user7", REALM), "again");
            next
        }),
    ] {
        let before = table.leaves.iter().zip(changed.leaves.iter());
        let others = before.filter(|((_, one), (_, other))| !Arc::ptr_eq(one, other));
        assert_eq!(others.count(), 1, "{what}");
    }
    assert_eq!(key(&table, "user7"), Some(1), "what is shared stays");
}

#[test]
fn leaves_are_never_large_and_seldom_small() {
    let mut table = UserTable::default();
    for number in 0..5_000 {
        table.insert(row(&name(number), 1));
    }
    let lens = |table: &UserTable| -> Vec<usize> {
        let leaves = table.leaves.iter();
        leaves.map(|(_, leaf)| leaf.hashes.len()).collect()
    };
    for number in 0..4_800 {
        let lens = lens(&table);
        assert!(lens.iter().all(|&len| len <= LEAF_MAX), "{lens:?}");
        let small = lens.iter().rev().skip(1).filter(|&&len| len < LEAF_MIN);
        assert_eq!(small.count(), 0, "{lens:?}");
        table.remove(&name(number), REALM);
    }
}

#[test]
fn a_search_takes_the_same_steps_for_every_hash_and_every_number_of_users_in_a_leaf() {
    //= V-26
    let digest = |number: usize| Digest {
        high: number as u128,
        low: 0,
    };
    for len in 1..=LEAF_MAX {
        for hash in 0..=2 * len {
            let steps = Cell::new(0);
            let read = |at: usize| {
                steps.set(steps.get() + 1);
                // Odd numbers, so that there are hashes between them.
                (at < len).then(|| digest(2 * at + 1))
            };
            let at = last_at_most(digest(hash), len, LEAF_MAX, read);
            assert_eq!(at, hash.saturating_sub(1) / 2, "{hash} of {len}");
            assert_eq!(steps.get(), 9, "{hash} of {len}");
        }
    }
}

#[test]
fn keys_of_either_algorithm_stand_side_by_side() {
    let users = [
        User::with_password("alice", REALM, "wonderland"),
        User::with_md5_key("bob", REALM, [2; 16]),
        User::with_password("carol", REALM, "singers"),
    ];
    let mut table = UserTable::default();
    table.extend(users.iter().map(Row::of));
    for user in &users {
        let hash = userhash(user.name.as_bytes(), REALM.as_bytes());
        let (stored, is_found) = table.find(&hash).expect("users");
        assert!(bool::from(is_found) && stored.keys().is_same_as(&user.keys));
        let user = stored.user(REALM);
        assert_eq!((&*user.realm, user.expires_unix_s), (REALM, None));
    }
    assert_eq!(table.names_without_sha256().collect::<Vec<_>>(), ["bob"]);
    assert!(table.remove("bob", REALM) && !table.lacks_sha256());
}
