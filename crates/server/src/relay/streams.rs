//! Clients that come by TCP or TLS: their connections, and the messages in what is read from them.
//!
//! The first bytes tell what a connection is, see `relay/opening.rs`. Handshakes take so
//! much time that they could hold up everybody's media: a connection from which no message has come yet is a stranger to the data path, which
//! serves it when the turn's media has left and for a bounded time.
//!
//! Consecutive channel messages of one reading form a train as those of one GRO buffer do, and leave as one. What is left of
//! a reading behind its last whole message is kept by the data path and comes again.

use std::io;
use std::net::SocketAddr;

use turnbuckle_datapath::{
    Accepted, EndpointId, Payload, SendQueue, StreamEnd, StreamId, StreamInput, StreamListenerId,
    Taken,
};
use turnbuckle_engine::{ClientTuple, Command, DropReason, Endpoint, PeerEnd};

use super::roaming::channel_message_len;
use super::tcp::peer_end;
use super::{Relay, SocketDue, len_u32, padding};
use crate::counters::CloseReason;
use crate::stream::{Awaited, Frame, STRANGER_LEN_MAX};
use crate::tls::Session;
use crate::train::Train;

/// The engine's names of listeners for connections begin here: no endpoint of the data path has such a number, since it
/// would have to be the four millionth that is open, and open for the thousandth time.
pub(super) const STREAM_LISTENERS: u32 = 0xFFFF_0000;
/// Longest message of a client that has an allocation: the longest there can be.
const MESSAGE_LEN_MAX: usize = 65_568;
/// Messages of one connection that are handled in a turn: more than a reading holds of those that carry media.
// guard: V-46-messages
const MESSAGES_PER_TURN: usize = 512;
/// Steps of the timer wheel per turn.
const TIMEOUTS_PER_TURN: u32 = 256;

impl Relay {
    /// Makes known where connections arrive.
    pub(crate) fn add_stream_listener(
        &mut self,
        listener: StreamListenerId,
        token: u64,
        local: SocketAddr,
    ) {
        self.engine.add_listener(endpoint(token), local);
        self.stream_listeners.push(listener);
    }

    /// Where connections arrive.
    pub(crate) fn stream_listeners(&self) -> &[StreamListenerId] {
        &self.stream_listeners
    }

    /// Takes a connection in, or says that it has to go at once.
    pub(super) fn connection_accepted(
        &mut self,
        stream: StreamId,
        accepted: &Accepted,
        tx: &mut SendQueue,
    ) -> bool {
        self.counters.connections.add(1);
        let listener = endpoint(accepted.token);
        let remote = accepted.remote;
        let awaited = match self.proxies.may_speak_for_connection(remote.ip()) {
            true => Awaited::Header,
            // guard: proxy-port
            false if self.proxies.only => {
                self.counters.closed(CloseReason::ProxyRefused);
                return false;
            }
            false => Awaited::Transport,
        };
        // A proxy's own address stands for many clients.
        let source = (awaited != Awaited::Header).then(|| remote.ip());
        let Self {
            connections,
            engine,
            roaming,
            ..
        } = self;
        let displaced = connections.make_room(source, |client| {
            engine.client(client).is_some() || roaming.has_home(client)
        });
        if let Some(displaced) = displaced {
            tx.close_stream(displaced);
        }
        connections.add(self.now.time, stream, listener, remote, awaited);
        self.log.connected(remote, self.now.time);
        true
    }

    /// Whether a connection is read in this turn.
    #[inline]
    pub(super) fn may_read_connection(&self, stream: StreamId) -> bool {
        let Some(connection) = self.connections.get(stream) else {
            return true;
        };
        !connection.is_departing
    }

    pub(super) fn connection_received(
        &mut self,
        input: &mut StreamInput<'_>,
        tx: &mut SendQueue,
    ) -> Taken {
        let stream = input.stream;
        if let Some(peer) = self.peers.get(stream) {
            return match peer.client {
                Some(client) => self.relayed_to_client(input, client, peer.connection, tx),
                None => Taken::Close, // it is not read before it is joined
            };
        }
        let taken = match self.open_transport(input, tx) {
            Ok(false) => return Taken::AllBut([0..input.bytes().len(), 0..0]),
            Ok(true) => match self.connections.get_mut(stream) {
                None => return Taken::Close,
                Some(connection) => {
                    let client = connection.client;
                    match connection.tls.take() {
                        None => self.plain_received(client, input, tx),
                        Some(mut session) => {
                            let taken = self.sealed_received(client, &mut session, input, tx);
                            if let Some(connection) = self.connections.get_mut(stream) {
                                connection.tls = Some(session);
                            }
                            taken
                        }
                    }
                }
            },
            Err(reason) => Err(reason),
        };
        taken.unwrap_or_else(|reason| {
            self.connections.close(stream, reason);
            Taken::Close
        })
    }

    /// What came on a TCP connection.
    fn plain_received(
        &mut self,
        client: ClientTuple,
        input: &mut StreamInput<'_>,
        tx: &mut SendQueue,
    ) -> Result<Taken, CloseReason> {
        let len = input.bytes().len();
        let end = self.application(client, input.bytes(), input, tx)?;
        self.connections
            .progressed(self.now.time, input.stream, end > 0, end < len);
        if std::mem::take(&mut self.is_cut) {
            input.cut();
        } else if let Some(connection) = self.connections.get(input.stream)
            && connection.awaited == Awaited::Messages
            && let Some(whole) = Frame::announced_len(&input.bytes()[end..])
        {
            input.await_len(whole);
        }
        Ok(Taken::AllBut([end..len, 0..0]))
    }

    /// What came on a TLS connection.
    fn sealed_received(
        &mut self,
        client: ClientTuple,
        session: &mut Session,
        input: &mut StreamInput<'_>,
        tx: &mut SendQueue,
    ) -> Result<Taken, CloseReason> {
        let was_handshaking = session.is_handshaking();
        let mut plain = std::mem::take(&mut self.plain);
        let mut raw = std::mem::take(&mut self.raw);
        plain.clear();
        raw.clear();
        plain.append(&mut session.kept);
        let read = session.read(input.bytes_mut(), &mut plain, &mut raw);
        if !raw.is_empty() {
            tx.stream_raw(input.stream, &raw);
        }
        if was_handshaking && !session.is_handshaking() {
            self.connections.handshake_done(self.now.time, input.stream);
            if self.log.tells_as_coturn()
                && let Some(connection) = self.connections.get_mut(input.stream)
            {
                connection.seal = session.protection();
            }
        }
        let taken = match read {
            Err(_) if was_handshaking => Err(CloseReason::HandshakeFailed),
            Err(_) => Err(CloseReason::TlsFailed),
            Ok(progress)
                if session.is_handshaking()
                    && !self
                        .connections
                        .keep_of_handshake(input.stream, input.bytes().len() - progress.used) =>
            {
                Err(CloseReason::HandshakeCrowded)
            }
            Ok(progress) => {
                let staged = tx.stage(&plain);
                // Nothing comes after the end, so all that was sent is handled now.
                self.is_last = progress.is_closed;
                self.application(client, &plain, &staged, tx)
                    .and_then(|end| {
                        self.is_last = false;
                        if std::mem::take(&mut self.is_cut) {
                            input.cut();
                        }
                        let is_begun = end < plain.len();
                        session.kept.extend_from_slice(&plain[end..]);
                        let len = input.bytes().len();
                        self.connections
                            .progressed(self.now.time, input.stream, end > 0, is_begun);
                        if progress.is_closed {
                            let connection = self.connections.get(input.stream);
                            let is_joined = connection.is_some_and(|it| it.joined.is_some());
                            return match is_joined {
                                true => Ok(Taken::Ended),
                                false => Err(CloseReason::Remote),
                            };
                        }
                        Ok(Taken::AllBut([progress.used..len, 0..0]))
                    })
            }
        };
        self.plain = plain;
        self.raw = raw;
        taken
    }

    /// Handles the whole messages in `bytes`, which lie in `payload`. Returns where the last one ends.
    ///
    /// # Errors
    ///
    /// What follows cannot be a message, and is counted as one that was dropped.
    pub(super) fn messages(
        &mut self,
        client: ClientTuple,
        bytes: &[u8],
        payload: &impl Payload,
        tx: &mut SendQueue,
    ) -> Result<usize, CloseReason> {
        if self.relayed_to_peer(client, bytes, 0, payload, tx) {
            return Ok(bytes.len());
        }
        let mut start = 0;
        let mut left = match std::mem::take(&mut self.is_last) {
            true => usize::MAX,
            false => MESSAGES_PER_TURN,
        };
        let mut allocation = self.engine.client(&client);
        // guard: V-47-held, V-47-proof
        let has_allocation = allocation.is_some() || self.roaming.has_home(&client);
        self.connections
            .allocated(self.now.time, &client, has_allocation);
        let result = loop {
            let has_home = self.roaming.has_home(&client);
            let len_max = if allocation.is_some() || has_home {
                MESSAGE_LEN_MAX
            } else {
                STRANGER_LEN_MAX
            };
            match Frame::at(&bytes[start..], len_max) {
                Frame::Incomplete => break Ok(start),
                _ if left == 0 => {
                    self.is_cut = true;
                    break Ok(start);
                }
                Frame::Stun(len) if has_home => {
                    self.counters.client_in.add(1);
                    self.sent_home(client, &bytes[start..start + len]);
                    start += len;
                    left -= 1;
                }
                Frame::ChannelData if has_home => {
                    self.counters.client_in.add(1);
                    let len = channel_message_len(&bytes[start..]);
                    self.sent_home(client, &bytes[start..start + len]);
                    start += len + usize::from(padding(len));
                    left -= 1;
                }
                Frame::Stun(len) => {
                    self.counters.client_in.add(1);
                    self.control(client, &bytes[start..start + len], payload, start, tx);
                    // It may have ended the allocation.
                    allocation = self.engine.client(&client);
                    start += len;
                    left -= 1;
                    // It may have been a ConnectionBind: what follows is for a peer then.
                    let is_relayed = self.relayed_to_peer(client, bytes, start, payload, tx)
                        || self.departs_with(client, &bytes[start..]);
                    if is_relayed {
                        self.counters.client_in_bytes.add(start as u64);
                        return Ok(bytes.len());
                    }
                }
                Frame::ChannelData => {
                    let Ok(train) = Train::in_stream(bytes, start) else {
                        // A frame is whole, so there is a train.
                        break Err(DropReason::MalformedChannelData);
                    };
                    let train = train.first(start, left);
                    start = train.end;
                    left -= train.run.count;
                    let datagrams = train.run.count as u64;
                    self.counters.client_in.add(datagrams);
                    allocation = self.sender_of_data(&client, allocation);
                    let routed = match allocation {
                        Some(allocation) => self.engine.route_channel_data(
                            self.now.time,
                            allocation,
                            train.channel,
                            len_u32(train.run.count),
                            train.payload_bytes(),
                        ),
                        None => Err(DropReason::NoAllocation),
                    };
                    match routed {
                        Ok(route) => {
                            let run = self.admitted(train.run, route.datagrams);
                            self.counters.peer_queued.add(run.count as u64);
                            let relay = EndpointId::from_u32(route.relay.0);
                            tx.forward(relay, route.peer.address(), payload, run, &[], 0);
                        }
                        Err(reason) => self.counters.dropped(reason, datagrams),
                    }
                }
                Frame::Invalid(reason) => break Err(reason),
            }
        };
        self.counters.client_in_bytes.add(start as u64);
        result.map_err(|reason| {
            self.counters.client_in.add(1);
            self.counters.dropped(reason, 1);
            CloseReason::Malformed
        })
    }

    /// Whether a connection speaks TLS.
    #[inline]
    pub(super) fn is_connection_sealed(&self, stream: StreamId) -> bool {
        let connection = self.connections.get(stream);
        connection.is_some_and(|connection| connection.tls.is_some())
    }

    /// Appends what stands for `plain` on a TLS connection.
    pub(super) fn seal_connection(
        &mut self,
        stream: StreamId,
        plain: &[u8],
        sealed: &mut Vec<u8>,
    ) -> io::Result<()> {
        let connection = self.connections.get_mut(stream);
        let session = connection.and_then(|connection| connection.tls.as_mut());
        session
            .ok_or(io::ErrorKind::NotConnected)?
            .seal(plain, sealed)
    }

    /// Closes the connections whose time is over.
    pub(super) fn close_overdue_connections(&mut self, tx: &mut SendQueue) {
        let Self {
            connections,
            engine,
            now,
            raw,
            roaming,
            ..
        } = self;
        let mut budget = TIMEOUTS_PER_TURN;
        while let Some(stream) = connections.pop_due(now.time, &mut budget, |client| {
            engine.client(client).is_some() || roaming.has_home(client)
        }) {
            let connection = connections.get_mut(stream);
            if let Some(session) = connection.and_then(|connection| connection.tls.as_mut()) {
                raw.clear();
                session.say_goodbye(raw);
                tx.stream_raw(stream, raw);
            }
            tx.close_stream(stream);
        }
    }

    pub(super) fn connection_closed(&mut self, stream: StreamId, end: StreamEnd) {
        let Some(connection) = self.connections.remove(stream) else {
            return;
        };
        let reason = connection.closing.unwrap_or_else(|| match end {
            StreamEnd::Congested => CloseReason::Congested,
            StreamEnd::Failed => CloseReason::Failed,
            StreamEnd::Finished => match connection.joined.as_ref().and_then(|it| it.ended) {
                Some((PeerEnd::PeerClosed, _)) => CloseReason::PeerClosed,
                _ => CloseReason::Remote,
            },
            StreamEnd::Local => CloseReason::Stopped,
            StreamEnd::Remote => CloseReason::Remote,
        });
        self.counters.closed(reason);
        if let Some(joined) = &connection.joined {
            let cause = peer_end(connection.joined.as_deref(), end);
            self.engine.peer_disconnected(joined.connection, cause);
        }
        let is_orderly = !matches!(end, StreamEnd::Congested | StreamEnd::Failed);
        self.tell_disconnected(&connection.client, is_orderly);
        self.engine.disconnected(self.now, &connection.client);
        self.roamer_gone(&connection.client);
        let Self {
            engine,
            counters,
            sockets_due,
            ..
        } = self;
        engine.with_commands(|command| match command {
            Command::ClosePeer { connection } => sockets_due.push(SocketDue::ClosePeer(connection)),
            Command::CloseRelay { endpoint } => sockets_due.push(SocketDue::Close(endpoint)),
            // what a connection that is gone could have asked for
            Command::Connect { .. } | Command::Join { .. } => {}
            Command::OpenRelay {
                request,
                address,
                handle,
                protocol,
            } => sockets_due.push(SocketDue::Open {
                request,
                address,
                handle,
                protocol,
            }),
            // The answer to a request that was under way: nobody is there to read it.
            Command::Reply { .. } => {
                counters.client_queued.add(1);
                counters.client_refused.add(1);
                counters.dropped(DropReason::SocketClosed, 1);
            }
        });
    }
}

/// The token of listener number `index` for connections.
pub(crate) fn stream_listener_token(index: usize) -> u64 {
    u64::from(STREAM_LISTENERS | (len_u32(index) & 0xFFFF))
}

/// Whether connections of a listener with this token come from clients; the others' are handles of relays, which are no such
/// numbers.
pub(super) fn is_client_listener(token: u64) -> bool {
    u32::try_from(token).is_ok_and(|token| token >= STREAM_LISTENERS)
}

/// The engine's name of the listener with this token.
pub(super) fn endpoint(token: u64) -> Endpoint {
    Endpoint(u32::try_from(token).unwrap_or(u32::MAX))
}
