//! Connection ids that say which shard issued them.
//!
//! An id is `[r: 4][tag: 4][x: 4]`: `r` is random, the tag is `mix(r)` under one key, and `x` is 24 random bits and the number of the shard,
//! hidden under `mix(r)` with another key. Who does not have the keys meets a valid tag once in 2^32 tries, and sees no two ids that
//! belong together (RFC 9000 §5.1). The mix is of 32-bit operations alone, so that a classic BPF program can do it; it hides, and is no cipher:
//! nothing is trusted because its tag is right.

use aws_lc_rs::hmac;

/// Bytes of a connection id.
pub const CONNECTION_ID_LEN: usize = 12;

/// Where it begins in a packet with a short header (RFC 8999 §5.2).
pub(crate) const SHORT_ID_AT: usize = 1;
/// Where its length stands in a packet with a long header, and where it begins (RFC 8999 §5.1).
pub(crate) const LONG_LEN_AT: usize = 5;
pub(crate) const LONG_ID_AT: usize = 6;

/// Set in the first byte of a packet with a long header (RFC 9000 §17.2).
const LONG_HEADER: u8 = 0x80;
/// The packet type of a long header, and that of Initial packets.
const TYPE_MASK: u8 = 0x30;

/// Reads and makes the connection ids of one server.
#[derive(Clone, Copy, Debug)]
pub struct Ids {
    pub(crate) tag: [u32; 2],
    pub(crate) shard: [u32; 2],
}

impl Ids {
    pub(crate) fn new(key: [u8; 16]) -> Self {
        let word = |at: usize| u32::from_be_bytes(std::array::from_fn(|index| key[at + index]));
        Self {
            tag: [word(0), word(4)],
            shard: [word(8), word(12)],
        }
    }

    /// Returns the shard that issued this connection id; `None` if no shard of this server did.
    #[inline]
    pub fn shard_of(&self, id: &[u8]) -> Option<u8> {
        let id: &[u8; CONNECTION_ID_LEN] = id.try_into().ok()?;
        let word = |at: usize| u32::from_be_bytes(std::array::from_fn(|index| id[at + index]));
        let r = word(0);
        (word(4) == mix(r, self.tag)).then(|| (word(8) ^ mix(r, self.shard)).to_be_bytes()[3])
    }

    /// Returns the shard that issued the destination connection id of a datagram's first packet; `None` if no shard of this server did.
    /// Initial packets answer with the shard too, although whoever sent them has proven nothing but that it has seen the id.
    #[inline]
    pub fn shard_of_datagram(&self, datagram: &[u8]) -> Option<u8> {
        self.shard_of(destination(datagram)?)
    }

    /// Returns an id of a shard, made from so many random bytes.
    pub fn make(&self, shard: u8, random: [u8; 7]) -> [u8; CONNECTION_ID_LEN] {
        let [r0, r1, r2, r3, x0, x1, x2] = random;
        let r = u32::from_be_bytes([r0, r1, r2, r3]);
        let x = u32::from_be_bytes([x0, x1, x2, shard]) ^ mix(r, self.shard);
        let mut id = [0; CONNECTION_ID_LEN];
        id[..4].copy_from_slice(&r.to_be_bytes());
        id[4..8].copy_from_slice(&mix(r, self.tag).to_be_bytes());
        id[8..].copy_from_slice(&x.to_be_bytes());
        id
    }
}

/// Returns whether a datagram begins with a packet that is not an Initial packet: a short header, or a long one of another type.
#[inline]
pub(crate) fn is_past_initial(datagram: &[u8]) -> bool {
    datagram
        .first()
        .is_some_and(|&first| first & LONG_HEADER == 0 || first & TYPE_MASK != 0)
}

/// Returns the destination connection id of the first packet (RFC 8999 §5), if it is as long as ours.
fn destination(datagram: &[u8]) -> Option<&[u8]> {
    let first = datagram.first()?;
    let at = if first & LONG_HEADER == 0 {
        SHORT_ID_AT
    } else if usize::from(*datagram.get(LONG_LEN_AT)?) == CONNECTION_ID_LEN {
        LONG_ID_AT
    } else {
        return None;
    };
    datagram.get(at..)?.get(..CONNECTION_ID_LEN)
}

#[inline]
fn mix(r: u32, key: [u32; 2]) -> u32 {
    let mut x = r ^ key[0];
    for (factor, shift) in rounds(key) {
        x = x.wrapping_mul(factor);
        x ^= x >> shift;
    }
    x ^ key[1]
}

/// Returns the factor and the shift of each round of the mix.
#[inline]
pub(crate) const fn rounds([k0, k1]: [u32; 2]) -> [(u32, u32); 3] {
    [(k1 | 1, 15), (0x2c1b_3c6d, 12), (k0 | 1, 15)]
}

/// Makes the connection ids of one shard.
#[derive(Clone, Debug)]
pub(crate) struct Issuer {
    ids: Ids,
    pub(crate) shard: u8,
    /// A key of this start alone: the same one twice would issue the same ids again.
    random: hmac::Key,
    issued: u64,
}

impl Issuer {
    pub(crate) fn new(ids: Ids, shard: u8, seed: &[u8]) -> Self {
        Self {
            ids,
            shard,
            random: hmac::Key::new(hmac::HMAC_SHA256, seed),
            issued: 0,
        }
    }

    pub(crate) fn issue(&mut self) -> [u8; CONNECTION_ID_LEN] {
        self.issued += 1;
        let random = hmac::sign(&self.random, &self.issued.to_be_bytes());
        let random = random.as_ref();
        self.ids
            .make(self.shard, std::array::from_fn(|index| random[index]))
    }

    pub(crate) fn is_own(&self, id: &[u8]) -> bool {
        // mutant: shards-reset-migrated.own
        self.ids.shard_of(id) == Some(self.shard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids() -> Ids {
        Ids::new(std::array::from_fn(|index| {
            u8::try_from(index * 13 + 3).unwrap()
        }))
    }

    #[test]
    fn an_id_says_which_shard_issued_it() {
        for shard in [0, 1, 7, 255] {
            let mut issuer = Issuer::new(ids(), shard, &[1; 32]);
            for _ in 0..1000 {
                let id = issuer.issue();
                assert_eq!(ids().shard_of(&id), Some(shard));
                assert!(issuer.is_own(&id));
            }
        }
    }

    #[test]
    fn an_id_with_any_other_bit_in_its_first_eight_bytes_is_nobodys() {
        let mut issuer = Issuer::new(ids(), 3, &[2; 32]);
        for _ in 0..100 {
            let id = issuer.issue();
            for bit in 0..64 {
                let mut other = id;
                other[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(ids().shard_of(&other), None, "{id:02x?} bit {bit}");
            }
        }
        assert_eq!(Ids::new([9; 16]).shard_of(&issuer.issue()), None);
    }

    #[test]
    fn ids_of_one_shard_have_nothing_in_common() {
        let mut issuer = Issuer::new(ids(), 5, &[3; 32]);
        let all: Vec<_> = (0..500).map(|_| issuer.issue()).collect();
        for at in 0..CONNECTION_ID_LEN {
            let mut values: Vec<_> = all.iter().map(|id| id[at]).collect();
            values.sort_unstable();
            values.dedup();
            // 500 draws of 256 values leave about 36 undrawn.
            assert!(values.len() > 180, "byte {at}: {}", values.len());
        }
    }

    #[test]
    fn no_length_and_no_first_byte_reaches_beyond_a_datagram() {
        let id = Issuer::new(ids(), 1, &[4; 32]).issue();
        for first in 0..=u8::MAX {
            for len in 0..40 {
                let mut datagram = vec![12; len];
                if let Some(byte) = datagram.first_mut() {
                    *byte = first;
                }
                assert_eq!(ids().shard_of_datagram(&datagram), None);
            }
        }
        let short = [&[0x40][..], &id, &[0; 20]].concat();
        let long = [&[0xe0, 0, 0, 0, 1, 12][..], &id, &[0; 20]].concat();
        assert_eq!(ids().shard_of_datagram(&short), Some(1));
        assert_eq!(ids().shard_of_datagram(&long), Some(1));
        assert!(is_past_initial(&short) && is_past_initial(&long));
        assert!(!is_past_initial(&[0xc0]) && !is_past_initial(&[]));
    }
}
