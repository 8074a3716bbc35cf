//! Opening and closing sockets at the end of a turn.

use std::any::Any;
use std::fmt;
use std::io;
use std::net::SocketAddr;

use crate::names::{Bind, EndpointId, Listen, StreamId, StreamListenerId};

/// Opens and closes the sockets of a data path, or of a simulation in its place.
pub trait Sockets {
    /// Opens a socket for datagrams.
    ///
    /// # Errors
    /// The error of the system: address in use, not available, too many open files.
    fn bind(&mut self, bind: Bind) -> io::Result<EndpointId>;

    /// Opens a relay socket that receives nothing before [`bind_held`](Self::bind_held), of this data path or another one of the same
    /// kind and settings.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    fn hold(&mut self, address: SocketAddr) -> io::Result<HeldSocket>;

    /// Takes in a socket that was held, and lets it receive; `token` is passed back with every message.
    ///
    /// # Errors
    /// No memory for the event queue, or there are more than four million sockets; `InvalidInput` for a socket of another kind. The
    /// socket is closed.
    fn bind_held(&mut self, held: HeldSocket, token: u64) -> io::Result<EndpointId>;

    /// Returns the address a socket for datagrams is bound to.
    fn local_addr(&self, endpoint: EndpointId) -> Option<SocketAddr>;

    /// Has a socket for datagrams send nothing in fragments from now on: what is longer than its path takes is dropped. A kernel that refuses that
    /// goes on as before.
    fn forbid_fragments(&mut self, endpoint: EndpointId);

    /// Closes a socket for datagrams after the flush that follows, so that what was queued for it still leaves.
    fn close(&mut self, endpoint: EndpointId);

    /// Listens for peers that connect to a relay. Nothing is read from them before they are joined with another connection.
    ///
    /// # Errors
    /// The error of the system: address in use, not available, too many open files.
    fn listen_for_peers(&mut self, listen: Listen) -> io::Result<StreamListenerId>;

    /// Stops listening at once. Connections that were accepted stay.
    fn close_listener(&mut self, listener: StreamListenerId);

    /// Begins a connection from `local`, where a listener may be. [`StreamHandler::connected`](crate::StreamHandler::connected) reports the outcome.
    ///
    /// # Errors
    /// The error of the system: no route, not permitted, the same connection exists, too many open files.
    fn connect(&mut self, local: SocketAddr, remote: SocketAddr) -> io::Result<StreamId>;

    /// Removes a connection, to be passed to another data path. Its name is no longer valid. What was queued for it in
    /// this turn is lost.
    fn detach(&mut self, stream: StreamId) -> Option<DetachedStream>;

    /// Adopts a connection that another data path of the same kind has released.
    ///
    /// # Errors
    /// No memory for the event queue, or there are more than four million connections; `InvalidInput` for a connection of another kind.
    fn adopt(&mut self, stream: DetachedStream) -> io::Result<StreamId>;
}

/// A relay socket that is bound and receives nothing yet. Dropping it closes it.
pub struct HeldSocket(Box<dyn Any + Send>);

impl HeldSocket {
    /// Wraps a data path's state of a socket.
    pub fn new(socket: impl Any + Send) -> Self {
        Self(Box::new(socket))
    }

    /// Returns what was wrapped, if it is of this type.
    pub fn into_inner<T: Any>(self) -> Option<T> {
        self.0.downcast().ok().map(|socket| *socket)
    }
}

impl fmt::Debug for HeldSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldSocket").finish_non_exhaustive()
    }
}

/// A connection on its way from one data path to another. Dropping it closes the connection.
pub struct DetachedStream(Box<dyn Any + Send>);

impl DetachedStream {
    /// Wraps a data path's state of a connection.
    pub fn new(stream: impl Any + Send) -> Self {
        Self(Box::new(stream))
    }

    /// Returns what was wrapped, if it is of this type.
    pub fn into_inner<T: Any>(self) -> Option<T> {
        self.0.downcast().ok().map(|stream| *stream)
    }
}

impl fmt::Debug for DetachedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DetachedStream").finish_non_exhaustive()
    }
}
