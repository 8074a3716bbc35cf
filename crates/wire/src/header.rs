//! The 20-byte STUN header: class, method, transaction id ([RFC 8489 §5]).
//!
//! The invariant: a [`Method`] holds 12 bits, so packing class and method into the type field cannot touch
//! the two leading zero bits by which STUN is distinguished from other protocols.
//!
//! [RFC 8489 §5]: https://www.rfc-editor.org/rfc/rfc8489#section-5

use core::fmt;

/// Bytes in a STUN header.
pub const HEADER_LEN: usize = 20;

/// The value that marks a STUN message, bytes 4 to 7 (RFC 8489 §5).
pub const MAGIC_COOKIE: u32 = 0x2112_A442;

/// Returns the number of zero bytes that follow a value of `len` bytes to reach a multiple of four (RFC 8489 §14).
#[must_use]
#[inline]
pub const fn padding_len(len: usize) -> usize {
    len.wrapping_neg() & 3
}

/// The class of a message (RFC 8489 §5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Expects a response.
    Request,
    /// Expects none.
    Indication,
    /// Success response.
    Success,
    /// Error response.
    Error,
}

impl Class {
    const fn bits(self) -> u16 {
        match self {
            Self::Request => 0x0000,
            Self::Indication => 0x0010,
            Self::Success => 0x0100,
            Self::Error => 0x0110,
        }
    }
}

/// A method, 12 bits (RFC 8489 §5).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Method(u16);

impl Method {
    /// Binding (RFC 8489 §18.2).
    pub const BINDING: Self = Self(0x001);
    /// Allocate (RFC 8656 §17).
    pub const ALLOCATE: Self = Self(0x003);
    /// Refresh (RFC 8656 §17).
    pub const REFRESH: Self = Self(0x004);
    /// Send, an indication (RFC 8656 §17).
    pub const SEND: Self = Self(0x006);
    /// Data, an indication (RFC 8656 §17).
    pub const DATA: Self = Self(0x007);
    /// CreatePermission (RFC 8656 §17).
    pub const CREATE_PERMISSION: Self = Self(0x008);
    /// ChannelBind (RFC 8656 §17).
    pub const CHANNEL_BIND: Self = Self(0x009);
    /// Connect (RFC 6062 §6.1).
    pub const CONNECT: Self = Self(0x00A);
    /// ConnectionBind (RFC 6062 §6.1).
    pub const CONNECTION_BIND: Self = Self(0x00B);
    /// ConnectionAttempt, an indication (RFC 6062 §6.1).
    pub const CONNECTION_ATTEMPT: Self = Self(0x00C);

    /// Returns the method with this number; `None` above 0xFFF.
    #[must_use]
    pub const fn new(number: u16) -> Option<Self> {
        if number <= 0xFFF {
            Some(Self(number))
        } else {
            None
        }
    }

    /// Returns the method's number, at most 0xFFF.
    #[must_use]
    pub const fn number(self) -> u16 {
        self.0
    }

    /// Returns the name the defining document uses, if the method is one of the constants.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::BINDING => "Binding",
            Self::ALLOCATE => "Allocate",
            Self::REFRESH => "Refresh",
            Self::SEND => "Send",
            Self::DATA => "Data",
            Self::CREATE_PERMISSION => "CreatePermission",
            Self::CHANNEL_BIND => "ChannelBind",
            Self::CONNECT => "Connect",
            Self::CONNECTION_BIND => "ConnectionBind",
            Self::CONNECTION_ATTEMPT => "ConnectionAttempt",
            _ => return None,
        })
    }
}

impl fmt::Debug for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Method(0x{:03x})", self.0),
        }
    }
}

/// The 96 bits that join a response to its request (RFC 8489 §5).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TransactionId([u8; 12]);

impl TransactionId {
    /// Returns the transaction id with these bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 12]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes as they stand on the wire.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 12] {
        &self.0
    }
}

impl From<[u8; 12]> for TransactionId {
    fn from(bytes: [u8; 12]) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for TransactionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TransactionId(")?;
        for byte in self.0 {
            write!(f, "{byte:02x}")?;
        }
        f.write_str(")")
    }
}

/// Packs class and method into the message type field: class bits 8 and 4, method bits in the gaps.
pub(crate) const fn message_type(class: Class, method: Method) -> u16 {
    let m = method.0;
    (m & 0x000F) | (m & 0x0070) << 1 | (m & 0x0F80) << 2 | class.bits()
}

/// Splits a message type into class and method, the inverse of [`message_type`]; the two leading bits are not looked at.
#[inline]
pub(crate) const fn split_message_type(kind: u16) -> (Class, Method) {
    let class = match (kind & 0x0100 != 0, kind & 0x0010 != 0) {
        (false, false) => Class::Request,
        (false, true) => Class::Indication,
        (true, false) => Class::Success,
        (true, true) => Class::Error,
    };
    let method = (kind & 0x000F) | (kind & 0x00E0) >> 1 | (kind & 0x3E00) >> 2;
    (class, Method(method))
}

/// Returns the header of a message; `length` counts the bytes behind the header.
pub(crate) const fn header(
    class: Class,
    method: Method,
    length: u16,
    transaction_id: TransactionId,
) -> [u8; HEADER_LEN] {
    let [k0, k1] = message_type(class, method).to_be_bytes();
    let [l0, l1] = length.to_be_bytes();
    let [c0, c1, c2, c3] = MAGIC_COOKIE.to_be_bytes();
    let [t0, t1, t2, t3, t4, t5, t6, t7, t8, t9, t10, t11] = transaction_id.0;
    [
        k0, k1, l0, l1, c0, c1, c2, c3, t0, t1, t2, t3, t4, t5, t6, t7, t8, t9, t10, t11,
    ]
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::collections::HashSet;

    //= STUN-001
    //= STUN-005
    #[test]
    fn packs_every_method_and_class_into_its_own_type_and_back() {
        let mut seen = HashSet::new();
        for number in 0..=0xFFF {
            for class in [
                Class::Request,
                Class::Indication,
                Class::Success,
                Class::Error,
            ] {
                let method = Method::new(number).unwrap();
                let kind = message_type(class, method);
                assert_eq!(kind & 0xC000, 0, "the leading bits stay zero");
                assert!(seen.insert(kind));
                assert_eq!(split_message_type(kind), (class, method));
            }
        }
        assert_eq!(seen.len(), 4096 * 4);
        assert_eq!(Method::new(0x1000), None);
    }

    //= STUN-005
    #[test]
    fn packs_the_examples_of_the_documents() {
        assert_eq!(message_type(Class::Request, Method::BINDING), 0x0001);
        assert_eq!(message_type(Class::Success, Method::BINDING), 0x0101);
        assert_eq!(message_type(Class::Error, Method::ALLOCATE), 0x0113);
        assert_eq!(message_type(Class::Indication, Method::DATA), 0x0017);
        assert_eq!(
            message_type(Class::Indication, Method::CONNECTION_ATTEMPT),
            0x001C
        );
    }

    #[test]
    fn pads_to_a_multiple_of_four() {
        for len in 0..70_000 {
            assert_eq!((len + padding_len(len)) % 4, 0);
            assert!(padding_len(len) < 4);
        }
    }
}
