//! What a host is told of connections.

use std::collections::VecDeque;
use std::net::SocketAddr;

use crate::connections::ConnectionName;
use crate::state::Closed;

/// What has become of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The other side began it, from this address, which is proven.
    Begun(ConnectionName, SocketAddr),
    /// Its handshake is done.
    Connected(ConnectionName),
    /// The other side has this address now.
    Moved(ConnectionName, SocketAddr),
    /// Its application has been shown something.
    Stirred(ConnectionName),
    /// It has ended, or this side has closed it. The next one that is begun may have its name.
    Ended(ConnectionName, Closed),
}

/// Events that the host has not taken yet, in their order.
pub(crate) type Events = VecDeque<Event>;
