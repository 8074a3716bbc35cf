//! SETTINGS, both sides' (RFC 9114 §7.2.4, RFC 9220 §3, RFC 9297 §2.1.1).

use turnbuckle_wire::Varint;

use super::code::{Code, Wrong};
use super::frames::{frame, kind};

/// What the fields of a request may come to, bytes, each counted with 32 more (RFC 9114 §4.2.2); its encoded form may not be longer either.
pub const FIELDS_SIZE_MAX: usize = 16 * 1024;

const QPACK_MAX_TABLE_CAPACITY: u64 = 0x01;
const MAX_FIELD_SECTION_SIZE: u64 = 0x06;
const QPACK_BLOCKED_STREAMS: u64 = 0x07;
const ENABLE_CONNECT_PROTOCOL: u64 = 0x08;
const H3_DATAGRAM: u64 = 0x33;
/// Those of HTTP/2 that have no meaning here (RFC 9114 §7.2.4.1).
const RESERVED: [u64; 5] = [0x00, 0x02, 0x03, 0x04, 0x05];

/// What the other side has said of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Settings {
    /// Whether it takes datagrams in QUIC DATAGRAM frames.
    pub(super) takes_datagrams: bool,
    /// Whether it takes extended CONNECT, as a server.
    pub(super) takes_connect: bool,
}

impl Settings {
    /// Reads the payload of a SETTINGS frame.
    pub(super) fn of_payload(payload: &[u8]) -> Result<Self, Wrong> {
        let (mut settings, mut seen, mut rest) = (Self::default(), Vec::new(), payload);
        while !rest.is_empty() {
            let (Some(id), Some(value)) = (number(&mut rest), number(&mut rest)) else {
                return Err(Wrong::Connection(Code::FRAME_ERROR, "half a setting"));
            };
            let is_known = !RESERVED.contains(&id) && !seen.contains(&id);
            let may_have = match id {
                ENABLE_CONNECT_PROTOCOL | H3_DATAGRAM => value <= 1,
                _ => true,
            };
            if !is_known || !may_have {
                let why = "a setting twice, of HTTP/2, or with a value that it cannot have";
                return Err(Wrong::Connection(Code::SETTINGS_ERROR, why));
            }
            seen.push(id);
            settings.takes_datagrams |= id == H3_DATAGRAM && value == 1;
            settings.takes_connect |= id == ENABLE_CONNECT_PROTOCOL && value == 1;
        }
        Ok(settings)
    }
}

/// Returns what a client's control stream begins with: its type, and the settings.
pub(super) fn of_client() -> Vec<u8> {
    control(&[
        [MAX_FIELD_SECTION_SIZE, FIELDS_SIZE_MAX as u64],
        [QPACK_MAX_TABLE_CAPACITY, 0],
        [QPACK_BLOCKED_STREAMS, 0],
        [H3_DATAGRAM, 1],
    ])
}

/// Returns what a server's control stream begins with: its type, and the settings. Tunnels are offered if they are served.
pub(super) fn of_server(serves: bool) -> Vec<u8> {
    let settings = [
        [MAX_FIELD_SECTION_SIZE, FIELDS_SIZE_MAX as u64],
        [QPACK_MAX_TABLE_CAPACITY, 0],
        [QPACK_BLOCKED_STREAMS, 0],
        [ENABLE_CONNECT_PROTOCOL, 1],
        [H3_DATAGRAM, 1],
    ];
    let count = if serves { settings.len() } else { 1 };
    control(&settings[..count])
}

fn control(settings: &[[u64; 2]]) -> Vec<u8> {
    let mut payload = Vec::new();
    for &number in settings.iter().flatten() {
        if let Some(number) = Varint::new(number) {
            payload.extend_from_slice(number.as_bytes());
        }
    }
    [&[0][..], &frame(kind::SETTINGS, &payload)].concat()
}

/// Takes a number off the front.
pub(super) fn number(rest: &mut &[u8]) -> Option<u64> {
    let (number, len) = Varint::read(rest)?;
    *rest = rest.get(len..)?;
    Some(number)
}
