//! Sockets whose receive buffers have grown and are charged to the budget; buffers that are no longer needed shrink.

use crate::names::EndpointId;
use crate::sockets::table::Table;

/// How often the sockets are looked at.
const LOOK_NS: u64 = 1_000_000_000;
/// Looks in a row that found a socket unread, after which its buffer shrinks. A flow that comes again grows it again with its first bursts.
const IDLE_LOOKS: u8 = 10;

/// The sockets, and when they were looked at last.
#[derive(Debug, Default)]
pub(crate) struct Grown {
    /// Each with how many looks have found it unread.
    sockets: Vec<(EndpointId, u8)>,
    looked_ns: u64,
    looked_turn: u64,
}

impl Grown {
    /// Takes in a socket, once.
    pub(crate) fn add(&mut self, id: EndpointId) {
        self.sockets.push((id, 0));
    }

    /// Shrinks the buffers of sockets that have been idle for ten seconds.
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
                false => *idle_looks + 1,
            };
            let stays = *idle_looks < IDLE_LOOKS;
            if !stays {
                bound.socket.shrink_receive_buffer();
            }
            stays
        });
    }
}
