//! Relaying in the kernel: starts the program, and says what runs and why not more.
//!
//! A shard's [`publisher`](publisher) shows the kernel which channels it may relay; the thread of [`neighbours`](neighbours) says by which way their
//! datagrams leave. [`Offload::screen`] says what cannot be a client's, so that the kernel drops it. What is in `turnbuckle_datapath::offload` knows
//! nothing of TURN.
//!
//! A relay that takes over from another one finds that one's program at the devices ([`Attachment`]). It goes on there, with the channels that it has,
//! until the shards have published what they have taken over; then ours runs in its place ([`Offload::begin`]). So there is no moment in which the kernel
//! relays nothing, and none after [`Offload::begin`] in which it relays what these shards would not.

mod features;
mod meters;
mod neighbours;
mod netlink;
pub(crate) mod publisher;

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use if_addrs::get_if_addrs;
use turnbuckle_datapath::offload::{
    Attach, Attachment, FirstBytes, Kernel, KernelRoutes, Listener, Mark, Seed,
};
use turnbuckle_engine::Meters;
use turnbuckle_wire::{Demux, MAGIC_COOKIE};

pub(crate) use self::features::{Features, features};
use self::meters::SharedMeters;
use self::neighbours::Neighbours;
use self::netlink::{Device, Netlink};
use crate::config::{Config, Xdp};
use crate::shard::train::protocol;

/// STUN messages begin with a smaller byte than this (RFC 8656 §12), and with a header of so many bytes (RFC 8489 §5).
const STUN_FIRST_BYTES: u8 = 4;
const STUN_HEADER_LEN: u8 = 20;

/// The program that runs, if one does. It is taken off its devices when this is dropped: what the process leaves to another one is not dropped.
#[derive(Debug)]
pub(crate) struct Offload {
    running: Option<Running>,
    line: String,
}

#[derive(Debug)]
struct Running {
    kernel: Kernel,
    /// What is left to be done once the shards have published their channels.
    due: Option<Due>,
    neighbours: Option<Neighbours>,
}

#[derive(Debug)]
struct Due {
    netlink: Netlink,
    /// Devices that another program runs at.
    replaced: Vec<(Attachment, Device)>,
    /// Indices of all devices.
    served: Vec<u32>,
}

impl Offload {
    /// Attaches the program to the devices that have listening and relay addresses, as far as the configuration wants it. Devices
    /// at which the program of the relay before is `attached` follow with [`Self::begin`]; from others that one is taken off.
    ///
    /// # Errors
    ///
    /// The configuration insists on it, and it cannot be; in words.
    pub(crate) fn start(config: &Config, attached: Vec<Attachment>) -> Result<Self, String> {
        let wanted = config.datapath.offload.xdp;
        if wanted == Xdp::Off {
            return Ok(Self {
                running: None,
                line: "xdp: off, as configured".into(),
            });
        }
        match run(config, attached) {
            Ok((running, line)) => Ok(Self {
                running: Some(running),
                line,
            }),
            Err(why) if wanted == Xdp::Auto => Ok(Self {
                running: None,
                line: format!("xdp: off, because {why}"),
            }),
            Err(why) => Err(format!("xdp: {why}")),
        }
    }

    /// Has the program run in place of that of the relay before, and next hops be looked up. To be called when the shards have published what they have
    /// taken over, and before anything of theirs leaves that may end a channel.
    ///
    /// # Errors
    ///
    /// The program does not run where it has to, in words.
    pub(crate) fn begin(&mut self, config: &Config) -> Result<(), String> {
        let Some(running) = &mut self.running else {
            return Ok(());
        };
        let Some(due) = running.due.take() else {
            return Ok(());
        };
        let follow = Neighbours::follow(due.netlink, running.kernel.hops(), due.served);
        running.neighbours = Some(follow.map_err(|error| format!("xdp: netlink: {error}"))?);
        for (attachment, device) in due.replaced {
            let replaced = running.kernel.replace(attachment, device.address);
            let Err(error) = replaced else {
                continue;
            };
            let why = format!("{}: {}", device.name, first_line(&error));
            if config.datapath.offload.xdp != Xdp::Auto {
                return Err(format!("xdp: {why}"));
            }
            let _ = write!(self.line, "; not on {why}");
        }
        Ok(())
    }

    /// Returns the line that says what runs, and why not more.
    pub(crate) fn line(&self) -> &str {
        &self.line
    }

    /// Returns what a shard publishes its channels with.
    pub(crate) fn routes(&self) -> Option<KernelRoutes> {
        self.running.as_ref().map(|it| it.kernel.routes())
    }

    /// Returns the buckets of allocations' rates, if the kernel is to charge them too.
    pub(crate) fn meters(&self) -> Option<Arc<dyn Meters>> {
        let routes = self.routes()?;
        Some(Arc::new(SharedMeters::new(routes.meters())))
    }

    /// Has the kernel drop, at these listeners, what the shards would drop by its first bytes alone. To be called again when listeners or rules have
    /// changed.
    pub(crate) fn screen(&self, config: &Config, listeners: impl Iterator<Item = SocketAddr>) {
        let Some(running) = &self.running else {
            return;
        };
        // What is not served at all has another reason.
        if !config.addresses.udp {
            return;
        }
        // What a proxy sends begins with a header.
        let has_proxies = !config.protocols.proxies.datagram_sources.is_empty();
        let first_bytes = match has_proxies {
            true => (0..=u8::MAX).collect(),
            false => served(config.tls.quic_files().is_some()),
        };
        let has_mark = !config.stun.rfc3489_binding && !has_proxies;
        let mark = Mark {
            first_bytes_below: STUN_FIRST_BYTES,
            header_len: STUN_HEADER_LEN,
            bytes: MAGIC_COOKIE.to_be_bytes(),
        };
        let routes = running.kernel.routes();
        for address in listeners {
            // Where there is no room for one more, the shards drop it all.
            let _ = routes.screen().set(&Listener {
                address,
                first_bytes,
                mark: has_mark.then_some(mark),
            });
        }
    }

    /// Returns a line that says how many datagrams of published channels were left to the shards, or `None` if there were none.
    pub(crate) fn passed(&self) -> Option<String> {
        let passes = self.running.as_ref()?.kernel.passes();
        let reasons = [
            ("channel expired", passes.expired),
            ("channel being changed", passes.changing),
            ("next hop not known", passes.next_hop),
            ("larger than the MTU", passes.too_large),
            ("checksum left to a device", passes.checksum),
            ("no room before the packet", passes.headroom),
            ("padding not zero", passes.padding),
        ];
        let mut line = "xdp: left to the shards".to_owned();
        let mut separator = ": ";
        for (reason, count) in reasons.into_iter().filter(|(_, count)| *count > 0) {
            let _ = write!(line, "{separator}{reason} {count}");
            separator = ", ";
        }
        (separator != ": ").then_some(line)
    }
}

/// Returns how a datagram begins that a shard does not drop as `protocol_unknown`. QUIC's short headers begin as channel messages may.
fn served(has_quic: bool) -> FirstBytes {
    let is_served = |first: &u8| match protocol(*first) {
        Demux::Stun | Demux::ChannelData | Demux::Dtls => true,
        Demux::Quic => has_quic,
        Demux::Zrtp | Demux::Rtp | Demux::Reserved => false,
    };
    (0..=u8::MAX).filter(is_served).collect()
}

/// Starts the program.
fn run(config: &Config, mut before: Vec<Attachment>) -> Result<(Running, String), String> {
    let given = [
        &config.addresses.devices.listening,
        &config.addresses.devices.relay,
    ];
    if given.into_iter().any(Option::is_some) {
        return Err(
            "sockets are bound to a device by listening-device or relay-device, which the \
             program does not know"
                .into(),
        );
    }
    let generic = config.datapath.offload.xdp == Xdp::Generic;
    let attach = if generic {
        Attach::Generic
    } else {
        Attach::Native
    };
    let mut netlink = Netlink::open().map_err(|error| format!("netlink: {error}"))?;
    let devices = devices_by(config, &mut netlink)?;
    if devices.is_empty() {
        return Err("no device with a listening or relay address has Ethernet frames".into());
    }
    if let Some(device) = devices.iter().find(|_| generic).filter(|it| it.has_gro()) {
        // A buffer of several datagrams would be relayed as one.
        return Err(format!(
            "generic needs `ethtool -K {} gro off`, because several datagrams would be taken for one",
            device.name
        ));
    }
    let mut seed = [0; 8];
    getrandom::fill(&mut seed).map_err(|error| format!("no random numbers: {error}"))?;
    let channels = config.datapath.offload.channels;
    let mut kernel = Kernel::load(channels, Seed(u64::from_ne_bytes(seed))).map_err(|error| {
        format!(
            "the kernel does not take the program: {}",
            first_line(&error)
        )
    })?;
    let mut names = Vec::new();
    let mut refused = Vec::new();
    let mut served = Vec::new();
    let mut replaced = Vec::new();
    for device in devices {
        let index = before.iter().position(|it| it.device() == device.index);
        let same = index.map(|index| before.swap_remove(index));
        // Attached in another way, it is taken off.
        if let Some(attachment) = same.filter(|_| device.attached == Some(attach)) {
            names.push(device.name.clone());
            served.push(device.index);
            replaced.push((attachment, device));
            continue;
        }
        match kernel.attach(device.index, device.address, attach) {
            Ok(()) => {
                names.push(device.name);
                served.push(device.index);
            }
            Err(error) => refused.push(format!("{}: {}", device.name, first_line(&error))),
        }
    }
    let refused = refused.join("; ");
    let must_be_all = config.datapath.offload.xdp != Xdp::Auto;
    if names.is_empty() || (must_be_all && !refused.is_empty()) {
        return Err(refused);
    }
    let mode = if generic { "generic" } else { "native" };
    let mut line = format!(
        "xdp: {mode} on {}, room for {channels} channels of each family",
        names.join(", ")
    );
    if !refused.is_empty() {
        let _ = write!(line, "; not on {refused}");
    }
    let running = Running {
        kernel,
        due: Some(Due {
            netlink,
            replaced,
            served,
        }),
        neighbours: None,
    };
    Ok((running, line))
}

/// Returns the devices that have a listening or relay address, and Ethernet frames.
///
/// # Errors
///
/// The kernel does not say; in words.
pub(crate) fn devices(config: &Config) -> Result<Vec<Device>, String> {
    let mut netlink = Netlink::open().map_err(|error| format!("netlink: {error}"))?;
    devices_by(config, &mut netlink)
}

fn devices_by(config: &Config, netlink: &mut Netlink) -> Result<Vec<Device>, String> {
    let listeners = config.addresses.listeners.iter().map(|it| it.ip());
    let former = config.addresses.former.addresses.iter();
    let relays = config.addresses.relays.iter().copied();
    let used: Vec<IpAddr> = listeners
        .chain(relays.chain(former.map(|it| it.local)))
        .collect();
    let all = get_if_addrs().map_err(|error| format!("cannot read the addresses: {error}"))?;
    let mut devices: Vec<Device> = Vec::new();
    for interface in all.iter().filter(|it| used.contains(&it.ip())) {
        let Some(index) = interface.index else {
            continue;
        };
        if devices.iter().all(|device| device.index != index) {
            let found = netlink
                .device(index)
                .map_err(|error| format!("{}: {error}", interface.name))?;
            devices.extend(found);
        }
    }
    Ok(devices)
}

/// Returns the first line of an error; the kernel's verifier says very much more.
pub(crate) fn first_line(error: &impl ToString) -> String {
    let words = error.to_string();
    words.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::served;

    #[test]
    fn long_headers_of_quic_reach_the_shards_where_quic_is_served() {
        let long_headers = 192..=u8::MAX;
        for first in 0..=u8::MAX {
            let (without, with) = (served(false).contains(first), served(true).contains(first));
            match long_headers.contains(&first) {
                true => assert_eq!((without, with), (false, true), "{first}"),
                false => assert_eq!(without, with, "{first}"),
            }
        }
        assert!((64..=127).all(|short_header| served(true).contains(short_header)));
    }
}
