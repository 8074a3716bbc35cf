//! Properties of HTTP/3: field sections, and whole connections.

use bytes::Bytes;
use turnbuckle_masque::Granted;
use turnbuckle_masque::h3::qpack::{decode, encode};
use turnbuckle_masque::h3::{Code, Dropped, Event, NotSent, Payload, Server, Streams};

/// What the fields of a section may come to.
const SIZE_MAX: usize = 2000;

/// Checks that whatever arrives is decoded or not, never to more than allowed; and that what was decoded is the same after it was encoded.
pub fn field_section(bytes: &[u8]) {
    let Ok(fields) = decode(bytes, SIZE_MAX) else {
        return;
    };
    let size: usize = fields
        .iter()
        .map(|field| field.name.len() + field.value.len() + 32)
        .sum();
    assert!(size <= SIZE_MAX);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    let pairs: Option<Vec<(String, String)>> = fields
        .iter()
        .map(|field| Some((text(&field.name)?, text(&field.value)?)))
        .collect();
    let Some(pairs) = pairs else {
        return;
    };
    let borrowed: Vec<(&str, &str)> = pairs
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    assert_eq!(decode(&encode(&borrowed), SIZE_MAX), Ok(fields));
}

/// Checks that a script of what a client does makes the same of a connection whether its bytes come at once or one by one, and that nothing is done with a
/// connection that is closed.
pub fn http3_streams(script: &[u8]) {
    let (mut at_once, mut byte_by_byte) = (World::new(), World::new());
    let mut rest = script;
    while let [what, len, after @ ..] = rest {
        let (bytes, after) = after.split_at(usize::from(*len).min(after.len()));
        rest = after;
        at_once.carry_out(*what, bytes, usize::MAX);
        byte_by_byte.carry_out(*what, bytes, 1);
    }
    assert_eq!(at_once.below.closed, byte_by_byte.below.closed);
    assert_eq!(at_once.payloads, byte_by_byte.payloads);
    assert_eq!(at_once.events, byte_by_byte.events);
    assert_eq!(at_once.dropped, byte_by_byte.dropped);
}

/// The streams of a script: three requests, control, encoder, decoder, another one and one of this side's.
const STREAMS: [u64; 8] = [0, 4, 8, 2, 6, 10, 14, 3];

struct World {
    server: Server<u64>,
    below: Below,
    payloads: Vec<Payload<u64>>,
    events: Vec<Event<u64>>,
    dropped: [u64; 5],
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            server: Server::default(),
            below: Below::default(),
            payloads: Vec::new(),
            events: Vec::new(),
            dropped: [0; 5],
        };
        world.server.connected(&mut world.below);
        world
    }

    /// Carries out one step of the script. The lower bits of `what` name a stream, the others what happens there.
    fn carry_out(&mut self, what: u8, bytes: &[u8], piece_len: usize) {
        let Self { server, below, .. } = self;
        let stream = STREAMS[usize::from(what & 7)];
        match what >> 3 {
            0..=19 => {
                for piece in bytes.chunks(piece_len.min(bytes.len()).max(1)) {
                    server.received(below, stream, piece);
                }
            }
            20 => server.finished(below, stream),
            21 => server.abandoned(below, stream),
            22..=24 => server.datagram(below, &Bytes::copy_from_slice(bytes)),
            25..=26 => {
                let next_hop = ([192, 0, 2, 6], 443).into();
                server.grant(below, stream, stream, Granted::Tunnel { next_hop });
            }
            27 => {
                let addresses = vec![([192, 0, 2, 1], 4000).into()];
                server.grant(below, stream, stream, Granted::Bound { addresses });
            }
            28 => server.refuse(below, stream, turnbuckle_masque::Refusal::Prohibited, ""),
            29 => server.end(below, stream),
            30 => server.go_away(below),
            _ => {
                // What is not sent is the host's to count.
                let source = ([192, 0, 2, 6], 443).into();
                let _ = server.send(below, stream, source, bytes);
            }
        }
        server.take_payloads(&mut self.payloads);
        while let Some(event) = server.poll_event() {
            if let Event::Registered {
                stream,
                context,
                peer,
                ..
            } = event
            {
                server.judged(below, stream, context, peer.port() % 2 == 0);
            }
            self.events.push(event);
        }
        let Dropped {
            no_tunnel,
            context_unknown,
            capsule_unknown,
            no_address,
            malformed,
        } = server.take_dropped();
        let new = [
            no_tunnel,
            context_unknown,
            capsule_unknown,
            no_address,
            malformed,
        ];
        for (sum, new) in self.dropped.iter_mut().zip(new) {
            *sum += new;
        }
    }
}

#[derive(Default)]
struct Below {
    closed: Option<Code>,
}

impl Streams for Below {
    fn open_uni(&mut self) -> Option<u64> {
        Some(3)
    }

    fn write(&mut self, _: u64, _: Vec<u8>) {}

    fn finish(&mut self, _: u64) {}

    fn stop(&mut self, _: u64, _: Code) {}

    fn abort(&mut self, _: u64, _: Code) {
        assert_eq!(self.closed, None, "a closed connection is left alone");
    }

    fn waiting_len(&self, _: u64) -> usize {
        0
    }

    fn takes_datagrams(&mut self) -> bool {
        true
    }

    fn send_datagram(&mut self, _: Bytes) -> Result<(), NotSent> {
        Ok(())
    }

    fn close(&mut self, code: Code, _: &'static str) {
        assert_eq!(self.closed, None, "a connection is closed once");
        self.closed = Some(code);
    }
}
