//! One shard's loop turn: wait, receive, hand over, flush; strangers last.

mod newcomers;

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use rustix::thread::{nanosleep, set_current_timer_slack};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use self::newcomers::{NEWCOMERS, Newcomers};
use crate::Backend;
use crate::backend::capabilities;
use crate::coalesce::{Pace, Wait};
use crate::counters::Counters;
use crate::endpoint::{Bind, Endpoint, EndpointId, EndpointKind, SharedSocket, Table};
use crate::epolls::{self, Epolls};
use crate::flush::Flusher;
use crate::handler::{Handler, IcmpError, Warning};
use crate::pack::Buffers;
use crate::queue::{SendQueue, TRAIN_SEGMENTS_MAX};
use crate::receive::Receiver;
use crate::settings::Settings;
use crate::stream::{
    self, DetachedStream, Listen, StreamEnd, StreamFlusher, StreamId, StreamListenerId, Streams,
};
use crate::sys::errqueue;

/// Readiness events taken per turn.
const EVENTS: usize = 256;
/// Datagrams after which a socket of clients is not asked for more in the same turn: as many as the relays may bring that are
/// ready in a turn, each of which is asked for one datagram or few.
const CLIENT_DATAGRAMS: u64 = EVENTS as u64;
/// ICMP errors read per socket and turn.
const ERRORS_PER_TURN: usize = 16;
const NO_TIME: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// Sockets and buffers of one shard.
pub struct Datapath {
    settings: Settings,
    epolls: Epolls,
    timer: OwnedFd,
    waker: Waker,
    events: Vec<Event>,
    /// Events of strangers and listeners.
    newcomers: Vec<Event>,
    table: Table,
    /// The sockets that clients send to.
    clients: Vec<EndpointId>,
    receiver: Receiver,
    pace: Pace,
    clock: Instant,
    /// When the timer will fire, nanoseconds of `clock`.
    timer_ns: Option<u64>,
    queue: SendQueue,
    flusher: Flusher,
    streams: Streams,
    stream_flusher: StreamFlusher,
    counters: Arc<Counters>,
    warnings: Vec<Warning>,
    closing: Vec<EndpointId>,
    turn: u64,
    /// Whether this thread's timer slack was set.
    slack_set: bool,
}

/// Ends a data path's wait from another thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Makes the present or the next [`Datapath::turn`] return.
    pub fn wake(&self) {
        // The only failure is a full counter, and then the wake-up is pending already.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }
}

impl Datapath {
    /// Allocates slots and descriptors; sockets come with [`bind`](Self::bind).
    ///
    /// # Errors
    /// What the system says about missing descriptors.
    pub fn new(settings: Settings) -> io::Result<Self> {
        let epolls = Epolls::new()?;
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        let waker = Waker(Arc::new(eventfd(
            0,
            EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
        )?));
        let alone = [
            (timer.as_fd(), epolls::TIMER),
            (waker.0.as_fd(), epolls::WAKER),
        ];
        for (fd, name) in alone {
            epoll::add(&epolls.media, fd, EventData::new_u64(name), EventFlags::IN)?;
        }
        let segments_max = match settings.backend {
            Backend::Gso => capabilities().gso_segments_max,
            Backend::Mmsg | Backend::Single => TRAIN_SEGMENTS_MAX,
        };
        Ok(Self {
            epolls,
            timer,
            waker,
            events: Vec::with_capacity(EVENTS),
            newcomers: Vec::with_capacity(NEWCOMERS),
            table: Table::default(),
            clients: Vec::new(),
            receiver: Receiver::new(
                settings.backend,
                settings.slots,
                settings.batch,
                settings.relay_buffer_max,
            ),
            pace: Pace::new(settings.coalesce_policy, settings.coalesce),
            clock: Instant::now(),
            timer_ns: None,
            queue: SendQueue::new(segments_max),
            flusher: Flusher::new(settings.backend),
            streams: Streams::new(),
            stream_flusher: StreamFlusher::default(),
            counters: Arc::default(),
            warnings: Vec::new(),
            closing: Vec::new(),
            turn: 0,
            slack_set: false,
            settings,
        })
    }

    /// Opens a socket.
    ///
    /// # Errors
    /// What the system says: address in use, not available, too many open files.
    pub fn bind(&mut self, bind: Bind) -> io::Result<EndpointId> {
        self.sockets().bind(bind)
    }

    /// Lets a listener that was bound with `reuseport` receive, now that every member of its group is bound.
    ///
    /// # Errors
    /// It is closed.
    pub fn admit_clients(&self, listener: EndpointId) -> io::Result<()> {
        let endpoint = self.table.get(listener).ok_or(io::ErrorKind::NotFound)?;
        endpoint.admit_clients()
    }

    /// Takes an address for connections. None arrive before [`admit_connections`](Self::admit_connections).
    ///
    /// # Errors
    /// What the system says: address in use, not available, too many open files.
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

    /// The address that connections arrive at.
    pub fn listening_addr(&self, listener: StreamListenerId) -> Option<SocketAddr> {
        Some(self.streams.listener(listener)?.local)
    }

    /// Sends what is queued and closes all connections, so that what is left of them is accounted for.
    pub fn close_streams<H: Handler>(&mut self, handler: &mut H) {
        for id in self.streams.table.ids() {
            self.streams.end(id, StreamEnd::Local, &mut self.queue);
        }
        self.flush(handler);
    }

    /// The address a socket is bound to.
    pub fn local_addr(&self, endpoint: EndpointId) -> Option<SocketAddr> {
        self.table.get(endpoint).map(|endpoint| endpoint.local)
    }

    /// A second handle of a socket for another thread, whose data path takes it with [`adopt`](Self::adopt).
    ///
    /// # Errors
    /// The socket is closed, or there are too many open files.
    pub fn share(&self, endpoint: EndpointId) -> io::Result<SharedSocket> {
        let endpoint = self.table.get(endpoint).ok_or(io::ErrorKind::NotFound)?;
        endpoint.share()
    }

    /// Takes a socket to send from. What arrives on it, ICMP errors too, goes on to the data path that bound it.
    ///
    /// # Errors
    /// There are more than four million sockets.
    pub fn adopt(&mut self, socket: SharedSocket, token: u64) -> io::Result<EndpointId> {
        let endpoint = self.table.adopt(socket, token, &self.settings)?;
        Ok(endpoint.id)
    }

    /// Closes a socket at once.
    pub fn close(&mut self, endpoint: EndpointId) {
        if let Some(endpoint) = self.table.remove(endpoint)
            && endpoint.kind != EndpointKind::Relay
        {
            self.clients.retain(|id| *id != endpoint.id);
        }
    }

    /// A handle that ends the wait from another thread.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// What was done so far; may be read by any thread at any time.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// The send queue, to queue something between turns; it leaves at the end of the next turn.
    pub fn send_queue(&mut self) -> &mut SendQueue {
        &mut self.queue
    }

    /// Looks for idle sockets as if it were `now_ns`.
    #[cfg(test)]
    pub(crate) fn look_at_grown(&mut self, now_ns: u64) {
        let grown = &mut self.receiver.grown;
        grown.look(&mut self.table, self.turn, now_ns);
    }

    /// Makes the kernel refuse trains from a socket.
    #[cfg(test)]
    pub(crate) fn disable_checksums(&self, endpoint: EndpointId) {
        let endpoint = self.table.get(endpoint).expect("an open endpoint");
        crate::sys::sockopt::disable_checksums(endpoint.fd()).expect("a UDP socket");
    }

    fn sockets(&mut self) -> Sockets<'_> {
        Sockets {
            settings: &self.settings,
            epolls: &self.epolls,
            table: &mut self.table,
            clients: &mut self.clients,
            streams: &mut self.streams,
            warnings: &mut self.warnings,
            closing: &mut self.closing,
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
        let has_cut = self.streams.has_cut();
        let timeout = match has_cut {
            true => {
                self.streams.start_cut();
                Some(Duration::ZERO)
            }
            false => timeout,
        };
        self.wait(timeout)?;
        self.turn += 1;
        self.counters.pace.turns.add(1);
        self.receiver.turn_started();
        handler.turn_started();
        self.serve_clients(handler);
        let mut newcomers = Newcomers::default();
        for index in 0..self.events.len() {
            let Event { flags, data } = self.events[index];
            match data.u64() {
                epolls::WAKER => drain(self.waker.0.as_fd()),
                epolls::TIMER => {
                    drain(self.timer.as_fd());
                    self.timer_ns = None;
                }
                epolls::STRANGERS => newcomers.strangers = true,
                epolls::LISTENERS => newcomers.listeners = true,
                name => match epolls::kind(name) {
                    epolls::RELAY => {
                        self.serve(EndpointId::from_u64(name), flags, handler);
                    }
                    epolls::STREAM => self.serve_stream(name, flags, handler),
                    epolls::LISTENER => {
                        // In the place of one that has been looked at.
                        self.events[newcomers.exclusive] = self.events[index];
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
        self.pace
            .turn_ended(self.receiver.datagrams, self.receiver.full);
        let read_ns = self.pace.read_ns();
        let grown = &mut self.receiver.grown;
        grown.look(&mut self.table, self.turn, read_ns);
        let Self {
            settings,
            epolls,
            table,
            clients,
            streams,
            warnings,
            closing,
            queue,
            ..
        } = self;
        handler.turn_ended(
            queue,
            &mut Sockets {
                settings,
                epolls,
                table,
                clients,
                streams,
                warnings,
                closing,
            },
        );
        self.flush(handler);
        while let Some(id) = self.closing.pop() {
            self.close(id);
        }
        for warning in self.warnings.drain(..) {
            handler.warning(warning);
        }
        Ok(())
    }

    /// Looks at the listeners again when it is time for that; else it is in the time returned, if `timeout` is not sooner.
    #[cold]
    fn until_accepting(&mut self, timeout: Option<Duration>) -> Option<Duration> {
        let now_ns = self.now_ns();
        self.streams.resume(now_ns, &self.epolls);
        match (timeout, self.streams.shortage.wait(now_ns)) {
            (Some(timeout), Some(wait)) => Some(timeout.min(wait)),
            (timeout, wait) => timeout.or(wait),
        }
    }

    /// Reads what clients have sent, before anything else and until there is no more, or enough of it. All relays together have
    /// sockets of their own for what comes to them; clients have one, and would wait for its next turn.
    #[inline]
    fn serve_clients<H: Handler>(&mut self, handler: &mut H) {
        if self.events.len() == EVENTS {
            // More is ready than was told, perhaps these.
            for index in 0..self.clients.len() {
                self.serve_deep(self.clients[index], EventFlags::IN, handler);
            }
            return;
        }
        for index in 0..self.events.len() {
            let Event { flags, data } = self.events[index];
            let name = data.u64();
            if epolls::kind(name) == epolls::CLIENTS {
                self.serve_deep(EndpointId::from_u64(name), flags, handler);
            }
        }
    }

    /// Reads a socket of clients.
    #[inline]
    fn serve_deep<H: Handler>(&mut self, id: EndpointId, flags: EventFlags, handler: &mut H) {
        let before = self.receiver.datagrams;
        while self.serve(id, flags, handler) && self.receiver.datagrams - before < CLIENT_DATAGRAMS
        {
        }
    }

    /// Handles one socket that is ready. Returns whether it gave as much as it was asked for.
    #[inline]
    fn serve<H: Handler>(&mut self, id: EndpointId, flags: EventFlags, handler: &mut H) -> bool {
        let Some(endpoint) = self.table.get_mut(id) else {
            return false;
        };
        if flags.contains(EventFlags::ERR) {
            read_errors(endpoint, &mut self.queue, handler);
        }
        if !flags.contains(EventFlags::IN) {
            return false;
        }
        if self.receiver.is_short_for(endpoint) {
            self.counters.receive.no_buffer.add(1);
            self.flush(handler);
        }
        let Some(endpoint) = self.table.get_mut(id) else {
            return false;
        };
        self.receiver.read(
            endpoint,
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

    /// Goes on with connections of which the last turn had done enough.
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
            let job = stream::Job {
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

    /// Waits until something is ready, with a pause before if the rate makes it worth while.
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.events.clear();
        let mut at_once = false;
        if let Some(timeout) = timeout {
            at_once = timeout.is_zero();
            if !at_once {
                self.set_timer(timeout)?;
            }
        }
        loop {
            let pause = match self.pace.wait(self.now_ns()) {
                Wait::Pause(pause) if !at_once => pause,
                Wait::Pause(_) | Wait::Block => {
                    self.poll(!at_once)?;
                    self.pace.reading(self.now_ns());
                    return Ok(());
                }
            };
            self.sleep(pause);
            self.poll(false)?;
            let now_ns = self.now_ns();
            if !self.events.is_empty() {
                self.pace.reading(now_ns);
                return Ok(());
            }
            self.pace.found_nothing(now_ns);
        }
    }

    /// Takes readiness events, waiting for the first if `block`.
    #[inline]
    fn poll(&mut self, block: bool) -> io::Result<()> {
        let timeout = if block { None } else { Some(&NO_TIME) };
        match epoll::wait(
            &self.epolls.media,
            spare_capacity(&mut self.events),
            timeout,
        ) {
            Ok(_) => {
                self.counters.pace.wakes.add(1);
                Ok(())
            }
            // A signal: the turn goes on empty and the caller looks at what the signal meant.
            Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn sleep(&mut self, pause: Duration) {
        if !self.slack_set {
            self.slack_set = true;
            // Without it the kernel may add 50 us to a pause of 200. Refused or not, the pause is bounded.
            let _ = set_current_timer_slack(NonZeroU64::new(1));
        }
        let before_ns = self.now_ns();
        // A signal ends the pause early, which does no harm.
        let _ = nanosleep(&Timespec::try_from(pause).unwrap_or(NO_TIME));
        self.counters.pace.sleeps.add(1);
        self.counters.pace.asleep_ns.add(self.now_ns() - before_ns);
    }

    /// Has the timer end the wait in `timeout` at the latest. A timer that is set for sooner stays: one early return costs
    /// less than a system call per turn.
    fn set_timer(&mut self, timeout: Duration) -> io::Result<()> {
        let due_ns = self
            .now_ns()
            .saturating_add(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
        if self.timer_ns.is_some_and(|set_ns| set_ns <= due_ns) {
            return Ok(());
        }
        let Ok(it_value) = Timespec::try_from(timeout) else {
            return Ok(());
        };
        let once = Itimerspec {
            it_interval: NO_TIME,
            it_value,
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
        self.timer_ns = Some(due_ns);
        Ok(())
    }

    #[inline]
    fn now_ns(&self) -> u64 {
        u64::try_from(self.clock.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// The lower half of event data: the number of an endpoint, a connection or a listener.
fn low(name: u64) -> u32 {
    EndpointId::from_u64(name).to_u32()
}

/// Makes a timer or a waker unready; what it counted does not matter.
fn drain(fd: BorrowedFd<'_>) {
    let _ = rustix::io::read(fd, &mut [0; 8]);
}

/// Shows the ICMP errors queued on a socket to `handler`.
#[cold]
fn read_errors<H: Handler>(endpoint: &Endpoint, queue: &mut SendQueue, handler: &mut H) {
    for number in 0..ERRORS_PER_TURN {
        match errqueue::read(endpoint.fd()) {
            Ok(Some(error)) => {
                let errqueue::QueuedError {
                    destination: peer,
                    kind,
                    code,
                    info: mtu,
                    v6,
                } = error;
                handler.icmp(
                    endpoint.id,
                    endpoint.token,
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
                let _ = rustix::net::sockopt::socket_error(endpoint.fd());
                return;
            }
            Err(_) => return,
        }
    }
}

/// The sockets of a data path, for opening and closing at the end of a turn.
pub struct Sockets<'a> {
    settings: &'a Settings,
    epolls: &'a Epolls,
    table: &'a mut Table,
    clients: &'a mut Vec<EndpointId>,
    streams: &'a mut Streams,
    warnings: &'a mut Vec<Warning>,
    closing: &'a mut Vec<EndpointId>,
}

impl Sockets<'_> {
    /// Opens a socket.
    ///
    /// # Errors
    /// What the system says: address in use, not available, too many open files.
    pub fn bind(&mut self, bind: Bind) -> io::Result<EndpointId> {
        let warnings = &mut *self.warnings;
        let endpoint = self
            .table
            .open(bind, self.settings, &mut |warning| warnings.push(warning))?;
        let id = endpoint.id;
        let kind = match bind.kind {
            EndpointKind::Relay => epolls::RELAY,
            EndpointKind::Listener { .. } => epolls::CLIENTS,
        };
        let data = EventData::new_u64(kind | u64::from(id.to_u32()));
        if let Err(errno) = epoll::add(&self.epolls.media, endpoint.fd(), data, EventFlags::IN) {
            self.table.remove(id);
            return Err(errno.into());
        }
        if bind.kind != EndpointKind::Relay {
            self.clients.push(id);
        }
        Ok(id)
    }

    /// The address a socket is bound to.
    pub fn local_addr(&self, endpoint: EndpointId) -> Option<SocketAddr> {
        self.table.get(endpoint).map(|endpoint| endpoint.local)
    }

    /// Listens for peers that connect to a relay. Nothing is read from them before they are joined with another connection.
    ///
    /// # Errors
    /// What the system says: address in use, not available, too many open files.
    pub fn listen_for_peers(&mut self, listen: Listen) -> io::Result<StreamListenerId> {
        self.streams
            .listen_for_peers(listen, self.settings, self.epolls)
    }

    /// Stops listening at once. Connections that were accepted stay.
    pub fn close_listener(&mut self, listener: StreamListenerId) {
        self.streams.close_listener(listener);
    }

    /// Begins a connection from `local`, where a listener may be; [`Handler::connected`] tells how that went.
    ///
    /// # Errors
    /// What the system says: no route, not permitted, the same connection exists, too many open files.
    pub fn connect(&mut self, local: SocketAddr, remote: SocketAddr) -> io::Result<StreamId> {
        self.streams
            .connect(local, remote, self.settings, self.epolls)
    }

    /// Takes a connection away, to be given to another data path; its name means nothing any more. What was queued for it in
    /// this turn is lost.
    pub fn detach(&mut self, stream: StreamId) -> Option<DetachedStream> {
        self.streams.table.detach(stream, self.epolls)
    }

    /// Takes in a connection that another data path gave away.
    ///
    /// # Errors
    /// No memory for the event queue, or there are more than four million connections.
    pub fn adopt(&mut self, stream: DetachedStream) -> io::Result<StreamId> {
        let is_cut = stream.is_cut();
        let id = self.streams.table.adopt(stream, self.epolls)?;
        if is_cut {
            self.streams.note_cut(id);
        }
        Ok(id)
    }

    /// Closes a socket after the flush that follows, so that what was queued for it still leaves.
    pub fn close(&mut self, endpoint: EndpointId) {
        self.closing.push(endpoint);
    }
}
