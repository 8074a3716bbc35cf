//! What the page shows, at one moment.

use std::time::Duration;

use serde_json::{Map, Value, json};
use turnbuckle_server::handle::{
    Commands, LiveCounters, RelayAddress, Session, SessionFilter, Transport,
};

use crate::asking::ask_each;
use crate::own::BATCH_BOUNDS;
use crate::shared::{Shared, lock};

/// Sessions that are listed, for the page to choose from.
const SESSIONS_MAX: usize = 500;

/// Time in which a shard has to list sessions.
const ANSWER: Duration = Duration::from_millis(500);

/// How a client is reached: in the counters, and for people.
const TRANSPORTS: [(&str, &str); 4] = [
    ("udp", "UDP"),
    ("tcp", "TCP"),
    ("tls", "TLS"),
    ("dtls", "DTLS"),
];

/// Takes a snapshot of a relay that has run for `uptime`.
pub(super) async fn take(shared: &Shared, uptime: Duration) -> Value {
    let counters = &shared.counters;
    let accounting = counters.accounting();
    let get = |name: &str| accounting.get(name, None);
    let in_flight = accounting
        .total_in()
        .saturating_sub(accounting.total_out())
        .saturating_sub(accounting.total_drops());
    let by_transport: Map<String, Value> = TRANSPORTS
        .into_iter()
        .map(|(name, shown)| {
            // An end is counted after its beginning, so it is read first.
            let over = accounting.get("sessions_over", Some(name));
            let begun = accounting.get("sessions_begun", Some(name));
            (shown.to_owned(), begun.saturating_sub(over).into())
        })
        .collect();
    let drops = accounting.drops().into_iter();
    let drops: Map<String, Value> = drops
        .filter(|(_, count)| *count > 0)
        .map(|(reason, count)| (reason.to_owned(), count.into()))
        .collect();
    let listed: Vec<Value> = list(&shared.commands).await.iter().map(session).collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "shards": counters.shards(),
        "uptime_s": uptime.as_secs(),
        "at_ms": uptime.as_millis(),
        "is_draining": counters.is_draining(),
        "datagrams": {
            "client_in": get("client_in"),
            "client_in_bytes": get("client_in_bytes"),
            "client_out": get("client_out"),
            "peer_in": get("peer_in"),
            "peer_in_bytes": get("peer_in_bytes"),
            "peer_out": get("peer_out"),
            "in_flight": in_flight,
            "socket_drops": accounting.total_socket_drops(),
        },
        "drops": drops,
        "history": lock(&shared.history).show(),
        "batch_bounds": BATCH_BOUNDS,
        "batches": (0..counters.shards()).map(|shard| batches(counters, shard)).collect::<Vec<_>>(),
        "ports": ports(counters),
        "certificates": shared.certificates.show(),
        "sessions": {
            "count": get("allocations"),
            "by_transport": by_transport,
            "listed": listed,
        },
    })
}

/// Returns how many system calls of a shard have moved how many messages.
fn batches(counters: &LiveCounters, shard: usize) -> Value {
    let (mut received, mut sent) = (Vec::new(), Vec::new());
    counters.visit_data_path(
        shard,
        &mut |group, sample| match (group.name, sample.counter.name) {
            ("receive", "histogram") => received.push(sample.value),
            ("send", "histogram") => sent.push(sample.value),
            _ => {}
        },
    );
    json!({ "received": received, "sent": sent })
}

/// Returns how many ports of each relay address are taken, of UDP and TCP together.
fn ports(counters: &LiveCounters) -> Vec<Value> {
    let mut by_address: Vec<(String, u32, u32)> = Vec::new();
    for (RelayAddress { local, .. }, counts) in counters.ports() {
        let address = local.to_string();
        match by_address.iter_mut().find(|(known, ..)| *known == address) {
            Some((_, leased, free)) => {
                *leased += counts.leased;
                *free += counts.free;
            }
            None => by_address.push((address, counts.leased, counts.free)),
        }
    }
    let shown = by_address.into_iter();
    shown
        .map(
            |(address, leased, free)| json!({ "address": address, "leased": leased, "free": free }),
        )
        .collect()
}

/// Returns the first sessions of each shard that answers in time, all shards having the same share.
async fn list(commands: &Commands) -> Vec<Session> {
    let share = SESSIONS_MAX.div_ceil(commands.shards().max(1));
    let list = |shard, reply| commands.sessions(shard, 0, SessionFilter::default(), share, reply);
    let pages = ask_each(commands.shards(), ANSWER, list).await;
    let mut listed: Vec<_> = (pages.into_iter().flatten())
        .flat_map(|page| page.sessions)
        .collect();
    listed.truncate(SESSIONS_MAX);
    listed
}

fn session(session: &Session) -> Value {
    let transport = match session.client.transport {
        Transport::Udp => "UDP",
        Transport::Tcp => "TCP",
        Transport::Tls => "TLS",
        Transport::Dtls => "DTLS",
        Transport::Quic => "QUIC",
    };
    let relays = session.relays.iter();
    json!({
        "user": session.user,
        "realm": session.realm,
        "transport": transport,
        "client": session.client.address.to_string(),
        "relays": relays.map(|relay| relay.external.to_string()).collect::<Vec<_>>(),
        "age_s": session.time.age.as_secs(),
        "expires_in_s": session.time.expires_in.as_secs(),
        "from_client_bytes": session.usage.client_received.bytes,
        "from_peers_bytes": session.usage.peer_received.bytes,
    })
}
