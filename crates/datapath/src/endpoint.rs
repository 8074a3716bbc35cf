//! The bound sockets of a data path, by number.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use socket2::{Domain, Protocol, SockFilter, SockRef, Socket, Type};

use crate::Backend;
use crate::budget::BufferBudget;
use crate::handler::Warning;
use crate::kept::SocketKind;
use crate::queue::narrow;
use crate::settings::{Settings, bind_device};
use crate::sys::sockopt;

const INDEX_BITS: u32 = 22;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;

/// What the kernel gives when nothing is asked (half of `net.core.wmem_default`).
const SEND_BUFFER_DEFAULT: u32 = 106_496;
/// Receive buffer that every relay socket may have, bytes of `SO_RCVBUF`: some 160 datagrams of a voice call. What is beyond it is charged to the budget.
const RECEIVE_BUFFER_FREE: u32 = 64 * 1024;
/// Where growth of a send buffer ends, bytes of `SO_SNDBUF`.
const SEND_BUFFER_MAX: u32 = 8 * 1024 * 1024;

/// The name of a bound socket: a table index and a count of how often that index was used, so that a name outlives its
/// socket without ever meaning another one soon. Never a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointId(u32);

impl EndpointId {
    fn new(index: usize, generation: u32) -> Self {
        Self((generation << INDEX_BITS) | (narrow(index) & INDEX_MASK))
    }

    /// Position in a table, small and reused after close.
    pub const fn index(self) -> usize {
        (self.0 & INDEX_MASK) as usize
    }

    /// The name in an event's data.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "event data is set from a 32-bit name"
    )]
    pub(crate) const fn from_u64(data: u64) -> Self {
        Self(data as u32)
    }

    /// The whole name as a number.
    pub const fn to_u32(self) -> u32 {
        self.0
    }

    /// The name that [`to_u32`](Self::to_u32) returned.
    pub const fn from_u32(name: u32) -> Self {
        Self(name)
    }
}

/// What a socket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointKind {
    /// Clients of all kinds send here: large buffers, deep batches.
    Listener {
        /// Join the group of sockets with the same address among which the kernel spreads clients. Nothing is received
        /// until [`Datapath::admit_clients`](crate::Datapath::admit_clients): which socket gets a client depends on how
        /// many there are, so all must be bound before the first one answers.
        reuseport: bool,
    },
    /// One allocation's relayed transport address: a small buffer that grows when needed, ICMP errors reported.
    Relay,
}

/// What to bind.
#[derive(Clone, Copy, Debug)]
pub struct Bind {
    /// Local address; port 0 lets the kernel choose.
    pub address: SocketAddr,
    /// What the socket is for.
    pub kind: EndpointKind,
    /// A number passed back with every message.
    pub token: u64,
}

/// A second handle of a socket, for another thread's data path to send from: see [`Datapath::share`](crate::Datapath::share).
#[derive(Debug)]
pub struct SharedSocket {
    socket: OwnedFd,
    kind: EndpointKind,
    local: SocketAddr,
}

/// A bound socket and what is known about it.
#[derive(Debug)]
pub(crate) struct Endpoint {
    socket: OwnedFd,
    pub(crate) id: EndpointId,
    pub(crate) token: u64,
    pub(crate) kind: EndpointKind,
    pub(crate) local: SocketAddr,
    /// Whether trains may be sent.
    pub(crate) gso: bool,
    /// Whether a train has ever gone out, so that a later `EINVAL` is about a destination and not about the feature.
    pub(crate) gso_proven: bool,
    /// Trains that were refused as if the feature were missing, before any has gone out.
    pub(crate) gso_refusals: u8,
    /// Messages to ask for in the next call.
    pub(crate) want: u16,
    /// Turn in which this socket was last read.
    pub(crate) read_turn: u64,
    /// Datagrams received, counted up to [`IN_USE`](crate::receive::IN_USE).
    pub(crate) received: u32,
    /// Bytes of `SO_RCVBUF` at present.
    pub(crate) receive_buffer: u32,
    /// Bytes of `SO_SNDBUF` at present, 0 before the first growth.
    pub(crate) send_buffer: u32,
    charge: Charge,
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

impl Endpoint {
    fn open(bind: Bind, settings: &Settings, warn: &mut impl FnMut(Warning)) -> io::Result<Self> {
        let is_listener = matches!(bind.kind, EndpointKind::Listener { .. });
        let kept = settings.kept.as_ref().filter(|_| is_listener);
        if let Some(kept) = kept
            && let Some(socket) = kept.get(SocketKind::Datagrams, bind.address)?
        {
            let shared = SharedSocket {
                socket,
                kind: bind.kind,
                local: bind.address,
            };
            return Ok(Self::of(shared, bind.token, settings));
        }
        let v6 = bind.address.is_ipv6();
        let socket = Socket::new(
            Domain::for_address(bind.address),
            Type::DGRAM.nonblocking(),
            Some(Protocol::UDP),
        )?;
        if v6 {
            socket.set_only_v6(true)?;
        }
        if bind.kind == (EndpointKind::Listener { reuseport: true }) {
            socket.set_reuse_port(true)?;
            socket.attach_filter(&[ACCEPT_NOTHING])?;
        }
        let fd = socket.as_fd();
        sockopt::allow_fragments(fd, v6)?;
        let mut send_buffer = 0;
        let receive_buffer = match bind.kind {
            EndpointKind::Listener { .. } => {
                send_buffer = sockopt::set_send_buffer(fd, settings.socket_buffer)?;
                sockopt::set_receive_buffer(fd, settings.socket_buffer)?
            }
            EndpointKind::Relay => {
                sockopt::enable_error_queue(fd, v6)?;
                sockopt::set_receive_buffer(fd, settings.relay_buffer_start)?
            }
        };
        let gso = settings.backend == Backend::Gso;
        let gro_failure = if gso {
            sockopt::enable_gro(fd).err()
        } else {
            None
        };
        bind_device(&socket, settings.device(bind.kind))?;
        socket.bind(&bind.address.into())?;
        let local = socket
            .local_addr()?
            .as_socket()
            .ok_or(io::ErrorKind::InvalidData)?;
        if let Some(errno) = gro_failure {
            warn(Warning::GroUnavailable {
                local,
                errno: errno.raw_os_error(),
            });
        }
        let shared = SharedSocket {
            socket: socket.into(),
            kind: bind.kind,
            local,
        };
        if let Some(kept) = kept {
            kept.keep(SocketKind::Datagrams, bind.address, &shared.socket)?;
        }
        let mut endpoint = Self::of(shared, bind.token, settings);
        endpoint.receive_buffer = receive_buffer;
        endpoint.send_buffer = send_buffer;
        Ok(endpoint)
    }

    /// What is known of a socket that is bound already.
    fn of(shared: SharedSocket, token: u64, settings: &Settings) -> Self {
        let want = match shared.kind {
            EndpointKind::Listener { .. } => settings.batch.max(1),
            EndpointKind::Relay => 1,
        };
        Self {
            socket: shared.socket,
            id: EndpointId(0),
            token,
            kind: shared.kind,
            local: shared.local,
            gso: settings.backend == Backend::Gso,
            gso_proven: false,
            gso_refusals: 0,
            want,
            read_turn: 0,
            received: 0,
            receive_buffer: 0,
            send_buffer: SEND_BUFFER_MAX,
            charge: Charge {
                budget: Arc::clone(&settings.buffer_budget),
                bytes: 0,
            },
        }
    }

    /// A second handle of the socket.
    pub(crate) fn share(&self) -> io::Result<SharedSocket> {
        Ok(SharedSocket {
            socket: self.socket.try_clone()?,
            kind: self.kind,
            local: self.local,
        })
    }

    /// Lets a member of a group of sockets receive. A second time changes nothing.
    #[cold]
    pub(crate) fn admit_clients(&self) -> io::Result<()> {
        match SockRef::from(&self.socket).detach_filter() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether the buffer is larger than what every socket may have.
    pub(crate) fn is_charged(&self) -> bool {
        self.charge.bytes > 0
    }

    /// Gives back what the receive buffer has taken of the budget.
    #[cold]
    pub(crate) fn shrink_receive_buffer(&mut self) {
        let Ok(granted) = sockopt::set_receive_buffer(self.fd(), RECEIVE_BUFFER_FREE) else {
            return;
        };
        self.receive_buffer = granted;
        self.charge.budget.give_back(self.charge.bytes);
        self.charge.bytes = 0;
        self.want = 1;
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

/// Endpoints by index; indexes are reused, names are not.
#[derive(Debug, Default)]
pub(crate) struct Table {
    places: Vec<Place>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Place {
    generation: u32,
    endpoint: Option<Box<Endpoint>>,
}

impl Table {
    /// Opens and binds a socket.
    pub(crate) fn open(
        &mut self,
        bind: Bind,
        settings: &Settings,
        warn: &mut impl FnMut(Warning),
    ) -> io::Result<&mut Endpoint> {
        self.add(Endpoint::open(bind, settings, warn)?)
    }

    /// Takes in a socket that another data path reads.
    pub(crate) fn adopt(
        &mut self,
        shared: SharedSocket,
        token: u64,
        settings: &Settings,
    ) -> io::Result<&mut Endpoint> {
        self.add(Endpoint::of(shared, token, settings))
    }

    fn add(&mut self, endpoint: Endpoint) -> io::Result<&mut Endpoint> {
        let mut endpoint = Box::new(endpoint);
        let index = match self.free.pop() {
            Some(index) => index as usize,
            None if self.places.len() > INDEX_MASK as usize => {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            None => {
                self.places.push(Place {
                    generation: 0,
                    endpoint: None,
                });
                self.places.len() - 1
            }
        };
        let place = &mut self.places[index];
        endpoint.id = EndpointId::new(index, place.generation);
        Ok(place.endpoint.insert(endpoint))
    }

    #[inline]
    pub(crate) fn get(&self, id: EndpointId) -> Option<&Endpoint> {
        self.places
            .get(id.index())?
            .endpoint
            .as_deref()
            .filter(|endpoint| endpoint.id == id)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: EndpointId) -> Option<&mut Endpoint> {
        self.places
            .get_mut(id.index())?
            .endpoint
            .as_deref_mut()
            .filter(|endpoint| endpoint.id == id)
    }

    /// Closes an endpoint; its name is not used again until the index was reused 1,024 times.
    pub(crate) fn remove(&mut self, id: EndpointId) -> Option<Box<Endpoint>> {
        let place = self.places.get_mut(id.index())?;
        let endpoint = place.endpoint.take_if(|endpoint| endpoint.id == id)?;
        place.generation = place.generation.wrapping_add(1) & (u32::MAX >> INDEX_BITS);
        self.free.push(narrow(id.index()));
        Some(endpoint)
    }
}
