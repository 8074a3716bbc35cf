//! What the kernel drops at sockets before it can be read: asked for at most once a second of a socket that may have lost something, and when a socket
//! closes.
//!
//! The kernel drops where the receive queue is full, and a full queue makes a reading bring several messages, or one right after another. Such sockets
//! are noted, and asked in the next look (`SO_MEMINFO`). The cmsg of `SO_RXQ_OVFL` would come with every datagram behind the first loss, and would not say
//! what was lost behind the last one.

use std::collections::VecDeque;
use std::time::Duration;

use crate::handler::DatagramHandler;
use crate::names::EndpointId;
use crate::sockets::table::{Bound, Table};

/// How often sockets are asked.
const LOOK: Duration = Duration::from_secs(1);

/// Sockets asked in one turn. Each costs a system call, and packets wait meanwhile.
const LOOK_MAX: usize = 32;

/// Time until the rest is asked, if no packet wakes the shard before.
const REST: Duration = Duration::from_millis(1);

/// The sockets to ask, and when that was done last.
#[derive(Debug, Default)]
pub(crate) struct Undelivered {
    noted: VecDeque<EndpointId>,
    looked_ns: u64,
    /// Sockets at the front of `noted` that are still to be asked in this look.
    due: usize,
}

impl Undelivered {
    /// Notes a socket whose queue may have been full.
    #[inline]
    pub(crate) fn note(&mut self, bound: &mut Bound) {
        if !bound.socket.is_noted {
            bound.socket.is_noted = true;
            self.noted.push_back(bound.endpoint.id);
        }
    }

    /// Returns how long to wait at most, so that what is noted is asked before long.
    #[inline]
    pub(crate) fn bound(&self, timeout: Option<Duration>) -> Option<Duration> {
        let most = match (self.noted.is_empty(), self.due) {
            (true, _) => return timeout,
            (false, 0) => LOOK,
            (false, _) => REST,
        };
        Some(timeout.map_or(most, |timeout| timeout.min(most)))
    }

    /// Asks the noted sockets once a second, [`LOOK_MAX`] in a turn.
    #[inline]
    pub(crate) fn look(
        &mut self,
        table: &mut Table,
        now_ns: u64,
        handler: &mut impl DatagramHandler,
    ) {
        if self.due == 0
            && !self.noted.is_empty()
            && u128::from(now_ns - self.looked_ns.min(now_ns)) >= LOOK.as_nanos()
        {
            self.looked_ns = now_ns;
            self.due = self.noted.len();
        }
        if self.due > 0 {
            self.look_now(table, handler);
        }
    }

    #[cold]
    fn look_now(&mut self, table: &mut Table, handler: &mut impl DatagramHandler) {
        let count = self.due.min(LOOK_MAX);
        self.due -= count;
        for id in self.noted.drain(..count) {
            if let Some(bound) = table.get_mut(id) {
                bound.socket.is_noted = false;
                report(bound, handler);
            }
        }
    }
}

/// Tells the handler what the kernel has dropped at a socket since it was told last.
#[cold]
pub(crate) fn report(bound: &mut Bound, handler: &mut impl DatagramHandler) {
    let drops = bound.socket.new_drops();
    if drops > 0 {
        handler.undelivered(bound.socket.purpose(bound.endpoint.kind), drops.into());
    }
}
