//! Listening, relay and external addresses and ports (coturn inventory §1.1): names looked up, wildcards replaced, and whether they fit together.

pub(crate) mod external;
pub(crate) mod former;
pub(crate) mod local;

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;

use turnbuckle_engine::{AddressRange, DefaultFamily};

use self::external::{ExternalAddress, external_addresses};
use self::former::FormerRelays;
use self::local::{Chosen, Devices, LaterAddresses, choose, outward};
use super::auxiliary;
use super::nat_discovery::{self, NatDiscovery};
use super::tls::Tls;
use crate::choice::{Choice, chosen, kind_of, word};
use crate::entry::Group;
use crate::findings::Findings;
use crate::machine::Machine;
use crate::problem::Origin;
use crate::row::{Row, Setting, Topic, each, one};
use crate::value::Kind;

/// The given values about addresses.
#[derive(Default)]
pub(crate) struct GivenAddresses {
    pub(crate) listening_port: u16,
    listening_device: Option<Box<str>>,
    relay_device: Option<Box<str>>,
    pub(crate) no_udp: bool,
    pub(crate) no_tcp: bool,
    listening_ips: Vec<(String, Origin)>,
    relay_ips: Vec<(String, Origin)>,
    external_ips: Vec<(String, Origin)>,
    /// The lowest and the highest port.
    relay_ports: (u16, u16),
    family: Family,
    pub(crate) auxiliary: auxiliary::GivenAuxiliary,
    pub(crate) discovery: nat_discovery::GivenNatDiscovery,
}

/// The given family of an allocation whose client requested none, by either of its keys.
#[derive(Default)]
struct Family {
    default: DefaultFamily,
    is_kept: bool,
}

/// Addresses of both sides of the relay.
#[derive(Debug, Clone)]
pub struct Addresses {
    /// Addresses to listen on; never empty, no duplicates, no wildcard: `0.0.0.0` and `::` stand here as the addresses of the machine.
    pub listeners: Vec<SocketAddr>,
    /// Further addresses to listen on, with a port of their own each; none of them occurs twice or among the others. They have no
    /// part in NAT behaviour discovery.
    pub auxiliary: Vec<SocketAddr>,
    /// NAT behaviour discovery, if it is served.
    pub discovery: Option<NatDiscovery>,
    /// Clients are served by UDP there. Of UDP, TCP and TLS there is at least one.
    pub udp: bool,
    /// Clients are served by TCP there.
    pub tcp: bool,
    /// Local addresses for relayed transport addresses; never empty, no duplicates, no wildcard.
    pub relays: Vec<IpAddr>,
    /// Where calls relay from that a server before has left to this one.
    pub former: FormerRelays,
    /// One-to-one address translation in front of this machine; at most one entry per private address.
    pub external: Vec<ExternalAddress>,
    /// How addresses that the machine gets later are treated.
    pub later: LaterAddresses,
    /// Ports of relayed transport addresses.
    pub relay_ports: PortRange,
    /// Family of an allocation whose client requested none (RFC 8656 §7.2 says IPv4).
    pub default_family: DefaultFamily,
    /// Network interfaces that sockets are bound to.
    pub devices: Devices,
}

/// Ports from `min` to `max`, both included; `min <= max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortRange {
    /// The lowest port.
    pub min: NonZeroU16,
    /// The highest port.
    pub max: NonZeroU16,
}

impl Topic for GivenAddresses {
    type Settings = Addresses;
}

impl Choice for DefaultFamily {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("ipv4", Self::V4),
        ("ipv6", Self::V6),
        ("keep", Self::Client),
    ];
}

type Key = Row<GivenAddresses>;

pub(crate) const ROWS: &[Key] = &[
    Key::new(
        "O-001",
        "listening-device",
        Group::Addresses,
        Kind::Text(15),
        "Network interface that listeners are bound to: what arrives at another one is not \
         theirs.",
    )
    .short('d')
    .default("(none)")
    .example("eth0")
    .works(Setting {
        take: |given, written| {
            given.listening_device = Some(device(written.value.text())?);
            Ok(())
        },
        show: |addresses| each(&addresses.devices.listening),
    }),
    Key::new(
        "O-002",
        "listening-port",
        Group::Addresses,
        Kind::Port,
        "Port on which clients are served, by UDP and by TCP.",
    )
    .short('p')
    .default("3478")
    .stricter("port 0 is refused")
    .works(Setting {
        take: |given, written| {
            given.listening_port = written.value.number()?;
            Ok(())
        },
        show: |addresses| each(addresses.listeners.first().map(SocketAddr::port)),
    }),
    Key::new(
        "O-007",
        "listening-ip",
        Group::Addresses,
        Kind::Address,
        "Address to listen on. 0.0.0.0 and :: stand for all addresses of the machine of that \
         family, without link-local ones, also for addresses that the machine gets later. \
         Leaving the key out means both.",
    )
    .short('L')
    .repeatable()
    .default("(all addresses of the machine)")
    .stricter("link-local, multicast and IPv4-mapped addresses are refused")
    .example("10.1.2.3")
    .works(Setting {
        take: |given, written| {
            given.listening_ips.push(written.placed_text());
            Ok(())
        },
        show: |addresses| each(addresses.listeners.iter().map(SocketAddr::ip)),
    }),
    Key::new(
        "O-009",
        "udp-self-balance",
        Group::Addresses,
        Kind::Flag,
        "Redirects clients in turn to the auxiliary listeners.",
    )
    .default("false")
    .only(&["false"], "the kernel spreads clients over the shards"),
    Key::new(
        "O-010",
        "relay-device",
        Group::Addresses,
        Kind::Text(15),
        "Network interface that relay sockets are bound to.",
    )
    .short('i')
    .default("(none)")
    .example("eth0")
    .works(Setting {
        take: |given, written| {
            given.relay_device = Some(device(written.value.text())?);
            Ok(())
        },
        show: |addresses| each(&addresses.devices.relay),
    }),
    Key::new(
        "O-011",
        "relay-ip",
        Group::Addresses,
        Kind::Address,
        "Local address of relayed transport addresses; several of a family are used in turn. \
         Without the key: the listening addresses if given, else those that the machine has at the \
         time, of each family the public ones, or the private ones where it has no public one.",
    )
    .short('E')
    .repeatable()
    .default("(listening addresses, or those of the machine)")
    .stricter("link-local, multicast and IPv4-mapped addresses are refused")
    .example("10.1.2.3")
    .works(Setting {
        take: |given, written| {
            given.relay_ips.push(written.placed_text());
            Ok(())
        },
        show: |addresses| each(&addresses.relays),
    }),
    Key::new(
        "O-012",
        "external-ip",
        Group::Addresses,
        Kind::ExternalAddress,
        "Public address under which a one-to-one translator makes relay addresses reachable. \
         Alone it stands for every relay address of its family; public/private maps one.",
    )
    .short('X')
    .repeatable()
    .stricter(
        "one single form per family, private parts must be relay addresses, and no peer address \
         is allowed in consequence",
    )
    .example("203.0.113.5/10.1.2.3")
    .works(Setting {
        take: |given, written| {
            given.external_ips.push(written.placed_text());
            Ok(())
        },
        show: |addresses| {
            let entries = addresses.external.iter();
            each(entries.map(|entry| format!("{}/{}", entry.public, entry.private)))
        },
    }),
    Key::new(
        "O-013",
        "min-port",
        Group::Addresses,
        Kind::Port,
        "Lowest port of relayed transport addresses.",
    )
    .default("49152")
    .works(Setting {
        take: |given, written| {
            given.relay_ports.0 = written.value.number()?;
            Ok(())
        },
        show: |addresses| one(addresses.relay_ports.min),
    }),
    Key::new(
        "O-014",
        "max-port",
        Group::Addresses,
        Kind::Port,
        "Highest port of relayed transport addresses.",
    )
    .default("65535")
    .works(Setting {
        take: |given, written| {
            given.relay_ports.1 = written.value.number()?;
            Ok(())
        },
        show: |addresses| one(addresses.relay_ports.max),
    }),
    Key::new(
        "O-016",
        "no-udp",
        Group::Addresses,
        Kind::Flag,
        "No plain UDP; DTLS is another matter.",
    )
    .default("false")
    .works(Setting {
        take: |given, written| {
            given.no_udp = written.value.flag();
            Ok(())
        },
        show: |addresses| one(!addresses.udp),
    }),
    Key::new(
        "O-017",
        "no-tcp",
        Group::Addresses,
        Kind::Flag,
        "No listeners for TCP.",
    )
    .default("false")
    .works(Setting {
        take: |given, written| {
            given.no_tcp = written.value.flag();
            Ok(())
        },
        show: |addresses| one(!addresses.tcp),
    }),
    Key::new(
        "O-023",
        "keep-address-family",
        Group::Addresses,
        Kind::Flag,
        "Old form of allocation-default-address-family=keep.",
    )
    .short('K')
    .default("false")
    .new_sessions()
    .works(Setting {
        take: |given, written| {
            given.family.is_kept = written.value.flag();
            Ok(())
        },
        show: |addresses| one(addresses.default_family == DefaultFamily::Client),
    }),
    Key::new(
        "O-024",
        "allocation-default-address-family",
        Group::Addresses,
        kind_of!(DefaultFamily),
        "Family of the relayed address for clients that do not ask for one; keep means the \
         family of the client's own address.",
    )
    .short('A')
    .default("ipv4")
    .new_sessions()
    .works(Setting {
        take: |given, written| {
            given.family.default = chosen(written.value.text())?;
            Ok(())
        },
        show: |addresses| one(word(addresses.default_family)),
    }),
    Key::new(
        "O-025",
        "server-relay",
        Group::Addresses,
        Kind::Flag,
        "Lets peers reach clients without a permission.",
    )
    .default("false")
    .only(
        &["false"],
        "without permissions anyone could send to clients through the relay (RFC 8656 §9)",
    ),
];

/// Checks the name of an interface as the kernel allows it (`dev_valid_name` of net/core/dev.c).
fn device(text: &str) -> Result<Box<str>, String> {
    let is_name = !matches!(text, "" | "." | "..")
        && text
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'/' | b':'));
    match is_name {
        true => Ok(text.into()),
        false => Err("is not the name of a network interface, such as eth0".to_owned()),
    }
}

/// Reports contradictions among ports and families. Swapped port bounds are corrected where the start goes on.
pub(crate) fn check(given: &mut GivenAddresses, findings: &mut Findings) {
    let (min, max) = given.relay_ports;
    if min > max {
        let key = match findings.is_given("min-port") {
            true => "min-port",
            false => "max-port",
        };
        let origin = findings.origin(key);
        given.relay_ports = (max, min);
        findings.misfit(
            &origin,
            key,
            format!("min-port {min} is above max-port {max}; allowed: min-port up to max-port"),
            "taken the other way round",
        );
    }
    if given.family.is_kept
        && findings.is_given("allocation-default-address-family")
        && given.family.default != DefaultFamily::Client
    {
        findings.problem(
            "keep-address-family",
            "contradicts `allocation-default-address-family`; give that one alone",
        );
    }
}

/// Values of other topics that concern addresses.
pub(crate) struct Others<'a> {
    pub(crate) tls: &'a Tls,
    pub(crate) denied_peers: &'a [AddressRange],
    pub(crate) answers_binding: bool,
}

/// Completes the addresses with those of `machine`.
pub(crate) fn finish(
    given: GivenAddresses,
    others: &Others<'_>,
    machine: &Machine,
    findings: &mut Findings,
) -> Addresses {
    let devices = Devices {
        listening: given.listening_device,
        relay: given.relay_device,
    };
    let chosen = choose(
        &given.listening_ips,
        &given.relay_ips,
        &devices,
        others.denied_peers,
        machine,
        findings,
    );
    let Chosen {
        listeners,
        relays,
        later,
    } = chosen;
    let (external, external_of_all) =
        external_addresses(given.external_ips, &relays, &later, machine, findings);
    let port = given.listening_port;
    let service = nat_discovery::Service {
        port,
        tls: others.tls,
        answers_binding: others.answers_binding,
    };
    let discovery =
        nat_discovery::finish(&given.discovery, &service, &listeners, &external, findings);
    let mut ports = vec![port];
    ports.extend(others.tls.files().map(|_| others.tls.port));
    if let Some(discovery) = &discovery {
        ports.push(discovery.port);
        ports.extend(discovery.tls_port);
    }
    let auxiliary = auxiliary::finish(given.auxiliary, &listeners, &ports, machine, findings);
    let nonzero = |port| NonZeroU16::new(port).unwrap_or(NonZeroU16::MIN);
    let (min, max) = given.relay_ports;
    Addresses {
        listeners: listeners
            .into_iter()
            .map(|ip| SocketAddr::new(ip, port))
            .collect(),
        auxiliary,
        discovery,
        udp: !given.no_udp,
        tcp: !given.no_tcp,
        relays,
        former: FormerRelays::default(),
        external,
        later: LaterAddresses {
            external_of_all,
            ..later
        },
        relay_ports: PortRange {
            min: nonzero(min),
            max: nonzero(max),
        },
        default_family: match given.family.is_kept {
            true => DefaultFamily::Client,
            false => given.family.default,
        },
        devices,
    }
}

impl Addresses {
    /// Returns whether some of the addresses have others in front of them, by which clients elsewhere reach them.
    pub(crate) fn has_external(&self) -> bool {
        !self.external.is_empty() || !self.later.external_of_all.is_empty()
    }

    /// Returns whether a wildcard stands for `address`.
    #[must_use]
    pub fn stands_for(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => self.later.every_ipv4 && !v4.is_link_local(),
            IpAddr::V6(v6) => self.later.every_ipv6 && !v6.is_unicast_link_local(),
        }
    }

    /// Returns the address by which others reach `local`.
    #[must_use]
    pub fn public(&self, local: IpAddr) -> IpAddr {
        if let Some(entry) = self.external.iter().find(|entry| entry.private == local) {
            return entry.public;
        }
        let later = &self.later;
        let is_later =
            later.follows_relays && !local.is_loopback() && !self.relays.contains(&local);
        let of_family = |public: &&IpAddr| public.is_ipv4() == local.is_ipv4();
        let of_all = later.external_of_all.iter().find(of_family);
        of_all.filter(|_| is_later).copied().unwrap_or(local)
    }

    /// Returns the relay addresses on a machine that now has the addresses `system`, without link-local ones, where `relay-ip` is not given.
    #[must_use]
    pub fn relays_among(&self, system: &[IpAddr]) -> Vec<IpAddr> {
        let mut relays = outward(system);
        if !self.later.relays_ipv6 && relays.iter().any(IpAddr::is_ipv4) {
            relays.retain(IpAddr::is_ipv4);
        }
        relays
    }
}
