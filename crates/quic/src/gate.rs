//! Where datagrams wait that have proven nothing, and who need not wait.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use bytes::BytesMut;

use crate::settings::Limits;
use crate::transmit::Via;

/// Decides what strangers get: those who have not shown that they receive what is sent to their address.
pub trait Strangers {
    /// Returns whether there is time to deal with another waiting datagram in this turn.
    fn has_time(&mut self) -> bool;

    /// Returns whether `answer_len` bytes may be sent to `from`, from where a datagram of `received_len` bytes came. If so they are charged.
    fn admits(&mut self, from: IpAddr, received_len: usize, answer_len: usize) -> bool;
}

/// A datagram that waits.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) from: SocketAddr,
    pub(crate) via: Via,
    pub(crate) datagram: BytesMut,
}

/// A queue with bounds.
#[derive(Debug)]
pub(crate) struct Gate {
    waiting: VecDeque<Waiting>,
    bytes: usize,
    datagrams_max: usize,
    bytes_max: usize,
}

impl Gate {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            waiting: VecDeque::new(),
            bytes: 0,
            datagrams_max: limits.waiting,
            bytes_max: limits.waiting_bytes,
        }
    }

    /// Returns whether there is room for a datagram.
    pub(crate) fn has_room(&self, len: usize) -> bool {
        self.waiting.len() < self.datagrams_max && self.bytes + len <= self.bytes_max
    }

    /// Has a datagram wait. The caller has asked whether there is room.
    pub(crate) fn push(&mut self, waiting: Waiting) {
        self.bytes += waiting.datagram.len();
        self.waiting.push_back(waiting);
    }

    pub(crate) fn pop(&mut self) -> Option<Waiting> {
        let waiting = self.waiting.pop_front()?;
        self.bytes -= waiting.datagram.len();
        Some(waiting)
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }
}

/// The addresses of connections whose handshake is under way. Each has been proven, by a Retry token or because this side began the connection.
///
/// Their Initial packets do not wait: behind the last of them, in the same message, comes data, which the connection does not take before the
/// handshake is done.
#[derive(Debug, Default)]
pub(crate) struct Handshakes {
    counts: HashMap<SocketAddr, u32>,
}

impl Handshakes {
    pub(crate) fn begin(&mut self, from: SocketAddr) {
        *self.counts.entry(from).or_default() += 1;
    }

    pub(crate) fn end(&mut self, from: SocketAddr) {
        if let Some(count) = self.counts.get_mut(&from) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&from);
            }
        }
    }

    #[inline]
    pub(crate) fn has(&self, from: SocketAddr) -> bool {
        !self.counts.is_empty() && self.counts.contains_key(&from)
    }
}
