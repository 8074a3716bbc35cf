//! Receiving: `recvmmsg`, `recvmsg`, `recvfrom` into slots of one region that is allocated once.
//!
//! Invariant: message header `i` points at slot `i`, at name `i` and at control `i` from start to end; only lengths are
//! written afterwards. The kernel writes into a slot during a call on this type and at no other time.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use rustix::io::Errno;

use crate::address::RawAddress;
use crate::cmsg::{SMALL_LEN, SmallControl, gro_segment};
use crate::narrow;
use crate::pinned::Pinned;
use crate::sockopt::last_errno;

/// Payload bytes of a slot: a UDP datagram or GRO buffer is never longer.
const SLOT_LEN: usize = 65_536;
const SLOT_LEN_U32: u32 = 65_536;
const _: () = assert!(SLOT_LEN_U32 as usize == SLOT_LEN);
/// Bytes before each payload, for headers written in place.
const HEADROOM: usize = 128;
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
pub struct Slots {
    region: Pinned<u8>,
    /// Offset of slot 0 in `region`, so that slots begin on cache lines.
    base: usize,
    names: Pinned<RawAddress>,
    controls: Pinned<SmallControl>,
    vectors: Pinned<libc::iovec>,
    headers: Pinned<libc::mmsghdr>,
    metas: Box<[Meta]>,
    /// Whether headers offer room for control messages.
    controlled: bool,
}

#[expect(unsafe_code, reason = "raw pointers into the value's own heap memory")]
// SAFETY: the raw pointers inside `vectors` and `headers` point into the other arrays of this very value, which are owned
// by it and do not move with it.
unsafe impl Send for Slots {}

impl Slots {
    /// Allocates `count` slots; pages are touched when first used. `controlled` makes GRO sizes arrive.
    #[expect(
        unsafe_code,
        reason = "a C structure whose padding differs between C libraries"
    )]
    pub fn new(count: usize, controlled: bool) -> Self {
        // Zeroed memory comes from the system untouched; asking for alignment instead would touch it all.
        let region = Pinned::new(vec![0; count * STRIDE + CACHE_LINE]);
        let base = region.entry(0).align_offset(CACHE_LINE);
        let names = Pinned::new(vec![RawAddress::EMPTY; count]);
        let controls = Pinned::new(vec![SmallControl::EMPTY; count]);
        let vector = |slot| {
            let start = region.entry(base + slot * STRIDE + HEADROOM);
            libc::iovec {
                iov_base: start.cast(),
                iov_len: SLOT_LEN,
            }
        };
        let vectors = Pinned::new((0..count).map(vector).collect());
        let header = |slot| {
            // SAFETY: all-zero bytes are a valid `mmsghdr`: null pointers with zero lengths.
            let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
            let message = &mut header.msg_hdr;
            message.msg_name = names.entry(slot).cast();
            message.msg_namelen = RawAddress::CAPACITY;
            message.msg_iov = vectors.entry(slot);
            message.msg_iovlen = 1;
            if controlled {
                message.msg_control = controls.entry(slot).cast();
                message.msg_controllen = SMALL_LEN;
            }
            header
        };
        let headers = Pinned::new((0..count).map(header).collect());
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

    /// Returns the number of slots.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "there is always a slot")]
    pub fn len(&self) -> usize {
        self.metas.len()
    }

    /// Receives up to `count` messages into the slots from `first` on, without waiting. Returns how many.
    ///
    /// # Errors
    /// What `recvmmsg` returns, or `recvmsg` for a single slot.
    #[inline]
    #[expect(unsafe_code, reason = "recvmmsg, recvmsg")]
    pub fn receive(
        &mut self,
        fd: BorrowedFd<'_>,
        first: usize,
        count: usize,
    ) -> Result<usize, Errno> {
        let headers = &mut self.headers.as_mut_slice()[first..first + count];
        let received = if let [header] = headers {
            // Past the C library, as in `send_to`.
            // SAFETY: by the type's invariant the header points at one slot, name and control of their stated lengths.
            let len = unsafe {
                libc::syscall(
                    libc::SYS_recvmsg,
                    fd.as_raw_fd(),
                    &raw mut header.msg_hdr,
                    libc::MSG_DONTWAIT,
                )
            };
            header.msg_len = u32::try_from(len).map_err(|_| last_errno())?;
            1
        } else {
            // SAFETY: `headers` has `count` entries, each pointing at one slot by the type's invariant. No timeout.
            let received = unsafe {
                libc::recvmmsg(
                    fd.as_raw_fd(),
                    headers.as_mut_ptr(),
                    narrow(count),
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
        let header = &mut self.headers.as_mut_slice()[index];
        let message = &mut header.msg_hdr;
        let control_len = message.msg_controllen;
        let segment = if control_len == 0 {
            None
        } else {
            gro_segment(&self.controls.as_slice()[index].0[..control_len.min(SMALL_LEN)])
        };
        self.metas[index] = Meta {
            len: header.msg_len.min(SLOT_LEN_U32),
            segment: segment
                .and_then(|segment| u32::try_from(segment).ok())
                .unwrap_or(0),
            truncated: message.msg_flags & libc::MSG_TRUNC != 0,
        };
        self.names.as_mut_slice()[index].set_len(message.msg_namelen);
        message.msg_namelen = RawAddress::CAPACITY;
        if self.controlled {
            message.msg_controllen = SMALL_LEN;
        }
    }

    /// Receives one datagram into `slot` with `recvfrom`, the plainest call there is.
    ///
    /// # Errors
    /// What `recvfrom` returns.
    #[inline]
    #[expect(unsafe_code, reason = "recvfrom")]
    pub fn receive_from(&mut self, fd: BorrowedFd<'_>, slot: usize) -> Result<(), Errno> {
        let vector = self.vectors.as_slice()[slot];
        let name = &mut self.names.as_mut_slice()[slot];
        let mut name_len = RawAddress::CAPACITY;
        // Past the C library, as in `send_to`.
        // SAFETY: `vector` describes slot number `slot` by the type's invariant; `name_len` is the room in `name`.
        let len = unsafe {
            libc::syscall(
                libc::SYS_recvfrom,
                fd.as_raw_fd(),
                vector.iov_base,
                vector.iov_len,
                libc::MSG_DONTWAIT | libc::MSG_TRUNC,
                name.as_mut_ptr(),
                &raw mut name_len,
            )
        };
        let len = usize::try_from(len).map_err(|_| last_errno())?;
        name.set_len(name_len);
        self.metas[slot] = Meta {
            len: u32::try_from(len).map_or(SLOT_LEN_U32, |len| len.min(SLOT_LEN_U32)),
            segment: 0,
            truncated: len > SLOT_LEN,
        };
        Ok(())
    }

    /// Returns the bytes received into `slot`.
    #[inline]
    pub fn bytes(&self, slot: usize) -> &[u8] {
        let start = self.base + slot * STRIDE + HEADROOM;
        &self.region.as_slice()[start..start + self.metas[slot].len as usize]
    }

    /// Returns the sender of the message in `slot`.
    #[inline]
    pub fn remote(&self, slot: usize) -> Option<SocketAddr> {
        self.names.as_slice()[slot].decode()
    }

    /// Returns the segment size of the GRO buffer in `slot`; `None` for a single datagram.
    #[inline]
    pub fn segment(&self, slot: usize) -> Option<usize> {
        match self.metas[slot].segment {
            0 => None,
            segment => Some(segment as usize),
        }
    }

    /// Returns whether the message in `slot` was longer than the slot.
    #[inline]
    pub fn truncated(&self, slot: usize) -> bool {
        self.metas[slot].truncated
    }
}
