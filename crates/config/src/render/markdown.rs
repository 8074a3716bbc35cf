//! `docs/options.md`.

use super::about::of_group;
use crate::entry::{Entry, Group, Reload, Status};
use crate::table;
use crate::value::Kind;

/// Returns the reference page of all keys.
#[must_use]
pub fn markdown() -> String {
    let mut text = String::from(
        "# Options\n\n\
         <!-- Made by `turnbuckle options --markdown`; a test compares. Change crates/config/src/topics instead. -->\n\n\
         Every key stands in a file (`key=value`, turnserver.conf format) or on the command line (`--key value`). Flags without a value are on. \
         `turnbuckle check FILE` prints what a file amounts to. *Reload* says when a new value holds after the \
         configuration was read again ([how](operating/reloading.md)): **at once**, for **new sessions** alone, or after a **restart**.\n\n\
         *Status* compares with the key of the same name in coturn 4.17: **same**, **stricter** (how), **new** (ours), **limited** (only values \
         that say what this version does anyway), **no effect** (accepted), **not yet** and **refused** (the server does not start; remove the line).\n",
    );
    for group in Group::ALL {
        text.push_str(&format!("\n## {}\n\n| Key | Letter | Value | Default | Meaning | Reload | Status |\n|---|---|---|---|---|---|---|\n", group.title()));
        for entry in of_group(group) {
            text.push_str(&row(entry));
        }
    }
    text.push_str("\n## Keys of old coturn versions\n\nRecognised, refused, and explained.\n\n| Key | What became of it |\n|---|---|\n");
    for (key, explanation) in table::removed_keys() {
        text.push_str(&format!("| `{key}` | {} |\n", cell(explanation)));
    }
    text
}

fn row(entry: &Entry) -> String {
    let names: Vec<String> = std::iter::once(&entry.name)
        .chain(entry.aliases)
        .map(|name| format!("`{name}`"))
        .collect();
    let letter = entry
        .short
        .map_or_else(String::new, |letter| format!("`-{letter}`"));
    let mut value = match entry.kind {
        Kind::Flag => "flag".to_owned(),
        kind => kind.allowed(),
    };
    if entry.is_repeatable {
        value.push_str("; repeatable");
    }
    let default = match entry.coturn.default {
        Some((coturn, _)) => format!("{} (coturn: {})", bare(entry.values.default), bare(coturn)),
        None => bare(entry.values.default).to_owned(),
    };
    let mut meaning = entry.doc.to_owned();
    if let Some((_, why)) = entry.coturn.default {
        meaning.push_str(&format!(" Differs from coturn: {why}."));
    }
    format!(
        "| {} | {letter} | {} | {} | {} | {} | {} |\n",
        names.join(", "),
        cell(&value),
        cell(&default),
        cell(&meaning),
        entry.reload().map_or("", Reload::as_str),
        cell(&status(entry))
    )
}

fn status(entry: &Entry) -> String {
    match entry.status() {
        Status::Same => "same".to_owned(),
        Status::Stricter(how) => format!("stricter: {how}"),
        Status::New => "new".to_owned(),
        Status::Limited { values, otherwise } => {
            format!("limited to {}: {otherwise}", values.join(", "))
        }
        Status::WithoutEffect(why) => format!("no effect: {why}"),
        Status::NotYet(what) => format!("not yet: {what} not implemented"),
        Status::Refused(why) => format!("refused: {why}"),
    }
}

/// Returns a default without its parentheses; defaults in words stand in parentheses in the table.
fn bare(default: &str) -> &str {
    default.trim_matches(['(', ')'])
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
