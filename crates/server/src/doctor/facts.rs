//! What the machine says of itself. What it does not say is not known, and no error.

use std::fs::read_to_string;

use rustix::process::{Resource, getrlimit};
use serde_json::{Value, json};
use turnbuckle_datapath::offload::{Kernel, Rings, Seed, driver, joins_datagrams, rings};
use turnbuckle_datapath::{RELAY_START_BYTES, grantable_receive_buffer};

use crate::binding;
use crate::config::Config;
use crate::offload::{Features, devices, features, first_line};

/// Capabilities that relaying in the kernel needs at the start (linux/capability.h).
const CAPABILITIES: [(&str, u32); 3] =
    [("CAP_NET_ADMIN", 12), ("CAP_PERFMON", 38), ("CAP_BPF", 39)];
/// Stands for `CAP_PERFMON` and `CAP_BPF`.
const SYS_ADMIN: u32 = 21;

/// What the machine says.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) release: String,
    /// `net.core.bpf_jit_enable`.
    pub(super) jit: Option<u32>,
    /// Capabilities that this process does not have.
    pub(super) lacking: Vec<&'static str>,
    /// Whether the kernel takes the XDP program, or why not.
    pub(super) program: Result<(), String>,
    pub(super) devices: Vec<Device>,
    /// The first and the last port that the kernel chooses for sockets that name none.
    pub(super) chosen_ports: Option<(u16, u16)>,
    /// Ports that it does not choose, from the first to the last of each range.
    pub(super) reserved_ports: Vec<(u16, u16)>,
    /// Why no relay socket can be opened at relay addresses that are named.
    pub(super) unusable_relays: Vec<String>,
    /// The most descriptors that a process may have.
    pub(super) descriptors: Option<u64>,
    /// What a relay socket gets of the receive buffer that it begins with.
    pub(super) receive_buffer: Option<u32>,
}

/// A device that has a listening or relay address.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) name: String,
    pub(super) mtu: u16,
    pub(super) driver: String,
    pub(super) rings: Option<Rings>,
    pub(super) features: Option<Features>,
    pub(super) has_program: bool,
    pub(super) joins_datagrams: bool,
}

impl Facts {
    /// Asks the machine, and has the kernel check the XDP program.
    pub(super) fn ask(config: &Config) -> Self {
        Self {
            program: Kernel::load(1, Seed(0))
                .map(drop)
                .map_err(|error| first_line(&error)),
            ..Self::ask_little(config)
        }
    }

    /// Asks the machine what costs it nothing. The kernel is taken to accept the XDP program.
    pub(super) fn ask_little(config: &Config) -> Self {
        let status = read_to_string("/proc/self/status").unwrap_or_default();
        let sysctl = |name: &str| read_to_string(format!("/proc/sys/net/{name}")).ok();
        let chosen = sysctl("ipv4/ip_local_port_range");
        Self {
            release: rustix::system::uname()
                .release()
                .to_string_lossy()
                .into_owned(),
            jit: sysctl("core/bpf_jit_enable").and_then(|it| it.trim().parse().ok()),
            lacking: lacking(&status),
            program: Ok(()),
            devices: devices_of(config),
            chosen_ports: chosen.as_deref().and_then(pair),
            reserved_ports: ranges(&sysctl("ipv4/ip_local_reserved_ports").unwrap_or_default()),
            unusable_relays: binding::unusable(config),
            descriptors: getrlimit(Resource::Nofile).maximum,
            receive_buffer: match config.process.user {
                // Relay sockets are opened with the rights of that user.
                Some(_) => sysctl("core/rmem_max").and_then(|it| it.trim().parse().ok()),
                None => grantable_receive_buffer(RELAY_START_BYTES).ok(),
            },
        }
    }

    /// Returns the facts for programs; null for what is not known.
    pub(super) fn json(&self) -> Value {
        let devices = self.devices.iter().map(|it| {
            json!({
                "name": it.name,
                "mtu": it.mtu,
                "driver": it.driver,
                "rings": it.rings.map(|it| json!({
                    "receive": it.receive, "receive_max": it.receive_max, "send": it.send, "send_max": it.send_max,
                })),
                "xdp": it.features.map(|it| json!({
                    "native": it.is_native, "redirects": it.redirects, "redirect_target": it.is_target,
                })),
                "has_program": it.has_program,
                "joins_datagrams": it.joins_datagrams,
            })
        });
        json!({
            "release": self.release,
            "architecture": std::env::consts::ARCH,
            "bpf_jit_enable": self.jit,
            "capabilities_lacking": self.lacking,
            "program_error": self.program.as_ref().err(),
            "devices": devices.collect::<Vec<_>>(),
            "chosen_ports": self.chosen_ports,
            "reserved_ports": self.reserved_ports,
            "unusable_relays": self.unusable_relays,
            "descriptors": self.descriptors,
            "receive_buffer": self.receive_buffer,
        })
    }
}

fn devices_of(config: &Config) -> Vec<Device> {
    let devices = devices(config).unwrap_or_default().into_iter();
    devices
        .map(|it| Device {
            driver: driver(&it.name).unwrap_or_else(|_| "unknown".into()),
            rings: rings(&it.name).ok(),
            features: features(it.index).ok(),
            joins_datagrams: joins_datagrams(&it.name).unwrap_or(true),
            has_program: it.has_program,
            mtu: it.mtu,
            name: it.name,
        })
        .collect()
}

/// Returns what is missing in the line `CapEff` of /proc/self/status.
fn lacking(status: &str) -> Vec<&'static str> {
    let mut lines = status.lines();
    let effective = lines.find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|it| u64::from_str_radix(it.trim(), 16).ok());
    let has = |bit: u32| bits.is_some_and(|bits| bits >> bit & 1 == 1);
    let needed = CAPABILITIES.into_iter();
    let missing =
        needed.filter(|&(name, bit)| !has(bit) && (name == "CAP_NET_ADMIN" || !has(SYS_ADMIN)));
    missing.map(|(name, _)| name).collect()
}

/// Returns two numbers with space between them.
fn pair(text: &str) -> Option<(u16, u16)> {
    let mut words = text.split_whitespace();
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

/// Returns ranges as ip_local_reserved_ports has them, `8080,9000-9010`.
fn ranges(text: &str) -> Vec<(u16, u16)> {
    let parts = text.trim().split(',');
    parts
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_writes_is_read() {
        assert_eq!(pair("32768\t60999\n"), Some((32768, 60999)));
        assert_eq!(ranges("8080,9000-9010\n"), [(8080, 8080), (9000, 9010)]);
        assert_eq!(ranges("\n"), []);
        let of = |bits: u64| lacking(&format!("Name:\tx\nCapEff:\t{bits:016x}\n"));
        assert_eq!(of(u64::MAX), [""; 0]);
        assert_eq!(of(1 << 12 | 1 << 21), [""; 0]);
        assert_eq!(of(1 << 21), ["CAP_NET_ADMIN"]);
        assert_eq!(of(1 << 12 | 1 << 39), ["CAP_PERFMON"]);
        assert_eq!(lacking(""), ["CAP_NET_ADMIN", "CAP_PERFMON", "CAP_BPF"]);
    }
}
