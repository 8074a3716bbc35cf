//! What of DTLS is read without a session: record headers, and the ClientHello before its cookie.
//!
//! Nothing here allocates or keeps anything, and no length that is read is trusted before it is compared with what came.

/// A record of a handshake (RFC 6347 §4.1, RFC 5246 §6.2.1).
pub(crate) const HANDSHAKE: u8 = 22;
/// A record of what DTLS carries.
pub(crate) const APPLICATION_DATA: u8 = 23;
/// Bytes of a record's header (RFC 6347 §4.1).
pub(super) const RECORD_HEADER_LEN: usize = 13;
/// Bytes of a handshake message's header (RFC 6347 §4.2.2).
const MESSAGE_HEADER_LEN: usize = 12;
/// Types of handshake messages (RFC 5246 §7.4).
pub(super) const CLIENT_HELLO: u8 = 1;
pub(super) const CERTIFICATE: u8 = 11;
const HELLO_VERIFY_REQUEST: u8 = 3;
/// DTLS 1.0, which a HelloVerifyRequest names whatever version is agreed on later (RFC 6347 §4.2.1).
const DTLS_1_0: [u8; 2] = [0xFE, 0xFF];
const VERSION_MAJOR: u8 = 0xFE;

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record<'a> {
    pub(crate) kind: u8,
    pub(crate) epoch: u16,
    /// 48 bits.
    pub(crate) sequence: u64,
    pub(crate) fragment: &'a [u8],
}

impl<'a> Record<'a> {
    /// Returns the first record of a datagram, and what follows it. `None`: there is no whole record of DTLS 1.0 to 1.2.
    pub(crate) fn first(datagram: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let mut reader = Reader(datagram);
        let kind = reader.byte()?;
        if reader.byte()? != VERSION_MAJOR {
            return None;
        }
        reader.byte()?;
        let epoch = u16::try_from(reader.number(2)?).ok()?;
        let sequence = reader.number(6)?;
        let len = reader.len(2)?;
        let record = Self {
            kind,
            epoch,
            sequence,
            fragment: reader.bytes(len)?,
        };
        Some((record, reader.0))
    }
}

/// The part of a ClientHello up to its cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientHello<'a> {
    /// The number of its record, 48 bits.
    pub(crate) sequence: u64,
    pub(crate) random: [u8; 32],
    /// Empty in the first hello of a client.
    pub(super) cookie: &'a [u8],
}

impl<'a> ClientHello<'a> {
    /// Returns the hello that a datagram begins with; a first fragment does, if it reaches beyond the cookie. `None`: it begins with something
    /// else.
    pub(super) fn first(datagram: &'a [u8]) -> Option<Self> {
        let (record, _) = Record::first(datagram)?;
        if record.kind != HANDSHAKE || record.epoch != 0 {
            return None;
        }
        let mut reader = Reader(record.fragment);
        if reader.byte()? != CLIENT_HELLO {
            return None;
        }
        let message_len = reader.len(3)?;
        let _message_sequence = reader.number(2)?;
        let fragment_offset = reader.len(3)?;
        let fragment_len = reader.len(3)?;
        if fragment_offset != 0 || fragment_len > message_len {
            return None;
        }
        let mut body = Reader(reader.bytes(fragment_len)?);
        if body.byte()? != VERSION_MAJOR {
            return None;
        }
        body.byte()?;
        let random = body.bytes(32)?.try_into().ok()?;
        let session_len = body.len(1).filter(|len| *len <= 32)?;
        body.bytes(session_len)?;
        let cookie_len = body.len(1)?;
        Some(Self {
            sequence: record.sequence,
            random,
            cookie: body.bytes(cookie_len)?,
        })
    }
}

/// Appends a HelloVerifyRequest to a hello whose record had the number `sequence` (RFC 6347 §4.2.1).
///
/// With a cookie of 17 bytes it has 45, fewer than any hello, which has 65 at least.
pub(super) fn write_hello_verify_request(out: &mut Vec<u8>, sequence: u64, cookie: &[u8]) {
    let number_24 = |len: usize| u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes();
    let body_len = DTLS_1_0.len() + 1 + cookie.len();
    let fragment_len = u16::try_from(MESSAGE_HEADER_LEN + body_len).unwrap_or(u16::MAX);
    out.push(HANDSHAKE);
    out.extend(DTLS_1_0);
    out.extend([0, 0]); // epoch
    out.extend(&sequence.to_be_bytes()[2..]);
    out.extend(fragment_len.to_be_bytes());
    out.push(HELLO_VERIFY_REQUEST);
    out.extend(&number_24(body_len)[1..]);
    out.extend([0, 0]); // the first message of this server
    out.extend([0, 0, 0]); // from its first byte ...
    out.extend(&number_24(body_len)[1..]); // ... to its last
    out.extend(DTLS_1_0);
    out.push(u8::try_from(cookie.len()).unwrap_or(u8::MAX));
    out.extend(cookie);
}

/// Returns the handshake messages of which fragments are in `datagram`, with the length that each claims to have as a whole. What comes enciphered is not looked into.
pub(super) fn claims(datagram: &[u8]) -> impl Iterator<Item = Claim> {
    let mut rest = datagram;
    let mut reader = Reader(&[]);
    std::iter::from_fn(move || {
        loop {
            if let Some(claim) = reader.claim() {
                return Some(claim);
            }
            let (record, behind) = Record::first(rest)?;
            rest = behind;
            if record.kind == HANDSHAKE && record.epoch == 0 {
                reader = Reader(record.fragment);
            }
        }
    })
}

/// A handshake message, by what the header of one of its fragments says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) kind: u8,
    /// The number of the message, from zero.
    pub(super) sequence: u16,
    pub(super) message_len: usize,
}

/// Returns the part of `datagram` in front of its record number `count` among those that are protected, and how many such records that has.
pub(super) fn before_protected(datagram: &[u8], count: usize) -> (&[u8], usize) {
    let mut rest = datagram;
    let mut found = 0;
    while let Some((record, behind)) = Record::first(rest) {
        if record.epoch > 0 {
            if found == count {
                break;
            }
            found += 1;
        }
        rest = behind;
    }
    let is_cut = Record::first(rest).is_some_and(|(record, _)| record.epoch > 0);
    let end = if is_cut {
        datagram.len() - rest.len()
    } else {
        datagram.len()
    };
    (&datagram[..end], found)
}

/// Takes numbers and bytes from the front of what is left.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    fn byte(&mut self) -> Option<u8> {
        self.bytes(1)?.first().copied()
    }

    /// Reads an unsigned number of `len` bytes, at most 8.
    fn number(&mut self, len: usize) -> Option<u64> {
        let bytes = self.bytes(len)?.iter();
        Some(bytes.fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn len(&mut self, len: usize) -> Option<usize> {
        usize::try_from(self.number(len)?).ok()
    }

    /// Skips a fragment of a handshake message. Returns the fields of its header.
    fn claim(&mut self) -> Option<Claim> {
        let kind = self.byte()?;
        let message_len = self.len(3)?;
        let sequence = u16::try_from(self.number(2)?).ok()?;
        self.bytes(3)?; // offset
        let fragment_len = self.len(3)?;
        // The header of a truncated fragment still has the length of the message.
        self.0 = self.0.get(fragment_len..).unwrap_or_default();
        Some(Claim {
            kind,
            sequence,
            message_len,
        })
    }
}
