//! Users as they are read, compared with those that are known, where a database does not say which rows have changed.
//!
//! A row that is as before costs a bit until the reading is over, and not a second copy of name and key. Users who are read for the first time
//! are put in order all at once, which is quicker than one by one and leaves no room between them.

use std::collections::BTreeSet;

use crate::realm_users::{Gathered, RealmUsers, Remaining};
use crate::records::{Delta, Names, News, Records, Tables, UserKey, Users};

/// Takes the users of some realms, one realm after the other.
pub(crate) struct Comparison<'a> {
    /// What the rows are compared with; `None` where these users are read for the first time.
    known: Option<&'a Users>,
    put: Users,
    deleted: Names,
}

/// Takes the users of one realm, in any order.
pub(crate) struct RealmRows<'a> {
    /// The names that are known, where there is something to compare with.
    known: Option<Remaining<'a>>,
    /// Who is new or has another key, where there is something to compare with.
    put: RealmUsers,
    /// Everyone, where there is nothing to compare with.
    first: Gathered,
}

impl<'a> Comparison<'a> {
    /// Compares the users of `realms` with those that are known, if they are known for just these realms.
    pub(crate) fn new(known: &'a Users, realms: &[String]) -> Self {
        let is_of_realms =
            known.len() == realms.len() && realms.iter().all(|realm| known.contains_key(realm));
        let has_users = known.values().any(|users| !users.is_empty());
        Self {
            known: (is_of_realms && has_users).then_some(known),
            put: Users::new(),
            deleted: Names::new(),
        }
    }

    /// Returns whether there is something to compare with. Otherwise all rows have to be read.
    pub(crate) fn has_known(&self) -> bool {
        self.known.is_some()
    }

    /// Returns what takes the users of a realm. [`Self::end`] has to follow.
    pub(crate) fn realm(&self, realm: &str) -> RealmRows<'a> {
        RealmRows {
            known: self
                .known
                .and_then(|known| known.get(realm))
                .map(Remaining::new),
            put: RealmUsers::default(),
            first: Gathered::default(),
        }
    }

    /// Takes note that all users of a realm have been read.
    pub(crate) fn end(&mut self, realm: &str, rows: RealmRows<'a>) {
        let (put, gone) = rows.differences();
        if self.known.is_none() || !put.is_empty() {
            self.put.insert(realm.to_owned(), put);
        }
        if !gone.is_empty() {
            self.deleted.insert(realm.to_owned(), gone);
        }
    }

    /// Returns what has changed in the users that were read. The other tables are these now.
    pub(crate) fn news(self, tables: Tables) -> News {
        match self.known {
            None => News::Whole(Records {
                users: self.put,
                tables,
            }),
            Some(_) => News::Delta(Delta {
                put: self.put,
                deleted: self.deleted,
                tables: Some(tables),
            }),
        }
    }
}

impl RealmRows<'_> {
    /// Takes a row. Of two rows with one name the last one counts.
    pub(crate) fn take(&mut self, name: &str, key: UserKey) {
        let Some(known) = &mut self.known else {
            self.first.take(name, key);
            return;
        };
        if known.see(name) == Some(key) {
            self.put.remove(name);
            return;
        }
        self.put.put(name, key);
    }

    /// Returns the users that are new or have another key, and those that are gone.
    fn differences(self) -> (RealmUsers, BTreeSet<String>) {
        match self.known {
            None => (self.first.in_order(), BTreeSet::new()),
            Some(known) => (self.put, known.unseen()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::tests::users;

    /// Returns what a reading of these rows makes of the users that are known, and whether it was compared with them.
    fn read(known: &Users, rows: &[(&str, u8)], realms: &[&str]) -> (Users, bool) {
        let realms: Vec<_> = realms.iter().map(|&realm| realm.to_owned()).collect();
        let mut comparison = Comparison::new(known, &realms);
        let is_compared = comparison.has_known();
        for realm in &realms {
            let mut of_realm = comparison.realm(realm);
            for &(name, byte) in rows.iter().filter(|_| realm == "r") {
                of_realm.take(name, Some([byte; 16]));
            }
            comparison.end(realm, of_realm);
        }
        let mut records = Records {
            users: known.clone(),
            tables: Tables::default(),
        };
        records.take(comparison.news(Tables::default()));
        (records.users, is_compared)
    }

    #[test]
    fn after_a_reading_users_are_as_the_rows_say_whatever_was_known() {
        let known = users(&[("alice", 1), ("bob", 2), ("carol", 3)]);
        for rows in [
            &[("alice", 1), ("bob", 2), ("carol", 3)][..],
            &[("carol", 3), ("alice", 9), ("bob", 2)],
            &[("bob", 2), ("dave", 4)],
            &[
                ("zoe", 1),
                ("aaron", 2),
                ("carol", 3),
                ("bob", 2),
                ("alice", 1),
            ],
            &[],
        ] {
            let expected = users(rows);
            assert_eq!(read(&known, rows, &["r"]), (expected.clone(), true));
            let nobody = users(&[]);
            assert_eq!(read(&nobody, rows, &["r"]), (expected, false));
        }
    }

    #[test]
    fn of_two_rows_with_one_name_the_last_counts_and_a_third_that_is_gone_shows() {
        let known = users(&[("alice", 1), ("bob", 2)]);
        let nobody = users(&[]);
        for (rows, expected) in [
            (
                &[("alice", 1), ("alice", 5), ("bob", 2)][..],
                &[("alice", 5), ("bob", 2)][..],
            ),
            (
                &[("alice", 5), ("alice", 1), ("bob", 2)],
                &[("alice", 1), ("bob", 2)],
            ),
            (&[("alice", 1), ("alice", 1)], &[("alice", 1)]),
        ] {
            assert_eq!(read(&known, rows, &["r"]).0, users(expected));
            assert_eq!(read(&nobody, rows, &["r"]).0, users(expected));
        }
    }

    #[test]
    fn users_of_other_realms_than_before_are_read_as_for_the_first_time() {
        let known = users(&[("alice", 1)]);
        let (read, is_compared) = read(&known, &[("bob", 2)], &["q", "r"]);
        let mut expected = users(&[("bob", 2)]);
        expected.insert("q".to_owned(), RealmUsers::default());
        assert_eq!((read, is_compared), (expected, false));
    }

    #[test]
    fn what_is_as_before_is_no_news() {
        let known = users(&[("alice", 1), ("bob", 2)]);
        let mut comparison = Comparison::new(&known, &["r".to_owned()]);
        let mut rows = comparison.realm("r");
        rows.take("bob", Some([2; 16]));
        rows.take("alice", Some([1; 16]));
        comparison.end("r", rows);
        let News::Delta(delta) = comparison.news(Tables::default()) else {
            panic!("compared");
        };
        assert!(delta.put.is_empty() && delta.deleted.is_empty());
    }
}
