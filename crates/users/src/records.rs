//! What a database holds, in a form that is the same for all of them.

use std::collections::{BTreeMap, BTreeSet};

use crate::realm_users::RealmUsers;
use crate::secret::Secret;

/// Says which rows are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The realm of requests that name no other. Besides its rows, those of the realms are read that an origin or a token key names.
    pub realm: String,
    /// Whether users are read (not beside secrets, unless `users-beside-secrets`).
    pub users: bool,
    /// Whether secrets are read (`use-auth-secret`).
    pub secrets: bool,
    /// Whether allowed and denied peers are read (unless `no-dynamic-ip-list`).
    pub peers: bool,
    /// Whether origins and realm options are read (unless `no-dynamic-realms`).
    pub realms: bool,
    /// Whether keys of authorization servers are read (`oauth`).
    pub token_keys: bool,
}

/// A user's MD5 key (RFC 8489 §9.2.2); `None` where the row holds no such key.
pub type UserKey = Option<[u8; 16]>;

/// Keys by realm and username.
pub type Users = BTreeMap<String, RealmUsers>;

/// Holds the contents of a database at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Records {
    /// The users of the wanted realms.
    pub users: Users,
    /// Everything else.
    pub tables: Tables,
}

/// Holds the tables that are small.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tables {
    /// Secrets of time-limited credentials by realm, the newest first where the database tells.
    pub secrets: BTreeMap<String, Vec<Secret>>,
    /// Origins, in their order, with their realms.
    pub origins: Vec<(String, String)>,
    /// Quotas and rates of realms.
    pub options: Vec<RealmOption>,
    /// Ranges of peers that are allowed, by realm; those without a realm are for all.
    pub allowed: BTreeMap<String, Vec<String>>,
    /// Ranges of peers that are denied, by realm; those without a realm are for all.
    pub denied: BTreeMap<String, Vec<String>>,
    /// Keys of authorization servers, by the order of their names.
    pub token_keys: Vec<TokenKeyRow>,
}

/// A quota or rate of a realm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RealmOption {
    /// The realm.
    pub realm: String,
    /// `user-quota`, `total-quota` or `max-bps`.
    pub option: String,
    /// A number, in decimal digits.
    pub value: String,
}

/// A row of `oauth_key`, as it stands there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenKeyRow {
    /// The `kid`.
    pub name: String,
    /// The key in base64.
    pub key: Secret,
    /// When the lifetime begins, in seconds since 1970.
    pub timestamp: String,
    /// For how many seconds it may be used; 0 is for ever.
    pub lifetime: String,
    /// `A256GCM`, `A128GCM` or nothing.
    pub cipher: String,
    /// The realm of who shows a token under it; empty for the one of the request.
    pub realm: String,
}

/// What has changed since a database was read last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// Nothing.
    Nothing,
    /// These rows, besides which all is as before.
    Delta(Delta),
    /// These rows, perhaps none. Others may have changed as well, and are read when a rest between two readings is over.
    Part(Delta),
    /// All of it is this now.
    Whole(Records),
}

/// Some changes of a database.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Delta {
    /// Users that are new or have another key.
    pub put: Users,
    /// Users that are gone, by realm.
    pub deleted: Names,
    /// The other tables, whole, if any of them may have changed.
    pub tables: Option<Tables>,
}

/// Usernames by realm.
pub type Names = BTreeMap<String, BTreeSet<String>>;

/// What a reading has changed in the records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Changed {
    /// Nothing.
    Nothing,
    /// The rows of these users: they are new, have another key or are gone.
    Users {
        /// At most [`Changed::NAMED_MAX`].
        names: Names,
        /// Whether any of the other tables has changed too.
        tables: bool,
    },
    /// More than is named, or everything is read for the first time.
    Everything,
}

impl News {
    /// Nothing was read, and anything may have changed.
    pub(crate) fn not_yet() -> Self {
        Self::Part(Delta::default())
    }
}

impl Changed {
    /// Most users that are named. Beyond that all of them are better looked at anew.
    pub const NAMED_MAX: usize = 16_384;

    fn of(names: Option<Names>, tables: bool) -> Self {
        match names {
            None => Self::Everything,
            Some(names) if names.is_empty() && !tables => Self::Nothing,
            Some(names) => Self::Users { names, tables },
        }
    }
}

/// What a database says about one user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// The user's key, if there is such a user.
    pub key: UserKey,
    /// The secrets of the realm.
    pub secrets: Vec<Secret>,
}

impl Tables {
    /// Returns `first`, and then each other realm that an origin or a token key names, once.
    #[must_use]
    pub fn realm_names(&self, first: &str) -> Vec<String> {
        let of_origins = self.origins.iter().map(|(_, realm)| realm);
        let of_keys = self.token_keys.iter().map(|key| &key.realm);
        let mut others: Vec<String> = of_origins
            .chain(of_keys)
            .filter(|name| !name.is_empty() && *name != first)
            .cloned()
            .collect();
        others.sort_unstable();
        others.dedup();
        others.insert(0, first.to_owned());
        others
    }
}

impl Wanted {
    /// Returns the names that the wanted tables have in a database with SQL.
    pub(crate) fn tables(&self) -> impl Iterator<Item = &'static str> {
        let tables = [
            ("turnusers_lt", self.users),
            ("turn_secret", self.secrets),
            ("allowed_peer_ip", self.peers),
            ("denied_peer_ip", self.peers),
            ("turn_origin_to_realm", self.realms),
            ("turn_realm_option", self.realms),
            ("oauth_key", self.token_keys),
        ];
        let wanted = tables.into_iter().filter(|&(_, is_wanted)| is_wanted);
        wanted.map(|(table, _)| table)
    }
}

impl Records {
    /// Returns the row of a user: its key, or that it holds none; `None` if there is no such row.
    #[must_use]
    pub fn user(&self, realm: &str, name: &str) -> Option<UserKey> {
        self.users.get(realm)?.get(name)
    }

    /// Brings the records up to date. Returns what that has changed.
    pub(crate) fn take(&mut self, news: News) -> Changed {
        match news {
            News::Nothing => Changed::Nothing,
            News::Whole(records) => {
                let names = differences(&self.users, &records.users);
                let changed = Changed::of(names, self.tables != records.tables);
                *self = records;
                changed
            }
            News::Delta(delta) | News::Part(delta) => self.apply(delta),
        }
    }

    fn apply(&mut self, delta: Delta) -> Changed {
        let mut changed = Names::new();
        for (realm, names) in delta.deleted {
            let Some(users) = self.users.get_mut(&realm) else {
                continue;
            };
            for name in names {
                if users.remove(&name) {
                    changed.entry(realm.clone()).or_default().insert(name);
                }
            }
        }
        for (realm, put) in delta.put {
            let users = self.users.entry(realm.clone()).or_default();
            for (name, key) in &put {
                if users.put(name, key) {
                    let of_realm = changed.entry(realm.clone()).or_default();
                    of_realm.insert(name.to_owned());
                }
            }
        }
        let mut has_other_tables = false;
        if let Some(tables) = delta.tables {
            has_other_tables = self.tables != tables;
            self.tables = tables;
        }
        let count: usize = changed.values().map(BTreeSet::len).sum();
        let names = (count <= Changed::NAMED_MAX).then_some(changed);
        Changed::of(names, has_other_tables)
    }
}

/// Returns the names of the users who are not the same in both; `None` if there are too many to name them.
fn differences(one: &Users, other: &Users) -> Option<Names> {
    let mut names = Names::new();
    let mut count = 0;
    let none = RealmUsers::default();
    let realms: BTreeSet<_> = one.keys().chain(other.keys()).collect();
    for realm in realms {
        let mut one = one.get(realm).unwrap_or(&none).iter().peekable();
        let mut other = other.get(realm).unwrap_or(&none).iter().peekable();
        loop {
            let name = match (one.peek(), other.peek()) {
                (None, None) => break,
                (Some((name, _)), None) => *name,
                (None, Some((name, _))) => *name,
                (Some((name, key)), Some((others, others_key))) => {
                    if name == others && key == others_key {
                        one.next();
                        other.next();
                        continue;
                    }
                    (*name).min(*others)
                }
            };
            one.next_if(|(it, _)| *it == name);
            other.next_if(|(it, _)| *it == name);
            count += 1;
            if count > Changed::NAMED_MAX {
                return None;
            }
            let of_realm = names.entry(realm.clone()).or_default();
            of_realm.insert(name.to_owned());
        }
    }
    Some(names)
}

/// Returns the 16 bytes that 32 hexadecimal digits stand for. Text behind them is ignored, because some databases have blanks there.
#[must_use]
pub fn user_key(digits: &str) -> UserKey {
    let digits = digits
        .get(..32)
        .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
    u128::from_str_radix(digits, 16).ok().map(u128::to_be_bytes)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns users of the realm `r`, each with a key of sixteen equal bytes.
    pub(crate) fn users(names: &[(&str, u8)]) -> Users {
        let of_realm = names.iter().map(|&(name, byte)| (name, Some([byte; 16])));
        Users::from([("r".to_owned(), of_realm.collect())])
    }

    #[test]
    fn a_delta_changes_what_it_names_and_says_whether_that_was_anything() {
        let mut records = Records {
            users: users(&[("alice", 1), ("bob", 2)]),
            tables: Tables::default(),
        };
        let delta = |put, deleted: &[&str]| {
            News::Delta(Delta {
                put,
                deleted: BTreeMap::from([(
                    "r".to_owned(),
                    deleted.iter().map(|&name| name.to_owned()).collect(),
                )]),
                tables: None,
            })
        };
        let named = |names: &[&str]| Changed::Users {
            names: Names::from([(
                "r".to_owned(),
                names.iter().map(|&name| name.to_owned()).collect(),
            )]),
            tables: false,
        };
        let same = records.take(delta(users(&[("bob", 2)]), &["carol"]));
        assert_eq!(same, Changed::Nothing);
        let some = records.take(delta(users(&[("bob", 3), ("carol", 4)]), &["alice"]));
        assert_eq!(some, named(&["alice", "bob", "carol"]));
        assert_eq!(records.users, users(&[("bob", 3), ("carol", 4)]));
        assert_eq!(records.user("r", "bob"), Some(Some([3; 16])));
        assert_eq!(records.user("r", "alice"), None);
        assert_eq!(records.take(News::Nothing), Changed::Nothing);
    }

    #[test]
    fn of_two_readings_it_is_known_who_differs() {
        let mut records = Records {
            users: users(&[("alice", 1), ("bob", 2), ("carol", 3), ("dave", 4)]),
            tables: Tables::default(),
        };
        let whole = |names: &[(&str, u8)]| {
            News::Whole(Records {
                users: users(names),
                tables: Tables::default(),
            })
        };
        let mut names = |read: &[(&str, u8)]| match records.take(whole(read)) {
            Changed::Nothing => Vec::new(),
            Changed::Users { names, tables } => {
                assert!(!tables);
                names["r"].iter().cloned().collect()
            }
            Changed::Everything => panic!("few"),
        };
        let same = [("alice", 1), ("bob", 2), ("carol", 3), ("dave", 4)];
        assert!(names(&same).is_empty());
        let next = [
            ("aaron", 9),
            ("bob", 2),
            ("carol", 5),
            ("dave", 4),
            ("zoe", 1),
        ];
        assert_eq!(names(&next), ["aaron", "alice", "carol", "zoe"]);
        assert_eq!(names(&[]), ["aaron", "bob", "carol", "dave", "zoe"]);
        let many: Vec<_> = (0..=Changed::NAMED_MAX).map(|it| it.to_string()).collect();
        let many: Vec<_> = many.iter().map(|name| (name.as_str(), 1)).collect();
        assert_eq!(records.take(whole(&many)), Changed::Everything);
        assert_eq!(records.take(whole(&many)), Changed::Nothing);
        let mut tables = records.clone();
        tables.tables.origins.push(("o".into(), "r".into()));
        let (names, tables) = (Names::new(), News::Whole(tables));
        assert_eq!(
            records.take(tables),
            Changed::Users {
                names,
                tables: true
            }
        );
    }

    #[test]
    fn a_key_is_its_first_32_digits() {
        let digits = "7da2270ccfa49786e0115366d3a3d14d";
        let key = user_key(digits).expect("a key");
        assert_eq!((key[0], key[15]), (0x7d, 0x4d));
        assert_eq!(user_key(&format!("{digits}        ")), Some(key));
        for wrong in [
            "",
            "7da2",
            "+da2270ccfa49786e0115366d3a3d14d",
            "\u{e9}a2270ccfa49786e0115366d3a3d14d",
        ] {
            assert_eq!(user_key(wrong), None, "{wrong}");
        }
    }
}
