//! Network namespaces: the calling thread moves into one of its own and goes home when it is dropped.

use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sched::{CloneFlags, setns};
use nix::unistd::geteuid;

use crate::not_run::not_run;

/// A namespace that the thread which made it is in. Sockets and processes made by the thread belong to it.
pub(crate) struct Namespace {
    name: String,
    home: File,
}

static NEXT: AtomicU32 = AtomicU32::new(0);
/// `ip netns add` sets up its mount point when it is called first; two at once disturb each other.
static SETTING_UP: Mutex<()> = Mutex::new(());

impl Namespace {
    /// Makes a namespace, moves the thread there and runs `script`: a line is an `ip` command, in which `HERE` is the namespace's name, `sysctl`
    /// with a path below /proc/sys/net and a value, or a command of `ethtool`. Without root it says so and returns nothing; the test then ends.
    pub(crate) fn enter(script: &str) -> Option<Self> {
        if !geteuid().is_root() {
            not_run("needs root, for a network namespace");
            return None;
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tb-t-{}-{number}", std::process::id());
        let home = File::open("/proc/thread-self/ns/net").expect("this thread's namespace");
        {
            let _guard = SETTING_UP
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            ip(&format!("netns add {name}"));
        }
        let namespace = Self { name, home };
        let target = File::open(format!("/run/netns/{}", namespace.name)).expect("the namespace");
        setns(target, CloneFlags::CLONE_NEWNET).expect("root may enter");
        for line in script
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
        {
            match line.split_once(' ') {
                Some(("sysctl", rest)) => {
                    let (path, value) = rest.split_once(' ').expect("a path and a value");
                    std::fs::write(format!("/proc/sys/net/{path}"), value).expect("root may");
                }
                Some(("ethtool", rest)) => run("ethtool", rest),
                _ => ip(&line.replace("HERE", &namespace.name)),
            }
        }
        Some(namespace)
    }

    /// Returns its name, for `ip -n`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = setns(&self.home, CloneFlags::CLONE_NEWNET);
        let _ = Command::new("ip")
            .args(["netns", "del", &self.name])
            .status();
    }
}

fn ip(arguments: &str) {
    run("ip", arguments);
}

fn run(program: &str, arguments: &str) {
    let status = Command::new(program)
        .args(arguments.split_whitespace())
        .status();
    let status = status.expect("scripts/setup installs it");
    assert!(status.success(), "{program} {arguments}: {status}");
}

/// A namespace in which every address there is leads back to the host, so that one canary hears whatever the relay sends,
/// wherever it sends it. The relay has 20.0.0.1 and 2a00:20::1; what else the host has is as in a cloud: a private
/// network and the metadata services.
pub(crate) struct World {
    _namespace: Namespace,
}

impl World {
    /// Makes a namespace as [`Namespace::enter`] does. Clients and peers bind addresses that no interface has; for IPv4 the local route is enough.
    pub(crate) fn enter() -> Option<Self> {
        let namespace = Namespace::enter(
            "sysctl ipv6/ip_nonlocal_bind 1
             link set lo up
             link add tb0 type veth peer name tb1
             address add 20.0.0.1/24 dev tb0
             address add 2a00:20::1/64 dev tb0 nodad
             address add 10.77.0.1/24 dev tb0
             address add 169.254.169.254/32 dev tb0
             address add fd00:ec2::254/128 dev tb0 nodad
             link set tb1 up
             link set tb0 up
             route add local 0.0.0.0/0 dev lo
             -6 route add local ::/0 dev lo",
        )?;
        Some(Self {
            _namespace: namespace,
        })
    }

    /// Returns the relay's IPv4 address and port.
    pub(crate) fn server() -> SocketAddr {
        SocketAddr::new(IpAddr::from([20, 0, 0, 1]), 3478)
    }

    /// A port of some service, outside the range of relayed ports.
    pub(crate) const SERVICE_PORT: u16 = 7_000;

    /// The options by which the relay gives out both families.
    pub(crate) const RELAYS: [&str; 2] = ["--relay-ip=20.0.0.1", "--relay-ip=2a00:20::1"];

    /// Returns a public address of a client.
    pub(crate) fn client(host: u8) -> IpAddr {
        IpAddr::from([21, 0, 0, host])
    }
}
