//! The reflector's connections: what comes over one goes back over it, or is swallowed.
//!
//! One thread serves them all. A connection that does not take what it gets back is not read until it does, so that no more than
//! [`KEPT_MAX`] bytes of each are kept.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::Context as _;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};

use crate::stop::Stop;

/// Bytes of a reading, and what is kept of a connection at most.
const KEPT_MAX: usize = 64 << 10;
const BACKLOG: i32 = 1024;
/// Events of one wait.
const EVENTS: usize = 256;
/// How often the end is looked for.
const TICK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// What is counted, in bytes but for the connections.
#[derive(Debug, Default)]
pub(super) struct Counted {
    pub(super) connections: AtomicU64,
    pub(super) received: AtomicU64,
    pub(super) sent: AtomicU64,
}

/// The thread.
pub(super) struct Tcp {
    pub(super) counted: Arc<Counted>,
    handle: JoinHandle<anyhow::Result<()>>,
}

impl Tcp {
    /// Listens on all of `addresses`; `reflects` says whether anything comes back.
    ///
    /// # Errors
    /// An address is taken.
    pub(super) fn start(
        addresses: &[SocketAddr],
        reflects: bool,
        stop: &Stop,
    ) -> anyhow::Result<Self> {
        let listeners = addresses.iter().map(|&address| {
            listen(address).with_context(|| format!("cannot listen on {address} by TCP"))
        });
        let listeners = listeners.collect::<anyhow::Result<Vec<_>>>()?;
        let counted = Arc::<Counted>::default();
        let mut server = Server {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            listeners,
            table: Vec::new(),
            free: Vec::new(),
            buffer: vec![0; KEPT_MAX],
            reflects,
            counted: Arc::clone(&counted),
        };
        server.watch_listeners()?;
        let stop = stop.clone();
        let thread = thread::Builder::new().name("peer-tcp".to_owned());
        let handle = thread.spawn(move || server.run(&stop))?;
        Ok(Self { counted, handle })
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// What ended it before its time.
    pub(super) fn join(self) -> anyhow::Result<()> {
        let ended = self.handle.join();
        ended.map_err(|_| anyhow::anyhow!("a thread panicked"))?
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    if address.is_ipv6() {
        // IPv4 has an address of its own.
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

struct Echo {
    stream: TcpStream,
    kept: Vec<u8>,
}

struct Server {
    epoll: OwnedFd,
    listeners: Vec<TcpListener>,
    /// Connections, whose numbers are behind those of the listeners.
    table: Vec<Option<Echo>>,
    free: Vec<usize>,
    buffer: Vec<u8>,
    reflects: bool,
    counted: Arc<Counted>,
}

impl Server {
    fn watch_listeners(&self) -> io::Result<()> {
        for (index, listener) in self.listeners.iter().enumerate() {
            let data = EventData::new_u64(index as u64);
            epoll::add(&self.epoll, listener, data, EventFlags::IN)?;
        }
        Ok(())
    }

    fn run(&mut self, stop: &Stop) -> anyhow::Result<()> {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS);
        while !stop.is_ended() {
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&TICK)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            for event in &events {
                let Ok(number) = usize::try_from(event.data.u64()) else {
                    continue;
                };
                match number.checked_sub(self.listeners.len()) {
                    None => self.accept(number),
                    Some(place) => self.serve(place),
                }
            }
        }
        Ok(())
    }

    fn accept(&mut self, index: usize) {
        let Some(listener) = self.listeners.get(index) else {
            return;
        };
        // Those that end while they wait, or for which there is no descriptor, are the other side's affair.
        while let Ok((stream, _)) = listener.accept() {
            let is_set = stream
                .set_nonblocking(true)
                .and_then(|()| stream.set_nodelay(true));
            let place = self.free.pop().unwrap_or(self.table.len());
            let data = EventData::new_u64((self.listeners.len() + place) as u64);
            let is_watched = epoll::add(&self.epoll, &stream, data, EventFlags::IN);
            if is_set.is_err() || is_watched.is_err() {
                if place < self.table.len() {
                    self.free.push(place);
                }
                continue;
            }
            let echo = Some(Echo {
                stream,
                kept: Vec::new(),
            });
            match self.table.get_mut(place) {
                Some(free) => *free = echo,
                None => self.table.push(echo),
            }
            self.counted.connections.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn serve(&mut self, place: usize) {
        let number = (self.listeners.len() + place) as u64;
        let Some(slot) = self.table.get_mut(place) else {
            return;
        };
        let Some(echo) = slot else { return };
        let had_none = echo.kept.is_empty();
        let mut served = Ok(());
        if had_none {
            served = echo.read(&mut self.buffer, &self.counted);
            if !self.reflects {
                echo.kept.clear();
            }
        }
        let served = served.and_then(|()| echo.write(&self.counted));
        let has_none = echo.kept.is_empty();
        let served = served.and_then(|()| {
            if has_none == had_none {
                return Ok(());
            }
            // Either what is kept waits for room, or there is room for more.
            let flags = if has_none {
                EventFlags::IN
            } else {
                EventFlags::OUT
            };
            let data = EventData::new_u64(number);
            Ok(epoll::modify(&self.epoll, &echo.stream, data, flags)?)
        });
        if served.is_err() {
            *slot = None;
            self.free.push(place);
        }
    }
}

impl Echo {
    fn read(&mut self, buffer: &mut [u8], counted: &Counted) -> io::Result<()> {
        match self.stream.read(buffer) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(len) => {
                counted.received.fetch_add(len as u64, Ordering::Relaxed);
                self.kept
                    .extend_from_slice(buffer.get(..len).unwrap_or_default());
                Ok(())
            }
            Err(error) if is_passing(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn write(&mut self, counted: &Counted) -> io::Result<()> {
        let mut written = 0;
        let result = loop {
            let Some(bytes) = self.kept.get(written..).filter(|it| !it.is_empty()) else {
                break Ok(());
            };
            match self.stream.write(bytes) {
                Ok(len) => written += len,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_passing(&error) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        counted.sent.fetch_add(written as u64, Ordering::Relaxed);
        self.kept.drain(..written);
        result
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
