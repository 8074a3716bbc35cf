//! Shards without sockets and threads, for the simulator alone: the handlers that a server's data paths have, over whatever stands in for these.
//!
//! Time, randomness and addresses are given. Nothing here reads a clock, nothing is logged, and the operating system is asked for nothing but the memory
//! of journals.

pub mod clear;

use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use turnbuckle_datapath::offload::Routes;
use turnbuckle_datapath::{EndpointId, Handler, SendQueue, StreamListenerId, Waker};
use turnbuckle_engine::{
    AddressRange, Belongings, Commons, Config, Engine, InterfaceAddress, Now, RelayHandle,
};
use turnbuckle_quic::Keys;
use turnbuckle_sys::mapped::Mapped;

use crate::Accounting;
use crate::clock;
use crate::config::Persona;
use crate::counters::ShardCounters;
use crate::handle::SessionNumbers;
pub use crate::journal::segment;
use crate::journal::{Memory, Segments, Slices};
use crate::log::{Log, Scope};
use crate::random::Randomness;
pub use crate::random::Source;
use crate::resolve::Resolver;
use crate::shard::across::mailbox::Mailbox;
pub use crate::shard::across::mailbox::Room;
use crate::shard::book::{BookLimits, CrowdLimits};
use crate::shard::front::all::DatagramService;
use crate::shard::front::dtls::{CookieKey, DtlsLimits, DtlsService};
use crate::shard::front::proxy::Proxies;
use crate::shard::front::quic::{Given, QuicService, Surroundings};
use crate::shard::front::stream::{HttpService, StreamService, TunnelService};
use crate::shard::name::Token;
use crate::shard::relay::Relay;
use crate::shard::serving::Logged;
use crate::shard::sessions::Sessions;
use crate::survive::{Record, ShardJournal};

/// A clock that goes when it is told to.
#[derive(Clone, Debug)]
pub struct Clock(Arc<Mutex<Now>>);

impl Clock {
    /// Returns a clock that shows `now`.
    pub fn new(now: Now) -> Self {
        Self(Arc::new(Mutex::new(now)))
    }

    /// Shows `now` from here on, to every shard that has this clock.
    pub fn set(&self, now: Now) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }
}

/// How long connections may take for what, and how many may take it.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// From the first byte of a message to its last, and until the first one is there.
    pub message: Duration,
    /// Without an allocation, from one message to the next.
    pub idle: Duration,
    /// Without an allocation, whatever is said.
    pub unallocated: Duration,
    /// Connections without an allocation, of one shard.
    pub total: usize,
    /// The same from one address, of all shards.
    pub per_source: u32,
}

/// So small that a journal is begun anew again and again, and changes come between the slices.
const SLICES: Slices = Slices {
    segment_min: 2048,
    places: 1,
    ends: 2,
};

/// The journals of a server's shards, which outlive its process.
#[derive(Clone, Debug)]
pub struct Journals(Arc<[Segments]>);

impl Journals {
    /// Returns the empty journals of so many shards.
    ///
    /// # Errors
    ///
    /// There is no memory for them.
    pub fn new(shards: usize) -> io::Result<Self> {
        let header = memfd_create("turnbuckle-header", MemfdFlags::CLOEXEC)?;
        ftruncate(&header, (shards * size_of::<u64>()) as u64)?;
        let words = Arc::new(Mapped::new(&header, shards)?);
        let journals = (0..shards).map(|shard| Segments::new(Arc::clone(&words), shard));
        journals.collect::<io::Result<_>>().map(Self)
    }
}

/// What a server is made of.
#[derive(Clone)]
pub struct Setup {
    /// What its engines are told.
    pub config: Arc<Config>,
    /// How many shards it has.
    pub shards: usize,
    /// What tells all of them the time.
    pub clock: Clock,
    /// What connections may take.
    pub limits: ConnectionLimits,
    /// What the cookies of clients by DTLS are keyed with; their sessions protect nothing, see [`clear`].
    pub cookies: [u8; 32],
    /// What its connection ids, stateless resets and address tokens of QUIC are keyed with; its connections hide nothing. `None` serves no QUIC.
    pub quic: Option<[u8; 32]>,
    /// Who may say who its clients are, by the PROXY protocol.
    pub proxies: Vec<AddressRange>,
    /// How much may wait for a shard from others.
    pub room: Room,
    /// Where changes are written; `None` where allocations end with the process.
    pub journals: Option<Journals>,
}

/// What a server's shards have in common.
#[derive(Clone)]
pub struct Server {
    setup: Setup,
    commons: Arc<Commons>,
    mailboxes: Arc<[Mailbox]>,
    quic: Option<Keys>,
}

impl Server {
    /// Returns a server without shards.
    pub fn new(setup: Setup) -> Self {
        let mailboxes = std::iter::repeat_with(|| Mailbox::with_room(setup.room));
        Self {
            commons: Commons::new(&setup.config),
            mailboxes: mailboxes.take(setup.shards).collect(),
            quic: setup.quic.as_ref().map(Keys::new),
            setup,
        }
    }

    /// Returns the next process of this server, whose journals it has.
    pub fn after(&self, config: Config) -> Self {
        Self::new(Setup {
            config: Arc::new(config),
            ..self.setup.clone()
        })
    }

    /// Returns how many of its journals are being written anew.
    pub fn journals_begun_anew(&self) -> usize {
        let journals = self.setup.journals.iter().flat_map(|it| it.0.iter());
        journals.filter(|it| it.is_begun_anew()).count()
    }

    /// Returns of whom more waits for a shard than others leave room for, in words; `None` if there is nobody.
    pub fn crowded(&self) -> Option<String> {
        let mut crowded = self.mailboxes.iter().filter_map(Mailbox::crowded_by);
        let (client, messages) = crowded.next()?;
        Some(format!("{messages} messages of {client:?} wait"))
    }

    /// Has a shard, whose sockets for clients are known, write its journal. If something was `left`, by a shard of this process or an earlier one, it goes
    /// on with what is on record: `socket_of` finds the relay socket at an address and has the data path keep the number beside it.
    ///
    /// # Errors
    ///
    /// The journal cannot be read or written.
    pub fn begin_journal(
        &self,
        index: usize,
        shard: &mut Shard,
        left: Option<Belongings>,
        socket_of: &mut dyn FnMut(SocketAddr, u64) -> Option<EndpointId>,
    ) -> io::Result<()> {
        let Some(Journals(journals)) = &self.setup.journals else {
            return Ok(());
        };
        let config = &self.setup.config;
        let memory = Memory {
            count_max: config.limits.tombstones as usize,
            replay: config.auth.nonce_lifetime.replay_memory(),
            slices: SLICES,
        };
        let segments = journals[index].clone();
        let mut record = Record::default();
        if left.is_some() {
            record.recorded = segments.read().map_err(io::Error::other)?;
        }
        let belongings = left.unwrap_or_default();
        let socket_of =
            |address, handle: RelayHandle| socket_of(address, Token::Relay(handle).to_u64());
        shard.relay.restore(&record, belongings, socket_of);
        let journal = ShardJournal::new(segments, memory, Record::default());
        shard.relay.begin_journal(&journal, &record)
    }

    /// Returns the shard that issued the connection id of a datagram, if that is one of QUIC: it has the connection, and the kernel may give it the
    /// datagram.
    pub fn issuer_of(&self, datagram: &[u8]) -> Option<usize> {
        let ids = self.quic.as_ref()?.ids();
        ids.shard_of_datagram(datagram).map(usize::from)
    }

    /// Returns what is shared by all shards.
    pub fn commons(&self) -> &Commons {
        &self.commons
    }

    /// Makes shard number `index`, which draws from `random`.
    pub fn shard(&self, index: usize, random: Source) -> Shard {
        self.start(index, random, Arc::default())
    }

    /// Makes the shard that takes the place of one that has failed. Of that one is left what it has counted, and what its allocations have of what all
    /// share.
    pub fn restart(&self, index: usize, failed: Shard, random: Source) -> (Shard, Belongings) {
        let Shard {
            relay, counters, ..
        } = failed;
        let left = relay.leave();
        counters.failed();
        let mut shard = self.start(index, random, counters);
        shard.relay.say_restarted();
        (shard, left)
    }

    fn start(&self, index: usize, mut random: Source, counters: Arc<ShardCounters>) -> Shard {
        let (count, limits) = (self.mailboxes.len(), self.setup.limits);
        // Nobody reads it: lines that find nobody are counted and forgotten.
        let (events, _) = sync_channel(1);
        let scope = Scope {
            persona: Persona::Turnbuckle,
            logged: Logged::NOTHING,
            numbers: SessionNumbers::after(0),
            shard: index,
            shards: count,
            realm: Box::default(),
        };
        let book = BookLimits {
            handshake: limits.message,
            first_message: limits.message,
            message: limits.message,
            idle: limits.idle,
            unallocated: limits.unallocated,
            crowd: CrowdLimits {
                total: limits.total,
                per_source: CrowdLimits::share(limits.per_source, count),
            },
        };
        let dtls = DtlsService {
            context: Arc::new(clear::Clear),
            cookies: CookieKey::new(&self.setup.cookies),
            limits: DtlsLimits {
                book,
                sessions: limits.total,
            },
        };
        let streams = StreamService {
            limits: book,
            tls: None,
            serves_any_alpn: false,
            serves_plain: true,
            proxies: Proxies {
                sources: self.setup.proxies.clone(),
                datagram_sources: self.setup.proxies.clone(),
                only: false,
            },
            http: HttpService::default(),
            tunnels: Some(TunnelService {
                serves_plain: true,
                serves_bound: true,
                resolver: Resolver::without_room(),
            }),
        };
        let clock = clock::Clock::Given(Arc::clone(&self.setup.clock.0));
        let quic = self.quic.clone().map(|keys| {
            let mut seed = [0; 32];
            random(&mut seed);
            QuicService {
                surroundings: Surroundings::Given(Given {
                    seed,
                    clock: clock.clone(),
                }),
                keys,
                book,
                resolver: Some(Resolver::without_room()),
                serves_bound: true,
                is_steered: false, // whoever stands in for the kernel asks `Server::issuer_of`
            }
        });
        let datagrams = DatagramService {
            serves_plain: true,
            routes: None,
            dtls: Some(dtls),
            quic,
        };
        let (config, commons) = (Arc::clone(&self.setup.config), Arc::clone(&self.commons));
        let engine = Engine::new(config, commons, Randomness::from_source(random));
        let log = Log::new(events, scope, Arc::clone(&counters));
        let mut relay = Relay::new(
            engine,
            clock,
            Arc::clone(&counters),
            log,
            Sessions::new(index, Arc::clone(&counters), None),
            streams,
            datagrams,
        );
        let waker = Waker::flag();
        relay.set_shard(index, Arc::clone(&self.mailboxes), waker.clone());
        Shard {
            relay,
            counters,
            waker,
        }
    }
}

/// A shard without a thread.
pub struct Shard {
    relay: Relay,
    counters: Arc<ShardCounters>,
    waker: Waker,
}

impl Shard {
    /// Tells the other shards of clients that have moved and are at home here since before this shard.
    pub fn announce_roamers(&mut self) {
        self.relay.announce_roamers();
    }

    /// Returns the number that a data path keeps beside a socket for datagrams of clients.
    pub fn datagrams_token() -> u64 {
        Token::ClientDatagrams.to_u64()
    }

    /// Returns the number that a data path keeps beside a relay socket that allocations share.
    pub fn shared_relay_token() -> u64 {
        Token::SharedRelay.to_u64()
    }

    /// Makes a relay socket that allocations share known.
    pub fn add_shared_relay(&mut self, endpoint: EndpointId, local: SocketAddr) {
        self.relay.add_shared_relay(endpoint, local);
    }

    /// Publishes channels with `routes` from now on.
    pub fn publish_to(&mut self, routes: impl Routes + Send + 'static) {
        self.relay.set_routes(Box::new(routes));
    }

    /// Returns a published channel that the engine would not relay now, or not so, in words; `None` if there is none.
    pub fn disagreement(&mut self) -> Option<String> {
        self.relay.disagreement()
    }

    /// Shows the relayed transport address of each channel that the kernel may relay, published or not. Returns one that this shard would not relay if
    /// the kernel left it its data, in words; `None` if there is none.
    pub fn unserved(&mut self, each: impl FnMut(SocketAddr)) -> Option<String> {
        self.relay.unserved(each)
    }

    /// Makes a socket for datagrams of clients known.
    pub fn add_listener(&mut self, endpoint: EndpointId, local: SocketAddr) {
        self.relay.add_listener(endpoint, local);
    }

    /// Makes a listener for connections of clients known, and returns the number that a data path keeps beside it.
    pub fn add_stream_listener(&mut self, listener: StreamListenerId, local: SocketAddr) -> u64 {
        let token = Token::ClientConnections(self.relay.next_stream_listener()).to_u64();
        self.relay.add_stream_listener(listener, local);
        token
    }

    /// Makes the addresses of the host's interfaces known.
    pub fn set_interfaces(&mut self, interfaces: Vec<InterfaceAddress>) {
        self.relay.set_interfaces(interfaces);
    }

    /// Takes no new allocations from now on.
    pub fn drain(&mut self) {
        self.relay.drain();
    }

    /// Takes new allocations again.
    pub fn undrain(&mut self) {
        self.relay.undrain();
    }

    /// Takes over other users and peer rules.
    pub fn reconfigure(&mut self, config: &Arc<Config>) {
        self.relay.reconfigure(config);
    }

    /// Returns what the data path calls.
    pub fn handler(&mut self) -> &mut impl Handler {
        &mut self.relay
    }

    /// Returns when there is something to do by itself, counted from the last turn.
    pub fn timeout(&self) -> Option<Duration> {
        self.relay.timeout()
    }

    /// Returns how many tunnels it had open when its last turn ended.
    pub fn tunnels(&self) -> u64 {
        self.counters.engine.tunnels.get()
    }

    /// Returns how many connections of QUIC it has, those included that are being closed.
    pub fn quic_connections(&self) -> usize {
        self.relay.quic_connections()
    }

    /// Returns whether another shard has something for this one since this was asked last.
    pub fn was_woken(&self) -> bool {
        self.waker.was_woken()
    }

    /// Accounts for what is on its way when the shard ends.
    pub fn stop(&mut self, tx: &mut SendQueue) {
        self.relay.stop_sessions(tx);
        self.relay.stop();
    }

    /// Returns what `shards` have counted, and how many messages are under way between them.
    pub fn accounting<'a>(shards: impl Iterator<Item = &'a Self> + Clone) -> (Accounting, u64) {
        let counters = || shards.clone().map(|shard| &*shard.counters);
        let out: u64 = counters().map(|it| it.across.handed_out.get()).sum();
        let taken: u64 = counters().map(|it| it.across.handed_in.get()).sum();
        (Accounting::of(counters()), out - taken)
    }
}
