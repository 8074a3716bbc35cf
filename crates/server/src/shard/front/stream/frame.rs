//! Where a message of a stream ends (RFC 8489 §6.2.2, RFC 8656 §12.5).
//!
//! The first two bits tell STUN from ChannelData, and either says its length in bytes 2 and 3. There is no way back after
//! a wrong length, so whatever cannot be a message ends the connection.

use turnbuckle_wire::{ChannelData, Demux, HEADER_LEN, MAGIC_COOKIE, padding_len};

use crate::counters::StreamDrop;
use crate::shard::train::protocol;

/// Longest message of a client that has no allocation. All it can want is one, and those requests take a few hundred
/// bytes; so few bytes of strangers are kept.
pub(crate) const STRANGER_LEN_MAX: usize = 4096;

/// What stands at the beginning of some bytes of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// A whole channel message, padding included.
    ChannelData,
    /// A whole STUN message of this many bytes.
    Stun(usize),
    /// The beginning of either, as far as one can tell.
    Incomplete,
    /// Neither.
    Invalid(StreamDrop),
}

impl Frame {
    /// Returns how many bytes the message has whose [incomplete](Self::Incomplete) beginning these bytes are, if they tell, and if nothing that
    /// is still to come can show that it is none.
    pub(crate) fn announced_len(bytes: &[u8]) -> Option<usize> {
        let [first, _, high, low, rest @ ..] = bytes else {
            return None;
        };
        let len = usize::from(u16::from_be_bytes([*high, *low]));
        match first {
            0x40.. => Some(ChannelData::HEADER_LEN + len + padding_len(len)),
            _ if rest.len() >= size_of_val(&MAGIC_COOKIE) => Some(HEADER_LEN + len),
            _ => None,
        }
    }

    /// Looks at the first bytes of a stream; `len_max` is what a message may take.
    #[inline]
    pub(crate) fn at(bytes: &[u8], len_max: usize) -> Self {
        let Some(&first) = bytes.first() else {
            return Self::Incomplete;
        };
        let is_channel_data = match protocol(first) {
            Demux::ChannelData => true,
            Demux::Stun => false,
            _ => return Self::Invalid(StreamDrop::ProtocolUnknown),
        };
        let [_, _, high, low, ..] = bytes else {
            return Self::Incomplete;
        };
        let len = usize::from(u16::from_be_bytes([*high, *low]));
        let whole = if is_channel_data {
            ChannelData::HEADER_LEN + len + padding_len(len)
        } else {
            HEADER_LEN + len
        };
        if !is_channel_data {
            let cookie = MAGIC_COOKIE.to_be_bytes();
            let given = bytes.get(4..8.min(bytes.len())).unwrap_or_default();
            if len % 4 != 0 || !cookie.starts_with(given) {
                return Self::Invalid(StreamDrop::MalformedStun);
            }
        }
        // guard: V-47-length
        if whole > len_max {
            Self::Invalid(StreamDrop::MessageTooLong)
        } else if bytes.len() < whole {
            Self::Incomplete
        } else if is_channel_data {
            Self::ChannelData
        } else {
            Self::Stun(whole)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::train::Train;
    use proptest::prelude::*;

    /// Any message, with 16 more bytes than the longest has.
    const LEN_MAX: usize = 65_568;

    fn stun(len: usize) -> Vec<u8> {
        let mut bytes = vec![0, 1];
        bytes.extend_from_slice(&u16::try_from(len).unwrap().to_be_bytes());
        bytes.extend_from_slice(&MAGIC_COOKIE.to_be_bytes());
        bytes.resize(HEADER_LEN + len, 7);
        bytes
    }

    fn channel_data(number: u16, len: usize) -> Vec<u8> {
        let mut bytes = number.to_be_bytes().to_vec();
        bytes.extend_from_slice(&u16::try_from(len).unwrap().to_be_bytes());
        bytes.resize(4 + len, 9);
        bytes.resize(4 + len + padding_len(len), 0);
        bytes
    }

    /// Returns the messages in `pieces`, each given behind what was left of those before, as a connection is read.
    fn messages(pieces: &[&[u8]]) -> Result<Vec<Vec<u8>>, StreamDrop> {
        let mut kept = Vec::new();
        let mut found = Vec::new();
        for piece in pieces {
            kept.extend_from_slice(piece);
            let mut start = 0;
            loop {
                match Frame::at(&kept[start..], LEN_MAX) {
                    Frame::Incomplete => break,
                    Frame::Invalid(reason) => return Err(reason),
                    Frame::Stun(len) => {
                        found.push(kept[start..start + len].to_vec());
                        start += len;
                    }
                    Frame::ChannelData => {
                        let train = Train::in_stream(&kept, start)
                            .map_err(|_| StreamDrop::MalformedChannelData)?;
                        let run = train.run;
                        for index in 0..run.count {
                            let from = run.start + index * run.stride - 4;
                            let len = if index + 1 == run.count {
                                run.last_len
                            } else {
                                run.len
                            };
                            found.push(kept[from..from + 4 + len + padding_len(len)].to_vec());
                        }
                        start = train.end;
                    }
                }
            }
            kept.drain(..start);
        }
        assert!(kept.is_empty(), "whole messages leave nothing");
        Ok(found)
    }

    fn any_message() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            (0_usize..40).prop_map(|words| stun(words * 4)),
            (0x4000_u16..0x4003, 0_usize..60).prop_map(|(number, len)| channel_data(number, len)),
            // Runs of equal messages are what media looks like.
            (0x4000_u16..0x4002).prop_map(|number| channel_data(number, 20)),
            (0x4000_u16..=0x7FFF, 0_usize..2000)
                .prop_map(|(number, len)| channel_data(number, len)),
        ]
    }

    proptest! {
        //= STUN-007
        //= TURN-088
        #[test]
        fn any_split_gives_the_same_messages(
            sent in prop::collection::vec(any_message(), 1..30),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        ) {
            let bytes = sent.concat();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
            prop_assert_eq!(messages(&pieces), Ok(sent));
        }

        #[test]
        fn any_bytes_are_messages_or_an_end(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut start = 0;
            while let Some(rest) = bytes.get(start..).filter(|rest| !rest.is_empty()) {
                match Frame::at(rest, LEN_MAX) {
                    Frame::Stun(len) => {
                        prop_assert!(len <= rest.len());
                        start += len;
                    }
                    Frame::ChannelData => {
                        let train = Train::in_stream(&bytes, start).unwrap();
                        prop_assert!(train.end > start && train.end <= bytes.len());
                        start = train.end;
                    }
                    Frame::Incomplete | Frame::Invalid(_) => break,
                }
            }
        }
    }

    #[test]
    fn messages_cut_at_every_byte_arrive_whole() {
        let sent = [
            stun(8),
            channel_data(0x4000, 5),
            channel_data(0x4000, 5),
            channel_data(0x4000, 1),
            channel_data(0x4000, 0),
            stun(0),
        ];
        let bytes = sent.concat();
        let singly: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(messages(&singly), Ok(sent.to_vec()));
        for cut in 0..=bytes.len() {
            let (head, tail) = bytes.split_at(cut);
            assert_eq!(messages(&[head, tail]), Ok(sent.to_vec()), "cut at {cut}");
        }
    }

    #[test]
    fn what_cannot_become_a_message_is_known_at_once() {
        let invalid = |bytes: &[u8]| Frame::at(bytes, STRANGER_LEN_MAX);
        for first in (4..0x40).chain(0x80..=0xFF) {
            assert_eq!(
                invalid(&[first]),
                Frame::Invalid(StreamDrop::ProtocolUnknown),
                "{first}"
            );
        }
        assert_eq!(
            invalid(b"\x00\x01\x00\x03"),
            Frame::Invalid(StreamDrop::MalformedStun),
            "a length that is no multiple of four"
        );
        assert_eq!(
            invalid(b"\x00\x01\x00\x00\x21\x13"),
            Frame::Invalid(StreamDrop::MalformedStun),
            "another cookie"
        );
        assert_eq!(
            invalid(b"\x00\x01\xFF\xFC"),
            Frame::Invalid(StreamDrop::MessageTooLong)
        );
        assert_eq!(
            invalid(b"\x40\x00\xFF\xFF"),
            Frame::Invalid(StreamDrop::MessageTooLong)
        );
        assert_eq!(Frame::at(b"\x40\x00\xFF\xFF", LEN_MAX), Frame::Incomplete);
    }

    #[test]
    fn a_train_of_a_stream_ends_with_its_last_whole_message() {
        let bytes = [
            channel_data(0x4000, 5),
            channel_data(0x4000, 5),
            channel_data(0x4000, 3),
            channel_data(0x4000, 5),
        ]
        .concat();
        let train = Train::in_stream(&bytes, 0).unwrap();
        assert_eq!((train.run.count, train.run.last_len, train.end), (3, 3, 32));
        // The padding of the shorter one is not there yet.
        let train = Train::in_stream(&bytes[..31], 0).unwrap();
        assert_eq!((train.run.count, train.run.last_len, train.end), (2, 5, 24));
    }
}
