//! Events: what happens to sessions, for consumers outside of the relay.
//!
//! Each shard has a bounded queue. Whoever consumes the events counts on all of them only as long as [`Events::lost`] does not grow. After that, and
//! after [`EventKind::Restarted`], the list of sessions says what there is.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use turnbuckle_engine::{EndCause, Usage};

use super::ClientSide;

/// Events of one shard that may wait.
const EVENTS_PER_SHARD_MAX: usize = 65_536;

/// Something that has happened.
#[derive(Clone, Debug)]
pub struct Event {
    /// The shard at which it has happened.
    pub shard: usize,
    /// What has happened.
    pub kind: EventKind,
}

/// What has happened.
#[derive(Clone, Debug)]
pub enum EventKind {
    /// The shard has begun to serve. Sessions that it had before are over, without an event for each.
    Restarted,
    /// A session has begun.
    Created {
        /// Whose.
        session: Arc<Identity>,
        /// Its lifetime.
        lifetime: Duration,
    },
    /// A session was given another lifetime, zero when its client ends it.
    Refreshed {
        /// Whose.
        session: Arc<Identity>,
        /// Time until it ends.
        lifetime: Duration,
    },
    /// A session has another 5-tuple (RFC 8016) or another token (RFC 7635 §9).
    Changed {
        /// Who it is now.
        session: Arc<Identity>,
    },
    /// A session has relayed at least 4,096 datagrams since the last report of its usage.
    Used {
        /// Whose.
        session: Arc<Identity>,
        /// What it has relayed since that report.
        since: Box<Usage>,
    },
    /// A session is over.
    Ended {
        /// Whose.
        session: Arc<Identity>,
        /// Why.
        cause: EndCause,
        /// What it has relayed since the last report.
        since: Box<Usage>,
        /// What it has relayed in all.
        totals: Box<Usage>,
    },
}

/// What names a session in its events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its number, the same in log, events and lists.
    pub number: u64,
    /// The realm of its user.
    pub realm: Box<str>,
    /// The name of its user.
    pub user: Box<str>,
    /// The name that its user is charged by: of a time-limited name the part that stays the same.
    pub quota_name: Box<str>,
    /// How its client is reached.
    pub client: ClientSide,
}

/// What a consumer is called by when something waits.
type Bell = dyn Fn() + Send + Sync;

/// What the queues of all shards have in common.
#[derive(Default)]
struct Shared {
    bell: OnceLock<Box<Bell>>,
    lost: AtomicU64,
}

/// A shard's end of its queue.
#[derive(Clone)]
pub(crate) struct EventSender {
    shard: usize,
    queue: SyncSender<Event>,
    shared: Arc<Shared>,
    has_sent: bool,
}

impl EventSender {
    /// Queues an event, or counts it as lost.
    pub(crate) fn send(&mut self, kind: EventKind) {
        let event = Event {
            shard: self.shard,
            kind,
        };
        match self.queue.try_send(event) {
            Ok(()) => self.has_sent = true,
            Err(TrySendError::Full(_)) => self.lose(),
            // Nobody consumes them any more.
            Err(TrySendError::Disconnected(_)) => {}
        }
    }

    /// Counts an event as lost, so that the consumer reads the list of sessions.
    pub(crate) fn lose(&mut self) {
        self.shared.lost.fetch_add(1, Relaxed);
        self.has_sent = true;
    }

    /// Calls the consumer once for all events since the last call.
    pub(crate) fn ring(&mut self) {
        if std::mem::take(&mut self.has_sent)
            && let Some(bell) = self.shared.bell.get()
        {
            bell();
        }
    }
}

/// The consumer's end of all queues.
pub struct Events {
    queues: Vec<Receiver<Event>>,
    shared: Arc<Shared>,
}

impl Events {
    /// Makes the queues of `shards` shards.
    pub(crate) fn channel(shards: usize) -> (Vec<EventSender>, Self) {
        Self::bounded(shards, EVENTS_PER_SHARD_MAX)
    }

    fn bounded(shards: usize, max: usize) -> (Vec<EventSender>, Self) {
        let shared = Arc::new(Shared::default());
        let (senders, queues) = (0..shards)
            .map(|shard| {
                let (queue, events) = sync_channel(max);
                let sender = EventSender {
                    shard,
                    queue,
                    shared: Arc::clone(&shared),
                    has_sent: false,
                };
                (sender, events)
            })
            .unzip();
        (senders, Self { queues, shared })
    }

    /// Has `bell` called, on a shard's thread, when events have come. It must not block. Only the first bell counts.
    pub fn on_arrival(&self, bell: impl Fn() + Send + Sync + 'static) {
        // A second bell has nothing to say that the first does not.
        let _ = self.shared.bell.set(Box::new(bell));
    }

    /// Shows events that wait, in the order of each shard, at most `max` of each. Returns whether more may wait.
    pub fn take(&self, max: usize, mut show: impl FnMut(Event)) -> bool {
        let mut has_more = false;
        for queue in &self.queues {
            let mut left = max;
            has_more |= loop {
                if left == 0 {
                    break true;
                }
                match queue.try_recv() {
                    Ok(event) => show(event),
                    Err(TryRecvError::Empty | TryRecvError::Disconnected) => break false,
                }
                left -= 1;
            };
        }
        has_more
    }

    /// Returns how many events were lost because a queue was full.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_that_finds_its_queue_full_is_lost_and_counted_and_the_shard_goes_on() {
        let (mut senders, events) = Events::bounded(2, 3);
        for _ in 0..5 {
            senders[0].send(EventKind::Restarted);
        }
        senders[1].send(EventKind::Restarted);
        assert_eq!(events.lost(), 2);
        let mut shards = Vec::new();
        assert!(!events.take(10, |event| shards.push(event.shard)));
        assert_eq!(shards, [0, 0, 0, 1]);
        senders[0].send(EventKind::Restarted);
        assert!(events.take(1, |_| ()), "as many as may be taken at once");
        assert!(!events.take(1, |_| panic!("none is left")));
        drop(events);
        senders[0].send(EventKind::Restarted);
    }
}
