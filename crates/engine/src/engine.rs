//! The engine: its entry points and the dispatch by method.

use core::net::SocketAddr;
use std::collections::VecDeque;
use std::sync::Arc;

use crate::change::Change;
use crate::command::{ClientRoute, Command, IcmpError, Outcome, PeerRoute, RelayOpenError};
use crate::commons::Commons;
use crate::config::Config;
use crate::drop_reason::DropReason;
use crate::id::{AllocationId, ClientTuple, Endpoint, RelayHandle, RelayRequest};
use crate::random::Random;
use crate::time::{Now, Time};
use crate::wire_types::TransactionId;

/// All allocations of one thread, and the rules for them.
#[derive(Debug)]
pub struct Engine<R> {
    config: Arc<Config>,
    commons: Arc<Commons>,
    random: R,
    listeners: Vec<(Endpoint, SocketAddr)>,
    changes: VecDeque<Change>,
}

/// Live counts, for invariants and metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Allocations.
    pub allocations: usize,
    /// Allocations that wait for a relay socket.
    pub pending: usize,
}

impl<R: Random> Engine<R> {
    /// An engine without listeners and allocations.
    pub fn new(config: Arc<Config>, commons: Arc<Commons>, random: R) -> Self {
        Self {
            config,
            commons,
            random,
            listeners: Vec::new(),
            changes: VecDeque::new(),
        }
    }

    /// Makes a listener known: its name and the address clients reach it at.
    pub fn add_listener(&mut self, endpoint: Endpoint, local: SocketAddr) {
        self.listeners.push((endpoint, local));
    }

    /// The allocation of a client: the one hash lookup of each received message.
    pub fn client(&self, _client: &ClientTuple) -> Option<AllocationId> {
        None
    }

    /// Routes a train of `datagrams` channel messages of one channel with `bytes` bytes of payload in all (RFC 8656 §12.6).
    ///
    /// `channel` is the number as it stands in the message. The traffic is counted here.
    pub fn route_channel_data(
        &mut self,
        _now: Time,
        _allocation: AllocationId,
        _channel: u16,
        _datagrams: u32,
        _bytes: u64,
    ) -> Result<PeerRoute, DropReason> {
        Err(DropReason::NoAllocation)
    }

    /// Routes a train of `datagrams` datagrams from one peer with `bytes` bytes in all (RFC 8656 §11.3).
    ///
    /// `peer` is the source as the socket saw it. The traffic is counted here.
    pub fn route_from_peer(
        &mut self,
        _now: Time,
        _relay: RelayHandle,
        _peer: SocketAddr,
        _datagrams: u32,
        _bytes: u64,
    ) -> Result<ClientRoute, DropReason> {
        Err(DropReason::RelayClosed)
    }

    /// A fresh transaction id, for a Data indication.
    pub fn transaction_id(&mut self) -> TransactionId {
        let mut bytes = [0; 12];
        self.random.fill(&mut bytes);
        TransactionId(bytes)
    }

    /// Handles one STUN message; `bytes` is the whole datagram.
    pub fn handle_stun(&mut self, _now: Now, _from: ClientTuple, _bytes: &[u8]) -> Outcome {
        Outcome::Dropped(DropReason::ServiceDisabled)
    }

    /// Handles an ICMP error that arrived at a relay socket (RFC 8656 §11.5).
    pub fn handle_icmp(&mut self, _now: Now, _relay: RelayHandle, _error: IcmpError) -> Outcome {
        Outcome::Dropped(DropReason::IcmpNotRelayed)
    }

    /// Takes the host's answer to [`Command::OpenRelay`].
    pub fn relay_opened(
        &mut self,
        _now: Now,
        _request: RelayRequest,
        _result: Result<Endpoint, RelayOpenError>,
    ) {
    }

    /// When [`Engine::handle_timeout`] wants to be called next.
    pub fn next_timeout(&self) -> Option<Time> {
        None
    }

    /// Ends what has run out. The work of one call is bounded; while more is due, [`Engine::next_timeout`] stays in the past.
    pub fn handle_timeout(&mut self, _now: Now) {}

    /// Hands every queued command to `handle`, in order.
    pub fn with_commands(&mut self, _handle: impl FnMut(Command<'_>)) {}

    /// The next change of durable state, oldest first.
    pub fn poll_change(&mut self) -> Option<Change> {
        self.changes.pop_front()
    }

    /// An engine that behaves as the one whose changes these are.
    ///
    /// `endpoint_of` names the socket that is bound to a relay address; an allocation whose sockets are gone is left out.
    pub fn rebuild(
        config: Arc<Config>,
        commons: Arc<Commons>,
        random: R,
        _now: Now,
        listeners: impl IntoIterator<Item = (Endpoint, SocketAddr)>,
        _changes: impl IntoIterator<Item = Change>,
        _endpoint_of: impl FnMut(SocketAddr) -> Option<Endpoint>,
    ) -> Self {
        let mut engine = Self::new(config, commons, random);
        engine.listeners.extend(listeners);
        engine
    }

    /// Live counts.
    pub fn statistics(&self) -> Statistics {
        Statistics::default()
    }
}
