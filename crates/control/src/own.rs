//! Our own metrics: every counter by its declaration, and what is computed from several.
//!
//! Invariant: what differs by shard is in few families, so that a scrape stays small on a machine with many shards. The other counters are sums.

use std::collections::BTreeMap;

use serde_json::Value;
use turnbuckle_server::Accounting;
use turnbuckle_server::handle::{
    Group, Kind, LiveCounters, RelayAddress, SESSION_LIFETIME_BOUNDS_S, Sample, Unit,
};

use crate::exposition::{Exposition, Type};
use crate::traffic::Traffic;

/// Counters of the data path that are shown for each shard, by group and name.
const BY_SHARD: [(&str, &str); 5] = [
    ("receive", "datagrams"),
    ("send", "datagrams"),
    ("pace", "turns"),
    ("pace", "sleeps"),
    ("pace", "asleep_ns"),
];

/// Bounds of the classes of batches, in the order of the classes.
pub(crate) const BATCH_BOUNDS: [&str; 7] = ["1", "2", "4", "8", "16", "32", "64"];

/// The numbers that both coturn's metrics and ours are made of, read once.
pub(crate) struct Numbers {
    pub(crate) accounting: Accounting,
    /// Those of the data paths by group, name and label, in the order of the declarations, each with the values of the shards.
    data_path: Vec<(&'static Group, Sample, Vec<u64>)>,
}

impl Numbers {
    pub(crate) fn of(counters: &LiveCounters) -> Self {
        let mut data_path: Vec<(&'static Group, Sample, Vec<u64>)> = Vec::new();
        for shard in 0..counters.shards() {
            let mut place = 0;
            counters.visit_data_path(shard, &mut |group, sample| {
                match data_path.get_mut(place) {
                    Some((_, _, values)) => values.push(sample.value),
                    None => data_path.push((group, sample, vec![sample.value])),
                }
                place += 1;
            });
        }
        Self {
            accounting: counters.accounting(),
            data_path,
        }
    }

    /// Returns a counter of the data path that is one number, of all shards.
    pub(crate) fn of_data_path(&self, group: &str, name: &str) -> u64 {
        let mut samples = self.data_path.iter();
        let found = samples.find(|(of, sample, _)| of.name == group && sample.counter.name == name);
        found.map_or(0, |(_, _, values)| values.iter().sum())
    }
}

/// Writes all of them. `events_lost` is the number of events that each of their consumers has lost.
pub(crate) fn write(
    to: &mut Exposition,
    counters: &LiveCounters,
    numbers: &Numbers,
    traffic: &Traffic,
    events_lost: &[(&str, u64)],
) {
    to.family(
        "turnbuckle_build_info",
        "The version that runs. The value says nothing.",
        Type::Gauge,
    )
    .sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    write_datagrams(to, &numbers.accounting);
    write_data_path(to, &numbers.data_path);
    write_resources(to, counters);
    to.family(
        "turnbuckle_draining",
        "1 while new allocations are refused because the server drains.",
        Type::Gauge,
    )
    .sample(&[], u8::from(counters.is_draining()));
    write_database(to, counters);
    let mut pending = to.family(
        "turnbuckle_restart_pending",
        "1 for each key of the configuration that was read last whose value holds after a restart.",
        Type::Gauge,
    );
    for key in counters.restart_pending() {
        pending.sample(&[("key", key)], 1);
    }
    drop(pending);
    let mut lost = to.family(
        "turnbuckle_events_lost",
        "Events about sessions that a consumer has lost, because a queue was full or because it was away.",
        Type::Counter,
    );
    for (consumer, count) in events_lost {
        lost.sample(&[("consumer", consumer)], count);
    }
    drop(lost);
    to.family(
        "turnbuckle_traffic_series",
        "Pairs of realm and user, or realms, whose traffic is told apart.",
        Type::Gauge,
    )
    .sample(&[], traffic.named());
}

/// Writes how it stands with the user database, where one is configured.
fn write_database(to: &mut Exposition, counters: &LiveCounters) {
    let Some(database) = counters.database() else {
        return;
    };
    to.family(
        "turnbuckle_userdb_up",
        "1 while the user database can be read. While it cannot, users stay as they were read last.",
        Type::Gauge,
    )
    .sample(&[], u8::from(database.is_up));
    if let Some(age) = database.age {
        to.family(
            "turnbuckle_userdb_age_seconds",
            "Time since the user database was read, or found unchanged. Missing before the first time.",
            Type::Gauge,
        )
        .sample(&[], format_args!("{}.{:03}", age.as_secs(), age.subsec_millis()));
    }
}

/// Writes whether the Redis server is there that is told of sessions.
pub(crate) fn write_statsdb(to: &mut Exposition, is_up: bool) {
    to.family(
        "turnbuckle_redis_statsdb_up",
        "1 while the server of redis-statsdb is there and its statuses are those of the sessions.",
        Type::Gauge,
    )
    .sample(&[], u8::from(is_up));
}

/// Writes when certificates expire, where there are any.
pub(crate) fn write_certificates(to: &mut Exposition, certificates: &Value) {
    let certificates = certificates.as_array().into_iter().flatten();
    let mut ends = certificates
        .filter_map(|it| Some((it["file"].as_str()?, it["not_after_unix_s"].as_i64()?)));
    let Some(first) = ends.next() else {
        return;
    };
    let mut family = to.family(
        "turnbuckle_certificate_expiry_timestamp_seconds",
        "When the first certificate of a file expires, in seconds since 1970. A file that cannot be read has none.",
        Type::Gauge,
    );
    for (file, end) in std::iter::once(first).chain(ends) {
        family.sample(&[("file", file)], end);
    }
}

/// Writes what the relay counts.
fn write_datagrams(to: &mut Exposition, accounting: &Accounting) {
    let in_flight = accounting
        .total_in()
        .saturating_sub(accounting.total_out())
        .saturating_sub(accounting.total_drops());
    to.family(
        "turnbuckle_datagrams_in_flight",
        "Datagrams and messages that have come and are neither sent nor dropped yet.",
        Type::Gauge,
    )
    .sample(&[], in_flight);
    let mut drops = to.family(
        "turnbuckle_drops",
        "Datagrams and messages that were dropped, by reason.",
        Type::Counter,
    );
    for (reason, count) in accounting.drops() {
        drops.sample(&[("reason", reason)], count);
    }
    drop(drops);
    let mut answers = to.family(
        "turnbuckle_answers",
        "Answers to requests, by method and error code; 200 is success.",
        Type::Counter,
    );
    for answer in accounting.answers() {
        let code = answer.code.to_string();
        answers.sample(&[("method", answer.method), ("code", &code)], answer.count);
    }
    drop(answers);
    let mut samples: Vec<Sample> = Vec::new();
    accounting.visit(&mut |sample| samples.push(sample));
    for family in samples.chunk_by(|a, b| std::ptr::eq(a.counter, b.counter)) {
        match family[0].counter.name {
            "session_lifetimes" => write_lifetimes(to, &samples, family),
            // The sum of these.
            "session_lifetimes_ms" => {}
            _ => write_family(to, "", family.iter().map(|sample| (*sample, sample.value))),
        }
    }
}

/// Writes how long the sessions have lasted that have ended: `family` by class, and the sum, which is among `samples`.
fn write_lifetimes(to: &mut Exposition, samples: &[Sample], family: &[Sample]) {
    let bounds = SESSION_LIFETIME_BOUNDS_S.map(|bound| bound.to_string());
    let counts = bounds.iter().map(String::as_str);
    let counts: Vec<_> = counts
        .zip(family.iter().map(|sample| sample.value))
        .collect();
    let longer = family[counts.len()..].iter().map(|sample| sample.value);
    let mut samples = samples.iter();
    let sum = samples.find(|sample| sample.counter.name == "session_lifetimes_ms");
    let sum_ms = sum.map_or(0, |sample| sample.value);
    to.family(
        "turnbuckle_session_lifetime_seconds",
        family[0].counter.meaning,
        Type::Histogram,
    )
    .histogram(
        &[],
        &counts,
        longer.sum(),
        format_args!("{}.{:03}", sum_ms / 1000, sum_ms % 1000),
    );
}

/// Writes what the data path counts.
fn write_data_path(to: &mut Exposition, samples: &[(&'static Group, Sample, Vec<u64>)]) {
    let same = |a: &(_, Sample, _), b: &(_, Sample, _)| std::ptr::eq(a.1.counter, b.1.counter);
    for family in samples.chunk_by(same) {
        let (group, first, values) = &family[0];
        let counter = first.counter;
        if counter.name == "histogram" {
            let messages = samples
                .iter()
                .find(|(of, sample, _)| of.name == group.name && sample.counter.name == "messages");
            let name = format!("turnbuckle_{}_batch_messages", group.name);
            let mut histogram = to.family(&name, counter.meaning, Type::Histogram);
            for shard in 0..values.len() {
                let counts = family.iter().map(|(_, _, values)| values[shard]);
                let counts: Vec<_> = BATCH_BOUNDS.into_iter().zip(counts).collect();
                let sum = messages.map_or(0, |(_, _, values)| values[shard]);
                histogram.histogram(&[("shard", &shard.to_string())], &counts, 0, sum);
            }
        } else if BY_SHARD.contains(&(group.name, counter.name)) {
            let (name, divisor) = name_of(&format!("{}_", group.name), counter.name, counter.unit);
            let mut series = to.family(&name, counter.meaning, type_of(counter.kind));
            for (shard, value) in values.iter().enumerate() {
                let shard = shard.to_string();
                sample(&mut series, &[("shard", &shard)], *value, divisor);
            }
        } else {
            let prefix = format!("{}_", group.name);
            let summed = family
                .iter()
                .map(|(_, sample, values)| (*sample, values.iter().sum()));
            write_family(to, &prefix, summed);
        }
    }
}

/// Writes what there is to be had.
fn write_resources(to: &mut Exposition, counters: &LiveCounters) {
    let mut ports: BTreeMap<(String, &str), u32> = BTreeMap::new();
    for (RelayAddress { local, .. }, counts) in counters.ports() {
        *ports.entry((local.to_string(), "free")).or_default() += counts.free;
        *ports.entry((local.to_string(), "leased")).or_default() += counts.leased;
    }
    let mut family = to.family(
        "turnbuckle_relay_ports",
        "Ports of the relay addresses, of UDP and TCP together, by state.",
        Type::Gauge,
    );
    for ((address, state), count) in &ports {
        family.sample(&[("address", address), ("state", state)], count);
    }
    drop(family);
    to.family(
        "turnbuckle_reserved_ports",
        "Ports that are reserved and wait for their token.",
        Type::Gauge,
    )
    .sample(&[], counters.reserved_ports());
    to.family(
        "turnbuckle_reserved_bandwidth_bytes_per_second",
        "Payload per second and direction that is reserved for allocations that have a rate.",
        Type::Gauge,
    )
    .sample(&[], counters.bandwidth_reserved());
}

/// Writes one counter with all its labels.
fn write_family(to: &mut Exposition, prefix: &str, samples: impl Iterator<Item = (Sample, u64)>) {
    let mut samples = samples.peekable();
    let Some((first, _)) = samples.peek() else {
        return;
    };
    let counter = first.counter;
    let (name, divisor) = name_of(prefix, counter.name, counter.unit);
    let mut family = to.family(&name, counter.meaning, type_of(counter.kind));
    let what = match counter.name {
        "sessions_begun" | "sessions_over" => "transport",
        "socket_drops" => "socket",
        _ => "reason",
    };
    for (of, value) in samples {
        match of.label {
            Some(label) => sample(&mut family, &[(what, label.name)], value, divisor),
            None => sample(&mut family, &[], value, divisor),
        }
    }
}

/// Returns the name of a family and what its values are divided by: metrics have seconds.
fn name_of(prefix: &str, name: &str, unit: Unit) -> (String, Option<f64>) {
    match (unit, name.strip_suffix("_ns")) {
        (Unit::Nanoseconds, Some(name)) => {
            (format!("turnbuckle_{prefix}{name}_seconds"), Some(1e9))
        }
        _ => (format!("turnbuckle_{prefix}{name}"), None),
    }
}

fn type_of(kind: Kind) -> Type {
    match kind {
        Kind::Total => Type::Counter,
        Kind::Level => Type::Gauge,
    }
}

fn sample(
    family: &mut crate::exposition::Family<'_>,
    labels: &[(&str, &str)],
    value: u64,
    divisor: Option<f64>,
) {
    match divisor {
        #[expect(
            clippy::cast_precision_loss,
            reason = "Prometheus has no other numbers"
        )]
        Some(divisor) => family.sample(labels, value as f64 / divisor),
        None => family.sample(labels, value),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use turnbuckle_server::handle::Description;

    use super::*;
    use crate::exposition::Format;

    #[test]
    fn a_certificate_has_its_end_and_a_file_that_cannot_be_read_has_none() {
        let of = |certificates: &Value| {
            let mut to = Exposition::new(Format::OpenMetrics);
            write_certificates(&mut to, certificates);
            to.finish()
        };
        let text = of(&json!([
            {"file": "gone.pem", "error": "no such file"},
            {"file": "relay.pem", "not_after_unix_s": 1_800_000_000},
            {"file": "old.pem", "not_after_unix_s": -2},
        ]));
        let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            lines,
            [
                r#"turnbuckle_certificate_expiry_timestamp_seconds{file="relay.pem"} 1800000000"#,
                r#"turnbuckle_certificate_expiry_timestamp_seconds{file="old.pem"} -2"#,
            ]
        );
        let unread = json!([{"file": "gone.pem", "error": "no such file"}]);
        assert_eq!(of(&unread), "# EOF\n", "no family without a sample");
    }

    #[test]
    fn each_session_that_has_ended_is_within_every_bound_that_it_has_not_outlasted() {
        const fn counter(name: &'static str, meaning: &'static str, unit: Unit) -> Description {
            Description {
                name,
                meaning,
                unit,
                kind: Kind::Total,
                labels: &[],
            }
        }
        static LIFETIMES: Description = counter("session_lifetimes", "Ended.", Unit::Allocations);
        static SUM: Description = counter("session_lifetimes_ms", "In all.", Unit::Milliseconds);
        let sample = |counter, value| Sample {
            counter,
            label: None,
            value,
        };
        let mut samples: Vec<_> = (1..=10).map(|count| sample(&LIFETIMES, count)).collect();
        samples.push(sample(&SUM, 1_234_005));
        let mut to = Exposition::new(Format::OpenMetrics);
        write_lifetimes(&mut to, &samples, &samples[..10]);
        let text = to.finish();
        assert!(text.starts_with(
            "# HELP turnbuckle_session_lifetime_seconds Ended.\n\
             # TYPE turnbuckle_session_lifetime_seconds histogram\n\
             turnbuckle_session_lifetime_seconds_bucket{le=\"1\"} 1\n\
             turnbuckle_session_lifetime_seconds_bucket{le=\"10\"} 3\n"
        ));
        assert!(text.ends_with(
            "turnbuckle_session_lifetime_seconds_bucket{le=\"86400\"} 45\n\
             turnbuckle_session_lifetime_seconds_bucket{le=\"+Inf\"} 55\n\
             turnbuckle_session_lifetime_seconds_sum 1234.005\n\
             turnbuckle_session_lifetime_seconds_count 55\n# EOF\n"
        ));
    }
}
