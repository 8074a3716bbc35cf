//! Reading sockets into slots, and learning from each reading how deep the next one should be.

use rustix::io::Errno;
use turnbuckle_sys::receive::Slots;

use super::backend::Backend;
use super::calls;
use super::grown::Grown;
use super::undelivered::Undelivered;
use crate::counters::ReceiveCounters;
use crate::handler::{DatagramHandler, TurnHandler};
use crate::names::{EndpointKind, narrow};
use crate::queue::SendQueue;
use crate::reports::Warning;
use crate::settings::BufferSettings;
use crate::sockets::table::Bound;
use crate::views::Received;

/// Fewer free slots than this are not worth a reading of a socket that would take more.
const FREE_MIN: usize = 16;

/// Readings in a row that found one datagram, after which a client socket is read for one only: a request for more costs the
/// kernel a second look, which has found nothing so often.
const LONE_MIN: u8 = 8;

/// The slots of one shard and how many of them the present turn has filled.
pub(crate) struct Receiver {
    backend: Backend,
    pub(crate) slots: Slots,
    /// Slots filled since the last flush, from the first one on.
    taken: usize,
    batch: u16,
    buffer_max: u32,
    /// The sockets that hold a part of the budget.
    pub(crate) grown: Grown,
    /// The sockets where something may have been dropped.
    pub(crate) undelivered: Undelivered,
    /// `recvmmsg` was found missing.
    no_recvmmsg: bool,
    /// Datagrams received in this turn.
    pub(crate) datagrams: u64,
    /// Whether a deep batch came back full in this turn, so that more may wait.
    pub(crate) full: bool,
}

impl Receiver {
    pub(crate) fn new(backend: Backend, slots: u16, batch: u16, buffers: &BufferSettings) -> Self {
        let slots = slots.max(1);
        Self {
            backend,
            slots: Slots::new(usize::from(slots), backend == Backend::Gso),
            taken: 0,
            batch: batch.clamp(1, slots),
            buffer_max: buffers.relay_max,
            grown: Grown::new(buffers),
            undelivered: Undelivered::default(),
            no_recvmmsg: false,
            datagrams: 0,
            full: false,
        }
    }

    /// Begins a turn.
    pub(crate) fn turn_started(&mut self) {
        self.datagrams = 0;
        self.full = false;
    }

    /// Frees all slots, after a flush.
    pub(crate) fn recycle(&mut self) {
        self.taken = 0;
    }

    /// Returns whether so few slots are free that they must be recycled before an endpoint is read.
    #[inline]
    pub(crate) fn is_short_for(&self, bound: &Bound, turn: u64) -> bool {
        let free = self.slots.len() - self.taken;
        free < usize::from(self.want(bound, turn))
            .min(FREE_MIN)
            .min(self.slots.len())
    }

    /// Returns how many messages to request in this turn.
    #[inline]
    fn want(&self, bound: &Bound, turn: u64) -> u16 {
        match bound.endpoint.kind {
            EndpointKind::Listener { .. } | EndpointKind::SharedRelay
                if brings_one(bound, turn) =>
            {
                1
            }
            EndpointKind::Listener { .. } | EndpointKind::SharedRelay => self.batch,
            EndpointKind::Relay => bound.socket.want.min(self.batch),
        }
    }

    /// Reads a socket that is ready and passes its messages to `handler`. Returns whether it returned as much as was requested and may have
    /// more.
    #[inline]
    pub(crate) fn read<H: TurnHandler + DatagramHandler>(
        &mut self,
        bound: &mut Bound,
        turn: u64,
        counters: &ReceiveCounters,
        queue: &mut SendQueue,
        handler: &mut H,
    ) -> bool {
        let first = self.taken;
        let may_have_more = !brings_one(bound, turn);
        let want = usize::from(self.want(bound, turn)).min(self.slots.len() - first);
        let received = match self.backend {
            Backend::Single => self.fill_singly(bound, first, want, counters),
            Backend::Mmsg | Backend::Gso => self.fill(bound, first, want, counters, handler),
        };
        let mut bytes_max = 0;
        let mut datagrams = 0;
        let mut gro_buffers = 0;
        for slot in first..first + received {
            let (Some(remote), false) = (
                self.slots.remote(slot),
                calls::is_truncated(&self.slots, slot),
            ) else {
                counters.discarded.add(1);
                datagrams += 1;
                handler.truncated(bound.endpoint.token);
                continue;
            };
            let bytes = self.slots.bytes(slot);
            let segment = self.slots.segment(slot).unwrap_or(bytes.len());
            let message = Received {
                endpoint: bound.endpoint.id,
                token: bound.endpoint.token,
                remote,
                bytes,
                segment,
                slot: narrow(slot),
            };
            let count = message.segment_count();
            datagrams += count as u64;
            gro_buffers += u64::from(count > 1);
            bytes_max = bytes_max.max(bytes.len());
            handler.received(&message, queue);
        }
        if received == 0 {
            return false;
        }
        self.taken += received;
        self.datagrams += datagrams;
        self.full |= received == want && want >= FREE_MIN;
        counters.datagrams.add(datagrams);
        if gro_buffers > 0 {
            counters.gro_buffers.add(gro_buffers);
        }
        if received > 1 || gro_buffers > 0 || bound.socket.read_turn + 1 >= turn {
            self.undelivered.note(bound);
        }
        if bound.endpoint.kind != EndpointKind::Relay {
            bound.socket.lone = match datagrams {
                1 => bound.socket.lone.saturating_add(1),
                _ => 0,
            };
        } else {
            self.adapt(
                bound,
                turn,
                received == want,
                gro_buffers > 0,
                bytes_max,
                counters,
            );
        }
        bound.socket.read_turn = turn;
        received == want && may_have_more
    }

    /// Fills slots with one call, `recvmmsg` or for a single slot `recvmsg`. Returns how many.
    #[inline]
    fn fill<H: TurnHandler>(
        &mut self,
        bound: &Bound,
        first: usize,
        want: usize,
        counters: &ReceiveCounters,
        handler: &mut H,
    ) -> usize {
        let want = if self.no_recvmmsg { 1 } else { want };
        let mut result = calls::receive(&mut self.slots, bound.socket.fd(), first, want);
        if let Err(errno) = result
            && errno != Errno::AGAIN
        {
            if errno == Errno::NOSYS && want > 1 {
                self.no_recvmmsg = true;
                handler.warning(Warning::RecvmmsgUnavailable {
                    errno: errno.raw_os_error(),
                });
            }
            // An ICMP error of an earlier datagram is reported in place of data, once.
            result = calls::receive(
                &mut self.slots,
                bound.socket.fd(),
                first,
                if self.no_recvmmsg { 1 } else { want },
            );
        }
        if self.no_recvmmsg {
            counters.unavailable.add(1);
        }
        match result {
            Ok(received) => {
                counters.note_call(received);
                received
            }
            Err(errno) => {
                note_failure(counters, errno);
                0
            }
        }
    }

    /// Fills slots with one `recvfrom` each.
    fn fill_singly(
        &mut self,
        bound: &Bound,
        first: usize,
        want: usize,
        counters: &ReceiveCounters,
    ) -> usize {
        let mut received = 0;
        let mut failures = 0;
        while received < want {
            match calls::receive_from(&mut self.slots, bound.socket.fd(), first + received) {
                Ok(()) => {
                    counters.note_call(1);
                    received += 1;
                }
                // As above: a pending error is taken once, then the data behind it.
                Err(errno) if errno != Errno::AGAIN && failures == 0 => failures += 1,
                Err(errno) => {
                    note_failure(counters, errno);
                    break;
                }
            }
        }
        received
    }

    /// Sets how many messages the next reading of a relay socket requests, and enlarges its buffer.
    ///
    /// One message per call is right for voice, whose next one comes 20 ms later. A socket that had more when it was read again at
    /// once, or returned a GRO buffer, carries bursts. Each time it fills a request, the next request is four times as large;
    /// otherwise it is half as large. The buffer grows with the request, four times per step.
    #[inline]
    fn adapt(
        &mut self,
        bound: &mut Bound,
        turn: u64,
        filled: bool,
        gro: bool,
        bytes_max: usize,
        counters: &ReceiveCounters,
    ) {
        let again = bound.socket.read_turn + 1 >= turn;
        if filled && (again || gro || bound.socket.want > 1) {
            // The kernel charges a datagram with up to twice its bytes and more; be early.
            if bound.socket.want >= 4 || bytes_max * 4 >= bound.socket.receive_buffer as usize {
                self.grow(bound, counters);
            }
            let most = bound.socket.messages_max(self.batch, bytes_max);
            bound.socket.want = bound.socket.want.saturating_mul(4).min(most);
        } else if !filled {
            bound.socket.want = (bound.socket.want / 2).max(1);
        }
    }

    #[cold]
    fn grow(&mut self, bound: &mut Bound, counters: &ReceiveCounters) {
        let was_charged = bound.socket.is_charged();
        match bound.socket.grow_receive_buffer(self.buffer_max) {
            Some(true) => counters.buffers_grown.add(1),
            Some(false) => counters.buffers_denied.add(1),
            None => {}
        }
        if bound.socket.is_charged() && !was_charged {
            self.grown.add(bound.endpoint.id);
        }
    }
}

/// Returns whether a client socket is to be read for one datagram only. A socket that is ready in two turns in a row had more.
#[inline]
fn brings_one(bound: &Bound, turn: u64) -> bool {
    bound.socket.lone >= LONE_MIN && bound.socket.read_turn + 1 < turn
}

fn note_failure(counters: &ReceiveCounters, errno: Errno) {
    match errno {
        Errno::AGAIN => counters.would_block.add(1),
        _ => counters.failures.add(1),
    }
}

#[cfg(test)]
mod tests;
