//! Data that says where it was sent, so that whoever gets it can tell whether it was meant.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

const MAGIC: &[u8; 8] = b"sent-to:";

/// What a payload says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Payload {
    /// Where its sender sent it, by IPv4.
    pub(super) to: SocketAddr,
    /// Which client sent it; `None` for a peer.
    pub(super) owner: Option<u32>,
}

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
        bytes.extend(self.owner.map_or(u32::MAX, |owner| owner).to_be_bytes());
        bytes.resize(len.max(LEN_MIN), b'.');
        bytes
    }

    /// Reads one; `None` if these bytes are none.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(MAGIC)?;
        let &[a, b, c, d, high, low, e, f, g, h] = rest.first_chunk::<10>()?;
        let owner = u32::from_be_bytes([e, f, g, h]);
        Some(Self {
            to: SocketAddr::from((Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([high, low]))),
            owner: (owner != u32::MAX).then_some(owner),
        })
    }
}
