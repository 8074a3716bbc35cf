//! Finding trains: runs of equal channel messages inside one received message.

use crate::counters::HubDrop;
use turnbuckle_datapath::{Received, Run};
use turnbuckle_wire::{ChannelData, Demux, classify, padding_len};

/// Returns what a first byte announces, by UDP and on connections alike. ChannelData reaches to 127 as in RFC 5766 §11: which numbers may be bound the
/// engine knows, and what is not bound is dropped there under one reason.
#[inline]
pub(crate) fn protocol(first: u8) -> Demux {
    match first {
        80..=127 => Demux::ChannelData,
        _ => classify(first),
    }
}

/// Datagrams of one length back to back, the last perhaps shorter: those of a received message, or what came out of records.
pub(crate) struct Segments<'a, P> {
    /// What they lie in, from its first byte.
    pub(crate) payload: &'a P,
    pub(crate) bytes: &'a [u8],
    pub(crate) segment: usize,
}

/// Consecutive channel messages of one channel and one size; the last may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Train {
    /// The channel number as it stands in the messages, in range or not.
    pub(crate) channel: u16,
    /// Where the payloads are.
    pub(crate) run: Run,
    /// Where in the message the first byte after the train is.
    pub(crate) end: usize,
}

impl Train {
    /// Returns the longest train that begins at `start` in a message whose segments are `stride` bytes long, the last perhaps
    /// shorter.
    ///
    /// The segments of a train have equal headers, so one comparison of 4 bytes decides about each.
    ///
    /// # Errors
    ///
    /// The first segment is not a whole channel message (RFC 8656 §12.6).
    pub(crate) fn at(bytes: &[u8], start: usize, stride: usize) -> Result<Self, HubDrop> {
        let first_end = bytes.len().min(start + stride);
        let first = ChannelData::parse_datagram(&bytes[start..first_end])
            .map_err(|_| HubDrop::MalformedChannelData)?;
        let len = first.data.len();
        let header = &bytes[start..start + ChannelData::HEADER_LEN];
        let mut count = 1;
        let mut end = first_end;
        // A full segment with the same header holds as much payload as the first.
        while end + stride <= bytes.len() && &bytes[end..end + ChannelData::HEADER_LEN] == header {
            end += stride;
            count += 1;
        }
        let mut last_len = len;
        // What follows of the same channel and is shorter may close the train, be it a shorter segment or shorter payload.
        if end < bytes.len() {
            let next_end = bytes.len().min(end + stride);
            if let Ok(next) = ChannelData::parse_datagram(&bytes[end..next_end])
                && next.number == first.number
                && next.data.len() < len
                && !next.data.is_empty()
            {
                last_len = next.data.len();
                count += 1;
                end = next_end;
            }
        }
        Ok(Self {
            channel: first.number,
            run: Run {
                start: start + ChannelData::HEADER_LEN,
                stride,
                len,
                last_len,
                count,
            },
            end,
        })
    }

    /// Returns the first `count` messages, at least one, of a train that begins at `start` of a stream.
    pub(crate) fn first(mut self, start: usize, count: usize) -> Self {
        if self.run.count > count {
            self.end = start + count * self.run.stride;
            self.run.count = count;
            self.run.last_len = self.run.len;
        }
        self
    }

    /// Returns the longest train that begins with the channel message at `start` of a stream, where every message is padded to four bytes
    /// (RFC 8656 §12.5). Only whole messages belong to it.
    ///
    /// # Errors
    ///
    /// There is no whole channel message at `start`.
    pub(crate) fn in_stream(bytes: &[u8], start: usize) -> Result<Self, HubDrop> {
        let first = ChannelData::parse_datagram(&bytes[start..])
            .map_err(|_| HubDrop::MalformedChannelData)?;
        let len = first.data.len();
        let stride = padded_len(len);
        let header = &bytes[start..start + ChannelData::HEADER_LEN];
        let mut count = 1;
        let mut end = start + stride;
        while end + stride <= bytes.len() && &bytes[end..end + ChannelData::HEADER_LEN] == header {
            end += stride;
            count += 1;
        }
        let mut last_len = len;
        if let Some(Ok(next)) = bytes.get(end..).map(ChannelData::parse_datagram)
            && next.number == first.number
            && next.data.len() < len
            && !next.data.is_empty()
            && end + padded_len(next.data.len()) <= bytes.len()
        {
            last_len = next.data.len();
            count += 1;
            end += padded_len(last_len);
        }
        Ok(Self {
            channel: first.number,
            run: Run {
                start: start + ChannelData::HEADER_LEN,
                stride,
                len,
                last_len,
                count,
            },
            end,
        })
    }

    /// Returns the bytes of payload in the train.
    pub(crate) fn payload_bytes(&self) -> u64 {
        (self.run.len as u64) * (self.run.count as u64 - 1) + self.run.last_len as u64
    }
}

/// Returns the first `count` payloads of a run, all of them if it has no more, and how many are left over.
#[inline]
pub(crate) fn cut(run: Run, count: usize) -> (Run, usize) {
    if count >= run.count {
        return (run, 0);
    }
    let first = Run {
        count,
        last_len: run.len,
        ..run
    };
    (first, run.count - count)
}

/// Returns how many bytes a channel message with so much payload takes in a stream (RFC 8656 §12.5).
fn padded_len(payload_len: usize) -> usize {
    ChannelData::HEADER_LEN + payload_len + padding_len(payload_len)
}

/// Returns the payloads of a run that lies in `bytes`.
pub(crate) fn payloads(bytes: &[u8], run: Run) -> impl Iterator<Item = &[u8]> {
    (0..run.count).map(move |index| {
        let start = run.start + index * run.stride;
        let is_last = index + 1 == run.count;
        let len = if is_last { run.last_len } else { run.len };
        &bytes[start..start + len]
    })
}

/// Returns the number of zero bytes behind `len` bytes in a message: 0 to 3.
pub(crate) fn padding(len: usize) -> u8 {
    u8::try_from(padding_len(len)).unwrap_or_default()
}

/// Returns a number of datagrams in one message.
pub(crate) fn len_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Returns a payload length that came from one UDP datagram.
pub(crate) fn len_u16(len: usize) -> u16 {
    u16::try_from(len).unwrap_or(u16::MAX)
}

/// Returns the bytes of the channel message that begins `bytes`, without padding.
pub(crate) fn channel_message_len(bytes: &[u8]) -> usize {
    match bytes.get(2..ChannelData::HEADER_LEN) {
        Some(&[high, low]) => {
            ChannelData::HEADER_LEN + usize::from(u16::from_be_bytes([high, low]))
        }
        _ => bytes.len(),
    }
}

/// Returns the datagrams of a message as runs of equal length: all full segments, then a shorter last one if there is one.
///
/// A channel message carries its length, so datagrams of another length need another header.
pub(crate) fn equal_runs(message: &Received<'_>) -> [Option<Run>; 2] {
    let (total, segment) = (message.bytes.len(), message.segment);
    if total <= segment {
        return [Some(Run::single(0, total)), None];
    }
    let count = total / segment;
    let full = Run {
        start: 0,
        stride: segment,
        len: segment,
        last_len: segment,
        count,
    };
    let rest = total % segment;
    [
        Some(full),
        (rest > 0).then(|| Run::single(count * segment, rest)),
    ]
}

/// Returns each datagram of a message as a run of its own.
///
/// Where one lies follows from its index alone, so a caller that passes over one finds the next ones where they are.
pub(crate) fn single_runs(message: &Received<'_>) -> impl Iterator<Item = Run> + use<> {
    let (total, segment) = (message.bytes.len(), message.segment);
    (0..message.segment_count()).map(move |index| {
        let start = index * segment;
        Run::single(start, segment.min(total - start))
    })
}

#[cfg(test)]
mod tests {
    use turnbuckle_datapath::EndpointId;
    use turnbuckle_wire::{DATA_INDICATION_HEADER_MAX, TransactionId, data_indication_header};

    use super::*;

    fn message(segments: &[(u16, usize)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for &(channel, len) in segments {
            bytes.extend_from_slice(&channel.to_be_bytes());
            bytes.extend_from_slice(&u16::try_from(len).unwrap().to_be_bytes());
            bytes.extend(std::iter::repeat_n(0xAB, len));
        }
        bytes
    }

    #[test]
    fn the_first_messages_of_a_train_end_where_the_rest_begins() {
        let message = [0x40, 1, 0, 5, 9, 9, 9, 9, 9, 0, 0, 0];
        let bytes = [&[0; 4][..], &message.repeat(7)].concat();
        let train = Train::in_stream(&bytes, 4).unwrap();
        assert_eq!((train.run.count, train.end), (7, bytes.len()));
        assert_eq!(train.first(4, 7), train);
        let first = train.first(4, 3);
        assert_eq!(
            (first.run.count, first.run.last_len, first.end),
            (3, 5, 4 + 3 * 12)
        );
        let rest = Train::in_stream(&bytes, first.end).unwrap();
        assert_eq!(rest.run.count, 4);
    }

    #[test]
    fn equal_messages_of_one_channel_are_one_train_and_a_shorter_last_one_belongs_to_it() {
        let bytes = message(&[(0x4000, 20), (0x4000, 20), (0x4000, 20), (0x4000, 8)]);
        let train = Train::at(&bytes, 0, 24).unwrap();
        assert_eq!(
            train.run,
            Run {
                start: 4,
                stride: 24,
                len: 20,
                last_len: 8,
                count: 4
            }
        );
        assert_eq!(
            (train.channel, train.end, train.payload_bytes()),
            (0x4000, bytes.len(), 68)
        );
    }

    #[test]
    fn another_channel_ends_a_train() {
        let bytes = message(&[(0x4000, 20), (0x4000, 20), (0x4001, 20), (0x4001, 20)]);
        let first = Train::at(&bytes, 0, 24).unwrap();
        assert_eq!((first.channel, first.run.count, first.end), (0x4000, 2, 48));
        let second = Train::at(&bytes, first.end, 24).unwrap();
        assert_eq!(
            (second.channel, second.run.count, second.end),
            (0x4001, 2, 96)
        );
    }

    #[test]
    fn padding_after_the_payload_is_skipped() {
        // RFC 8656 §12.5: over UDP padding is allowed, not required.
        let mut bytes = message(&[(0x4000, 6)]);
        bytes.extend_from_slice(&[0, 0]);
        let mut two = bytes.clone();
        two.extend_from_slice(&bytes);
        let train = Train::at(&two, 0, 12).unwrap();
        assert_eq!(
            train.run,
            Run {
                start: 4,
                stride: 12,
                len: 6,
                last_len: 6,
                count: 2
            }
        );
    }

    #[test]
    fn a_message_that_claims_more_than_arrived_is_refused_and_ends_the_train_before_it() {
        let mut bytes = message(&[(0x4000, 20), (0x4000, 20)]);
        bytes.truncate(40); // the second is 4 bytes short of what it claims
        let train = Train::at(&bytes, 0, 24).unwrap();
        assert_eq!((train.run.count, train.end), (1, 24));
        assert_eq!(
            Train::at(&bytes, 24, 24),
            Err(HubDrop::MalformedChannelData)
        );
    }

    #[test]
    fn an_empty_message_is_a_train_of_its_own() {
        let bytes = message(&[(0x4000, 0)]);
        let train = Train::at(&bytes, 0, 4).unwrap();
        assert_eq!(
            (train.run.len, train.run.count, train.payload_bytes()),
            (0, 1, 0)
        );
    }

    #[test]
    fn an_empty_message_never_closes_a_longer_train() {
        // A GSO send cannot end in an empty segment.
        let bytes = message(&[(0x4000, 20), (0x4000, 0)]);
        let train = Train::at(&bytes, 0, 24).unwrap();
        assert_eq!((train.run.count, train.end), (1, 24));
    }

    #[test]
    fn datagrams_too_long_for_a_data_indication_leave_the_next_one_where_it_is() {
        let peer = "203.0.113.9:5000".parse().unwrap();
        // 16 bytes of attributes and 65,520 of payload are one too many for a length field of 16 bits.
        let too_long = 65_520;
        let bytes = [vec![1; too_long], vec![2; too_long], vec![3; 100]].concat();
        let endpoint = EndpointId::from_u32(0);
        let message = Received::new((endpoint, 0), peer, &bytes, too_long, 0);
        let mut framed = Vec::new();
        for run in single_runs(&message) {
            let mut header = [0; DATA_INDICATION_HEADER_MAX];
            let transaction = TransactionId::new([0; 12]);
            let len = len_u16(run.len);
            if data_indication_header(&mut header, transaction, peer, len).is_some() {
                framed.extend(payloads(&bytes, run));
            }
        }
        assert_eq!(framed, [[3; 100].as_slice()]);
    }
}
