//! Packets of a connection: made, and opened.

use super::super::wire::{Reader, put};
use super::{Link, Space};

/// Bytes of a packet number: always the longest form.
const NUMBER_LEN: usize = 4;
const TAG_LEN: usize = 16;

impl Link {
    /// Makes a packet, padded so that it has `len` bytes at least. Empty without keys.
    pub(in crate::quic) fn packet(
        &mut self,
        space: Space,
        frames: &[u8],
        reserved: bool,
        len: usize,
    ) -> Vec<u8> {
        let packets = &mut self.spaces[space.index()];
        let keys = match space {
            Space::Early => self.early.as_ref(),
            _ => packets.keys.as_ref().map(|keys| &keys.local),
        };
        let Some(keys) = keys else {
            return Vec::new();
        };
        let number = packets.next;
        packets.next += 1;
        let mut payload = frames.to_vec();
        let mut header = Vec::new();
        let (kind, reserved_bits) = match space {
            Space::Initial => (0xc0, 0x0c),
            Space::Early => (0xd0, 0x0c),
            Space::Handshake => (0xe0, 0x0c),
            Space::Application => (0x40, 0x18),
        };
        let number_bits = 0x03;
        header.push(kind | number_bits | if reserved { reserved_bits } else { 0 });
        if space == Space::Application {
            header.extend(&self.remote_id);
        } else {
            header.extend(1_u32.to_be_bytes());
            for id in [&self.remote_id, &self.local_id] {
                header.push(u8::try_from(id.len()).unwrap_or(u8::MAX));
                header.extend(id);
            }
            if space == Space::Initial {
                put(&mut header, self.token.len() as u64);
                header.extend(&self.token);
            }
            let without_padding = header.len() + 2 + NUMBER_LEN + payload.len() + TAG_LEN;
            payload.resize(payload.len() + len.saturating_sub(without_padding), 0);
            let rest = NUMBER_LEN + payload.len() + TAG_LEN;
            let rest = u16::try_from(rest).unwrap_or(0x3fff) | 0x4000;
            header.extend(rest.to_be_bytes());
        }
        let number_at = header.len();
        let truncated = number.to_be_bytes();
        header.extend(&truncated[8 - NUMBER_LEN..]);
        let Ok(tag) = keys.packet.encrypt_in_place(number, &header, &mut payload) else {
            return Vec::new();
        };
        let mut packet = header;
        packet.extend(payload);
        packet.extend(tag.as_ref());
        let (head, rest) = packet.split_at_mut(number_at + NUMBER_LEN);
        let (first, numbers) = head.split_at_mut(1);
        let numbers = &mut numbers[number_at - 1..];
        let sample_len = keys.header.sample_len();
        // The sample begins four bytes behind where the number does, whatever its length (RFC 9001 §5.4.2).
        let _ = keys
            .header
            .encrypt_in_place(&rest[..sample_len], &mut first[0], numbers);
        packet
    }

    /// Takes the packet at the front. Returns its length; `None` if the rest is none.
    pub(super) fn take_packet(&mut self, bytes: &mut [u8]) -> Option<usize> {
        let first = *bytes.first()?;
        if first & 0x80 == 0 {
            let number_at = 1 + self.local_id.len();
            let len = bytes.len();
            let is_own = bytes.get(1..number_at)? == self.local_id;
            if is_own {
                self.open(Space::Application, bytes, number_at);
            }
            return Some(len);
        }
        let mut reader = Reader(&*bytes);
        reader.take(1)?;
        let version = reader.take(4)?;
        if version == [0; 4] {
            self.seen.has_version_negotiation = true;
            return None;
        }
        let id_len = reader.byte()?;
        if reader.take(id_len.into())? != self.local_id {
            return None;
        }
        let id_len = reader.byte()?;
        let remote_id = reader.take(id_len.into())?.to_vec();
        let space = match first >> 4 & 0x03 {
            0 => Space::Initial,
            2 => Space::Handshake,
            3 => {
                let token = reader.0.len().checked_sub(TAG_LEN)?;
                let token = reader.take(token)?.to_vec();
                self.take_retry(remote_id, token);
                return None;
            }
            _ => return None,
        };
        if space == Space::Initial {
            reader.counted()?;
        }
        let rest = usize::try_from(reader.integer()?).ok()?;
        let number_at = bytes.len() - reader.0.len();
        let end = number_at.checked_add(rest)?;
        let packet = bytes.get_mut(..end)?;
        if self.open(space, packet, number_at) && !self.seen.has_answer {
            self.seen.has_answer = true;
            self.remote_id = remote_id;
        }
        Some(end)
    }

    /// Deciphers a packet and takes its frames. Returns whether it is authentic.
    fn open(&mut self, space: Space, packet: &mut [u8], number_at: usize) -> bool {
        let packets = &mut self.spaces[space.index()];
        let Some(keys) = &packets.keys else {
            return false;
        };
        let sample_at = number_at + NUMBER_LEN;
        let sample_len = keys.remote.header.sample_len();
        let Some(sample) = packet.get(sample_at..sample_at + sample_len) else {
            return false;
        };
        let sample = sample.to_vec();
        let (first, rest) = packet.split_at_mut(1);
        let numbers = &mut rest[number_at - 1..number_at - 1 + NUMBER_LEN];
        let header = &keys.remote.header;
        if header
            .decrypt_in_place(&sample, &mut first[0], numbers)
            .is_err()
        {
            return false;
        }
        let number_len = usize::from(first[0] & 0x03) + 1;
        let truncated = numbers[..number_len]
            .iter()
            .fold(0, |value, &byte| value << 8 | u64::from(byte));
        let expected = packets
            .received
            .iter()
            .max()
            .map_or(0, |largest| largest + 1);
        let number = whole_number(expected, truncated, number_len);
        let (header, payload) = packet.split_at_mut(number_at + number_len);
        let Ok(payload) = keys.remote.packet.decrypt_in_place(number, header, payload) else {
            return false;
        };
        let payload = payload.to_vec();
        self.seen.packets_in += 1;
        packets.received.push(number);
        let excess = packets.received.len().saturating_sub(64);
        packets.received.drain(..excess);
        self.take_frames(space, &payload);
        true
    }
}

/// Returns the packet number that these last bytes of it stand for (RFC 9000 §A.3).
fn whole_number(expected: u64, truncated: u64, len: usize) -> u64 {
    let window = 1_u64 << (8 * len);
    let candidate = (expected & !(window - 1)) | truncated;
    if candidate + window / 2 <= expected {
        candidate + window
    } else if candidate > expected + window / 2 && candidate >= window {
        candidate - window
    } else {
        candidate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_number_is_the_nearest_to_the_one_expected() {
        // RFC 9000 §A.3 has this example.
        assert_eq!(whole_number(0xa82f_30eb, 0x9b32, 2), 0xa82f_9b32);
        assert_eq!(whole_number(0, 0, 1), 0);
        assert_eq!(whole_number(256, 255, 1), 255);
        assert_eq!(whole_number(255, 0, 1), 256);
    }
}
