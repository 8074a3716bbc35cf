//! The forms of a record: text, JSON, RFC 5424.
//!
//! Invariant: a record is one line, whatever clients are called (V-73). What is not printable is escaped in every form, in the way of that form.

use std::fmt::Write as _;

use rustix::system::uname;

use super::entry::Entry;
use crate::config::{Form, Level, LogFormat, Timestamps};
use crate::log::summary::{Summary, Value};
use crate::log::text::printable;

/// Longest line of text in bytes, as in coturn, and longest message in the other forms; the rest is left out.
const LEN_MAX: usize = 1024;

/// The SD-ID of a session (RFC 5424 §6.3.2). The number is the one for examples (RFC 5612 §2): the project has none of its own.
const SESSION_SD_ID: &str = "session@32473";

/// How records are written.
#[derive(Clone)]
pub(super) enum Format {
    /// Text behind this prefix.
    Text(Timestamps),
    /// An object of JSON.
    Json,
    /// A record of syslog (RFC 5424 §6).
    Rfc5424(Header),
}

/// What is the same in all headers of RFC 5424 (§6.2).
#[derive(Clone)]
pub(super) struct Header {
    pub(super) facility: u8,
    /// APP-NAME.
    pub(super) program: &'static str,
    host: String,
}

impl Header {
    pub(super) fn new(facility: u8, program: &'static str) -> Self {
        let name = uname().nodename().to_string_lossy().into_owned();
        // PRINTUSASCII without spaces, of at most 255 characters.
        let host: String = name
            .chars()
            .filter(char::is_ascii_graphic)
            .take(255)
            .collect();
        Self {
            facility,
            program,
            host: match host.is_empty() {
                true => "-".to_owned(),
                false => host,
            },
        }
    }
}

impl Format {
    pub(super) fn new(form: &Form, header: Header) -> Self {
        match form.format {
            LogFormat::Coturn => Self::Text(form.timestamps.clone()),
            LogFormat::Json => Self::Json,
            LogFormat::Rfc5424 => Self::Rfc5424(header),
        }
    }

    /// Returns the record without its line end. Returns `None` for what this form has no record of: text has no summaries, but coturn's lines.
    pub(super) fn record(&self, entry: &Entry) -> Option<String> {
        match self {
            Self::Text(_) if entry.session.is_some() => None,
            Self::Text(timestamps) => Some(cut(text(timestamps, entry))),
            Self::Json => Some(json(entry)),
            Self::Rfc5424(header) => Some(rfc5424(header, entry)),
        }
    }
}

/// Returns the severity of syslog for a level (RFC 5424 §6.2.1).
pub(super) fn severity(level: Level) -> u8 {
    match level {
        Level::Error => 3,
        Level::Warning => 4,
        Level::Info => 6,
        Level::Debug => 7,
    }
}

/// Returns the word for a level, for text without a time.
pub(super) fn prefix(level: Level) -> &'static str {
    match level {
        Level::Debug | Level::Info => "",
        Level::Warning => "warning: ",
        Level::Error => "error: ",
    }
}

/// Returns as much of a line as is written.
pub(super) fn cut(mut line: String) -> String {
    line.truncate(line.floor_char_boundary(LEN_MAX));
    line
}

fn text(timestamps: &Timestamps, entry: &Entry) -> String {
    let Entry { level, message, .. } = entry;
    match timestamps {
        Timestamps::None => format!("{}{message}", prefix(*level)),
        Timestamps::Elapsed => {
            format!("{}: {} {message}", entry.elapsed.as_secs(), level.name())
        }
        Timestamps::Format(format) => {
            // coturn's `%f` stands for milliseconds.
            let format = format.replace("%f", "%3f");
            let local = entry.local_time();
            let time = jiff::fmt::strtime::format(format, &local);
            let time = time.unwrap_or_else(|_| local.to_string());
            format!("{time} {} {message}", level.name())
        }
    }
}

/// Returns the time of an entry by RFC 3339, to the microsecond.
fn timestamp(entry: &Entry) -> String {
    let time = jiff::fmt::strtime::format("%FT%T.%6f%:z", &entry.local_time());
    time.unwrap_or_else(|_| entry.time.to_string())
}

fn json(entry: &Entry) -> String {
    let level = entry.level.name().to_ascii_lowercase();
    let mut object = format!(
        "{{\"time\":{},\"level\":{},\"message\":{}",
        quoted(&timestamp(entry)),
        quoted(&level),
        quoted(&cut(entry.message.clone()))
    );
    if let Some(session) = &entry.session {
        object.push_str(",\"event\":\"session_ended\"");
        for (name, value) in session.fields() {
            // Writing to a string does not fail.
            let _ = match value {
                Value::Text(text) => write!(object, ",\"{name}\":{}", quoted(&text)),
                Value::Number(number) => write!(object, ",\"{name}\":{number}"),
            };
        }
    }
    object.push('}');
    object
}

/// Returns a string of JSON (RFC 8259 §7) in which everything is printable.
fn quoted(text: &str) -> String {
    let string = serde_json::Value::from(text).to_string();
    let mut written = String::with_capacity(string.len());
    for character in string.chars() {
        if is_printable(character) {
            written.push(character);
            continue;
        }
        for unit in character.encode_utf16(&mut [0; 2]) {
            let _ = write!(written, "\\u{unit:04x}");
        }
    }
    written
}

/// Returns whether a character may be shown on a terminal as it is.
fn is_printable(character: char) -> bool {
    matches!(character, '"' | '\'' | '\\') || character.escape_debug().len() == 1
}

fn rfc5424(header: &Header, entry: &Entry) -> String {
    let Header {
        facility,
        program,
        host,
    } = header;
    let (id, data) = match &entry.session {
        Some(session) => ("SESSION", structured_data(session)),
        None => ("-", "-".to_owned()),
    };
    format!(
        "<{}>1 {} {host} {program} {} {id} {data} {}",
        facility * 8 + severity(entry.level),
        timestamp(entry),
        std::process::id(),
        cut(entry.message.clone()),
    )
}

/// Returns the fields of a session as STRUCTURED-DATA (RFC 5424 §6.3).
fn structured_data(session: &Summary) -> String {
    let mut data = format!("[{SESSION_SD_ID}");
    for (name, value) in session.fields() {
        let _ = write!(data, " {name}=\"");
        for character in printable(&value.text()).chars() {
            if matches!(character, '"' | '\\' | ']') {
                data.push('\\');
            }
            data.push(character);
        }
        data.push('"');
    }
    data.push(']');
    data
}
