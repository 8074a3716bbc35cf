//! What a thread gets of a machine that is busy.

use std::io;
use std::time::Duration;

use crate::sockopt::last_errno;

/// The nice value of threads that serve no client themselves, and compute: a tenth of the share of one that does.
pub const BACKGROUND_NICE: i32 = 10;

/// Has the calling thread be scheduled as one that computes in batches (`SCHED_BATCH`, `sched(7)`), with this nice value: it takes the CPU from nobody who
/// runs when it wakes up, and its share is that of the nice value.
///
/// # Errors
/// What `sched_setscheduler` or `setpriority` returns. No right is needed where the nice value does not fall.
#[expect(unsafe_code, reason = "sched_setscheduler")]
pub fn run_in_batches(nice: i32) -> io::Result<()> {
    // `sched_param` has more fields in some C libraries.
    // SAFETY: all of its fields are integers, for which zero is a value.
    let parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel reads the parameters, which live until the call returns. Thread 0 is the one that calls.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameters) };
    if result != 0 {
        return Err(last_errno().into());
    }
    let own = Some(rustix::thread::gettid());
    Ok(rustix::process::setpriority_process(own, nice)?)
}

/// Has the calling thread get the CPU soon after it wakes up, although another thread of the machine runs: the kernel lets whoever runs finish a slice
/// of some milliseconds, unless the one that wakes up has asked for shorter slices (`sched_setattr(2)`, Linux 6.12; `PREEMPT_SHORT` in
/// `kernel/sched/features.h`). Its share of the CPU stays what it was. An older kernel takes no note of it, and a thread that is not scheduled as most
/// are (`SCHED_OTHER`) stays as it is.
///
/// # Errors
/// What the system calls return. No right is needed.
#[expect(unsafe_code, reason = "sched_setattr")]
pub fn ask_for_slices_of(slice: Duration) -> io::Result<()> {
    // SAFETY: no memory is handed over. Thread 0 is the one that calls.
    if unsafe { libc::sched_getscheduler(0) } != libc::SCHED_OTHER {
        return Ok(());
    }
    let own = Some(rustix::thread::gettid());
    let attributes = libc::sched_attr {
        size: crate::narrow(size_of::<libc::sched_attr>()),
        sched_policy: 0,
        sched_flags: 0,
        // As it is, or it would be set to zero, which takes a right.
        sched_nice: rustix::process::getpriority_process(own)?,
        sched_priority: 0,
        sched_runtime: u64::try_from(slice.as_nanos()).unwrap_or(u64::MAX),
        sched_deadline: 0,
        sched_period: 0,
    };
    let place = &raw const attributes;
    // SAFETY: the kernel reads as many bytes as the attributes say that they have, and they live until the call returns.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, place, 0) };
    if result != 0 {
        return Err(last_errno().into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns nice value and policy of the calling thread (`proc_pid_stat(5)`).
    fn own() -> (i32, i32) {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("Linux");
        let (_, fields) = stat.rsplit_once(") ").expect("a name in brackets");
        let field = |number: usize| {
            let field = fields.split(' ').nth(number - 3).expect("so many fields");
            field.parse().expect("a number")
        };
        (field(19), field(41))
    }

    #[test]
    fn a_thread_with_short_slices_has_the_policy_and_the_share_that_it_had() {
        let nice = own().0.max(3);
        let of_thread = std::thread::spawn(move || {
            let thread = Some(rustix::thread::gettid());
            rustix::process::setpriority_process(thread, nice).expect("no right is needed");
            ask_for_slices_of(Duration::from_micros(200)).expect("no right is needed");
            (own(), slice())
        });
        let (of_thread, slice) = of_thread.join().expect("it does not panic");
        assert_eq!(of_thread, (nice, libc::SCHED_OTHER));
        // Kernels before 6.12 have none.
        assert!(
            [None, Some("200000".to_owned())].contains(&slice),
            "{slice:?}"
        );
    }

    /// Returns the slice of the calling thread in nanoseconds, where the kernel says one (`/proc/thread-self/sched`).
    fn slice() -> Option<String> {
        let text = std::fs::read_to_string("/proc/thread-self/sched").ok()?;
        let line = text.lines().find(|line| line.starts_with("se.slice"))?;
        Some(line.rsplit(' ').next()?.to_owned())
    }

    #[test]
    fn a_thread_runs_in_batches_and_those_that_it_does_not_start_run_as_before() {
        let before = own();
        let nice = before.0.max(7);
        let of_thread = std::thread::spawn(move || {
            run_in_batches(nice).expect("no right is needed");
            own()
        });
        let of_thread = of_thread.join().expect("it does not panic");
        assert_eq!(of_thread, (nice, libc::SCHED_BATCH));
        assert_eq!(own(), before);
    }
}
