//! How far a run is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Before the measured window, in it, after it.
pub(super) const WARMING_UP: u8 = 0;
pub(super) const MEASURING: u8 = 1;
pub(super) const OVER: u8 = 2;
/// Nothing more is expected to arrive.
pub(super) const DRAINED: u8 = 3;

/// How far a run was when a thread looked last.
#[derive(Debug)]
pub(super) struct Phase {
    shared: Arc<AtomicU8>,
    now: u8,
}

impl Phase {
    pub(super) fn new(shared: &Arc<AtomicU8>) -> Self {
        Self {
            shared: Arc::clone(shared),
            now: WARMING_UP,
        }
    }

    /// Looks, and returns what it is.
    pub(super) fn look(&mut self) -> u8 {
        self.now = self.shared.load(Ordering::Relaxed);
        self.now
    }

    /// Returns what it was.
    pub(super) fn now(&self) -> u8 {
        self.now
    }

    /// Returns whether packets of now count.
    pub(super) fn is_measured(&self) -> bool {
        self.now == MEASURING
    }

    /// Returns whether the window has closed.
    pub(super) fn is_over(&self) -> bool {
        self.now >= OVER
    }
}
