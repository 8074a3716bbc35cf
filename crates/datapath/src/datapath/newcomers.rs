//! Who has proven nothing is served when everybody else has been, and for a bounded time.
//!
//! Accepting a connection, reading from it and closing it costs as much as relaying dozens of datagrams, and a TLS handshake as much as hundreds. So
//! listeners, and connections of which the handler says that they are strangers, have event queues of their own. These are looked at when what the
//! turn has for others has left, and what they tell of shares a slice of time ([`Settings::strangers_slice`](crate::Settings::strangers_slice)). Whom it does not reach is
//! told again, by a later turn, before those who become ready later; and none can stay in front for long, since what a stranger may send before it has
//! proven something or is closed is bounded.

use std::mem::MaybeUninit;
use std::time::Instant;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, Event};

use super::{Datapath, NO_TIME, low};
use crate::handler::Handler;
use crate::stream::StreamId;

/// Strangers that a turn is told of: as many as it may reach within its slice when each does little.
pub(super) const NEWCOMERS: usize = 64;
/// Listeners that a turn serves at most.
const LISTENERS_PER_TURN: usize = 64;

/// Who is there besides those who are served in each turn.
#[derive(Clone, Copy, Default)]
pub(super) struct Newcomers {
    /// Connections that have proven nothing.
    pub(super) strangers: bool,
    /// The same of which the last turn had done enough.
    pub(super) cut: bool,
    /// Listeners.
    pub(super) listeners: bool,
    /// How many events, from the first one on, are of listeners that the shard waits for by themselves.
    pub(super) exclusive: usize,
}

impl Newcomers {
    #[inline]
    pub(super) fn are_there(self) -> bool {
        self.strangers || self.cut || self.listeners || self.exclusive > 0
    }
}

impl Datapath {
    /// Serves strangers and listeners, after a flush. Those that are there go before those that come, so that the
    /// number of those that wait does not grow; but a listener gets a few accepted whatever they do.
    #[cold]
    pub(super) fn serve_newcomers<H: Handler>(&mut self, newcomers: Newcomers, handler: &mut H) {
        // guard: V-47-strangers-last
        self.flush(handler);
        let until = Instant::now() + self.settings.strangers_slice;
        if newcomers.cut {
            self.serve_cut_strangers(until, handler);
        }
        if newcomers.strangers {
            self.serve_strangers(until, handler);
        }
        self.accept(newcomers, until, handler);
    }

    /// Goes on with at least one stranger of which an earlier turn had done enough, and with others as long as there is time.
    fn serve_cut_strangers<H: Handler>(&mut self, until: Instant, handler: &mut H) {
        for number in 0..self.streams.cut_strangers.len() {
            if number > 0 && Instant::now() >= until {
                break;
            }
            let Some(id) = self.streams.cut_strangers.pop_front() else {
                break;
            };
            self.streams
                .show_again(id, &self.epolls, &mut self.queue, handler);
            self.after_stranger(id, handler);
        }
    }

    /// Has a stranger that has proven itself be served with the others, and sends what it caused.
    fn after_stranger<H: Handler>(&mut self, id: StreamId, handler: &mut H) {
        if !handler.is_stranger(id) {
            self.streams.prove(id, &self.epolls, &mut self.queue);
        }
        // Closing it is most of the work with a connection that has come and gone.
        self.flush(handler);
    }

    /// Serves at least one stranger, and others as long as there is time.
    fn serve_strangers<H: Handler>(&mut self, until: Instant, handler: &mut H) {
        self.newcomers.clear();
        // What it cannot tell now it tells in the next turn.
        let _ = epoll::wait(
            &self.epolls.strangers,
            spare_capacity(&mut self.newcomers),
            Some(&NO_TIME),
        );
        for index in 0..self.newcomers.len() {
            // guard: V-47-strangers-slice
            if index > 0 && Instant::now() >= until {
                break;
            }
            let Event { flags, data } = self.newcomers[index];
            let id = StreamId::from_u32(low(data.u64()));
            self.serve_stream(data.u64(), flags, handler);
            self.after_stranger(id, handler);
        }
    }

    /// Accepts at one listener, and at others as long as there is time; in the next turn at another one first.
    fn accept<H: Handler>(&mut self, newcomers: Newcomers, until: Instant, handler: &mut H) {
        let mut is_first = true;
        let mut may_go_on = || std::mem::take(&mut is_first) || Instant::now() < until;
        let mut exclusive = 0..newcomers.exclusive;
        let mut others = 0..if newcomers.listeners {
            LISTENERS_PER_TURN
        } else {
            0
        };
        let mut first = None;
        let mut takes_exclusive = self.turn.is_multiple_of(2);
        while !(exclusive.is_empty() && others.is_empty()) {
            takes_exclusive = (!takes_exclusive || others.is_empty()) && !exclusive.is_empty();
            // guard: V-47-listeners-slice
            if !may_go_on() {
                return;
            }
            if takes_exclusive && let Some(number) = exclusive.next() {
                let rotated = (low(self.turn) as usize + number) % newcomers.exclusive;
                self.accept_at(self.events[rotated], until, handler);
            } else if others.next().is_some() && !self.accept_at_next(&mut first, until, handler) {
                others = 0..0;
            }
        }
    }

    /// Accepts at the listener that has waited for longest: the kernel puts whom it tells of behind all others that are ready. Returns
    /// whether there was one, other than the `first` of this turn.
    fn accept_at_next<H: Handler>(
        &mut self,
        first: &mut Option<u64>,
        until: Instant,
        handler: &mut H,
    ) -> bool {
        let mut next = [const { MaybeUninit::uninit() }; 1];
        let told = epoll::wait(&self.epolls.listeners, &mut next, Some(&NO_TIME));
        let Ok(([event, ..], _)) = told else {
            return false;
        };
        if *first == Some(event.data.u64()) {
            return false;
        }
        first.get_or_insert(event.data.u64());
        self.accept_at(*event, until, handler);
        true
    }

    fn accept_at<H: Handler>(&mut self, event: Event, until: Instant, handler: &mut H) {
        let now_ns = self.now_ns();
        self.streams.accept(
            low(event.data.u64()),
            (now_ns, until),
            &self.epolls,
            &self.settings,
            &self.counters.stream,
            &mut self.queue,
            handler,
        );
    }
}
