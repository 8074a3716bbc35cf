//! What a connection tells its host.

use std::net::SocketAddr;

use crate::asked::Asked;

/// What the host is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<T> {
    /// To grant or refuse what is asked for on a stream.
    Asked {
        /// The number of the stream.
        stream: u64,
        /// The request.
        asked: Asked,
    },
    /// To judge the address of a context that the client registers for a bound tunnel ([`super::Server::judged`]).
    Registered {
        /// The number of the stream.
        stream: u64,
        /// Its tunnel.
        tunnel: T,
        /// The context.
        context: u64,
        /// The address.
        peer: SocketAddr,
    },
    /// To end what there is of a request: the client wants it no more, or has broken a rule. Nothing is said to the client.
    Ended {
        /// The number of the stream.
        stream: u64,
        /// Its tunnel, if it was granted.
        tunnel: Option<T>,
    },
}
