//! The CPUs that a thread may use, on machines of any size.
//!
//! The C library's set has room for 1,024 CPUs, and the kernel refuses sets that have less room than it may have CPUs (`sched_getaffinity(2)`,
//! notes), so the set grows until the kernel takes it.

use std::io;

use rustix::io::Errno;

use crate::sockopt::last_errno;

/// Words of the first set that is tried: that of the C library.
const WORDS_START: usize = 1024 / WORD_BITS;
/// Words of the largest: 64 times what the kernel can be built for.
const WORDS_MAX: usize = 64 * 8192 / WORD_BITS;
const WORD_BITS: usize = libc::c_ulong::BITS as usize;

/// Returns the CPUs that the calling thread may use, in ascending order.
///
/// # Errors
/// What `sched_getaffinity` returns.
pub fn allowed_cpus() -> io::Result<Vec<u32>> {
    Ok(with_room(affinity)?)
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
    use_only(cpu)?;
    Ok(cpu as usize)
}

/// Has the calling thread use one CPU only.
#[expect(unsafe_code, reason = "sched_setaffinity with a set of any size")]
fn use_only(cpu: u32) -> Result<(), Errno> {
    let cpu = cpu as usize;
    let mut words: Vec<libc::c_ulong> = vec![0; cpu / WORD_BITS + 1];
    words[cpu / WORD_BITS] = 1 << (cpu % WORD_BITS);
    // SAFETY: the kernel reads as many bytes as the vector has, which lives until the call returns.
    let result = unsafe {
        libc::sched_setaffinity(
            0,
            size_of_val(words.as_slice()),
            words.as_ptr().cast::<libc::cpu_set_t>(),
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// Repeats `ask` with more and more room for as long as it reports that there is too little.
fn with_room(
    mut ask: impl FnMut(&mut [libc::c_ulong]) -> Result<(), Errno>,
) -> Result<Vec<u32>, Errno> {
    let mut words: Vec<libc::c_ulong> = vec![0; WORDS_START];
    loop {
        match ask(&mut words) {
            Ok(()) => break,
            Err(Errno::INVAL) if words.len() < WORDS_MAX => words.resize(words.len() * 2, 0),
            Err(errno) => return Err(errno),
        }
    }
    let is_set = |cpu: &usize| words[cpu / WORD_BITS] >> (cpu % WORD_BITS) & 1 == 1;
    let cpus = (0..words.len() * WORD_BITS).filter(is_set);
    Ok(cpus.filter_map(|cpu| u32::try_from(cpu).ok()).collect())
}

#[expect(unsafe_code, reason = "sched_getaffinity with a set of any size")]
fn affinity(words: &mut [libc::c_ulong]) -> Result<(), Errno> {
    // SAFETY: the kernel writes at most as many bytes as the slice has, each value of which is a valid word.
    let result = unsafe {
        libc::sched_getaffinity(
            0,
            size_of_val(words),
            words.as_mut_ptr().cast::<libc::cpu_set_t>(),
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_for_thousands_of_cpus_is_given_the_room_that_it_asks_for() {
        let cpus = with_room(|words| {
            if words.len() * WORD_BITS < 4096 {
                return Err(Errno::INVAL);
            }
            words[0] = 0b101;
            words[4095 / WORD_BITS] = 1 << (4095 % WORD_BITS);
            Ok(())
        });
        assert_eq!(cpus, Ok(vec![0, 2, 4095]));
        assert_eq!(with_room(|_| Err(Errno::INVAL)), Err(Errno::INVAL));
        assert_eq!(with_room(|_| Err(Errno::PERM)), Err(Errno::PERM));
    }

    #[test]
    fn a_thread_may_use_the_cpus_that_the_system_says() {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let list = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let named = list.unwrap().trim().split(',').flat_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            first.parse::<u32>().unwrap()..=last.parse().unwrap()
        });
        assert_eq!(allowed_cpus().unwrap(), named.collect::<Vec<_>>());
    }

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
