//! The command line of `turnbuckle load`.

mod check;

use std::hash::{BuildHasher as _, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use clap::ValueEnum;
use turnbuckle_wire::AddressFamily;

use super::access::{Access, Masque};
use crate::cli::{self, BackendChoice, Cpus, Threads};
use crate::load::moves::Moves;
use crate::packet::HEADER_LEN;
use crate::reach::Reach;
use turnbuckle_client::{Credentials, server_address};

/// Most clients of one run: each has two descriptors.
pub(crate) const CLIENTS_MAX: usize = 200_000;
/// Most packets of one client: far beyond a day's.
pub(crate) const PACKETS_MAX: u64 = 1 << 48;
/// Packets per second of each client, where nothing else is said.
const MIX_RATE: f64 = 50.0;
const HOLD_RATE: f64 = 1.0;
/// How long the name of a time-limited user is good, seconds.
const REST_LIFETIME: u64 = 86_400;

/// What is asked of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// As many packets as possible
    Packet,
    /// Packets at a rate, that of all clients together; delay counts from when a packet was due
    Rate,
    /// Many calls: packets at a rate of each client, evenly spread
    Mix,
    /// Allocate and give back, as often as possible
    Alloc,
    /// Keep allocations, with a trickle of packets
    Hold,
    /// Bytes through TCP relays (RFC 6062), to a peer by TCP; as many as possible, or with --rate packets of each client
    TcpRelay,
    /// Junk: noise, broken and forged messages
    Invalid,
    /// Unusual and malformed messages, each with the answer that the RFCs want; --peer for those that need one
    Negative,
}

impl Mode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Packet => "packet",
            Self::Rate => "rate",
            Self::Mix => "mix",
            Self::Alloc => "alloc",
            Self::Hold => "hold",
            Self::TcpRelay => "tcp-relay",
            Self::Invalid => "invalid",
            Self::Negative => "negative",
        }
    }

    /// Returns whether packets go to a peer.
    pub(crate) fn has_packets(self) -> bool {
        !matches!(self, Self::Alloc | Self::Invalid | Self::Negative)
    }
}

/// What only coturn's generator is asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Habits {
    /// ChannelData is padded over UDP as over a stream (RFC 8656 §12.5).
    pub(crate) pads: bool,
    /// ORIGIN of requests.
    pub(crate) origin: Option<String>,
    /// Clients of RTP name the port of RTCP, the next one, to the server too.
    pub(crate) names_both_ports: bool,
    /// Permissions, channels and lifetimes are asked for again and again.
    pub(crate) asks_often: bool,
    /// Send indications go without a permission.
    pub(crate) asks_for_no_permission: bool,
    /// Some clients stop after a few packets, and give nothing back.
    pub(crate) leaves_early: bool,
    /// Allocations are kept until a signal.
    pub(crate) stays: bool,
    /// Clients move once, at the beginning.
    pub(crate) moves_once: bool,
    /// Packets go by one of the two addresses of a dual allocation alone.
    pub(crate) uses_one_of_two: bool,
    /// What is under way at the end is awaited for ten seconds, however quiet it is.
    pub(crate) waits_long: bool,
}

/// Command line of `turnbuckle load`.
#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// What is asked of the server
    #[arg(value_enum)]
    pub(crate) mode: Mode,
    #[command(flatten)]
    pub(crate) ends: Ends,
    #[command(flatten)]
    pub(crate) who: Who,
    #[command(flatten)]
    pub(crate) volume: Volume,
    #[command(flatten)]
    pub(crate) flows: Flows,
    /// What coturn's generator has flags for.
    #[arg(skip)]
    pub(crate) habits: Habits,
    #[command(flatten)]
    pub(crate) pace: Pace,
    #[command(flatten)]
    pub(crate) form: Form,
    #[command(flatten)]
    pub(crate) machine: Machine,
    #[command(flatten)]
    pub(crate) lacks: Lacks,
    /// Seed of transaction ids and of junk
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    #[command(flatten)]
    pub(crate) verdict: Verdict,
}

/// Who is at the ends.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Ends {
    /// The server's address; its port is 3478 unless given
    #[arg(long, value_name = "ADDRESS[:PORT]", value_parser = server_address)]
    pub(crate) server: Option<SocketAddr>,
    /// How clients reach the server; the peer is reached by UDP. masque: tunnels of UDP in HTTP/3 in place of allocations. The server's certificate is not checked
    /// without --ca-file
    #[arg(long, value_parser = cli::transports(), default_value_t = Reach::UDP)]
    pub(crate) transport: Reach,
    /// masque: tunnels of each connection, each of them a client
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(crate) tunnels: u16,
    /// Certificates (PEM) of those who may vouch for the server's
    #[arg(long, value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,
    /// Name that the server's certificate must have, and that is asked for (SNI); its address without it
    #[arg(long, value_name = "NAME")]
    pub(crate) tls_name: Option<String>,
    /// Address of the peer; given several times, clients take turns
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) peer: Vec<SocketAddr>,
    /// Ports that each --peer has, from the given one on, each a peer of its own: `turnbuckle peer --ports`
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(crate) peer_ports: u16,
}

/// Who the clients are.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Who {
    /// A user and its password
    #[arg(long, value_name = "NAME:PASSWORD", conflicts_with = "secret")]
    pub(crate) user: Option<String>,
    /// The secret of a server with time-limited users (use-auth-secret)
    #[arg(long, value_name = "SECRET")]
    pub(crate) secret: Option<String>,
    /// Who the clients are, where neither --user nor --secret can say it.
    #[arg(skip)]
    pub(crate) credentials: Option<Credentials>,
}

/// How much there is of everything.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Volume {
    /// Allocations; in alloc those made at the same time, without a server flows
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clients)]
    pub(crate) clients: usize,
    /// Bytes of each packet, that is of what the peer receives
    #[arg(long, value_name = "BYTES", default_value_t = 120, value_parser = size)]
    pub(crate) size: usize,
    /// Packets of each client, or with alloc allocations (and what was under way), after which the run ends before its time
    #[arg(long, value_name = "N", value_parser = packets)]
    pub(crate) packets: Option<u64>,
}

/// Between whom packets flow.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Flows {
    /// Clients send to each other through the relay, in pairs; there is no peer
    #[arg(long, conflicts_with_all = ["peer", "direct"])]
    pub(crate) pairs: bool,
    /// tcp-relay: this program is the peer as well, and connects to the relayed address
    #[arg(long, conflicts_with_all = ["peer", "direct", "pairs"])]
    pub(crate) passive: bool,
    /// Dual allocations (ADDITIONAL-ADDRESS-FAMILY): packets go by both relayed addresses in turn, to the first IPv4 and the first IPv6 --peer
    #[arg(long, conflicts_with_all = ["direct", "pairs", "family", "passive"])]
    pub(crate) dual: bool,
    /// Clients go to another local port so often, and the allocation with them (RFC 8016); by UDP
    #[arg(long, value_name = "SECONDS", value_parser = cli::seconds, conflicts_with_all = ["direct", "passive"])]
    pub(crate) move_every: Option<Duration>,
    /// Ask for DONT-FRAGMENT
    #[arg(long, conflicts_with = "direct")]
    pub(crate) dont_fragment: bool,
}

/// When packets are due.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Pace {
    /// Seconds that are measured
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = cli::seconds)]
    pub(crate) duration: Duration,
    /// Seconds of the same before, which do not count
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = cli::seconds)]
    pub(crate) warm_up: Duration,
    /// Packets per second: rate and invalid, of all clients together; mix (50 without it), hold (1) and tcp-relay, of each
    #[arg(long, value_name = "PPS", value_parser = cli::rate)]
    pub(crate) rate: Option<f64>,
    /// Packets of a client that are due at the same time, as the packets of a video frame are; the rate stays as it is
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) burst: u32,
}

/// What packets look like.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Form {
    /// Send indications in place of ChannelData
    #[arg(long)]
    pub(crate) indications: bool,
    /// Address family of the relayed address: 4 or 6; the peer's without it
    #[arg(long, value_parser = family, value_name = "4|6")]
    pub(crate) family: Option<AddressFamily>,
}

/// What this machine does for it.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Machine {
    /// Threads that send, by UDP: auto (half of the CPUs), or 1 to 64
    #[arg(long, value_parser = cli::threads, default_value = "auto", value_name = "N")]
    pub(crate) sender_threads: Threads,
    /// Threads that receive and speak TURN, and by other transports than UDP send as well: auto (half of the CPUs, or all), or 1 to 64
    #[arg(long, value_parser = cli::threads, default_value = "auto", value_name = "N")]
    pub(crate) listener_threads: Threads,
    /// CPUs for the threads in turn, senders first, as in 0,2-3
    #[arg(long, value_parser = cli::cpus)]
    pub(crate) cpus: Option<Cpus>,
    /// How datagrams are moved: auto, single (a system call for each), mmsg, gso
    #[arg(long, value_parser = cli::backend, default_value = "auto")]
    pub(crate) backend: BackendChoice,
    /// Local address; without it the kernel chooses
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) local: Option<IpAddr>,
}

/// What a run goes without.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Lacks {
    /// No relay: packets go straight to the peer
    #[arg(long, conflicts_with_all = ["server", "user", "secret", "indications", "family"])]
    pub(crate) direct: bool,
    /// The peer answers nothing: do not count what is missing
    #[arg(long)]
    pub(crate) no_receive: bool,
}

/// What is said at the end.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Verdict {
    /// Exit with code 1 if more than so many per cent of the packets are lost
    #[arg(long, value_name = "PERCENT", value_parser = percent, conflicts_with = "no_receive")]
    pub(crate) max_loss: Option<f64>,
    /// Exit with code 1 if the 99th percentile of the round trip is longer
    #[arg(long, value_name = "MICROSECONDS", conflicts_with = "no_receive")]
    pub(crate) max_p99_us: Option<f64>,
    /// Print events as lines of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl Arguments {
    /// Returns how many clients share a connection.
    pub(crate) fn tunnels_per_connection(&self) -> usize {
        self.ends.tunnels.max(1).into()
    }

    /// Returns who the clients are; `None` where they are nobody.
    ///
    /// # Errors
    /// A clock before 1970, or a user without a password.
    pub(crate) fn who(&self) -> anyhow::Result<Option<Credentials>> {
        if self.lacks.direct || self.mode == Mode::Invalid {
            return Ok(None);
        }
        if let Some(credentials) = &self.who.credentials {
            return Ok(Some(credentials.clone()));
        }
        if let Some(secret) = &self.who.secret {
            let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
            let expires = now + REST_LIFETIME;
            return Ok(Some(Credentials::rest("load", secret, expires, ':')));
        }
        let user = self.who.user.as_deref().unwrap_or_default();
        let (name, password) = user
            .split_once(':')
            .context("--user: allowed: NAME:PASSWORD")?;
        Ok(Some(Credentials::user(name, password)))
    }

    /// Returns by what clients reach the server.
    ///
    /// # Errors
    /// What is wrong with the file of authorities, or the name.
    pub(super) fn access(&self) -> anyhow::Result<Access> {
        let (ca_file, name) = (self.ends.ca_file.as_deref(), self.ends.tls_name.as_deref());
        let transport = match self.ends.transport {
            Reach::Turn(transport) => transport,
            Reach::Masque => {
                let server = self.ends.server.context("tunnels without a server")?;
                let user = self.who()?.context("tunnels of nobody")?;
                let (targets, _) = self.peers();
                let tunnels = self.ends.tunnels.into();
                let masque = Masque::new((server, name), ca_file, &user, tunnels, targets)?;
                return Ok(Access::Masque(masque));
            }
        };
        Access::new(transport, self.ends.server, ca_file, name)
    }

    /// Returns the seed that was given, or else a random one.
    pub(crate) fn seed(&self) -> u64 {
        let any = || RandomState::new().hash_one("seed");
        self.seed.unwrap_or_else(any)
    }

    /// Returns the packets per second of all clients together; `None` for as many as possible.
    pub(crate) fn total_rate(&self) -> Option<f64> {
        match self.mode {
            Mode::Packet | Mode::Alloc | Mode::Negative => None,
            Mode::Rate | Mode::Invalid => self.pace.rate,
            Mode::TcpRelay => self.pace.rate.map(|rate| rate * self.volume.clients as f64),
            Mode::Mix => Some(self.pace.rate.unwrap_or(MIX_RATE) * self.volume.clients as f64),
            Mode::Hold => Some(self.pace.rate.unwrap_or(HOLD_RATE) * self.volume.clients as f64),
        }
    }

    /// Returns REQUESTED-ADDRESS-FAMILY for an allocation with this peer: the peer's own, if it is IPv6, unless one was asked for.
    pub(crate) fn family_of(&self, peer: Option<SocketAddr>) -> Option<AddressFamily> {
        let of_peer = peer.filter(SocketAddr::is_ipv6).map(|_| AddressFamily::V6);
        self.form.family.or(of_peer)
    }

    /// Returns the peers that clients have in turn, and the one that each has besides by a dual allocation.
    pub(crate) fn peers(&self) -> (Vec<SocketAddr>, Option<SocketAddr>) {
        if !self.flows.dual || self.habits.uses_one_of_two {
            return (cli::on_ports(&self.ends.peer, self.ends.peer_ports), None);
        }
        let (second, first): (Vec<_>, Vec<_>) =
            self.ends.peer.iter().partition(|peer| peer.is_ipv6());
        (first, second.first().copied())
    }

    /// Returns the address that a client with this peer names besides: the other one of two, for a client of the first.
    pub(crate) fn companion_of(&self, peer: SocketAddr) -> Option<SocketAddr> {
        match self.ends.peer[..] {
            [rtp, rtcp] if self.habits.names_both_ports && rtp == peer => Some(rtcp),
            _ => None,
        }
    }

    /// Returns when clients move; `None` if they do not.
    pub(crate) fn moves(&self) -> Option<Moves> {
        let every = self.flows.move_every.map(|every| {
            let every = u64::try_from(every.as_nanos()).unwrap_or(u64::MAX);
            Moves::Every(every)
        });
        every.or_else(|| self.habits.moves_once.then_some(Moves::Once))
    }

    /// Returns the local address: as asked, or any of the family of `to`.
    pub(crate) fn local(&self, to: SocketAddr) -> IpAddr {
        self.machine.local.unwrap_or_else(|| match to {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        })
    }
}

fn clients(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number @ 1..=CLIENTS_MAX) => Ok(number),
        _ => Err(format!("allowed: 1 to {CLIENTS_MAX}")),
    }
}

fn packets(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(number @ 1..=PACKETS_MAX) => Ok(number),
        _ => Err(format!("allowed: 1 to {PACKETS_MAX}")),
    }
}

fn size(text: &str) -> Result<usize, String> {
    // With an indication's headers around it still a datagram.
    const MAX: usize = 65_400;
    match text.parse() {
        Ok(size @ HEADER_LEN..=MAX) => Ok(size),
        _ => Err(format!(
            "allowed: {HEADER_LEN} (session, number and time of a packet) to {MAX} bytes"
        )),
    }
}

fn family(text: &str) -> Result<AddressFamily, String> {
    match text {
        "4" => Ok(AddressFamily::V4),
        "6" => Ok(AddressFamily::V6),
        _ => Err("allowed: 4 or 6".to_owned()),
    }
}

fn percent(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err("allowed: 0 to 100 per cent".to_owned()),
    }
}

#[cfg(test)]
mod tests;
