//! A change of one key while the relay runs, for a configuration that no file holds.

use crate::entry::Reload;
use crate::file::Setting;
use crate::load::{Loaded, rebuild};
use crate::machine::Machine;
use crate::problem::{Origin, Problem, Problems};
use crate::reload::{Reloaded, reload};
use crate::table;

/// A change of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edit {
    key: String,
    change: Change,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Change {
    /// The key has this value alone.
    Set(String),
    /// The key has this value too.
    Add(String),
    /// The key has none of these values, of which it has to have one.
    Remove(Vec<String>),
}

impl Edit {
    /// Gives a key one value, in place of all that it has.
    #[must_use]
    pub fn set(key: &str, value: String) -> Self {
        Self::new(key, Change::Set(value))
    }

    /// Gives a key one more value.
    #[must_use]
    pub fn add(key: &str, value: String) -> Self {
        Self::new(key, Change::Add(value))
    }

    /// Takes a value from a key, however it is spelled.
    #[must_use]
    pub fn remove(key: &str, spellings: Vec<String>) -> Self {
        Self::new(key, Change::Remove(spellings))
    }

    fn new(key: &str, change: Change) -> Self {
        Self {
            key: key.to_owned(),
            change,
        }
    }

    fn problem(&self, message: impl Into<String>) -> Problems {
        Problems(vec![Problem::new(&Origin::Command, &self.key, message)])
    }
}

/// Says what a change of one key makes of the configuration that holds.
///
/// # Errors
///
/// What is wrong with the new value, by itself or together with other keys; or that it would only hold after a restart.
pub fn edit(running: &Loaded, edit: &Edit, machine: &Machine) -> Result<Reloaded, Problems> {
    let entry = table::find(&edit.key).ok_or_else(|| edit.problem("is not a known key"))?;
    if entry.reload().is_none_or(|it| it == Reload::Restart) {
        return Err(edit.problem("changes with a restart alone"));
    }
    let is_of_key =
        |setting: &Setting| table::find(&setting.key).is_some_and(|it| it.name == entry.name);
    let mut settings = running.settings.clone();
    let added = match &edit.change {
        Change::Set(value) => {
            settings.retain(|setting| !is_of_key(setting));
            Some(value)
        }
        Change::Add(value) => Some(value),
        Change::Remove(spellings) => {
            let is_meant = |setting: &Setting| {
                let value = setting.value.as_ref();
                is_of_key(setting) && value.is_some_and(|value| spellings.contains(value))
            };
            let before = settings.len();
            settings.retain(|setting| !is_meant(setting));
            if settings.len() == before {
                let shown = spellings.first().map_or("", String::as_str).escape_debug();
                return Err(edit.problem(format!("has no value `{shown}`")));
            }
            None
        }
    };
    settings.extend(added.map(|value| Setting {
        origin: Origin::Command,
        typed: edit.key.clone(),
        key: edit.key.clone(),
        value: Some(value.clone()),
    }));
    let next = Loaded {
        file: running.file.clone(),
        ..rebuild(running.config.persona, settings, machine)?
    };
    let reloaded = reload(running, &next, machine)?;
    if !reloaded.pending.is_empty() {
        return Err(edit.problem("changes with a restart alone, as this server was started"));
    }
    Ok(reloaded)
}
