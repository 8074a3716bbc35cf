//! One shard's loop turn: wait, receive, hand over, flush.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::Backend;
use crate::counters::Counters;
use crate::endpoint::{Bind, EndpointId, Table};
use crate::flush::Flusher;
use crate::handler::{Handler, IcmpError, Received, Warning};
use crate::queue::SendQueue;
use crate::settings::Settings;
use crate::sys::errqueue;
use crate::sys::receive::Slots;

/// Readiness events taken per turn.
const EVENTS: usize = 256;
/// ICMP errors read per socket and turn.
const ERRORS_PER_TURN: usize = 16;
/// Event data of the waker and the timer; an endpoint's is its name, a 32-bit number.
const WAKER: u64 = u64::MAX;
const TIMER: u64 = u64::MAX - 1;

/// Sockets and buffers of one shard.
pub struct Datapath {
    settings: Settings,
    epoll: OwnedFd,
    timer: OwnedFd,
    waker: Waker,
    events: Vec<Event>,
    table: Table,
    slots: Slots,
    /// Slots taken in this turn, from the first one on.
    taken: usize,
    queue: SendQueue,
    flusher: Flusher,
    counters: Arc<Counters>,
    warnings: Vec<Warning>,
    closing: Vec<EndpointId>,
    turn: u64,
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
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        let waker = Waker(Arc::new(eventfd(
            0,
            EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
        )?));
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN)?;
        epoll::add(&epoll, &*waker.0, EventData::new_u64(WAKER), EventFlags::IN)?;
        let slots = Slots::new(
            usize::from(settings.slots.max(1)),
            settings.backend == Backend::Gso,
        );
        let segments_max = 64;
        Ok(Self {
            epoll,
            timer,
            waker,
            events: Vec::with_capacity(EVENTS),
            table: Table::default(),
            slots,
            taken: 0,
            queue: SendQueue::new(segments_max),
            flusher: Flusher::new(settings.backend),
            counters: Arc::default(),
            warnings: Vec::new(),
            closing: Vec::new(),
            turn: 0,
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

    /// The address a socket is bound to.
    pub fn local_addr(&self, endpoint: EndpointId) -> Option<SocketAddr> {
        self.table.get(endpoint).map(|endpoint| endpoint.local)
    }

    /// Closes a socket at once.
    pub fn close(&mut self, endpoint: EndpointId) {
        self.table.remove(endpoint);
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

    fn sockets(&mut self) -> Sockets<'_> {
        Sockets {
            settings: &self.settings,
            epoll: &self.epoll,
            table: &mut self.table,
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
        self.wait(timeout)?;
        self.turn += 1;
        self.counters.pace.turns.add(1);
        handler.turn_started();
        for index in 0..self.events.len() {
            let Event { flags, data } = self.events[index];
            match data.u64() {
                WAKER | TIMER => {
                    let mut count = [0; 8];
                    let fd = if data.u64() == WAKER {
                        self.waker.0.as_fd()
                    } else {
                        self.timer.as_fd()
                    };
                    // Whatever the count was, reading it makes the descriptor unready.
                    let _ = rustix::io::read(fd, &mut count);
                }
                name => {
                    let id = EndpointId::from_u32(name as u32);
                    if flags.contains(EventFlags::ERR) {
                        self.read_errors(id, handler);
                    }
                    if flags.contains(EventFlags::IN) {
                        self.read(id, handler);
                    }
                }
            }
        }
        let mut sockets = Sockets {
            settings: &self.settings,
            epoll: &self.epoll,
            table: &mut self.table,
            warnings: &mut self.warnings,
            closing: &mut self.closing,
        };
        handler.turn_ended(&mut self.queue, &mut sockets);
        self.flush(handler);
        for id in self.closing.drain(..) {
            self.table.remove(id);
        }
        for warning in self.warnings.drain(..) {
            handler.warning(warning);
        }
        Ok(())
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.events.clear();
        if let Some(timeout) = timeout {
            let value =
                Timespec::try_from(timeout.max(Duration::from_nanos(1))).unwrap_or(Timespec {
                    tv_sec: i64::MAX,
                    tv_nsec: 0,
                });
            let once = Itimerspec {
                it_interval: Timespec {
                    tv_sec: 0,
                    tv_nsec: 0,
                },
                it_value: value,
            };
            timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
        }
        match epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut self.events),
            None,
        ) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn flush<H: Handler>(&mut self, handler: &mut H) {
        self.flusher.flush(
            &self.queue,
            &self.slots,
            &mut self.table,
            &self.counters.send,
            handler,
        );
        self.queue.clear();
        self.taken = 0;
    }

    fn read<H: Handler>(&mut self, id: EndpointId, handler: &mut H) {
        let Some(endpoint) = self.table.get(id) else {
            return;
        };
        let token = endpoint.token;
        let want = usize::from(endpoint.want).min(self.slots.len());
        if self.slots.len() - self.taken < want {
            self.counters.receive.no_buffer.add(1);
            self.flush(handler);
        }
        let Some(endpoint) = self.table.get(id) else {
            return;
        };
        let first = self.taken;
        let result = match self.settings.backend {
            Backend::Single => self.slots.receive_from(endpoint.fd(), first).map(|()| 1),
            Backend::Mmsg | Backend::Gso => self.slots.receive(endpoint.fd(), first, want),
        };
        match result {
            Ok(received) => {
                self.counters.receive.note_call(received);
                self.taken += received;
                for slot in first..first + received {
                    let Some(remote) = self.slots.remote(slot) else {
                        continue;
                    };
                    let bytes = self.slots.bytes(slot);
                    let segment = self.slots.segment(slot).unwrap_or(bytes.len());
                    let message = Received {
                        endpoint: id,
                        token,
                        remote,
                        bytes,
                        segment,
                        slot: slot as u32,
                    };
                    self.counters
                        .receive
                        .datagrams
                        .add(message.segment_count() as u64);
                    handler.received(&message, &mut self.queue);
                }
            }
            Err(_) => self.counters.receive.would_block.add(1),
        }
    }

    #[cold]
    fn read_errors<H: Handler>(&mut self, id: EndpointId, handler: &mut H) {
        let Some(endpoint) = self.table.get(id) else {
            return;
        };
        for _ in 0..ERRORS_PER_TURN {
            match errqueue::read(endpoint.fd()) {
                Ok(Some(error)) => {
                    let error = IcmpError {
                        peer: error.destination,
                        kind: error.kind,
                        code: error.code,
                        mtu: error.info,
                        v6: error.v6,
                    };
                    handler.icmp(id, endpoint.token, error, &mut self.queue);
                }
                Ok(None) => {}
                Err(_) => break,
            }
        }
    }
}

/// The sockets of a data path, for opening and closing at the end of a turn.
pub struct Sockets<'a> {
    settings: &'a Settings,
    epoll: &'a OwnedFd,
    table: &'a mut Table,
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
        let added = epoll::add(
            self.epoll,
            endpoint.fd(),
            EventData::new_u64(u64::from(id.to_u32())),
            EventFlags::IN,
        );
        if let Err(errno) = added {
            self.table.remove(id);
            return Err(errno.into());
        }
        Ok(id)
    }

    /// The address a socket is bound to.
    pub fn local_addr(&self, endpoint: EndpointId) -> Option<SocketAddr> {
        self.table.get(endpoint).map(|endpoint| endpoint.local)
    }

    /// Closes a socket after the flush that follows, so that what was queued for it still leaves.
    pub fn close(&mut self, endpoint: EndpointId) {
        self.closing.push(endpoint);
    }
}
