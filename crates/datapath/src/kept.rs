//! Listening sockets that outlive the data path that reads them.
//!
//! When a member of a `SO_REUSEPORT` group is closed the kernel numbers the others anew, and clients of other shards change shards. So the
//! sockets of a shard that has failed stay open, with what waits in them, until it is started anew.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

/// The listening sockets of one shard: a data path with these settings takes those that the one before has left.
#[derive(Clone, Debug, Default)]
pub struct KeptSockets(Arc<Mutex<BTreeMap<(SocketKind, SocketAddr), OwnedFd>>>);

/// For what a socket listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SocketKind {
    Connections,
    Datagrams,
}

impl KeptSockets {
    /// A handle of the socket with this address, if there is one.
    pub(crate) fn get(&self, kind: SocketKind, address: SocketAddr) -> io::Result<Option<OwnedFd>> {
        // What is behind the lock is whole at any time.
        let sockets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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
        let mut sockets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sockets.insert((kind, address), socket);
        Ok(())
    }
}
