//! The users of one realm by name, in few bytes, because there may be millions of them.
//!
//! Invariant: names ascend within a leaf and from each leaf to the next, no leaf is empty, and none has more than [`LEAF_MAX`] users. The names of
//! a leaf stand one behind the other in one allocation, and what belongs to them in another: by layout 37 bytes for a user whose name has 11, where a tree of
//! strings took 84 ([decision 63](../../../docs/decisions/0063-rows-that-nobody-names-are-compared.md)).

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;

use crate::records::UserKey;

/// Most users of a leaf. Whoever has been seen is a bit of a number for each leaf.
const LEAF_MAX: usize = u128::BITS as usize;

/// How many users a leaf has where many are put in order at once. Leaves room for others.
const LEAF_USUAL: usize = 96;

/// A leaf with fewer users is joined with the next one where one has room for both.
const LEAF_MIN: usize = 32;

/// Users of a realm, in the order of their names.
#[derive(Clone, Default)]
pub struct RealmUsers {
    leaves: Vec<Leaf>,
    len: usize,
}

/// Some users whose names follow each other.
#[derive(Clone)]
struct Leaf {
    names: String,
    entries: Vec<Entry>,
}

/// What a leaf has of a user.
#[derive(Clone)]
struct Entry {
    /// Where in the names its own ends. It begins where the one before ends.
    name_end: u32,
    key: UserKey,
}

/// Where a user is.
#[derive(Clone, Copy, Default)]
struct Place {
    leaf: usize,
    at: usize,
}

impl RealmUsers {
    /// Returns the key of a user, or that its row holds none; `None` if there is no such user.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<UserKey> {
        let place = self.find(name).ok()?;
        self.row(place).map(|(_, key)| key)
    }

    /// Returns whether there is a user of this name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.find(name).is_ok()
    }

    /// Returns how many users there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there is no user.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the users with their keys.
    #[must_use]
    pub fn iter(&self) -> UserRows<'_> {
        let leaves = &self.leaves;
        UserRows { leaves, at: 0 }
    }

    /// Returns the names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(name, _)| name)
    }

    /// Adds a user, or gives a key to the one of its name. Returns whether that changed anything.
    pub fn put(&mut self, name: &str, key: UserKey) -> bool {
        match self.find(name) {
            Ok(Place { leaf, at }) => {
                let known = &mut self.leaves[leaf].entries[at].key;
                std::mem::replace(known, key) != key
            }
            Err(place) => {
                self.insert(place, name, key);
                true
            }
        }
    }

    /// Removes a user. Returns whether there was one.
    pub fn remove(&mut self, name: &str) -> bool {
        let Ok(Place { leaf, at }) = self.find(name) else {
            return false;
        };
        self.len -= 1;
        self.leaves[leaf].remove(at);
        self.join(leaf);
        true
    }

    fn insert(&mut self, Place { leaf, at }: Place, name: &str, key: UserKey) {
        self.len += 1;
        let Some(of_name) = self.leaves.get_mut(leaf) else {
            self.leaves.push(Leaf::of([(name, key)].into_iter()));
            return;
        };
        of_name.insert(at, name, key);
        if of_name.len() > LEAF_MAX {
            let rows = of_name.rows();
            let (left, right) = (rows.clone().take(LEAF_MAX / 2), rows.skip(LEAF_MAX / 2));
            let halves = [Leaf::of(left), Leaf::of(right)];
            self.leaves.splice(leaf..=leaf, halves);
        }
    }

    /// Joins a leaf that has lost a user with the next one, if it has become small.
    fn join(&mut self, leaf: usize) {
        let len_of = |leaf: usize| self.leaves.get(leaf).map_or(0, Leaf::len);
        let (len, next) = (len_of(leaf), len_of(leaf + 1));
        if len == 0 {
            self.leaves.remove(leaf);
        } else if len < LEAF_MIN && next > 0 && len + next <= LEAF_MAX {
            let rows = self.leaves[leaf].rows();
            let joined = Leaf::of(rows.chain(self.leaves[leaf + 1].rows()));
            self.leaves.splice(leaf..=leaf + 1, [joined]);
        }
    }

    /// Returns where a user is, or else where it would be.
    fn find(&self, name: &str) -> Result<Place, Place> {
        let after = self.leaves.partition_point(|leaf| leaf.name(0) <= name);
        let leaf = after.saturating_sub(1);
        let found = self.leaves.get(leaf).map_or(Err(0), |it| it.find(name));
        let place = |at| Place { leaf, at };
        found.map(place).map_err(place)
    }

    fn row(&self, Place { leaf, at }: Place) -> Option<(&str, UserKey)> {
        self.leaves.get(leaf)?.row(at)
    }

    /// Returns the place after this one.
    fn after(&self, Place { leaf, at }: Place) -> Place {
        match self.leaves.get(leaf) {
            Some(it) if at + 1 < it.len() => Place { leaf, at: at + 1 },
            _ => Place {
                leaf: leaf + 1,
                at: 0,
            },
        }
    }
}

impl PartialEq for RealmUsers {
    /// Compares the users in their order: leaves of equal users may begin at different names.
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl Eq for RealmUsers {}

impl fmt::Debug for RealmUsers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

impl<'a> IntoIterator for &'a RealmUsers {
    type Item = (&'a str, UserKey);
    type IntoIter = UserRows<'a>;

    fn into_iter(self) -> UserRows<'a> {
        self.iter()
    }
}

impl<N: AsRef<str>> FromIterator<(N, UserKey)> for RealmUsers {
    /// Puts users in order. Of two with one name the last one counts.
    fn from_iter<I: IntoIterator<Item = (N, UserKey)>>(rows: I) -> Self {
        let mut gathered = Gathered::default();
        for (name, key) in rows {
            gathered.take(name.as_ref(), key);
        }
        gathered.in_order()
    }
}

/// The users of a realm in the order of their names, with their keys.
#[derive(Debug, Clone)]
pub struct UserRows<'a> {
    /// The leaves from that of the next user on.
    leaves: &'a [Leaf],
    at: usize,
}

impl<'a> Iterator for UserRows<'a> {
    type Item = (&'a str, UserKey);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (leaf, others) = self.leaves.split_first()?;
            if let Some(row) = leaf.row(self.at) {
                self.at += 1;
                return Some(row);
            }
            (self.leaves, self.at) = (others, 0);
        }
    }
}

impl Leaf {
    /// Makes a leaf of rows in the order of their names.
    fn of<'a>(rows: impl Iterator<Item = (&'a str, UserKey)> + Clone) -> Self {
        let (mut count, mut bytes) = (0, 0);
        for (name, _) in rows.clone() {
            count += 1;
            bytes += name.len();
        }
        let mut leaf = Self {
            names: String::with_capacity(bytes),
            entries: Vec::with_capacity(count),
        };
        for (name, key) in rows {
            leaf.names.push_str(name);
            let name_end = number(leaf.names.len());
            leaf.entries.push(Entry { name_end, key });
        }
        leaf
    }

    fn len(&self) -> usize {
        self.entries.len()
    }

    fn rows(&self) -> impl Iterator<Item = (&str, UserKey)> + Clone {
        (0..self.len()).filter_map(|at| self.row(at))
    }

    fn row(&self, at: usize) -> Option<(&str, UserKey)> {
        let entry = self.entries.get(at)?;
        Some((self.name(at), entry.key))
    }

    fn name(&self, at: usize) -> &str {
        &self.names[self.name_range(at)]
    }

    fn name_range(&self, at: usize) -> Range<usize> {
        let end = |at: usize| self.entries[at].name_end as usize;
        at.checked_sub(1).map_or(0, end)..end(at)
    }

    fn find(&self, name: &str) -> Result<usize, usize> {
        let (mut from, mut to) = (0, self.len());
        while from < to {
            let middle = from.midpoint(to);
            match self.name(middle).cmp(name) {
                std::cmp::Ordering::Less => from = middle + 1,
                std::cmp::Ordering::Equal => return Ok(middle),
                std::cmp::Ordering::Greater => to = middle,
            }
        }
        Err(from)
    }

    /// Adds a user before the one at `at`. No more memory is taken than it needs.
    fn insert(&mut self, at: usize, name: &str, key: UserKey) {
        let begin = at
            .checked_sub(1)
            .map_or(0, |before| self.name_range(before).end);
        self.names.reserve_exact(name.len());
        self.names.insert_str(begin, name);
        self.entries.reserve_exact(1);
        let name_end = number(begin);
        self.entries.insert(at, Entry { name_end, key });
        for entry in &mut self.entries[at..] {
            entry.name_end += number(name.len());
        }
    }

    fn remove(&mut self, at: usize) {
        let range = self.name_range(at);
        let len = number(range.len());
        self.names.replace_range(range, "");
        self.entries.remove(at);
        for entry in &mut self.entries[at..] {
            entry.name_end -= len;
        }
    }
}

impl fmt::Debug for Leaf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.rows()).finish()
    }
}

/// Returns a length of names as a leaf keeps it. No database has names of which 128 are 4 GiB long.
fn number(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// Users of a realm as they are read, in any order. They are put in order all at once.
#[derive(Default)]
pub(crate) struct Gathered {
    names: String,
    rows: Vec<GatheredRow>,
}

/// Where the name stands, and the key.
type GatheredRow = (Range<usize>, UserKey);

impl Gathered {
    pub(crate) fn take(&mut self, name: &str, key: UserKey) {
        let begin = self.names.len();
        self.names.push_str(name);
        self.rows.push((begin..self.names.len(), key));
    }

    /// Returns the users. Of two with one name the one that was read last counts.
    pub(crate) fn in_order(self) -> RealmUsers {
        let Self { names, mut rows } = self;
        let name = |(range, _): &GatheredRow| &names[range.clone()];
        // Stable, so that the last of several equal ones is the first of them and stays.
        rows.reverse();
        rows.sort_by(|one, other| name(one).cmp(name(other)));
        rows.dedup_by(|next, kept| name(next) == name(kept));
        let leaves = rows.len().div_ceil(LEAF_USUAL).max(1);
        let len_of_each = rows.len().div_ceil(leaves).max(1);
        let row = |row: &GatheredRow| (name(row), row.1);
        RealmUsers {
            leaves: (rows.chunks(len_of_each))
                .map(|rows| Leaf::of(rows.iter().map(row)))
                .collect(),
            len: rows.len(),
        }
    }
}

/// Finds out which of the known users of a realm are gone, while the names of all that are there are read.
pub(crate) struct Remaining<'a> {
    known: &'a RealmUsers,
    /// For each leaf, a bit for each user who was read.
    seen: Vec<u128>,
    /// After whoever was seen last. Most databases have the order of names or that in which users were written, which is often the same.
    next: Place,
}

impl<'a> Remaining<'a> {
    pub(crate) fn new(known: &'a RealmUsers) -> Self {
        Self {
            known,
            seen: vec![0; known.leaves.len()],
            next: Place::default(),
        }
    }

    /// Takes note that a user is there. Returns the key that is known, if any is.
    pub(crate) fn see(&mut self, name: &str) -> Option<UserKey> {
        let guess = self.known.row(self.next);
        let place = match guess {
            Some((expected, _)) if expected == name => self.next,
            _ => self.known.find(name).ok()?,
        };
        self.next = self.known.after(place);
        self.seen[place.leaf] |= 1 << place.at;
        self.known.row(place).map(|(_, key)| key)
    }

    /// Returns the names that were not read.
    pub(crate) fn unseen(self) -> BTreeSet<String> {
        let leaves = self.known.leaves.iter().zip(&self.seen);
        let unseen = leaves.flat_map(|(leaf, seen)| {
            let is_unseen = move |at: &usize| (seen >> at) & 1 == 0;
            let unseen = (0..leaf.len()).filter(is_unseen);
            unseen.map(move |at| leaf.name(at).to_owned())
        });
        unseen.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn key(number: usize) -> UserKey {
        (!number.is_multiple_of(7)).then(|| (number as u128).to_be_bytes())
    }

    /// Returns numbers that look drawn and are the same each time.
    fn drawn() -> impl Iterator<Item = usize> {
        let mut state = 1_u64;
        std::iter::from_fn(move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(state >> 33).ok()
        })
    }

    /// Returns a name of any length, also of none, of characters of several bytes.
    fn name(number: usize) -> String {
        "né€🦀".chars().cycle().take(number % 5).collect::<String>()
            + &(number / 5).to_string()[..usize::from(number > 4)]
            + &number.to_string()
    }

    #[test]
    fn users_are_those_of_a_map_through_any_changes() {
        let (mut users, mut map) = (RealmUsers::default(), BTreeMap::new());
        let mut numbers = drawn();
        let mut next = |below: usize| numbers.next().expect("endless") % below;
        for step in 0..30_000 {
            // Grows first, and is removed in the end.
            let (name, key) = (name(next(2_000)), key(next(3)));
            if next(30_000) >= step {
                let has_changed = map.insert(name.clone(), key) != Some(key);
                assert_eq!(users.put(&name, key), has_changed, "{name}");
            } else {
                assert_eq!(users.remove(&name), map.remove(&name).is_some(), "{name}");
            }
            assert_eq!((users.len(), users.is_empty()), (map.len(), map.is_empty()));
            assert_eq!(users.get(&name), map.get(&name).copied());
            if step % 500 == 0 {
                let expected = map.iter().map(|(name, key)| (name.as_str(), *key));
                assert!(users.iter().eq(expected), "{users:?}, not {map:?}");
            }
        }
        let names: Vec<_> = map.into_keys().collect();
        for name in &names {
            assert!(users.has(name) && users.remove(name) && !users.has(name));
        }
        assert!(users.is_empty() && users.leaves.is_empty());
    }

    #[test]
    fn users_in_any_order_are_the_same_as_those_who_came_one_by_one() {
        let rows: Vec<_> = drawn()
            .take(5_000)
            .map(|number| (name(number % 3_000), key(number)))
            .collect();
        let mut one_by_one = RealmUsers::default();
        for (name, key) in &rows {
            one_by_one.put(name, *key);
        }
        let at_once: RealmUsers = rows.iter().map(|(name, key)| (name, *key)).collect();
        assert_eq!(at_once, one_by_one);
        let map: BTreeMap<_, _> = rows.into_iter().collect();
        assert_eq!(
            at_once.names().collect::<Vec<_>>(),
            map.keys().collect::<Vec<_>>()
        );
        one_by_one.put("another", None);
        assert_ne!(at_once, one_by_one);
    }

    #[test]
    fn whoever_was_not_read_remains_in_whatever_order_the_others_were_read() {
        let known: RealmUsers = (0..1_000)
            .map(|number| (name(number), key(number)))
            .collect();
        let mut there: Vec<_> = (0..1_000).filter(|number| number % 3 > 0).collect();
        let gone: BTreeSet<_> = (0..1_000).step_by(3).map(name).collect();
        for is_sorted in [false, true] {
            if is_sorted {
                there.sort_by_key(|&number| name(number));
            }
            let mut remaining = Remaining::new(&known);
            for &number in there.iter().chain(&there[..10]) {
                assert_eq!(remaining.see(&name(number)), Some(key(number)), "{number}");
            }
            assert_eq!(remaining.see("a stranger"), None);
            assert_eq!(remaining.unseen(), gone);
        }
    }

    /// Returns the bytes that a user takes, without what the allocator needs.
    fn bytes_of_each(users: &RealmUsers) -> f64 {
        let of_leaf = |leaf: &Leaf| {
            size_of::<Leaf>() + leaf.names.capacity() + leaf.entries.capacity() * size_of::<Entry>()
        };
        let bytes: usize = users.leaves.iter().map(of_leaf).sum();
        bytes as f64 / users.len() as f64
    }

    #[test]
    fn a_user_takes_his_name_and_few_bytes_more_also_after_many_changes() {
        let name = |number: usize| format!("user{number:07}");
        let mut users: RealmUsers = (0..100_000)
            .map(|number| (name(number), key(number)))
            .collect();
        assert!(bytes_of_each(&users) < 36.0, "{}", bytes_of_each(&users));
        for number in drawn().take(20_000) {
            users.put(&name(100_000 + number % 1_000_000), key(number));
            users.remove(&name(number % 100_000));
        }
        // Leaves that were cut in two are not as full as those that were made at once.
        assert!(bytes_of_each(&users) < 44.0, "{}", bytes_of_each(&users));
    }
}
