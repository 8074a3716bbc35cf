//! Tells a Redis server what happens to sessions, with coturn's keys, values, channels and order (`redis-statsdb`).
//!
//! Invariant: what is live is known here by events alone, whether Redis is there or not. When it comes back, and when events were missed, the keys
//! are made to agree with that ([`Statsdb::mend`]), so no status stays that belongs to no session.

mod live;
mod words;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior};
use turnbuckle_server::handle::{Commands, Event, SESSIONS_PER_PAGE_MAX, SessionFilter};
use turnbuckle_users::{RedisAddress, RedisError, RedisStore, RedisWrite};

use self::live::Live;
use crate::consumers::Inbox;
use crate::pages::{Action, Walk};

/// The name of this consumer of events.
pub(crate) const NAME: &str = "redis-statsdb";

/// Events that are made one exchange with the server.
const EVENTS_AT_ONCE: usize = 512;

/// Commands of one exchange when all keys are mended or deleted.
const WRITES_AT_ONCE: usize = 2048;

/// Time between two looks at whether the server is still there, and whether events were missed.
const LOOK: Duration = Duration::from_secs(1);

/// The shortest and the longest time between two attempts to connect.
const PAUSES: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(1)];

/// Time after which keys are mended once more. A server that was paused may still read what was sent to it before, on a connection that is closed.
const SECOND_LOOK: Duration = Duration::from_secs(2);

/// Time in which a shard has to answer with a page of its sessions.
const PAGE: Duration = Duration::from_secs(2);

/// What is told, to whom, and what is known.
pub(crate) struct Statsdb {
    address: RedisAddress,
    commands: Commands,
    inbox: Inbox,
    live: Live,
    /// Where this server listens, or has listened: statuses with these local addresses are ours.
    listeners: HashSet<SocketAddr>,
    is_up: Arc<AtomicBool>,
    /// How many events had been missed when the list of sessions was read last; `None` before.
    missed: Option<u64>,
    /// Whether keys of a run before have been deleted.
    has_begun: bool,
}

/// Why an exchange has ended.
enum End {
    Stopped,
    Failed(RedisError),
}

impl Statsdb {
    /// Makes a consumer of the events of `inbox` for a server; `is_up` says whether it is there. Sessions that there are already are in the list
    /// alone, so the first exchange reads it. Statuses with the local addresses of `listeners` are ours.
    pub(crate) fn new(
        address: RedisAddress,
        listeners: HashSet<SocketAddr>,
        commands: Commands,
        inbox: Inbox,
        is_up: Arc<AtomicBool>,
    ) -> Self {
        Self {
            address,
            commands,
            inbox,
            live: Live::default(),
            listeners,
            is_up,
            missed: None,
            has_begun: false,
        }
    }

    /// Tells the server everything until `stop` is dropped, and then that all sessions are over.
    pub(crate) async fn run(mut self, mut stop: oneshot::Receiver<()>) {
        let mut pause = PAUSES[0];
        let mut has_failed = false;
        let mut second_look = None;
        loop {
            let opened = tokio::select! {
                opened = self.open(has_failed) => opened,
                _ = &mut stop => return,
            };
            let why = match opened {
                Ok(mut store) => match self.tell(&mut store, second_look, &mut stop).await {
                    End::Stopped => return,
                    End::Failed(why) => why,
                },
                Err(why) => why,
            };
            if self.is_up.swap(false, Relaxed) || !has_failed {
                pause = PAUSES[0];
                second_look = Some(SECOND_LOOK);
                let address = &self.address;
                self.say(format!(
                    "redis-statsdb {address}: {why}; statuses are mended when it is back"
                ));
            }
            has_failed = true;
            tokio::select! {
                () = self.follow_for(pause) => pause = (pause * 2).min(PAUSES[1]),
                _ = &mut stop => return,
            }
        }
    }

    /// Connects. At the start events wait meanwhile, so that the server is told of what has begun and ended by then. Once it `has_failed` they are followed:
    /// it would have to take all that waited before its keys are mended (decision 48).
    async fn open(&mut self, has_failed: bool) -> Result<RedisStore, RedisError> {
        let address = self.address.clone();
        let opening = RedisStore::open(&address);
        tokio::pin!(opening);
        loop {
            tokio::select! {
                opened = &mut opening => return opened,
                () = self.follow(), if has_failed => {}
            }
        }
    }

    /// Takes note of events that nobody can be told of, for this time.
    async fn follow_for(&mut self, pause: Duration) {
        let over = tokio::time::sleep(pause);
        tokio::pin!(over);
        loop {
            tokio::select! {
                () = &mut over => return,
                () = self.follow() => {}
            }
        }
    }

    /// Waits for events and takes note of them. They are lost to the server.
    async fn follow(&mut self) {
        let Some(first) = self.inbox.queue.recv().await else {
            // None will come any more.
            return std::future::pending().await;
        };
        let events = self.waiting(Some(first));
        self.inbox.losses.add_unused(events.len());
        let writes = self.note(events);
        self.live.doubt(&writes);
    }

    /// Returns events that wait, after `first`: as many as make one exchange.
    fn waiting(&mut self, first: Option<Event>) -> Vec<Event> {
        let mut events = Vec::from_iter(first);
        while events.len() < EVENTS_AT_ONCE
            && let Ok(event) = self.inbox.queue.try_recv()
        {
            events.push(event);
        }
        events
    }

    /// Takes note of events, and returns what the server is to be told of them.
    fn note(&mut self, events: Vec<Event>) -> Vec<RedisWrite> {
        let mut writes = Vec::new();
        for event in events {
            if let Some(server) = self.live.note(event, &mut writes) {
                self.listeners.insert(server);
            }
        }
        writes
    }

    /// Tells the server of events as they come.
    async fn tell(
        &mut self,
        store: &mut RedisStore,
        second_look: Option<Duration>,
        stop: &mut oneshot::Receiver<()>,
    ) -> End {
        match self.begin(store).await {
            Ok(()) if !self.is_up.swap(true, Relaxed) => {
                let (address, count) = (&self.address, self.live.len());
                self.say(format!(
                    "redis-statsdb {address}: is told of sessions, {count} now"
                ));
            }
            Ok(()) => {}
            Err(why) => return End::Failed(why),
        }
        let mut second_look = second_look.map(|after| Instant::now() + after);
        let mut ticks = tokio::time::interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let written = tokio::select! {
                Some(first) = self.inbox.queue.recv() => {
                    let events = self.waiting(Some(first));
                    self.hand_on(events, store).await
                }
                _ = ticks.tick() => {
                    let is_due = second_look.take_if(|when| *when <= Instant::now()).is_some();
                    if is_due || Some(self.inbox.losses.missed()) != self.missed {
                        self.begin(store).await
                    } else {
                        store.heartbeat().await
                    }
                }
                _ = &mut *stop => return self.end(store).await,
            };
            if let Err(why) = written {
                return End::Failed(why);
            }
        }
    }

    /// Tells the server of all events that wait.
    async fn hand_on_all(&mut self, store: &mut RedisStore) -> Result<(), RedisError> {
        loop {
            let events = self.waiting(None);
            if events.is_empty() {
                return Ok(());
            }
            self.hand_on(events, store).await?;
        }
    }

    /// Tells the server of these events.
    async fn hand_on(
        &mut self,
        events: Vec<Event>,
        store: &mut RedisStore,
    ) -> Result<(), RedisError> {
        let count = events.len();
        let writes = self.note(events);
        let written = store.write(&writes).await;
        if written.is_err() {
            self.inbox.losses.add_unused(count);
            self.live.doubt(&writes);
        }
        written
    }

    /// Tells the server of all that waits, reads the list of sessions if events were missed, and mends the keys.
    async fn begin(&mut self, store: &mut RedisStore) -> Result<(), RedisError> {
        self.hand_on_all(store).await?;
        let missed = Some(self.inbox.losses.missed());
        // A shard that has failed or has too much to do is asked again at the next look.
        if missed != self.missed && self.list().await.is_some() {
            self.missed = missed;
        }
        self.mend(store).await
    }

    /// Makes the keys agree with what is live: those of sessions that are over are deleted, those that are missing are set.
    async fn mend(&mut self, store: &mut RedisStore) -> Result<(), RedisError> {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        let (live, listeners) = (&mut self.live, &self.listeners);
        let mut stale = Vec::new();
        live.begin_mending();
        let look = |key: &[u8], value: &[u8]| {
            let is_ours = words::local(value).is_some_and(|local| listeners.contains(&local));
            if is_ours && !live.has(key, value) {
                stale.push(key.to_vec());
            }
        };
        store.each(words::STATUSES, look).await?;
        let mut writes = Vec::new();
        for key in stale {
            writes.push(RedisWrite::Delete { key: key.clone() });
            // Nobody waits for the end of what an earlier run of this server has left.
            if !is_first {
                writes.push(words::deleted(key));
            }
        }
        self.live.missing(&mut writes);
        for some in writes.chunks(WRITES_AT_ONCE) {
            store.write(some).await?;
        }
        self.live.mended();
        Ok(())
    }

    /// Tells the server what has still come, and that all sessions are over.
    async fn end(&mut self, store: &mut RedisStore) -> End {
        if let Err(why) = self.hand_on_all(store).await {
            return End::Failed(why);
        }
        let mut writes = Vec::new();
        self.live.over(&mut writes);
        for some in writes.chunks(WRITES_AT_ONCE) {
            if let Err(why) = store.write(some).await {
                return End::Failed(why);
            }
        }
        End::Stopped
    }

    /// Reads what is live from the shards. Returns `None` if one does not answer.
    async fn list(&mut self) -> Option<()> {
        let mut listed = Live::default();
        let mut walk = Walk::new(
            &self.commands,
            Action::List,
            SessionFilter::default(),
            (0, 0),
        );
        loop {
            let page = tokio::time::timeout(PAGE, walk.page(SESSIONS_PER_PAGE_MAX));
            let Some(page) = page.await.ok()?.ok()? else {
                break;
            };
            for session in page.sessions {
                listed.list(session, &self.live);
            }
        }
        self.live = listed;
        Some(())
    }

    fn say(&self, line: String) {
        // The log has no place for it, which it counts itself.
        let _ = self.commands.say(line);
    }
}
