//! The parts of an allocation that let it move to another 5-tuple (RFC 8016).

use core::time::Duration;

use turnbuckle_wire::TransactionId;

use crate::id::ClientTuple;
use crate::time::Time;

/// How long a repeated resume request gets the same answer: a client repeats it for 39.5 s (RFC 8489 §6.2.1), and RFC 8016 §3.2.2
/// asks for 30 s.
const RETRANSMISSION: Duration = Duration::from_secs(40);

/// The state of an allocation that was requested with MOBILITY-TICKET.
#[derive(Debug)]
pub(crate) struct Mobility {
    /// The 5-tuple that it was created on; `None` for a connection of a process that is gone.
    pub(crate) first: Option<ClientTuple>,
    /// The number of the current ticket.
    pub(crate) number: u32,
    /// A path that was resumed on and has carried no data yet.
    pub(crate) new_path: Option<ClientTuple>,
    /// The connection is gone; the next resume is the path at once.
    pub(crate) is_parked: bool,
    /// The last resume, so that its retransmission is recognised.
    pub(crate) resumed: Option<LastResume>,
}

/// A resume that was answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastResume {
    pub(crate) client: ClientTuple,
    pub(crate) transaction: TransactionId,
    /// Up to when a retransmission is recognised.
    pub(crate) until: Time,
}

impl LastResume {
    pub(crate) fn new(client: ClientTuple, transaction: TransactionId, now: Time) -> Self {
        Self {
            client,
            transaction,
            until: now + RETRANSMISSION,
        }
    }
}

impl Mobility {
    pub(crate) fn new(first: ClientTuple) -> Self {
        Self {
            first: Some(first),
            number: 1,
            new_path: None,
            is_parked: false,
            resumed: None,
        }
    }
}
