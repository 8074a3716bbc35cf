//! The hub of a shard: the engine and the accounting, and the way of every message through them.
//!
//! How to read it: [`Hub::message`] gets what a front has found, one message or a *train*, a run of equal messages of one channel;
//! [`Hub::train`] asks the engine for the route once per train. [`Hub::peer_message`] is the mirror. No byte is copied on either way: what is
//! queued names a range of what was received. Everything that is not data goes to [`Hub::control`] (`control.rs`); what belongs to a client of another
//! shard goes there (`elsewhere.rs`). The hub knows clients by name, and reaches them through the [`Front`] that it is given.
//!
//! Invariant: each datagram is counted in once, and then exactly once as queued or under one reason.

mod control;
mod elsewhere;
pub(in crate::shard) mod wanted;

use std::net::SocketAddr;
use std::sync::Arc;

use turnbuckle_datapath::{Payload, Received, Run, SendQueue};
use turnbuckle_engine::{
    AllocationId, ClientTuple, ConnectionId, DropReason, Engine, Framing, Now, RelayHandle, Time,
};
use turnbuckle_wire::{ChannelData, DATA_INDICATION_HEADER_MAX, Demux, data_indication_header};

use self::wanted::{Late, SocketDue};
use super::across::Across;
use super::changes::Changes;
use super::front::{Destination, Front, Wrapping};
use super::name;
use super::parking::Parking;
use super::peer::tcp::table::Peers;
use super::sessions::Sessions;
use super::train::{
    Segments, Train, cut, equal_runs, len_u16, len_u32, padding, protocol, single_runs,
};
use crate::counters::{HubDrop, ShardCounters};
use crate::log::Log;
use crate::random::Randomness;

/// The engine of a shard with its accounting and its clock, and what waits to be carried out.
pub(in crate::shard) struct Hub {
    pub(in crate::shard) engine: Engine<Randomness>,
    /// The time of the turn.
    pub(in crate::shard) now: Now,
    pub(in crate::shard) counters: Arc<ShardCounters>,
    pub(in crate::shard) changes: Changes,
    pub(in crate::shard) across: Across,
    /// Peer data connections of TCP relays.
    pub(in crate::shard) peers: Peers,
    /// Requests that wait until the user database has been asked.
    pub(in crate::shard) parking: Parking,
    /// Sockets that the engine asked for or gave up, dealt with at the end of the turn.
    pub(in crate::shard) sockets_due: Vec<SocketDue>,
    /// Connections to be joined as soon as the engine's commands have been looked through.
    joins: Vec<(ConnectionId, ClientTuple)>,
    /// What clients of another front than the one at hand are to be told.
    late: Vec<Late>,
    /// Whether the next turn is due at once: something was ended between two turns, by other rules or an operator, which a turn carries through.
    is_due: bool,
}

impl Hub {
    /// Joins an engine without listeners with the counters of its shard.
    pub(in crate::shard) fn new(
        engine: Engine<Randomness>,
        now: Now,
        counters: Arc<ShardCounters>,
        log: Log,
        sessions: Sessions,
    ) -> Self {
        Self {
            engine,
            now,
            parking: Parking::new(now.time, Arc::clone(&counters)),
            counters,
            changes: Changes::new(log, sessions),
            across: Across::default(),
            peers: Peers::default(),
            sockets_due: Vec::new(),
            joins: Vec::new(),
            late: Vec::new(),
            is_due: false,
        }
    }

    /// Returns whether a client has an allocation, here or at another shard.
    #[inline]
    pub(in crate::shard) fn has_allocation(&self, client: &ClientTuple) -> bool {
        self.engine.client(client).is_some() || self.across.has_home(client)
    }

    /// Returns when the next turn has something to do by itself.
    pub(in crate::shard) fn next_timeout(&self) -> Option<Time> {
        if !self.sockets_due.is_empty()
            || !self.late.is_empty()
            || self.is_due
            || self.across.has_work()
        {
            // A connection ended during the last flush, and with it an allocation, or something was ended after the turn.
            return Some(self.now.time);
        }
        let due = self.engine.next_timeout().into_iter();
        due.chain(self.peers.next_reading())
            .chain(self.changes.next_timeout())
            .chain(self.parking.next_timeout())
            .min()
    }

    /// Handles the message or the train of a client that begins at `start`: answered, queued or dropped. Returns where it ends.
    #[inline]
    pub(in crate::shard) fn message<F: Front>(
        &mut self,
        client: ClientTuple,
        allocation: Option<AllocationId>,
        segments: &Segments<'_, impl Payload>,
        start: usize,
        front: &mut F,
        tx: &mut SendQueue,
    ) -> usize {
        let end = segments.bytes.len().min(start + segments.segment);
        if self.forwarded_to_home(client, &segments.bytes[start..end]) {
            return end;
        }
        match protocol(segments.bytes[start]) {
            Demux::ChannelData => {
                let allocation = self.sender_of_data(&client, allocation);
                match Train::at(segments.bytes, start, segments.segment) {
                    Ok(train) => {
                        self.train(allocation, &train, segments.payload, tx);
                        return train.end;
                    }
                    Err(reason) => self.counters.dropped(reason, 1),
                }
            }
            Demux::Stun => {
                let datagram = &segments.bytes[start..end];
                self.control(client, datagram, segments.payload, start, front, tx);
            }
            Demux::Dtls => self.counters.dropped(HubDrop::ServiceDisabled, 1),
            Demux::Quic | Demux::Reserved | Demux::Rtp | Demux::Zrtp => {
                self.counters.dropped(HubDrop::ProtocolUnknown, 1);
            }
        }
        end
    }

    /// Returns whose data this is: on a new path of an allocation, data makes it the only one (RFC 8016 §3.2.2).
    #[inline]
    pub(in crate::shard) fn sender_of_data(
        &mut self,
        client: &ClientTuple,
        allocation: Option<AllocationId>,
    ) -> Option<AllocationId> {
        if self.engine.has_new_paths() {
            self.engine.client_of_data(client, self.now)
        } else {
            allocation
        }
    }

    /// Routes a train of channel messages from a client to a peer, over any transport, and queues or drops it.
    #[inline]
    pub(in crate::shard) fn train(
        &mut self,
        allocation: Option<AllocationId>,
        train: &Train,
        payload: &impl Payload,
        tx: &mut SendQueue,
    ) {
        let count = len_u32(train.run.count);
        let routed = allocation.ok_or(DropReason::NoAllocation);
        let routed = routed.and_then(|allocation| {
            let (channel, bytes) = (train.channel, train.payload_bytes());
            self.engine
                .route_channel_data(self.now.time, allocation, channel, count, bytes)
        });
        match routed {
            Ok(route) => {
                let run = self.admitted(train.run, route.datagrams);
                self.counters.datagrams.peer_out.queued(run.count as u64);
                let (relay, to) = (name::datagrams(route.relay), route.peer.address());
                tx.forward(relay, to, payload, run, &[], 0);
            }
            Err(reason) => self.counters.dropped(reason, u64::from(count)),
        }
    }

    /// Routes a run of payloads from a tunnel's client to its peer, or of a bound tunnel to whom the client has named, and queues or drops it.
    #[inline]
    pub(in crate::shard) fn tunnelled(
        &mut self,
        tunnel: AllocationId,
        named: Option<SocketAddr>,
        run: Run,
        payload: &impl Payload,
        tx: &mut SendQueue,
    ) {
        let count = len_u32(run.count);
        let bytes = (run.len * run.count.saturating_sub(1) + run.last_len) as u64;
        let now = self.now.time;
        match self.engine.route_to_peer(now, tunnel, named, count, bytes) {
            Ok(route) => {
                let run = self.admitted(run, route.datagrams);
                self.counters.datagrams.peer_out.queued(run.count as u64);
                let (relay, to) = (name::datagrams(route.relay), route.peer.address());
                tx.forward(relay, to, payload, run, &[], 0);
            }
            Err(reason) => self.counters.dropped(reason, u64::from(count)),
        }
    }

    /// Returns the first `count` datagrams of a run; the others are beyond the rate of their allocation.
    #[inline]
    fn admitted(&self, run: Run, count: u32) -> Run {
        let (admitted, rest) = cut(run, count as usize);
        if rest > 0 {
            self.counters
                .dropped(DropReason::BandwidthExceeded, rest as u64);
        }
        admitted
    }

    /// Relays a message that came to a shared relay socket to the client whose peer has sent it.
    pub(in crate::shard) fn shared_message<F: Front>(
        &mut self,
        message: &Received<'_>,
        front: &mut F,
        tx: &mut SendQueue,
    ) {
        match self.engine.owner_of_peer(message.remote) {
            Ok(handle) => self.peer_message(handle, message, front, tx),
            Err(reason) => {
                let datagrams = message.segment_count() as u64;
                let counters = &self.counters.datagrams;
                counters.peer_in.add(datagrams);
                counters.peer_in_bytes.add(message.bytes.len() as u64);
                self.counters.dropped(reason, datagrams);
            }
        }
    }

    /// Relays a message from a peer to a client: checks the permission once per message, and puts a header in front of every segment.
    pub(in crate::shard) fn peer_message<F: Front>(
        &mut self,
        handle: RelayHandle,
        message: &Received<'_>,
        front: &mut F,
        tx: &mut SendQueue,
    ) {
        let (count, bytes) = (message.segment_count(), message.bytes.len() as u64);
        let datagrams = count as u64;
        self.counters.datagrams.peer_in.add(datagrams);
        self.counters.datagrams.peer_in_bytes.add(bytes);
        let (now, peer) = (self.now.time, message.remote);
        let routed = self
            .engine
            .route_from_peer(now, handle, peer, len_u32(count), bytes);
        let mut route = match routed {
            Ok(route) => route,
            Err(reason) => return self.counters.dropped(reason, datagrams),
        };
        let client = route.client;
        if let Framing::Bound { peer } = route.framing {
            if !front.wants(&client, peer) {
                return self.counters.dropped(HubDrop::NoContext, datagrams);
            }
            let (tunnel, train) = (handle.allocation(), len_u32(count));
            match self.engine.charge_to_client(now, tunnel, train, bytes) {
                Ok(admitted) => route.datagrams = admitted,
                Err(reason) => return self.counters.dropped(reason, datagrams),
            }
        }
        let remote = match self.across.has_ingress(&client) {
            true => Some(client.remote),
            false => front.data_address(&client, handle.allocation()),
        };
        let Some(remote) = remote else {
            return self.counters.dropped(HubDrop::SocketClosed, datagrams);
        };
        let (to, left) = (Destination { client, remote }, route.datagrams as usize);
        if left < count {
            self.counters
                .dropped(DropReason::BandwidthExceeded, (count - left) as u64);
        }
        self.forward_framed(to, message, route.framing, left, front, tx);
    }

    /// Queues the first `left` datagrams of a message for a client in the form that it gets them in.
    #[inline]
    fn forward_framed<F: Front>(
        &mut self,
        to: Destination,
        message: &Received<'_>,
        framing: Framing,
        mut left: usize,
        front: &mut F,
        tx: &mut SendQueue,
    ) {
        match framing {
            Framing::Channel(channel) => {
                // All segments but the last are equal, so they share one header; a shorter last one has its own.
                for run in equal_runs(message).into_iter().flatten() {
                    if left == 0 {
                        break;
                    }
                    let (run, _) = cut(run, left);
                    left -= run.count;
                    let header = &ChannelData::header(channel, len_u16(run.len));
                    // RFC 8656 §12.5: streams need padding.
                    let is_padded = to.client.transport.is_stream();
                    let padding = if is_padded { padding(run.len) } else { 0 };
                    let wrapping = Wrapping { header, padding };
                    self.forward_to_client(to, message, run, wrapping, front, tx);
                }
            }
            Framing::Tunnel | Framing::Bound { .. } => {
                let source = match framing {
                    Framing::Bound { peer } => Some(peer),
                    _ => None,
                };
                for run in equal_runs(message).into_iter().flatten() {
                    let (run, _) = cut(run, left);
                    left -= run.count;
                    if run.count > 0 && !front.forward_tunnelled(to, message, run, source, tx) {
                        self.counters
                            .dropped(HubDrop::SocketClosed, run.count as u64);
                    }
                }
            }
            Framing::DataIndication { peer } => {
                for run in single_runs(message).take(left) {
                    let mut header = [0; DATA_INDICATION_HEADER_MAX];
                    let (transaction, len) = (self.engine.transaction_id(), len_u16(run.len));
                    let header_len = data_indication_header(&mut header, transaction, peer, len);
                    let Some(header_len) = header_len else {
                        self.counters.dropped(HubDrop::DatagramTooLarge, 1);
                        continue;
                    };
                    let (header, padding) = (&header[..header_len], padding(run.len));
                    let wrapping = Wrapping { header, padding };
                    self.forward_to_client(to, message, run, wrapping, front, tx);
                }
            }
        }
    }

    /// Queues relayed data for a client, who comes here or to another shard.
    #[inline]
    fn forward_to_client<F: Front>(
        &mut self,
        to: Destination,
        message: &Received<'_>,
        run: Run,
        wrapping: Wrapping<'_>,
        front: &mut F,
        tx: &mut SendQueue,
    ) {
        if self.across.has_ingress(&to.client) {
            return self.data_to_ingress(&to.client, message, run, wrapping);
        }
        front.forward(to, message, run, wrapping, tx);
    }

    /// Has the next turn begin at once, because sessions were ended after this one: the journal, the counters and the kernel hear of it in a turn. A
    /// session with a socket of its own makes it due by the socket, which is to be closed; one on a shared socket has none.
    pub(in crate::shard) const fn ended_sessions(&mut self) {
        self.is_due = true;
    }

    /// Ends what the kernel relays that the rules forbid now. Who is to be told of it is in the next turn.
    pub(in crate::shard) fn rules_changed(&mut self) {
        self.is_due = true;
        // mutant: shards-leave-it-to-the-kernel
        self.changes.rules_changed(self.now.time, &mut self.engine);
    }

    /// Takes over what the engine has counted.
    pub(in crate::shard) fn count(&self) {
        let statistics = self.engine.statistics();
        self.counters
            .engine
            .allocations
            .set(statistics.allocations as u64);
        self.counters.engine.tunnels.set(statistics.tunnels as u64);
        self.counters
            .engine
            .requests_forgotten_early
            .set(statistics.tombstones_forgotten_early);
        let (attempts, ends) = self.engine.peer_ends();
        self.counters.set_peer_ends(attempts, ends);
    }
}

#[cfg(test)]
pub(in crate::shard) mod tests;
