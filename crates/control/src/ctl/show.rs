//! Answers as text for people. Names come from clients, so nothing of them reaches a terminal unescaped.

use std::fmt::Write as _;

use serde_json::Value;

/// Heading of a list of sessions.
pub(super) const HEADING: &str = "SESSION            VIA  AGE     ENDS IN FROM CLIENT FROM PEERS CLIENT                RELAYED ADDRESS       USER";

/// Heading of a list of users.
const USERS: &str = "SESSIONS FROM CLIENT FROM PEERS USER";

/// Returns a session as a line below [`HEADING`].
pub(super) fn line(session: &Value) -> String {
    format!(
        "{:<18} {:<4} {:<7} {:<7} {} {:<21} {:<21} {}",
        text(&session["session"]),
        text(&session["transport"]),
        time(&session["age_s"]),
        time(&session["expires_in_s"]),
        received(session),
        text(&session["client"]),
        text(&session["relays"][0]["external"]),
        user(session),
    )
}

/// Returns a list of those that relay most: sessions, or users.
pub(super) fn top(answer: &Value) -> String {
    if let Some(users) = answer["users"].as_array() {
        let lines = users.iter().map(|it| {
            let count = text(&it["sessions"]);
            format!("{count:>8} {} {}\n", received(it), user(it))
        });
        return format!("{USERS}\n{}", lines.collect::<String>());
    }
    let sessions = answer["sessions"].as_array().into_iter().flatten();
    let lines: String = sessions.map(|it| line(it) + "\n").collect();
    format!("{HEADING}\n{lines}")
}

/// Returns what was received from a client and from peers: per second where that was measured, in all otherwise.
fn received(of: &Value) -> String {
    let shown = |name: &str| match &of["bytes_per_s"][name] {
        Value::Null => bytes(&of["usage"][name]["bytes"]),
        rate => bytes(rate) + "/s",
    };
    let (client, peers) = (shown("client_received"), shown("peer_received"));
    format!("{client:>11} {peers:>10}")
}

/// Returns all that is known of one session.
pub(super) fn session(session: &Value) -> String {
    let usage = &session["usage"];
    let moved = |name: &str| {
        let moved = &usage[name];
        format!(
            "{} datagrams, {}",
            text(&moved["datagrams"]),
            bytes(&moved["bytes"])
        )
    };
    let tls = match session["tls"].as_object() {
        Some(_) => {
            let tls = &session["tls"];
            format!(", {} with {}", text(&tls["version"]), text(&tls["cipher"]))
        }
        None => String::new(),
    };
    let relays = session["relays"].as_array().into_iter().flatten();
    let relays: Vec<_> = relays
        .map(|relay| match relay["local"] == relay["external"] {
            true => text(&relay["local"]),
            false => format!(
                "{} (here {})",
                text(&relay["external"]),
                text(&relay["local"])
            ),
        })
        .collect();
    let peers = session["peers"].as_array().into_iter().flatten();
    let peers: Vec<_> = peers.map(text).collect();
    let mut rows = vec![
        ("session", text(&session["session"])),
        ("user", user(session)),
        (
            "client",
            format!(
                "{} by {}{tls}",
                text(&session["client"]),
                text(&session["transport"])
            ),
        ),
        ("server", text(&session["server"])),
        (
            "relayed",
            format!(
                "{} by {}",
                relays.join(", "),
                text(&session["relay_protocol"])
            ),
        ),
        ("peers", peers.join(", ")),
        ("age", time(&session["age_s"])),
        ("ends in", time(&session["expires_in_s"])),
        ("from client", moved("client_received")),
        ("to client", moved("client_sent")),
        ("from peers", moved("peer_received")),
        ("to peers", moved("peer_sent")),
    ];
    if !session["tunnel_to"].is_null() {
        rows.push(("tunnel to", text(&session["tunnel_to"])));
    }
    if !session["max_bps"].is_null() {
        rows.push(("rate limit", bytes(&session["max_bps"]) + "/s each way"));
    }
    if session["is_mobile"] == true {
        rows.push(("mobile", "it may move to another address".to_owned()));
    }
    let lines = rows.into_iter().map(|(name, value)| {
        let value = if value.is_empty() { "none" } else { &value };
        format!("{name:<12} {value}\n")
    });
    lines.collect()
}

/// Returns a certificate as a line.
pub(super) fn certificate(certificate: &Value) -> String {
    let file = text(&certificate["file"]);
    if !certificate["error"].is_null() {
        return format!("{file}: {}", text(&certificate["error"]));
    }
    let names = certificate["names"].as_array().into_iter().flatten();
    let names: Vec<_> = names.map(text).collect();
    format!(
        "{file}: {} ({}), good until {}, {} days",
        text(&certificate["subject"]),
        names.join(", "),
        text(&certificate["not_after"]),
        text(&certificate["days_left"]),
    )
}

/// Returns a line of a trace.
pub(super) fn traced(traced: &Value) -> String {
    if let Some(after) = traced["after_s"].as_f64() {
        return format!("{after:9.3} s: {}", text(&traced["text"]));
    }
    if traced["begun"] == true {
        return "begun; what happens from now on is shown".to_owned();
    }
    match traced["session"].as_object() {
        Some(_) => {
            let session = &traced["session"];
            let (number, age) = (text(&session["session"]), time(&session["age_s"]));
            format!(
                "session {number}: there for {age}, client={}",
                text(&session["client"])
            )
        }
        None => format!("ended; {} lines were lost", text(&traced["lost"])),
    }
}

/// Returns an object as lines of names and values; what is nested in it has the names with dots.
pub(super) fn pairs(value: &Value) -> String {
    let mut lines = String::new();
    let mut all = Vec::new();
    flatten(String::new(), value, &mut all);
    let width = all.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, value) in all {
        // Writing to a String cannot fail.
        let _ = writeln!(lines, "{name:<width$}  {value}");
    }
    lines
}

/// Returns a key of the configuration as the lines that say so in a file.
pub(super) fn setting(entry: &Value) -> String {
    let mut lines = String::new();
    let from = entry["from"].as_array();
    let values = entry["values"].as_array().into_iter().flatten();
    for (index, value) in values.enumerate() {
        let assignment = format!("{}={}", text(&entry["key"]), text(value));
        let from = from.and_then(|from| from.get(index).or_else(|| from.last()));
        let from = from.map_or_else(|| "default".to_owned(), text);
        // Writing to a String cannot fail.
        let _ = writeln!(
            lines,
            "{assignment:<48} # {from}; reload: {}",
            text(&entry["reload"])
        );
    }
    lines
}

fn flatten(name: String, value: &Value, to: &mut Vec<(String, String)>) {
    let under = |part: &str| match &*name {
        "" => part.to_owned(),
        name => format!("{name}.{part}"),
    };
    match value {
        Value::Object(parts) => {
            for (part, value) in parts {
                flatten(under(&part.escape_debug().to_string()), value, to);
            }
        }
        Value::Array(parts) if parts.iter().any(|part| part.is_object() || part.is_array()) => {
            for (index, value) in parts.iter().enumerate() {
                flatten(under(&index.to_string()), value, to);
            }
        }
        Value::Array(parts) => {
            let parts: Vec<_> = parts.iter().map(text).collect();
            to.push((name, parts.join(", ")));
        }
        value => to.push((name, text(value))),
    }
}

/// Returns a single value.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.escape_debug().to_string(),
        value => value.to_string(),
    }
}

fn user(session: &Value) -> String {
    let (user, realm) = (text(&session["user"]), text(&session["realm"]));
    match &*realm {
        "" => user,
        realm => format!("{user} ({realm})"),
    }
}

/// Returns seconds in the two largest units, as `1h02m`.
fn time(seconds: &Value) -> String {
    let seconds = seconds.as_u64().unwrap_or(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{:02}s", seconds % 60),
        (0, _, _) => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

/// Returns bytes in the largest unit that leaves a whole number before the point.
fn bytes(count: &Value) -> String {
    let count = count.as_u64().unwrap_or(0);
    let mut unit: u64 = 1;
    for name in ["B", "kB", "MB", "GB"] {
        if count < unit * 1000 {
            return match unit {
                1 => format!("{count} {name}"),
                unit => format!("{}.{} {name}", count / unit, count % unit * 10 / unit),
            };
        }
        unit *= 1000;
    }
    format!("{}.{} TB", count / unit, count % unit * 10 / unit)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_are_short_and_names_do_nothing_to_a_terminal() {
        assert_eq!(time(&json!(59)), "59s");
        assert_eq!(time(&json!(3599)), "59m59s");
        assert_eq!(time(&json!(3720)), "1h02m");
        assert_eq!(time(&json!(90_000)), "1d01h");
        assert_eq!(bytes(&json!(999)), "999 B");
        assert_eq!(bytes(&json!(1_250_000)), "1.2 MB");
        assert_eq!(bytes(&json!(7_000_000_000_000_u64)), "7.0 TB");
        let session = json!({ "user": "a\u{1b}[31m\n", "realm": "r" });
        assert_eq!(user(&session), "a\\u{1b}[31m\\n (r)");
        let nested = json!({ "a": { "b": 1, "c": ["x", "y"] }, "d": [{ "e": null }] });
        assert_eq!(pairs(&nested), "a.b    1\na.c    x, y\nd.0.e  -\n");
    }
}
