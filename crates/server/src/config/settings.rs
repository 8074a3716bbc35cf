//! What the relay is to do, validated: the only form of configuration that the rest of the server sees.
//!
//! Invariant: a [`Config`] exists only if every line that went into it was understood and allowed. Quantities carry their
//! unit in their type; an `Option` here means that the operator can really have "none", never "not given".

use std::net::{IpAddr, SocketAddr};
use std::num::{NonZeroU16, NonZeroU32};
use std::path::{Path, PathBuf};
use std::time::Duration;

use turnbuckle_engine::{AddressRange, Alternate, Nat64Prefix, TokenCipher};

use super::{Persona, Secret};

/// The whole configuration of one relay.
#[derive(Debug, Clone)]
pub struct Config {
    /// Under which name the server runs.
    pub persona: Persona,
    /// Where the relay listens, and from where and as what it relays.
    pub addresses: Addresses,
    /// Threads and processors.
    pub threads: Threads,
    /// How datagrams are moved.
    pub datapath: Datapath,
    /// Who may use the relay.
    pub authentication: Authentication,
    /// What runs between relayed transport addresses and peers.
    pub relays: Relays,
    /// Upper bounds.
    pub limits: Limits,
    /// Which peers may be reached.
    pub peers: PeerRules,
    /// Which clients are sent to other servers.
    pub redirection: Redirection,
    /// How STUN messages are answered.
    pub stun: Stun,
    /// Clients that come by TLS or DTLS.
    pub tls: Tls,
    /// Proxies that say for whom they speak.
    pub proxies: Proxies,
    /// What HTTP clients are told.
    pub http: Http,
    /// What is printed.
    pub log: Log,
    /// What the process is to the system.
    pub process: Process,
}

impl Config {
    /// Addresses on which datagrams are received: those for UDP, and those with the ports for TLS if DTLS is spoken.
    #[must_use]
    pub fn datagram_listeners(&self) -> Vec<SocketAddr> {
        let has_dtls = self.tls.dtls_files().is_some();
        self.listeners_for(self.addresses.udp, has_dtls)
    }

    /// Addresses on which connections are accepted: those for TCP, and those with the ports for TLS. A port for proxies
    /// takes the place of all of them.
    #[must_use]
    pub fn stream_listeners(&self) -> Vec<SocketAddr> {
        if let Some(port) = self.proxies.port {
            let listeners = self.addresses.listeners.iter();
            return listeners
                .map(|address| SocketAddr::new(address.ip(), port))
                .collect();
        }
        self.listeners_for(self.addresses.tcp, self.tls.files().is_some())
    }

    /// The same configuration for the listening address `ip` alone, with the ports of the others and without what belongs to those: second ports for NAT
    /// behaviour discovery and auxiliary listeners.
    #[must_use]
    pub(crate) fn only_on(&self, ip: IpAddr) -> Self {
        let mut only = self.clone();
        only.addresses.auxiliary.clear();
        only.addresses.discovery = None;
        only.addresses.listeners.truncate(1);
        for listener in &mut only.addresses.listeners {
            listener.set_ip(ip);
        }
        only
    }

    fn listeners_for(&self, is_plain: bool, is_secure: bool) -> Vec<SocketAddr> {
        let plain = self.plain_listeners();
        let mut found: Vec<_> = plain.filter(|_| is_plain).collect();
        for address in self.secure_listeners().filter(|_| is_secure) {
            if !found.contains(&address) {
                found.push(address);
            }
        }
        found
    }

    /// The listening addresses, their second ports for NAT behaviour discovery, and auxiliary ones.
    fn plain_listeners(&self) -> impl Iterator<Item = SocketAddr> {
        let listeners = self.addresses.listeners.iter().copied();
        let others = self.addresses.discovery.iter().flat_map(|discovery| {
            let addresses = discovery.other_by_address.iter();
            addresses.map(|&(address, _)| SocketAddr::new(address, discovery.port))
        });
        let auxiliary = self.addresses.auxiliary.iter().copied();
        listeners.chain(others).chain(auxiliary)
    }

    /// Addresses with the ports for TLS and DTLS.
    fn secure_listeners(&self) -> impl Iterator<Item = SocketAddr> {
        let listeners = self.addresses.listeners.iter();
        let listeners = listeners.map(|address| SocketAddr::new(address.ip(), self.tls.port));
        let others = self.addresses.discovery.iter().flat_map(|discovery| {
            let addresses = discovery.other_by_address.iter();
            addresses
                .filter_map(|&(address, _)| Some(SocketAddr::new(address, discovery.tls_port?)))
        });
        listeners.chain(others)
    }
}

/// Addresses of both sides of the relay.
#[derive(Debug, Clone)]
pub struct Addresses {
    /// Addresses to listen on; never empty, no duplicates, no wildcard: `0.0.0.0` and `::` stand here as the addresses of the machine.
    pub listeners: Vec<SocketAddr>,
    /// `0.0.0.0` was written: IPv4 addresses that the machine gets later are listened on too.
    pub every_ipv4: bool,
    /// `::` was written: the same for IPv6.
    pub every_ipv6: bool,
    /// What is relayed from follows the addresses of the machine: a wildcard was written, and no relay address.
    pub follows_relays: bool,
    /// Then IPv6 is relayed too.
    pub relays_ipv6: bool,
    /// What stands for relay addresses that come later; the first of a family counts.
    pub external_of_all: Vec<IpAddr>,
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
    /// One-to-one address translation in front of this machine; at most one entry per private address.
    pub external: Vec<ExternalAddress>,
    /// Ports of relayed transport addresses.
    pub relay_ports: PortRange,
    /// Family of an allocation whose client did not ask for one.
    pub default_family: DefaultFamily,
    /// Network interface that listeners belong to.
    pub listening_device: Option<Box<str>>,
    /// Network interface that relay sockets belong to.
    pub relay_device: Option<Box<str>>,
}

impl Addresses {
    /// Whether a wildcard stands for `address`.
    #[must_use]
    pub fn stands_for(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => self.every_ipv4 && !v4.is_link_local(),
            IpAddr::V6(v6) => self.every_ipv6 && !v6.is_unicast_link_local(),
        }
    }

    /// The address by which the world reaches `local`.
    #[must_use]
    pub fn public(&self, local: IpAddr) -> IpAddr {
        if let Some(entry) = self.external.iter().find(|entry| entry.private == local) {
            return entry.public;
        }
        let is_later = self.follows_relays && !local.is_loopback() && !self.relays.contains(&local);
        let of_family = |public: &&IpAddr| public.is_ipv4() == local.is_ipv4();
        let of_all = self.external_of_all.iter().find(of_family);
        of_all.filter(|_| is_later).copied().unwrap_or(local)
    }
}

/// NAT behaviour discovery (RFC 5780 §6): two addresses with two ports each, whose four combinations answer for each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NatDiscovery {
    /// The port beside the listening port; no listener has it otherwise.
    pub port: u16,
    /// The port beside the one for TLS; none if TLS is not spoken, or on the listening port only.
    pub tls_port: Option<u16>,
    /// Each listening address that takes part, with the one that stands in for it, which is of its family and not itself.
    pub other_by_address: Vec<(IpAddr, IpAddr)>,
}

/// A local address and the public address that a translator in front of this machine maps to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExternalAddress {
    /// What clients are told.
    pub public: IpAddr,
    /// What sockets are bound to; same family as `public`.
    pub private: IpAddr,
}

/// Ports from `min` to `max`, both included; `min <= max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortRange {
    /// The lowest port.
    pub min: NonZeroU16,
    /// The highest port.
    pub max: NonZeroU16,
}

/// Family of a relayed address when the client names none (RFC 8656 §7.2 says IPv4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefaultFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
    /// The family of the address from which the client sent its request.
    Client,
}

/// Threads and processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Threads {
    /// Shards, one thread each; 1 to 128.
    pub shards: NonZeroU16,
    /// Each shard's thread stays on one processor.
    pub pin: bool,
    /// Which shard takes a connection; [`Accept::Cpu`] only with [`Self::pin`].
    pub accept: Accept,
}

/// Which shard takes a connection that comes by TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accept {
    /// That of the processor on which it arrives.
    Cpu,
    /// One of those that wait.
    Exclusive,
    /// The one that the hash of the addresses chooses.
    Reuseport,
    /// The first that comes; all are woken.
    Shared,
}

/// What pauses before reading are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coalesce {
    /// To save CPU time at any rate.
    Cpu,
    /// To save CPU time where it is short.
    Latency,
}

/// How datagrams are moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datapath {
    /// Which backend moves them.
    pub backend: Backend,
    /// Longest pause before reading so that datagrams come in larger batches; zero turns the pause off. At most 10 ms.
    pub coalesce: Duration,
    /// What these pauses are for.
    pub coalesce_policy: Coalesce,
    /// `SO_RCVBUF` and `SO_SNDBUF` of listeners, in bytes.
    pub socket_buffer_bytes: NonZeroU32,
    /// Print receive batch counters every [`Log::statistics_interval`].
    pub log_receive: bool,
    /// Print send batch counters every [`Log::statistics_interval`].
    pub log_send: bool,
}

/// Choice of datapath backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// The best that a probe at start finds working.
    Auto,
    /// One system call per datagram.
    Single,
    /// Batches with `recvmmsg` and `sendmmsg`.
    Mmsg,
    /// Batches, and trains of equal datagrams by generic segmentation and receive offload.
    Gso,
}

/// Who may use the relay.
#[derive(Debug, Clone)]
pub struct Authentication {
    /// Realm of the long-term credentials (RFC 8489 §9.2); at most 127 characters. Empty only where coturn's is: as `turnserver`, without realm and domain name.
    pub realm: Box<str>,
    /// Users with a password or key; names are unique.
    pub users: Vec<StaticUser>,
    /// Where there are secrets, or could be some in the database, users with a password or key count too.
    pub users_beside_secrets: bool,
    /// Secrets from which time-limited credentials are derived (TURN REST API); all are tried.
    pub rest_secrets: Vec<Secret>,
    /// Where further users, secrets and rules are read from.
    pub database: Option<UserDatabase>,
    /// Character between expiry time and identity in a time-limited user name; printable ASCII, neither letter nor digit.
    pub rest_separator: u8,
    /// How long a nonce is accepted; 1 s to 1 h.
    pub nonce_lifetime: Duration,
    /// Key of the nonces, so that they stay valid across restarts and machines; none means a random one for this process.
    pub nonce_secret: Option<Secret>,
    /// Authorization servers whose tokens are taken (RFC 7635).
    pub third_parties: Option<ThirdParties>,
    /// Binding requests need credentials too.
    pub binding_needs_credentials: bool,
    /// Requests about an allocation have to carry the ORIGIN of the one that created it.
    pub checks_origin: bool,
    /// Answers to unproven requests per second and source address; none means no such limit.
    pub unauthorized_replies_per_second: Option<NonZeroU32>,
    /// Bytes per second to a source address that proved nothing, beyond the bytes that came from it.
    pub unverified_excess_bytes_per_second: NonZeroU32,
    /// All bytes per second to a source address that proved nothing.
    pub unverified_bytes_per_second: NonZeroU32,
}

/// A SQLite file with coturn's tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserDatabase {
    /// The file.
    pub path: PathBuf,
    /// Users are read from it.
    pub has_users: bool,
    /// Secrets are read from it.
    pub has_secrets: bool,
    /// Peer address rules are read from it.
    pub has_peer_rules: bool,
    /// Realms by origin, quotas and rates are read from it.
    pub has_realms: bool,
}

/// Authorization servers, and this server's name to them.
#[derive(Debug, Clone)]
pub struct ThirdParties {
    /// The name in THIRD-PARTY-AUTHORIZATION; 1 to 255 bytes.
    pub server_name: Box<str>,
    /// Keys shared with them; not empty.
    pub keys: Vec<TokenKey>,
}

/// A key shared with an authorization server.
#[derive(Debug, Clone)]
pub struct TokenKey {
    /// The name that clients send as USERNAME.
    pub name: Box<str>,
    /// What tokens are sealed with.
    pub cipher: TokenCipher,
    /// The key; what it lacks to the cipher's is filled with zeros.
    pub key: Secret,
}

/// A user known from the configuration.
#[derive(Debug, Clone)]
pub struct StaticUser {
    /// User name; 1 to 508 bytes of UTF-8.
    pub name: Box<str>,
    /// Password or key.
    pub credential: Credential,
    /// Made up at start because the configuration names no credentials at all; its password must be printed.
    pub is_generated: bool,
}

/// How a user proves who it is.
#[derive(Debug, Clone)]
pub enum Credential {
    /// The password; 1 to 256 bytes.
    Password(Secret),
    /// MD5 of `user:realm:password`, 16 bytes (RFC 8489 §9.2.2). Does for MESSAGE-INTEGRITY only, not for its SHA-256 form.
    Md5Key(Secret),
}

/// What runs between relayed transport addresses and peers, and the bounds of TCP there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Relays {
    /// Whether there are allocations with UDP relayed addresses.
    pub udp: bool,
    /// Whether there are allocations with TCP relayed addresses (RFC 6062).
    pub tcp: bool,
    /// The lowest port that clients may connect to.
    pub connect_port_min: u16,
    /// Whether a refused connection is answered no sooner than one that nobody answers.
    pub masks_connect_errors: bool,
    /// Connections that a user may begin in a second.
    pub connects_per_second: NonZeroU32,
    /// Connections that a user may have under way.
    pub pending_connects: NonZeroU32,
    /// Connections with peers of one allocation.
    pub connections_per_allocation: NonZeroU16,
}

/// Upper bounds, and lifetimes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Allocations that one user of one realm may hold at once.
    pub allocations_per_user: Option<NonZeroU32>,
    /// Allocations of a whole realm at once.
    pub allocations_total: Option<NonZeroU32>,
    /// Allocations that one shard holds at most.
    pub allocations_per_shard: NonZeroU32,
    /// Permissions of one allocation at most.
    pub permissions_per_allocation: NonZeroU16,
    /// Channels of one allocation at most.
    pub channels_per_allocation: NonZeroU16,
    /// Longest lifetime granted to an allocation.
    pub allocation_lifetime_max: Duration,
    /// Lifetime of a channel binding.
    pub channel_lifetime: Duration,
    /// Lifetime of a permission.
    pub permission_lifetime: Duration,
    /// How long a client may take for its first message over a connection, and for each one from its first byte to its last.
    pub stream_deadline: Duration,
    /// How long a connection without an allocation may be idle.
    pub stream_idle: Duration,
    /// How long a connection or a session of DTLS may have no allocation, whatever it says.
    pub time_without_allocation: Duration,
    /// Connections of one shard without an allocation, at most.
    pub connections_without_allocation: NonZeroU32,
    /// The same from one address, or from one IPv6 prefix of 64 bits, to all shards.
    pub connections_without_allocation_per_address: NonZeroU32,
    /// Payload that one allocation relays per second in one direction.
    pub bytes_per_second: Option<NonZeroU32>,
    /// What the rates of all allocations may add up to; only together with [`Self::bytes_per_second`].
    pub capacity_bytes_per_second: Option<NonZeroU32>,
    /// A draining server ends when it has no more allocations than this.
    pub drained: u32,
    /// Sessions of DTLS of one shard without an allocation, at most.
    pub dtls_without_allocation: NonZeroU32,
    /// The same from one address or IPv6 prefix, at all shards.
    pub dtls_without_allocation_per_address: NonZeroU32,
    /// Sessions of DTLS of one shard, at most.
    pub dtls_sessions: NonZeroU32,
}

/// Which peers may be reached, on top of the built-in rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerRules {
    /// Ranges to allow although a built-in rule or [`Self::denied`] refuses them.
    pub allowed: Vec<AddressRange>,
    /// Ranges to refuse.
    pub denied: Vec<AddressRange>,
    /// Prefixes of translators, inside which IPv4 addresses are judged.
    pub nat64_prefixes: Vec<Nat64Prefix>,
    /// 127.0.0.0/8 and ::1 may be peers.
    pub allow_loopback: bool,
    /// Private networks may be peers unless they are denied, as in coturn.
    pub allow_private: bool,
}

/// Servers that clients are sent to instead of being served here; one listed several times gets as many of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Redirection {
    /// For clients that come by UDP or TCP, if those have no list of their own.
    pub any: Vec<Alternate>,
    /// For clients that come by TCP.
    pub tcp: Vec<Alternate>,
    /// For clients that come by TLS or DTLS.
    pub tls: Vec<Alternate>,
    /// For clients that come by UDP, and by DTLS if those have no list of their own.
    pub udp: Vec<Alternate>,
}

/// How STUN messages are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stun {
    /// TURN methods are ignored.
    pub stun_only: bool,
    /// Binding requests are ignored.
    pub no_binding: bool,
    /// FINGERPRINT on every message; otherwise only for clients that use it.
    pub fingerprint: bool,
    /// SOFTWARE in responses.
    pub software: bool,
    /// MAPPED-ADDRESS beside XOR-MAPPED-ADDRESS.
    pub mapped_address: bool,
    /// Channel numbers of RFC 5766, 0x4000 to 0x7FFF, are taken too.
    pub rfc5766_channel_numbers: bool,
    /// Binding requests of RFC 3489 are answered.
    pub rfc3489_binding: bool,
    /// Allocations can move with their client (RFC 8016).
    pub mobility: bool,
    /// Reason phrases say in detail what was wrong.
    pub detailed_reasons: bool,
}

/// Clients that come by TLS or DTLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// It is wanted; without certificate and key there is none all the same.
    pub wanted: bool,
    /// DTLS is wanted; without certificate and key there is none all the same.
    pub dtls_wanted: bool,
    /// Port on which TLS and DTLS are expected; they are recognised on the other one too.
    pub port: u16,
    /// File with the server's certificate and those between it and an authority, in PEM form. Given together with [`Self::key`] or
    /// not at all.
    pub certificate: Option<PathBuf>,
    /// File with the private key in PEM form.
    pub key: Option<PathBuf>,
    /// What the private key is encrypted with.
    pub key_password: Option<Secret>,
    /// File with the authorities of client certificates, which are required then.
    pub client_authorities: Option<PathBuf>,
    /// TLS 1.2 is not offered.
    pub only_tls13: bool,
    /// Cipher suites by OpenSSL's names, best first; not empty.
    pub cipher_suites: Vec<&'static str>,
    /// Groups for the key exchange by OpenSSL's names, best first; not empty.
    pub groups: Vec<&'static str>,
}

impl Tls {
    /// Certificate and key, if TLS is spoken.
    #[must_use]
    pub fn files(&self) -> Option<(&Path, &Path)> {
        let files = self.certificate.as_deref().zip(self.key.as_deref());
        files.filter(|_| self.wanted)
    }

    /// Certificate and key, if DTLS is spoken.
    #[must_use]
    pub fn dtls_files(&self) -> Option<(&Path, &Path)> {
        let files = self.certificate.as_deref().zip(self.key.as_deref());
        files.filter(|_| self.dtls_wanted)
    }

    /// Whether certificates are needed at all.
    #[must_use]
    pub fn is_spoken(&self) -> bool {
        self.files().is_some() || self.dtls_files().is_some()
    }
}

/// Proxies that say for whom they speak, by a header of the PROXY protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proxies {
    /// Port on which proxies, and nobody else, connect. There is no other port for connections then.
    pub port: Option<u16>,
    /// From where every connection begins with a header; from elsewhere none may.
    pub sources: Vec<AddressRange>,
    /// From where every datagram begins with a header of version 2.
    pub datagram_sources: Vec<AddressRange>,
}

/// What a client that speaks HTTP is told before its connection is closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Http {
    /// That this is no place for it; otherwise nothing.
    pub answers: bool,
    /// Where its ACME challenge is answered, if it asks for one without TLS; the token is appended.
    pub acme_redirect: Option<Box<str>>,
}

/// What is printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// A line for each change of a session.
    pub sessions: bool,
    /// Lines about requests, besides those about sessions.
    pub requests: bool,
    /// Lines about Binding requests, where there are some about requests.
    pub binding: bool,
    /// Time between two prints of the counters asked for.
    pub statistics_interval: Duration,
    /// File that receives all counters as JSON when the relay ends.
    pub statistics_file: Option<PathBuf>,
    /// Lines go to standard output.
    pub to_stdout: bool,
    /// Lines go to this file.
    pub file: Option<PathBuf>,
    /// Without such a file lines go to one in the first of coturn's directories that can be written to.
    pub usual_file: bool,
    /// The file's name holds the day, and each day has its own.
    pub is_dated: bool,
    /// Lines go to syslog, as of this facility: 0 to 23.
    pub syslog: Option<u8>,
    /// Lines below this level are left out.
    pub level_min: Level,
    /// What stands before each line.
    pub timestamps: Timestamps,
}

/// How much a line matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Of use to whoever looks for a mistake.
    Debug,
    /// What happens.
    Info,
    /// What an operator should know.
    Warning,
    /// What fails.
    Error,
}

impl Level {
    /// All levels, the least first.
    pub const ALL: [Self; 4] = [Self::Debug, Self::Info, Self::Warning, Self::Error];

    /// The word in a line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Debug => "DEBUG",
            Self::Info => "INFO",
            Self::Warning => "WARNING",
            Self::Error => "ERROR",
        }
    }
}

/// What stands before each line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Timestamps {
    /// Nothing.
    None,
    /// Seconds since the start, and the level.
    Elapsed,
    /// The time of day by this format of `strftime`, where `%f` is milliseconds, and the level.
    Format(Box<str>),
}

impl Timestamps {
    /// coturn's format.
    pub const ISO: &str = "%FT%T.%f%z";
}

/// What the process is to the system.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Process {
    /// It goes to the background once it serves.
    pub is_daemon: bool,
    /// File that holds its number while it runs.
    pub pid_file: Option<PathBuf>,
    /// User to become once all sockets are open.
    pub user: Option<Box<str>>,
    /// Group to become.
    pub group: Option<Box<str>>,
}
