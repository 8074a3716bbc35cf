//! One connection by TCP or TLS that nobody waits for: what is to be written, and what was read and is not used up.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;

use rustix::event::epoll::{self, EventData, EventFlags};
use socket2::{Domain, Protocol, Socket, Type};

use crate::load::access::Tls;
use crate::load::tls::TlsSession;
use turnbuckle_client::Failure;

/// Bytes of a record at most (RFC 8446 §5.1).
const RECORD_MAX: usize = 1 << 14;

/// One connection, of which `token` says whose it is.
pub(super) struct RelayConnection {
    stream: TcpStream,
    token: u64,
    session: Option<TlsSession>,
    /// What is to be said and is in no record yet; empty without TLS, where it is `outgoing` at once.
    unsealed: Vec<u8>,
    /// What is to be written.
    outgoing: Vec<u8>,
    /// How much of it was written.
    written: usize,
    /// Of records, what was read and is not a whole one.
    records: Vec<u8>,
    /// Readiness to write is waited for, as at the beginning.
    awaits_room: bool,
    /// What was read.
    pub(super) unread: Vec<u8>,
}

impl RelayConnection {
    /// Begins a connection.
    ///
    /// # Errors
    /// What the system says: no route, no port, too many open files; or what is wrong with the configuration of TLS.
    pub(super) fn open(
        epoll: &OwnedFd,
        token: u64,
        local: IpAddr,
        to: SocketAddr,
        tls: Option<&Tls>,
    ) -> io::Result<Self> {
        let mut session = tls
            .map(TlsSession::new)
            .transpose()
            .map_err(io::Error::other)?;
        let mut outgoing = Vec::new();
        if let Some(session) = &mut session {
            // The first words of a session answer to nothing.
            let said = session.read(&mut [], &mut outgoing, |_| Ok(()));
            said.map_err(|_| ErrorKind::InvalidInput)?;
        }
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        if !local.is_unspecified() && local.is_ipv4() == to.is_ipv4() {
            socket.bind(&SocketAddr::new(local, 0).into())?;
        }
        match socket.connect(&to.into()) {
            Ok(()) => {}
            Err(error)
                if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {}
            Err(error) => return Err(error),
        }
        let stream = TcpStream::from(socket);
        let flags = EventFlags::IN | EventFlags::OUT;
        epoll::add(epoll, &stream, EventData::new_u64(token), flags)?;
        Ok(Self {
            stream,
            token,
            session,
            unsealed: Vec::new(),
            outgoing,
            written: 0,
            records: Vec::new(),
            awaits_room: true,
            unread: Vec::new(),
        })
    }

    /// Returns how many bytes wait to be written.
    pub(super) fn waiting(&self) -> usize {
        self.unsealed.len() + self.outgoing.len() - self.written
    }

    /// Returns the buffer to which bytes to be sent are appended; [`flush`](Self::flush) writes them.
    pub(super) fn outgoing(&mut self) -> &mut Vec<u8> {
        if self.session.is_some() {
            &mut self.unsealed
        } else {
            &mut self.outgoing
        }
    }

    /// Returns what the end of the connection means now.
    pub(super) fn failure(&self) -> Failure {
        if self
            .session
            .as_ref()
            .is_some_and(TlsSession::is_handshaking)
        {
            Failure::Handshake
        } else {
            Failure::Disconnected
        }
    }

    /// Writes what waits, as far as the kernel takes it, and has it say when it takes more.
    ///
    /// # Errors
    /// The connection could not be made, or has ended.
    pub(super) fn flush(&mut self, epoll: &OwnedFd) -> io::Result<()> {
        if let Some(session) = &mut self.session
            && !session.is_handshaking()
            && !self.unsealed.is_empty()
        {
            let sealed = session.seal(&self.unsealed, RECORD_MAX, &mut self.outgoing);
            sealed.map_err(|_| ErrorKind::ConnectionAborted)?;
            self.unsealed.clear();
        }
        while let Some(bytes) = self
            .outgoing
            .get(self.written..)
            .filter(|it| !it.is_empty())
        {
            match self.stream.write(bytes) {
                Ok(written) => self.written += written,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        let awaits_room = self.written < self.outgoing.len();
        if !awaits_room {
            self.outgoing.clear();
            self.written = 0;
        } else if self.written > self.outgoing.len() / 2 {
            // Moved out of the way when it is most of it.
            self.outgoing.drain(..self.written);
            self.written = 0;
        }
        if awaits_room != self.awaits_room {
            self.awaits_room = awaits_room;
            let mut flags = EventFlags::IN;
            flags.set(EventFlags::OUT, awaits_room);
            epoll::modify(epoll, &self.stream, EventData::new_u64(self.token), flags)?;
        }
        Ok(())
    }

    /// Reads what has come, as far as `buffer` goes; what has not come is read at the next event.
    ///
    /// # Errors
    /// The connection could not be made, or has ended, [`ErrorKind::UnexpectedEof`] if the other side said so.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        match self.stream.read(buffer) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(len) => {
                let bytes = buffer.get(..len).unwrap_or_default();
                let Some(session) = &mut self.session else {
                    self.unread.extend_from_slice(bytes);
                    return Ok(());
                };
                self.records.extend_from_slice(bytes);
                let unread = &mut self.unread;
                let used = session.read(&mut self.records, &mut self.outgoing, |plain| {
                    unread.extend_from_slice(plain);
                    Ok(())
                });
                let used = used.map_err(|_| ErrorKind::ConnectionAborted)?;
                self.records.drain(..used);
                Ok(())
            }
            Err(error) if is_passing(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Takes the first STUN message out of what was read, once it is whole (RFC 8489 §6.2.2).
    pub(super) fn message(&mut self) -> Option<Vec<u8>> {
        let &[_, _, high, low, ..] = self.unread.as_slice() else {
            return None;
        };
        let whole = 20 + usize::from(u16::from_be_bytes([high, low]));
        (self.unread.len() >= whole).then(|| self.unread.drain(..whole).collect())
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
