//! What a database holds besides users: little, and kept by key, so that one change costs one key.

use std::collections::BTreeMap;

use redis::{RedisResult, Value};

use super::keys::Key;
use crate::records::{RealmOption, Tables, TokenKeyRow};
use crate::secret::Secret;

/// What is under a key.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Entry {
    /// A string.
    Text(String),
    /// The members of a set, or the fields of a hash that were asked for, in that order.
    Several(Vec<Option<Vec<u8>>>),
}

impl Entry {
    pub(super) fn text(bytes: Vec<u8>) -> Self {
        Self::Text(text(bytes))
    }

    /// Returns members or fields; nothing if there are none, or if another type of value is under the key.
    pub(super) fn several(answer: RedisResult<Value>) -> Option<Self> {
        let (Ok(Value::Array(values)) | Ok(Value::Set(values))) = answer else {
            return None;
        };
        let values: Vec<_> = values
            .into_iter()
            .map(|value| match value {
                Value::BulkString(bytes) => Some(bytes),
                _ => None,
            })
            .collect();
        let is_there = values.iter().any(Option::is_some);
        is_there.then_some(Self::Several(values))
    }
}

/// All keys but those of users, with what is under them.
#[derive(Default)]
pub(super) struct Mirror {
    entries: BTreeMap<Key, Entry>,
}

impl Mirror {
    /// Notes what is under a key. Returns whether that is something else than before.
    pub(super) fn set(&mut self, key: Key, entry: Option<Entry>) -> bool {
        match entry {
            Some(entry) => {
                let before = self.entries.insert(key.clone(), entry);
                before.as_ref() != self.entries.get(&key)
            }
            None => self.entries.remove(&key).is_some(),
        }
    }

    /// Returns the tables. Of secrets there are those of the realm `first` and of the others that an origin or a token key names.
    pub(super) fn tables(&self, first: &str) -> Tables {
        let mut tables = Tables::default();
        for (key, entry) in &self.entries {
            match (key, entry) {
                (Key::AllowedPeers { realm }, Entry::Several(ranges)) => {
                    tables.allowed.insert(realm.clone(), texts(ranges));
                }
                (Key::DeniedPeers { realm }, Entry::Several(ranges)) => {
                    tables.denied.insert(realm.clone(), texts(ranges));
                }
                (Key::RealmOption { realm, option }, Entry::Text(value)) => {
                    tables.options.push(RealmOption {
                        realm: realm.clone(),
                        option: (*option).to_owned(),
                        value: value.clone(),
                    });
                }
                (Key::Origin(origin), Entry::Text(realm)) => {
                    tables.origins.push((origin.clone(), realm.clone()));
                }
                (Key::Token(name), Entry::Several(fields)) => {
                    tables.token_keys.push(token_key(name, fields));
                }
                _ => {}
            }
        }
        for realm in tables.realm_names(first) {
            let key = Key::Secrets { realm };
            if let (Key::Secrets { realm }, Some(Entry::Several(secrets))) =
                (&key, self.entries.get(&key))
            {
                let mut secrets: Vec<_> = secrets.iter().flatten().cloned().collect();
                // A set has no order, and two servers must not differ in which they leave out.
                secrets.sort_unstable();
                let secrets = secrets.into_iter().map(Secret::new).collect();
                tables.secrets.insert(realm.clone(), secrets);
            }
        }
        tables
    }
}

/// Returns the members of a set of ranges, in order.
fn texts(members: &[Option<Vec<u8>>]) -> Vec<String> {
    let mut texts: Vec<_> = members.iter().flatten().cloned().map(text).collect();
    texts.sort_unstable();
    texts
}

/// Returns a token key of these fields: key, timestamp, lifetime, cipher, realm. All but the key may be missing, and then are what they are in
/// coturn's tables.
fn token_key(name: &str, fields: &[Option<Vec<u8>>]) -> TokenKeyRow {
    let field = |index: usize| fields.get(index).cloned().flatten();
    let number = |index| field(index).map_or_else(|| "0".to_owned(), text);
    TokenKeyRow {
        name: name.to_owned(),
        key: Secret::new(field(0).unwrap_or_default()),
        timestamp: number(1),
        lifetime: number(2),
        cipher: field(3).map(text).unwrap_or_default(),
        realm: field(4).map(text).unwrap_or_default(),
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}
