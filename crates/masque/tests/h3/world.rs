//! A connection of HTTP/3 with nothing below it: what the server hands to QUIC is written down.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use bytes::Bytes;
use turnbuckle_masque::Granted;
use turnbuckle_masque::h3::{Code, Dropped, Event, NotSent, Payload, Server, Streams, Way, qpack};
use turnbuckle_wire::Varint;

/// What has been handed to a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) bytes: Vec<u8>,
    pub(crate) is_finished: bool,
    pub(crate) stopped: Option<Code>,
    pub(crate) aborted: Option<Code>,
}

/// The connection below.
#[derive(Debug)]
pub(crate) struct Below {
    pub(crate) sent: BTreeMap<u64, Sent>,
    pub(crate) datagrams: Vec<Bytes>,
    pub(crate) closed: Option<Code>,
    pub(crate) takes_datagrams: bool,
    pub(crate) waiting_len: usize,
    opened: u64,
}

impl Streams for Below {
    fn open_uni(&mut self) -> Option<u64> {
        self.opened += 1;
        Some(self.opened * 4 - 1)
    }

    fn write(&mut self, stream: u64, bytes: Vec<u8>) {
        self.sent.entry(stream).or_default().bytes.extend(bytes);
    }

    fn finish(&mut self, stream: u64) {
        self.sent.entry(stream).or_default().is_finished = true;
    }

    fn stop(&mut self, stream: u64, code: Code) {
        self.sent.entry(stream).or_default().stopped = Some(code);
    }

    fn abort(&mut self, stream: u64, code: Code) {
        self.sent.entry(stream).or_default().aborted = Some(code);
    }

    fn waiting_len(&self, _: u64) -> usize {
        self.waiting_len
    }

    fn takes_datagrams(&mut self) -> bool {
        self.takes_datagrams
    }

    fn send_datagram(&mut self, payload: Bytes) -> Result<(), NotSent> {
        self.datagrams.push(payload);
        Ok(())
    }

    fn close(&mut self, code: Code, _: &'static str) {
        self.closed.get_or_insert(code);
    }
}

/// A server, and what it has done.
pub(crate) struct World {
    pub(crate) server: Server<u32>,
    pub(crate) below: Below,
    pub(crate) events: Vec<Event<u32>>,
    pub(crate) payloads: Vec<Payload<u32>>,
    pub(crate) dropped: Dropped,
}

/// The client's control stream, its QPACK streams, and the first request.
pub(crate) const CONTROL: u64 = 2;
pub(crate) const ENCODER: u64 = 6;
pub(crate) const DECODER: u64 = 10;
pub(crate) const NEXT_HOP: &str = "192.0.2.6:443";

impl World {
    pub(crate) fn new() -> Self {
        let mut world = Self {
            server: Server::default(),
            below: Below {
                sent: BTreeMap::new(),
                datagrams: Vec::new(),
                closed: None,
                takes_datagrams: true,
                waiting_len: 0,
                opened: 0,
            },
            events: Vec::new(),
            payloads: Vec::new(),
            dropped: Dropped::default(),
        };
        world.server.connected(&mut world.below);
        world
    }

    /// Returns a world whose client has sent its settings.
    pub(crate) fn with_settings(payload: &[u8]) -> Self {
        let mut world = Self::new();
        world.receive(CONTROL, &control(&frame(4, payload)));
        assert_eq!(world.below.closed, None);
        world
    }

    /// Returns a world whose connection has granted tunnel 7 on stream 0, by DATAGRAM frames or by capsules.
    pub(crate) fn with_tunnel(takes_datagrams: bool) -> Self {
        let mut world = Self::with_settings(&[0x33, u8::from(takes_datagrams)]);
        world.receive(0, &request(&FIELDS));
        world.grant(0, 7);
        world
    }

    pub(crate) fn receive(&mut self, stream: u64, bytes: &[u8]) {
        self.server.received(&mut self.below, stream, bytes);
        self.take();
    }

    pub(crate) fn finish(&mut self, stream: u64) {
        self.server.finished(&mut self.below, stream);
        self.take();
    }

    pub(crate) fn abandon(&mut self, stream: u64) {
        self.server.abandoned(&mut self.below, stream);
        self.take();
    }

    pub(crate) fn datagram(&mut self, payload: &[u8]) {
        let payload = Bytes::copy_from_slice(payload);
        self.server.datagram(&mut self.below, &payload);
        self.take();
    }

    pub(crate) fn grant(&mut self, stream: u64, tunnel: u32) {
        let next_hop: SocketAddr = NEXT_HOP.parse().unwrap();
        self.grant_as(stream, tunnel, Granted::Tunnel { next_hop });
    }

    pub(crate) fn grant_as(&mut self, stream: u64, tunnel: u32, granted: Granted) {
        self.server.grant(&mut self.below, stream, tunnel, granted);
        self.take();
    }

    /// Sends a payload of the target of a tunnel.
    pub(crate) fn send(&mut self, stream: u64, payload: &[u8]) -> Result<Way, NotSent> {
        self.send_from(stream, NEXT_HOP, payload)
    }

    pub(crate) fn send_from(
        &mut self,
        stream: u64,
        source: &str,
        payload: &[u8],
    ) -> Result<Way, NotSent> {
        let source = source.parse().unwrap();
        self.server.send(&mut self.below, stream, source, payload)
    }

    pub(crate) fn sent(&self, stream: u64) -> Sent {
        self.below.sent.get(&stream).cloned().unwrap_or_default()
    }

    /// Returns the fields of the answer on a stream, as `name: value`.
    pub(crate) fn answer(&self, stream: u64) -> Vec<String> {
        let bytes = self.sent(stream).bytes;
        let (kind, kind_len) = Varint::read(&bytes).expect("an answer");
        let (len, len_len) = Varint::read(&bytes[kind_len..]).unwrap();
        let head = kind_len + len_len;
        assert_eq!(kind, 1);
        let section = &bytes[head..head + usize::try_from(len).unwrap()];
        let fields = qpack::decode(section, 4096).unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        fields
            .iter()
            .map(|field| format!("{}: {}", text(&field.name), text(&field.value)))
            .collect()
    }

    fn take(&mut self) {
        self.server.take_payloads(&mut self.payloads);
        while let Some(event) = self.server.poll_event() {
            self.events.push(event);
        }
        let Dropped {
            no_tunnel,
            context_unknown,
            capsule_unknown,
            no_address,
            malformed,
        } = self.server.take_dropped();
        self.dropped.no_tunnel += no_tunnel;
        self.dropped.context_unknown += context_unknown;
        self.dropped.capsule_unknown += capsule_unknown;
        self.dropped.no_address += no_address;
        self.dropped.malformed += malformed;
    }

    /// Returns the payloads that came for a tunnel.
    pub(crate) fn payloads_of(&self, tunnel: u32) -> Vec<&[u8]> {
        let of_it = self.payloads.iter().filter(|it| it.tunnel == tunnel);
        of_it.map(|it| &it.bytes[..]).collect()
    }
}

/// The request of RFC 9298 §3.4.
pub(crate) const FIELDS: [(&str, &str); 6] = [
    (":method", "CONNECT"),
    (":protocol", "connect-udp"),
    (":scheme", "https"),
    (":path", "/.well-known/masque/udp/192.0.2.6/443/"),
    (":authority", "example.org"),
    ("capsule-protocol", "?1"),
];

pub(crate) fn varint(number: u64) -> Vec<u8> {
    Varint::new(number).unwrap().as_bytes().to_vec()
}

pub(crate) fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
    [&varint(kind)[..], &varint(payload.len() as u64), payload].concat()
}

pub(crate) fn request(fields: &[(&str, &str)]) -> Vec<u8> {
    frame(1, &qpack::encode(fields))
}

/// Returns the bytes of a control stream from its beginning.
pub(crate) fn control(frames: &[u8]) -> Vec<u8> {
    [&[0], frames].concat()
}

/// Returns a DATAGRAM capsule with context 0.
pub(crate) fn capsule(payload: &[u8]) -> Vec<u8> {
    frame(0, &[&[0], payload].concat())
}
