//! Keeps which addresses the server listens on, and which it waits for.
//!
//! Before a shard binds an address, the server binds it once without SO_REUSEPORT. Only this shows that another process listens there: the shards'
//! own sockets set SO_REUSEPORT, and share a port with any socket of the same user that sets it too. If the port is taken, `turnbuckle serve` ends.
//! As `turnserver` the server starts as coturn does. It waits for addresses that cannot be bound yet while it serves the others. It shares a port
//! that another process shares, with a warning. Addresses that the machine gets later are added if a wildcard covers them.

use std::fmt;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
use turnbuckle_datapath::SocketKind;
use turnbuckle_engine::InterfaceAddress;

use super::devices::on_device;
use crate::config::{Config, Persona};
use crate::shard::{Request, Shard};
use crate::survive::Takeover;

/// Time between two attempts to bind the addresses that are waited for.
const INTERVAL: Duration = Duration::from_secs(1);

/// Longest time in which running shards open their sockets. It passes only if a shard has ended.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What a listener receives: datagrams or connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transport {
    Udp,
    Tcp,
}

impl Transport {
    /// Returns what its sockets are kept as.
    fn kind(self) -> SocketKind {
        match self {
            Self::Udp => SocketKind::Datagrams,
            Self::Tcp => SocketKind::Connections,
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Udp => "UDP",
            Self::Tcp => "TCP",
        })
    }
}

/// Holds the addresses that the server listens on, and those that it waits for.
pub(crate) struct Listening {
    /// Addresses for datagrams that every shard has a socket for.
    pub(crate) datagrams: Vec<SocketAddr>,
    /// Addresses for connections, likewise.
    pub(crate) streams: Vec<SocketAddr>,
    /// Addresses of both kinds that were added after the start, in that order. A restarted shard has to number them as the others do.
    later: Vec<(Vec<SocketAddr>, Vec<SocketAddr>)>,
    /// Addresses for datagrams where another process listens too.
    pub(super) shared: Vec<SocketAddr>,
    awaited: Vec<(Transport, SocketAddr)>,
    next_attempt: Instant,
}

impl Listening {
    /// Tries to bind all addresses of `config`, and logs which of them are waited for or shared.
    ///
    /// # Errors
    ///
    /// An address cannot be bound. As `turnserver` this is an error only if it holds for all addresses of a transport, and if the machine cannot
    /// get any of them later.
    pub(crate) fn begin(
        config: &Config,
        takeover: &Takeover,
        out: &mut impl Write,
    ) -> io::Result<Self> {
        let wanted = datagrams_and_streams(config);
        let mut listening = Self {
            datagrams: Vec::new(),
            streams: Vec::new(),
            later: Vec::new(),
            shared: Vec::new(),
            awaited: Vec::new(),
            next_attempt: Instant::now() + INTERVAL,
        };
        let mut errors: Vec<(Transport, io::Error)> = Vec::new();
        for (transport, address) in wanted {
            if takeover.listens(transport.kind(), address) {
                listening.taken_over(transport, address, takeover);
                continue;
            }
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
                if transport == Transport::Udp {
                    listening.shared.push(address);
                }
                continue;
            }
            let _ = writeln!(out, "warning: {error}; it is tried again every second");
            listening.awaited.push((transport, address));
            errors.push((transport, error));
        }
        // Addresses that the relay before got after its start, and such as the configuration has no more.
        for transport in [Transport::Udp, Transport::Tcp] {
            for address in takeover.listeners(transport.kind()) {
                let wanted = (transport, address);
                let ip = address.ip();
                if listening.is_open(transport, address) {
                    continue;
                }
                if config.addresses.stands_for(ip)
                    && datagrams_and_streams(&config.only_on(ip)).contains(&wanted)
                {
                    listening.taken_over(transport, address, takeover);
                } else {
                    takeover.close(transport.kind(), address);
                }
            }
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

    /// Returns the addresses for datagrams where nobody else listens.
    pub(super) fn own_datagrams(&self) -> impl Iterator<Item = SocketAddr> {
        let all = self.datagrams.iter().copied();
        all.filter(|address| !self.shared.contains(address))
    }

    fn is_open(&self, transport: Transport, address: SocketAddr) -> bool {
        match transport {
            Transport::Udp => self.datagrams.contains(&address),
            Transport::Tcp => self.streams.contains(&address),
        }
    }

    /// Goes on with an address that the relay before listened on.
    fn taken_over(&mut self, transport: Transport, address: SocketAddr, takeover: &Takeover) {
        self.opened(transport, address);
        if transport == Transport::Udp && takeover.shared.contains(&address) {
            self.shared.push(address);
        }
    }

    fn opened(&mut self, transport: Transport, address: SocketAddr) {
        match transport {
            Transport::Udp => self.datagrams.push(address),
            Transport::Tcp => self.streams.push(address),
        }
    }

    /// Waits for those of `addresses` that a wildcard of `config` covers and that no shard listens on yet.
    pub(crate) fn follow(&mut self, config: &Config, addresses: &[InterfaceAddress]) {
        let device = config.addresses.devices.listening.as_deref();
        let addresses = on_device(device, addresses);
        for address in addresses.iter().map(|address| address.ip) {
            if !config.addresses.stands_for(address) {
                continue;
            }
            for wanted in datagrams_and_streams(&config.only_on(address)) {
                let (transport, address) = wanted;
                if !self.is_open(transport, address) && !self.awaited.contains(&wanted) {
                    self.awaited.push(wanted);
                    self.next_attempt = Instant::now();
                }
            }
        }
        // An address that was removed before it could be bound is not waited for any more, unless the configuration names it.
        let is_there = |ip: IpAddr| addresses.iter().any(|address| address.ip == ip);
        let written = datagrams_and_streams(config);
        self.awaited
            .retain(|wanted| written.contains(wanted) || is_there(wanted.1.ip()));
    }

    /// Returns when [`Self::attempt`] is due, if an address is waited for.
    pub(crate) fn due(&self) -> Option<Instant> {
        (!self.awaited.is_empty()).then_some(self.next_attempt)
    }

    /// Makes the shards listen on the awaited addresses that can be bound by now, if it is due. Returns whether there were any.
    pub(crate) fn attempt(
        &mut self,
        config: &Config,
        now: Instant,
        shards: &[Shard],
        out: &mut impl Write,
    ) -> bool {
        if self.due().is_none_or(|due| now < due) {
            return false;
        }
        self.next_attempt = now + INTERVAL;
        let (free, awaited): (Vec<_>, Vec<_>) = std::mem::take(&mut self.awaited)
            .into_iter()
            .partition(|&(transport, address)| try_out(config, transport, address).is_ok());
        self.awaited = awaited;
        if free.is_empty() {
            return false;
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
        self.datagrams.extend(&datagrams);
        self.streams.extend(&streams);
        self.later.push((datagrams, streams));
        true
    }

    /// Returns the addresses for datagrams and for connections that were added after the start, each time.
    pub(crate) fn later(&self) -> &[(Vec<SocketAddr>, Vec<SocketAddr>)] {
        &self.later
    }
}

/// Makes a restarted shard admit clients.
pub(crate) fn resume(shard: &Shard) {
    shard.insist(Request::AdmitClients(sync_channel(1).0));
}

/// Opens sockets on every shard, and admits clients when all of them are bound.
fn open(shards: &[Shard], datagrams: &[SocketAddr], streams: &[SocketAddr]) -> Result<(), String> {
    let mut outcome = Ok(());
    // One after the other, because the order in which they bind is their number in the SO_REUSEPORT group.
    for shard in shards {
        let (done, is_done) = sync_channel(1);
        shard.insist(Request::Listen {
            datagrams: datagrams.to_vec(),
            streams: streams.to_vec(),
            done,
        });
        match is_done.recv_timeout(TIMEOUT) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => outcome = Err(error.to_string()),
            // The shard has ended, and its last event has the reason.
            Err(_) => {}
        }
    }
    admit_clients(shards);
    outcome
}

/// Admits clients to the bound listeners. The kernel knows all of them now, so it will not move a client from one shard to another.
pub(crate) fn admit_clients(shards: &[Shard]) {
    // The shards do this one after the other, because the order in which their sockets begin to listen is their number in the SO_REUSEPORT group.
    for shard in shards {
        let (done, is_done) = sync_channel(1);
        shard.insist(Request::AdmitClients(done));
        // This fails if the shard has ended. Its last event has the reason.
        let _ = is_done.recv_timeout(TIMEOUT);
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

/// Checks that a socket without SO_REUSEPORT can be bound. The check is left out for sockets that are bound to an interface, because several
/// interfaces may use the same port.
fn try_out(config: &Config, transport: Transport, address: SocketAddr) -> io::Result<()> {
    if config.addresses.devices.listening.is_some() {
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

/// Checks that a socket with SO_REUSEPORT can be bound.
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

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::config::{Machine, Request as Wish, load_turnserver};

    /// Returns what a relay listens on as `turnserver` that takes two addresses for datagrams over, at one of which another process listens too.
    fn taken_over() -> (Listening, [SocketAddr; 2]) {
        // A file that is not there keeps out whatever configuration the machine has.
        let arguments = [
            "-c/nowhere/turnserver.conf",
            "--listening-ip=127.0.0.1",
            "--listening-ip=127.0.0.2",
            "--no-tcp",
            "--no-tls",
            "--no-dtls",
            "--user=a:b",
            "--realm=example.org",
        ];
        let machine = Machine {
            // And so does the user database that an installed coturn has.
            usual_database: None,
            ..Machine::discover().unwrap()
        };
        let Ok(Wish::Run(loaded)) = load_turnserver(arguments.map(Into::into), &machine) else {
            panic!("a whole configuration");
        };
        let config = loaded.config;
        assert_eq!(config.persona, Persona::Turnserver);
        let addresses = config.datagram_listeners();
        let [own, shared] = addresses[..] else {
            panic!("two addresses: {addresses:?}");
        };
        let mut takeover = Takeover::none(2);
        for shard in &takeover.shards {
            for address in [own, shared] {
                // What it is bound to is of no account here.
                let socket = OwnedFd::from(UdpSocket::bind("127.0.0.1:0").unwrap());
                shard.sockets.put(SocketKind::Datagrams, address, socket);
            }
        }
        takeover.shared.push(shared);
        let listening = Listening::begin(&config, &takeover, &mut Vec::new()).unwrap();
        (listening, [own, shared])
    }

    #[test]
    fn what_is_taken_over_is_shared_with_another_process_only_where_it_was_before() {
        let (listening, [own, shared]) = taken_over();
        assert_eq!(listening.datagrams, [own, shared]);
        assert_eq!(listening.shared, [shared]);
        assert_eq!(listening.own_datagrams().collect::<Vec<_>>(), [own]);
    }
}
