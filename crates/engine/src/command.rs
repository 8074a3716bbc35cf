//! The requests of the engine to its host: routes for data, commands for everything else.

use core::net::SocketAddr;
use core::num::NonZeroU32;
use core::ops::Range;
use std::sync::Arc;

use turnbuckle_wire::ChannelNumber;

use crate::drop_reason::DropReason;
use crate::held::HeldPort;
use crate::id::{
    AllocationId, ClientTuple, ConnectionId, Endpoint, RelayHandle, RelayProtocol, RelayRequest,
};
use crate::policy::AllowedPeer;
use crate::refusal::Refusal;
use crate::tcp::handover::Handover;
use crate::time::Time;
use crate::tunnel_end::TunnelEnd;

/// The result of handling a datagram with [`crate::Engine::handle_stun`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// Answered: exactly one [`Command::Reply`] is queued, or will be once the relay socket is open.
    Done,
    /// A ConnectionBind request for a connection of another engine: the client's connection is to be moved to that engine's
    /// shard and handed to it with [`crate::Engine::take_over`].
    HandOver(Box<Handover>),
    /// A Send indication to relay.
    Relay(SendRoute),
    /// Dropped.
    Dropped(DropReason),
    /// Neither answered nor counted: the user is unknown or its key is wrong, and nothing else. The host may ask a user database, take over
    /// what it says with [`crate::Engine::reconfigure`], and has to hand the same datagram to [`crate::Engine::handle_finally`] once.
    Ask(Question),
    /// A Refresh request for an allocation of another engine: the host hands it over to that engine, or drops it
    /// (RFC 8016 §3.2.2).
    Elsewhere {
        /// The engine's name.
        shard: u32,
    },
}

/// Whom to ask a user database about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The realm that the request is for.
    pub realm: Arc<str>,
    /// The USERNAME as it was sent.
    pub name: Box<str>,
}

/// Where the payload of a Send indication goes (RFC 8656 §11.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendRoute {
    /// The relay socket it leaves from.
    pub relay: Endpoint,
    /// Where it goes.
    pub peer: AllowedPeer,
    /// The payload, as a range of the indication's bytes.
    pub data: Range<usize>,
    /// Whether the client asked for the DF bit.
    pub dont_fragment: bool,
}

/// Where the payload of a channel message goes (RFC 8656 §12.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerRoute {
    /// The relay socket it leaves from.
    pub relay: Endpoint,
    /// Where it goes.
    pub peer: AllowedPeer,
    /// How many datagrams of the train go, from its beginning; at least one. The others are beyond the rate of the allocation,
    /// to be dropped as [`DropReason::BandwidthExceeded`].
    pub datagrams: u32,
}

/// A channel whose data may be relayed both ways without asking for each datagram ([`crate::Engine::flows`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The number of the channel.
    pub channel: ChannelNumber,
    /// The client's address.
    pub client: SocketAddr,
    /// The address of the listener that the client uses.
    pub listener: SocketAddr,
    /// The address of the relay socket on this host.
    pub relay: SocketAddr,
    /// The peer.
    pub peer: AllowedPeer,
    /// When the first of channel, permission and relayed transport address ends.
    pub expires: Time,
    /// The buckets that its data is charged to, both ways ([`crate::Meters`]); `None` for an allocation without a rate.
    pub meter: Option<NonZeroU32>,
}

/// Where a peer's datagram goes (RFC 8656 §11.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientRoute {
    /// The client, and the listener the datagram leaves from.
    pub client: ClientTuple,
    /// How the payload is wrapped.
    pub framing: Framing,
    /// As [`PeerRoute::datagrams`].
    pub datagrams: u32,
}

/// How a peer's datagram is wrapped on its way to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// As a channel message; once a channel is bound this is the only way (RFC 8656 §12.5).
    Channel(ChannelNumber),
    /// As a Data indication.
    DataIndication {
        /// The peer's address as the client knows it.
        peer: SocketAddr,
    },
    /// As the protocol does that the client's tunnel was opened by.
    Tunnel,
    /// As that protocol does, for a bound tunnel, if the client wants what comes from this peer. Nothing has been charged:
    /// [`crate::Engine::charge_to_client`] says how much goes.
    Bound {
        /// The peer's address as the client knows it.
        peer: SocketAddr,
    },
}

/// Whom an open tunnel leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelTarget {
    /// One peer.
    Peer(SocketAddr),
    /// Whomever its client names.
    Bound {
        /// The addresses that it is bound to, as peers see them: one or two.
        relays: [Option<SocketAddr>; 2],
    },
}

/// One thing the host has to do.
#[derive(Debug)]
pub enum Command<'a> {
    /// End a peer data connection, or the attempt to make one, and the client data connection that is joined with it. Data that is
    /// on its way may be lost. The engine has no record of the connection any more, so the host reports nothing (RFC 6062 §5.5).
    ClosePeer {
        /// The connection.
        connection: ConnectionId,
    },
    /// Close a relay socket; its allocation no longer has it.
    CloseRelay {
        /// The socket.
        endpoint: Endpoint,
    },
    /// Connect to a peer and say how that went with [`crate::Engine::peer_connected`] (RFC 6062 §5.2). Nothing is to be read from it
    /// before [`Command::Join`].
    Connect {
        /// Names the connection from now on.
        connection: ConnectionId,
        /// The relayed transport address, which the host listens on.
        local: SocketAddr,
        /// The peer to connect to.
        peer: AllowedPeer,
    },
    /// Relay bytes both ways between a client's connection and a peer data connection, from behind the message that brought this
    /// (RFC 6062 §5.4). When both ways have ended, or one has failed, say so with [`crate::Engine::peer_disconnected`].
    Join {
        /// The peer data connection.
        connection: ConnectionId,
        /// The connection of the client, now the client data connection.
        client: ClientTuple,
    },
    /// Open a relay socket, for UDP or to listen for connections, and say how that went with [`crate::Engine::relay_opened`].
    OpenRelay {
        /// Names this wish in the answer.
        request: RelayRequest,
        /// The address to bind.
        address: SocketAddr,
        /// The handle to pass with whatever arrives at the socket.
        handle: RelayHandle,
        /// What the socket is for.
        protocol: RelayProtocol,
        /// Whether the next port is to be bound too, and held without receiving anything: both, or neither (RFC 8656 §7.2).
        reserves_next: bool,
        /// The socket to use in place of a new one: it has held this address until now.
        held: Option<HeldPort>,
    },
    /// Send `bytes` from `to.listener` to `to.remote`.
    Reply {
        /// The client.
        to: ClientTuple,
        /// The whole message.
        bytes: &'a [u8],
        /// Why it refuses the request, for the operator alone.
        why: Option<Refusal>,
    },
    /// A tunnel has ended, or was never open. Nothing can be sent by it any more.
    TunnelEnded {
        /// Its client.
        client: ClientTuple,
        /// Why.
        cause: TunnelEnd,
    },
    /// A tunnel is open: what its client sends may be relayed.
    TunnelOpened {
        /// The tunnel.
        tunnel: AllocationId,
        /// Its client.
        client: ClientTuple,
        /// Whom it leads to.
        target: TunnelTarget,
    },
}

/// An ICMP error that a relay socket received, taken apart by the host (RFC 8656 §11.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpError {
    /// The destination of the datagram that caused it, port 0 if the host does not know it. Never the sender of the ICMP message.
    pub peer: SocketAddr,
    /// The ICMP type.
    pub kind: u8,
    /// The ICMP code.
    pub code: u8,
    /// The MTU of a "packet too big" or "fragmentation needed" message, else 0.
    pub mtu: u32,
    /// Whether it is ICMPv6.
    pub v6: bool,
}
