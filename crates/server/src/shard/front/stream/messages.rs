//! Serves clients that connect by TCP or TLS: finds the messages in the bytes that are read from their connections.
//!
//! The first bytes of a connection show its protocol, see `transport.rs`. Handshakes take enough time to delay the media of other clients. So the
//! data path serves a connection without a first message after it has sent the turn's media, and for a bounded time.
//!
//! Consecutive channel messages of one reading form a train as those of one GRO buffer do, and leave as one. What is left of
//! a reading behind its last whole message is kept by the data path and comes again.

use turnbuckle_datapath::{Payload, SendQueue, StreamInput, Taken};
use turnbuckle_engine::ClientTuple;

use super::StreamFront;
use super::frame::{Frame, STRANGER_LEN_MAX};
use super::tls::TlsSession;
use crate::counters::{CloseReason, StreamDrop};
use crate::shard::hub::Hub;
use crate::shard::train::{Train, channel_message_len, padding};

/// Longest message of a client that has an allocation: the longest there can be.
const MESSAGE_LEN_MAX: usize = 65_568;
/// Messages of one connection that are handled in a turn: more than a reading holds of those that carry media.
// guard: V-46-messages
const MESSAGES_PER_TURN: usize = 512;

impl StreamFront {
    /// Handles what came on a connection of a client.
    pub(in crate::shard) fn received(
        &mut self,
        input: &mut StreamInput<'_>,
        hub: &mut Hub,
        tx: &mut SendQueue,
    ) -> Taken {
        let stream = input.stream;
        let taken = match self.open_transport(input, hub, tx) {
            Ok(false) => return Taken::AllBut([0..input.bytes().len(), 0..0]),
            Ok(true) => match self.connections.get_mut(stream) {
                None => return Taken::Close,
                Some(connection) => {
                    let client = connection.client;
                    match connection.tls.take() {
                        None => self.plain_received(client, input, hub, tx),
                        Some(mut session) => {
                            let taken = self.sealed_received(client, &mut session, input, hub, tx);
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
        if input.is_stranger && !self.connections.is_stranger(stream) {
            tx.prove_stream(stream);
        }
        taken.unwrap_or_else(|reason| {
            self.connections.close(stream, reason);
            Taken::Close
        })
    }

    /// Handles the bytes that were received on a TCP connection.
    fn plain_received(
        &mut self,
        client: ClientTuple,
        input: &mut StreamInput<'_>,
        hub: &mut Hub,
        tx: &mut SendQueue,
    ) -> Result<Taken, CloseReason> {
        let len = input.bytes().len();
        let end = self.application(client, input.bytes(), input, hub, tx)?;
        self.connections
            .progressed(hub.now.time, input.stream, end > 0, end < len);
        if std::mem::take(&mut self.is_cut) {
            input.cut();
        } else if let Some(connection) = self.connections.get(input.stream)
            && let Some(whole) = connection.announced_len(&input.bytes()[end..])
        {
            input.await_len(whole);
        }
        Ok(Taken::AllBut([end..len, 0..0]))
    }

    /// Handles the bytes that were received on a TLS connection.
    fn sealed_received(
        &mut self,
        client: ClientTuple,
        session: &mut TlsSession,
        input: &mut StreamInput<'_>,
        hub: &mut Hub,
        tx: &mut SendQueue,
    ) -> Result<Taken, CloseReason> {
        let was_handshaking = session.is_handshaking();
        let mut plain = std::mem::take(&mut self.plain);
        let mut raw = std::mem::take(&mut self.raw);
        plain.clear();
        raw.clear();
        let read = session.read(input.bytes_mut(), &mut plain, &mut raw);
        if !raw.is_empty() {
            tx.stream_raw(input.stream, &raw);
        }
        if was_handshaking && !session.is_handshaking() {
            self.connections.handshake_done(hub.now.time, input.stream);
            if let Some(connection) = self.connections.get_mut(input.stream) {
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
            Ok(progress) if !progress.is_closed && !session.kept.completes(&mut plain) => {
                Ok(Taken::AllBut([progress.used..input.bytes().len(), 0..0]))
            }
            Ok(progress) => {
                session.kept.put_before(&mut plain);
                let staged = tx.stage(&plain);
                // Nothing comes after the end, so all that was sent is handled now.
                self.is_last = progress.is_closed;
                let handled = self.application(client, &plain, &staged, hub, tx);
                self.is_last = false;
                handled.and_then(|end| {
                    if std::mem::take(&mut self.is_cut) {
                        input.cut();
                    }
                    let is_begun = end < plain.len();
                    let rest = &plain[end..];
                    let connection = self.connections.get(input.stream);
                    let whole_len = connection.and_then(|it| it.announced_len(rest));
                    session.kept.keep(rest, whole_len);
                    let len = input.bytes().len();
                    self.connections
                        .progressed(hub.now.time, input.stream, end > 0, is_begun);
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

    /// Returns how many messages of a connection may be handled in this turn: all of them if nothing follows.
    pub(super) const fn messages_of_turn(&self) -> usize {
        match self.is_last {
            true => usize::MAX,
            false => MESSAGES_PER_TURN,
        }
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
        hub: &mut Hub,
        tx: &mut SendQueue,
    ) -> Result<usize, CloseReason> {
        if self.relayed_to_peer(client, bytes, 0, payload, hub, tx) {
            return Ok(bytes.len());
        }
        let mut start = 0;
        let mut left = self.messages_of_turn();
        let mut allocation = hub.engine.client(&client);
        // guard: V-47-held, V-47-proof
        let has_allocation = allocation.is_some() || hub.across.has_home(&client);
        self.connections
            .allocated(hub.now.time, &client, has_allocation);
        let result = loop {
            let has_home = hub.across.has_home(&client);
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
                    self.counters.datagrams.client_in.add(1);
                    hub.forwarded_to_home(client, &bytes[start..start + len]);
                    start += len;
                    left -= 1;
                }
                Frame::ChannelData if has_home => {
                    self.counters.datagrams.client_in.add(1);
                    let len = channel_message_len(&bytes[start..]);
                    hub.forwarded_to_home(client, &bytes[start..start + len]);
                    start += len + usize::from(padding(len));
                    left -= 1;
                }
                Frame::Stun(len) => {
                    self.counters.datagrams.client_in.add(1);
                    hub.control(client, &bytes[start..start + len], payload, start, self, tx);
                    // The message may have ended the allocation.
                    allocation = hub.engine.client(&client);
                    start += len;
                    left -= 1;
                    // The message may have been a ConnectionBind request. In that case the bytes behind it are for a peer.
                    let is_relayed = self.relayed_to_peer(client, bytes, start, payload, hub, tx)
                        || self.leaves_with(client, &bytes[start..], hub);
                    if is_relayed {
                        self.counters.datagrams.client_in_bytes.add(start as u64);
                        return Ok(bytes.len());
                    }
                }
                Frame::ChannelData => {
                    let Ok(train) = Train::in_stream(bytes, start) else {
                        // The frame is complete, so there is a train.
                        break Err(StreamDrop::MalformedChannelData);
                    };
                    let train = train.first(start, left);
                    start = train.end;
                    left -= train.run.count;
                    self.counters
                        .datagrams
                        .client_in
                        .add(train.run.count as u64);
                    allocation = hub.sender_of_data(&client, allocation);
                    hub.train(allocation, &train, payload, tx);
                }
                Frame::Invalid(reason) => break Err(reason),
            }
        };
        self.counters.datagrams.client_in_bytes.add(start as u64);
        result.map_err(|reason| {
            self.counters.datagrams.client_in.add(1);
            self.counters.dropped(reason, 1);
            CloseReason::Malformed
        })
    }

    /// Relays `bytes` from `start` on, if the client's connection is joined with a peer data connection. Returns whether it is, or is about to
    /// leave this shard, so that these bytes are not messages.
    pub(super) fn relayed_to_peer(
        &mut self,
        client: ClientTuple,
        bytes: &[u8],
        start: usize,
        payload: &impl Payload,
        hub: &mut Hub,
        tx: &mut SendQueue,
    ) -> bool {
        let Some(connection) = self.connections.of_client_mut(&client) else {
            return false;
        };
        let Some(joined) = &mut connection.joined else {
            return false;
        };
        if start < bytes.len() {
            joined.progressed(hub.now.time);
            let peer = (joined.peer, joined.connection);
            hub.relay_to_peer(connection.id, peer, payload, start..bytes.len(), tx);
        }
        true
    }

    /// Keeps the bytes behind the request of a connection that moves to another shard. Returns whether it moves.
    fn leaves_with(&self, client: ClientTuple, rest: &[u8], hub: &mut Hub) -> bool {
        let stream = self.connections.of_client(&client).map(|it| it.id);
        hub.across.leaves_with(stream, rest)
    }
}
