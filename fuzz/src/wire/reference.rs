//! A decoder written for obviousness: it allocates, it walks a message once per question, and it knows nothing of slots
//! and offsets.

use turnbuckle_wire::AttributeType;

/// Returns the CRC-32 of ITU V.42, bit by bit.
pub(super) fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for &byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ (0xEDB8_8320 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

/// A message decoded the slow way.
pub(super) struct Reference<'a> {
    /// Before the first integrity attribute or fingerprint.
    pub(super) body: Vec<(AttributeType, &'a [u8])>,
    pub(super) sha1: Option<&'a [u8]>,
    pub(super) sha256: Option<&'a [u8]>,
    pub(super) fingerprint: bool,
}

impl<'a> Reference<'a> {
    /// Decodes a message. Returns `None` if the bytes are no STUN message.
    pub(super) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let length = usize::from(u16::from_be_bytes([*bytes.get(2)?, *bytes.get(3)?]));
        if bytes.len() < 20
            || bytes[0] >= 0x40
            || bytes[4..8] != [0x21, 0x12, 0xA4, 0x42]
            || !length.is_multiple_of(4)
            || bytes.len() != 20 + length
        {
            return None;
        }
        let mut reference = Self {
            body: Vec::new(),
            sha1: None,
            sha256: None,
            fingerprint: false,
        };
        let mut at = 20;
        while at < bytes.len() {
            let kind = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
            let len = usize::from(u16::from_be_bytes([bytes[at + 2], bytes[at + 3]]));
            let value = bytes.get(at + 4..at + 4 + len)?;
            if reference.fingerprint {
                return None;
            }
            let in_body = reference.sha1.is_none() && reference.sha256.is_none();
            match kind {
                0x0008 if reference.sha256.is_none() => {
                    reference.sha1.get_or_insert(value);
                }
                0x001C => {
                    reference.sha256.get_or_insert(value);
                }
                0x8028 => {
                    let crc = crc32(&bytes[..at]) ^ 0x5354_554E;
                    if value != crc.to_be_bytes() {
                        return None;
                    }
                    reference.fingerprint = true;
                }
                _ if in_body => reference.body.push((AttributeType::new(kind), value)),
                _ => {}
            }
            at += 4 + len.next_multiple_of(4);
        }
        Some(reference)
    }

    pub(super) fn first(&self, kind: AttributeType) -> Option<&'a [u8]> {
        match kind {
            AttributeType::MESSAGE_INTEGRITY => self.sha1,
            AttributeType::MESSAGE_INTEGRITY_SHA256 => self.sha256,
            _ => {
                let found = self.body.iter().find(|(found, _)| *found == kind);
                found.map(|(_, value)| *value)
            }
        }
    }
}
