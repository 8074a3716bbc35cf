//! The limit of file descriptors of a tool with many clients.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Lets this process open as many descriptors as it may. If that is refused, the old limit holds, and reaching it is EMFILE.
pub fn raise_limit() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let _ = set(maximum, maximum);
}

/// Lets this process open at least `wanted` descriptors, or as many as it may.
pub fn allow(wanted: u64) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_some_and(|current| current < wanted)
        && !set(Some(wanted), maximum.map(|maximum| maximum.max(wanted)))
    {
        // Without the right to raise the maximum: up to it.
        raise_limit();
    }
}

/// Sets the limit, and returns whether the kernel took it.
fn set(current: Option<u64>, maximum: Option<u64>) -> bool {
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).is_ok()
}
