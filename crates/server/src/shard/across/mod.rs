//! Passes messages and connections between shards, for clients whose 5-tuple and allocation belong to different shards.
//!
//! The kernel assigns a client's new 5-tuple to any shard. That shard is the client's *ingress*. The shard that has its allocation is its *home*
//! (RFC 8016). [`roaming`] keeps the ingress and home of each client. [`connection`] is a connection that moves. [`mailbox`] is the queue of a
//! shard.

pub(crate) mod connection;
pub(crate) mod mailbox;
pub(in crate::shard) mod message;
pub(in crate::shard) mod roaming;

use std::sync::Arc;

use turnbuckle_datapath::{StreamId, Waker};
use turnbuckle_engine::{ClientTuple, Handover};

use self::connection::{LeavingConnection, MovedConnection};
use self::mailbox::Mailbox;
use self::roaming::Roaming;

/// Holds what one shard exchanges with the others.
#[derive(Default)]
pub(in crate::shard) struct Across {
    pub(super) roaming: Roaming,
    /// The mailboxes of all shards, in their order.
    pub(super) mailboxes: Arc<[Mailbox]>,
    /// Connections that leave for another shard after the next turn.
    leaving: Vec<LeavingConnection>,
    /// Connections of the turn before. Their last responses have been sent.
    ready: Vec<LeavingConnection>,
    /// Connections from other shards.
    pub(super) arrived: Vec<MovedConnection>,
    /// Datagrams of QUIC from other shards, with their senders.
    pub(super) quic_arrived: Vec<(ClientTuple, Vec<u8>)>,
}

impl Across {
    /// Connects shard number `index` to the others, of which each has a mailbox.
    pub(super) fn connect(&mut self, index: usize, mailboxes: Arc<[Mailbox]>, waker: Waker) {
        self.roaming = Roaming::new(index, mailboxes.len());
        if let Some(mailbox) = mailboxes.get(index) {
            mailbox.open(waker);
        }
        self.mailboxes = mailboxes;
    }

    /// Returns whether the allocation of a client who comes here is elsewhere.
    #[inline]
    pub(in crate::shard) fn has_home(&self, client: &ClientTuple) -> bool {
        self.roaming.has_home(client)
    }

    /// Returns whether a client with an allocation here comes to another shard.
    #[inline]
    pub(in crate::shard) fn has_ingress(&self, client: &ClientTuple) -> bool {
        self.roaming.has_ingress(client)
    }

    /// Hands one message to the client's ingress. Returns whether there is one.
    pub(super) fn send_to_ingress(&mut self, client: &ClientTuple, bytes: Vec<u8>) -> bool {
        self.roaming.send_to_ingress(client, bytes)
    }

    /// Returns whether there is something to do in the next turn, which therefore begins at once.
    pub(super) fn has_work(&self) -> bool {
        self.has_connections() || self.roaming.has_work()
    }

    /// Returns whether connections come, or are about to go.
    pub(in crate::shard) fn has_connections(&self) -> bool {
        !(self.arrived.is_empty() && self.ready.is_empty() && self.leaving.is_empty())
    }

    /// Returns how many connections are about to go.
    pub(super) fn leaving(&self) -> usize {
        self.leaving.len() + self.ready.len()
    }

    /// Has a connection go to another shard, one turn from now: by then everything that is queued for it has been handed to the kernel.
    pub(super) fn leave(&mut self, stream: StreamId, handover: Box<Handover>) {
        self.leaving.push(LeavingConnection {
            stream,
            handover,
            rest: Vec::new(),
        });
    }

    /// Keeps what came behind the request of a connection that is about to go. Returns whether it is.
    pub(in crate::shard) fn leaves_with(&mut self, stream: Option<StreamId>, rest: &[u8]) -> bool {
        match self.leaving.last_mut() {
            Some(leaving) if Some(leaving.stream) == stream => {
                leaving.rest.extend_from_slice(rest);
                true
            }
            _ => false,
        }
    }

    /// Takes the connections that can go now, and has those of this turn go after the next.
    pub(in crate::shard) fn take_ready(&mut self) -> Vec<LeavingConnection> {
        std::mem::replace(&mut self.ready, std::mem::take(&mut self.leaving))
    }

    /// Takes the connections that came.
    pub(in crate::shard) fn take_arrived(&mut self) -> Vec<MovedConnection> {
        std::mem::take(&mut self.arrived)
    }

    /// Takes the datagrams of QUIC that came.
    pub(in crate::shard) fn take_quic(&mut self) -> Vec<(ClientTuple, Vec<u8>)> {
        std::mem::take(&mut self.quic_arrived)
    }

    /// Puts a connection into the mailbox of a shard, or gives it back if there is no room or no such shard.
    pub(in crate::shard) fn offer(
        &self,
        shard: usize,
        connection: MovedConnection,
    ) -> Option<MovedConnection> {
        match self.mailboxes.get(shard) {
            None => Some(connection),
            Some(mailbox) => mailbox.offer(connection),
        }
    }
}
