//! Clients with tunnels of UDP in HTTP/3: connections with a socket each, that carry one tunnel or several, in one thread.
//!
//! Packets travel in QUIC DATAGRAM frames. Those of a connection that are due at the same time share packets of QUIC, and packets leave as trains.
//!
//! A connection that moves goes on from another local port without a word, as behind a NAT that forgot it.

mod connection;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustls::ClientConfig;
use turnbuckle_datapath::{
    Bind, DatagramHandler, Datapath, EndpointId, EndpointKind, Received, SendFailure, SendQueue,
    Sockets, StreamHandler, TurnHandler,
};
use turnbuckle_quic::{
    Bytes, ConnectionName, Endpoint, Keys, Limits, Outlet, Path, Settings, Strangers, Via,
    WallClock,
};

use self::connection::{Inbox, Tunnels};
use super::access::{Access, Asking};
use super::driver::Driver;
use super::listener::{Listener, Opened, Signalling, Task};
use super::moves::{Moved, Moves};
use super::phase::OVER;
use super::sender::{self, Media};
use super::sending::Sending;
use super::session::{Framing, Via as SentVia};
use crate::threads;
use turnbuckle_client::Failure;

/// Connections of a thread that shake hands or ask at the same time.
const UNDER_WAY: usize = 32;
/// How long a connection may take until all of its tunnels are open or refused.
const OPEN_WITHIN: Duration = Duration::from_secs(20);
/// Time after which a connection on which nothing comes ends.
const IDLE: Duration = Duration::from_secs(120);
/// Bytes of datagrams that wait in a connection, and from how many on a flood pauses.
const WAITING_MAX: usize = 256 * 1024;
const FLOOD_WAITING_MAX: usize = 64 * 1024;
/// How long a socket that was left stays open after a packet has come to its successor, nanoseconds. The server sends to one of them at a time, so all
/// that it had sent to the old one left before, however long it is on its way.
const OLD_FOR: u64 = 1_000_000_000;
/// How long it stays open if none comes, nanoseconds.
const OLD_FOR_AT_MOST: u64 = 30_000_000_000;
/// H3_NO_ERROR (RFC 9114 §8.1).
const NO_ERROR: u32 = 0x0100;
/// Turns at the end in which connections say that they are over.
const LAST_TURNS: usize = 1_000;

/// A thread's clients.
pub(super) struct MasqueClients {
    datapath: Datapath,
    clients: Clients,
}

struct Clients {
    listener: Listener,
    sending: Sending,
    endpoint: Endpoint<Tunnels>,
    ways: Ways,
    inbox: Rc<RefCell<Inbox>>,
    links: Links,
    roaming: Roaming,
    /// The stream of each client that has a tunnel.
    streams: Vec<Option<u64>>,
    now: Instant,
}

/// How connections begin.
struct Ways {
    config: Arc<ClientConfig>,
    name: String,
    asking: Rc<Asking>,
    to: SocketAddr,
}

/// The connections, in the order of their first clients.
struct Links {
    all: Vec<Link>,
    /// Those that have not begun.
    waiting: VecDeque<usize>,
    opening: Vec<usize>,
    /// Which one each client has.
    of_clients: Vec<usize>,
}

struct Link {
    socket: EndpointId,
    /// Sockets that were left, and when they are closed.
    left: Vec<(EndpointId, u64)>,
    name: Option<ConnectionName>,
    tunnels: Vec<(usize, SocketAddr)>,
    /// Tunnels of which nothing was heard.
    unheard: usize,
    open_by: Option<Instant>,
    move_at: u64,
}

/// When connections go to other ports.
struct Roaming {
    moves: Option<Moves>,
    moved: Moved,
    local: IpAddr,
}

impl MasqueClients {
    /// Opens a socket for each connection, none of which begins yet.
    ///
    /// # Errors
    /// A socket cannot be opened, or the system has no randomness.
    pub(super) fn open(task: &mut Task) -> anyhow::Result<Self> {
        let _ = threads::fine_sleep();
        let Access::Masque(masque) = task.route.access.clone() else {
            anyhow::bail!("not HTTP/3");
        };
        let mut datapath = Datapath::new(task.settings.clone())?;
        let (mut all, mut of_clients) = (Vec::<Link>::new(), Vec::new());
        let mut group_before = None;
        for (place, &(session, _)) in task.clients.iter().enumerate() {
            let group = session / masque.tunnels;
            if group_before.replace(group) != Some(group) {
                let socket = datapath.bind(bind(task.route.local, all.len()));
                let socket = socket.with_context(|| {
                    let local = task.route.local;
                    format!("cannot open a socket for client {session} on {local}")
                })?;
                datapath.forbid_fragments(socket)?;
                all.push(Link {
                    socket,
                    left: Vec::new(),
                    name: None,
                    tunnels: Vec::new(),
                    unheard: 0,
                    open_by: None,
                    move_at: u64::MAX,
                });
            }
            of_clients.push(all.len() - 1);
            if let Some(link) = all.last_mut() {
                let target = masque.target(session).context("nobody to send to")?;
                link.tunnels.push((place, target));
                link.unheard += 1;
            }
        }
        Ok(Self {
            datapath,
            clients: Clients {
                // Nobody begins a connection to a client.
                endpoint: Endpoint::new(settings(all.len())?, |_| Tunnels::default()),
                links: Links {
                    waiting: (0..all.len()).collect(),
                    opening: Vec::new(),
                    all,
                    of_clients,
                },
                roaming: Roaming {
                    moves: task.moves,
                    moved: Moved::default(),
                    local: task.route.local,
                },
                streams: vec![None; task.clients.len()],
                ways: Ways {
                    config: masque.config,
                    name: masque.name,
                    asking: Rc::new(masque.asking),
                    to: task.route.to,
                },
                inbox: Rc::default(),
                now: Instant::now(),
                sending: Sending::new(task.sending.take()),
                listener: Listener::new(task)?,
            },
        })
    }
}

fn bind(local: IpAddr, link: usize) -> Bind {
    Bind {
        address: (local, 0).into(),
        kind: EndpointKind::Listener { reuseport: false },
        token: link as u64,
    }
}

fn settings(connections: usize) -> anyhow::Result<Settings> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed)?;
    Ok(Settings {
        keys: Keys::random()?,
        shard: 0,
        seed,
        wall_clock: WallClock::default(),
        path: Path::default(),
        limits: Limits {
            connections,
            idle: IDLE,
            datagrams: WAITING_MAX,
            ..Limits::default()
        },
    })
}

impl Driver for MasqueClients {
    fn listener(&mut self) -> &mut Listener {
        &mut self.clients.listener
    }

    fn is_open(&mut self) -> bool {
        let links = &self.clients.links;
        links.waiting.is_empty() && links.opening.is_empty()
    }

    fn turn(&mut self) -> anyhow::Result<()> {
        self.clients.sending.learn()?;
        let wait = self.clients.wait();
        Ok(self.datapath.turn(Some(wait), &mut self.clients)?)
    }

    fn opened(&mut self) -> anyhow::Result<Opened> {
        let clients = &mut self.clients;
        clients.schedule();
        let mut opened = clients
            .listener
            .opened(|index| Ok(SentVia::Listener(index)))?;
        opened.ready.retain_mut(|ready| {
            let SentVia::Listener(place) = ready.via else {
                return false;
            };
            let stream = clients.streams.get(place).copied().flatten();
            stream.is_some_and(|stream| {
                ready.framing = Framing::Tunnelled { stream };
                true
            })
        });
        for link in &clients.links.all {
            let local = self.datapath.local_addr(link.socket);
            opened.ports.extend(local.map(|local| local.port()));
        }
        Ok(opened)
    }

    fn finish(mut self) -> (Listener, Option<sender::Outcome>) {
        self.clients.endpoint.stop(Instant::now(), NO_ERROR, "done");
        for _ in 0..LAST_TURNS {
            let now = Instant::now();
            let has_more = self.clients.endpoint.next_deadline(now) == Some(now);
            if !has_more
                || self
                    .datapath
                    .turn(Some(Duration::ZERO), &mut self.clients)
                    .is_err()
            {
                break;
            }
        }
        let mut clients = self.clients;
        clients.listener.moved(clients.roaming.moved);
        let sent = &self.datapath.counters().send;
        let (calls, trains) = (sent.calls.get(), sent.gso_sends.get());
        (clients.listener, clients.sending.finish(calls, trains))
    }
}

impl Clients {
    /// Says when each connection moves for the first time.
    fn schedule(&mut self) {
        let Some(Moves::Every(interval)) = self.roaming.moves else {
            return;
        };
        let now = self.listener.clock.now();
        let number = self.links.all.len() as u64;
        for (index, link) in (1..).zip(&mut self.links.all) {
            link.move_at = now + interval / number.max(1) * index;
        }
    }

    /// Returns how long there is nothing to do, if nothing arrives.
    fn wait(&self) -> Duration {
        let now = Instant::now();
        let wait = self.sending.wait(&self.listener);
        let due = self.endpoint.next_deadline(now);
        due.map_or(wait, |due| wait.min(due.saturating_duration_since(now)))
    }

    /// Begins connections, as many at a time as are to be under way, and has them ask.
    fn open(&mut self) {
        while self.links.opening.len() < UNDER_WAY
            && let Some(index) = self.links.waiting.pop_front()
        {
            self.begin(index);
        }
        let (endpoint, now) = (&mut self.endpoint, self.now);
        let mut late = Vec::new();
        self.links.opening.retain(|&index| {
            let Some(link) = self.links.all.get(index) else {
                return false;
            };
            if link.unheard == 0 {
                return false;
            }
            if link.open_by.is_some_and(|by| by <= now) {
                late.push(index);
                return false;
            }
            if let Some(name) = link.name {
                // The server may have allowed further streams without a word on those that there are.
                endpoint.with(now, name, |connection, tunnels| {
                    if tunnels.wants_more() {
                        tunnels.ask(connection);
                    }
                });
            }
            true
        });
        for index in late {
            let name = self.links.all.get(index).and_then(|link| link.name);
            if let Some(name) = name {
                self.endpoint.with(now, name, |connection, _| {
                    connection.close(NO_ERROR, "no answer");
                });
            }
        }
    }

    fn begin(&mut self, index: usize) {
        let Some(link) = self.links.all.get_mut(index) else {
            return;
        };
        let Ways {
            config,
            name,
            asking,
            to,
        } = &self.ways;
        self.listener.asks_for_tunnels(link.tunnels.len());
        let tunnels = Tunnels::new(asking, &self.inbox, &link.tunnels);
        let config = Arc::clone(config);
        let begun = self.endpoint.connect(self.now, config, *to, name, tunnels);
        let (Ok(name), Ok(via)) = (begun, u32::try_from(index)) else {
            let lost = link.tunnels.iter();
            let lost = lost.map(|&(place, _)| (place, Err(Failure::Handshake)));
            self.inbox.borrow_mut().news.extend(lost);
            return;
        };
        self.endpoint.leave_by(name, Via(via));
        link.name = Some(name);
        link.open_by = Some(self.now + OPEN_WITHIN);
        self.links.opening.push(index);
    }

    /// Takes over what has come of tunnels.
    fn take_news(&mut self) {
        let news = std::mem::take(&mut self.inbox.borrow_mut().news);
        for (place, outcome) in news {
            let link = self.links.of_clients.get(place);
            let Some(link) = link.and_then(|&link| self.links.all.get_mut(link)) else {
                continue;
            };
            let Some(stream) = self.streams.get_mut(place) else {
                continue;
            };
            link.unheard = link.unheard.saturating_sub(1);
            *stream = outcome.ok();
            self.listener.tunnel(outcome.err());
        }
    }

    /// Has connections go to other ports.
    fn roam(&mut self, sockets: &mut impl Sockets) {
        let Roaming {
            moves,
            moved,
            local,
        } = &mut self.roaming;
        let now = self.listener.clock.now();
        let Some(Moves::Every(interval)) = *moves else {
            return;
        };
        if self.listener.phase() >= OVER {
            return;
        }
        for (index, link) in self.links.all.iter_mut().enumerate() {
            link.left.retain(|&(socket, until)| {
                let stays = until > now;
                if !stays {
                    sockets.close(socket);
                }
                stays
            });
            if link.move_at > now {
                continue;
            }
            link.move_at = now + interval;
            match sockets.bind(bind(*local, index)) {
                Ok(socket) => {
                    sockets.forbid_fragments(socket);
                    let before = std::mem::replace(&mut link.socket, socket);
                    link.left.push((before, now + OLD_FOR_AT_MOST));
                    moved.done += 1;
                }
                // For want of descriptors it stays where it is.
                Err(_) => moved.failed += 1,
            }
        }
    }
}

impl TurnHandler for Clients {
    fn turn_started(&mut self) {
        self.now = Instant::now();
        self.listener.turn_started();
        self.sending.turn_started();
    }

    fn turn_ended(&mut self, tx: &mut SendQueue, sockets: &mut impl Sockets) {
        self.now = Instant::now();
        self.endpoint.serve_strangers(self.now, &mut Nobody);
        self.endpoint.handle_timeouts(self.now);
        self.open();
        self.take_news();
        self.listener.turn_ended(&mut NoSignalling);
        self.roam(sockets);
        let mut unsent = 0;
        let (endpoint, links) = (&mut self.endpoint, &self.links);
        let (streams, now) = (&self.streams, self.now);
        self.sending.send(|places| Payloads {
            endpoint,
            links,
            streams,
            places,
            now,
            unsent: &mut unsent,
        });
        self.sending.failed(unsent);
        let links = &self.links;
        self.endpoint.transmit(self.now, &mut Wire { tx, links });
        // The connections themselves say what becomes of them.
        while self.endpoint.poll_event().is_some() {}
    }
}

impl DatagramHandler for Clients {
    fn received(&mut self, message: &Received<'_>, _: &mut SendQueue) {
        let Ok(via) = u32::try_from(message.token) else {
            return;
        };
        let to = self.ways.to;
        // A port that was another program's a moment ago still gets what was meant for that one.
        if (message.remote.ip(), message.remote.port()) != (to.ip(), to.port()) {
            return;
        }
        self.endpoint.handle(
            self.now,
            message.remote,
            Via(via),
            message.bytes,
            message.segment,
            &mut Nobody,
        );
        let now = self.listener.clock.now();
        let mut inbox = self.inbox.borrow_mut();
        let index = usize::try_from(message.token).ok();
        if let Some(link) = index.and_then(|index| self.links.all.get_mut(index))
            && link.socket == message.endpoint
            && !inbox.payloads.is_empty()
        {
            for (_, until) in &mut link.left {
                *until = (now + OLD_FOR).min(*until);
            }
        }
        for (place, payload) in inbox.payloads.drain(..) {
            self.listener.message(place, &payload, now);
        }
    }

    fn send_failed(&mut self, _: EndpointId, _: u32, _: SendFailure) {
        // How many packets a datagram of QUIC had cannot be told. They are missing at the end.
    }
}

impl StreamHandler for Clients {}

/// There are no messages besides packets.
struct NoSignalling;

impl Signalling for NoSignalling {
    fn send(&mut self, _: usize, _: &[u8]) {}

    fn renew(&mut self, _: usize) {}
}

/// Nobody begins a connection to a client.
struct Nobody;

impl Strangers for Nobody {
    fn has_time(&mut self) -> bool {
        true
    }

    fn admits(&mut self, _: IpAddr, _: usize, _: usize) -> bool {
        false
    }
}

/// Where packets of QUIC leave.
struct Wire<'a> {
    tx: &'a mut SendQueue,
    links: &'a Links,
}

impl Outlet for Wire<'_> {
    fn buffer(&mut self) -> Vec<u8> {
        self.tx.take_buffer()
    }

    fn send(&mut self, via: Via, to: SocketAddr, bytes: Vec<u8>, segment: usize) {
        let link = usize::try_from(via.0).ok();
        if let Some(link) = link.and_then(|index| self.links.all.get(index)) {
            self.tx.send_owned(link.socket, to, bytes, segment);
        }
    }
}

/// How packets of the load leave.
struct Payloads<'a> {
    endpoint: &'a mut Endpoint<Tunnels>,
    links: &'a Links,
    streams: &'a [Option<u64>],
    /// Clients of the sessions.
    places: &'a [usize],
    now: Instant,
    unsent: &'a mut u32,
}

impl Payloads<'_> {
    /// Returns the connection of a session, if its tunnel is open.
    fn name(&self, session: usize) -> Option<ConnectionName> {
        let &place = self.places.get(session)?;
        let link = self.links.all.get(*self.links.of_clients.get(place)?)?;
        link.name
            .filter(|_| self.streams.get(place).is_some_and(Option::is_some))
    }
}

impl Media for Payloads<'_> {
    fn has_room(&mut self, session: usize) -> bool {
        let name = self.name(session);
        let room = name.and_then(|name| {
            self.endpoint
                .with(self.now, name, |connection, _| connection.datagram_room())
        });
        room.is_some_and(|room| room > WAITING_MAX - FLOOD_WAITING_MAX)
    }

    fn send(&mut self, session: usize, train: &[u8], len: usize) {
        let messages = train.len().div_ceil(len.max(1));
        let name = self.name(session);
        let sent = name.and_then(|name| {
            self.endpoint.with(self.now, name, |connection, _| {
                let mut rest = Bytes::copy_from_slice(train);
                let mut sent = 0;
                while !rest.is_empty() {
                    let message = rest.split_to(len.clamp(1, rest.len()));
                    sent += usize::from(connection.send_datagram(message).is_ok());
                }
                sent
            })
        });
        let unsent = messages - sent.unwrap_or(0);
        *self.unsent += u32::try_from(unsent).unwrap_or(u32::MAX);
    }
}
