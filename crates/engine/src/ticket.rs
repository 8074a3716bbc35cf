//! Mobility tickets (RFC 8016 §3.3): what an allocation is called, sealed under a key that only this server has.
//!
//! A ticket is 32 characters: base64 over `tag (6 bytes) | enciphered (18)`, and the enciphered part is
//!
//! ```text
//! shard (2) | allocation (8) | number (4) | of the transaction that created the allocation (4)
//! ```
//!
//! The number makes tickets of one allocation differ; the transaction keeps a ticket from meaning the allocation that has the same
//! name after a restart. The tag is a truncated HMAC-SHA256 of the contents, and the contents are enciphered with what the HMAC under
//! another key makes of the tag (a synthetic IV, as in RFC 5297): it is the same ticket that is repeated when an answer was lost, and no
//! two contents share a key stream. Who owns the allocation is not in it: that is looked up (V-30). So six bytes of tag can only be guessed
//! online, by the owner, who would gain what is the owner's anyway.
//!
//! 32 characters without a zero byte, because that is what coturn's client has room for, which keeps its ticket as a C string.

use core::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use hmac::{Hmac, Mac as _};
use sha2::Sha256;
use subtle::ConstantTimeEq as _;
use turnbuckle_wire::TransactionId;

use crate::id::AllocationId;
use crate::random::Random;

const TAG_LEN: usize = 6;
const CONTENT_LEN: usize = 2 + 8 + 4 + 4;
const RAW_LEN: usize = TAG_LEN + CONTENT_LEN;
/// Bytes of every ticket: fits any path (RFC 8016 §3.1.2).
pub(crate) const TICKET_LEN: usize = 32;

const _: () = assert!((RAW_LEN * 4).div_ceil(3) == TICKET_LEN);

/// The key of mobility tickets, the same in all engines of a server, and in the process that takes over from this one.
#[derive(Clone)]
pub struct TicketKey([u8; 32]);

impl TicketKey {
    /// Returns a key derived from a configured secret of any length. It is the same in every process with that secret.
    pub fn from_secret(secret: &[u8]) -> Self {
        Self(digest(secret, b"turnbuckle ticket key"))
    }

    /// Returns a random key, which exists in this process only.
    pub fn random(random: &mut impl Random) -> Self {
        let mut key = [0; 32];
        random.fill(&mut key);
        Self(key)
    }

    /// Returns the key of another process ([`Self::to_bytes`]).
    pub fn from_bytes(key: [u8; 32]) -> Self {
        Self(key)
    }

    /// Returns the key itself, for another process of the same server.
    pub fn to_bytes(&self) -> [u8; 32] {
        self.0
    }
}

impl fmt::Debug for TicketKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TicketKey(..)")
    }
}

/// The contents of a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    /// The shard whose engine has the allocation.
    pub(crate) shard: u32,
    pub(crate) allocation: AllocationId,
    /// Counts the tickets of the allocation from one.
    pub(crate) number: u32,
    pub(crate) created_by: Creator,
}

/// The request that created an allocation, in the form a ticket contains: four bytes of the transaction id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Creator([u8; 4]);

impl Creator {
    pub(crate) fn new(transaction: &TransactionId) -> Self {
        let [first, second, third, fourth, ..] = *transaction.as_bytes();
        Self([first, second, third, fourth])
    }
}

/// Seals tickets and opens them.
pub(crate) struct Tickets {
    tag_key: [u8; 32],
    cipher_key: [u8; 32],
}

impl Tickets {
    pub(crate) fn new(key: &TicketKey) -> Self {
        Self {
            tag_key: digest(&key.0, b"tag"),
            cipher_key: digest(&key.0, b"cipher"),
        }
    }

    /// Seals a ticket. Never returns `None` in fact, because there are fewer than 65,536 shards.
    pub(crate) fn seal(&self, ticket: &Ticket) -> Option<[u8; TICKET_LEN]> {
        let mut content = [0; CONTENT_LEN];
        let parts: [&[u8]; 4] = [
            &u16::try_from(ticket.shard).ok()?.to_be_bytes(),
            &ticket.allocation.to_u64().to_be_bytes(),
            &ticket.number.to_be_bytes(),
            &ticket.created_by.0,
        ];
        let mut rest = &mut content[..];
        for part in parts {
            let (head, tail) = rest.split_at_mut(part.len());
            head.copy_from_slice(part);
            rest = tail;
        }
        let tag = self.tag(&content);
        let mut raw = [0; RAW_LEN];
        raw[..TAG_LEN].copy_from_slice(&tag);
        raw[TAG_LEN..].copy_from_slice(&self.enciphered(content, tag));
        let mut sealed = [0; TICKET_LEN];
        STANDARD_NO_PAD.encode_slice(raw, &mut sealed).ok()?;
        Some(sealed)
    }

    /// Returns the contents of a ticket, or `None` if this server did not seal it.
    pub(crate) fn open(&self, sealed: &[u8]) -> Option<Ticket> {
        let sealed: &[u8; TICKET_LEN] = sealed.try_into().ok()?;
        let mut raw = [0; RAW_LEN];
        STANDARD_NO_PAD.decode_slice(sealed, &mut raw).ok()?;
        let (tag, enciphered) = raw.split_first_chunk::<TAG_LEN>()?;
        let content = self.enciphered(enciphered.try_into().ok()?, *tag);
        // mutant: ticket-of-another-server
        if !bool::from(self.tag(&content).ct_eq(tag)) {
            return None;
        }
        let (shard, rest) = content.split_first_chunk()?;
        let (allocation, rest) = rest.split_first_chunk()?;
        let (number, created_by) = rest.split_first_chunk()?;
        Some(Ticket {
            shard: u16::from_be_bytes(*shard).into(),
            allocation: AllocationId::from_u64(u64::from_be_bytes(*allocation)),
            number: u32::from_be_bytes(*number),
            created_by: Creator(created_by.try_into().ok()?),
        })
    }

    fn tag(&self, content: &[u8; CONTENT_LEN]) -> [u8; TAG_LEN] {
        let digest = digest(&self.tag_key, content);
        core::array::from_fn(|index| digest[index])
    }

    /// Enciphers, and deciphers what was enciphered.
    fn enciphered(&self, content: [u8; CONTENT_LEN], tag: [u8; TAG_LEN]) -> [u8; CONTENT_LEN] {
        let stream = digest(&self.cipher_key, &tag);
        core::array::from_fn(|index| content[index] ^ stream[index])
    }
}

fn digest(key: &[u8], text: &[u8]) -> [u8; 32] {
    #[expect(clippy::expect_used, reason = "HMAC takes keys of every length")]
    let mut mac: Hmac<Sha256> =
        hmac::KeyInit::new_from_slice(key).expect("HMAC takes keys of every length");
    mac.update(text);
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(number: u32) -> Ticket {
        Ticket {
            shard: 3,
            allocation: AllocationId {
                index: 77,
                generation: 0x8000_0001,
            },
            number,
            created_by: Creator::new(&TransactionId::new(*b"transaction.")),
        }
    }

    //= MOB-15
    //= MOB-16
    #[test]
    fn a_ticket_says_what_was_sealed_only_under_its_own_key() {
        let tickets = Tickets::new(&TicketKey::from_secret(b"one"));
        let sealed = tickets.seal(&ticket(1)).unwrap();
        assert_eq!(tickets.open(&sealed), Some(ticket(1)));
        assert_eq!(tickets.seal(&ticket(1)), Some(sealed), "the same again");
        let next = tickets.seal(&ticket(2)).unwrap();
        let same = sealed.iter().zip(&next).filter(|(one, other)| one == other);
        assert!(same.count() < 8, "nothing of one shows in the next");
        let others = Tickets::new(&TicketKey::from_secret(b"two"));
        assert_eq!(others.open(&sealed), None);
    }

    #[test]
    fn a_ticket_is_a_c_string_that_coturns_client_has_room_for() {
        let tickets = Tickets::new(&TicketKey::from_secret(b"one"));
        for number in 1..100 {
            let sealed = tickets.seal(&ticket(number)).unwrap();
            assert!(sealed.len() < 33 && sealed.is_ascii() && !sealed.contains(&0));
        }
    }

    //= V-30
    //= MOB-04
    #[test]
    fn every_changed_bit_and_every_other_length_is_no_ticket() {
        let tickets = Tickets::new(&TicketKey::from_secret(b"one"));
        let sealed = tickets.seal(&ticket(1)).unwrap();
        for bit in 0..TICKET_LEN * 8 {
            let mut changed = sealed;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(tickets.open(&changed), None, "bit {bit}");
        }
        for len in 0..TICKET_LEN {
            assert_eq!(tickets.open(&sealed[..len]), None);
        }
        assert_eq!(tickets.open(&[&sealed[..], &[0]].concat()), None);
    }
}
