//! Reading as coturn does, for the `turnserver` persona: its search for files, its lines, its numbers and flags.
//!
//! Whatever is bent into shape or passed over becomes a note; nothing is passed over in silence.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::draft::Draft;
use super::entry::{Entry, Group, Support};
use super::file::{FILE_LEN_MAX, Setting, printable};
use super::problem::{Note, Origin};
use super::value::Kind;

/// The file that is read when none is named.
pub(super) const DEFAULT_FILE: &str = "turnserver.conf";

/// Where coturn looks for a file that is named without its directory, in its order.
const PLACES: [&str; 14] = [
    "./",
    "./turnserver/",
    "./coturn/",
    "./etc/",
    "./etc/turnserver/",
    "./etc/coturn/",
    "../etc/",
    "../etc/turnserver/",
    "../etc/coturn/",
    "/etc/",
    "/etc/turnserver/",
    "/etc/coturn/",
    "/usr/local/etc/",
    "/usr/local/etc/turnserver/",
];

/// Flags that are on however they are written.
const ALWAYS_ON: [&str; 7] = [
    "prometheus",
    "prometheus-username-labels",
    "use-auth-secret",
    "no-auth-pings",
    "no-dynamic-ip-list",
    "no-dynamic-realms",
    "rfc5780",
];

/// The first file of this name that can be read.
pub(super) fn find(name: &str) -> Option<PathBuf> {
    let is_file = |path: &PathBuf| std::fs::File::open(path).is_ok();
    if let Some(rest) = name.strip_prefix("~/") {
        let home = std::env::var_os("HOME")?;
        return Some(Path::new(&home).join(rest)).filter(is_file);
    }
    if name.starts_with('/') {
        return Some(PathBuf::from(name)).filter(is_file);
    }
    PLACES
        .iter()
        .chain(&["/usr/local/etc/coturn/"])
        .map(|place| Path::new(place).join(name))
        .find(is_file)
}

/// Reads the file of this name, wherever it is found. That there is none is a note, as in coturn.
pub(super) fn read(name: &str, notes: &mut Vec<Note>) -> Vec<Setting> {
    let mut note = |text: String| {
        notes.push(Note {
            origin: None,
            key: "config".to_owned(),
            text,
        });
    };
    let Some(path) = find(name) else {
        note(format!(
            "cannot find configuration file {name}; defaults and the command line hold"
        ));
        return Vec::new();
    };
    match std::fs::read(&path) {
        Ok(content) if content.len() <= FILE_LEN_MAX => {
            parse(&path.display().to_string(), &content, notes)
        }
        Ok(_) => {
            note(format!(
                "{} has more than {FILE_LEN_MAX} bytes and is not read",
                path.display()
            ));
            Vec::new()
        }
        Err(error) => {
            note(format!("cannot read {}: {error}", path.display()));
            Vec::new()
        }
    }
}

/// The settings of a file. A key ends at the first space, tab or `=`; quotes around a value are taken off; `#` begins a comment at the start of a
/// line only.
pub(super) fn parse(path: &str, content: &[u8], notes: &mut Vec<Note>) -> Vec<Setting> {
    let path: Arc<str> = path.into();
    let mut settings = Vec::new();
    for (index, line) in content.split(|byte| *byte == b'\n').enumerate() {
        let text = String::from_utf8_lossy(line);
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

/// Bends the value into one that the table takes: flags by their first letter, numbers by their leading digits and within their bounds.
pub(super) fn adapt(entry: &Entry, setting: &mut Setting, notes: &mut Vec<Note>) {
    let text = setting.value.as_deref().unwrap_or_default();
    let bent = match entry.kind {
        Kind::Flag if ALWAYS_ON.contains(&entry.name) => Some("true".to_owned()),
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
            origin: Some(setting.origin.clone()),
            key: setting.typed.clone(),
            text: format!("`{}` is taken as {bent}", text.escape_debug()),
        });
    }
    setting.value = Some(bent);
}

/// coturn's flags: empty is on, and else the first letter counts.
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

/// The leading digits, moved into the bounds. A nonce that never ends becomes one of the longest life there is.
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

/// Whether a line that cannot be followed ends the start, as in coturn: where passing over it would open a peer or leave everybody out. Addresses do not:
/// coturn starts without them.
pub(super) fn is_fatal(entry: &Entry) -> bool {
    match entry.support {
        Support::Works { .. } => matches!(entry.kind, Kind::Flag | Kind::PeerRange | Kind::Port),
        Support::NotYet(_) => entry.group == Group::Databases && entry.name != "redis-statsdb",
        Support::Only { .. }
        | Support::NoEffect(_)
        | Support::Refused(_)
        | Support::CommandLine => false,
    }
}

/// Whether values of this key that contradict others end the start.
pub(super) fn is_fatal_together(key: &str) -> bool {
    matches!(
        key,
        "listening-ip" | "max-port" | "min-port" | "no-udp" | "relay-ip"
    )
}

/// Looks for the files of TLS where coturn looks, under its names if none are given. Without both there is no TLS.
pub(super) fn find_certificates(draft: &mut Draft) {
    if !draft.tls.wanted {
        return;
    }
    let name = |given: &Option<PathBuf>, usual: &str| {
        given
            .as_ref()
            .map_or_else(|| usual.to_owned(), |path| path.display().to_string())
    };
    let certificate = name(&draft.tls.certificate, "turn_server_cert.pem");
    let key = name(&draft.tls.key, "turn_server_pkey.pem");
    match (find(&certificate), find(&key)) {
        (Some(certificate), Some(key)) => {
            (draft.tls.certificate, draft.tls.key) = (Some(certificate), Some(key));
        }
        (found, _) => {
            let missing = if found.is_some() { &key } else { &certificate };
            draft.note(
                "cert",
                format!("cannot find {missing}; there is no TLS and no DTLS"),
            );
            (draft.tls.certificate, draft.tls.key) = (None, None);
        }
    }
    if let Some(authorities) = &draft.tls.client_authorities
        && let Some(found) = find(&authorities.display().to_string())
    {
        draft.tls.client_authorities = Some(found);
    }
}
