//! Clients that moved to another shard than the one that has their allocation (RFC 8016).
//!
//! The kernel gives a client's new 5-tuple to a shard as it likes, its *front*; the allocation stays where it is, at *home*. What
//! the client sends is handed from front to home message by message, and what is for it the other way, so that every transport works
//! and only clients who moved pay for it. A front remembers a client only after its home has authenticated it.
//!
//! Invariant: each message is counted in where it came from the network, and out or dropped where it goes: at the end of the way.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use turnbuckle_datapath::{EndpointId, Received, Run, SendQueue};
use turnbuckle_engine::{ClientTuple, DropReason, Time, Transport};
use turnbuckle_wire::{ChannelData, Class, Message};

use super::{Relay, Segments, dtls, padding};

/// How often a home looks for clients it has no more.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Something from one shard for another.
pub(crate) struct Parcel {
    /// The shard it comes from.
    from: usize,
    content: Content,
}

enum Content {
    /// Something about a client.
    About {
        /// The client as its front names it.
        client: ClientTuple,
        /// Which listener the client came to, in the order that all shards have them in.
        listener: usize,
        cargo: Cargo,
    },
    /// The sender has failed and was started anew: it knows none of its clients any more, and has none of its allocations.
    Restarted,
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

impl Parcel {
    /// Whose message it is and how many bytes it has, if it is one.
    pub(super) fn message(&self) -> Option<(&ClientTuple, usize)> {
        let Content::About { client, cargo, .. } = &self.content else {
            return None;
        };
        match cargo {
            Cargo::FromClient(bytes) | Cargo::ToClient(bytes) => Some((client, bytes.len())),
            Cargo::Gone | Cargo::IsHome(_) => None,
        }
    }
}

/// Who is where.
#[derive(Default)]
pub(super) struct Roaming {
    /// This shard.
    shard: usize,
    /// Clients who come here, and the shards that have their allocations.
    home_by_client: BTreeMap<ClientTuple, usize>,
    /// Clients with a connection here, and the shards that something was sent to for them: these hear when it is gone.
    told: BTreeSet<(ClientTuple, usize)>,
    /// Clients with an allocation here who come to other shards: where, and their name and listener there.
    front_by_client: BTreeMap<ClientTuple, (usize, ClientTuple, usize)>,
    /// What this turn has for other shards, in their order.
    outgoing: Vec<Vec<Parcel>>,
    /// What this turn has from other shards; kept for its memory.
    arrivals: Vec<Parcel>,
    /// Whether the mailbox has more than one turn deals with.
    has_more: bool,
    sweep_due: Time,
}

impl Roaming {
    /// For the shard of this number among so many.
    pub(super) fn new(shard: usize, count: usize) -> Self {
        Self {
            shard,
            outgoing: std::iter::repeat_with(Vec::new).take(count).collect(),
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
    pub(super) fn has_work(&self) -> bool {
        self.has_more || self.outgoing.iter().any(|parcels| !parcels.is_empty())
    }

    /// Hands one message to the client's front. Returns whether there is one.
    pub(super) fn send_to_front(&mut self, client: &ClientTuple, bytes: Vec<u8>) -> bool {
        let Some(&(front, client, listener)) = self.front_by_client.get(client) else {
            return false;
        };
        self.send(front, client, listener, Cargo::ToClient(bytes))
    }

    /// Has something for another shard. Returns whether there is such a shard.
    fn send(&mut self, to: usize, client: ClientTuple, listener: usize, cargo: Cargo) -> bool {
        let from = self.shard;
        let Some(outgoing) = self.outgoing.get_mut(to) else {
            return false;
        };
        let content = Content::About {
            client,
            listener,
            cargo,
        };
        outgoing.push(Parcel { from, content });
        true
    }

    /// Has all other shards forget what this one had before it failed.
    pub(super) fn say_restarted(&mut self) {
        let from = self.shard;
        for (to, outgoing) in self.outgoing.iter_mut().enumerate() {
            if to != from {
                let content = Content::Restarted;
                outgoing.push(Parcel { from, content });
            }
        }
    }
}

impl Relay {
    /// Takes from the mailbox what this turn deals with.
    pub(super) fn collect(&mut self) {
        let Some(mailbox) = self.mailboxes.get(self.roaming.shard) else {
            return;
        };
        let Roaming {
            arrivals, has_more, ..
        } = &mut self.roaming;
        *has_more = mailbox.take(arrivals, &mut self.arrivals);
        let messages = arrivals.iter().filter(|parcel| parcel.message().is_some());
        let taken = messages.count() + self.arrivals.len();
        self.counters.handed_in.add(taken as u64);
    }

    /// How many clients with an allocation here come to other shards, and how many names other shards have been told.
    #[cfg(test)]
    pub(crate) fn roamers(&self) -> (usize, usize) {
        (self.roaming.front_by_client.len(), self.roaming.told.len())
    }

    /// Posts what this turn has for other shards.
    pub(super) fn post(&mut self) {
        for (mailbox, parcels) in self.mailboxes.iter().zip(&mut self.roaming.outgoing) {
            if !parcels.is_empty() {
                let messages = parcels.iter().filter(|parcel| parcel.message().is_some());
                let messages = messages.count() as u64;
                let refused = mailbox.post(parcels);
                self.counters.handed_out.add(messages - refused);
                self.counters
                    .dropped(DropReason::HandoverQueueFull, refused);
            }
        }
    }

    /// Accounts for what is on its way when the shard ends: posts the rest, and takes nothing any more.
    pub(super) fn stop_roaming(&mut self) {
        self.post();
        let Some(mailbox) = self.mailboxes.get(self.roaming.shard) else {
            return;
        };
        self.counters
            .dropped(DropReason::SocketClosed, mailbox.close());
    }

    /// Hands a client's message to the shard that has its allocation, if that is not this one. Returns whether it is not.
    #[inline]
    pub(super) fn sent_home(&mut self, client: ClientTuple, message: &[u8]) -> bool {
        if !self.roaming.has_home(&client) {
            return false;
        }
        let home = self.roaming.home_by_client.get(&client).copied();
        self.send_to(home.unwrap_or(usize::MAX), client, message);
        true
    }

    /// Hands a client's message to a shard.
    pub(super) fn send_to(&mut self, shard: usize, client: ClientTuple, message: &[u8]) {
        let cargo = Cargo::FromClient(message.to_vec());
        let listener = self.engine.listener_index(client.listener);
        let is_sent =
            listener.is_some_and(|listener| self.roaming.send(shard, client, listener, cargo));
        if !is_sent {
            return self.counters.dropped(DropReason::HandoverQueueFull, 1);
        }
        // At once, and not when it has answered: the connection may be gone by then.
        if client.transport != Transport::Udp {
            // guard: V-30-told
            self.roaming.told.insert((client, shard));
        }
    }

    /// A connection of a client is gone: every shard that has heard of it is told.
    pub(super) fn roamer_gone(&mut self, client: &ClientTuple) {
        if self.roaming.told.is_empty() {
            return;
        }
        self.roaming.home_by_client.remove(client);
        let listener = self.engine.listener_index(client.listener);
        let told = (*client, usize::MIN)..=(*client, usize::MAX);
        while let Some(&entry) = self.roaming.told.range(told.clone()).next() {
            self.roaming.told.remove(&entry);
            if let Some(listener) = listener {
                self.roaming.send(entry.1, *client, listener, Cargo::Gone);
            }
        }
    }

    /// Hands the datagrams of a peer to the front of the client they are for.
    pub(super) fn data_to_front(
        &mut self,
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
            if !self.roaming.send_to_front(client, bytes) {
                self.counters.dropped(DropReason::HandoverQueueFull, 1);
            }
        }
    }

    /// Deals with what came from other shards.
    pub(super) fn open_parcels(&mut self, tx: &mut SendQueue) {
        let mut arrivals = std::mem::take(&mut self.roaming.arrivals);
        for parcel in arrivals.drain(..) {
            let Parcel { from, content } = parcel;
            let Content::About {
                client,
                listener,
                cargo,
            } = content
            else {
                self.forget_shard(from, tx);
                continue;
            };
            match cargo {
                Cargo::FromClient(bytes) => {
                    self.take_from_front(from, client, listener, &bytes, tx)
                }
                Cargo::Gone => {
                    if let Some(here) = self.named_here(client, listener) {
                        self.front_gone(&here, tx);
                    }
                }
                Cargo::IsHome(true) if self.comes_here(&client) => {
                    self.roaming.home_by_client.insert(client, from);
                }
                Cargo::IsHome(_) => {
                    self.roaming.home_by_client.remove(&client);
                }
                Cargo::ToClient(bytes) => self.deliver(from, client, &bytes, tx),
            }
        }
        self.roaming.arrivals = arrivals;
        if !self.roaming.front_by_client.is_empty() && self.roaming.sweep_due <= self.now.time {
            self.roaming.sweep_due = self.now.time + SWEEP_INTERVAL;
            self.sweep_fronts();
        }
    }

    /// A client's connection to another shard is gone.
    fn front_gone(&mut self, here: &ClientTuple, tx: &mut SendQueue) {
        self.engine.disconnected(self.now, here);
        // Before it is forgotten: what is under way for it goes where it was, and to nobody here.
        self.carry_out_commands(tx);
        self.roaming.front_by_client.remove(here);
    }

    /// Forgets what another shard had before it failed: the connections to it, and the allocations at it.
    fn forget_shard(&mut self, shard: usize, tx: &mut SendQueue) {
        let Roaming {
            front_by_client,
            home_by_client,
            ..
        } = &mut self.roaming;
        home_by_client.retain(|_, home| *home != shard);
        let fronts = front_by_client.iter();
        let gone = fronts.filter(|(here, (front, ..))| {
            // A 5-tuple of UDP comes to the same shard again.
            *front == shard && here.transport != Transport::Udp
        });
        let gone: Vec<_> = gone.map(|(here, _)| *here).collect();
        for here in gone {
            self.front_gone(&here, tx);
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
        // A front without an allocation is forgotten by the sweep: an answer may still be under way.
        let is_home = self.engine.client(&here).is_some();
        if is_home != allocation.is_some() || !is_home {
            let cargo = Cargo::IsHome(is_home);
            self.roaming.send(from, client, listener, cargo);
        }
    }

    /// Sends a client what its home has for it.
    fn deliver(&mut self, from: usize, client: ClientTuple, bytes: &[u8], tx: &mut SendQueue) {
        if !self.comes_here(&client) {
            return self.counters.dropped(DropReason::SocketClosed, 1);
        }
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
            roaming, engine, ..
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
            roaming.send(front, client, listener, Cargo::IsHome(false));
        }
    }

    /// Whether this is a client of this shard: not one whose connection is gone, whoever has its place now.
    fn comes_here(&self, client: &ClientTuple) -> bool {
        match client.transport {
            Transport::Dtls => {
                let dtls = self.dtls.as_ref();
                dtls.is_some_and(|dtls| dtls.has_client(client))
            }
            Transport::Tcp | Transport::Tls => self.connections.of_client(client).is_some(),
            Transport::Udp => true,
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
