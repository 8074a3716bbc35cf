//! What boards and alerts ask of our metrics, answered by a Prometheus that has scraped them.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::harness::{Client, Site};
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
    let watched = Watched::start(site, &[]);
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
    while !missing.is_empty() && begin.elapsed() < TIMEOUT {
        missing.retain(|query| !ask(query).is_some_and(|answer| answer.contains("\"value\":")));
        std::thread::sleep(Duration::from_millis(50));
    }
    prometheus.kill().unwrap();
    prometheus.wait().unwrap();
    assert!(missing.is_empty(), "{missing:?}");
}
