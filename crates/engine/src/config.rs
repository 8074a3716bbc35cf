//! What an operator decides, in the engine's own terms. Validated by whoever reads the configuration file.

use core::net::IpAddr;
use core::num::NonZeroU32;
use core::ops::RangeInclusive;
use core::time::Duration;
use std::collections::BTreeMap;

use crate::auth::AuthConfig;
use crate::bandwidth::Bandwidth;
use crate::policy::PolicyRules;
use crate::redirect::Redirection;
use crate::ticket::TicketKey;
use crate::unverified::{Rate, UnverifiedLimits};

/// Everything the engine has to know before the first datagram.
#[derive(Clone, Debug)]
pub struct Config {
    /// Realms, users and secrets, nonces.
    pub auth: AuthConfig,
    /// Which peers clients may reach.
    pub policy: PolicyRules,
    /// Bytes that may go to sources that proved nothing.
    pub unverified: UnverifiedLimits,
    /// Which of STUN and TURN this server offers.
    pub service: Service,
    /// Whether Binding requests have to be authenticated with the long-term mechanism (coturn's `secure-stun`).
    pub secure_stun: bool,
    /// Whether Binding answers carry MAPPED-ADDRESS beside XOR-MAPPED-ADDRESS, for clients of RFC 3489's time.
    pub mapped_address: bool,
    /// When answers carry FINGERPRINT.
    pub fingerprint: Fingerprint,
    /// The SOFTWARE text, at most 127 characters; `None` leaves the attribute out.
    pub software: Option<Box<str>>,
    /// Whether SOFTWARE also goes to sources that proved nothing (V-65: not by default).
    pub software_to_unverified: bool,
    /// Whether reason phrases say what was wrong with a bad request, and go to sources that proved nothing too (V-40: not by default).
    pub detailed_reasons: bool,
    /// How long things live.
    pub lifetimes: Lifetimes,
    /// Upper bounds.
    pub limits: Limits,
    /// The key of mobility tickets (RFC 8016); `None` forbids mobility.
    pub mobility: Option<TicketKey>,
    /// Whether a Refresh request with a ticket that is good may carry a nonce that was given out on the old 5-tuple, as coturn takes
    /// it. Who captures such a request on its way and is faster than its client can have the client's data sent elsewhere; with a
    /// nonce of the new 5-tuple nobody can.
    pub resume_with_old_nonce: bool,
    /// How fast allocations may relay.
    pub bandwidth: Bandwidth,
    /// Whether every request about an allocation has to carry the ORIGIN of the one that created it, or none if that had none: 441
    /// (coturn's `check-origin-consistency`).
    pub check_origin: bool,
    /// Realms with quotas and a rate of their own, by name.
    pub realm_limits: BTreeMap<Box<str>, RealmLimits>,
    /// Realms with peer rules of their own, by name; [`Self::policy`] is that of all others.
    pub realm_policies: BTreeMap<Box<str>, PolicyRules>,
    /// Where relayed transport addresses come from; a family without an entry is not supported (440).
    pub relays: Vec<RelayAddress>,
    /// The ports of relayed transport addresses, the same on every relay address (RFC 8656 §7.2: 49152 to 65535).
    pub relay_ports: RangeInclusive<u16>,
    /// Whether allocations with UDP relayed transport addresses are granted; without it they are forbidden (403).
    pub udp_relays: bool,
    /// Allocations with TCP relayed transport addresses (RFC 6062); `None` grants none (442) and serves no method of theirs.
    pub tcp: Option<TcpRelays>,
    /// The family of an allocation whose request names none.
    pub default_family: DefaultFamily,
    /// Whether ChannelBind takes the channel numbers of RFC 5766, 0x4000 to 0x7FFF, of which RFC 8656 §12 reserves all from
    /// 0x5000 (coturn's `rfc5766-channel-numbers`). The host treats first bytes 80 to 127 as ChannelData in any case.
    pub rfc5766_channel_numbers: bool,
    /// Whether Binding requests of RFC 3489, without magic cookie, are answered over UDP and IPv4 (coturn's
    /// `rfc3489-compatibility`). They cannot be authenticated, whatever [`Self::secure_stun`] says.
    pub rfc3489_binding: bool,
    /// Whether RESPONSE-PORT and PADDING are passed over where NAT behaviour discovery is not served, as coturn does; else they are unknown
    /// attributes there (420).
    pub passes_over_discovery: bool,
    /// Servers that clients are sent to instead of being served here.
    pub redirection: Redirection,
    /// Whether the host can send with the DF bit; without it DONT-FRAGMENT counts as an unknown attribute (RFC 8656 §7.2 step 4).
    pub dont_fragment: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            auth: AuthConfig::default(),
            policy: PolicyRules::default(),
            unverified: UnverifiedLimits::default(),
            service: Service::StunAndTurn,
            secure_stun: false,
            mapped_address: false,
            fingerprint: Fingerprint::Mirror,
            software: None,
            software_to_unverified: false,
            detailed_reasons: false,
            lifetimes: Lifetimes::default(),
            limits: Limits::default(),
            mobility: None,
            resume_with_old_nonce: false,
            bandwidth: Bandwidth::default(),
            check_origin: false,
            realm_limits: BTreeMap::new(),
            realm_policies: BTreeMap::new(),
            relays: Vec::new(),
            relay_ports: 49152..=65535,
            udp_relays: true,
            tcp: None,
            default_family: DefaultFamily::V4,
            rfc5766_channel_numbers: false,
            rfc3489_binding: false,
            passes_over_discovery: false,
            redirection: Redirection::default(),
            dont_fragment: true,
        }
    }
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

/// Which protocols are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Binding and all TURN methods.
    StunAndTurn,
    /// Binding only (coturn's `stun-only`); TURN requests are dropped in silence.
    StunOnly,
    /// TURN only (coturn's `no-stun`); Binding requests are dropped in silence.
    TurnOnly,
}

/// When an answer carries FINGERPRINT (RFC 8489 §14.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fingerprint {
    /// In every answer (coturn's `fingerprint`).
    Always,
    /// When the request had one.
    Mirror,
}

/// The family of the relayed transport address when REQUESTED-ADDRESS-FAMILY is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultFamily {
    /// The family the client came with (coturn's `keep`; departs from RFC 8656 §7.2 step 7).
    Client,
    /// IPv4, as RFC 8656 §7.2 step 7 asks.
    V4,
    /// IPv6 (departs from RFC 8656 §7.2 step 7).
    V6,
}

/// How long allocations, permissions, channels and reservations live.
#[derive(Clone, Debug)]
pub struct Lifetimes {
    /// The shortest lifetime of an allocation, given when the client asks for less or nothing (600 s).
    pub allocation_default: Duration,
    /// The longest lifetime of an allocation (3600 s).
    pub allocation_max: Duration,
    /// A permission's lifetime; RFC 8656 §9 fixes it at 300 s.
    pub permission: Duration,
    /// A channel binding's lifetime; RFC 8656 §12 fixes it at 600 s.
    pub channel: Duration,
    /// How long a reserved port waits for its token; at least 30 s (RFC 8656 §7.2).
    pub reservation: Duration,
}

impl Default for Lifetimes {
    fn default() -> Self {
        Self {
            allocation_default: Duration::from_secs(600),
            allocation_max: Duration::from_secs(3600),
            permission: Duration::from_secs(300),
            channel: Duration::from_secs(600),
            reservation: Duration::from_secs(60),
        }
    }
}

/// Upper bounds. The answer a client gets at each of them stands beside it.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Allocations of one engine, pending ones included: 508.
    pub allocations: u32,
    /// Allocations of one engine that wait for the host to open a relay socket: 508.
    pub pending_opens: u32,
    /// Allocations per username of a realm over all engines, `None` for no bound: 486.
    pub user_quota: Option<u32>,
    /// Allocations per realm over all engines, `None` for no bound: 486.
    pub total_quota: Option<u32>,
    /// Permissions of one allocation: 508.
    pub permissions_per_allocation: u16,
    /// Channels of one allocation: 508.
    pub channels_per_allocation: u16,
    /// Reserved ports over all engines: 508.
    pub reservations: u32,
    /// Other ports tried when the host finds one in use: 508.
    pub relay_open_attempts: u8,
    /// Finished transactions remembered against replay (V-22), for as long as a nonce can be good: two for each allocation that
    /// ends. The oldest is forgotten first, and counted.
    pub tombstones: u32,
    /// Replies waiting to be drained, in bytes; what does not fit is dropped as `reply_queue_full`.
    pub reply_queue_bytes: usize,
    /// Timers handled by one call of `handle_timeout`; the rest stays due.
    pub timeouts_per_call: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            allocations: 65_536,
            pending_opens: 4_096,
            user_quota: None,
            total_quota: None,
            permissions_per_allocation: 1_024,
            channels_per_allocation: 1_024,
            reservations: 1_024,
            relay_open_attempts: 16,
            // guard: V-22-memory
            tombstones: 2 * 65_536,
            reply_queue_bytes: 1 << 20,
            timeouts_per_call: 256,
        }
    }
}

/// What holds for one realm in place of the same in [`Limits`] and [`Bandwidth`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RealmLimits {
    /// As [`Limits::user_quota`].
    pub user_quota: Option<u32>,
    /// As [`Limits::total_quota`].
    pub total_quota: Option<u32>,
    /// As [`Bandwidth::bytes_per_s`].
    pub bytes_per_s: Option<NonZeroU32>,
}

/// One local address on which relay sockets are opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayAddress {
    /// The address the host binds.
    pub local: IpAddr,
    /// The address clients and peers see when a NAT maps one to one (coturn's `external-ip`); same family, same ports.
    pub external: Option<IpAddr>,
}
