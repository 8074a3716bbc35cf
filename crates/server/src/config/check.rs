//! The effective configuration, read back through the option table.

use super::entry::{Entry, Support};
use super::load::Loaded;
use super::problem::Origin;
use super::table;

/// What one key amounts to.
#[derive(Debug, Clone)]
pub struct Effective {
    /// The key's entry.
    pub entry: &'static Entry,
    /// Its values, secrets masked; empty where nothing is set and nothing is the default.
    pub values: Vec<String>,
    /// Where they were written; empty for defaults.
    pub origins: Vec<Origin>,
}

/// Every key that has a place in this version, with the values that hold.
#[must_use]
pub fn effective(loaded: &Loaded) -> Vec<Effective> {
    let usable = table::entries().filter_map(|entry| {
        let values = match entry.support {
            Support::Works { show, .. } => show(&loaded.config),
            Support::Only { values, .. } => values
                .first()
                .map(|value| (*value).to_owned())
                .into_iter()
                .collect(),
            _ => return None,
        };
        let origins = loaded.origins.get(entry.name).cloned().unwrap_or_default();
        Some(Effective {
            entry,
            values,
            origins,
        })
    });
    usable.collect()
}
