//! One DTLS session, driven by the datagrams that come and go; it never touches a socket. [`DtlsSession`] is what the front knows of it, so that the simulator
//! can have sessions of its own that draw nothing at random and read no clock.
//!
//! OpenSSL reads and writes through a [`Wire`], which the shard lends to a session for the time of a call: one datagram in, any number
//! out, in buffers that are kept. A session itself holds none.
//!
//! OpenSSL wants to send the HelloVerifyRequest itself. Ours went out before there was a session (`hello.rs`), so a
//! new session is first shown a hello without a cookie, [`FIRST_HELLO`], its answer to which is thrown away; neither belongs to
//! what both sides sign (RFC 6347 §4.2.1). Then it is where the client is. The numbers of its records begin at 1 then, whatever the
//! client has seen; those of the handshake, which nothing protects yet, are moved up to go on from the client's hello.

use std::io::{self, Read, Write};
use std::sync::{PoisonError, RwLock};

use openssl::error::ErrorStack;
use openssl::ssl::{Error, ErrorCode, Ssl, SslContext, SslStream};
use turnbuckle_engine::Time;

use crate::log::Seal;

use super::hello::{ClientHello, RECORD_HEADER_LEN, Record};

/// Most plain bytes of a record (RFC 6347 §4.1).
pub(super) const RECORD_LEN_MAX: usize = 16_384;

/// Most bytes of a datagram of a handshake; what the smallest path of IPv6 takes (RFC 8200 §5), less its headers.
const HANDSHAKE_DATAGRAM_LEN: u32 = 1232;

/// A hello without cookie or extensions, all zero where it may be.
const FIRST_HELLO: &[u8] = &[
    22, 0xFE, 0xFD, 0, 0, 0, 0, 0, 0, 0, 0, 0, 54, // record
    1, 0, 0, 42, 0, 0, 0, 0, 0, 0, 0, 42, // message
    0xFE, 0xFD, // version
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // random
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, //
    0, 0, // session, cookie
    0, 2, 0xC0, 0x2F, // suites
    1, 0, // compression
];

/// The cookie in the answer to [`FIRST_HELLO`]. No client sees it.
pub(super) const UNSEEN_COOKIE: [u8; 4] = *b"none";

/// What a session reads from and writes to.
#[derive(Debug, Default)]
pub(crate) struct Wire {
    incoming: Vec<u8>,
    is_read: bool,
    /// What was written, datagrams back to back.
    pub(super) outgoing: Vec<u8>,
    /// Where in `outgoing` each datagram ends.
    pub(super) ends: Vec<usize>,
}

impl Wire {
    /// Forgets what was written.
    pub(super) fn clear(&mut self) {
        self.outgoing.clear();
        self.ends.clear();
    }

    /// Writes a datagram.
    pub(crate) fn write_datagram(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.outgoing);
        self.ends.push(self.outgoing.len());
    }

    /// Returns the datagrams written.
    pub(super) fn datagrams(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let ranges = starts.zip(self.ends.iter().copied());
        ranges.map(|(start, end)| &self.outgoing[start..end])
    }

    /// Returns an input that has no bytes to read.
    #[cfg(test)]
    pub(super) fn silent() -> Self {
        Self {
            is_read: true,
            ..Self::default()
        }
    }

    pub(super) fn fill(&mut self, datagram: &[u8]) {
        self.incoming.clear();
        self.incoming.extend_from_slice(datagram);
        self.is_read = false;
    }
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.is_read {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.is_read = true;
        let len = self.incoming.len().min(buffer.len());
        buffer[..len].copy_from_slice(&self.incoming[..len]);
        Ok(len)
    }
}

impl Write for Wire {
    fn write(&mut self, datagram: &[u8]) -> io::Result<usize> {
        self.write_datagram(|outgoing| outgoing.extend_from_slice(datagram));
        Ok(datagram.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A session as the front knows it.
pub(crate) trait DtlsSession: Send {
    /// Returns whether keys are still being agreed on.
    fn is_handshaking(&self) -> bool;

    /// Takes a datagram. Hands what its records hold to `message`, one after the other, with `room` to decipher in, and writes what DTLS itself has to
    /// say to `wire`. Records that do not prove themselves, or come a second time, are passed over (RFC 6347 §4.1.2).
    fn receive(
        &mut self,
        now: Time,
        datagram: &[u8],
        wire: &mut Wire,
        room: &mut [u8],
        message: &mut dyn FnMut(&[u8]),
    ) -> Progress;

    /// Sends the last flight again if its time has come (RFC 6347 §4.2.4).
    fn retransmit(&mut self, now: Time, wire: &mut Wire) -> Progress;

    /// Writes the record that holds `plain`, a datagram of its own.
    ///
    /// # Errors
    ///
    /// The handshake is not over, the message is longer than a record, or the session has failed.
    fn seal(&mut self, plain: &[u8], wire: &mut Wire) -> io::Result<()>;

    /// Writes the alert that ends the session.
    fn close_notify(&mut self, wire: &mut Wire);

    /// Returns the cipher suite and version of the session.
    fn protection(&self) -> Option<Seal>;
}

/// What sessions begin with.
pub(crate) trait Opening: Send + Sync {
    /// Returns the server's side of a session with a client whose `hello` has shown a valid cookie. It has yet to
    /// [`receive`](DtlsSession::receive) that hello. `None`: there is no memory.
    fn open(&self, hello: &ClientHello<'_>) -> Option<Box<dyn DtlsSession>>;
}

impl Opening for RwLock<SslContext> {
    fn open(&self, hello: &ClientHello<'_>) -> Option<Box<dyn DtlsSession>> {
        // Locked once per handshake and per renewal.
        let context = self.read().unwrap_or_else(PoisonError::into_inner).clone();
        let session = OpensslSession::new(&context, hello).ok()?;
        Some(Box::new(session))
    }
}

/// A session of OpenSSL's.
struct OpensslSession {
    tls: SslStream<Wire>,
    /// Added to the numbers of records that nothing protects.
    sequence_offset: u64,
    is_handshaking: bool,
}

/// How far a datagram has brought a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It goes on.
    Open,
    /// The client has closed the session.
    Closed,
    /// The session has failed. The alert for the client has been written.
    Failed,
}

impl OpensslSession {
    /// Makes a session as [`Opening::open`] does.
    ///
    /// # Errors
    ///
    /// OpenSSL has no memory.
    fn new(context: &SslContext, hello: &ClientHello<'_>) -> Result<Self, ErrorStack> {
        let mut ssl = Ssl::new(context)?;
        ssl.set_accept_state();
        ssl.set_mtu(HANDSHAKE_DATAGRAM_LEN)?;
        let mut session = Self {
            tls: SslStream::new(ssl, Wire::default())?,
            sequence_offset: hello.sequence.saturating_sub(1),
            is_handshaking: true,
        };
        let mut unseen = Wire::default();
        unseen.fill(FIRST_HELLO);
        session.with(&mut unseen, |session| {
            session.shake_hands();
        });
        Ok(session)
    }

    /// Goes on with the handshake. Returns whether it can.
    fn shake_hands(&mut self) -> bool {
        match self.tls.do_handshake() {
            Ok(()) => {
                self.is_handshaking = false;
                true
            }
            Err(error) => progress(&error) == Progress::Open,
        }
    }

    /// Lends `wire` to OpenSSL.
    fn with<R>(&mut self, wire: &mut Wire, act: impl FnOnce(&mut Self) -> R) -> R {
        let (before, datagrams) = (wire.outgoing.len(), wire.ends.len());
        std::mem::swap(self.tls.get_mut(), wire);
        let result = act(self);
        std::mem::swap(self.tls.get_mut(), wire);
        if self.sequence_offset > 0 && wire.ends.len() > datagrams {
            move_up(&mut wire.outgoing[before..], self.sequence_offset);
        }
        result
    }
}

impl DtlsSession for OpensslSession {
    fn is_handshaking(&self) -> bool {
        self.is_handshaking
    }

    fn receive(
        &mut self,
        _now: Time,
        datagram: &[u8],
        wire: &mut Wire,
        room: &mut [u8],
        message: &mut dyn FnMut(&[u8]),
    ) -> Progress {
        wire.fill(datagram);
        // After a datagram of one record there is no second one to ask for.
        let is_single = Record::first(datagram).is_some_and(|(_, rest)| rest.is_empty());
        self.with(wire, |session| {
            if session.is_handshaking && !session.shake_hands() {
                return Progress::Failed;
            }
            if session.is_handshaking {
                return Progress::Open;
            }
            loop {
                match session.tls.ssl_read(room) {
                    // A record may be empty, to hide the length of messages.
                    Ok(0) => {}
                    Ok(len) => message(&room[..len]),
                    Err(error) => return progress(&error),
                }
                if is_single {
                    return Progress::Open;
                }
            }
        })
    }

    /// Sends the last flight again if its time has come, which OpenSSL keeps itself: one second, then twice as long each time.
    fn retransmit(&mut self, _now: Time, wire: &mut Wire) -> Progress {
        wire.is_read = true;
        self.with(wire, |session| {
            if session.is_handshaking && !session.shake_hands() {
                Progress::Failed
            } else {
                Progress::Open
            }
        })
    }

    fn seal(&mut self, plain: &[u8], wire: &mut Wire) -> io::Result<()> {
        if plain.is_empty() || plain.len() > RECORD_LEN_MAX || self.is_handshaking {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let written = self.with(wire, |session| session.tls.ssl_write(plain));
        match written {
            Ok(len) if len == plain.len() => Ok(()),
            _ => Err(io::ErrorKind::Other.into()),
        }
    }

    fn close_notify(&mut self, wire: &mut Wire) {
        wire.is_read = true;
        if !self.is_handshaking {
            self.with(wire, |session| {
                // It is written or it is not: the session ends in either case.
                let _ = session.tls.shutdown();
            });
        }
    }

    fn protection(&self) -> Option<Seal> {
        let suite = self.tls.ssl().current_cipher()?;
        Some(Seal {
            suite: suite.name().into(),
            version: "DTLSv1.2",
        })
    }
}

fn progress(error: &Error) -> Progress {
    match error.code() {
        ErrorCode::WANT_READ | ErrorCode::WANT_WRITE => Progress::Open,
        ErrorCode::ZERO_RETURN => Progress::Closed,
        _ => Progress::Failed,
    }
}

/// Adds `offset` to the number of every record that is not protected.
fn move_up(mut records: &mut [u8], offset: u64) {
    while let Some((record, _)) = Record::first(records) {
        let (epoch, sequence, len) = (record.epoch, record.sequence, record.fragment.len());
        if epoch == 0 {
            let number = sequence.saturating_add(offset).to_be_bytes();
            records[5..11].copy_from_slice(&number[2..]);
        }
        records = &mut records[RECORD_HEADER_LEN + len..];
    }
}
