//! Reading connections, into one arena for all that are read between two flushes.

use std::ops::Range;

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::connection::Stream;
use crate::counters::StreamCounters;
use crate::handler::StreamHandler;
use crate::names::narrow;
use crate::queue::SendQueue;
use crate::reports::StreamEnd;
use crate::views::{StreamInput, Taken};

/// Most bytes that one read asks for.
const READ_MAX: usize = 48 * 1024;
/// Most bytes that a handler may keep of one connection: one message of 64 KiB and one TLS record, with some to spare.
pub(crate) const KEPT_MAX: usize = 96 * 1024;
/// Bytes of the arena. Only what is used of it takes memory.
const ARENA_LEN: usize = 4 * 1024 * 1024;
const _: () = assert!(ARENA_LEN > 8 * (READ_MAX + KEPT_MAX));
/// A buffer of a connection that is larger than this goes back to the heap as soon as it is empty, so that connections that
/// once carried much and are idle now do not keep the memory.
const KEPT_IDLE_MAX: usize = 4096;

/// Where bytes of connections lie between reading and flushing.
#[derive(Debug)]
pub(crate) struct Arena {
    bytes: Box<[u8]>,
    used: usize,
}

impl Default for Arena {
    fn default() -> Self {
        Self {
            // Zeroed memory comes from the system untouched.
            bytes: vec![0; ARENA_LEN].into_boxed_slice(),
            used: 0,
        }
    }
}

impl Arena {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns whether the free space is so small that it must be recycled before another connection is read.
    #[inline]
    pub(crate) fn is_short(&self) -> bool {
        self.bytes.len() - self.used < KEPT_MAX + READ_MAX
    }

    /// Frees everything, after a flush.
    #[inline]
    pub(crate) fn recycle(&mut self) {
        self.used = 0;
    }

    /// Reads a connection once, shows what came to `handler` behind what it kept, and keeps what it wants kept.
    ///
    /// # Errors
    /// Why the connection is to end.
    #[inline]
    pub(crate) fn read<H: StreamHandler>(
        &mut self,
        stream: &mut Stream,
        counters: &StreamCounters,
        queue: &mut SendQueue,
        handler: &mut H,
    ) -> Result<(), StreamEnd> {
        let base = self.used;
        let kept_len = stream.kept.bytes.len();
        let room = &mut self.bytes[base..base + kept_len + READ_MAX];
        let received = match recv(stream.fd(), &mut room[kept_len..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err(StreamEnd::Remote),
            Ok((received, _)) => received,
            Err(Errno::AGAIN | Errno::INTR) => {
                counters.would_block.add(1);
                return Ok(());
            }
            Err(_) => return Err(StreamEnd::Failed),
        };
        counters.reads.add(1);
        counters.read_bytes.add(received as u64);
        if kept_len + received < stream.kept.awaited_len {
            // Copying all of it for each piece would cost more than the pieces.
            stream
                .kept
                .bytes
                .extend_from_slice(&room[kept_len..kept_len + received]);
            return Ok(());
        }
        self.show(stream, received, queue, handler)
    }

    /// Shows to `handler` once more what it kept of a connection.
    ///
    /// # Errors
    /// Why the connection is to end.
    #[cold]
    pub(crate) fn show_again<H: StreamHandler>(
        &mut self,
        stream: &mut Stream,
        queue: &mut SendQueue,
        handler: &mut H,
    ) -> Result<(), StreamEnd> {
        self.show(stream, 0, queue, handler)
    }

    /// Shows what was kept, and the `received` bytes that lie behind the room for it.
    #[inline]
    fn show<H: StreamHandler>(
        &mut self,
        stream: &mut Stream,
        received: usize,
        queue: &mut SendQueue,
        handler: &mut H,
    ) -> Result<(), StreamEnd> {
        let base = self.used;
        let kept_len = stream.kept.bytes.len();
        let len = kept_len + received;
        let room = &mut self.bytes[base..base + len];
        room[..kept_len].copy_from_slice(&stream.kept.bytes);
        self.used = base + len;
        let mut input = StreamInput::new(
            stream.id,
            stream.is_stranger(),
            kept_len,
            room,
            narrow(base),
        );
        let taken = handler.stream_received(&mut input, queue);
        stream.kept.awaited_len = input.awaited_len().min(KEPT_MAX);
        stream.kept.is_cut = input.is_cut();
        match taken {
            Taken::AllBut(ranges) => keep(stream, input.bytes(), ranges),
            Taken::Close => Err(StreamEnd::Local),
            Taken::Ended => Err(StreamEnd::Remote),
        }
    }
}

/// Copies what is to be seen again out of the arena.
#[inline]
fn keep(stream: &mut Stream, bytes: &[u8], ranges: [Range<usize>; 2]) -> Result<(), StreamEnd> {
    let kept = &mut stream.kept.bytes;
    kept.clear();
    let len = ranges[0].len() + ranges[1].len();
    assert!(len <= KEPT_MAX, "a handler keeps {KEPT_MAX} bytes at most");
    if len == 0 {
        if kept.capacity() > KEPT_IDLE_MAX {
            *kept = Vec::new();
        }
        return Ok(());
    }
    kept.reserve_exact(len);
    for range in ranges {
        kept.extend_from_slice(&bytes[range]);
    }
    Ok(())
}
