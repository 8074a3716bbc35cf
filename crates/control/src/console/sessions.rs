//! Lists of sessions and of users, in coturn's words.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use turnbuckle_server::handle::{RelayProtocol, Session, SessionFilter, Transport};

use super::Console;
use super::conversation::{Gone, Screen, Visitor};
use super::pc::{self, on_or_off};
use crate::pages::{Action, Walk};

/// Users that are told apart. They choose their names, so there may be any number of them.
const USERS_MAX: usize = 10_000;

/// Sessions that are asked for at once.
const PAGE: usize = 256;

/// What is listed.
#[derive(Clone, Copy)]
pub(super) enum Wanted<'a> {
    Sessions { user: &'a str, is_whole: bool },
    Users { protocol: &'a str },
}

/// Lists sessions, or users with their sessions counted. All are counted, and as many shown as `cli-max-output-sessions` says.
pub(super) async fn show(
    console: &Console,
    visitor: &Visitor,
    screen: &mut Screen,
    wanted: Wanted<'_>,
) -> Result<(), Gone> {
    let are_fingerprints_enforced = match wanted {
        Wanted::Sessions { .. } => pc::flag(console, "fingerprint").await,
        Wanted::Users { .. } => false,
    };
    let max = console.sessions_max();
    let mut users = Users::default();
    let mut count: u64 = 0;
    if let Some(filter) = filter_of(visitor, wanted) {
        let mut walk = Walk::new(&console.commands, Action::List, filter, (0, 0));
        loop {
            let page = match walk.page(PAGE).await {
                Ok(Some(page)) => page,
                Ok(None) => break,
                Err(shard) => {
                    screen
                        .line(&format!("  Error: shard {shard} does not answer"))
                        .await?;
                    return Ok(());
                }
            };
            for session in &page.sessions {
                count += 1;
                match wanted {
                    Wanted::Users { .. } => users.add(&session.user),
                    Wanted::Sessions { .. } if count <= max => {
                        for line in lines_of(session, count, are_fingerprints_enforced) {
                            screen.line(&line).await?;
                        }
                    }
                    Wanted::Sessions { .. } => {}
                }
            }
        }
    }
    screen.line("").await?;
    let is_cut = match wanted {
        Wanted::Sessions { .. } => count > max,
        Wanted::Users { .. } => users.others > 0,
    };
    for (user, count) in &users.list {
        screen
            .line(&format!("    user: <{user}>, {count} sessions"))
            .await?;
    }
    if is_cut {
        screen.line("...").await?;
    }
    if is_cut || !users.list.is_empty() {
        screen.line("").await?;
    }
    screen.line(&total(visitor, count)).await?;
    screen.line("").await?;
    if is_cut && matches!(wanted, Wanted::Sessions { .. }) {
        for line in [
            "  Warning: too many output sessions, more than the",
            "  current value of cli-max-output-sessions CLI parameter.",
            "  Refine your request or increase cli-max-output-sessions value.",
            "",
        ] {
            screen.line(line).await?;
        }
    }
    Ok(())
}

/// Returns which sessions are meant; `None` if there can be none.
fn filter_of(visitor: &Visitor, wanted: Wanted<'_>) -> Option<SessionFilter> {
    let named = |name: &str| (!name.is_empty()).then(|| name.to_owned());
    let mut filter = SessionFilter {
        realm: named(&visitor.realm),
        origin: named(&visitor.origin),
        ..SessionFilter::default()
    };
    match wanted {
        Wanted::Sessions {
            user,
            is_whole: true,
        } => filter.user = named(user),
        Wanted::Sessions { user, .. } => filter.user_part = named(user),
        Wanted::Users { protocol: "" } => {}
        Wanted::Users { protocol } => {
            let all = [
                Transport::Udp,
                Transport::Tcp,
                Transport::Tls,
                Transport::Dtls,
            ];
            let mut all = all.into_iter();
            let found = all.find(|it| it.as_str().eq_ignore_ascii_case(protocol))?;
            filter.transport = Some(found);
        }
    }
    Some(filter)
}

/// Users in the order in which they came, with the number of their sessions.
#[derive(Default)]
struct Users {
    list: Vec<(Box<str>, u64)>,
    place_by_name: HashMap<Box<str>, usize>,
    /// Sessions of users beyond those that are told apart.
    others: u64,
}

impl Users {
    fn add(&mut self, name: &str) {
        let is_full = self.list.len() >= USERS_MAX;
        match self.place_by_name.entry(name.into()) {
            Entry::Occupied(place) => self.list[*place.get()].1 += 1,
            Entry::Vacant(_) if is_full => self.others += 1,
            Entry::Vacant(place) => {
                place.insert(self.list.len());
                self.list.push((name.into(), 1));
            }
        }
    }
}

/// Returns the lines about a session, of which `place` are listed by now.
fn lines_of(session: &Session, place: u64, are_fingerprints_enforced: bool) -> Vec<String> {
    let (client, usage) = (&session.client, &session.usage);
    let protocol = match session.protocol {
        RelayProtocol::Udp => "UDP",
        RelayProtocol::Tcp => "TCP",
    };
    let mut lines = vec![
        String::new(),
        format!(
            "    {place}) id={:018}, user <{}>:",
            session.number, session.user
        ),
        format!("      realm: {}", session.realm),
    ];
    if let Some(origin) = &session.origin {
        let origin = String::from_utf8_lossy(origin.as_bytes());
        lines.push(format!("      origin: {origin}"));
    }
    lines.extend([
        format!("      started {} secs ago", session.time.age.as_secs()),
        format!(
            "      expiring in {} secs",
            session.time.expires_in.as_secs()
        ),
        format!(
            "      client protocol {}, relay protocol {protocol}",
            socket_type(client.transport)
        ),
        format!(
            "      client addr {}, server addr {}",
            client.address, client.server
        ),
    ]);
    let relays = session.relays.iter();
    lines.extend(relays.map(|relay| format!("      relay addr {}", relay.local)));
    lines.push(format!(
        "      fingerprints enforced: {}",
        on_or_off(are_fingerprints_enforced)
    ));
    lines.push(format!("      mobile: {}", on_or_off(session.is_mobile)));
    if let Some(seal) = &client.seal {
        lines.push(format!("      TLS method: {}", seal.version));
        lines.push(format!("      TLS cipher: {}", seal.suite));
    }
    if let Some(rate) = session.peers.bytes_per_s {
        lines.push(format!("      Max throughput: {rate} bytes per second"));
    }
    let (received, sent) = (&usage.client_received, &usage.client_sent);
    lines.push(format!(
        "      usage: rp={}, rb={}, sp={}, sb={}",
        received.datagrams, received.bytes, sent.datagrams, sent.bytes
    ));
    let rate = |bytes: u64| bytes / session.time.age.as_secs().max(1);
    lines.push(format!(
        "       rate: r={}, s={}, total={} (bytes per sec)",
        rate(received.bytes),
        rate(sent.bytes),
        rate(received.bytes.saturating_add(sent.bytes))
    ));
    if !session.peers.allowed.is_empty() {
        lines.push("      peers:".to_owned());
        let peers = session.peers.allowed.iter();
        lines.extend(peers.map(|peer| format!("          {peer}")));
    }
    lines
}

/// Returns the line that says how many there are.
fn total(visitor: &Visitor, count: u64) -> String {
    let (realm, origin) = (&visitor.realm, &visitor.origin);
    match (realm.is_empty(), origin.is_empty()) {
        (true, true) => format!("  Total sessions: {count}"),
        (false, true) => format!("  Total sessions for realm {realm}: {count}"),
        (true, false) => format!("  Total sessions for origin {origin}: {count}"),
        (false, false) => {
            format!("  Total sessions for realm {realm} and for origin {origin}: {count}")
        }
    }
}

/// Returns coturn's name of a transport.
fn socket_type(transport: Transport) -> &'static str {
    match transport {
        Transport::Tls => "TLS/TCP",
        Transport::Udp | Transport::Tcp | Transport::Dtls | Transport::Quic => transport.as_str(),
    }
}
