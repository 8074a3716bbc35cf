//! One bench for two stacks whose interfaces differ in four places: each has a macro that says how.

/// What quinn-proto calls differently.
macro_rules! quinn_differs {
    (endpoint $config:expr, $server:expr) => {
        Endpoint::new($config, $server, true, None)
    };
    (handle $endpoint:expr, $now:expr, $from:expr, $data:expr, $out:expr) => {
        $endpoint.handle($now, $from, None, None, $data, $out)
    };
    (most $count:expr) => {
        $count
    };
    (keys $server:expr, $id:expr) => {
        $server.initial_keys(1, &$id)
    };
    (seal $key:expr, $number:expr, $packet:expr, $header:expr) => {
        $key.encrypt($number, $packet, $header)
    };
    (open $key:expr, $number:expr, $header:expr, $payload:expr) => {
        $key.decrypt($number, $header, $payload)
    };
}
pub(crate) use quinn_differs;

/// What noq-proto calls differently.
macro_rules! noq_differs {
    (endpoint $config:expr, $server:expr) => {
        Endpoint::new($config, $server, true)
    };
    (handle $endpoint:expr, $now:expr, $from:expr, $data:expr, $out:expr) => {
        $endpoint.handle($now, noq_proto::FourTuple::from_remote($from), None, $data, $out)
    };
    (most $count:expr) => {
        std::num::NonZeroUsize::new($count).expect("more than none")
    };
    (keys $server:expr, $id:expr) => {
        $server.initial_keys(1, $id)
    };
    (seal $key:expr, $number:expr, $packet:expr, $header:expr) => {
        $key.encrypt(noq_proto::PathId::ZERO, $number, $packet, $header)
    };
    (open $key:expr, $number:expr, $header:expr, $payload:expr) => {
        $key.decrypt(noq_proto::PathId::ZERO, $number, $header, $payload)
    };
}
pub(crate) use noq_differs;

/// Makes a module `$name` that measures the stack `$proto`.
macro_rules! stack {
    ($name:ident, $proto:ident, $differs:ident) => {
        mod $name {
            use std::collections::VecDeque;
            use std::net::SocketAddr;
            use std::sync::Arc;
            use std::time::{Duration, Instant};

            use anyhow::{Context as _, bail};
            use bytes::{Bytes, BytesMut};
            use $proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
            use $proto::crypto::{PacketKey, ServerConfig as _};
            use $proto::{ClientConfig, Connection, ConnectionHandle, ConnectionId, DatagramEvent, Dir, Endpoint, EndpointConfig, ServerConfig, TransportConfig};

            use crate::pair::$differs;
            use crate::{CLIENT, Case, Costs, SERVER, tls};

            /// An endpoint with one connection.
            struct Side {
                address: SocketAddr,
                endpoint: Endpoint,
                connection: Option<(ConnectionHandle, Connection)>,
                arrived: VecDeque<BytesMut>,
                out: Vec<u8>,
            }

            /// Writes the next train. Returns its length and that of a packet.
            #[inline(never)]
            fn measured_transmit(connection: &mut Connection, now: Instant, most: usize, out: &mut Vec<u8>) -> Option<(usize, usize)> {
                let transmit = connection.poll_transmit(now, $differs!(most most), out)?;
                Some((transmit.size, transmit.segment_size.unwrap_or(transmit.size)))
            }

            /// Handles one packet of the connection, and what it brings about in the endpoint.
            #[inline(never)]
            fn measured_handle(side: &mut Side, now: Instant, from: SocketAddr, data: BytesMut) {
                let event = $differs!(handle side.endpoint, now, from, data, &mut side.out);
                if let (Some(DatagramEvent::ConnectionEvent(_, event)), Some((handle, connection))) = (event, &mut side.connection) {
                    connection.handle_event(event);
                    while let Some(event) = connection.poll_endpoint_events() {
                        if let Some(event) = side.endpoint.handle_event(*handle, event) {
                            connection.handle_event(event);
                        }
                    }
                    while connection.poll().is_some() {}
                }
            }

            impl Side {
                /// Takes what has arrived; nothing of it is measured.
                fn take_arrived(&mut self, now: Instant, from: SocketAddr) -> anyhow::Result<()> {
                    while let Some(data) = self.arrived.pop_front() {
                        if self.connection.is_some() {
                            measured_handle(self, now, from, data);
                            continue;
                        }
                        let event = $differs!(handle self.endpoint, now, from, data, &mut self.out);
                        if let Some(DatagramEvent::NewConnection(incoming)) = event {
                            let Ok(accepted) = self.endpoint.accept(incoming, now, &mut self.out, None) else {
                                bail!("the server refused the connection");
                            };
                            self.connection = Some(accepted);
                        }
                    }
                    Ok(())
                }

                /// Sends all that is due to `to`.
                fn send(&mut self, now: Instant, to: &mut Self) {
                    let Some((_, connection)) = &mut self.connection else {
                        return;
                    };
                    loop {
                        self.out.clear();
                        let Some((len, segment)) = measured_transmit(connection, now, 10, &mut self.out) else {
                            return;
                        };
                        to.arrived.extend(self.out[..len].chunks(segment).map(BytesMut::from));
                    }
                }

                fn connection(&mut self) -> anyhow::Result<&mut Connection> {
                    self.connection.as_mut().map(|(_, connection)| connection).context("no connection")
                }
            }

            /// Client, server and the time they live in.
            struct Pair {
                client: Side,
                server: Side,
                now: Instant,
            }

            impl Pair {
                fn new(mtu: u16) -> anyhow::Result<Self> {
                    let (server_tls, client_tls) = tls::configurations()?;
                    let mut transport = TransportConfig::default();
                    transport
                        .initial_mtu(mtu)
                        .mtu_discovery_config(None)
                        .datagram_receive_buffer_size(Some(1 << 20))
                        .datagram_send_buffer_size(1 << 20);
                    let transport = Arc::new(transport);
                    let mut server = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(server_tls)?));
                    server.transport_config(Arc::clone(&transport));
                    let mut client = ClientConfig::new(Arc::new(QuicClientConfig::try_from(client_tls)?));
                    client.transport_config(transport);
                    let side = |address, server| Side {
                        address,
                        endpoint: $differs!(endpoint Arc::new(EndpointConfig::default()), server),
                        connection: None,
                        arrived: VecDeque::new(),
                        out: Vec::with_capacity(64 * 1024),
                    };
                    let mut pair = Self {
                        client: side(CLIENT, None),
                        server: side(SERVER, Some(Arc::new(server))),
                        now: Instant::now(),
                    };
                    let connection = pair.client.endpoint.connect(pair.now, client, SERVER, "localhost")?;
                    pair.client.connection = Some(connection);
                    for _ in 0..100 {
                        pair.exchange()?;
                    }
                    if pair.client.connection()?.is_handshaking() {
                        bail!("the handshake did not end");
                    }
                    Ok(pair)
                }

                /// Lets a millisecond pass in which both sides send and receive.
                fn exchange(&mut self) -> anyhow::Result<()> {
                    let Self { client, server, now } = self;
                    client.send(*now, server);
                    server.take_arrived(*now, client.address)?;
                    server.send(*now, client);
                    client.take_arrived(*now, server.address)?;
                    *now += Duration::from_millis(1);
                    for side in [client, server] {
                        if let Some((_, connection)) = &mut side.connection
                            && connection.poll_timeout().is_some_and(|due| due <= *now)
                        {
                            connection.handle_timeout(*now);
                        }
                    }
                    Ok(())
                }
            }

            /// Measures `case` with `count` packets.
            pub(crate) fn run(case: Case, size: usize, count: u64) -> anyhow::Result<Costs> {
                match case {
                    Case::Crypto => crypto(size, count),
                    Case::Datagrams => datagrams(size, count),
                    Case::Stream => stream(size, count),
                }
            }

            /// The first byte, a connection id of 8 bytes and a packet number of 4.
            const HEADER_LEN: usize = 13;

            #[inline(never)]
            fn measured_seal(keys: &$proto::crypto::Keys, number: u64, packet: &mut [u8]) {
                let key: &dyn PacketKey = &*keys.packet.local;
                $differs!(seal key, number, packet, HEADER_LEN);
                keys.header.local.encrypt(HEADER_LEN - 4, packet);
            }

            #[inline(never)]
            fn measured_open(keys: &$proto::crypto::Keys, number: u64, packet: &mut BytesMut) -> bool {
                keys.header.remote.decrypt(HEADER_LEN - 4, packet);
                let header = packet.split_to(HEADER_LEN);
                let key: &dyn PacketKey = &*keys.packet.remote;
                $differs!(open key, number, &header, packet).is_ok()
            }

            fn crypto(size: usize, count: u64) -> anyhow::Result<Costs> {
                let (server_tls, _) = tls::configurations()?;
                let server = QuicServerConfig::try_from(server_tls)?;
                let id = ConnectionId::new(&[7; 8]);
                let mut keys = $differs!(keys server, id).ok().context("version 1 is known")?;
                // What is sealed here is opened here.
                let other = $differs!(keys server, id).ok().context("version 1 is known")?;
                keys.packet.remote = other.packet.local;
                keys.header.remote = other.header.local;
                let mut costs = Costs { packets: count, ..Costs::default() };
                for number in 0..count {
                    let mut packet = BytesMut::zeroed(HEADER_LEN + size + 16);
                    packet[0] = 0x43;
                    costs.transmit.on(|| measured_seal(&keys, number, &mut packet));
                    if !costs.handle.on(|| measured_open(&keys, number, &mut packet)) {
                        bail!("what was sealed could not be opened");
                    }
                }
                Ok(costs)
            }

            fn datagrams(size: usize, count: u64) -> anyhow::Result<Costs> {
                let mut pair = Pair::new(1452)?;
                let payload = Bytes::from(vec![0x5a; size]);
                let mut costs = Costs::default();
                while costs.packets < count {
                    for _ in 0..10 {
                        pair.client.connection()?.datagrams().send(payload.clone(), false).ok().context("no room for a datagram")?;
                        let Side { connection, out, .. } = &mut pair.client;
                        let (_, connection) = connection.as_mut().context("no connection")?;
                        out.clear();
                        let now = pair.now;
                        while let Some((len, _)) = costs.transmit.on(|| measured_transmit(connection, now, 1, out)) {
                            costs.packets += 1;
                            let data = BytesMut::from(&out[..len]);
                            costs.handle.on(|| measured_handle(&mut pair.server, now, CLIENT, data));
                            out.clear();
                        }
                    }
                    while pair.server.connection()?.datagrams().recv().is_some() {}
                    pair.exchange()?;
                }
                Ok(costs)
            }

            fn stream(mtu: usize, count: u64) -> anyhow::Result<Costs> {
                let mut pair = Pair::new(u16::try_from(mtu).context("an MTU")?)?;
                let stream = pair.client.connection()?.streams().open(Dir::Bi).context("a stream")?;
                let payload = vec![0x5a; 256 * 1024];
                let mut costs = Costs::default();
                while costs.packets < count {
                    // A full window, or an error that says so.
                    let _ = pair.client.connection()?.send_stream(stream).write(&payload);
                    let now = pair.now;
                    loop {
                        let Side { connection, out, .. } = &mut pair.client;
                        let (_, connection) = connection.as_mut().context("no connection")?;
                        out.clear();
                        let Some((len, segment)) = costs.transmit.on(|| measured_transmit(connection, now, 10, out)) else {
                            break;
                        };
                        for packet in out[..len].chunks(segment) {
                            costs.packets += 1;
                            let data = BytesMut::from(packet);
                            costs.handle.on(|| measured_handle(&mut pair.server, now, CLIENT, data));
                        }
                    }
                    let mut received = pair.server.connection()?.recv_stream(stream);
                    if let Ok(mut chunks) = received.read(true) {
                        while let Ok(Some(_)) = chunks.next(usize::MAX) {}
                        let _ = chunks.finalize();
                    }
                    pair.exchange()?;
                }
                Ok(costs)
            }
        }
    };
}
pub(crate) use stack;
