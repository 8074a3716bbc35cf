//! The world of several shards: what happens when, and what must hold.

mod claims;
mod connections;
mod guest;
mod operator;
mod places;
mod quic;
mod quota;
mod rules;
mod shards;
mod tunnel;

use std::net::SocketAddr;
use std::num::NonZeroU32;

use turnbuckle_engine::Rate;
use turnbuckle_server::simulation::{Clock, Journals, Room, Server, Setup};

use self::guest::Guest;
use self::operator::{Operator, Relays, config, now_at};
use self::places::{LIMITS, PEER_PORT, PEERS, PEERS_V4, TURN_USERS, USERS, peer_at, proxies};
use self::quic::QuicClients;
use self::quota::Quota;
use self::rules::Rules;
use self::shards::Running;
use super::client::{Client, Sort, User};
use super::dtls::Sessions;
use super::host::{CallFaults, Owner, SharedHost};
use super::kernel::Relayed;
use super::meter::Meter;
use super::pass::Pass;
use super::path::Path;
use super::payload::{LEN_MIN, Payload, Sender};
use super::wire::WireId;
use crate::plan::{self, RELAY_V4, RELAY_V6};
use crate::queue::{MS, Queue, SECOND};
use crate::random::Seeded;
use crate::trace::Trace;
use crate::violation::{Coverage, Violation, ensure};

/// The first of the relays' ports.
const FIRST_PORT: u16 = 50_000;
/// What sources that proved nothing may be sent.
const STRANGERS: Rate = Rate {
    burst: 4096,
    per_s: 1024,
};
/// A reserved port is held at least so long after its client has heard of it: 60 s without what the answer took.
const HELD_FOR: u64 = 50 * SECOND;
/// When faults stop, whoever waits has its answer within this time.
const ANSWER_MAX: u64 = 30 * SECOND;
/// Relayed addresses that a peer remembers.
const SENDERS_MAX: usize = 6;
/// Connections that a stranger has open.
const IDLE_MAX: usize = 12;
/// How wrong the wall clock gets, in seconds: a day.
const AHEAD_MAX_S: u64 = 86_400;
/// Requests that wait for a connection to a peer, or that are on their way with their own.
const ASKED_MAX: u64 = 64;
/// How long each half of the end of a run takes.
const END: u64 = 60 * SECOND;
/// When the world begins, on both clocks.
const BEGIN_S: u64 = 1_000_000;
const BEGIN_UNIX_S: u64 = 1_800_000_000;

/// What happens.
#[derive(Debug)]
enum Event {
    /// A datagram arrives.
    Arrival {
        from: SocketAddr,
        to: SocketAddr,
        bytes: Vec<u8>,
    },
    /// A client does something.
    Client(usize),
    /// A client of HTTP does something.
    Guest(usize),
    /// The operator sets the clock, or has the server take over its configuration anew.
    Operator,
    /// Another program takes or gives back a port.
    OtherProgram,
    /// A peer sends data.
    Peer(usize),
    /// A client by QUIC does something, or what its connection has to do by itself.
    QuicClient(usize),
    QuicWakes(usize),
    /// Somebody asks without credentials.
    Stranger(usize),
    /// A shard takes a turn.
    Turn(usize),
    /// What has come on connections is read, and peers write on theirs.
    Wires,
}

/// A peer.
struct Peer {
    address: SocketAddr,
    /// Relayed addresses that it has heard from.
    senders: Vec<SocketAddr>,
}

/// Who proves nothing.
struct Strangers {
    count: usize,
    /// Their connections, on which they say nothing and are to hear nothing.
    idle: Vec<WireId>,
    /// What they were sent.
    meter: Meter,
}

/// What there is in this world.
#[derive(Clone, Copy)]
struct Way {
    /// Connections.
    has_streams: bool,
    /// Journals, so that the process can be killed.
    is_kept: bool,
    /// A kernel that relays.
    is_offloaded: bool,
    /// Clients by DTLS.
    has_sessions: bool,
    /// Clients by QUIC, and a kernel that reads their connection ids.
    has_quic: bool,
    is_steered: bool,
}

/// Clients of HTTP, which have tunnels.
struct Guests {
    by_stream: Vec<Guest>,
    quota: Quota,
    quic: QuicClients,
}

/// What happened.
pub(super) struct Seen {
    pub(super) trace: Trace,
    pub(super) coverage: Coverage,
}

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// Things go wrong.
    Faults,
    /// Nothing goes wrong any more.
    Calm,
    /// Nobody asks for anything any more.
    Silent,
    /// Everything is answered.
    Quiet,
}

/// The world.
pub(super) struct ShardsWorld {
    queue: Queue<Event>,
    operator: Operator,
    host: SharedHost,
    shards: Vec<Running>,
    clients: Vec<Client>,
    guests: Guests,
    /// How many transport addresses clients have had.
    addresses: u16,
    peers: Vec<Peer>,
    strangers: Strangers,
    random: Seeded,
    phase: Phase,
    pub(super) seen: Seen,
}

impl ShardsWorld {
    pub(super) fn new(seed: u64, lines: usize) -> Self {
        let seeded = Seeded::new(seed).fork("shards");
        let mut random = seeded.fork("world");
        let begin = BEGIN_S * SECOND;
        let clock = Clock::new(now_at(begin));
        let host = SharedHost::new(seeded.fork("host"));
        let count = 2 + random.index(3);
        let sharing = if random.one_in(4) { count } else { 0 };
        let mut rates = seeded.fork("rates");
        let rate = rates.one_in(2).then(|| rates.between_u16(20, 200));
        let mut quotas = seeded.fork("quotas");
        let sessions = quotas.one_in(2).then(|| 1 + u32::from(quotas.one_in(3)));
        let relays = Relays {
            ports: 8 + random.between_u16(0, 40),
            rate: rate.and_then(|it| NonZeroU32::new(it.into())),
            sessions,
            shared: Relays::shared_by(sharing),
        };
        let rules = Rules::default();
        let kernel = host.lock().kernel.clone();
        let way = Way {
            has_streams: !random.one_in(4),
            is_kept: random.one_in(2),
            is_offloaded: kernel.is_some(),
            has_sessions: seeded.fork("sessions").one_in(4),
            has_quic: seeded.fork("quic").one_in(4),
            is_steered: seeded.fork("steering").one_in(2),
        };
        let server = Server::new(Setup {
            config: config(&relays, &rules).into(),
            shards: count,
            clock: clock.clone(),
            limits: LIMITS,
            cookies: [9; 32],
            quic: way.has_quic.then_some([7; 32]),
            proxies: [false, true].map(proxies).into(),
            room: room(&mut random),
            journals: way
                .is_kept
                .then(|| Journals::new(count).expect("there is memory")),
        });
        if let Some(kernel) = &kernel {
            server.commons().set_meters(kernel.meters());
        }
        let shards = (0..count).map(|index| {
            let mut drawn = seeded.fork(&format!("shard {index}"));
            let shard = server.shard(index, Box::new(move |bytes| drawn.fill_bytes(bytes)));
            let random = seeded.fork(&format!("path {index}"));
            let path = Path::new(index, host.clone(), random);
            Running::new(shard, path, &relays.shared_of(index))
        });
        let shards = shards.collect();
        let mut world = Self {
            queue: Queue::new(begin),
            operator: Operator {
                server,
                clock,
                ahead_s: 0,
                relays,
                users: TURN_USERS - 1 + random.index(2),
                rules,
                way,
            },
            host: host.clone(),
            shards,
            clients: Vec::new(),
            guests: Guests {
                by_stream: Vec::new(),
                quota: Quota::new(sessions),
                quic: QuicClients::new(way.has_quic, seeded.fork("clients by QUIC")),
            },
            addresses: 0,
            peers: (0..PEERS)
                .map(|number| Peer {
                    address: peer_at(number, PEER_PORT),
                    senders: Vec::new(),
                })
                .collect(),
            strangers: Strangers {
                count: random.index(4),
                idle: Vec::new(),
                meter: Meter::new(STRANGERS),
            },
            random,
            phase: Phase::Faults,
            seen: Seen {
                trace: Trace::new(lines),
                coverage: Coverage::default(),
            },
        };
        for index in 0..count {
            let mut running = world.shards.remove(index);
            world.begin(index, &mut running, None);
            world.shards.insert(index, running);
        }
        world.populate();
        world
    }

    fn populate(&mut self) {
        // Some worlds have hardly any descriptors left.
        let descriptors_ppm = if self.random.one_in(4) {
            200_000
        } else {
            20_000
        };
        self.host.lock().faults = CallFaults {
            descriptors_ppm,
            buffers_ppm: 10_000,
            truncations_ppm: 5_000,
            refusals_ppm: 10_000,
        };
        let clients = 3 + self.random.index(8);
        for number in 0..clients {
            let client = self.new_client(number);
            self.clients.push(client);
            self.queue.after(0, Event::Client(number));
        }
        self.invite_guests();
        for number in 0..self.guests.quic.count() {
            self.queue.after(0, Event::QuicClient(number));
        }
        for number in 0..self.peers.len() {
            self.queue.after(0, Event::Peer(number));
        }
        for number in 0..self.strangers.count {
            self.queue.after(0, Event::Stranger(number));
        }
        self.queue.after(0, Event::OtherProgram);
        self.queue.after(SECOND, Event::Operator);
        self.queue.after(0, Event::Wires);
    }

    /// Makes a client of this number at an address that nobody had before.
    fn new_client(&mut self, number: usize) -> Client {
        let address = self.new_address(number);
        let random = self.random.fork(&format!("client {}", self.addresses));
        let user = number % self.operator.users;
        let owner = rules::owner(self.addresses, user);
        let sort = match self
            .random
            .below(if self.operator.way.has_streams { 4 } else { 2 })
        {
            1 => Sort::Mobile,
            2 => Sort::Tcp,
            _ => Sort::Plain,
        };
        let is_stream =
            sort == Sort::Tcp || (self.operator.way.has_streams && self.random.one_in(2));
        let port = address.port();
        let proxy = plan::proxy(number, self.random.one_in(3), port);
        let proxy = self.random.one_in(4).then_some(proxy);
        let wire = is_stream.then(|| self.connection(address, proxy));
        let pass = self.pass_for(user);
        let sessions = self.sessions().filter(|_| !is_stream);
        let mut client = Client::new(owner, address, USERS[user], random)
            .by(wire, sort)
            .by_sessions(sessions)
            .through(proxy)
            .showing(pass);
        let pass = client.special.pass.as_ref();
        client.special.terms = self.operator.rules.terms_with(user, pass);
        client
    }

    /// Draws a token for a user who has no password.
    fn pass_for(&mut self, user: usize) -> Option<Pass> {
        let User { name, password, .. } = USERS[user];
        let key = self.operator.rules.key();
        let unix_s = now_at(self.queue.now()).unix_s;
        let is_holder = password.is_none();
        is_holder.then(|| Pass::draw(name, key, unix_s, &mut self.random))
    }

    /// Makes sessions by DTLS for the client whose address is the newest; half of the clients have none.
    fn sessions(&self) -> Option<Sessions> {
        let mut drawn = self.random.fork(&format!("sessions {}", self.addresses));
        let has_sessions = self.operator.way.has_sessions && drawn.one_in(2);
        has_sessions.then(|| Sessions::new(self.queue.now(), drawn))
    }

    /// Lets one thing happen.
    pub(super) fn step(&mut self) -> Result<(), Violation> {
        let Some(event) = self.queue.pop() else {
            return Ok(());
        };
        let now = self.queue.now();
        self.operator.show(now);
        match event {
            Event::Arrival { from, to, bytes } => self.arrive(from, to, bytes)?,
            Event::Client(number) => self.client(number)?,
            Event::Guest(number) => self.guest(number),
            Event::Operator => self.operate()?,
            Event::OtherProgram => self.other_program(),
            Event::Peer(number) => self.peer(number),
            Event::QuicClient(number) => self.quic_client(number)?,
            Event::QuicWakes(number) => self.with_quic(|quic, scene| quic.wake(number, scene))?,
            Event::Stranger(number) => self.stranger(number),
            Event::Turn(shard) if self.shards[shard].due == now => self.turn(shard)?,
            Event::Turn(_) => {} // an earlier one took its place
            Event::Wires => self.wires()?,
        }
        self.held()
    }

    /// Lets everything come to an end without faults: who waits gets an answer.
    pub(super) fn close(&mut self) -> Result<(), Violation> {
        self.phase = Phase::Calm;
        self.host.lock().faults = CallFaults::default();
        for shard in &mut self.shards {
            shard.stalled_until = 0;
        }
        for shard in 0..self.shards.len() {
            self.turn_by(shard, self.queue.now());
        }
        let begin = self.queue.now();
        while self.queue.now() < begin + END {
            self.step()?;
            let now = self.queue.now();
            let clients = self.clients.iter().map(|it| (it.owner, it.waits_since()));
            let guests = self.guests.by_stream.iter();
            let guests = guests.map(|it| (it.owner, it.waits_since()));
            let quic = self.guests.quic.waiting();
            for (owner, since) in clients.chain(guests).chain(quic) {
                let since = since.map(|since| since.max(begin));
                ensure(
                    since.is_none_or(|since| now - since < ANSWER_MAX),
                    "liveness",
                    || format!("client {owner} waits for ever"),
                )?;
            }
        }
        // Nobody asks for anything any more, and what was asked for is answered.
        self.phase = Phase::Silent;
        let mut tunnelled = self.dismiss_guests();
        tunnelled.extend(self.with_quic(QuicClients::leave)?);
        let begin = self.queue.now();
        while self.queue.now() < begin + END {
            self.step()?;
        }
        self.phase = Phase::Quiet;
        self.tunnels_are_gone(&tunnelled)?;
        self.connections_are_gone()?;
        self.accounts()
    }

    /// Puts a datagram on its way.
    fn send(&mut self, from: SocketAddr, to: SocketAddr, bytes: Vec<u8>) {
        if self.phase == Phase::Faults && self.random.one_in(50) {
            return self.seen.coverage.count("losses", 0);
        }
        let delay = self.random.between(1, 20) * MS;
        self.queue.after(delay, Event::Arrival { from, to, bytes });
    }

    fn arrive(
        &mut self,
        from: SocketAddr,
        to: SocketAddr,
        bytes: Vec<u8>,
    ) -> Result<(), Violation> {
        let now = self.queue.now();
        let kernel = self.host.lock().kernel.clone();
        let relayed = kernel.and_then(|it| it.relay(now, from, to, &bytes));
        match relayed {
            Some(Relayed::Sent {
                from,
                to,
                bytes,
                by,
            }) => {
                self.seen.coverage.count("relayed by the kernel", 0);
                let owner = self.host.owner(by);
                ensure(matches!(owner, Some(Owner::Relay(..))), "published", || {
                    format!("the kernel relays by {by}, which belongs to {owner:?}")
                })?;
                self.allowed(from, to, &bytes)?;
                self.send(from, to, bytes);
                return Ok(());
            }
            Some(Relayed::Dropped) => {
                self.seen.coverage.count("dropped by the kernel", 0);
                return Ok(());
            }
            None => {}
        }
        match plan::place(to) {
            plan::Place::Listener => {
                let shard = self.ingress(from, &bytes);
                let running = &mut self.shards[shard];
                let listener = running.listeners[usize::from(to.is_ipv6())];
                running.path.arrive(listener, from, bytes);
                self.soon(shard);
            }
            plan::Place::Relay => {
                if let Some(Owner::Relay(shard, endpoint)) = self.host.owner(to) {
                    self.shards[shard].path.arrive(endpoint, from, bytes);
                    self.soon(shard);
                }
            }
            plan::Place::Client(number) if number >= quic::FIRST => {
                let at = (number - quic::FIRST, to);
                self.with_quic(|quic, scene| quic.receive(at, &bytes, scene))?;
            }
            plan::Place::Client(number) | plan::Place::Proxy(number) => {
                self.arrive_at_client(number, to, &bytes)?;
            }
            plan::Place::Peer(number) => self.arrive_at_peer(number, from, &bytes)?,
            plan::Place::Nowhere => {}
        }
        Ok(())
    }

    fn arrive_at_client(
        &mut self,
        number: usize,
        to: SocketAddr,
        bytes: &[u8],
    ) -> Result<(), Violation> {
        let now = self.queue.now();
        let Some(client) = self.clients.get_mut(number) else {
            return Ok(());
        };
        let is_passed_by = client.proxy().is_some() && client.address == to;
        ensure(!is_passed_by, "proxies", || {
            format!("{to} was sent to, who is behind {:?}", client.proxy())
        })?;
        if client.hears_at() != to {
            return Ok(()); // it has gone to another address
        }
        for datagram in client.take_datagram(now, bytes, &mut self.seen.coverage)? {
            self.send_datagram_of(number, datagram);
        }
        let shared = self.operator.relays.shared.concat();
        claims::have_one_owner(&self.clients, &shared, now)
    }

    fn arrive_at_peer(
        &mut self,
        number: usize,
        from: SocketAddr,
        bytes: &[u8],
    ) -> Result<(), Violation> {
        let address = self.peers[number].address;
        let payload = Payload::read(bytes);
        let sender = payload.map(|payload| payload.sender);
        let mut clients = self.clients.iter();
        let known = clients.find(|it| Some(Sender::Client(it.owner)) == sender);
        // Whose client has gone meanwhile is not known any more.
        let is_right = payload
            .is_some_and(|it| it.to.ip() == address.ip() && it.sender != Sender::Stranger)
            && known.is_none_or(|it| it.relayed.is_none_or(|relayed| relayed == from));
        let mut guests = self.guests.by_stream.iter_mut();
        let guest = guests.find(|it| Some(Sender::Client(it.owner)) == sender);
        if guest.is_some() {
            self.seen.coverage.count("tunnelled data to peers", 0);
        }
        let is_right = is_right && guest.is_none_or(|it| it.has_relay(from));
        let is_right = is_right && self.guests.quic.may_send(sender, from);
        ensure(is_right, "data", || {
            format!("peer {address} got {payload:?} from {from}")
        })?;
        self.seen.coverage.count("data to peers", 0);
        let senders = &mut self.peers[number].senders;
        if !senders.contains(&from) {
            senders.push(from);
            if senders.len() > SENDERS_MAX {
                senders.remove(0);
            }
        }
        Ok(())
    }

    fn client(&mut self, number: usize) -> Result<(), Violation> {
        if self.phase >= Phase::Silent {
            return Ok(());
        }
        let now = self.queue.now();
        if self.clients[number].is_over && self.random.one_in(4) {
            let client = self.new_client(number);
            self.replace(number, client);
        }
        let client = &self.clients[number];
        if client.special.has_moved && client.wire().is_some() && self.random.one_in(8) {
            self.seen.coverage.count("connections that vanish", 0);
            let client = self.new_client(number);
            self.replace(number, client);
        }
        self.clients[number].notice_silence(now)?;
        self.renew(number);
        self.travel(number);
        let relayed = self.clients[number].relayed;
        let is_v6 = relayed.is_some_and(|it| it.is_ipv6()) ^ self.random.one_in(30);
        let peer = self.peer_for(is_v6);
        let is_new =
            self.clients[number].relayed.is_none() && self.clients[number].waits_since().is_none();
        let token = (is_new && self.random.one_in(2))
            .then(|| self.token_for(number))
            .flatten();
        for bytes in self.clients[number].act(now, peer, token) {
            self.send_of(number, bytes);
        }
        let delay = self.random.between(10, 300) * MS;
        self.queue.after(delay, Event::Client(number));
        Ok(())
    }

    /// Draws whom a client may take an interest in: a peer, somebody's relayed address, or a port beside one.
    fn peer_for(&mut self, is_v6: bool) -> SocketAddr {
        let relay = if is_v6 { RELAY_V6 } else { RELAY_V4 };
        let relayed: Vec<_> = self.clients.iter().filter_map(|it| it.relayed).collect();
        let port = self.random.choose(&relayed).map(SocketAddr::port);
        let port = port.unwrap_or(FIRST_PORT);
        match self.random.below(5) {
            0 => SocketAddr::new(relay, port),
            1 => SocketAddr::new(relay, port | 1),
            _ if is_v6 => self.peers[PEERS_V4 + self.random.index(PEERS - PEERS_V4)].address,
            _ => self.peers[self.random.index(PEERS_V4)].address,
        }
    }

    /// Takes a token that another client of the same user has.
    fn token_for(&mut self, number: usize) -> Option<[u8; 8]> {
        let now = self.queue.now();
        let users = self.operator.users;
        let mut others = self.clients.iter_mut().enumerate();
        others.find_map(|(other, client)| {
            let is_same = other % users == number % users;
            is_same.then(|| client.hand_on_token(now)).flatten()
        })
    }

    fn peer(&mut self, number: usize) {
        if self.phase >= Phase::Silent {
            return;
        }
        let Peer { address, senders } = &self.peers[number];
        let address = *address;
        if let Some(&to) = self.random.choose(senders) {
            let sender = Sender::Peer(number);
            let payload = Payload { to, sender };
            let len = *self
                .random
                .choose(&[LEN_MIN, LEN_MIN, 77, 300])
                .unwrap_or(&LEN_MIN);
            for _ in 0..1 + self.random.index(5) {
                self.send(address, to, payload.write(len));
            }
        }
        let delay = self.random.between(5, 100) * MS;
        self.queue.after(delay, Event::Peer(number));
    }

    /// Checks that what was reserved for a client is held until somebody brings the token, or its time is over.
    fn held(&self) -> Result<(), Violation> {
        let now = self.queue.now();
        let reserved = self.clients.iter().filter_map(|client| client.reserved);
        for reserved in reserved.filter(|it| !it.is_redeemed && now < it.since + HELD_FOR) {
            let owner = self.host.owner(reserved.address);
            ensure(owner == Some(Owner::Held), "reservations", || {
                format!("{} is reserved and belongs to {owner:?}", reserved.address)
            })?;
        }
        Ok(())
    }

    /// Returns how often what has happened.
    pub(super) fn coverage(&self) -> Coverage {
        let mut coverage = self.seen.coverage.clone();
        coverage.add(&self.host.lock().met);
        coverage
    }

    /// Returns the virtual time that has passed.
    pub(super) fn elapsed(&self) -> u64 {
        self.queue.now() - BEGIN_S * SECOND
    }
}

/// Draws how much may wait for a shard: in some worlds next to nothing.
fn room(random: &mut Seeded) -> Room {
    match random.one_in(2) {
        true => Room::default(),
        false => Room {
            messages: 4 + random.index(12),
            bytes: 1500,
            connections: 1,
        },
    }
}
