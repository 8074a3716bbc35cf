//! The command line.

use std::net::{IpAddr, SocketAddr};

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use turnbuckle_client::{Credentials, Transport, server_address};

/// Where TLS and DTLS are spoken (RFC 8656 §3.1).
const TLS_PORT: u16 = 5349;

/// Command line of `turnbuckle probe`.
#[derive(clap::Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Arguments {
    #[command(subcommand)]
    pub(crate) other: Option<Other>,
    /// The server's address; its port is 3478 unless given
    #[arg(value_name = "ADDRESS[:PORT]", value_parser = server_address, required_unless_present = "list")]
    pub(crate) server: Option<SocketAddr>,
    #[command(flatten)]
    pub(crate) users: Users,
    #[command(flatten)]
    pub(crate) ways: Ways,
    #[command(flatten)]
    pub(crate) peers: Peers,
    /// Connects to closed and to silent ports, of each, whose failures are timed (V-12)
    #[arg(long, value_name = "COUNT", default_value_t = 24)]
    pub(crate) connects: usize,
    #[command(flatten)]
    pub(crate) crowd: Crowd,
    /// Only the rows whose id begins so, as in V-0 or V-40
    #[arg(long, value_name = "ID", default_value = "")]
    pub(crate) only: String,
    /// Leave out what has to wait for deadlines of the server (some 40 seconds)
    #[arg(long)]
    pub(crate) quick: bool,
    /// Print one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print all rows of the threat list and how each is tried, and end
    #[arg(long)]
    pub(crate) list: bool,
}

/// By what ways the server is tried.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Ways {
    /// Try only these ways in, as far as the server has them
    #[arg(long = "door", value_name = "NAME", value_enum, value_delimiter = ',', default_values_t = Door::ALL)]
    pub(crate) doors: Vec<Door>,
    /// Try only these, as far as the server speaks them; tunnels by HTTP/1.1 are tried by one of tls and tcp
    #[arg(long, value_parser = transports(), value_delimiter = ',', default_values_t = Transport::ALL)]
    pub(crate) transports: Vec<Transport>,
    /// Where the server speaks TLS and DTLS
    #[arg(long, value_name = "PORT", default_value_t = TLS_PORT)]
    pub(crate) tls_port: u16,
    #[command(flatten)]
    pub(crate) targets: Targets,
}

/// Requests for tunnels.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Targets {
    /// The host whom requests for tunnels are for
    #[arg(long, value_name = "HOST", default_value = "relay.example.org")]
    pub(crate) authority: String,
    /// A name that the server resolves to a peer which is forbidden, as a tunnel's target; may be given several times
    #[arg(long = "forbidden-name", value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Of the spellings of addresses as targets of tunnels, and of the addresses in bound tunnels, which make more than 20,000 probes each, try one in
    /// so many
    #[arg(long = "target-one-in", value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(crate) one_in: u16,
}

/// A way in.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    /// TURN, by all transports
    Turn,
    /// Tunnels of UDP in HTTP/1.1: by TLS, or where that is not spoken by TCP
    Http1,
    /// Tunnels of UDP in HTTP/3, at the port of TURN
    Http3,
    /// Bound tunnels of UDP in HTTP/1.1 and in HTTP/3: peers of contexts and of datagrams
    Bind,
}

impl Door {
    const ALL: [Self; 4] = [Self::Turn, Self::Http1, Self::Http3, Self::Bind];

    /// Returns the name of what is spoken there.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Turn => "TURN",
            Self::Http1 => "HTTP/1.1",
            Self::Http3 => "HTTP/3",
            Self::Bind => "bound tunnels",
        }
    }
}

/// Lets the value be written as on the command line.
impl std::fmt::Display for Door {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Turn => "turn",
            Self::Http1 => "http1",
            Self::Http3 => "http3",
            Self::Bind => "bind",
        })
    }
}

/// Servers of something else than TURN.
#[derive(clap::Subcommand, Clone, Debug)]
pub(crate) enum Other {
    /// Break the rules of QUIC (RFC 9000, 9001) at any server of it, and say what it does; exit code 1 if it does not what it should
    Quic(crate::quic::Arguments),
}

/// Who the attacker may be.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Users {
    /// A user and its password
    #[arg(long, value_name = "NAME:PASSWORD", value_parser = user, required_unless_present = "list")]
    pub(crate) user: Option<Credentials>,
    /// Another user of the server, for attacks on the first one's allocation
    #[arg(long, value_name = "NAME:PASSWORD", value_parser = user)]
    pub(crate) other_user: Option<Credentials>,
    /// The shared secret of time-limited users, for names that have expired
    #[arg(long)]
    pub(crate) secret: Option<String>,
    /// How many allocations a user may have, to ask for more
    #[arg(long, value_name = "COUNT")]
    pub(crate) quota: Option<usize>,
}

/// Who hears what gets through.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Peers {
    /// Listen on this port of every address of this host, by UDP and TCP, and by UDP on the two behind it, and say what arrives: for runs on the
    /// server's own host; probes name the ports even when nobody listens
    #[arg(long, value_name = "PORT")]
    pub(crate) canary: Option<u16>,
    /// A peer's address that the server may reach and the canary hears, to show that it does hear; may be given several times
    #[arg(long, value_name = "ADDRESS", requires = "canary")]
    pub(crate) allowed: Vec<IpAddr>,
}

/// The attacks of many strangers.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Crowd {
    /// Strangers in the attacks of many at once, from 1 to 60,000
    #[arg(long, value_name = "COUNT", default_value_t = 200, value_parser = clap::value_parser!(u16).range(1..=60_000))]
    pub(crate) strangers: u16,
    /// An address of this host that they come from; may be given several times
    #[arg(long = "source", value_name = "ADDRESS")]
    pub(crate) sources: Vec<IpAddr>,
    /// Connections per second that a slow client's has to compete with, from 1 to 100,000
    #[arg(long, value_name = "COUNT", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) flood_rate: u32,
    /// How long each of their attacks lasts, from 1 to 600 seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=600))]
    pub(crate) attack_seconds: u16,
    /// Only the attacks of many strangers, by TURN, and all at the same time
    #[arg(long, conflicts_with = "quick")]
    pub(crate) only_strangers: bool,
}

/// Reads the name of a transport.
fn transports() -> impl TypedValueParser<Value = Transport> {
    let value = |transport: Transport| {
        PossibleValue::new(transport.as_str()).help(match transport {
            Transport::Udp => "Plain datagrams",
            Transport::Tcp => "A plain connection",
            Transport::Tls => "TLS over TCP",
            Transport::Dtls => "DTLS over UDP",
        })
    };
    PossibleValuesParser::new(Transport::ALL.map(value)).try_map(|text| text.parse::<Transport>())
}

fn user(text: &str) -> Result<Credentials, String> {
    match text.split_once(':') {
        Some((name, password)) if !name.is_empty() && !password.is_empty() => {
            Ok(Credentials::user(name, password))
        }
        _ => Err("allowed: a name, a colon, a password".to_owned()),
    }
}
