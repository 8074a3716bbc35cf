//! Placing a shard on its core.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The CPUs that the calling thread may use, in ascending order.
///
/// # Errors
/// What `sched_getaffinity` returns.
pub fn allowed_cpus() -> io::Result<Vec<u32>> {
    let allowed = sched_getaffinity(None)?;
    Ok((0..)
        .zip(0..CpuSet::MAX_CPU)
        .filter(|&(_, cpu)| allowed.is_set(cpu))
        .map(|(number, _)| number)
        .collect())
}

/// Pins the calling thread to `core`, an index among the cores that the process may use (wrapping round), and returns
/// the number of the CPU chosen.
///
/// # Errors
/// What `sched_getaffinity` or `sched_setaffinity` returns; `InvalidInput` when no CPU is allowed at all.
pub fn pin_current_thread(core: usize) -> io::Result<usize> {
    let allowed = sched_getaffinity(None)?;
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|cpu| allowed.is_set(*cpu))
        .collect();
    let cpu = *cpus
        .get(core % cpus.len().max(1))
        .ok_or(io::ErrorKind::InvalidInput)?;
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(None, &only)?;
    Ok(cpu)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_may_use_one_cpu_only() {
        std::thread::spawn(|| {
            let cpu = pin_current_thread(usize::MAX).unwrap();
            let allowed = sched_getaffinity(None).unwrap();
            assert_eq!(allowed.count(), 1);
            assert!(allowed.is_set(cpu));
        })
        .join()
        .unwrap();
    }
}
