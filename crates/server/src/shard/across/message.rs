//! A message from one shard to another.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use turnbuckle_engine::{ClientTuple, Endpoint};

/// A message from one shard to another, with its sender.
pub(crate) struct ShardMessage {
    /// The shard it comes from.
    pub(super) from: usize,
    pub(super) body: Body,
}

pub(super) enum Body {
    /// A message that concerns one client.
    Client(ClientAt, About),
    /// The sender has failed and was restarted. It has none of its earlier clients any more, and says which allocations it has.
    Restarted,
}

/// A client as its ingress names it.
#[derive(Clone, Copy, Debug)]
pub(in crate::shard) struct ClientAt {
    pub(in crate::shard) client: ClientTuple,
    /// The number of the listener that the client uses, in the order that all shards share.
    pub(in crate::shard) listener: usize,
}

pub(in crate::shard) enum About {
    /// The client's connection is closed.
    Disconnected,
    /// One message from the client.
    FromClient(Vec<u8>),
    /// Reports whether the sender is the client's home.
    IsHome(bool),
    /// One datagram of QUIC, whose connection id names the receiving shard.
    Quic(Vec<u8>),
    /// One message for the client.
    ToClient(Vec<u8>),
}

/// Whom all datagrams of QUIC are counted for. Their sources have proven nothing, so together they have the share of one client.
const QUIC: ClientTuple = ClientTuple::udp(
    Endpoint(u32::MAX),
    SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
);

impl ShardMessage {
    /// Returns the client and the length in bytes of the carried message, if there is one.
    pub(super) fn carried(&self) -> Option<(&ClientTuple, usize)> {
        let Body::Client(at, about) = &self.body else {
            return None;
        };
        match about {
            About::FromClient(bytes) | About::ToClient(bytes) => Some((&at.client, bytes.len())),
            // guard: V-86-share
            About::Quic(bytes) => Some((&QUIC, bytes.len())),
            About::Disconnected | About::IsHome(_) => None,
        }
    }

    /// Returns whether it carries a message from a client or to one.
    pub(in crate::shard) fn carries(&self) -> bool {
        self.carried().is_some()
    }

    /// Returns the sending shard, and the client and contents unless the message reports a restart.
    pub(in crate::shard) fn open(self) -> (usize, Option<(ClientAt, About)>) {
        match self.body {
            Body::Client(at, about) => (self.from, Some((at, about))),
            Body::Restarted => (self.from, None),
        }
    }
}
