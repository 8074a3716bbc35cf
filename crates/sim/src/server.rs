//! The host of the engines: what a server's threads and its kernel do, without deciding anything.
//!
//! A step hands one input to one engine and collects everything that comes out. Whether that was
//! right is somebody else's question ([`crate::check`]).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use turnbuckle_engine::{
    Change, ClientRoute, ClientTuple, Command, Commons, Config, DropReason, Endpoint, Engine,
    HeldPort, IcmpError, InterfaceAddress, Now, Opened, Outcome, PeerRoute, Random, RelayHandle,
    RelayOpenError, RelayRequest, Statistics, Time,
};
use turnbuckle_server::simulation::segment;

use crate::held::{HeldPorts, HeldSocket};
use crate::model::Tuple;
use crate::plan;
use crate::queue::SECOND;
use crate::random::Seeded;

/// The second since 1970 at which every run starts.
pub const START_UNIX_S: u64 = 1_800_000_000;

/// Returns both clocks of the engine at a virtual time.
#[must_use]
pub fn clocks(now: u64) -> Now {
    Now {
        time: Time::from_nanos(now),
        unix_s: START_UNIX_S + now / SECOND,
    }
}

/// The simulator's source of randomness for an engine.
#[derive(Debug)]
pub struct EngineRandom(pub Seeded);

impl Random for EngineRandom {
    fn fill(&mut self, bytes: &mut [u8]) {
        self.0.fill_bytes(bytes);
    }
}

/// A server: some engines, the pools they share, and its sockets.
#[derive(Debug)]
pub struct Server {
    /// What the operator decided.
    pub config: Arc<Config>,
    /// What the engines share.
    pub commons: Arc<Commons>,
    shards: Vec<Shard>,
    sockets: BTreeMap<Endpoint, Socket>,
    /// Sockets at ports that are reserved, and those of them that are about to be in use.
    held: HeldPorts,
    taking: BTreeMap<(usize, RelayRequest), HeldSocket>,
    next_endpoint: u32,
    random: Seeded,
    /// Counts lives: an answer to a question of an earlier life is not delivered.
    pub life: u64,
}

#[derive(Debug)]
struct Shard {
    engine: Engine<EngineRandom>,
    listeners: Vec<(Endpoint, SocketAddr)>,
    journal: Vec<Change>,
}

/// A relay socket.
#[derive(Clone, Copy, Debug)]
pub struct Socket {
    /// The address it is bound to.
    pub local: SocketAddr,
    /// The shard that owns it.
    pub shard: usize,
    /// The engine's name for it.
    pub handle: RelayHandle,
}

/// A wish for a relay socket.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// The shard that asks.
    pub shard: usize,
    /// The life of the server in which it asked.
    pub life: u64,
    /// The engine's name for the wish.
    pub request: RelayRequest,
    /// The address to bind.
    pub address: SocketAddr,
    /// The engine's name for the socket.
    pub handle: RelayHandle,
    /// Whether the next port is to be held.
    pub reserves_next: bool,
    /// Whether the host has held the address until now.
    pub is_held: bool,
}

impl Opening {
    /// Returns the address beside the one to bind.
    #[must_use]
    pub fn next(&self) -> SocketAddr {
        SocketAddr::new(self.address.ip(), self.address.port() + 1)
    }
}

/// What an engine did with one input.
#[derive(Debug)]
pub struct Step {
    /// The shard.
    pub shard: usize,
    /// The verdict on the input itself.
    pub verdict: Verdict,
    /// Answers, with the 5-tuple each goes to.
    pub replies: Vec<(Tuple, Vec<u8>)>,
    /// Relay sockets asked for.
    pub opens: Vec<Opening>,
    /// Relay sockets given up, by bound address.
    pub closes: Vec<SocketAddr>,
    /// Changes of durable state.
    pub changes: Vec<Change>,
    /// Commands that no host could carry out.
    pub absurd: Vec<String>,
}

/// The verdict on an input.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// The input was no datagram.
    Event,
    /// A STUN message or an ICMP error.
    Message(Outcome),
    /// A channel message.
    Channel(Result<PeerRoute, DropReason>),
    /// A datagram from a peer.
    Peer(Result<ClientRoute, DropReason>),
}

impl Step {
    /// Returns whether nothing came out beside the verdict.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let commands = self.replies.len() + self.opens.len() + self.closes.len();
        commands == 0 && self.changes.is_empty()
    }
}

impl Server {
    /// Makes a server that has just started.
    #[must_use]
    pub fn new(config: Config, shard_count: usize, random: Seeded) -> Self {
        let config = Arc::new(config);
        let mut server = Self {
            commons: Commons::new(&config),
            config,
            shards: Vec::new(),
            sockets: BTreeMap::new(),
            held: HeldPorts::default(),
            taking: BTreeMap::new(),
            next_endpoint: 1000,
            random,
            life: 0,
        };
        for shard in 0..shard_count {
            let random = server.engine_random();
            let mut engine = Engine::new(
                Arc::clone(&server.config),
                Arc::clone(&server.commons),
                random,
            );
            let listeners = listeners(shard);
            for (endpoint, local) in &listeners {
                engine.add_listener(*endpoint, *local);
            }
            engine.set_host_addresses(Time::ZERO, server.interfaces(), &[]);
            engine.set_shard(u32::try_from(shard).unwrap_or(u32::MAX));
            server.shards.push(Shard {
                engine,
                listeners,
                journal: Vec::new(),
            });
        }
        server
    }

    /// Returns the addresses of the host's interfaces (V-07).
    fn interfaces(&self) -> Vec<InterfaceAddress> {
        let listeners = plan::LISTENERS.iter().map(SocketAddr::ip);
        let relays = self.config.relays.addresses.iter().map(|relay| relay.local);
        let interface = |ip: IpAddr| InterfaceAddress {
            ip,
            prefix_len: if ip.is_ipv4() { 32 } else { 128 },
        };
        listeners.chain(relays).map(interface).collect()
    }

    fn engine_random(&mut self) -> EngineRandom {
        EngineRandom(Seeded::new(self.random.next_u64()))
    }

    /// Returns how many engines there are.
    #[must_use]
    pub fn shard_count(&self) -> usize {
        self.shards.len()
    }

    /// Returns the shard that has the allocation of a client, else the one that the kernel picks.
    #[must_use]
    pub fn shard_of(&self, client: Tuple) -> usize {
        let knows = |shard: &usize| {
            let tuple = self.client_tuple(*shard, client);
            tuple.is_some_and(|tuple| self.shards[*shard].engine.client(&tuple).is_some())
        };
        let home = (0..self.shards.len()).find(knows);
        home.unwrap_or_else(|| self.picked_by_kernel(client))
    }

    /// Returns the shard that the kernel's SO_REUSEPORT hash picks for a client.
    fn picked_by_kernel(&self, client: Tuple) -> usize {
        let address = match client.client.ip() {
            IpAddr::V4(ip) => u64::from(ip.to_bits()),
            IpAddr::V6(ip) => {
                let words = ip.segments().map(u64::from);
                words
                    .iter()
                    .fold(0_u64, |folded, word| folded.rotate_left(13) ^ word)
            }
        };
        Seeded::new(address.rotate_left(16) ^ u64::from(client.client.port()))
            .index(self.shards.len())
    }

    /// Returns the live counts of one engine.
    #[must_use]
    pub fn statistics(&self, shard: usize) -> Statistics {
        self.shards[shard].engine.statistics()
    }

    /// Returns when the engine of `shard` wants to be woken, in nanoseconds.
    #[must_use]
    pub fn next_timeout(&self, shard: usize) -> Option<u64> {
        let time = self.shards[shard].engine.next_timeout();
        time.map(Time::as_nanos)
    }

    /// Returns the outside address of a relay address of this host, and any other address as it is.
    #[must_use]
    pub fn outside(&self, local: SocketAddr) -> SocketAddr {
        let mut relays = self.config.relays.addresses.iter();
        match relays.find(|relay| relay.local == local.ip()) {
            Some(relay) => SocketAddr::new(relay.external.unwrap_or(relay.local), local.port()),
            None => local,
        }
    }

    /// Returns the relay socket with this name.
    #[must_use]
    pub fn socket(&self, endpoint: Endpoint) -> Option<&Socket> {
        self.sockets.get(&endpoint)
    }

    /// Returns the relay socket that the outside knows as `address`.
    #[must_use]
    pub fn socket_at(&self, address: SocketAddr) -> Option<Socket> {
        let address = self.outside(address);
        let mut sockets = self.sockets.values();
        sockets
            .find(|socket| self.outside(socket.local) == address)
            .copied()
    }

    /// Returns whether a program has the port, this server or another one.
    #[must_use]
    pub fn is_bound(&self, address: SocketAddr) -> bool {
        self.held.has(address) || self.sockets().any(|socket| socket.local == address)
    }

    /// Returns the ports that are held, and among them those that are about to be in use.
    #[must_use]
    pub fn held(&self) -> (BTreeSet<SocketAddr>, BTreeSet<SocketAddr>) {
        let taking = self.taking.values().map(HeldSocket::address);
        (self.held.addresses(), taking.collect())
    }

    /// Returns the relay sockets that are open.
    pub fn sockets(&self) -> impl Iterator<Item = &Socket> {
        self.sockets.values()
    }

    /// Returns the 5-tuple behind the engine's name for it.
    #[must_use]
    pub fn tuple(&self, shard: usize, client: ClientTuple) -> Option<Tuple> {
        let mut listeners = self.shards[shard].listeners.iter();
        let (_, server) = listeners.find(|(endpoint, _)| *endpoint == client.listener)?;
        Some(Tuple {
            server: *server,
            client: client.remote,
        })
    }

    fn client_tuple(&self, shard: usize, from: Tuple) -> Option<ClientTuple> {
        let mut listeners = self.shards[shard].listeners.iter();
        let (listener, _) = listeners.find(|(_, local)| *local == from.server)?;
        Some(ClientTuple::udp(*listener, from.client))
    }

    /// Hands over a STUN message.
    pub fn stun(&mut self, now: u64, from: Tuple, bytes: &[u8]) -> Step {
        let step = self.stun_at(self.shard_of(from), now, from, bytes);
        match step.verdict {
            // The host hands it over; whoever gets it then must not hand it on.
            Verdict::Message(Outcome::Elsewhere { shard }) if step.is_idle() => {
                let shard = usize::try_from(shard).unwrap_or(usize::MAX);
                self.stun_at(shard, now, from, bytes)
            }
            _ => step,
        }
    }

    fn stun_at(&mut self, shard: usize, now: u64, from: Tuple, bytes: &[u8]) -> Step {
        let verdict = match self.client_tuple(shard, from) {
            Some(client) => {
                let engine = &mut self.shards[shard].engine;
                Verdict::Message(engine.handle_stun(clocks(now), client, bytes))
            }
            None => Verdict::Event,
        };
        self.collect(shard, verdict)
    }

    /// Hands over a channel message with `payload` bytes.
    pub fn channel(&mut self, now: u64, from: Tuple, number: u16, payload: usize) -> Step {
        let shard = self.shard_of(from);
        let client = self.client_tuple(shard, from);
        let engine = &mut self.shards[shard].engine;
        let allocation = client.and_then(|client| engine.client_of_data(&client, clocks(now)));
        let verdict = Verdict::Channel(match allocation {
            None => Err(DropReason::NoAllocation),
            Some(allocation) => engine.route_channel_data(
                Time::from_nanos(now),
                allocation,
                number,
                1,
                payload as u64,
            ),
        });
        self.collect(shard, verdict)
    }

    /// Hands over what arrived at a relay socket.
    pub fn peer(&mut self, now: u64, socket: Socket, source: SocketAddr, payload: usize) -> Step {
        let engine = &mut self.shards[socket.shard].engine;
        let time = Time::from_nanos(now);
        let verdict =
            Verdict::Peer(engine.route_from_peer(time, socket.handle, source, 1, payload as u64));
        self.collect(socket.shard, verdict)
    }

    /// Returns a transaction id for a Data indication.
    pub fn transaction_id(&mut self, shard: usize) -> turnbuckle_wire::TransactionId {
        self.shards[shard].engine.transaction_id()
    }

    /// Hands over an ICMP error.
    pub fn icmp(&mut self, now: u64, socket: Socket, error: IcmpError) -> Step {
        let engine = &mut self.shards[socket.shard].engine;
        let verdict = Verdict::Message(engine.handle_icmp(clocks(now), socket.handle, error));
        self.collect(socket.shard, verdict)
    }

    /// Answers a wish for a relay socket. `None` when the server that asked is dead.
    pub fn opened(
        &mut self,
        now: u64,
        opening: Opening,
        result: Result<(), RelayOpenError>,
    ) -> Option<Step> {
        if opening.life != self.life {
            return None;
        }
        drop(self.taking.remove(&(opening.shard, opening.request)));
        let result = result.map(|()| {
            let endpoint = self.endpoint();
            let socket = Socket {
                local: opening.address,
                shard: opening.shard,
                handle: opening.handle,
            };
            self.sockets.insert(endpoint, socket);
            let next = opening.next();
            let beside = opening.reserves_next.then(|| self.held.hold(next));
            Opened { endpoint, beside }
        });
        let engine = &mut self.shards[opening.shard].engine;
        engine.relay_opened(clocks(now), opening.request, result);
        Some(self.collect(opening.shard, Verdict::Event))
    }

    /// Lets the engine of `shard` see to its timers.
    pub fn timeout(&mut self, now: u64, shard: usize) -> Step {
        self.shards[shard].engine.handle_timeout(clocks(now));
        self.collect(shard, Verdict::Event)
    }

    /// Kills the server and builds it again from its journals. `lost` says which sockets cannot be
    /// had back. Returns a step for each shard.
    pub fn crash(
        &mut self,
        now: u64,
        compact: bool,
        mut lost: impl FnMut(SocketAddr) -> bool,
    ) -> Vec<Step> {
        self.life += 1;
        let old = std::mem::take(&mut self.sockets);
        self.held = HeldPorts::default();
        self.taking.clear();
        let journals: Vec<Vec<Change>> = self
            .shards
            .drain(..)
            .map(|shard| match compact {
                true => compacted(&shard, now),
                false => shard.journal,
            })
            .collect();
        self.commons = Commons::new(&self.config);
        let mut steps = Vec::new();
        for (index, journal) in journals.into_iter().enumerate() {
            let journal = written_and_read(&journal, self.life);
            let random = self.engine_random();
            let next = &mut self.next_endpoint;
            let sockets = &mut self.sockets;
            let mut engine = Engine::rebuild(
                Arc::clone(&self.config),
                Arc::clone(&self.commons),
                random,
                clocks(now),
                listeners(index),
                journal.iter().cloned(),
                |local| {
                    let socket = old.values().find(|socket| socket.local == local)?;
                    if lost(local) {
                        return None;
                    }
                    *next += 1;
                    sockets.insert(Endpoint(*next), *socket);
                    Some(Endpoint(*next))
                },
            );
            engine.set_host_addresses(clocks(now).time, self.interfaces(), &[]);
            engine.set_shard(u32::try_from(index).unwrap_or(u32::MAX));
            self.shards.push(Shard {
                engine,
                listeners: listeners(index),
                journal,
            });
        }
        for shard in 0..self.shards.len() {
            steps.push(self.collect(shard, Verdict::Event));
        }
        steps
    }

    fn endpoint(&mut self) -> Endpoint {
        self.next_endpoint += 1;
        Endpoint(self.next_endpoint)
    }

    fn collect(&mut self, index: usize, verdict: Verdict) -> Step {
        let mut replies = Vec::new();
        let mut opens = Vec::new();
        let mut closes = Vec::new();
        let mut absurd = Vec::new();
        let life = self.life;
        let shard = &mut self.shards[index];
        let sockets = &mut self.sockets;
        let (held_ports, taking) = (&self.held, &mut self.taking);
        shard.engine.with_commands(|command| match command {
            Command::Reply { to, bytes, .. } => replies.push((to, bytes.to_vec())),
            Command::OpenRelay {
                request,
                address,
                handle,
                protocol: _,
                reserves_next,
                held,
            } => {
                let held = held.and_then(HeldPort::into_inner::<HeldSocket>);
                let is_held = held.is_some();
                if sockets.values().any(|socket| socket.local == address) {
                    absurd.push(format!("opens {address}, which is open"));
                }
                if held_ports.has(address) != is_held
                    || held.as_ref().is_some_and(|held| held.address() != address)
                {
                    absurd.push(format!("opens {address} with {held:?}"));
                }
                taking.extend(held.map(|held| ((index, request), held)));
                opens.push(Opening {
                    shard: index,
                    life,
                    request,
                    address,
                    handle,
                    reserves_next,
                    is_held,
                });
            }
            Command::TunnelEnded { .. } | Command::TunnelOpened { .. } => {
                absurd.push(format!("{command:?} without tunnels"));
            }
            Command::ClosePeer { .. } | Command::Connect { .. } | Command::Join { .. } => {
                absurd.push(format!("{command:?} without TCP relays"));
            }
            Command::CloseRelay { endpoint } => match sockets.remove(&endpoint) {
                Some(socket) => closes.push(socket.local),
                None => absurd.push(format!("closes {endpoint:?}, which is not open")),
            },
        });
        let changes: Vec<Change> = std::iter::from_fn(|| shard.engine.poll_change()).collect();
        shard.journal.extend(changes.iter().cloned());
        let replies = replies
            .into_iter()
            .filter_map(|(to, bytes)| match self.tuple(index, to) {
                Some(to) => Some((to, bytes)),
                None => {
                    absurd.push(format!("answers through the unknown listener of {to:?}"));
                    None
                }
            })
            .collect();
        Step {
            shard: index,
            verdict,
            replies,
            opens,
            closes,
            changes,
            absurd,
        }
    }
}

/// Returns the listeners of one shard; all shards have the same addresses under different names.
fn listeners(shard: usize) -> Vec<(Endpoint, SocketAddr)> {
    let base = u32::try_from(shard * plan::LISTENERS.len()).unwrap_or(0);
    (base..).map(Endpoint).zip(plan::LISTENERS).collect()
}

/// Places where a journal is damaged before each crash.
const DAMAGES: usize = 16;

/// Returns a journal that was begun anew: what has ended, so that its transactions do not act again, and the state of the engine.
fn compacted(shard: &Shard, now: u64) -> Vec<Change> {
    let is_end = |change: &&Change| matches!(change, Change::Ended(_));
    let mut journal: Vec<_> = shard.journal.iter().filter(is_end).cloned().collect();
    let engine = &shard.engine;
    for slot in 0..engine.session_slots() {
        engine.snapshot(clocks(now).time, slot, |change| {
            journal.push(change.clone());
        });
    }
    // Behind the allocations that they are about.
    let is_end = |change: &&Change| matches!(change, Change::FamilyEnded { .. });
    journal.extend(shard.journal.iter().filter(is_end).cloned());
    journal
}

/// Returns what is read of a journal that was written, with the record that its server was writing behind it. Checks that it is refused when it is damaged, at
/// places that depend on `life`.
fn written_and_read(journal: &[Change], life: u64) -> Vec<Change> {
    let (mut encoder, mut bytes) = (segment::Encoder::default(), Vec::new());
    for change in journal {
        encoder.append(change, &mut bytes);
    }
    let committed = bytes.len();
    for part in 0..DAMAGES.min(committed) {
        let at = (committed * part / DAMAGES + usize::try_from(life).unwrap_or(0)) % committed;
        let short = segment::decode(&bytes[..at], committed);
        assert!(
            short.is_err(),
            "a journal cut at {at} of {committed} is read"
        );
        let bit = 1 << (at % 8);
        bytes[at] ^= bit;
        let flipped = segment::decode(&bytes, committed);
        assert!(flipped.is_err(), "a journal with another byte {at} is read");
        bytes[at] ^= bit;
    }
    let torn = bytes.len() / 2;
    bytes.extend_from_within(torn..);
    let read = segment::decode(&bytes, committed);
    read.expect("what was written can be read").changes
}
