//! Connections between the outside and the machine: bytes that one side has written and the other has not read.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

/// Bytes that the outside leaves unread before the machine can write no more.
const ROOM: usize = 6 * 1024;

/// The name of a connection.
pub(super) type WireId = u64;

/// A connection.
#[derive(Debug)]
pub(super) struct Wire {
    /// The machine's end.
    pub(super) local: SocketAddr,
    /// The other end.
    pub(super) remote: SocketAddr,
    pub(super) to_machine: VecDeque<u8>,
    pub(super) to_remote: VecDeque<u8>,
    /// The other side writes no more.
    pub(super) has_remote_ended: bool,
    /// The machine writes no more.
    pub(super) has_machine_ended: bool,
}

/// All connections.
#[derive(Debug, Default)]
pub(super) struct Wires {
    by_id: BTreeMap<WireId, Wire>,
    count: u64,
}

impl Wires {
    pub(super) fn open(&mut self, local: SocketAddr, remote: SocketAddr) -> WireId {
        self.count += 1;
        let wire = Wire {
            local,
            remote,
            to_machine: VecDeque::new(),
            to_remote: VecDeque::new(),
            has_remote_ended: false,
            has_machine_ended: false,
        };
        self.by_id.insert(self.count, wire);
        self.count
    }

    pub(super) fn get(&mut self, id: WireId) -> Option<&mut Wire> {
        self.by_id.get_mut(&id)
    }

    /// Returns all that are there.
    pub(super) fn ids(&self) -> Vec<WireId> {
        self.by_id.keys().copied().collect()
    }

    /// Writes from outside.
    pub(super) fn write(&mut self, id: WireId, bytes: &[u8]) {
        if let Some(wire) = self.get(id).filter(|wire| !wire.has_remote_ended) {
            wire.to_machine.extend(bytes);
        }
    }

    /// Has the other side go away.
    pub(super) fn leave(&mut self, id: WireId) {
        if let Some(wire) = self.get(id) {
            wire.has_remote_ended = true;
        }
        self.forget(id);
    }

    /// Writes for the machine as much as there is room for, at most `limit` bytes. Returns how many that is, `None` if nobody is there any more.
    pub(super) fn send(&mut self, id: WireId, bytes: &[u8], limit: usize) -> Option<usize> {
        let wire = self.get(id).filter(|wire| !wire.has_machine_ended)?;
        let room = ROOM.saturating_sub(wire.to_remote.len());
        let len = bytes.len().min(room).min(limit);
        wire.to_remote.extend(&bytes[..len]);
        Some(len)
    }

    /// Reads at most `limit` bytes for the machine; returns `None` at the end.
    pub(super) fn receive(&mut self, id: WireId, limit: usize) -> Option<Vec<u8>> {
        let wire = self.get(id)?;
        if wire.to_machine.is_empty() && wire.has_remote_ended {
            return None;
        }
        let len = wire.to_machine.len().min(limit);
        Some(wire.to_machine.drain(..len).collect())
    }

    /// Ends what the machine writes.
    pub(super) fn end(&mut self, id: WireId) {
        if let Some(wire) = self.get(id) {
            wire.has_machine_ended = true;
        }
        self.forget(id);
    }

    /// Forgets a connection that nobody has any more.
    fn forget(&mut self, id: WireId) {
        self.by_id
            .retain(|name, wire| *name != id || !(wire.has_remote_ended && wire.has_machine_ended));
    }
}
