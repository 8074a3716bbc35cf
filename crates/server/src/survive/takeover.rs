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
use turnbuckle_engine::{AllocationId, Belongings, Change};
use turnbuckle_sys::keeper::Inherited;

use super::handed::Handed;
use super::kept::Kept;
use super::listing::Listed;
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
    pub(crate) changes: Vec<Change>,
    /// Allocations that have not ended.
    pub(crate) allocations: usize,
}

impl Record {
    fn of(changes: Vec<Change>) -> Self {
        Self {
            allocations: relays_by_allocation(&changes).len(),
            changes,
        }
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
                Ok(changes) => shard.record = Record::of(changes),
                Err(why) => takeover.complaints.push(format!(
                    "the calls of shard {index} are lost, because its journal is not used: {why}"
                )),
            }
            for address in relays_by_allocation(&shard.record.changes)
                .into_values()
                .flatten()
            {
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

/// Returns the addresses on this host that allocations on record relay from.
fn relays_by_allocation(changes: &[Change]) -> HashMap<AllocationId, Vec<SocketAddr>> {
    let mut relays_by_allocation = HashMap::new();
    for change in changes {
        match change {
            Change::Created(created) => {
                let locals = created.relays.iter().map(|relayed| relayed.local);
                relays_by_allocation.insert(created.allocation, locals.collect());
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
mod tests {
    use std::net::UdpSocket;

    use nix::sys::signal::SigSet;

    use super::*;
    use crate::config::{Machine, Request, load};
    use crate::control::keys::KeyRing;
    use crate::survive::staying::Main;

    #[test]
    fn where_another_process_listens_too_is_handed_on_from_relay_to_relay() {
        let machine = Machine::discover().unwrap();
        let Ok(Request::Run(loaded)) = load(["--user=a:b".into()], &machine) else {
            panic!("a whole configuration");
        };
        let keys = KeyRing::new(&loaded.config);
        let kept = Kept::new(2, &SigSet::empty(), Main::new().unwrap(), (keys, None)).unwrap();
        let shards = [KeptSockets::default(), KeptSockets::default()];
        let addresses = ["192.0.2.1:3478", "192.0.2.2:3478"].map(|it| it.parse().unwrap());
        let [own, shared]: [SocketAddr; 2] = addresses;
        let mut left = HashMap::new();
        for shard in &shards {
            for address in addresses {
                // A socket is known by its cookie, whatever it is bound to.
                let socket = OwnedFd::from(UdpSocket::bind("127.0.0.1:0").unwrap());
                left.insert(socket.as_raw_fd(), socket.try_clone().unwrap());
                shard.put(SocketKind::Datagrams, address, socket);
            }
        }
        for wanted in [vec![], vec![shared], vec![own, shared]] {
            kept.list(&shards, &wanted).unwrap();
            let left = left.iter().map(|(number, it)| (*number, it.try_clone()));
            let left = left.map(|(number, it)| (number, it.unwrap())).collect();
            let takeover = Takeover::sort(kept.listed().unwrap(), &kept.journals, left);
            assert_eq!(takeover.complaints, Vec::<String>::new());
            assert_eq!(takeover.listeners, 4);
            assert_eq!(takeover.shared, wanted);
            for address in addresses {
                assert!(takeover.listens(SocketKind::Datagrams, address));
            }
        }
    }
}
