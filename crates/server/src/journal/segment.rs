//! The bytes of one segment: records one after the other, each `len u32 | seq u64 | crc32 u32 | bytes`.
//!
//! Records are numbered from zero, and the checksum is over length, number and bytes. How many bytes are whole is known from outside
//! (`committed`): what follows them was being written when the process died, and is cut. All that is within them has to be right, or the whole
//! segment is refused: without the record of an end, a permission that has ended would be granted again.

use std::collections::HashMap;
use std::fmt;

use crc32fast::Hasher;
use turnbuckle_engine::{AllocationId, Change};

use super::record::{self, NotAChange, Record};

/// Bytes before those of a record.
const HEAD_LEN: usize = 16;

/// The reason why a segment is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There are fewer bytes than were committed.
    Short,
    /// A record has another checksum, or goes beyond what was committed.
    Checksum,
    /// A record has not the number that follows the one before.
    Sequence,
    /// A record is whole and about no change and no number.
    NotAChange,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Short => "it is shorter than it was",
            Self::Checksum => "a record has a wrong checksum",
            Self::Sequence => "a record is missing",
            Self::NotAChange => "a record is not one of this program",
        })
    }
}

impl From<NotAChange> for Refused {
    fn from(NotAChange: NotAChange) -> Self {
        Self::NotAChange
    }
}

/// Makes the bytes of a segment.
#[derive(Debug, Default)]
pub struct Encoder {
    next: u64,
}

impl Encoder {
    /// Appends the record of a change to `bytes`, if it has one.
    pub fn append(&mut self, change: &Change, bytes: &mut Vec<u8>) {
        self.append_if(bytes, |bytes| record::encode(change, bytes));
    }

    /// Appends the record of the number of a session to `bytes`.
    pub(super) fn append_number(
        &mut self,
        (allocation, number): (AllocationId, u64),
        bytes: &mut Vec<u8>,
    ) {
        self.append_if(bytes, |bytes| {
            record::encode_number(allocation, number, bytes);
            true
        });
    }

    fn append_if(&mut self, bytes: &mut Vec<u8>, encode: impl FnOnce(&mut Vec<u8>) -> bool) {
        let start = bytes.len();
        bytes.extend_from_slice(&[0; HEAD_LEN]);
        if !encode(bytes) {
            bytes.truncate(start);
            return;
        }
        let record = &mut bytes[start..];
        // A record is some hundred bytes long.
        let len = u32::try_from(record.len() - HEAD_LEN).unwrap_or(u32::MAX);
        record[..4].copy_from_slice(&len.to_le_bytes());
        record[4..12].copy_from_slice(&self.next.to_le_bytes());
        let checksum = checksum(&record[..12], &record[HEAD_LEN..]);
        record[12..HEAD_LEN].copy_from_slice(&checksum.to_le_bytes());
        self.next += 1;
    }
}

/// What a segment says.
#[derive(Debug, Default)]
pub struct Recorded {
    /// The changes, in their order.
    pub changes: Vec<Change>,
    /// Numbers of sessions.
    pub numbers: Numbers,
}

/// The numbers that sessions of one shard have in the log.
#[derive(Debug, Default)]
pub struct Numbers {
    by_allocation: HashMap<AllocationId, u64>,
    /// The session with the highest, which may have ended.
    pub(crate) highest: Option<(AllocationId, u64)>,
}

impl Numbers {
    /// Returns the number of a session.
    pub(crate) fn of(&self, allocation: AllocationId) -> Option<u64> {
        self.by_allocation.get(&allocation).copied()
    }

    fn note(&mut self, allocation: AllocationId, number: u64) {
        self.by_allocation.insert(allocation, number);
        if self.highest.is_none_or(|(_, highest)| highest < number) {
            self.highest = Some((allocation, number));
        }
    }
}

/// Returns what a segment says of which so many bytes are `committed`.
///
/// # Errors
///
/// The segment is not what was written.
pub fn decode(bytes: &[u8], committed: usize) -> Result<Recorded, Refused> {
    let mut rest = bytes.get(..committed).ok_or(Refused::Short)?;
    let mut recorded = Recorded::default();
    for number in 0_u64.. {
        if rest.is_empty() {
            break;
        }
        let (head, behind) = rest
            .split_first_chunk::<HEAD_LEN>()
            .ok_or(Refused::Checksum)?;
        let [l0, l1, l2, l3, seq @ .., c0, c1, c2, c3] = *head;
        let len = u32::from_le_bytes([l0, l1, l2, l3]);
        let record = behind.get(..len as usize).ok_or(Refused::Checksum)?;
        // guard: V-63-damage
        if checksum(&head[..12], record) != u32::from_le_bytes([c0, c1, c2, c3]) {
            return Err(Refused::Checksum);
        }
        if u64::from_le_bytes(seq) != number {
            return Err(Refused::Sequence);
        }
        match record::decode(record)? {
            Record::Change(change) => recorded.changes.push(change),
            Record::Number(allocation, number) => recorded.numbers.note(allocation, number),
        }
        rest = &behind[record.len()..];
    }
    Ok(recorded)
}

fn checksum(head: &[u8], record: &[u8]) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(head);
    hasher.update(record);
    hasher.finalize()
}
