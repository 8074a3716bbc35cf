//! When each connection is to be looked at.

use std::collections::BTreeSet;
use std::time::Instant;

/// One deadline for each connection. A connection whose deadline moves away keeps the sooner one: an early look costs less than a change per packet.
#[derive(Debug, Default)]
pub(crate) struct Deadlines(BTreeSet<(Instant, usize)>);

impl Deadlines {
    /// Sets the deadline of a connection; `armed` is what it has in this set.
    pub(crate) fn arm(&mut self, index: usize, armed: &mut Option<Instant>, due: Option<Instant>) {
        match (*armed, due) {
            (_, None) => {}
            (Some(set), Some(due)) if set <= due => {}
            (set, Some(due)) => {
                if let Some(set) = set {
                    self.0.remove(&(set, index));
                }
                self.0.insert((due, index));
                *armed = Some(due);
            }
        }
    }

    pub(crate) fn forget(&mut self, index: usize, armed: Option<Instant>) {
        if let Some(set) = armed {
            self.0.remove(&(set, index));
        }
    }

    /// Takes a connection whose deadline has come.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<usize> {
        let &(due, index) = self.0.first()?;
        (due <= now).then(|| {
            self.0.pop_first();
            index
        })
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.first().map(|&(due, _)| due)
    }
}
