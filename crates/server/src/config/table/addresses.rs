//! Listening, relay and external addresses and ports (coturn inventory §1.1).

use crate::config::entry::{Entry, Group};
use crate::config::settings::DefaultFamily;
use crate::config::value::Kind;

use super::{flag, one};

const GROUP: Group = Group::Addresses;

pub(super) const ENTRIES: &[Entry] = &[
    Entry::new(
        "O-001",
        "listening-device",
        GROUP,
        Kind::Text(15),
        "Network interface that listeners are bound to: what arrives at another one is not theirs.",
    )
    .short('d')
    .default("(none)")
    .works(
        |draft, value, _| {
            draft.listening_device = Some(device(value.text())?);
            Ok(())
        },
        |config| config.addresses.listening_device.iter().map(ToString::to_string).collect(),
    ),
    Entry::new("O-002", "listening-port", GROUP, Kind::Port, "Port on which clients are served, by UDP and by TCP.")
        .short('p')
        .default("3478")
        .stricter("port 0 is refused")
        .works(
            |draft, value, _| {
                draft.listening_port = value.port();
                Ok(())
            },
            |config| config.addresses.listeners.first().map(|address| address.port().to_string()).into_iter().collect(),
        ),
    Entry::new(
        "O-003",
        "tls-listening-port",
        GROUP,
        Kind::Port,
        "Port for TLS and DTLS, if `cert` and `pkey` are given. They are recognised on `listening-port` too, and plain TCP and UDP here, unless switched off.",
    )
    .default("5349")
    .stricter("port 0 is refused")
    .works(
        |draft, value, _| {
            draft.tls.port = value.port();
            Ok(())
        },
        |config| one(config.tls.port),
    ),
    Entry::new(
        "O-004",
        "alt-listening-port",
        GROUP,
        Kind::Integer { min: 0, max: 65535, unit: "" },
        "Second port for NAT behaviour discovery, open with `rfc5780` only; 0 means listening-port + 1.",
    )
    .default("0")
    .works(
        |draft, value, _| {
            draft.alt_listening_port = value.port();
            Ok(())
        },
        |config| one(config.addresses.discovery.as_ref().map_or(0, |discovery| discovery.port)),
    ),
    Entry::new(
        "O-005",
        "alt-tls-listening-port",
        GROUP,
        Kind::Integer { min: 0, max: 65535, unit: "" },
        "Second port for TLS, open with `rfc5780` only; 0 means tls-listening-port + 1.",
    )
    .default("0")
    .works(
        |draft, value, _| {
            draft.alt_tls_listening_port = value.port();
            Ok(())
        },
        |config| one(config.addresses.discovery.as_ref().and_then(|discovery| discovery.tls_port).unwrap_or(0)),
    ),
    Entry::new(
        "O-006",
        "tcp-proxy-port",
        GROUP,
        Kind::Port,
        "TCP port for proxies: every connection begins with a PROXY protocol header, version 1 or 2, and comes from a `proxy-protocol-source`. It takes the \
         place of the other ports for TCP and TLS; TLS is recognised behind the header.",
    )
    .stricter("needs `proxy-protocol-source`")
    .works(
        |draft, value, _| {
            draft.proxies.port = Some(value.port());
            Ok(())
        },
        |config| config.proxies.port.iter().map(ToString::to_string).collect(),
    ),
    Entry::new(
        "",
        "proxy-protocol-source",
        GROUP,
        Kind::PeerRange,
        "Addresses of proxies: connections from there begin with a PROXY protocol header, version 1 or 2, on whatever port; connections from elsewhere \
         that begin with one are closed.",
    )
    .repeatable()
    .default("(none)")
    .works(
        |draft, value, _| {
            draft.proxies.sources.push(value.range().canonical());
            Ok(())
        },
        |config| config.proxies.sources.iter().map(ToString::to_string).collect(),
    ),
    Entry::new(
        "",
        "udp-proxy-protocol-source",
        GROUP,
        Kind::PeerRange,
        "Addresses of proxies for UDP: each datagram from there begins with a PROXY protocol header, version 2. Sources of datagrams can be forged: name only \
         what a firewall keeps others from using. DTLS is recognised behind the header.",
    )
    .repeatable()
    .default("(none)")
    .works(
        |draft, value, _| {
            draft.proxies.datagram_sources.push(value.range().canonical());
            Ok(())
        },
        |config| config.proxies.datagram_sources.iter().map(ToString::to_string).collect(),
    ),
    Entry::new(
        "O-007",
        "listening-ip",
        GROUP,
        Kind::Address,
        "Address to listen on. 0.0.0.0 and :: stand for all addresses of the machine of that family, without link-local ones; so does leaving the key out, \
         for both families.",
    )
    .short('L')
    .repeatable()
    .default("(all addresses of the machine)")
    .stricter("link-local, multicast and IPv4-mapped addresses are refused")
    .works(
        |draft, value, origin| {
            draft.listening_ips.push((value.text().to_owned(), origin.clone()));
            Ok(())
        },
        |config| config.addresses.listeners.iter().map(|address| address.ip().to_string()).collect(),
    ),
    Entry::new(
        "O-008",
        "aux-server",
        GROUP,
        Kind::AddressPort,
        "Further address to listen on, with its port, by UDP and by TCP; TLS is recognised there, nobody is sent to another server, and NAT behaviour discovery is not served.",
    )
    .repeatable()
    .stricter("the port has to be given")
    .works(
        |draft, value, origin| {
            draft.auxiliary.push((value.text().to_owned(), origin.clone()));
            Ok(())
        },
        |config| config.addresses.auxiliary.iter().map(ToString::to_string).collect(),
    ),
    Entry::new("O-009", "udp-self-balance", GROUP, Kind::Flag, "Redirects clients in turn to the auxiliary listeners.")
        .default("false")
        .only(&["false"], "the kernel spreads clients over the shards"),
    Entry::new("O-010", "relay-device", GROUP, Kind::Text(15), "Network interface that relay sockets are bound to.")
        .short('i')
        .default("(none)")
        .works(
            |draft, value, _| {
                draft.relay_device = Some(device(value.text())?);
                Ok(())
            },
            |config| config.addresses.relay_device.iter().map(ToString::to_string).collect(),
        ),
    Entry::new(
        "O-011",
        "relay-ip",
        GROUP,
        Kind::Address,
        "Local address of relayed transport addresses; several of a family are used in turn. Without the key: the listening addresses if given, else \
         those of the machine, of each family the public ones, or the private ones where it has no public one.",
    )
    .short('E')
    .repeatable()
    .default("(listening addresses, or those of the machine)")
    .stricter("link-local, multicast and IPv4-mapped addresses are refused")
    .works(
        |draft, value, origin| {
            draft.relay_ips.push((value.text().to_owned(), origin.clone()));
            Ok(())
        },
        |config| config.addresses.relays.iter().map(ToString::to_string).collect(),
    ),
    Entry::new(
        "O-012",
        "external-ip",
        GROUP,
        Kind::ExternalAddress,
        "Public address under which a one-to-one translator makes relay addresses reachable. Alone it stands for every relay address of its family; \
         public/private maps one.",
    )
    .short('X')
    .repeatable()
    .stricter("one single form per family, private parts must be relay addresses, and no peer address is allowed in consequence")
    .works(
        |draft, value, origin| {
            draft.external_ips.push((value.text().to_owned(), origin.clone()));
            Ok(())
        },
        |config| config.addresses.external.iter().map(|entry| format!("{}/{}", entry.public, entry.private)).collect(),
    ),
    Entry::new("O-013", "min-port", GROUP, Kind::Port, "Lowest port of relayed transport addresses.").default("49152").works(
        |draft, value, _| {
            draft.min_port = value.port();
            Ok(())
        },
        |config| one(config.addresses.relay_ports.min),
    ),
    Entry::new("O-014", "max-port", GROUP, Kind::Port, "Highest port of relayed transport addresses.").default("65535").works(
        |draft, value, _| {
            draft.max_port = value.port();
            Ok(())
        },
        |config| one(config.addresses.relay_ports.max),
    ),
    Entry::new(
        "O-015",
        "sock-buf-size",
        GROUP,
        Kind::Integer { min: 4096, max: 1 << 30, unit: "bytes" },
        "Size of the kernel's receive and send buffers of listeners; the kernel may grant less.",
    )
    .default("2097152")
    .stricter("at least 4096")
    .works(
        |draft, value, _| {
            draft.socket_buffer_bytes = value.nonzero()?;
            Ok(())
        },
        |config| one(config.datapath.socket_buffer_bytes),
    ),
    Entry::new("O-016", "no-udp", GROUP, Kind::Flag, "No plain UDP; DTLS is another matter.").default("false").works(
        |draft, value, _| {
            draft.no_udp = value.flag();
            Ok(())
        },
        |config| flag(!config.addresses.udp),
    ),
    Entry::new("O-017", "no-tcp", GROUP, Kind::Flag, "No listeners for TCP.").default("false").works(
        |draft, value, _| {
            draft.no_tcp = value.flag();
            Ok(())
        },
        |config| flag(!config.addresses.tcp),
    ),
    Entry::new("O-018", "no-tls", GROUP, Kind::Flag, "No TLS, neither on `tls-listening-port` nor on `listening-port`.")
        .default("false")
        .works(
            |draft, value, _| {
                draft.tls.wanted = !value.flag();
                Ok(())
            },
            |config| flag(!config.tls.wanted),
        ),
    Entry::new(
        "O-019",
        "dtls",
        GROUP,
        Kind::Flag,
        "DTLS 1.2, if `cert` and `pkey` are given: on `tls-listening-port` by UDP, and recognised on `listening-port`.",
    )
    .default("false")
    .works(
        |draft, value, _| {
            draft.tls.dtls_wanted = value.flag();
            Ok(())
        },
        |config| flag(config.tls.dtls_wanted),
    ),
    Entry::new("O-020", "no-dtls", GROUP, Kind::Flag, "No DTLS (old form of dtls).").default("true").works(
        |draft, value, _| {
            draft.tls.dtls_wanted = !value.flag();
            Ok(())
        },
        |config| flag(!config.tls.dtls_wanted),
    ),
    Entry::new("O-021", "no-udp-relay", GROUP, Kind::Flag, "No allocations with UDP relay addresses.")
        .default("false")
        .works(
            |draft, value, _| {
                draft.relays.udp = !value.flag();
                Ok(())
            },
            |config| flag(!config.relays.udp),
        ),
    Entry::new(
        "O-022",
        "no-tcp-relay",
        GROUP,
        Kind::Flag,
        "No allocations with TCP relay addresses (RFC 6062). With `no-tcp-relay=false` clients that come by TCP or TLS can have connections to peers and from them.",
    )
    .default("true")
    .coturn_default("false", "a relay of connections is a way to look for open ports; whoever needs it can have it")
    .works(
        |draft, value, _| {
            draft.relays.tcp = !value.flag();
            Ok(())
        },
        |config| flag(!config.relays.tcp),
    ),
    Entry::new("O-023", "keep-address-family", GROUP, Kind::Flag, "Old form of allocation-default-address-family=keep.")
        .short('K')
        .default("false")
        .works(
            |draft, value, _| {
                draft.keep_family = value.flag();
                Ok(())
            },
            |config| flag(config.addresses.default_family == DefaultFamily::Client),
        ),
    Entry::new(
        "O-024",
        "allocation-default-address-family",
        GROUP,
        Kind::Choice(&["ipv4", "ipv6", "keep"]),
        "Family of the relayed address for clients that do not ask for one; keep means the family of the client's own address.",
    )
    .short('A')
    .default("ipv4")
    .works(
        |draft, value, _| {
            draft.default_family = match value.text() {
                "ipv6" => DefaultFamily::V6,
                "keep" => DefaultFamily::Client,
                _ => DefaultFamily::V4,
            };
            Ok(())
        },
        |config| {
            one(match config.addresses.default_family {
                DefaultFamily::V4 => "ipv4",
                DefaultFamily::V6 => "ipv6",
                DefaultFamily::Client => "keep",
            })
        },
    ),
    Entry::new("O-025", "server-relay", GROUP, Kind::Flag, "Lets peers reach clients without a permission.")
        .default("false")
        .only(&["false"], "without permissions anyone could send to clients through the relay (RFC 8656 §9)"),
];

/// The name of an interface as the kernel allows it (`dev_valid_name` of net/core/dev.c).
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
