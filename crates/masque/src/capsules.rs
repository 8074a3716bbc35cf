//! The UDP payloads in a stream of capsules (RFC 9297 §3.2, §3.5, RFC 9298 §5).
//!
//! Consecutive DATAGRAM capsules of one form and one length are *one* piece, so that whoever relays them asks once. Whatever is not
//! served is passed over as it comes, and none of it has to be kept (RFC 9298 §5).

use std::ops::Range;

use turnbuckle_wire::{CapsuleHeader, UDP_CONTEXT, UDP_PAYLOAD_MAX, Varint};

use crate::bind::ContextCapsule;

/// How far one stream of capsules has been read.
#[derive(Debug, Default)]
pub struct Capsules {
    /// How many bytes are left of a capsule that is passed over.
    passing: u64,
}

/// What a stream goes on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// UDP payloads for the target.
    Datagrams(Datagrams),
    /// Bytes that are not kept.
    Passed {
        /// How many.
        len: usize,
        /// Why, if a capsule begins with them: it counts once.
        why: Option<Passed>,
    },
    /// The beginning of a capsule, or nothing.
    Incomplete {
        /// How many bytes the whole capsule has, if that is known.
        whole_len: Option<usize>,
    },
}

/// Payloads at equal distances: all have one length, but the last may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagrams {
    /// Where the first payload begins.
    pub start: usize,
    /// From one payload to the next, in bytes.
    pub stride: usize,
    /// The length of each but the last, in bytes.
    pub len: usize,
    /// The length of the last, in bytes.
    pub last_len: usize,
    /// How many there are; at least one.
    pub count: usize,
    /// Where the last capsule ends.
    pub end: usize,
}

/// Why a capsule is passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// Its type is not served (RFC 9297 §3.2).
    UnknownCapsule,
    /// Its context is not registered (RFC 9298 §4).
    UnknownContext,
}

/// What makes a stream of capsules malformed (RFC 9297 §3.3). Nothing of it can be read any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// A datagram without a whole context id.
    NoContext,
    /// A payload longer than a UDP datagram can have (RFC 9298 §5), or a capsule about a context that cannot be one.
    TooLong,
    /// A capsule about a context that breaks a rule (draft-ietf-masque-connect-udp-listen §3).
    Registration,
}

/// What the stream of a bound tunnel goes on with. Places are those of the bytes that were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BoundPiece {
    /// An HTTP datagram: a context, and what that says.
    Datagram(Range<usize>),
    /// A capsule about a context, and its value.
    Context(ContextCapsule, Range<usize>),
    /// As [`Piece::Passed`].
    Passed {
        /// How many bytes.
        len: usize,
        /// Why, if a capsule begins with them.
        why: Option<Passed>,
    },
    /// As [`Piece::Incomplete`].
    Incomplete {
        /// How many bytes the whole capsule has, if that is known.
        whole_len: Option<usize>,
    },
}

/// The longest HTTP datagram of a bound tunnel, bytes: a context, an address and a payload.
const BOUND_DATAGRAM_MAX: u64 = (UDP_PAYLOAD_MAX + Varint::LEN_MAX + 19) as u64;
/// The longest value of a capsule about a context, bytes.
const REGISTRATION_MAX: u64 = (Varint::LEN_MAX + 19) as u64;

/// One DATAGRAM capsule with a UDP payload that is whole.
struct One {
    payload: usize,
    len: usize,
}

impl Capsules {
    /// Reads what the stream goes on with: `bytes`, of which nothing has been read yet. At most `count_max` datagrams are in one piece.
    ///
    /// # Errors
    ///
    /// The stream is malformed from here on.
    #[inline]
    pub fn next(&mut self, bytes: &[u8], count_max: usize) -> Result<Piece, Malformed> {
        if let Some(len) = self.go_on_passing(bytes) {
            return Ok(Piece::Passed { len, why: None });
        }
        let Some(head) = CapsuleHeader::parse(bytes) else {
            return Ok(Piece::Incomplete { whole_len: None });
        };
        if head.kind != CapsuleHeader::DATAGRAM {
            self.passing = head.value_len;
            return Ok(passed(head.len, Passed::UnknownCapsule));
        }
        let value = bytes.get(head.len..).unwrap_or_default();
        let context_len = value.first().map(|&first| Varint::announced_len(first));
        if head.value_len == 0 || context_len.is_some_and(|len| len as u64 > head.value_len) {
            return Err(Malformed::NoContext);
        }
        let Some((context, context_len)) = Varint::read(value) else {
            return Ok(Piece::Incomplete { whole_len: None });
        };
        let payload_len = head.value_len - context_len as u64;
        if context != UDP_CONTEXT {
            let len = head.len + context_len;
            self.passing = payload_len;
            return Ok(passed(len, Passed::UnknownContext));
        }
        // guard: V-92-length
        let payload_len = usize::try_from(payload_len)
            .ok()
            .filter(|&len| len <= UDP_PAYLOAD_MAX)
            .ok_or(Malformed::TooLong)?;
        let payload = head.len + context_len;
        let whole_len = payload + payload_len;
        if bytes.len() < whole_len {
            return Ok(Piece::Incomplete {
                whole_len: Some(whole_len),
            });
        }
        let first = One {
            payload,
            len: payload_len,
        };
        Ok(Piece::Datagrams(run(bytes, &first, count_max.max(1))))
    }

    /// Reads what the stream of a bound tunnel goes on with, as [`Self::next`]. Which contexts there are is not known here.
    ///
    /// # Errors
    ///
    /// The stream is malformed from here on.
    pub fn next_bound(&mut self, bytes: &[u8]) -> Result<BoundPiece, Malformed> {
        if let Some(len) = self.go_on_passing(bytes) {
            return Ok(BoundPiece::Passed { len, why: None });
        }
        let Some(head) = CapsuleHeader::parse(bytes) else {
            return Ok(BoundPiece::Incomplete { whole_len: None });
        };
        let context = ContextCapsule::of_kind(head.kind);
        let len_max = match (head.kind, context) {
            (CapsuleHeader::DATAGRAM, _) => BOUND_DATAGRAM_MAX,
            (_, Some(_)) => REGISTRATION_MAX,
            (_, None) => {
                self.passing = head.value_len;
                return Ok(BoundPiece::Passed {
                    len: head.len,
                    why: Some(Passed::UnknownCapsule),
                });
            }
        };
        // guard: V-87-registration
        let value_len = (head.value_len <= len_max).then_some(head.value_len);
        let value_len = value_len.and_then(|len| usize::try_from(len).ok());
        let end = head.len + value_len.ok_or(Malformed::TooLong)?;
        Ok(match context {
            _ if bytes.len() < end => BoundPiece::Incomplete {
                whole_len: Some(end),
            },
            Some(kind) => BoundPiece::Context(kind, head.len..end),
            None => BoundPiece::Datagram(head.len..end),
        })
    }

    /// Returns whether the stream may end here: a capsule that has begun would be truncated (RFC 9297 §3.3). `rest` is what has not been
    /// read.
    #[must_use]
    pub fn may_end(&self, rest: &[u8]) -> bool {
        self.passing == 0 && rest.is_empty()
    }

    /// Passes over what is left of a capsule. Returns how many bytes of `bytes` that are, if there is one.
    fn go_on_passing(&mut self, bytes: &[u8]) -> Option<usize> {
        if self.passing == 0 || bytes.is_empty() {
            return None;
        }
        let len = usize::try_from(self.passing).unwrap_or(usize::MAX);
        let len = len.min(bytes.len());
        self.passing -= len as u64;
        Some(len)
    }
}

fn passed(len: usize, why: Passed) -> Piece {
    Piece::Passed {
        len,
        why: Some(why),
    }
}

/// Returns `first` with those behind it that have the same form: all equal but for the last, which may be shorter.
#[inline]
fn run(bytes: &[u8], first: &One, count_max: usize) -> Datagrams {
    let stride = first.payload + first.len;
    let mut run = Datagrams {
        start: first.payload,
        stride,
        len: first.len,
        last_len: first.len,
        count: 1,
        end: stride,
    };
    while run.count < count_max {
        let rest = bytes.get(run.end..).unwrap_or_default();
        let Some(next) = whole(rest).filter(|next| next.payload == first.payload) else {
            break;
        };
        if next.len > first.len {
            break;
        }
        run.count += 1;
        run.last_len = next.len;
        run.end += next.payload + next.len;
        if next.len < first.len {
            break;
        }
    }
    run
}

/// Returns the DATAGRAM capsule with a UDP payload that `bytes` begin with, if it is whole.
#[inline]
fn whole(bytes: &[u8]) -> Option<One> {
    let head = CapsuleHeader::parse(bytes).filter(|head| head.kind == CapsuleHeader::DATAGRAM)?;
    let (context, context_len) = Varint::read(bytes.get(head.len..)?)?;
    let len = head.value_len.checked_sub(context_len as u64)?;
    let len = usize::try_from(len).ok()?;
    let is_one = context == UDP_CONTEXT && len <= UDP_PAYLOAD_MAX;
    let payload = head.len + context_len;
    (is_one && bytes.len() >= payload + len).then_some(One { payload, len })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Writes a number in a form that is longer than needed by `extra` steps, as far as there are any.
    fn number(value: u64, extra: u32) -> Vec<u8> {
        let shortest = Varint::new(value).unwrap().as_bytes().len();
        let len = (shortest << extra).min(8);
        let mut bytes = value.to_be_bytes()[8 - len..].to_vec();
        bytes[0] |= u8::try_from(len.trailing_zeros()).unwrap() << 6;
        bytes
    }

    fn capsule(kind: u64, value: &[u8], extra: u32) -> Vec<u8> {
        [
            &number(kind, extra),
            &number(value.len() as u64, extra),
            value,
        ]
        .concat()
    }

    fn datagram(context: u64, payload: &[u8], extra: u32) -> Vec<u8> {
        capsule(0, &[&number(context, extra), payload].concat(), extra)
    }

    /// Payloads, what was passed over, and whether the stream may end.
    type Brought = (Vec<Vec<u8>>, Vec<Passed>, bool);

    /// Returns what a stream in these pieces brings.
    fn read(pieces: &[&[u8]]) -> Result<Brought, Malformed> {
        let (mut payloads, mut passed) = (Vec::new(), Vec::new());
        let (mut kept, mut capsules) = (Vec::new(), Capsules::default());
        for piece in pieces {
            kept.extend_from_slice(piece);
            let mut start = 0;
            loop {
                let bytes: &[u8] = &kept[start..];
                match capsules.next(bytes, 7)? {
                    Piece::Incomplete { whole_len } => {
                        assert!(whole_len.is_none_or(|len| len > bytes.len()));
                        break;
                    }
                    Piece::Passed { len, why } => {
                        start += len;
                        passed.extend(why);
                    }
                    Piece::Datagrams(run) => {
                        assert!((1..=7).contains(&run.count) && run.last_len <= run.len);
                        for index in 0..run.count {
                            let is_last = index + 1 == run.count;
                            let len = if is_last { run.last_len } else { run.len };
                            let from = run.start + index * run.stride;
                            payloads.push(bytes[from..from + len].to_vec());
                            assert!(from + len <= run.end);
                        }
                        start += run.end;
                    }
                }
            }
            kept.drain(..start);
            assert!(kept.len() <= UDP_PAYLOAD_MAX + 24, "little is kept");
        }
        Ok((payloads, passed, capsules.may_end(&kept)))
    }

    #[derive(Clone, Debug)]
    enum Sent {
        Payload(Vec<u8>),
        Context(u64, Vec<u8>),
        Capsule(u64, Vec<u8>),
    }

    fn any_sent() -> impl Strategy<Value = (Sent, u32)> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..90);
        let sent = prop_oneof![
            4 => bytes().prop_map(Sent::Payload),
            4 => Just(Sent::Payload(vec![7; 20])),
            1 => (1..=Varint::MAX, bytes()).prop_map(|(context, value)| Sent::Context(context, value)),
            1 => (1..=Varint::MAX, bytes()).prop_map(|(kind, value)| Sent::Capsule(kind, value)),
        ];
        (sent, 0_u32..3)
    }

    proptest! {
        //= UDPX-15
        //= UDPX-18
        //= UDPX-26
        #[test]
        fn any_split_gives_the_same_payloads_and_the_rest_is_passed_over(
            sent in prop::collection::vec(any_sent(), 1..30),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        ) {
            let bytes: Vec<u8> = sent
                .iter()
                .flat_map(|(sent, extra)| match sent {
                    Sent::Payload(payload) => datagram(0, payload, *extra),
                    Sent::Context(context, payload) => datagram(*context, payload, *extra),
                    Sent::Capsule(kind, value) => capsule(*kind, value, *extra),
                })
                .collect();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
            let (payloads, passed, may_end) = read(&pieces).unwrap();
            prop_assert!(may_end);
            let expected: Vec<Vec<u8>> = sent
                .iter()
                .filter_map(|(sent, _)| match sent {
                    Sent::Payload(payload) => Some(payload.clone()),
                    Sent::Context(..) | Sent::Capsule(..) => None,
                })
                .collect();
            prop_assert_eq!(payloads, expected);
            let expected: Vec<Passed> = sent
                .iter()
                .filter_map(|(sent, _)| match sent {
                    Sent::Payload(_) => None,
                    Sent::Context(..) => Some(Passed::UnknownContext),
                    Sent::Capsule(..) => Some(Passed::UnknownCapsule),
                })
                .collect();
            prop_assert_eq!(passed, expected);
        }

        #[test]
        fn any_bytes_are_pieces_or_malformed(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = read(&[&bytes]);
        }
    }

    #[test]
    fn equal_datagrams_are_one_piece_and_a_shorter_one_ends_it() {
        let capsules: Vec<Vec<u8>> = [30, 30, 30, 12, 30]
            .into_iter()
            .map(|len| datagram(0, &vec![1; len], 0))
            .collect();
        let bytes = capsules.concat();
        let piece = Capsules::default().next(&bytes, 64).unwrap();
        let expected = Datagrams {
            start: 3,
            stride: 33,
            len: 30,
            last_len: 12,
            count: 4,
            end: 3 * 33 + 15,
        };
        assert_eq!(piece, Piece::Datagrams(expected));
        let Piece::Datagrams(two) = Capsules::default().next(&bytes, 2).unwrap() else {
            panic!("two datagrams")
        };
        assert_eq!((two.count, two.end), (2, 66));
    }

    //= UDPX-16
    #[test]
    fn a_payload_longer_than_udp_has_ends_the_stream_as_soon_as_its_head_has_come() {
        let longest = datagram(0, &vec![9; UDP_PAYLOAD_MAX], 0);
        let (payloads, _, _) = read(&[&longest]).unwrap();
        assert_eq!(payloads[0].len(), UDP_PAYLOAD_MAX);
        let head = [&number(0, 0)[..], &number(65_529, 0), &[0]].concat();
        assert_eq!(read(&[&head]).unwrap_err(), Malformed::TooLong);
        // Of another context nobody knows what it means, so it is passed over.
        let other = [&number(0, 0)[..], &number(65_529, 0), &[2]].concat();
        assert_eq!(read(&[&other]).unwrap().1, [Passed::UnknownContext]);
    }

    //= UDPX-25
    #[test]
    fn a_datagram_without_a_whole_context_is_malformed_and_a_truncated_capsule_may_not_be_the_last()
    {
        for bytes in [&[0_u8, 0][..], &[0, 1, 0x40], &[0, 3, 0x80, 0, 0]] {
            assert_eq!(
                read(&[bytes]).unwrap_err(),
                Malformed::NoContext,
                "{bytes:?}"
            );
        }
        for bytes in [&[0_u8][..], &[0, 5, 0, 1, 2, 3], &[9, 2, 0]] {
            let (_, _, may_end) = read(&[bytes]).unwrap();
            assert!(!may_end, "{bytes:?}");
        }
        assert!(read(&[&[0, 1, 0]]).unwrap().2, "an empty payload is one");
    }

    #[test]
    fn a_capsule_of_any_length_is_passed_over_without_being_kept() {
        let head = [&number(0x1234, 0)[..], &number(Varint::MAX, 0)].concat();
        let (payloads, passed, may_end) = read(&[&head, &[0; 60_000], &[0; 60_000]]).unwrap();
        assert!(payloads.is_empty() && !may_end);
        assert_eq!(passed, [Passed::UnknownCapsule]);
    }
}
