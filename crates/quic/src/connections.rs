//! The connections of an endpoint, and what they serve.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use bytes::Bytes;

use crate::stack::{Connection, Link, StreamId};
use crate::state::{Closed, Statistics};
use crate::transmit::Via;

/// What one connection is for.
pub trait Application {
    /// Handles the end of the handshake.
    fn connected(&mut self, connection: &mut Connection<'_>) {
        let _ = connection;
    }

    /// Handles a stream on which something can be read: bytes, its end or its reset.
    fn readable(&mut self, connection: &mut Connection<'_>, stream: StreamId);

    /// Handles a stream that takes bytes again, or on which the other side wants no more.
    fn writable(&mut self, connection: &mut Connection<'_>, stream: StreamId) {
        let _ = (connection, stream);
    }

    /// Handles the payload of a DATAGRAM frame (RFC 9221).
    fn datagram(&mut self, connection: &mut Connection<'_>, payload: Bytes) {
        let _ = (connection, payload);
    }

    /// Handles the end of the connection, the last that is heard of it, with what it has seen. If this side has closed it, that is at once.
    fn closed(&mut self, cause: Closed, statistics: &Statistics) {
        let _ = (cause, statistics);
    }
}

/// The name of a connection. It is used again after the connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionName(pub(crate) usize);

impl ConnectionName {
    /// Returns the name of the connection at a place.
    pub const fn at(place: usize) -> Self {
        Self(place)
    }

    /// Returns the place of the connection in a table: small, and no other connection's at the same time.
    pub const fn place(self) -> usize {
        self.0
    }
}

/// A connection with its application.
pub(crate) struct Held<A> {
    pub(crate) link: Link,
    pub(crate) application: A,
    /// The socket by which it is spoken to.
    pub(crate) via: Via,
    /// The other side's address as the host knows it.
    pub(crate) known_at: SocketAddr,
    /// What the connection has in the set of deadlines.
    pub(crate) armed: Option<Instant>,
    /// When the handshake must be done; `None` once it is.
    pub(crate) handshake_by: Option<Instant>,
    /// The address that is known for its handshake, until that is over.
    pub(crate) handshake_from: Option<SocketAddr>,
    /// Whether it is in the queue of those that may have something to send.
    pub(crate) is_ready: bool,
    /// Whether an event waits that says that its application has been shown something.
    pub(crate) is_stirred: bool,
    /// Whether the application knows that it has ended.
    pub(crate) is_ended: bool,
    /// Whether the host knows it.
    pub(crate) is_told: bool,
}

impl<A: Application> Held<A> {
    pub(crate) fn new(link: Link, application: A, via: Via, handshake_by: Instant) -> Self {
        let remote = link.remote();
        Self {
            handshake_from: Some(remote),
            link,
            application,
            via,
            known_at: remote,
            armed: None,
            handshake_by: Some(handshake_by),
            is_ready: false,
            is_stirred: false,
            is_ended: false,
            is_told: false,
        }
    }

    /// Tells the application that the connection has ended, once.
    pub(crate) fn end(&mut self, cause: Closed) {
        if !self.is_ended {
            self.is_ended = true;
            self.application.closed(cause, &self.link.statistics());
        }
    }

    /// Returns when this connection is to be looked at.
    pub(crate) fn due(&mut self) -> Option<Instant> {
        let timeout = self.link.timeout();
        match (timeout, self.handshake_by) {
            (Some(timeout), Some(by)) => Some(timeout.min(by)),
            (timeout, by) => timeout.or(by),
        }
    }
}

/// Connections by the numbers that the stack gives them, which are small and used again.
pub(crate) struct Connections<A> {
    /// Each in memory of its own, several KiB: a table of them would have room for as many again, and keep it when they have ended.
    held: Vec<Option<Box<Held<A>>>>,
    count: usize,
}

impl<A> Connections<A> {
    pub(crate) const fn new() -> Self {
        Self {
            held: Vec::new(),
            count: 0,
        }
    }

    pub(crate) fn insert(&mut self, index: usize, held: Held<A>) {
        if index >= self.held.len() {
            self.held.resize_with(index + 1, || None);
        }
        self.held[index] = Some(Box::new(held));
        self.count += 1;
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut Held<A>> {
        self.held.get_mut(index)?.as_deref_mut()
    }

    pub(crate) fn remove(&mut self, index: usize) -> Option<Box<Held<A>>> {
        let held = self.held.get_mut(index)?.take()?;
        self.count -= 1;
        Some(held)
    }

    /// Returns the numbers of all.
    pub(crate) fn indices(&self) -> Vec<usize> {
        let held = self.held.iter().enumerate();
        held.filter(|(_, held)| held.is_some())
            .map(|(index, _)| index)
            .collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }
}

/// Does `work` for one connection. `None` if it panicked: the connection must then be removed unseen, and nothing else is touched by it.
pub(crate) fn contained<T>(work: impl FnOnce() -> T) -> Option<T> {
    // guard: V-88-panic
    catch_unwind(AssertUnwindSafe(work)).ok()
}
