//! One pending request: when it is sent, and when it fails.

use turnbuckle_wire::{Method, TransactionId};

use crate::time::{Nanos, SECOND};

/// RFC 8489 §6.2.1: RTO, Rc, Rm.
const RTO: Nanos = SECOND / 2;
const SENDS_MAX: u32 = 7;
const LAST_WAIT: Nanos = 16 * RTO;
/// RFC 8489 §6.2.2, Ti: a request over a connection is sent once.
const RELIABLE_WAIT: Nanos = 39_500_000_000;

/// A pending request.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) method: Method,
    pub(crate) transaction: TransactionId,
    bytes: Vec<u8>,
    /// Whether it goes over a connection, which retransmits by itself.
    is_reliable: bool,
    sends: u32,
    due: Nanos,
    /// How often the server has requested another nonce.
    pub(crate) challenges: u32,
}

/// The next step of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing.
    Wait,
    /// Its bytes are to be sent.
    Send,
    /// No answer came to any repetition.
    TimedOut,
}

impl Request {
    /// Returns a request that is to be sent at once.
    pub(crate) fn new(
        now: Nanos,
        method: Method,
        transaction: TransactionId,
        bytes: Vec<u8>,
        is_reliable: bool,
    ) -> Self {
        Self {
            method,
            transaction,
            bytes,
            is_reliable,
            sends: 0,
            due: now,
            challenges: 0,
        }
    }

    /// Returns what is to be sent.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns when [`step`](Self::step) is to be called next.
    pub(crate) fn due(&self) -> Nanos {
        self.due
    }

    /// Sends the request, or sends it again, if its time has come.
    pub(crate) fn step(&mut self, now: Nanos) -> Step {
        let sends_max = if self.is_reliable { 1 } else { SENDS_MAX };
        if self.due > now {
            return Step::Wait;
        }
        if self.sends == sends_max {
            return Step::TimedOut;
        }
        self.sends += 1;
        self.due = now
            + if self.is_reliable {
                RELIABLE_WAIT
            } else if self.sends == SENDS_MAX {
                LAST_WAIT
            } else {
                RTO << (self.sends - 1)
            };
        Step::Send
    }
}
