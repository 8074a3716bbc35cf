//! One endpoint: datagrams and the time in, trains out.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;

use crate::cid::{Ids, is_past_initial};
use crate::connections::{Application, ConnectionName, Connections, Held, contained};
use crate::deadlines::Deadlines;
use crate::events::{Event, Events};
use crate::gate::{Gate, Handshakes, Strangers, Waiting};
use crate::pool::Pool;
use crate::settings::Settings;
use crate::stack::{Connection, Handled, Incoming, Link, Packet, Shown, Stack};
use crate::state::{Closed, Refused};
use crate::totals::{Dropped, Totals};
use crate::transmit::{Answer, Outlet, Via};

/// Makes the application of a connection from this address.
type Accept<A> = Box<dyn FnMut(SocketAddr) -> A + Send>;

/// One QUIC endpoint, client or server or both, in one thread.
pub struct Endpoint<A> {
    settings: Settings,
    stack: Stack,
    ids: Ids,
    connections: Connections<A>,
    gate: Gate,
    handshakes: Handshakes,
    deadlines: Deadlines,
    /// Connections that may have something to send.
    ready: VecDeque<usize>,
    /// Answers that need no connection.
    answers: Vec<(Via, Answer)>,
    pool: Pool,
    totals: Totals,
    host: Host<A>,
}

/// What is between an endpoint and its host.
struct Host<A> {
    accept: Accept<A>,
    /// Whether no further connection is begun.
    refuses: bool,
    events: Events,
}

impl<A: Application> Endpoint<A> {
    /// Returns an endpoint that serves nobody yet; `accept` makes the application of each connection that others begin.
    pub fn new(settings: Settings, accept: impl FnMut(SocketAddr) -> A + Send + 'static) -> Self {
        Self {
            stack: Stack::new(&settings),
            ids: settings.keys.ids(),
            connections: Connections::new(),
            gate: Gate::new(&settings.limits),
            handshakes: Handshakes::default(),
            deadlines: Deadlines::default(),
            ready: VecDeque::new(),
            answers: Vec::new(),
            pool: Pool::default(),
            totals: Totals::default(),
            host: Host {
                accept: Box::new(accept),
                refuses: false,
                events: Events::new(),
            },
            settings,
        }
    }

    /// Serves connections with these certificates from now on; those that there are keep theirs.
    ///
    /// # Errors
    /// The configuration has no TLS 1.3, or not the cipher suite of Initial packets.
    pub fn serve(&mut self, tls: Arc<rustls::ServerConfig>) -> Result<(), Refused> {
        self.stack.serve(tls)
    }

    /// Serves connections that hide nothing from now on. For a simulator: each packet proves itself to whoever has heard how its connection began.
    #[doc(hidden)]
    pub fn serve_clear(&mut self) {
        self.stack.serve_clear();
    }

    /// Refuses connections from now on, or takes them again.
    pub fn refuse(&mut self, refuses: bool) {
        self.host.refuses = refuses;
    }

    /// Begins a connection to a server, by the socket [`Via::default`].
    ///
    /// # Errors
    /// The address or the name cannot be one of a server, there are too many connections, or TLS 1.3 is missing.
    pub fn connect(
        &mut self,
        now: Instant,
        tls: Arc<rustls::ClientConfig>,
        remote: SocketAddr,
        name: &str,
        application: A,
    ) -> Result<ConnectionName, Refused> {
        self.admit()?;
        let link = self.stack.connect(now, tls, remote, name)?;
        Ok(self.hold(now, link, application, Via::default()))
    }

    /// Begins a connection that hides nothing, to a server of such connections.
    ///
    /// # Errors
    /// The address cannot be one of a server, or there are too many connections.
    #[doc(hidden)]
    pub fn connect_clear(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        application: A,
    ) -> Result<ConnectionName, Refused> {
        self.admit()?;
        let link = self.stack.connect_clear(now, remote)?;
        Ok(self.hold(now, link, application, Via::default()))
    }

    /// Handles one message: a datagram, or several of `segment` bytes each back to back, of which the last may be shorter.
    pub fn handle(
        &mut self,
        now: Instant,
        from: SocketAddr,
        via: Via,
        bytes: &[u8],
        segment: usize,
        strangers: &mut impl Strangers,
    ) {
        let mut copy = self.pool.copy(bytes);
        let mut rest = bytes;
        loop {
            let (datagram, after) = rest.split_at(segment.max(1).min(rest.len()));
            let datagram = match &mut copy {
                Some(copy) => copy.split_to(datagram.len()),
                None => BytesMut::from(datagram),
            };
            rest = after;
            self.totals.received += 1;
            let waiting = Waiting {
                from,
                via,
                datagram,
            };
            self.judge(now, waiting, strangers);
            if rest.is_empty() {
                return;
            }
        }
    }

    /// Deals with datagrams that have proven nothing, as long as there is time for it.
    pub fn serve_strangers(&mut self, now: Instant, strangers: &mut impl Strangers) {
        while self.gate.len() > 0 && strangers.has_time() {
            if let Some(waiting) = self.gate.pop() {
                self.take(now, waiting, strangers);
            }
        }
    }

    /// Returns when this endpoint wants to be called again; `now` if it has something to do.
    pub fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let has_work = self.gate.len() > 0 || !self.ready.is_empty() || !self.answers.is_empty();
        if has_work {
            return Some(now);
        }
        self.deadlines.next()
    }

    /// Does what is due.
    pub fn handle_timeouts(&mut self, now: Instant) {
        while let Some(index) = self.deadlines.pop(now) {
            let Some(held) = self.connections.get_mut(index) else {
                continue;
            };
            held.armed = None;
            let is_late = held.handshake_by.is_some_and(|by| by <= now);
            let done = contained(|| {
                held.link.handle_timeout(now);
                if is_late {
                    held.handshake_by = None;
                    held.link.view(now).close(0, "handshake took too long");
                    tell_end(
                        &mut self.host.events,
                        ConnectionName(index),
                        held,
                        Closed::HandshakeLate,
                    );
                    held.end(Closed::HandshakeLate);
                }
            });
            self.totals.handshakes_late += u64::from(is_late);
            self.go_on(now, index, done);
        }
    }

    /// Sends what is due, one train of each connection after the other, up to a bounded number of datagrams; if more is left,
    /// [`Self::next_deadline`] says so.
    pub fn transmit(&mut self, now: Instant, outlet: &mut impl Outlet) {
        for (via, answer) in self.answers.drain(..) {
            let len = answer.bytes.len();
            outlet.send(via, answer.to, answer.bytes, len);
        }
        let datagrams_max = self.settings.path.train_datagrams.max(1);
        let mut budget = self.settings.path.turn_datagrams.max(1);
        while budget > 0 {
            let Some(index) = self.ready.pop_front() else {
                return;
            };
            let Some(held) = self.connections.get_mut(index) else {
                continue;
            };
            held.is_ready = false;
            let done = contained(|| {
                let mut buffer = outlet.buffer();
                let train = held.link.transmit(now, datagrams_max, &mut buffer);
                let Some((to, segment)) = train else {
                    buffer.clear();
                    outlet.send(held.via, held.known_at, buffer, 1);
                    return 0;
                };
                let datagrams = buffer.len().div_ceil(segment);
                outlet.send(held.via, to, buffer, segment);
                datagrams
            });
            let datagrams = done.unwrap_or(0);
            budget = budget.saturating_sub(datagrams);
            self.settle(index, done.map(|_| ()));
            if datagrams > 0 {
                self.mark_ready(index);
            }
        }
    }

    /// Returns whether a connection has something to send, or may have.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Sends about so many datagrams of all connections each time that [`Self::transmit`] is called from now on.
    pub fn limit_turn(&mut self, datagrams: usize) {
        self.settings.path.turn_datagrams = datagrams;
    }

    /// Does something with a connection and its application. `None` if it has ended.
    pub fn with<T>(
        &mut self,
        now: Instant,
        name: ConnectionName,
        work: impl FnOnce(&mut Connection<'_>, &mut A) -> T,
    ) -> Option<T> {
        let held = self.connections.get_mut(name.0)?;
        let result = contained(|| work(&mut held.link.view(now), &mut held.application));
        let done = result.as_ref().map(|_| ());
        self.go_on(now, name.0, done);
        result
    }

    /// Has what is said to the other side of a connection leave by another socket.
    pub fn leave_by(&mut self, name: ConnectionName, via: Via) {
        if let Some(held) = self.connections.get_mut(name.0) {
            held.via = via;
        }
    }

    /// Returns the socket by which a connection is spoken to. `None` if it has ended.
    pub fn via(&mut self, name: ConnectionName) -> Option<Via> {
        self.connections.get_mut(name.0).map(|held| held.via)
    }

    /// Returns how many DATAGRAM frames have been sent on a connection. `None` if it has ended.
    pub fn datagrams_sent(&mut self, name: ConnectionName) -> Option<u64> {
        let held = self.connections.get_mut(name.0)?;
        Some(held.link.datagrams_sent())
    }

    /// Takes the next thing that has become of a connection.
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.host.events.pop_front()?;
        if let Event::Stirred(ConnectionName(index)) = event
            && let Some(held) = self.connections.get_mut(index)
        {
            held.is_stirred = false;
        }
        Some(event)
    }

    /// Closes all connections with a code of the application, and forgets what waits. Each says so in the next [`Self::transmit`].
    pub fn stop(&mut self, now: Instant, code: u32, reason: &'static str) {
        while self.gate.pop().is_some() {
            self.totals.drop(Dropped::Stopped);
        }
        for index in self.connections.indices() {
            self.with(now, ConnectionName(index), |connection, _| {
                connection.close(code, reason);
            });
        }
    }

    /// Returns how many connections there are, those included that are being closed.
    pub fn connection_count(&self) -> usize {
        self.connections.len()
    }

    /// Returns how many datagrams wait that have proven nothing.
    pub fn waiting_count(&self) -> usize {
        self.gate.len()
    }

    /// Returns what has become of the datagrams.
    pub const fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Deals with a datagram at once if its connection id is one of this shard's and it is past the Initial packets, or from an address whose
    /// handshake is under way; else has it wait.
    fn judge(&mut self, now: Instant, waiting: Waiting, strangers: &mut impl Strangers) {
        let Waiting { from, datagram, .. } = &waiting;
        let shard = self.ids.shard_of_datagram(datagram);
        // mutant: shards-reset-migrated
        if shard.is_some_and(|shard| shard != self.settings.shard) {
            // The stack would answer it with a stateless reset, which ends a connection of the other shard.
            self.totals.drop(Dropped::OtherShard);
            return;
        }
        let is_proven =
            shard.is_some() && (is_past_initial(datagram) || self.handshakes.has(*from));
        if !is_proven && !self.gate.has_room(datagram.len()) {
            self.totals.drop(Dropped::Crowded);
            return;
        }
        if is_proven {
            self.take(now, waiting, strangers);
        } else {
            // A copy of its own: a part of the pool would keep all of that memory.
            let datagram = BytesMut::from(&waiting.datagram[..]);
            self.gate.push(Waiting {
                datagram,
                ..waiting
            });
        }
    }

    fn take(&mut self, now: Instant, waiting: Waiting, strangers: &mut impl Strangers) {
        let Waiting {
            from,
            via,
            datagram,
        } = waiting;
        let len = datagram.len();
        match self.stack.handle(now, from, datagram) {
            Handled::Discarded => self.totals.drop(Dropped::Discarded),
            Handled::Belongs(index, packet) => self.deliver(now, index, packet),
            Handled::Answered(answer) => self.answer(via, len, answer, strangers),
            Handled::Begins(incoming) => self.begin(now, via, len, incoming, strangers),
        }
    }

    fn deliver(&mut self, now: Instant, index: usize, packet: Packet) {
        self.totals.delivered += 1;
        if let Some(held) = self.connections.get_mut(index) {
            let done = contained(|| held.link.handle_packet(packet));
            self.totals.carrying += u64::from(self.go_on(now, index, done));
        }
    }

    /// Sends an answer to an address that has proven nothing, if the budget has room for it.
    fn answer(
        &mut self,
        via: Via,
        received_len: usize,
        answer: Answer,
        strangers: &mut impl Strangers,
    ) {
        if strangers.admits(answer.to.ip(), received_len, answer.bytes.len()) {
            self.totals.answered += 1;
            self.answers.push((via, answer));
        } else {
            self.totals.drop(Dropped::Unaffordable);
        }
    }

    fn begin(
        &mut self,
        now: Instant,
        via: Via,
        len: usize,
        incoming: Incoming,
        strangers: &mut impl Strangers,
    ) {
        // guard: V-80-retry
        if !incoming.is_proven() {
            match self.stack.retry(incoming) {
                Some(answer) => self.answer(via, len, answer, strangers),
                None => self.totals.drop(Dropped::Discarded),
            }
            return;
        }
        if self.host.refuses {
            let answer = self.stack.refuse(incoming);
            return self.answer(via, len, answer, strangers);
        }
        if self.connections.len() >= self.settings.limits.connections {
            self.stack.ignore(incoming);
            self.totals.drop(Dropped::Full);
            return;
        }
        let remote = incoming.remote();
        match self.stack.accept(now, incoming) {
            // The stack sets no timer for one that ends with its first packet, and would keep it for the idle time.
            // guard: V-80-ends-at-once
            Ok(link) if link.is_closed() => {
                self.stack.forget(&link);
                self.totals.drop(Dropped::Discarded);
            }
            Ok(link) => {
                self.totals.begun += 1;
                let application = (self.host.accept)(remote);
                let name = ConnectionName(link.index());
                self.host.events.push_back(Event::Begun(name, remote));
                self.hold(now, link, application, via);
            }
            Err(Some(answer)) => self.answer(via, len, answer, strangers),
            Err(None) => self.totals.drop(Dropped::Discarded),
        }
    }

    /// Says whether there may be one more connection.
    fn admit(&self) -> Result<(), Refused> {
        match self.connections.len() < self.settings.limits.connections {
            true => Ok(()),
            false => Err(Refused("there are too many connections".to_owned())),
        }
    }

    fn hold(&mut self, now: Instant, link: Link, application: A, via: Via) -> ConnectionName {
        let index = link.index();
        let by = now + self.settings.limits.handshake;
        self.handshakes.begin(link.remote());
        self.connections
            .insert(index, Held::new(link, application, via, by));
        self.go_on(now, index, Some(()));
        ConnectionName(index)
    }

    /// Shows the application of a connection what has happened, after `done` was done to it; `None` if that panicked. Returns whether DATAGRAM frames
    /// were among it.
    fn go_on(&mut self, now: Instant, index: usize, done: Option<()>) -> bool {
        let Some(held) = self.connections.get_mut(index) else {
            return false;
        };
        let (mut is_stirred, mut has_datagrams) = (false, false);
        let events = &mut self.host.events;
        let name = ConnectionName(index);
        let done = done.and_then(|()| {
            contained(|| {
                loop {
                    let shown = held.link.show_event(now, &mut held.application);
                    is_stirred |= !matches!(shown, Shown::Nothing);
                    match shown {
                        Shown::Nothing => break,
                        Shown::Something => {}
                        Shown::Datagrams => has_datagrams = true,
                        Shown::Connected => {
                            held.handshake_by = None;
                            events.push_back(Event::Connected(name));
                        }
                        Shown::Ended(cause) => {
                            held.handshake_by = None;
                            tell_end(events, name, held, cause.clone());
                            held.end(cause);
                        }
                    }
                }
                // The other ways tell the application before.
                if held.link.is_closed() {
                    held.end(Closed::Local);
                }
            })
        });
        if held.link.is_closed() {
            tell_end(events, name, held, Closed::Local);
        }
        if held.link.remote() != held.known_at {
            held.known_at = held.link.remote();
            events.push_back(Event::Moved(name, held.known_at));
        }
        if is_stirred && !held.is_stirred {
            held.is_stirred = true;
            events.push_back(Event::Stirred(name));
        }
        self.settle(index, done);
        self.mark_ready(index);
        has_datagrams
    }

    /// Brings the endpoint up to date with a connection, and removes one that has ended or panicked.
    fn settle(&mut self, index: usize, done: Option<()>) {
        let Some(held) = self.connections.get_mut(index) else {
            return;
        };
        if held.handshake_by.is_none()
            && let Some(from) = held.handshake_from.take()
        {
            self.handshakes.end(from);
        }
        let stack = &mut self.stack;
        let is_sound = done
            .and_then(|()| contained(|| stack.settle(&mut held.link)))
            .is_some();
        if is_sound && !held.link.is_drained() {
            let due = held.due();
            let mut armed = held.armed;
            self.deadlines.arm(index, &mut armed, due);
            held.armed = armed;
            return;
        }
        let Some(mut held) = self.connections.remove(index) else {
            return;
        };
        self.deadlines.forget(index, held.armed);
        if let Some(from) = held.handshake_from.take() {
            self.handshakes.end(from);
        }
        let (events, name) = (&mut self.host.events, ConnectionName(index));
        let cause = match is_sound {
            true => Closed::Local,
            false => Closed::Failed("it panicked".to_owned()),
        };
        tell_end(events, name, &mut held, cause);
        if !is_sound {
            self.totals.panicked += 1;
            self.stack.forget(&held.link);
        }
    }

    fn mark_ready(&mut self, index: usize) {
        if let Some(held) = self.connections.get_mut(index)
            && !held.is_ready
        {
            held.is_ready = true;
            self.ready.push_back(index);
        }
    }
}

/// Tells the host that a connection has ended, once.
fn tell_end<A>(events: &mut Events, name: ConnectionName, held: &mut Held<A>, cause: Closed) {
    if !held.is_told {
        held.is_told = true;
        events.push_back(Event::Ended(name, cause));
    }
}
