//! How connections are accepted: on a listening socket per address and shard, or on one for all shards, a bounded number per turn.
//!
//! Where each shard has its own, those for one address form a `SO_REUSEPORT` group, among which the kernel spreads connections when the first SYN
//! arrives, by their 4-tuple or by [`AcceptStrategy::Cpu`](crate::AcceptStrategy). A socket of the group takes part from [`Listener::admit`]
//! on, and its number in the group is the order of these calls.
//!
//! Options that every connection needs are set on the listener: the kernel copies them to what it accepts
//! (`tcp_create_openreq_child`).

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with, acceptfrom_with};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::accepting::Accepting;
use super::connection::Start;
use crate::counters::StreamCounters;
use crate::names::Listen;
use crate::settings::Settings;
use crate::sockets::device::bind_device;
use crate::sockets::epolls::{Epolls, LISTENER};
use crate::sockets::kept::SocketKind;

/// Handshakes that the kernel completes while nobody accepts; `net.core.somaxconn` bounds it too.
const BACKLOG: i32 = 4096;
/// The same for the peers of one allocation.
const RELAY_BACKLOG: i32 = 64;

/// Connections accepted per listener and turn however much time the turn has taken already.
const ACCEPTS_MIN: u16 = 2;

/// A socket on which connections arrive.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: Arc<OwnedFd>,
    accepting: Accepting,
    pub(crate) local: SocketAddr,
    pub(crate) token: u64,
    /// Whether connections are taken.
    is_admitted: bool,
    /// The state in which its connections begin.
    pub(crate) start: Start,
}

/// Returns the socket of a listener: the one that another data path has left open, or a new one.
fn kept_or_bound(address: SocketAddr, settings: &Settings) -> io::Result<OwnedFd> {
    let device = settings.devices.listeners.as_deref();
    let Some(kept) = &settings.kept else {
        return bound(address, settings, device);
    };
    if let Some(socket) = kept.get(SocketKind::Connections, address)? {
        return Ok(socket);
    }
    let socket = bound(address, settings, device)?;
    kept.keep(SocketKind::Connections, address, &socket)?;
    Ok(socket)
}

impl Listener {
    /// Takes the address. The kernel refuses connections to it until [`admit`](Self::admit).
    pub(crate) fn bind(listen: Listen, settings: &Settings) -> io::Result<Self> {
        let accepting = settings.accepting.clone();
        let socket =
            accepting.socket(listen.address, || kept_or_bound(listen.address, settings))?;
        let local = SockRef::from(&*socket)
            .local_addr()?
            .as_socket()
            .ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self {
            socket,
            accepting,
            local,
            token: listen.token,
            is_admitted: false,
            start: Start::Reading,
        })
    }

    /// Takes the address of a relay and admits its peers. Nothing is read from them before they are joined with a client.
    pub(crate) fn bind_relay(listen: Listen, settings: &Settings) -> io::Result<Self> {
        let socket = bound(listen.address, settings, settings.devices.relays.as_deref())?;
        SockRef::from(&socket).listen(RELAY_BACKLOG)?;
        Ok(Self {
            socket: Arc::new(socket),
            accepting: Accepting::default(),
            local: listen.address,
            token: listen.token,
            is_admitted: true,
            start: Start::Held,
        })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Takes connections from now on.
    pub(crate) fn admit(&mut self, name: u32, epolls: &Epolls) -> io::Result<()> {
        SockRef::from(&*self.socket).listen(BACKLOG)?;
        self.accepting.steer(&*self.socket)?;
        // Not before: a socket that does not listen is ready all the time, with an error for whoever accepts.
        self.is_admitted = true;
        self.watch(name, epolls)
    }

    /// Enables events about connections that wait, if they are admitted. Sockets that are watched already are left as they are.
    pub(crate) fn watch(&self, name: u32, epolls: &Epolls) -> io::Result<()> {
        if !self.is_admitted {
            return Ok(());
        }
        let data = EventData::new_u64(LISTENER | u64::from(name));
        let queue = match self.is_exclusive() {
            true => &epolls.media,
            false => &epolls.listeners,
        };
        match epoll::add(queue, self.fd(), data, self.accepting.interest()) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Returns whether the kernel wakes only one of several shards for a connection. The kernel can do that only if a shard waits for the
    /// socket itself, and not for another queue that contains it (`ep_poll_callback`).
    pub(crate) fn is_exclusive(&self) -> bool {
        self.accepting.interest().contains(EventFlags::EXCLUSIVE)
    }

    /// Resets up to `limit` connections that wait.
    #[cold]
    pub(crate) fn turn_away(&self, limit: u16, counters: &StreamCounters) {
        for _ in 0..limit {
            let Ok(socket) = accept_with(&*self.socket, SocketFlags::CLOEXEC) else {
                return;
            };
            // Without it the client would take the end for an answer.
            let _ = SockRef::from(&socket).set_linger(Some(Duration::ZERO));
            counters.refused.add(1);
        }
    }

    /// Accepts up to `limit` connections. Beyond [`ACCEPTS_MIN`] it stops when the time is over. Connections that are left are reported
    /// again in the next turn.
    ///
    /// # Errors
    /// No descriptor or no memory: connections wait in the kernel.
    pub(crate) fn accept(
        &self,
        (limit, until): (u16, Instant),
        counters: &StreamCounters,
        mut each: impl FnMut(OwnedFd, SocketAddr) -> io::Result<()>,
    ) -> io::Result<()> {
        for number in 0..limit {
            if number >= ACCEPTS_MIN && Instant::now() >= until {
                return Ok(());
            }
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            match acceptfrom_with(&*self.socket, flags) {
                Ok((socket, remote)) => {
                    let remote = remote.and_then(|remote| SocketAddr::try_from(remote).ok());
                    let taken = match remote {
                        Some(remote) => each(socket, remote),
                        None => Err(io::ErrorKind::InvalidData.into()),
                    };
                    if taken.is_err() {
                        counters.refused.add(1);
                    }
                }
                Err(Errno::AGAIN) => return Ok(()),
                // The client gave up, or the network under the connection had an error: of no concern to the next one
                // (accept(2)).
                Err(
                    Errno::CONNABORTED
                    | Errno::INTR
                    | Errno::PROTO
                    | Errno::NETDOWN
                    | Errno::NETUNREACH
                    | Errno::HOSTDOWN
                    | Errno::HOSTUNREACH
                    | Errno::NOPROTOOPT
                    | Errno::OPNOTSUPP
                    | Errno::PERM,
                ) => {}
                Err(errno) => {
                    counters.accept_failures.add(1);
                    return Err(errno.into());
                }
            }
        }
        Ok(())
    }
}

/// Begins a connection from `local`, where this process listens too, to `remote`.
///
/// Both sockets have `SO_REUSEPORT`, without which Linux lets nobody share an address with a listener
/// (`inet_csk_get_port`). The kernel distinguishes the connections by their 4-tuple.
pub(super) fn connect(
    local: SocketAddr,
    remote: SocketAddr,
    settings: &Settings,
) -> io::Result<OwnedFd> {
    let socket = bound(local, settings, settings.devices.relays.as_deref())?;
    match rustix::net::connect(&socket, &remote) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(errno) => Err(errno.into()),
    }
}

/// Returns a socket that is bound to the address and can join a group.
fn bound(address: SocketAddr, settings: &Settings, device: Option<&str>) -> io::Result<OwnedFd> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM.nonblocking(),
        Some(Protocol::TCP),
    )?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // A restart must not wait for connections of the last run to leave TIME-WAIT.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_tcp_nodelay(true)?;
    // What is not sent yet should wait here, where it can be dropped, and not in the kernel.
    socket.set_tcp_notsent_lowat(settings.streams.unsent_max)?;
    bind_device(&socket, device)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}
