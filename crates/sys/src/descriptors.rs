//! A table of descriptors for one thread.

use std::io;

use crate::sockopt::last_errno;

/// Gives the calling thread a table of descriptors of its own (`CLONE_FILES`), as a process has one: opening and closing no longer waits for
/// the lock that the threads of a process share, and the limit of descriptors counts for this thread alone.
///
/// Descriptors that were open stay open in both tables, under the same numbers, until both have closed them or ended. A descriptor that is opened
/// afterwards is valid on its own thread only: such descriptors, and values that own them, must not be passed on.
///
/// # Errors
/// `EMFILE`, `ENFILE`, `ENOMEM`.
#[expect(unsafe_code, reason = "unshare")]
pub fn unshare_descriptors() -> io::Result<()> {
    // SAFETY: the call takes a number and touches no memory of this process. Every descriptor that any value owns now stays valid in both tables;
    // that none crosses over later is kept by the caller, and the callers' threads send each other counters only.
    if unsafe { libc::unshare(libc::CLONE_FILES) } == 0 {
        Ok(())
    } else {
        Err(last_errno().into())
    }
}
