//! Reading as coturn does, for the `turnserver` persona: its lines, its numbers and flags.
//!
//! Whatever is changed or passed over becomes a note; nothing is passed over in silence.

use std::sync::Arc;

use crate::entry::{Entry, Support};
use crate::file::{Setting, printable};
use crate::problem::{Note, Origin};
use crate::raw::text_of;
use crate::value::Kind;

/// The file that is read when none is named.
pub(crate) const DEFAULT_FILE: &str = "turnserver.conf";

/// Reads the settings of a file. A key ends at the first space, tab or `=`; quotes around a value are taken off; `#` begins a comment at the start of a
/// line only.
pub(crate) fn parse(path: &str, content: &[u8], notes: &mut Vec<Note>) -> Vec<Setting> {
    let path: Arc<str> = path.into();
    let mut settings = Vec::new();
    for (index, line) in content.split(|byte| *byte == b'\n').enumerate() {
        let text = text_of(line);
        let text = text.trim_matches([' ', '\t', '\r']);
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let origin = Origin::File {
            path: path.clone(),
            line: index + 1,
        };
        let end = text.find([' ', '\t', '=']).unwrap_or(text.len());
        let (key, rest) = text.split_at(end);
        let value = rest.trim_start_matches([' ', '\t', '=']);
        if value.ends_with(';') {
            notes.push(Note {
                is_error: false,
                origin: Some(origin.clone()),
                key: printable(key),
                text: "the line ends with `;`, which belongs to the value".to_owned(),
            });
        }
        let value = match value.strip_prefix('"') {
            Some(inner) => inner.strip_suffix('"').unwrap_or(inner),
            None => value,
        };
        settings.push(Setting {
            origin,
            typed: key.to_owned(),
            key: key.to_owned(),
            value: (!value.is_empty()).then(|| value.to_owned()),
        });
    }
    settings
}

/// Turns the value into one that the table takes: flags by their first letter, numbers by their leading digits and within their bounds.
pub(crate) fn adapt(entry: &Entry, setting: &mut Setting, notes: &mut Vec<Note>) {
    let text = setting.value.as_deref().unwrap_or_default();
    let bent = match entry.kind {
        Kind::Flag if entry.coturn.is_always_on => Some("true".to_owned()),
        Kind::Flag => flag(text).map(str::to_owned),
        Kind::Integer { min, max, .. } if !text.is_empty() => Some(number(entry, text, min, max)),
        Kind::OptionalInteger { min, max, .. } if !text.is_empty() => {
            Some(number(entry, text, min, max))
        }
        _ => None,
    };
    let Some(bent) = bent else {
        return;
    };
    if !text.is_empty() && bent != text && entry.kind != Kind::Flag {
        notes.push(Note {
            is_error: false,
            origin: Some(setting.origin.clone()),
            key: setting.typed.clone(),
            text: format!("`{}` is taken as {bent}", text.escape_debug()),
        });
    }
    setting.value = Some(bent);
}

/// Reads a flag as coturn does: empty is on, and else the first letter counts.
fn flag(text: &str) -> Option<&'static str> {
    match text.bytes().next() {
        None | Some(b'1'..=b'9' | b'y' | b'Y' | b't' | b'T') => Some("true"),
        Some(b'0' | b'n' | b'N' | b'f' | b'F') => Some("false"),
        Some(_) => match text {
            "on" | "On" | "ON" => Some("true"),
            "off" | "Off" | "OFF" => Some("false"),
            _ => None,
        },
    }
}

/// Returns the leading digits, moved into the bounds. A nonce that never ends becomes one of the longest life there is.
fn number(entry: &Entry, text: &str, min: u32, max: u32) -> String {
    let text = text.trim_start();
    let digits = text.trim_start_matches('+');
    let end = digits
        .find(|digit: char| !digit.is_ascii_digit())
        .unwrap_or(digits.len());
    let number = match digits[..end].parse::<u64>() {
        Ok(number) => u32::try_from(number).unwrap_or(u32::MAX),
        // No digits, or more than there are numbers.
        Err(_) if end > 0 => u32::MAX,
        Err(_) => 0,
    };
    if entry.name == "stale-nonce" && number == 0 {
        return max.to_string();
    }
    number.clamp(min, max).to_string()
}

/// Returns whether a line that cannot be followed stops the start, as in coturn: if ignoring it would open a peer or lock everybody out. A wrong
/// address does not: coturn starts without it.
pub(crate) fn is_fatal(entry: &Entry) -> bool {
    match entry.support {
        Support::Works => matches!(entry.kind, Kind::Flag | Kind::PeerRange | Kind::Port),
        Support::NotYet(_)
        | Support::Only { .. }
        | Support::NoEffect(_)
        | Support::Refused(_)
        | Support::CommandLine => false,
    }
}
