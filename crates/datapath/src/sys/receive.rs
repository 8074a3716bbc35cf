//! Receiving: `recvmmsg`, `recvmsg`, `recvfrom` into slots of one region that is allocated once.
//!
//! Invariant: message header `i` points at slot `i`, at name `i` and at control `i` from start to end; only lengths are
//! written afterwards. The kernel writes into a slot during a call on this type and at no other time.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use super::address::RawAddress;
use super::cmsg::{SMALL_LEN, SmallControl, gro_segment};
use super::sockopt::last_errno;

/// Payload bytes of a slot: a UDP datagram or GRO buffer is never longer.
pub(crate) const SLOT_LEN: usize = 65_536;
/// Bytes before each payload, for headers written in place.
pub(crate) const HEADROOM: usize = 128;
/// Distance of slots. Three cache lines more than a multiple of 4 KiB, so that the first bytes of neighbouring slots
/// fall into different cache sets.
const STRIDE: usize = SLOT_LEN + HEADROOM + 64;
const _: () = assert!(STRIDE % 4096 == 192);
const CACHE_LINE: usize = 64;

/// What the kernel said about one received message.
#[derive(Clone, Copy, Debug, Default)]
struct Meta {
    len: u32,
    /// Segment size of a GRO buffer, or 0.
    segment: u32,
    truncated: bool,
}

/// The receive slots.
pub(crate) struct Slots {
    region: Vec<u8>,
    /// Offset of slot 0 in `region`, so that slots begin on cache lines.
    base: usize,
    names: Box<[RawAddress]>,
    controls: Box<[SmallControl]>,
    vectors: Box<[libc::iovec]>,
    headers: Box<[libc::mmsghdr]>,
    metas: Box<[Meta]>,
    /// Whether headers offer room for control messages.
    controlled: bool,
}

// SAFETY: the raw pointers point into the boxes of this very value, which do not move with it.
#[expect(unsafe_code, reason = "raw pointers into the value's own heap memory")]
unsafe impl Send for Slots {}

impl Slots {
    /// Allocates `count` slots; pages are touched when first used. `controlled` makes GRO sizes arrive.
    #[expect(
        unsafe_code,
        reason = "a C structure whose padding differs between C libraries"
    )]
    pub(crate) fn new(count: usize, controlled: bool) -> Self {
        let mut region = vec![0; count * STRIDE + CACHE_LINE];
        let base = region.as_ptr().align_offset(CACHE_LINE).min(CACHE_LINE);
        let mut names = vec![RawAddress::EMPTY; count].into_boxed_slice();
        let mut controls = vec![SmallControl::EMPTY; count].into_boxed_slice();
        let mut vectors: Box<[libc::iovec]> = region[base..]
            .chunks_exact_mut(STRIDE)
            .take(count)
            .map(|slot| libc::iovec {
                iov_base: slot[HEADROOM..].as_mut_ptr().cast(),
                iov_len: SLOT_LEN,
            })
            .collect();
        let headers = (0..count)
            .map(|index| {
                // SAFETY: all-zero bytes are a valid `mmsghdr`: null pointers with zero lengths.
                let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
                let message = &mut header.msg_hdr;
                message.msg_name = names[index].as_mut_ptr().cast();
                message.msg_namelen = RawAddress::CAPACITY;
                message.msg_iov = &raw mut vectors[index];
                message.msg_iovlen = 1;
                if controlled {
                    message.msg_control = controls[index].0.as_mut_ptr().cast();
                    message.msg_controllen = SMALL_LEN;
                }
                header
            })
            .collect();
        Self {
            region,
            base,
            names,
            controls,
            vectors,
            headers,
            metas: vec![Meta::default(); count].into(),
            controlled,
        }
    }

    /// Number of slots.
    pub(crate) fn len(&self) -> usize {
        self.headers.len()
    }

    /// Receives up to `count` messages into the slots from `first` on, without waiting. Returns how many.
    #[inline]
    #[expect(unsafe_code, reason = "recvmmsg, recvmsg")]
    pub(crate) fn receive(
        &mut self,
        fd: BorrowedFd<'_>,
        first: usize,
        count: usize,
    ) -> Result<usize, Errno> {
        let headers = &mut self.headers[first..first + count];
        #[cfg(test)]
        if let super::fault::Outcome::Fail(errno) = super::fault::outcome(match count {
            1 => super::fault::Call::Receive,
            _ => super::fault::Call::ReceiveBatch,
        }) {
            return Err(errno);
        }
        let received = if let [header] = headers {
            // SAFETY: by the type's invariant the header points at one slot, name and control of their stated lengths.
            let len = unsafe {
                libc::recvmsg(fd.as_raw_fd(), &raw mut header.msg_hdr, libc::MSG_DONTWAIT)
            };
            header.msg_len = u32::try_from(len).map_err(|_| last_errno())?;
            1
        } else {
            // SAFETY: `headers` has `count` entries, each pointing at one slot by the type's invariant. No timeout.
            let received = unsafe {
                libc::recvmmsg(
                    fd.as_raw_fd(),
                    headers.as_mut_ptr(),
                    count as libc::c_uint,
                    libc::MSG_DONTWAIT,
                    std::ptr::null_mut(),
                )
            };
            usize::try_from(received).map_err(|_| last_errno())?
        };
        for index in first..first + received {
            self.note(index);
        }
        Ok(received)
    }

    /// Keeps what the kernel wrote into header `index` and readies the header for the next call.
    #[inline]
    fn note(&mut self, index: usize) {
        let header = &mut self.headers[index];
        let message = &mut header.msg_hdr;
        let control_len = message.msg_controllen;
        let segment = if control_len == 0 {
            None
        } else {
            gro_segment(&self.controls[index].0[..control_len.min(SMALL_LEN)])
        };
        self.metas[index] = Meta {
            len: header.msg_len.min(SLOT_LEN as u32),
            segment: segment
                .and_then(|segment| u32::try_from(segment).ok())
                .unwrap_or(0),
            truncated: message.msg_flags & libc::MSG_TRUNC != 0,
        };
        self.names[index].set_len(message.msg_namelen);
        message.msg_namelen = RawAddress::CAPACITY;
        if self.controlled {
            message.msg_controllen = SMALL_LEN;
        }
    }

    /// Receives one datagram into `slot` with `recvfrom`, the plainest call there is.
    #[inline]
    #[expect(unsafe_code, reason = "recvfrom")]
    pub(crate) fn receive_from(&mut self, fd: BorrowedFd<'_>, slot: usize) -> Result<(), Errno> {
        #[cfg(test)]
        if let super::fault::Outcome::Fail(errno) =
            super::fault::outcome(super::fault::Call::Receive)
        {
            return Err(errno);
        }
        let vector = self.vectors[slot];
        let name = &mut self.names[slot];
        let mut name_len = RawAddress::CAPACITY;
        // SAFETY: `vector` describes slot number `slot` by the type's invariant; `name_len` is the room in `name`.
        let len = unsafe {
            libc::recvfrom(
                fd.as_raw_fd(),
                vector.iov_base,
                vector.iov_len,
                libc::MSG_DONTWAIT | libc::MSG_TRUNC,
                name.as_mut_ptr().cast(),
                &raw mut name_len,
            )
        };
        let len = usize::try_from(len).map_err(|_| last_errno())?;
        name.set_len(name_len);
        self.metas[slot] = Meta {
            len: len.min(SLOT_LEN) as u32,
            segment: 0,
            truncated: len > SLOT_LEN,
        };
        Ok(())
    }

    /// The bytes received into `slot`.
    #[inline]
    pub(crate) fn bytes(&self, slot: usize) -> &[u8] {
        let start = self.base + slot * STRIDE + HEADROOM;
        &self.region[start..start + self.metas[slot].len as usize]
    }

    /// Who sent the message in `slot`.
    #[inline]
    pub(crate) fn remote(&self, slot: usize) -> Option<std::net::SocketAddr> {
        self.names[slot].decode()
    }

    /// Segment size of the GRO buffer in `slot`; `None` for a single datagram.
    #[inline]
    pub(crate) fn segment(&self, slot: usize) -> Option<usize> {
        match self.metas[slot].segment {
            0 => None,
            segment => Some(segment as usize),
        }
    }

    /// Whether the message in `slot` was longer than the slot.
    #[inline]
    pub(crate) fn truncated(&self, slot: usize) -> bool {
        self.metas[slot].truncated
    }
}
