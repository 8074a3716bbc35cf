//! What a shard's data path is told at start.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use crate::{Accepting, Backend, BufferBudget, CoalescePolicy, EndpointKind, KeptSockets};

/// Sizes and choices of one [`Datapath`](crate::Datapath).
#[derive(Clone, Debug)]
pub struct Settings {
    /// How datagrams enter and leave.
    pub backend: Backend,
    /// Messages per `recvmmsg`, 1 to 1,024 (also bounded by `slots`).
    pub batch: u16,
    /// Receive slots of 64 KiB each, shared by all messages of one turn. Memory is used when a slot is first filled:
    /// 128 slots take 8 MiB at most.
    pub slots: u16,
    /// Longest pause before reading at high rates, so that one wake-up serves many datagrams; zero turns it off. This is also
    /// the delay it can add.
    pub coalesce: Duration,
    /// Whether a shard that has CPU time left pauses too.
    pub coalesce_policy: CoalescePolicy,
    /// Receive buffer of a new relay socket, bytes of `SO_RCVBUF` (the kernel accounts the double).
    pub relay_buffer_start: u32,
    /// Limit to which the receive buffer of a busy relay socket grows, bytes of `SO_RCVBUF`.
    pub relay_buffer_max: u32,
    /// What all growth of relay receive buffers of the process beyond 64 KiB each may add up to.
    pub buffer_budget: Arc<BufferBudget>,
    /// Receive and send buffer of a listener, bytes of `SO_RCVBUF` and `SO_SNDBUF`.
    pub socket_buffer: u32,
    /// Listening sockets that are left from another data path or for a later one; `None` has them end with the data path.
    pub kept: Option<KeptSockets>,
    /// Network interface that listeners belong to (`SO_BINDTODEVICE`): what arrives at another one is not theirs.
    pub listener_device: Option<Arc<str>>,
    /// The same for relay sockets, and connections to peers.
    pub relay_device: Option<Arc<str>>,
    /// Which shard takes a connection.
    pub accepting: Accepting,
    /// Most connections accepted per listener and turn.
    pub accepts_per_turn: u16,
    /// Time that connections that have proven nothing, and listeners, may take of a turn.
    pub strangers_slice: Duration,
    /// Bytes not yet sent that the kernel takes of one connection (`TCP_NOTSENT_LOWAT`); more waits where it can be dropped.
    pub stream_unsent_max: u32,
    /// Bytes of relayed data that may wait for one connection; beyond it the oldest is dropped.
    pub stream_media_max: usize,
    /// Bytes of control messages that may wait for one connection; beyond it the connection is closed.
    pub stream_control_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            backend: Backend::Gso,
            batch: 64,
            slots: 128,
            coalesce: Duration::from_micros(500),
            coalesce_policy: CoalescePolicy::default(),
            relay_buffer_start: 16 * 1024,
            relay_buffer_max: 4 * 1024 * 1024,
            buffer_budget: Arc::new(BufferBudget::new(256 * 1024 * 1024)),
            socket_buffer: 8 * 1024 * 1024,
            kept: None,
            listener_device: None,
            relay_device: None,
            accepting: Accepting::default(),
            accepts_per_turn: 64,
            strangers_slice: Duration::from_micros(200),
            stream_unsent_max: 128 * 1024,
            stream_media_max: 128 * 1024,
            stream_control_max: 64 * 1024,
        }
    }
}

impl Settings {
    /// The interface that a socket of this kind belongs to.
    pub(crate) fn device(&self, kind: EndpointKind) -> Option<&str> {
        match kind {
            EndpointKind::Listener { .. } => self.listener_device.as_deref(),
            EndpointKind::Relay => self.relay_device.as_deref(),
        }
    }
}

/// Has a socket belong to an interface, if it is to; to be called before it has an address.
///
/// # Errors
/// There is no such interface, or the process may not (before Linux 5.7 it takes `CAP_NET_RAW`).
pub(crate) fn bind_device(socket: &Socket, device: Option<&str>) -> io::Result<()> {
    let Some(device) = device else {
        return Ok(());
    };
    socket
        .bind_device(Some(device.as_bytes()))
        .map_err(|error| {
            io::Error::new(
                error.kind(),
                format!(
                    "cannot bind to interface {}: {error}",
                    device.escape_debug()
                ),
            )
        })
}

/// Whether sockets can belong to this interface.
///
/// # Errors
/// As the kernel says: there is no such interface, or the process may not.
pub fn probe_device(device: &str) -> io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    bind_device(&socket, Some(device))
}
