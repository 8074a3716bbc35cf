//! One run: start the server, the reflector and the load, read the counters at both ends of the window, and work out a [`Record`].

use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::bottleneck::{Evidence, judge};
use crate::case::{Case, LISTEN_PORT, STOP_LIMIT, TIMEOUT, number};
use crate::certificate;
use crate::commands;
use crate::connections;
use crate::cpus::CpuList;
use crate::host::Host;
use crate::hosts::Hosts;
use crate::program::{Launch, Program, Weight};
use crate::record::{self, Record, Status};
use crate::scenario::{Question, Transport};
use crate::server::Server;

impl Case<'_> {
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
        let commands = commands::commands(self, &hosts.addresses, hosts.relay.cpus.count(), tmp)?;
        let server = commands
            .server
            .as_ref()
            .map(|words| start_server(hosts, self.server, words))
            .transpose()?;
        let peer = start(&hosts.peer, "reflector", &commands.peer, &hosts.peer.cpus)?;
        peer.event("ready", TIMEOUT)?;
        let meanwhile_peer = commands
            .meanwhile_peer
            .as_ref()
            .map(|words| self.start_beside(&hosts.peer, "reflector of what runs beside", words))
            .transpose()?;
        let quiet = match self.scenario.question {
            Question::Beside => Some(self.alone(hosts, &commands.load)?),
            _ => None,
        };
        let meanwhile = commands
            .meanwhile
            .as_ref()
            .map(|words| -> Result<Program> {
                let program = self.start_beside(&hosts.load, "what runs beside", words)?;
                program.event("measuring", TIMEOUT)?;
                Ok(program)
            })
            .transpose()?;
        let kernel_threads = hosts.relay_kernel_threads()?;
        let load = start(&hosts.load, "load", &commands.load, &hosts.load.cpus)?;
        let ready = load
            .event("ready", TIMEOUT)
            .with_context(|| self.advice())?;
        check_clients(&ready).map_err(|error| match has_code(&ready) {
            true => error,
            false => error.context(self.advice()),
        })?;
        let window = Duration::from_secs_f64(self.window_s);
        let warm_up = Duration::from_secs_f64(self.warm_up_s);
        load.event("measuring", TIMEOUT + warm_up)?;

        let server_pid: Vec<u32> = server.iter().map(|server| server.pid).collect();
        let mut load_pids = vec![load.pid];
        load_pids.extend(meanwhile.as_ref().map(|program| program.pid));
        let mut peer_pids = vec![peer.pid];
        peer_pids.extend(meanwhile_peer.as_ref().map(|program| program.pid));
        let read = || -> Result<_> {
            Ok((
                hosts.relay.snapshot(&server_pid, &kernel_threads)?,
                hosts.load.snapshot(&load_pids, &[])?,
                hosts.peer.snapshot(&peer_pids, &[])?,
                snapshot_of_peer(hosts, &peer)?,
            ))
        };
        let before = read()?;
        load.event("measured", window + TIMEOUT)?;
        let after = read()?;
        let rss = match server_pid.first() {
            Some(pid) => resident_kib(hosts, *pid)?,
            None => 0,
        };
        let result = load.event("result", TIMEOUT)?;
        let calls = meanwhile
            .map(|program| -> Result<Value> {
                hosts.load.signal(program.pid, "INT");
                let result = program.event("result", TIMEOUT)?;
                program.stop(&hosts.load, "INT", STOP_LIMIT)?;
                Ok(result)
            })
            .transpose()?;
        load.stop(&hosts.load, "INT", STOP_LIMIT)?;
        for reflector in [Some(peer), meanwhile_peer].into_iter().flatten() {
            reflector.stop(&hosts.peer, "INT", STOP_LIMIT)?;
        }
        let last_lines = match server {
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
        let peer_cpu_s = peer_counted.cpu_s_of(&peer_pids);
        let reflected = |key: &str| number(&after.3[key]).saturating_sub(number(&before.3[key]));
        let peer_received = reflected("received_datagrams");
        let peer_sent = reflected("sent_datagrams");
        let recv_pps = result["recv_pps"].as_f64().unwrap_or(0.0);
        let send_pps = result["send_pps"].as_f64().unwrap_or(0.0);
        // By a stream IP packets are not what the relay was asked to carry: messages are, and the load counts them.
        // A packet of QUIC has several of them, or none.
        let is_stream = matches!(
            self.scenario.transport,
            Transport::Tcp | Transport::Tls | Transport::Masque
        );
        let (load_in, relay_in) = if is_stream {
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
        let ((peer_in, peer_drops), load_drops) = if commands.meanwhile_peer.is_some() {
            // What fills the sockets of the others is not what limits this load.
            let dropped = reflected("socket_drops");
            let reflector = (peer_received + dropped, dropped);
            (reflector, number(&result["socket_drops"]))
        } else {
            let reflector = if all_comes_back || self.scenario.direct {
                peer_counted.ip_packets_in.saturating_sub(peer_received)
            } else {
                0
            };
            let load = if all_comes_back && commands.meanwhile.is_none() {
                load_in.saturating_sub(packets(recv_pps, load_counted.seconds))
            } else {
                0
            };
            (
                (
                    peer_counted.ip_packets_in,
                    reflector.max(peer_counted.udp_buffer_drops),
                ),
                load.max(load_counted.udp_buffer_drops),
            )
        };
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
            peer_in,
            peer_drops,
            load_in,
            load_drops,
        });
        let latency = &result["latency_us"];
        let allocations = &result["allocations"];
        let base = self.empty_record(Status::Measured, "");
        let record = Record {
            case: record::Which {
                seconds: relay.seconds,
                ..base.case
            },
            traffic: record::Traffic {
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
                peer_sent,
            },
            cost: record::Cost {
                packets_out,
                packets_in: relay.ip_packets_in,
                server_cpu_s,
                relay_kernel_cpu_s,
                load_cpu_s,
                load_sender_busy_percent: busiest_sender(&result),
                peer_cpu_s,
                foreign_cpu_s: if hosts.shared {
                    (relay.machine_busy_s
                        - server_cpu_s
                        - relay_kernel_cpu_s
                        - load_cpu_s
                        - peer_cpu_s)
                        .max(0.0)
                } else {
                    (relay.machine_busy_s - server_cpu_s - relay_kernel_cpu_s).max(0.0)
                },
                relay_cpus: hosts.relay.cpus.count() as u64,
                server_rss_kib: rss,
            },
            delay: record::Delay {
                p50_us: latency["p50"].as_f64(),
                p90_us: latency["p90"].as_f64(),
                p99_us: latency["p99"].as_f64(),
                p999_us: latency["p99_9"].as_f64(),
                p9999_us: latency["p99_99"].as_f64(),
                max_us: latency["max"].as_f64(),
            },
            allocations: record::Allocations {
                allocations_succeeded: number(&allocations["succeeded"]),
                allocations_failed: number(&allocations["failed"]),
                allocations_per_second: allocations["per_second"].as_f64(),
            },
            meanwhile: record::Meanwhile {
                meanwhile_sent: calls.as_ref().map(|calls| number(&calls["sent_datagrams"])),
                meanwhile_lost: calls.as_ref().map(|calls| number(&calls["lost"])),
                meanwhile_p99_us: quiet
                    .as_ref()
                    .or(calls.as_ref())
                    .and_then(|calls| calls["latency_us"]["p99"].as_f64()),
            },
            drops: record::Drops {
                relay_socket_drops: relay.udp_buffer_drops,
                relay_link_drops: relay.link_drops,
                peer_socket_drops: peer_counted.udp_buffer_drops,
                peer_link_drops: peer_counted.link_drops,
                load_socket_drops: load_counted.udp_buffer_drops,
                load_link_drops: load_counted.link_drops,
                backlog_drops: relay.backlog_drops,
            },
            limit: record::Limit {
                bottleneck,
                bottleneck_why,
            },
            ..base
        };
        Ok((record, last_lines))
    }

    /// Returns what to look at when the load's clients are not served.
    fn advice(&self) -> String {
        let server = &self.server.name;
        let transport = self.server.transport(self.scenario.transport);
        let key = match transport {
            Transport::Udp | Transport::Masque => "command",
            Transport::Tcp | Transport::Tls | Transport::Dtls => "all_transports",
        };
        let transport = transport.name();
        format!(
            "{server} does not serve clients by {transport}; its `{key}` has to open that transport (`--servers FILE` replaces it; coturn listens for DTLS \
             only with `--dtls` since 4.17)"
        )
    }

    /// Starts a program that runs the whole time beside the load, and waits until it is ready.
    ///
    /// Where the load is measured for what it notices of this program, it may not be held up by it for want of a CPU.
    fn start_beside(&self, host: &Host, title: &str, words: &[String]) -> Result<Program> {
        let program = host.start(&Launch {
            title,
            words,
            cpus: &host.cpus,
            weight: match self.scenario.question {
                Question::Beside => Weight::Disturbance,
                _ => Weight::Measured,
            },
        })?;
        check_clients(&program.event("ready", TIMEOUT)?)?;
        Ok(program)
    }

    /// Runs the load with the server to itself, and returns its result.
    fn alone(&self, hosts: &Hosts, words: &[String]) -> Result<Value> {
        let load = start(&hosts.load, "load alone", words, &hosts.load.cpus)?;
        check_clients(&load.event("ready", TIMEOUT)?)?;
        let time = Duration::from_secs_f64(self.warm_up_s + self.window_s);
        let result = load.event("result", time + TIMEOUT)?;
        load.stop(&hosts.load, "INT", STOP_LIMIT)?;
        Ok(result)
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

/// Returns whether the server answered the first refused client with an error code (RFC 8489 §14.8): it is reached, and refuses.
fn has_code(ready: &Value) -> bool {
    let refusals = ready["refusals"].as_str().unwrap_or_default();
    refusals.starts_with(|first: char| first.is_ascii_digit())
}

fn start(host: &Host, title: &str, words: &[String], cpus: &CpuList) -> Result<Program> {
    host.start(&Launch {
        title,
        words,
        cpus,
        weight: Weight::Measured,
    })
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

/// Returns the counts of the reflector at this moment.
fn snapshot_of_peer(hosts: &Hosts, peer: &Program) -> Result<Value> {
    hosts.peer.signal(peer.pid, "USR1");
    peer.event("snapshot", Duration::from_secs(10))
}

/// Returns the memory of a process that is its own or shared, resident.
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

/// Returns how many packets a rate makes in the window of the counters.
fn packets(pps: f64, seconds: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "not negative, far below 2^53"
    )]
    let packets = (pps * seconds).max(0.0) as u64;
    packets
}

/// Returns the percent of its time that the busiest sending thread of the load had a CPU, where the result says so.
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
