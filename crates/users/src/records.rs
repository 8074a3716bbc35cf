//! What a database holds, in a form that is the same for all of them.

use std::collections::{BTreeMap, BTreeSet};

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
pub type Users = BTreeMap<String, BTreeMap<String, UserKey>>;

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
    /// All of it is this now.
    Whole(Records),
}

/// Some changes of a database.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Delta {
    /// Users that are new or have another key.
    pub put: Users,
    /// Users that are gone, by realm.
    pub deleted: BTreeMap<String, BTreeSet<String>>,
    /// The other tables, whole, if any of them may have changed.
    pub tables: Option<Tables>,
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

impl Records {
    /// Brings the records up to date. Returns whether that changed anything.
    pub(crate) fn take(&mut self, news: News) -> bool {
        match news {
            News::Nothing => false,
            News::Whole(records) => {
                let is_other = *self != records;
                *self = records;
                is_other
            }
            News::Delta(delta) => self.apply(delta),
        }
    }

    fn apply(&mut self, delta: Delta) -> bool {
        let mut has_changed = false;
        for (realm, names) in delta.deleted {
            let Some(users) = self.users.get_mut(&realm) else {
                continue;
            };
            for name in names {
                has_changed |= users.remove(&name).is_some();
            }
        }
        for (realm, put) in delta.put {
            let users = self.users.entry(realm).or_default();
            for (name, key) in put {
                has_changed |= users.insert(name, key) != Some(key);
            }
        }
        if let Some(tables) = delta.tables {
            has_changed |= self.tables != tables;
            self.tables = tables;
        }
        has_changed
    }
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
mod tests {
    use super::*;

    fn users(names: &[(&str, u8)]) -> Users {
        let of_realm = names
            .iter()
            .map(|&(name, byte)| (name.to_owned(), Some([byte; 16])));
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
        assert!(!records.take(delta(users(&[("bob", 2)]), &["carol"])));
        assert!(records.take(delta(users(&[("bob", 3), ("carol", 4)]), &["alice"])));
        assert_eq!(records.users, users(&[("bob", 3), ("carol", 4)]));
        assert!(!records.take(News::Whole(records.clone())));
        assert!(!records.take(News::Nothing));
        assert!(records.take(News::Whole(Records::default())));
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
