//! SIGINT, SIGTERM and SIGHUP end a run at the next pause; everything is taken down on the way out.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

fn flag() -> &'static Arc<AtomicBool> {
    INTERRUPTED.get_or_init(Arc::default)
}

/// Has these signals set the flag from now on instead of ending the process.
pub(crate) fn watch() -> Result<()> {
    for signal in [
        signal_hook::consts::SIGINT,
        signal_hook::consts::SIGTERM,
        signal_hook::consts::SIGHUP,
    ] {
        signal_hook::flag::register(signal, Arc::clone(flag()))?;
    }
    Ok(())
}

/// Fails once a signal came.
pub(crate) fn check() -> Result<()> {
    if flag().load(Ordering::Relaxed) {
        bail!("stopped by a signal");
    }
    Ok(())
}

/// Sleeps, at most until a signal comes.
pub(crate) fn pause(pause: Duration) -> Result<()> {
    let end = Instant::now() + pause;
    loop {
        check()?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(Duration::from_millis(20)));
    }
}
