//! Waiting for the next turn: readiness, a timer, wake-ups, and pauses that let more arrive.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::thread::{nanosleep, set_current_timer_slack};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use super::coalesce::{CoalescePolicy, Pace, Wait};
use super::events::{EVENTS, NEWCOMERS, NO_TIME};
use crate::counters::PaceCounters;
use crate::settings::Settings;
use crate::sockets::epolls::{self, Epolls};
use crate::sockets::waker::Waker;

/// What ends a wait, and what it found.
pub(super) struct Waiting {
    timer: OwnedFd,
    pub(super) waker: Waker,
    /// What is ready in this turn.
    pub(super) events: Vec<Event>,
    /// Events of strangers.
    pub(super) newcomers: Vec<Event>,
    pub(super) pace: Pace,
    clock: Instant,
    /// When the timer will fire, nanoseconds of `clock`.
    timer_ns: Option<u64>,
    /// Whether this thread's timer slack was set.
    slack_set: bool,
}

impl Waiting {
    pub(super) fn new(epolls: &Epolls, settings: &Settings) -> io::Result<Self> {
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        let waker = Waker::open()?;
        let alone = [
            (Some(timer.as_fd()), epolls::TIMER),
            (waker.event(), epolls::WAKER),
        ];
        for (fd, name) in alone {
            let data = EventData::new_u64(name);
            fd.map_or(Ok(()), |fd| {
                epoll::add(&epolls.media, fd, data, EventFlags::IN)
            })?;
        }
        Ok(Self {
            timer,
            waker,
            events: Vec::with_capacity(EVENTS),
            newcomers: Vec::with_capacity(NEWCOMERS),
            pace: Pace::new(settings.coalesce_policy, settings.coalesce),
            clock: Instant::now(),
            timer_ns: None,
            slack_set: false,
        })
    }

    /// Pauses in this way from now on.
    pub(super) fn set_coalescing(&mut self, policy: CoalescePolicy, delay: Duration) {
        self.pace = Pace::new(policy, delay);
    }

    /// Makes the timer unready.
    pub(super) fn timer_fired(&mut self) {
        drain(self.timer.as_fd());
        self.timer_ns = None;
    }

    /// Makes the waker unready.
    pub(super) fn woken(&self) {
        if let Some(event) = self.waker.event() {
            drain(event);
        }
    }

    /// Waits until something is ready, with a pause before if the rate makes it worth while.
    pub(super) fn wait(
        &mut self,
        timeout: Option<Duration>,
        epolls: &Epolls,
        counters: &PaceCounters,
    ) -> io::Result<()> {
        self.events.clear();
        let mut now_ns = self.now_ns();
        let mut at_once = false;
        if let Some(timeout) = timeout {
            at_once = timeout.is_zero();
            if !at_once {
                self.set_timer(now_ns, timeout)?;
            }
        }
        loop {
            let pause = match self.pace.wait(now_ns) {
                Wait::Pause(pause) if !at_once => pause,
                Wait::Pause(_) | Wait::Block => {
                    self.poll(!at_once, epolls, counters)?;
                    self.pace.reading(self.now_ns());
                    return Ok(());
                }
            };
            self.sleep(pause, counters);
            self.poll(false, epolls, counters)?;
            now_ns = self.now_ns();
            if !self.events.is_empty() {
                self.pace.reading(now_ns);
                return Ok(());
            }
            self.pace.found_nothing(now_ns);
        }
    }

    /// Takes readiness events, waiting for the first if `block`.
    #[inline]
    fn poll(&mut self, block: bool, epolls: &Epolls, counters: &PaceCounters) -> io::Result<()> {
        let timeout = if block { None } else { Some(&NO_TIME) };
        match epoll::wait(&epolls.media, spare_capacity(&mut self.events), timeout) {
            Ok(_) => {
                counters.wakes.add(1);
                Ok(())
            }
            // A signal: the turn goes on empty and the caller looks at what the signal meant.
            Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn sleep(&mut self, pause: Duration, counters: &PaceCounters) {
        if !self.slack_set {
            self.slack_set = true;
            // Without it the kernel may add 50 us to a pause of 200. Refused or not, the pause is bounded.
            let _ = set_current_timer_slack(NonZeroU64::new(1));
        }
        let before_ns = self.now_ns();
        // A signal ends the pause early, which does no harm.
        let _ = nanosleep(&Timespec::try_from(pause).unwrap_or(NO_TIME));
        counters.sleeps.add(1);
        counters.asleep_ns.add(self.now_ns() - before_ns);
    }

    /// Has the timer end the wait in `timeout` at the latest. A timer that is set for sooner stays: one early return costs
    /// less than a system call per turn.
    fn set_timer(&mut self, now_ns: u64, timeout: Duration) -> io::Result<()> {
        let due_ns = now_ns.saturating_add(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
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
    pub(super) fn now_ns(&self) -> u64 {
        u64::try_from(self.clock.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Makes a timer or a waker unready; what it counted does not matter.
fn drain(fd: BorrowedFd<'_>) {
    let _ = rustix::io::read(fd, &mut [0; 8]);
}
