//! Names: what a number of the data path, or one of the engine, stands for. They are packed and taken apart here alone.
//!
//! - A [`Token`] is kept by the data path beside a socket and comes back with what arrives there.
//! - A [`SocketName`] is what the engine calls an [`Endpoint`]: it hands it back when something is to be sent or closed.
//! - A connection's or a session's name is its place in a table and a number that no other one ever has: a shard uses places again, and tells
//!   other shards about clients by name. With such a number in it a name that comes late, or to the wrong shard, names nobody.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use turnbuckle_datapath::{EndpointId, StreamListenerId};
use turnbuckle_engine::{ClientTuple, Connection, Endpoint, RelayHandle, Transport};

/// What arrives at a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// Datagrams of clients.
    ClientDatagrams,
    /// Connections of clients, at the listener of this number.
    ClientConnections(u16),
    /// Datagrams or connections of peers, at the relay socket of this handle.
    Relay(RelayHandle),
    /// Datagrams of peers, at a relay socket that allocations share.
    SharedRelay,
}

/// The lower half of a token that is none of a relay: the place of an allocation in its table is smaller (`AllocationId`, 2^31 places).
const NO_RELAY: u64 = 0xFFFF_FFFF;
/// In the upper half of such a token: connections arrive.
const CONNECTIONS: u64 = 1 << 16;
/// In the upper half of such a token: datagrams of many allocations' peers arrive.
const SHARED: u64 = 1 << 17;

impl Token {
    /// Packs the token into a number.
    pub(crate) fn to_u64(self) -> u64 {
        match self {
            Self::ClientDatagrams => NO_RELAY,
            Self::ClientConnections(number) => (CONNECTIONS | u64::from(number)) << 32 | NO_RELAY,
            Self::Relay(handle) => handle.to_u64(),
            Self::SharedRelay => SHARED << 32 | NO_RELAY,
        }
    }

    /// Takes apart a number that [`to_u64`](Self::to_u64) returned.
    #[inline]
    pub(crate) fn from_u64(token: u64) -> Self {
        if token & NO_RELAY != NO_RELAY {
            return Self::Relay(RelayHandle::from_u64(token));
        }
        match token >> 32 {
            0 => Self::ClientDatagrams,
            SHARED => Self::SharedRelay,
            upper => Self::ClientConnections((upper & 0xFFFF) as u16),
        }
    }
}

/// A bound socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketName {
    /// For datagrams, of clients or of a relay.
    Datagrams(EndpointId),
    /// The listener of this number, for connections of clients.
    ClientListener(u16),
    /// A relayed transport address that listens for connections of peers.
    PeerListener(StreamListenerId),
}

/// Set in the names of sockets that listen for connections.
const LISTENS: u32 = 1 << EndpointId::BITS;
/// Set in those of them that are relays.
const RELAYS: u32 = 1 << 30;

impl SocketName {
    /// Returns the name as a number for the engine.
    pub(crate) fn endpoint(self) -> Endpoint {
        Endpoint(match self {
            Self::Datagrams(endpoint) => endpoint.to_u32(),
            Self::ClientListener(number) => LISTENS | u32::from(number),
            Self::PeerListener(listener) => LISTENS | RELAYS | (listener.to_u32() & (RELAYS - 1)),
        })
    }

    /// Returns the socket that the engine names.
    pub(crate) fn of(Endpoint(name): Endpoint) -> Self {
        match (name & LISTENS != 0, name & RELAYS != 0) {
            (false, _) => Self::Datagrams(EndpointId::from_u32(name)),
            (true, false) => Self::ClientListener((name & 0xFFFF) as u16),
            (true, true) => Self::PeerListener(StreamListenerId::from_u32(name & (RELAYS - 1))),
        }
    }
}

/// Returns the socket for datagrams that the engine names.
#[inline]
pub(crate) fn datagrams(endpoint: Endpoint) -> EndpointId {
    debug_assert!(matches!(SocketName::of(endpoint), SocketName::Datagrams(_)));
    EndpointId::from_u32(endpoint.0)
}

/// Returns the engine's name of a socket for datagrams.
#[inline]
pub(crate) fn endpoint(socket: EndpointId) -> Endpoint {
    Endpoint(socket.to_u32())
}

/// The connection in the name of a client behind a UDP proxy. It keeps the client apart from one that sends directly from the same address.
const PROXIED: Connection = Connection::new(1, 0);

/// Returns the name of a client behind a UDP proxy.
pub(crate) fn proxied_client(listener: Endpoint, remote: SocketAddr) -> ClientTuple {
    ClientTuple {
        connection: PROXIED,
        ..ClientTuple::udp(listener, remote)
    }
}

/// Returns whether a client comes through a proxy by UDP.
#[inline]
pub(crate) fn is_proxied(client: &ClientTuple) -> bool {
    client.transport == Transport::Udp && client.connection == PROXIED
}

/// The unique number of the next connection or session. It changes for each new one and never for a message. At a million per second the numbers
/// last for half a million years.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Returns a name that no other connection or session of the process ever has.
pub(crate) fn connection(place: u32) -> Connection {
    Connection::new(place, NEXT.fetch_add(1, Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_token() -> impl Strategy<Value = Token> {
        prop_oneof![
            Just(Token::ClientDatagrams),
            Just(Token::SharedRelay),
            any::<u16>().prop_map(Token::ClientConnections),
            any::<u64>()
                .prop_filter("no allocation has the last place", |number| {
                    number & NO_RELAY != NO_RELAY
                })
                .prop_map(|number| Token::Relay(RelayHandle::from_u64(number))),
        ]
    }

    fn any_socket() -> impl Strategy<Value = SocketName> {
        prop_oneof![
            (0..1_u32 << EndpointId::BITS)
                .prop_map(|name| SocketName::Datagrams(EndpointId::from_u32(name))),
            any::<u16>().prop_map(SocketName::ClientListener),
            (0..RELAYS).prop_map(|name| SocketName::PeerListener(StreamListenerId::from_u32(name))),
        ]
    }

    proptest! {
        #[test]
        fn a_token_survives_being_a_number(token in any_token()) {
            prop_assert_eq!(Token::from_u64(token.to_u64()), token);
        }

        #[test]
        fn any_number_is_a_token(number in any::<u64>()) {
            let token = Token::from_u64(number);
            prop_assert_eq!(Token::from_u64(token.to_u64()), token);
        }

        #[test]
        fn a_socket_survives_being_an_endpoint_of_the_engine(socket in any_socket()) {
            prop_assert_eq!(SocketName::of(socket.endpoint()), socket);
        }

        #[test]
        fn two_sockets_never_share_a_name(one in any_socket(), other in any_socket()) {
            prop_assert_eq!(one == other, one.endpoint() == other.endpoint());
        }
    }

    #[test]
    fn two_connections_of_one_place_have_two_names() {
        assert_ne!(connection(7), connection(7));
    }

    #[test]
    fn a_client_of_a_proxy_is_another_one_than_who_comes_directly() {
        let (listener, remote) = (Endpoint(3), SocketAddr::from(([192, 0, 2, 1], 4)));
        assert!(is_proxied(&proxied_client(listener, remote)));
        assert!(!is_proxied(&ClientTuple::udp(listener, remote)));
        assert!(!is_proxied(&ClientTuple {
            transport: Transport::Dtls,
            ..proxied_client(listener, remote)
        }));
    }
}
