//! Common parts of all texts about a key, and the keys that each text lists.

use crate::entry::{Entry, Group, Status};
use crate::table;
use crate::value::Kind;

/// Lists the entries of one group, in the order of the table.
pub(super) fn of_group(group: Group) -> impl Iterator<Item = &'static Entry> {
    table::entries().filter(move |entry| entry.group == group)
}

/// Lists the entries of one group that do something in this version.
pub(super) fn usable(group: Group) -> impl Iterator<Item = &'static Entry> {
    of_group(group).filter(|entry| entry.is_working())
}

/// Returns how an option is typed: letter, long forms, value.
pub(super) fn synopsis(entry: &Entry) -> String {
    let mut text = entry
        .short
        .map_or_else(|| "    ".to_owned(), |letter| format!("-{letter}, "));
    text.push_str("--");
    text.push_str(entry.name);
    for alias in entry.aliases {
        text.push_str(", --");
        text.push_str(alias);
    }
    if !entry.kind.placeholder().is_empty() {
        text.push(' ');
        text.push_str(entry.kind.placeholder());
    }
    text
}

/// Returns the documentation sentence followed by what is allowed, the default, and limits of this version.
pub(super) fn description(entry: &Entry) -> String {
    let mut text = entry.doc.to_owned();
    let mut facts = Vec::new();
    match entry.status() {
        Status::Limited { values, otherwise } => {
            facts.push(format!("only {}: {otherwise}", values.join(", ")))
        }
        Status::NotYet(what) => facts.push(format!("refused: {what} not implemented yet")),
        Status::Refused(why) => facts.push(format!("refused: {why}")),
        Status::WithoutEffect(why) => facts.push(format!("accepted without effect: {why}")),
        Status::Same | Status::Stricter(_) | Status::New => match entry.kind {
            Kind::Flag => {}
            kind => facts.push(kind.allowed()),
        },
    }
    if entry.is_repeatable {
        facts.push("may be repeated".to_owned());
    }
    if !entry.values.default.is_empty() {
        facts.push(format!(
            "default {}",
            entry.values.default.trim_matches(['(', ')'])
        ));
    }
    if !facts.is_empty() {
        text.push_str(&format!(" [{}]", facts.join("; ")));
    }
    text
}
