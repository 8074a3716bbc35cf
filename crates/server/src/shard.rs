//! A shard: one thread, pinned to one core, with its own sockets, allocations, timers and counters.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use turnbuckle_datapath::{
    Bind, Counters, Datapath, EndpointId, EndpointKind, Listen, Settings, Waker, pin_current_thread,
};
use turnbuckle_engine::{Commons, Config as EngineConfig, Engine, InterfaceAddress, RelayAddress};

use crate::counters::ShardCounters;
use crate::log::{Log, Scope};
use crate::random::OsRandom;
use crate::relay::{DatagramService, LISTENER_TOKEN, Mailbox, Relay, Site, stream_listener_token};
use crate::serve::Event;
use crate::stream::StreamService;

/// What other threads may ask of a shard; taken up at the end of a loop turn.
pub(crate) enum Request {
    /// Every shard has bound its sockets: take clients from now on, and say that it is so.
    AdmitClients(SyncSender<()>),
    /// No new allocations from now on; say when that is so.
    Drain(SyncSender<()>),
    /// Listen on these addresses too, by datagrams and by connections; clients are heard after the next [`Self::AdmitClients`]. Say what came of it.
    Listen {
        datagrams: Vec<SocketAddr>,
        streams: Vec<SocketAddr>,
        done: SyncSender<io::Result<()>>,
    },
    /// The addresses of the host's interfaces are these from now on.
    Interfaces(Vec<InterfaceAddress>),
    /// Relay sockets have these addresses too.
    Relays(Vec<RelayAddress>),
    /// Users, peer rules and quotas are these from now on.
    Reconfigure(Arc<EngineConfig>),
    /// Fail.
    #[cfg(test)]
    Panic,
    /// Stop after this turn.
    Stop,
}

/// Everything a shard's thread needs to begin, and to begin anew.
#[derive(Clone)]
pub(crate) struct Plan {
    /// Which shard, from zero.
    pub(crate) index: usize,
    /// Whether the shard has failed before, and the others have to know.
    pub(crate) is_restart: bool,
    /// The core it stays on, if it is to be pinned.
    pub(crate) core: Option<usize>,
    /// The addresses of the host's interfaces.
    pub(crate) interfaces: Vec<InterfaceAddress>,
    /// The UDP addresses it listens on, as one of a group.
    pub(crate) listeners: Vec<SocketAddr>,
    /// The TCP addresses it listens on, likewise.
    pub(crate) stream_listeners: Vec<SocketAddr>,
    /// Which of them stand in for each other in NAT behaviour discovery.
    pub(crate) discovery: Vec<Site>,
    pub(crate) engine: Arc<EngineConfig>,
    pub(crate) commons: Arc<Commons>,
    /// What waits for each shard, in their order.
    pub(crate) mailboxes: Arc<[Mailbox]>,
    pub(crate) streams: StreamService,
    pub(crate) datagrams: DatagramService,
    pub(crate) datapath: Settings,
    /// What is logged.
    pub(crate) log: Scope,
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

impl Shard {
    /// Starts the thread and waits until its sockets are bound. Clients are not heard before [`Request::AdmitClients`].
    ///
    /// # Errors
    ///
    /// What could not be set up, with the address where there is one.
    pub(crate) fn start(
        plan: Plan,
        counters: Arc<ShardCounters>,
        events: SyncSender<Event>,
    ) -> io::Result<Self> {
        let name = format!("shard-{}", plan.index);
        let (requests, inbox) = sync_channel(REQUESTS_MAX);
        let (ready, is_ready) = sync_channel(1);
        let thread = std::thread::Builder::new().name(name.clone()).spawn({
            let counters = Arc::clone(&counters);
            move || {
                let index = plan.index;
                let log = Log::new(events.clone(), plan.log.clone());
                match set_up(plan, counters, log) {
                    Ok((mut datapath, mut relay)) => {
                        // Tells that the shard is gone even if it panics.
                        let mut end = End {
                            shard: index,
                            events,
                            error: Some("it panicked".into()),
                        };
                        let handles = (Arc::clone(datapath.counters()), datapath.waker());
                        if ready.send(Ok(handles)).is_ok() {
                            end.error = run(&mut datapath, &mut relay, &inbox)
                                .err()
                                .map(|error| error.to_string());
                        }
                    }
                    Err(error) => {
                        // Nobody waits only if the main thread has ended.
                        let _ = ready.send(Err(error));
                    }
                }
            }
        })?;
        let (batches, waker) = is_ready.recv().map_err(io::Error::other)??;
        Ok(Self {
            name,
            counters,
            batches,
            requests,
            waker,
            thread: Some(thread),
        })
    }

    /// Asks something of the shard. One that has ended, or is far behind, does not hear it: then the answer is false.
    pub(crate) fn request(&self, request: Request) -> bool {
        let is_heard = self.requests.try_send(request).is_ok();
        if is_heard {
            self.waker.wake();
        }
        is_heard
    }

    /// Asks something of the shard, waiting until it can hear that. One that has ended already need not.
    pub(crate) fn insist(&self, request: Request) {
        if self.requests.send(request).is_ok() {
            self.waker.wake();
        }
    }

    /// Waits until the thread has ended.
    pub(crate) fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A panic has been reported by the notice already.
            let _ = thread.join();
        }
    }
}

/// Sends the last notice when it goes out of scope.
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

/// Binds the sockets and joins engine and data path, on the shard's own thread so that its memory is near its core.
fn set_up(plan: Plan, counters: Arc<ShardCounters>, log: Log) -> io::Result<(Datapath, Relay)> {
    if let Some(core) = plan.core {
        pin_current_thread(core)?;
    }
    let mut datapath = Datapath::new(plan.datapath)?;
    let engine = Engine::new(plan.engine, plan.commons, OsRandom::new());
    let mut relay = Relay::new(engine, counters, log, plan.streams, plan.datagrams);
    let mut datagrams = Vec::new();
    let mut connections = Vec::new();
    relay.set_shard(plan.index, plan.mailboxes, datapath.waker());
    for address in plan.listeners {
        let endpoint = listen_for_datagrams(&mut datapath, &mut relay, address)?;
        datagrams.push((endpoint, address));
    }
    for address in plan.stream_listeners {
        let token = listen_for_connections(&mut datapath, &mut relay, address)?;
        connections.push((token, address));
    }
    relay.serve_discovery(&plan.discovery, &datagrams, &connections);
    relay.set_interfaces(plan.interfaces);
    if plan.is_restart {
        relay.say_restarted();
    }
    Ok((datapath, relay))
}

/// Binds a socket for datagrams of clients.
fn listen_for_datagrams(
    datapath: &mut Datapath,
    relay: &mut Relay,
    address: SocketAddr,
) -> io::Result<EndpointId> {
    let endpoint = datapath
        .bind(Bind {
            address,
            kind: EndpointKind::Listener { reuseport: true },
            token: LISTENER_TOKEN,
        })
        .map_err(|error| cannot_listen("UDP", address, &error))?;
    relay.add_listener(endpoint, address);
    Ok(endpoint)
}

/// Takes an address for connections of clients, and returns the token of its listener.
fn listen_for_connections(
    datapath: &mut Datapath,
    relay: &mut Relay,
    address: SocketAddr,
) -> io::Result<u64> {
    let token = stream_listener_token(relay.stream_listeners().len());
    let listener = datapath
        .listen(Listen { address, token })
        .map_err(|error| cannot_listen("TCP", address, &error))?;
    relay.add_stream_listener(listener, token, address);
    Ok(token)
}

fn cannot_listen(transport: &str, address: SocketAddr, error: &io::Error) -> io::Error {
    io::Error::new(
        error.kind(),
        format!("cannot listen on {transport} {address}: {error}"),
    )
}

/// The loop of a shard.
fn run(datapath: &mut Datapath, relay: &mut Relay, inbox: &Receiver<Request>) -> io::Result<()> {
    // Listeners for datagrams and for connections that clients are heard at.
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
                    for listener in &streams[admitted.1..] {
                        datapath.admit_connections(*listener)?;
                    }
                    admitted = (datagrams.len(), streams.len());
                    // The main thread has given up waiting only if it is about to stop this shard.
                    let _ = done.send(());
                }
                Request::Drain(done) => {
                    relay.drain();
                    // Gone only if the main thread has ended.
                    let _ = done.send(());
                }
                Request::Listen {
                    datagrams,
                    streams,
                    done,
                } => {
                    // All are tried, whatever comes of the first.
                    let mut opened = Vec::with_capacity(datagrams.len() + streams.len());
                    for address in datagrams {
                        opened.push(listen_for_datagrams(datapath, relay, address).map(drop));
                    }
                    for address in streams {
                        opened.push(listen_for_connections(datapath, relay, address).map(drop));
                    }
                    let outcome = opened.into_iter().collect::<io::Result<()>>();
                    let _ = done.send(outcome);
                }
                Request::Interfaces(interfaces) => relay.set_interfaces(interfaces),
                Request::Relays(relays) => relay.add_relays(&relays),
                Request::Reconfigure(engine) => relay.reconfigure(&engine),
                #[cfg(test)]
                Request::Panic => panic!("a test wants it so"),
                Request::Stop => {
                    relay.stop_dtls(datapath.send_queue());
                    datapath.close_streams(relay);
                    relay.stop();
                    return Ok(());
                }
            }
        }
    }
}

pub(crate) mod failures;

#[cfg(test)]
pub(crate) mod tests;
