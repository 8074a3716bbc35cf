//! Defines the engine's commands: send a response, join two connections, say what became of a tunnel, or open or close a relay socket.

use std::net::SocketAddr;

use turnbuckle_engine::{
    AllowedPeer, ClientTuple, Command, ConnectionId, Endpoint, HeldPort, Refusal, RelayHandle,
    RelayProtocol, RelayRequest,
};

use crate::shard::front::TunnelEvent;

/// A command about a relay socket, for the end of the turn.
pub(in crate::shard) enum SocketDue {
    Close(Endpoint),
    ClosePeer(ConnectionId),
    Connect {
        connection: ConnectionId,
        local: SocketAddr,
        peer: AllowedPeer,
    },
    Open(Wish),
}

/// A relay socket that the engine asks for.
pub(in crate::shard) struct Wish {
    pub(in crate::shard) request: RelayRequest,
    pub(in crate::shard) address: SocketAddr,
    pub(in crate::shard) handle: RelayHandle,
    pub(in crate::shard) protocol: RelayProtocol,
    pub(in crate::shard) reserves_next: bool,
    pub(in crate::shard) held: Option<HeldPort>,
}

/// A command of the engine, sorted by when it is carried out: at once through the fronts, or at the end of the turn.
pub(super) enum Wanted<'a> {
    Join(ConnectionId, ClientTuple),
    Reply(ClientTuple, &'a [u8], Option<Refusal>),
    Socket(SocketDue),
    Tunnel(ClientTuple, TunnelEvent),
}

/// What a front is told later, because another one was at hand.
pub(super) enum Late {
    Reply(ClientTuple, Box<[u8]>),
    Tunnel(ClientTuple, TunnelEvent),
}

impl<'a> From<Command<'a>> for Wanted<'a> {
    fn from(command: Command<'a>) -> Self {
        Self::Socket(match command {
            Command::Join { connection, client } => return Self::Join(connection, client),
            Command::Reply { to, bytes, why } => return Self::Reply(to, bytes, why),
            Command::TunnelEnded { client, cause } => {
                return Self::Tunnel(client, TunnelEvent::Ended(cause));
            }
            Command::TunnelOpened {
                tunnel,
                client,
                target,
            } => return Self::Tunnel(client, TunnelEvent::Opened { tunnel, target }),
            Command::ClosePeer { connection } => SocketDue::ClosePeer(connection),
            Command::CloseRelay { endpoint } => SocketDue::Close(endpoint),
            Command::Connect {
                connection,
                local,
                peer,
            } => SocketDue::Connect {
                connection,
                local,
                peer,
            },
            Command::OpenRelay {
                request,
                address,
                handle,
                protocol,
                reserves_next,
                held,
            } => SocketDue::Open(Wish {
                request,
                address,
                handle,
                protocol,
                reserves_next,
                held,
            }),
        })
    }
}
