//! One connection to a server: what was read and is not a whole message yet, and what waits to be written.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, connect, recv, send,
    socket_with, sockopt,
};

use crate::load::tls::TlsSession;
use turnbuckle_client::Failure;

/// Bytes that one read asks for.
pub(super) const READ_LEN: usize = 256 << 10;
/// Bytes in front of what a message holds, STUN's and ChannelData's.
const STUN_HEADER_LEN: usize = 20;
const CHANNEL_HEADER_LEN: usize = 4;

/// One connection.
pub(super) struct StreamConnection {
    socket: OwnedFd,
    is_connected: bool,
    session: Option<TlsSession>,
    /// What was read and not used up: of a record with TLS, else of a message.
    kept: Vec<u8>,
    /// What records held, and is not a whole message.
    plain: Vec<u8>,
    /// What is to be said as soon as there are keys.
    early: Vec<u8>,
    outgoing: Vec<u8>,
    /// How much of it was written.
    written: usize,
    /// Readiness to write is waited for.
    awaits_room: bool,
    /// It is to be written to at the end of the turn.
    pub(super) is_touched: bool,
}

impl StreamConnection {
    /// Begins a connection. `buffer_len` is what the kernel may hold of what is sent, in bytes.
    ///
    /// # Errors
    /// What the system says: no route, no port, too many open files.
    pub(super) fn open(
        local: IpAddr,
        to: SocketAddr,
        buffer_len: u32,
        session: Option<TlsSession>,
    ) -> Result<Self, Errno> {
        let family = match to {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        sockopt::set_socket_send_buffer_size(&socket, buffer_len as usize)?;
        if !local.is_unspecified() {
            bind(&socket, &SocketAddr::new(local, 0))?;
        }
        match connect(&socket, &to) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(errno) => return Err(errno),
        }
        Ok(Self {
            socket,
            is_connected: false,
            session,
            kept: Vec::new(),
            plain: Vec::new(),
            early: Vec::new(),
            outgoing: Vec::new(),
            written: 0,
            awaits_room: true,
            is_touched: false,
        })
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns whether packets may be sent.
    pub(super) fn is_open(&self) -> bool {
        let is_handshaking = self
            .session
            .as_ref()
            .is_some_and(TlsSession::is_handshaking);
        self.is_connected && !is_handshaking
    }

    /// Returns how many bytes wait to be written.
    pub(super) fn waiting(&self) -> usize {
        self.outgoing.len() - self.written
    }

    /// Has the end of this connection be a reset, after which its port can be had again.
    pub(super) fn reset(self) {
        // What it is closed with otherwise does as well, only not as often.
        let _ = sockopt::set_socket_linger(&self.socket, Some(Duration::ZERO));
    }

    /// Queues messages of `len` bytes each; a record for each if there are records.
    ///
    /// # Errors
    /// The session has come to its end.
    pub(super) fn say(&mut self, messages: &[u8], len: usize) -> Result<(), Failure> {
        match &mut self.session {
            None => self.outgoing.extend_from_slice(messages),
            Some(session) if session.is_handshaking() => self.early.extend_from_slice(messages),
            Some(session) => session.seal(messages, len, &mut self.outgoing)?,
        }
        Ok(())
    }

    /// Does what readiness allows: finds out whether it is connected, and reads once into `buffer`. Hands whole messages to `each`.
    ///
    /// # Errors
    /// The connection has ended, or could not be had; or what came is not TURN.
    pub(super) fn ready(
        &mut self,
        flags: EventFlags,
        buffer: &mut [u8],
        each: impl FnMut(&[u8]),
    ) -> Result<(), Failure> {
        if !self.is_connected {
            match sockopt::socket_error(&self.socket) {
                Ok(Ok(())) if flags.contains(EventFlags::OUT) => self.is_connected = true,
                Ok(Ok(())) => return Ok(()),
                Ok(Err(_)) | Err(_) => return Err(Failure::Disconnected),
            }
            if let Some(session) = &mut self.session {
                session.read(&mut [], &mut self.outgoing, |_| Ok(()))?;
            }
        }
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            self.read(buffer, each)?;
        }
        Ok(())
    }

    fn read(&mut self, buffer: &mut [u8], mut each: impl FnMut(&[u8])) -> Result<(), Failure> {
        let begin = self.kept.len();
        let room = buffer.get_mut(begin..begin + READ_LEN);
        // More than a record and a message is kept of nothing that makes sense.
        let room = room.ok_or(Failure::BadAnswer)?;
        let len = match recv(&self.socket, room, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err(self.failure()),
            Ok((received, _)) => begin + received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(_) => return Err(self.failure()),
        };
        buffer[..begin].copy_from_slice(&self.kept);
        let bytes = &mut buffer[..len];
        let Some(session) = &mut self.session else {
            let used = split(bytes, &mut each)?;
            self.kept.clear();
            self.kept.extend_from_slice(&bytes[used..]);
            return Ok(());
        };
        let plain = &mut self.plain;
        let used = session.read(bytes, &mut self.outgoing, |record| {
            if plain.is_empty() {
                let used = split(record, &mut each)?;
                plain.extend_from_slice(&record[used..]);
            } else {
                plain.extend_from_slice(record);
                let used = split(plain, &mut each)?;
                plain.drain(..used);
            }
            Ok(())
        })?;
        self.kept.clear();
        self.kept.extend_from_slice(&bytes[used..]);
        if !self.early.is_empty() && !session.is_handshaking() {
            session.seal(&self.early, self.early.len(), &mut self.outgoing)?;
            self.early = Vec::new();
        }
        Ok(())
    }

    /// Returns what the end of the connection means now.
    fn failure(&self) -> Failure {
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
    /// The connection has ended.
    pub(super) fn flush(
        &mut self,
        epoll: &OwnedFd,
        index: usize,
        writes: &mut u64,
    ) -> Result<(), Errno> {
        if !self.is_connected {
            return Ok(());
        }
        while self.written < self.outgoing.len() {
            *writes += 1;
            let bytes = &self.outgoing[self.written..];
            match send(
                &self.socket,
                bytes,
                SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
            ) {
                Ok(written) => self.written += written,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(errno) => return Err(errno),
            }
        }
        let awaits_room = self.written < self.outgoing.len();
        if awaits_room {
            // What was written is moved out of the way when it is most of it.
            if self.written > self.outgoing.len() / 2 {
                self.outgoing.drain(..self.written);
                self.written = 0;
            }
        } else {
            self.outgoing.clear();
            self.written = 0;
        }
        if awaits_room != self.awaits_room {
            self.awaits_room = awaits_room;
            let mut flags = EventFlags::IN;
            flags.set(EventFlags::OUT, awaits_room);
            epoll::modify(epoll, &self.socket, EventData::new_u64(index as u64), flags)?;
        }
        Ok(())
    }
}

/// Hands the whole messages in `bytes` to `each`. Returns where the last one ends.
///
/// # Errors
/// What follows is neither STUN nor ChannelData.
fn split(bytes: &[u8], mut each: impl FnMut(&[u8])) -> Result<usize, Failure> {
    let mut start = 0;
    while let [first, _, high, low, ..] = bytes[start..] {
        let len = usize::from(u16::from_be_bytes([high, low]));
        let whole = match first {
            // RFC 8489 §5
            0..0x40 => STUN_HEADER_LEN + len,
            // RFC 8656 §12.4, §12.5
            0x40..0x80 => CHANNEL_HEADER_LEN + len.next_multiple_of(4),
            _ => return Err(Failure::BadAnswer),
        };
        let Some(message) = bytes.get(start..start + whole) else {
            break;
        };
        each(message);
        start += whole;
    }
    Ok(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stun(len: u16) -> Vec<u8> {
        let mut message = vec![0, 1];
        message.extend_from_slice(&len.to_be_bytes());
        message.resize(STUN_HEADER_LEN + usize::from(len), 7);
        message
    }

    fn channel_data(len: u16) -> Vec<u8> {
        let mut message = vec![0x40, 0];
        message.extend_from_slice(&len.to_be_bytes());
        message.resize(CHANNEL_HEADER_LEN + usize::from(len).next_multiple_of(4), 9);
        message
    }

    #[test]
    fn messages_come_whole_however_they_are_cut() {
        let messages = [
            stun(0),
            channel_data(0),
            channel_data(121),
            stun(64),
            channel_data(u16::MAX),
        ];
        let bytes = messages.concat();
        for piece in [1, 3, 4, 19, 1_000, bytes.len()] {
            let (mut seen, mut kept) = (Vec::new(), Vec::new());
            for part in bytes.chunks(piece) {
                kept.extend_from_slice(part);
                let used = split(&kept, |message| seen.push(message.to_vec())).unwrap();
                kept.drain(..used);
            }
            assert!(kept.is_empty());
            assert_eq!(seen, messages, "pieces of {piece}");
        }
    }

    #[test]
    fn what_is_neither_stun_nor_channel_data_is_no_answer() {
        let bytes = [stun(4), vec![0x80; 20]].concat();
        let mut seen = 0;
        assert_eq!(split(&bytes, |_| seen += 1), Err(Failure::BadAnswer));
        assert_eq!(seen, 1);
    }
}
