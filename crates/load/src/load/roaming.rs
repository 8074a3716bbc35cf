//! Clients by UDP that move (RFC 8016): to another port now and then, while packets flow.
//!
//! A move is made before the old socket is broken: the new one sends the Refresh request with the ticket, and only when the server has
//! answered do packets leave from there. What still comes to the old one is taken in for a while. Packets and requests of a
//! client leave one after the other from one thread, so that none overtakes the move.
//!
//! Some time after each move, but for the only one of [`Moves::Once`], the ticket that was used up is shown once more, from a third socket: a server that takes it would let
//! whoever overheard it carry the allocation away.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::Context as _;
use turnbuckle_datapath::{
    Bind, DatagramHandler, Datapath, EndpointId, EndpointKind, Received, SendFailure, SendQueue,
    Sockets, StreamHandler, TurnHandler,
};
use turnbuckle_wire::{Demux, Message, Method, classify};

use super::driver::Driver;
use super::listener::{Listener, Opened, Signalling, Task};
use super::moves::{Moved, Moves};
use super::phase::OVER;
use super::sender::{self, Media};
use super::sending::Sending;
use super::session::Via;
use turnbuckle_client::{Client, Event, Failure};

/// How long the socket that was left stays open, nanoseconds.
const OLD_FOR: u64 = 1_000_000_000;
/// How long after a move its ticket is shown once more, nanoseconds.
const STALE_AFTER: u64 = 100_000_000;

/// A socket at which a ticket is shown, and the client that shows it.
struct Attempt {
    endpoint: EndpointId,
    client: Client,
}

/// The sockets of a client.
struct Place {
    current: EndpointId,
    /// Where it is going.
    next: Option<Attempt>,
    /// Sockets that were left, and when they are closed.
    left: Vec<(EndpointId, u64)>,
    /// Where the ticket that was used up is shown.
    stale: Option<Attempt>,
    /// The ticket of the last move, and when it is shown once more.
    used: Option<(Vec<u8>, u64)>,
    move_at: u64,
}

/// A thread's clients.
pub(super) struct Roaming {
    datapath: Datapath,
    clients: Clients,
}

struct Clients {
    listener: Listener,
    sending: Sending,
    places: Vec<Place>,
    moves: Moves,
    /// It is known when clients move.
    is_scheduled: bool,
    moved: Moved,
    seed: u64,
    local: IpAddr,
    to: SocketAddr,
}

impl Roaming {
    /// Opens a socket for each client; none moves yet.
    ///
    /// # Errors
    /// A socket cannot be opened.
    pub(super) fn open(task: &mut Task, moves: Moves) -> anyhow::Result<Self> {
        let mut datapath = Datapath::new(task.settings.clone())?;
        let mut places = Vec::new();
        for (index, (session, _)) in task.clients.iter().enumerate() {
            let current = datapath
                .bind(bind(task.route.local, index))
                .with_context(|| {
                    let local = task.route.local;
                    format!("cannot open a socket for client {session} on {local}")
                })?;
            places.push(Place {
                current,
                next: None,
                left: Vec::new(),
                stale: None,
                used: None,
                move_at: u64::MAX,
            });
        }
        Ok(Self {
            datapath,
            clients: Clients {
                sending: Sending::new(task.sending.take()),
                places,
                moves,
                is_scheduled: false,
                moved: Moved::default(),
                seed: !task.seed,
                local: task.route.local,
                to: task.route.to,
                listener: Listener::new(task)?,
            },
        })
    }
}

fn bind(local: IpAddr, index: usize) -> Bind {
    Bind {
        address: (local, 0).into(),
        kind: EndpointKind::Listener { reuseport: false },
        token: index as u64,
    }
}

impl Driver for Roaming {
    fn listener(&mut self) -> &mut Listener {
        &mut self.clients.listener
    }

    /// Returns whether packets may flow. Who moves once does so before the first packet, as coturn's program.
    fn is_open(&mut self) -> bool {
        let clients = &mut self.clients;
        if !clients.listener.is_open() || clients.moves != Moves::Once {
            return clients.listener.is_open();
        }
        if !std::mem::replace(&mut clients.is_scheduled, true) {
            clients.schedule();
        }
        let mut places = clients.places.iter();
        places.all(|place| place.move_at == u64::MAX && place.next.is_none())
    }

    fn turn(&mut self) -> anyhow::Result<()> {
        self.clients.sending.learn()?;
        let wait = self.clients.wait();
        Ok(self.datapath.turn(Some(wait), &mut self.clients)?)
    }

    fn opened(&mut self) -> anyhow::Result<Opened> {
        let clients = &mut self.clients;
        if clients.moves != Moves::Once {
            clients.schedule();
        }
        let mut opened = clients.listener.opened(|index| Ok(Via::Listener(index)))?;
        for place in &clients.places {
            let local = self.datapath.local_addr(place.current);
            opened.ports.extend(local.map(|local| local.port()));
        }
        Ok(opened)
    }

    fn finish(mut self) -> (Listener, Option<sender::Outcome>) {
        self.clients.listener.moved(self.clients.moved);
        let sending = &self.datapath.counters().send;
        let (calls, trains) = (sending.calls.get(), sending.gso_sends.get());
        (
            self.clients.listener,
            self.clients.sending.finish(calls, trains),
        )
    }
}

impl Clients {
    /// Says when each client moves for the first time.
    fn schedule(&mut self) {
        let now = self.listener.clock.now();
        let number = self.places.len() as u64;
        for (index, place) in (1..).zip(&mut self.places) {
            place.move_at = match self.moves {
                Moves::Once => now,
                Moves::Every(interval) => now + interval / number.max(1) * index,
            };
        }
    }

    /// Returns how long there is nothing to do, if nothing arrives.
    fn wait(&self) -> Duration {
        // The listener never waits longer than moves may be late.
        self.sending.wait(&self.listener)
    }

    /// Moves a client as far as it can go now.
    fn roam(&mut self, index: usize, now: u64, tx: &mut SendQueue, sockets: &mut impl Sockets) {
        let Some(place) = self.places.get_mut(index) else {
            return;
        };
        for (left, _) in place.left.extract_if(.., |(_, until)| *until <= now) {
            sockets.close(left);
        }
        if self.listener.phase() >= OVER {
            return;
        }
        if place.move_at <= now && place.next.is_none() && place.stale.is_none() {
            place.move_at = match self.moves {
                Moves::Once => u64::MAX,
                Moves::Every(interval) => now + interval,
            };
            place.next = attempt(&self.listener, index, None, &mut self.seed, now)
                .and_then(|client| open(client, sockets, self.local, index));
        }
        if place.used.as_ref().is_some_and(|&(_, at)| at <= now) && place.next.is_none() {
            let ticket = place.used.take().map(|(ticket, _)| ticket);
            place.stale = attempt(
                &self.listener,
                index,
                ticket.as_deref(),
                &mut self.seed,
                now,
            )
            .and_then(|client| open(client, sockets, self.local, index));
        }
        let to = self.to;
        let mut go_on = |attempt: &mut Option<Attempt>| {
            let attempt = attempt.as_mut()?;
            let (bytes, event) = attempt.client.poll_transmit(now);
            if let Some(bytes) = bytes {
                tx.reply(attempt.endpoint, to, bytes);
            }
            event
        };
        let (next, stale) = (go_on(&mut place.next), go_on(&mut place.stale));
        for (is_stale, event) in [(false, next), (true, stale)] {
            if let Some(event) = event {
                self.ended(index, is_stale, event, now);
            }
        }
    }

    /// Counts what the server said to a ticket, and moves the client if it was the good one and was taken.
    fn ended(&mut self, index: usize, is_stale: bool, event: Event, now: u64) {
        let Some(place) = self.places.get_mut(index) else {
            return;
        };
        let attempt = if is_stale {
            place.stale.take()
        } else {
            place.next.take()
        };
        let Some(Attempt { endpoint, client }) = attempt else {
            return;
        };
        let (mut left, mut until) = (endpoint, now);
        match (is_stale, event) {
            (false, Event::Ready) => {
                self.moved.done += 1;
                let used = self.listener.client(index).and_then(Client::ticket);
                let used = used.filter(|_| self.moves != Moves::Once);
                place.used = used.map(|ticket| (ticket.to_vec(), now + STALE_AFTER));
                left = std::mem::replace(&mut place.current, endpoint);
                until = now + OLD_FOR;
                self.listener.replace(index, client, now);
            }
            (false, _) => self.moved.failed += 1,
            (true, Event::Failed(Failure::Refused(_))) => self.moved.stale_refused += 1,
            (true, Event::Ready) => self.moved.stale_taken += 1,
            // Silence proves nothing.
            (true, _) => {}
        }
        place.left.push((left, until));
    }

    /// Takes in an answer to a ticket.
    fn answered(&mut self, index: usize, is_stale: bool, message: &Message<'_>, now: u64) {
        let Some(place) = self.places.get_mut(index) else {
            return;
        };
        let attempt = if is_stale {
            &mut place.stale
        } else {
            &mut place.next
        };
        let event = attempt
            .as_mut()
            .and_then(|attempt| attempt.client.handle(now, message));
        if let Some(event) = event {
            self.ended(index, is_stale, event, now);
        }
    }

    fn datagram(&mut self, index: usize, endpoint: EndpointId, bytes: &[u8], now: u64) {
        let is_at = |attempt: &Option<Attempt>| {
            let mut attempt = attempt.iter();
            attempt.any(|attempt| attempt.endpoint == endpoint)
        };
        let place = self.places.get(index);
        let is_next = place.is_some_and(|place| is_at(&place.next));
        let is_stale = place.is_some_and(|place| is_at(&place.stale));
        let is_stun = bytes.first().map(|&first| classify(first)) == Some(Demux::Stun);
        match Message::parse(bytes) {
            Ok(message) if (is_next || is_stale) && is_stun && message.method() != Method::DATA => {
                self.answered(index, is_stale, &message, now);
            }
            // Packets count wherever they arrive.
            _ => self.listener.message(index, bytes, now),
        }
    }
}

/// Starts a client that shows `ticket`, or else the one that is good.
fn attempt(
    listener: &Listener,
    index: usize,
    ticket: Option<&[u8]>,
    seed: &mut u64,
    now: u64,
) -> Option<Client> {
    let client = listener.client(index).filter(|client| client.is_ready())?;
    *seed = seed.wrapping_add(1);
    let mut successor = client.successor(ticket.or_else(|| client.ticket())?, *seed);
    successor.start(now);
    Some(successor)
}

/// Gives it a socket. One that cannot have it, for want of descriptors, is tried again with the next move.
fn open(
    client: Client,
    sockets: &mut impl Sockets,
    local: IpAddr,
    index: usize,
) -> Option<Attempt> {
    let endpoint = sockets.bind(bind(local, index)).ok()?;
    Some(Attempt { endpoint, client })
}

impl TurnHandler for Clients {
    fn turn_started(&mut self) {
        self.listener.turn_started();
        self.sending.turn_started();
    }

    fn turn_ended(&mut self, tx: &mut SendQueue, sockets: &mut impl Sockets) {
        let now = self.listener.clock.now();
        let (places, to) = (&self.places, self.to);
        self.listener.turn_ended(&mut Requests { tx, places, to });
        for index in 0..self.places.len() {
            self.roam(index, now, tx, sockets);
        }
        let all = &self.places;
        self.sending.send(|clients| Packets {
            tx,
            all,
            clients,
            to,
        });
    }
}

impl DatagramHandler for Clients {
    fn received(&mut self, message: &Received<'_>, _: &mut SendQueue) {
        let now = self.listener.clock.now();
        let Ok(index) = usize::try_from(message.token) else {
            return;
        };
        // A port that was another program's a moment ago still gets what was meant for that one.
        if (message.remote.ip(), message.remote.port()) != (self.to.ip(), self.to.port()) {
            return;
        }
        for segment in message.segments() {
            self.datagram(index, message.endpoint, segment, now);
        }
    }

    fn send_failed(&mut self, _: EndpointId, datagrams: u32, _: SendFailure) {
        self.sending.failed(datagrams);
    }
}

impl StreamHandler for Clients {}

/// How requests leave.
struct Requests<'a> {
    tx: &'a mut SendQueue,
    places: &'a [Place],
    to: SocketAddr,
}

impl Signalling for Requests<'_> {
    fn send(&mut self, index: usize, message: &[u8]) {
        if let Some(place) = self.places.get(index) {
            self.tx.reply(place.current, self.to, message);
        }
    }

    fn renew(&mut self, _: usize) {
        // Those who allocate again and again do not move.
    }
}

/// How packets leave.
struct Packets<'a> {
    tx: &'a mut SendQueue,
    all: &'a [Place],
    /// Of the sessions.
    clients: &'a [usize],
    to: SocketAddr,
}

impl Media for Packets<'_> {
    fn has_room(&mut self, _: usize) -> bool {
        true
    }

    fn send(&mut self, session: usize, train: &[u8], len: usize) {
        let place = self.clients.get(session).and_then(|&at| self.all.get(at));
        if let Some(place) = place {
            self.tx.send(place.current, self.to, train, len);
        }
    }
}
