//! Events about sessions for several consumers, each by a bounded queue of its own.
//!
//! Invariant: whoever hands events on never waits. A consumer whose queue is full loses events, which are counted, and the others lose none. The
//! queues of the shards are emptied all the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tokio::sync::mpsc;
use turnbuckle_server::handle::Event;

/// Events that may wait for one consumer.
const EVENTS_MAX: usize = 65_536;

/// The ends of all queues that are written to.
#[derive(Default)]
pub(crate) struct Consumers {
    all: Vec<(&'static str, Outlet)>,
}

/// The end of a queue that is written to.
struct Outlet {
    queue: mpsc::Sender<Event>,
    losses: Arc<Losses>,
}

/// The end of a queue that a consumer reads.
pub(crate) struct Inbox {
    /// Events in the order of each shard.
    pub(crate) queue: mpsc::Receiver<Event>,
    /// What never came.
    pub(crate) losses: Arc<Losses>,
}

/// Counts the events that a consumer did not get.
#[derive(Default)]
pub(crate) struct Losses {
    /// Its own queue was full.
    overflowed: AtomicU64,
    /// The queue of a shard was full, which is every consumer's loss.
    at_shards: AtomicU64,
    /// It got them and could not do what they are for.
    unused: AtomicU64,
}

impl Losses {
    /// Returns how many events have not come. What a consumer knows of sessions is only true as long as this does not grow.
    pub(crate) fn missed(&self) -> u64 {
        self.overflowed.load(Relaxed) + self.at_shards.load(Relaxed)
    }

    /// Counts events that have come in vain.
    pub(crate) fn add_unused(&self, count: usize) {
        self.unused.fetch_add(count as u64, Relaxed);
    }
}

impl Consumers {
    /// Adds a consumer, and returns its end.
    pub(crate) fn add(&mut self, name: &'static str) -> Inbox {
        self.add_bounded(name, EVENTS_MAX)
    }

    /// Shows no more events to a consumer.
    pub(crate) fn remove(&mut self, name: &str) {
        self.all.retain(|(it, _)| *it != name);
    }

    fn add_bounded(&mut self, name: &'static str, max: usize) -> Inbox {
        let (queue, events) = mpsc::channel(max);
        let losses = Arc::new(Losses::default());
        let outlet = Outlet {
            queue,
            losses: Arc::clone(&losses),
        };
        self.all.push((name, outlet));
        Inbox {
            queue: events,
            losses,
        }
    }

    /// Hands an event to all of them.
    pub(crate) fn show(&self, event: &Event) {
        for (_, outlet) in &self.all {
            // A consumer that has ended misses nothing.
            if let Err(mpsc::error::TrySendError::Full(_)) = outlet.queue.try_send(event.clone()) {
                outlet.losses.overflowed.fetch_add(1, Relaxed);
            }
        }
    }

    /// Tells all of them how many events the queues of the shards have lost.
    pub(crate) fn lost_at_shards(&self, count: u64) {
        for (_, outlet) in &self.all {
            outlet.losses.at_shards.store(count, Relaxed);
        }
    }

    /// Returns each with the number of events that it has lost.
    pub(crate) fn lost(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.all.iter().map(|(name, outlet)| {
            let losses = &outlet.losses;
            (*name, losses.missed() + losses.unused.load(Relaxed))
        })
    }
}

#[cfg(test)]
mod tests {
    use turnbuckle_server::handle::EventKind;

    use super::*;

    #[test]
    fn a_consumer_that_is_slow_loses_its_own_events_and_no_others() {
        let mut consumers = Consumers::default();
        let mut slow = consumers.add_bounded("slow", 2);
        let mut quick = consumers.add_bounded("quick", 2);
        for shard in 0..5 {
            consumers.show(&Event {
                shard,
                kind: EventKind::Restarted,
            });
            assert_eq!(quick.queue.try_recv().unwrap().shard, shard);
        }
        let lost: Vec<_> = consumers.lost().collect();
        assert_eq!(lost, [("slow", 3), ("quick", 0)]);
        assert_eq!(slow.queue.try_recv().unwrap().shard, 0, "in order");
        consumers.lost_at_shards(4);
        assert_eq!((slow.losses.missed(), quick.losses.missed()), (7, 4));
        quick.losses.add_unused(2);
        assert_eq!(consumers.lost().last(), Some(("quick", 6)));
        drop(quick);
        consumers.show(&Event {
            shard: 0,
            kind: EventKind::Restarted,
        });
        assert_eq!(consumers.lost().last(), Some(("quick", 6)), "it has ended");
    }
}
