//! Counts what happens to every datagram, so that the sum is exact.
//!
//! Invariant: at the end of every loop turn, and so whenever a shard has stopped,
//! `client_in + peer_in + icmp_in + begun = client_out + peer_out + opened + carried + sum(drops)`. A datagram that was queued for sending
//! and then refused by the kernel counts as a drop, not as sent. Only a Connect request (RFC 6062 §5.2) is in and not yet out while its peer is being connected to,
//! a request that waits for the user database, which `parked` counts, and a datagram of QUIC that waits for its turn, which `quic_waiting`
//! counts.
//!
//! What the kernel relays by itself is in and out, what it drops is in and dropped.
//!
//! `begun` is what had no datagram of its own to come in by: what DTLS and QUIC say by themselves, and further messages in one datagram of DTLS.
//!
//! Datagrams of clients within datagrams of QUIC count apart from these, because one of these may hold several. What came in one is in once more, and
//! the datagram of QUIC is `opened`; what goes in one is `carried`, and the datagram of QUIC is begun and out. Between the two it waits, which
//! `quic_queued` counts.
//!
//! What the kernel drops at a socket before it is read is in none of these: the sums begin behind it, and `socket_drops` has it apart.
//!
//! A message of a stream counts as a datagram: in when its last byte has come, or when it turns out to be none.
//!
//! Each shard is the only writer of its counters; any thread may read them. Every number is declared once, with what it means; whoever prints
//! numbers walks the declarations ([`ShardCounters::visit`]).

mod accounting;
mod answers;
mod drops;
mod lifetime;
mod page;

use turnbuckle_counters::{
    Counted as _, Counter, Description, Group, Kind, Label, Level, Measure, PerReason, Sample,
    counters, reasons,
};
use turnbuckle_datapath::SocketPurpose;
use turnbuckle_engine::{PeerEnd, Transport};

use crate::asking::AskResult;

pub use self::accounting::Accounting;
pub use self::answers::AnswerCount;
use self::answers::AnswerCounters;
pub(crate) use self::drops::{
    AcrossDrop, ControlDrop, DataPathDrop, DropCounters, DropReason, DtlsDrop, HubDrop, QuicDrop,
    StreamDrop, UdpDrop,
};
use self::lifetime::Lifetime;
pub use self::lifetime::SESSION_LIFETIME_BOUNDS_S;
pub use self::page::counters_page;

/// Datagrams that were queued, without those that could not be sent after all.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    queued: Counter,
    refused: Counter,
}

impl Sent {
    /// Counts datagrams that are queued.
    #[inline]
    pub(crate) fn queued(&self, datagrams: u64) {
        self.queued.add(datagrams);
    }

    /// Counts datagrams that could not be sent after they were queued: they are to be counted as dropped too.
    #[inline]
    pub(crate) fn refused(&self, datagrams: u64) {
        self.refused.add(datagrams);
    }

    /// Returns the present value.
    pub(crate) fn get(&self) -> u64 {
        self.queued.get().saturating_sub(self.refused.get())
    }
}

impl Measure for Sent {
    const KIND: Kind = Kind::Total;
    const LABELS: &'static [Label] = &[];

    fn visit(&self, counter: &'static Description, show: &mut dyn FnMut(Sample)) {
        show(Sample {
            counter,
            label: None,
            value: self.get(),
        });
    }

    fn add_all(&self, other: &Self) {
        self.queued.add_all(&other.queued);
        self.refused.add_all(&other.refused);
    }
}

reasons! {
    /// Reason for which a client's connection, its session of DTLS or its connection of QUIC ended.
    pub(crate) enum CloseReason {
        /// It belonged to an allocation that ended.
        AllocationEnded = "allocation_ended",
        /// It did not read the answers to its requests.
        Congested = "congested",
        /// It had no allocation and others wanted its place.
        Crowded = "crowded",
        /// Too many from its address had no allocation.
        CrowdedAddress = "crowded_address",
        /// The socket reported an error.
        Failed = "failed",
        /// Its first message did not come in time.
        FirstMessageLate = "first_message_late",
        /// Its handshake kept more bytes waiting than there was memory for.
        HandshakeCrowded = "handshake_crowded",
        /// It did not keep to TLS, DTLS or QUIC, or wanted what is not offered.
        HandshakeFailed = "handshake_failed",
        /// The handshake of TLS, DTLS or QUIC took too long.
        HandshakeLate = "handshake_late",
        /// It spoke HTTP.
        Http = "http",
        /// It was idle and had no allocation.
        Idle = "idle",
        /// It sent what cannot be a message.
        Malformed = "malformed",
        /// A message that it had begun was not completed in time.
        MessageLate = "message_late",
        /// It came from a proxy and did not begin with a good header.
        ProxyHeader = "proxy_header",
        /// The header of a proxy did not come in time.
        ProxyLate = "proxy_late",
        /// It came from no proxy, with a proxy's header or to the proxies' port.
        ProxyRefused = "proxy_refused",
        /// It went to the shard that has what it asked for, where it counts as another one.
        Moved = "moved",
        /// The peer at the other end of a relay closed it.
        PeerClosed = "peer_closed",
        /// The client closed it.
        Remote = "remote",
        /// Its client began a new DTLS session from the same address.
        Replaced = "replaced",
        /// It began more requests than it may.
        RequestsExceeded = "requests_exceeded",
        /// The client or its peer had ended what it sent, and the other side did nothing more.
        Stalled = "stalled",
        /// The relay ended.
        Stopped = "stopped",
        /// It broke TLS, DTLS or QUIC after the handshake.
        TlsFailed = "tls_failed",
        /// Its tunnel ended: it was idle, or its target cannot be reached or is forbidden by now.
        TunnelEnded = "tunnel_ended",
        /// It had no allocation for too long, whatever it said.
        Unallocated = "without_allocation",
    }
}

counters! {
    /// Datagrams, in and out.
    pub(crate) struct DatagramCounters: "datagrams", "hub and fronts" {
        /// Datagrams read from clients.
        pub(crate) client_in: Counter => Datagrams,
        /// Datagrams read from peers.
        pub(crate) peer_in: Counter => Datagrams,
        /// ICMP errors read for relay sockets.
        pub(crate) icmp_in: Counter => Datagrams,
        /// Datagrams that began here: handshakes and alerts of DTLS, further messages in one of its datagrams, and what connections of QUIC send.
        pub(crate) begun: Counter => Datagrams,
        /// Datagrams of QUIC in which payloads of tunnels came: these are in once more, each for itself.
        pub(crate) opened: Counter => Datagrams,
        /// Payloads of tunnels that left for clients in datagrams or streams of QUIC, which count as begun here.
        pub(crate) carried: Counter => Datagrams,
        /// Datagrams sent to clients: answers and relayed data.
        pub(crate) client_out: Sent => Datagrams,
        /// Datagrams sent to peers.
        pub(crate) peer_out: Sent => Datagrams,
        /// Payload read from clients.
        pub(crate) client_in_bytes: Counter => Bytes,
        /// Payload read from peers.
        pub(crate) peer_in_bytes: Counter => Bytes,
        /// Datagrams that the kernel dropped before the relay could read them, by what the socket is for: its receive queue was full, memory was short, or a checksum was wrong. A GRO buffer counts once. These are not among those that came in: the sums begin behind them.
        pub(crate) socket_drops: PerReason<SocketPurpose, { SocketPurpose::ALL.len() }> => Datagrams,
    }
}

counters! {
    /// Counts that the engine keeps.
    pub(crate) struct EngineCounters: "engine", "the engine" {
        /// Live allocations.
        pub(crate) allocations: Level => Allocations,
        /// Allocations that were taken over from the process before, or from a shard that failed (`survive`).
        pub(crate) taken_over: Counter => Allocations,
        /// Allocations of the process before or a failed shard that were on record and could not be taken over: of clients by TCP, TLS and DTLS without mobility, and of TCP relays.
        pub(crate) not_taken_over: Counter => Allocations,
        /// Open tunnels of UDP in HTTP.
        pub(crate) tunnels: Level => Connections,
        /// Requests that created or ended allocations and were forgotten, for want of room, while they could still be good (V-22).
        pub(crate) requests_forgotten_early: Counter => Requests,
        /// Connections of TCP relays that were tried or came.
        pub(crate) peer_connections: Counter => Connections,
        /// Connections of TCP relays that ended, or never came to be, by reason.
        pub(crate) peer_ends: PerReason<PeerEnd, { PeerEnd::ALL.len() }> => Connections,
    }
}

counters! {
    /// Connections of clients.
    pub(crate) struct ConnectionCounters: "connections", "the fronts for connections, DTLS and QUIC" {
        /// Connections accepted, and sessions of DTLS and connections of QUIC begun.
        pub(crate) connections: Counter => Connections,
        /// Connections that ended, by reason.
        pub(crate) closes: PerReason<CloseReason, { CloseReason::ALL.len() }> => Connections,
        /// Connections of QUIC that ended because handling them panicked.
        pub(crate) quic_panics: Counter => Connections,
        /// Datagrams of QUIC that wait, because they have proven nothing or for the next turn: they are in, and neither out nor dropped yet.
        pub(crate) quic_waiting: Level => Datagrams,
        /// Payloads of tunnels that wait for room in connections of QUIC: they are in, and neither out nor dropped yet.
        pub(crate) quic_queued: Level => Datagrams,
    }
}

counters! {
    /// What the kernel relays by itself.
    pub(crate) struct OffloadCounters: "offload", "the publisher of channels" {
        /// Datagrams that the kernel relayed from clients to peers, without a shard.
        pub(crate) kernel_to_peers: Counter => Datagrams,
        /// Datagrams that the kernel relayed from peers to clients, without a shard.
        pub(crate) kernel_to_clients: Counter => Datagrams,
        /// Payload that the kernel relayed from clients to peers.
        pub(crate) kernel_to_peers_bytes: Counter => Bytes,
        /// Payload that the kernel relayed from peers to clients.
        pub(crate) kernel_to_clients_bytes: Counter => Bytes,
        /// Datagrams that the kernel dropped: beyond the rate of their allocation, or nobody's at a listener. They are among the drops too.
        pub(crate) kernel_dropped: Counter => Datagrams,
        /// How often there was no room in the kernel's table for a channel.
        pub(crate) table_full: Counter => Times,
    }
}

counters! {
    /// Bytes of TCP relays.
    pub(crate) struct TcpRelayCounters: "tcp_relays", "the peers of TCP relays" {
        /// Bytes that clients sent to peers through TCP relays.
        pub(crate) tcp_to_peers_bytes: Counter => Bytes,
        /// Bytes that peers sent to clients through TCP relays.
        pub(crate) tcp_to_clients_bytes: Counter => Bytes,
    }
}

counters! {
    /// Messages and connections that pass between shards.
    pub(crate) struct AcrossCounters: "across", "messages between shards" {
        /// Messages, and requests with their connections, that other shards took over.
        pub(crate) handed_out: Counter => Datagrams,
        /// The same, taken over from other shards.
        pub(crate) handed_in: Counter => Datagrams,
    }
}

reasons! {
    /// How a client is reached.
    pub(crate) enum ByTransport {
        /// By DTLS.
        Dtls = "dtls",
        /// By QUIC.
        Quic = "quic",
        /// By TCP.
        Tcp = "tcp",
        /// By TLS.
        Tls = "tls",
        /// By UDP.
        Udp = "udp",
    }
}

impl From<Transport> for ByTransport {
    fn from(transport: Transport) -> Self {
        match transport {
            Transport::Dtls => Self::Dtls,
            Transport::Quic => Self::Quic,
            Transport::Tcp => Self::Tcp,
            Transport::Tls => Self::Tls,
            Transport::Udp => Self::Udp,
        }
    }
}

counters! {
    /// Requests and sessions.
    pub(crate) struct SessionCounters: "sessions", "the hub and the followers of changes" {
        /// Binding requests that came.
        pub(crate) binding_requests: Counter => Requests,
        /// Answers with error 401 to requests without credentials, which is how every client begins. Those to requests with credentials are refusals.
        pub(crate) challenges: Counter => Requests,
        /// Answers with error 401 by UDP.
        pub(crate) challenges_by_udp: Counter => Requests,
        /// Allocations that came to be, by the client's transport. One whose client moves to another transport comes to be there too.
        pub(crate) sessions_begun: PerReason<ByTransport, { ByTransport::ALL.len() }> => Allocations,
        /// Allocations that ended or moved to another transport, by the client's transport.
        pub(crate) sessions_over: PerReason<ByTransport, { ByTransport::ALL.len() }> => Allocations,
        /// Allocations and tunnels that ended, by how long they had lasted. Those that a failed shard has lost are not among them.
        pub(crate) session_lifetimes: PerReason<Lifetime, { Lifetime::ALL.len() }> => Allocations,
        /// How long they had lasted in all.
        pub(crate) session_lifetimes_ms: Counter => Milliseconds,
    }
}

counters! {
    /// Questions about users.
    pub(crate) struct AskCounters: "asks", "the requests that wait" {
        /// Requests of unknown users, or with another key, by what came of asking the user database.
        pub(crate) asks: PerReason<AskResult, { AskResult::ALL.len() }> => Requests,
        /// STUN requests that wait for the user database: they are in, and neither out nor dropped yet.
        pub(crate) parked: Level => Requests,
    }
}

counters! {
    /// Counts that the main thread keeps.
    pub(crate) struct ControlCounters: "control", "the main thread" {
        /// Failures of a shard after which it was started anew.
        pub(crate) shard_failures: Counter => Times,
    }
}

counters! {
    /// What the log counts.
    pub(crate) struct LogCounters: "log", "the shards and the outputs of the log" {
        /// Lines of the log that were lost, because too many waited already or an output failed.
        pub(crate) log_lost: Counter => Lines,
    }
}

/// All counters of one shard, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct ShardCounters {
    pub(crate) datagrams: DatagramCounters,
    drops: DropCounters,
    pub(crate) across: AcrossCounters,
    pub(crate) connections: ConnectionCounters,
    pub(crate) tcp_relays: TcpRelayCounters,
    pub(crate) offload: OffloadCounters,
    pub(crate) engine: EngineCounters,
    pub(crate) control: ControlCounters,
    pub(crate) log: LogCounters,
    pub(crate) sessions: SessionCounters,
    pub(crate) answers: AnswerCounters,
    pub(crate) asks: AskCounters,
}

impl ShardCounters {
    /// Lists the groups of [`Self::visit`], in its order.
    pub(crate) const GROUPS: [&'static Group; 11] = [
        DatagramCounters::GROUP,
        EngineCounters::GROUP,
        ConnectionCounters::GROUP,
        TcpRelayCounters::GROUP,
        OffloadCounters::GROUP,
        AcrossCounters::GROUP,
        ControlCounters::GROUP,
        LogCounters::GROUP,
        SessionCounters::GROUP,
        AskCounters::GROUP,
        DropCounters::GROUP,
    ];

    /// Shows every number but the drops, which [`DropCounters::by_name`] adds up.
    fn visit(&self, show: &mut dyn FnMut(Sample)) {
        self.datagrams.visit(show);
        self.engine.visit(show);
        self.connections.visit(show);
        self.tcp_relays.visit(show);
        self.offload.visit(show);
        self.across.visit(show);
        self.control.visit(show);
        self.log.visit(show);
        self.sessions.visit(show);
        self.asks.visit(show);
    }

    /// Adds the numbers of `other`.
    fn add_all(&self, other: &Self) {
        // A datagram that the kernel refuses moves from those sent to the drops, so these are read first.
        self.drops.add_all(&other.drops);
        self.datagrams.add_all(&other.datagrams);
        self.across.add_all(&other.across);
        self.connections.add_all(&other.connections);
        self.tcp_relays.add_all(&other.tcp_relays);
        self.offload.add_all(&other.offload);
        self.engine.add_all(&other.engine);
        self.control.add_all(&other.control);
        self.log.add_all(&other.log);
        self.sessions.add_all(&other.sessions);
        self.answers.add_all(&other.answers);
        self.asks.add_all(&other.asks);
    }

    /// Replaces what came in by what has come in to `shards` by now.
    fn read_arrivals_again<'a>(&self, shards: impl IntoIterator<Item = &'a Self>) {
        let mut sums = [0; 4];
        for shard in shards {
            for (sum, counter) in sums.iter_mut().zip(shard.arrivals()) {
                *sum += counter.get();
            }
        }
        for (counter, sum) in self.arrivals().into_iter().zip(sums) {
            counter.set(sum);
        }
    }

    /// Counts an answer that is about to be sent. Of those by UDP only challenges count apart.
    pub(crate) fn answered(&self, by: Transport, answer: &[u8]) {
        if self.answers.count(answer) == Some(401) && by == Transport::Udp {
            self.sessions.challenges_by_udp.add(1);
        }
    }

    /// Counts a connection that comes.
    pub(crate) fn opened(&self) {
        self.connections.connections.add(1);
    }

    /// Counts the end of a connection.
    pub(crate) fn closed(&self, reason: CloseReason) {
        self.connections.closes.of(reason).add(1);
    }

    /// Takes over what the engine has counted of peer data connections.
    pub(crate) fn set_peer_ends(&self, attempts: u64, ends: &[u64; PeerEnd::ALL.len()]) {
        if attempts == 0 {
            return; // most servers have no TCP relays
        }
        self.engine.peer_connections.set(attempts);
        for (counter, &count) in self.engine.peer_ends.iter().zip(ends) {
            counter.set(count);
        }
    }

    /// Accounts for what the shard was not done with when it failed. To be called when its thread has ended.
    pub(crate) fn failed(&self) {
        self.control.shard_failures.add(1);
        self.engine.allocations.set(0);
        self.asks.parked.set(0);
        self.connections.quic_waiting.set(0);
        self.connections.quic_queued.set(0);
        let SessionCounters {
            sessions_begun,
            sessions_over,
            ..
        } = &self.sessions;
        for (over, begun) in sessions_over.iter().zip(sessions_begun.iter()) {
            over.set(begun.get());
        }
        let taken = self.total_in() + self.across.handed_in.get();
        let done = self.total_out() + self.drops.total() + self.across.handed_out.get();
        // mutant: shards-fail-uncounted
        self.dropped(ControlDrop::ShardFailed, taken.saturating_sub(done));
    }

    /// Counts `datagrams` under `reason`.
    #[inline]
    pub(crate) fn dropped(&self, reason: impl Into<DropReason>, datagrams: u64) {
        // guard: accounts
        self.drops.add(reason.into(), datagrams);
    }

    /// Returns everything that came in or began here.
    fn total_in(&self) -> u64 {
        let arrivals: u64 = self.arrivals().iter().map(|counter| counter.get()).sum();
        arrivals + self.kernel_relayed() + self.offload.kernel_dropped.get()
    }

    fn arrivals(&self) -> [&Counter; 4] {
        let DatagramCounters {
            client_in,
            peer_in,
            icmp_in,
            begun,
            ..
        } = &self.datagrams;
        [client_in, peer_in, icmp_in, begun]
    }

    /// Returns everything that went out.
    fn total_out(&self) -> u64 {
        let DatagramCounters {
            client_out,
            peer_out,
            opened,
            carried,
            ..
        } = &self.datagrams;
        let sent = client_out.get() + peer_out.get();
        sent + opened.get() + carried.get() + self.kernel_relayed()
    }

    /// Returns what the kernel relayed: it came in and went out.
    fn kernel_relayed(&self) -> u64 {
        self.offload.kernel_to_peers.get() + self.offload.kernel_to_clients.get()
    }
}
