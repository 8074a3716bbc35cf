//! The system calls that move datagrams. Tests can make them fail here, because the kernel of a test machine refuses too little.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use turnbuckle_sys::address::RawAddress;
use turnbuckle_sys::receive::Slots;
use turnbuckle_sys::send::{self, Batch};

#[cfg(test)]
use self::fault::{Call, Outcome};

/// Receives up to `count` messages into the slots from `first` on.
///
/// # Errors
/// What `recvmmsg` returns, or `recvmsg` for a single slot.
#[inline]
pub(crate) fn receive(
    slots: &mut Slots,
    fd: BorrowedFd<'_>,
    first: usize,
    count: usize,
) -> Result<usize, Errno> {
    #[cfg(test)]
    if let Outcome::Fail(errno) = fault::outcome(match count {
        1 => Call::Receive,
        _ => Call::ReceiveBatch,
    }) {
        return Err(errno);
    }
    slots.receive(fd, first, count)
}

/// Receives one datagram into `slot`.
///
/// # Errors
/// What `recvfrom` returns.
#[inline]
pub(crate) fn receive_from(
    slots: &mut Slots,
    fd: BorrowedFd<'_>,
    slot: usize,
) -> Result<(), Errno> {
    #[cfg(test)]
    if let Outcome::Fail(errno) = fault::outcome(Call::Receive) {
        return Err(errno);
    }
    slots.receive_from(fd, slot)
}

/// Returns whether the message in `slot` was longer than the slot.
#[inline]
pub(crate) fn is_truncated(slots: &Slots, slot: usize) -> bool {
    #[cfg(test)]
    if fault::has_truncated() {
        return true;
    }
    slots.truncated(slot)
}

/// Sends messages of a sealed batch from number `first` on and returns how many went out, at least one.
///
/// # Errors
/// What `sendmmsg` returns, or `sendmsg` for a single message.
#[inline]
pub(crate) fn send(
    batch: &mut Batch<'_, '_>,
    fd: BorrowedFd<'_>,
    first: usize,
) -> Result<usize, Errno> {
    if first + 1 == batch.len() {
        return send_one(batch, fd, first).map(|()| 1);
    }
    let messages = first..batch.len();
    #[cfg(test)]
    let messages = match fault::outcome(Call::SendBatch {
        messages: messages.len(),
        segment: batch.segment(first),
    }) {
        Outcome::Pass | Outcome::Truncate => messages,
        Outcome::Fail(errno) => return Err(errno),
        Outcome::Limit(count) => first..first + count,
    };
    batch.send(fd, messages)
}

/// Sends message number `index` of a sealed batch alone.
///
/// # Errors
/// What `sendmsg` returns.
#[inline]
pub(crate) fn send_one(
    batch: &Batch<'_, '_>,
    fd: BorrowedFd<'_>,
    index: usize,
) -> Result<(), Errno> {
    #[cfg(test)]
    if let Outcome::Fail(errno) = fault::outcome(Call::Send {
        segment: batch.segment(index),
    }) {
        return Err(errno);
    }
    batch.send_one(fd, index)
}

/// Sends one datagram from contiguous bytes.
///
/// # Errors
/// What `sendto` returns.
#[inline]
pub(crate) fn send_to(fd: BorrowedFd<'_>, bytes: &[u8], to: &RawAddress) -> Result<(), Errno> {
    #[cfg(test)]
    if let Outcome::Fail(errno) = fault::outcome(Call::Send { segment: None }) {
        return Err(errno);
    }
    send::send_to(fd, bytes, to)
}

#[cfg(test)]
pub(crate) mod fault;
