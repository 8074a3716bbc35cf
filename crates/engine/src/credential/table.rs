//! The users of a realm, sorted by USERHASH, which names and hashes alike are looked up by.
//!
//! The invariant: a look-up takes the same steps for every hash, whether or not there is a user of it (V-26), and a change of one user copies a
//! bounded number of others. Users stand in leaves of a bounded size. A leaf is never changed, but replaced, so tables share all leaves in
//! which they do not differ: every engine of a server has the same table, and taking over another one costs nothing.
//! [Decision 57](../../../../docs/decisions/0057-a-change-of-a-user-costs-a-leaf.md) has the reasons.

use std::borrow::Cow;
use std::sync::Arc;

use subtle::Choice;
use turnbuckle_wire::userhash;

use super::{Keys, User};

/// Most users of a leaf. A power of two: the search takes as many steps as it has digits.
const LEAF_MAX: usize = 512;

/// How many users a leaf has where many are added at once. Leaves room for others.
const LEAF_USUAL: usize = 384;

/// A leaf with fewer users is joined with the next one.
const LEAF_MIN: usize = 128;

/// Holds the users of one realm. A clone shares them.
#[derive(Clone, Default)]
pub(crate) struct UserTable {
    /// Each leaf with the hash of its first user, in the order of these. None is empty, and no hash stands in it twice.
    leaves: Arc<Vec<(Digest, Arc<Leaf>)>>,
    len: usize,
    /// Users of whom only the MD5 key is configured.
    len_without_sha256: usize,
}

/// Holds users whose hashes follow each other.
struct Leaf {
    /// In ascending order.
    hashes: Vec<Digest>,
    /// In the order of the hashes.
    entries: Vec<Entry>,
    /// The names, one behind the other, in the order of the hashes.
    names: String,
    /// The SHA-256 keys. The first stands for those that there are not.
    sha256: Vec<[u8; 32]>,
}

/// What a leaf has of a user besides its hash. 24 bytes: a table may have millions of them.
struct Entry {
    md5: [u8; 16],
    /// Where in the names its own ends. It begins where the one before ends.
    name_end: u32,
    /// Which of the SHA-256 keys is the user's; 0 for none.
    sha256: u32,
}

/// A user on the way into a table.
#[derive(Clone)]
pub(crate) struct Row<'a> {
    hash: Digest,
    name: Cow<'a, str>,
    keys: Keys,
}

/// What is to become of the user of a hash.
enum Edit<'a> {
    /// It is added if there is none.
    Insert(Row<'a>),
    /// It is added, or replaces the one that there is.
    Put(Row<'a>),
    /// It is removed.
    Remove,
}

impl<'a> Row<'a> {
    /// Returns the row of a configured user.
    pub(crate) fn of(user: &'a User) -> Self {
        let name = Cow::Borrowed(&*user.name);
        Self::with_keys(name, &user.realm, user.keys.clone())
    }

    /// Returns the row of a user of whom only the MD5 key is known.
    pub(crate) fn with_md5_key(name: Cow<'a, str>, realm: &str, md5: [u8; 16]) -> Self {
        Self::with_keys(name, realm, Keys::of_md5(md5))
    }

    fn with_keys(name: Cow<'a, str>, realm: &str, keys: Keys) -> Self {
        Self {
            hash: hash_of(&name, realm),
            name,
            keys,
        }
    }
}

impl UserTable {
    /// Adds a user; false if there is one of this name already.
    pub(crate) fn insert(&mut self, row: Row<'_>) -> bool {
        self.change(row.hash, Edit::Insert(row))
    }

    /// Adds a user, or puts it in the place of the one of its name. Returns whether that changed anything.
    pub(crate) fn put(&mut self, row: Row<'_>) -> bool {
        self.change(row.hash, Edit::Put(row))
    }

    /// Removes the user of this name. Returns whether there was one.
    pub(crate) fn remove(&mut self, name: &str, realm: &str) -> bool {
        self.change(hash_of(name, realm), Edit::Remove)
    }

    /// Adds those of `more` whose names are not taken, in the order of sorting rather than one by one.
    pub(crate) fn extend<'a>(&mut self, more: impl Iterator<Item = Row<'a>>) {
        let leaves = Arc::clone(&self.leaves);
        let known = leaves.iter().flat_map(|(_, leaf)| leaf.rows());
        let len_at_most = more.size_hint().1.unwrap_or(0);
        let mut rows = Vec::with_capacity(self.len + len_at_most);
        rows.extend(known);
        for row in more {
            rows.push(row);
        }
        // Stable, so that of two users of one name the one known before stays.
        rows.sort_by_key(|row| row.hash);
        rows.dedup_by_key(|row| row.hash);
        let len_of_each = match rows.len().div_ceil(LEAF_USUAL) {
            0 => return,
            leaves => rows.len().div_ceil(leaves),
        };
        self.len = rows.len();
        self.leaves = Arc::new(rows.chunks(len_of_each).filter_map(Leaf::of).collect());
        let without = self
            .leaves
            .iter()
            .map(|(_, leaf)| leaf.len_without_sha256());
        self.len_without_sha256 = without.sum();
    }

    /// Returns whether there is a user of this name.
    pub(crate) fn has(&self, name: &str, realm: &str) -> bool {
        let hash = hash_of(name, realm);
        let leaf = self.leaves.get(self.leaf_of(hash));
        leaf.is_some_and(|(_, leaf)| leaf.hashes.binary_search(&hash).is_ok())
    }

    /// Returns whether there is any user of whom only the MD5 key is configured.
    pub(crate) fn lacks_sha256(&self) -> bool {
        self.len_without_sha256 > 0
    }

    /// Returns the names of the users of whom only the MD5 key is configured.
    pub(crate) fn names_without_sha256(&self) -> impl Iterator<Item = &str> {
        let users = self.leaves.iter().flat_map(|(_, leaf)| leaf.users());
        let without = users.filter(|user| !bool::from(user.keys().has_sha256));
        without.map(|user| user.name())
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the user of this USERHASH, and whether there is one. If there is none, returns some user that depends on the hash alone; `None` if
    /// the table is empty.
    ///
    /// Takes no branch on the hash. Otherwise the state that earlier look-ups left in the branch predictor and the caches would reveal whether
    /// this user exists. Takes as many steps in each leaf, or the number of users in one would tell it.
    pub(super) fn find(&self, userhash: &[u8; 32]) -> Option<(Stored<'_>, Choice)> {
        let hash = Digest::of(userhash);
        let first = |at: usize| self.leaves.get(at).map(|&(first, _)| first);
        let at = last_at_most(hash, self.leaves.len(), self.leaves.len(), first);
        let (_, leaf) = self.leaves.get(at)?;
        let known = |at: usize| leaf.hashes.get(at).copied();
        let len = leaf.hashes.len();
        let at = last_at_most(hash, len, LEAF_MAX, known);
        let is_found = known(at).map_or_else(|| Choice::from(0), |known| known.is(hash));
        let any = trailing(userhash).checked_rem(len).unwrap_or(0);
        // A found user waits for the other's entry too, which may have to come from memory.
        let of_any = known(any).map_or(0, |known| known.low);
        let nothing = usize::from(of_any.to_le_bytes()[0] & core::hint::black_box(0));
        let at = select(any, at, is_found) | nothing;
        Some((Stored { leaf, at }, is_found))
    }

    /// Changes the user of a hash. Returns whether that made a difference. A leaf with the change takes the place of the one in which the hash stands
    /// or would stand.
    fn change(&mut self, hash: Digest, edit: Edit<'_>) -> bool {
        let at = self.leaf_of(hash);
        // The rows borrow the names of these.
        let (leaf, next) = (
            self.leaves.get(at).cloned(),
            self.leaves.get(at + 1).cloned(),
        );
        let mut replaced = at..at + usize::from(leaf.is_some());
        let mut rows: Vec<_> = leaf.iter().flat_map(|(_, leaf)| leaf.rows()).collect();
        let (len, len_without) = (rows.len(), without_sha256(&rows));
        let place = rows.binary_search_by_key(&hash, |row| row.hash);
        match (edit, place) {
            (Edit::Insert(row) | Edit::Put(row), Err(at)) => rows.insert(at, row),
            (Edit::Put(row), Ok(at)) => match rows.get_mut(at) {
                Some(known) if !known.keys.is_same_as(&row.keys) => known.keys = row.keys,
                _ => return false,
            },
            (Edit::Remove, Ok(at)) => drop(rows.remove(at)),
            (Edit::Insert(_), Ok(_)) | (Edit::Remove, Err(_)) => return false,
        }
        self.len = self.len - len + rows.len();
        self.len_without_sha256 = self.len_without_sha256 - len_without + without_sha256(&rows);
        if rows.len() < LEAF_MIN
            && let Some((_, next)) = &next
        {
            rows.extend(next.rows());
            replaced.end += 1;
        }
        let len_of_each = match rows.len() {
            len if len > LEAF_MAX => len.div_ceil(2),
            len => len.max(1),
        };
        let new = rows.chunks(len_of_each).filter_map(Leaf::of);
        Arc::make_mut(&mut self.leaves).splice(replaced, new);
        true
    }

    /// Returns the place of the leaf in which a hash stands or would stand.
    fn leaf_of(&self, hash: Digest) -> usize {
        let after = self.leaves.partition_point(|&(first, _)| first <= hash);
        after.saturating_sub(1)
    }
}

impl Leaf {
    /// Makes a leaf of sorted rows, with the hash of the first; `None` if there are none.
    fn of(rows: &[Row<'_>]) -> Option<(Digest, Arc<Self>)> {
        let first = rows.first()?.hash;
        let names = rows.iter().map(|row| row.name.len()).sum();
        let mut leaf = Self {
            hashes: Vec::with_capacity(rows.len()),
            entries: Vec::with_capacity(rows.len()),
            names: String::with_capacity(names),
            sha256: Vec::with_capacity(1 + rows.len() - without_sha256(rows)),
        };
        leaf.sha256.push([0; 32]);
        let number = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        for row in rows {
            leaf.names.push_str(&row.name);
            let sha256 = match bool::from(row.keys.has_sha256) {
                true => number(leaf.sha256.len()),
                false => 0,
            };
            if sha256 > 0 {
                leaf.sha256.push(row.keys.sha256);
            }
            leaf.hashes.push(row.hash);
            leaf.entries.push(Entry {
                md5: row.keys.md5,
                name_end: number(leaf.names.len()),
                sha256,
            });
        }
        Some((first, Arc::new(leaf)))
    }

    fn users(&self) -> impl Iterator<Item = Stored<'_>> {
        (0..self.hashes.len()).map(|at| Stored { leaf: self, at })
    }

    fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.hashes
            .iter()
            .zip(self.users())
            .map(|(&hash, user)| Row {
                hash,
                name: user.name().into(),
                keys: user.keys(),
            })
    }

    fn len_without_sha256(&self) -> usize {
        self.entries
            .iter()
            .filter(|entry| entry.sha256 == 0)
            .count()
    }
}

fn without_sha256(rows: &[Row<'_>]) -> usize {
    rows.iter()
        .filter(|row| !bool::from(row.keys.has_sha256))
        .count()
}

/// A user in a table.
#[derive(Clone, Copy)]
pub(super) struct Stored<'u> {
    leaf: &'u Leaf,
    at: usize,
}

impl<'u> Stored<'u> {
    /// Returns the keys. Reads the same number of bytes whether or not there is a SHA-256 key.
    pub(super) fn keys(self) -> Keys {
        let entry = self.leaf.entries.get(self.at);
        let (md5, sha256) = entry.map_or(([0; 16], 0), |entry| (entry.md5, entry.sha256));
        let index = usize::try_from(sha256).unwrap_or(0);
        Keys {
            md5,
            sha256: self.leaf.sha256.get(index).copied().unwrap_or([0; 32]),
            has_sha256: Choice::from(u8::from(sha256 != 0)),
        }
    }

    pub(super) fn name(self) -> &'u str {
        let end = |at: usize| {
            let entry = self.leaf.entries.get(at);
            entry.and_then(|entry| usize::try_from(entry.name_end).ok())
        };
        let begin = self.at.checked_sub(1).and_then(end).unwrap_or(0);
        let name = end(self.at).and_then(|end| self.leaf.names.get(begin..end));
        name.unwrap_or_default()
    }

    /// Returns the user as it is known where it has proven who it is.
    pub(super) fn user(self, realm: &str) -> User {
        User::with_keys(self.name(), realm, self.keys())
    }
}

/// Returns the place of the last of `len` digests in ascending order that is at most `hash`, or 0 if there is none. Takes no branch on the hash, and
/// as many steps for every `len` up to `len_max`.
fn last_at_most(
    hash: Digest,
    len: usize,
    len_max: usize,
    digest: impl Fn(usize) -> Option<Digest>,
) -> usize {
    let (mut at, mut step) = (0, len_max.next_power_of_two());
    while step > 1 {
        step /= 2;
        let next = at + step;
        let is_there = Choice::from(u8::from(next < len));
        let read = select(len.saturating_sub(1), next, is_there);
        let is_at_most = digest(read).map_or_else(|| Choice::from(0), |it| it.is_at_most(hash));
        at = select(at, next, is_there & is_at_most);
    }
    at
}

/// Returns `other` if `choice`, else `one`, without a branch.
fn select(one: usize, other: usize, choice: Choice) -> usize {
    let mask = usize::from(choice.unwrap_u8()).wrapping_neg();
    one ^ ((one ^ other) & mask)
}

fn hash_of(name: &str, realm: &str) -> Digest {
    Digest::of(&userhash(name.as_bytes(), realm.as_bytes()))
}

/// A SHA-256 digest as two numbers, compared without a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Digest {
    high: u128,
    low: u128,
}

impl Digest {
    fn of(hash: &[u8; 32]) -> Self {
        let half = |bytes: Option<&[u8; 16]>| bytes.map_or(0, |half| u128::from_be_bytes(*half));
        Self {
            high: half(hash.first_chunk()),
            low: half(hash.last_chunk()),
        }
    }

    fn is(self, other: Self) -> Choice {
        // guard: V-26-whole-hash
        let is_same = (self.high == other.high) & (self.low == other.low);
        Choice::from(u8::from(is_same))
    }

    fn is_at_most(self, other: Self) -> Choice {
        let is_low_at_most = (self.high == other.high) & (self.low <= other.low);
        Choice::from(u8::from((self.high < other.high) | is_low_at_most))
    }
}

/// Returns a few bytes of a digest as an index.
fn trailing(hash: &[u8; 32]) -> usize {
    hash.last_chunk()
        .map_or(0, |bytes| usize::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests;
