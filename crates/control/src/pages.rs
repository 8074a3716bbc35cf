//! Walks the sessions of all shards page by page.
//!
//! Invariant: one page is under way for a walk, and the next one is asked for when the last has been dealt with. So a walk holds 256 sessions at
//! most, whoever reads them and however slowly.

use turnbuckle_server::handle::{
    Commands, Page, SESSIONS_PER_PAGE_MAX, Session, SessionFilter, shard_of,
};

use crate::asking::ask;

/// What is done with the sessions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    List,
    End,
}

/// Lists or ends the session of this number. Returns what it was like, if there is one.
///
/// # Errors
///
/// The shard that does not answer.
pub(crate) async fn one_session(
    commands: &Commands,
    action: Action,
    number: u64,
) -> Result<Option<Session>, usize> {
    let filter = SessionFilter {
        numbers: Some(vec![number]),
        ..SessionFilter::default()
    };
    let shard = shard_of(number);
    let mut walk = Walk::new(commands, action, filter, (shard, 0));
    while walk.next().is_some_and(|(next, _)| next == shard) {
        let page = walk.page(1).await?;
        if let Some(session) = page.and_then(|page| page.sessions.into_iter().next()) {
            return Ok(Some(session));
        }
    }
    Ok(None)
}

/// A walk over the sessions that pass a filter.
pub(crate) struct Walk<'a> {
    commands: &'a Commands,
    action: Action,
    filter: SessionFilter,
    /// The shard and the place in its table where the next page begins; `None` after the last page.
    next: Option<(usize, u32)>,
}

impl<'a> Walk<'a> {
    /// Begins at a shard and a place of its table.
    pub(crate) fn new(
        commands: &'a Commands,
        action: Action,
        filter: SessionFilter,
        from: (usize, u32),
    ) -> Self {
        let next = (from.0 < commands.shards()).then_some(from);
        Self {
            commands,
            action,
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
        let page = ask(|reply| match self.action {
            Action::List => self
                .commands
                .sessions(shard, from, self.filter.clone(), max, reply),
            Action::End => self
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
