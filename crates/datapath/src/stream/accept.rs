//! How connections come: a listening socket for each address and shard, and how many are taken per turn.
//!
//! The sockets of all shards for one address form a `SO_REUSEPORT` group, among which the kernel spreads connections by their
//! 4-tuple when the first SYN arrives. A socket of the group takes part from [`Listener::admit`] on.
//!
//! Options that every connection needs are set on the listener: the kernel copies them to what it accepts
//! (`tcp_create_openreq_child`).

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::Listen;
use crate::counters::StreamCounters;
use crate::settings::Settings;

/// Handshakes that the kernel completes while nobody accepts; `net.core.somaxconn` bounds it too.
const BACKLOG: i32 = 4096;

/// A socket on which connections arrive.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: OwnedFd,
    pub(crate) local: SocketAddr,
    pub(crate) token: u64,
}

impl Listener {
    /// Takes the address. The kernel refuses connections to it until [`admit`](Self::admit).
    pub(crate) fn bind(listen: Listen, settings: &Settings) -> io::Result<Self> {
        let socket = Socket::new(
            Domain::for_address(listen.address),
            Type::STREAM.nonblocking(),
            Some(Protocol::TCP),
        )?;
        if listen.address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        // A restart must not wait for connections of the last run to leave TIME-WAIT.
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(true)?;
        socket.set_tcp_nodelay(true)?;
        // What is not sent yet should wait here, where it can be dropped, and not in the kernel.
        socket.set_tcp_notsent_lowat(settings.stream_unsent_max)?;
        socket.bind(&listen.address.into())?;
        let local = socket
            .local_addr()?
            .as_socket()
            .ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self {
            socket: socket.into(),
            local,
            token: listen.token,
        })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Takes connections from now on.
    pub(crate) fn admit(&self) -> io::Result<()> {
        SockRef::from(&self.socket).listen(BACKLOG)
    }

    /// Accepts up to `limit` connections. What is left is reported as ready again in the next turn.
    pub(crate) fn accept(
        &self,
        limit: u16,
        counters: &StreamCounters,
        mut each: impl FnMut(OwnedFd, SocketAddr) -> io::Result<()>,
    ) {
        for _ in 0..limit {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            match acceptfrom_with(&self.socket, flags) {
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
                Err(Errno::AGAIN) => return,
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
                // No descriptor or no memory: the connection waits in the kernel.
                Err(_) => {
                    counters.accept_failures.add(1);
                    return;
                }
            }
        }
    }
}
