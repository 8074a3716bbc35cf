//! Ending a run, and asking it for figures, by signal.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};

/// What signals have asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop {
    end: Arc<AtomicBool>,
    snapshot: Arc<AtomicBool>,
}

impl Stop {
    /// Listens to SIGINT and SIGTERM, which end the run (a second one at once), and to SIGUSR1.
    pub(crate) fn on_signals() -> io::Result<Self> {
        let stop = Self::default();
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&stop.end))?;
            signal_hook::flag::register(signal, Arc::clone(&stop.end))?;
        }
        signal_hook::flag::register(SIGUSR1, Arc::clone(&stop.snapshot))?;
        Ok(stop)
    }

    pub(crate) fn end(&self) {
        self.end.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.end.load(Ordering::Relaxed)
    }

    /// Returns whether figures were asked for since the last call.
    pub(crate) fn take_snapshot(&self) -> bool {
        self.snapshot.swap(false, Ordering::Relaxed)
    }
}
