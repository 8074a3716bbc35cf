//! The option table: one entry per key, split by the sections of coturn's documentation.

mod addresses;
mod admin;
mod authentication;
mod cluster;
mod databases;
mod limits;
mod peers;
mod process;
mod removed;
mod stun;
mod threads;
mod tls;

use super::entry::Entry;

const SECTIONS: &[&[Entry]] = &[
    addresses::ENTRIES,
    threads::ENTRIES,
    authentication::ENTRIES,
    tls::ENTRIES,
    limits::ENTRIES,
    peers::ENTRIES,
    stun::ENTRIES,
    cluster::ENTRIES,
    databases::ENTRIES,
    process::ENTRIES,
    admin::ENTRIES,
];

/// All keys, by section.
pub fn entries() -> impl Iterator<Item = &'static Entry> {
    SECTIONS.iter().copied().flatten()
}

/// The entry that has this name or alias.
pub(super) fn find(name: &str) -> Option<&'static Entry> {
    entries().find(|entry| entry.name == name || entry.aliases.contains(&name))
}

/// The name of the only key that begins so, or what was given.
pub(super) fn complete(beginning: &str) -> &str {
    if find(beginning).is_some() || removed(beginning).is_some() {
        return beginning;
    }
    let names = entries().flat_map(|entry| {
        [entry.name]
            .into_iter()
            .chain(entry.aliases.iter().copied())
    });
    let mut found = names.filter(|name| name.starts_with(beginning));
    match (found.next(), found.next()) {
        (Some(name), None) => name,
        _ => beginning,
    }
}

/// The entry that has this letter.
pub(super) fn by_letter(letter: char) -> Option<&'static Entry> {
    entries().find(|entry| entry.short == Some(letter))
}

/// What became of a key that old versions of coturn had.
pub(super) fn removed(name: &str) -> Option<&'static str> {
    removed::KEYS
        .iter()
        .find(|(key, _)| *key == name)
        .map(|(_, explanation)| *explanation)
}

/// Keys of old versions with what became of them.
pub fn removed_keys() -> impl Iterator<Item = (&'static str, &'static str)> {
    removed::KEYS.iter().copied()
}

/// What somebody who wrote `key` may have meant.
#[must_use]
pub fn suggest(key: &str) -> String {
    let bare = key.trim_start_matches('-');
    if let Some(entry) = find(bare) {
        return format!("in a file keys stand without dashes: `{}`", entry.name);
    }
    let mut letters = bare.chars();
    if let (Some(letter), None) = (letters.next(), letters.next())
        && let Some(entry) = by_letter(letter)
    {
        return format!(
            "letters work on the command line only; the key is `{}`",
            entry.name
        );
    }
    let folded = bare.replace('_', "-").to_lowercase();
    let names = entries()
        .flat_map(|entry| std::iter::once(entry.name).chain(entry.aliases.iter().copied()));
    let scored = names.map(|name| {
        (
            strsim::damerau_levenshtein(&folded, &name.to_lowercase()),
            name,
        )
    });
    match scored.min() {
        Some((distance, name)) if distance <= 1 + name.len() / 5 => {
            format!("did you mean `{name}`?")
        }
        _ => "`turnbuckle options` lists the keys".to_owned(),
    }
}

/// `true` or `false`.
fn flag(value: bool) -> Vec<String> {
    vec![value.to_string()]
}

/// One value as text.
fn one(value: impl ToString) -> Vec<String> {
    vec![value.to_string()]
}
