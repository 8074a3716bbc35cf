//! Ports that the host holds for whoever brings a token: bound, and receiving nothing.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use turnbuckle_engine::HeldPort;

/// The ports that are held.
#[derive(Clone, Debug, Default)]
pub struct HeldPorts(Arc<Mutex<BTreeSet<SocketAddr>>>);

/// A socket at a port that is held; dropping it closes it.
#[derive(Debug)]
pub struct HeldSocket {
    all: HeldPorts,
    address: SocketAddr,
}

impl HeldPorts {
    /// Binds a socket at `address`, for the engine to keep.
    pub(crate) fn hold(&self, address: SocketAddr) -> HeldPort {
        self.with(|held| held.insert(address));
        HeldPort::new(HeldSocket {
            all: self.clone(),
            address,
        })
    }

    /// Returns whether a socket is at `address`.
    pub(crate) fn has(&self, address: SocketAddr) -> bool {
        self.with(|held| held.contains(&address))
    }

    /// Returns the addresses of all that are held.
    #[must_use]
    pub fn addresses(&self) -> BTreeSet<SocketAddr> {
        self.with(|held| held.clone())
    }

    fn with<T>(&self, look: impl FnOnce(&mut BTreeSet<SocketAddr>) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl HeldSocket {
    /// Returns where it is bound.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for HeldSocket {
    fn drop(&mut self) {
        self.all.with(|held| held.remove(&self.address));
    }
}
