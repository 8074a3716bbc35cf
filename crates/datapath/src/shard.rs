//! Placing a shard on its core.

use std::io;

use crate::sys::cpus;

/// The CPUs that the calling thread may use, in ascending order.
///
/// # Errors
/// What `sched_getaffinity` returns.
pub fn allowed_cpus() -> io::Result<Vec<u32>> {
    Ok(cpus::allowed()?)
}

/// Pins the calling thread to `core`, an index among the cores that the process may use (wrapping round), and returns
/// the number of the CPU chosen.
///
/// # Errors
/// What `sched_getaffinity` or `sched_setaffinity` returns; `InvalidInput` when no CPU is allowed at all.
pub fn pin_current_thread(core: usize) -> io::Result<usize> {
    let allowed = allowed_cpus()?;
    let cpu = *allowed
        .get(core % allowed.len().max(1))
        .ok_or(io::ErrorKind::InvalidInput)?;
    cpus::use_only(cpu)?;
    Ok(cpu as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_may_use_one_cpu_only() {
        std::thread::spawn(|| {
            let cpu = pin_current_thread(usize::MAX).unwrap();
            let allowed = allowed_cpus().unwrap();
            assert_eq!(allowed, [u32::try_from(cpu).unwrap()]);
        })
        .join()
        .unwrap();
    }
}
