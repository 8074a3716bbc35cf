//! The memory in which received datagrams lie while packets in them are used.
//!
//! What has come of a stream before its turn stays where it lies, and a part of a chunk keeps the whole of it. Whoever sends one byte of a stream in each
//! chunk of what others send would so keep far more than his windows allow. Therefore a bounded number of chunks may be in use, 4 MiB, which stay the
//! endpoint's. While all are, each datagram has memory of its own, which the stack sees in what it bounds.

use bytes::BytesMut;

/// Bytes of a chunk. A message of the kernel is smaller.
const CHUNK_LEN: usize = 256 * 1024;
/// Chunks that may be in use at the same time.
const CHUNKS_MAX: usize = 16;

/// The chunks.
#[derive(Default)]
pub(crate) struct Pool {
    chunks: Vec<BytesMut>,
    /// The one that is being filled.
    current: usize,
}

impl Pool {
    /// Returns a copy of a message that can be split without copying, or `None` if all chunks are in use.
    pub(crate) fn copy(&mut self, bytes: &[u8]) -> Option<BytesMut> {
        let current = self.chunks.get(self.current);
        if current.is_none_or(|chunk| chunk.capacity() < bytes.len()) {
            self.current = self.find()?;
        }
        let chunk = self.chunks.get_mut(self.current)?;
        chunk.extend_from_slice(bytes);
        Some(chunk.split())
    }

    /// Finds a chunk of which nothing is in use, the same one again where it can be.
    fn find(&mut self) -> Option<usize> {
        let mut chunks = self.chunks.iter_mut();
        let free = chunks.position(|chunk| chunk.try_reclaim(CHUNK_LEN));
        if free.is_some() {
            return free;
        }
        // guard: V-88-chunks
        if self.chunks.len() >= CHUNKS_MAX {
            return None;
        }
        self.chunks.push(BytesMut::with_capacity(CHUNK_LEN));
        Some(self.chunks.len() - 1)
    }
}
