//! How connections come, move to another shard, and end.

use std::net::SocketAddr;

use turnbuckle_datapath::{Admission, SendQueue, Sockets, StreamEnd, StreamId};
use turnbuckle_engine::{PeerEnd, Time};

use super::StreamFront;
use super::connections::Awaited;
use crate::counters::{CloseReason, StreamDrop};
use crate::shard::across::connection::{LeavingConnection, MovedConnection};
use crate::shard::hub::Hub;
use crate::shard::name::SocketName;

/// Steps of the timer wheel per turn.
const TIMEOUTS_PER_TURN: u32 = 256;

impl StreamFront {
    /// Accepts a connection at the listener of this number. Refuses one that does not come from a proxy if only proxies may connect.
    pub(in crate::shard) fn accepted(
        &mut self,
        stream: StreamId,
        listener: u16,
        remote: SocketAddr,
        hub: &mut Hub,
        tx: &mut SendQueue,
    ) -> Admission {
        self.counters.opened();
        let listener = SocketName::ClientListener(listener).endpoint();
        let awaited = match self.proxies.may_speak_for_connection(remote.ip()) {
            true => Awaited::Header,
            // guard: proxy-port
            false if self.proxies.only => {
                self.counters.closed(CloseReason::ProxyRefused);
                return Admission::Refused;
            }
            false => Awaited::Transport,
        };
        // A proxy's own address stands for many clients.
        let source = (awaited != Awaited::Header).then(|| remote.ip());
        let connections = &mut self.connections;
        let displaced = connections.make_room(source, |client| hub.has_allocation(client));
        if let Some(displaced) = displaced {
            tx.close_stream(displaced);
        }
        connections.add(hub.now.time, stream, listener, remote, awaited);
        hub.changes.log.connected(remote, hub.now.time);
        Admission::Stranger
    }

    /// Closes the connections whose time is over.
    pub(in crate::shard) fn close_overdue(&mut self, hub: &Hub, tx: &mut SendQueue) {
        let mut budget = TIMEOUTS_PER_TURN;
        while let Some(stream) = self
            .connections
            .pop_due(hub.now.time, &mut budget, |client| {
                hub.has_allocation(client)
            })
        {
            tx.close_stream(stream);
        }
    }

    /// Goes on with connections that have waited for something else than their clients.
    pub(in crate::shard) fn work(&mut self, hub: &mut Hub, tx: &mut SendQueue) {
        let Self {
            connections, door, ..
        } = self;
        door.work(connections, hub, tx);
        hub.carry_out_commands(self, tx);
    }

    /// Closes a connection whose allocation has ended.
    pub(in crate::shard) fn close_joined(&mut self, stream: StreamId) {
        self.connections.close(stream, CloseReason::AllocationEnded);
    }

    /// Notes that a peer has sent something to the client that it is joined with.
    #[inline]
    pub(in crate::shard) fn peer_progressed(&mut self, now: Time, client: StreamId) {
        if let Some(connection) = self.connections.get_mut(client)
            && let Some(joined) = &mut connection.joined
        {
            joined.progressed(now);
        }
    }

    /// Notes that one side of two joined connections has ended what it sends; `client` is the client's connection.
    pub(in crate::shard) fn half_closed(&mut self, now: Time, client: StreamId, end: PeerEnd) {
        self.connections.half_closed(now, client, end);
    }

    /// Forgets a connection that is gone, and ends what its client had.
    pub(in crate::shard) fn closed(&mut self, stream: StreamId, end: StreamEnd, hub: &mut Hub) {
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
        if let Some(joined) = connection.joined.as_deref() {
            hub.peer_closed(joined.connection, Some(joined), end);
        }
        let is_orderly = !matches!(end, StreamEnd::Congested | StreamEnd::Failed);
        hub.disconnected(&connection.client, is_orderly);
        hub.carry_out_after_flush(&connection.client);
    }

    /// Sends on their way the connections whose last answers were handed over with the turn before, and takes in those that came.
    pub(in crate::shard) fn move_connections(
        &mut self,
        hub: &mut Hub,
        tx: &mut SendQueue,
        sockets: &mut impl Sockets,
    ) {
        for leaving in hub.across.take_ready() {
            self.send_off(leaving, hub, tx, sockets);
        }
        for connection in hub.across.take_arrived() {
            self.settle(connection, true, hub, tx, sockets);
        }
    }

    fn send_off(
        &mut self,
        leaving: LeavingConnection,
        hub: &mut Hub,
        tx: &mut SendQueue,
        sockets: &mut impl Sockets,
    ) {
        let LeavingConnection {
            stream,
            handover,
            rest,
        } = leaving;
        let is_there = self.connections.get(stream).is_some();
        let detached = is_there.then(|| sockets.detach(stream)).flatten();
        let (Some(stream), Some(connection)) = (detached, self.connections.remove(stream)) else {
            // closed in the meantime: nobody is there to read the answer
            return self.counters.dropped(StreamDrop::SocketClosed, 1);
        };
        hub.client_gone(&connection.client);
        self.counters.closed(CloseReason::Moved);
        let shard = usize::try_from(handover.shard()).unwrap_or(usize::MAX);
        let moved = MovedConnection {
            stream,
            client: connection.client,
            tls: connection.tls,
            handover,
            rest,
        };
        match hub.across.offer(shard, moved) {
            None => self.counters.across.handed_out.add(1),
            Some(returned) => self.settle(returned, false, hub, tx, sockets),
        }
    }

    /// Takes in a connection from another shard, and carries out its request if this shard is its destination.
    fn settle(
        &mut self,
        moved: MovedConnection,
        is_here: bool,
        hub: &mut Hub,
        tx: &mut SendQueue,
        sockets: &mut impl Sockets,
    ) {
        let MovedConnection {
            stream,
            client,
            tls,
            handover,
            rest,
        } = moved;
        self.counters.opened();
        let Ok(stream) = sockets.adopt(stream) else {
            self.counters.closed(CloseReason::Failed);
            return self.counters.dropped(StreamDrop::SocketClosed, 1);
        };
        let client = self.connections.adopt(hub.now.time, stream, client, tls);
        if is_here {
            hub.engine.take_over(hub.now, client, *handover);
        } else {
            hub.engine.decline(client, *handover);
        }
        hub.carry_out_commands(self, tx);
        if rest.is_empty() {
            return;
        }
        let staged = tx.stage(&rest);
        if !self.relayed_to_peer(client, &rest, 0, &staged, hub, tx) {
            // meant for a peer, so no messages
            self.connections.close(stream, CloseReason::Malformed);
            tx.close_stream(stream);
        }
    }
}
