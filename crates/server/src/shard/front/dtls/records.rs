//! The front of clients by DTLS: their records on the way in, and what is sealed on the way out.
//!
//! What records hold is handled as datagrams of their own: consecutive messages of one channel and size form a train, and so do the records
//! that stand for a train of a peer. What DTLS says by itself is counted as begun here, so that the sum stays exact.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use turnbuckle_datapath::{Received, Run, SendQueue};
use turnbuckle_engine::{ClientTuple, Endpoint, Time, Transport};
use turnbuckle_wire::{Demux, classify};

use super::{Address, Arrival, Dtls, DtlsLimits, DtlsService, Plain};
use crate::counters::{CloseReason, DtlsDrop, ShardCounters};
use crate::log::Seal;
use crate::shard::front::{Destination, Front, Wrapping};
use crate::shard::hub::Hub;
use crate::shard::name;
use crate::shard::train::{Segments, payloads};

/// Time that a turn may spend on handshakes: one with a 2048-bit RSA key takes about as much, one with an ECDSA key a fifth.
const HANDSHAKE_BUDGET: Duration = Duration::from_micros(500);
/// Steps of the timer wheel per turn.
const TIMEOUTS_PER_TURN: u32 = 256;
/// A record of what DTLS carries.
const APPLICATION_DATA: u8 = 23;
/// Zero bytes behind a message.
const PADDING: [u8; 3] = [0; 3];

/// The front of clients by DTLS.
pub(in crate::shard) struct DtlsFront {
    counters: Arc<ShardCounters>,
    /// The sessions; `None` refuses DTLS.
    dtls: Option<Box<Dtls>>,
    /// What came out of records; kept for its memory.
    plain: Plain,
}

impl DtlsFront {
    pub(in crate::shard) fn new(
        service: Option<DtlsService>,
        counters: Arc<ShardCounters>,
    ) -> Self {
        let dtls = service.map(|service| Box::new(Dtls::new(service, Arc::clone(&counters))));
        Self {
            counters,
            dtls,
            plain: Plain::default(),
        }
    }

    /// Sets other limits.
    pub(in crate::shard) fn set_limits(&mut self, limits: DtlsLimits) {
        if let Some(dtls) = &mut self.dtls {
            dtls.set_limits(limits);
        }
    }

    /// Makes a listener known.
    pub(in crate::shard) fn add_listener(&mut self, listener: Endpoint, local: SocketAddr) {
        if let Some(dtls) = &mut self.dtls {
            dtls.add_listener(listener, local);
        }
    }

    /// Returns whether handshakes have used up the time of a turn.
    pub(in crate::shard) fn has_work(&self) -> bool {
        self.dtls.as_ref().is_some_and(|dtls| dtls.has_work())
    }

    /// Returns when [`work`](Self::work) has something to do.
    pub(in crate::shard) fn next_timeout(&self) -> Option<Time> {
        self.dtls.as_ref()?.next_timeout()
    }

    /// Takes the records that begin at `start`, in datagrams of `segment` bytes. Returns where something else begins.
    pub(in crate::shard) fn received(
        &mut self,
        address: Address,
        (bytes, segment): (&[u8], usize),
        start: usize,
        hub: &mut Hub,
        tx: &mut SendQueue,
    ) -> usize {
        let Some(dtls) = &mut self.dtls else {
            self.counters.dropped(DtlsDrop::ServiceDisabled, 1);
            return bytes.len().min(start + segment);
        };
        let destination = address.destination();
        let mut plain = std::mem::take(&mut self.plain);
        plain.clear();
        let mut from = None;
        let mut end = start;
        while end < bytes.len() && classify(bytes[end]) == Demux::Dtls {
            // What begins or ends a session comes after the messages in front of it.
            if from.is_some() && bytes[end] != APPLICATION_DATA {
                break;
            }
            let next = bytes.len().min(end + segment);
            let datagram = &bytes[end..next];
            end = next;
            match dtls.received(hub.now.time, address, datagram, &mut plain) {
                Arrival::Messages(client, count) => {
                    from = Some(client);
                    self.counters.datagrams.begun.add(count as u64 - 1);
                }
                Arrival::Dropped(reason) => self.counters.dropped(reason, 1),
                Arrival::Answered if !hub.engine.is_possible_source(destination) => {
                    self.counters.dropped(DtlsDrop::SourceInvalid, 1);
                }
                Arrival::Answered => {
                    self.counters.datagrams.client_out.queued(1);
                    for datagram in dtls.written() {
                        let listener = name::datagrams(address.listener);
                        tx.reply(listener, destination, datagram);
                    }
                    continue;
                }
                Arrival::Control => self.counters.dropped(DtlsDrop::Control, 1),
            }
            say(dtls, &self.counters, address, tx);
        }
        if let Some(client) = from {
            self.messages(client, &plain, hub, tx);
        }
        self.plain = plain;
        self.ended(hub, tx);
        end
    }

    /// Handles what a client's records held.
    fn messages(&mut self, client: ClientTuple, plain: &Plain, hub: &mut Hub, tx: &mut SendQueue) {
        // guard: V-42-held, V-42-proof
        let has_allocation = hub.has_allocation(&client);
        if let Some(dtls) = &mut self.dtls {
            dtls.allocated(hub.now.time, client.connection, has_allocation);
        }
        let staged = tx.stage(&plain.bytes);
        let mut start = 0;
        let mut ends = plain.ends.iter().copied().peekable();
        while let Some(first) = ends.next() {
            let segment = first - start;
            let mut end = first;
            // Messages of one length lie as the segments of a received buffer do; the last may be shorter.
            while let Some(next) = ends.next_if(|next| *next - end <= segment) {
                let is_last = next - end < segment;
                end = next;
                if is_last {
                    break;
                }
            }
            let segments = Segments {
                payload: &staged,
                bytes: &plain.bytes[..end],
                segment,
            };
            let allocation = hub.engine.client(&client);
            while start < end {
                start = hub.message(client, allocation, &segments, start, self, tx);
            }
        }
    }

    /// Does what timers are about, and then works on handshakes for as long as a turn may.
    pub(in crate::shard) fn work(&mut self, hub: &mut Hub, tx: &mut SendQueue) {
        let Some(dtls) = &mut self.dtls else {
            return;
        };
        let mut budget = TIMEOUTS_PER_TURN;
        while let Some(address) = dtls.pop_due(hub.now.time, &mut budget, |client| {
            hub.has_allocation(client)
        }) {
            say(dtls, &self.counters, address, tx);
        }
        let began = Instant::now();
        while let Some(dtls) = self.dtls.as_mut().filter(|dtls| dtls.has_work()) {
            let mut plain = std::mem::take(&mut self.plain);
            plain.clear();
            let worked = dtls.shake_hands(hub.now.time, &mut plain, |client| {
                hub.has_allocation(client)
            });
            if let Some((address, arrival)) = worked {
                say(dtls, &self.counters, address, tx);
                if let Arrival::Messages(client, count) = arrival {
                    self.counters.datagrams.begun.add(count as u64);
                    self.messages(client, &plain, hub, tx);
                }
            }
            self.plain = plain;
            if began.elapsed() >= HANDSHAKE_BUDGET {
                break;
            }
        }
        self.ended(hub, tx);
    }

    /// Ends all sessions, because the relay ends.
    pub(in crate::shard) fn stop(&mut self, tx: &mut SendQueue) {
        let Some(dtls) = &mut self.dtls else {
            return;
        };
        for name in dtls.names() {
            if let Some(address) = dtls.close(name, CloseReason::Stopped) {
                say(dtls, &self.counters, address, tx);
            }
        }
    }

    /// Ends what clients had whose session has ended.
    fn ended(&mut self, hub: &mut Hub, tx: &mut SendQueue) {
        let mut any = false;
        while let Some(client) = self.dtls.as_mut().and_then(|dtls| dtls.pop_ended()) {
            hub.disconnected(&client, true);
            any = true;
        }
        if any {
            hub.carry_out_commands(self, tx);
        }
    }
}

impl Front for DtlsFront {
    fn serves(&self, transport: Transport) -> bool {
        transport == Transport::Dtls
    }

    fn has_client(&self, client: &ClientTuple) -> bool {
        let dtls = self.dtls.as_ref();
        dtls.is_some_and(|dtls| dtls.has_client(client))
    }

    fn forward(
        &mut self,
        to: Destination,
        message: &Received<'_>,
        run: Run,
        wrapping: Wrapping<'_>,
        tx: &mut SendQueue,
    ) {
        let client = to.client;
        let Some(dtls) = &mut self.dtls else {
            let datagrams = run.count as u64;
            return self.counters.dropped(DtlsDrop::SocketClosed, datagrams);
        };
        dtls.begin();
        let padding = &PADDING[..usize::from(wrapping.padding).min(PADDING.len())];
        for payload in payloads(message.bytes, run) {
            match dtls.seal(client.connection, [wrapping.header, payload, padding]) {
                Ok(()) => self.counters.datagrams.client_out.queued(1),
                Err(reason) => self.counters.dropped(reason, 1),
            }
        }
        // Records of equal messages are equally long, as the datagrams of a train have to be.
        if let Some((sealed, segment)) = dtls.sealed()
            && let Some(destination) = dtls.destination(client.connection)
        {
            let listener = name::datagrams(client.listener);
            tx.send(listener, destination, sealed, segment);
        }
    }

    fn reply(&mut self, to: ClientTuple, answer: &[u8], tx: &mut SendQueue) {
        let Some(dtls) = &mut self.dtls else {
            return self.counters.dropped(DtlsDrop::SocketClosed, 1);
        };
        dtls.begin();
        match dtls.seal(to.connection, [answer, &[], &[]]) {
            Ok(()) => self.counters.datagrams.client_out.queued(1),
            // The client is gone.
            Err(reason) => return self.counters.dropped(reason, 1),
        }
        if let Some((sealed, _)) = dtls.sealed()
            && let Some(destination) = dtls.destination(to.connection)
        {
            tx.reply(name::datagrams(to.listener), destination, sealed);
        }
    }

    fn protection(&self, client: &ClientTuple) -> Option<Seal> {
        self.dtls.as_ref()?.seal_of(client.connection)
    }
}

/// Queues what DTLS has to say itself.
fn say(dtls: &Dtls, counters: &ShardCounters, address: Address, tx: &mut SendQueue) {
    let listener = name::datagrams(address.listener);
    for datagram in dtls.written() {
        counters.datagrams.begun.add(1);
        counters.datagrams.client_out.queued(1);
        tx.reply(listener, address.destination(), datagram);
    }
}
