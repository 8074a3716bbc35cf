//! A host for the engine with a clock that stands still until it is moved, and clients that know how to authenticate.

use core::net::SocketAddr;
use core::time::Duration;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use turnbuckle_engine::{
    AllocationId, AuthConfig, Change, ChannelNumber, ClientRoute, ClientTuple, Command, Commons,
    Config, ConnectionId, DropReason, Endpoint, Engine, Family, Framing, HeldPort, Now, Opened,
    Outcome, PeerRoute, Random, RelayAddress, RelayConfig, RelayHandle, RelayOpenError,
    RelayProtocol, RelayRequest, SendRoute, Time, TunnelEnd, TunnelTarget,
};
use turnbuckle_wire::{
    AttributeType, Class, IntegrityKey, Message, MessageWriter, Method, TransactionId,
    long_term_key_md5,
};

pub(crate) const REALM: &str = "example.org";
pub(crate) const LISTENER: Endpoint = Endpoint(1);
pub(crate) const LISTENER_V6: Endpoint = Endpoint(2);
pub(crate) const CLIENT: &str = "203.0.113.7:50000";
pub(crate) const PEER: &str = "93.184.216.20:7000";
pub(crate) const PEER_V6: &str = "[2606:4700::20]:7000";
/// Peers that nobody may reach without a rule that allows them (V-03 to V-07), each in a form of its own.
pub(crate) const FORBIDDEN: [&str; 14] = [
    "127.0.0.1:80",
    "0.0.0.0:80",
    "10.0.0.1:80",
    "169.254.169.254:80",
    "224.0.0.1:80",
    "255.255.255.255:80",
    "[::1]:80",
    "[::ffff:127.0.0.1]:80",
    "[::ffff:93.184.216.20]:7000",
    "[64:ff9b::7f00:1]:80",
    "[fe80::1]:80",
    "[fc00::1]:80",
    "[2002:7f00:1::]:80",
    "203.0.113.1:3478",
];

/// Random bytes from a seed that the test can set again.
#[derive(Clone, Debug)]
pub(crate) struct Seeded(Rc<RefCell<u64>>);

impl Seeded {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Rc::new(RefCell::new(seed)))
    }

    pub(crate) fn next(&self) -> u64 {
        let mut state = self.0.borrow_mut();
        *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn reseed(&self, seed: u64) {
        *self.0.borrow_mut() = seed;
    }
}

impl Random for Seeded {
    fn fill(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            *byte = self.next().to_le_bytes()[0];
        }
    }
}

/// Returns the configuration of a server with users alice and bob, two listeners, and relay addresses of both families.
pub(crate) fn config() -> Config {
    let mut auth = AuthConfig::new(REALM).unwrap();
    auth.add_user("alice", "wonderland").unwrap();
    auth.add_user("bob", "builder").unwrap();
    Config {
        auth,
        relays: RelayConfig {
            addresses: ["192.0.2.1", "2001:db8::1"]
                .map(|local| RelayAddress {
                    local: local.parse().unwrap(),
                    external: None,
                })
                .into(),
            ..RelayConfig::default()
        },
        ..Config::default()
    }
}

/// The engine and everything a host does for it.
pub(crate) struct Server {
    pub(crate) engine: Engine<Seeded>,
    pub(crate) commons: Arc<Commons>,
    pub(crate) config: Arc<Config>,
    pub(crate) random: Seeded,
    pub(crate) now: Now,
    /// Open relay sockets.
    pub(crate) sockets: BTreeMap<Endpoint, Socket>,
    pub(crate) replies: Vec<(ClientTuple, Vec<u8>)>,
    pub(crate) changes: Vec<Change>,
    /// Addresses that other processes have.
    pub(crate) in_use: Vec<SocketAddr>,
    /// Whether sockets are opened at once; otherwise wishes pile up in `wishes`.
    pub(crate) opens_at_once: bool,
    pub(crate) wishes: Vec<Wish>,
    /// Ports that are held for whoever brings a token; shared by all hosts of a test.
    pub(crate) held: Arc<Mutex<BTreeSet<SocketAddr>>>,
    /// What the relay sockets that were asked for are to carry.
    pub(crate) protocols: Vec<RelayProtocol>,
    /// What the engine wanted done with connections to peers, oldest first.
    pub(crate) wanted: Vec<Wanted>,
    next_endpoint: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Socket {
    pub(crate) address: SocketAddr,
    pub(crate) handle: RelayHandle,
}

/// A port that is held without receiving; dropping it closes it.
struct Held {
    address: SocketAddr,
    all: Arc<Mutex<BTreeSet<SocketAddr>>>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.lock().unwrap().remove(&self.address);
    }
}

/// A relay socket that the engine wants.
pub(crate) struct Wish {
    request: RelayRequest,
    address: SocketAddr,
    handle: RelayHandle,
    reserves_next: bool,
    held: Option<HeldPort>,
}

/// What the engine wants done with a connection to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Close(ConnectionId),
    Connect(ConnectionId, SocketAddr, SocketAddr),
    Join(ConnectionId, ClientTuple),
    /// What the host is to know of a tunnel.
    Ended(ClientTuple, TunnelEnd),
    Opened(ClientTuple, TunnelTarget),
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut Config)) -> Self {
        let mut config = config();
        change(&mut config);
        let config = Arc::new(config);
        let commons = Commons::new(&config);
        Self::joining(config, commons, 1)
    }

    /// Makes another engine of the same server.
    pub(crate) fn joining(config: Arc<Config>, commons: Arc<Commons>, seed: u64) -> Self {
        let random = Seeded::new(seed);
        let mut engine = Engine::new(Arc::clone(&config), Arc::clone(&commons), random.clone());
        for (endpoint, local) in listeners() {
            engine.add_listener(endpoint, local);
        }
        Self::around(engine, config, commons, random)
    }

    pub(crate) fn around(
        engine: Engine<Seeded>,
        config: Arc<Config>,
        commons: Arc<Commons>,
        random: Seeded,
    ) -> Self {
        Self {
            engine,
            commons,
            config,
            random,
            now: Now {
                time: Time::from_secs(1_000),
                unix_s: 1_800_000_000,
            },
            sockets: BTreeMap::new(),
            replies: Vec::new(),
            changes: Vec::new(),
            in_use: Vec::new(),
            opens_at_once: true,
            wishes: Vec::new(),
            held: Arc::default(),
            protocols: Vec::new(),
            wanted: Vec::new(),
            next_endpoint: 100,
        }
    }

    /// Names new sockets as `other` will.
    pub(crate) fn skip_endpoints(&mut self, other: &Self) {
        self.next_endpoint = other.next_endpoint;
    }

    /// Moves the clock to `after` from now and lets every timer on the way fire when it is due.
    pub(crate) fn wait(&mut self, after: Duration) {
        let end = self.now.time + after;
        while let Some(at) = self.engine.next_timeout().filter(|&at| at <= end) {
            self.set_time(self.now.time.max(at));
            self.engine.handle_timeout(self.now);
            self.pump();
        }
        self.set_time(end);
    }

    pub(crate) fn wait_s(&mut self, seconds: u64) {
        self.wait(Duration::from_secs(seconds));
    }

    /// Moves the clock and lets no timer fire: the host is late.
    pub(crate) fn oversleep(&mut self, after: Duration) {
        self.set_time(self.now.time + after);
    }

    fn set_time(&mut self, time: Time) {
        let unix_start_s = self.now.unix_s - self.now.time.as_nanos() / 1_000_000_000;
        self.now = Now {
            time,
            unix_s: unix_start_s + time.as_nanos() / 1_000_000_000,
        };
    }

    /// Carries out commands until there are none.
    pub(crate) fn pump(&mut self) {
        loop {
            let mut opens = Vec::new();
            let (replies, sockets) = (&mut self.replies, &mut self.sockets);
            let (wanted, protocols) = (&mut self.wanted, &mut self.protocols);
            self.engine.with_commands(|command| match command {
                Command::Reply { to, bytes, .. } => replies.push((to, bytes.to_vec())),
                Command::CloseRelay { endpoint } => {
                    assert!(sockets.remove(&endpoint).is_some(), "closes what is open");
                }
                Command::OpenRelay {
                    request,
                    address,
                    handle,
                    protocol,
                    reserves_next,
                    held,
                } => {
                    protocols.push(protocol);
                    opens.push(Wish {
                        request,
                        address,
                        handle,
                        reserves_next,
                        held,
                    });
                }
                Command::ClosePeer { connection } => wanted.push(Wanted::Close(connection)),
                Command::Connect {
                    connection,
                    local,
                    peer,
                } => wanted.push(Wanted::Connect(connection, local, peer.address())),
                Command::Join { connection, client } => {
                    wanted.push(Wanted::Join(connection, client));
                }
                Command::TunnelEnded { client, cause } => wanted.push(Wanted::Ended(client, cause)),
                Command::TunnelOpened { client, target, .. } => {
                    wanted.push(Wanted::Opened(client, target));
                }
            });
            self.changes
                .extend(core::iter::from_fn(|| self.engine.poll_change()));
            if opens.is_empty() {
                return;
            }
            if !self.opens_at_once {
                self.wishes.append(&mut opens);
                return;
            }
            for wish in opens {
                self.open(wish);
            }
        }
    }

    fn open(&mut self, wish: Wish) {
        let address = wish.address;
        let next = SocketAddr::new(address.ip(), address.port() + 1);
        if let Some(held) = wish.held {
            let held: Held = held.into_inner().expect("what this host handed over");
            assert_eq!(held.address, address);
        }
        let is_taken = |address: SocketAddr| {
            let mut sockets = self.sockets.values();
            sockets.any(|socket| socket.address == address)
                || self.held.lock().unwrap().contains(&address)
                || self.in_use.contains(&address)
        };
        let result = if is_taken(address) || wish.reserves_next && is_taken(next) {
            Err(RelayOpenError::AddressInUse)
        } else {
            self.next_endpoint += 1;
            let endpoint = Endpoint(self.next_endpoint);
            let handle = wish.handle;
            self.sockets.insert(endpoint, Socket { address, handle });
            let beside = wish.reserves_next.then(|| {
                self.held.lock().unwrap().insert(next);
                let all = Arc::clone(&self.held);
                HeldPort::new(Held { address: next, all })
            });
            Ok(Opened { endpoint, beside })
        };
        self.engine.relay_opened(self.now, wish.request, result);
    }

    /// Opens what was asked for while `opens_at_once` was false.
    pub(crate) fn open_wishes(&mut self) {
        for wish in core::mem::take(&mut self.wishes) {
            self.open(wish);
        }
        self.pump();
    }

    /// Refuses what was asked for while `opens_at_once` was false.
    pub(crate) fn refuse_wishes(&mut self, error: RelayOpenError) {
        for wish in core::mem::take(&mut self.wishes) {
            self.engine.relay_opened(self.now, wish.request, Err(error));
        }
        self.pump();
    }

    /// Hands a datagram to the engine and does what it asks for.
    pub(crate) fn receive(&mut self, from: ClientTuple, bytes: &[u8]) -> Outcome {
        let outcome = self.engine.handle_stun(self.now, from, bytes);
        self.pump();
        outcome
    }

    /// Sends a request that is answered at once, and returns the answer.
    pub(crate) fn exchange(&mut self, from: ClientTuple, bytes: &[u8]) -> Answer {
        self.replies.clear();
        assert_eq!(self.receive(from, bytes), Outcome::Done);
        self.only_reply_to(from)
    }

    /// Returns the one reply that has come since the last exchange.
    pub(crate) fn only_reply_to(&mut self, client: ClientTuple) -> Answer {
        let replies = core::mem::take(&mut self.replies);
        let [(to, bytes)] = &replies[..] else {
            panic!("exactly one reply, not {}", replies.len())
        };
        assert_eq!(*to, client);
        Answer(bytes.clone())
    }

    /// Returns a client that has been challenged and knows how to go on.
    pub(crate) fn client(&mut self, remote: &str) -> Client {
        self.client_of("alice", "wonderland", remote)
    }

    pub(crate) fn client_of(&mut self, name: &str, password: &str, remote: &str) -> Client {
        let tuple = tuple(remote);
        let mut client = Client {
            tuple,
            name: name.into(),
            realm: REALM.into(),
            key: IntegrityKey::sha1(&long_term_key_md5(
                name.as_bytes(),
                REALM.as_bytes(),
                password.as_bytes(),
            )),
            nonce: Vec::new(),
            challenged: Time::ZERO,
            transactions: u64::from(tuple.remote.port()) << 32,
        };
        self.challenge(&mut client);
        client
    }

    /// Gets the client a fresh nonce.
    pub(crate) fn challenge(&mut self, client: &mut Client) {
        let transaction = client.next_transaction();
        let request = first_request(transaction);
        let answer = self.exchange(client.tuple, &request);
        assert_eq!(answer.code(), Some(401));
        client.nonce = answer.message().nonce().unwrap().unwrap().to_vec();
        client.challenged = self.now.time;
    }

    /// Gets the client a fresh nonce when its own may be old.
    pub(crate) fn challenge_if_stale(&mut self, client: &mut Client) {
        if self.now.time.since(client.challenged) > Duration::from_secs(300) {
            self.challenge(client);
        }
    }

    /// Sends an authenticated request with a new transaction id, and returns its answer.
    pub(crate) fn ask(
        &mut self,
        client: &mut Client,
        method: Method,
        write: impl FnOnce(&mut MessageWriter<'_>),
    ) -> Answer {
        let transaction = client.next_transaction();
        let request = client.request(method, transaction, write);
        let answer = self.exchange(client.tuple, &request);
        assert_eq!(answer.message().transaction_id(), transaction);
        assert_eq!(answer.message().method(), method);
        assert_eq!(
            answer.message().check_integrity(&client.key),
            Ok(()),
            "{:?}",
            answer.code()
        );
        answer
    }

    /// Allocates over IPv4 and returns the relayed transport address.
    pub(crate) fn allocate(&mut self, client: &mut Client) -> SocketAddr {
        let answer = self.ask(client, Method::ALLOCATE, |writer| {
            writer.requested_transport(17);
        });
        answer.success().xor_relayed_address().unwrap().unwrap()
    }

    /// Allocates both families.
    pub(crate) fn allocate_dual(&mut self, client: &mut Client) -> [SocketAddr; 2] {
        let answer = self.ask(client, Method::ALLOCATE, |writer| {
            writer
                .requested_transport(17)
                .additional_address_family(turnbuckle_wire::AddressFamily::V6);
        });
        let addresses: Vec<SocketAddr> = answer
            .success()
            .xor_relayed_addresses()
            .map(Result::unwrap)
            .collect();
        addresses.try_into().unwrap()
    }

    pub(crate) fn permit(&mut self, client: &mut Client, peer: &str) -> Answer {
        let peer = peer.parse().unwrap();
        self.ask(client, Method::CREATE_PERMISSION, |writer| {
            writer.xor_peer_address(peer);
        })
    }

    pub(crate) fn bind(&mut self, client: &mut Client, number: u16, peer: &str) -> Answer {
        let peer = peer.parse().unwrap();
        self.ask(client, Method::CHANNEL_BIND, |writer| {
            writer
                .bytes(
                    AttributeType::CHANNEL_NUMBER,
                    &(u32::from(number) << 16).to_be_bytes(),
                )
                .xor_peer_address(peer);
        })
    }

    pub(crate) fn refresh(&mut self, client: &mut Client, lifetime_s: u32) -> Answer {
        self.ask(client, Method::REFRESH, |writer| {
            writer.lifetime(lifetime_s);
        })
    }

    pub(crate) fn id(&self, client: &Client) -> AllocationId {
        self.engine.client(&client.tuple).unwrap()
    }

    /// Sends one channel message of 10 bytes.
    pub(crate) fn channel_data(
        &mut self,
        client: &Client,
        number: u16,
    ) -> Result<PeerRoute, DropReason> {
        let id = self
            .engine
            .client(&client.tuple)
            .ok_or(DropReason::NoAllocation)?;
        self.engine
            .route_channel_data(self.now.time, id, number, 1, 10)
    }

    /// Sends one datagram of 10 bytes from a peer to the socket at `relayed`.
    pub(crate) fn peer_data(
        &mut self,
        relayed: SocketAddr,
        peer: &str,
    ) -> Result<ClientRoute, DropReason> {
        let socket = self.socket_at(relayed).expect("a socket is open there");
        self.engine
            .route_from_peer(self.now.time, socket.handle, peer.parse().unwrap(), 1, 10)
    }

    pub(crate) fn socket_at(&self, address: SocketAddr) -> Option<Socket> {
        self.sockets
            .values()
            .find(|socket| socket.address == address)
            .copied()
    }

    pub(crate) fn endpoint_at(&self, address: SocketAddr) -> Option<Endpoint> {
        self.sockets
            .iter()
            .find(|(_, socket)| socket.address == address)
            .map(|(endpoint, _)| *endpoint)
    }

    /// Sends a Send indication with `data`.
    pub(crate) fn send(
        &mut self,
        client: &mut Client,
        peer: &str,
        data: &[u8],
    ) -> Result<SendRoute, DropReason> {
        let peer = peer.parse().unwrap();
        self.indicate(client, |writer| {
            writer.xor_peer_address(peer).data(data);
        })
    }

    pub(crate) fn indicate(
        &mut self,
        client: &mut Client,
        write: impl FnOnce(&mut MessageWriter<'_>),
    ) -> Result<SendRoute, DropReason> {
        let transaction = client.next_transaction();
        let bytes = message(Class::Indication, Method::SEND, transaction, write);
        self.replies.clear();
        let outcome = self.receive(client.tuple, &bytes);
        assert!(self.replies.is_empty(), "indications are never answered");
        match outcome {
            Outcome::Relay(route) => Ok(route),
            Outcome::Dropped(reason) => Err(reason),
            other => panic!("an indication has no answer: {other:?}"),
        }
    }

    /// Returns the changes since the last call.
    pub(crate) fn take_changes(&mut self) -> Vec<Change> {
        core::mem::take(&mut self.changes)
    }

    /// Fails unless everything that was taken has been given back.
    pub(crate) fn assert_nothing_is_held(&self) {
        assert_eq!(self.engine.statistics().allocations, 0);
        assert_eq!(self.engine.statistics().pending, 0);
        assert_eq!(self.engine.statistics().peer_connections, 0);
        assert_eq!(self.commons.peer_connections(), (0, 0));
        assert_eq!(self.commons.quota_used_total(), 0);
        assert!(self.sockets.is_empty(), "{:?}", self.sockets);
        for (address, counts) in self.commons.ports() {
            assert_eq!(
                (counts.free, counts.leased),
                (counts.size, 0),
                "{address:?}"
            );
        }
    }
}

/// A client that authenticates with MESSAGE-INTEGRITY, as browsers do.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) tuple: ClientTuple,
    pub(crate) name: String,
    pub(crate) realm: String,
    pub(crate) key: IntegrityKey,
    pub(crate) nonce: Vec<u8>,
    pub(crate) challenged: Time,
    pub(crate) transactions: u64,
}

impl Client {
    pub(crate) fn next_transaction(&mut self) -> TransactionId {
        self.transactions += 1;
        let mut bytes = [0; 12];
        bytes[4..].copy_from_slice(&self.transactions.to_be_bytes());
        TransactionId::new(bytes)
    }

    /// Returns an authenticated request.
    pub(crate) fn request(
        &self,
        method: Method,
        transaction: TransactionId,
        write: impl FnOnce(&mut MessageWriter<'_>),
    ) -> Vec<u8> {
        message(Class::Request, method, transaction, |writer| {
            write(writer);
            writer
                .username(self.name.as_bytes())
                .realm(self.realm.as_bytes())
                .nonce(&self.nonce);
            writer.integrity(&self.key);
        })
    }
}

/// An answer, for a look inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer(pub(crate) Vec<u8>);

impl Answer {
    pub(crate) fn message(&self) -> Message<'_> {
        Message::parse(&self.0).unwrap()
    }

    /// Returns the error code, `None` in a success.
    pub(crate) fn code(&self) -> Option<u16> {
        let code = self.message().error_code().unwrap().map(|error| error.code);
        assert_eq!(code.is_some(), self.message().class() == Class::Error);
        code
    }

    pub(crate) fn success(&self) -> Message<'_> {
        assert_eq!(self.code(), None);
        self.message()
    }

    pub(crate) fn lifetime(&self) -> u32 {
        self.success().lifetime().unwrap().unwrap()
    }
}

pub(crate) fn listeners() -> [(Endpoint, SocketAddr); 2] {
    [
        (LISTENER, "192.0.2.1:3478".parse().unwrap()),
        (LISTENER_V6, "[2001:db8::1]:3478".parse().unwrap()),
    ]
}

/// Returns the 5-tuple of a client at the listener of its family.
pub(crate) fn tuple(remote: &str) -> ClientTuple {
    let remote: SocketAddr = remote.parse().unwrap();
    let listener = if Family::of(&remote) == Family::V4 {
        LISTENER
    } else {
        LISTENER_V6
    };
    ClientTuple::udp(listener, remote)
}

/// Writes a message with nothing but what `write` writes.
pub(crate) fn message(
    class: Class,
    method: Method,
    transaction: TransactionId,
    write: impl FnOnce(&mut MessageWriter<'_>),
) -> Vec<u8> {
    let mut buffer = vec![0xEE; 66_000];
    let mut writer = MessageWriter::new(&mut buffer, class, method, transaction);
    write(&mut writer);
    let len = writer.finish().unwrap();
    buffer.truncate(len);
    buffer
}

/// Writes a request without authentication.
pub(crate) fn bare(
    method: Method,
    transaction: TransactionId,
    write: impl FnOnce(&mut MessageWriter<'_>),
) -> Vec<u8> {
    message(Class::Request, method, transaction, write)
}

/// Writes what a client begins with: an Allocate request without authentication.
pub(crate) fn first_request(transaction: TransactionId) -> Vec<u8> {
    bare(Method::ALLOCATE, transaction, |writer| {
        writer.requested_transport(17);
    })
}

pub(crate) fn channel(number: u16) -> Framing {
    Framing::Channel(ChannelNumber::try_from(number).unwrap())
}

pub(crate) fn data_indication(peer: &str) -> Framing {
    Framing::DataIndication {
        peer: peer.parse().unwrap(),
    }
}
