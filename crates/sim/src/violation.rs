//! What a run can find, and what it must have seen to count.

use std::collections::BTreeMap;
use std::fmt;

/// A rule that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The invariant (`I1` to `I10`) or the comparison that failed.
    pub rule: &'static str,
    /// What was expected and what happened.
    pub detail: String,
}

impl Violation {
    /// Makes a violation of a rule, with its details.
    #[must_use]
    pub fn new(rule: &'static str, detail: impl Into<String>) -> Self {
        Self {
            rule,
            detail: detail.into(),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.detail)
    }
}

impl std::error::Error for Violation {}

/// Fails with `rule` unless `holds`; the details are only built when it does not.
pub(crate) fn ensure(
    holds: bool,
    rule: &'static str,
    detail: impl FnOnce() -> String,
) -> Result<(), Violation> {
    if holds {
        Ok(())
    } else {
        Err(Violation::new(rule, detail()))
    }
}

/// How often each kind of thing happened. A simulation in which nothing happens finds nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    counts: BTreeMap<(&'static str, u16), u64>,
}

impl Coverage {
    /// Counts one more of `what`, of the given kind or error code.
    pub fn count(&mut self, what: &'static str, kind: u16) {
        *self.counts.entry((what, kind)).or_default() += 1;
    }

    /// Returns how often `what` happened with `kind`.
    #[must_use]
    pub fn of(&self, what: &'static str, kind: u16) -> u64 {
        self.counts.get(&(what, kind)).copied().unwrap_or(0)
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        for (key, count) in &other.counts {
            *self.counts.entry(*key).or_default() += count;
        }
    }

    /// Returns everything counted, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u16, u64)> {
        self.counts
            .iter()
            .map(|((what, kind), count)| (*what, *kind, *count))
    }
}
