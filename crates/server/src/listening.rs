//! Which addresses are listened on, and which are waited for.
//!
//! Each address is tried out before a shard binds it, with a socket that shares its port with nobody: only so does it show that another process listens
//! there, because the shards' own sockets share theirs (SO_REUSEPORT), with anybody who does the same as the same user. `turnbuckle serve` ends then. As
//! `turnserver` the server starts as coturn does: what cannot be listened on yet is waited for while the rest serves, and a port that somebody else
//! shares is shared, with a warning. Addresses that the machine gets later are added where a wildcard stands for them.

use std::fmt;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
use turnbuckle_engine::InterfaceAddress;

use crate::config::{Config, Persona};
use crate::shard::{Request, Shard};

/// Time between two attempts to listen on what is waited for.
const INTERVAL: Duration = Duration::from_secs(1);

/// How long the shards may take to open sockets. Longer only if one of them has ended.
const PATIENCE: Duration = Duration::from_secs(5);

/// What arrives at a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transport {
    Udp,
    Tcp,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Udp => "UDP",
            Self::Tcp => "TCP",
        })
    }
}

/// What is listened on, and what is waited for.
pub(crate) struct Listening {
    /// Addresses for datagrams that every shard has a socket for.
    pub(crate) datagrams: Vec<SocketAddr>,
    /// Addresses for connections, likewise.
    pub(crate) streams: Vec<SocketAddr>,
    /// Those of both that came after the start, as they came: a shard that is started anew has to name them as the others do.
    later: Vec<(Vec<SocketAddr>, Vec<SocketAddr>)>,
    awaited: Vec<(Transport, SocketAddr)>,
    next_attempt: Instant,
}

impl Listening {
    /// Tries all addresses of `config` out, and says which are waited for or shared.
    ///
    /// # Errors
    ///
    /// An address cannot be listened on; as `turnserver` only if that is so for all of a transport, and none of them is one that the machine may still get.
    pub(crate) fn begin(config: &Config, out: &mut impl Write) -> io::Result<Self> {
        let wanted = datagrams_and_streams(config);
        let mut listening = Self {
            datagrams: Vec::new(),
            streams: Vec::new(),
            later: Vec::new(),
            awaited: Vec::new(),
            next_attempt: Instant::now() + INTERVAL,
        };
        let mut errors: Vec<(Transport, io::Error)> = Vec::new();
        for (transport, address) in wanted {
            let error = match try_out(config, transport, address) {
                Ok(()) => {
                    listening.opened(transport, address);
                    continue;
                }
                Err(error) => error,
            };
            if config.persona == Persona::Turnbuckle {
                return Err(error);
            }
            if error.kind() == io::ErrorKind::AddrInUse && share(transport, address).is_ok() {
                let _ = writeln!(
                    out,
                    "warning: another process listens on {transport} {address} too, and the kernel gives it a part of the clients"
                );
                listening.opened(transport, address);
                continue;
            }
            let _ = writeln!(out, "warning: {error}; it is tried again every second");
            listening.awaited.push((transport, address));
            errors.push((transport, error));
        }
        for transport in [Transport::Udp, Transport::Tcp] {
            let is_open = match transport {
                Transport::Udp => !listening.datagrams.is_empty(),
                Transport::Tcp => !listening.streams.is_empty(),
            };
            let may_come = |(of, error): &(Transport, io::Error)| {
                *of == transport && error.kind() == io::ErrorKind::AddrNotAvailable
            };
            let first = errors.iter().position(|(of, _)| *of == transport);
            if let Some(first) = first
                && !is_open
                && !errors.iter().any(may_come)
            {
                return Err(errors.swap_remove(first).1);
            }
        }
        Ok(listening)
    }

    fn opened(&mut self, transport: Transport, address: SocketAddr) {
        match transport {
            Transport::Udp => self.datagrams.push(address),
            Transport::Tcp => self.streams.push(address),
        }
    }

    /// Waits for those of `addresses` that a wildcard of `config` stands for and that nobody listens on yet.
    pub(crate) fn follow(&mut self, config: &Config, addresses: &[InterfaceAddress]) {
        for address in addresses.iter().map(|address| address.ip) {
            if !config.addresses.stands_for(address) {
                continue;
            }
            for wanted in datagrams_and_streams(&config.only_on(address)) {
                let (transport, address) = wanted;
                let open = match transport {
                    Transport::Udp => &self.datagrams,
                    Transport::Tcp => &self.streams,
                };
                if !open.contains(&address) && !self.awaited.contains(&wanted) {
                    self.awaited.push(wanted);
                    self.next_attempt = Instant::now();
                }
            }
        }
        // An address that went before it could be listened on is not waited for; one that is written is.
        let is_there = |ip: IpAddr| addresses.iter().any(|address| address.ip == ip);
        let written = datagrams_and_streams(config);
        self.awaited
            .retain(|wanted| written.contains(wanted) || is_there(wanted.1.ip()));
    }

    /// When it is time for [`Self::attempt`], if anything is waited for.
    pub(crate) fn due(&self) -> Option<Instant> {
        (!self.awaited.is_empty()).then_some(self.next_attempt)
    }

    /// Has the shards listen on what can be listened on by now, if it is time for that.
    pub(crate) fn attempt(
        &mut self,
        config: &Config,
        now: Instant,
        shards: &[Shard],
        out: &mut impl Write,
    ) {
        if self.due().is_none_or(|due| now < due) {
            return;
        }
        self.next_attempt = now + INTERVAL;
        let (free, awaited): (Vec<_>, Vec<_>) = std::mem::take(&mut self.awaited)
            .into_iter()
            .partition(|&(transport, address)| try_out(config, transport, address).is_ok());
        self.awaited = awaited;
        if free.is_empty() {
            return;
        }
        let of = |wanted| {
            let found = free.iter().filter(|(transport, _)| *transport == wanted);
            found.map(|&(_, address)| address).collect::<Vec<_>>()
        };
        let (datagrams, streams) = (of(Transport::Udp), of(Transport::Tcp));
        match open(shards, &datagrams, &streams) {
            Ok(()) => {
                for (transport, address) in &free {
                    let _ = writeln!(out, "listening on {transport} {address} from now on");
                }
            }
            Err(why) => {
                let _ = writeln!(out, "warning: {why}");
            }
        }
        let _ = out.flush();
        self.datagrams.extend(&datagrams);
        self.streams.extend(&streams);
        self.later.push((datagrams, streams));
    }

    /// Has a shard that was started anew listen on what came after the start, and take clients.
    pub(crate) fn resume(&self, shard: &Shard) {
        for (datagrams, streams) in &self.later {
            shard.insist(Request::Listen {
                datagrams: datagrams.clone(),
                streams: streams.clone(),
                // Its sockets were kept, so there is nothing to wait for.
                done: sync_channel(1).0,
            });
        }
        shard.insist(Request::AdmitClients(sync_channel(1).0));
    }
}

/// Opens sockets on every shard, and lets clients come when all are bound.
fn open(shards: &[Shard], datagrams: &[SocketAddr], streams: &[SocketAddr]) -> Result<(), String> {
    let (done, is_done) = sync_channel(shards.len());
    for shard in shards {
        shard.insist(Request::Listen {
            datagrams: datagrams.to_vec(),
            streams: streams.to_vec(),
            done: done.clone(),
        });
    }
    drop(done);
    let mut outcome = Ok(());
    for _ in shards {
        match is_done.recv_timeout(PATIENCE) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => outcome = Err(error.to_string()),
            // It has ended, and its notice says why.
            Err(_) => break,
        }
    }
    admit_clients(shards);
    outcome
}

/// Opens the listeners that are bound, now that the kernel knows all of them and will not move a client from one shard to another.
pub(crate) fn admit_clients(shards: &[Shard]) {
    // One after the other: the order in which they begin to listen is their number in the group.
    for shard in shards {
        let (done, is_done) = sync_channel(1);
        shard.insist(Request::AdmitClients(done));
        // Fails when the shard has ended: then its notice says why.
        let _ = is_done.recv_timeout(PATIENCE);
    }
}

fn datagrams_and_streams(config: &Config) -> Vec<(Transport, SocketAddr)> {
    let of = |transport, addresses: Vec<SocketAddr>| {
        let addresses = addresses.into_iter();
        addresses.map(move |address| (transport, address))
    };
    of(Transport::Udp, config.datagram_listeners())
        .chain(of(Transport::Tcp, config.stream_listeners()))
        .collect()
}

/// Whether a socket that shares its port with nobody can be bound. Not asked where sockets belong to an interface, of which several may have the port.
fn try_out(config: &Config, transport: Transport, address: SocketAddr) -> io::Result<()> {
    if config.addresses.listening_device.is_some() {
        return Ok(());
    }
    let tried = match transport {
        Transport::Udp => UdpSocket::bind(address).map(drop),
        Transport::Tcp => TcpListener::bind(address).map(drop),
    };
    tried.map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("cannot listen on {transport} {address}: {error}"),
        )
    })
}

/// Whether a socket that shares its port can be bound.
fn share(transport: Transport, address: SocketAddr) -> io::Result<()> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let kind = match transport {
        Transport::Udp => SocketType::DGRAM,
        Transport::Tcp => SocketType::STREAM,
    };
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    if transport == Transport::Tcp {
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    Ok(bind(&socket, &address)?)
}
