//! The ICMP attribute ([RFC 8656 §18.13]).
//!
//! [RFC 8656 §18.13]: https://www.rfc-editor.org/rfc/rfc8656#section-18.13

use crate::AttributeError;

/// Type, code and data of an ICMP message that a relayed datagram caused. Whether the numbers are ICMPv4's or
/// ICMPv6's follows from the family of XOR-PEER-ADDRESS beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Icmp {
    /// ICMP type, at most 127: the field has seven bits.
    pub kind: u8,
    /// ICMP code, at most 511: the field has nine bits.
    pub code: u16,
    /// The MTU of the next hop in bytes where the ICMP message carries one, else zero.
    pub data: u32,
}

impl Icmp {
    pub(crate) fn parse(value: &[u8]) -> Result<Self, AttributeError> {
        let &[_, _, high, low, d0, d1, d2, d3] = value else {
            return Err(AttributeError::Length);
        };
        Ok(Self {
            kind: high >> 1,
            code: u16::from_be_bytes([high & 1, low]),
            data: u32::from_be_bytes([d0, d1, d2, d3]),
        })
    }

    /// Returns the value, or `None` when a number needs more bits than its field has.
    pub(crate) const fn encode(self) -> Option<[u8; 8]> {
        if self.kind > 0x7F || self.code > 0x1FF {
            return None;
        }
        let [code_high, code_low] = self.code.to_be_bytes();
        let [d0, d1, d2, d3] = self.data.to_be_bytes();
        Some([0, 0, self.kind << 1 | code_high, code_low, d0, d1, d2, d3])
    }
}
