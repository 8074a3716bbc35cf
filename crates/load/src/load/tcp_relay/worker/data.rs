//! Bytes of data connections: packets that come are counted, those that are due are written.

use std::cmp::Reverse;
use std::sync::atomic::Ordering;

use super::{DATA, FAR, Stage, WAITING_MAX, Worker};
use crate::load::phase::{MEASURING, OVER};
use crate::packet::Header;
use turnbuckle_client::Failure;

impl Worker {
    /// Takes in what a data connection brought, as far as it is whole packets.
    pub(super) fn packets(&mut self, index: usize, now: u64) {
        let Some(one) = self.clients.get_mut(index) else {
            return;
        };
        let Some(data) = one.connections[DATA].as_mut() else {
            return;
        };
        let mut packets = data.unread.chunks_exact(self.task.packets.size);
        for packet in &mut packets {
            self.counted.arrived += 1;
            let counts = matches!(self.phase.now(), MEASURING | OVER);
            let header = Header::read(packet).filter(|header| header.session == one.from);
            let Some(header) = header else {
                self.outcome.corrupted += u64::from(counts);
                one.expected += 1;
                continue;
            };
            // What is missing or comes twice in a stream is as wrong as a byte that has changed.
            if header.sequence != one.expected {
                self.outcome.corrupted += u64::from(counts);
            }
            one.expected = header.sequence + 1;
            if !header.is_measured {
                continue;
            }
            self.outcome.received += 1;
            let delays = &mut self.outcome.delays;
            delays.record(now, header.time, &mut one.before);
        }
        let rest = packets.remainder().len();
        let used = data.unread.len() - rest;
        data.unread.drain(..used);
    }

    /// Sends back what came to the peer's end.
    pub(super) fn send_back(&mut self, index: usize) {
        let epoll = &self.epoll;
        let far = self
            .clients
            .get_mut(index)
            .and_then(|one| one.connections[FAR].as_mut());
        let failed = far.is_some_and(|far| {
            let bytes = std::mem::take(&mut far.unread);
            far.outgoing().extend_from_slice(&bytes);
            far.flush(epoll).is_err()
        });
        if failed {
            self.fail(index, Failure::Disconnected);
        }
    }

    /// Sends what is due, or as much as the connections take.
    pub(super) fn send(&mut self, now: u64) {
        let begin = self.task.begin.load(Ordering::Relaxed);
        if begin == 0 || begin > now || self.phase.is_over() {
            return;
        }
        if !self.sending.has_begun {
            self.sending.has_begun = true;
            for index in 0..self.clients.len() {
                self.resume_at(index, begin);
            }
        }
        let mut touched = Vec::new();
        while let Some(&Reverse((due, index))) = self.sending.due.peek()
            && due <= now
        {
            self.sending.due.pop();
            self.send_one(index, due, now, begin);
            touched.push(index);
        }
        touched.dedup();
        for index in touched {
            let epoll = &self.epoll;
            let data = self
                .clients
                .get_mut(index)
                .and_then(|one| one.connections[DATA].as_mut());
            let waiting = data.map(|data| data.flush(epoll).map(|()| data.waiting()));
            match waiting {
                Some(Err(_)) => self.fail(index, Failure::Disconnected),
                // It took all; readiness is not waited for.
                Some(Ok(0)) => self.resume(index, now),
                _ => {}
            }
        }
    }

    /// Appends a client's packet that is due, in a flood as many as there is room for, and says when the next is.
    fn send_one(&mut self, index: usize, due: u64, now: u64, begin: u64) {
        let Some(one) = self.clients.get_mut(index) else {
            return;
        };
        let (Stage::Open, Some(data)) = (one.stage, one.connections[DATA].as_mut()) else {
            return;
        };
        let is_measured = self.phase.is_measured();
        while one.sequence < self.task.packets.count {
            if data.waiting() >= WAITING_MAX {
                one.is_stalled = true;
                return;
            }
            let at = data.outgoing().len();
            data.outgoing().extend_from_slice(&self.sending.template);
            let header = Header {
                session: one.session,
                sequence: one.sequence,
                is_measured,
                time: if self.task.packets.pace.is_some() {
                    due
                } else {
                    now
                },
            };
            if let Some(packet) = data.outgoing().get_mut(at..) {
                header.write(packet);
            }
            one.sequence += 1;
            self.counted.sent += 1;
            if is_measured {
                self.counted.measured += 1;
                self.outcome.sent += 1;
                self.outcome.lateness.saturating_record(now - due);
            }
            if let Some(pace) = self.task.packets.pace {
                let next = pace.due(begin, one.session, one.sequence);
                self.sending.due.push(Reverse((next, index)));
                return;
            }
        }
    }

    /// Resumes a client that had stopped sending, as its connection takes bytes again.
    pub(super) fn resume(&mut self, index: usize, now: u64) {
        if let Some(one) = self.clients.get_mut(index)
            && one.is_stalled
        {
            one.is_stalled = false;
            self.resume_at(index, now);
        }
    }

    fn resume_at(&mut self, index: usize, flood_at: u64) {
        let begin = self.task.begin.load(Ordering::Relaxed);
        let Some(one) = self.clients.get(index) else {
            return;
        };
        let due = match self.task.packets.pace {
            Some(pace) => pace.due(begin, one.session, one.sequence),
            None => flood_at,
        };
        self.sending.due.push(Reverse((due, index)));
    }
}
