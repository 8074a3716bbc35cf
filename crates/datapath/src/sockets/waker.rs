//! Ending a data path's wait from another thread.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// Ends a data path's wait from another thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<Wake>);

#[derive(Debug)]
enum Wake {
    Event(OwnedFd),
    Flag(AtomicBool),
}

impl Waker {
    /// Opens one for a data path that waits.
    ///
    /// # Errors
    /// The error of the system when descriptors are short.
    pub(crate) fn open() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(Wake::Event(event))))
    }

    /// Returns a waker that only records its use, for a simulation that does not wait: see
    /// [`was_woken`](Self::was_woken).
    pub fn flag() -> Self {
        Self(Arc::new(Wake::Flag(AtomicBool::new(false))))
    }

    /// Makes the present or the next [`Datapath::turn`](crate::Datapath::turn) return.
    pub fn wake(&self) {
        match &*self.0 {
            // The only failure is a full counter, and then the wake-up is pending already.
            Wake::Event(event) => {
                let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
            }
            Wake::Flag(flag) => flag.store(true, Ordering::Release),
        }
    }

    /// Returns whether a [flag](Self::flag) was used since the last call.
    pub fn was_woken(&self) -> bool {
        match &*self.0 {
            Wake::Event(_) => false,
            Wake::Flag(flag) => flag.swap(false, Ordering::Acquire),
        }
    }

    /// Returns the descriptor that becomes ready when the wait is to end.
    pub(crate) fn event(&self) -> Option<BorrowedFd<'_>> {
        match &*self.0 {
            Wake::Event(event) => Some(event.as_fd()),
            Wake::Flag(_) => None,
        }
    }
}
