//! Mobility tickets (RFC 8016 §3.3): what an allocation is called, sealed under a key that only this server has.
//!
//! A ticket is `nonce (12 bytes) | sealed (28) | tag (16)`, AES-256-GCM, and the sealed part is
//!
//! ```text
//! shard (4) | allocation (8) | number (4) | the transaction that created the allocation (12)
//! ```
//!
//! The number makes tickets of one allocation differ; the transaction keeps a ticket from meaning the allocation that has the same
//! name after a restart. The nonce is a keyed hash of the sealed part, so that it is the same ticket that is repeated when
//! an answer was lost, and no nonce serves two contents. Who owns the allocation is not in it: that is looked up (V-30).

use core::fmt;

use aes_gcm::aead::{AeadInOut as _, KeyInit as _};
use aes_gcm::{Aes256Gcm, Nonce, Tag};
use hmac::{Hmac, Mac as _};
use sha2::Sha256;
use turnbuckle_wire::TransactionId;

use crate::id::AllocationId;
use crate::random::Random;

const NONCE_LEN: usize = 12;
const CONTENT_LEN: usize = 4 + 8 + 4 + 12;
const TAG_LEN: usize = 16;
/// Bytes of every ticket: fits any path (RFC 8016 §3.1.2).
pub(crate) const TICKET_LEN: usize = NONCE_LEN + CONTENT_LEN + TAG_LEN;

/// The key of mobility tickets, the same in all engines of a server, and in the process that takes over from this one.
#[derive(Clone)]
pub struct TicketKey([u8; 32]);

impl TicketKey {
    /// A key made from a configured secret of any length, the same in every process that is given it.
    pub fn from_secret(secret: &[u8]) -> Self {
        Self(digest(secret, b"turnbuckle ticket key"))
    }

    /// A key that dies with the process.
    pub fn random(random: &mut impl Random) -> Self {
        let mut key = [0; 32];
        random.fill(&mut key);
        Self(key)
    }
}

impl fmt::Debug for TicketKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TicketKey(..)")
    }
}

/// What a ticket says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    /// The shard whose engine has the allocation.
    pub(crate) shard: u32,
    pub(crate) allocation: AllocationId,
    /// Counts the tickets of the allocation from one.
    pub(crate) number: u32,
    /// What created the allocation.
    pub(crate) created_by: TransactionId,
}

/// Seals tickets and opens them.
pub(crate) struct Tickets {
    cipher: Aes256Gcm,
    nonce_key: [u8; 32],
}

impl Tickets {
    pub(crate) fn new(key: &TicketKey) -> Self {
        Self {
            cipher: Aes256Gcm::new(&digest(&key.0, b"cipher").into()),
            nonce_key: digest(&key.0, b"nonce"),
        }
    }

    /// `None` never in fact: the content is far below what the cipher takes.
    pub(crate) fn seal(&self, ticket: &Ticket) -> Option<[u8; TICKET_LEN]> {
        let mut content = [0; CONTENT_LEN];
        let parts: [&[u8]; 4] = [
            &ticket.shard.to_be_bytes(),
            &ticket.allocation.to_u64().to_be_bytes(),
            &ticket.number.to_be_bytes(),
            ticket.created_by.as_bytes(),
        ];
        let mut rest = &mut content[..];
        for part in parts {
            let (head, tail) = rest.split_at_mut(part.len());
            head.copy_from_slice(part);
            rest = tail;
        }
        let unique = digest(&self.nonce_key, &content);
        let nonce: [u8; NONCE_LEN] = *unique.first_chunk()?;
        let tag = self
            .cipher
            .encrypt_inout_detached(&nonce.into(), b"", content.as_mut_slice().into())
            .ok()?;
        let mut sealed = [0; TICKET_LEN];
        sealed[..NONCE_LEN].copy_from_slice(&nonce);
        sealed[NONCE_LEN..NONCE_LEN + CONTENT_LEN].copy_from_slice(&content);
        sealed[NONCE_LEN + CONTENT_LEN..].copy_from_slice(&tag);
        Some(sealed)
    }

    /// What a ticket says; `None` for what this server did not seal.
    pub(crate) fn open(&self, sealed: &[u8]) -> Option<Ticket> {
        let sealed: &[u8; TICKET_LEN] = sealed.try_into().ok()?;
        let (nonce, rest) = sealed.split_first_chunk::<NONCE_LEN>()?;
        let (content, tag) = rest.split_first_chunk::<CONTENT_LEN>()?;
        let tag: &[u8; TAG_LEN] = tag.try_into().ok()?;
        let mut content = *content;
        let (nonce, tag) = (Nonce::from(*nonce), Tag::from(*tag));
        self.cipher
            .decrypt_inout_detached(&nonce, b"", content.as_mut_slice().into(), &tag)
            .ok()?;
        let (shard, rest) = content.split_first_chunk()?;
        let (allocation, rest) = rest.split_first_chunk()?;
        let (number, created_by) = rest.split_first_chunk()?;
        Some(Ticket {
            shard: u32::from_be_bytes(*shard),
            allocation: AllocationId::from_u64(u64::from_be_bytes(*allocation)),
            number: u32::from_be_bytes(*number),
            created_by: TransactionId::new(created_by.try_into().ok()?),
        })
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
            created_by: TransactionId::new(*b"transaction."),
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
