//! Sessions that have records, flights and timers as those of DTLS 1.2 have, and protect nothing: what they write follows from what they read.
//!
//! A session's name is the random number of the hello that it began with. After the hello the server's flight is one record of epoch 0, a handshake
//! message of type [`SERVER_HELLO`] that holds the name; then either side sends one record of epoch 1, of type [`FINISHED`] and with the name, which
//! stands for a Finished and the keys. Behind it each record of epoch 1 begins with the first [`PROOF_LEN`] bytes of the name, in place of a tag: a
//! record that begins otherwise does not prove itself.

use std::io;
use std::time::Duration;

use turnbuckle_engine::Time;

use crate::log::Seal;
use crate::shard::front::dtls::{
    APPLICATION_DATA, ClientHello, DtlsSession, HANDSHAKE, Opening, Progress, Record, Wire,
};

/// Types of handshake messages (RFC 5246 §7.4).
pub const SERVER_HELLO: u8 = 2;
/// See [`SERVER_HELLO`].
pub const FINISHED: u8 = 20;
/// A record with an alert (RFC 5246 §6.2.1), and a warning that the session is closed (RFC 5246 §7.2.1).
pub const ALERT: u8 = 21;
/// See [`ALERT`].
pub const CLOSE_NOTIFY: [u8; 2] = [1, 0];
/// Bytes of a proof.
pub const PROOF_LEN: usize = 8;

/// DTLS 1.2 in the header of a record.
const VERSION: [u8; 2] = [0xFE, 0xFD];
/// How long the first flight waits for an answer (RFC 6347 §4.2.4.1).
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// Writes a record.
pub fn write_record(out: &mut Vec<u8>, kind: u8, epoch: u16, sequence: u64, parts: [&[u8]; 2]) {
    let len = parts.iter().map(|part| part.len()).sum::<usize>();
    out.push(kind);
    out.extend(VERSION);
    out.extend(epoch.to_be_bytes());
    out.extend(&sequence.to_be_bytes()[2..]);
    out.extend(u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes());
    for part in parts {
        out.extend(part);
    }
}

/// Opens such sessions.
pub(super) struct Clear;

impl Opening for Clear {
    fn open(&self, hello: &ClientHello<'_>) -> Option<Box<dyn DtlsSession>> {
        Some(Box::new(ClearSession {
            name: hello.random,
            first: hello.sequence,
            sent: 0,
            flight: None,
            is_handshaking: true,
        }))
    }
}

/// One session.
struct ClearSession {
    name: [u8; 32],
    /// The number of its first record.
    first: u64,
    /// Records of epoch 1 that it has written.
    sent: u64,
    /// When its flight was sent last, and how long it waits for an answer.
    flight: Option<(Time, Duration)>,
    is_handshaking: bool,
}

impl ClearSession {
    fn take(
        &mut self,
        now: Time,
        record: &Record<'_>,
        wire: &mut Wire,
        message: &mut dyn FnMut(&[u8]),
    ) -> Progress {
        let finished = [&[FINISHED], &self.name[..]].concat();
        let proven = record.fragment.strip_prefix(&self.name[..PROOF_LEN]);
        match (record.kind, record.epoch, proven) {
            (HANDSHAKE, 0, _) if self.is_handshaking => self.send_flight(now, FIRST_WAIT, wire),
            // Once more, if ours was lost.
            (HANDSHAKE, 1, _) if record.fragment == finished => {
                self.is_handshaking = false;
                self.write(HANDSHAKE, [&finished, &[]], wire);
            }
            _ if self.is_handshaking => {}
            (APPLICATION_DATA, 1, Some(plain)) => message(plain),
            (ALERT, 1, Some(alert)) if alert == CLOSE_NOTIFY => return Progress::Closed,
            _ => {}
        }
        Progress::Open
    }

    fn send_flight(&mut self, now: Time, wait: Duration, wire: &mut Wire) {
        let (name, first) = (self.name, self.first);
        self.flight = Some((now, wait));
        wire.write_datagram(|out| {
            write_record(out, HANDSHAKE, 0, first, [&[SERVER_HELLO], &name]);
        });
    }

    fn write(&mut self, kind: u8, parts: [&[u8]; 2], wire: &mut Wire) {
        let number = self.sent;
        self.sent += 1;
        wire.write_datagram(|out| write_record(out, kind, 1, number, parts));
    }
}

impl DtlsSession for ClearSession {
    fn is_handshaking(&self) -> bool {
        self.is_handshaking
    }

    fn receive(
        &mut self,
        now: Time,
        datagram: &[u8],
        wire: &mut Wire,
        _room: &mut [u8],
        message: &mut dyn FnMut(&[u8]),
    ) -> Progress {
        let mut rest = datagram;
        while let Some((record, behind)) = Record::first(rest) {
            rest = behind;
            let progress = self.take(now, &record, wire, message);
            if progress != Progress::Open {
                return progress;
            }
        }
        Progress::Open
    }

    fn retransmit(&mut self, now: Time, wire: &mut Wire) -> Progress {
        let due = self.flight.filter(|(at, wait)| now >= *at + *wait);
        if let Some((_, wait)) = due.filter(|_| self.is_handshaking) {
            self.send_flight(now, wait * 2, wire);
        }
        Progress::Open
    }

    fn seal(&mut self, plain: &[u8], wire: &mut Wire) -> io::Result<()> {
        if self.is_handshaking {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let name = self.name;
        self.write(APPLICATION_DATA, [&name[..PROOF_LEN], plain], wire);
        Ok(())
    }

    fn close_notify(&mut self, wire: &mut Wire) {
        let name = self.name;
        if !self.is_handshaking {
            self.write(ALERT, [&name[..PROOF_LEN], &CLOSE_NOTIFY], wire);
        }
    }

    fn protection(&self) -> Option<Seal> {
        None
    }
}
