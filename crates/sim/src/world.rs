//! The simulated Internet: clients, their NATs, paths, peers, attackers and one server, on one clock.
//!
//! [`World::step`] takes the next event and lets whoever it concerns act. Everything that an actor
//! sends becomes an event again. Nothing else moves time.

use std::net::SocketAddr;

use turnbuckle_engine::{IcmpError, RelayOpenError};
use turnbuckle_wire::TransactionId;

use crate::attack::{Attackers, Captured};
use crate::check::{Datagram, Output, Watched};
use crate::client::{Client, Effect, Signalling};
use crate::features::Feature;
use crate::message::channel_data;
use crate::model::Tuple;
use crate::plan::{self, Place};
use crate::queue::{MS, Queue, SECOND};
use crate::random::Seeded;
use crate::scenario::Scenario;
use crate::server::Opening;
use crate::trace::Trace;
use crate::violation::{Violation, ensure};

/// The clock does not start at zero, as that of a real machine does not.
const START: u64 = 12_345 * SECOND;

/// Something that is going to happen.
#[derive(Debug)]
enum Event {
    Attack,
    ClientActs(usize),
    Crash,
    Icmp(SocketAddr, IcmpError),
    Opened(Opening),
    PeersAct,
    Rebind(usize),
    Restart,
    Retransmit(usize, TransactionId),
    Timer(usize),
    ToClient(usize, Datagram),
    ToListener(Datagram),
    ToPeer(Datagram),
    ToRelay(Datagram),
}

impl Event {
    /// Returns whether nothing comes of it while the server is dead.
    fn needs_server(&self) -> bool {
        matches!(
            self,
            Self::Icmp(..)
                | Self::Opened(_)
                | Self::Timer(_)
                | Self::ToListener(_)
                | Self::ToRelay(_)
        )
    }
}

/// Holds the sources of what is drawn, apart from each other: one more draw for a path changes nothing of what peers do.
#[derive(Debug)]
struct Chance {
    paths: Seeded,
    host: Seeded,
    peers: Seeded,
}

/// Everybody and everything.
#[derive(Debug)]
pub struct World {
    scenario: Scenario,
    queue: Queue<Event>,
    /// The server, the model and the checks.
    pub watched: Watched,
    clients: Vec<Client>,
    signalling: Signalling,
    attackers: Attackers,
    captured: Captured,
    /// When each shard's timer event is due, if there is one.
    timers: Vec<Option<u64>>,
    chance: Chance,
    /// The server is dead: what is sent to it is lost.
    down: bool,
    /// Set at the end: nobody acts any more, and everything must come to an end.
    closing: bool,
}

impl World {
    /// Makes the world of a scenario at its beginning.
    #[must_use]
    pub fn new(scenario: Scenario, trace: Trace) -> Self {
        let features = scenario.features;
        let watched = Watched::new(
            scenario.config.clone(),
            scenario.rules.clone(),
            scenario.secrets.clone(),
            scenario.nonces(),
            scenario.shard_count,
            scenario.random("engines"),
            trace,
        );
        let mut queue = Queue::new(START);
        let mut clients = Vec::new();
        for number in 0..scenario.client_count {
            let random = scenario.random(&format!("client {number}"));
            clients.push(Client::new(number, features, scenario.user(number), random));
            queue.after(10 * MS * number as u64, Event::ClientActs(number));
        }
        queue.after(200 * MS, Event::Attack);
        queue.after(300 * MS, Event::PeersAct);
        let mut host = scenario.random("host");
        if features.has(Feature::Crash) {
            queue.after(host.between(1, 600) * SECOND, Event::Crash);
        }
        if features.has(Feature::Rebind) {
            queue.after(host.between(1, 300) * SECOND, Event::Rebind(0));
        }
        Self {
            queue,
            watched,
            clients,
            signalling: Signalling::default(),
            attackers: Attackers::new(&scenario),
            captured: Captured::default(),
            timers: vec![None; scenario.shard_count],
            chance: Chance {
                paths: scenario.random("paths"),
                host,
                peers: scenario.random("peers"),
            },
            down: false,
            closing: false,
            scenario,
        }
    }

    /// Returns the virtual time, in nanoseconds.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.queue.now()
    }

    /// Returns the virtual time since the beginning, in nanoseconds.
    #[must_use]
    pub fn elapsed(&self) -> u64 {
        self.queue.now() - START
    }

    /// Lets the next event happen.
    ///
    /// # Errors
    ///
    /// The first rule that was broken.
    pub fn step(&mut self) -> Result<(), Violation> {
        if let Some(event) = self.queue.pop() {
            self.happen(event)?;
        }
        Ok(())
    }

    /// Lets everything end by itself, and checks that nothing is left.
    ///
    /// # Errors
    ///
    /// The first rule that was broken.
    pub fn close(&mut self) -> Result<(), Violation> {
        self.closing = true;
        while let Some(event) = self.queue.pop() {
            if matches!(event, Event::Timer(_) | Event::Opened(_) | Event::Restart) {
                self.happen(event)?;
            }
        }
        let model = &self.watched.model;
        ensure(
            model.allocations.is_empty() && model.pending.is_empty(),
            "I6",
            || format!("never ended: {:?} {:?}", model.allocations, model.pending),
        )?;
        for (relay, counts) in self.watched.server.commons.ports() {
            ensure(counts.free == counts.size, "I4", || {
                format!("{relay:?} at the end: {counts:?}")
            })?;
        }
        Ok(())
    }

    fn happen(&mut self, event: Event) -> Result<(), Violation> {
        let now = self.queue.now();
        let features = self.scenario.features;
        if self.down && event.needs_server() {
            return Ok(());
        }
        let output = match event {
            Event::ClientActs(number) => {
                let client = &mut self.clients[number];
                let effects = client.act(now, &mut self.signalling);
                self.queue.after(client.pause(), Event::ClientActs(number));
                self.client_does(number, effects);
                Output::default()
            }
            Event::Retransmit(number, id) => {
                let effects = self.clients[number].retransmit(id);
                self.client_does(number, effects);
                Output::default()
            }
            Event::ToClient(number, datagram) => {
                let client = &mut self.clients[number];
                let path = Tuple {
                    server: datagram.from,
                    client: datagram.to,
                };
                if client.receives_on(path) {
                    let effects = client.receive(now, &datagram.bytes, &mut self.signalling);
                    self.client_does(number, effects);
                }
                Output::default()
            }
            Event::Rebind(number) => {
                self.clients[number].rebind();
                let next = self.chance.host.index(self.clients.len());
                let pause = self.chance.host.between(1, 300) * SECOND;
                self.queue.after(pause, Event::Rebind(next));
                Output::default()
            }
            Event::Attack => {
                let attacks = self
                    .attackers
                    .act(&self.clients, &self.captured, &self.signalling);
                for datagram in attacks {
                    let arrives = match plan::place(datagram.to) {
                        Place::Listener => Event::ToListener(datagram),
                        _ => Event::ToRelay(datagram),
                    };
                    self.queue.after(20 * MS, arrives);
                }
                self.queue.after(self.attackers.pause(), Event::Attack);
                Output::default()
            }
            Event::PeersAct => {
                self.peers_act();
                Output::default()
            }
            Event::ToPeer(datagram) => {
                self.peer_receives(datagram);
                Output::default()
            }
            Event::ToListener(datagram) => {
                let from = Tuple {
                    server: datagram.to,
                    client: datagram.from,
                };
                self.watched.from_client(now, from, &datagram.bytes)?
            }
            Event::ToRelay(datagram) => {
                self.watched
                    .from_peer(now, datagram.to, datagram.from, &datagram.bytes)?
            }
            Event::Icmp(relay, error) => self.watched.from_icmp(now, relay, error)?,
            Event::Opened(opening) => {
                let result = self.open(&opening);
                self.watched.opened(now, opening, result)?
            }
            Event::Timer(shard) => {
                if self.timers[shard] != Some(now) {
                    return Ok(()); // another one was set since
                }
                self.timers[shard] = None;
                let due = self.watched.server.next_timeout(shard);
                if due.is_some_and(|due| due <= now) {
                    self.watched.timeout(now, shard)?
                } else {
                    Output::default()
                }
            }
            Event::Crash => {
                self.down = true;
                self.timers.fill(None);
                let dead = match self.chance.host.below(4) {
                    0 if features.has(Feature::Downtime) => {
                        self.chance.host.between(1, 1000) * SECOND
                    }
                    1 if features.has(Feature::Downtime) => self.chance.host.between(1, 1000) * MS,
                    _ => 0,
                };
                self.queue.after(dead, Event::Restart);
                return Ok(());
            }
            Event::Restart => {
                self.down = false;
                if features.has(Feature::Replay) {
                    for datagram in self.captured.requests() {
                        self.queue.after(50 * MS, Event::ToListener(datagram));
                    }
                }
                let compact = features.has(Feature::CompactJournal) && self.chance.host.one_in(2);
                let loses = features.has(Feature::OutOfResources);
                let host = &mut self.chance.host;
                let output = self
                    .watched
                    .crash(now, compact, |_| loses && host.one_in(8))?;
                self.queue
                    .after(self.chance.host.between(1, 900) * SECOND, Event::Crash);
                output
            }
        };
        self.carry(output);
        self.set_timers();
        Ok(())
    }

    fn client_does(&mut self, number: usize, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Retransmit(after, id) => {
                    self.queue.after(after, Event::Retransmit(number, id));
                }
                Effect::Send(bytes) => {
                    let path = self.clients[number].tuple();
                    self.client_sends(path, &bytes);
                }
                Effect::SendOld(bytes) => {
                    if let Some(path) = self.clients[number].previous {
                        self.client_sends(path, &bytes);
                    }
                }
            }
        }
    }

    fn client_sends(&mut self, path: Tuple, bytes: &[u8]) {
        self.captured.note(path, bytes);
        let (from, to) = (path.client, path.server);
        for (delay, bytes) in self
            .scenario
            .client_path
            .carry(&mut self.chance.paths, bytes)
        {
            self.queue
                .after(delay, Event::ToListener(Datagram { from, to, bytes }));
        }
    }

    /// Sends what the server sends, and starts what it wants done.
    fn carry(&mut self, output: Output) {
        for opening in output.openings {
            let slow = self.scenario.features.has(Feature::SlowOpen);
            let delay = match self.chance.host.below(8) {
                0 if slow => self.chance.host.between(5, 15) * SECOND,
                1..=3 if slow => self.chance.host.between(1, 900) * MS,
                _ => 0,
            };
            self.queue.after(delay, Event::Opened(opening));
        }
        for datagram in output.datagrams {
            match plan::place(datagram.to) {
                Place::Client(number) if number < self.clients.len() => {
                    let path = &self.scenario.client_path;
                    for (delay, bytes) in path.carry(&mut self.chance.paths, &datagram.bytes) {
                        let datagram = Datagram { bytes, ..datagram };
                        self.queue.after(delay, Event::ToClient(number, datagram));
                    }
                }
                Place::Peer(_) => {
                    let path = &self.scenario.peer_path;
                    for (delay, bytes) in path.carry(&mut self.chance.paths, &datagram.bytes) {
                        self.queue
                            .after(delay, Event::ToPeer(Datagram { bytes, ..datagram }));
                    }
                }
                Place::Relay => {
                    self.watched.coverage.count("hairpin", 0);
                    // It never leaves the host, so no NAT changes the source.
                    let socket = self.watched.server.socket_at(datagram.from);
                    let from = socket.map_or(datagram.from, |socket| socket.local);
                    self.queue
                        .after(MS, Event::ToRelay(Datagram { from, ..datagram }));
                }
                Place::Listener | Place::Client(_) | Place::Proxy(_) | Place::Nowhere => {}
            }
        }
    }

    fn open(&mut self, opening: &Opening) -> Result<(), RelayOpenError> {
        let features = self.scenario.features;
        let server = &self.watched.server;
        let is_free = opening.is_held || !server.is_bound(opening.address);
        if !is_free || opening.reserves_next && server.is_bound(opening.next()) {
            return Err(RelayOpenError::AddressInUse);
        }
        if features.has(Feature::AddressInUse) && self.chance.host.one_in(3) && !opening.is_held {
            return Err(RelayOpenError::AddressInUse);
        }
        if features.has(Feature::OutOfResources) && self.chance.host.one_in(6) {
            return Err(if self.chance.host.one_in(2) {
                RelayOpenError::OutOfResources
            } else {
                RelayOpenError::Other
            });
        }
        Ok(())
    }

    fn peer_receives(&mut self, datagram: Datagram) {
        let open = (4000..=4001).contains(&datagram.to.port());
        if !open {
            if self.scenario.features.has(Feature::Icmp) && self.chance.peers.one_in(2) {
                let v6 = datagram.to.is_ipv6();
                let error = IcmpError {
                    peer: datagram.to,
                    kind: if v6 { 1 } else { 3 },
                    code: if v6 { 4 } else { 3 },
                    mtu: 0,
                    v6,
                };
                self.queue.after(20 * MS, Event::Icmp(datagram.from, error));
            }
            return;
        }
        if self.chance.peers.one_in(2) {
            let mut source = datagram.to;
            if self.chance.peers.one_in(8) {
                source.set_port(source.port() ^ 1); // RFC 8656 §9: the port plays no part
            }
            self.peer_sends(source, datagram.from, &datagram.bytes);
        }
    }

    fn peer_sends(&mut self, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        for (delay, bytes) in self.scenario.peer_path.carry(&mut self.chance.paths, bytes) {
            self.queue
                .after(delay, Event::ToRelay(Datagram { from, to, bytes }));
        }
    }

    fn peers_act(&mut self) {
        let features = self.scenario.features;
        let sockets = self.watched.server.sockets();
        let relays: Vec<SocketAddr> = sockets
            .map(|socket| self.watched.server.outside(socket.local))
            .collect();
        if let Some(relay) = self.chance.peers.choose(&relays).copied() {
            let v6 = relay.is_ipv6();
            let peer = plan::peer(
                self.chance.peers.index(4),
                v6,
                4000 + self.chance.peers.between_u16(0, 1),
            );
            if features.has(Feature::Sharpshooters) {
                self.aim();
            }
            if features.has(Feature::UnsolicitedPeers) {
                let len = self.chance.peers.index(80);
                let bytes = self.chance.peers.bytes(len);
                self.peer_sends(peer, relay, &bytes);
            }
            if features.has(Feature::Icmp) && self.chance.peers.one_in(3) {
                let error = IcmpError {
                    peer: if self.chance.peers.one_in(4) {
                        plan::stranger(1, v6, 53)
                    } else {
                        peer
                    },
                    kind: [0, 1, 2, 3, 4, 5, 11, 128][self.chance.peers.index(8)],
                    code: self.chance.peers.bytes(1)[0] % 8,
                    mtu: 1280,
                    v6: v6 ^ self.chance.peers.one_in(10),
                };
                self.queue.after(0, Event::Icmp(relay, error));
            }
        }
        let pause = match self.chance.peers.below(3) {
            0 => 20 * MS,
            1 => self.chance.peers.between(1, 10) * SECOND,
            _ => self.chance.peers.between(10, 200) * SECOND,
        };
        self.queue.after(pause, Event::PeersAct);
    }

    /// Queues data around the moment at which a permission or a channel of somebody's ends.
    fn aim(&mut self) {
        let now = self.queue.now();
        let held: Vec<_> = self.watched.model.allocations.iter().collect();
        let Some((tuple, held)) = self.chance.peers.choose(&held) else {
            return;
        };
        let mut shots = Vec::new();
        for (ip, due) in &held.permissions {
            if let Some(relay) = held.relay_towards(*ip) {
                let from = SocketAddr::new(*ip, 4000);
                let bytes = b"at the last moment".to_vec();
                shots.push((
                    *due,
                    Event::ToRelay(Datagram {
                        from,
                        to: relay,
                        bytes,
                    }),
                ));
            }
        }
        for (number, (_, due)) in &held.channels {
            let bytes = channel_data(*number, b"at the last moment");
            let (from, to) = (tuple.client, tuple.server);
            shots.push((*due, Event::ToListener(Datagram { from, to, bytes })));
        }
        if shots.is_empty() {
            return;
        }
        let (due, event) = shots.swap_remove(self.chance.peers.index(shots.len()));
        let at = match self.chance.peers.below(4) {
            0 => due - 1,
            1 => due,
            2 => due + self.chance.peers.below(130) * MS,
            _ => due + self.chance.peers.below(600) * MS,
        };
        if at > now {
            self.queue.at(at, event);
        }
    }

    fn set_timers(&mut self) {
        if self.down {
            return;
        }
        for shard in 0..self.timers.len() {
            let Some(due) = self.watched.server.next_timeout(shard) else {
                continue;
            };
            let due = due.max(self.queue.now());
            if self.timers[shard].is_some_and(|set| set <= due) {
                continue;
            }
            let late = self.scenario.features.has(Feature::LateTimers) && !self.closing;
            let at = due
                + if late {
                    self.chance.host.below(500) * MS
                } else {
                    0
                };
            if self.timers[shard].is_none_or(|set| at < set) {
                self.timers[shard] = Some(at);
                self.queue.at(at, Event::Timer(shard));
            }
        }
    }
}
