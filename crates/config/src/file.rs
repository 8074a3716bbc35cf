//! The turnserver.conf format: one `key=value` per line.
//!
//! A key ends at the first space, tab or `=`. Leading and trailing white space does not count, `#` at the start of a line makes a comment,
//! a value may stand in double quotes. Where coturn guesses, this reader refuses: see the messages.

use std::fmt;
use std::sync::Arc;

use crate::problem::{Origin, Problem};

/// A setting as written, before its key is looked up.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) origin: Origin,
    /// The key as typed; with its dashes if it comes from the command line.
    pub(crate) typed: String,
    pub(crate) key: String,
    pub(crate) value: Option<String>,
}

/// The value may be a secret.
impl fmt::Debug for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { origin, typed, .. } = self;
        write!(f, "{origin}: {typed}")
    }
}

/// Longest line that coturn reads whole.
const LINE_LEN_MAX: usize = 1024;

/// Reads the content of a file. Lines that cannot be read become problems; the others are returned.
pub(crate) fn parse(path: &str, content: &[u8], problems: &mut Vec<Problem>) -> Vec<Setting> {
    let path: Arc<str> = path.into();
    let mut settings = Vec::new();
    for (index, bytes) in content.split(|byte| *byte == b'\n').enumerate() {
        let origin = Origin::File {
            path: path.clone(),
            line: index + 1,
        };
        match line(bytes) {
            Ok(None) => {}
            Ok(Some((key, value))) => {
                settings.push(Setting {
                    origin,
                    typed: key.to_owned(),
                    key: key.to_owned(),
                    value: value.map(str::to_owned),
                });
            }
            Err(message) => problems.push(Problem::unreadable(&origin, message)),
        }
    }
    settings
}

type KeyValue<'a> = (&'a str, Option<&'a str>);

fn line(bytes: &[u8]) -> Result<Option<KeyValue<'_>>, String> {
    if bytes.len() > LINE_LEN_MAX {
        return Err(format!(
            "the line has {} bytes; allowed are {LINE_LEN_MAX}",
            bytes.len()
        ));
    }
    if bytes.starts_with(b"\xEF\xBB\xBF") {
        return Err(
            "the line begins with a byte order mark; save the file as UTF-8 without one".to_owned(),
        );
    }
    let text = std::str::from_utf8(bytes)
        .map_err(|_| "the line is not UTF-8; save the file as such".to_owned())?;
    let text = text.trim_matches([' ', '\t', '\r']);
    if text.is_empty() || text.starts_with('#') {
        return Ok(None);
    }
    if text
        .chars()
        .any(|character| character.is_control() && character != '\t')
    {
        return Err("the line contains control characters; allowed is printable text".to_owned());
    }
    let end = text.find([' ', '\t', '=']).unwrap_or(text.len());
    let (key, rest) = text.split_at(end);
    if key.is_empty() {
        return Err("the line has no key before `=`; allowed is `key=value`".to_owned());
    }
    let rest = rest.trim_start_matches([' ', '\t']);
    let rest = match rest.strip_prefix('=') {
        Some(after) => {
            let after = after.trim_start_matches([' ', '\t']);
            if after.starts_with('=') {
                return Err(format!(
                    "`{}`: the value begins with `=`; put it in double quotes if that is meant",
                    printable(key)
                ));
            }
            after
        }
        None if rest.is_empty() => return Ok(Some((key, None))),
        None => rest,
    };
    value(rest)
        .map(|value| Some((key, Some(value))))
        .map_err(|message| format!("`{}`: {message}", printable(key)))
}

fn value(text: &str) -> Result<&str, &'static str> {
    if let Some(inner) = text.strip_prefix('"') {
        let Some(inner) = inner.strip_suffix('"') else {
            return Err(
                "the value begins with a double quote and does not end with one; allowed are both or none",
            );
        };
        return Ok(inner);
    }
    if text.ends_with('"') {
        return Err(
            "the value ends with a double quote and does not begin with one; allowed are both or none",
        );
    }
    if text.ends_with(';') {
        return Err(
            "lines do not end with `;`; put the value in double quotes if it belongs to it",
        );
    }
    if text.contains(" #") || text.contains("\t#") {
        return Err(
            "comments stand on lines of their own; put the value in double quotes if `#` belongs to it",
        );
    }
    Ok(text)
}

/// Returns `key` without what follows a character that no key has: a password on a line that lacks its key must not be printed.
pub(crate) fn printable(key: &str) -> String {
    let end = key
        .find(|character: char| {
            !(character.is_ascii_alphanumeric() || matches!(character, '-' | '_'))
        })
        .unwrap_or(key.len());
    let (kept, dropped) = key.split_at(end.min(40));
    format!("{kept}{}", if dropped.is_empty() { "" } else { "..." })
}
