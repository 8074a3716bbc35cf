//! What a relay takes over from the one before it: checked, and sorted by shards.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::net::{getsockname, ipproto, sockopt};
use turnbuckle_datapath::offload::Attachment;
use turnbuckle_datapath::{KeptSockets, SocketKind};
use turnbuckle_engine::{AllocationId, Belongings, Change, Relayed};
use turnbuckle_sys::keeper::Inherited;

use super::handed::Handed;
use super::kept::Kept;
use super::listing::Listed;
use crate::config::Config;
use crate::journal::segment::Recorded;
use crate::journal::{Memory, Segments};

/// What each shard takes over; nothing if there was no relay before.
#[derive(Default)]
pub(crate) struct Takeover {
    pub(crate) shards: Vec<ShardTakeover>,
    /// Sockets that clients are listened to at.
    pub(crate) listeners: usize,
    /// Addresses of these where another process listens for datagrams too, as the relay before found when it came to listen there.
    pub(crate) shared: Vec<SocketAddr>,
    /// Programs of the kernel that relay channels.
    pub(crate) attached: Vec<Attachment>,
    /// What is not taken over, and why.
    pub(crate) complaints: Vec<String>,
}

/// What one shard takes over.
#[derive(Default)]
pub(crate) struct ShardTakeover {
    /// Listening sockets, and relay sockets of allocations that have not ended.
    pub(crate) sockets: KeptSockets,
    pub(crate) record: Record,
}

/// What a journal says.
#[derive(Default)]
pub(crate) struct Record {
    pub(crate) recorded: Recorded,
    /// Allocations that have not ended.
    pub(crate) allocations: usize,
}

impl Record {
    fn of(recorded: Recorded) -> Self {
        Self {
            allocations: relays_by_allocation(&recorded.changes).len(),
            recorded,
        }
    }

    /// Returns where allocations on record relay from. Those that share a socket have one address.
    fn relays(&self) -> impl Iterator<Item = Relayed> {
        let relays = relays_by_allocation(&self.recorded.changes);
        relays.into_values().flatten()
    }
}

/// Where a shard writes its journal, and what is left to it by the one before.
pub(crate) struct ShardJournal {
    pub(crate) segments: Segments,
    pub(crate) memory: Memory,
    left: Mutex<Left>,
}

/// What is left to a shard.
#[derive(Default)]
struct Left {
    /// What the process before has left; `None` once it was taken. A shard that is started anew after a failure reads its own journal.
    record: Option<Record>,
    /// What a shard of this process has left that has failed.
    belongings: Belongings,
}

impl ShardJournal {
    pub(crate) fn new(segments: Segments, memory: Memory, record: Record) -> Arc<Self> {
        let left = Left {
            record: Some(record),
            belongings: Belongings::default(),
        };
        Arc::new(Self {
            segments,
            memory,
            left: Mutex::new(left),
        })
    }

    /// Takes what the shard before has left: its record, and what its allocations have of what all shards share.
    ///
    /// # Errors
    ///
    /// The journal is not to be used, and why.
    pub(crate) fn take(&self) -> Result<(Record, Belongings), String> {
        let Left { record, belongings } = std::mem::take(&mut *self.lock());
        let record = match record {
            Some(record) => record,
            // guard: V-63-panic
            None => Record::of(self.segments.read()?),
        };
        Ok((record, belongings))
    }

    /// Leaves to the next shard what one that has failed has of what all share.
    pub(crate) fn leave(&self, belongings: Belongings) {
        self.lock().belongings = belongings;
    }

    /// Has the next shard begin without calls.
    pub(crate) fn forget(&self) {
        *self.lock() = Left {
            record: Some(Record::default()),
            belongings: Belongings::default(),
        };
    }

    fn lock(&self) -> MutexGuard<'_, Left> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ShardJournal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardJournal").finish_non_exhaustive()
    }
}

impl Takeover {
    /// Returns what so many shards take over if there was no relay before.
    pub(crate) fn none(shards: usize) -> Self {
        let mut none = Self::default();
        none.shards.resize_with(shards, ShardTakeover::default);
        none
    }

    /// Takes over what the relay before has left, and closes all else that it had open.
    ///
    /// # Errors
    ///
    /// What is open cannot be told.
    pub(super) fn claim(kept: &Kept, inherited: Inherited) -> io::Result<Self> {
        let left = by_number(inherited)?;
        let Some(listed) = kept.listed() else {
            // No relay has served before, so there is nothing to take over.
            return Ok(Self::none(kept.journals.len()));
        };
        Ok(Self::sort(listed, &kept.journals, left))
    }

    /// Takes over what the relay of another program has left, and closes all else that it had open.
    ///
    /// # Errors
    ///
    /// Something of it cannot be taken over, so all of it is the other program's.
    pub(super) fn claim_handed(handed: &Handed, inherited: Inherited) -> io::Result<Self> {
        let mut left = by_number(inherited)?;
        let before = handed.before(|number| {
            let file = left.remove(&number).map(File::from);
            file.ok_or_else(|| io::ErrorKind::NotFound.into())
        })?;
        let mut takeover = Self::sort(before.listed, &before.journals, left);
        match takeover.complaints.pop() {
            Some(complaint) => Err(io::Error::other(complaint)),
            None => Ok(takeover),
        }
    }

    /// Sorts what is `left` by the list of listening sockets and the journals; the rest is closed.
    fn sort(listed: Vec<Listed>, journals: &[Segments], mut left: HashMap<RawFd, OwnedFd>) -> Self {
        let mut takeover = Self::none(journals.len());
        takeover.listeners = listed.len();
        for listed in listed {
            let found = left.remove(&listed.number);
            let found = found.filter(|descriptor| listed.is(descriptor));
            let (Some(descriptor), Some(shard)) = (found, takeover.shards.get(listed.shard)) else {
                let mut nothing = Self::none(journals.len());
                nothing.complaints.push(format!(
                    "the socket for {} of the relay before is not there, so nothing of it is taken over",
                    listed.address
                ));
                return nothing;
            };
            shard.sockets.put(listed.kind, listed.address, descriptor);
            if listed.is_shared && !takeover.shared.contains(&listed.address) {
                takeover.shared.push(listed.address);
            }
        }
        let mut by_address = HashMap::with_capacity(left.len());
        for descriptor in left.into_values() {
            match Open::of(&descriptor) {
                Open::Datagrams(address) => {
                    by_address.insert(address, descriptor);
                }
                Open::Socket => {}
                // guard: offload-taken-over
                Open::Other => takeover.attached.extend(Attachment::of(descriptor)),
            }
        }
        for (index, shard) in takeover.shards.iter_mut().enumerate() {
            match journals[index].read() {
                Ok(recorded) => shard.record = Record::of(recorded),
                Err(why) => takeover.complaints.push(format!(
                    "the calls of shard {index} are lost, because its journal is not used: {why}"
                )),
            }
            for Relayed { local: address, .. } in shard.record.relays() {
                if let Some(descriptor) = by_address.remove(&address) {
                    shard.sockets.put(SocketKind::Relay, address, descriptor);
                }
            }
        }
        takeover
    }

    /// Returns the allocations on record.
    pub(crate) fn allocations(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| shard.record.allocations)
            .sum()
    }

    /// Has the calls on record go on where they relay from, whatever the configuration has come to say of it, if their sockets are there.
    pub(crate) fn keep_relays(&self, config: &mut Config) {
        for (index, shard) in self.shards.iter().enumerate() {
            let shared = config.datapath.shared_relays.zip(u16::try_from(index).ok());
            let shared = shared.map(|(shared, index)| shared.ports_of(index));
            let relays = shard.record.relays();
            let mut relays: Vec<_> = relays
                .filter(|relay| shard.sockets.has(SocketKind::Relay, relay.local))
                .collect();
            // In the order of the addresses, whatever that of the record.
            relays.sort_unstable_by_key(|relay| relay.local);
            for relay in &relays {
                let family = usize::from(relay.local.is_ipv6());
                if shared.is_some_and(|ports| ports[family] == relay.local.port()) {
                    config.addresses.keep_shared_relay(relay);
                } else {
                    config.addresses.keep_relay(relay);
                }
            }
        }
    }

    /// Returns whether one of the listening sockets has this address.
    pub(crate) fn listens(&self, kind: SocketKind, address: SocketAddr) -> bool {
        let mut shards = self.shards.iter();
        shards.any(|shard| shard.sockets.has(kind, address))
    }

    /// Closes the listening sockets with this address.
    pub(crate) fn close(&self, kind: SocketKind, address: SocketAddr) {
        for shard in &self.shards {
            drop(shard.sockets.take(kind, address));
        }
    }

    /// Returns the addresses of listening sockets of one kind, each once.
    pub(crate) fn listeners(&self, wanted: SocketKind) -> Vec<SocketAddr> {
        let mut addresses = Vec::new();
        for shard in &self.shards {
            shard.sockets.each(|kind, address, _| {
                if kind == wanted && !addresses.contains(&address) {
                    addresses.push(address);
                }
            });
        }
        addresses
    }
}

/// Takes what is left open, by the numbers of the descriptors.
fn by_number(inherited: Inherited) -> io::Result<HashMap<RawFd, OwnedFd>> {
    let left = inherited.take()?.into_iter();
    Ok(left
        .map(|descriptor| (descriptor.as_raw_fd(), descriptor))
        .collect())
}

/// Returns where each allocation on record relays from.
fn relays_by_allocation(changes: &[Change]) -> HashMap<AllocationId, Vec<Relayed>> {
    let mut relays_by_allocation = HashMap::new();
    for change in changes {
        match change {
            Change::Created(created) => {
                relays_by_allocation.insert(created.allocation, created.relays.clone());
            }
            Change::Ended(ended) => {
                relays_by_allocation.remove(&ended.allocation);
            }
            _ => {}
        }
    }
    relays_by_allocation
}

/// What a descriptor is of.
enum Open {
    /// A socket for datagrams that is bound here.
    Datagrams(SocketAddr),
    /// Another socket.
    Socket,
    /// No socket.
    Other,
}

impl Open {
    fn of(descriptor: &OwnedFd) -> Self {
        let Ok(protocol) = sockopt::socket_protocol(descriptor) else {
            return Self::Other;
        };
        let name = getsockname(descriptor)
            .ok()
            .filter(|_| protocol == Some(ipproto::UDP));
        match name.and_then(|name| name.try_into().ok()) {
            Some(address) => Self::Datagrams(address),
            None => Self::Socket,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
