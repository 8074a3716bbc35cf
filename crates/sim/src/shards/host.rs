//! The machine that all shards run on: which ports are taken and by whom, and what is sent.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use turnbuckle_datapath::EndpointId;

use super::kernel::Kernel;
use super::wire::Wires;
use crate::random::Seeded;
use crate::violation::Coverage;

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
    /// Opening a socket, for datagrams or connections: EMFILE.
    pub(super) descriptors_ppm: u32,
    /// Sending a datagram: ENOBUFS.
    pub(super) buffers_ppm: u32,
    /// Reading a datagram: it is longer than the memory for it.
    pub(super) truncations_ppm: u32,
    /// A peer's host does not take a datagram, and says so.
    pub(super) refusals_ppm: u32,
}

/// EMFILE.
const TOO_MANY_FILES: i32 = 24;

/// The machine.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) ports: BTreeMap<SocketAddr, Owner>,
    pub(super) faults: CallFaults,
    /// What shards have met of it, and of what else system calls do.
    pub(super) met: Coverage,
    /// Relays that listen for connections of peers: at which shard, and the token of the listener.
    pub(super) relays: BTreeMap<SocketAddr, (usize, u64)>,
    /// TCP ports of other programs.
    pub(super) others: BTreeSet<SocketAddr>,
    pub(super) wires: Wires,
    /// The clients of whose data a peer's host has refused some.
    pub(super) refused: BTreeSet<u32>,
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
            met: Coverage::default(),
            relays: BTreeMap::new(),
            others: BTreeSet::new(),
            wires: Wires::default(),
            refused: BTreeSet::new(),
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
        if owner != Owner::Other {
            host.descriptor()?;
        }
        if host.ports.contains_key(&address) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        host.ports.insert(address, owner);
        Ok(())
    }

    /// Returns whether a call fails that does so as often as `ppm` says.
    pub(super) fn fails(&self, ppm: impl FnOnce(&CallFaults) -> u32) -> bool {
        self.lock().fails(ppm)
    }

    /// Counts something that a shard has met.
    pub(super) fn met(&self, what: &'static str, kind: u16) {
        self.lock().met.count(what, kind);
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
    /// Finds a descriptor for a socket, if there is one.
    pub(super) fn descriptor(&mut self) -> io::Result<()> {
        match self.fails(|faults| faults.descriptors_ppm) {
            true => {
                self.met.count("sockets without descriptors", 0);
                Err(io::Error::from_raw_os_error(TOO_MANY_FILES))
            }
            false => Ok(()),
        }
    }

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
