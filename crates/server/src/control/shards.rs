//! Holds all shards: sends them changes, restarts those that fail, stops them and adds up their counters.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Instant;

use turnbuckle_datapath::KeptSockets;
use turnbuckle_engine::{Config as EngineConfig, InterfaceAddress, RelayAddress};

use super::error::ServeError;
use super::events::Event;
use super::failures::Failures;
use crate::asking::Answered;
use crate::counters::{Accounting, AcrossDrop};
use crate::handle::{EventSender, PageRequest, Reply, Trace};
use crate::shard::across::mailbox::Mailbox;
use crate::shard::serving::Serving;
use crate::shard::{Plan, Request, Shard, Starting};

/// Pages of a shard that may be under way.
const PAGES_MAX: usize = 2;

/// The shards of a relay that runs.
pub(super) struct Shards {
    all: Vec<Shard>,
    /// What each shard is started with, and restarted with after a failure.
    plans: Vec<Plan>,
    failures: Vec<Failures>,
    events: SyncSender<Event>,
    /// The mailbox of each shard.
    mailboxes: Arc<[Mailbox]>,
    is_draining: bool,
    /// A value for each shard that every page under way holds too.
    pages: Vec<Arc<()>>,
}

impl Shards {
    /// Starts `count` shards as `plan` says. A shard serves no clients before it is asked to admit them.
    ///
    /// # Errors
    ///
    /// What could not be set up.
    pub(super) fn start(
        count: usize,
        events: SyncSender<Event>,
        plan: impl Fn(usize, Arc<[Mailbox]>) -> Plan,
    ) -> io::Result<Self> {
        let mailboxes: Arc<[_]> = std::iter::repeat_with(Mailbox::default)
            .take(count)
            .collect();
        let failures = std::iter::repeat_with(Failures::default);
        let mut shards = Self {
            all: Vec::with_capacity(count),
            plans: (0..count)
                .map(|index| plan(index, Arc::clone(&mailboxes)))
                .collect(),
            failures: failures.take(count).collect(),
            events,
            mailboxes,
            is_draining: false,
            pages: std::iter::repeat_with(Arc::default).take(count).collect(),
        };
        let plans = shards.plans.clone().into_iter();
        let starting: Vec<_> = plans
            .map(|plan| Starting::begin(plan, Arc::default(), shards.events.clone()))
            .collect();
        let mut failed = None;
        for starting in starting {
            match starting.and_then(Starting::finish) {
                Ok(shard) => shards.all.push(shard),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        let Some(error) = failed else {
            return Ok(shards);
        };
        shards.stop();
        Err(error)
    }

    pub(super) fn all(&self) -> &[Shard] {
        &self.all
    }

    /// Returns the sockets of each shard that are kept open for the next one.
    pub(super) fn kept(&self) -> Vec<KeptSockets> {
        let kept = self.plans.iter().map(|plan| &plan.datapath.kept);
        kept.map(|kept| kept.clone().unwrap_or_default()).collect()
    }

    /// Returns the number of allocations and tunnels of all shards.
    pub(super) fn sessions(&self) -> u64 {
        let counters = self.all.iter().map(|shard| &shard.counters.engine);
        // guard: V-43-drain
        let sessions = counters.map(|engine| engine.allocations.get() + engine.tunnels.get());
        sessions.sum()
    }

    /// Sends new users to a shard. Returns whether there was room in its queue.
    pub(super) fn reconfigure(&self, shard: usize, engine: &Arc<EngineConfig>) -> bool {
        self.all[shard].request(Request::Reconfigure(Arc::clone(engine)))
    }

    /// Sends a shard an answer of the user database. Returns whether there was room in its queue, or there is no such shard.
    pub(super) fn answered(&self, shard: usize, answer: Answered) -> bool {
        let shard = self.all.get(shard);
        shard.is_none_or(|shard| shard.request(Request::Answered(answer)))
    }

    /// Sets the engine's settings for shards that are restarted.
    pub(super) fn begin_with_engine(&mut self, engine: &Arc<EngineConfig>) {
        for plan in &mut self.plans {
            plan.engine = Arc::clone(engine);
        }
    }

    /// Has every shard serve clients in this way from now on, and those that are restarted too.
    pub(super) fn serve(&mut self, serving: &Arc<Serving>) {
        for plan in &mut self.plans {
            plan.serve(serving);
        }
        for shard in &self.all {
            shard.insist(Request::Serve(Arc::clone(serving)));
        }
    }

    /// Returns where events for the main thread are sent.
    pub(super) fn events(&self) -> &SyncSender<Event> {
        &self.events
    }

    /// Has every shard make events from now on, and those that are restarted too. Each has one of `outlets`.
    pub(super) fn tell(&mut self, outlets: Vec<EventSender>) {
        let shards = self.plans.iter_mut().zip(&self.all);
        for ((plan, shard), outlet) in shards.zip(outlets) {
            plan.followers.events = Some(outlet.clone());
            shard.insist(Request::Events(outlet));
        }
    }

    /// Returns whether shards make events.
    pub(super) fn are_told_of(&self) -> bool {
        let followers = self.plans.iter().map(|plan| &plan.followers);
        followers.into_iter().any(|it| it.events.is_some())
    }

    /// Sends the host's addresses to a shard. Returns whether there was room in its queue.
    pub(super) fn set_interfaces(&self, shard: usize, addresses: &[InterfaceAddress]) -> bool {
        self.all[shard].request(Request::Interfaces(addresses.to_vec()))
    }

    /// Sets the host's addresses for shards that are restarted.
    pub(super) fn begin_with_interfaces(&mut self, addresses: &[InterfaceAddress]) {
        for plan in &mut self.plans {
            plan.host.interfaces = addresses.to_vec();
        }
    }

    /// Adds these addresses to those that every shard opens relay sockets at.
    pub(super) fn relay_from(&mut self, relays: &[RelayAddress]) {
        for plan in &mut self.plans {
            plan.host.relays = relays.to_vec();
        }
        for shard in &self.all {
            shard.insist(Request::Relays(relays.to_vec()));
        }
    }

    /// Makes every shard refuse new allocations, and waits until all of them do. From then on the number of allocations only falls.
    pub(super) fn drain(&mut self) {
        self.is_draining = true;
        let (done, all_done) = sync_channel(self.all.len());
        for shard in &self.all {
            shard.insist(Request::Drain(done.clone()));
        }
        drop(done);
        // Ends when the last shard has answered or ended.
        while all_done.recv().is_ok() {}
    }

    /// Makes every shard take new allocations again.
    pub(super) fn undrain(&mut self) {
        self.is_draining = false;
        for shard in &self.all {
            shard.insist(Request::Undrain);
        }
    }

    /// Begins a trace at every shard.
    pub(super) fn trace(&self, trace: &Trace) {
        for shard in &self.all {
            shard.insist(Request::Trace(trace.clone()));
        }
    }

    /// Asks a shard for a page of its sessions. If there is no such shard, or if it has too many requests already, the reply is dropped.
    pub(super) fn page(&self, shard: usize, wish: PageRequest) {
        let Some(under_way) = self.pages.get(shard) else {
            return;
        };
        // The one of `pages` is not under way.
        if Arc::strong_count(under_way) > PAGES_MAX {
            return;
        }
        self.all[shard].request(Request::Page(PageRequest {
            under_way: Arc::clone(under_way),
            ..wish
        }));
    }

    /// Has a shard answer. If there is no such shard, or if it has too many requests already, the reply is dropped.
    pub(super) fn ping(&self, shard: usize, reply: Reply<()>) {
        if let Some(shard) = self.all.get(shard) {
            shard.request(Request::Ping(reply));
        }
    }

    /// Makes a shard fail.
    #[cfg(test)]
    pub(super) fn fail(&self, shard: usize) {
        if !self.all[shard].request(Request::Panic) {
            // The event is sent once more after the restart.
            let _ = self.events.try_send(Event::Fail(shard));
        }
    }

    /// Makes a shard fail when it has handled the next datagram of a client.
    #[cfg(test)]
    pub(super) fn fail_with_next(&self, shard: usize) {
        self.all[shard].insist(Request::PanicWithNext);
    }

    /// Adds up the counters of a shard whose thread has ended, and schedules its restart unless it has failed too often.
    ///
    /// # Errors
    ///
    /// It has failed too often.
    pub(super) fn failed(
        &mut self,
        index: usize,
        why: &str,
        out: &mut impl Write,
    ) -> Result<(), ServeError> {
        let shard = &mut self.all[index];
        // Its ports, quota and sockets are free again when its thread has ended.
        shard.join();
        shard.counters.failed();
        let failures = &mut self.failures[index];
        if !failures.note(Instant::now()) {
            return Err(ServeError::new(format!(
                "shard {index} failed again and again: {why}"
            )));
        }
        let journal = self.plans[index].followers.journal.as_ref();
        if let Some(journal) = journal.filter(|_| failures.is_next_the_last()) {
            // guard: V-63-panic-last
            journal.forget();
        }
        let what = match journal {
            Some(_) if failures.is_next_the_last() => {
                "it goes on without its calls, which may be why it fails"
            }
            Some(_) => "its calls go on when it is built anew",
            None => "its calls are lost and it is started anew",
        };
        let _ = writeln!(out, "shard {index} failed, {what}: {why}");
        Ok(())
    }

    /// Returns when [`Self::restart`] is due, if a shard has failed.
    pub(super) fn due(&self) -> Option<Instant> {
        self.failures.iter().filter_map(Failures::due).min()
    }

    /// Restarts the shards whose pause is over, and returns their numbers. Their sockets were kept, so clients of other shards are not affected.
    /// `later` are the addresses that were added after the start.
    ///
    /// # Errors
    ///
    /// A shard has failed too often.
    pub(super) fn restart(
        &mut self,
        now: Instant,
        later: &[(Vec<SocketAddr>, Vec<SocketAddr>)],
        out: &mut impl Write,
    ) -> Result<Vec<usize>, ServeError> {
        let mut restarted = Vec::new();
        for index in 0..self.all.len() {
            if self.failures[index].due().is_none_or(|due| due > now) {
                continue;
            }
            self.failures[index].started();
            let mut plan = Plan {
                is_restart: true,
                ..self.plans[index].clone()
            };
            plan.listeners.later = later.to_vec();
            let has_journal = plan.followers.journal.is_some();
            let counters = Arc::clone(&self.all[index].counters);
            let before = counters.engine.taken_over.get();
            let starting = Starting::begin(plan, counters, self.events.clone());
            let shard = match starting.and_then(Starting::finish) {
                Ok(shard) => shard,
                Err(error) => {
                    self.failed(index, &error.to_string(), out)?;
                    continue;
                }
            };
            if has_journal {
                let taken = shard.counters.engine.taken_over.get() - before;
                let _ = writeln!(out, "shard {index} goes on with {taken} allocations");
            }
            if self.is_draining {
                shard.insist(Request::Drain(sync_channel(1).0));
            }
            self.all[index] = shard;
            restarted.push(index);
        }
        Ok(restarted)
    }

    /// Has every shard make its last turn, and adds up their counters. Sockets of datagrams stay open, and allocations on record.
    pub(super) fn seal(&self) -> Accounting {
        let (done, all_done) = sync_channel(self.all.len());
        for shard in &self.all {
            shard.insist(Request::Seal(done.clone()));
        }
        drop(done);
        // Ends when the last shard has answered or ended.
        while all_done.recv().is_ok() {}
        for (shard, mailbox) in self.all.iter().zip(self.mailboxes.iter()) {
            shard
                .counters
                .dropped(AcrossDrop::SocketClosed, mailbox.close());
        }
        Accounting::of(self.all.iter().map(|shard| &*shard.counters))
    }

    /// Stops every shard and adds up their counters.
    pub(super) fn stop(mut self) -> Accounting {
        for shard in &self.all {
            shard.insist(Request::Stop);
        }
        for (shard, mailbox) in self.all.iter_mut().zip(self.mailboxes.iter()) {
            shard.join();
            // Only a failed shard has messages left here. The others have closed their mailboxes.
            let lost = mailbox.close();
            shard.counters.dropped(AcrossDrop::SocketClosed, lost);
        }
        Accounting::of(self.all.iter().map(|shard| &*shard.counters))
    }
}
