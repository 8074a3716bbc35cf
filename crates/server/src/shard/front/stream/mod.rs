//! Clients that come by TCP or TLS. TLS is a layer of this front: `transport.rs` finds out whether a connection has it, `tls.rs` puts it on and
//! takes it off, and `messages.rs` finds the messages in what is left. `life.rs` is about how connections come, move and end.

mod connections;
mod door;
mod frame;
mod http;
mod kept;
mod life;
mod messages;
mod opening;
pub(crate) mod tls;
mod transport;
mod visit;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use turnbuckle_datapath::{Received, Run, SendQueue, StreamId, Waker};
use turnbuckle_engine::{ClientTuple, Time, Transport};
use turnbuckle_wire::{DATAGRAM_CAPSULE_HEADER_MAX, UDP_CONTEXT, datagram_capsule_header};

use self::connections::{Connections, StreamConnection};
use self::door::Door;
pub(crate) use self::door::TunnelService;
pub(crate) use self::http::HttpService;
use super::proxy::Proxies;
use super::{Destination, Front, TunnelEvent, Wrapping};
use crate::counters::{ShardCounters, StreamDrop};
use crate::log::Seal;
use crate::shard::book::BookLimits;
use crate::shard::peer::tcp::table::Joined;
use crate::shard::serving::Serving;
use crate::shard::train::padding;
use crate::tls::CurrentTls;

/// What a shard needs to know to serve connections.
#[derive(Clone)]
pub(crate) struct StreamService {
    pub(crate) limits: BookLimits,
    /// Certificates for connections that begin with a TLS handshake; `None` refuses them.
    pub(crate) tls: Option<CurrentTls>,
    /// Whether a client that offers no protocol of ours by ALPN is served.
    pub(crate) serves_any_alpn: bool,
    /// Whether connections may do without TLS.
    pub(crate) serves_plain: bool,
    /// The proxies whose headers are accepted, for datagrams too.
    pub(crate) proxies: Proxies,
    pub(crate) http: HttpService,
    /// What is needed for tunnels of UDP in HTTP; `None` refuses them.
    pub(crate) tunnels: Option<TunnelService>,
}

/// The front of clients by TCP and TLS.
pub(in crate::shard) struct StreamFront {
    counters: Arc<ShardCounters>,
    connections: Connections,
    /// Certificates for connections that begin with a TLS handshake; `None` refuses them.
    tls: Option<CurrentTls>,
    /// Whether a client that offers no protocol of ours by ALPN is served.
    serves_any_alpn: bool,
    /// Whether connections may do without TLS.
    serves_plain: bool,
    /// The proxies whose headers are accepted.
    proxies: Proxies,
    http: HttpService,
    door: Door,
    /// What came out of TLS records, and what TLS has to say; kept for their memory.
    plain: Vec<u8>,
    raw: Vec<u8>,
    /// Whether more messages than a turn handles of one connection were there.
    is_cut: bool,
    /// Whether what comes next of a connection is all that will come.
    is_last: bool,
}

impl StreamFront {
    pub(in crate::shard) fn new(service: StreamService, counters: Arc<ShardCounters>) -> Self {
        Self {
            door: Door::new(service.tunnels, Arc::clone(&counters)),
            counters,
            connections: Connections::new(service.limits),
            tls: service.tls,
            serves_any_alpn: service.serves_any_alpn,
            serves_plain: service.serves_plain,
            proxies: service.proxies,
            http: service.http,
            plain: Vec::new(),
            raw: Vec::new(),
            is_cut: false,
            is_last: false,
        }
    }

    /// Returns when [`close_overdue`](Self::close_overdue) has something to do.
    pub(in crate::shard) fn next_timeout(&self) -> Option<Time> {
        let due = self.connections.next_timeout().into_iter();
        due.chain(self.door.next_timeout()).min()
    }

    /// Serves connections to come in this way.
    pub(in crate::shard) fn reconfigure(&mut self, serving: &Serving) {
        self.connections.set_limits(serving.streams);
        self.proxies.sources.clone_from(&serving.proxies);
        self.http.clone_from(&serving.http);
    }

    /// Sets what wakes the shard when something is known that a connection waits for.
    pub(in crate::shard) fn connect(&mut self, waker: Waker) {
        self.door.connect(waker);
    }

    /// Appends what stands for `plain` on a TLS connection.
    pub(in crate::shard) fn seal(
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

    /// Says on a TLS connection that nothing more comes.
    pub(in crate::shard) fn close_notify(&mut self, stream: StreamId, sealed: &mut Vec<u8>) {
        let connection = self.connections.get_mut(stream);
        if let Some(session) = connection.and_then(|connection| connection.tls.as_mut()) {
            session.close_notify(sealed);
        }
    }

    /// Returns what a connection is joined with.
    pub(in crate::shard) fn joined(&self, stream: StreamId) -> Option<&Joined> {
        self.connections.get(stream)?.joined.as_deref()
    }
}

impl Front for StreamFront {
    fn serves(&self, transport: Transport) -> bool {
        transport.is_stream()
    }

    fn has_client(&self, client: &ClientTuple) -> bool {
        self.connections.of_client(client).is_some()
    }

    #[inline]
    fn forward(
        &mut self,
        to: Destination,
        message: &Received<'_>,
        run: Run,
        wrapping: Wrapping<'_>,
        tx: &mut SendQueue,
    ) {
        let Wrapping { header, padding } = wrapping;
        let datagrams = run.count as u64;
        let Some(connection) = self.connections.of_client(&to.client) else {
            return self.counters.dropped(StreamDrop::SocketClosed, datagrams);
        };
        self.counters.datagrams.client_out.queued(datagrams);
        tx.stream_forward(connection.id, message, run, header, padding);
    }

    fn reply(&mut self, to: ClientTuple, answer: &[u8], tx: &mut SendQueue) {
        match self.connections.of_client(&to) {
            Some(connection) => {
                self.counters.datagrams.client_out.queued(1);
                tx.stream_reply(connection.id, answer);
            }
            None => self.counters.dropped(StreamDrop::SocketClosed, 1),
        }
    }

    fn pass_on(&mut self, to: ClientTuple, message: &[u8], tx: &mut SendQueue) {
        let Some(connection) = self.connections.of_client(&to) else {
            return self.counters.dropped(StreamDrop::SocketClosed, 1);
        };
        self.counters.datagrams.client_out.queued(1);
        let staged = tx.stage(message);
        let run = Run::single(0, message.len());
        let padding = padding(message.len());
        tx.stream_forward(connection.id, &staged, run, &[], padding);
    }

    #[inline]
    fn forward_tunnelled(
        &mut self,
        to: Destination,
        message: &Received<'_>,
        run: Run,
        source: Option<SocketAddr>,
        tx: &mut SendQueue,
    ) -> bool {
        if let Some(source) = source {
            let connection = self.connections.of_client(&to.client);
            let contexts = connection.and_then(StreamConnection::contexts);
            let head = contexts.and_then(|contexts| contexts.head(source));
            let Some(header) = head.and_then(|head| head.in_capsule(run.len)) else {
                return false;
            };
            let (header, padding) = (&header[..], 0);
            self.forward(to, message, run, Wrapping { header, padding }, tx);
            return true;
        }
        let mut header = [0; DATAGRAM_CAPSULE_HEADER_MAX];
        let Some(len) = datagram_capsule_header(&mut header, UDP_CONTEXT, run.len) else {
            return false;
        };
        let (header, padding) = (&header[..len], 0);
        self.forward(to, message, run, Wrapping { header, padding }, tx);
        true
    }

    fn wants(&mut self, client: &ClientTuple, source: SocketAddr) -> bool {
        let connection = self.connections.of_client(client);
        let contexts = connection.and_then(StreamConnection::contexts);
        contexts.is_some_and(|contexts| contexts.wants(source))
    }

    fn tunnel_changed(&mut self, client: &ClientTuple, event: TunnelEvent, tx: &mut SendQueue) {
        if let Some(connection) = self.connections.of_client_mut(client) {
            self.door.changed(connection, event, tx);
        }
    }

    fn protection(&self, client: &ClientTuple) -> Option<Seal> {
        self.connections.of_client(client)?.seal.clone()
    }

    fn leave(&mut self, client: &ClientTuple, tx: &mut SendQueue) -> Option<StreamId> {
        let connection = self.connections.of_client_mut(client)?;
        connection.is_leaving = true;
        tx.hold_back_stream(connection.id, true);
        Some(connection.id)
    }

    fn join(&mut self, client: &ClientTuple, joined: Joined) -> Option<StreamId> {
        // mutant: shards-join-by-number
        let stream = self.connections.of_client(client)?.id;
        self.connections.join(stream, joined);
        Some(stream)
    }
}
