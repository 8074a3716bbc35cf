//! Clients that come by TCP: their connections, and the messages in what is read from them.
//!
//! Consecutive channel messages of one reading form a train as those of one GRO buffer do, and leave as one. What is left of
//! a reading behind its last whole message is kept by the data path and comes again.

use std::ops::Range;

use turnbuckle_datapath::{
    Accepted, EndpointId, SendQueue, StreamEnd, StreamId, StreamInput, StreamListenerId, Taken,
};
use turnbuckle_engine::{ClientTuple, Command, DropReason, Endpoint};

use super::{Relay, SocketDue, len_u32};
use crate::counters::CloseReason;
use crate::stream::{Frame, STRANGER_LEN_MAX};
use crate::train::Train;

/// The engine's names of listeners for connections begin here: no endpoint of the data path has such a number, since it
/// would have to be the four millionth that is open, and open for the thousandth time.
const STREAM_LISTENERS: u32 = 0xFFFF_0000;
/// Longest message of a client that has an allocation: the longest there can be.
const MESSAGE_LEN_MAX: usize = 65_568;
/// Steps of the timer wheel per turn.
const TIMEOUTS_PER_TURN: u32 = 256;

impl Relay {
    /// Makes known where connections arrive.
    pub(crate) fn add_stream_listener(
        &mut self,
        listener: StreamListenerId,
        token: u64,
        local: std::net::SocketAddr,
    ) {
        self.engine.add_listener(endpoint(token), local);
        self.stream_listeners.push(listener);
    }

    /// Where connections arrive.
    pub(crate) fn stream_listeners(&self) -> &[StreamListenerId] {
        &self.stream_listeners
    }

    pub(super) fn connection_accepted(
        &mut self,
        stream: StreamId,
        accepted: &Accepted,
        tx: &mut SendQueue,
    ) {
        self.counters.connections.add(1);
        let listener = endpoint(accepted.token);
        let evicted = self
            .connections
            .add(self.now.time, stream, listener, accepted.remote);
        if let Some(evicted) = evicted {
            tx.close_stream(evicted);
        }
    }

    pub(super) fn connection_received(
        &mut self,
        input: &StreamInput<'_>,
        tx: &mut SendQueue,
    ) -> Taken {
        let stream = input.stream;
        let Some(connection) = self.connections.get(stream) else {
            return Taken::Close;
        };
        let client = connection.client;
        let len = input.bytes().len();
        match self.messages(client, input, 0..len, tx) {
            Ok(end) => {
                self.connections
                    .progressed(self.now.time, stream, end > 0, end < len);
                Taken::AllBut([end..len, 0..0])
            }
            Err(reason) => {
                self.connections.close(stream, reason);
                Taken::Close
            }
        }
    }

    /// Handles the whole messages in a part of what was read. Returns where the last one ends.
    ///
    /// # Errors
    ///
    /// What follows cannot be a message, and is counted as one that was dropped.
    fn messages(
        &mut self,
        client: ClientTuple,
        input: &StreamInput<'_>,
        part: Range<usize>,
        tx: &mut SendQueue,
    ) -> Result<usize, CloseReason> {
        let bytes = &input.bytes()[..part.end];
        let mut start = part.start;
        let mut allocation = self.engine.client(&client);
        let result = loop {
            let len_max = if allocation.is_some() {
                MESSAGE_LEN_MAX
            } else {
                STRANGER_LEN_MAX
            };
            match Frame::at(&bytes[start..], len_max) {
                Frame::Incomplete => break Ok(start),
                Frame::Stun(len) => {
                    self.counters.client_in.add(1);
                    self.control(client, &bytes[start..start + len], input, start, tx);
                    // It may have ended the allocation.
                    allocation = self.engine.client(&client);
                    start += len;
                }
                Frame::ChannelData => {
                    let Ok(train) = Train::in_stream(bytes, start) else {
                        // A frame is whole, so there is a train.
                        break Err(DropReason::MalformedChannelData);
                    };
                    start = train.end;
                    let datagrams = train.run.count as u64;
                    self.counters.client_in.add(datagrams);
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
                            self.counters.peer_queued.add(datagrams);
                            let relay = EndpointId::from_u32(route.relay.0);
                            tx.forward(relay, route.peer.address(), input, train.run, &[], 0);
                        }
                        Err(reason) => self.counters.dropped(reason, datagrams),
                    }
                }
                Frame::Invalid(reason) => break Err(reason),
            }
        };
        self.counters
            .client_in_bytes
            .add((start - part.start) as u64);
        result.map_err(|reason| {
            self.counters.client_in.add(1);
            self.counters.dropped(reason, 1);
            CloseReason::Malformed
        })
    }

    /// Closes the connections whose time is over.
    pub(super) fn close_overdue_connections(&mut self, tx: &mut SendQueue) {
        let Self {
            connections,
            engine,
            now,
            ..
        } = self;
        let mut budget = TIMEOUTS_PER_TURN;
        while let Some(stream) = connections.pop_due(now.time, &mut budget, |client| {
            engine.client(client).is_some()
        }) {
            tx.close_stream(stream);
        }
    }

    pub(super) fn connection_closed(&mut self, stream: StreamId, end: StreamEnd) {
        let Some(connection) = self.connections.remove(stream) else {
            return;
        };
        let reason = connection.closing.unwrap_or(match end {
            StreamEnd::Congested => CloseReason::Congested,
            StreamEnd::Failed => CloseReason::Failed,
            StreamEnd::Local => CloseReason::Stopped,
            StreamEnd::Remote => CloseReason::Remote,
        });
        self.counters.closed(reason);
        self.engine.disconnected(self.now, &connection.client);
        let Self {
            engine,
            counters,
            sockets_due,
            ..
        } = self;
        engine.with_commands(|command| match command {
            Command::CloseRelay { endpoint } => sockets_due.push(SocketDue::Close(endpoint)),
            Command::OpenRelay {
                request,
                address,
                handle,
            } => sockets_due.push(SocketDue::Open {
                request,
                address,
                handle,
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

/// The engine's name of the listener with this token.
fn endpoint(token: u64) -> Endpoint {
    Endpoint(u32::try_from(token).unwrap_or(u32::MAX))
}
