//! The configuration as the console shows it, under coturn's names.

use std::collections::BTreeMap;

use super::Console;
use super::change::{CHANGEABLE, TOGGLEABLE};
use super::conversation::{Gone, Screen, Visitor};
use crate::asking::ask;

/// A line of the configuration: coturn's name for it, and where its value comes from.
enum Line {
    Blank,
    /// The key is a flag.
    Flag(&'static str, &'static str),
    /// The key has one value, perhaps none.
    One(&'static str, &'static str),
    /// The key has a line for each of its values.
    Each(&'static str, &'static str),
    /// Something else says it.
    Said(&'static str, Said),
}

/// Lines that no key alone says.
#[derive(Clone, Copy)]
enum Said {
    UserId,
    GroupId,
    Directory,
    DatabaseKind,
    Realm,
    Origin,
    Sessions,
    Reserved,
    SessionsShown,
    AlwaysOn,
}

/// Databases by their keys, and coturn's names for them.
const DATABASES: [(&str, &str); 5] = [
    ("userdb", "SQLite"),
    ("psql-userdb", "Postgres"),
    ("mysql-userdb", "MySQL/MariaDB"),
    ("mongo-userdb", "MongoDB"),
    ("redis-userdb", "redis"),
];

const LINES: [Line; 69] = [
    Line::Blank,
    Line::Flag("verbose", "verbose"),
    Line::Flag("daemon process", "daemon"),
    Line::One("stale-nonce", "stale-nonce"),
    Line::Flag("stun-only", "stun-only"),
    Line::Flag("no-stun", "no-stun"),
    Line::Flag("secure-stun", "secure-stun"),
    Line::Flag("RFC5780 support", "rfc5780"),
    Line::Flag("enforce fingerprints", "fingerprint"),
    Line::Flag("mobility", "mobility"),
    Line::Flag("udp-self-balance", "udp-self-balance"),
    Line::One("pidfile", "pidfile"),
    Line::Said("process user ID", Said::UserId),
    Line::Said("process group ID", Said::GroupId),
    Line::Said("process dir", Said::Directory),
    Line::Blank,
    Line::One("cipher-list", "cipher-list"),
    Line::One("ec-curve-name", "ec-curve-name"),
    Line::One("Certificate Authority file", "CA-file"),
    Line::One("Certificate file", "cert"),
    Line::One("Private Key file", "pkey"),
    Line::Each("Listener addr", "listening-ip"),
    Line::Each("listener-ifname", "listening-device"),
    Line::Flag("no-udp", "no-udp"),
    Line::Flag("no-tcp", "no-tcp"),
    Line::Flag("no-tls", "no-tls"),
    Line::Flag("dtls", "dtls"),
    Line::One("listener-port", "listening-port"),
    Line::One("tls-listener-port", "tls-listening-port"),
    Line::One("alt-listener-port", "alt-listening-port"),
    Line::One("alt-tls-listener-port", "alt-tls-listening-port"),
    Line::Each("External public IP", "external-ip"),
    Line::Blank,
    Line::Each("Aux server", "aux-server"),
    Line::Each("Alternate server", "alternate-server"),
    Line::Each("TLS alternate server", "tls-alternate-server"),
    Line::Each("TCP alternate server", "tcp-alternate-server"),
    Line::Each("UDP alternate server", "udp-alternate-server"),
    Line::Blank,
    Line::Each("Relay addr", "relay-ip"),
    Line::Each("relay-ifname", "relay-device"),
    Line::Flag("server-relay", "server-relay"),
    Line::Flag("no-udp-relay", "no-udp-relay"),
    Line::Flag("no-tcp-relay", "no-tcp-relay"),
    Line::One("min-port", "min-port"),
    Line::One("max-port", "max-port"),
    Line::Each("Whitelist IP (static)", "allowed-peer-ip"),
    Line::Each("Blacklist IP (static)", "denied-peer-ip"),
    Line::Flag("no-multicast-peers", "no-multicast-peers"),
    Line::Flag("allow-loopback-peers", "allow-loopback-peers"),
    Line::Blank,
    Line::Said("DB type", Said::DatabaseKind),
    Line::One("Redis Statistics DB", "redis-statsdb"),
    Line::Blank,
    Line::One("Default realm", "realm"),
    Line::Said("CLI session realm", Said::Realm),
    Line::Said("CLI session origin", Said::Origin),
    Line::Said("Long-term authorization mechanism", Said::AlwaysOn),
    Line::Flag("TURN REST API support", "use-auth-secret"),
    Line::Blank,
    Line::Said("total-current-allocs", Said::Sessions),
    Line::Blank,
    Line::One("Default total-quota", "total-quota"),
    Line::One("Default user-quota", "user-quota"),
    Line::One("Total server bps-capacity", "bps-capacity"),
    Line::Said("Allocated bps-capacity", Said::Reserved),
    Line::One("Default max-bps", "max-bps"),
    Line::Blank,
    Line::Said("cli-max-output-sessions", Said::SessionsShown),
];

/// Shows the configuration.
pub(super) async fn show(
    console: &Console,
    visitor: &Visitor,
    screen: &mut Screen,
) -> Result<(), Gone> {
    let Some(values) = values(console).await else {
        return screen.line("  Error: the relay takes no command now").await;
    };
    let of = |key: &str| values.get(key).map_or(&[][..], Vec::as_slice);
    for line in &LINES {
        match line {
            Line::Blank => screen.line("").await?,
            Line::Flag(name, key) => {
                let is_on = of(key).first().is_some_and(|value| value == "true");
                screen.line(&shown(name, on_or_off(is_on), key)).await?;
            }
            Line::One(name, key) => {
                let value = of(key).first().map_or("empty", String::as_str);
                screen.line(&shown(name, value, key)).await?;
            }
            Line::Each(name, key) => {
                for value in of(key) {
                    screen.line(&shown(name, value, key)).await?;
                }
            }
            Line::Said(name, said) => {
                if let Some(value) = say(*said, console, visitor, &values) {
                    screen.line(&shown(name, &value, name)).await?;
                }
            }
        }
    }
    for line in [
        "",
        "  (Note 1: parameters with (*) are toggleable)",
        "",
        "  (Note 2: parameters with (**) are changeable)",
        "",
    ] {
        screen.line(line).await?;
    }
    Ok(())
}

/// Returns whether a flag of the configuration is on.
pub(super) async fn flag(console: &Console, key: &str) -> bool {
    let values = values(console).await.unwrap_or_default();
    values.get(key).is_some_and(|values| *values == ["true"])
}

pub(super) fn on_or_off(is_on: bool) -> &'static str {
    match is_on {
        true => "ON",
        false => "OFF",
    }
}

fn shown(name: &str, value: &str, key: &str) -> String {
    let mark = match key {
        _ if TOGGLEABLE.contains(&key) => " (*)",
        _ if CHANGEABLE.contains(&key) => " (**)",
        _ => "",
    };
    format!("  {name}: {value}{mark}")
}

fn say(
    said: Said,
    console: &Console,
    visitor: &Visitor,
    values: &BTreeMap<&str, Vec<String>>,
) -> Option<String> {
    let named = |name: &str| (!name.is_empty()).then(|| name.to_owned());
    match said {
        Said::UserId => Some(rustix::process::geteuid().as_raw().to_string()),
        Said::GroupId => Some(rustix::process::getegid().as_raw().to_string()),
        Said::Directory => std::env::current_dir()
            .ok()
            .map(|it| it.display().to_string()),
        Said::DatabaseKind => {
            let mut all = DATABASES.iter();
            let found = all.find(|(key, _)| values.get(key).is_some_and(|it| !it.is_empty()));
            Some(found.map_or("none", |(_, name)| name).to_owned())
        }
        Said::Realm => match &*visitor.realm {
            "" => values.get("realm")?.first().cloned(),
            realm => Some(realm.to_owned()),
        },
        Said::Origin => named(&visitor.origin),
        Said::Sessions => {
            let accounting = console.counters.accounting();
            Some(accounting.get("allocations", None).to_string())
        }
        Said::Reserved => Some(console.counters.bandwidth_reserved().to_string()),
        Said::SessionsShown => Some(console.sessions_max().to_string()),
        Said::AlwaysOn => Some(on_or_off(true).to_owned()),
    }
}

/// Returns what each key is set to, secrets masked.
async fn values(console: &Console) -> Option<BTreeMap<&'static str, Vec<String>>> {
    let effective = ask(|reply| console.commands.configuration(reply)).await?;
    let values = effective
        .into_iter()
        .map(|one| (one.entry.name, one.values));
    Some(values.collect())
}
