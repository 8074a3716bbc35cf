//! The command line of turnutils_uclient.
//!
//! Every flag of that program is known here. What the generator has no counterpart for is refused with a sentence: a script that asks
//! for TLS must not be told figures of UDP.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lexopt::{Arg, Parser, ValueExt as _};
use turnbuckle_wire::AddressFamily;

use crate::cli::{BackendChoice, Threads};
use crate::flags::{address, number, text};
use crate::load::arguments::{self, Arguments, CLIENTS_MAX, Habits, Mode, PACKETS_MAX};
use crate::negative::Group;
use crate::packet::HEADER_LEN;
use turnbuckle_client::{Credentials, Transport};

/// A run without a number of packets ends by a signal.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 86_400);
/// How long a name made of a secret is good, as in the original.
const REST_LIFETIME_S: u64 = 86_400;

/// The key that the original has built in, under its name.
const TOKEN_KEY_NAME: &str = "north";
const TOKEN_KEY: &[u8] = b"01234567890123456789012345678901";

pub(super) const USAGE: &str = "\
Usage: turnutils_uclient [flags] [options] turn-server-ip-address
Flags:
  -v  Say how the run is done.
  -t  TCP to the server.
  -S  TLS to the server with -t, DTLS without.
  -T  TCP relays (RFC 6062) between clients, two and two. Implies -t -y -c; -s -e -r -g have no effect.
  -P  TCP relays to which this program connects, as a peer. Implies -T.
  -s  Send and Data indications in place of channels.
  -y  Clients send to each other through the server, two and two; no peer.
  -h  Keep the allocations after the last packet, until a signal.
  -c  No second connection (RTCP) per client: without it clients come in pairs, and every other one
      sends to the peer port + 1. The first of a pair names both ports to the server.
  -x  IPv6 relay address requested.
  -X  IPv4 relay address requested.
  -Z  Dual allocation: an address of each family. Implies -c.
  -g  Include DONT-FRAGMENT.
  -D  Pad ChannelData over UDP, too.
  -M  Mobility (RFC 8016): clients go to another port before the first packet; by UDP.
  -I  No permissions; with -s, as channels bring one with them.
  -G  Extra requests: permissions, channels and refreshes, some thirty a second of each client.
  -B  About half of the clients stop after a few packets, and give nothing back.
  -O  Open all clients and end, giving nothing back.
  -N  Unusual requests first, each of which must get the answer that the RFCs want; a line for each.
  -R  Malformed messages first, in the same way.
  --no-even-port  Accepted: EVEN-PORT is never asked for.
Options:
  -l  Message length, 24 and more (default: 100 bytes; less is made 24).
  -p  Server port (default: 3478, with -S 5349).
  -n  Messages of each client (default: 5; with -Y as many as there is time for).
  -L  Local address.
  -m  Number of clients (default: 1), rounded up to a multiple of 2, with -y of 4, unless -c is given.
  -e  Peer address.
  -r  Peer port (default: 3480).
  -z  Interval of a client's packets, milliseconds (default: 20; with -Y packet and invalid none).
  -u  User name.
  -w  Password.
  -W  Secret of time-limited users.
  -J  OAuth (RFC 7635): tokens under the key `north` that coturn's program has built in.
  -o  ORIGIN of the requests.
  -E  File of certificates that may vouch for the server's; without it any certificate will do.
  -C  What stands between time and name of a time-limited user (default: a colon).
  -Y  packet: as many packets as possible; alloc: allocate and release; invalid: junk.
      Runs until a signal (timeout -s INT 10 turnutils_uclient ...), or until -n is reached.
  --sender-threads N     Threads that send, 0 to 4 (default: by the CPUs; 0 as 1).
  -K, --listener-threads N  Threads that receive, 0 to 4 (default: by the CPUs; 0 as 1).
Not here, and refused: SCTP (-b), eNULL and other ciphers (-U -F), a certificate of the client (-i -k), a bandwidth (-a),
a device (-d; -L says the same by the address).
";

/// What is to be done.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) load: Arguments,
    /// One of the `-Y` modes.
    pub(super) is_generator: bool,
    pub(super) is_verbose: bool,
    /// Checks before the run.
    pub(super) negative: Vec<Group>,
    /// The run ends when all clients are there.
    pub(super) leaves_at_once: bool,
    /// For people, about flags that mean something else here.
    pub(super) notes: Vec<String>,
}

/// The flags as given.
#[derive(Debug)]
struct Given {
    ends: Ends,
    volume: Volume,
    who: Who,
    flows: Flows,
    carrier: Carrier,
    mode: Option<Mode>,
    senders: Threads,
    listeners: Threads,
    is_verbose: bool,
    negative: Vec<Group>,
    leaves_at_once: bool,
    habits: Habits,
}

/// Who is at the ends.
#[derive(Debug)]
struct Ends {
    server: Option<String>,
    port: Option<u16>,
    peer: Option<IpAddr>,
    peer_port: u16,
    family: Option<AddressFamily>,
    local: Option<IpAddr>,
}

/// How much there is of everything.
#[derive(Debug)]
struct Volume {
    clients: usize,
    messages: Option<u64>,
    len: Option<usize>,
    interval_ms: Option<u32>,
}

/// Who the clients are.
#[derive(Debug)]
struct Who {
    user: String,
    password: Option<String>,
    secret: Option<String>,
    separator: char,
    is_third_party: bool,
}

/// Between whom packets flow, and how.
#[derive(Debug)]
struct Flows {
    has_indications: bool,
    is_client_to_client: bool,
    is_single: bool,
    has_dont_fragment: bool,
    is_tcp_relay: bool,
    is_passive: bool,
    is_dual: bool,
}

/// By what the server is reached.
#[derive(Debug)]
struct Carrier {
    is_tcp: bool,
    is_secure: bool,
    ca_file: Option<PathBuf>,
}

/// Flags of the original that are refused, each with what it asks for.
const REFUSED: [(char, &str); 7] = [
    ('b', "SCTP"),
    ('U', "eNULL ciphers"),
    ('i', "a certificate of the client"),
    ('k', "a private key of the client"),
    ('F', "a choice of cipher suites"),
    ('a', "a bandwidth"),
    ('d', "a device"),
];

impl Options {
    /// Reads the command line without the program's name.
    ///
    /// # Errors
    /// A sentence: which flag, what is wrong, what is allowed.
    pub(super) fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Self, String> {
        Given::parse(words).and_then(Given::into_options)
    }
}

impl Given {
    fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Self, String> {
        let mut given = Self {
            ends: Ends {
                server: None,
                port: None,
                peer: None,
                peer_port: 3480,
                family: None,
                local: None,
            },
            volume: Volume {
                clients: 1,
                messages: None,
                len: None,
                interval_ms: None,
            },
            who: Who {
                user: String::new(),
                password: None,
                secret: None,
                separator: ':',
                is_third_party: false,
            },
            flows: Flows {
                has_indications: false,
                is_client_to_client: false,
                is_single: false,
                has_dont_fragment: false,
                is_tcp_relay: false,
                is_passive: false,
                is_dual: false,
            },
            carrier: Carrier {
                is_tcp: false,
                is_secure: false,
                ca_file: None,
            },
            mode: None,
            senders: Threads::Auto,
            listeners: Threads::Auto,
            is_verbose: false,
            negative: Vec::new(),
            leaves_at_once: false,
            habits: Habits::default(),
        };
        let mut parser = Parser::from_args(words);
        loop {
            match parser.next() {
                Ok(Some(Arg::Value(value))) if given.ends.server.is_none() => {
                    given.ends.server = Some(value.string().map_err(|error| error.to_string())?);
                }
                Ok(Some(Arg::Value(value))) => {
                    let value = value.display();
                    return Err(format!("{value}: one server only"));
                }
                Ok(Some(Arg::Short(flag))) => given.short(flag, &mut parser)?,
                Ok(Some(Arg::Long(name))) => {
                    let name = name.to_owned();
                    given.long(&name, &mut parser)?;
                }
                Ok(None) => return Ok(given),
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    fn short(&mut self, flag: char, parser: &mut Parser) -> Result<(), String> {
        let name = format!("-{flag}");
        match flag {
            'v' => self.is_verbose = true,
            's' => self.flows.has_indications = true,
            'y' => self.flows.is_client_to_client = true,
            'c' => self.flows.is_single = true,
            'g' => self.flows.has_dont_fragment = true,
            't' => self.carrier.is_tcp = true,
            'S' => self.carrier.is_secure = true,
            'T' => self.flows.is_tcp_relay = true,
            'P' => self.flows.is_passive = true,
            'Z' => self.flows.is_dual = true,
            'D' => self.habits.pads = true,
            'M' => self.habits.moves_once = true,
            'I' => self.habits.asks_for_no_permission = true,
            'G' => self.habits.asks_often = true,
            'B' => self.habits.leaves_early = true,
            'h' => self.habits.stays = true,
            'O' => self.leaves_at_once = true,
            'N' => self.negative.push(Group::Requests),
            'R' => self.negative.push(Group::Protocol),
            'J' => self.who.is_third_party = true,
            'o' => self.habits.origin = Some(text(&name, parser)?),
            'E' => self.carrier.ca_file = Some(text(&name, parser)?.into()),
            'x' => self.ends.family = Some(AddressFamily::V6),
            'X' => self.ends.family = Some(AddressFamily::V4),
            'l' => self.volume.len = Some(number(&name, parser, 0, 65_400)?),
            'p' => self.ends.port = Some(number(&name, parser, 1, u16::MAX)?),
            'r' => self.ends.peer_port = number(&name, parser, 1, u16::MAX)?,
            'n' => self.volume.messages = Some(number(&name, parser, 1, PACKETS_MAX)?),
            // As the original, which has one client at least.
            'm' => self.volume.clients = number(&name, parser, 0, CLIENTS_MAX)?.max(1),
            'z' => self.volume.interval_ms = Some(number(&name, parser, 0, 3_600_000)?),
            'L' => self.ends.local = Some(address(&name, parser)?),
            'e' => self.ends.peer = Some(address(&name, parser)?),
            'u' => self.who.user = text(&name, parser)?,
            'w' => self.who.password = Some(text(&name, parser)?),
            'W' => self.who.secret = Some(text(&name, parser)?),
            'C' => {
                let mut characters = text(&name, parser)?.chars().collect::<Vec<_>>();
                self.who.separator = match (characters.pop(), characters.is_empty()) {
                    (Some(only), true) => only,
                    _ => return Err("-C: allowed: one character".to_owned()),
                };
            }
            'Y' => {
                self.mode = Some(match text(&name, parser)?.as_str() {
                    "packet" => Mode::Packet,
                    "alloc" => Mode::Alloc,
                    "invalid" => Mode::Invalid,
                    _ => return Err("-Y: allowed: packet, alloc, invalid".to_owned()),
                });
            }
            'K' => self.listeners = threads(&name, parser)?,
            _ => {
                return Err(match REFUSED.iter().find(|(refused, _)| *refused == flag) {
                    Some((_, what)) => {
                        format!("-{flag}: {what} cannot be had here")
                    }
                    None => format!("-{flag}: no such flag"),
                });
            }
        }
        Ok(())
    }

    fn long(&mut self, name: &str, parser: &mut Parser) -> Result<(), String> {
        let named = format!("--{name}");
        match name {
            "no-even-port" => {}
            "listener-threads" => self.listeners = threads(&named, parser)?,
            "sender-threads" => self.senders = threads(&named, parser)?,
            _ => return Err(format!("{named}: no such option")),
        }
        Ok(())
    }

    /// Applies what flags mean for each other, as in the original.
    fn settle(&mut self) -> Result<(), String> {
        self.flows.is_tcp_relay |= self.flows.is_passive;
        if self.flows.is_tcp_relay {
            (self.carrier.is_tcp, self.flows.is_single) = (true, true);
            self.flows.is_client_to_client = true;
            (self.flows.has_indications, self.flows.has_dont_fragment) = (false, false);
            self.ends.peer = None;
            for (is_given, flag) in [
                (self.flows.is_dual, 'Z'),
                (self.habits.moves_once, 'M'),
                (self.habits.asks_often, 'G'),
                (self.habits.leaves_early, 'B'),
                (self.habits.asks_for_no_permission, 'I'),
                (self.mode.is_some(), 'Y'),
            ] {
                if is_given {
                    return Err(format!("-{flag} is about UDP relays; -T and -P are not"));
                }
            }
        }
        self.flows.is_single |= self.flows.is_dual;
        self.habits.names_both_ports = !self.flows.is_single;
        self.habits.uses_one_of_two = self.flows.is_dual;
        self.habits.waits_long = true;
        if self.carrier.ca_file.is_some() && !self.carrier.is_secure {
            return Err("-E is about certificates; there are none without -S".to_owned());
        }
        if self.carrier.is_secure && !self.negative.is_empty() {
            return Err("-N and -R go by UDP and TCP, not with -S".to_owned());
        }
        if self.who.is_third_party && !self.negative.is_empty() {
            return Err("-N and -R take a user with a password, not -J".to_owned());
        }
        Ok(())
    }

    fn transport(&self) -> Transport {
        match (self.carrier.is_tcp, self.carrier.is_secure) {
            (false, false) => Transport::Udp,
            (false, true) => Transport::Dtls,
            (true, false) => Transport::Tcp,
            (true, true) => Transport::Tls,
        }
    }

    fn into_options(mut self) -> Result<Options, String> {
        let mut notes = Vec::new();
        self.settle()?;
        let port = self
            .ends
            .port
            .unwrap_or(if self.carrier.is_secure { 5349 } else { 3478 });
        let server = self
            .ends
            .server
            .as_deref()
            .ok_or("the address of the server is missing")?;
        // A certificate is of a name, or of an address where none was given.
        let tls_name = (self.carrier.is_secure && server.parse::<IpAddr>().is_err())
            .then(|| server.to_owned());
        let server = (server, port)
            .to_socket_addrs()
            .map_err(|error| format!("{server}: {error}"))?
            .next()
            .ok_or_else(|| format!("{server}: the name has no address"))?;
        let needs_peer = matches!(self.mode, None | Some(Mode::Packet));
        if needs_peer && self.ends.peer.is_none() && !self.flows.is_client_to_client {
            return Err("either -e peer_address or -y must be specified".to_owned());
        }
        let interval_ms = match self.mode {
            None => self.volume.interval_ms.unwrap_or(20),
            Some(_) => self.volume.interval_ms.unwrap_or(0),
        };
        // The generator's own names for it: a rate makes of a flood many paced clients.
        let mode = match (self.mode, interval_ms) {
            _ if self.flows.is_tcp_relay => Mode::TcpRelay,
            (None | Some(Mode::Packet), 0) => Mode::Packet,
            (None | Some(Mode::Packet), _) => Mode::Mix,
            (Some(mode), _) => mode,
        };
        let clients = self.client_count();
        if clients > CLIENTS_MAX {
            return Err(format!("-m: allowed: 1 to {CLIENTS_MAX} clients"));
        }
        let rate = match mode {
            Mode::Mix => Some(1e3 / f64::from(interval_ms)),
            Mode::TcpRelay if interval_ms > 0 => Some(1e3 / f64::from(interval_ms)),
            Mode::Invalid if interval_ms > 0 => Some(1e3 / f64::from(interval_ms) * clients as f64),
            _ => None,
        };
        let len = self.volume.len.unwrap_or(100);
        if len < HEADER_LEN {
            notes.push(format!(
                "-l {len}: packets are made {HEADER_LEN} bytes long, for a checksum beside number and time"
            ));
        }
        if mode == Mode::Invalid && self.volume.len.is_some() {
            notes.push("-l: junk has lengths of its own".to_owned());
        }
        let has_sender_threads = self.transport() == Transport::Udp && !self.habits.moves_once;
        let senders = if has_sender_threads {
            self.senders
        } else {
            if self.senders != Threads::Auto {
                notes.push("--sender-threads: those that receive send as well here".to_owned());
            }
            Threads::Auto
        };
        let has_peer = mode.has_packets() && !self.flows.is_client_to_client;
        let peer_ports = if self.flows.is_single {
            vec![self.ends.peer_port]
        } else {
            // Where RTP and RTCP of a client would go.
            let next = self.ends.peer_port.checked_add(1);
            vec![
                self.ends.peer_port,
                next.ok_or("-r: allowed: 1 to 65534 without -c")?,
            ]
        };
        let peer = self.ends.peer.filter(|_| has_peer);
        let peer = peer.map_or_else(Vec::new, |ip| {
            let ports = peer_ports.into_iter();
            ports.map(|port| SocketAddr::new(ip, port)).collect()
        });
        // As in the original, the peer's family overrides what was asked for.
        let family = self.ends.family.filter(|_| peer.is_empty());
        let load = Arguments {
            mode,
            ends: arguments::Ends {
                server: Some(server),
                transport: self.transport().into(),
                ca_file: self.carrier.ca_file.clone(),
                tls_name,
                peer_ports: 1,
                tunnels: 1,
                peer,
            },
            who: arguments::Who {
                user: None,
                secret: None,
                credentials: Some(self.credentials()?),
            },
            volume: arguments::Volume {
                clients,
                size: len.max(HEADER_LEN),
                packets: match self.mode {
                    None => Some(self.volume.messages.unwrap_or(5)),
                    Some(_) => self.volume.messages,
                },
            },
            flows: arguments::Flows {
                pairs: self.flows.is_client_to_client
                    && mode.has_packets()
                    && !self.flows.is_passive,
                passive: self.flows.is_passive,
                dual: self.flows.is_dual,
                move_every: None,
                dont_fragment: self.flows.has_dont_fragment,
            },
            habits: self.habits.clone(),
            pace: arguments::Pace {
                duration: FOR_EVER,
                warm_up: Duration::ZERO,
                rate,
                burst: 1,
            },
            form: arguments::Form {
                indications: self.flows.has_indications,
                family,
            },
            machine: arguments::Machine {
                sender_threads: senders,
                listener_threads: self.listeners,
                cpus: None,
                backend: BackendChoice::AUTO,
                local: self.ends.local,
            },
            lacks: arguments::Lacks {
                direct: false,
                no_receive: false,
            },
            seed: None,
            verdict: arguments::Verdict {
                max_loss: None,
                max_p99_us: None,
                json: false,
            },
        };
        load.check()?;
        Ok(Options {
            load,
            is_generator: self.mode.is_some(),
            is_verbose: self.is_verbose,
            negative: self.negative,
            leaves_at_once: self.leaves_at_once,
            notes,
        })
    }

    /// Returns how many clients there are, as in the original: two connections per client unless `-c`, and two clients to talk to each other.
    fn client_count(&self) -> usize {
        let unit = match (self.flows.is_client_to_client, self.flows.is_single) {
            (false, true) => 1,
            (true, true) | (false, false) => 2,
            (true, false) => 4,
        };
        match self.mode {
            Some(Mode::Alloc | Mode::Invalid) => self.volume.clients,
            _ => self.volume.clients.next_multiple_of(unit),
        }
    }

    fn credentials(&self) -> Result<Credentials, String> {
        if self.who.is_third_party {
            return Ok(Credentials::third_party(TOKEN_KEY_NAME, TOKEN_KEY));
        }
        let Some(secret) = &self.who.secret else {
            let password = self.who.password.as_deref().unwrap_or_default();
            return Ok(Credentials::user(&self.who.user, password));
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_err(|_| "the clock of this machine is before 1970")?;
        let expires = now.as_secs() + REST_LIFETIME_S;
        Ok(Credentials::rest(
            &self.who.user,
            secret,
            expires,
            self.who.separator,
        ))
    }
}

fn threads(name: &str, parser: &mut Parser) -> Result<Threads, String> {
    // The original's 0 means no thread beside the main one, which here does not send.
    Ok(Threads::Number(number(name, parser, 0_usize, 4)?.max(1)))
}

#[cfg(test)]
mod tests;
