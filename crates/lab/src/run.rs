//! One run: start the server, the reflector and the load, read the counters at both ends of the window, and work out a [`Record`].

use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::bottleneck::{Bottleneck, Evidence, judge};
use crate::certificate;
use crate::connections::{self, Cell};
use crate::cpus::CpuList;
use crate::hosts::{Addresses, Hosts};
use crate::program::{Launch, Program};
use crate::record::{Record, Status};
use crate::scenario::{Arrival, Question, Scenario, Transport};
use crate::server::{Server, Values};

/// Where servers listen and reflectors receive.
pub(crate) const LISTEN_PORT: u16 = 3478;
pub(crate) const PEER_PORT: u16 = 3480;
const USER: &str = "bench";
const PASSWORD: &str = "turnbuckle-bench";
const REALM: &str = "bench.invalid";

/// How long a program may take to start, bind its clients or drain.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// How long a server may take to end by itself.
pub(crate) const STOP_LIMIT: Duration = Duration::from_secs(5);

/// What is run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) arrival: Arrival,
    pub(crate) percent_of_capacity: Option<f64>,
    /// For `{rate}`.
    pub(crate) rate: Option<f64>,
    /// Of a scenario about connections.
    pub(crate) cell: Option<&'a Cell>,
    pub(crate) server: &'a Server,
    pub(crate) round: u32,
    pub(crate) warm_up_s: f64,
    pub(crate) window_s: f64,
}

/// Command lines of a case.
#[derive(Debug)]
pub(crate) struct Commands {
    /// Not with a direct scenario.
    pub(crate) server: Option<Vec<String>>,
    pub(crate) peer: Vec<String>,
    pub(crate) load: Vec<String>,
    pub(crate) meanwhile: Option<Vec<String>>,
}

impl Commands {
    pub(crate) fn new(
        case: &Case<'_>,
        addresses: &Addresses,
        relay_cpus: usize,
        tmp: &str,
    ) -> Result<Self> {
        if case.scenario.question.is_about_connections() {
            return connections::commands(case, addresses, relay_cpus, tmp);
        }
        let values = |turnbuckle: &str| values(case, addresses, relay_cpus, tmp, turnbuckle);
        let load = |words: &str, warm_up_s: f64, window_s: f64| -> Result<Vec<String>> {
            let values = values(&addresses.turnbuckle_on_load);
            let transport = match case.scenario.transport {
                Transport::Udp => String::new(),
                other => format!(" --transport {}", other.name()),
            };
            let server = if case.scenario.direct {
                String::new()
            } else {
                format!("--server {{listen}}:{{port}} --user {{user}}:{{password}}{transport}")
            };
            values.words(&format!(
                "{{turnbuckle}} load {words} {server} --peer {{peer}}:{PEER_PORT} --warm-up {warm_up_s} --duration {window_s} --json"
            ))
        };
        let scenario = case.scenario;
        Ok(Self {
            server: if scenario.direct {
                None
            } else {
                let command = case.server.command(scenario.transport);
                let command = command.context("no command line for this transport")?;
                Some(values(&addresses.turnbuckle_on_relay).words(command)?)
            },
            peer: values(&addresses.turnbuckle_on_peer).words(&format!(
                "{{turnbuckle}} peer {} --listen {{peer}}:{PEER_PORT} --json",
                scenario.peer
            ))?,
            load: load(&scenario.load, case.warm_up_s, case.window_s)?,
            // It begins before the attack and ends by a signal after it.
            meanwhile: scenario
                .meanwhile
                .as_deref()
                .map(|words| load(words, 0.5, 3600.0))
                .transpose()?,
        })
    }
}

/// What placeholders stand for on a host where our program is `turnbuckle`.
pub(crate) fn values(
    case: &Case<'_>,
    addresses: &Addresses,
    relay_cpus: usize,
    tmp: &str,
    turnbuckle: &str,
) -> Values {
    let workers = case.cell.and_then(|cell| cell.workers).unwrap_or(1);
    Values(vec![
        ("listen", addresses.listen.clone()),
        ("port", LISTEN_PORT.to_string()),
        ("relay", addresses.relay.clone()),
        ("peer", addresses.peer.clone()),
        ("peer_net", addresses.peer_net.clone()),
        ("user", USER.to_owned()),
        ("password", PASSWORD.to_owned()),
        ("realm", REALM.to_owned()),
        ("threads", relay_cpus.to_string()),
        ("workers", workers.to_string()),
        ("turnbuckle", turnbuckle.to_owned()),
        ("tmp", tmp.to_owned()),
        ("certificate", certificate::certificate(tmp)),
        ("key", certificate::key(tmp)),
        (
            "rate",
            case.rate
                .map_or_else(|| "0".to_owned(), |rate| format!("{rate:.0}")),
        ),
    ])
}

impl Case<'_> {
    /// A record without figures.
    pub(crate) fn empty_record(&self, status: Status, note: &str) -> Record {
        Record {
            scenario: self.scenario.name.clone(),
            arrival: self.arrival,
            percent_of_capacity: self.percent_of_capacity,
            server: self.server_name(),
            round: self.round,
            status,
            note: note.trim().replace('\n', " / "),
            started: jiff::Timestamp::now().to_string(),
            seconds: 0.0,
            rate: self.rate,
            clients: 0,
            clients_failed: 0,
            sent_datagrams: 0,
            received_datagrams: 0,
            lost: 0,
            duplicated: 0,
            reordered: 0,
            corrupted: 0,
            send_pps: 0.0,
            recv_pps: 0.0,
            peer_received: 0,
            peer_sent: 0,
            packets_out: 0,
            packets_in: 0,
            server_cpu_s: 0.0,
            relay_kernel_cpu_s: 0.0,
            load_cpu_s: 0.0,
            load_sender_busy_percent: 0.0,
            peer_cpu_s: 0.0,
            foreign_cpu_s: 0.0,
            relay_cpus: 0,
            server_rss_kib: 0,
            p50_us: None,
            p90_us: None,
            p99_us: None,
            p999_us: None,
            p9999_us: None,
            max_us: None,
            allocations_succeeded: 0,
            allocations_failed: 0,
            allocations_per_second: None,
            meanwhile_sent: None,
            meanwhile_lost: None,
            meanwhile_p99_us: None,
            relay_socket_drops: 0,
            relay_link_drops: 0,
            peer_socket_drops: 0,
            peer_link_drops: 0,
            load_socket_drops: 0,
            load_link_drops: 0,
            backlog_drops: 0,
            bottleneck: Bottleneck::Unknown,
            bottleneck_why: String::new(),
            cell: self.cell.map(Cell::to_string).unwrap_or_default(),
            workers: None,
            connections: 0,
            connections_per_second: None,
            connected: 0,
            accepted: None,
            connections_failed: 0,
            connect_errors: String::new(),
            accept_errors: String::new(),
            connect_p50_us: None,
            connect_p99_us: None,
            connect_max_us: None,
            wakeups: None,
            wrong_cpu: None,
            worker_min: None,
            worker_max: None,
            listen_overflows: 0,
            embryonic_resets: 0,
            meanwhile_cpu_s: None,
        }
    }

    /// Without a relay there is no server to name.
    fn server_name(&self) -> String {
        if self.scenario.direct {
            "no relay".to_owned()
        } else {
            self.server.name.clone()
        }
    }

    /// Runs it. What the server printed at its end comes with the record.
    ///
    /// # Errors
    ///
    /// If a program does not do its part, and after a signal.
    pub(crate) fn run(&self, hosts: &Hosts, tmp: &str) -> Result<(Record, String)> {
        if self.scenario.question.is_about_connections() {
            return connections::run(self, hosts, tmp);
        }
        certificate::provide(&hosts.relay, self.server, tmp)?;
        if self.scenario.transport != Transport::Udp {
            connections::give_ports(hosts, false)?;
        }
        let commands = Commands::new(self, &hosts.addresses, hosts.relay.cpus.count(), tmp)?;
        let server = commands
            .server
            .as_ref()
            .map(|words| start_server(hosts, self.server, words))
            .transpose()?;
        let peer = start(&hosts.peer, "reflector", &commands.peer, &hosts.peer.cpus)?;
        peer.event("ready", PATIENCE)?;
        let meanwhile = commands
            .meanwhile
            .as_ref()
            .map(|words| -> Result<Program> {
                let program = start(&hosts.load, "calls", words, &hosts.load.cpus)?;
                check_clients(&program.event("ready", PATIENCE)?)?;
                program.event("measuring", PATIENCE)?;
                Ok(program)
            })
            .transpose()?;
        let kernel_threads = hosts.relay_kernel_threads()?;
        let load = start(&hosts.load, "load", &commands.load, &hosts.load.cpus)?;
        let ready = load.event("ready", PATIENCE)?;
        check_clients(&ready)?;
        let window = Duration::from_secs_f64(self.window_s);
        let warm_up = Duration::from_secs_f64(self.warm_up_s);
        load.event("measuring", PATIENCE + warm_up)?;

        let server_pid: Vec<u32> = server.iter().map(|server| server.pid).collect();
        let mut load_pids = vec![load.pid];
        load_pids.extend(meanwhile.as_ref().map(|program| program.pid));
        let read = || -> Result<_> {
            Ok((
                hosts.relay.snapshot(&server_pid, &kernel_threads)?,
                hosts.load.snapshot(&load_pids, &[])?,
                hosts.peer.snapshot(&[peer.pid], &[])?,
                snapshot_of_peer(hosts, &peer)?,
            ))
        };
        let before = read()?;
        load.event("measured", window + PATIENCE)?;
        let after = read()?;
        let rss = match server_pid.first() {
            Some(pid) => resident_kib(hosts, *pid)?,
            None => 0,
        };
        let result = load.event("result", PATIENCE)?;
        let calls = meanwhile
            .map(|program| -> Result<Value> {
                hosts.load.signal(program.pid, "INT");
                let result = program.event("result", PATIENCE)?;
                program.stop(&hosts.load, "INT", STOP_LIMIT)?;
                Ok(result)
            })
            .transpose()?;
        load.stop(&hosts.load, "INT", STOP_LIMIT)?;
        let peer_pid = peer.pid;
        peer.stop(&hosts.peer, "INT", STOP_LIMIT)?;
        let farewell = match server {
            Some(server) => {
                server
                    .check_alive()
                    .context("the server did not survive the run")?;
                server.stop(&hosts.relay, &self.server.stop, STOP_LIMIT)?
            }
            None => String::new(),
        };

        let relay = after.0.since(&before.0);
        let load_counted = after.1.since(&before.1);
        let peer_counted = after.2.since(&before.2);
        let server_cpu_s = relay.cpu_s_of(&server_pid);
        let relay_kernel_cpu_s = relay.cpu_s_of(&kernel_threads);
        let load_cpu_s = load_counted.cpu_s_of(&load_pids);
        let peer_cpu_s = peer_counted.cpu_s(peer_pid);
        let peer_received = number(&after.3["received_datagrams"])
            .saturating_sub(number(&before.3["received_datagrams"]));
        let recv_pps = result["recv_pps"].as_f64().unwrap_or(0.0);
        let send_pps = result["send_pps"].as_f64().unwrap_or(0.0);
        // By a stream IP packets are not what the relay was asked to carry: messages are, and the load counts them.
        let is_stream = matches!(self.scenario.transport, Transport::Tcp | Transport::Tls);
        let (load_in, relay_in) = if is_stream {
            let peer_sent = number(&after.3["sent_datagrams"])
                .saturating_sub(number(&before.3["sent_datagrams"]));
            let load_sent = packets(send_pps, relay.seconds);
            (packets(recv_pps, relay.seconds), load_sent + peer_sent)
        } else {
            (load_counted.ip_packets_in, relay.ip_packets_in)
        };
        let packets_out = load_in + peer_counted.ip_packets_in;
        // Data goes through the relay both ways; allocations and junk end there.
        let all_comes_back = matches!(self.scenario.question, Question::Flood | Question::Steady);
        // A veth counts at its sender what did not fit into the ring of the far end: the relay's, if it did not get to read it.
        let ring_drops = load_counted.link_drops + peer_counted.link_drops;
        let (bottleneck, bottleneck_why) = judge(&Evidence {
            flood: matches!(
                self.scenario.question,
                Question::Flood | Question::Instruments
            ),
            sent_share: result["asked_pps"]
                .as_f64()
                .map_or(1.0, |asked| send_pps / asked),
            direct: self.scenario.direct,
            seconds: relay.seconds,
            relay_cpu_s: server_cpu_s + relay_kernel_cpu_s,
            relay_cpus: hosts.relay.cpus.count() as u64,
            // What a full ring or backlog took never reached IP.
            relay_in: relay_in + ring_drops + relay.backlog_drops,
            // The backlog is the machine's; where hosts share it, whose packets it dropped cannot be told, and the relay's are the most.
            relay_drops: ring_drops
                + relay.backlog_drops
                + relay.udp_buffer_drops.max(if all_comes_back {
                    relay_in.saturating_sub(packets_out)
                } else {
                    0
                }),
            peer_in: peer_counted.ip_packets_in,
            peer_drops: if all_comes_back || self.scenario.direct {
                peer_counted.ip_packets_in.saturating_sub(peer_received)
            } else {
                0
            }
            .max(peer_counted.udp_buffer_drops),
            load_in,
            load_drops: if all_comes_back && commands.meanwhile.is_none() {
                load_in.saturating_sub(packets(recv_pps, load_counted.seconds))
            } else {
                0
            }
            .max(load_counted.udp_buffer_drops),
        });
        let latency = &result["latency_us"];
        let allocations = &result["allocations"];
        let record = Record {
            seconds: relay.seconds,
            clients: number(&ready["clients"]),
            clients_failed: number(&result["clients_failed"]),
            sent_datagrams: number(&result["sent_datagrams"]),
            received_datagrams: number(&result["received_datagrams"]),
            lost: number(&result["lost"]),
            duplicated: number(&result["duplicated"]),
            reordered: number(&result["reordered"]),
            corrupted: number(&result["corrupted"]),
            send_pps,
            recv_pps,
            peer_received,
            peer_sent: number(&after.3["sent_datagrams"])
                .saturating_sub(number(&before.3["sent_datagrams"])),
            packets_out,
            packets_in: relay.ip_packets_in,
            server_cpu_s,
            relay_kernel_cpu_s,
            load_cpu_s,
            load_sender_busy_percent: busiest_sender(&result),
            peer_cpu_s,
            foreign_cpu_s: if hosts.shared {
                (relay.machine_busy_s - server_cpu_s - relay_kernel_cpu_s - load_cpu_s - peer_cpu_s)
                    .max(0.0)
            } else {
                (relay.machine_busy_s - server_cpu_s - relay_kernel_cpu_s).max(0.0)
            },
            relay_cpus: hosts.relay.cpus.count() as u64,
            server_rss_kib: rss,
            p50_us: latency["p50"].as_f64(),
            p90_us: latency["p90"].as_f64(),
            p99_us: latency["p99"].as_f64(),
            p999_us: latency["p99_9"].as_f64(),
            p9999_us: latency["p99_99"].as_f64(),
            max_us: latency["max"].as_f64(),
            allocations_succeeded: number(&allocations["succeeded"]),
            allocations_failed: number(&allocations["failed"]),
            allocations_per_second: allocations["per_second"].as_f64(),
            meanwhile_sent: calls.as_ref().map(|calls| number(&calls["sent_datagrams"])),
            meanwhile_lost: calls.as_ref().map(|calls| number(&calls["lost"])),
            meanwhile_p99_us: calls
                .as_ref()
                .and_then(|calls| calls["latency_us"]["p99"].as_f64()),
            relay_socket_drops: relay.udp_buffer_drops,
            relay_link_drops: relay.link_drops,
            peer_socket_drops: peer_counted.udp_buffer_drops,
            peer_link_drops: peer_counted.link_drops,
            load_socket_drops: load_counted.udp_buffer_drops,
            load_link_drops: load_counted.link_drops,
            backlog_drops: relay.backlog_drops,
            bottleneck,
            bottleneck_why,
            ..self.empty_record(Status::Measured, "")
        };
        Ok((record, farewell))
    }
}

/// A server that does not give every client what it asks for. Its figures would be those of a smaller load.
#[derive(Debug)]
pub(crate) struct Refused(String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

/// Fails with [`Refused`] unless all clients of a load have what they asked for.
///
/// # Errors
///
/// Some have not.
pub(crate) fn check_clients(ready: &Value) -> Result<()> {
    let failed = number(&ready["clients_failed"]);
    if failed > 0 {
        let all = failed + number(&ready["clients"]);
        let refusals = ready["refusals"].as_str().unwrap_or_default();
        bail!(Refused(format!(
            "it refused {failed} of {all} clients: {refusals}"
        )));
    }
    Ok(())
}

fn start(
    host: &crate::host::Host,
    title: &str,
    words: &[String],
    cpus: &CpuList,
) -> Result<Program> {
    host.start(&Launch { title, words, cpus })
}

fn start_server(hosts: &Hosts, server: &Server, words: &[String]) -> Result<Program> {
    let program = start(&hosts.relay, &server.name, words, &hosts.relay.cpus)?;
    hosts
        .relay
        .wait_for_udp_port(LISTEN_PORT, Duration::from_secs(20), || {
            program.check_alive()
        })
        .with_context(|| format!("server {}", server.name))?;
    Ok(program)
}

/// Counts of the reflector at this moment.
fn snapshot_of_peer(hosts: &Hosts, peer: &Program) -> Result<Value> {
    hosts.peer.signal(peer.pid, "USR1");
    peer.event("snapshot", Duration::from_secs(10))
}

/// Memory of a process that is its own or shared, resident.
fn resident_kib(hosts: &Hosts, pid: u32) -> Result<u64> {
    let text = hosts.relay.run(&format!(
        "grep -s '^Rss:' /proc/{pid}/smaps_rollup || grep -s '^VmRSS:' /proc/{pid}/status || true"
    ))?;
    Ok(text
        .split_whitespace()
        .nth(1)
        .and_then(|kib| kib.parse().ok())
        .unwrap_or(0))
}

/// Packets of a rate in the window of the counters.
fn packets(pps: f64, seconds: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "not negative, far below 2^53"
    )]
    let packets = (pps * seconds).max(0.0) as u64;
    packets
}

pub(crate) fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// Percent of its time that the busiest sending thread of the load had a CPU, where the result says so.
fn busiest_sender(result: &Value) -> f64 {
    let seconds = result["seconds"].as_f64().unwrap_or(0.0);
    if seconds <= 0.0 {
        return 0.0;
    }
    result["threads"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|thread| {
            thread["role"]
                .as_str()
                .is_some_and(|role| role.starts_with("send"))
        })
        .filter_map(|thread| thread["cpu_seconds"].as_f64())
        .fold(0.0, f64::max)
        / seconds
        * 100.0
}
