//! Several shards on one thread, and clients whose shard the test chooses: every shard has listeners of its own, which have one address to the
//! engines, so that a nonce of one is good at the others.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use turnbuckle_counters::Counter;
use turnbuckle_datapath::{Bind, Datapath, EndpointKind, Listen};
use turnbuckle_engine::{Commons, Config as EngineConfig, Now};
use turnbuckle_wire::{
    AttributeType, ChannelData, ChannelNumber, Class, IntegrityKey, Message, MessageWriter, Method,
    TransactionId, long_term_key_md5,
};

use super::super::thread::{Followers, HostAddresses, Listeners, Plan, listen_too, set_up};
use crate::asking::{Answered, Asker};
use crate::clock::Clock;
use crate::config::{Machine, Masque, Request as Wish, load};
use crate::control::keys::KeyRing;
use crate::counters::{Accounting, ShardCounters};
use crate::handle::{Events, Page, PageRequest, Purpose, SESSIONS_PER_PAGE_MAX, SessionFilter};
use crate::log::Log;
use crate::resolve::Resolver;
use crate::shard::across::mailbox::Mailbox;
use crate::shard::name::Token;
use crate::shard::relay::Relay;
use crate::translate;

pub(crate) const REALM: &str = "example.org";
pub(crate) const PASSWORD: &str = "secret";
/// Turns of all shards that something may take.
const TURNS_MAX: usize = 2000;
/// How many were started in this process.
static STARTED: AtomicU16 = AtomicU16::new(0);

/// Shards that serve whoever waits for something.
pub(crate) trait Turns {
    /// Waits until `done` returns something.
    fn until<T>(&mut self, done: impl FnMut() -> Option<T>) -> T;
}

/// Shards that take turns when a test asks for it.
pub(super) struct Several {
    shards: Vec<OneOfSeveral>,
    /// Where each one listens, for datagrams and connections.
    listeners: Vec<SocketAddr>,
    /// Their settings.
    engine: Arc<EngineConfig>,
}

struct OneOfSeveral {
    datapath: Datapath,
    relay: Relay,
    counters: Arc<ShardCounters>,
}

impl Several {
    /// Starts so many shards, with addresses and ports that no other shards of this process have: what comes to a port is shared out among all that listen
    /// there.
    pub(super) fn start(count: u16, options: &[&str]) -> Self {
        let number = STARTED.fetch_add(1, Relaxed);
        let (group, [_, host]) = (number / 4, (number % 4).to_be_bytes());
        let at = |port| {
            let [_, high, middle, low] = std::process::id().to_be_bytes();
            let second = 128 | high & 31 | host << 5;
            SocketAddr::from(([127, second, middle, low], port))
        };
        let listeners: Vec<_> = (0..count)
            .map(|shard| at(3478 + 16 * group + shard))
            .collect();
        let own = [
            format!("--listening-ip={}", listeners[0].ip()),
            format!("--realm={REALM}"),
            format!("--user=alice:{PASSWORD}"),
            format!("--user=mallory:{PASSWORD}"),
            format!("--relay-threads={count}"),
            format!("--min-port={}", 30_000 + 1_000 * group),
            format!("--max-port={}", 30_999 + 1_000 * group),
            "--allow-loopback-peers".to_owned(),
            "--mobility".to_owned(),
            "--no-tcp-relay=false".to_owned(),
        ];
        let own = own.into_iter().map(OsString::from);
        let machine = Machine::discover().unwrap();
        let loaded = match load(own.chain(options.iter().map(OsString::from)), &machine) {
            Ok(Wish::Run(loaded)) => loaded,
            Ok(_) => panic!("asked for something else than running"),
            Err(problems) => panic!("{problems:?}"),
        };
        let config = &loaded.config;
        let keys = KeyRing::new(config);
        let engine = Arc::new(translate::engine(config, &keys).unwrap());
        let commons = Commons::new(&engine);
        let budget = translate::relay_buffer_budget();
        let backend = translate::backend(config.datapath.backend).0;
        let accepting = translate::accepting(config).unwrap();
        let (events, _) = sync_channel(64);
        let wants_tunnels = config.protocols.http.masque != Masque::Off;
        let resolver = wants_tunnels.then(Resolver::of_machine);
        let mailboxes: Arc<[_]> = std::iter::repeat_with(Mailbox::default)
            .take(count.into())
            .collect();
        let mut shards = Vec::new();
        for (index, &listener) in listeners.iter().enumerate() {
            let serving = translate::serving(config, None);
            let plan = Plan {
                index,
                is_restart: false,
                core: None,
                host: HostAddresses::default(),
                listeners: Listeners::default(),
                commons: Arc::clone(&commons),
                mailboxes: Arc::clone(&mailboxes),
                engine: Arc::clone(&engine),
                streams: translate::streams(config, &serving, None, resolver.as_ref()),
                datagrams: translate::datagrams(config, &serving, None, &keys, None),
                datapath: translate::datapath(
                    config,
                    backend,
                    &accepting,
                    &budget,
                    serving.coalesce,
                ),
                followers: Followers {
                    journal: None,
                    asker: None,
                    log: translate::log(config, &serving, index, count.into()),
                    events: None,
                },
            };
            let counters = Arc::new(ShardCounters::default());
            let log = Log::new(
                events.clone(),
                plan.followers.log.clone(),
                Arc::clone(&counters),
            );
            let (mut datapath, mut relay) =
                set_up(plan, Arc::clone(&counters), log, &sync_channel(1).0).unwrap();
            // A port of its own for each shard, so that a test says who comes where; to the engines they are all the first, as in a
            // group that shares one address.
            let bind = Bind {
                address: listener,
                kind: EndpointKind::Listener { reuseport: true },
                token: Token::ClientDatagrams.to_u64(),
            };
            let endpoint = datapath.bind(bind).unwrap();
            relay.add_listener(endpoint, listeners[0]);
            datapath.admit_clients(endpoint).unwrap();
            let token = Token::ClientConnections(0).to_u64();
            let address = listener;
            let connections = datapath.listen(Listen { address, token }).unwrap();
            relay.add_stream_listener(connections, listeners[0]);
            datapath.admit_connections(connections).unwrap();
            shards.push(OneOfSeveral {
                datapath,
                relay,
                counters,
            });
        }
        Self {
            shards,
            listeners,
            engine,
        }
    }

    /// Returns an address that no shard listens on before it is asked to.
    pub(super) fn later(&self, number: u16) -> SocketAddr {
        let first = self.listeners[0];
        SocketAddr::new(first.ip(), first.port() + 8 + number)
    }

    /// Has a shard listen on an address too, for datagrams and for connections.
    pub(super) fn listen_too(&mut self, shard: usize, address: SocketAddr) -> io::Result<()> {
        let OneOfSeveral {
            datapath, relay, ..
        } = &mut self.shards[shard];
        let before = (relay.listeners().len(), relay.stream_listeners().len());
        let outcome = listen_too(datapath, relay, vec![address], vec![address]);
        for listener in &relay.listeners()[before.0..] {
            datapath.admit_clients(*listener)?;
        }
        for listener in relay.stream_listeners()[before.1..].iter().flatten() {
            datapath.admit_connections(*listener)?;
        }
        outcome
    }

    /// Makes one turn of each shard.
    pub(super) fn turn(&mut self) {
        for index in 0..self.shards.len() {
            self.turn_shard(index);
        }
    }

    /// Makes one turn of one shard, while the others stand still.
    pub(super) fn turn_shard(&mut self, index: usize) {
        let shard = &mut self.shards[index];
        let timeout = Some(Duration::from_micros(200));
        shard.datapath.turn(timeout, &mut shard.relay).unwrap();
        shard.relay.work_on_pages(shard.datapath.send_queue());
    }

    /// Asks a shard for a page of the sessions that pass a filter, or has it end them. Returns where the page comes.
    pub(super) fn page(
        &mut self,
        shard: usize,
        purpose: Purpose,
        from: u32,
        filter: SessionFilter,
    ) -> Receiver<Page> {
        let (sender, page) = sync_channel(1);
        self.shards[shard].relay.page(PageRequest {
            purpose,
            from,
            filter,
            max: SESSIONS_PER_PAGE_MAX,
            reply: Box::new(move |page| sender.send(page).unwrap()),
            under_way: Arc::default(),
        });
        page
    }

    /// Returns whether a shard has something to do at once.
    pub(super) fn has_work(&self, shard: usize) -> bool {
        self.shards[shard].relay.timeout() == Some(Duration::ZERO)
    }

    /// Has a shard tell of its sessions.
    pub(super) fn consume(&mut self, shard: usize) -> Events {
        let (mut senders, events) = Events::channel(1);
        self.shards[shard].relay.consume(senders.remove(0));
        events
    }

    /// Returns how long a shard may wait before it has something to do.
    pub(super) fn timeout(&self, shard: usize) -> Option<Duration> {
        self.shards[shard].relay.timeout()
    }

    /// Returns how many allocations a shard has.
    pub(super) fn allocations(&self, shard: usize) -> u64 {
        self.shards[shard].counters.engine.allocations.get()
    }

    /// Turns until everything that is under way has arrived.
    pub(super) fn settle(&mut self) {
        for _ in 0..30 {
            self.turn();
        }
    }

    /// Makes a client of this user by UDP, at a shard.
    pub(super) fn datagrams(&self, shard: usize, user: &'static str) -> Client {
        Client::by_datagrams(self.listeners[shard], user)
    }

    /// Has all shards read the time from what is returned, where it stands still.
    pub(super) fn stop_time(&mut self) -> Arc<Mutex<Now>> {
        let time = Arc::new(Mutex::new(Clock::Machine.now()));
        for shard in &mut self.shards {
            shard.relay.clock = Clock::Given(Arc::clone(&time));
        }
        time
    }

    /// Changes the settings of all shards.
    pub(super) fn reconfigure(&mut self, change: impl FnOnce(&mut EngineConfig)) {
        let mut next = EngineConfig::clone(&self.engine);
        change(&mut next);
        self.engine = Arc::new(next);
        for shard in &mut self.shards {
            shard.relay.reconfigure(&self.engine);
        }
    }

    /// Has a shard ask about users whom it does not know.
    pub(super) fn ask(&mut self, shard: usize, asker: Asker) {
        self.shards[shard].relay.ask(shard, Some(asker));
    }

    /// Gives a shard an answer about a user.
    pub(super) fn answered(&mut self, shard: usize, answer: Answered) {
        self.shards[shard].relay.answered(answer);
    }

    /// Turns until the first shard has sent so many datagrams to peers.
    pub(super) fn until_sent_to_peers(&mut self, count: u64) {
        self.turn_shard_until(0, |shards| shards.sent_to_peers_by(0) >= count);
    }

    /// Returns the address that peers have.
    pub(super) fn peer_ip(&self) -> IpAddr {
        self.listeners[0].ip()
    }

    /// Opens a connection to a shard, of nobody yet.
    pub(super) fn stream(&self, shard: usize) -> TcpStream {
        TcpStream::connect(self.listeners[shard]).unwrap()
    }

    /// Returns how many messages clients have sent to a shard.
    pub(super) fn client_in(&self, shard: usize) -> u64 {
        self.shards[shard].counters.datagrams.client_in.get()
    }

    /// Makes a client of this user by TCP, at a shard, which has taken the connection.
    pub(super) fn connection(&mut self, shard: usize, user: &'static str) -> Client {
        let mut client = Client::by_connection(self.listeners[shard], user);
        // The answer shows that it has been taken.
        client.fetch_nonce(self);
        client
    }

    /// Makes a client of this user by TCP, at a shard, which has taken the connection while the others stand still.
    pub(super) fn connection_alone(&mut self, shard: usize, user: &'static str) -> Client {
        let before = self.connections_of(shard);
        let client = Client::by_connection(self.listeners[shard], user);
        self.turn_shard_until(shard, |shards| {
            shards.connections_of(shard) == (before.0 + 1, before.1)
        });
        client
    }

    /// Returns what all shards have counted. Whoever asks has let them settle.
    pub(super) fn accounting(&self) -> Accounting {
        Accounting::of(self.shards.iter().map(|shard| &*shard.counters))
    }

    /// Returns a socket for a peer.
    pub(super) fn peer(&self) -> UdpSocket {
        let socket = UdpSocket::bind((self.listeners[0].ip(), 0)).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    }

    /// Opens and closes connections to a shard, one after the other, while the others stand still.
    pub(super) fn churn(&mut self, shard: usize, connections: usize) {
        for _ in 0..connections {
            let before = self.connections_of(shard);
            let socket = TcpStream::connect(self.listeners[shard]).unwrap();
            self.turn_shard_until(shard, |shards| {
                shards.connections_of(shard) == (before.0 + 1, before.1)
            });
            drop(socket);
            self.turn_shard_until(shard, |shards| {
                shards.connections_of(shard) == (before.0 + 1, before.1 + 1)
            });
        }
    }

    /// Turns one shard, while the others stand still.
    pub(super) fn turn_shard_until(&mut self, shard: usize, is_done: impl Fn(&Self) -> bool) {
        for _ in 0..TURNS_MAX {
            if is_done(self) {
                return;
            }
            self.turn_shard(shard);
        }
        panic!("it did not happen in {TURNS_MAX} turns");
    }

    /// Returns how many connections a shard has taken, and how many have ended.
    pub(super) fn connections_of(&self, shard: usize) -> (u64, u64) {
        let connections = &self.shards[shard].counters.connections;
        let ended = connections.closes.iter().map(Counter::get).sum();
        (connections.connections.get(), ended)
    }

    /// Ends a shard as a request to stop does.
    pub(super) fn stop(&mut self, shard: usize) {
        let OneOfSeveral {
            datapath, relay, ..
        } = &mut self.shards[shard];
        relay.stop_sessions(datapath.send_queue());
        datapath.close_streams(relay);
        relay.stop();
    }

    /// Returns how many clients of a shard come to others, and how many names of its own clients others have been told.
    pub(super) fn roamers_of(&self, shard: usize) -> (usize, usize) {
        self.shards[shard].relay.roamers()
    }

    /// Returns of how many allocations of a shard the proxy is known.
    pub(super) fn known_proxies(&self, shard: usize) -> usize {
        self.shards[shard].relay.known_proxies()
    }

    /// Returns how many datagrams a shard has sent to peers.
    pub(super) fn sent_to_peers_by(&self, shard: usize) -> u64 {
        self.shards[shard].counters.datagrams.peer_out.get()
    }

    /// Returns how many messages a shard has read from clients.
    pub(super) fn received_by(&self, shard: usize) -> u64 {
        self.shards[shard].counters.datagrams.client_in.get()
    }

    /// Returns where a peer takes connections.
    pub(super) fn listening_peer(&self) -> TcpListener {
        let listener = TcpListener::bind((self.listeners[0].ip(), 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        listener
    }
}

impl Turns for Several {
    fn until<T>(&mut self, mut done: impl FnMut() -> Option<T>) -> T {
        for _ in 0..TURNS_MAX {
            if let Some(done) = done() {
                return done;
            }
            self.turn();
        }
        panic!("it did not happen in {TURNS_MAX} turns");
    }
}

enum Link {
    Datagrams(UdpSocket),
    /// With what was read and is no whole message yet.
    Connection(TcpStream, Vec<u8>),
}

/// A TURN client that never waits.
pub(crate) struct Client {
    link: Link,
    user: &'static str,
    nonce: Vec<u8>,
    transactions: u8,
}

/// An answer.
pub(crate) struct Reply(Vec<u8>);

impl Reply {
    pub(crate) fn message(&self) -> Message<'_> {
        Message::parse(&self.0).unwrap()
    }

    /// Returns the error code, 200 for success.
    pub(crate) fn code(&self) -> u16 {
        let message = self.message();
        match message.class() {
            Class::Success => 200,
            _ => message.error_code().unwrap().unwrap().code,
        }
    }

    pub(crate) fn expect(self, code: u16) -> Self {
        assert_eq!(self.code(), code);
        self
    }

    pub(crate) fn ticket(&self) -> Vec<u8> {
        self.message().mobility_ticket().expect("a ticket").to_vec()
    }

    pub(crate) fn relayed(&self) -> SocketAddr {
        self.message().xor_relayed_address().unwrap().unwrap()
    }
}

impl Client {
    /// Makes a client that comes by UDP.
    pub(crate) fn by_datagrams(server: SocketAddr, user: &'static str) -> Self {
        let socket = UdpSocket::bind((server.ip(), 0)).unwrap();
        socket.connect(server).unwrap();
        socket.set_nonblocking(true).unwrap();
        Self::new(Link::Datagrams(socket), user)
    }

    /// Makes a client that comes by TCP.
    pub(crate) fn by_connection(server: SocketAddr, user: &'static str) -> Self {
        let socket = TcpStream::connect(server).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket.set_nodelay(true).unwrap();
        Self::new(Link::Connection(socket, Vec::new()), user)
    }

    fn new(link: Link, user: &'static str) -> Self {
        Self {
            link,
            user,
            nonce: Vec::new(),
            transactions: 0,
        }
    }

    /// Returns a request with credentials.
    pub(crate) fn signed(
        &mut self,
        method: Method,
        attributes: impl FnOnce(&mut MessageWriter<'_>),
    ) -> Vec<u8> {
        let mut buffer = [0; 1024];
        self.transactions += 1;
        let transaction = TransactionId::from([self.transactions; 12]);
        let mut writer = MessageWriter::new(&mut buffer, Class::Request, method, transaction);
        attributes(&mut writer);
        let (user, realm) = (self.user.as_bytes(), REALM.as_bytes());
        let key = long_term_key_md5(user, realm, PASSWORD.as_bytes());
        writer
            .username(user)
            .realm(realm)
            .nonce(&self.nonce)
            .bytes(
                AttributeType::PASSWORD_ALGORITHMS,
                &[0, 2, 0, 0, 0, 1, 0, 0],
            )
            .bytes(AttributeType::PASSWORD_ALGORITHM, &[0, 1, 0, 0])
            .integrity(&IntegrityKey::sha1(&key));
        let len = writer.finish().unwrap();
        buffer[..len].to_vec()
    }

    /// Returns a request to come back to what the ticket is for.
    pub(crate) fn signed_resume(&mut self, ticket: &[u8]) -> Vec<u8> {
        self.signed(Method::REFRESH, |writer| {
            writer.mobility_ticket(ticket);
        })
    }

    /// Gets a nonce by asking without credentials.
    fn fetch_nonce(&mut self, shards: &mut impl Turns) {
        let mut buffer = [0; 64];
        let transaction = TransactionId::from([0xFF; 12]);
        let mut writer =
            MessageWriter::new(&mut buffer, Class::Request, Method::REFRESH, transaction);
        writer.lifetime(600);
        let len = writer.finish().unwrap();
        self.send(&buffer[..len]);
        let challenge = self.answer(shards).expect(401);
        self.take_nonce(&challenge);
    }

    pub(crate) fn request(
        &mut self,
        shards: &mut impl Turns,
        method: Method,
        attributes: impl Fn(&mut MessageWriter<'_>),
    ) -> Reply {
        if self.nonce.is_empty() {
            self.fetch_nonce(shards);
        }
        let request = self.signed(method, &attributes);
        self.send(&request);
        let answer = self.answer(shards);
        // A nonce is good at one listening address, and each of these shards has its own.
        if answer.code() != 438 {
            return answer;
        }
        self.take_nonce(&answer);
        let request = self.signed(method, attributes);
        self.send(&request);
        self.answer(shards)
    }

    pub(crate) fn take_nonce(&mut self, challenge: &Reply) {
        let nonce = challenge.message().nonce().unwrap().unwrap().to_vec();
        self.nonce = nonce;
    }

    /// Allocates with a ticket.
    pub(crate) fn allocate(&mut self, shards: &mut impl Turns) -> Reply {
        let answer = self.request(shards, Method::ALLOCATE, |writer| {
            writer.requested_transport(17).mobility_ticket(b"");
        });
        answer.expect(200)
    }

    /// Comes back to what the ticket is for.
    pub(crate) fn resume(&mut self, shards: &mut impl Turns, ticket: &[u8]) -> Reply {
        self.request(shards, Method::REFRESH, |writer| {
            writer.mobility_ticket(ticket);
        })
    }

    pub(crate) fn bind_channel(
        &mut self,
        shards: &mut impl Turns,
        number: ChannelNumber,
        peer: SocketAddr,
    ) {
        let answer = self.request(shards, Method::CHANNEL_BIND, |writer| {
            writer.channel_number(number).xor_peer_address(peer);
        });
        answer.expect(200);
    }

    /// Sends a datagram.
    pub(crate) fn send_shared(&self, bytes: &[u8]) {
        let Link::Datagrams(socket) = &self.link else {
            panic!("a connection");
        };
        assert_eq!(socket.send(bytes).unwrap(), bytes.len());
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        match &mut self.link {
            Link::Datagrams(socket) => assert_eq!(socket.send(bytes).unwrap(), bytes.len()),
            Link::Connection(socket, _) => socket.write_all(bytes).unwrap(),
        }
    }

    pub(crate) fn send_channel_data(&mut self, number: ChannelNumber, data: &[u8]) {
        let header = ChannelData::header(number, u16::try_from(data.len()).unwrap());
        let mut message = [&header, data].concat();
        message.resize(message.len().next_multiple_of(4), 0);
        self.send(&message);
    }

    /// Returns the next STUN message.
    pub(crate) fn answer(&mut self, shards: &mut impl Turns) -> Reply {
        Reply(shards.until(|| self.received()))
    }

    /// Returns the next message, if one has come.
    pub(crate) fn received(&mut self) -> Option<Vec<u8>> {
        let mut buffer = [0; 4096];
        match &mut self.link {
            Link::Datagrams(socket) => {
                let len = socket.recv(&mut buffer).ok()?;
                Some(buffer[..len].to_vec())
            }
            Link::Connection(socket, unread) => {
                while let Ok(len @ 1..) = socket.read(&mut buffer) {
                    unread.extend_from_slice(&buffer[..len]);
                }
                let &[first, _, high, low, ..] = &unread[..] else {
                    return None;
                };
                let len = usize::from(u16::from_be_bytes([high, low]));
                let len = match first {
                    0..64 => 20 + len,
                    _ => (4 + len).next_multiple_of(4),
                };
                (unread.len() >= len).then(|| unread.drain(..len).collect())
            }
        }
    }

    /// Reads so many bytes of a stream that has no messages any more.
    pub(crate) fn read(&mut self, shards: &mut impl Turns, len: usize) -> Vec<u8> {
        let Link::Connection(socket, unread) = &mut self.link else {
            panic!("no stream");
        };
        let mut buffer = [0; 4096];
        shards.until(|| {
            while let Ok(len @ 1..) = socket.read(&mut buffer) {
                unread.extend_from_slice(&buffer[..len]);
            }
            (unread.len() >= len).then_some(())
        });
        unread.drain(..len).collect()
    }

    /// Returns whether the connection is open, and nothing has come on it that was not asked for.
    pub(crate) fn is_left_alone(&mut self) -> bool {
        let Link::Connection(socket, unread) = &mut self.link else {
            return self.received().is_none();
        };
        let read = socket.read(&mut [0; 64]);
        unread.is_empty() && read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }
}
