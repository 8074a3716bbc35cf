//! Clients by QUIC: they come, find themselves at other addresses and vanish, and strangers send packets with their connection ids.
//!
//! What they draw is their own, so that the rest of a world goes on as it would without them.

mod client;
mod scene;

use std::net::SocketAddr;

use self::client::{Act, QuicClient};
pub(super) use self::scene::Scene;
use super::super::payload::Sender;
use super::rules;
use crate::plan;
use crate::queue::MS;
use crate::random::Seeded;
use crate::violation::Violation;

/// The number of the first of these clients: behind all others.
pub(super) const FIRST: usize = 200;
/// Users that have passwords in the realm that is nobody else's.
const NAMED: usize = 2;
/// The first byte and the connection id of a short header.
const HEAD_LEN: usize = 13;
/// Heads of packets that strangers have seen.
const HEADS_MAX: usize = 16;
/// What names the owners of tunnels begins here: behind the addresses of others.
const OWNERS: u16 = 1 << 15;

/// What is to happen.
#[derive(Debug)]
pub(super) enum Due {
    /// A datagram leaves an address.
    Sent(SocketAddr, Vec<u8>),
    /// The link of a client has something to do by itself at this time.
    Wakes(u64, usize),
}

/// All clients by QUIC.
pub(super) struct QuicClients {
    all: Vec<QuicClient>,
    /// How many addresses and tunnels they have had.
    count: u16,
    /// Heads of packets that were sent, which strangers have seen.
    heads: Vec<Vec<u8>>,
    /// How many payloads there can be at most in the datagrams that shards have had.
    pub(super) payloads: u64,
    random: Seeded,
}

impl QuicClients {
    /// Returns clients, if there are `any`.
    pub(super) fn new(any: bool, random: Seeded) -> Self {
        let mut clients = Self {
            all: Vec::new(),
            count: 0,
            heads: Vec::new(),
            payloads: 0,
            random,
        };
        let count = if any { 1 + clients.random.index(3) } else { 0 };
        for number in 0..count {
            let client = clients.newcomer(number);
            clients.all.push(client);
        }
        clients
    }

    /// Returns how many there are.
    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    fn newcomer(&mut self, number: usize) -> QuicClient {
        let is_v6 = self.random.one_in(3);
        let address = self.new_address(number, is_v6);
        let random = self.random.fork(&format!("client {}", self.count));
        QuicClient::new(address, number % NAMED, random)
    }

    fn new_address(&mut self, number: usize, is_v6: bool) -> SocketAddr {
        self.count += 1;
        plan::client(FIRST + number, is_v6, 1024 + self.count)
    }

    /// Lets a client do something. Returns how long it waits before it does the next thing.
    pub(super) fn act(&mut self, number: usize, scene: &mut Scene<'_>) -> Result<u64, Violation> {
        if self.all[number].wants_more() {
            self.count += 1;
            let owner = rules::owner(OWNERS + self.count, number % NAMED);
            self.all[number].want(scene.now, owner);
        }
        match self.all[number].act(scene) {
            Act::Nothing => {}
            Act::Moves => {
                scene.count("moves of clients by QUIC", 0);
                let is_v6 = self.all[number].address.is_ipv6();
                self.all[number].address = self.new_address(number, is_v6);
            }
            Act::Vanishes => self.all[number] = self.newcomer(number),
        }
        self.payloads += std::mem::take(&mut scene.payloads);
        self.send(number, scene)?;
        Ok(self.random.between(10, 300) * MS)
    }

    /// Has the link of a client do what it has to do by itself.
    pub(super) fn wake(&mut self, number: usize, scene: &mut Scene<'_>) -> Result<(), Violation> {
        // Otherwise an earlier time took the place of this one, or it was another client's.
        if self.all[number].due == Some(scene.now) {
            self.all[number].due = None;
            self.send(number, scene)?;
        }
        Ok(())
    }

    /// Takes in a datagram of the server's to an address that a client has, or had.
    pub(super) fn receive(
        &mut self,
        (number, to): (usize, SocketAddr),
        bytes: &[u8],
        scene: &mut Scene<'_>,
    ) -> Result<(), Violation> {
        let client = self.all.get_mut(number).filter(|it| it.address == to);
        let Some(client) = client else {
            return Ok(()); // it has gone to another address
        };
        client.receive(bytes, scene)?;
        self.send(number, scene)
    }

    /// Has all clients leave. Returns the relayed addresses that their tunnels have had until now.
    pub(super) fn leave(&mut self, scene: &mut Scene<'_>) -> Result<Vec<SocketAddr>, Violation> {
        let relays = self.all.iter().flat_map(QuicClient::relays).collect();
        for number in 0..self.all.len() {
            self.all[number].link.close(scene.now);
            self.send(number, scene)?;
        }
        Ok(relays)
    }

    /// Sends what a client has for the server, and says when it has something to do by itself.
    fn send(&mut self, number: usize, scene: &mut Scene<'_>) -> Result<(), Violation> {
        let client = &mut self.all[number];
        let datagrams = client.link.send(scene.now);
        client.take_news(scene)?;
        for datagram in datagrams {
            if let Some(home) = scene.server.issuer_of(&datagram) {
                client.speaks_to(home);
                self.heads.push(datagram[..HEAD_LEN].to_vec());
            }
            scene.due.push(Due::Sent(client.address, datagram));
        }
        let surplus = self.heads.len().saturating_sub(HEADS_MAX);
        self.heads.drain(..surplus);
        if let Some(due) = client.link.due(scene.now) {
            let due = due.max(scene.now + MS / 20);
            if client.due.is_none_or(|queued| due < queued) {
                client.due = Some(due);
                scene.due.push(Due::Wakes(due, number));
            }
        }
        Ok(())
    }

    /// Takes note that a shard has failed, or the whole process if it is `None`, and with it connections.
    pub(super) fn lose(&mut self, now: u64, shard: Option<usize>) {
        for client in &mut self.all {
            client.lose(now, shard);
        }
    }

    /// Takes note that the operator has forbidden further allocations.
    pub(super) fn drained(&mut self) {
        for client in &mut self.all {
            client.drained();
        }
    }

    /// Returns who waits, by the ports of their addresses, and since when.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (u32, Option<u64>)> {
        let all = self.all.iter();
        all.map(|it| (it.address.port().into(), it.waits_since()))
    }

    /// Returns whether data of this sender may leave `relay`, as far as it is a tunnel's of one of these clients.
    pub(super) fn may_send(&mut self, sender: Option<Sender>, relay: SocketAddr) -> bool {
        let Some(Sender::Client(owner)) = sender else {
            return true;
        };
        let mut all = self.all.iter_mut();
        let may_send = all.find_map(|it| it.has_relay(owner, relay));
        may_send.unwrap_or(true)
    }

    /// Has a stranger send a packet with the connection id of a client, from an address of its own.
    pub(super) fn forge(&mut self, number: usize, scene: &mut Scene<'_>) {
        let Some(head) = self.random.choose(&self.heads).cloned() else {
            return;
        };
        scene.count("forged packets", 0);
        let rest = 20 + self.random.index(200);
        let packet = [head, self.random.bytes(rest)].concat();
        let port = self.random.between_u16(1024, 60_000);
        let from = plan::stranger(number, self.random.one_in(3), port);
        scene.due.push(Due::Sent(from, packet));
    }
}
