//! The time in which a run is measured, and what is waited for behind it.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use serde_json::json;

use super::Run;
use crate::load::arguments::Mode;
use crate::load::phase::{DRAINED, MEASURING, OVER};
use crate::load::report::Totals;
use crate::output;
use crate::socket_drops;
use crate::stop::Stop;
use crate::threads;

/// How often a run is looked at.
pub(in crate::load) const TICK: Duration = Duration::from_millis(20);
/// What is under way has arrived when nothing came for so long, or in any case after the longer time.
const QUIET: Duration = Duration::from_secs(1);
/// Quiet for so long is enough when everything sent has arrived.
pub(in crate::load) const ALL_HERE: Duration = Duration::from_millis(100);
const DRAIN_MAX: Duration = Duration::from_secs(3);
/// The same for streams, on which nothing is dropped on its way to the server: it waits there and here.
const STREAM_DRAIN_MAX: Duration = Duration::from_secs(10);
/// The same where clients wait as long as coturn's.
const LONG_DRAIN: Duration = Duration::from_secs(10);

impl Run {
    fn cpu(&self) -> Vec<u64> {
        let senders = self.senders.iter().map(|thread| thread.id);
        let listeners = self.listeners.iter().map(|thread| thread.id);
        senders.chain(listeners).map(threads::cpu_ns_of).collect()
    }

    fn now(&self) -> Totals {
        let mut now = Totals::default();
        for thread in &self.senders {
            now.sent += thread.sent.all.load(Ordering::Relaxed);
            now.measured += thread.sent.measured.load(Ordering::Relaxed);
        }
        for thread in &self.listeners {
            now.sent += thread.sent.all.load(Ordering::Relaxed);
            now.measured += thread.sent.measured.load(Ordering::Relaxed);
            now.received += thread.seen.received.load(Ordering::Relaxed);
            now.arrived += thread.seen.arrived.load(Ordering::Relaxed);
            now.allocated += thread.seen.allocated.load(Ordering::Relaxed);
        }
        now
    }

    fn has_dead_thread(&self) -> bool {
        self.senders
            .iter()
            .any(|thread| thread.handle.is_finished())
            || self
                .listeners
                .iter()
                .any(|thread| thread.handle.is_finished())
    }

    /// Warms up, measures, and waits for what is under way.
    pub(crate) fn measure(&mut self, stop: &Stop, show: &dyn Fn(u64, &Totals)) {
        self.pass(self.arguments.pace.warm_up, stop, show);
        self.cpu_before = self.cpu();
        let begin = self.clock.now();
        self.phase.store(MEASURING, Ordering::Relaxed);
        if self.arguments.verdict.json {
            output::event(&json!({"event": "measuring"}));
        }
        self.pass(self.arguments.pace.duration, stop, show);
        // The senders end at this: their CPU time has to be read before.
        let cpu = self.cpu();
        self.phase.store(OVER, Ordering::Relaxed);
        self.totals.window_ns = self.clock.now() - begin;
        self.totals.cpu = cpu
            .iter()
            .zip(&self.cpu_before)
            .map(|(after, before)| after.saturating_sub(*before))
            .collect();
        if self.arguments.verdict.json {
            output::event(&json!({"event": "measured"}));
        }
        self.drain();
        while self.arguments.habits.stays && !stop.is_ended() && !self.has_dead_thread() {
            thread::sleep(TICK);
        }
        self.totals.socket_drops = socket_drops::of_ports(&self.crew.ports);
        self.phase.store(DRAINED, Ordering::Relaxed);
    }

    /// Returns whether there is nothing left to do before the time is over.
    fn is_done(&self) -> bool {
        let Some(packets) = self.arguments.volume.packets else {
            return false;
        };
        let flows = self.crew.flows as u64;
        let now = self.now();
        let done = match self.arguments.mode {
            Mode::Alloc => now.allocated,
            _ => now.sent,
        };
        done >= self
            .crew
            .packets_wanted
            .unwrap_or_else(|| packets.saturating_mul(flows))
    }

    fn pass(&self, time: Duration, stop: &Stop, show: &dyn Fn(u64, &Totals)) {
        let end = self.clock.now() + u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        loop {
            let left = end.saturating_sub(self.clock.now());
            if left == 0 || stop.is_ended() || self.has_dead_thread() || self.is_done() {
                return;
            }
            thread::sleep(TICK.min(Duration::from_nanos(left)));
            show(self.clock.now(), &self.now());
        }
    }

    /// Waits, also after a signal: what is under way is not lost. A second signal ends the process.
    fn drain(&self) {
        if !self.arguments.mode.has_packets() {
            return;
        }
        if self.arguments.lacks.no_receive {
            // What a peer sends by itself after the window tells what is missing at its end.
            return thread::sleep(ALL_HERE);
        }
        let begin = self.clock.now();
        let passed = |since: u64| Duration::from_nanos(self.clock.now() - since);
        let (mut last, mut last_change) = (self.now().arrived, begin);
        let (drain_max, quiet) = if self.arguments.habits.waits_long {
            (LONG_DRAIN, LONG_DRAIN)
        } else if self.arguments.ends.transport.is_stream() {
            (STREAM_DRAIN_MAX, QUIET)
        } else {
            (DRAIN_MAX, QUIET)
        };
        while passed(begin) < drain_max && passed(last_change) < quiet {
            thread::sleep(TICK);
            let Totals {
                arrived,
                received,
                measured,
                ..
            } = self.now();
            // Answers to requests that nobody needs never cease to arrive.
            let since = if self.arguments.habits.asks_often {
                begin
            } else {
                last_change
            };
            // Long enough for the senders to notice their end, and for a duplicate.
            if received >= measured && passed(since) > ALL_HERE {
                return;
            }
            if arrived != last {
                (last, last_change) = (arrived, self.clock.now());
            }
        }
    }
}
