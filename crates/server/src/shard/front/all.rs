//! Holds all fronts of a shard. No other module knows all of them.

use std::net::SocketAddr;
use std::sync::Arc;

use turnbuckle_datapath::offload::KernelRoutes;
use turnbuckle_datapath::{Received, Run, SendQueue, StreamId};
use turnbuckle_engine::{AllocationId, ClientTuple, Transport};
use turnbuckle_wire::Demux;

use super::dtls::records::DtlsFront;
use super::dtls::{Address, DtlsService};
use super::proxy;
use super::quic::{QuicFront, QuicService, Sight};
use super::stream::{StreamFront, StreamService};
use super::udp::UdpFront;
use super::{Destination, Front, TunnelEvent, Wrapping};
use crate::counters::{ShardCounters, UdpDrop};
use crate::log::Seal;
use crate::shard::hub::Hub;
use crate::shard::name;
use crate::shard::peer::tcp::table::Joined;
use crate::shard::serving::Serving;
use crate::shard::train::{Segments, protocol};

/// What a shard needs to know to serve datagrams.
#[derive(Clone)]
pub(crate) struct DatagramService {
    /// Whether datagrams without DTLS are accepted.
    pub(crate) serves_plain: bool,
    /// What the kernel relays is published with this; `None` if it relays nothing.
    pub(crate) routes: Option<KernelRoutes>,
    /// `None` refuses DTLS.
    pub(crate) dtls: Option<DtlsService>,
    /// `None` refuses QUIC.
    pub(crate) quic: Option<QuicService>,
}

/// The fronts of a shard.
pub(in crate::shard) struct Fronts {
    pub(in crate::shard) udp: UdpFront,
    pub(in crate::shard) stream: StreamFront,
    pub(in crate::shard) dtls: DtlsFront,
    pub(in crate::shard) quic: QuicFront,
}

impl Fronts {
    pub(in crate::shard) fn new(
        streams: StreamService,
        datagrams: DatagramService,
        counters: &Arc<ShardCounters>,
    ) -> Self {
        let proxies = streams.proxies.clone();
        let counters = || Arc::clone(counters);
        Self {
            udp: UdpFront::new(datagrams.serves_plain, proxies, counters()),
            stream: StreamFront::new(streams, counters()),
            dtls: DtlsFront::new(datagrams.dtls, counters()),
            quic: QuicFront::new(datagrams.quic, counters()),
        }
    }

    /// Serves clients in this way from now on.
    pub(in crate::shard) fn reconfigure(&mut self, serving: &Serving) {
        self.udp.set_proxies(&serving.datagram_proxies);
        self.stream.reconfigure(serving);
        self.dtls.set_limits(serving.datagrams);
        self.quic.set_limits(serving.datagrams.book);
    }

    /// Hands a message of a listener to the fronts, which share its socket: one client lookup per message.
    pub(in crate::shard) fn datagrams(
        &mut self,
        message: &Received<'_>,
        hub: &mut Hub,
        tx: &mut SendQueue,
    ) {
        let bytes = message.bytes;
        hub.counters
            .datagrams
            .client_in
            .add(message.segment_count() as u64);
        hub.counters
            .datagrams
            .client_in_bytes
            .add(bytes.len() as u64);
        let client = ClientTuple::udp(name::endpoint(message.endpoint), message.remote);
        if bytes.is_empty() {
            return hub.counters.dropped(UdpDrop::ProtocolUnknown, 1);
        }
        if self.udp.is_proxy(message.remote.ip()) {
            return self.datagrams_of_proxy(message, hub, tx);
        }
        let allocation = hub.engine.client(&client);
        let quic = self.quic.sight(client.remote, allocation.is_some());
        let mut start = 0;
        let segments = Segments {
            payload: message,
            bytes,
            segment: message.segment,
        };
        let address = Address {
            listener: client.listener,
            client: client.remote,
            proxy: None,
        };
        while start < bytes.len() {
            let datagrams = (bytes, message.segment);
            // RFC 9443 §2.1: ChannelData of an allocation first, then QUIC by its connection ids.
            if quic != Sight::Nothing
                && let Some(end) = self.quic.received(client, quic, datagrams, start, hub)
            {
                start = end;
                continue;
            }
            start = match protocol(bytes[start]) {
                Demux::Dtls => self.dtls.received(address, datagrams, start, hub, tx),
                _ => self
                    .udp
                    .received(client, allocation, &segments, start, hub, tx),
            };
        }
    }

    /// Hands over a proxy's datagrams one by one, because each one names its own client.
    fn datagrams_of_proxy(&mut self, message: &Received<'_>, hub: &mut Hub, tx: &mut SendQueue) {
        let (listener, proxy) = (name::endpoint(message.endpoint), message.remote);
        let mut next = 0;
        while next < message.bytes.len() {
            let datagram = next;
            next = message.bytes.len().min(datagram + message.segment);
            let bytes = &message.bytes[..next];
            let Ok(header) = proxy::of_datagram(&bytes[datagram..]) else {
                hub.counters.dropped(UdpDrop::ProtocolUnknown, 1);
                continue;
            };
            let start = datagram + header.len;
            let Some(&first) = bytes.get(start) else {
                hub.counters.dropped(UdpDrop::ProtocolUnknown, 1);
                continue;
            };
            let segment = next - start;
            if protocol(first) == Demux::Dtls {
                let address = Address {
                    listener,
                    client: header.source.unwrap_or(proxy),
                    proxy: header.source.is_some().then_some(proxy),
                };
                self.dtls
                    .received(address, (bytes, segment), start, hub, tx);
                continue;
            }
            let segments = Segments {
                payload: message,
                bytes,
                segment,
            };
            let from = (listener, proxy);
            self.udp
                .received_through_proxy(from, header.source, &segments, start, hub, tx);
        }
    }
}

/// Reaches every client of the shard: each call goes to the front of the client's transport.
impl Front for Fronts {
    fn serves(&self, _: Transport) -> bool {
        true
    }

    fn has_client(&self, client: &ClientTuple) -> bool {
        match client.transport {
            Transport::Dtls => self.dtls.has_client(client),
            Transport::Quic => self.quic.has_client(client),
            Transport::Tcp | Transport::Tls => self.stream.has_client(client),
            Transport::Udp => self.udp.has_client(client),
        }
    }

    #[inline]
    fn data_address(&self, client: &ClientTuple, allocation: AllocationId) -> Option<SocketAddr> {
        match client.transport {
            Transport::Dtls => self.dtls.data_address(client, allocation),
            Transport::Quic => self.quic.data_address(client, allocation),
            Transport::Tcp | Transport::Tls => self.stream.data_address(client, allocation),
            Transport::Udp => self.udp.data_address(client, allocation),
        }
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
        match to.client.transport {
            Transport::Dtls => self.dtls.forward(to, message, run, wrapping, tx),
            Transport::Quic => self.quic.forward(to, message, run, wrapping, tx),
            Transport::Tcp | Transport::Tls => self.stream.forward(to, message, run, wrapping, tx),
            Transport::Udp => self.udp.forward(to, message, run, wrapping, tx),
        }
    }

    fn wants(&mut self, client: &ClientTuple, source: SocketAddr) -> bool {
        match client.transport {
            Transport::Dtls => self.dtls.wants(client, source),
            Transport::Quic => self.quic.wants(client, source),
            Transport::Tcp | Transport::Tls => self.stream.wants(client, source),
            Transport::Udp => self.udp.wants(client, source),
        }
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
        match to.client.transport {
            Transport::Dtls => self.dtls.forward_tunnelled(to, message, run, source, tx),
            Transport::Quic => self.quic.forward_tunnelled(to, message, run, source, tx),
            Transport::Tcp | Transport::Tls => {
                self.stream.forward_tunnelled(to, message, run, source, tx)
            }
            Transport::Udp => self.udp.forward_tunnelled(to, message, run, source, tx),
        }
    }

    fn tunnel_changed(&mut self, client: &ClientTuple, event: TunnelEvent, tx: &mut SendQueue) {
        match client.transport {
            Transport::Dtls => self.dtls.tunnel_changed(client, event, tx),
            Transport::Quic => self.quic.tunnel_changed(client, event, tx),
            Transport::Tcp | Transport::Tls => self.stream.tunnel_changed(client, event, tx),
            Transport::Udp => self.udp.tunnel_changed(client, event, tx),
        }
    }

    fn reply(&mut self, to: ClientTuple, answer: &[u8], tx: &mut SendQueue) {
        match to.transport {
            Transport::Dtls => self.dtls.reply(to, answer, tx),
            Transport::Quic => self.quic.reply(to, answer, tx),
            Transport::Tcp | Transport::Tls => self.stream.reply(to, answer, tx),
            Transport::Udp => self.udp.reply(to, answer, tx),
        }
    }

    fn pass_on(&mut self, to: ClientTuple, message: &[u8], tx: &mut SendQueue) {
        match to.transport {
            Transport::Dtls => self.dtls.pass_on(to, message, tx),
            Transport::Quic => self.quic.pass_on(to, message, tx),
            Transport::Tcp | Transport::Tls => self.stream.pass_on(to, message, tx),
            Transport::Udp => self.udp.pass_on(to, message, tx),
        }
    }

    fn protection(&self, client: &ClientTuple) -> Option<Seal> {
        match client.transport {
            Transport::Dtls => self.dtls.protection(client),
            Transport::Quic => self.quic.protection(client),
            Transport::Tcp | Transport::Tls => self.stream.protection(client),
            Transport::Udp => self.udp.protection(client),
        }
    }

    fn leave(&mut self, client: &ClientTuple, tx: &mut SendQueue) -> Option<StreamId> {
        match client.transport {
            Transport::Dtls => self.dtls.leave(client, tx),
            Transport::Quic => self.quic.leave(client, tx),
            Transport::Tcp | Transport::Tls => self.stream.leave(client, tx),
            Transport::Udp => self.udp.leave(client, tx),
        }
    }

    fn join(&mut self, client: &ClientTuple, joined: Joined) -> Option<StreamId> {
        match client.transport {
            Transport::Dtls => self.dtls.join(client, joined),
            Transport::Quic => self.quic.join(client, joined),
            Transport::Tcp | Transport::Tls => self.stream.join(client, joined),
            Transport::Udp => self.udp.join(client, joined),
        }
    }
}
