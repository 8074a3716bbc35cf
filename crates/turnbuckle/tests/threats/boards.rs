//! What boards and alerts ask of our metrics, answered by a Prometheus that has scraped them.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use turnbuckle_client::blocking::{Session, Target};
use turnbuckle_client::{Credentials, UDP};
use turnbuckle_wire::Method;

use crate::harness::{Authority, Client, Key, Site, USER};
use crate::metrics::Watched;
use crate::not_run::not_run;

const TIMEOUT: Duration = Duration::from_secs(30);

/// What others ask of coturn: no board of Grafana's is published for it (coturn's issue 848 asks for one), so these are of alerts, reports and scripts, with
/// the ranges that they have. Where they have `or vector(0)` it is left out, or there would be an answer without a series.
const PUBLISHED: [&str; 12] = [
    // Sessions by transport, and together: scripts that drain coturn add up the lines of this metric (wire-server's hook before a stop).
    "turn_total_allocations{type=\"UDP\"}",
    "sum(turn_total_allocations)==1",
    // How much a system call moves, and how much of it as one buffer: the description of coturn's pull request 1928, which has brought the metrics.
    "rate(turn_udp_recvmmsg_packets[1m]) / rate(turn_udp_recvmmsg_calls[1m])",
    "rate(turn_udp_sendmmsg_datagrams[1m]) / rate(turn_udp_sendmmsg_flushes[1m])",
    "rate(turn_udp_sendmmsg_gso_datagrams[1m]) / rate(turn_udp_sendmmsg_datagrams[1m])",
    // An alert on what relaying costs (the runbook of a chat server).
    "rate(turn_traffic_sentb[1h])",
    // Bytes in and out in thirty days (the report of a platform of relays).
    "sum(increase(turn_total_traffic_rcvb[30d])) + sum(increase(turn_total_traffic_peer_rcvb[30d]))",
    "sum(increase(turn_total_traffic_sentb[30d])) + sum(increase(turn_total_traffic_peer_sentb[30d]))",
    // Refused requests, and sources whose budget is used up (coturn's docs/Prometheus.md).
    "turn_ratelimit_occupied_buckets / turn_ratelimit_total_buckets",
    "rate(turn_ratelimit_hash_collisions[1m])",
    "rate(turn_unauthenticated_401_dropped_responses[1m])",
    "up==1",
];

/// Returns every expression of our own board, with what Grafana puts into it.
fn expressions_of_the_board() -> Vec<String> {
    fn collect(value: &serde_json::Value, into: &mut Vec<String>) {
        match value {
            serde_json::Value::Object(members) => {
                if let Some(expression) = members.get("expr") {
                    into.push(expression.as_str().unwrap().to_owned());
                }
                members.values().for_each(|member| collect(member, into));
            }
            serde_json::Value::Array(items) => items.iter().for_each(|item| collect(item, into)),
            _ => {}
        }
    }
    let board = include_str!("../../../../deploy/grafana/turnbuckle.json");
    let mut expressions = Vec::new();
    collect(&serde_json::from_str(board).unwrap(), &mut expressions);
    let expressions = expressions.into_iter();
    let filled = expressions.map(|expression| {
        expression
            .replace("$__rate_interval", "1m")
            .replace("$instance", ".*")
    });
    filled.collect()
}

/// Writes every byte of a query so that a URL may hold it.
fn escaped(query: &str) -> String {
    query.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// A Prometheus scrapes for a few seconds and is asked what it knows.
#[test]
fn prometheus_scrapes_it_and_answers_what_published_boards_and_our_own_ask() {
    let site = Site::new();
    let authority = Authority::new();
    let [certificate, key] = authority.options(Key::P256);
    let watched = Watched::start(site, &[&certificate, &key]);
    let mut client = Client::new(site.ip(2), &watched.server);
    client.allocate();
    // Its traffic is counted for its realm when it has ended.
    let mut other = Client::new(site.ip(3), &watched.server);
    other.allocate();
    other.refresh(0).expect(200);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("prometheus.yml");
    let configuration = format!(
        "global: {{scrape_interval: 500ms}}\n\
         scrape_configs: [{{job_name: turn, static_configs: [{{targets: ['{}']}}]}}]\n",
        watched.metrics
    );
    std::fs::write(&file, configuration).unwrap();
    let listens = SocketAddr::new(site.ip(5), 9090);
    let started = Command::new("prometheus")
        .arg(format!("--config.file={}", file.display()))
        .arg(format!(
            "--storage.tsdb.path={}",
            directory.path().display()
        ))
        .arg(format!("--web.listen-address={listens}"))
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut prometheus) = started else {
        return not_run("prometheus is not there");
    };
    let ask = |query: &str| {
        let mut stream = TcpStream::connect(listens).ok()?;
        let query = escaped(query);
        let request = format!("GET /api/v1/query?query={query} HTTP/1.0\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    };
    let begin = Instant::now();
    let board = expressions_of_the_board();
    assert!(board.len() > 20, "{board:?}");
    let published = PUBLISHED.map(str::to_owned).into_iter();
    let mut missing: Vec<String> = published.chain(board).collect();
    let mut other = Client::new(site.ip(4), &watched.server);
    while !missing.is_empty() && begin.elapsed() < TIMEOUT {
        // What is shown only while it happens: an error, a challenge and a drop.
        client.request(Method::ALLOCATE, |writer| {
            writer.requested_transport(17);
        });
        client.send_channel_data(0x4001, b"nobody's");
        other.fetch_challenge();
        missing.retain(|query| !ask(query).is_some_and(|answer| answer.contains("\"value\":")));
        std::thread::sleep(Duration::from_millis(50));
    }
    prometheus.kill().unwrap();
    prometheus.wait().unwrap();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Returns the metrics that the rules for alerts name.
fn metrics_of_alerts() -> std::collections::BTreeSet<&'static str> {
    let rules = include_str!("../../../../deploy/prometheus/alerts.yml");
    let words = rules.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words
        .filter(|word| word.starts_with("turnbuckle_"))
        .collect()
}

/// Runs promtool. Returns what it printed, and fails if it did; nothing if it is not there.
fn promtool(arguments: &[&str], input: Stdio) -> Option<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/prometheus");
    let run = Command::new("promtool")
        .args(arguments)
        .current_dir(folder)
        .stdin(input)
        .output();
    let Ok(output) = run else {
        not_run("promtool is not there");
        return None;
    };
    let printed = [output.stdout, output.stderr].concat();
    Some(String::from_utf8(printed).unwrap())
}

#[test]
fn alerts_are_raised_by_their_cases_and_by_nothing_else() {
    for (arguments, good) in [
        (["check", "rules", "alerts.yml"], "rules found"),
        (["test", "rules", "alerts_test.yml"], "SUCCESS"),
    ] {
        let Some(printed) = promtool(&arguments, Stdio::null()) else {
            return;
        };
        assert!(
            printed.contains(good) && !printed.contains("FAILED"),
            "{printed}"
        );
    }
    let rules = include_str!("../../../../deploy/prometheus/alerts.yml");
    let cases = include_str!("../../../../deploy/prometheus/alerts_test.yml");
    let names = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    let names: Vec<&str> = names.collect();
    let raised = format!("exp_samples: [{{value: {}}}]", names.len());
    assert_eq!(cases.matches(&raised).count(), 2, "every alert is raised");
    for name in names {
        assert!(
            cases.contains(&format!("alertname: {name}}}")),
            "{name} is silent"
        );
    }
}

#[test]
fn alerts_name_metrics_that_are_served_and_that_promtool_likes() {
    let site = Site::new();
    let authority = Authority::new();
    let [certificate, key] = authority.options(Key::P256);
    let database = tempfile::tempdir().unwrap();
    let database = format!("--userdb={}", database.path().join("turndb").display());
    let watched = Watched::start(site, &[&certificate, &key, &database]);
    let mut client = Client::new(site.ip(2), &watched.server);
    client.allocate();
    let guessed = Credentials::user(USER, "a guess");
    let target = Target::new(watched.server.address(), 5349, guessed).unwrap();
    let mut guessing = Session::udp(&Arc::new(target)).unwrap();
    assert_eq!(guessing.allocate(UDP, |_| {}).err(), Some(401));
    let metrics = watched.scrape();
    for name in metrics_of_alerts() {
        // Only while a key waits for a restart.
        let is_now_and_then = name == "turnbuckle_restart_pending";
        let is_served =
            metrics.contains(&format!("\n{name}{{")) || metrics.contains(&format!("\n{name} "));
        assert!(is_served || is_now_and_then, "{name}: {metrics}");
    }
    assert!(
        metrics.contains("\nturnbuckle_challenges_total 2\n"),
        "{metrics}"
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &metrics).unwrap();
    let input = std::fs::File::open(file.path()).unwrap();
    let Some(printed) = promtool(&["check", "metrics"], input.into()) else {
        return;
    };
    let ours = printed
        .lines()
        .filter(|line| line.starts_with("turnbuckle_"));
    assert_eq!(ours.collect::<Vec<_>>(), [""; 0]);
}
