//! Writing to connections: one gathering write per connection and turn. What the kernel does not take waits.
//!
//! A *sealed* connection is one whose outgoing bytes the handler transforms, for example by TLS. Sealed bytes cannot be
//! dropped any more. So only a bounded piece is sealed at a time, as much as is written at once. Each message is sealed by itself,
//! because some clients, coturn's among them, take the content of one TLS record for one message.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg, shutdown};
use turnbuckle_sys::receive::Slots;

use super::connection::{Shutdown, Stream, StreamTable};
use super::streams::Streams;
use crate::counters::StreamCounters;
use crate::handler::StreamHandler;
use crate::names::StreamId;
use crate::queue::{Content, SendQueue, StreamChange, StreamMessage, StreamTouched};
use crate::reports::{SendFailure, StreamEnd};
use crate::settings::Settings;
use crate::sockets::epolls::Epolls;
use crate::udp::pack::Buffers;

/// Messages of one gathering write.
const MESSAGES: usize = 85;
/// Pieces of one gathering write: prefix, payload and trailer of each message.
const PIECES: usize = MESSAGES * 3;
/// Sealed bytes after which what was gathered is written.
const SEALED_MAX: usize = 32 * 1024;
/// Writes to one connection that waited, per turn.
const WRITES_PER_TURN: usize = 8;

/// Writes to connections; keeps the buffers for it.
#[derive(Debug, Default)]
pub(crate) struct StreamFlusher {
    plain: Vec<u8>,
    sealed: Vec<u8>,
}

/// What stays the same during one flush.
#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    pub(crate) queue: &'a SendQueue,
    pub(crate) slots: &'a Slots,
    pub(crate) epolls: &'a Epolls,
    pub(crate) settings: &'a Settings,
    pub(crate) counters: &'a StreamCounters,
}

impl StreamFlusher {
    /// Writes everything queued for connections, and closes those that have ended.
    pub(crate) fn flush<H: StreamHandler>(
        &mut self,
        job: &Job<'_>,
        streams: &mut Streams,
        handler: &mut H,
    ) {
        for &(id, change) in job.queue.stream_changes() {
            apply(job, &mut streams.table, id, change);
        }
        for touched in job.queue.touched_streams() {
            let Streams { table, arena, .. } = &mut *streams;
            let buffers = Buffers {
                slots: job.slots,
                streams: arena.bytes(),
            };
            let messages = job.queue.stream_messages(touched, buffers);
            let Some(stream) = table.get_mut(touched.stream) else {
                let count = messages.map(|message| message.counted()).sum();
                give_up(job, touched.stream, count, SendFailure::Closed, handler);
                continue;
            };
            let written = match &stream.outgoing {
                Some(_) => queue_up(job, stream, touched, messages, handler),
                None if stream.is_sealed => {
                    self.write_sealed(job, stream, touched, messages, handler)
                }
                None => write_plain(job, stream, touched, messages, handler),
            };
            let written = written.and_then(|()| self.drain(job, stream, touched, handler));
            let waiting = stream.outgoing.as_ref().map_or(0, |it| it.messages());
            let (ending, partner) = (stream.ending, stream.partner);
            let written = written.and_then(|()| match partner {
                None => Ok(()),
                Some(partner) => self.balance(job, table, touched.stream, partner, handler),
            });
            let ending = match (written, ending) {
                (Err(end), _) | (Ok(()), Some(end)) => end,
                (Ok(()), None) if touched.close => StreamEnd::Local,
                (Ok(()), None) => continue,
            };
            if ending == StreamEnd::Local
                && let Some(stream) = table.get_mut(touched.stream)
            {
                self.end_sealed(job, stream, handler);
            }
            give_up(job, touched.stream, waiting, SendFailure::Closed, handler);
            let partner = table
                .remove(touched.stream)
                .and_then(|stream| stream.partner);
            job.counters.closed.add(1);
            handler.stream_closed(touched.stream, ending);
            if let Some(partner) = partner.and_then(|partner| table.remove(partner)) {
                if !matches!(ending, StreamEnd::Finished | StreamEnd::Local) {
                    partner.reset_on_close();
                }
                let waiting = partner.outgoing.as_ref().map_or(0, |it| it.messages());
                give_up(job, partner.id, waiting, SendFailure::Closed, handler);
                job.counters.closed.add(1);
                handler.stream_closed(partner.id, ending);
            }
        }
    }

    /// Updates two joined connections after a write to one of them. Ends it if that was requested and nothing waits, and pauses or
    /// resumes reading from the other one.
    fn balance<H: StreamHandler>(
        &mut self,
        job: &Job<'_>,
        table: &mut StreamTable,
        id: StreamId,
        partner: StreamId,
        handler: &mut H,
    ) -> Result<(), StreamEnd> {
        let Some(stream) = table.get_mut(id) else {
            return Ok(());
        };
        let has_room = stream.outgoing.is_none();
        if has_room && stream.shutdown == Shutdown::Wanted {
            stream.shutdown = Shutdown::Done;
            self.end_sealed(job, stream, handler);
            // It fails only if the other side has reset the connection, which the next read reports.
            let _ = shutdown(stream.fd(), rustix::net::Shutdown::Write);
        }
        let is_finished = stream.is_finished();
        let partner = table.get_mut(partner).ok_or(StreamEnd::Failed)?;
        // guard: V-46-back-pressure.partner
        partner
            .set_reading(job.epolls, has_room)
            .map_err(|_| StreamEnd::Failed)?;
        if is_finished && partner.is_finished() {
            return Err(StreamEnd::Finished);
        }
        Ok(())
    }

    /// Writes what ends this side of a sealed connection, unless something before it still waits.
    fn end_sealed<H: StreamHandler>(&mut self, job: &Job<'_>, stream: &Stream, handler: &mut H) {
        if stream.is_sealed && stream.outgoing.is_none() {
            self.sealed.clear();
            handler.seal_end(stream.id, &mut self.sealed);
            if self.sealed.is_empty() {
                return;
            }
            // All of it has been sent, so that a few bytes fit; a client that does not get them sees the end all the same.
            let _ = write(job, stream.fd(), &[IoSlice::new(&self.sealed)]);
        }
    }

    /// Seals messages piece by piece and writes them; when one piece does not fit, its rest and all behind it wait.
    fn write_sealed<'a, H: StreamHandler>(
        &mut self,
        job: &Job<'a>,
        stream: &mut Stream,
        touched: &StreamTouched,
        messages: impl Iterator<Item = StreamMessage<'a>> + Clone,
        handler: &mut H,
    ) -> Result<(), StreamEnd> {
        self.sealed.clear();
        // Raw bytes were made before anything is sealed here, so they go first.
        for raw in messages.clone().filter(|it| it.content == Content::Raw) {
            for part in raw.parts {
                self.sealed.extend_from_slice(part);
            }
        }
        let mut messages = messages.filter(|it| it.content != Content::Raw).peekable();
        while messages.peek().is_some() || !self.sealed.is_empty() {
            let mut count = 0;
            let mut sealed = Ok(());
            while self.sealed.len() < SEALED_MAX
                && sealed.is_ok()
                && let Some(message) = messages.next()
            {
                self.plain.clear();
                for part in message.parts {
                    self.plain.extend_from_slice(part);
                }
                sealed = self.seal(stream.id, handler);
                count += message.counted();
            }
            let written =
                sealed.and_then(|()| write(job, stream.fd(), &[IoSlice::new(&self.sealed)]));
            let written = match written {
                Ok(written) => written,
                Err(end) => {
                    count += messages.map(|message| message.counted()).sum::<u32>();
                    give_up(job, touched.stream, count, SendFailure::Closed, handler);
                    return Err(end);
                }
            };
            if written < self.sealed.len() {
                let outgoing = stream.outgoing.insert(Box::default());
                outgoing.extend_tail([&self.sealed[written..], &[], &[]], count);
                return queue_up(job, stream, touched, messages, handler);
            }
            job.counters.messages.add(u64::from(count));
            self.sealed.clear();
        }
        Ok(())
    }

    /// Appends what was gathered in `plain` to `sealed`.
    fn seal<H: StreamHandler>(
        &mut self,
        stream: StreamId,
        handler: &mut H,
    ) -> Result<(), StreamEnd> {
        handler
            .seal(stream, &self.plain, &mut self.sealed)
            .map_err(|_| StreamEnd::Failed)
    }

    /// Writes what waits, as far as the socket takes it.
    fn drain<H: StreamHandler>(
        &mut self,
        job: &Job<'_>,
        stream: &mut Stream,
        touched: &StreamTouched,
        handler: &mut H,
    ) -> Result<(), StreamEnd> {
        let sealed = stream.outgoing.is_some() && stream.is_sealed;
        for _ in 0..WRITES_PER_TURN {
            let (socket, Some(outgoing)) = stream.socket_and_outgoing() else {
                return Ok(());
            };
            if sealed && outgoing.tail().is_empty() {
                self.plain.clear();
                self.sealed.clear();
                while self.sealed.len() < SEALED_MAX
                    && let Some(counted) = (outgoing.control.pop_into(&mut self.plain))
                        .or_else(|| outgoing.media.pop_into(&mut self.plain))
                {
                    // Under way from now on, so that it is given up with the rest if sealing fails.
                    outgoing.tail_messages += counted;
                    handler
                        .seal(touched.stream, &self.plain, &mut self.sealed)
                        .map_err(|_| StreamEnd::Failed)?;
                    self.plain.clear();
                }
                outgoing.extend_tail([&self.sealed, &[], &[]], 0);
            }
            let (control, media) = (outgoing.control.slices(), outgoing.media.slices());
            let pieces = [outgoing.tail(), control.0, control.1, media.0, media.1];
            // What is not sealed yet stays behind.
            let pieces = &pieces[..if sealed { 1 } else { pieces.len() }];
            let total: usize = pieces.iter().map(|piece| piece.len()).sum();
            let mut slices = [IoSlice::new(&[]); 5];
            for (slice, piece) in slices.iter_mut().zip(pieces) {
                *slice = IoSlice::new(piece);
            }
            let written = write(job, socket, &slices)?;
            let complete = outgoing.advance(written);
            job.counters.messages.add(u64::from(complete));
            if outgoing.is_empty() {
                stream.outgoing = None;
                return stream
                    .await_room(job.epolls, false)
                    .map_err(|_| StreamEnd::Failed);
            }
            if written < total {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Writes messages as they are; the first that does not fit and all behind it wait.
fn write_plain<'a, H: StreamHandler>(
    job: &Job<'a>,
    stream: &mut Stream,
    touched: &StreamTouched,
    messages: impl Iterator<Item = StreamMessage<'a>>,
    handler: &mut H,
) -> Result<(), StreamEnd> {
    let mut messages = messages.peekable();
    while messages.peek().is_some() {
        let mut batch = [None; MESSAGES];
        let mut pieces = [IoSlice::new(&[]); PIECES];
        let (mut count, mut piece_count, mut total) = (0, 0, 0);
        while count < MESSAGES
            && let Some(message) = messages.next()
        {
            for part in message.parts {
                if !part.is_empty() {
                    pieces[piece_count] = IoSlice::new(part);
                    piece_count += 1;
                }
            }
            total += message.len();
            batch[count] = Some(message);
            count += 1;
        }
        let written = match write(job, stream.fd(), &pieces[..piece_count]) {
            Ok(written) => written,
            Err(end) => {
                let rest = batch.iter().flatten().copied().chain(messages);
                let count = rest.map(|message| message.counted()).sum();
                give_up(job, touched.stream, count, SendFailure::Closed, handler);
                return Err(end);
            }
        };
        if written == total {
            let complete: u32 = batch.iter().flatten().map(StreamMessage::counted).sum();
            job.counters.messages.add(u64::from(complete));
            continue;
        }
        // The message in which the write ended is completed before anything else.
        let outgoing = stream.outgoing.insert(Box::default());
        let mut rest = batch.iter().flatten().copied().chain(messages);
        let mut written = written;
        while written > 0
            && let Some(message) = rest.next()
        {
            let len = message.len();
            if len <= written {
                written -= len;
                job.counters.messages.add(u64::from(message.counted()));
                continue;
            }
            let parts = message.parts.map(|part| {
                let skipped = part.len().min(written);
                written -= skipped;
                &part[skipped..]
            });
            outgoing.extend_tail(parts, message.counted());
            break;
        }
        return queue_up(job, stream, touched, rest, handler);
    }
    Ok(())
}

/// Puts messages behind those that wait.
#[cold]
fn queue_up<'a, H: StreamHandler>(
    job: &Job<'a>,
    stream: &mut Stream,
    touched: &StreamTouched,
    messages: impl Iterator<Item = StreamMessage<'a>>,
    handler: &mut H,
) -> Result<(), StreamEnd> {
    let outgoing = stream.outgoing.get_or_insert_default();
    let (mut fits, mut dropped) = (true, 0);
    for message in messages {
        job.counters.waited.add(u64::from(message.counted()));
        match message.content {
            // As much as was read at once: then the connection that it comes from is not read.
            Content::Relayed => {
                outgoing.push_relayed(message.parts);
            }
            Content::Control => {
                fits &= outgoing.push_control(message.parts, job.settings.streams.control_max);
            }
            Content::Media => {
                dropped += outgoing.push_media(message.parts, job.settings.streams.media_max);
            }
            // Sealed bytes that wait were sealed earlier, and nothing is sealed before these are queued.
            Content::Raw => {
                outgoing.extend_tail(message.parts, 0);
                fits &= outgoing.tail().len() <= job.settings.streams.control_max + 2 * SEALED_MAX;
            }
        }
    }
    give_up(
        job,
        touched.stream,
        dropped,
        SendFailure::BufferFull,
        handler,
    );
    if !fits {
        return Err(StreamEnd::Congested);
    }
    stream
        .await_room(job.epolls, true)
        .map_err(|_| StreamEnd::Failed)
}

/// Applies the changes of a connection's state that the turn requested before anything is sent.
#[cold]
fn apply(job: &Job<'_>, table: &mut StreamTable, id: StreamId, change: StreamChange) {
    match change {
        StreamChange::HoldBack(is_held_back) => hold_back(job, table, id, is_held_back),
        StreamChange::Join(partner) => join(job, table, id, partner),
        StreamChange::Prove => prove(job, table, id),
        StreamChange::Seal => {
            if let Some(stream) = table.get_mut(id) {
                stream.is_sealed = true;
            }
        }
    }
}

/// Has a connection that has proven itself be served with the others.
fn prove(job: &Job<'_>, table: &mut StreamTable, id: StreamId) {
    if let Some(stream) = table.get_mut(id)
        && stream.is_stranger()
        && stream.prove(job.epolls).is_err()
    {
        stream.ending.get_or_insert(StreamEnd::Failed);
    }
}

/// Joins two connections, if both are there. Each is among those that the flush looks at.
fn join(job: &Job<'_>, table: &mut StreamTable, first: StreamId, second: StreamId) {
    for (id, partner) in [(first, second), (second, first)] {
        let has_partner = table.get_mut(partner).is_some();
        let Some(stream) = table.get_mut(id) else {
            continue;
        };
        stream.partner = Some(partner);
        if !has_partner || stream.set_reading(job.epolls, true).is_err() {
            stream.ending.get_or_insert(StreamEnd::Failed);
        }
    }
}

/// Pauses or resumes reading from a connection. A joined one is resumed only if the other one has room.
fn hold_back(job: &Job<'_>, table: &mut StreamTable, id: StreamId, is_held_back: bool) {
    let Some(stream) = table.get_mut(id) else {
        return;
    };
    let Some(partner) = stream.partner else {
        stream.is_held_back = is_held_back;
        return;
    };
    let Some(partner) = table.get_mut(partner) else {
        return;
    };
    let has_room = partner.outgoing.is_none();
    if let Some(stream) = table.get_mut(id) {
        stream.is_held_back = is_held_back;
        // guard: V-46-back-pressure.own
        if stream.set_reading(job.epolls, has_room).is_err() {
            stream.ending.get_or_insert(StreamEnd::Failed);
        }
    }
}

/// Hands bytes to the kernel and returns how many it took, perhaps none.
#[inline]
fn write(job: &Job<'_>, fd: BorrowedFd<'_>, pieces: &[IoSlice<'_>]) -> Result<usize, StreamEnd> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    match sendmsg(fd, pieces, &mut SendAncillaryBuffer::default(), flags) {
        Ok(written) => {
            job.counters.writes.add(1);
            job.counters.written_bytes.add(written as u64);
            Ok(written)
        }
        Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM) => Ok(0),
        Err(Errno::PIPE | Errno::CONNRESET) => Err(StreamEnd::Remote),
        Err(_) => Err(StreamEnd::Failed),
    }
}

#[cold]
fn give_up<H: StreamHandler>(
    job: &Job<'_>,
    stream: StreamId,
    messages: u32,
    cause: SendFailure,
    handler: &mut H,
) {
    if messages > 0 {
        job.counters.failed.of(cause).add(u64::from(messages));
        handler.stream_failed(stream, messages, cause);
    }
}
