//! Listening sockets that stay open after the data path that reads them has ended.
//!
//! When a member of a `SO_REUSEPORT` group is closed, the kernel renumbers the others, and clients of other shards change shards. So the
//! sockets of a shard that has failed stay open, with the datagrams in their buffers, until the shard is restarted.
//!
//! A process that takes over from another one puts the sockets of that one here, those of relays too, and the data path finds them when it binds their
//! addresses. A data path whose handler has failed leaves its relay sockets here in the same way ([`crate::Datapath::leave_relays`]).

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The listening sockets of one shard. A data path with these settings takes over those of its predecessor.
#[derive(Clone, Debug, Default)]
pub struct KeptSockets(Arc<Mutex<Sockets>>);

type Sockets = BTreeMap<(SocketKind, SocketAddr), OwnedFd>;

/// The purpose of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SocketKind {
    /// It listens for connections.
    Connections,
    /// It receives datagrams of clients.
    Datagrams,
    /// It is bound to a relay address. It is in nobody's hands until it is taken.
    Relay,
}

impl KeptSockets {
    /// Puts in a socket that is bound to this address.
    pub fn put(&self, kind: SocketKind, address: SocketAddr, socket: OwnedFd) {
        self.lock().insert((kind, address), socket);
    }

    /// Takes out the socket that is bound to this address.
    pub fn take(&self, kind: SocketKind, address: SocketAddr) -> Option<OwnedFd> {
        self.lock().remove(&(kind, address))
    }

    /// Closes all sockets of a kind that nobody has taken.
    pub fn close(&self, kind: SocketKind) {
        self.lock().retain(|(of, _), _| *of != kind);
    }

    /// Returns whether there is a socket with this address.
    pub fn has(&self, kind: SocketKind, address: SocketAddr) -> bool {
        self.lock().contains_key(&(kind, address))
    }

    /// Shows all sockets, in the order of kinds and addresses.
    pub fn each(&self, mut show: impl FnMut(SocketKind, SocketAddr, &OwnedFd)) {
        for ((kind, address), socket) in &*self.lock() {
            show(*kind, *address, socket);
        }
    }

    /// Returns a handle of the socket with this address, if there is one.
    pub(crate) fn get(&self, kind: SocketKind, address: SocketAddr) -> io::Result<Option<OwnedFd>> {
        let sockets = self.lock();
        let socket = sockets.get(&(kind, address));
        socket.map(OwnedFd::try_clone).transpose()
    }

    /// Keeps a handle of a new socket with this address.
    pub(crate) fn keep(
        &self,
        kind: SocketKind,
        address: SocketAddr,
        socket: &OwnedFd,
    ) -> io::Result<()> {
        let socket = socket.try_clone()?;
        self.put(kind, address, socket);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Sockets> {
        // What is behind the lock is whole at any time.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
