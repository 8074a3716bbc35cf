//! Listening sockets that stay open after the data path that reads them has ended.
//!
//! When a member of a `SO_REUSEPORT` group is closed, the kernel renumbers the others, and clients of other shards change shards. So the
//! sockets of a shard that has failed stay open, with the datagrams in their buffers, until the shard is restarted.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

/// The listening sockets of one shard. A data path with these settings takes over those of its predecessor.
#[derive(Clone, Debug, Default)]
pub struct KeptSockets(Arc<Mutex<BTreeMap<(SocketKind, SocketAddr), OwnedFd>>>);

/// The purpose of a listening socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SocketKind {
    Connections,
    Datagrams,
}

impl KeptSockets {
    /// Returns a handle of the socket with this address, if there is one.
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
