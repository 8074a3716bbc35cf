//! `deploy/turnserver.conf.sample`: every usable key, commented out with its default, so that the file as it is changes nothing.

use super::about::{description, usable};
use crate::entry::{Entry, Group, Status};

/// Columns of the comments.
const WIDTH: usize = 98;

/// Returns the annotated sample file.
#[must_use]
pub fn sample() -> String {
    let mut text = comment(
        "Configuration of turnbuckle, in turnserver.conf format. Made by `turnbuckle options --sample`.\n\n\
         One `key=value` per line. Flags without a value are on. `#` makes a comment at the start of a line only. Values may stand in double quotes. \
         `turnbuckle check FILE` prints what a file amounts to. Values below are the defaults, or examples where a key has none.",
    );
    for group in Group::ALL {
        let mut entries = usable(group)
            .filter(|entry| !entry.is_command_line())
            .peekable();
        if entries.peek().is_none() {
            continue;
        }
        text.push_str(&format!("\n##### {}\n", group.title()));
        for entry in entries {
            text.push('\n');
            text.push_str(&comment(&description(entry)));
            text.push_str(&format!("#{}={}\n", entry.name, example(entry)));
        }
    }
    text
}

/// Returns the default where it is a value, else one that would be accepted.
pub(crate) fn example(entry: &Entry) -> &'static str {
    if let Status::Limited { values, .. } = entry.status() {
        return values.first().copied().unwrap_or_default();
    }
    entry
        .values
        .literal_default()
        .unwrap_or(entry.values.example)
}

fn comment(text: &str) -> String {
    let options = textwrap::Options::new(WIDTH)
        .initial_indent("# ")
        .subsequent_indent("# ")
        .word_splitter(textwrap::WordSplitter::NoHyphenation);
    let mut lines = String::new();
    for line in textwrap::wrap(text, options) {
        lines.push_str(line.trim_end());
        lines.push('\n');
    }
    lines
}
