//! A heap array whose entries the kernel is pointed at for as long as it exists.

use std::ptr::{NonNull, slice_from_raw_parts_mut};

/// An array that never moves and is only ever reached through one raw pointer, so that a pointer from [`Pinned::entry`]
/// stays usable after the array was borrowed in between. (A `Box` or `Vec` promises the opposite: moving it, or
/// borrowing it mutably, ends the right to use older pointers.)
pub(crate) struct Pinned<T: Copy> {
    start: NonNull<T>,
    len: usize,
}

#[expect(unsafe_code, reason = "an owning raw pointer")]
// SAFETY: it owns its entries, as a box does; raw pointers to them are used through the owner only.
unsafe impl<T: Copy + Send> Send for Pinned<T> {}

impl<T: Copy> Pinned<T> {
    pub(crate) fn new(values: Vec<T>) -> Self {
        let len = values.len();
        let entries = NonNull::from(Box::leak(values.into_boxed_slice()));
        Self {
            start: entries.cast(),
            len,
        }
    }

    /// Returns the address of entry `index`, which is valid until the array is dropped.
    #[inline]
    #[expect(unsafe_code, reason = "pointer arithmetic")]
    pub(crate) fn entry(&self, index: usize) -> *mut T {
        assert!(index < self.len, "entry outside the array");
        // SAFETY: `index < len`, just checked, so the result is inside the allocation.
        unsafe { self.start.as_ptr().add(index) }
    }

    #[inline]
    #[expect(unsafe_code, reason = "an owning raw pointer")]
    pub(crate) fn as_slice(&self) -> &[T] {
        // SAFETY: `start` and `len` describe an allocation of initialised entries that this value owns; whoever writes
        // through `entry` does so in a method that borrows the owner mutably.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    #[inline]
    #[expect(unsafe_code, reason = "an owning raw pointer")]
    pub(crate) fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as above, and `self` is borrowed mutably, so no other reference exists.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T: Copy> Drop for Pinned<T> {
    #[expect(unsafe_code, reason = "an owning raw pointer")]
    fn drop(&mut self) {
        // SAFETY: `new` leaked a box of exactly this slice, and nothing else frees it.
        drop(unsafe { Box::from_raw(slice_from_raw_parts_mut(self.start.as_ptr(), self.len)) });
    }
}
