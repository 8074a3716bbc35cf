//! A shard: one thread, pinned to one core, with its own sockets, allocations, timers and counters.

use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use turnbuckle_datapath::{
    Bind, Counters, Datapath, EndpointId, EndpointKind, Listen, Settings, SocketKind, Waker,
    pin_current_thread,
};
use turnbuckle_engine::{
    Belongings, Commons, Config as EngineConfig, Engine, InterfaceAddress, RelayAddress,
};
use turnbuckle_sys::priority::ask_for_slices_of;

use super::across::mailbox::Mailbox;
use super::discovery::Site;
use super::front::all::DatagramService;
use super::name::{SocketName, Token};
use super::relay::Relay;
use super::serving::Serving;
use super::sessions::Sessions;
use super::steering;
use crate::asking::{Answered, Asker};
use crate::clock::Clock;
use crate::control::events::Event;
use crate::counters::ShardCounters;
use crate::handle::{EventSender, PageRequest, Reply, Trace};
use crate::log::{Log, Scope};
use crate::random::Randomness;
use crate::shard::front::stream::StreamService;
use crate::survive::{Record, ShardJournal};

/// A request of another thread to a shard. It is handled at the end of a loop turn.
pub(crate) enum Request {
    /// Admit clients from now on, because every shard has bound its sockets, and confirm it.
    AdmitClients(SyncSender<()>),
    /// Go on with a request that has waited for the user database.
    Answered(Answered),
    /// Refuse new allocations from now on, and confirm it.
    Drain(SyncSender<()>),
    /// Listen on these addresses too, for datagrams and for connections, and return the result. No other process listens there. Clients are served
    /// after the next [`Self::AdmitClients`].
    Listen {
        datagrams: Vec<SocketAddr>,
        streams: Vec<SocketAddr>,
        done: SyncSender<io::Result<()>>,
    },
    /// Use these addresses as those of the host's interfaces from now on.
    Interfaces(Vec<InterfaceAddress>),
    /// List sessions, or end them.
    Page(PageRequest),
    /// Answer.
    Ping(Reply<()>),
    /// Open relay sockets at these addresses too.
    Relays(Vec<RelayAddress>),
    /// Use these settings from now on.
    Reconfigure(Arc<EngineConfig>),
    /// Fail.
    #[cfg(test)]
    Panic,
    /// Make no further turn, leave all sockets of datagrams open, and confirm it. The process is about to end.
    Seal(SyncSender<()>),
    /// Serve clients in this way from now on.
    Serve(Arc<Serving>),
    /// Make events from now on, and send them there.
    Events(EventSender),
    /// Fail when the next datagram of a client has been handled, before anything of that leaves.
    #[cfg(test)]
    PanicWithNext,
    /// Stop after this turn.
    Stop,
    /// Show what one user asks for and is answered.
    Trace(Trace),
    /// Take new allocations again.
    Undrain,
}

/// Everything that a shard's thread needs for its start and for a restart.
#[derive(Clone)]
pub(crate) struct Plan {
    /// The number of the shard, from zero.
    pub(crate) index: usize,
    /// Whether the shard has failed before, so that it has to notify the others.
    pub(crate) is_restart: bool,
    /// The core it stays on, if it is to be pinned.
    pub(crate) core: Option<usize>,
    pub(crate) host: HostAddresses,
    /// Where it listens.
    pub(crate) listeners: Listeners,
    pub(crate) engine: Arc<EngineConfig>,
    pub(crate) commons: Arc<Commons>,
    /// The mailboxes of all shards, in their order.
    pub(crate) mailboxes: Arc<[Mailbox]>,
    pub(crate) streams: StreamService,
    pub(crate) datagrams: DatagramService,
    pub(crate) datapath: Settings,
    /// Who is shown what changes.
    pub(crate) followers: Followers,
}

impl Plan {
    /// Has a shard that begins with this serve clients in this way.
    pub(crate) fn serve(&mut self, serving: &Serving) {
        self.streams.limits = serving.streams;
        let proxies = &mut self.streams.proxies;
        proxies.sources.clone_from(&serving.proxies);
        let of_datagrams = &serving.datagram_proxies;
        proxies.datagram_sources.clone_from(of_datagrams);
        self.streams.http.clone_from(&serving.http);
        if let Some(dtls) = &mut self.datagrams.dtls {
            dtls.limits = serving.datagrams;
        }
        if let Some(quic) = &mut self.datagrams.quic {
            quic.book = serving.datagrams.book;
        }
        self.followers.log.logged = serving.log;
        (self.datapath.coalesce_policy, self.datapath.coalesce) = serving.coalesce;
    }
}

/// Who is shown what changes at a shard, and who is asked.
#[derive(Clone)]
pub(crate) struct Followers {
    /// Asks the user database before a request is refused; `None` where there is none, or it is not to be asked.
    pub(crate) asker: Option<Asker>,
    /// Where changes are written so that calls survive the process.
    pub(crate) journal: Option<Arc<ShardJournal>>,
    /// What is logged.
    pub(crate) log: Scope,
    /// Where events go, if there is a consumer.
    pub(crate) events: Option<EventSender>,
}

/// Holds the addresses that the host has.
#[derive(Clone, Default)]
pub(crate) struct HostAddresses {
    /// Those of its interfaces.
    pub(crate) interfaces: Vec<InterfaceAddress>,
    /// Where relay sockets are opened, if that has changed since the start.
    pub(crate) relays: Vec<RelayAddress>,
}

/// Holds the addresses that a shard listens on.
#[derive(Clone, Default)]
pub(crate) struct Listeners {
    /// The UDP addresses, bound with SO_REUSEPORT by every shard.
    pub(crate) datagrams: Vec<SocketAddr>,
    /// Those of them where another process listens too, whose sockets are in the same group.
    pub(crate) shared: Vec<SocketAddr>,
    /// The TCP addresses, likewise.
    pub(crate) streams: Vec<SocketAddr>,
    /// Which of them stand in for each other in NAT behaviour discovery.
    pub(crate) discovery: Vec<Site>,
    /// Addresses that were added after the start, in their order: for datagrams and for connections, each time. All shards number them alike.
    pub(crate) later: Vec<(Vec<SocketAddr>, Vec<SocketAddr>)>,
}

/// A running shard.
pub(crate) struct Shard {
    /// The thread's name.
    pub(crate) name: String,
    pub(crate) counters: Arc<ShardCounters>,
    pub(crate) batches: Arc<Counters>,
    requests: SyncSender<Request>,
    waker: Waker,
    /// `None` when it is known to have ended.
    thread: Option<JoinHandle<()>>,
}

/// Requests that may wait for a shard; more than the main thread ever has under way.
const REQUESTS_MAX: usize = 16;

/// Slices of the CPU that a shard asks for where others want it too: shorter than those of the control side, which is not to finish a list first while
/// datagrams wait.
const SLICE: Duration = Duration::from_micros(200);

/// A shard whose listening sockets are bound, which may still be taking over what the one before has left.
pub(crate) struct Starting {
    name: String,
    counters: Arc<ShardCounters>,
    requests: SyncSender<Request>,
    is_ready: Receiver<io::Result<(Arc<Counters>, Waker)>>,
    thread: JoinHandle<()>,
}

impl Starting {
    /// Starts the thread and waits until its listening sockets are bound, because the kernel numbers those of an address in this order.
    ///
    /// # Errors
    ///
    /// There is no thread.
    pub(crate) fn begin(
        plan: Plan,
        counters: Arc<ShardCounters>,
        events: SyncSender<Event>,
    ) -> io::Result<Self> {
        let name = format!("shard-{}", plan.index);
        let (requests, inbox) = sync_channel(REQUESTS_MAX);
        let (ready, is_ready) = sync_channel(1);
        let (bound, is_bound) = sync_channel(1);
        let thread = std::thread::Builder::new().name(name.clone()).spawn({
            let counters = Arc::clone(&counters);
            move || {
                // Best effort: where a sandbox forbids it, the thread waits longer for the CPU beside others.
                let _ = ask_for_slices_of(SLICE);
                let index = plan.index;
                let journal = plan.followers.journal.clone();
                let log = Log::new(
                    events.clone(),
                    plan.followers.log.clone(),
                    Arc::clone(&counters),
                );
                match set_up(plan, counters, log, &bound) {
                    Ok((mut datapath, mut relay)) => {
                        // Sends the event that the shard has ended, even if it panics.
                        let mut end = End {
                            shard: index,
                            events,
                            error: Some("it panicked".into()),
                        };
                        let handles = (Arc::clone(datapath.counters()), datapath.waker());
                        if ready.send(Ok(handles)).is_ok() {
                            // What the turn has left half done is not used.
                            let ran = AssertUnwindSafe(|| run(&mut datapath, &mut relay, &inbox));
                            if let Ok(ended) = catch_unwind(ran) {
                                end.error = ended.err().map(|error| error.to_string());
                            }
                            // The last event waits for room, which only the main thread makes. That one may be waiting for room in this queue, or for
                            // the answer to a request in it. Neither comes any more, and without the queue it is told so.
                            drop(inbox);
                            if end.error.is_some()
                                && let Some(journal) = journal
                            {
                                leave(datapath, relay, &journal);
                            }
                        }
                    }
                    Err(error) => {
                        // Nobody waits only if the main thread has ended.
                        let _ = ready.send(Err(error));
                    }
                }
            }
        })?;
        // What has failed says so when it is asked whether it is ready.
        let _ = is_bound.recv();
        Ok(Self {
            name,
            counters,
            requests,
            is_ready,
            thread,
        })
    }

    /// Waits until the shard has all that it begins with. Clients are not served before [`Request::AdmitClients`].
    ///
    /// # Errors
    ///
    /// What could not be set up, with the address where there is one.
    pub(crate) fn finish(self) -> io::Result<Shard> {
        let (batches, waker) = self.is_ready.recv().map_err(io::Error::other)??;
        Ok(Shard {
            name: self.name,
            counters: self.counters,
            batches,
            requests: self.requests,
            waker,
            thread: Some(self.thread),
        })
    }
}

impl Shard {
    /// Sends a request to the shard. Returns `false` if the shard has ended or its queue is full.
    pub(crate) fn request(&self, request: Request) -> bool {
        let is_heard = self.requests.try_send(request).is_ok();
        if is_heard {
            self.waker.wake();
        }
        is_heard
    }

    /// Sends a request to the shard, and waits for room in its queue. Does nothing if the shard has ended.
    pub(crate) fn insist(&self, request: Request) {
        if self.requests.send(request).is_ok() {
            self.waker.wake();
        }
    }

    /// Waits until the thread has ended.
    pub(crate) fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            // The last event has reported a panic already.
            let _ = thread.join();
        }
    }
}

/// Sends the shard's last event when it is dropped.
struct End {
    shard: usize,
    events: SyncSender<Event>,
    error: Option<String>,
}

impl Drop for End {
    fn drop(&mut self) {
        let _ = self.events.send(Event::ShardEnded {
            shard: self.shard,
            error: self.error.take(),
        });
    }
}

/// Leaves sockets and ports of a shard that has failed to the next one. What its last turn has not written to the journal is lost.
fn leave(mut datapath: Datapath, relay: Relay, journal: &ShardJournal) {
    let left = AssertUnwindSafe(|| {
        // guard: V-63-panic-sockets
        datapath.leave_relays();
        relay.leave()
    });
    // What is not left because of another panic is given back.
    journal.leave(catch_unwind(left).unwrap_or_default());
}

/// Binds the sockets and joins engine and data path, on the shard's own thread so that its memory is near its core. Says when the listening sockets are
/// `bound`.
pub(super) fn set_up(
    plan: Plan,
    counters: Arc<ShardCounters>,
    log: Log,
    bound: &SyncSender<()>,
) -> io::Result<(Datapath, Relay)> {
    if let Some(core) = plan.core {
        pin_current_thread(core)?;
    }
    let kept = plan.datapath.kept.clone();
    let mut datapath = Datapath::new(plan.datapath)?;
    let routes = plan.datagrams.routes.clone();
    let steering = steering::program(plan.datagrams.quic.as_ref(), plan.mailboxes.len());
    let shared = plan.engine.relays.shared.as_ref();
    let shared_relays = shared.and_then(|shared| shared.addresses.get(plan.index).copied());
    let shared_relays = shared_relays.into_iter().flatten().flatten();
    let engine = Engine::new(plan.engine, plan.commons, Randomness::of_system());
    let sessions = Sessions::new(plan.index, Arc::clone(&counters), plan.followers.events);
    let mut relay = Relay::new(
        engine,
        Clock::Machine,
        counters,
        log,
        sessions,
        plan.streams,
        plan.datagrams,
    );
    relay.steering = steering;
    let mut datagrams = Vec::new();
    let mut connections = Vec::new();
    relay.set_shard(plan.index, plan.mailboxes, datapath.waker());
    relay.ask(plan.index, plan.followers.asker);
    let mut shared = Vec::new();
    for address in shared_relays {
        shared.push((address, share_relay(&mut datapath, &mut relay, address)?));
    }
    for address in plan.listeners.datagrams {
        let is_shared = plan.listeners.shared.contains(&address);
        let endpoint = listen_for_datagrams(&mut datapath, &mut relay, address, is_shared)?;
        datagrams.push((endpoint, address));
    }
    for address in plan.listeners.streams {
        let listener = listen_for_connections(&mut datapath, &mut relay, address)?;
        connections.push((listener.endpoint(), address));
    }
    relay.serve_discovery(&plan.listeners.discovery, &datagrams, &connections);
    // Nobody waits only if the main thread has ended.
    let _ = bound.send(());
    for (datagrams, streams) in plan.listeners.later {
        // What could not be opened then is tried again in its place.
        let _ = listen_too(&mut datapath, &mut relay, datagrams, streams);
    }
    if !plan.host.relays.is_empty() {
        relay.add_relays(&plan.host.relays);
    }
    if let Some(routes) = routes {
        relay.set_routes(Box::new(routes));
    }
    if let Some(journal) = &plan.followers.journal {
        let (record, belongings) = journal.take().unwrap_or_else(|why| {
            relay.warn(&format!(
                "the calls of this shard are lost, because its journal is not used: {why}"
            ));
            (Record::default(), Belongings::default())
        });
        take_over(&mut datapath, &mut relay, &shared, &record, belongings);
        if let Some(kept) = kept {
            kept.close(SocketKind::Relay);
        }
        relay.begin_journal(journal, &record)?;
    }
    relay.set_interfaces(plan.host.interfaces);
    if plan.is_restart {
        relay.say_restarted();
    }
    Ok((datapath, relay))
}

/// Puts the allocations in place that an earlier process or a shard that has failed has left, on the sockets that it left. `shared` are the relay
/// sockets that they share.
fn take_over(
    datapath: &mut Datapath,
    relay: &mut Relay,
    shared: &[(SocketAddr, EndpointId)],
    record: &Record,
    belongings: Belongings,
) {
    relay.restore(record, belongings, |address, handle| {
        if let Some((_, endpoint)) = shared.iter().find(|(shared, _)| *shared == address) {
            return Some(*endpoint);
        }
        let bind = Bind {
            address,
            kind: EndpointKind::Relay,
            token: Token::Relay(handle).to_u64(),
        };
        datapath.bind(bind).ok()
    });
}

/// Binds a socket for datagrams of clients. `is_shared`: another process listens at this address too.
fn listen_for_datagrams(
    datapath: &mut Datapath,
    relay: &mut Relay,
    address: SocketAddr,
    is_shared: bool,
) -> io::Result<EndpointId> {
    let endpoint = datapath
        .bind(Bind {
            address,
            kind: EndpointKind::Listener { reuseport: true },
            token: Token::ClientDatagrams.to_u64(),
        })
        .map_err(|error| cannot_listen("UDP", address, &error))?;
    relay.add_listener(endpoint, address);
    // Where another process is in the group, its sockets may have the first numbers.
    if let Some(program) = relay.steering.as_deref().filter(|_| !is_shared) {
        datapath.steer(endpoint, program);
    }
    Ok(endpoint)
}

/// Binds a relay socket that all allocations of the shard share.
fn share_relay(
    datapath: &mut Datapath,
    relay: &mut Relay,
    address: SocketAddr,
) -> io::Result<EndpointId> {
    let endpoint = datapath
        .bind(Bind {
            address,
            kind: EndpointKind::SharedRelay,
            token: Token::SharedRelay.to_u64(),
        })
        .map_err(|error| {
            let text = format!("multiplex-peer: cannot relay from UDP {address}: {error}");
            io::Error::new(error.kind(), text)
        })?;
    relay.add_shared_relay(endpoint, address);
    Ok(endpoint)
}

/// Takes an address for connections of clients, and returns the name of its listener.
fn listen_for_connections(
    datapath: &mut Datapath,
    relay: &mut Relay,
    address: SocketAddr,
) -> io::Result<SocketName> {
    let number = relay.next_stream_listener();
    let token = Token::ClientConnections(number).to_u64();
    let listener = datapath
        .listen(Listen { address, token })
        .map_err(|error| cannot_listen("TCP", address, &error))?;
    relay.add_stream_listener(listener, address);
    Ok(SocketName::ClientListener(number))
}

/// Listens on addresses that were added after the start. All are tried, even if one fails. That one keeps its number, because all shards number them
/// alike.
///
/// # Errors
///
/// The first that failed.
pub(super) fn listen_too(
    datapath: &mut Datapath,
    relay: &mut Relay,
    datagrams: Vec<SocketAddr>,
    streams: Vec<SocketAddr>,
) -> io::Result<()> {
    let mut outcome = Ok(());
    for address in datagrams {
        if let Err(error) = listen_for_datagrams(datapath, relay, address, false) {
            relay.skip_listener(address);
            outcome = outcome.and(Err(error));
        }
    }
    for address in streams {
        if let Err(error) = listen_for_connections(datapath, relay, address) {
            relay.skip_stream_listener(address);
            outcome = outcome.and(Err(error));
        }
    }
    outcome
}

fn cannot_listen(transport: &str, address: SocketAddr, error: &io::Error) -> io::Error {
    io::Error::new(
        error.kind(),
        format!("cannot listen on {transport} {address}: {error}"),
    )
}

/// Serves clients in this way from now on.
fn serve(datapath: &mut Datapath, relay: &mut Relay, serving: &Serving) {
    relay.serve(serving);
    let (policy, delay) = serving.coalesce;
    datapath.set_coalescing(policy, delay);
}

/// Runs the loop of a shard.
fn run(datapath: &mut Datapath, relay: &mut Relay, inbox: &Receiver<Request>) -> io::Result<()> {
    // Numbers of listeners for datagrams and for connections that are open to clients.
    let mut admitted = (0, 0);
    loop {
        datapath.turn(relay.timeout(), relay)?;
        while let Ok(request) = inbox.try_recv() {
            match request {
                Request::AdmitClients(done) => {
                    let (datagrams, streams) = (relay.listeners(), relay.stream_listeners());
                    for listener in &datagrams[admitted.0..] {
                        datapath.admit_clients(*listener)?;
                    }
                    for listener in streams[admitted.1..].iter().flatten() {
                        datapath.admit_connections(*listener)?;
                    }
                    admitted = (datagrams.len(), streams.len());
                    relay.announce_roamers();
                    // The main thread has given up waiting only if it is about to stop this shard.
                    let _ = done.send(());
                }
                Request::Drain(done) => {
                    relay.drain();
                    // The receiver is gone only if the main thread has ended.
                    let _ = done.send(());
                }
                Request::Listen {
                    datagrams,
                    streams,
                    done,
                } => {
                    let _ = done.send(listen_too(datapath, relay, datagrams, streams));
                }
                Request::Interfaces(interfaces) => relay.set_interfaces(interfaces),
                Request::Answered(answer) => relay.answered(answer),
                Request::Page(wish) => relay.page(wish),
                Request::Ping(reply) => reply(()),
                Request::Trace(trace) => relay.trace(trace),
                Request::Undrain => relay.undrain(),
                Request::Relays(relays) => relay.add_relays(&relays),
                Request::Reconfigure(engine) => relay.reconfigure(&engine),
                Request::Events(events) => relay.consume(events),
                Request::Serve(serving) => serve(datapath, relay, &serving),
                #[cfg(test)]
                Request::Panic => panic!("a test wants it so"),
                #[cfg(test)]
                Request::PanicWithNext => relay.panics_with_next = true,
                Request::Seal(done) => {
                    relay.seal(datapath);
                    let _ = done.send(());
                    drop(done);
                    // Nothing that this thread has is closed.
                    loop {
                        std::thread::park();
                    }
                }
                Request::Stop => {
                    relay.stop_sessions(datapath.send_queue());
                    datapath.close_streams(relay);
                    datapath.report_undelivered(relay);
                    relay.stop();
                    return Ok(());
                }
            }
        }
        relay.work_on_pages(datapath.send_queue());
    }
}
