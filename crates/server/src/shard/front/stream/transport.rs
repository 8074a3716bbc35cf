//! Reads the first bytes of a connection: a header of the PROXY protocol, and whether TLS or HTTP follows.
//!
//! All of it has to come before the deadline of the first message, since nothing of it is one.

use turnbuckle_datapath::{Payload, SendQueue, StreamInput};
use turnbuckle_engine::{ClientTuple, Transport};

use super::StreamFront;
use super::connections::Awaited;
use super::http::Reply;
use super::opening::Opening;
use super::tls::TlsSession;
use crate::counters::{CloseReason, StreamDrop};
use crate::shard::front::proxy::{self, NoHeader};
use crate::shard::hub::Hub;
use crate::tls::current;

impl StreamFront {
    /// Takes a proxy's header off and finds out whether TLS follows. Returns whether there are bytes for what is known now.
    ///
    /// # Errors
    ///
    /// Why the connection has to be closed; the bytes are counted as one message that was dropped.
    pub(super) fn open_transport(
        &mut self,
        input: &mut StreamInput<'_>,
        hub: &Hub,
        tx: &mut SendQueue,
    ) -> Result<bool, CloseReason> {
        let stream = input.stream;
        let Some(connection) = self.connections.get_mut(stream) else {
            return Ok(true);
        };
        if connection.awaited == Awaited::Header {
            match proxy::of_connection(input.bytes()) {
                Ok(header) => {
                    connection.awaited = Awaited::Transport;
                    input.skip(header.len);
                    // From here on the client is whom the proxy names, as if it had connected itself.
                    if let Some(remote) = header.source {
                        let displaced = self
                            .connections
                            .introduce(stream, remote, |client| hub.has_allocation(client));
                        if let Some(displaced) = displaced {
                            tx.close_stream(displaced);
                        }
                    }
                }
                Err(NoHeader::Incomplete) => return Ok(false),
                // guard: proxy-required
                Err(NoHeader::Invalid) => {
                    self.count_refused(StreamDrop::ProtocolUnknown);
                    return Err(CloseReason::ProxyHeader);
                }
            }
        }
        let Some(connection) = self.connections.get_mut(stream) else {
            return Ok(true);
        };
        if connection.awaited == Awaited::Transport {
            if input.bytes().is_empty() {
                return Ok(false);
            }
            let is_tls = Opening::of(input.bytes()) == Opening::Tls;
            connection.awaited = Awaited::Application;
            match &self.tls {
                Some(tls) if is_tls => {
                    let session = TlsSession::new(current(tls), self.serves_any_alpn)
                        .map_err(|_| CloseReason::HandshakeFailed)?;
                    self.connections.secure(hub.now.time, stream, session);
                    tx.seal_stream(stream);
                }
                _ if is_tls || !self.serves_plain => {
                    self.count_refused(StreamDrop::ServiceDisabled);
                    return Err(CloseReason::Malformed);
                }
                _ => {}
            }
        }
        Ok(true)
    }

    /// Handles what came, which lies in `payload`, TLS taken off. Returns where the last whole message ends.
    ///
    /// # Errors
    ///
    /// Why the connection has to be closed.
    pub(super) fn application(
        &mut self,
        client: ClientTuple,
        bytes: &[u8],
        payload: &impl Payload,
        hub: &mut Hub,
        tx: &mut SendQueue,
    ) -> Result<usize, CloseReason> {
        if let Some(connection) = self.connections.of_client_mut(&client)
            && connection.awaited == Awaited::Application
        {
            match Opening::of(bytes) {
                Opening::Http => match self.door.serves(client.transport, bytes) {
                    Some(true) => connection.awaited = Awaited::Tunnels,
                    Some(false) => return self.http(client, bytes, tx),
                    None => return Ok(0),
                },
                Opening::Incomplete => return Ok(0),
                Opening::Messages | Opening::Tls => connection.awaited = Awaited::Messages,
                Opening::Proxy => {
                    self.count_refused(StreamDrop::ServiceDisabled);
                    return Err(CloseReason::ProxyRefused);
                }
            }
        }
        let connection = self.connections.of_client(&client);
        match connection.is_some_and(|connection| connection.awaited == Awaited::Tunnels) {
            true => self.tunnels(client, bytes, payload, hub, tx),
            false => self.messages(client, bytes, payload, hub, tx),
        }
    }

    /// Handles requests for tunnels and capsules.
    fn tunnels(
        &mut self,
        client: ClientTuple,
        bytes: &[u8],
        payload: &impl Payload,
        hub: &mut Hub,
        tx: &mut SendQueue,
    ) -> Result<usize, CloseReason> {
        let count_max = self.messages_of_turn();
        self.connections
            .allocated(hub.now.time, &client, hub.has_allocation(&client));
        let Some(connection) = self.connections.of_client_mut(&client) else {
            return Ok(0);
        };
        let (end, is_cut) =
            (self.door).received(connection, (bytes, count_max), payload, hub, tx)?;
        self.is_cut = is_cut;
        self.counters.datagrams.client_in_bytes.add(end as u64);
        hub.carry_out_commands(self, tx);
        Ok(end)
    }

    /// Answers a request of HTTP, if that is wanted, once its head has come.
    fn http(
        &self,
        client: ClientTuple,
        bytes: &[u8],
        tx: &mut SendQueue,
    ) -> Result<usize, CloseReason> {
        let reply = match self.http.reply(bytes, client.transport == Transport::Tls) {
            Reply::Silence => self.door.other_path(client.transport, bytes),
            reply => reply,
        };
        match reply {
            Reply::Later => return Ok(0),
            Reply::Silence => self.count_refused(StreamDrop::ServiceDisabled),
            Reply::Text(text) => self.reply(client, &text, tx),
        }
        self.counters
            .datagrams
            .client_in_bytes
            .add(bytes.len() as u64);
        Err(CloseReason::Http)
    }

    /// Sends `text` as the answer to a request of HTTP.
    fn reply(&self, client: ClientTuple, text: &str, tx: &mut SendQueue) {
        self.counters.datagrams.client_in.add(1);
        match self.connections.of_client(&client) {
            Some(connection) => {
                self.counters.datagrams.client_out.queued(1);
                tx.stream_reply(connection.id, text.as_bytes());
            }
            None => self.counters.dropped(StreamDrop::SocketClosed, 1),
        }
    }

    /// Counts what is no message as one that was dropped.
    fn count_refused(&self, reason: StreamDrop) {
        self.counters.datagrams.client_in.add(1);
        self.counters.dropped(reason, 1);
    }
}
