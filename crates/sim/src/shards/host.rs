//! The machine that all shards run on: which ports are taken and by whom, and what is sent.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use turnbuckle_datapath::EndpointId;

use super::kernel::Kernel;
use super::wire::Wires;
use crate::random::Seeded;

/// Who has a UDP port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// A relay socket of this shard.
    Relay(usize, EndpointId),
    /// A relay socket that receives nothing yet.
    Held,
    /// Another program.
    Other,
}

/// How often system calls fail, in parts per million.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CallFaults {
    /// Opening a socket: EMFILE.
    pub(super) descriptors_ppm: u32,
    /// Sending a datagram: ENOBUFS.
    pub(super) buffers_ppm: u32,
}

/// EMFILE.
const TOO_MANY_FILES: i32 = 24;

/// The machine.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) ports: BTreeMap<SocketAddr, Owner>,
    pub(super) faults: CallFaults,
    /// Relays that listen for connections of peers: at which shard, and the token of the listener.
    pub(super) relays: BTreeMap<SocketAddr, (usize, u64)>,
    pub(super) wires: Wires,
    /// Relays what shards have published; `None` where nothing is published.
    pub(super) kernel: Option<Kernel>,
    random: Seeded,
}

/// The machine, as everybody has it.
#[derive(Clone, Debug)]
pub(super) struct SharedHost(Arc<Mutex<Host>>);

impl SharedHost {
    pub(super) fn new(random: Seeded) -> Self {
        Self(Arc::new(Mutex::new(Host {
            ports: BTreeMap::new(),
            faults: CallFaults::default(),
            relays: BTreeMap::new(),
            wires: Wires::default(),
            kernel: random.fork("kernel").one_in(2).then(Kernel::default),
            random,
        })))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Host> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a port that nobody has.
    pub(super) fn take(&self, address: SocketAddr, owner: Owner) -> io::Result<()> {
        let mut host = self.lock();
        if owner != Owner::Other && host.fails(|faults| faults.descriptors_ppm) {
            return Err(io::Error::from_raw_os_error(TOO_MANY_FILES));
        }
        if host.ports.contains_key(&address) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        host.ports.insert(address, owner);
        Ok(())
    }

    /// Returns whether a datagram finds no room on its way out.
    pub(super) fn is_out_of_buffers(&self) -> bool {
        self.lock().fails(|faults| faults.buffers_ppm)
    }

    /// Returns who has a port.
    pub(super) fn owner(&self, address: SocketAddr) -> Option<Owner> {
        self.lock().ports.get(&address).copied()
    }

    pub(super) fn give_back(&self, address: SocketAddr) {
        self.lock().ports.remove(&address);
    }

    /// Takes a port that is held until the returned value is dropped, or [taken in](Held::take_in).
    pub(super) fn hold(&self, address: SocketAddr) -> io::Result<Held> {
        self.take(address, Owner::Held)?;
        Ok(Held {
            host: self.clone(),
            address,
        })
    }
}

impl Host {
    fn fails(&mut self, ppm: impl FnOnce(&CallFaults) -> u32) -> bool {
        let ppm = ppm(&self.faults);
        ppm > 0 && self.random.chance(ppm)
    }
}

/// A port that is held.
#[derive(Debug)]
pub(super) struct Held {
    host: SharedHost,
    pub(super) address: SocketAddr,
}

impl Held {
    /// Makes a relay socket of it.
    pub(super) fn take_in(self, owner: Owner) {
        self.host.lock().ports.insert(self.address, owner);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut host = self.host.lock();
        if host.ports.get(&self.address) == Some(&Owner::Held) {
            host.ports.remove(&self.address);
        }
    }
}
