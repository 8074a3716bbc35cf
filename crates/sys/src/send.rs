//! Sending: `sendmmsg`, `sendmsg`, with and without `UDP_SEGMENT`.
//!
//! A [`Batch`] borrows everything that its messages point at, so the pointers inside are valid for as long as it can be
//! sent. The arrays behind it are kept between batches: no allocation once they have grown.

use std::marker::PhantomData;
use std::ops::Range;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use rustix::io::Errno;

use crate::address::RawAddress;
use crate::cmsg::{SMALL_LEN, SmallControl};
use crate::narrow;
use crate::sockopt::last_errno;

/// Messages of the kernel's `sendmmsg` limit (`UIO_MAXIOV`).
const MESSAGES_MAX: usize = 1024;
/// Pieces that one message may have (`UIO_MAXIOV`).
pub const PIECES_MAX: usize = 1024;

/// Arrays that batches are built in.
#[derive(Default)]
pub struct Scratch {
    headers: Vec<libc::mmsghdr>,
    vectors: Vec<libc::iovec>,
    controls: Vec<SmallControl>,
    /// For each message: its first piece, and its segment size or 0.
    shapes: Vec<(u32, u16)>,
}

#[expect(unsafe_code, reason = "raw pointers, cleared before each use")]
// SAFETY: the raw pointers inside mean something only while a `Batch` borrows the scratch; the batch clears them first
// and cannot leave the thread that made it without its borrowed data.
unsafe impl Send for Scratch {}

impl Scratch {
    /// Allocates for batches of so many messages; larger ones grow it.
    pub fn with_capacity(messages: usize) -> Self {
        Self {
            headers: Vec::with_capacity(messages),
            vectors: Vec::with_capacity(messages * 4),
            controls: Vec::with_capacity(messages),
            shapes: Vec::with_capacity(messages),
        }
    }

    /// Starts an empty batch.
    pub fn batch(&mut self) -> Batch<'_, '_> {
        self.headers.clear();
        self.vectors.clear();
        self.controls.clear();
        self.shapes.clear();
        Batch {
            scratch: self,
            sealed: false,
            data: PhantomData,
        }
    }
}

/// Messages ready to be sent from one socket; `'data` is what they point at.
pub struct Batch<'scratch, 'data> {
    scratch: &'scratch mut Scratch,
    /// Whether every header points at its pieces. Adding to the batch may move them and ends this.
    sealed: bool,
    data: PhantomData<&'data [u8]>,
}

impl<'data> Batch<'_, 'data> {
    /// Returns the number of messages so far.
    #[inline]
    pub fn len(&self) -> usize {
        self.scratch.headers.len()
    }

    /// Returns whether there is no message yet.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.scratch.headers.is_empty()
    }

    /// Returns the number of pieces so far, of all messages.
    #[inline]
    pub fn pieces(&self) -> usize {
        self.scratch.vectors.len()
    }

    /// Returns the segment size of a message that is a train.
    ///
    /// # Panics
    /// When the batch has no such message.
    #[inline]
    pub fn segment(&self, index: usize) -> Option<u16> {
        Some(self.scratch.shapes[index].1).filter(|segment| *segment != 0)
    }

    /// Starts a message to `to`: a train of `segment`-byte datagrams, or one datagram.
    #[inline]
    pub fn message(&mut self, to: &'data RawAddress, segment: Option<u16>) {
        self.sealed = false;
        let scratch = &mut *self.scratch;
        scratch
            .shapes
            .push((narrow(scratch.vectors.len()), segment.unwrap_or(0)));
        scratch
            .controls
            .push(segment.map_or(SmallControl::EMPTY, SmallControl::segment));
        scratch.headers.push(header(to));
    }

    /// Appends bytes to the message started last.
    #[inline]
    pub fn piece(&mut self, bytes: &'data [u8]) {
        self.sealed = false;
        self.scratch.vectors.push(libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        });
    }

    /// Points the headers at their pieces and control messages, after the last addition and before the first `send`.
    #[expect(unsafe_code, reason = "pointers into arrays")]
    pub fn seal(&mut self) {
        let Scratch {
            headers,
            vectors,
            controls,
            shapes,
        } = &mut *self.scratch;
        self.sealed = true;
        let (vectors_base, controls_base, total) =
            (vectors.as_mut_ptr(), controls.as_mut_ptr(), vectors.len());
        for (index, header) in headers.iter_mut().enumerate() {
            let (first, segment) = shapes[index];
            let end = shapes.get(index + 1).map_or(total, |next| next.0 as usize);
            let message = &mut header.msg_hdr;
            // SAFETY: `first` was the length of `vectors` when the message was started, so it is at most `total`.
            message.msg_iov = unsafe { vectors_base.add(first as usize) };
            message.msg_iovlen = end - first as usize;
            if segment != 0 {
                // SAFETY: `controls` has one entry per header, so `index` is inside.
                message.msg_control = unsafe { controls_base.add(index) }.cast();
                message.msg_controllen = SMALL_LEN;
            }
        }
    }

    /// Sends these of the messages, at least two, and returns how many of them went out, at least one.
    ///
    /// # Errors
    /// What `sendmmsg` returns when not even the first went out.
    ///
    /// # Panics
    /// When the batch is not sealed or does not have these messages.
    #[inline]
    #[expect(unsafe_code, reason = "sendmmsg")]
    pub fn send(&mut self, fd: BorrowedFd<'_>, messages: Range<usize>) -> Result<usize, Errno> {
        assert!(self.sealed, "a batch is sealed before it is sent");
        let headers = &mut self.scratch.headers[messages];
        let count = narrow(headers.len().min(MESSAGES_MAX));
        // SAFETY: `headers` has at least `count` entries; `seal`, just checked, made each point at pieces and control
        // messages in the scratch, which have not moved since; what the pieces and the addresses point at lives for
        // `'data`, which outlives this borrow. The kernel writes `msg_len` only.
        let sent = unsafe {
            libc::sendmmsg(
                fd.as_raw_fd(),
                headers.as_mut_ptr(),
                count,
                libc::MSG_DONTWAIT,
            )
        };
        match usize::try_from(sent) {
            Ok(0) => Err(Errno::AGAIN),
            Ok(sent) => Ok(sent),
            Err(_) => Err(last_errno()),
        }
    }

    /// Sends message number `index` alone with `sendmsg`.
    ///
    /// # Errors
    /// What `sendmsg` returns.
    ///
    /// # Panics
    /// When the batch is not sealed or has no such message.
    #[inline]
    #[expect(unsafe_code, reason = "sendmsg")]
    pub fn send_one(&self, fd: BorrowedFd<'_>, index: usize) -> Result<(), Errno> {
        assert!(self.sealed, "a batch is sealed before it is sent");
        let header = &raw const self.scratch.headers[index].msg_hdr;
        // SAFETY: as for `sendmmsg` above, for one message, of which the kernel writes nothing.
        let sent = unsafe { libc::sendmsg(fd.as_raw_fd(), header, libc::MSG_DONTWAIT) };
        if sent < 0 { Err(last_errno()) } else { Ok(()) }
    }
}

/// Returns a header with its address only.
#[expect(
    unsafe_code,
    reason = "a C structure whose padding differs between C libraries"
)]
fn header(to: &RawAddress) -> libc::mmsghdr {
    // SAFETY: all-zero bytes are a valid `mmsghdr`: null pointers with zero lengths.
    let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
    header.msg_hdr.msg_name = to.as_ptr().cast_mut().cast();
    header.msg_hdr.msg_namelen = to.len();
    header
}

/// Sends one datagram from contiguous bytes with `sendto`.
///
/// # Errors
/// What `sendto` returns.
#[inline]
#[expect(unsafe_code, reason = "sendto")]
pub fn send_to(fd: BorrowedFd<'_>, bytes: &[u8], to: &RawAddress) -> Result<(), Errno> {
    // Not the C library's `sendto`: that is a point where a thread can be cancelled, which takes it 25 ns to say.
    // SAFETY: pointer and length describe `bytes` and `to`, both borrowed during the call; the kernel only reads them.
    let sent = unsafe {
        libc::syscall(
            libc::SYS_sendto,
            fd.as_raw_fd(),
            bytes.as_ptr(),
            bytes.len(),
            libc::MSG_DONTWAIT,
            to.as_ptr(),
            to.len(),
        )
    };
    if sent < 0 { Err(last_errno()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd as _;

    #[test]
    #[should_panic(expected = "sealed before it is sent")]
    fn a_batch_that_grew_after_sealing_is_not_sent() {
        let socket = std::net::UdpSocket::bind(("127.0.0.1", 0)).unwrap();
        let to = RawAddress::from(socket.local_addr().unwrap());
        let mut scratch = Scratch::default();
        let mut batch = scratch.batch();
        batch.message(&to, None);
        batch.seal();
        batch.piece(&[1]);
        let _ = batch.send_one(socket.as_fd(), 0);
    }
}
