//! What the tasks of the control side share, and what outlives a listener: sums, events, the time since the start.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior};
use turnbuckle_server::handle::{Commands, Events, LiveCounters};

use crate::certificates::Certificates;
use crate::consumers::Consumers;
use crate::exposition::{Exposition, Format};
use crate::history::{self, History, Sample};
use crate::own::Numbers;
use crate::traffic::Traffic;
use crate::{coturn, own};

/// Events that are taken from one shard before the runtime does something else.
const EVENTS_AT_ONCE: usize = 4096;

/// What the tasks of the control side share.
pub(crate) struct Shared {
    /// When the relay began to serve.
    pub(crate) begun: Instant,
    pub(crate) counters: LiveCounters,
    pub(crate) commands: Commands,
    pub(crate) certificates: Certificates,
    /// Kept while there is a status page.
    pub(crate) history: Mutex<History>,
    events: Mutex<Option<Events>>,
    traffic: Mutex<Traffic>,
    /// Who else is shown events.
    pub(crate) consumers: Mutex<Consumers>,
    /// Whether the Redis server is there that is told of sessions; `None` if there is to be none.
    pub(crate) is_statsdb_up: Mutex<Option<Arc<AtomicBool>>>,
}

/// Locks what no thread leaves half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(crate) fn new(counters: LiveCounters, commands: Commands, labels_users: bool) -> Self {
        Self {
            begun: Instant::now(),
            counters,
            commands,
            certificates: Certificates::default(),
            history: Mutex::default(),
            events: Mutex::default(),
            traffic: Mutex::new(Traffic::new(labels_users)),
            consumers: Mutex::default(),
            is_statsdb_up: Mutex::default(),
        }
    }

    /// Adds to the history for ever.
    pub(crate) async fn keep_history(&self) {
        let mut moments = tokio::time::interval(history::EVERY);
        moments.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            moments.tick().await;
            let sample = Sample::take(&self.counters, self.begun.elapsed());
            lock(&self.history).add(sample);
        }
    }

    /// Takes these events from now on.
    pub(crate) fn set_events(&self, events: Events) {
        *lock(&self.events) = Some(events);
    }

    /// Tells users apart in the sums from now on, or does not. Other series begin then, so all of them begin anew.
    pub(crate) fn set_labels(&self, labels_users: bool) {
        lock(&self.traffic).set_labels(labels_users);
    }

    /// Returns all metrics as text.
    pub(crate) fn metrics(&self, format: Format) -> String {
        // What comes while they are taken is for the next scrape, which is not to wait for a crowd of clients.
        self.take_events();
        let mut exposition = Exposition::new(format);
        let traffic = lock(&self.traffic);
        let numbers = Numbers::of(&self.counters);
        coturn::write(&mut exposition, &self.counters, &numbers, &traffic);
        let lost = self.events(|events| events.map_or(0, Events::lost));
        let lost: Vec<_> = std::iter::once(("metrics", lost))
            .chain(lock(&self.consumers).lost())
            .collect();
        own::write(&mut exposition, &self.counters, &numbers, &traffic, &lost);
        own::write_certificates(&mut exposition, &self.certificates.show());
        if let Some(is_up) = &*lock(&self.is_statsdb_up) {
            own::write_statsdb(&mut exposition, is_up.load(Relaxed));
        }
        exposition.finish()
    }

    /// Adds up the usage that waiting events report, and shows the events to the other consumers. Returns whether more events may wait.
    pub(crate) fn take_events(&self) -> bool {
        self.events(|events| {
            let Some(events) = events else {
                return false;
            };
            let (mut traffic, consumers) = (lock(&self.traffic), lock(&self.consumers));
            let has_more = events.take(EVENTS_AT_ONCE, |event| {
                traffic.add(&event);
                consumers.show(&event);
            });
            consumers.lost_at_shards(events.lost());
            has_more
        })
    }

    /// Takes events as soon as they come, so that their queues have room.
    pub(crate) async fn follow_events(self: Arc<Self>) {
        let arrival = Arc::new(Notify::new());
        let bell = Arc::clone(&arrival);
        self.events(|events| {
            if let Some(events) = events {
                events.on_arrival(move || bell.notify_one());
            }
        });
        loop {
            while self.take_events() {
                tokio::task::yield_now().await;
            }
            arrival.notified().await;
        }
    }

    /// Returns whether there are events.
    pub(crate) fn has_events(&self) -> bool {
        lock(&self.events).is_some()
    }

    fn events<T>(&self, with: impl FnOnce(Option<&Events>) -> T) -> T {
        with(lock(&self.events).as_ref())
    }
}
