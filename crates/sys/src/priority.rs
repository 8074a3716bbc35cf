//! What a thread gets of a machine that is busy.

use std::io;

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
