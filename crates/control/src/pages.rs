//! Walks the sessions of all shards page by page.
//!
//! Invariant: one page is under way for a walk, and the next one is asked for when the last has been dealt with. So a walk holds 256 sessions at
//! most, whoever reads them and however slowly.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout_at};
use turnbuckle_server::handle::{
    Commands, Page, Refused, Reply, SESSIONS_PER_PAGE_MAX, SessionFilter,
};

/// Time in which a shard has to answer, and the main thread.
const PATIENCE: Duration = Duration::from_secs(5);

/// Time after which a shard or the main thread is asked again when it had too much to do.
const PAUSE: Duration = Duration::from_millis(2);

/// Asks for something until it is answered. Returns `None` if it is not for five seconds.
pub(crate) async fn ask<T: Send + 'static>(
    send: impl Fn(Reply<T>) -> Result<(), Refused>,
) -> Option<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (answer, answered) = oneshot::channel();
        let reply = Box::new(move |value| {
            // Who asked may not wait any longer.
            let _ = answer.send(value);
        });
        // A refusal drops the reply, as a full queue does.
        let _ = send(reply);
        match timeout_at(deadline, answered).await {
            Ok(Ok(value)) => return Some(value),
            Err(_) => return None,
            Ok(Err(_)) if Instant::now() + PAUSE > deadline => return None,
            Ok(Err(_)) => sleep(PAUSE).await,
        }
    }
}

/// What is done with the sessions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deed {
    List,
    End,
}

/// A walk over the sessions that pass a filter.
pub(crate) struct Walk<'a> {
    commands: &'a Commands,
    deed: Deed,
    filter: SessionFilter,
    /// The shard and the place in its table where the next page begins; `None` after the last page.
    next: Option<(usize, u32)>,
}

impl<'a> Walk<'a> {
    /// Begins at a shard and a place of its table.
    pub(crate) fn new(
        commands: &'a Commands,
        deed: Deed,
        filter: SessionFilter,
        from: (usize, u32),
    ) -> Self {
        let next = (from.0 < commands.shards()).then_some(from);
        Self {
            commands,
            deed,
            filter,
            next,
        }
    }

    /// Returns where the next page begins, if there is one.
    pub(crate) fn next(&self) -> Option<(usize, u32)> {
        self.next
    }

    /// Returns the next page with at most `max` sessions, perhaps with none of them; `None` after the last.
    ///
    /// # Errors
    ///
    /// The shard that does not answer.
    pub(crate) async fn page(&mut self, max: usize) -> Result<Option<Page>, usize> {
        let Some((shard, from)) = self.next else {
            return Ok(None);
        };
        let max = max.min(SESSIONS_PER_PAGE_MAX);
        let page = ask(|reply| match self.deed {
            Deed::List => self
                .commands
                .sessions(shard, from, self.filter.clone(), max, reply),
            Deed::End => self
                .commands
                .end(shard, from, self.filter.clone(), max, reply),
        });
        let page = page.await.ok_or(shard)?;
        self.next = match page.next {
            Some(place) => Some((shard, place)),
            None => Some((shard + 1, 0)).filter(|(next, _)| *next < self.commands.shards()),
        };
        Ok(Some(page))
    }
}
