//! Threads of the instruments: their place and their CPU time.

use std::fs;
use std::io;
use std::ops::Deref;
use std::time::Instant;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::cli::Cpus;

/// A value on cache lines of its own, so that one thread's counting does not slow down another's.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct OwnLines<T>(pub(crate) T);

impl<T> Deref for OwnLines<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// Keeps the calling thread, number `index`, on one of `cpus`.
///
/// # Errors
/// What `sched_setaffinity` returns: this process may not use that CPU.
pub(crate) fn pin(cpus: Option<&Cpus>, index: usize) -> io::Result<()> {
    let Some(Cpus(cpus)) = cpus else {
        return Ok(());
    };
    let Some(&cpu) = index.checked_rem(cpus.len()).and_then(|at| cpus.get(at)) else {
        return Ok(());
    };
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(None, &only).map_err(|errno| {
        let allowed = format!("--cpus: CPU {cpu}: {errno}; allowed: {}", allowed());
        io::Error::new(errno.kind(), allowed)
    })
}

/// Returns the CPUs this process may run on, as a list.
fn allowed() -> String {
    let Ok(set) = sched_getaffinity(None) else {
        return "unknown".to_owned();
    };
    let cpus = (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu));
    cpus.map(|cpu| cpu.to_string())
        .collect::<Vec<_>>()
        .join(",")
}

/// Returns the number of CPUs this process may run on.
pub(crate) fn available() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns the CPU time of the calling thread, nanoseconds, from the scheduler's own exact count.
pub(crate) fn cpu_ns() -> u64 {
    schedstat("/proc/thread-self/schedstat")
}

/// Returns the number of the calling thread, for [`cpu_ns_of`].
pub(crate) fn id() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Returns the CPU time of a thread of this process, nanoseconds; 0 once it has ended.
pub(crate) fn cpu_ns_of(id: i32) -> u64 {
    schedstat(&format!("/proc/self/task/{id}/schedstat"))
}

fn schedstat(path: &str) -> u64 {
    fs::read_to_string(path)
        .ok()
        .and_then(|text| text.split_ascii_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// Nanoseconds since a moment that all threads of a run share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    #[inline]
    pub(crate) fn now(self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Has the calling thread's sleeps end when they are meant to, not up to 50 us later.
///
/// # Errors
/// What `prctl` returns.
pub(crate) fn fine_sleep() -> io::Result<()> {
    Ok(rustix::thread::set_current_timer_slack(
        std::num::NonZeroU64::new(1),
    )?)
}
