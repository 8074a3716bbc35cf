//! coturn's metrics, with coturn's names, texts, types and labels, in coturn's order (4.17).
//!
//! Programs read them line by line, so everything about them counts, also that a series with a label is there only after its first use. What a
//! number means here where coturn counts something that this relay does not have is said in `docs/operating/metrics.md`.

use turnbuckle_server::handle::{LiveCounters, Usage};

use crate::exposition::{Exposition, Type};
use crate::own::Numbers;
use crate::traffic::Traffic;

/// Reads one number of a session's usage.
type Read = fn(&Usage) -> u64;

const COUNTER: Type = Type::CoturnCounter;

/// A metric for the usage of sessions: the end of its name, the end of its text, and the number.
const USAGE: [(&str, &str, Read); 8] = [
    ("rcvp", "received packets", |usage| {
        usage.client_received.datagrams
    }),
    ("rcvb", "received bytes", |usage| {
        usage.client_received.bytes
    }),
    ("sentp", "sent packets", |usage| usage.client_sent.datagrams),
    ("sentb", "sent bytes", |usage| usage.client_sent.bytes),
    ("peer_rcvp", "peer received packets", |usage| {
        usage.peer_received.datagrams
    }),
    ("peer_rcvb", "peer received bytes", |usage| {
        usage.peer_received.bytes
    }),
    ("peer_sentp", "peer sent packets", |usage| {
        usage.peer_sent.datagrams
    }),
    ("peer_sentb", "peer sent bytes", |usage| {
        usage.peer_sent.bytes
    }),
];

/// Words of coturn for how a client is reached, and ours.
const TRANSPORTS: [(&str, &str); 4] = [
    ("UDP", "udp"),
    ("TCP", "tcp"),
    ("TLS/TCP", "tls"),
    ("DTLS", "dtls"),
];

/// Writes all of them.
pub(crate) fn write(
    to: &mut Exposition,
    counters: &LiveCounters,
    numbers: &Numbers,
    traffic: &Traffic,
) {
    let accounting = &numbers.accounting;
    let value = |name: &str| accounting.get(name, None);
    let answers = accounting.answers();
    let binding = |is_error: bool| -> u64 {
        let of_binding = answers.iter().filter(|answer| answer.method == "binding");
        let kind = of_binding.filter(|answer| (answer.code >= 300) == is_error);
        kind.map(|answer| answer.count).sum()
    };
    let mut single = |name: &str, help: &str, kind: Type, value: u64| {
        to.family(name, help, kind).sample(&[], value);
    };
    single(
        "stun_binding_request",
        "Incoming STUN Binding requests",
        COUNTER,
        value("binding_requests"),
    );
    single(
        "stun_binding_response",
        "Outgoing STUN Binding responses",
        COUNTER,
        binding(false),
    );
    single(
        "stun_binding_error",
        "STUN Binding errors",
        COUNTER,
        binding(true),
    );
    let challenged = value("challenges_by_udp");
    let suppressed = accounting.dropped("unverified_budget");
    single(
        "turn_unauthenticated_401_requests",
        "UDP requests requiring a 401 Unauthorized response",
        COUNTER,
        challenged + suppressed,
    );
    single(
        "turn_unauthenticated_401_responses",
        "UDP 401 Unauthorized responses emitted",
        COUNTER,
        challenged,
    );
    single(
        "turn_unauthenticated_401_dropped_responses",
        "UDP 401 responses suppressed by DDoS mitigation",
        COUNTER,
        suppressed,
    );
    let (occupied, buckets) = counters.unverified_buckets();
    // A bucket does not know whose it is (V-21), so nobody can tell who shares one.
    single(
        "turn_ratelimit_hash_collisions",
        "401 rate-limit hash-bucket collisions",
        COUNTER,
        0,
    );
    single(
        "turn_ratelimit_occupied_buckets",
        "401 rate-limit buckets currently tracking a live window",
        Type::Gauge,
        occupied,
    );
    single(
        "turn_ratelimit_total_buckets",
        "401 rate-limit hash table capacity in buckets",
        Type::Gauge,
        buckets,
    );
    for (end, what, read) in USAGE {
        let name = format!("turn_traffic_{end}");
        let help = format!("Represents finished sessions {what}");
        let mut family = to.family(&name, &help, COUNTER);
        for (owner, usage) in traffic.sums() {
            let realm = ("realm", &*owner.realm);
            match &owner.user {
                Some(user) => family.sample(&[realm, ("user", user)], read(usage)),
                None => family.sample(&[realm], read(usage)),
            }
        }
    }
    for (end, what, read) in USAGE {
        let name = format!("turn_total_traffic_{end}");
        let help = format!("Represents total finished sessions {what}");
        to.family(&name, &help, COUNTER)
            .sample(&[], read(&traffic.totals));
    }
    let mut family = to.family(
        "turn_total_allocations",
        "Represents current allocations number",
        Type::Gauge,
    );
    for (word, transport) in TRANSPORTS {
        // An end is counted after its beginning, so it is read first.
        let over = accounting.get("sessions_over", Some(transport));
        let begun = accounting.get("sessions_begun", Some(transport));
        if begun > 0 {
            family.sample(&[("type", word)], begun.saturating_sub(over));
        }
    }
    drop(family);
    let sum = |group: &str, name: &str| numbers.of_data_path(group, name);
    let mut single = |name: &str, help: &str, value: u64| {
        to.family(name, help, COUNTER).sample(&[], value);
    };
    single(
        "turn_packet_processed",
        "Incoming packet processed",
        sum("receive", "datagrams"),
    );
    single(
        "turn_packet_dropped",
        "Incoming packet dropped",
        accounting.total_drops(),
    );
    single(
        "turn_udp_recvmmsg_calls",
        "recvmmsg() syscalls returning >=1 datagram",
        sum("receive", "calls"),
    );
    single(
        "turn_udp_recvmmsg_packets",
        "Datagrams received via recvmmsg()",
        sum("receive", "datagrams"),
    );
    single(
        "turn_udp_sendmmsg_flushes",
        "Egress batch flushes (sendmmsg/UDP-GSO)",
        sum("send", "flushes"),
    );
    single(
        "turn_udp_sendmmsg_datagrams",
        "Datagrams sent via egress batches",
        sum("send", "datagrams"),
    );
    single(
        "turn_udp_sendmmsg_gso_datagrams",
        "Datagrams coalesced into a single UDP-GSO sendmsg",
        sum("send", "gso_datagrams"),
    );
}
