//! `deploy/turnserver.conf.sample`: every usable key, commented out with its default, so that the file as it is changes nothing.

use super::super::entry::{Entry, Group, Status};
use super::{description, usable};

/// Columns of the comments.
const WIDTH: usize = 98;

/// The annotated sample file.
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

/// The default where it is a value, else one that would be accepted.
pub(in crate::config) fn example(entry: &Entry) -> &'static str {
    if let Status::Limited { values, .. } = entry.status() {
        return values.first().copied().unwrap_or_default();
    }
    if !entry.default.is_empty() && !entry.default.starts_with('(') {
        return entry.default;
    }
    match entry.name {
        "acme-redirect" => "https://acme.example.org/.well-known/acme-challenge/",
        "alternate-server" | "tcp-alternate-server" | "udp-alternate-server" => "203.0.113.6:3478",
        "tls-alternate-server" => "turn2.example.org:5349",
        "allowed-peer-ip" => "10.20.0.0-10.20.255.255",
        "aux-server" => "10.1.2.3:443",
        "CA-file" => "/etc/turnbuckle/client-authorities.pem",
        "cert" => "/etc/turnbuckle/certificate.pem",
        "cpus" | "relay-threads" => "4",
        "denied-peer-ip" => "198.51.100.0/24",
        "external-ip" => "203.0.113.5/10.1.2.3",
        "listening-device" | "relay-device" => "eth0",
        "listening-ip" | "relay-ip" => "10.1.2.3",
        "oauth-key" => "north:bm90LWEtc2VjcmV0LWJ1dC1hcy1sb25nLWFzLW9uZS4=",
        "nat64-prefix" => "2001:db8:64::/96",
        "server-name" => "turn.example.org",
        "pkey" => "/etc/turnbuckle/key.pem",
        "pkey-pwd" => "the-passphrase-of-the-key",
        "proxy-protocol-source" | "udp-proxy-protocol-source" => "192.0.2.10",
        "log-file" => "stdout",
        "new-log-timestamp" => "true",
        "new-log-timestamp-format" => "%FT%T.%f%z",
        "pidfile" => "/run/turnbuckle.pid",
        "proc-group" | "proc-user" => "turnserver",
        "realm" => "example.org",
        "static-auth-secret" => "a-long-secret-shared-with-the-web-service",
        "statistics-file" => "turnbuckle-statistics.json",
        "stateless-nonce-secret" => "a-long-secret-shared-by-all-relays",
        "tcp-proxy-port" => "8443",
        "udp-gso" | "use-auth-secret" => "true",
        "user" => "alice:a-long-password",
        "userdb" => "/var/lib/turn/turndb",
        _ => "",
    }
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
