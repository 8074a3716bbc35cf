//! Runs of scenarios about connections.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::cell::{Cell, Place};
use super::commands::{FURTHER_ADDRESSES, commands};
use crate::bottleneck::Bottleneck;
use crate::case::{Case, Commands, LISTEN_PORT, STOP_LIMIT, TIMEOUT, number};
use crate::certificate;
use crate::counters::{Counted, Snapshot};
use crate::cpus::CpuList;
use crate::host::Host;
use crate::hosts::Hosts;
use crate::program::{Launch, Program, Weight};
use crate::record::{self, Record, Status};
use crate::scenario::Question;

/// Share of its CPUs from which a server counts as what limits a run.
const BUSY_SHARE: f64 = 0.90;
/// Descriptors that are left to a server that is to be short of them.
const DESCRIPTORS_LEFT: usize = 4;

/// Runs a case. What the server printed at its end comes with the record.
///
/// # Errors
///
/// If a program does not do its part, and after a signal.
pub(crate) fn run(case: &Case<'_>, hosts: &Hosts, tmp: &str) -> Result<(Record, String)> {
    let cell = case.cell.context("a case about connections has a cell")?;
    give_ports(hosts, case.scenario.connections.kernel_ports)?;
    give_addresses(hosts)?;
    certificate::provide(&hosts.relay, case.server, tmp)?;
    let all = CpuList::all(hosts.relay.cpu_count()?);
    let bench = Bench {
        case,
        cell,
        hosts,
        commands: commands(case, &hosts.addresses, hosts.relay.cpus.count(), tmp)?,
        server_cpus: match case.scenario.connections.all_cpus {
            true => &all,
            false => &hosts.relay.cpus,
        },
        client_cpus: match case.scenario.connections.all_cpus {
            true => &all,
            false => &hosts.load.cpus,
        },
    };
    match case.scenario.question {
        Question::Storm => bench.storm(),
        Question::Shortage => bench.shortage(),
        _ => bench.rate(),
    }
}

/// Gives ports to the namespaces: as many as there can be and none of them in TIME-WAIT, or as Linux has them. Real machines are left as they are, and the
/// client warns.
pub(crate) fn give_ports(hosts: &Hosts, as_the_kernel: bool) -> Result<()> {
    if !hosts.addresses.are_namespaces {
        return Ok(());
    }
    let (range, time_waits) = match as_the_kernel {
        true => ("32768 60999", 262_144),
        false => ("1024 65535", 0),
    };
    for host in [&hosts.load, &hosts.relay] {
        host.run(&format!(
            "sysctl -qw net.ipv4.ip_local_port_range='{range}' net.ipv4.ip_local_reserved_ports={LISTEN_PORT},5349 net.ipv4.tcp_max_tw_buckets={time_waits}"
        ))?;
    }
    Ok(())
}

/// Adds further addresses to the server's host, in the namespaces.
fn give_addresses(hosts: &Hosts) -> Result<()> {
    if !hosts.addresses.are_namespaces {
        return Ok(());
    }
    for address in FURTHER_ADDRESSES {
        hosts
            .relay
            .run(&format!("ip address replace {address}/24 dev tb1"))?;
    }
    Ok(())
}

/// A case, and where its programs run.
struct Bench<'a> {
    case: &'a Case<'a>,
    cell: &'a Cell,
    hosts: &'a Hosts,
    commands: Commands,
    server_cpus: &'a CpuList,
    client_cpus: &'a CpuList,
}

/// What the counters of the two hosts say of a window.
struct Watched {
    relay: Counted,
    server_cpu_s: f64,
    kernel_cpu_s: f64,
    client_cpu_s: f64,
}

impl Bench<'_> {
    fn client_host(&self) -> &Host {
        match self.cell.place {
            Place::Loopback => &self.hosts.relay,
            Place::Namespaces => &self.hosts.load,
        }
    }

    /// Starts the server and waits until it takes connections.
    fn server(&self) -> Result<Program> {
        let words = self.commands.server.as_deref().unwrap_or_default();
        let server = self.hosts.relay.start(&Launch {
            title: &self.case.server.name,
            words,
            cpus: self.server_cpus,
            weight: Weight::Measured,
        })?;
        let port = self.case.scenario.connections.port.unwrap_or(LISTEN_PORT);
        self.hosts
            .relay
            .wait_for_tcp_port(port, Duration::from_secs(20), || server.check_alive())
            .with_context(|| format!("server {}", self.case.server.name))?;
        Ok(server)
    }

    fn start(&self, host: &Host, title: &str, words: &[String], cpus: &CpuList) -> Result<Program> {
        host.start(&Launch {
            title,
            words,
            cpus,
            weight: Weight::Measured,
        })
    }

    /// Waits for the window of `load`, which runs on `host`, and reads the counters at its edges; those of another program of that host too.
    fn watch(
        &self,
        server: &Program,
        host: &Host,
        load: &Program,
        other: Option<u32>,
    ) -> Result<Watched> {
        let kernel_threads = self.hosts.relay_kernel_threads()?;
        let warm_up = Duration::from_secs_f64(self.case.warm_up_s);
        load.event("measuring", TIMEOUT + warm_up)?;
        let clients: Vec<u32> = other.into_iter().chain([load.pid]).collect();
        let read = || -> Result<(Snapshot, Snapshot)> {
            Ok((
                self.hosts.relay.snapshot(&[server.pid], &kernel_threads)?,
                host.snapshot(&clients, &[])?,
            ))
        };
        let before = read()?;
        let window = Duration::from_secs_f64(self.case.window_s);
        load.event("measured", window + TIMEOUT)?;
        let after = read()?;
        let relay = after.0.since(&before.0);
        Ok(Watched {
            server_cpu_s: relay.cpu_s(server.pid),
            kernel_cpu_s: relay.cpu_s_of(&kernel_threads),
            client_cpu_s: after.1.since(&before.1).cpu_s_of(&clients),
            relay,
        })
    }

    fn stop(&self, server: Program) -> Result<String> {
        server
            .check_alive()
            .context("the server did not survive the run")?;
        server.stop(&self.hosts.relay, &self.case.server.stop, STOP_LIMIT)
    }

    /// Measures as many connections as the clients can make.
    fn rate(&self) -> Result<(Record, String)> {
        let server = self.server()?;
        let host = self.client_host();
        let before = self.hosts.relay.snapshot(&[], &[])?;
        let load = self.start(host, "clients", &self.commands.load, self.client_cpus)?;
        let watched = self.watch(&server, host, &load, None)?;
        let result = load.event("result", TIMEOUT)?;
        load.stop(host, "INT", STOP_LIMIT)?;
        // Beside what was accepted and connected in all, not in the window alone.
        let whole = self.hosts.relay.snapshot(&[], &[])?.since(&before);
        // A relay says nothing of the kind.
        let accepted = match self.cell.workers {
            Some(_) => {
                self.hosts.relay.signal(server.pid, "INT");
                Some(server.event("result", TIMEOUT)?)
            }
            None => None,
        };
        let last_lines = match accepted {
            Some(_) => server.stop(&self.hosts.relay, &self.case.server.stop, STOP_LIMIT)?,
            None => self.stop(server)?,
        };
        let base = self.record(&watched, &result, accepted.as_ref());
        let record = Record {
            accepting: record::Accepting {
                listen_overflows: whole.listen_overflows,
                embryonic_resets: whole.embryonic_resets,
                ..base.accepting
            },
            ..base
        };
        Ok((record, last_lines))
    }

    /// Measures calls by themselves and during a storm, with one start of the server. Which comes first changes from round to round.
    fn storm(&self) -> Result<(Record, String)> {
        let hosts = self.hosts;
        let server = self.server()?;
        let peer = self.start(
            &hosts.peer,
            "reflector",
            &self.commands.peer,
            &hosts.peer.cpus,
        )?;
        peer.event("ready", TIMEOUT)?;
        let (storm_cpus, call_cpus) = hosts.load.cpus.split();
        let calls = |storm: Option<u32>| -> Result<(Watched, Value)> {
            let calls = self.start(&hosts.load, "calls", &self.commands.load, &call_cpus)?;
            let watched = self.watch(&server, &hosts.load, &calls, storm)?;
            let result = calls.event("result", TIMEOUT)?;
            calls.stop(&hosts.load, "INT", STOP_LIMIT)?;
            Ok((watched, result))
        };
        let during_storm = || -> Result<_> {
            let words = self.commands.meanwhile.as_deref().unwrap_or_default();
            let storm = self.start(&hosts.load, "storm", words, &storm_cpus)?;
            storm.event("measuring", TIMEOUT)?;
            let (watched, result) = calls(Some(storm.pid))?;
            hosts.load.signal(storm.pid, "INT");
            let stormed = storm.event("result", TIMEOUT)?;
            storm.stop(&hosts.load, "INT", STOP_LIMIT)?;
            Ok((watched, result, stormed))
        };
        let ((quiet_watched, quiet), (watched, result, stormed)) = if self.case.round % 2 == 1 {
            let quiet = calls(None)?;
            (quiet, during_storm()?)
        } else {
            let stormed = during_storm()?;
            (calls(None)?, stormed)
        };
        peer.stop(&hosts.peer, "INT", STOP_LIMIT)?;
        let last_lines = self.stop(server)?;
        let latency = &result["latency_us"];
        let base = self.record(&watched, &stormed, None);
        let record = Record {
            traffic: record::Traffic {
                clients: number(&result["clients"]),
                clients_failed: number(&result["clients_failed"]),
                sent_datagrams: number(&result["sent_datagrams"]),
                received_datagrams: number(&result["received_datagrams"]),
                lost: number(&result["lost"]),
                ..base.traffic
            },
            delay: record::Delay {
                p50_us: latency["p50"].as_f64(),
                p90_us: latency["p90"].as_f64(),
                p99_us: latency["p99"].as_f64(),
                p999_us: latency["p99_9"].as_f64(),
                p9999_us: latency["p99_99"].as_f64(),
                max_us: latency["max"].as_f64(),
            },
            meanwhile: record::Meanwhile {
                meanwhile_sent: Some(number(&quiet["sent_datagrams"])),
                meanwhile_lost: Some(number(&quiet["lost"])),
                meanwhile_p99_us: quiet["latency_us"]["p99"].as_f64(),
            },
            connections: record::Connections {
                connect_p50_us: stormed["latency_us"]["p50"].as_f64(),
                connect_p99_us: stormed["latency_us"]["p99"].as_f64(),
                ..base.connections
            },
            accepting: record::Accepting {
                meanwhile_cpu_s: Some(quiet_watched.server_cpu_s),
                ..base.accepting
            },
            ..base
        };
        Ok((record, last_lines))
    }

    /// Measures clients that each want an answer, while the server has a few descriptors for them and then as many as it likes again.
    fn shortage(&self) -> Result<(Record, String)> {
        let relay = &self.hosts.relay;
        let server = self.server()?;
        let pid = server.pid;
        let in_use = || -> Result<usize> {
            let text = relay.run(&format!("ls /proc/{pid}/fd | wc -l"))?;
            text.trim().parse().context("a number of descriptors")
        };
        // Connections that nobody has accepted are what a listener in /proc/net/tcp has to be read.
        let port = self.case.scenario.connections.port.unwrap_or(LISTEN_PORT);
        let waiting = format!(
            "cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | awk '$2 ~ /:{port:04X}$/ && $4 == \"0A\" && $5 !~ /:00000000$/' | wc -l"
        );
        let limit = in_use()? + DESCRIPTORS_LEFT;
        let before = relay.run(&format!(
            "prlimit --pid {pid} --nofile --noheadings --output SOFT"
        ))?;
        let host = self.client_host();
        let load = self.start(host, "clients", &self.commands.load, self.client_cpus)?;
        load.event("measuring", TIMEOUT)?;
        let set = |limit: &str| relay.run(&format!("prlimit --pid {pid} --nofile={limit}:"));
        set(&limit.to_string())?;
        let started = Instant::now();
        let shortage = Duration::from_secs_f64(self.case.scenario.connections.shortage_s);
        let window = Duration::from_secs_f64(self.case.window_s);
        let (mut looks, mut reached) = (0, 0);
        // On a slow machine the clients may need longer to use the descriptors up; they have as long as they go on.
        while started.elapsed() < shortage || reached == 0 && started.elapsed() < window {
            looks += 1;
            // With a few descriptors in use it may be between two of its attempts, and have connections wait meanwhile.
            let is_short = in_use()? >= limit || relay.run(&waiting)?.trim() != "0";
            reached += u32::from(is_short);
            crate::interrupt::pause(Duration::from_millis(50))?;
        }
        set(before.trim())?;
        load.event("measured", window + TIMEOUT)?;
        let result = load.event("result", TIMEOUT)?;
        load.stop(host, "INT", STOP_LIMIT)?;
        if reached == 0 {
            bail!("the limit of {limit} descriptors was not reached, and no connection waited");
        }
        let watched = Watched {
            relay: Counted {
                seconds: self.case.window_s,
                ..Counted::default()
            },
            server_cpu_s: 0.0,
            kernel_cpu_s: 0.0,
            client_cpu_s: 0.0,
        };
        let base = self.record(&watched, &result, None);
        let record = Record {
            limit: record::Limit {
                bottleneck: Bottleneck::Relay,
                bottleneck_why: format!(
                    "limit of {limit} descriptors reached, or connections waiting, in {reached} of {looks} looks"
                ),
            },
            ..base
        };
        Ok((record, self.stop(server)?))
    }

    fn record(&self, watched: &Watched, client: &Value, server: Option<&Value>) -> Record {
        let relay = &watched.relay;
        let cpus = self.server_cpus.count() as f64;
        let busy = (watched.server_cpu_s + watched.kernel_cpu_s)
            / (relay.seconds * cpus).max(f64::MIN_POSITIVE);
        let is_full = relay.listen_overflows > 0;
        let bottleneck = if is_full || busy >= BUSY_SHARE {
            Bottleneck::Relay
        } else if self.case.scenario.question == Question::Storm {
            Bottleneck::Nothing
        } else {
            Bottleneck::Generator
        };
        let latency = &client["latency_us"];
        let of_server = |name: &str| server.and_then(|server| server[name].as_u64());
        let errors = |result: &Value| match result["errors"].as_object() {
            Some(errors) if !errors.is_empty() => result["errors"].to_string(),
            _ => String::new(),
        };
        let base = self.case.empty_record(Status::Measured, "");
        Record {
            case: record::Which {
                seconds: relay.seconds,
                ..base.case
            },
            cost: record::Cost {
                server_cpu_s: watched.server_cpu_s,
                relay_kernel_cpu_s: watched.kernel_cpu_s,
                load_cpu_s: watched.client_cpu_s,
                foreign_cpu_s: (relay.machine_busy_s
                    - watched.server_cpu_s
                    - watched.kernel_cpu_s
                    - watched.client_cpu_s)
                    .max(0.0),
                relay_cpus: self.server_cpus.count() as u64,
                ..base.cost
            },
            limit: record::Limit {
                bottleneck,
                bottleneck_why: format!(
                    "server {:.0} % of its CPUs, {} connections found its queue full",
                    busy * 100.0,
                    relay.listen_overflows
                ),
            },
            connections: record::Connections {
                workers: self.cell.workers.map(u64::from),
                connections: number(&client["connected_in_window"]),
                connections_per_second: client["per_second"].as_f64(),
                connected: number(&client["connected"]),
                accepted: of_server("accepted"),
                connections_failed: number(&client["failed"]),
                connect_errors: errors(client),
                accept_errors: server.map(errors).unwrap_or_default(),
                connect_p50_us: latency["p50"].as_f64(),
                connect_p99_us: latency["p99"].as_f64(),
                connect_max_us: latency["max"].as_f64(),
                ..base.connections
            },
            accepting: record::Accepting {
                wakeups: of_server("wakeups"),
                wrong_cpu: of_server("wrong_cpu"),
                worker_min: of_server("worker_min"),
                worker_max: of_server("worker_max"),
                listen_overflows: relay.listen_overflows,
                embryonic_resets: relay.embryonic_resets,
                ..base.accepting
            },
            ..base
        }
    }
}
