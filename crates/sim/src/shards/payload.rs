//! Data that says where it was sent, so that whoever gets it can tell whether it was meant.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

const MAGIC: &[u8; 8] = b"sent-to:";

/// What a payload says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Payload {
    /// Where its sender sent it.
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
    /// Who proved nothing, and pretends to be a client.
    Stranger,
}

/// Names from here on are those of peers.
const PEERS: u32 = 0xFFFF_0000;
/// The name of all strangers.
const STRANGER: u32 = u32::MAX;

/// Bytes of the shortest payload.
pub(super) const LEN_MIN: usize = 30;

impl Payload {
    /// Writes `len` bytes, or as many as it takes.
    pub(super) fn write(self, len: usize) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(match self.to.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        });
        bytes.extend(self.to.port().to_be_bytes());
        bytes.extend(self.sender.to_u32().to_be_bytes());
        bytes.resize(len.max(LEN_MIN), b'.');
        bytes
    }

    /// Reads one; `None` if these bytes are none.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(MAGIC)?;
        let (ip, rest) = rest.split_first_chunk::<16>()?;
        let ip = IpAddr::V6(Ipv6Addr::from(*ip)).to_canonical();
        let &[high, low, a, b, c, d] = rest.first_chunk::<6>()?;
        let sender = u32::from_be_bytes([a, b, c, d]);
        Some(Self {
            to: SocketAddr::from((ip, u16::from_be_bytes([high, low]))),
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
            Self::Stranger => STRANGER,
        }
    }

    fn from_u32(number: u32) -> Self {
        match number.checked_sub(PEERS) {
            _ if number == STRANGER => Self::Stranger,
            Some(peer) => Self::Peer(peer as usize),
            None => Self::Client(number),
        }
    }
}
