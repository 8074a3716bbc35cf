//! Forced failures of system calls, for tests only: the kernel of a test machine refuses too little.

use std::cell::{Cell, RefCell};

use rustix::io::Errno;

/// A system call about to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// `recvmsg` or `recvfrom`.
    Receive,
    /// `recvmmsg`.
    ReceiveBatch,
    /// `sendmsg` of one datagram or, with a segment size, of a train.
    Send { segment: Option<u16> },
    /// `sendmmsg`; the segment size is that of the first message.
    SendBatch {
        messages: usize,
        segment: Option<u16>,
    },
}

/// What happens instead of the system call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outcome {
    /// The call is made.
    Pass,
    /// The call fails.
    Fail(Errno),
    /// The call is made with at most so many messages.
    Limit(usize),
    /// The call is made, and what it received counts as cut off.
    Truncate,
}

type Script = Box<dyn FnMut(Call) -> Outcome>;

thread_local! {
    static SCRIPT: RefCell<Option<Script>> = const { RefCell::new(None) };
    /// Whether the last call was to be one of [`Outcome::Truncate`].
    static HAS_TRUNCATED: Cell<bool> = const { Cell::new(false) };
}

/// Calls `script` before every system call of this thread until the guard is dropped.
pub(crate) fn script(script: impl FnMut(Call) -> Outcome + 'static) -> impl Drop {
    struct Guard;
    impl Drop for Guard {
        fn drop(&mut self) {
            SCRIPT.with_borrow_mut(|slot| *slot = None);
        }
    }
    SCRIPT.with_borrow_mut(|slot| *slot = Some(Box::new(script)));
    Guard
}

/// Returns what the script says about `call`.
pub(super) fn outcome(call: Call) -> Outcome {
    let outcome =
        SCRIPT.with_borrow_mut(|slot| slot.as_mut().map_or(Outcome::Pass, |script| script(call)));
    HAS_TRUNCATED.set(matches!(outcome, Outcome::Truncate));
    outcome
}

/// Returns whether what was received last counts as cut off.
pub(super) fn has_truncated() -> bool {
    HAS_TRUNCATED.get()
}
