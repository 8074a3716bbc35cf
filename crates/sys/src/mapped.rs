//! Memory that is shared with the kernel: the values of a BPF array map (`BPF_F_MMAPABLE`, Linux 5.5), reached as words.
//!
//! Both sides read and write it at any time. So it is only ever seen as atomic words.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::AtomicU64;

use crate::sockopt::last_errno;

/// A mapping of 64-bit words. It is unmapped when dropped.
#[derive(Debug)]
pub struct Mapped {
    start: NonNull<AtomicU64>,
    words: usize,
}

#[expect(unsafe_code, reason = "an owning raw pointer")]
// SAFETY: the mapping belongs to the process, not to a thread, and is unmapped once, by `drop`.
unsafe impl Send for Mapped {}

#[expect(unsafe_code, reason = "an owning raw pointer")]
// SAFETY: it is only reached as a slice of atomics, which may be shared.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps the first `words` words of the values of `map`, for reading and writing.
    ///
    /// # Errors
    /// What `mmap` returns; `EINVAL` for no words.
    #[expect(unsafe_code, reason = "mmap of a descriptor")]
    pub fn new(map: impl AsFd, words: usize) -> io::Result<Self> {
        let len = words
            .checked_mul(size_of::<AtomicU64>())
            .filter(|&len| len > 0)
            .ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory that is in use. The descriptor is open for as long as it is
        // borrowed; the mapping keeps its own reference to the map.
        let start = unsafe {
            libc::mmap(
                null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                map.as_fd().as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(last_errno().into());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self { start, words })
    }

    /// Returns the words.
    #[inline]
    #[expect(unsafe_code, reason = "a slice of a mapping")]
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: `new` mapped this many words, aligned to a page and zero or written by atomics of either side; they stay mapped until `drop`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }
}

impl Drop for Mapped {
    #[expect(unsafe_code, reason = "munmap of a mapping that this value owns")]
    fn drop(&mut self) {
        // SAFETY: `new` mapped exactly this, and every slice of it borrowed `self`. It can only fail for an address that is not aligned.
        unsafe {
            libc::munmap(
                self.start.as_ptr().cast(),
                self.words * size_of::<AtomicU64>(),
            )
        };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn two_mappings_of_one_file_are_the_same_memory() {
        let file = rustix::fs::memfd_create("words", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        let (one, other) = (
            Mapped::new(&file, 512).unwrap(),
            Mapped::new(&file, 8).unwrap(),
        );
        assert_eq!((one.words().len(), other.words().len()), (512, 8));
        one.words()[7].store(5, Ordering::Release);
        assert_eq!(other.words()[7].load(Ordering::Acquire), 5);
        drop(one);
        assert_eq!(other.words()[7].load(Ordering::Acquire), 5);
        assert!(Mapped::new(&file, 0).is_err());
    }
}
