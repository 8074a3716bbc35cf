//! A socket for datagrams: the descriptor, and its state.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use socket2::{Domain, Protocol, SockFilter, SockRef, Type};
use turnbuckle_sys::sockopt;

use super::budget::BufferBudget;
use super::device::bind_device;
use super::kept::SocketKind;
use crate::counters::SocketPurpose;
use crate::names::{Bind, EndpointKind};
use crate::reports::Warning;
use crate::settings::Settings;
use crate::udp::backend::Backend;

/// The kernel's default size of a send buffer (half of `net.core.wmem_default`).
const SEND_BUFFER_DEFAULT: u32 = 106_496;
/// Receive buffer that every relay socket has, bytes of `SO_RCVBUF`: room for some 56 datagrams of 1,200 bytes. What is beyond it is charged to the budget.
const RECEIVE_BUFFER_FREE: u32 = 64 * 1024;
/// Bytes that a tunnel's socket is to bring in a turn at most: what QUIC enciphers in some 200 us.
const TUNNEL_BYTES_PER_TURN: usize = 256 * 1024;
/// Where growth of a send buffer ends, bytes of `SO_SNDBUF`.
const SEND_BUFFER_MAX: u32 = 8 * 1024 * 1024;

/// Returns how much of a receive buffer of `bytes` the system grants this process: all of it with `CAP_NET_ADMIN`, else at most `net.core.rmem_max`.
///
/// # Errors
/// The error of the system: too many open files.
pub fn grantable_receive_buffer(bytes: u32) -> io::Result<u32> {
    let socket = socket2::Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    Ok(sockopt::set_receive_buffer(socket.as_fd(), bytes)?)
}

/// A second handle of a socket, for another thread's data path to send from: see [`Datapath::share`](crate::Datapath::share).
#[derive(Debug)]
pub struct SharedSocket {
    pub(super) descriptor: OwnedFd,
    pub(super) kind: EndpointKind,
    pub(super) local: SocketAddr,
}

/// A bound socket.
#[derive(Debug)]
pub(crate) struct Socket {
    descriptor: OwnedFd,
    pub(crate) trains: Trains,
    fragments: Fragments,
    /// Messages to ask for in the next call.
    pub(crate) want: u16,
    /// Turn in which this socket was last read.
    pub(crate) read_turn: u64,
    /// Readings in a row that found one datagram, for a socket of clients.
    pub(crate) lone: u8,
    /// Bytes of `SO_RCVBUF` at present.
    pub(crate) receive_buffer: u32,
    /// Bytes of `SO_SNDBUF` at present, 0 before the first growth.
    send_buffer: u32,
    charge: Charge,
    /// What the kernel had dropped when it was asked last.
    drops: u32,
    /// The kernel is to be asked what it has dropped.
    pub(crate) is_noted: bool,
}

/// Whether a socket's datagrams may be fragmented at present. The kernel has no flag for a single datagram, so the socket is switched between batches
/// and remembers how it was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fragments {
    Allowed,
    Forbidden,
    /// They are forbidden for all.
    Never,
}

/// The state of a socket's trains.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trains {
    /// Whether they may be sent.
    pub(crate) allowed: bool,
    /// Whether a train has ever been sent, so that a later `EINVAL` is about a destination and not about the feature.
    pub(crate) proven: bool,
    /// Trains that were refused as if the feature were missing, before the first one was sent.
    pub(crate) refusals: u8,
}

/// The part of the budget that one socket holds; given back when dropped.
#[derive(Debug)]
struct Charge {
    budget: Arc<BufferBudget>,
    bytes: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}

/// The classic BPF program `return 0`: no datagram gets into the receive queue.
const ACCEPT_NOTHING: SockFilter = SockFilter::new(BPF_RETURN_CONSTANT, 0, 0, 0);
/// `BPF_RET | BPF_K` of linux/filter.h.
const BPF_RETURN_CONSTANT: u16 = 0x06;

impl Socket {
    /// Opens and binds a socket, and returns its address. If it is not `receiving`, the kernel discards all datagrams from before the bind on.
    pub(super) fn open(
        bind: Bind,
        receiving: bool,
        settings: &Settings,
        warn: &mut impl FnMut(Warning),
    ) -> io::Result<(Self, SocketAddr)> {
        let is_listener = matches!(bind.kind, EndpointKind::Listener { .. });
        let kept = settings.kept.as_ref().filter(|_| is_listener);
        if let Some(kept) = kept
            && let Some(socket) = kept.get(SocketKind::Datagrams, bind.address)?
        {
            // Whoever had it may have left it otherwise.
            sockopt::allow_fragments(socket.as_fd(), bind.address.is_ipv6())?;
            let mut socket = Self::new(socket, bind.kind, settings);
            socket.new_drops();
            return Ok((socket, bind.address));
        }
        if !is_listener
            && let Some(kept) = &settings.kept
            && let Some(socket) = kept.take(SocketKind::Relay, bind.address)
        {
            return Ok((Self::taken_over(socket, &bind, settings)?, bind.address));
        }
        let v6 = bind.address.is_ipv6();
        let socket = socket2::Socket::new(
            Domain::for_address(bind.address),
            Type::DGRAM.nonblocking(),
            Some(Protocol::UDP),
        )?;
        if v6 {
            socket.set_only_v6(true)?;
        }
        if bind.kind == (EndpointKind::Listener { reuseport: true }) {
            socket.set_reuse_port(true)?;
        }
        if !receiving {
            // guard: V-44-held-silent
            socket.attach_filter(&[ACCEPT_NOTHING])?;
        }
        let fd = socket.as_fd();
        sockopt::allow_fragments(fd, v6)?;
        if !is_listener {
            sockopt::enable_error_queue(fd, v6)?;
        }
        let (mut receive_buffer, mut send_buffer) = (0, 0);
        if bind.kind != EndpointKind::Relay {
            send_buffer = sockopt::set_send_buffer(fd, settings.buffers.listener)?;
            receive_buffer = sockopt::set_receive_buffer(fd, settings.buffers.listener)?;
        }
        let gso = settings.backend == Backend::Gso;
        let gro_failure = if gso {
            sockopt::enable_gro(fd).err()
        } else {
            None
        };
        bind_device(&socket, settings.devices.of(bind.kind))?;
        socket.bind(&bind.address.into())?;
        let local = match bind.address.port() {
            0 => socket
                .local_addr()?
                .as_socket()
                .ok_or(io::ErrorKind::InvalidData)?,
            // Nothing was left to the kernel: one call less for each allocation, whose port is chosen before.
            _ => bind.address,
        };
        if let Some(errno) = gro_failure {
            warn(Warning::GroUnavailable {
                local,
                errno: errno.raw_os_error(),
            });
        }
        let descriptor = socket.into();
        if let Some(kept) = kept {
            kept.keep(SocketKind::Datagrams, bind.address, &descriptor)?;
        }
        let mut socket = Self::new(descriptor, bind.kind, settings);
        socket.receive_buffer = receive_buffer;
        socket.send_buffer = send_buffer;
        if bind.kind == EndpointKind::Relay && receiving {
            socket.start_receive_buffer(settings.buffers.relay_start)?;
        }
        Ok((socket, local))
    }

    /// Returns the state of a relay socket that another process has bound. One allocation's has the buffer of a new one, and what it has received
    /// beyond that stays in it.
    #[cold]
    fn taken_over(socket: OwnedFd, bind: &Bind, settings: &Settings) -> io::Result<Self> {
        let mut socket = Self::new(socket, bind.kind, settings);
        socket.new_drops();
        if bind.kind == EndpointKind::Relay {
            socket.start_receive_buffer(settings.buffers.relay_start)?;
            socket.send_buffer = 0;
        }
        Ok(socket)
    }

    /// Returns how many messages a reading may request at most, after one that brought messages of up to `bytes` each.
    ///
    /// Those whose datagrams are never fragmented are tunnels', each payload of which is enciphered for its client: a whole batch of GRO buffers
    /// makes a turn that every call waits for (docs/decisions/0068).
    #[inline]
    pub(crate) fn messages_max(&self, batch: u16, bytes: usize) -> u16 {
        // guard: tunnel-turn-share
        if self.fragments != Fragments::Never {
            return batch;
        }
        let most = TUNNEL_BYTES_PER_TURN / bytes.max(1);
        u16::try_from(most).unwrap_or(batch).clamp(1, batch)
    }

    /// Returns the state of a socket that is bound already.
    pub(super) fn new(descriptor: OwnedFd, kind: EndpointKind, settings: &Settings) -> Self {
        let want = match kind {
            EndpointKind::Listener { .. } | EndpointKind::SharedRelay => settings.batch.max(1),
            EndpointKind::Relay => 1,
        };
        Self {
            descriptor,
            trains: Trains {
                allowed: settings.backend == Backend::Gso,
                proven: false,
                refusals: 0,
            },
            fragments: Fragments::Allowed,
            want,
            read_turn: 0,
            lone: 0,
            receive_buffer: 0,
            send_buffer: SEND_BUFFER_MAX,
            charge: Charge {
                budget: Arc::clone(&settings.buffers.budget),
                bytes: 0,
            },
            drops: 0,
            is_noted: false,
        }
    }

    /// Returns what the socket is for.
    pub(crate) fn purpose(&self, kind: EndpointKind) -> SocketPurpose {
        match kind {
            EndpointKind::Listener { .. } => SocketPurpose::Listener,
            EndpointKind::SharedRelay => SocketPurpose::SharedRelay,
            EndpointKind::Relay if self.fragments == Fragments::Never => SocketPurpose::Tunnel,
            EndpointKind::Relay => SocketPurpose::Relay,
        }
    }

    /// Returns how many messages the kernel has dropped since this was asked last, or since the socket was opened here or taken over. A kernel that does
    /// not say has dropped none.
    pub(crate) fn new_drops(&mut self) -> u32 {
        let drops = sockopt::drops(self.fd()).unwrap_or(self.drops);
        let before = std::mem::replace(&mut self.drops, drops);
        drops.wrapping_sub(before)
    }

    /// Gives up all but the descriptor.
    pub(super) fn into_descriptor(self) -> OwnedFd {
        self.descriptor
    }

    /// Returns a second handle of the descriptor.
    pub(super) fn try_clone(&self) -> io::Result<OwnedFd> {
        self.descriptor.try_clone()
    }

    /// Enables receiving on a socket that was opened without it. A second call changes nothing.
    #[cold]
    pub(crate) fn admit_clients(&mut self) -> io::Result<()> {
        match SockRef::from(&self.descriptor).detach_filter() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => {
                // What the filter has refused was for nobody.
                self.new_drops();
                result
            }
        }
    }

    /// Has nothing leave in fragments from now on.
    ///
    /// # Errors
    /// What `setsockopt` returns.
    pub(crate) fn never_fragment(&mut self, v6: bool) -> Result<(), Errno> {
        sockopt::forbid_fragments(self.fd(), v6)?;
        self.fragments = Fragments::Never;
        Ok(())
    }

    /// Prepares the socket for datagrams that must not be fragmented, or for such as may be.
    ///
    /// # Errors
    /// What `setsockopt` returns.
    #[inline]
    pub(crate) fn set_fragments(&mut self, forbidden: bool, v6: bool) -> Result<(), Errno> {
        match (self.fragments, forbidden) {
            (Fragments::Never, _) | (Fragments::Forbidden, true) | (Fragments::Allowed, false) => {
                Ok(())
            }
            (_, forbidden) => self.switch_fragments(forbidden, v6),
        }
    }

    #[cold]
    fn switch_fragments(&mut self, forbidden: bool, v6: bool) -> Result<(), Errno> {
        if forbidden {
            sockopt::forbid_fragments(self.fd(), v6)?;
            self.fragments = Fragments::Forbidden;
        } else {
            sockopt::allow_fragments(self.fd(), v6)?;
            self.fragments = Fragments::Allowed;
        }
        Ok(())
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Gives the socket of one allocation its first receive buffer: `start` bytes, or as much of them as the budget has for a new socket.
    ///
    /// # Errors
    /// What `setsockopt` returns.
    pub(super) fn start_receive_buffer(&mut self, start: u32) -> Result<(), Errno> {
        let free = start.min(RECEIVE_BUFFER_FREE);
        self.charge.bytes = self.charge.budget.take_start(u64::from(start - free));
        let share = u32::try_from(self.charge.bytes).unwrap_or(u32::MAX);
        let granted = sockopt::set_receive_buffer(self.fd(), free.saturating_add(share))?;
        self.keep_charge_of(granted);
        Ok(())
    }

    /// Returns whether the buffer is larger than the size that is free to every socket.
    pub(crate) fn is_charged(&self) -> bool {
        self.charge.bytes > 0
    }

    /// Makes the receive buffer as small as one that begins with `start` bytes, at the smallest what is free to every socket. What was charged beyond
    /// that is given back.
    #[cold]
    pub(crate) fn shrink_receive_buffer(&mut self, start: u32) {
        let smaller = start.max(RECEIVE_BUFFER_FREE);
        if smaller >= self.receive_buffer {
            return;
        }
        if let Ok(granted) = sockopt::set_receive_buffer(self.fd(), smaller) {
            self.keep_charge_of(granted);
            self.want = 1;
        }
    }

    /// Notes the size that the system granted, and gives back what was charged beyond it.
    fn keep_charge_of(&mut self, granted: u32) {
        let charge = &mut self.charge;
        let kept = u64::from(granted.saturating_sub(RECEIVE_BUFFER_FREE)).min(charge.bytes);
        charge.budget.give_back(charge.bytes - kept);
        charge.bytes = kept;
        self.receive_buffer = granted;
    }

    /// Enlarges the receive buffer four times within `max` and the budget. `Some(false)`: the budget or the system did not
    /// allow it. `None`: it has its full size.
    #[cold]
    pub(crate) fn grow_receive_buffer(&mut self, max: u32) -> Option<bool> {
        let before = self.receive_buffer;
        let wanted = before.saturating_mul(4).min(max);
        if wanted <= before {
            return None;
        }
        let charge = |to: u32| u64::from(to.saturating_sub(before.max(RECEIVE_BUFFER_FREE)));
        let share = charge(wanted);
        if share > 0 && !self.charge.budget.take(share, self.charge.bytes) {
            return Some(false);
        }
        let granted = sockopt::set_receive_buffer(self.fd(), wanted).unwrap_or(before);
        let used = charge(granted.clamp(before, wanted));
        self.charge.budget.give_back(share - used);
        self.charge.bytes += used;
        let has_grown = granted > before;
        // When the system allows no more, do not ask again.
        self.receive_buffer = if has_grown { granted } else { max };
        Some(has_grown)
    }

    /// Enlarges the send buffer four times after it was found full. It is a limit and takes no memory by itself, so it is
    /// not charged to the budget. Returns whether it grew.
    #[cold]
    pub(crate) fn grow_send_buffer(&mut self) -> bool {
        let before = self.send_buffer.max(SEND_BUFFER_DEFAULT);
        if before >= SEND_BUFFER_MAX {
            return false;
        }
        let granted =
            sockopt::set_send_buffer(self.fd(), before.saturating_mul(4).min(SEND_BUFFER_MAX))
                .unwrap_or(0);
        // When the system allows no more, do not ask again.
        self.send_buffer = if granted > before {
            granted
        } else {
            SEND_BUFFER_MAX
        };
        granted > before
    }
}
