//! The watchdog of the service manager: it is fed only while every shard answers (`sd_watchdog_enabled(3)`).

use std::env;
use std::time::Duration;

use turnbuckle_server::handle::Commands;
use turnbuckle_server::notify;

use crate::health;

/// How often the watchdog is fed within its time. One answer that is late on a busy machine ends nothing.
const FEEDS: u32 = 6;

/// Returns how often the watchdog of this process is to be fed. `None` if there is none.
pub(crate) fn interval() -> Option<Duration> {
    let number = |name: &str| env::var(name).ok()?.parse::<u64>().ok();
    // With `survive` the main process is the keeper, which this one comes from; the keeper after an upgrade names none.
    let own = [std::process::id(), std::os::unix::process::parent_id()].map(u64::from);
    let is_ours = number("WATCHDOG_PID").is_none_or(|pid| own.contains(&pid));
    let timeout = Duration::from_micros(number("WATCHDOG_USEC").filter(|_| is_ours)?);
    (!timeout.is_zero()).then_some(timeout / FEEDS)
}

/// Feeds the watchdog for ever.
pub(crate) async fn feed(commands: Commands, interval: Duration) {
    let mut ticks = tokio::time::interval(interval);
    loop {
        ticks.tick().await;
        if health::silent_shards(&commands).await.is_empty() {
            notify("WATCHDOG=1");
        }
    }
}
