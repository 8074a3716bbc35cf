//! How the shards share the connections that come to one address.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::epoll::EventFlags;
use turnbuckle_sys::cpus::allowed_cpus;
use turnbuckle_sys::steering::steer_by_cpu;

/// Which shard takes a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum AcceptStrategy {
    /// The shard of the CPU on which the connection arrives. If one CPU does all network work, its shard gets all connections.
    Cpu,
    /// A shard that waits: all shards wait on one socket, and a connection wakes one of them (`EPOLLEXCLUSIVE`).
    Exclusive,
    /// Each shard has a socket, and the hash of the addresses chooses (`SO_REUSEPORT`).
    #[default]
    Reuseport,
    /// The first shard to accept it: all shards wait on one socket, and a connection wakes them all.
    Shared,
}

/// State of the listeners that the shards of a process share; each shard has a copy.
#[derive(Clone, Debug)]
pub struct Accepting {
    strategy: AcceptStrategy,
    shards: u32,
    cpus: Arc<[u32]>,
    /// Where shards share a socket, the socket of each address.
    sockets: Arc<Mutex<BTreeMap<SocketAddr, Arc<OwnedFd>>>>,
}

impl Default for Accepting {
    /// Returns the state of a single shard.
    fn default() -> Self {
        Self {
            strategy: AcceptStrategy::default(),
            shards: 1,
            cpus: Arc::default(),
            sockets: Arc::default(),
        }
    }
}

impl Accepting {
    /// Returns the state for `shards` shards. To be called before the thread is pinned: all shards use the CPUs that this thread may use.
    ///
    /// # Errors
    /// The kernel does not report which CPUs may be used.
    pub fn new(strategy: AcceptStrategy, shards: u32) -> io::Result<Self> {
        Ok(Self {
            strategy,
            shards,
            cpus: allowed_cpus()?.into(),
            sockets: Arc::default(),
        })
    }

    /// Returns the socket for an address. A shared one is opened by the first shard that calls this.
    pub(super) fn socket(
        &self,
        address: SocketAddr,
        make: impl FnOnce() -> io::Result<OwnedFd>,
    ) -> io::Result<Arc<OwnedFd>> {
        match self.strategy {
            AcceptStrategy::Cpu | AcceptStrategy::Reuseport => make().map(Arc::new),
            AcceptStrategy::Exclusive | AcceptStrategy::Shared => {
                // What is behind the lock is whole at any time.
                let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(socket) = sockets.get(&address) {
                    return Ok(Arc::clone(socket));
                }
                let socket = Arc::new(make()?);
                sockets.insert(address, Arc::clone(&socket));
                Ok(socket)
            }
        }
    }

    /// Returns the events to wait for on a socket.
    pub(super) fn interest(&self) -> EventFlags {
        match self.strategy {
            AcceptStrategy::Exclusive => EventFlags::IN | EventFlags::EXCLUSIVE,
            AcceptStrategy::Cpu | AcceptStrategy::Reuseport | AcceptStrategy::Shared => {
                EventFlags::IN
            }
        }
    }

    /// Gives each CPU's connections to its shard. Called for the socket of every shard, each time to the same effect, after it has begun to
    /// listen: a group takes its program from any member.
    pub(super) fn steer(&self, socket: impl AsFd) -> io::Result<()> {
        match self.strategy {
            AcceptStrategy::Cpu => Ok(steer_by_cpu(socket, &self.cpus, self.shards)?),
            AcceptStrategy::Exclusive | AcceptStrategy::Reuseport | AcceptStrategy::Shared => {
                Ok(())
            }
        }
    }
}
