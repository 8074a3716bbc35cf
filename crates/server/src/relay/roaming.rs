//! Clients that moved to another shard than the one that has their allocation (RFC 8016).
//!
//! The kernel gives a client's new 5-tuple to a shard as it likes, its *front*; the allocation stays where it is, at *home*. What
//! the client sends is handed from front to home message by message, and what is for it the other way, so that every transport works
//! and only clients who moved pay for it. A front remembers a client only after its home has authenticated it.
//!
//! Invariant: each message is counted in where it came from the network, and out or dropped where it goes: at the end of the way.

use std::collections::BTreeMap;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use turnbuckle_datapath::{EndpointId, Received, Run, SendQueue};
use turnbuckle_engine::{ClientTuple, DropReason, Time, Transport};
use turnbuckle_wire::{ChannelData, Class, Message};

use super::{Relay, Segments, ShardLink, dtls, padding};

/// Messages that may be on their way to one shard.
pub(crate) const PARCELS_MAX: usize = 4096;
/// How often a home looks for clients it has no more.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Something about a client, from one shard to another.
pub(crate) struct Parcel {
    /// The shard it comes from.
    from: usize,
    /// The client as its front names it.
    client: ClientTuple,
    /// Which listener the client came to, in the order that all shards have them in.
    listener: usize,
    cargo: Cargo,
}

enum Cargo {
    /// One message from the client.
    FromClient(Vec<u8>),
    /// The client's connection is gone.
    Gone,
    /// Whether the sender is the client's home.
    IsHome(bool),
    /// One message for the client.
    ToClient(Vec<u8>),
}

/// Who is where.
#[derive(Default)]
pub(super) struct Roaming {
    /// This shard.
    shard: usize,
    /// Clients who come here, and the shards that have their allocations.
    home_by_client: BTreeMap<ClientTuple, usize>,
    /// Clients with an allocation here who come to other shards: where, and their name and listener there.
    front_by_client: BTreeMap<ClientTuple, (usize, ClientTuple, usize)>,
    arrivals: Vec<Parcel>,
    sweep_due: Time,
}

impl Roaming {
    pub(super) fn new(shard: usize) -> Self {
        Self {
            shard,
            ..Self::default()
        }
    }

    /// Whether the allocation of a client who comes here is elsewhere.
    #[inline]
    pub(super) fn has_home(&self, client: &ClientTuple) -> bool {
        !self.home_by_client.is_empty() && self.home_by_client.contains_key(client)
    }

    /// Whether a client with an allocation here comes to another shard.
    #[inline]
    pub(super) fn has_front(&self, client: &ClientTuple) -> bool {
        !self.front_by_client.is_empty() && self.front_by_client.contains_key(client)
    }

    /// Whether there is something to do in the next turn, which therefore begins at once.
    pub(super) fn has_arrivals(&self) -> bool {
        !self.arrivals.is_empty()
    }

    /// Hands one message to the client's front. Returns whether that could take it.
    pub(super) fn to_front(
        &self,
        links: &[ShardLink],
        client: &ClientTuple,
        bytes: Vec<u8>,
    ) -> bool {
        let Some(&(front, client, listener)) = self.front_by_client.get(client) else {
            return false;
        };
        self.send(links, front, client, listener, Cargo::ToClient(bytes))
    }

    fn send(
        &self,
        links: &[ShardLink],
        to: usize,
        client: ClientTuple,
        listener: usize,
        cargo: Cargo,
    ) -> bool {
        let Some(link) = links.get(to) else {
            return false;
        };
        let parcel = Parcel {
            from: self.shard,
            client,
            listener,
            cargo,
        };
        let is_taken = link.parcels.try_send(parcel).is_ok();
        if is_taken {
            link.waker.wake();
        }
        is_taken
    }
}

impl Relay {
    /// Takes in what another shard sent, in the next turn.
    pub(crate) fn delivered(&mut self, parcel: Parcel) {
        self.roaming.arrivals.push(parcel);
    }

    /// Accounts for the messages that are on their way when the shard ends.
    pub(super) fn stop_roaming(&self, parcels: &Receiver<Parcel>) {
        let is_message = |cargo: &Cargo| matches!(cargo, Cargo::FromClient(_) | Cargo::ToClient(_));
        let waiting = self.roaming.arrivals.iter();
        let waiting = waiting.filter(|parcel| is_message(&parcel.cargo)).count();
        let late = parcels.try_iter();
        let late = late.filter(|parcel| is_message(&parcel.cargo)).count();
        self.counters
            .dropped(DropReason::SocketClosed, (waiting + late) as u64);
    }

    /// Hands a client's message to the shard that has its allocation, if that is not this one. Returns whether it is not.
    #[inline]
    pub(super) fn sent_home(&self, client: ClientTuple, message: &[u8]) -> bool {
        if !self.roaming.has_home(&client) {
            return false;
        }
        let home = self.roaming.home_by_client.get(&client).copied();
        self.send_to(home.unwrap_or(usize::MAX), client, message);
        true
    }

    /// Hands a client's message to a shard.
    pub(super) fn send_to(&self, shard: usize, client: ClientTuple, message: &[u8]) {
        let cargo = Cargo::FromClient(message.to_vec());
        let is_taken = match self.engine.listener_index(client.listener) {
            Some(listener) => self
                .roaming
                .send(&self.links, shard, client, listener, cargo),
            None => false,
        };
        if !is_taken {
            self.counters.dropped(DropReason::HandoverQueueFull, 1);
        }
    }

    /// A connection of a client is gone: its home is told.
    pub(super) fn roamer_gone(&mut self, client: &ClientTuple) {
        let Some(home) = self.roaming.home_by_client.remove(client) else {
            return;
        };
        if let Some(listener) = self.engine.listener_index(client.listener) {
            // What is lost here ends when the allocation does.
            let _ = self
                .roaming
                .send(&self.links, home, *client, listener, Cargo::Gone);
        }
    }

    /// Hands the datagrams of a peer to the front of the client they are for.
    pub(super) fn data_to_front(
        &self,
        client: &ClientTuple,
        message: &Received<'_>,
        run: Run,
        (header, trailer): (&[u8], u8),
    ) {
        for index in 0..run.count {
            let start = run.start + index * run.stride;
            let is_last = index + 1 == run.count;
            let len = if is_last { run.last_len } else { run.len };
            let mut bytes = Vec::with_capacity(header.len() + len + 3);
            bytes.extend_from_slice(header);
            bytes.extend_from_slice(&message.bytes[start..start + len]);
            bytes.resize(bytes.len() + usize::from(trailer), 0);
            if !self.roaming.to_front(&self.links, client, bytes) {
                self.counters.dropped(DropReason::HandoverQueueFull, 1);
            }
        }
    }

    /// Deals with what came from other shards.
    pub(super) fn open_parcels(&mut self, tx: &mut SendQueue) {
        for parcel in std::mem::take(&mut self.roaming.arrivals) {
            let Parcel {
                from,
                client,
                listener,
                cargo,
            } = parcel;
            match cargo {
                Cargo::FromClient(bytes) => {
                    self.take_from_front(from, client, listener, &bytes, tx)
                }
                Cargo::Gone => {
                    if let Some(here) = self.named_here(client, listener) {
                        self.engine.disconnected(self.now, &here);
                        self.roaming.front_by_client.remove(&here);
                        self.carry_out_commands(tx);
                    }
                }
                Cargo::IsHome(true) => {
                    self.roaming.home_by_client.insert(client, from);
                }
                Cargo::IsHome(false) => {
                    self.roaming.home_by_client.remove(&client);
                }
                Cargo::ToClient(bytes) => self.deliver(from, client, &bytes, tx),
            }
        }
        if !self.roaming.front_by_client.is_empty() && self.roaming.sweep_due <= self.now.time {
            self.roaming.sweep_due = self.now.time + SWEEP_INTERVAL;
            self.sweep_fronts();
        }
    }

    /// Handles a message of a client as if it had come here.
    fn take_from_front(
        &mut self,
        from: usize,
        client: ClientTuple,
        listener: usize,
        bytes: &[u8],
        tx: &mut SendQueue,
    ) {
        let Some(here) = self
            .named_here(client, listener)
            .filter(|_| !bytes.is_empty())
        else {
            return self.counters.dropped(DropReason::SourceInvalid, 1);
        };
        let front = (from, client, listener);
        self.roaming.front_by_client.insert(here, front);
        let allocation = self.engine.client(&here);
        let staged = tx.stage(bytes);
        let segments = Segments {
            payload: &staged,
            bytes,
            segment: bytes.len(),
        };
        self.message(here, allocation, &segments, 0, tx);
        let is_home = self.engine.client(&here).is_some();
        if !is_home {
            self.roaming.front_by_client.remove(&here);
        }
        if is_home != allocation.is_some() || !is_home {
            let cargo = Cargo::IsHome(is_home);
            // What is lost is said again after the client's next message.
            let _ = self
                .roaming
                .send(&self.links, from, client, listener, cargo);
        }
    }

    /// Sends a client what its home has for it.
    fn deliver(&mut self, from: usize, client: ClientTuple, bytes: &[u8], tx: &mut SendQueue) {
        // Before it has its answer a client has no reason to go on: by then this shard has to know where to.
        if Message::parse(bytes).is_ok_and(|message| message.class() == Class::Success) {
            self.roaming.home_by_client.insert(client, from);
        }
        match client.transport {
            Transport::Dtls => {
                dtls::seal_reply(self.dtls.as_deref_mut(), &self.counters, client, bytes, tx);
            }
            Transport::Tcp | Transport::Tls => {
                let Some(connection) = self.connections.of_client(&client) else {
                    return self.counters.dropped(DropReason::SocketClosed, 1);
                };
                let stream = connection.id;
                self.counters.client_queued.add(1);
                let staged = tx.stage(bytes);
                let run = Run::single(0, bytes.len());
                tx.stream_forward(stream, &staged, run, &[], padding(bytes.len()));
            }
            Transport::Udp => match self.proxied.answer_address(&client) {
                Some(remote) => {
                    self.counters.client_queued.add(1);
                    tx.reply(EndpointId::from_u32(client.listener.0), remote, bytes);
                }
                None => self.counters.dropped(DropReason::SocketClosed, 1),
            },
        }
    }

    /// Forgets the clients who have nothing here any more, and has their fronts forget them.
    fn sweep_fronts(&mut self) {
        let Self {
            roaming,
            engine,
            links,
            ..
        } = self;
        let mut gone = Vec::new();
        roaming.front_by_client.retain(|here, front| {
            let stays = engine.client(here).is_some();
            if !stays {
                gone.push(*front);
            }
            stays
        });
        for (front, client, listener) in gone {
            // What is lost is said again after the client's next message.
            let _ = roaming.send(links, front, client, listener, Cargo::IsHome(false));
        }
    }

    /// A client as this shard names it.
    fn named_here(&self, client: ClientTuple, listener: usize) -> Option<ClientTuple> {
        Some(ClientTuple {
            listener: self.engine.listener_at(listener)?,
            ..client
        })
    }
}

/// Bytes of the channel message that begins `bytes`, without padding.
pub(super) fn channel_message_len(bytes: &[u8]) -> usize {
    match bytes.get(2..ChannelData::HEADER_LEN) {
        Some(&[high, low]) => {
            ChannelData::HEADER_LEN + usize::from(u16::from_be_bytes([high, low]))
        }
        _ => bytes.len(),
    }
}
