//! Data that says where it was sent, so that whoever gets it can tell whether it was meant.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

const MAGIC: &[u8; 8] = b"sent-to:";

/// What a payload says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Payload {
    /// Where its sender sent it, by IPv4.
    pub(super) to: SocketAddr,
    pub(super) sender: Sender,
}

/// Who sent data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sender {
    /// The client with this name.
    Client(u32),
    /// The peer with this number.
    Peer(usize),
}

/// Names from here on are those of peers.
const PEERS: u32 = 0xFFFF_0000;

/// Bytes of the shortest payload.
pub(super) const LEN_MIN: usize = 18;

impl Payload {
    /// Writes `len` bytes, or as many as it takes.
    pub(super) fn write(self, len: usize) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        if let IpAddr::V4(ip) = self.to.ip() {
            bytes.extend(ip.octets());
        }
        bytes.extend(self.to.port().to_be_bytes());
        bytes.extend(self.sender.to_u32().to_be_bytes());
        bytes.resize(len.max(LEN_MIN), b'.');
        bytes
    }

    /// Reads one; `None` if these bytes are none.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(MAGIC)?;
        let &[a, b, c, d, high, low, e, f, g, h] = rest.first_chunk::<10>()?;
        let sender = u32::from_be_bytes([e, f, g, h]);
        Some(Self {
            to: SocketAddr::from((Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([high, low]))),
            sender: Sender::from_u32(sender),
        })
    }

    /// Reads the one that a message to a client carries.
    pub(super) fn relayed(message: &[u8]) -> Option<Self> {
        let start = message.windows(MAGIC.len()).position(|it| it == MAGIC)?;
        Self::read(&message[start..])
    }
}

impl Sender {
    fn to_u32(self) -> u32 {
        match self {
            Self::Client(owner) => owner,
            Self::Peer(number) => PEERS + u32::try_from(number).unwrap_or(0xFFFF),
        }
    }

    fn from_u32(number: u32) -> Self {
        match number.checked_sub(PEERS) {
            Some(peer) => Self::Peer(peer as usize),
            None => Self::Client(number),
        }
    }
}
