//! Clients by TCP and TLS: connections that one thread reads and writes, so that a session of TLS is nobody else's.
//!
//! A turn reads each connection that has something once, hands whole messages to the listener, and at its end writes once to each connection for which
//! there is something: many messages a system call in either direction, so that not the generator is what is measured.

mod connection;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use self::connection::{READ_LEN, StreamConnection};
use super::access::{Access, Tls};
use super::driver::Driver;
use super::listener::{Duty, Listener, Opened, Signalling, Task};
use super::sender::{self, Media};
use super::sending::Sending;
use super::session::Via;
use super::tls;
use crate::output;
use crate::threads;
use turnbuckle_client::Failure;

/// Events of one wait.
const EVENTS: usize = 256;
/// What may be kept of a connection between readings: a record and a message that are not complete, with some to spare.
const KEPT_MAX: usize = 128 << 10;
/// A flood goes on while less than this waits for its connection.
const FLOOD_WAITING_MAX: usize = 64 << 10;
/// Bytes that wait for a connection at most. A packet that is due then is lost: a client that calls somebody has no use for it later.
const WAITING_MAX: usize = 1 << 20;
const NO_TIME: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// A thread's clients and their connections.
pub(super) struct Streams {
    listener: Listener,
    connections: Connections,
    events: Vec<Event>,
    buffer: Vec<u8>,
    sending: Sending,
}

impl Streams {
    /// Makes the event queue; connections begin later.
    ///
    /// # Errors
    /// No event queue can be had.
    pub(super) fn open(task: &mut Task) -> anyhow::Result<Self> {
        let _ = threads::fine_sleep();
        let tls = match &task.route.access {
            Access::Tls(tls) => Some(tls.clone()),
            _ => None,
        };
        let mut table = Vec::new();
        table.resize_with(task.clients.len(), || None);
        Ok(Self {
            connections: Connections {
                epoll: epoll::create(CreateFlags::CLOEXEC)?,
                table,
                touched: Vec::new(),
                lost: Vec::new(),
                tls,
                local: task.route.local,
                to: task.route.to,
                buffer_len: task.settings.buffers.listener,
                is_cycle: task.manner.duty == Duty::Cycle,
                writes: 0,
                has_complained: false,
            },
            listener: Listener::new(task)?,
            events: Vec::with_capacity(EVENTS),
            buffer: vec![0; KEPT_MAX + READ_LEN],
            sending: Sending::new(task.sending.take()),
        })
    }

    /// Fills `events`.
    fn await_events(&mut self, wait: Duration) -> io::Result<()> {
        self.events.clear();
        let epoll = &self.connections.epoll;
        if !wait.is_zero() {
            // `epoll_wait` would round it up to a millisecond.
            let wait = Timespec::try_from(wait).unwrap_or(NO_TIME);
            match poll(&mut [PollFd::new(epoll, PollFlags::IN)], Some(&wait)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        match epoll::wait(epoll, spare_capacity(&mut self.events), Some(&NO_TIME)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Reads and writes a connection that is ready.
    fn serve(&mut self, index: usize, flags: EventFlags) {
        let connections = &mut self.connections;
        let Some(connection) = connections.connection(index) else {
            return;
        };
        let (listener, buffer) = (&mut self.listener, &mut self.buffer);
        let served = connection.ready(flags, buffer, |message| {
            let now = listener.clock.now();
            listener.message(index, message, now);
        });
        match served {
            Ok(()) => connections.touch(index),
            Err(failure) => connections.lose(index, failure),
        }
    }
}

impl Driver for Streams {
    fn listener(&mut self) -> &mut Listener {
        &mut self.listener
    }

    fn turn(&mut self) -> anyhow::Result<()> {
        self.sending.learn()?;
        self.await_events(self.sending.wait(&self.listener))?;
        self.listener.turn_started();
        self.sending.turn_started();
        for at in 0..self.events.len() {
            let event = self.events[at];
            if let Ok(index) = usize::try_from(event.data.u64()) {
                self.serve(index, event.flags);
            }
        }
        self.listener.turn_ended(&mut self.connections);
        let connections = &mut self.connections;
        self.sending.send(|places| Packets {
            connections,
            places,
        });
        self.connections.flush();
        let now = self.listener.clock.now();
        for (index, failure) in std::mem::take(&mut self.connections.lost) {
            self.listener.lost(index, failure, now);
        }
        Ok(())
    }

    fn opened(&mut self) -> anyhow::Result<Opened> {
        self.listener.opened(|index| Ok(Via::Listener(index)))
    }

    fn finish(self) -> (Listener, Option<sender::Outcome>) {
        let sent = self.sending.finish(self.connections.writes, 0);
        (self.listener, sent)
    }
}

/// The connections of a thread, in the order of the listener's clients.
struct Connections {
    epoll: OwnedFd,
    table: Vec<Option<Box<StreamConnection>>>,
    /// Connections to be written to at the end of the turn.
    touched: Vec<usize>,
    /// Clients whose connections are gone.
    lost: Vec<(usize, Failure)>,
    tls: Option<Tls>,
    local: IpAddr,
    to: SocketAddr,
    buffer_len: u32,
    /// Clients come again and again.
    is_cycle: bool,
    writes: u64,
    /// Somebody was told why there is no connection.
    has_complained: bool,
}

impl Connections {
    fn connection(&mut self, index: usize) -> Option<&mut StreamConnection> {
        self.table.get_mut(index)?.as_deref_mut()
    }

    fn touch(&mut self, index: usize) {
        if let Some(connection) = self.connection(index)
            && !std::mem::replace(&mut connection.is_touched, true)
        {
            self.touched.push(index);
        }
    }

    fn lose(&mut self, index: usize, failure: Failure) {
        if let Some(place) = self.table.get_mut(index) {
            *place = None;
        }
        self.lost.push((index, failure));
    }

    /// Begins a connection.
    fn connect(&self, index: usize) -> anyhow::Result<StreamConnection> {
        let session = self.tls.as_ref().map(tls::TlsSession::new).transpose()?;
        let connection = StreamConnection::open(self.local, self.to, self.buffer_len, session)?;
        epoll::add(
            &self.epoll,
            connection.socket(),
            EventData::new_u64(index as u64),
            EventFlags::IN | EventFlags::OUT,
        )?;
        Ok(connection)
    }

    /// Writes what waits.
    fn flush(&mut self) {
        for index in std::mem::take(&mut self.touched) {
            let Some(connection) = self.table.get_mut(index).and_then(Option::as_deref_mut) else {
                continue;
            };
            connection.is_touched = false;
            if connection
                .flush(&self.epoll, index, &mut self.writes)
                .is_err()
            {
                self.lose(index, Failure::Disconnected);
            }
        }
    }
}

impl Signalling for Connections {
    fn send(&mut self, index: usize, message: &[u8]) {
        if self.connection(index).is_none() {
            match self.connect(index) {
                Ok(connection) => {
                    if let Some(place) = self.table.get_mut(index) {
                        *place = Some(Box::new(connection));
                    }
                }
                Err(error) => {
                    if !std::mem::replace(&mut self.has_complained, true) {
                        output::note(&format!("turnbuckle load: no connection: {error:#}"));
                    }
                    return self.lost.push((index, Failure::Disconnected));
                }
            }
        }
        let said = self
            .connection(index)
            .map(|it| it.say(message, message.len()));
        match said {
            Some(Err(failure)) => self.lose(index, failure),
            _ => self.touch(index),
        }
    }

    fn renew(&mut self, index: usize) {
        if let Some(place) = self.table.get_mut(index)
            && let Some(connection) = place.take()
            && self.is_cycle
        {
            // Thousands a second would use up all ports if each waited a minute for packets that are late.
            connection.reset();
        }
    }
}

/// How packets leave.
struct Packets<'a> {
    connections: &'a mut Connections,
    places: &'a [usize],
}

impl Packets<'_> {
    fn waiting(&self, session: usize) -> Option<usize> {
        let place = *self.places.get(session)?;
        let connection = self.connections.table.get(place)?.as_ref()?;
        connection.is_open().then(|| connection.waiting())
    }
}

impl Media for Packets<'_> {
    fn has_room(&mut self, session: usize) -> bool {
        self.waiting(session)
            .is_some_and(|waiting| waiting < FLOOD_WAITING_MAX)
    }

    fn send(&mut self, session: usize, train: &[u8], len: usize) {
        let is_taken = self
            .waiting(session)
            .is_some_and(|waiting| waiting < WAITING_MAX);
        let (true, Some(&index)) = (is_taken, self.places.get(session)) else {
            return;
        };
        let said = self
            .connections
            .connection(index)
            .map(|it| it.say(train, len));
        match said {
            Some(Err(failure)) => self.connections.lose(index, failure),
            _ => self.connections.touch(index),
        }
    }
}
