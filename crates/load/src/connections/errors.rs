//! Errors counted by errno.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use serde_json::{Map, Value};

/// Errnos of Linux are below this (`EHWPOISON` is 133).
const ERRNOS: usize = 134;

/// A count for each errno.
#[derive(Debug)]
pub(super) struct Errors([AtomicU64; ERRNOS]);

impl Default for Errors {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; ERRNOS])
    }
}

impl Errors {
    pub(super) fn add(&self, errno: Errno) {
        let place = usize::try_from(errno.raw_os_error()).unwrap_or(0);
        if let Some(count) = self.0.get(place) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Adds up the counts of all workers, by name, and leaves out those that are 0.
pub(super) fn sum<'a>(workers: impl Iterator<Item = &'a Errors> + Clone) -> Map<String, Value> {
    let mut counts = Map::new();
    for errno in 0..ERRNOS {
        let count: u64 = workers
            .clone()
            .map(|errors| errors.0[errno].load(Ordering::Relaxed))
            .sum();
        if count > 0 {
            counts.insert(name(errno), count.into());
        }
    }
    counts
}

/// Returns the counts in words: `EMFILE 3, ETIMEDOUT 1`, or `none`.
pub(super) fn sentence(counts: &Map<String, Value>) -> String {
    if counts.is_empty() {
        return "none".to_owned();
    }
    let each: Vec<_> = counts
        .iter()
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    each.join(", ")
}

fn name(number: usize) -> String {
    let names = [
        (Errno::ADDRINUSE, "EADDRINUSE"),
        (Errno::ADDRNOTAVAIL, "EADDRNOTAVAIL"),
        (Errno::CONNABORTED, "ECONNABORTED"),
        (Errno::CONNREFUSED, "ECONNREFUSED"),
        (Errno::CONNRESET, "ECONNRESET"),
        (Errno::HOSTUNREACH, "EHOSTUNREACH"),
        (Errno::MFILE, "EMFILE"),
        (Errno::NETUNREACH, "ENETUNREACH"),
        (Errno::NFILE, "ENFILE"),
        (Errno::NOBUFS, "ENOBUFS"),
        (Errno::NOMEM, "ENOMEM"),
        (Errno::PERM, "EPERM"),
        (Errno::PROTO, "EPROTO"),
        (Errno::TIMEDOUT, "ETIMEDOUT"),
    ];
    names
        .iter()
        .find(|(errno, _)| usize::try_from(errno.raw_os_error()) == Ok(number))
        .map_or_else(|| format!("errno {number}"), |&(_, name)| name.to_owned())
}
