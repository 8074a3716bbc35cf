//! Texts made from the option table: help, reference page, sample file, manual page.

mod compatibility;
mod help;
mod man;
mod markdown;
mod sample;

pub use compatibility::compatibility;
pub use help::{help, help_one};
pub use man::man;
pub use markdown::markdown;
#[cfg(test)]
pub(super) use sample::example;
pub use sample::sample;

use super::entry::{Entry, Group, Status};
use super::table;

/// Entries of one group, in the order of the table.
fn of_group(group: Group) -> impl Iterator<Item = &'static Entry> {
    table::entries().filter(move |entry| entry.group == group)
}

/// Entries of one group that do something in this version.
fn usable(group: Group) -> impl Iterator<Item = &'static Entry> {
    of_group(group).filter(|entry| entry.is_working())
}

/// How an option is typed: letter, long forms, value.
fn synopsis(entry: &Entry) -> String {
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

/// Documentation sentence followed by what is allowed, the default, and limits of this version.
fn description(entry: &Entry) -> String {
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
            super::Kind::Flag => {}
            kind => facts.push(kind.allowed()),
        },
    }
    if entry.is_repeatable {
        facts.push("may be repeated".to_owned());
    }
    if !entry.default.is_empty() {
        facts.push(format!(
            "default {}",
            entry.default.trim_matches(['(', ')'])
        ));
    }
    if !facts.is_empty() {
        text.push_str(&format!(" [{}]", facts.join("; ")));
    }
    text
}
