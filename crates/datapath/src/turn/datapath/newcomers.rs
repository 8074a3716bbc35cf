//! Strangers and listeners are served after everybody else, and for a bounded time.
//!
//! Accepting a connection, reading from it and closing it costs as much as relaying dozens of datagrams, and a TLS handshake as much as hundreds. So
//! listeners, and connections that the handler calls strangers, have event queues of their own. These queues are read once everything that the
//! turn has for others has been sent, and their events share a slice of time ([`Settings::strangers_slice`](crate::Settings::strangers_slice)).
//! Events that the slice does not reach are reported again in a later turn, before those of connections that become ready later. No stranger
//! can stay in front for long, since what it may send before it has proven something or is closed is bounded.

use std::mem::MaybeUninit;
use std::time::Instant;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, Event};

use super::Datapath;
use crate::handler::Handler;
use crate::turn::events::{NO_TIME, Newcomers, low};

/// Listeners that a turn serves at most.
const LISTENERS_PER_TURN: usize = 64;

impl Datapath {
    /// Serves strangers and listeners, after a flush. Connections that exist are served before new ones are accepted, so that the
    /// number that wait does not grow. A listener still gets a few accepted in each turn.
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

    /// Resumes at least one stranger whose work an earlier turn cut short, and others as long as there is time.
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
            // If it has proven itself, this has it be served with the others.
            self.flush(handler);
        }
    }

    /// Serves at least one stranger, and others as long as there is time.
    fn serve_strangers<H: Handler>(&mut self, until: Instant, handler: &mut H) {
        self.waiting.newcomers.clear();
        // Events that it cannot report now it reports in the next turn.
        let _ = epoll::wait(
            &self.epolls.strangers,
            spare_capacity(&mut self.waiting.newcomers),
            Some(&NO_TIME),
        );
        for index in 0..self.waiting.newcomers.len() {
            // guard: V-47-strangers-slice
            if index > 0 && Instant::now() >= until {
                break;
            }
            let Event { flags, data } = self.waiting.newcomers[index];
            self.serve_stream(data.u64(), flags, handler);
            // For a connection that has ended at once, closing it is most of the work.
            self.flush(handler);
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
                self.accept_at(self.waiting.events[rotated], until, handler);
            } else if others.next().is_some() && !self.accept_at_next(&mut first, until, handler) {
                others = 0..0;
            }
        }
    }

    /// Accepts at the listener that has waited for longest: the kernel moves a reported one behind all others that are ready. Returns
    /// whether there was one, other than the `first` of this turn.
    fn accept_at_next<H: Handler>(
        &mut self,
        first: &mut Option<u64>,
        until: Instant,
        handler: &mut H,
    ) -> bool {
        let mut next = [const { MaybeUninit::uninit() }; 1];
        let polled = epoll::wait(&self.epolls.listeners, &mut next, Some(&NO_TIME));
        let Ok(([event, ..], _)) = polled else {
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
        let now_ns = self.waiting.now_ns();
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
