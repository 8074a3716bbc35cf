//! The world of several shards: what happens when, and what must hold.

mod claims;
mod connections;
mod operator;
mod rules;

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use turnbuckle_datapath::StreamListenerId;
use turnbuckle_engine::Rate;
use turnbuckle_server::simulation::{Clock, ConnectionLimits, Server, Shard};
use turnbuckle_wire::{Method, TransactionId};

use self::operator::{Operator, Relays, config, now_at};
use self::rules::{Datagram, Rules};
use super::client::{Client, Sort, User};
use super::host::{CallFaults, Owner, SharedHost};
use super::kernel::Relayed;
use super::meter::Meter;
use super::path::{Path, Sent};
use super::payload::{Payload, Sender};
use super::wire::WireId;
use crate::message::{Attribute, Draft, REALM};
use crate::plan::{self, RELAY_V4};
use crate::queue::{MS, Queue, SECOND};
use crate::random::Seeded;
use crate::trace::{Trace, seconds};
use crate::violation::{Coverage, Violation, ensure};

const LISTENER: SocketAddr = plan::LISTENERS[0];
/// Who may ask for something; the last one is in some worlds only.
const USERS: [User; 3] = [
    User {
        name: "alice",
        password: "correct horse",
        realm: REALM,
    },
    User {
        name: "bertil",
        password: "battery staple",
        realm: REALM,
    },
    User {
        name: "carla",
        password: "tr0ub4dor",
        realm: OTHER_REALM,
    },
];
/// A realm with peer rules of its own, and an origin of its own.
const OTHER_REALM: &str = "other.test";
const FIRST_PORT: u16 = 50_000;
/// Where peers are reached.
const PEER_PORT: u16 = 4000;
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
    /// The operator sets the clock, or has the server take over its configuration anew.
    Operator,
    /// Another program takes or gives back a port.
    OtherProgram,
    /// A peer sends data.
    Peer(usize),
    /// Somebody asks without credentials.
    Stranger(usize),
    /// A shard takes a turn.
    Turn(usize),
    /// What has come on connections is read, and peers write on theirs.
    Wires,
}

/// A shard over its data path.
struct Running {
    shard: Shard,
    path: Path,
    listener: turnbuckle_datapath::EndpointId,
    /// Kept beside its listener for connections.
    token: u64,
    /// When its next turn is.
    due: u64,
    /// It stands still until then.
    stalled_until: u64,
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
pub(super) struct World {
    queue: Queue<Event>,
    operator: Operator,
    host: SharedHost,
    shards: Vec<Running>,
    clients: Vec<Client>,
    /// How many transport addresses clients have had.
    addresses: u16,
    /// Whether there are connections.
    has_streams: bool,
    peers: Vec<Peer>,
    strangers: Strangers,
    random: Seeded,
    phase: Phase,
    pub(super) seen: Seen,
}

impl World {
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
        let relays = Relays {
            ports: 8 + random.between_u16(0, 40),
            rate: rate.and_then(|it| NonZeroU32::new(it.into())),
            shared: Relays::shared_by(sharing),
        };
        let limits = ConnectionLimits {
            message: Duration::from_secs(5),
            idle: Duration::from_secs(60),
            unallocated: Duration::from_secs(60),
            total: 1000,
            per_source: 100,
        };
        let rules = Rules::default();
        let server = Server::new(config(&relays, &rules), count, clock.clone(), limits);
        let kernel = host.lock().kernel.clone();
        if let Some(kernel) = &kernel {
            server.commons().set_meters(kernel.meters());
        }
        let shards = (0..count).map(|index| {
            let mut drawn = seeded.fork(&format!("shard {index}"));
            let mut shard = server.shard(index, Box::new(move |bytes| drawn.fill_bytes(bytes)));
            if let Some(kernel) = &kernel {
                shard.publish_to(kernel.clone());
            }
            let random = seeded.fork(&format!("path {index}"));
            let path = Path::new(index, host.clone(), random);
            running(shard, path, relays.shared.get(index).copied())
        });
        let shards = shards.collect();
        let mut world = Self {
            queue: Queue::new(begin),
            operator: Operator {
                clock,
                ahead_s: 0,
                relays,
                users: USERS.len() - 1 + random.index(2),
                rules,
            },
            host: host.clone(),
            shards,
            clients: Vec::new(),
            addresses: 0,
            has_streams: !random.one_in(4),
            peers: (0..3)
                .map(|number| Peer {
                    address: plan::peer(number, false, PEER_PORT),
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
        world.begin();
        world
    }

    fn begin(&mut self) {
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

    /// A client of this number at an address that nobody had before.
    fn new_client(&mut self, number: usize) -> Client {
        let address = self.new_address(number);
        let random = self.random.fork(&format!("client {}", self.addresses));
        let user = number % self.operator.users;
        let owner = rules::owner(self.addresses, user);
        let sort = match self.random.below(if self.has_streams { 4 } else { 1 }) {
            1 => Sort::Mobile,
            2 => Sort::Tcp,
            _ => Sort::Plain,
        };
        let is_stream = sort == Sort::Tcp || (self.has_streams && self.random.one_in(2));
        let wire = is_stream.then(|| self.connection(address));
        let mut client = Client::new(owner, address, USERS[user], random).by(wire, sort);
        client.special.terms = self.operator.rules.terms(user);
        client
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
            Event::Client(number) => self.client(number),
            Event::Operator => self.operate(),
            Event::OtherProgram => self.other_program(),
            Event::Peer(number) => self.peer(number),
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
            for client in &self.clients {
                let since = client.waits_since().map(|since| since.max(begin));
                ensure(
                    since.is_none_or(|since| now - since < ANSWER_MAX),
                    "liveness",
                    || format!("{} waits for ever", client.address),
                )?;
            }
        }
        // Nobody asks for anything any more, and what was asked for is answered.
        self.phase = Phase::Silent;
        let begin = self.queue.now();
        while self.queue.now() < begin + END {
            self.step()?;
        }
        self.phase = Phase::Quiet;
        self.accounts()
    }

    /// Has a shard take a turn at `at`, unless it does so earlier.
    fn turn_by(&mut self, shard: usize, at: u64) {
        let running = &mut self.shards[shard];
        let at = at.max(running.stalled_until);
        let now = self.queue.now();
        if running.due < now || running.due > at {
            running.due = at.max(now);
            self.queue.at(running.due, Event::Turn(shard));
        }
    }

    fn turn(&mut self, index: usize) -> Result<(), Violation> {
        let now = self.queue.now();
        if self.phase == Phase::Faults && self.random.one_in(200) {
            self.seen.coverage.count("stalls", 0);
            self.shards[index].stalled_until = now + self.random.between(1, 3000) * MS;
        }
        let kernel = self.host.lock().kernel.clone();
        if let Some(kernel) = &kernel {
            kernel.show(now);
        }
        let running = &mut self.shards[index];
        running.due = 0;
        let sent = running.path.turn(running.shard.handler());
        let freed_early = kernel.map_or(0, |it| it.freed_early());
        ensure(freed_early == 0, "grace", || {
            format!("{freed_early} lines were given back too early")
        })?;
        // Nothing of what left has arrived yet: whoever hears of an end finds that the kernel has ended it.
        let disagreement = running.shard.disagreement();
        ensure(disagreement.is_none(), "published", || {
            disagreement.unwrap_or_default()
        })?;
        // What the kernel leaves to the shard, because it is not published, being written or has expired there, finds a socket and a route.
        let mut elsewhere = None;
        let unserved = running.shard.unserved(|relay| {
            if !matches!(self.host.owner(relay), Some(Owner::Relay(shard, _)) if shard == index) {
                elsewhere = Some(format!("shard {index} has no socket at {relay}"));
            }
            self.seen.coverage.count("channels served", 0);
        });
        let unserved = unserved.or(elsewhere);
        ensure(unserved.is_none(), "served", || {
            unserved.unwrap_or_default()
        })?;
        let timeout = running.shard.timeout();
        let has_work = running.path.has_work();
        for sent in sent {
            self.left(index, sent)?;
        }
        let wait = timeout.map_or(5 * SECOND, |it| {
            u64::try_from(it.as_nanos())
                .unwrap_or(u64::MAX)
                .min(5 * SECOND)
        });
        let wait = if has_work { wait.min(MS) } else { wait };
        self.turn_by(index, now + wait.max(50_000));
        for other in 0..self.shards.len() {
            if self.shards[other].shard.was_woken() {
                self.turn_by(other, now + 50_000);
            }
        }
        self.accounts()
    }

    /// Every datagram that was shown is out, or dropped for one reason, or on its way to another shard.
    fn accounts(&self) -> Result<(), Violation> {
        let shards = self.shards.iter().map(|running| &running.shard);
        let (sum, under_way) = Shard::accounting(shards);
        let shown: u64 = self.shards.iter().map(|running| running.path.shown).sum();
        let lefts = || self.shards.iter().map(|running| running.path.left());
        let left: i64 = lefts().map(|(left, _)| left).sum();
        let are_datagrams = lefts().all(|(_, are_datagrams)| are_datagrams);
        // What the kernel relays is in and out without being shown, what it drops is in and dropped.
        let shown = shown + sum.total_by_kernel() + sum.dropped_by_kernel();
        let left = left + i64::try_from(sum.total_by_kernel()).unwrap_or(i64::MAX);
        let known = sum.total_out() + sum.total_drops() + under_way;
        // A Connect request is answered when its connection is there, and a ConnectionBind by the shard that its connection moves to.
        let asked = sum.total_in().checked_sub(known);
        let most = match are_datagrams || self.phase == Phase::Quiet {
            true => 0,
            false => ASKED_MAX,
        };
        let is_exact = asked.is_some_and(|asked| asked <= most)
            && (sum.total_in() == shown || (sum.total_in() > shown && !are_datagrams))
            && i64::try_from(sum.total_out()) == Ok(left);
        ensure(is_exact, "accounts", || {
            format!(
                "{shown} were shown, {left} left, {under_way} are under way; {}",
                sum.line()
            )
        })
    }

    /// A datagram has left a shard.
    fn left(&mut self, shard: usize, sent: Sent) -> Result<(), Violation> {
        let Sent {
            from,
            to,
            is_relayed,
            found,
            bytes,
        } = sent;
        self.seen.trace.number(u64::from(to.port()));
        self.seen.trace.bytes(&bytes);
        self.seen.trace.line(|| {
            let at = seconds(self.queue.now());
            format!("{at} shard {shard}: {from} -> {to}, {} bytes", bytes.len())
        });
        if is_relayed && to.ip() == RELAY_V4 {
            self.seen.coverage.count("hairpins", 0);
            ensure(matches!(found, Some(Owner::Relay(..))), "sockets", || {
                format!("{from} sent to {to}, where no relay socket is but {found:?}")
            })?;
        }
        ensure(!is_relayed || to != LISTENER, "sockets", || {
            format!("{from} sent to a listener")
        })?;
        if !is_relayed && plan::place(to) == plan::Place::Nowhere {
            self.strangers
                .meter
                .sent(self.queue.now(), to.ip(), bytes.len())?;
            self.seen.coverage.count("answers to strangers", 0);
            return Ok(());
        }
        self.allowed(from, to, &bytes)?;
        self.send(from, to, bytes);
        Ok(())
    }

    /// What is relayed is not forbidden, and nobody has another one's peer.
    fn allowed(&mut self, from: SocketAddr, to: SocketAddr, bytes: &[u8]) -> Result<(), Violation> {
        let Some(relayed) = Datagram::of(&self.clients, from, to, bytes) else {
            return Ok(());
        };
        self.operator.rules.allow(&relayed)?;
        if self.operator.relays.shared.contains(&relayed.by) {
            self.seen.coverage.count("data by shared ports", 0);
            claims::check(&self.clients, &relayed, self.queue.now())?;
        }
        Ok(())
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
            Some(Relayed::Sent(from, to, bytes)) => {
                self.seen.coverage.count("relayed by the kernel", 0);
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
                let shard = self.steered(from);
                let running = &mut self.shards[shard];
                running.path.arrive(running.listener, from, bytes);
                self.soon(shard);
            }
            plan::Place::Relay => {
                if let Some(Owner::Relay(shard, endpoint)) = self.host.owner(to) {
                    self.shards[shard].path.arrive(endpoint, from, bytes);
                    self.soon(shard);
                }
            }
            plan::Place::Client(number) => self.arrive_at_client(number, to, &bytes)?,
            plan::Place::Peer(number) => self.arrive_at_peer(number, from, &bytes)?,
            plan::Place::Nowhere => {}
        }
        Ok(())
    }

    /// The shard that the kernel gives a 5-tuple to.
    fn steered(&self, from: SocketAddr) -> usize {
        let mut mixed = Seeded::new(u64::from(from.port()));
        mixed.index(self.shards.len())
    }

    /// Has a shard take a turn within a moment.
    fn soon(&mut self, shard: usize) {
        let delay = self.random.between(0, 2_000_000);
        self.turn_by(shard, self.queue.now() + delay);
    }

    fn arrive_at_client(
        &mut self,
        number: usize,
        to: SocketAddr,
        bytes: &[u8],
    ) -> Result<(), Violation> {
        let now = self.queue.now();
        let Some(client) = self.clients.get_mut(number).filter(|it| it.address == to) else {
            return Ok(()); // it has gone to another address
        };
        if let Some(answer) = client.take(now, bytes, &mut self.seen.coverage)? {
            self.send(to, LISTENER, answer);
        }
        claims::have_one_owner(&self.clients, &self.operator.relays.shared, now)
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
        let is_right = payload.is_some_and(|it| it.to.ip() == address.ip())
            && known.is_none_or(|it| it.relayed.is_none_or(|relayed| relayed == from));
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

    fn client(&mut self, number: usize) {
        if self.phase >= Phase::Silent {
            return;
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
        self.travel(number);
        let peer = self.peer_for();
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
    }

    /// Whom a client may take an interest in: a peer, somebody's relayed address, or a port beside one.
    fn peer_for(&mut self) -> SocketAddr {
        let relayed: Vec<_> = self.clients.iter().filter_map(|it| it.relayed).collect();
        match self.random.below(5) {
            0 => match self.random.choose(&relayed) {
                Some(relayed) => *relayed,
                None => SocketAddr::new(RELAY_V4, FIRST_PORT),
            },
            1 => match self.random.choose(&relayed) {
                Some(relayed) => SocketAddr::new(RELAY_V4, relayed.port() | 1),
                None => SocketAddr::new(RELAY_V4, FIRST_PORT + 1),
            },
            _ => {
                let peer = self.random.index(self.peers.len());
                self.peers[peer].address
            }
        }
    }

    /// A token that another client of the same user has.
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
            let len = *self.random.choose(&[20, 20, 77, 300]).unwrap_or(&20);
            for _ in 0..1 + self.random.index(5) {
                self.send(address, to, payload.write(len));
            }
        }
        let delay = self.random.between(5, 100) * MS;
        self.queue.after(delay, Event::Peer(number));
    }

    fn stranger(&mut self, number: usize) {
        if self.phase != Phase::Faults {
            return;
        }
        for _ in 0..1 + self.random.index(20) {
            let port = self.random.between_u16(1024, 60_000);
            let mut transaction = [0; 12];
            self.random.fill_bytes(&mut transaction);
            let draft = Draft::request(Method::ALLOCATE).with(Attribute::Transport(17));
            let bytes = draft.write(TransactionId::from(transaction), None);
            self.send(plan::stranger(number, false, port), LISTENER, bytes);
        }
        if self.has_streams {
            self.come_and_go(number);
        }
        let delay = self.random.between(20, 400) * MS;
        self.queue.after(delay, Event::Stranger(number));
    }

    /// What was reserved for a client is held until somebody brings the token, or its time is over.
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

    /// The virtual time that has passed.
    pub(super) fn elapsed(&self) -> u64 {
        self.queue.now() - BEGIN_S * SECOND
    }
}

fn running(mut shard: Shard, mut path: Path, shared: Option<SocketAddr>) -> Running {
    if let Some(local) = shared {
        let relay = path.share_relay(local, Shard::shared_relay_token());
        shard.add_shared_relay(relay.expect("no port is taken yet"), local);
    }
    let listener = path.listen(LISTENER, Shard::datagrams_token());
    shard.add_listener(listener, LISTENER);
    let token = shard.add_stream_listener(StreamListenerId::from_u32(0), LISTENER);
    Running {
        shard,
        path,
        listener,
        token,
        due: 0,
        stalled_until: 0,
    }
}
