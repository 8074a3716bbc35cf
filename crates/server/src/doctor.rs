//! `turnbuckle doctor`: what this machine offers a configuration, and what is in its way. Nothing is opened for clients and no device is changed.
//!
//! [`facts`] asks the machine, [`examine`] judges what it says.

mod facts;

use std::fmt::Write as _;

use serde_json::{Value, json};
use turnbuckle_datapath::BURST_DATAGRAMS;

use self::facts::{Device, Facts};
use crate::binding;
use crate::config::{Config, Xdp};
use crate::tls::files;
use crate::translate;

/// How a finding is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// As it should be.
    Good,
    /// It works, and could be better.
    Advice,
    /// What the configuration insists on does not work.
    Wrong,
}

impl Verdict {
    const fn word(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Advice => "advice",
            Self::Wrong => "wrong",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    /// What it is about.
    topic: String,
    verdict: Verdict,
    text: String,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Examination {
    findings: Vec<Finding>,
    facts: Value,
}

impl Examination {
    /// Returns whether all that the configuration insists on works.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.count(Verdict::Wrong) == 0
    }

    /// Returns a line for each finding, and one that adds them up.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        for Finding {
            topic,
            verdict,
            text: finding,
        } in &self.findings
        {
            let _ = writeln!(text, "{:<7} {topic:<14} {finding}", verdict.word());
        }
        let (wrong, advice) = (self.count(Verdict::Wrong), self.count(Verdict::Advice));
        let _ = writeln!(text, "{wrong} wrong, {advice} could be better");
        text
    }

    /// Returns the same for programs: `good`, `findings`, and the `facts` that they are about.
    #[must_use]
    pub fn json(&self) -> Value {
        let findings = self.findings.iter();
        let findings = findings
            .map(|it| json!({ "topic": it.topic, "verdict": it.verdict.word(), "text": it.text }));
        json!({ "good": self.is_good(), "findings": findings.collect::<Vec<_>>(), "facts": self.facts })
    }

    fn count(&self, verdict: Verdict) -> usize {
        let all = self.findings.iter();
        all.filter(|it| it.verdict == verdict).count()
    }
}

/// Looks at the machine for a configuration. As root it has the kernel check the XDP program, which is given back at once.
#[must_use]
pub fn examine(config: &Config) -> Examination {
    let facts = Facts::ask(config);
    Examination {
        findings: findings(config, &facts),
        facts: facts.json(),
    }
}

/// Returns what to say at the start where relaying in the kernel is off on a machine that could.
pub(crate) fn unused_xdp(config: &Config) -> Option<String> {
    let is_off = config.datapath.offload.xdp == Xdp::Off;
    let facts = is_off.then(|| Facts::ask_little(config))?;
    Some(format!("xdp: {}", of_unused_xdp(config, &facts)?))
}

/// Returns the advice to relay in the kernel, where the machine has what that needs and the configuration does not ask for it.
fn of_unused_xdp(config: &Config, facts: &Facts) -> Option<String> {
    let devices = &config.addresses.devices;
    let is_bound = devices.listening.is_some() || devices.relay.is_some();
    let has_all = cfg!(target_arch = "x86_64")
        && facts.jit != Some(0)
        && facts.lacking.is_empty()
        && facts.program.is_ok()
        && !is_bound;
    if config.datapath.offload.xdp != Xdp::Off || !has_all {
        return None;
    }
    let is_native = |it: &&Device| it.features.is_some_and(|it| it.is_native) && !it.has_program;
    let names = facts.devices.iter().filter(is_native);
    let names: Vec<_> = names.map(|it| &it.name[..]).collect();
    (!names.is_empty()).then(|| {
        format!(
            "this machine can relay channels in the kernel, by {}; it pays for many calls of small datagrams: \
             `xdp=auto`",
            names.join(", ")
        )
    })
}

fn findings(config: &Config, facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |topic: &str, verdict: Verdict, text: String| {
        findings.push(Finding {
            topic: topic.to_owned(),
            verdict,
            text,
        });
    };
    let wanted = config.datapath.offload.xdp;
    // What is missing for relaying in the kernel weighs as much as the configuration wants it.
    let missing = match wanted {
        Xdp::On | Xdp::Generic => Verdict::Wrong,
        Xdp::Auto | Xdp::Off => Verdict::Advice,
    };
    let kernel = format!("Linux {}, {}", facts.release, std::env::consts::ARCH);
    add("kernel", Verdict::Good, kernel);
    match facts.jit {
        Some(0) => add(
            "JIT",
            missing,
            "net.core.bpf_jit_enable is 0: the kernel would interpret the XDP program, so it is not used".into(),
        ),
        Some(_) => add("JIT", Verdict::Good, "the kernel compiles BPF programs".into()),
        None => add(
            "JIT",
            Verdict::Good,
            "net.core.bpf_jit_enable cannot be read here; the check of the program below tells".into(),
        ),
    }
    match facts.lacking.is_empty() {
        true => add(
            "capabilities",
            Verdict::Good,
            "all that relaying in the kernel needs".into(),
        ),
        false => add(
            "capabilities",
            missing,
            format!(
                "for relaying in the kernel this process lacks {}",
                facts.lacking.join(", ")
            ),
        ),
    }
    match &facts.program {
        Ok(()) => add("XDP program", Verdict::Good, "the kernel takes it".into()),
        Err(why) => add(
            "XDP program",
            missing,
            format!("the kernel does not take it: {why}"),
        ),
    }
    if facts.devices.is_empty() {
        let text = "no device with a listening or relay address has Ethernet frames";
        add("devices", missing, text.into());
    }
    for device in &facts.devices {
        let (verdict, text) = of_device(device, wanted, missing);
        add(&device.name, verdict, text);
    }
    if let Some(text) = of_unused_xdp(config, facts) {
        add("xdp", Verdict::Advice, text);
    }
    let (verdict, text) = of_ports(config, facts);
    add("relay ports", verdict, text);
    for why in &facts.unusable_relays {
        add("relay-ip", Verdict::Wrong, why.clone());
    }
    if let Some(text) = binding::unreachable(config) {
        add("external-ip", Verdict::Advice, text);
    }
    let (verdict, text) = of_descriptors(config, facts.descriptors);
    add("descriptors", verdict, text);
    match files::examine(&config.tls) {
        Some(Ok(line)) => match line.strip_prefix("warning: ") {
            Some(line) => add("certificate", Verdict::Wrong, line.to_owned()),
            None => add("certificate", Verdict::Good, line),
        },
        Some(Err(why)) => add("certificate", Verdict::Wrong, why),
        None => {}
    }
    let (verdict, text) = of_receive_buffers(facts.receive_buffer);
    add("buffers", verdict, text);
    findings
}

fn of_device(device: &Device, wanted: Xdp, missing: Verdict) -> (Verdict, String) {
    let mut text = format!("driver {}, MTU {}", device.driver, device.mtu);
    if let Some(rings) = device.rings {
        let _ = write!(
            text,
            ", rings {} of {} in and {} of {} out",
            rings.receive, rings.receive_max, rings.send, rings.send_max
        );
    }
    let mut verdict = Verdict::Good;
    let mut problem = |text: &mut String, it: &str| {
        verdict = missing;
        text.push_str("; ");
        text.push_str(it);
    };
    let is_generic = wanted == Xdp::Generic;
    match device.features {
        Some(features) if features.is_native => {
            text.push_str(", native XDP");
            if !features.redirects || !features.is_target {
                text.push_str(" by this device alone, not to or from others");
            }
        }
        Some(_) if is_generic => text.push_str(", no native XDP, which generic does not need"),
        Some(_) => problem(
            &mut text,
            "its driver has no native XDP; `xdp=generic` needs none",
        ),
        None => text.push_str(", native XDP unknown (Linux 6.3 or later says)"),
    }
    if device.has_program {
        problem(
            &mut text,
            "another XDP program is attached, which is left alone",
        );
    }
    if is_generic && device.joins_datagrams {
        let it = format!("generic needs `ethtool -K {} gro off`", device.name);
        problem(&mut text, &it);
    }
    if verdict == Verdict::Good && device.rings.is_some_and(|it| it.receive < it.receive_max) {
        verdict = Verdict::Advice;
        let _ = write!(
            text,
            "; `ethtool -G {} rx {}` loses less when many packets come at once",
            device.name,
            device.rings.map_or(0, |it| it.receive_max)
        );
    }
    (verdict, text)
}

/// Judges whether relay ports are ports that the kernel chooses for others, which are then refused to clients.
fn of_ports(config: &Config, facts: &Facts) -> (Verdict, String) {
    let range = config.addresses.relay_ports;
    let (min, max) = (range.min.get(), range.max.get());
    let Some((first, last)) = facts.chosen_ports else {
        return (
            Verdict::Good,
            format!("{min} to {max}; which ports the kernel chooses for others cannot be read"),
        );
    };
    let is_reserved = |port: &u16| {
        let mut reserved = facts.reserved_ports.iter();
        reserved.any(|&(first, last)| (first..=last).contains(port))
    };
    let shared = (min.max(first)..=max.min(last)).filter(|port| !is_reserved(port));
    match shared.count() {
        0 => (
            Verdict::Good,
            format!("{min} to {max}, none of which the kernel chooses for others"),
        ),
        count => (
            Verdict::Advice,
            format!(
                "{min} to {max}; the kernel may choose {count} of them for other sockets of this machine: \
                 `sysctl net.ipv4.ip_local_reserved_ports={min}-{max}` keeps them free"
            ),
        ),
    }
}

fn of_descriptors(config: &Config, most: Option<u64>) -> (Verdict, String) {
    let Some(most) = most else {
        return (Verdict::Good, "no limit".into());
    };
    let range = config.addresses.relay_ports;
    let ports = u64::from(range.max.get() - range.min.get()) + 1;
    let wanted = ports * config.addresses.relays.len() as u64;
    match most >= wanted {
        true => (
            Verdict::Good,
            format!("{most}, for up to {wanted} relayed transport addresses"),
        ),
        false => (
            Verdict::Advice,
            format!(
                "{most}, fewer than the {wanted} relayed transport addresses that the ports are enough for: beyond them the answer is 508 \
                 (`ulimit -n`, `LimitNOFILE=` of the service)"
            ),
        ),
    }
}

fn of_receive_buffers(granted: Option<u32>) -> (Verdict, String) {
    let Some(granted) = granted else {
        let text = "how large receive buffers may be cannot be found out here";
        return (Verdict::Good, text.into());
    };
    match translate::short_receive_buffer(granted) {
        None => {
            let text = format!("a new relay socket holds {BURST_DATAGRAMS} full datagrams");
            (Verdict::Good, text)
        }
        Some(text) => (Verdict::Advice, text),
    }
}

#[cfg(test)]
mod tests;
