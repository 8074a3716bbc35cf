//! `turnbuckle serve --help` and `turnbuckle options KEY`.

use super::about::{description, synopsis, usable};
use crate::entry::{Entry, Group};
use crate::table;

/// Column at which descriptions begin.
const INDENT: &str = "            ";

/// Returns the options of `command` by group, wrapped at `width` columns.
#[must_use]
pub fn help(command: &str, arguments: &str, width: usize) -> String {
    let mut text = format!("Usage: {command} [options]{arguments}\n\n");
    let intro = "Every option is also a key of the file that -c names (turnserver.conf format, without the dashes). Flags take no value or =true, =false. \
                 Values of the command line override those of the file.";
    text.push_str(&textwrap::fill(intro, indented(width, "")));
    text.push('\n');
    for group in Group::ALL {
        let mut entries = usable(group).peekable();
        if entries.peek().is_none() {
            continue;
        }
        text.push_str(&format!("\n{}:\n", group.title()));
        for entry in entries {
            text.push_str(&one(entry, width));
        }
    }
    let refused: Vec<&str> = table::entries()
        .filter(|entry| !entry.is_working())
        .map(|entry| entry.name)
        .collect();
    let heading = "Other keys of coturn, which this version refuses unless they say what it does anyway (`turnbuckle options KEY` explains):";
    text.push_str(&format!(
        "\n{}\n",
        textwrap::fill(heading, indented(width, ""))
    ));
    text.push_str(&textwrap::fill(&refused.join(" "), indented(width, "  ")));
    text.push('\n');
    text
}

/// Returns what is known about one key.
#[must_use]
pub fn help_one(key: &str, width: usize) -> Option<String> {
    if let Some(explanation) = table::removed(key) {
        return Some(format!(
            "{key}\n{}\n",
            textwrap::fill(
                &format!("A key of old coturn versions: {explanation}."),
                indented(width, INDENT)
            )
        ));
    }
    table::find(key).map(|entry| one(entry, width))
}

fn one(entry: &Entry, width: usize) -> String {
    format!(
        "  {}\n{}\n",
        synopsis(entry),
        textwrap::fill(&description(entry), indented(width, INDENT))
    )
}

fn indented(width: usize, indent: &str) -> textwrap::Options<'_> {
    textwrap::Options::new(width)
        .initial_indent(indent)
        .subsequent_indent(indent)
        .break_words(false)
        .word_splitter(textwrap::WordSplitter::NoHyphenation)
}
