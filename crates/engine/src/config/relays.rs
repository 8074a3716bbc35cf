//! Relayed transport addresses.

use core::net::{IpAddr, SocketAddr};
use core::ops::RangeInclusive;
use core::time::Duration;

use crate::unverified::Rate;

/// Which relayed transport addresses there are, and what may be done with them.
#[derive(Clone, Debug)]
pub struct RelayConfig {
    /// Where relayed transport addresses come from; a family without an entry is not supported (440).
    pub addresses: Vec<RelayAddress>,
    /// Where allocations that are rebuilt may relay from too, because a server before did; others only on a shared socket.
    pub former: Vec<RelayAddress>,
    /// The ports of relayed transport addresses, the same on every relay address (RFC 8656 §7.2: 49152 to 65535).
    pub ports: RangeInclusive<u16>,
    /// Whether allocations with UDP relayed transport addresses are granted; without it they are forbidden (403).
    pub udp: bool,
    /// The relay sockets that UDP allocations share; `None` where each has a socket of its own.
    pub shared: Option<SharedRelays>,
    /// Allocations with TCP relayed transport addresses (RFC 6062); `None` grants none (442) and serves no method of theirs.
    pub tcp: Option<TcpRelays>,
    /// The family of an allocation whose request names none.
    pub default_family: DefaultFamily,
    /// Whether ChannelBind takes the channel numbers of RFC 5766, 0x4000 to 0x7FFF, of which RFC 8656 §12 reserves all from
    /// 0x5000 (coturn's `rfc5766-channel-numbers`). The host treats first bytes 80 to 127 as ChannelData in any case.
    pub rfc5766_channel_numbers: bool,
    /// Whether every request about an allocation has to carry the ORIGIN of the one that created it, or none if that had none: 441
    /// (coturn's `check-origin-consistency`).
    pub check_origin: bool,
    /// Whether the host can send with the DF bit; without it DONT-FRAGMENT counts as an unknown attribute (RFC 8656 §7.2 step 4).
    pub dont_fragment: bool,
}

impl RelayConfig {
    /// Returns all addresses that relay sockets may have, those of new allocations first.
    pub fn all(&self) -> impl Iterator<Item = &RelayAddress> {
        self.addresses.iter().chain(&self.former)
    }
}

impl Default for RelayConfig {
    fn default() -> Self {
        Self {
            addresses: Vec::new(),
            former: Vec::new(),
            ports: 49152..=65535,
            udp: true,
            shared: None,
            tcp: None,
            default_family: DefaultFamily::V4,
            rfc5766_channel_numbers: false,
            check_origin: false,
            dont_fragment: true,
        }
    }
}

/// Relay sockets that all UDP allocations of an engine share, one for each family (coturn's `multiplex-peer`). A peer, by its address
/// and port, belongs to one allocation of an engine at a time. EVEN-PORT gets 508 and RESERVATION-TOKEN 400.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedRelays {
    /// The bound addresses of each engine, in the engines' order: for IPv4 and for IPv6, where the family is supported. No peer may be
    /// reached at any of them.
    pub addresses: Vec<[Option<SocketAddr>; 2]>,
    /// Peers of one allocation: 508, or a Send indication is dropped.
    pub peers_per_allocation: u16,
}

impl SharedRelays {
    /// Returns the bound addresses of all engines.
    pub(crate) fn all(&self) -> impl Iterator<Item = SocketAddr> {
        self.addresses.iter().flatten().flatten().copied()
    }
}

/// One local address on which relay sockets are opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayAddress {
    /// The address the host binds.
    pub local: IpAddr,
    /// The address clients and peers see when a NAT maps one to one (coturn's `external-ip`); same family, same ports.
    pub external: Option<IpAddr>,
}

/// The family of the relayed transport address when REQUESTED-ADDRESS-FAMILY is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DefaultFamily {
    /// The family the client came with (coturn's `keep`; departs from RFC 8656 §7.2 step 7).
    Client,
    /// IPv4, as RFC 8656 §7.2 step 7 asks.
    #[default]
    V4,
    /// IPv6 (departs from RFC 8656 §7.2 step 7).
    V6,
}

/// The bounds of TCP relays (V-12, V-46). The answer a client gets at each of them stands beside it.
#[derive(Clone, Debug)]
pub struct TcpRelays {
    /// Ports that clients may connect to: 403 for others. Privileged ports are not among them by default.
    pub peer_ports: Vec<RangeInclusive<u16>>,
    /// How long a connection to a peer may take; at least 30 s (RFC 6062 §5.2): 447.
    pub connect_timeout: Duration,
    /// Whether a refused connection is answered when one that nobody answers would be, so that nothing is learned from the time.
    pub mask_connect_errors: bool,
    /// Connections of one allocation, those under way included: 508, or the peer's is closed.
    pub connections_per_allocation: u16,
    /// Connections of one allocation that are under way or wait for ConnectionBind: 508, or the peer's is closed.
    pub pending_per_allocation: u16,
    /// Connections of one user, over all engines, that Connect requests began and no ConnectionBind has joined: 486.
    pub pending_per_user: u32,
    /// Connect requests of one user, over all engines: 486.
    pub connects_per_user: Rate,
}

impl Default for TcpRelays {
    fn default() -> Self {
        Self {
            peer_ports: vec![1024..=u16::MAX],
            connect_timeout: Duration::from_secs(30),
            mask_connect_errors: false,
            connections_per_allocation: 256,
            pending_per_allocation: 32,
            pending_per_user: 64,
            connects_per_user: Rate {
                burst: 100,
                per_s: 10,
            },
        }
    }
}

impl TcpRelays {
    pub(crate) fn may_connect_to(&self, port: u16) -> bool {
        // guard: V-12-ports
        self.peer_ports.iter().any(|ports| ports.contains(&port))
    }
}
