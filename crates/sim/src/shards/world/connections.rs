//! What happens on connections: clients come by them, come back at other addresses, relay TCP, or have tunnels in HTTP; strangers open and close some.

use std::net::SocketAddr;

use turnbuckle_wire::{Method, TransactionId};

use super::super::client::Client;
use super::super::host::Owner;
use super::super::payload::{LEN_MIN, Payload, Sender};
use super::super::wire::WireId;
use super::super::{dtls, proxy};
use super::guest::Guest;
use super::places::{BOUNDED_USER, PEERS, PEERS_V4, USERS, listener_of, peer_at};
use super::quic::{Due, QuicClients, Scene};
use super::{Event, IDLE_MAX, Phase, ShardsWorld, rules};
use crate::message::{Attribute, Draft};
use crate::plan;
use crate::queue::MS;
use crate::violation::{Violation, ensure};

/// The number of the first of these clients: behind all others.
const FIRST: usize = 100;
/// Users that have passwords in the realm that is nobody else's.
const NAMED: usize = 2;

impl ShardsWorld {
    /// Opens a connection of a client to the server, through a proxy if there is one.
    pub(super) fn connection(&mut self, client: SocketAddr, proxy: Option<SocketAddr>) -> WireId {
        let from = proxy.unwrap_or(client);
        let listener = listener_of(from);
        let wire = self.host.lock().wires.open(listener, from);
        if proxy.is_some() {
            let header = proxy::of_connection(client, listener_of(client));
            self.host.lock().wires.write(wire, &header);
        }
        let shard = self.steered(from);
        let token = self.shards[shard].tokens[usize::from(from.is_ipv6())];
        self.shards[shard].path.streams().arrive(token, wire);
        self.soon(shard);
        wire
    }

    /// Draws an address of a client that nobody had before.
    pub(super) fn new_address(&mut self, number: usize) -> SocketAddr {
        self.addresses += 1;
        let is_v6 = self.random.one_in(3);
        plan::client(number, is_v6, 1024 + self.addresses)
    }

    /// Puts a client in the place of another one, whose connection is closed.
    pub(super) fn replace(&mut self, number: usize, client: Client) {
        let before = std::mem::replace(&mut self.clients[number], client);
        if let Some(wire) = before.wire() {
            self.host.lock().wires.leave(wire);
            self.all_soon();
        }
    }

    pub(super) fn all_soon(&mut self) {
        for shard in 0..self.shards.len() {
            self.soon(shard);
        }
    }

    /// Sends what a client has for the server.
    pub(super) fn send_of(&mut self, number: usize, bytes: Vec<u8>) {
        let now = self.queue.now();
        let client = &mut self.clients[number];
        match client.wire() {
            None => {
                if let Some(datagram) = client.sealed(now, bytes) {
                    self.send_datagram_of(number, datagram);
                }
            }
            Some(wire) => {
                self.host.lock().wires.write(wire, &bytes);
                self.all_soon();
            }
        }
    }

    /// Sends a datagram from where a client is to the server, through the client's proxy if there is one.
    pub(super) fn send_datagram_of(&mut self, number: usize, datagram: Vec<u8>) {
        let client = &self.clients[number];
        let (address, from) = (client.address, client.hears_at());
        let datagram = match client.proxy() {
            Some(_) => proxy::datagram(address, listener_of(address), &datagram),
            None => datagram,
        };
        self.send(from, listener_of(from), datagram);
    }

    /// Moves a client that has a ticket, begins a data connection, or has a client that has moved ask for somebody else's.
    pub(super) fn travel(&mut self, number: usize) {
        let now = self.queue.now();
        if self.clients[number].waits_since().is_some() {
            return;
        }
        let has_ticket = self.clients[number].special.ticket.is_some();
        if has_ticket
            && let Some((connection, relayed)) = self.connection_of_another(number)
            && self.random.one_in(2)
        {
            self.seen.coverage.count("attacks on connections", 0);
            let bytes = self.clients[number].attack(now, connection, relayed);
            return self.send_of(number, bytes);
        }
        if has_ticket && self.random.one_in(3) {
            let address = self.new_address(number);
            let is_stream = self.operator.way.has_streams && !self.random.one_in(3);
            let wire = is_stream.then(|| self.connection(address, None));
            let sessions = self.sessions().filter(|_| !is_stream);
            if let Some(moved) = self.clients[number].moved(address, wire) {
                self.seen.coverage.count("moves", 0);
                self.replace(number, moved.by_sessions(sessions));
            }
        }
        self.steal(number);
        if self.clients[number].special.connection.is_some() && self.random.one_in(8) {
            let users = self.operator.users;
            let other = (0..self.clients.len())
                .find(|it| it % users == number % users && self.clients[*it].is_over);
            if let Some(other) = other {
                let address = self.new_address(other);
                let wire = self.connection(address, None);
                if let Some(data) = self.clients[number].data_connection(address, wire) {
                    self.replace(other, data);
                }
            }
        }
    }

    /// Has a client who holds a token show a new one now and then.
    pub(super) fn renew(&mut self, number: usize) {
        if !self.clients[number].may_renew() || !self.random.one_in(6) {
            return;
        }
        let user = number % self.operator.users;
        let Some(pass) = self.pass_for(user) else {
            return;
        };
        let terms = self.operator.rules.terms_with(user, Some(&pass));
        let client = &mut self.clients[number];
        let bytes = client.renew(self.queue.now(), pass);
        client.take_terms(terms);
        self.send_of(number, bytes);
    }

    /// Has somebody who holds a token of its own ask for the data connection of a client who holds another one.
    fn steal(&mut self, number: usize) {
        let victim = &self.clients[number];
        let is_holder = victim.special.pass.is_some() && !victim.is_over;
        let Some(connection) = victim.special.connection.filter(|_| is_holder) else {
            return;
        };
        let place = self.clients.iter().position(|it| it.is_over);
        let Some(place) = place.filter(|_| self.random.one_in(4)) else {
            return;
        };
        let user = number % self.operator.users;
        let address = self.new_address(place);
        let wire = self.connection(address, None);
        let random = self.random.fork(&format!("thief {}", self.addresses));
        let owner = rules::owner(self.addresses, user);
        let pass = self.pass_for(user);
        let mut thief = Client::new(owner, address, USERS[user], random)
            .showing(pass)
            .stealing(wire, connection);
        let pass = thief.special.pass.as_ref();
        thief.special.terms = self.operator.rules.terms_with(user, pass);
        self.replace(place, thief);
    }

    /// Returns a data connection of another client of the same user, and the relayed address it belongs to, for a client by a stream that has moved.
    fn connection_of_another(&self, number: usize) -> Option<(u32, Option<SocketAddr>)> {
        let client = &self.clients[number];
        if !client.special.has_moved || client.wire().is_none() {
            return None;
        }
        let users = self.operator.users;
        let mut others = self.clients.iter().enumerate();
        others.find_map(|(other, it)| {
            let is_same = other % users == number % users;
            is_same
                .then_some(it.special.connection?)
                .map(|id| (id, it.relayed))
        })
    }

    /// Reads some of what has come on connections; peers write on theirs, and begin some.
    pub(super) fn wires(&mut self) -> Result<(), Violation> {
        let ids = {
            let mut host = self.host.lock();
            self.guests.quota.look(self.queue.now(), &mut host.wires);
            host.wires.ids()
        };
        for id in ids {
            self.wire(id)?;
        }
        let relays: Vec<_> = {
            let host = self.host.lock();
            host.relays.iter().map(|(&at, &it)| (at, it)).collect()
        };
        if self.phase < Phase::Silent
            && self.random.one_in(40)
            && let Some(&(at, (shard, token))) = self.random.choose(&relays)
        {
            let port = self.random.between_u16(5000, 60_000);
            let number = match at.is_ipv6() {
                true => PEERS_V4 + self.random.index(PEERS - PEERS_V4),
                false => self.random.index(PEERS_V4),
            };
            let from = peer_at(number, port);
            let wire = self.host.lock().wires.open(at, from);
            self.shards[shard].path.streams().arrive(token, wire);
            self.soon(shard);
        }
        let delay = self.random.between(1, 30) * MS;
        self.queue.after(delay, Event::Wires);
        Ok(())
    }

    pub(super) fn wire(&mut self, id: WireId) -> Result<(), Violation> {
        let (local, remote, bytes, is_over) = {
            let mut host = self.host.lock();
            let Some(wire) = host.wires.get(id) else {
                return Ok(());
            };
            let most = self.random.index(3000);
            let len = wire.to_remote.len().min(most);
            let bytes: Vec<u8> = wire.to_remote.drain(..len).collect();
            let is_over = wire.has_machine_ended && wire.to_remote.is_empty();
            (wire.local, wire.remote, bytes, is_over)
        };
        let is_idle = self.strangers.idle.contains(&id);
        ensure(!is_idle || bytes.is_empty(), "data", || {
            format!("a stranger who said nothing was sent {} bytes", bytes.len())
        })?;
        let client = self.clients.iter().position(|it| it.wire() == Some(id));
        let guest = self.guests.by_stream.iter().position(|it| it.wire == id);
        if let Some(number) = client {
            let now = self.queue.now();
            self.seen.trace.bytes(&bytes);
            let answers = self.clients[number].take_stream(now, &bytes, &mut self.seen.coverage)?;
            for answer in answers {
                self.send_of(number, answer);
            }
            if is_over {
                self.clients[number].disconnected();
            }
        } else if let Some(number) = guest {
            self.guest_hears(number, &bytes, is_over)?;
        } else if let plan::Place::Peer(number) = plan::place(remote)
            && plan::place(local) == plan::Place::Relay
            && self.random.one_in(4)
        {
            let payload = Payload {
                to: local,
                sender: Sender::Peer(number),
            };
            let count = 1 + self.random.index(10);
            let bytes = payload.write(LEN_MIN).repeat(count);
            self.host.lock().wires.write(id, &bytes);
            self.all_soon();
        }
        if is_over || (client.is_none() && guest.is_none() && !is_idle && self.random.one_in(300)) {
            self.host.lock().wires.leave(id);
            self.all_soon();
        }
        Ok(())
    }

    /// Has a stranger open connections and close others, so that their places are used again.
    pub(super) fn come_and_go(&mut self, number: usize) {
        for _ in 0..self.random.index(6) {
            let port = self.random.between_u16(1024, 60_000);
            let from = plan::stranger(number, self.random.one_in(3), port);
            let wire = self.connection(from, None);
            self.strangers.idle.push(wire);
        }
        while self.strangers.idle.len() > IDLE_MAX {
            let place = self.random.index(self.strangers.idle.len());
            let wire = self.strangers.idle.remove(place);
            self.host.lock().wires.leave(wire);
        }
        self.all_soon();
    }

    pub(super) fn invite_guests(&mut self) {
        let count = match self.operator.way.has_streams {
            true => self.random.index(4),
            false => 0,
        };
        for number in 0..count {
            let guest = self.new_guest(number);
            self.guests.by_stream.push(guest);
            self.queue.after(0, Event::Guest(number));
        }
    }

    fn new_guest(&mut self, number: usize) -> Guest {
        let address = self.new_address(FIRST + number);
        let user = match self.operator.relays.sessions {
            Some(_) => BOUNDED_USER,
            None => number % NAMED,
        };
        let owner = rules::owner(self.addresses, user);
        let is_v6 = self.random.one_in(3);
        let proxy = plan::proxy(FIRST + number, is_v6, address.port());
        let proxy = self.random.one_in(4).then_some(proxy);
        let wire = self.connection(address, proxy);
        let random = self.random.fork(&format!("guest {}", self.addresses));
        let mut guest = Guest::new(owner, wire, USERS[user], random);
        guest.terms = self.operator.rules.terms(user);
        guest
    }

    /// Has a client with a tunnel do something, go away, or come anew.
    pub(super) fn guest(&mut self, number: usize) {
        if self.phase >= Phase::Silent {
            return;
        }
        let is_over = self.guests.by_stream[number].is_over() && self.random.one_in(4);
        if is_over || self.random.one_in(60) {
            let wire = self.guests.by_stream[number].wire;
            self.host.lock().wires.leave(wire);
            self.seen
                .coverage
                .count("guests that leave", u16::from(is_over));
            self.guests.by_stream[number] = self.new_guest(number);
        }
        let guest = &mut self.guests.by_stream[number];
        let bytes = guest.act(self.queue.now(), &mut self.guests.quota);
        self.host.lock().wires.write(guest.wire, &bytes);
        self.all_soon();
        let delay = self.random.between(10, 300) * MS;
        self.queue.after(delay, Event::Guest(number));
    }

    /// Has a client with a tunnel read what has come on its connection, which ends behind that if `is_over`.
    pub(super) fn guest_hears(
        &mut self,
        number: usize,
        bytes: &[u8],
        is_over: bool,
    ) -> Result<(), Violation> {
        self.seen.trace.bytes(bytes);
        let guest = &mut self.guests.by_stream[number];
        let judges = (&self.operator.rules, &mut self.guests.quota);
        guest.take(self.queue.now(), bytes, judges, &mut self.seen.coverage)?;
        if is_over {
            guest.disconnected();
        }
        Ok(())
    }

    /// Has all clients with tunnels go away. Returns the relayed addresses that they have had until now.
    pub(super) fn dismiss_guests(&mut self) -> Vec<SocketAddr> {
        let relays = self
            .guests
            .by_stream
            .iter()
            .flat_map(Guest::relays)
            .collect();
        for guest in &mut self.guests.by_stream {
            guest.disconnected();
            self.host.lock().wires.leave(guest.wire);
        }
        self.all_soon();
        relays
    }

    /// Lets clients by QUIC do something or hear something, and carries out what comes of it.
    pub(super) fn with_quic<T>(
        &mut self,
        work: impl FnOnce(&mut QuicClients, &mut Scene<'_>) -> T,
    ) -> T {
        let mut scene = Scene {
            now: self.queue.now(),
            rules: &self.operator.rules,
            server: &self.operator.server,
            host: &self.host,
            coverage: &mut self.seen.coverage,
            due: Vec::new(),
            payloads: 0,
        };
        let result = work(&mut self.guests.quic, &mut scene);
        for due in scene.due {
            match due {
                Due::Sent(from, datagram) => self.send(from, listener_of(from), datagram),
                Due::Wakes(at, number) => self.queue.at(at, Event::QuicWakes(number)),
            }
        }
        result
    }

    /// Has a client by QUIC do something.
    pub(super) fn quic_client(&mut self, number: usize) -> Result<(), Violation> {
        if self.phase < Phase::Silent {
            let delay = self.with_quic(|quic, scene| quic.act(number, scene))?;
            self.queue.after(delay, Event::QuicClient(number));
        }
        Ok(())
    }

    /// Checks that nothing is left of connections of QUIC whose clients are gone.
    pub(super) fn connections_are_gone(&self) -> Result<(), Violation> {
        let shards = self.shards.iter();
        let left: usize = shards.map(|it| it.shard.quic_connections()).sum();
        ensure(left == 0, "connections", || {
            format!("{left} of QUIC are left without clients")
        })
    }

    /// Checks that nothing is left of tunnels whose clients are gone, which had these addresses.
    pub(super) fn tunnels_are_gone(&self, relays: &[SocketAddr]) -> Result<(), Violation> {
        let tunnels = self.shards.iter().map(|running| running.shard.tunnels());
        let left: u64 = tunnels.sum();
        ensure(left == 0, "tunnels", || {
            format!("{left} of them are left without clients")
        })?;
        // A client of TURN may have been granted one of them that was under way.
        let granted: Vec<_> = self.clients.iter().filter_map(|it| it.relayed).collect();
        let shared = self.operator.relays.shared.concat();
        for relay in relays {
            let owner = self.host.owner(*relay);
            let is_free = !matches!(owner, Some(Owner::Relay(..)));
            let is_right = is_free || granted.contains(relay) || shared.contains(relay);
            ensure(is_right, "tunnels", || {
                format!("{relay} is left open without a client")
            })?;
        }
        Ok(())
    }

    /// Lets a stranger do the next thing.
    pub(super) fn stranger(&mut self, number: usize) {
        if self.phase != Phase::Faults {
            return;
        }
        for _ in 0..1 + self.random.index(20) {
            let port = self.random.between_u16(1024, 60_000);
            let mut transaction = [0; 12];
            self.random.fill_bytes(&mut transaction);
            let draft = Draft::request(Method::ALLOCATE).with(Attribute::Transport(17));
            let bytes = draft.write(TransactionId::from(transaction), None);
            let from = plan::stranger(number, self.random.one_in(3), port);
            self.send(from, listener_of(from), bytes);
        }
        self.impersonate(number);
        if self.operator.way.has_sessions {
            self.forge();
        }
        if self.operator.way.has_streams {
            self.come_and_go(number);
        }
        self.with_quic(|quic, scene| quic.forge(number, scene));
        let delay = self.random.between(20, 400) * MS;
        self.queue.after(delay, Event::Stranger(number));
    }

    /// Has a stranger send data in a client's name, as if it were the client's proxy.
    fn impersonate(&mut self, number: usize) {
        let proxied = self.clients.iter_mut().filter(|it| it.proxy().is_some());
        let mut proxied: Vec<_> = proxied.collect();
        let count = proxied.len();
        let Some(client) = proxied.get_mut(self.random.index(count.max(1))) else {
            return;
        };
        let (address, hears_at) = (client.address, client.hears_at());
        let Some(message) = client.impersonated() else {
            return;
        };
        self.seen.coverage.count("false proxies", 0);
        let bytes = proxy::datagram(address, listener_of(address), &message);
        let from = plan::stranger(number, hears_at.is_ipv6(), 5000);
        self.send(from, listener_of(from), bytes);
    }

    /// Has a stranger send a hello or a record in the name of a client by DTLS.
    fn forge(&mut self) {
        let clients = 0..self.clients.len();
        let all: Vec<_> = clients
            .filter(|number| self.clients[*number].has_sessions())
            .collect();
        let Some(&number) = self.random.choose(&all) else {
            return;
        };
        self.seen.coverage.count("forged records", 0);
        let datagram = match self.random.one_in(2) {
            true => dtls::forged_hello(&mut self.random),
            false => dtls::forged_record(&mut self.random),
        };
        self.send_datagram_of(number, datagram);
    }
}
