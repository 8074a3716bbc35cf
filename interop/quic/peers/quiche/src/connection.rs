//! A connection of quiche with its sockets, one for each path.

use std::io::{ErrorKind, Read as _};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use exchange::{Payload, head};
use mio::net::UdpSocket;
use mio::{Events, Interest, Poll, Token};
use quiche::{ConnectionId, PathEvent, RecvInfo};

/// Bytes of the largest datagram, either way.
pub const DATAGRAM_MAX: usize = 1_350;
/// The one stream: the first that a client opens both ways.
const STREAM: u64 = 0;
/// Bytes of the head of an answer.
const HEAD: usize = 12;

pub struct Connection {
    quic: quiche::Connection,
    poll: Poll,
    sockets: Vec<UdpSocket>,
    server: SocketAddr,
    until: Instant,
    buffer: Vec<u8>,
}

/// What became of an exchange whose bytes were those that were wanted.
pub struct Done {
    pub is_resumed: bool,
    /// For the next connection.
    pub session: Option<Vec<u8>>,
    /// Ports from which the connection went on.
    pub paths: usize,
}

impl Connection {
    pub fn open(server: SocketAddr, config: &mut quiche::Config, session: Option<&[u8]>, timeout: Duration) -> anyhow::Result<Self> {
        let poll = Poll::new()?;
        let socket = socket(server, &poll, 0)?;
        let id = random::<16>()?;
        let mut quic = quiche::connect(Some("localhost"), &ConnectionId::from_ref(&id), socket.local_addr()?, server, config)?;
        if let Some(session) = session {
            quic.set_session(session)?;
        }
        Ok(Self {
            quic,
            poll,
            sockets: vec![socket],
            server,
            until: Instant::now() + timeout,
            buffer: vec![0; 1 << 16],
        })
    }

    /// Sends what is to be sent, and compares what comes with what was wanted. With `changes_path` it goes on from another port in the middle.
    pub fn exchange(&mut self, sent: Payload<'_>, wanted: Payload<'_>, changes_path: bool) -> anyhow::Result<Done> {
        let ask = wanted.checked().0.to_be_bytes();
        let (mut pieces, mut piece) = (sent.pieces(), &ask[..]);
        let (mut answer, mut bytes_sent, mut is_sent, mut is_received) = (Vec::new(), 0, false, false);
        let middle = (sent.checked().0 + wanted.checked().0) / 2;
        let mut changes_path = changes_path;
        while !is_received {
            self.turn()?;
            if !self.quic.is_established() {
                continue;
            }
            while !is_sent {
                let Some(count) = some(self.quic.stream_send(STREAM, piece, false))? else { break };
                bytes_sent += count as u64;
                piece = &piece[count..];
                if piece.is_empty() {
                    match pieces.next() {
                        Some(next) => piece = next,
                        None => {
                            self.quic.stream_send(STREAM, &[], true)?;
                            is_sent = true;
                        }
                    }
                }
            }
            while let Some((count, is_last)) = self.read()? {
                answer.extend_from_slice(&self.buffer[..count]);
                is_received |= is_last;
            }
            if changes_path && bytes_sent + answer.len() as u64 >= middle {
                changes_path = !self.change_path()?;
            }
        }
        let is_whole = answer.split_at_checked(HEAD).is_some_and(|(head_came, came)| {
            head_came == head(sent.checked()) && (came.len() as u64, crc32fast::hash(came)) == wanted.checked()
        });
        ensure!(is_whole, "other bytes arrived than were sent");
        ensure!(!changes_path, "the transfer was over before there was another path");
        let done = Done {
            is_resumed: self.quic.is_resumed(),
            session: self.quic.session().map(<[u8]>::to_vec),
            paths: self.sockets.len(),
        };
        self.quic.close(true, 0, b"done")?;
        self.send()?;
        Ok(done)
    }

    /// Reads bytes of the stream into the buffer, and returns how many and whether they are its last.
    fn read(&mut self) -> anyhow::Result<Option<(usize, bool)>> {
        if !self.quic.stream_readable(STREAM) {
            return Ok(None);
        }
        Ok(some(self.quic.stream_recv(STREAM, &mut self.buffer))?)
    }

    /// Asks for a path from another port, once there are connection ids for it. Returns whether it did.
    fn change_path(&mut self) -> anyhow::Result<bool> {
        if self.quic.available_dcids() == 0 {
            return Ok(false);
        }
        if self.quic.scids_left() > 0 {
            let (id, token) = (random::<16>()?, u128::from_be_bytes(random()?));
            self.quic.new_scid(&ConnectionId::from_ref(&id), token, false)?;
        }
        let socket = socket(self.server, &self.poll, self.sockets.len())?;
        self.quic.probe_path(socket.local_addr()?, self.server)?;
        self.sockets.push(socket);
        Ok(true)
    }

    /// Sends what there is, waits for a datagram or a timer, and receives what has come.
    fn turn(&mut self) -> anyhow::Result<()> {
        self.send()?;
        let now = Instant::now();
        if now >= self.until {
            bail!("not done in time");
        }
        let left = self.until - now;
        let timeout = self.quic.timeout().map_or(left, |timeout| timeout.min(left));
        let mut events = Events::with_capacity(8);
        self.poll.poll(&mut events, Some(timeout))?;
        if self.quic.timeout().is_some_and(|timeout| timeout.is_zero()) {
            self.quic.on_timeout();
        }
        for index in 0..self.sockets.len() {
            self.receive(index)?;
        }
        while let Some(event) = self.quic.path_event_next() {
            match event {
                PathEvent::Validated(local, peer) => {
                    self.quic.migrate(local, peer)?;
                }
                PathEvent::FailedValidation(local, _) => bail!("the path from {local} was not validated"),
                _ => {}
            }
        }
        if self.quic.is_closed() {
            bail!("closed: {:?} by the peer, {:?} here", self.quic.peer_error(), self.quic.local_error());
        }
        Ok(())
    }

    fn send(&mut self) -> anyhow::Result<()> {
        let mut datagram = [0; DATAGRAM_MAX];
        while let Some((count, info)) = some(self.quic.send(&mut datagram))? {
            let from = |socket: &&UdpSocket| socket.local_addr().is_ok_and(|local| local == info.from);
            let socket = self.sockets.iter().find(from).context("a datagram from a port that is not ours")?;
            match socket.send(&datagram[..count]) {
                // A full socket loses a datagram as a network does.
                Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionRefused) => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }

    fn receive(&mut self, index: usize) -> anyhow::Result<()> {
        let to = self.sockets[index].local_addr()?;
        loop {
            match self.sockets[index].recv(&mut self.buffer) {
                Ok(count) => {
                    let info = RecvInfo { from: self.server, to };
                    // What cannot be read is not of this connection: quiche counts it.
                    let _ = self.quic.recv(&mut self.buffer[..count], info);
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionRefused) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Returns what there was, or nothing for now.
fn some<T>(result: quiche::Result<T>) -> quiche::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(quiche::Error::Done) => Ok(None),
        Err(error) => Err(error),
    }
}

fn socket(server: SocketAddr, poll: &Poll, number: usize) -> anyhow::Result<UdpSocket> {
    let mut socket = UdpSocket::from_std(exchange::socket(server)?);
    socket.connect(server)?;
    poll.registry().register(&mut socket, Token(number), Interest::READABLE)?;
    Ok(socket)
}

fn random<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}
