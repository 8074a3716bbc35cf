//! Connections accepted by `io_uring`: one multishot request yields them all (Linux 5.19), and one request per connection reports its end.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::time::Duration;

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::io::Errno;

/// Requests that may be queued for the kernel.
const ENTRIES: u32 = 1024;
/// Which request a completion belongs to; below are the places of connections.
const ACCEPT: u64 = u64::MAX;

/// What happened on the ring.
#[derive(Debug)]
pub enum AcceptEvent<'a> {
    /// A connection was accepted.
    Accepted(BorrowedFd<'a>),
    /// A connection was closed because its other end closed it.
    Closed,
    /// Accepting failed with this error.
    Failed(Errno),
}

/// A listening socket and its connections on a ring. A connection is closed when its other end closes it.
pub struct AcceptRing<L> {
    // Dropped first: what is under way ends before the descriptors it names are closed.
    ring: IoUring,
    listener: L,
    connections: Vec<Option<OwnedFd>>,
    free: Vec<usize>,
    is_armed: bool,
}

impl<L: AsFd> AcceptRing<L> {
    /// Accepts on `listener`. To be called on the thread that will [`turn`](Self::turn) it.
    ///
    /// # Errors
    /// The kernel has no `io_uring`, or forbids it (`kernel.io_uring_disabled`).
    pub fn new(listener: L) -> io::Result<Self> {
        // Completions run on this thread when it requests them; kernels before 6.1 refuse that.
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_cqsize(ENTRIES * 4)
            .build(ENTRIES)
            .or_else(|_| IoUring::builder().setup_cqsize(ENTRIES * 4).build(ENTRIES))?;
        Ok(Self {
            ring,
            listener,
            connections: Vec::new(),
            free: Vec::new(),
            is_armed: false,
        })
    }

    /// Waits up to `timeout` for something to happen and reports all that has.
    ///
    /// # Errors
    /// What `io_uring_enter` returns.
    pub fn turn(
        &mut self,
        timeout: Duration,
        mut each: impl FnMut(AcceptEvent<'_>),
    ) -> io::Result<()> {
        if !self.is_armed {
            let request = opcode::AcceptMulti::new(types::Fd(self.listener.as_fd().as_raw_fd()))
                .flags(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK)
                .build()
                .user_data(ACCEPT);
            self.push(&request)?;
            self.is_armed = true;
        }
        let timeout = types::Timespec::from(timeout);
        let wait = types::SubmitArgs::new().timespec(&timeout);
        match self.ring.submitter().submit_with_args(1, &wait) {
            Ok(_) => {}
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::ETIME | libc::EINTR | libc::EBUSY)
                ) => {}
            Err(error) => return Err(error),
        }
        loop {
            let next = self.ring.completion().next();
            let Some(completion) = next else {
                break;
            };
            if completion.user_data() == ACCEPT {
                self.is_armed = cqueue::more(completion.flags());
                match completion.result() {
                    result if result < 0 => {
                        each(AcceptEvent::Failed(Errno::from_raw_os_error(-result)));
                    }
                    descriptor => self.accepted(descriptor, &mut each)?,
                }
            } else if let Some(place) = usize::try_from(completion.user_data()).ok()
                && let Some(connection) = self.connections.get_mut(place)
                && connection.take().is_some()
            {
                self.free.push(place);
                each(AcceptEvent::Closed);
            }
        }
        Ok(())
    }

    #[expect(unsafe_code, reason = "a descriptor from a completion")]
    fn accepted(
        &mut self,
        descriptor: i32,
        each: &mut impl FnMut(AcceptEvent<'_>),
    ) -> io::Result<()> {
        // SAFETY: the kernel has just installed the descriptor for this completion of the accept request, and a completion is read once,
        // so nothing else owns it.
        let connection = unsafe { OwnedFd::from_raw_fd(descriptor) };
        each(AcceptEvent::Accepted(connection.as_fd()));
        let place = self.free.pop().unwrap_or(self.connections.len());
        // The end of the connection, by FIN or by RST.
        let mask = u32::from((libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR).unsigned_abs());
        let request = opcode::PollAdd::new(types::Fd(descriptor), mask)
            .build()
            .user_data(place as u64);
        if place == self.connections.len() {
            self.connections.push(Some(connection));
        } else {
            self.connections[place] = Some(connection);
        }
        self.push(&request)
    }

    #[expect(unsafe_code, reason = "a request to the kernel")]
    fn push(&mut self, request: &squeue::Entry) -> io::Result<()> {
        loop {
            // SAFETY: requests are of two kinds, accept without an address to fill in and poll: neither points at memory of this process.
            // The descriptors they name are owned or held by this value, which drops the ring before them.
            let pushed = unsafe { self.ring.submission().push(request) };
            match pushed {
                Ok(()) => return Ok(()),
                Err(_) => {
                    self.ring.submit()?;
                }
            }
        }
    }
}
