//! Reading sockets into slots, and learning from each reading how deep the next one should be.

use rustix::io::Errno;

use crate::Backend;
use crate::counters::ReceiveCounters;
use crate::endpoint::{Endpoint, EndpointKind};
use crate::grown::Grown;
use crate::handler::{Handler, Received, Warning};
use crate::queue::{SendQueue, narrow};
use crate::sys::receive::Slots;

/// Fewer free slots than this are not worth a reading of a socket that would take more.
const FREE_MIN: usize = 16;

/// A relay socket that has received so many datagrams is in use: its buffer grows one step, so that a shard which does not run for
/// a while loses nothing of a steady flow either. At the first size 39 datagrams of a voice call fit, four times that after.
pub(crate) const IN_USE: u32 = 8;

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
    /// `recvmmsg` was found missing.
    no_recvmmsg: bool,
    /// Datagrams received in this turn.
    pub(crate) datagrams: u64,
    /// Whether a deep batch came back full in this turn: there is more where that came from.
    pub(crate) full: bool,
}

impl Receiver {
    pub(crate) fn new(backend: Backend, slots: u16, batch: u16, buffer_max: u32) -> Self {
        let slots = slots.max(1);
        Self {
            backend,
            slots: Slots::new(usize::from(slots), backend == Backend::Gso),
            taken: 0,
            batch: batch.clamp(1, slots),
            buffer_max,
            grown: Grown::default(),
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

    /// Whether so few slots are free that they must be recycled before `endpoint` is read.
    #[inline]
    pub(crate) fn is_short_for(&self, endpoint: &Endpoint) -> bool {
        let free = self.slots.len() - self.taken;
        free < usize::from(self.want(endpoint))
            .min(FREE_MIN)
            .min(self.slots.len())
    }

    #[inline]
    fn want(&self, endpoint: &Endpoint) -> u16 {
        match endpoint.kind {
            EndpointKind::Listener { .. } => self.batch,
            EndpointKind::Relay => endpoint.want.min(self.batch),
        }
    }

    /// Reads a socket that is ready and shows what came to `handler`. Returns whether it gave as much as it was asked for.
    #[inline]
    pub(crate) fn read<H: Handler>(
        &mut self,
        endpoint: &mut Endpoint,
        turn: u64,
        counters: &ReceiveCounters,
        queue: &mut SendQueue,
        handler: &mut H,
    ) -> bool {
        let first = self.taken;
        let want = usize::from(self.want(endpoint)).min(self.slots.len() - first);
        let received = match self.backend {
            Backend::Single => self.fill_singly(endpoint, first, want, counters),
            Backend::Mmsg | Backend::Gso => self.fill(endpoint, first, want, counters, handler),
        };
        let mut bytes_max = 0;
        let mut datagrams = 0;
        let mut gro_buffers = 0;
        for slot in first..first + received {
            let (Some(remote), false) = (self.slots.remote(slot), self.slots.truncated(slot))
            else {
                counters.discarded.add(1);
                datagrams += 1;
                handler.truncated(endpoint.token);
                continue;
            };
            let bytes = self.slots.bytes(slot);
            let segment = self.slots.segment(slot).unwrap_or(bytes.len());
            let message = Received {
                endpoint: endpoint.id,
                token: endpoint.token,
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
        if endpoint.kind == EndpointKind::Relay {
            if endpoint.received < IN_USE {
                endpoint.received = endpoint.received.saturating_add(narrow32(datagrams));
                if endpoint.received >= IN_USE {
                    self.grow(endpoint, counters);
                }
            }
            self.adapt(
                endpoint,
                turn,
                received == want,
                gro_buffers > 0,
                bytes_max,
                counters,
            );
        }
        endpoint.read_turn = turn;
        received == want
    }

    /// Fills slots with one call, `recvmmsg` or for a single slot `recvmsg`. Returns how many.
    #[inline]
    fn fill<H: Handler>(
        &mut self,
        endpoint: &Endpoint,
        first: usize,
        want: usize,
        counters: &ReceiveCounters,
        handler: &mut H,
    ) -> usize {
        let want = if self.no_recvmmsg { 1 } else { want };
        let mut result = self.slots.receive(endpoint.fd(), first, want);
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
            result = self.slots.receive(
                endpoint.fd(),
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
        endpoint: &Endpoint,
        first: usize,
        want: usize,
        counters: &ReceiveCounters,
    ) -> usize {
        let mut received = 0;
        let mut failures = 0;
        while received < want {
            match self.slots.receive_from(endpoint.fd(), first + received) {
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

    /// Sets how much the next reading of a relay socket asks for, and enlarges its buffer.
    ///
    /// One message per call is right for voice: its next one comes 20 ms later. A socket that still had something when it
    /// was asked again at once, or sent a GRO buffer, carries bursts: it is asked for four times as much each time it fills
    /// what was asked, and half as much when it does not. Its buffer grows with it, four times per step, so that of
    /// a burst of a few dozen datagrams at most the first one or two are cut.
    #[inline]
    fn adapt(
        &mut self,
        endpoint: &mut Endpoint,
        turn: u64,
        filled: bool,
        gro: bool,
        bytes_max: usize,
        counters: &ReceiveCounters,
    ) {
        let again = endpoint.read_turn + 1 >= turn;
        if filled && (again || gro || endpoint.want > 1) {
            // The kernel charges a datagram with up to twice its bytes and more; be early.
            if endpoint.want >= 4 || bytes_max * 4 >= endpoint.receive_buffer as usize {
                self.grow(endpoint, counters);
            }
            endpoint.want = endpoint.want.saturating_mul(4).min(self.batch);
        } else if !filled {
            endpoint.want = (endpoint.want / 2).max(1);
        }
    }

    #[cold]
    fn grow(&mut self, endpoint: &mut Endpoint, counters: &ReceiveCounters) {
        let was_charged = endpoint.is_charged();
        match endpoint.grow_receive_buffer(self.buffer_max) {
            Some(true) => counters.buffers_grown.add(1),
            Some(false) => counters.buffers_denied.add(1),
            None => {}
        }
        if endpoint.is_charged() && !was_charged {
            self.grown.add(endpoint.id);
        }
    }
}

fn narrow32(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn note_failure(counters: &ReceiveCounters, errno: Errno) {
    match errno {
        Errno::AGAIN => counters.would_block.add(1),
        _ => counters.failures.add(1),
    }
}

#[cfg(test)]
mod tests;
