//! Relay sockets whose receive buffers are charged to the budget. One that is idle shrinks to the size that it began with, and where the budget is short
//! to the size that is free to every socket.

use std::sync::Arc;

use crate::names::EndpointId;
use crate::settings::BufferSettings;
use crate::sockets::budget::BufferBudget;
use crate::sockets::table::Table;

/// How often the sockets are looked at.
const LOOK_NS: u64 = 1_000_000_000;
/// Looks in a row that found a socket unread, after which it is idle. A flow that comes again grows the buffer again with its first bursts.
const IDLE_LOOKS: u8 = 10;

/// The sockets, and when they were looked at last.
#[derive(Debug)]
pub(crate) struct Grown {
    /// Each with how many looks have found it unread.
    sockets: Vec<(EndpointId, u8)>,
    /// The size that a relay socket begins with, bytes of `SO_RCVBUF`.
    start: u32,
    budget: Arc<BufferBudget>,
    looked_ns: u64,
    looked_turn: u64,
}

impl Grown {
    pub(crate) fn new(buffers: &BufferSettings) -> Self {
        Self {
            sockets: Vec::new(),
            start: buffers.relay_start,
            budget: Arc::clone(&buffers.budget),
            looked_ns: 0,
            looked_turn: 0,
        }
    }

    /// Takes in a socket that has become charged.
    pub(crate) fn add(&mut self, id: EndpointId) {
        self.sockets.push((id, 0));
    }

    /// Shrinks the buffers of sockets that have been idle for ten seconds, once a second.
    #[inline]
    pub(crate) fn look(&mut self, table: &mut Table, turn: u64, now_ns: u64) {
        if !self.sockets.is_empty() && now_ns.saturating_sub(self.looked_ns) >= LOOK_NS {
            self.look_now(table, now_ns);
            self.looked_turn = turn;
        }
    }

    #[cold]
    fn look_now(&mut self, table: &mut Table, now_ns: u64) {
        self.looked_ns = now_ns;
        let looked_turn = self.looked_turn;
        self.sockets.retain_mut(|(id, idle_looks)| {
            let Some(bound) = table.get_mut(*id) else {
                return false;
            };
            *idle_looks = match bound.socket.read_turn > looked_turn {
                true => 0,
                false => idle_looks.saturating_add(1),
            };
            if *idle_looks >= IDLE_LOOKS {
                let is_short = self.budget.is_short();
                let size = if is_short { 0 } else { self.start };
                bound.socket.shrink_receive_buffer(size);
            }
            bound.socket.is_charged()
        });
    }
}
