//! Datagrams that prove nothing: what reaches an open port of the Internet, and what an attacker sends.

use rand::rngs::SmallRng;
use rand::{Rng as _, RngCore as _, SeedableRng as _};
use turnbuckle_wire::{AttributeType, Class, IntegrityKey, MessageWriter, Method, TransactionId};

/// Equal datagrams of one kind in a row, so that junk arrives in trains as data does.
pub(super) const TRAIN: usize = 32;

/// The kinds, each as frequent as the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// No protocol at all.
    Noise,
    /// A STUN header without the magic cookie.
    NoCookie,
    /// A length field that promises more than there is.
    Truncated,
    /// An Allocate that proves nothing; it is answered with a challenge.
    Unauthenticated,
    /// An Allocate with a made-up nonce and password.
    Forged,
    /// A request with an attribute that has to be understood and is not.
    UnknownAttribute,
    /// ChannelData of a client that has no allocation.
    StrayChannelData,
}

const KINDS: [Kind; 7] = [
    Kind::Noise,
    Kind::NoCookie,
    Kind::Truncated,
    Kind::Unauthenticated,
    Kind::Forged,
    Kind::UnknownAttribute,
    Kind::StrayChannelData,
];

/// A supply of junk.
#[derive(Debug)]
pub(super) struct Junk {
    /// Trains of [`TRAIN`] datagrams, with the length of each datagram.
    trains: Vec<(Vec<u8>, usize)>,
    next: usize,
}

impl Junk {
    /// Makes some hundreds of trains, always the same for a seed.
    pub(super) fn new(seed: u64) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let trains = (0..KINDS.len() * 32)
            .map(|number| {
                let kind = KINDS[number % KINDS.len()];
                let noise_len = random.random_range(16..200);
                let mut bytes = Vec::new();
                let mut len = 0;
                for _ in 0..TRAIN {
                    let datagram = datagram(kind, noise_len, &mut random);
                    len = datagram.len();
                    bytes.extend_from_slice(&datagram);
                }
                (bytes, len)
            })
            .collect();
        Self { trains, next: 0 }
    }

    /// Returns the next `count` datagrams, at most [`TRAIN`], and the length of each.
    pub(super) fn next(&mut self, count: usize) -> (&[u8], usize) {
        let at = self.next % self.trains.len();
        self.next += 1;
        let (bytes, len) = &self.trains[at];
        (&bytes[..len * count.min(TRAIN)], *len)
    }
}

/// Makes one datagram; all of a kind have one length, noise and ChannelData that of `noise_len`.
fn datagram(kind: Kind, noise_len: usize, random: &mut SmallRng) -> Vec<u8> {
    let id = TransactionId::new(random.random());
    let mut buffer = vec![0; 256];
    let mut writer = MessageWriter::new(&mut buffer, Class::Request, Method::ALLOCATE, id);
    match kind {
        Kind::Noise | Kind::StrayChannelData => {
            let mut bytes = vec![0; noise_len];
            random.fill_bytes(&mut bytes);
            if kind == Kind::StrayChannelData {
                let len = u16::try_from(noise_len - 4).unwrap_or(0);
                bytes[..2].copy_from_slice(&random.random_range(0x4000..0x5000_u16).to_be_bytes());
                bytes[2..4].copy_from_slice(&len.to_be_bytes());
            }
            return bytes;
        }
        Kind::Forged => {
            writer
                .requested_transport(17)
                .username(b"nobody")
                .realm(b"nowhere")
                .nonce(&random.random::<[u8; 24]>())
                .integrity(&IntegrityKey::sha1(b"guessed"));
        }
        Kind::UnknownAttribute => {
            // Comprehension required (below 0x8000) and not assigned.
            writer
                .requested_transport(17)
                .bytes(AttributeType::new(0x7ffe), &random.random::<[u8; 8]>());
        }
        Kind::NoCookie | Kind::Truncated | Kind::Unauthenticated => {
            writer.requested_transport(17);
        }
    }
    let len = writer.finish().unwrap_or(0);
    buffer.truncate(len);
    match kind {
        Kind::NoCookie => buffer[4..8].copy_from_slice(&random.random::<[u8; 4]>()),
        Kind::Truncated => buffer[2..4].copy_from_slice(&1_000_u16.to_be_bytes()),
        _ => {}
    }
    buffer
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnbuckle_wire::Message;

    #[test]
    fn a_train_is_of_equal_datagrams_and_a_seed_makes_the_same_junk() {
        let (mut one, mut other) = (Junk::new(1), Junk::new(1));
        for _ in 0..500 {
            let (bytes, len) = one.next(TRAIN);
            assert_eq!(bytes.len(), len * TRAIN);
            assert_eq!(other.next(TRAIN), (bytes, len));
        }
        assert_eq!(one.next(1).0.len(), one.trains[500 % one.trains.len()].1);
    }

    #[test]
    fn each_kind_is_wrong_in_its_own_way() {
        let mut random = SmallRng::seed_from_u64(1);
        let mut make = |kind| datagram(kind, 50, &mut random);
        for kind in [Kind::NoCookie, Kind::Truncated, Kind::StrayChannelData] {
            assert!(Message::parse(&make(kind)).is_err(), "{kind:?}");
        }
        let bytes = make(Kind::Unauthenticated);
        assert!(!Message::parse(&bytes).unwrap().has_integrity_sha1());
        let bytes = make(Kind::Forged);
        assert!(Message::parse(&bytes).unwrap().has_integrity_sha1());
        let bytes = make(Kind::UnknownAttribute);
        assert!(Message::parse(&bytes).unwrap().has_unknown_required());
    }
}
