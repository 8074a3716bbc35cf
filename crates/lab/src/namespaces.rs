//! Three network namespaces in a row: load, relay and peer, with a veth pair between neighbours.
//!
//! Whatever happens, they go away again and settings of the machine are put back. What is to be undone stands in a file of shell lines
//! before it is done; a *janitor*, a shell in a session of its own, runs that file when its standard input closes. The runner's end closes it:
//! in good order, by a panic, by a signal, by `kill -9`. If the janitor is killed too, the next start finds the file and runs it. A lock
//! that dies with its holder keeps two runs from sharing a machine, whose figures would be worthless.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::fs::{FlockOperation, flock};

use crate::cpus::Placement;
use crate::note::note;
use crate::scenario::Arrival;
use crate::scratch::Scratch;

/// Where the lock and the record of what is to be undone are.
const STATE_DIRECTORY: &str = "/run/turnbuckle-lab";

pub(crate) const LOAD: &str = "tb-lab-load";
pub(crate) const RELAY: &str = "tb-lab-relay";
pub(crate) const PEER: &str = "tb-lab-peer";

pub(crate) const LOAD_ADDRESS: &str = "10.99.1.1";
/// Where the server listens.
pub(crate) const LISTEN_ADDRESS: &str = "10.99.1.2";
/// Where the server's relayed addresses are.
pub(crate) const RELAY_ADDRESS: &str = "10.99.2.2";
pub(crate) const PEER_ADDRESS: &str = "10.99.2.1";

/// Least values of settings of the whole machine, raised only where they are lower: socket buffers large enough to hold what arrives
/// while a reader is kept from its CPU for some milliseconds, and a backlog that takes a burst of segmented trains.
const SYSCTLS: [(&str, u64); 3] = [
    ("net.core.rmem_max", 4 << 20),
    ("net.core.wmem_max", 4 << 20),
    ("net.core.netdev_max_backlog", 10_000),
];

/// The one laboratory of this machine.
#[derive(Debug)]
pub(crate) struct Machine {
    /// Held for its lock.
    _lock: File,
}

impl Machine {
    /// Takes the machine, and removes what a run left behind that could not clean up.
    pub(crate) fn take() -> Result<Self> {
        check()?;
        fs::create_dir_all(STATE_DIRECTORY)
            .with_context(|| format!("cannot create {STATE_DIRECTORY}"))?;
        let path = PathBuf::from(STATE_DIRECTORY).join("lock");
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        let mut said = false;
        // A janitor may still be at work for a run that ended this moment, and tests of two crates may overlap.
        while flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            if !said {
                said = true;
                note("another laboratory runs on this machine; waiting for its end");
            }
            crate::interrupt::pause(Duration::from_millis(200))?;
        }
        let stale = record_path();
        if stale.exists() {
            note("removing what an earlier run left behind");
            undo();
        }
        Ok(Self { _lock: lock })
    }
}

fn record_path() -> PathBuf {
    PathBuf::from(STATE_DIRECTORY).join("undo.sh")
}

/// Runs the record; afterwards it is gone.
fn undo() {
    let _ = Command::new("sh")
        .arg(record_path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
}

/// Checks that namespaces can be had here.
pub(crate) fn check() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("network namespaces need root (or name real machines by --hosts)");
    }
    for (tool, flag, package) in [
        ("ip", "-V", "iproute2"),
        ("ethtool", "--version", "ethtool"),
        ("taskset", "--version", "util-linux"),
        ("setsid", "--version", "util-linux"),
    ] {
        let found = Command::new(tool)
            .arg(flag)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        if !found.is_ok_and(|status| status.success()) {
            bail!("the command {tool} is missing (package {package})");
        }
    }
    Ok(())
}

/// The namespaces, up. Gone when dropped.
#[derive(Debug)]
pub(crate) struct Namespaces {
    janitor: Child,
    /// What was done, for the report.
    pub(crate) notes: Vec<String>,
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        if let Some(mut word) = self.janitor.stdin.take() {
            let _ = word.write_all(b"done\n");
        }
        let _ = self.janitor.wait();
        if record_path().exists() {
            undo();
        }
    }
}

/// Returns the shell lines that take everything down and put settings back.
fn undo_lines(old_values: &[(&str, String)]) -> String {
    let mut lines = String::new();
    for namespace in [LOAD, RELAY, PEER] {
        lines.push_str(&format!(
            "for pid in $(ip netns pids {namespace} 2>/dev/null); do kill -KILL \"$pid\" 2>/dev/null; done\n\
             ip netns del {namespace} 2>/dev/null\n"
        ));
    }
    for (name, value) in old_values {
        lines.push_str(&format!("sysctl -qw {name}={value}\n"));
    }
    lines.push_str(&format!("rm -f {}\n", record_path().display()));
    lines
}

impl Namespaces {
    /// Brings them up for datagrams that arrive in this way.
    ///
    /// [`Arrival::Offloads`] is shape *plain*: a veth hands a segmentation buffer over whole, and the receiving half of the kernel runs on the
    /// sender's CPU. [`Arrival::Singly`] is shape *threaded*: the senders' kernels cut their trains, and each interface receives in a NAPI
    /// thread, on the relay's CPU for the relay's interfaces, that merges again by GRO as for a network card.
    pub(crate) fn up(_machine: &Machine, arrival: Arrival, placement: &Placement) -> Result<Self> {
        let mut old_values = Vec::new();
        let mut notes = Vec::new();
        let mut raise = Vec::new();
        for (name, least) in SYSCTLS {
            let path = format!("/proc/sys/{}", name.replace('.', "/"));
            let value = fs::read_to_string(&path)
                .with_context(|| format!("cannot read {path}"))?
                .trim()
                .to_owned();
            if value.parse::<u64>().is_ok_and(|value| value < least) {
                notes.push(format!("{name} raised from {value} to {least} for the run"));
                raise.push(format!("sysctl -qw {name}={least}"));
                old_values.push((name, value));
            }
        }
        // First the way back, then the way there.
        let mut record = File::create(record_path())?;
        record.write_all(undo_lines(&old_values).as_bytes())?;
        record.sync_all()?;
        let janitor = Command::new("setsid")
            .args([
                "sh",
                "-c",
                // Without a word the runner has ended in the middle of a run, and its directory stays as well.
                "trap '' INT TERM HUP; read -r word || rm -rf \"$1\"; exec sh \"$0\"",
            ])
            .arg(record_path())
            .arg(Scratch::place())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start the janitor")?;
        let mut up = Self { janitor, notes };
        for line in raise {
            run(&line)?;
        }
        let ends = [
            (LOAD, "tb0", LOAD_ADDRESS, placement.load.last()),
            (RELAY, "tb1", LISTEN_ADDRESS, placement.relay.first()),
            (RELAY, "tb2", RELAY_ADDRESS, placement.relay.first()),
            (PEER, "tb3", PEER_ADDRESS, placement.peer.last()),
        ];
        for namespace in [LOAD, RELAY, PEER] {
            run(&format!("ip netns add {namespace}"))?;
            run(&format!("ip -n {namespace} link set lo up"))?;
        }
        run(&format!(
            "ip link add tb0 netns {LOAD} type veth peer name tb1 netns {RELAY}"
        ))?;
        run(&format!(
            "ip link add tb3 netns {PEER} type veth peer name tb2 netns {RELAY}"
        ))?;
        for (namespace, device, address, _) in ends {
            run(&format!(
                "ip -n {namespace} addr add {address}/24 dev {device}"
            ))?;
            run(&format!(
                "ip -n {namespace} link set {device} txqueuelen 1000 up"
            ))?;
        }
        // Load and peer reach each other without a server too, for measuring the instruments.
        run(&format!(
            "ip netns exec {RELAY} sysctl -qw net.ipv4.ip_forward=1"
        ))?;
        // Static neighbours: no ARP in the middle of a flood.
        for (near, far) in [(0, 1), (1, 0), (2, 3), (3, 2)] {
            let (namespace, device, ..) = ends[near];
            let (far_namespace, far_device, far_address, _) = ends[far];
            let hardware = run(&format!(
                "ip netns exec {far_namespace} cat /sys/class/net/{far_device}/address"
            ))?;
            run(&format!(
                "ip -n {namespace} neigh replace {far_address} lladdr {} dev {device}",
                hardware.trim()
            ))?;
        }
        run(&format!(
            "ip -n {LOAD} route add 10.99.2.0/24 via {LISTEN_ADDRESS}"
        ))?;
        run(&format!(
            "ip -n {PEER} route add 10.99.1.0/24 via {RELAY_ADDRESS}"
        ))?;
        match arrival {
            Arrival::Offloads => up.notes.push(
                "offloads on: a veth hands a segmentation buffer over whole; receiving runs on the sender's CPU".to_owned(),
            ),
            Arrival::Singly => {
                for (namespace, device) in [(LOAD, "tb0"), (PEER, "tb3")] {
                    run(&format!(
                        "ip netns exec {namespace} ethtool -K {device} tx-udp-segmentation off"
                    ))?;
                }
                let mut threads = Vec::new();
                for (namespace, device, _, cpu) in ends {
                    // GRO and threads alone are not enough: without forwarding GRO a veth passes UDP by netif_rx.
                    run(&format!(
                        "ip netns exec {namespace} ethtool -K {device} gro on rx-udp-gro-forwarding on"
                    ))?;
                    thread_napi(namespace, device, cpu)?;
                    threads.push(format!("napi/{device} on CPU {cpu}"));
                }
                up.notes.push(format!(
                    "datagrams singly: tx-udp-segmentation off at load and peer, GRO in threaded NAPI ({})",
                    threads.join(", ")
                ));
            }
        }
        Ok(up)
    }
}

/// Runs a line of words to its end.
fn run(line: &str) -> Result<String> {
    let mut words = line.split(' ');
    let output = Command::new(words.next().unwrap_or_default())
        .args(words)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("`{line}` does not start"))?;
    if !output.status.success() {
        bail!(
            "`{line}`: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Moves a device's receiving into its own kernel thread, on `cpu`.
fn thread_napi(namespace: &str, device: &str, cpu: usize) -> Result<()> {
    let file = format!("/sys/class/net/{device}/threaded");
    let status = Command::new("ip")
        .args(["netns", "exec", namespace, "sh", "-c"])
        .arg(format!("echo 1 > {file}"))
        .stdin(Stdio::null())
        .status()?;
    if !status.success() {
        bail!("cannot switch {device} to threaded NAPI");
    }
    let prefix = format!("napi/{device}-");
    for _ in 0..50 {
        for (pid, name) in kernel_threads() {
            if name.starts_with(&prefix) {
                run(&format!("taskset -pc {cpu} {pid}"))?;
                run(&format!("renice -n -5 -p {pid}"))?;
                return Ok(());
            }
        }
        thread::sleep(Duration::from_millis(20));
    }
    bail!("no thread {prefix}* appeared")
}

/// Returns the threads of this machine's kernel that work on packets.
fn kernel_threads() -> Vec<(u32, String)> {
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    processes
        .flatten()
        .filter_map(|process| {
            let pid = process.file_name().to_str()?.parse().ok()?;
            let name = fs::read_to_string(process.path().join("comm")).ok()?;
            Some((pid, name.trim().to_owned()))
        })
        .filter(|(_, name)| name.starts_with("napi/"))
        .collect()
}
