//! The codes with which streams and connections end.

/// An error code of HTTP/3 (RFC 9114 §8.1), QPACK (RFC 9204 §6) or HTTP datagrams (RFC 9297 §5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub u32);

impl Code {
    /// Nothing is wrong.
    pub const NO_ERROR: Self = Self(0x0100);
    /// A stream that must not be there.
    pub const STREAM_CREATION_ERROR: Self = Self(0x0103);
    /// The control stream or one of QPACK's has ended.
    pub const CLOSED_CRITICAL_STREAM: Self = Self(0x0104);
    /// A frame where it must not be.
    pub const FRAME_UNEXPECTED: Self = Self(0x0105);
    /// A frame whose layout or length is wrong.
    pub const FRAME_ERROR: Self = Self(0x0106);
    /// The other side does what costs too much.
    pub const EXCESSIVE_LOAD: Self = Self(0x0107);
    /// A number of a stream or a push was used wrongly.
    pub const ID_ERROR: Self = Self(0x0108);
    /// The payload of SETTINGS is wrong.
    pub const SETTINGS_ERROR: Self = Self(0x0109);
    /// The control stream does not begin with SETTINGS.
    pub const MISSING_SETTINGS: Self = Self(0x010a);
    /// A request was not looked at.
    pub const REQUEST_REJECTED: Self = Self(0x010b);
    /// A request is not needed any more.
    pub const REQUEST_CANCELLED: Self = Self(0x010c);
    /// A stream ended before its request was whole.
    pub const REQUEST_INCOMPLETE: Self = Self(0x010d);
    /// A message that cannot be one.
    pub const MESSAGE_ERROR: Self = Self(0x010e);
    /// A datagram that cannot be one.
    pub const DATAGRAM_ERROR: Self = Self(0x33);
    /// A field section cannot be decoded.
    pub const QPACK_DECOMPRESSION_FAILED: Self = Self(0x0200);
    /// An instruction of the client's encoder cannot be carried out.
    pub const QPACK_ENCODER_STREAM_ERROR: Self = Self(0x0201);
    /// An instruction of the client's decoder makes no sense.
    pub const QPACK_DECODER_STREAM_ERROR: Self = Self(0x0202);
}

/// What ends because the other side breaks a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// The connection, with a reason for people.
    Connection(Code, &'static str),
    /// The stream at hand.
    Stream(Code),
}
