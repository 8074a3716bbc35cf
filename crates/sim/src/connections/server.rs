//! The host of two engines whose clients come by TCP, and the comparison of all they hold with the model.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use turnbuckle_engine::{
    AuthConfig, Change, ClientTuple, Command, Commons, Config, Connection, ConnectionId, Endpoint,
    Engine, Outcome, PeerEnd, Rate, RelayAddress, RelayConfig, RelayHandle, RelayRequest,
    TcpRelays, Time, Transport, UnverifiedLimits,
};
use turnbuckle_wire::{AttributeType, Class, Message, Method, TransactionId};

use super::model::{Id, Model, Owed, State};
use crate::message::{Credentials, Draft, REALM};
use crate::plan;
use crate::queue::SECOND;
use crate::random::Seeded;
use crate::server::{EngineRandom, clocks};
use crate::violation::{Violation, ensure};

const LISTENER: Endpoint = Endpoint(1);
const USERS: [(&str, &str); 3] = [
    ("alice", "correct horse"),
    ("bertil", "battery staple"),
    ("carla", "p:ss:word"),
];

/// A connection of a client, and the shard that it came to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Party {
    pub(super) tuple: ClientTuple,
    pub(super) shard: usize,
}

/// The answer to a request.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    /// The error code, 0 for success.
    pub(super) code: u16,
    pub(super) bytes: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Server {
    pub(super) now: u64,
    pub(super) model: Model,
    /// Whether refused connections look like those that nobody answers.
    pub(super) masks: bool,
    pub(super) host: Host,
    exchange: Exchange,
    commons: Arc<Commons>,
    engines: Vec<Engine<EngineRandom>>,
    next: u32,
    random: Seeded,
}

/// What the host of the engines has and was asked for.
#[derive(Debug, Default)]
pub(super) struct Host {
    /// What it was asked to connect to last: name, peer, transaction of the request.
    pub(super) asked: Option<(u32, SocketAddr, Id)>,
    /// What it was asked to join last.
    pub(super) joined: Option<(u32, ClientTuple)>,
    /// Attempts to connect that it has not answered.
    pub(super) connecting: BTreeSet<u32>,
    /// Connections with peers that it has.
    pub(super) held: BTreeSet<u32>,
    shard_of: BTreeMap<u32, usize>,
    relays: BTreeMap<Endpoint, (SocketAddr, RelayHandle)>,
}

/// Requests and what answers them.
#[derive(Debug, Default)]
struct Exchange {
    nonces: BTreeMap<ClientTuple, Vec<u8>>,
    /// Answers that are due, by transaction: the error codes that each may have, 0 for success.
    owed: BTreeMap<Id, Vec<u16>>,
    answers: BTreeMap<Id, Answer>,
    indications: Vec<(ClientTuple, Vec<u8>)>,
    /// The request that is being handled; zeros between requests.
    transaction: Id,
}

impl Server {
    pub(super) fn new(model: Model, masks: bool, mut random: Seeded) -> Self {
        let mut auth = AuthConfig::new(REALM).expect("the realm is sound");
        for (name, password) in USERS {
            auth.add_user(name, password).expect("the user is sound");
        }
        let bound = |limit: usize| u16::try_from(limit).unwrap_or(u16::MAX);
        let tcp = TcpRelays {
            mask_connect_errors: masks,
            connections_per_allocation: bound(model.per_allocation),
            pending_per_allocation: bound(model.waiting_per_allocation),
            pending_per_user: bound(model.charged_per_user).into(),
            connects_per_user: Rate {
                burst: 1_000_000,
                per_s: 1_000_000,
            },
            ..TcpRelays::default()
        };
        let config = Arc::new(Config {
            auth,
            relays: RelayConfig {
                addresses: vec![RelayAddress {
                    local: plan::RELAY_V4,
                    external: None,
                }],
                ports: 50_000..=50_040,
                tcp: Some(tcp),
                ..RelayConfig::default()
            },
            unverified: UnverifiedLimits {
                buckets: 64,
                ..UnverifiedLimits::default()
            },
            ..Config::default()
        });
        let commons = Commons::new(&config);
        let engines = (0..2)
            .map(|shard| {
                let random = EngineRandom(Seeded::new(random.next_u64()));
                let mut engine = Engine::new(Arc::clone(&config), Arc::clone(&commons), random);
                engine.add_listener(LISTENER, plan::LISTENERS[0]);
                engine.set_shard(shard);
                engine
            })
            .collect();
        Self {
            now: 1000 * SECOND,
            model,
            masks,
            host: Host::default(),
            exchange: Exchange::default(),
            commons,
            engines,
            next: 100,
            random,
        }
    }

    /// Makes a new connection of a client.
    pub(super) fn party(&mut self, client: usize) -> Party {
        self.next += 1;
        let port = 1024 + u16::try_from(self.next % 60_000).unwrap_or(0);
        let tuple = ClientTuple {
            listener: LISTENER,
            remote: plan::client(client, false, port),
            transport: Transport::Tcp,
            connection: Connection::new(self.next, 0),
        };
        let shard = client % self.engines.len();
        Party { tuple, shard }
    }

    /// Lets a client use the nonce of one connection on another (RFC 6062 §4.3).
    pub(super) fn share_nonce(&mut self, from: Party, to: Party) {
        if let Some(nonce) = self.exchange.nonces.get(&from.tuple).cloned() {
            self.exchange.nonces.insert(to.tuple, nonce);
        }
    }

    /// Sends a request, and once more with the nonce of a challenge. `None` when the answer is still to come.
    pub(super) fn ask(
        &mut self,
        party: Party,
        user: usize,
        draft: &Draft,
    ) -> Result<Option<Answer>, Violation> {
        for _ in 0..3 {
            self.random.fill_bytes(&mut self.exchange.transaction);
            let id = self.exchange.transaction;
            let (name, password) = USERS[user];
            let credentials = self
                .exchange
                .nonces
                .get(&party.tuple)
                .map(|nonce| Credentials {
                    user: name.to_owned(),
                    password: password.to_owned(),
                    realm: REALM.to_owned(),
                    nonce: nonce.clone(),
                    algorithms: None,
                    anonymous: false,
                    mac_key: None,
                });
            let bytes = draft.write(TransactionId::new(id), credentials.as_ref());
            let engine = &mut self.engines[party.shard];
            let outcome = engine.handle_stun(clocks(self.now), party.tuple, &bytes);
            self.collect(party.shard)?;
            match outcome {
                Outcome::Done => {}
                Outcome::HandOver(handover) => {
                    let shard = usize::try_from(handover.shard()).unwrap_or(usize::MAX);
                    ensure(shard != party.shard, "model", || {
                        "handed over to itself".to_owned()
                    })?;
                    self.engines[shard].take_over(clocks(self.now), party.tuple, *handover);
                    self.collect(shard)?;
                }
                other => return Err(Violation::new("model", format!("{other:?}"))),
            }
            self.exchange.transaction = [0; 12];
            let Some(answer) = self.exchange.answers.remove(&id) else {
                return Ok(None);
            };
            let nonce = Message::parse(&answer.bytes)
                .ok()
                .and_then(|message| message.raw(AttributeType::NONCE).map(<[u8]>::to_vec));
            match nonce {
                Some(nonce) if matches!(answer.code, 401 | 438) => {
                    self.exchange.nonces.insert(party.tuple, nonce);
                }
                _ => return Ok(Some(answer)),
            }
        }
        Err(Violation::new("model", "a nonce that is never good"))
    }

    /// Takes note of an answer that has to come in what follows.
    pub(super) fn owe(&mut self, id: Id, codes: Vec<u16>) {
        self.exchange.owed.insert(id, codes);
    }

    fn owe_all(&mut self, owed: Vec<Owed>) {
        self.exchange.owed.extend(owed);
    }

    /// Ends the allocation of a client in the model; the engine's is about to end.
    pub(super) fn end(&mut self, client: usize) {
        let owed = self.model.end(client);
        self.owe_all(owed);
    }

    pub(super) fn set_state(&mut self, id: u32, state: State) {
        if let Some(connection) = self.model.connections.get_mut(&id) {
            connection.state = state;
        }
    }

    pub(super) fn peer_answered(&mut self, id: u32, is_connected: bool) -> Result<(), Violation> {
        let Some(shard) = self.host.shard_of.get(&id).copied() else {
            return Ok(());
        };
        if self.host.connecting.remove(&id) && is_connected {
            self.host.held.insert(id);
        }
        self.engines[shard].peer_connected(clocks(self.now), ConnectionId(id), is_connected);
        self.collect(shard)
    }

    pub(super) fn peer_gone(&mut self, id: u32, cause: PeerEnd) -> Result<(), Violation> {
        let shard = self.host.shard_of.get(&id).copied().unwrap_or(0);
        self.host.held.remove(&id);
        self.engines[shard].peer_disconnected(ConnectionId(id), cause);
        self.collect(shard)
    }

    /// Has a connection come to a relayed transport address. Its client must get a ConnectionAttempt indication if it may stay.
    pub(super) fn peer_comes(
        &mut self,
        owner: Party,
        relay: SocketAddr,
        source: SocketAddr,
    ) -> Result<Result<u32, PeerEnd>, Violation> {
        let mut relays = self.host.relays.values();
        let Some((_, handle)) = relays.find(|(address, _)| *address == relay).copied() else {
            return Err(Violation::new("sockets", format!("{relay} is not open")));
        };
        let engine = &mut self.engines[owner.shard];
        let result = engine.accept_peer(clocks(self.now), handle, source);
        let result = result.map(|ConnectionId(id)| id);
        if let Ok(id) = result {
            self.host.held.insert(id);
            self.host.shard_of.insert(id, owner.shard);
        }
        self.collect(owner.shard)?;
        let indications = std::mem::take(&mut self.exchange.indications);
        let received: Vec<_> = indications
            .iter()
            .filter_map(|(to, bytes)| {
                let message = Message::parse(bytes).ok()?;
                let peer = message.xor_peer_address().ok()?;
                let named = message.connection_id().ok()?;
                let attempt = message.method() == Method::CONNECTION_ATTEMPT;
                Some((*to, peer?, named?)).filter(|_| attempt)
            })
            .collect();
        let expected: Vec<_> = result.iter().map(|id| (owner.tuple, source, *id)).collect();
        ensure(received == expected, "model", || {
            format!("the client received {received:?}, expected {expected:?}")
        })?;
        Ok(result)
    }

    pub(super) fn disconnected(&mut self, party: Party) -> Result<(), Violation> {
        self.engines[party.shard].disconnected(clocks(self.now), &party.tuple);
        self.collect(party.shard)
    }

    /// Lets time pass, at least this much: until no deadline is so near that a timer might still be about to fire.
    pub(super) fn pass(&mut self, nanos: u64) -> Result<(), Violation> {
        let mut until = self.now + nanos;
        loop {
            let mut deadlines = self.model.deadlines();
            let near = deadlines.find(|due| (*due..=*due + SECOND).contains(&until));
            match near {
                Some(due) => until = due + SECOND + 1,
                None => break,
            }
        }
        let owed = self.model.pass(until);
        self.owe_all(owed);
        for _ in 0..10_000 {
            let due = |engine: &Engine<_>| engine.next_timeout().map(Time::as_nanos);
            let next = (0..self.engines.len())
                .filter_map(|shard| Some((due(&self.engines[shard])?, shard)))
                .min();
            let Some((due, shard)) = next.filter(|(due, _)| *due <= until) else {
                self.now = until;
                return Ok(());
            };
            self.now = self.now.max(due);
            self.engines[shard].handle_timeout(clocks(self.now));
            self.collect(shard)?;
        }
        Err(Violation::new("I6", "10,000 timers and still due"))
    }

    /// Carries out what an engine wants.
    fn collect(&mut self, shard: usize) -> Result<(), Violation> {
        loop {
            let mut opens: Vec<(RelayRequest, SocketAddr, RelayHandle)> = Vec::new();
            let mut replies = Vec::new();
            let mut wrong = None;
            let Self {
                engines,
                host,
                exchange,
                model,
                ..
            } = self;
            let transaction = exchange.transaction;
            let Host {
                asked,
                joined,
                connecting,
                held,
                shard_of,
                relays,
            } = host;
            engines[shard].with_commands(|command| match command {
                Command::Reply { to, bytes, .. } => replies.push((to, bytes.to_vec())),
                Command::OpenRelay {
                    request,
                    address,
                    handle,
                    ..
                } => opens.push((request, address, handle)),
                Command::CloseRelay { endpoint } => {
                    if relays.remove(&endpoint).is_none() {
                        wrong = Some(format!("closes {endpoint:?}"));
                    }
                }
                Command::Connect {
                    connection: ConnectionId(id),
                    local,
                    peer,
                } => {
                    let peer = peer.address();
                    let is_open = relays.values().any(|(address, _)| *address == local);
                    if !is_open || !model.may_be_connected(peer) || !connecting.insert(id) {
                        wrong = Some(format!("connects {local} to {peer}"));
                    }
                    *asked = Some((id, peer, transaction));
                    shard_of.insert(id, shard);
                }
                Command::ClosePeer {
                    connection: ConnectionId(id),
                } => {
                    if !connecting.remove(&id) && !held.remove(&id) {
                        wrong = Some(format!("closes {id}, which is not there"));
                    }
                }
                Command::Join {
                    connection: ConnectionId(id),
                    client,
                } => {
                    if !held.contains(&id) || joined.is_some() {
                        wrong = Some(format!("joins {id}"));
                    }
                    *joined = Some((id, client));
                }
                Command::TunnelEnded { .. } | Command::TunnelOpened { .. } => {
                    wrong = Some("speaks of tunnels".to_owned());
                }
            });
            if let Some(wrong) = wrong {
                return Err(Violation::new("sockets", wrong));
            }
            for (to, bytes) in replies {
                self.answered(to, bytes)?;
            }
            while let Some(change) = self.engines[shard].poll_change() {
                self.changed(&change)?;
            }
            if opens.is_empty() {
                return Ok(());
            }
            for (request, address, handle) in opens {
                self.next += 1;
                let endpoint = Endpoint(self.next);
                self.host.relays.insert(endpoint, (address, handle));
                self.engines[shard].relay_opened(clocks(self.now), request, Ok(endpoint.into()));
            }
        }
    }

    fn answered(&mut self, to: ClientTuple, bytes: Vec<u8>) -> Result<(), Violation> {
        let Ok(message) = Message::parse(&bytes) else {
            return Err(Violation::new("I8", "an answer that is no message"));
        };
        let id = *message.transaction_id().as_bytes();
        if message.class() == Class::Indication {
            self.exchange.indications.push((to, bytes));
            return Ok(());
        }
        let error = message.error_code().ok().flatten();
        let code = error.map_or(0, |error| error.code);
        if id == self.exchange.transaction {
            let before = self.exchange.answers.insert(id, Answer { code, bytes });
            return ensure(before.is_none(), "I8", || {
                format!("{id:02x?} answered twice")
            });
        }
        let codes = self.exchange.owed.remove(&id);
        ensure(
            codes.as_ref().is_some_and(|codes| codes.contains(&code)),
            "I8",
            || format!("{id:02x?} answered {code}, expected {codes:?}"),
        )
    }

    /// Checks that what ends by time does not end early: the model has let go of it by then.
    fn changed(&self, change: &Change) -> Result<(), Violation> {
        let Change::PeerDisconnected {
            connection: ConnectionId(id),
            cause,
            ..
        } = change
        else {
            return Ok(());
        };
        let known = self.model.connections.contains_key(id);
        ensure(!known, "changes", || format!("{id} ended: {cause:?}"))
    }

    /// Compares everything that there is with the model.
    pub(super) fn check(&mut self) -> Result<(), Violation> {
        ensure(self.exchange.owed.is_empty(), "I8", || {
            format!("not answered: {:02x?}", self.exchange.owed)
        })?;
        let (allocations, connections) = (&self.model.allocations, &self.model.connections);
        let counts = self.engines.iter().map(Engine::statistics);
        let counted = counts.fold((0, 0), |(held, peers), counts| {
            (held + counts.allocations, peers + counts.peer_connections)
        });
        let expected = (allocations.len(), connections.len());
        ensure(counted == expected, "I5", || {
            format!("allocations and connections: {counted:?}, expected {expected:?}")
        })?;
        let charged = self.commons.quota_used_total();
        ensure(
            usize::try_from(charged) == Ok(allocations.len()),
            "I5",
            || format!("{charged} allocations are charged"),
        )?;
        let (ids, pending) = self.commons.peer_connections();
        let expected = (connections.len(), self.model.charged_in_all());
        let counted = (ids, usize::try_from(pending).unwrap_or(usize::MAX));
        ensure(counted == expected, "I5", || {
            format!("names and attempts: {counted:?}, expected {expected:?}")
        })?;
        let leased: u32 = self.commons.ports().map(|(_, counts)| counts.leased).sum();
        ensure(
            usize::try_from(leased) == Ok(allocations.len()),
            "I4",
            || format!("{leased} ports are leased"),
        )?;
        let in_state = |wanted: fn(State) -> bool| -> BTreeSet<u32> {
            let known = connections.iter().filter(|(_, held)| wanted(held.state));
            known.map(|(id, _)| *id).collect()
        };
        let connecting = in_state(|state| matches!(state, State::Connecting(..)));
        let held = in_state(|state| matches!(state, State::Bound | State::Unbound(_)));
        let sound = connecting == self.host.connecting && held == self.host.held;
        ensure(sound, "sockets", || {
            format!(
                "the host has {:?} and {:?}, expected {connecting:?} and {held:?}",
                self.host.connecting, self.host.held
            )
        })?;
        self.host.asked = None;
        self.host.joined = None;
        Ok(())
    }
}
