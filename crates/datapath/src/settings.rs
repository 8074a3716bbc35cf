//! The settings of a shard's data path.

use std::sync::Arc;
use std::time::Duration;

use crate::names::EndpointKind;
use crate::sockets::budget::BufferBudget;
use crate::sockets::kept::KeptSockets;
use crate::stream::accepting::Accepting;
use crate::turn::coalesce::CoalescePolicy;
use crate::udp::backend::Backend;

/// Full datagrams that may come at once to a new relay socket without a loss.
pub const BURST_DATAGRAMS: u32 = 256;

/// Receive buffer of a new relay socket, bytes of `SO_RCVBUF`: room for [`BURST_DATAGRAMS`]. The kernel accounts the double, 5 KiB for each of
/// them; a datagram is charged 2,304 bytes where its bytes were copied, and up to 4,864 by drivers that give each one a page.
pub const RELAY_START_BYTES: u32 = BURST_DATAGRAMS * 5 * 512;

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
    /// Sizes of the sockets' buffers.
    pub buffers: BufferSettings,
    /// Listening sockets that are kept open from one data path to the next; `None` closes them with the data path.
    pub kept: Option<KeptSockets>,
    /// Network interfaces that sockets belong to.
    pub devices: Devices,
    /// Which shard takes a connection.
    pub accepting: Accepting,
    /// Most connections accepted per listener and turn.
    pub accepts_per_turn: u16,
    /// Time of each turn that strangers (connections that have proven nothing) and listeners may take.
    pub strangers_slice: Duration,
    /// Limits of what may wait for one connection.
    pub streams: StreamSettings,
}

/// Sizes of the buffers of sockets for datagrams.
#[derive(Clone, Debug)]
pub struct BufferSettings {
    /// Receive buffer of a new relay socket, bytes of `SO_RCVBUF` (the kernel accounts the double). What is beyond 64 KiB of it is charged to the budget,
    /// and smaller when that is short.
    pub relay_start: u32,
    /// Limit to which the receive buffer of a busy relay socket grows, bytes of `SO_RCVBUF`.
    pub relay_max: u32,
    /// What the receive buffers of all relay sockets of the process may have beyond 64 KiB each.
    pub budget: Arc<BufferBudget>,
    /// Receive and send buffer of a listener, bytes of `SO_RCVBUF` and `SO_SNDBUF`.
    pub listener: u32,
}

/// Network interfaces that sockets belong to (`SO_BINDTODEVICE`): what arrives at another one is not theirs.
#[derive(Clone, Debug, Default)]
pub struct Devices {
    /// That of listeners.
    pub listeners: Option<Arc<str>>,
    /// That of relay sockets, and of connections to peers.
    pub relays: Option<Arc<str>>,
}

/// Limits of what may wait for one connection.
#[derive(Clone, Debug)]
pub struct StreamSettings {
    /// Bytes not yet sent that the kernel takes of one connection (`TCP_NOTSENT_LOWAT`); more waits where it can be dropped.
    pub unsent_max: u32,
    /// Bytes of relayed data that may wait for one connection; beyond it the oldest is dropped.
    pub media_max: usize,
    /// Bytes of control messages that may wait for one connection; beyond it the connection is closed.
    pub control_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            backend: Backend::Gso,
            batch: 64,
            slots: 128,
            coalesce: Duration::from_micros(500),
            coalesce_policy: CoalescePolicy::default(),
            buffers: BufferSettings::default(),
            kept: None,
            devices: Devices::default(),
            accepting: Accepting::default(),
            accepts_per_turn: 64,
            strangers_slice: Duration::from_micros(200),
            streams: StreamSettings::default(),
        }
    }
}

impl Default for BufferSettings {
    fn default() -> Self {
        Self {
            relay_start: RELAY_START_BYTES,
            relay_max: 4 * 1024 * 1024,
            budget: Arc::new(BufferBudget::new(256 * 1024 * 1024)),
            listener: 8 * 1024 * 1024,
        }
    }
}

impl Default for StreamSettings {
    fn default() -> Self {
        Self {
            unsent_max: 128 * 1024,
            media_max: 128 * 1024,
            control_max: 64 * 1024,
        }
    }
}

impl Devices {
    /// Returns the interface that a socket of this kind belongs to.
    pub(crate) fn of(&self, kind: EndpointKind) -> Option<&str> {
        match kind {
            EndpointKind::Listener { .. } => self.listeners.as_deref(),
            EndpointKind::Relay | EndpointKind::SharedRelay => self.relays.as_deref(),
        }
    }
}
