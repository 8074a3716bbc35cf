//! What the first bytes of a connection say: for whom a proxy speaks, whether it is TLS, whether it is HTTP.
//!
//! All of it has to come before the deadline of the first message, since nothing of it is one.

use turnbuckle_datapath::{Payload, SendQueue, StreamInput};
use turnbuckle_engine::{ClientTuple, DropReason, Transport};

use super::Relay;
use crate::counters::CloseReason;
use crate::proxy::{self, NoHeader};
use crate::stream::{Awaited, Opening, Reply};
use crate::tls::{Session, current};

impl Relay {
    /// Takes a proxy's header off and finds out whether TLS follows. Returns whether there are bytes for what is known now.
    ///
    /// # Errors
    ///
    /// Why the connection has to be closed; the bytes are counted as one message that was dropped.
    pub(super) fn open_transport(
        &mut self,
        input: &mut StreamInput<'_>,
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
                        let Self {
                            connections,
                            engine,
                            roaming,
                            ..
                        } = self;
                        let displaced = connections.introduce(stream, remote, |client| {
                            engine.client(client).is_some() || roaming.has_home(client)
                        });
                        if let Some(displaced) = displaced {
                            tx.close_stream(displaced);
                        }
                    }
                }
                Err(NoHeader::Incomplete) => return Ok(false),
                // guard: proxy-required
                Err(NoHeader::Invalid) => {
                    self.count_refused(DropReason::ProtocolUnknown);
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
                    let session =
                        Session::new(current(tls)).map_err(|_| CloseReason::HandshakeFailed)?;
                    self.connections.secure(self.now.time, stream, session);
                }
                _ if is_tls || !self.serves_plain_tcp => {
                    self.count_refused(DropReason::ServiceDisabled);
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
        tx: &mut SendQueue,
    ) -> Result<usize, CloseReason> {
        if let Some(connection) = self.connections.of_client_mut(&client)
            && connection.awaited == Awaited::Application
        {
            match Opening::of(bytes) {
                Opening::Http => return self.http(client, bytes, tx),
                Opening::Incomplete => return Ok(0),
                Opening::Messages | Opening::Tls => connection.awaited = Awaited::Messages,
                Opening::Proxy => {
                    self.count_refused(DropReason::ServiceDisabled);
                    return Err(CloseReason::ProxyRefused);
                }
            }
        }
        self.messages(client, bytes, payload, tx)
    }

    /// Answers a request of HTTP, if that is wanted, once its head has come.
    fn http(
        &self,
        client: ClientTuple,
        bytes: &[u8],
        tx: &mut SendQueue,
    ) -> Result<usize, CloseReason> {
        match self.http.reply(bytes, client.transport == Transport::Tls) {
            Reply::Later => return Ok(0),
            Reply::Silence => self.count_refused(DropReason::ServiceDisabled),
            Reply::Text(text) => {
                self.counters.client_in.add(1);
                match self.connections.of_client(&client) {
                    Some(connection) => {
                        self.counters.client_queued.add(1);
                        tx.stream_reply(connection.id, text.as_bytes());
                    }
                    None => self.counters.dropped(DropReason::SocketClosed, 1),
                }
            }
        }
        self.counters.client_in_bytes.add(bytes.len() as u64);
        Err(CloseReason::Http)
    }

    /// Counts what is no message as one that was dropped.
    fn count_refused(&self, reason: DropReason) {
        self.counters.client_in.add(1);
        self.counters.dropped(reason, 1);
    }
}
