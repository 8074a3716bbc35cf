//! Keeps the ingress and the home of clients that moved to another shard than the one that has their allocation (RFC 8016).
//!
//! The ingress hands each message of such a client to its home, and the home hands each message for it to the ingress. So every transport works,
//! and only clients that moved bear the cost. An ingress remembers a client only after the home has authenticated it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use turnbuckle_engine::{ClientTuple, Time, Transport};

use super::message::{About, Body, ClientAt, ShardMessage};

/// Time between two searches of a home for clients that have no allocation there any more.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Holds the ingress and home of clients, as one shard sees them.
#[derive(Default)]
pub(in crate::shard) struct Roaming {
    /// This shard.
    shard: usize,
    /// Clients whose ingress is here, with the shards that have their allocations.
    home_by_client: BTreeMap<ClientTuple, usize>,
    /// Clients with a connection here, with the shards that a message was sent to for them. These shards get a notice when the connection is
    /// closed.
    known_at: BTreeSet<(ClientTuple, usize)>,
    /// Clients with an allocation here and their ingress elsewhere, with that shard and their name there.
    ingress_by_client: BTreeMap<ClientTuple, (usize, ClientAt)>,
    /// Clients with an allocation here and their ingress perhaps elsewhere, which every other shard was told of, with the numbers of their listeners.
    announced: BTreeMap<ClientTuple, usize>,
    /// Messages of this turn for each of the shards, in their order.
    pub(in crate::shard) outgoing: Vec<Vec<ShardMessage>>,
    /// Messages of this turn from other shards. The list is kept to use its memory again.
    pub(in crate::shard) arrived: Vec<ShardMessage>,
    /// Whether the mailbox holds more than one turn handles.
    pub(in crate::shard) has_more: bool,
    sweep_due: Time,
}

impl Roaming {
    /// Returns the state of shard number `shard` among so many.
    pub(super) fn new(shard: usize, count: usize) -> Self {
        Self {
            shard,
            outgoing: std::iter::repeat_with(Vec::new).take(count).collect(),
            ..Self::default()
        }
    }

    /// Returns the number of this shard.
    pub(in crate::shard) fn shard(&self) -> usize {
        self.shard
    }

    /// Returns whether this shard is only the ingress of a client, with its allocation elsewhere.
    #[inline]
    pub(super) fn has_home(&self, client: &ClientTuple) -> bool {
        !self.home_by_client.is_empty() && self.home_by_client.contains_key(client)
    }

    /// Returns whether a client with an allocation here has its ingress at another shard.
    #[inline]
    pub(super) fn has_ingress(&self, client: &ClientTuple) -> bool {
        !self.ingress_by_client.is_empty() && self.ingress_by_client.contains_key(client)
    }

    /// Returns whether messages are left for the next turn, which begins at once in that case.
    pub(super) fn has_work(&self) -> bool {
        self.has_more || self.outgoing.iter().any(|messages| !messages.is_empty())
    }

    /// Returns how many clients with an allocation here use another shard as their ingress, and how many client names were sent to other shards.
    #[cfg(test)]
    pub(in crate::shard) fn counts(&self) -> (usize, usize) {
        (self.ingress_by_client.len(), self.known_at.len())
    }

    /// Returns the home of a client whose ingress is here.
    pub(in crate::shard) fn home(&self, client: &ClientTuple) -> Option<usize> {
        self.home_by_client.get(client).copied()
    }

    /// Notes that `shard` is not the home of a client whose ingress is here. It may say so late, when another one is.
    pub(in crate::shard) fn forget_home(&mut self, client: &ClientTuple, shard: usize) {
        if self.home(client) == Some(shard) {
            self.home_by_client.remove(client);
        }
    }

    /// Notes the home of a client whose ingress is here. `None` means that it has none.
    pub(in crate::shard) fn set_home(&mut self, client: ClientTuple, home: Option<usize>) {
        match home {
            Some(home) => self.home_by_client.insert(client, home),
            None => self.home_by_client.remove(&client),
        };
    }

    /// Notes the ingress of a client with an allocation here.
    pub(in crate::shard) fn set_ingress(&mut self, here: ClientTuple, shard: usize, at: ClientAt) {
        self.ingress_by_client.insert(here, (shard, at));
    }

    /// Forgets the ingress of a client with an allocation here.
    pub(in crate::shard) fn forget_ingress(&mut self, here: &ClientTuple) {
        self.ingress_by_client.remove(here);
    }

    /// Queues a message for another shard. Returns whether there is such a shard.
    pub(in crate::shard) fn send(&mut self, to: usize, at: ClientAt, about: About) -> bool {
        let from = self.shard;
        let Some(outgoing) = self.outgoing.get_mut(to) else {
            return false;
        };
        let body = Body::Client(at, about);
        outgoing.push(ShardMessage { from, body });
        true
    }

    /// Hands one message to the client's ingress. Returns whether there is one.
    pub(super) fn send_to_ingress(&mut self, client: &ClientTuple, bytes: Vec<u8>) -> bool {
        let Some(&(ingress, at)) = self.ingress_by_client.get(client) else {
            return false;
        };
        self.send(ingress, at, About::ToClient(bytes))
    }

    /// Hands one message of a client to a shard. Returns whether there is such a shard.
    pub(in crate::shard) fn send_from_client(
        &mut self,
        to: usize,
        at: ClientAt,
        bytes: &[u8],
    ) -> bool {
        if !self.send(to, at, About::FromClient(bytes.to_vec())) {
            return false;
        }
        // The shard is noted at once and not after its response, because the connection may be closed by then.
        if at.client.transport != Transport::Udp {
            // guard: V-30-told
            self.known_at.insert((at.client, to));
        }
        true
    }

    /// Sends a notice that a client's connection is closed to every shard that got a message for that client. `listener` is the number of the
    /// client's listener.
    pub(in crate::shard) fn disconnected(
        &mut self,
        client: &ClientTuple,
        listener: impl FnOnce() -> Option<usize>,
    ) {
        if self.known_at.is_empty() {
            return;
        }
        self.home_by_client.remove(client);
        let listener = listener();
        let known = (*client, usize::MIN)..=(*client, usize::MAX);
        while let Some(&entry) = self.known_at.range(known.clone()).next() {
            self.known_at.remove(&entry);
            if let Some(listener) = listener {
                let client = *client;
                self.send(entry.1, ClientAt { client, listener }, About::Disconnected);
            }
        }
    }

    /// Makes all other shards forget the clients and allocations that this one had before it failed.
    pub(in crate::shard) fn say_restarted(&mut self) {
        self.tell_others(|| Body::Restarted);
    }

    /// Tells all other shards that a client has its allocation here: whichever is its ingress hands its messages on.
    pub(in crate::shard) fn announce(&mut self, client: ClientTuple, listener: usize) {
        self.announced.insert(client, listener);
        self.tell_others(|| Body::Client(ClientAt { client, listener }, About::IsHome(true)));
    }

    fn tell_others(&mut self, body: impl Fn() -> Body) {
        let from = self.shard;
        for (to, outgoing) in self.outgoing.iter_mut().enumerate() {
            if to != from {
                let body = body();
                outgoing.push(ShardMessage { from, body });
            }
        }
    }

    /// Forgets the allocations that a shard had before it failed, and tells it again of the clients by UDP whose ingress it is: the kernel assigns
    /// their 5-tuples to it as before. Returns the other clients with an allocation here whose ingress it was: their connections are gone.
    pub(in crate::shard) fn forget_shard(&mut self, shard: usize) -> Vec<ClientTuple> {
        self.home_by_client.retain(|_, home| *home != shard);
        let (mut gone, mut stay) = (Vec::new(), Vec::new());
        for (here, (ingress, at)) in &self.ingress_by_client {
            match here.transport {
                _ if *ingress != shard => {}
                Transport::Udp => stay.push(*at),
                _ => gone.push(*here),
            }
        }
        for at in stay {
            // guard: V-63-panic-ingress
            self.send(shard, at, About::IsHome(true));
        }
        gone
    }

    /// Forgets, at regular intervals, the clients that have no allocation here any more, and makes their ingress forget them.
    pub(in crate::shard) fn sweep(
        &mut self,
        now: Time,
        mut has_allocation: impl FnMut(&ClientTuple) -> bool,
    ) {
        let has_any = !(self.ingress_by_client.is_empty() && self.announced.is_empty());
        if !has_any || self.sweep_due > now {
            return;
        }
        self.sweep_due = now + SWEEP_INTERVAL;
        let ended = self
            .announced
            .extract_if(.., |here, _| !has_allocation(here));
        for (client, listener) in ended.collect::<Vec<_>>() {
            self.tell_others(|| Body::Client(ClientAt { client, listener }, About::IsHome(false)));
        }
        let mut gone = Vec::new();
        self.ingress_by_client.retain(|here, ingress| {
            let stays = has_allocation(here);
            if !stays {
                gone.push(*ingress);
            }
            stays
        });
        for (ingress, at) in gone {
            self.send(ingress, at, About::IsHome(false));
        }
    }
}
