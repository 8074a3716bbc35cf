//! The client's side of one DTLS session; it never touches a socket.
//!
//! OpenSSL reads and writes through a [`Wire`], which the thread lends to a session for the time of a call.

use std::io::{self, Read, Write};

use openssl::error::ErrorStack;
use openssl::ssl::{Error, ErrorCode, Ssl, SslStream};

use crate::load::access::Dtls;

/// Most bytes of a datagram of a handshake; what the smallest path of IPv6 takes (RFC 8200 §5), less its headers.
const HANDSHAKE_DATAGRAM_LEN: u32 = 1232;

/// What a session reads from and writes to: one datagram in, any number out.
#[derive(Debug, Default)]
pub(super) struct Wire {
    incoming: Vec<u8>,
    is_unread: bool,
    outgoing: Vec<u8>,
    /// Where in `outgoing` each datagram ends.
    ends: Vec<usize>,
}

impl Wire {
    /// Forgets what was written.
    pub(super) fn clear(&mut self) {
        self.outgoing.clear();
        self.ends.clear();
    }

    /// Returns the datagrams written, back to back.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.outgoing
    }

    /// Returns the datagrams written, one by one.
    pub(super) fn datagrams(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let ranges = starts.zip(self.ends.iter().copied());
        ranges.map(|(start, end)| &self.outgoing[start..end])
    }
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if !std::mem::take(&mut self.is_unread) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let len = self.incoming.len().min(buffer.len());
        buffer[..len].copy_from_slice(&self.incoming[..len]);
        Ok(len)
    }
}

impl Write for Wire {
    fn write(&mut self, datagram: &[u8]) -> io::Result<usize> {
        self.outgoing.extend_from_slice(datagram);
        self.ends.push(self.outgoing.len());
        Ok(datagram.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// How far a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It goes on.
    Open,
    /// It was ended, or cannot go on.
    Ended,
}

impl From<&Error> for Progress {
    fn from(error: &Error) -> Self {
        match error.code() {
            ErrorCode::WANT_READ | ErrorCode::WANT_WRITE => Self::Open,
            _ => Self::Ended,
        }
    }
}

/// One session.
pub(super) struct DtlsSession {
    tls: SslStream<Wire>,
    is_handshaking: bool,
}

impl DtlsSession {
    /// Makes a session that has sent nothing yet.
    ///
    /// # Errors
    /// OpenSSL has no memory, or does not take the name.
    pub(super) fn new(dtls: &Dtls) -> Result<Self, ErrorStack> {
        let mut ssl = Ssl::new(&dtls.context)?;
        ssl.set_connect_state();
        ssl.set_mtu(HANDSHAKE_DATAGRAM_LEN)?;
        match dtls.name.parse() {
            Ok(ip) => ssl.param_mut().set_ip(ip)?,
            Err(_) => {
                ssl.set_hostname(&dtls.name)?;
                ssl.param_mut().set_host(&dtls.name)?;
            }
        }
        Ok(Self {
            tls: SslStream::new(ssl, Wire::default())?,
            is_handshaking: true,
        })
    }

    /// Returns whether keys are still being agreed on.
    pub(super) fn is_handshaking(&self) -> bool {
        self.is_handshaking
    }

    /// Goes on with the handshake, or says the last flight again if its time has come (RFC 6347 §4.2.4). OpenSSL keeps that time itself.
    pub(super) fn shake_hands(&mut self, wire: &mut Wire) -> Progress {
        self.with(wire, |session| match session.tls.do_handshake() {
            Ok(()) => {
                session.is_handshaking = false;
                Progress::Open
            }
            Err(error) => Progress::from(&error),
        })
    }

    /// Takes a datagram. Hands what its records hold to `each`, and writes what DTLS itself has to say to `wire`.
    pub(super) fn receive(
        &mut self,
        datagram: &[u8],
        wire: &mut Wire,
        room: &mut [u8],
        mut each: impl FnMut(&[u8]),
    ) -> Progress {
        wire.incoming.clear();
        wire.incoming.extend_from_slice(datagram);
        wire.is_unread = true;
        if self.is_handshaking {
            let progress = self.shake_hands(wire);
            if progress == Progress::Ended || self.is_handshaking {
                return progress;
            }
        }
        // After a datagram of one record there is no second one to ask for.
        let is_single = is_single_record(datagram);
        self.with(wire, |session| {
            loop {
                match session.tls.ssl_read(room) {
                    // A record may be empty, to hide how much is said.
                    Ok(0) => {}
                    Ok(len) => each(&room[..len]),
                    Err(error) => return Progress::from(&error),
                }
                if is_single {
                    return Progress::Open;
                }
            }
        })
    }

    /// Writes the record that holds `plain`, a datagram of its own.
    ///
    /// # Errors
    /// The handshake is not over, or the session has failed.
    pub(super) fn seal(&mut self, plain: &[u8], wire: &mut Wire) -> io::Result<()> {
        if self.is_handshaking {
            return Err(io::ErrorKind::NotConnected.into());
        }
        match self.with(wire, |session| session.tls.ssl_write(plain)) {
            Ok(len) if len == plain.len() => Ok(()),
            _ => Err(io::ErrorKind::Other.into()),
        }
    }

    /// Lends `wire` to OpenSSL.
    fn with<R>(&mut self, wire: &mut Wire, act: impl FnOnce(&mut Self) -> R) -> R {
        std::mem::swap(self.tls.get_mut(), wire);
        let result = act(self);
        std::mem::swap(self.tls.get_mut(), wire);
        result
    }
}

/// Returns whether a datagram is one record and nothing else (RFC 6347 §4.1).
fn is_single_record(datagram: &[u8]) -> bool {
    match datagram {
        [_, _, _, _, _, _, _, _, _, _, _, high, low, rest @ ..] => {
            rest.len() == usize::from(u16::from_be_bytes([*high, *low]))
        }
        _ => false,
    }
}
