//! What a host has counted: packets in, drops at every hop, CPU time of processes and of the kernel's own threads.
//!
//! All of it is read by one `tail -v` over the files, so that one question is enough for a host behind ssh too. The differences of two snapshots
//! are the figures of a window.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Instant;

/// The files of one host at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) at: Instant,
    file_by_path: BTreeMap<String, String>,
}

/// What happened on a host between two snapshots.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Counted {
    pub(crate) seconds: f64,
    /// IP packets that came in, both families, whatever their ECN bits. Unlike an interface's counters these count the segments of a GRO or
    /// GSO buffer, each (`IpExt: InNoECTPkts` and the like; the kernel adds `gso_segs`).
    pub(crate) ip_packets_in: u64,
    /// Datagrams that UDP had to drop because a socket's buffer was full.
    pub(crate) udp_buffer_drops: u64,
    /// Datagrams for ports that nobody has.
    pub(crate) udp_no_port: u64,
    /// Datagrams that the kernel refused to send (full send buffer).
    pub(crate) udp_send_drops: u64,
    /// Dropped before IP because a CPU's backlog was full. Counted per CPU, so over all hosts that share a machine.
    pub(crate) backlog_drops: u64,
    /// Dropped by the host's interfaces, receiving and sending (a full ring of the far end counts at the sender of a veth).
    pub(crate) link_drops: u64,
    /// Connections for which a listener's queue had no room (`TcpExt: ListenOverflows`).
    pub(crate) listen_overflows: u64,
    /// Connections that were reset before they stood (`TcpExt: EmbryonicRsts`).
    pub(crate) embryonic_resets: u64,
    /// CPU seconds by process.
    pub(crate) cpu_s_by_pid: BTreeMap<u32, f64>,
    /// Busy CPU seconds of the whole machine, by ticks: coarse, for telling foreign load.
    pub(crate) machine_busy_s: f64,
}

impl Snapshot {
    /// Returns the shell line whose output [`Self::parse`] reads.
    pub(crate) fn command(pids: &[u32], kernel_threads: &[u32]) -> String {
        let mut line = "tail -v -n +1 /proc/net/netstat /proc/net/snmp /proc/net/snmp6 /proc/net/softnet_stat /proc/net/dev /proc/stat"
            .to_owned();
        for pid in pids {
            let _ = write!(line, " /proc/{pid}/stat /proc/{pid}/task/*/schedstat");
        }
        for pid in kernel_threads {
            let _ = write!(line, " /proc/{pid}/task/{pid}/schedstat");
        }
        line.push_str(" 2>/dev/null || true");
        line
    }

    /// Splits the output of `tail -v`.
    pub(crate) fn parse(at: Instant, text: &str) -> Self {
        let mut file_by_path = BTreeMap::new();
        let mut current: Option<(String, String)> = None;
        for line in text.lines() {
            if let Some(path) = line
                .strip_prefix("==> ")
                .and_then(|rest| rest.strip_suffix(" <=="))
            {
                file_by_path.extend(current.replace((path.to_owned(), String::new())));
            } else if let Some((_, contents)) = &mut current {
                contents.push_str(line);
                contents.push('\n');
            }
        }
        file_by_path.extend(current);
        Self { at, file_by_path }
    }

    fn file(&self, path: &str) -> &str {
        self.file_by_path.get(path).map_or("", String::as_str)
    }

    /// Returns what was counted since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Counted {
        let seconds = self.at.duration_since(earlier.at).as_secs_f64();
        let totals = self.totals();
        let before = earlier.totals();
        let cpu_s_by_pid = cpu_since(&self.cpu_by_pid(), &earlier.cpu_by_pid());
        Counted {
            seconds,
            ip_packets_in: totals.ip_packets_in.saturating_sub(before.ip_packets_in),
            udp_buffer_drops: totals
                .udp_buffer_drops
                .saturating_sub(before.udp_buffer_drops),
            udp_no_port: totals.udp_no_port.saturating_sub(before.udp_no_port),
            udp_send_drops: totals.udp_send_drops.saturating_sub(before.udp_send_drops),
            backlog_drops: totals.backlog_drops.saturating_sub(before.backlog_drops),
            link_drops: totals.link_drops.saturating_sub(before.link_drops),
            listen_overflows: totals
                .listen_overflows
                .saturating_sub(before.listen_overflows),
            embryonic_resets: totals
                .embryonic_resets
                .saturating_sub(before.embryonic_resets),
            cpu_s_by_pid,
            machine_busy_s: totals.machine_busy_s - before.machine_busy_s,
        }
    }

    fn totals(&self) -> Counted {
        const ECN: [&str; 4] = ["InNoECTPkts", "InECT1Pkts", "InECT0Pkts", "InCEPkts"];
        let netstat = self.file("/proc/net/netstat");
        let snmp = self.file("/proc/net/snmp");
        let snmp6 = self.file("/proc/net/snmp6");
        let ipv4: u64 = ECN
            .iter()
            .map(|name| table_value(netstat, "IpExt", name))
            .sum();
        let ipv6: u64 = ECN
            .iter()
            .map(|name| list_value(snmp6, &format!("Ip6{name}")))
            .sum();
        let udp =
            |name: &str| table_value(snmp, "Udp", name) + list_value(snmp6, &format!("Udp6{name}"));
        Counted {
            seconds: 0.0,
            ip_packets_in: ipv4 + ipv6,
            udp_buffer_drops: udp("RcvbufErrors"),
            udp_no_port: udp("NoPorts"),
            udp_send_drops: udp("SndbufErrors"),
            backlog_drops: backlog_drops(self.file("/proc/net/softnet_stat")),
            link_drops: link_drops(self.file("/proc/net/dev")),
            listen_overflows: table_value(netstat, "TcpExt", "ListenOverflows"),
            embryonic_resets: table_value(netstat, "TcpExt", "EmbryonicRsts"),
            cpu_s_by_pid: BTreeMap::new(),
            machine_busy_s: machine_busy_s(self.file("/proc/stat")),
        }
    }

    fn cpu_by_pid(&self) -> BTreeMap<u32, ProcessCpu> {
        let mut cpu_by_pid: BTreeMap<u32, ProcessCpu> = BTreeMap::new();
        for (path, contents) in &self.file_by_path {
            let mut parts = path.strip_prefix("/proc/").unwrap_or_default().split('/');
            let Some(pid) = parts.next().and_then(|pid| pid.parse().ok()) else {
                continue;
            };
            let cpu = cpu_by_pid.entry(pid).or_default();
            match (
                parts.next(),
                parts.next().and_then(|task| task.parse().ok()),
            ) {
                (Some("task"), Some(task)) => {
                    let nanoseconds = contents
                        .split_whitespace()
                        .next()
                        .and_then(|first| first.parse::<f64>().ok());
                    if let Some(nanoseconds) = nanoseconds {
                        cpu.s_by_task.insert(task, nanoseconds / 1e9);
                    }
                }
                _ => cpu.process_s = process_s(contents),
            }
        }
        cpu_by_pid
    }
}

/// CPU time of a process, in two ways.
#[derive(Clone, Debug, Default)]
struct ProcessCpu {
    /// Of each thread that lives, to the nanosecond.
    s_by_task: BTreeMap<u32, f64>,
    /// Of all threads, those that ended too, to the tick of 10 ms. Only how it divides into user and system is sampled; the sum is exact (the
    /// kernel's `cputime_adjust`).
    process_s: f64,
}

fn cpu_since(
    now: &BTreeMap<u32, ProcessCpu>,
    then: &BTreeMap<u32, ProcessCpu>,
) -> BTreeMap<u32, f64> {
    now.iter()
        .filter_map(|(pid, now)| {
            let then = then.get(pid)?;
            let same_threads = now.s_by_task.keys().eq(then.s_by_task.keys());
            let s = if same_threads {
                now.s_by_task.values().sum::<f64>() - then.s_by_task.values().sum::<f64>()
            } else {
                now.process_s - then.process_s
            };
            Some((*pid, s.max(0.0)))
        })
        .collect()
}

/// Returns the seconds of columns 14 and 15 of `/proc/PID/stat`, counted behind the name, which may hold spaces.
fn process_s(stat: &str) -> f64 {
    let Some((_, columns)) = stat.rsplit_once(") ") else {
        return 0.0;
    };
    let ticks: f64 = columns
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|column| column.parse::<f64>().ok())
        .sum();
    ticks / 100.0
}

/// Returns a value of the two-line tables of `/proc/net/{netstat,snmp}`: a line of names, a line of values.
fn table_value(text: &str, table: &str, name: &str) -> u64 {
    let mut rows = text
        .lines()
        .filter_map(|line| line.strip_prefix(table)?.strip_prefix(':'));
    let (Some(names), Some(values)) = (rows.next(), rows.next()) else {
        return 0;
    };
    names
        .split_whitespace()
        .zip(values.split_whitespace())
        .find(|(each, _)| *each == name)
        .and_then(|(_, value)| value.parse().ok())
        .unwrap_or(0)
}

/// Returns a value of `/proc/net/snmp6`: a name and a value per line.
fn list_value(text: &str, name: &str) -> u64 {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            (words.next() == Some(name)).then(|| words.next()?.parse().ok())?
        })
        .next()
        .unwrap_or(0)
}

/// Adds up the second column, hexadecimal, of each CPU's line.
fn backlog_drops(softnet: &str) -> u64 {
    softnet
        .lines()
        .filter_map(|line| u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok())
        .sum()
}

/// Adds up columns 4 (received and dropped) and 12 (dropped instead of sent) of each interface.
fn link_drops(dev: &str) -> u64 {
    dev.lines()
        .filter_map(|line| {
            let columns: Vec<&str> = line.split_once(':')?.1.split_whitespace().collect();
            let column = |index: usize| columns.get(index)?.parse::<u64>().ok();
            Some(column(3)? + column(11)?)
        })
        .sum()
}

/// Returns the seconds of all but idle and waiting, from ticks of 10 ms.
fn machine_busy_s(stat: &str) -> f64 {
    let Some(ticks) = stat.lines().find_map(|line| line.strip_prefix("cpu ")) else {
        return 0.0;
    };
    let ticks: Vec<f64> = ticks
        .split_whitespace()
        .filter_map(|tick| tick.parse().ok())
        .collect();
    // user nice system idle iowait irq softirq steal; guest times are part of user.
    let busy: f64 = ticks
        .iter()
        .take(8)
        .enumerate()
        .filter(|(index, _)| !matches!(index, 3 | 4))
        .map(|(_, tick)| tick)
        .sum();
    busy / 100.0
}

impl Counted {
    /// Returns the CPU seconds of one process or kernel thread.
    pub(crate) fn cpu_s(&self, pid: u32) -> f64 {
        self.cpu_s_by_pid.get(&pid).copied().unwrap_or(0.0)
    }

    /// Returns the CPU seconds of several.
    pub(crate) fn cpu_s_of(&self, pids: &[u32]) -> f64 {
        pids.iter().map(|pid| self.cpu_s(*pid)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "\
==> /proc/net/netstat <==
TcpExt: SyncookiesSent InNoECTPkts EmbryonicRsts ListenOverflows
TcpExt: 1 999 4 10
IpExt: InNoRoutes InNoECTPkts InECT1Pkts InECT0Pkts InCEPkts
IpExt: 7 100 10 20 3

==> /proc/net/snmp <==
Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors
Udp: 90 1 4 80 4 0
UdpLite: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors
UdpLite: 5 5 5 5 5 5

==> /proc/net/snmp6 <==
Ip6InNoECTPkts                  \t5
Udp6RcvbufErrors                \t1

==> /proc/net/softnet_stat <==
00001000 00000002 00000000 00000000
00001000 00000001 00000000 00000000

==> /proc/net/dev <==
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
  tb1: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16

==> /proc/stat <==
cpu  100 0 100 5000 10 0 100 0 0 0
cpu0 1 1 1 1 1 1 1 1 1 1

==> /proc/40/task/40/schedstat <==
1000000000 5 6

==> /proc/40/task/41/schedstat <==
500000000 5 6
";

    #[test]
    fn counts_the_difference_of_two_snapshots() {
        let at = Instant::now();
        let after = BEFORE
            .replace("IpExt: 7 100 10 20 3", "IpExt: 7 200 10 40 3")
            .replace("TcpExt: 1 999 4 10", "TcpExt: 1 999 5 30")
            .replace("\t5", "\t6")
            .replace("Udp: 90 1 4 80 4 0", "Udp: 90 3 4 80 10 2")
            .replace("\t1", "\t2")
            .replace("00000002", "0000000a")
            .replace("4 5 6 7 8 9 10 11 12", "5 5 6 7 8 9 10 11 14")
            .replace("cpu  100 0 100 5000", "cpu  200 0 150 9000")
            .replace("500000000 5", "750000000 5");
        let before = Snapshot::parse(at, BEFORE);
        let after = Snapshot::parse(at + std::time::Duration::from_secs(2), &after);
        assert_eq!(
            after.since(&before),
            Counted {
                seconds: 2.0,
                ip_packets_in: 100 + 20 + 1,
                udp_buffer_drops: 6 + 1,
                udp_no_port: 2,
                udp_send_drops: 2,
                backlog_drops: 8,
                link_drops: 1 + 2,
                listen_overflows: 20,
                embryonic_resets: 1,
                cpu_s_by_pid: [(40, 0.25)].into(),
                machine_busy_s: 1.5,
            }
        );
    }

    #[test]
    fn a_thread_that_ended_keeps_its_share_in_the_sum_of_the_process() {
        let stat = "==> /proc/40/stat <==\n40 (a b) c) S 1 1 1 0 -1 0 0 0 0 0 150 50 0 0 20\n";
        let at = Instant::now();
        let before = Snapshot::parse(at, &format!("{BEFORE}\n{stat}"));
        let after = BEFORE.replace("/proc/40/task/41/", "/proc/40/task/42/");
        let after = Snapshot::parse(at, &format!("{after}\n{}", stat.replace("150", "175")));
        assert_eq!(after.since(&before).cpu_s(40), 0.25);
    }

    #[test]
    fn a_file_that_is_missing_counts_nothing() {
        let empty = Snapshot::parse(Instant::now(), "");
        assert_eq!(empty.since(&empty), Counted::default());
    }
}
