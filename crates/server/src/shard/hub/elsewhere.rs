//! Hands over messages of clients whose allocation is at another shard, in both directions.
//!
//! Invariant: a message is counted in at the shard that received it from the network. It is counted as sent or dropped at the shard where its path
//! ends.

use turnbuckle_datapath::{Received, Run, SendQueue};
use turnbuckle_engine::ClientTuple;
use turnbuckle_wire::{Class, Message};

use super::Hub;
use crate::counters::{AcrossDrop, HubDrop, QuicDrop};
use crate::shard::across::message::{About, ClientAt};
use crate::shard::front::{Front, Wrapping};
use crate::shard::train::{Segments, payloads};

impl Hub {
    /// Takes the messages of this turn from the mailbox.
    pub(in crate::shard) fn collect(&mut self) {
        let across = &mut self.across;
        let Some(mailbox) = across.mailboxes.get(across.roaming.shard()) else {
            return;
        };
        let messages = &mut across.roaming.arrived;
        across.roaming.has_more = mailbox.take(messages, &mut across.arrived);
        let carried = messages.iter().filter(|message| message.carries());
        let taken = carried.count() + across.arrived.len();
        self.counters.across.handed_in.add(taken as u64);
    }

    /// Posts this turn's messages for other shards.
    pub(in crate::shard) fn post(&mut self) {
        let across = &mut self.across;
        for (mailbox, messages) in across.mailboxes.iter().zip(&mut across.roaming.outgoing) {
            if !messages.is_empty() {
                let carried = messages.iter().filter(|message| message.carries());
                let carried = carried.count() as u64;
                let refused = mailbox.post(messages);
                self.counters.across.handed_out.add(carried - refused);
                // mutant: shards-count-no-refused
                self.counters
                    .dropped(AcrossDrop::HandoverQueueFull, refused);
            }
        }
    }

    /// Posts the remaining messages when the shard ends, closes its mailbox, and counts what is lost.
    pub(in crate::shard) fn stop(&mut self) {
        self.changes.stop(self.now.time, &mut self.engine);
        self.post();
        if let Some(mailbox) = self.across.mailboxes.get(self.across.roaming.shard()) {
            self.counters
                .dropped(AcrossDrop::SocketClosed, mailbox.close());
        }
        let parked = self.parking.clear();
        self.counters.dropped(HubDrop::SocketClosed, parked);
        let leaving = self.across.leaving() as u64;
        self.counters.dropped(AcrossDrop::SocketClosed, leaving);
        let (attempts, ends) = self.engine.peer_ends();
        self.counters.set_peer_ends(attempts, ends);
    }

    /// Tells the other shards of all clients that have moved and are at home here.
    pub(in crate::shard) fn announce_roamers(&mut self) {
        let Self { engine, across, .. } = self;
        engine.each_roamer(|client| {
            if let Some(listener) = engine.listener_index(client.listener) {
                // guard: V-63-panic-home
                across.roaming.announce(client, listener);
            }
        });
    }

    /// Hands a client's message to its home if that is another shard. Returns whether it is.
    #[inline]
    pub(in crate::shard) fn forwarded_to_home(
        &mut self,
        client: ClientTuple,
        message: &[u8],
    ) -> bool {
        if !self.across.has_home(&client) {
            return false;
        }
        let home = self.across.roaming.home(&client);
        self.send_to_shard(home.unwrap_or(usize::MAX), client, message);
        true
    }

    /// Hands a client's message to a shard.
    pub(super) fn send_to_shard(&mut self, shard: usize, client: ClientTuple, message: &[u8]) {
        let roaming = &mut self.across.roaming;
        let listener = self.engine.listener_index(client.listener);
        let is_sent = listener.is_some_and(|listener| {
            roaming.send_from_client(shard, ClientAt { client, listener }, message)
        });
        if !is_sent {
            self.counters.dropped(AcrossDrop::HandoverQueueFull, 1);
        }
    }

    /// Hands a datagram of QUIC to the shard that its connection id names.
    pub(in crate::shard) fn hand_over(&mut self, shard: u8, client: ClientTuple, datagram: &[u8]) {
        let roaming = &mut self.across.roaming;
        let listener = self.engine.listener_index(client.listener);
        let is_sent = listener.is_some_and(|listener| {
            let about = About::Quic(datagram.to_vec());
            roaming.send(shard.into(), ClientAt { client, listener }, about)
        });
        if !is_sent {
            self.counters.dropped(QuicDrop::SourceInvalid, 1);
        }
    }

    /// Sends the notice of a closed client connection to every shard that got a message for the client.
    pub(in crate::shard) fn client_gone(&mut self, client: &ClientTuple) {
        let Self { engine, across, .. } = self;
        let listener = || engine.listener_index(client.listener);
        across.roaming.disconnected(client, listener);
    }

    /// Hands the datagrams of a peer to the ingress of the client they are for.
    pub(super) fn data_to_ingress(
        &mut self,
        client: &ClientTuple,
        message: &Received<'_>,
        run: Run,
        Wrapping { header, padding }: Wrapping<'_>,
    ) {
        for payload in payloads(message.bytes, run) {
            let mut bytes = Vec::with_capacity(header.len() + payload.len() + 3);
            bytes.extend_from_slice(header);
            bytes.extend_from_slice(payload);
            bytes.resize(bytes.len() + usize::from(padding), 0);
            if !self.across.send_to_ingress(client, bytes) {
                self.counters.dropped(AcrossDrop::HandoverQueueFull, 1);
            }
        }
    }

    /// Handles the messages from other shards. `front` reaches all clients.
    pub(in crate::shard) fn receive_from_shards<F: Front>(
        &mut self,
        front: &mut F,
        tx: &mut SendQueue,
    ) {
        let mut arrived = std::mem::take(&mut self.across.roaming.arrived);
        for message in arrived.drain(..) {
            let (from, body) = message.open();
            let Some((at, about)) = body else {
                for here in self.across.roaming.forget_shard(from) {
                    self.ingress_gone(&here, front, tx);
                }
                continue;
            };
            match about {
                About::Disconnected => {
                    if let Some(here) = self.named_here(at) {
                        self.ingress_gone(&here, front, tx);
                    }
                }
                About::FromClient(bytes) => self.message_of_ingress(from, at, &bytes, front, tx),
                About::IsHome(false) => {
                    if let Some(here) = self.named_here(at) {
                        self.across.roaming.forget_home(&here, from);
                    }
                }
                About::IsHome(true) => {
                    // Either shard may have given the listener another name since.
                    let Some(here) = self.named_here(at) else {
                        continue;
                    };
                    let is_free = front.has_client(&here) && self.engine.client(&here).is_none();
                    let home = is_free.then_some(from);
                    self.across.roaming.set_home(here, home);
                }
                About::Quic(bytes) => match self.named_here(at) {
                    Some(here) => self.across.quic_arrived.push((here, bytes)),
                    None => self.counters.dropped(AcrossDrop::SourceInvalid, 1),
                },
                About::ToClient(bytes) => self.message_of_home(from, at.client, &bytes, front, tx),
            }
        }
        let Self {
            across,
            engine,
            now,
            ..
        } = self;
        across.roaming.arrived = arrived;
        across
            .roaming
            .sweep(now.time, |here| engine.client(here).is_some());
    }

    /// Handles the notice that a client's connection to another shard is closed.
    fn ingress_gone<F: Front>(&mut self, here: &ClientTuple, front: &mut F, tx: &mut SendQueue) {
        self.engine.disconnected(self.now, here);
        // This runs before the client is forgotten, so that messages under way still go to its ingress and to no client here.
        self.carry_out_commands(front, tx);
        self.across.roaming.forget_ingress(here);
    }

    /// Handles a message of a client as if it had come here.
    fn message_of_ingress<F: Front>(
        &mut self,
        from: usize,
        at: ClientAt,
        bytes: &[u8],
        front: &mut F,
        tx: &mut SendQueue,
    ) {
        let here = self.named_here(at).filter(|_| !bytes.is_empty());
        let Some(here) = here else {
            return self.counters.dropped(AcrossDrop::SourceInvalid, 1);
        };
        self.across.roaming.set_ingress(here, from, at);
        let allocation = self.engine.client(&here);
        let staged = tx.stage(bytes);
        let segments = Segments {
            payload: &staged,
            bytes,
            segment: bytes.len(),
        };
        self.message(here, allocation, &segments, 0, front, tx);
        // An ingress without an allocation is forgotten by the sweep: an answer may still be under way.
        let is_home = self.engine.client(&here).is_some();
        if is_home != allocation.is_some() || !is_home {
            self.across.roaming.send(from, at, About::IsHome(is_home));
        }
    }

    /// Sends a client a message from its home.
    fn message_of_home<F: Front>(
        &mut self,
        from: usize,
        client: ClientTuple,
        bytes: &[u8],
        front: &mut F,
        tx: &mut SendQueue,
    ) {
        if !front.has_client(&client) {
            return self.counters.dropped(AcrossDrop::SocketClosed, 1);
        }
        // A client sends nothing more before it has its response. By then this shard has to know the client's home.
        if Message::parse(bytes).is_ok_and(|message| message.class() == Class::Success) {
            self.across.roaming.set_home(client, Some(from));
        }
        front.pass_on(client, bytes, tx);
    }

    /// Returns this shard's name of a client.
    fn named_here(&self, at: ClientAt) -> Option<ClientTuple> {
        Some(ClientTuple {
            listener: self.engine.listener_at(at.listener)?,
            ..at.client
        })
    }
}
