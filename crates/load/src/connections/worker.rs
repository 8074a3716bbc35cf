//! A worker of `turnbuckle connect-client`: connects, closes, and connects again.

use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use clap::ValueEnum;
use hdrhistogram::Histogram;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with, sockopt};
use turnbuckle_sys::descriptors::unshare_descriptors;
use turnbuckle_sys::sockopt::choose_port_at_connect;

use super::errors::Errors;
use super::exchange::Exchange;
use crate::stop::Stop;
use crate::threads::{self, Clock, OwnLines};

/// How often a worker that waits looks whether the run has ended.
const TICK: Duration = Duration::from_millis(20);
/// The longest connect. The kernel itself would go on for two minutes.
const TIMEOUT: Duration = Duration::from_secs(3);

/// How this side ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Close {
    /// By RST, which leaves no TIME-WAIT
    Rst,
    /// By FIN, which leaves this side in TIME-WAIT, as the originals did
    Fin,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) connected: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) unfinished: AtomicU64,
    pub(super) cpu_ns: AtomicU64,
    pub(super) errors: Errors,
}

pub(super) struct Worker {
    pub(super) targets: Vec<SocketAddrV4>,
    /// Empty: the kernel's choice.
    pub(super) sources: Vec<SocketAddrV4>,
    pub(super) close: Close,
    pub(super) in_flight: Option<u16>,
    pub(super) exchange: Exchange,
    pub(super) counters: Arc<OwnLines<Counters>>,
    pub(super) stop: Stop,
    pub(super) clock: Clock,
    /// When the figures begin, by the clock.
    pub(super) measured_from: Arc<AtomicU64>,
    pub(super) latency: Histogram<u64>,
}

/// Makes a histogram from 1 ns to ten minutes, longer than any connect takes, three digits.
pub(super) fn latencies() -> anyhow::Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, 600_000_000_000, 3)?)
}

/// A connect that is under way.
struct Attempt {
    socket: OwnedFd,
    began: u64,
}

impl Worker {
    pub(super) fn run(mut self) -> anyhow::Result<Histogram<u64>> {
        unshare_descriptors().context("cannot have a table of descriptors of its own")?;
        match self.in_flight {
            None => self.one_at_a_time(),
            Some(number) => self.many_at_a_time(number.into())?,
        }
        self.counters
            .cpu_ns
            .store(threads::cpu_ns(), Ordering::Relaxed);
        Ok(self.latency)
    }

    fn one_at_a_time(&mut self) {
        let targets = self.targets.clone();
        for (number, target) in targets.iter().cycle().enumerate() {
            if self.stop.is_ended() {
                return;
            }
            let began = self.clock.now();
            let connected = self
                .socket(SocketFlags::CLOEXEC, number)
                .and_then(|socket| {
                    // What a connect waits for at most; it then fails with EINPROGRESS.
                    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(TIMEOUT))?;
                    connect(&socket, target)
                        .map_err(|errno| {
                            if errno == Errno::INPROGRESS {
                                Errno::TIMEDOUT
                            } else {
                                errno
                            }
                        })
                        .map(|()| socket)
                })
                .and_then(|socket| self.exchange.with(socket, *target));
            match connected {
                Ok(socket) => {
                    self.connected(began);
                    drop(socket);
                }
                Err(errno) => self.failed(errno),
            }
        }
    }

    fn many_at_a_time(&mut self, number: usize) -> anyhow::Result<()> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let tick = Timespec::try_from(TICK)?;
        let mut events: Vec<Event> = Vec::with_capacity(number);
        let mut attempts: Vec<Option<Attempt>> = (0..number).map(|_| None).collect();
        let mut idle: Vec<usize> = (0..number).collect();
        let mut next = 0;
        let mut looked_at = self.clock.now();
        while !self.stop.is_ended() {
            idle.retain(|&place| {
                let target = self.targets[next % self.targets.len()];
                next += 1;
                attempts[place] = self.begin(&epoll, target, next, place as u64);
                attempts[place].is_none()
            });
            events.clear();
            // With nothing under way (no port, no descriptor) this is the pause before the next attempt.
            match epoll::wait(&epoll, spare_capacity(&mut events), Some(&tick)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            for event in &events {
                let Ok(place) = usize::try_from(event.data.u64()) else {
                    continue;
                };
                if let Some(attempt) = attempts.get_mut(place).and_then(Option::take) {
                    self.finish(&attempt);
                    idle.push(place);
                }
            }
            let now = self.clock.now();
            if u128::from(now - looked_at) > TICK.as_nanos() {
                looked_at = now;
                for (place, attempt) in attempts.iter_mut().enumerate() {
                    let is_late = |attempt: &mut Attempt| {
                        u128::from(now - attempt.began) > TIMEOUT.as_nanos()
                    };
                    if attempt.take_if(is_late).is_some() {
                        self.failed(Errno::TIMEDOUT);
                        idle.push(place);
                    }
                }
            }
        }
        // Those that stand by now count; the others are neither connected nor failed.
        for attempt in attempts.into_iter().flatten() {
            if rustix::net::getpeername(&attempt.socket).is_ok() {
                self.finish(&attempt);
            } else {
                self.counters.unfinished.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    fn begin(
        &self,
        epoll: &OwnedFd,
        target: SocketAddrV4,
        number: usize,
        place: u64,
    ) -> Option<Attempt> {
        let began = self.clock.now();
        let begun = self
            .socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, number)
            .and_then(|socket| match connect(&socket, &target) {
                Ok(()) | Err(Errno::INPROGRESS) => {
                    epoll::add(epoll, &socket, EventData::new_u64(place), EventFlags::OUT)?;
                    Ok(Attempt { socket, began })
                }
                Err(errno) => Err(errno),
            });
        match begun {
            Ok(attempt) => Some(attempt),
            Err(errno) => {
                self.failed(errno);
                None
            }
        }
    }

    fn finish(&mut self, attempt: &Attempt) {
        match sockopt::socket_error(&attempt.socket) {
            Ok(Ok(())) => self.connected(attempt.began),
            Ok(Err(errno)) | Err(errno) => self.failed(errno),
        }
    }

    fn socket(&self, flags: SocketFlags, number: usize) -> Result<OwnedFd, Errno> {
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        if self.close == Close::Rst {
            sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
        }
        // Another one when all targets have been tried from the one before.
        let turn = number / self.targets.len();
        if let Some(at) = turn.checked_rem(self.sources.len()) {
            // Without it `bind` takes a port for this socket alone, and so a port serves one target only.
            choose_port_at_connect(&socket)?;
            bind(&socket, &self.sources[at])?;
        }
        Ok(socket)
    }

    fn connected(&mut self, began: u64) {
        let took = self.clock.now() - began;
        self.counters.connected.fetch_add(1, Ordering::Relaxed);
        if began >= self.measured_from.load(Ordering::Relaxed) {
            self.latency.saturating_record(took.max(1));
        }
    }

    fn failed(&self, errno: Errno) {
        self.counters.failed.fetch_add(1, Ordering::Relaxed);
        self.counters.errors.add(errno);
    }
}
