//! The QUIC library, quinn-proto, which only this file and those below it name. What the others see of it is made here.

mod clear;
mod connection;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use aws_lc_rs::hmac;
use bytes::BytesMut;
use quinn_proto as proto;
use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn_proto::{DatagramEvent, StreamEvent};
use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;

use self::clear::Clear;
pub use self::connection::{Connection, StreamId};
use crate::cid::{CONNECTION_ID_LEN, Issuer};
use crate::connections::Application;
use crate::settings::{Limits, Path, Settings, WallClock};
use crate::state::{Closed, Refused, Statistics};
use crate::transmit::Answer;

/// QUIC version 1 (RFC 9000), the only one that is spoken.
const VERSIONS: [u32; 1] = [1];
/// Initial packets that have been shown and neither accepted nor answered, and what waits for them: the host settles each at once, so one is.
const INCOMING: usize = 256;
const INCOMING_BYTES: u64 = 8 * 1024;
const INCOMING_BYTES_ALL: u64 = 1 << 20;
/// Shortest time between two stateless resets: 50 a second.
const RESET_INTERVAL: Duration = Duration::from_millis(20);
/// Unidirectional streams that the other side may have open.
const UNI_STREAMS: u32 = 8;
/// Bytes of the id that a client chooses for a server before that has chosen one.
const FIRST_ID_LEN: usize = 20;

/// One connection of the library.
pub(crate) struct Link {
    handle: proto::ConnectionHandle,
    inner: proto::Connection,
}

impl Link {
    pub(crate) fn index(&self) -> usize {
        self.handle.0
    }

    pub(crate) fn remote(&self) -> SocketAddr {
        self.inner.remote_address()
    }

    /// Returns what the connection has seen.
    pub(crate) fn statistics(&self) -> Statistics {
        connection::statistics(&self.inner)
    }

    /// Returns how many DATAGRAM frames have been sent.
    pub(crate) fn datagrams_sent(&self) -> u64 {
        self.inner.stats().frame_tx.datagram
    }

    pub(crate) fn timeout(&mut self) -> Option<Instant> {
        self.inner.poll_timeout()
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        self.inner.handle_timeout(now);
    }

    pub(crate) fn handle_packet(&mut self, packet: Packet) {
        self.inner.handle_event(packet.0);
    }

    /// Returns whether either side has closed it.
    pub(crate) fn is_closed(&self) -> bool {
        self.inner.is_closed()
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.inner.is_drained()
    }

    pub(crate) fn view(&mut self, now: Instant) -> Connection<'_> {
        Connection {
            inner: &mut self.inner,
            now,
        }
    }

    /// Writes a train into `buffer`. Returns where it goes and how long its datagrams are.
    pub(crate) fn transmit(
        &mut self,
        now: Instant,
        datagrams_max: usize,
        buffer: &mut Vec<u8>,
    ) -> Option<(SocketAddr, usize)> {
        let transmit = self.inner.poll_transmit(now, datagrams_max, buffer)?;
        let segment = transmit.segment_size.unwrap_or(transmit.size);
        Some((transmit.destination, segment))
    }

    /// Shows the application one thing that has happened. Returns whether there was any, and why the connection has ended if it has.
    pub(crate) fn show_event<A: Application>(
        &mut self,
        now: Instant,
        application: &mut A,
    ) -> Shown {
        let Some(event) = self.inner.poll() else {
            return Shown::Nothing;
        };
        match event {
            proto::Event::HandshakeDataReady | proto::Event::DatagramsUnblocked => {}
            proto::Event::Connected => {
                application.connected(&mut self.view(now));
                return Shown::Connected;
            }
            proto::Event::ConnectionLost { reason } => return Shown::Ended(reason.into()),
            proto::Event::DatagramReceived => {
                while let Some(payload) = self.inner.datagrams().recv() {
                    application.datagram(&mut self.view(now), payload);
                }
                return Shown::Datagrams;
            }
            proto::Event::Stream(event) => match event {
                StreamEvent::Opened { dir } => {
                    while let Some(id) = self.inner.streams().accept(dir) {
                        application.readable(&mut self.view(now), StreamId(id));
                    }
                }
                StreamEvent::Readable { id } => {
                    application.readable(&mut self.view(now), StreamId(id));
                }
                StreamEvent::Writable { id } | StreamEvent::Stopped { id, .. } => {
                    application.writable(&mut self.view(now), StreamId(id));
                }
                StreamEvent::Finished { .. } | StreamEvent::Available { .. } => {}
            },
        }
        Shown::Something
    }
}

/// What an application was shown.
pub(crate) enum Shown {
    Nothing,
    Something,
    Datagrams,
    Connected,
    Ended(Closed),
}

/// A packet for one connection.
pub(crate) struct Packet(proto::ConnectionEvent);

/// A connection that someone wants to begin.
pub(crate) struct Incoming(proto::Incoming);

impl Incoming {
    /// Returns whether a token shows that the other side receives what is sent to its address.
    pub(crate) fn is_proven(&self) -> bool {
        self.0.remote_address_validated()
    }

    pub(crate) fn remote(&self) -> SocketAddr {
        self.0.remote_address()
    }
}

/// What a datagram is.
pub(crate) enum Handled {
    /// Nothing that would be answered.
    Discarded,
    /// Something that is answered without a connection.
    Answered(Answer),
    /// The beginning of a connection.
    Begins(Incoming),
    /// Part of a connection.
    Belongs(usize, Packet),
}

/// The library's endpoint.
pub(crate) struct Stack {
    endpoint: proto::Endpoint,
    transport: Arc<proto::TransportConfig>,
    wall_clock: WallClock,
    token: Arc<dyn proto::crypto::HandshakeTokenKey>,
    /// What connections that hide nothing begin with is made of this, and of how many there were.
    first_ids: (hmac::Key, u64),
}

impl Stack {
    pub(crate) fn new(settings: &Settings) -> Self {
        let seed = hmac::Key::new(hmac::HMAC_SHA256, &settings.seed);
        let derived = |label: &str| hmac::sign(&seed, label.as_bytes());
        let ids = Issuer::new(settings.keys.ids(), settings.shard, derived("ids").as_ref());
        let rng = derived("endpoint");
        let mut config = proto::EndpointConfig::new(Arc::new(settings.keys.reset()));
        config
            .cid_generator(move || Box::new(Generator(ids.clone())))
            .supported_versions(VERSIONS.to_vec())
            // A cleared QUIC bit would make packets look like another protocol on a shared port (RFC 9443 §3).
            .grease_quic_bit(false)
            .min_reset_interval(RESET_INTERVAL)
            .rng_seed(Some(std::array::from_fn(|index| rng.as_ref()[index])));
        Self {
            endpoint: proto::Endpoint::new(
                Arc::new(config),
                None,
                settings.path.mtu_max.is_some(),
                None,
            ),
            transport: Arc::new(transport(&settings.limits, &settings.path)),
            wall_clock: settings.wall_clock.clone(),
            token: Arc::new(settings.keys.token()),
            first_ids: (seed, 0),
        }
    }

    /// Serves connections with these certificates from now on.
    pub(crate) fn serve(&mut self, tls: Arc<rustls::ServerConfig>) -> Result<(), Refused> {
        // Initial packets have a suite of their own (RFC 9001 §5.2), whichever are offered for the rest.
        let suite = TLS13_AES_128_GCM_SHA256.tls13();
        let initial = suite.and_then(rustls::Tls13CipherSuite::quic_suite);
        let initial = initial.ok_or_else(|| Refused("no suite for Initial packets".to_owned()))?;
        let crypto = QuicServerConfig::with_initial(tls, initial)
            .map_err(|error| Refused(error.to_string()))?;
        self.serve_with(Arc::new(crypto));
        Ok(())
    }

    /// Serves connections that hide nothing from now on.
    pub(crate) fn serve_clear(&mut self) {
        self.serve_with(Arc::new(Clear));
    }

    fn serve_with(&mut self, crypto: Arc<dyn proto::crypto::ServerConfig>) {
        let mut config = proto::ServerConfig::new(crypto, Arc::clone(&self.token));
        let mut tokens = proto::ValidationTokenConfig::default();
        // Each connection proves its address by a Retry.
        tokens.sent(0).log(Arc::new(proto::NoneTokenLog));
        config
            .transport_config(Arc::clone(&self.transport))
            .validation_token_config(tokens)
            .max_incoming(INCOMING)
            .incoming_buffer_size(INCOMING_BYTES)
            .incoming_buffer_size_total(INCOMING_BYTES_ALL)
            .time_source(Arc::new(Calendar(self.wall_clock.clone())));
        self.endpoint.set_server_config(Some(Arc::new(config)));
    }

    pub(crate) fn connect(
        &mut self,
        now: Instant,
        tls: Arc<rustls::ClientConfig>,
        remote: SocketAddr,
        name: &str,
    ) -> Result<Link, Refused> {
        let crypto = QuicClientConfig::try_from(tls).map_err(|error| Refused(error.to_string()))?;
        let config = proto::ClientConfig::new(Arc::new(crypto));
        self.connect_with(now, config, remote, name)
    }

    /// Begins a connection that hides nothing.
    pub(crate) fn connect_clear(
        &mut self,
        now: Instant,
        remote: SocketAddr,
    ) -> Result<Link, Refused> {
        let (key, count) = &mut self.first_ids;
        *count += 1;
        let drawn = hmac::sign(key, &count.to_be_bytes());
        let first = proto::ConnectionId::new(&drawn.as_ref()[..FIRST_ID_LEN]);
        let mut config = proto::ClientConfig::new(Arc::new(Clear));
        config.initial_dst_cid_provider(Arc::new(move || first));
        self.connect_with(now, config, remote, "")
    }

    fn connect_with(
        &mut self,
        now: Instant,
        mut config: proto::ClientConfig,
        remote: SocketAddr,
        name: &str,
    ) -> Result<Link, Refused> {
        config.transport_config(Arc::clone(&self.transport));
        let connected = self.endpoint.connect(now, config, remote, name);
        let (handle, inner) = connected.map_err(|error| Refused(error.to_string()))?;
        Ok(Link { handle, inner })
    }

    pub(crate) fn handle(&mut self, now: Instant, from: SocketAddr, datagram: BytesMut) -> Handled {
        let mut bytes = Vec::new();
        match self
            .endpoint
            .handle(now, from, None, None, datagram, &mut bytes)
        {
            None => Handled::Discarded,
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                Handled::Belongs(handle.0, Packet(event))
            }
            Some(DatagramEvent::NewConnection(incoming)) => Handled::Begins(Incoming(incoming)),
            Some(DatagramEvent::Response(transmit)) => Handled::Answered(Answer {
                to: transmit.destination,
                bytes,
            }),
        }
    }

    /// Asks whoever wants to begin a connection to show that it receives what is sent to its address. Nothing is kept.
    pub(crate) fn retry(&mut self, incoming: Incoming) -> Option<Answer> {
        let mut bytes = Vec::new();
        match self.endpoint.retry(incoming.0, &mut bytes) {
            Ok(transmit) => Some(Answer {
                to: transmit.destination,
                bytes,
            }),
            Err(error) => {
                self.endpoint.ignore(error.into_incoming());
                None
            }
        }
    }

    pub(crate) fn ignore(&mut self, incoming: Incoming) {
        self.endpoint.ignore(incoming.0);
    }

    /// Says that no connection is begun now (RFC 9000 §20.1).
    pub(crate) fn refuse(&mut self, incoming: Incoming) -> Answer {
        let mut bytes = Vec::new();
        let transmit = self.endpoint.refuse(incoming.0, &mut bytes);
        Answer {
            to: transmit.destination,
            bytes,
        }
    }

    /// Begins a connection. In place of one there may be an answer that says why not.
    pub(crate) fn accept(
        &mut self,
        now: Instant,
        incoming: Incoming,
    ) -> Result<Link, Option<Answer>> {
        let mut bytes = Vec::new();
        match self.endpoint.accept(incoming.0, now, &mut bytes, None) {
            Ok((handle, inner)) => Ok(Link { handle, inner }),
            Err(error) => Err(error.response.map(|transmit| Answer {
                to: transmit.destination,
                bytes,
            })),
        }
    }

    /// Carries out what a connection wants of the endpoint.
    pub(crate) fn settle(&mut self, link: &mut Link) {
        while let Some(event) = link.inner.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(link.handle, event) {
                link.inner.handle_event(event);
            }
        }
    }

    /// Forgets a connection that will say nothing more, whatever its state.
    pub(crate) fn forget(&mut self, link: &Link) {
        self.endpoint
            .handle_event(link.handle, proto::EndpointEvent::drained());
    }
}

fn transport(limits: &Limits, path: &Path) -> proto::TransportConfig {
    let discovery = path.mtu_max.map(|mtu| {
        let mut discovery = proto::MtuDiscoveryConfig::default();
        discovery.upper_bound(mtu.max(path.mtu_initial));
        discovery
    });
    let mut transport = proto::TransportConfig::default();
    let idle = proto::IdleTimeout::try_from(limits.idle).ok();
    transport
        .max_idle_timeout(idle)
        .max_concurrent_bidi_streams(limits.streams.into())
        .max_concurrent_uni_streams(UNI_STREAMS.into())
        .stream_receive_window(limits.stream_window.into())
        .receive_window(limits.window.into())
        .send_window(limits.send_window.into())
        .datagram_receive_buffer_size(Some(limits.datagrams))
        .datagram_send_buffer_size(limits.datagrams)
        .initial_mtu(path.mtu_initial)
        .mtu_discovery_config(discovery);
    transport
}

/// The calendar, in the library's terms.
struct Calendar(WallClock);

impl proto::TimeSource for Calendar {
    fn now(&self) -> SystemTime {
        (self.0.0)()
    }
}

/// The issuer of connection ids, in the library's terms.
struct Generator(Issuer);

impl proto::ConnectionIdGenerator for Generator {
    fn generate_cid(&mut self) -> proto::ConnectionId {
        proto::ConnectionId::new(&self.0.issue())
    }

    fn validate(&self, id: &proto::ConnectionId) -> Result<(), proto::InvalidCid> {
        if self.0.is_own(id) {
            Ok(())
        } else {
            Err(proto::InvalidCid)
        }
    }

    fn cid_len(&self) -> usize {
        CONNECTION_ID_LEN
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}
