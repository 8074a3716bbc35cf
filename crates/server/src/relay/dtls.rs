//! Clients that come by DTLS: their records on the way in, and what is sealed on the way out.
//!
//! What records hold is handled as datagrams of their own: consecutive messages of one channel and size form a train, and so do the records
//! that stand for a train of a peer. What DTLS says by itself is counted as begun here, so that the sum stays exact.

use std::time::{Duration, Instant};

use turnbuckle_datapath::{EndpointId, Received, Run, SendQueue};
use turnbuckle_engine::{ClientTuple, DropReason};
use turnbuckle_wire::{Demux, classify};

use super::{Relay, Segments};
use crate::counters::{CloseReason, ShardCounters};
use crate::dtls::{Address, Arrival, Dtls, Plain};

/// Time that a turn may spend on handshakes: one with a 2048-bit RSA key takes about as much, one with an ECDSA key a fifth.
const HANDSHAKE_BUDGET: Duration = Duration::from_micros(500);
/// Steps of the timer wheel per turn.
const TIMEOUTS_PER_TURN: u32 = 256;
/// A record of what DTLS carries.
const APPLICATION_DATA: u8 = 23;
/// Zero bytes behind a message.
const PADDING: [u8; 3] = [0; 3];

impl Relay {
    /// Takes the records that begin at `start`, in datagrams of `segment` bytes. Returns where something else begins.
    pub(super) fn dtls_received(
        &mut self,
        address: Address,
        (bytes, segment): (&[u8], usize),
        start: usize,
        tx: &mut SendQueue,
    ) -> usize {
        let Some(dtls) = &mut self.dtls else {
            self.counters.dropped(DropReason::ServiceDisabled, 1);
            return bytes.len().min(start + segment);
        };
        let destination = address.destination();
        let mut plain = std::mem::take(&mut self.dtls_plain);
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
            match dtls.received(self.now.time, address, datagram, &mut plain) {
                Arrival::Messages(client, count) => {
                    from = Some(client);
                    self.counters.begun.add(count as u64 - 1);
                }
                Arrival::Dropped(reason) => self.counters.dropped(reason, 1),
                Arrival::Answered if !self.engine.is_possible_source(destination) => {
                    self.counters.dropped(DropReason::SourceInvalid, 1);
                }
                Arrival::Answered => {
                    self.counters.client_queued.add(1);
                    for datagram in dtls.written() {
                        let listener = EndpointId::from_u32(address.listener.0);
                        tx.reply(listener, destination, datagram);
                    }
                    continue;
                }
                Arrival::Control => self.counters.dropped(DropReason::DtlsControl, 1),
            }
            say(dtls, &self.counters, address, tx);
        }
        if let Some(client) = from {
            self.dtls_messages(client, &plain, tx);
        }
        self.dtls_plain = plain;
        self.dtls_ended(tx);
        end
    }

    /// Handles what a client's records held.
    fn dtls_messages(&mut self, client: ClientTuple, plain: &Plain, tx: &mut SendQueue) {
        let has_allocation =
            self.engine.client(&client).is_some() || self.roaming.has_home(&client);
        if let Some(dtls) = &mut self.dtls {
            dtls.allocated(self.now.time, client.connection, has_allocation);
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
            let allocation = self.engine.client(&client);
            while start < end {
                start = self.message(client, allocation, &segments, start, tx);
            }
        }
    }

    /// Queues relayed data to a client of DTLS: each datagram holds a header, one payload of `message`, and so many zero bytes.
    pub(super) fn seal_to_client(
        &mut self,
        client: ClientTuple,
        message: &Received<'_>,
        run: Run,
        (header, trailer): (&[u8], u8),
        tx: &mut SendQueue,
    ) {
        let datagrams = run.count as u64;
        let Some(dtls) = &mut self.dtls else {
            return self.counters.dropped(DropReason::SocketClosed, datagrams);
        };
        dtls.begin();
        let trailer = &PADDING[..usize::from(trailer).min(PADDING.len())];
        for index in 0..run.count {
            let start = run.start + index * run.stride;
            let is_last = index + 1 == run.count;
            let len = if is_last { run.last_len } else { run.len };
            let payload = &message.bytes[start..start + len];
            match dtls.seal(client.connection, [header, payload, trailer]) {
                Ok(()) => self.counters.client_queued.add(1),
                Err(reason) => self.counters.dropped(reason, 1),
            }
        }
        // Records of equal messages are equally long, as the datagrams of a train have to be.
        if let Some((sealed, segment)) = dtls.sealed()
            && let Some(destination) = dtls.destination(client.connection)
        {
            let listener = EndpointId::from_u32(client.listener.0);
            tx.send(listener, destination, sealed, segment);
        }
    }

    /// Does what timers are about, and then works on handshakes for as long as a turn may.
    pub(super) fn work_on_dtls(&mut self, tx: &mut SendQueue) {
        let Some(dtls) = &mut self.dtls else {
            return;
        };
        let mut budget = TIMEOUTS_PER_TURN;
        let (engine, roaming) = (&self.engine, &self.roaming);
        while let Some(address) = dtls.pop_due(self.now.time, &mut budget, |client| {
            engine.client(client).is_some() || roaming.has_home(client)
        }) {
            say(dtls, &self.counters, address, tx);
        }
        let began = Instant::now();
        while let Some(dtls) = self.dtls.as_mut().filter(|dtls| dtls.has_work()) {
            let mut plain = std::mem::take(&mut self.dtls_plain);
            plain.clear();
            let (engine, roaming) = (&self.engine, &self.roaming);
            let worked = dtls.shake_hands(self.now.time, &mut plain, |client| {
                engine.client(client).is_some() || roaming.has_home(client)
            });
            if let Some((address, arrival)) = worked {
                say(dtls, &self.counters, address, tx);
                if let Arrival::Messages(client, count) = arrival {
                    self.counters.begun.add(count as u64);
                    self.dtls_messages(client, &plain, tx);
                }
            }
            self.dtls_plain = plain;
            if began.elapsed() >= HANDSHAKE_BUDGET {
                break;
            }
        }
        self.dtls_ended(tx);
    }

    /// Ends all sessions, because the relay ends.
    pub(crate) fn stop_dtls(&mut self, tx: &mut SendQueue) {
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
    fn dtls_ended(&mut self, tx: &mut SendQueue) {
        let mut any = false;
        while let Some(client) = self.dtls.as_mut().and_then(|dtls| dtls.pop_ended()) {
            self.tell_disconnected(&client, true);
            // guard: V-42-session-end
            self.engine.disconnected(self.now, &client);
            self.roamer_gone(&client);
            any = true;
        }
        if any {
            self.carry_out_commands(tx);
        }
    }
}

/// Queues an answer of the engine to a client of DTLS.
pub(super) fn seal_reply(
    dtls: Option<&mut Dtls>,
    counters: &ShardCounters,
    to: ClientTuple,
    bytes: &[u8],
    tx: &mut SendQueue,
) {
    let Some(dtls) = dtls else {
        return counters.dropped(DropReason::SocketClosed, 1);
    };
    dtls.begin();
    match dtls.seal(to.connection, [bytes, &[], &[]]) {
        Ok(()) => counters.client_queued.add(1),
        // The client is gone.
        Err(reason) => return counters.dropped(reason, 1),
    }
    if let Some((sealed, _)) = dtls.sealed()
        && let Some(destination) = dtls.destination(to.connection)
    {
        tx.reply(EndpointId::from_u32(to.listener.0), destination, sealed);
    }
}

/// Queues what DTLS has to say itself.
fn say(dtls: &Dtls, counters: &ShardCounters, address: Address, tx: &mut SendQueue) {
    let listener = EndpointId::from_u32(address.listener.0);
    for datagram in dtls.written() {
        counters.begun.add(1);
        counters.client_queued.add(1);
        tx.reply(listener, address.destination(), datagram);
    }
}
