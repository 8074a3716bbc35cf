//! Shards without sockets and threads, for the simulator alone: the handlers that a server's data paths have, over whatever stands in for these.
//!
//! Time, randomness and addresses are given. Nothing here reads a clock or asks the operating system for anything, and nothing is logged.

use std::net::SocketAddr;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use turnbuckle_datapath::offload::Routes;
use turnbuckle_datapath::{EndpointId, Handler, SendQueue, StreamListenerId, Waker};
use turnbuckle_engine::{Commons, Config, Engine, InterfaceAddress, Now};

use crate::Accounting;
use crate::clock;
use crate::config::Persona;
use crate::counters::ShardCounters;
use crate::handle::SessionNumbers;
pub use crate::journal::segment;
use crate::log::{Lines, Log, Scope};
use crate::random::Randomness;
pub use crate::random::Source;
use crate::shard::across::mailbox::Mailbox;
use crate::shard::book::{BookLimits, CrowdLimits};
use crate::shard::front::all::DatagramService;
use crate::shard::front::proxy::Proxies;
use crate::shard::front::stream::{HttpService, StreamService};
use crate::shard::name::Token;
use crate::shard::relay::Relay;
use crate::shard::sessions::Sessions;

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

/// What a server's shards have in common.
#[derive(Clone)]
pub struct Server {
    config: Arc<Config>,
    commons: Arc<Commons>,
    clock: Clock,
    limits: ConnectionLimits,
    mailboxes: Arc<[Mailbox]>,
}

impl Server {
    /// Returns a server of `count` shards, none of which is there yet.
    pub fn new(config: Config, count: usize, clock: Clock, limits: ConnectionLimits) -> Self {
        let mailboxes = std::iter::repeat_with(Mailbox::default).take(count);
        Self {
            commons: Commons::new(&config),
            config: Arc::new(config),
            clock,
            limits,
            mailboxes: mailboxes.collect(),
        }
    }

    /// Returns what is shared by all shards.
    pub fn commons(&self) -> &Commons {
        &self.commons
    }

    /// Makes shard number `index`, which draws from `random`.
    pub fn shard(&self, index: usize, random: Source) -> Shard {
        let (count, limits) = (self.mailboxes.len(), self.limits);
        let counters = Arc::new(ShardCounters::default());
        // Nobody reads it: lines that find nobody are counted and forgotten.
        let (events, _) = sync_channel(1);
        let scope = Scope {
            persona: Persona::Turnbuckle,
            wanted: Lines {
                sessions: false,
                binding: false,
            },
            requests: false,
            summaries: false,
            numbers: SessionNumbers::after(0),
            shard: index,
            shards: count,
            limits_answers: false,
            realm: Box::default(),
        };
        let streams = StreamService {
            limits: BookLimits {
                handshake: limits.message,
                first_message: limits.message,
                message: limits.message,
                idle: limits.idle,
                unallocated: limits.unallocated,
                crowd: CrowdLimits {
                    total: limits.total,
                    per_source: CrowdLimits::share(limits.per_source, count),
                },
            },
            tls: None,
            serves_plain: true,
            proxies: Proxies::default(),
            http: HttpService::default(),
            tunnels: None,
        };
        let datagrams = DatagramService {
            serves_plain: true,
            routes: None,
            dtls: None,
            quic: None,
        };
        let (config, commons) = (Arc::clone(&self.config), Arc::clone(&self.commons));
        let engine = Engine::new(config, commons, Randomness::from_source(random));
        let clock = clock::Clock::Given(Arc::clone(&self.clock.0));
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
    /// The number that a data path keeps beside a socket for datagrams of clients.
    pub fn datagrams_token() -> u64 {
        Token::ClientDatagrams.to_u64()
    }

    /// The number that a data path keeps beside a relay socket that allocations share.
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
