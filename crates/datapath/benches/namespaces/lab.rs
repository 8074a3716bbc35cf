//! Three namespaces in a row, programs in them, and what can be read of them.

use std::fmt;
use std::fs;
use std::io::{self, BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub(crate) const LOAD: &str = "tb-d-load";
pub(crate) const RELAY: &str = "tb-d-relay";
pub(crate) const PEER: &str = "tb-d-peer";
const NAMESPACES: [&str; 3] = [LOAD, RELAY, PEER];

pub(crate) const RELAY_CPU: usize = 0;
pub(crate) const SOURCE_CPU: usize = 1;

pub(crate) const LOAD_ADDRESS: &str = "10.99.1.1:4000";
pub(crate) const RELAY_ADDRESS: &str = "10.99.1.2:3478";
pub(crate) const PEER_ADDRESS: &str = "10.99.2.1:5000";

/// How datagrams reach the relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Case {
    GroBuffers,
    Singly,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::GroBuffers => "gro-buffers",
            Self::Singly => "singly",
        })
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        [Self::GroBuffers, Self::Singly]
            .into_iter()
            .find(|case| case.to_string() == name)
            .ok_or_else(|| format!("no case {name}"))
    }
}

/// Returns where the sinks are: on a CPU of their own if there is one, else on the source's.
pub(crate) fn sink_cpu() -> usize {
    if cpus() > 2 { 2 } else { SOURCE_CPU }
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// What one measurement gave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) seconds: f64,
    /// Datagrams that arrived behind the relay.
    pub(crate) delivered: u64,
    /// CPU time of the relay's process, seconds.
    pub(crate) cpu: f64,
}

impl Reading {
    pub(crate) fn per_cpu_second(&self) -> f64 {
        self.delivered as f64 / self.cpu
    }

    pub(crate) fn ns_per_datagram(&self) -> f64 {
        self.cpu * 1e9 / self.delivered as f64
    }
}

impl fmt::Display for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.3} M/s delivered, CPU {:.0} %, {:.3} M per CPU second, {:.0} ns per datagram",
            self.delivered as f64 / self.seconds / 1e6,
            self.cpu / self.seconds * 100.0,
            self.per_cpu_second() / 1e6,
            self.ns_per_datagram(),
        )
    }
}

/// Returns an error if the bench cannot run here.
pub(crate) fn check() -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("needs root, for network namespaces".to_owned());
    }
    for (tool, flag) in [("ip", "-V"), ("ethtool", "--version")] {
        let found = Command::new(tool)
            .arg(flag)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        if !found.is_ok_and(|status| status.success()) {
            return Err(format!("needs the command {tool}"));
        }
    }
    if cpus() <= SOURCE_CPU {
        return Err("needs two CPUs".to_owned());
    }
    if !run("ip", &["netns", "add", NAMESPACES[0]])
        .is_ok_and(|()| run("ip", &["netns", "del", NAMESPACES[0]]).is_ok())
    {
        remove_namespaces();
        run("ip", &["netns", "add", NAMESPACES[0]])
            .map_err(|error| format!("no network namespaces here: {error}"))?;
        remove_namespaces();
    }
    Ok(())
}

/// The namespaces of one case; gone when dropped.
pub(crate) struct Lab {
    pub(crate) case: Case,
    interrupted: Arc<AtomicBool>,
}

impl Drop for Lab {
    fn drop(&mut self) {
        remove_namespaces();
    }
}

fn remove_namespaces() {
    for namespace in NAMESPACES {
        let _ = run("ip", &["netns", "del", namespace]);
    }
}

/// Runs a command to its end.
fn run(program: &str, arguments: &[&str]) -> io::Result<()> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    let words = arguments.join(" ");
    Err(io::Error::other(format!(
        "{program} {words}: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    )))
}

/// Runs a line of words.
fn line(line: &str) -> io::Result<()> {
    let mut words = line.split(' ');
    let program = words.next().unwrap_or_default();
    run(program, &words.collect::<Vec<_>>())
}

fn hardware_address(namespace: &str, device: &str) -> io::Result<String> {
    let output = Command::new("ip")
        .args(["-n", namespace, "-brief", "link", "show", "dev", device])
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.split_whitespace()
        .nth(2)
        .map(str::to_owned)
        .ok_or_else(|| io::Error::other(format!("no address of {device}")))
}

impl Lab {
    pub(crate) fn new(case: Case) -> io::Result<Self> {
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [
            signal_hook::consts::SIGINT,
            signal_hook::consts::SIGTERM,
            signal_hook::consts::SIGHUP,
        ] {
            signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
        }
        // From here on dropping cleans up, whatever happens next.
        let lab = Self { case, interrupted };
        for namespace in NAMESPACES {
            line(&format!("ip netns add {namespace}"))?;
            line(&format!("ip -n {namespace} link set lo up"))?;
        }
        line(&format!(
            "ip link add tbd0 netns {LOAD} type veth peer name tbd1 netns {RELAY}"
        ))?;
        line(&format!(
            "ip link add tbd3 netns {PEER} type veth peer name tbd2 netns {RELAY}"
        ))?;
        let ends = [
            (LOAD, "tbd0", "10.99.1.1"),
            (RELAY, "tbd1", "10.99.1.2"),
            (RELAY, "tbd2", "10.99.2.2"),
            (PEER, "tbd3", "10.99.2.1"),
        ];
        for (namespace, device, address) in ends {
            line(&format!(
                "ip -n {namespace} addr add {address}/24 dev {device}"
            ))?;
            line(&format!(
                "ip -n {namespace} link set {device} txqueuelen 1000 up"
            ))?;
        }
        // Static neighbours: no ARP in the middle of a flood.
        for (a, b) in [(0, 1), (1, 0), (2, 3), (3, 2)] {
            let ((namespace, device, _), (far_namespace, far_device, far_address)) =
                (ends[a], ends[b]);
            let hardware = hardware_address(far_namespace, far_device)?;
            line(&format!(
                "ip -n {namespace} neigh replace {far_address} lladdr {hardware} dev {device}"
            ))?;
        }
        line(&format!(
            "ip -n {LOAD} route add 10.99.2.0/24 via 10.99.1.2"
        ))?;
        line(&format!(
            "ip -n {PEER} route add 10.99.1.0/24 via 10.99.2.2"
        ))?;
        if case == Case::Singly {
            // The source's kernel cuts trains before they enter the wire; the receiving end merges in a thread.
            line(&format!(
                "ip netns exec {LOAD} ethtool -K tbd0 tx-udp-segmentation off"
            ))?;
            for (namespace, device, cpu) in [
                (LOAD, "tbd0", sink_cpu()),
                (RELAY, "tbd1", RELAY_CPU),
                (RELAY, "tbd2", RELAY_CPU),
                (PEER, "tbd3", sink_cpu()),
            ] {
                line(&format!(
                    "ip netns exec {namespace} ethtool -K {device} gro on rx-udp-gro-forwarding on"
                ))?;
                thread_napi(namespace, device, cpu)?;
            }
        }
        Ok(lab)
    }

    /// Lets `relay` settle and then watches it for `window`: its CPU time, and what arrives at `behind`.
    pub(crate) fn read(
        &self,
        relay: &Role,
        behind: &Role,
        window: Duration,
    ) -> io::Result<Reading> {
        self.pause(window.mul_f64(0.4).min(Duration::from_secs(1)))?;
        let (start, arrived, cpu) = (
            Instant::now(),
            behind.datagrams_arrived()?,
            relay.cpu_seconds()?,
        );
        self.pause(window)?;
        Ok(Reading {
            seconds: start.elapsed().as_secs_f64(),
            delivered: behind.datagrams_arrived()? - arrived,
            cpu: relay.cpu_seconds()? - cpu,
        })
    }

    fn pause(&self, pause: Duration) -> io::Result<()> {
        let end = Instant::now() + pause;
        while Instant::now() < end {
            if self.interrupted.load(Ordering::Relaxed) {
                return Err(io::Error::new(
                    io::ErrorKind::Interrupted,
                    "stopped by a signal",
                ));
            }
            std::thread::sleep(
                Duration::from_millis(20).min(end.saturating_duration_since(Instant::now())),
            );
        }
        Ok(())
    }
}

/// Moves a device's receive processing into its own thread, on `cpu`.
fn thread_napi(namespace: &str, device: &str, cpu: usize) -> io::Result<()> {
    let file = format!("/sys/class/net/{device}/threaded");
    run(
        "ip",
        &[
            "netns",
            "exec",
            namespace,
            "sh",
            "-c",
            &format!("echo 1 > {file}"),
        ],
    )?;
    let prefix = format!("napi/{device}-");
    for _ in 0..50 {
        for process in fs::read_dir("/proc")?.flatten() {
            let is_it = fs::read_to_string(process.path().join("comm"))
                .is_ok_and(|name| name.starts_with(&prefix));
            if let (true, Some(pid)) = (is_it, process.file_name().to_str()) {
                return line(&format!("taskset -pc {cpu} {pid}"))
                    .and_then(|()| line(&format!("renice -n -5 -p {pid}")));
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err(io::Error::other(format!("no thread {prefix}* appeared")))
}

/// A process in a namespace; killed when dropped.
pub(crate) struct Role {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Role {
    /// Starts this program again as `role` and waits until its sockets are open.
    pub(crate) fn start(namespace: &str, role: &str) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("role").args(role.split(' '));
        Self::start_program(namespace, &command)
    }

    /// Starts a program and waits until it prints the line `ready`.
    pub(crate) fn start_program(namespace: &str, program: &Command) -> io::Result<Self> {
        let mut child = Command::new("ip")
            .args(["netns", "exec", namespace])
            .arg(program.get_program())
            .args(program.get_args())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child
            .stdout
            .take()
            .ok_or_else(|| io::Error::other("no output"))?;
        let mut started = Self {
            child,
            output: BufReader::new(output),
        };
        let mut line = String::new();
        while line.trim() != "ready" {
            line.clear();
            if started.output.read_line(&mut line)? == 0 {
                return Err(io::Error::other(format!("{program:?} did not start")));
            }
        }
        Ok(started)
    }

    /// Returns the path of a file about the child in `/proc`. `ip netns exec` replaces itself by the program, so the child is the program.
    fn proc(&self, file: &str) -> String {
        format!("/proc/{}/{file}", self.child.id())
    }

    /// Returns the CPU time of all threads so far.
    pub(crate) fn cpu_seconds(&self) -> io::Result<f64> {
        let mut nanoseconds = 0.0;
        for task in fs::read_dir(self.proc("task"))? {
            let text = fs::read_to_string(task?.path().join("schedstat"))?;
            nanoseconds += text
                .split(' ')
                .next()
                .and_then(|first| first.parse::<f64>().ok())
                .unwrap_or(0.0);
        }
        Ok(nanoseconds / 1e9)
    }

    /// Returns how many IP packets have entered this role's namespace, a GRO buffer counted as its datagrams.
    pub(crate) fn datagrams_arrived(&self) -> io::Result<u64> {
        let text = fs::read_to_string(self.proc("net/netstat"))?;
        let mut lines = text.lines().filter(|line| line.starts_with("IpExt:"));
        let (names, values) = (
            lines.next().unwrap_or_default(),
            lines.next().unwrap_or_default(),
        );
        let counted = ["InNoECTPkts", "InECT1Pkts", "InECT0Pkts", "InCEPkts"];
        Ok(names
            .split(' ')
            .zip(values.split(' '))
            .filter(|(name, _)| counted.contains(name))
            .filter_map(|(_, value)| value.parse::<u64>().ok())
            .sum())
    }
}
