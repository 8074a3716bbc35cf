//! Bytes that wait for a connection that takes fewer than there are. The queue is bounded and drops the oldest relayed data first.
//!
//! Two queues of whole messages, control before relayed data, and before both the rest of what was begun. Relayed
//! data may be dropped at any message; nothing else may, because the other side counts bytes.
//!
//! Bytes of a connection that is joined with another one are in the control queue too, behind the answers. They are no messages and are not counted
//! as such.

use std::collections::VecDeque;

/// Whole messages in one ring of bytes.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    bytes: VecDeque<u8>,
    parts: VecDeque<Part>,
    /// Those of `parts` that are messages.
    count: u32,
}

/// A message, or bytes of a joined connection.
#[derive(Clone, Copy, Debug)]
struct Part {
    len: u32,
    /// As how many messages it is counted: one, or none.
    counted: u32,
}

impl Messages {
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Returns how many messages wait.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the bytes, in two slices.
    pub(crate) fn slices(&self) -> (&[u8], &[u8]) {
        self.bytes.as_slices()
    }

    /// Returns the length of the oldest part.
    pub(crate) fn first_len(&self) -> Option<usize> {
        self.parts.front().map(|part| part.len as usize)
    }

    fn push(&mut self, pieces: [&[u8]; 3], counted: u32) {
        let mut len = 0;
        for piece in pieces {
            self.bytes.extend(piece);
            len += piece.len();
        }
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        self.parts.push_back(Part { len, counted });
        self.count += counted;
    }

    /// Removes the oldest part and appends its bytes to `target`. Returns as how many messages it is counted; `None` if nothing waits.
    pub(crate) fn pop_into(&mut self, target: &mut Vec<u8>) -> Option<u32> {
        let part = self.pop()?;
        target.extend(self.bytes.drain(..part.len as usize));
        Some(part.counted)
    }

    /// Drops the oldest part. Returns as how many messages it is counted.
    fn drop_first(&mut self) -> u32 {
        self.pop().map_or(0, |part| {
            self.bytes.drain(..part.len as usize);
            part.counted
        })
    }

    fn pop(&mut self) -> Option<Part> {
        let part = self.parts.pop_front()?;
        self.count -= part.counted;
        Some(part)
    }
}

/// What waits for one connection.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    /// Bytes to be written first: the rest of a message, or ciphertext.
    tail: Vec<u8>,
    /// Bytes of `tail` that have been written.
    tail_sent: usize,
    /// Messages that are complete once `tail` has been written.
    pub(crate) tail_messages: u32,
    pub(crate) control: Messages,
    pub(crate) media: Messages,
}

impl Outgoing {
    /// Returns the bytes to be written first.
    pub(crate) fn tail(&self) -> &[u8] {
        &self.tail[self.tail_sent..]
    }

    /// Appends to the bytes to be written first.
    pub(crate) fn extend_tail(&mut self, parts: [&[u8]; 3], messages: u32) {
        if self.tail_sent == self.tail.len() {
            self.tail.clear();
            self.tail_sent = 0;
        }
        for part in parts {
            self.tail.extend_from_slice(part);
        }
        self.tail_messages += messages;
    }

    /// Notes that `len` bytes of the tail have been written. Returns how many messages that completes.
    pub(crate) fn advance_tail(&mut self, len: usize) -> u32 {
        self.tail_sent += len;
        if self.tail_sent < self.tail.len() {
            return 0;
        }
        self.tail.clear();
        self.tail_sent = 0;
        std::mem::take(&mut self.tail_messages)
    }

    /// Appends a control message. Returns whether all control messages still fit `max` bytes.
    pub(crate) fn push_control(&mut self, parts: [&[u8]; 3], max: usize) -> bool {
        self.control.push(parts, 1);
        // guard: V-46-answers
        self.control.len() <= max
    }

    /// Appends bytes of the connection that this one is joined with.
    pub(crate) fn push_relayed(&mut self, parts: [&[u8]; 3]) {
        self.control.push(parts, 0);
    }

    /// Appends relayed data. Returns how many of the oldest messages were dropped so that all fit `max` bytes.
    pub(crate) fn push_media(&mut self, parts: [&[u8]; 3], max: usize) -> u32 {
        self.media.push(parts, 1);
        let mut dropped = 0;
        // guard: V-46-media
        while self.media.len() > max {
            dropped += self.media.drop_first();
        }
        dropped
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tail().is_empty() && self.control.is_empty() && self.media.is_empty()
    }

    /// Returns how many messages are not complete yet.
    pub(crate) fn messages(&self) -> u32 {
        self.tail_messages + self.control.count() + self.media.count()
    }

    /// Accounts for `written` bytes of tail, control and media, in this order. Removes what is complete, and keeps the rest of a
    /// message that was begun in the tail. Returns how many messages were completed.
    pub(crate) fn advance(&mut self, mut written: usize) -> u32 {
        let tail = self.tail().len().min(written);
        written -= tail;
        let mut complete = if tail > 0 { self.advance_tail(tail) } else { 0 };
        let Self {
            tail,
            tail_messages,
            control,
            media,
            ..
        } = self;
        for queue in [control, media] {
            while written > 0
                && let Some(len) = queue.first_len()
            {
                if len <= written {
                    written -= len;
                    complete += queue.drop_first();
                } else {
                    // Everything behind the tail is written after it, so the tail has been written.
                    *tail_messages = queue.pop_into(tail).unwrap_or(0);
                    tail.drain(..written);
                    return complete;
                }
            }
        }
        complete
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(bytes: &[u8]) -> [&[u8]; 3] {
        [bytes, &[], &[]]
    }

    #[test]
    fn the_oldest_media_goes_first_and_control_stays() {
        let mut outgoing = Outgoing::default();
        assert!(outgoing.push_control(part(b"reply"), 10));
        let dropped: u32 = (0..10_u8)
            .map(|n| outgoing.push_media([&[n], &[n], &[0, 0]], 12))
            .sum();
        assert_eq!(dropped, 7);
        assert_eq!(outgoing.messages(), 4);
        let (first, second) = outgoing.media.slices();
        assert_eq!(
            [first, second].concat(),
            [7, 7, 0, 0, 8, 8, 0, 0, 9, 9, 0, 0]
        );
        assert!(outgoing.push_control(part(b"reply"), 10));
        assert!(!outgoing.push_control(part(b"r"), 10), "beyond the bound");
    }

    #[test]
    fn a_message_that_was_begun_is_completed_whatever_is_dropped() {
        for written in 0..=17 {
            let mut outgoing = Outgoing::default();
            outgoing.extend_tail(part(b"ta"), 1);
            outgoing.push_control(part(b"con"), 100);
            outgoing.push_media(part(b"media1"), 100);
            outgoing.push_media(part(b"media2"), 100);
            let complete = outgoing.advance(written);
            assert_eq!(complete + outgoing.messages(), 4, "written {written}");
            let ends = [2, 5, 11, 17];
            let expected = ends.iter().filter(|&&end| end <= written).count();
            assert_eq!(complete as usize, expected, "written {written}");
            // Media that waits may go; what was begun may not.
            outgoing.push_media(part(b"last.."), 6);
            let mut rest = outgoing.tail().to_vec();
            while outgoing.control.pop_into(&mut rest).is_some()
                || outgoing.media.pop_into(&mut rest).is_some()
            {}
            let all = b"taconmedia1media2";
            let begun = ends
                .iter()
                .find(|&&end| end > written || written == 0)
                .copied();
            let begun = if ends.contains(&written) {
                Some(written)
            } else {
                begun
            };
            let from_control = if written < 5 { 5 } else { begun.unwrap_or(17) };
            let mut expected = all[written..from_control.max(written)].to_vec();
            expected.extend_from_slice(b"last..");
            assert_eq!(rest, expected, "written {written}");
        }
    }

    #[test]
    fn bytes_of_a_joined_connection_are_no_messages_however_they_are_written() {
        for written in 0..=12 {
            let mut outgoing = Outgoing::default();
            outgoing.push_control(part(b"answer"), 100);
            outgoing.push_relayed(part(b"bytes"));
            assert_eq!(outgoing.messages(), 1);
            let complete = outgoing.advance(written.min(11));
            assert_eq!(complete, u32::from(written >= 6), "written {written}");
            assert_eq!(outgoing.messages(), 1 - complete, "written {written}");
        }
    }
}
