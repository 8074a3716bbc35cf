//! One turn of a shard's loop: wait, receive, pass to the handler, flush; strangers last.

mod newcomers;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll::{Event, EventFlags};
use turnbuckle_sys::errqueue;
use turnbuckle_sys::steering::{self, Instruction};

use super::coalesce::CoalescePolicy;
use super::events::{EVENTS, Newcomers, low};
use super::opener::Opener;
use super::waiting::Waiting;
use crate::counters::Counters;
use crate::handler::{DatagramHandler, Handler};
use crate::names::{Bind, EndpointId, Listen, StreamId, StreamListenerId};
use crate::queue::{SendQueue, TRAIN_SEGMENTS_MAX};
use crate::reports::{IcmpError, StreamEnd, Warning};
use crate::settings::Settings;
use crate::sockets::epolls::{self, Epolls};
use crate::sockets::kept::SocketKind;
use crate::sockets::opening::Sockets as _;
use crate::sockets::socket::SharedSocket;
use crate::sockets::table::{Bound, Table};
use crate::sockets::waker::Waker;
use crate::stream::flush::{Job, StreamFlusher};
use crate::stream::streams::Streams;
use crate::udp::backend::{Backend, capabilities};
use crate::udp::flush::Flusher;
use crate::udp::pack::Buffers;
use crate::udp::receive::Receiver;
use crate::udp::undelivered;

/// Datagrams after which a client socket is not read again in the same turn: as many as all relay sockets that are ready in a turn
/// may bring, each of which is read for one datagram or few.
const CLIENT_DATAGRAMS: u64 = EVENTS as u64;
/// ICMP errors read per socket and turn.
const ERRORS_PER_TURN: usize = 16;
/// Sockets and buffers of one shard.
pub struct Datapath {
    settings: Settings,
    epolls: Epolls,
    waiting: Waiting,
    table: Table,
    receiver: Receiver,
    queue: SendQueue,
    flusher: Flusher,
    streams: Streams,
    stream_flusher: StreamFlusher,
    counters: Arc<Counters>,
    warnings: Vec<Warning>,
    turn: u64,
}

impl Datapath {
    /// Allocates slots and descriptors; sockets come with [`bind`](Self::bind).
    ///
    /// # Errors
    /// The error of the system when descriptors are short.
    pub fn new(settings: Settings) -> io::Result<Self> {
        let epolls = Epolls::new()?;
        let segments_max = match settings.backend {
            Backend::Gso => capabilities().gso_segments_max,
            Backend::Mmsg | Backend::Single => TRAIN_SEGMENTS_MAX,
        };
        Ok(Self {
            waiting: Waiting::new(&epolls, &settings)?,
            epolls,
            table: Table::default(),
            receiver: Receiver::new(
                settings.backend,
                settings.slots,
                settings.batch,
                &settings.buffers,
            ),
            queue: SendQueue::new(segments_max),
            flusher: Flusher::new(settings.backend),
            streams: Streams::new(),
            stream_flusher: StreamFlusher::default(),
            counters: Arc::default(),
            warnings: Vec::new(),
            turn: 0,
            settings,
        })
    }

    /// Opens a socket.
    ///
    /// # Errors
    /// The error of the system: address in use, not available, too many open files.
    pub fn bind(&mut self, bind: Bind) -> io::Result<EndpointId> {
        self.sockets().bind(bind)
    }

    /// Has no datagram of a socket fragmented from now on: DF is set, or for IPv6 no fragment header is made. What the path does not take
    /// is reported by [`DatagramHandler::send_failed`] where the kernel knows of it, and lost where it does not.
    ///
    /// # Errors
    /// It is closed, or what `setsockopt` returns.
    pub fn forbid_fragments(&mut self, endpoint: EndpointId) -> io::Result<()> {
        let bound = self.table.get_mut(endpoint);
        let bound = bound.ok_or(io::ErrorKind::NotFound)?;
        let v6 = bound.endpoint.local.is_ipv6();
        Ok(bound.socket.never_fragment(v6)?)
    }

    /// Lets a listener that was bound with `reuseport` receive, now that every member of its group is bound.
    ///
    /// # Errors
    /// It is closed.
    pub fn admit_clients(&mut self, listener: EndpointId) -> io::Result<()> {
        let bound = self
            .table
            .get_mut(listener)
            .ok_or(io::ErrorKind::NotFound)?;
        bound.socket.admit_clients()
    }

    /// Has a program choose which socket of its group gets a datagram that comes to the address of a listener that was bound with `reuseport`. Sockets
    /// are numbered in the order in which they were bound. A kernel that refuses goes on as before, with a warning.
    pub fn steer(&mut self, listener: EndpointId, program: &[Instruction]) {
        let Some(bound) = self.table.get(listener) else {
            return;
        };
        if let Err(errno) = steering::steer(bound.socket.fd(), program) {
            self.warnings.push(Warning::SteeringUnavailable {
                local: bound.endpoint.local,
                errno: errno.raw_os_error(),
            });
        }
    }

    /// Takes an address for connections. None arrive before [`admit_connections`](Self::admit_connections).
    ///
    /// # Errors
    /// The error of the system: address in use, not available, too many open files.
    pub fn listen(&mut self, listen: Listen) -> io::Result<StreamListenerId> {
        self.streams.listen(listen, &self.epolls, &self.settings)
    }

    /// Lets connections arrive at an address that was taken with [`listen`](Self::listen).
    ///
    /// # Errors
    /// What `listen(2)` returns: another process listens there; or there is no memory for waiting for it.
    pub fn admit_connections(&mut self, listener: StreamListenerId) -> io::Result<()> {
        self.streams.admit(listener, &self.epolls)
    }

    /// Returns the address that connections arrive at.
    pub fn listening_addr(&self, listener: StreamListenerId) -> Option<SocketAddr> {
        Some(self.streams.listener(listener)?.local)
    }

    /// Sends what is queued and closes all connections, so that their last messages are counted.
    pub fn close_streams<H: Handler>(&mut self, handler: &mut H) {
        for id in self.streams.table.ids() {
            self.streams.end(id, StreamEnd::Local, &mut self.queue);
        }
        self.flush(handler);
    }

    /// Returns the address a socket is bound to.
    pub fn local_addr(&self, endpoint: EndpointId) -> Option<SocketAddr> {
        self.table.get(endpoint).map(|bound| bound.endpoint.local)
    }

    /// Returns a second handle of a socket for another thread, whose data path takes it with [`adopt`](Self::adopt).
    ///
    /// # Errors
    /// The socket is closed, or there are too many open files.
    pub fn share(&self, endpoint: EndpointId) -> io::Result<SharedSocket> {
        let bound = self.table.get(endpoint).ok_or(io::ErrorKind::NotFound)?;
        bound.share()
    }

    /// Takes a socket to send from. What arrives on it, ICMP errors too, goes on to the data path that bound it.
    ///
    /// # Errors
    /// There are more than four million sockets.
    pub fn adopt(&mut self, socket: SharedSocket, token: u64) -> io::Result<EndpointId> {
        let bound = self.table.adopt(socket, token, &self.settings)?;
        Ok(bound.endpoint.id)
    }

    /// Closes a socket at once.
    pub fn close(&mut self, endpoint: EndpointId) {
        self.table.remove(endpoint);
    }

    /// Pauses before a turn in this way from now on, for `delay` at the longest.
    pub fn set_coalescing(&mut self, policy: CoalescePolicy, delay: Duration) {
        self.waiting.set_coalescing(policy, delay);
    }

    /// Tells `handler` what the kernel has dropped at each socket so far. To be called before the sockets are closed together.
    pub fn report_undelivered<H: DatagramHandler>(&mut self, handler: &mut H) {
        for bound in self.table.all() {
            undelivered::report(bound, handler);
        }
    }

    /// Leaves the relay sockets, with what waits in them, to the data path that takes over the kept sockets of this one. Nothing else may be asked of
    /// this one then. Without kept sockets they are closed.
    pub fn leave_relays(&mut self) {
        for (address, socket) in self.table.take_relays() {
            if let Some(kept) = &self.settings.kept {
                kept.put(SocketKind::Relay, address, socket);
            }
        }
    }

    /// Returns a handle that ends the wait from another thread.
    pub fn waker(&self) -> Waker {
        self.waiting.waker.clone()
    }

    /// Returns the counters, which any thread may read at any time.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Returns the send queue, to queue something between turns; it leaves at the end of the next turn.
    pub fn send_queue(&mut self) -> &mut SendQueue {
        &mut self.queue
    }

    /// Looks for idle sockets as if it were `now_ns`.
    #[cfg(test)]
    pub(crate) fn look_at_grown(&mut self, now_ns: u64) {
        let grown = &mut self.receiver.grown;
        grown.look(&mut self.table, self.turn, now_ns);
    }

    /// Asks sockets what was dropped as if it were `now_ns`.
    #[cfg(test)]
    pub(crate) fn look_at_undelivered(&mut self, now_ns: u64, handler: &mut impl DatagramHandler) {
        let undelivered = &mut self.receiver.undelivered;
        undelivered.look(&mut self.table, now_ns, handler);
    }

    /// Makes the kernel refuse trains from a socket.
    #[cfg(test)]
    pub(crate) fn disable_checksums(&self, endpoint: EndpointId) {
        let bound = self.table.get(endpoint).expect("an open endpoint");
        turnbuckle_sys::sockopt::disable_checksums(bound.socket.fd()).expect("a UDP socket");
    }

    fn sockets(&mut self) -> Opener<'_> {
        Opener {
            settings: &self.settings,
            epolls: &self.epolls,
            table: &mut self.table,
            streams: &mut self.streams,
            grown: &mut self.receiver.grown,
            warnings: &mut self.warnings,
        }
    }

    /// Makes one turn: waits until something can be read, `timeout` has passed or [`Waker::wake`] is called; receives, shows
    /// what was received to `handler`, and sends what it queued.
    ///
    /// # Errors
    /// Only what waiting itself returns; errors of sockets are counted or reported to `handler`.
    pub fn turn<H: Handler>(
        &mut self,
        timeout: Option<Duration>,
        handler: &mut H,
    ) -> io::Result<()> {
        let timeout = match self.streams.shortage.is_on() {
            true => self.until_accepting(timeout),
            false => timeout,
        };
        let timeout = self.receiver.undelivered.bound(timeout);
        let has_cut = self.streams.has_cut();
        let timeout = match has_cut {
            true => {
                self.streams.start_cut();
                Some(Duration::ZERO)
            }
            false => timeout,
        };
        self.waiting
            .wait(timeout, &self.epolls, &self.counters.pace)?;
        self.turn += 1;
        self.counters.pace.turns.add(1);
        self.receiver.turn_started();
        handler.turn_started();
        self.serve_clients(handler);
        let mut newcomers = Newcomers::default();
        for index in 0..self.waiting.events.len() {
            let Event { flags, data } = self.waiting.events[index];
            match data.u64() {
                epolls::WAKER => self.waiting.woken(),
                epolls::TIMER => self.waiting.timer_fired(),
                epolls::STRANGERS => newcomers.strangers = true,
                epolls::LISTENERS => newcomers.listeners = true,
                name => match epolls::kind(name) {
                    epolls::RELAY => {
                        self.serve(EndpointId::from_u64(name), flags, handler);
                    }
                    epolls::STREAM => self.serve_stream(name, flags, handler),
                    epolls::LISTENER => {
                        // In the place of one that has been looked at.
                        self.waiting.events[newcomers.exclusive] = self.waiting.events[index];
                        newcomers.exclusive += 1;
                    }
                    _ => {} // clients, who came first
                },
            }
        }
        if has_cut {
            self.serve_cut(handler);
            newcomers.cut = !self.streams.cut_strangers.is_empty();
        }
        if newcomers.are_there() {
            self.serve_newcomers(newcomers, handler);
        }
        self.waiting
            .pace
            .turn_ended(self.receiver.datagrams, self.receiver.full);
        let read_ns = self.waiting.pace.read_ns();
        let grown = &mut self.receiver.grown;
        grown.look(&mut self.table, self.turn, read_ns);
        let undelivered = &mut self.receiver.undelivered;
        undelivered.look(&mut self.table, read_ns, handler);
        // guard: quic-flush-first
        if handler.flushes_before_end() {
            self.flush(handler);
        }
        let Self {
            settings,
            epolls,
            table,
            streams,
            receiver,
            warnings,
            queue,
            ..
        } = self;
        handler.turn_ended(
            queue,
            &mut Opener {
                settings,
                epolls,
                table,
                streams,
                grown: &mut receiver.grown,
                warnings,
            },
        );
        self.flush(handler);
        for warning in self.warnings.drain(..) {
            handler.warning(warning);
        }
        Ok(())
    }

    /// Looks at the listeners again when it is time for that; else it is in the time returned, if `timeout` is not sooner.
    #[cold]
    fn until_accepting(&mut self, timeout: Option<Duration>) -> Option<Duration> {
        let now_ns = self.waiting.now_ns();
        self.streams.resume(now_ns, &self.epolls);
        match (timeout, self.streams.shortage.wait(now_ns)) {
            (Some(timeout), Some(wait)) => Some(timeout.min(wait)),
            (timeout, wait) => timeout.or(wait),
        }
    }

    /// Reads the sockets that many send to before all others, until they are empty or enough was read. What is left in one would wait for
    /// the next turn, and an allocation's own socket has the next datagram of one flow or few.
    #[inline]
    fn serve_clients<H: Handler>(&mut self, handler: &mut H) {
        if self.waiting.events.len() == EVENTS {
            // More sockets are ready than were reported, perhaps these.
            for index in 0..self.table.clients.len() {
                self.serve_deep(self.table.clients[index], EventFlags::IN, handler);
            }
            return;
        }
        for index in 0..self.waiting.events.len() {
            let Event { flags, data } = self.waiting.events[index];
            let name = data.u64();
            if epolls::kind(name) == epolls::CLIENTS {
                self.serve_deep(EndpointId::from_u64(name), flags, handler);
            }
        }
    }

    /// Reads a socket that many send to.
    #[inline]
    fn serve_deep<H: Handler>(&mut self, id: EndpointId, flags: EventFlags, handler: &mut H) {
        let before = self.receiver.datagrams;
        while self.serve(id, flags, handler) && self.receiver.datagrams - before < CLIENT_DATAGRAMS
        {
        }
    }

    /// Handles one socket that is ready. Returns whether it returned as much as was requested.
    #[inline]
    fn serve<H: Handler>(&mut self, id: EndpointId, flags: EventFlags, handler: &mut H) -> bool {
        let Some(bound) = self.table.get_mut(id) else {
            return false;
        };
        if flags.contains(EventFlags::ERR) {
            read_errors(bound, &mut self.queue, handler);
        }
        if !flags.contains(EventFlags::IN) {
            return false;
        }
        if self.receiver.is_short_for(bound, self.turn) {
            self.counters.receive.no_buffer.add(1);
            self.flush(handler);
        }
        let Some(bound) = self.table.get_mut(id) else {
            return false;
        };
        self.receiver.read(
            bound,
            self.turn,
            &self.counters.receive,
            &mut self.queue,
            handler,
        )
    }

    /// Handles a connection that is ready.
    fn serve_stream<H: Handler>(&mut self, name: u64, flags: EventFlags, handler: &mut H) {
        if self.streams.arena.is_short() {
            self.flush(handler);
        }
        self.streams.serve(
            StreamId::from_u32(low(name)),
            flags,
            &self.epolls,
            &self.counters.stream,
            &mut self.queue,
            handler,
        );
    }

    /// Resumes connections whose work the last turn cut short.
    #[cold]
    fn serve_cut<H: Handler>(&mut self, handler: &mut H) {
        while let Some(id) = self.streams.next_cut() {
            if self.streams.arena.is_short() {
                self.flush(handler);
            }
            self.streams
                .show_again(id, &self.epolls, &mut self.queue, handler);
        }
    }

    /// Sends what is queued and frees the slots.
    #[inline]
    fn flush<H: Handler>(&mut self, handler: &mut H) {
        // Also if nothing leaves: what a turn has changed without an answer is to be on record at its end too.
        handler.before_flush();
        let buffers = Buffers {
            slots: &self.receiver.slots,
            streams: self.streams.arena.bytes(),
        };
        self.flusher.flush(
            &self.queue,
            buffers,
            &mut self.table,
            &self.counters.send,
            handler,
        );
        if !self.queue.touched_streams().is_empty() {
            let job = Job {
                queue: &self.queue,
                slots: &self.receiver.slots,
                epolls: &self.epolls,
                settings: &self.settings,
                counters: &self.counters.stream,
            };
            self.stream_flusher.flush(&job, &mut self.streams, handler);
        }
        self.queue.clear();
        self.receiver.recycle();
        self.streams.arena.recycle();
    }
}

/// Shows the ICMP errors queued on a socket to `handler`.
#[cold]
fn read_errors<H: DatagramHandler>(bound: &Bound, queue: &mut SendQueue, handler: &mut H) {
    for number in 0..ERRORS_PER_TURN {
        match errqueue::read(bound.socket.fd()) {
            Ok(Some(error)) => {
                let errqueue::QueuedError {
                    destination: peer,
                    kind,
                    code,
                    info: mtu,
                    v6,
                } = error;
                handler.icmp(
                    bound.endpoint.id,
                    bound.endpoint.token,
                    IcmpError {
                        peer,
                        kind,
                        code,
                        mtu,
                        v6,
                    },
                    queue,
                );
            }
            Ok(None) => {}
            Err(_) if number == 0 => {
                // An error without an entry, left by a queue that had no room: taking it makes the socket unready again.
                let _ = rustix::net::sockopt::socket_error(bound.socket.fd());
                return;
            }
            Err(_) => return,
        }
    }
}
