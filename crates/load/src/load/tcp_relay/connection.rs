//! One TCP connection that nobody waits for: what is to be written, and what was read and is not used up.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;

use rustix::event::epoll::{self, EventData, EventFlags};
use socket2::{Domain, Protocol, Socket, Type};

/// One connection, of which `token` says whose it is.
pub(super) struct Connection {
    stream: TcpStream,
    token: u64,
    outgoing: Vec<u8>,
    /// How much of it was written.
    written: usize,
    /// Readiness to write is waited for, as at the beginning.
    awaits_room: bool,
    /// What was read.
    pub(super) unread: Vec<u8>,
}

impl Connection {
    /// Begins a connection.
    ///
    /// # Errors
    /// What the system says: no route, no port, too many open files.
    pub(super) fn open(
        epoll: &OwnedFd,
        token: u64,
        local: IpAddr,
        to: SocketAddr,
    ) -> io::Result<Self> {
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
            outgoing: Vec::new(),
            written: 0,
            awaits_room: true,
            unread: Vec::new(),
        })
    }

    /// Bytes that wait to be written.
    pub(super) fn waiting(&self) -> usize {
        self.outgoing.len() - self.written
    }

    /// Where bytes to be written are appended; [`flush`](Self::flush) writes them.
    pub(super) fn outgoing(&mut self) -> &mut Vec<u8> {
        &mut self.outgoing
    }

    /// Writes what waits, as far as the kernel takes it, and has it say when it takes more.
    ///
    /// # Errors
    /// The connection could not be made, or has ended.
    pub(super) fn flush(&mut self, epoll: &OwnedFd) -> io::Result<()> {
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
        let awaits_room = self.waiting() > 0;
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
                self.unread
                    .extend_from_slice(buffer.get(..len).unwrap_or_default());
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
