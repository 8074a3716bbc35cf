//! What a data packet of the generator says about itself, so that what became of it can be counted.
//!
//! ```text
//! 0       4          8            16          24
//! | CRC32 | session  | sequence   | time, ns  | filling ...
//! ```
//!
//! Big-endian. The highest bit of the sequence number says that the packet counts: it was sent within the measured window. The CRC covers
//! everything behind it.

/// Bytes of the shortest packet.
pub(crate) const HEADER_LEN: usize = 24;

const MEASURED: u64 = 1 << 63;

/// Marks the session of packets that a peer sends by itself to the client of that number. There are never so many clients.
pub(crate) const BY_ITSELF: u32 = 1 << 30;

/// A packet's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Which client's it is.
    pub(crate) session: u32,
    /// Counts from 0 within the session; below 2^63.
    pub(crate) sequence: u64,
    /// Whether it counts.
    pub(crate) is_measured: bool,
    /// When it was sent, or was to be sent, on the clock of the process, nanoseconds.
    pub(crate) time: u64,
}

impl Header {
    /// Writes the header in front of what `packet` is filled with. Does nothing to a packet shorter than a header.
    #[inline]
    pub(crate) fn write(self, packet: &mut [u8]) {
        let flag = if self.is_measured { MEASURED } else { 0 };
        let Some(header) = packet.first_chunk_mut::<HEADER_LEN>() else {
            return;
        };
        header[4..8].copy_from_slice(&self.session.to_be_bytes());
        header[8..16].copy_from_slice(&(self.sequence | flag).to_be_bytes());
        header[16..24].copy_from_slice(&self.time.to_be_bytes());
        let check = crc32fast::hash(&packet[4..]);
        packet[..4].copy_from_slice(&check.to_be_bytes());
    }

    /// Reads a packet; `None` if it is not as it was sent.
    #[inline]
    pub(crate) fn read(packet: &[u8]) -> Option<Self> {
        let header = packet.first_chunk::<HEADER_LEN>()?;
        let [c0, c1, c2, c3, s0, s1, s2, s3, numbers @ ..] = header;
        if crc32fast::hash(&packet[4..]) != u32::from_be_bytes([*c0, *c1, *c2, *c3]) {
            return None;
        }
        let (sequence, time) = numbers.split_at(8);
        let number = |bytes: &[u8]| {
            bytes
                .iter()
                .fold(0, |sum, &byte| sum << 8 | u64::from(byte))
        };
        let sequence = number(sequence);
        Some(Self {
            session: u32::from_be_bytes([*s0, *s1, *s2, *s3]),
            sequence: sequence & !MEASURED,
            is_measured: sequence & MEASURED != 0,
            time: number(time),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_comes_back_and_no_changed_byte_goes_unseen() {
        for is_measured in [true, false] {
            let header = Header {
                session: 0xdead_beef,
                sequence: 0x0102_0304_0506_0708,
                is_measured,
                time: u64::MAX,
            };
            let mut packet = vec![0x5a; 120];
            header.write(&mut packet);
            assert_eq!(Header::read(&packet), Some(header));
            for at in 0..packet.len() {
                packet[at] ^= 0x10;
                assert_eq!(Header::read(&packet), None, "byte {at}");
                packet[at] ^= 0x10;
            }
            assert_eq!(Header::read(&packet[..119]), None);
        }
        assert_eq!(Header::read(&[0; HEADER_LEN - 1]), None);
    }
}
