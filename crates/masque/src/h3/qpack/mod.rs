//! QPACK (RFC 9204) without a dynamic table, whose size is 0 here: a field section stands for itself.
//!
//! A section may be much shorter than the fields in it, so what they come to is bounded while they are decoded.

mod instructions;
mod table;

use std::borrow::Cow;

use octets::Octets;

use self::table::STATIC;

pub(super) use self::instructions::{Instructions, Side};

/// What each field adds to the size of a section beside its bytes (RFC 9114 §4.2.2).
const FIELD_OVERHEAD: usize = 32;
/// The highest index or length that is taken: more than any that can be meant.
const NUMBER_MAX: u64 = 1 << 32;

/// A name and a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    /// The name, as it was sent.
    pub name: Cow<'a, [u8]>,
    /// The value.
    pub value: Cow<'a, [u8]>,
}

/// Why a section is not decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// It is none, or refers to a dynamic table.
    Malformed,
    /// Its fields come to more than they may.
    TooLarge,
}

/// Decodes a field section (RFC 9204 §4.5) whose fields come to `size_max` bytes at most, each counted with 32 more.
///
/// # Errors
///
/// Why it is not decoded.
pub fn decode(section: &[u8], size_max: usize) -> Result<Vec<Field<'_>>, DecodeError> {
    let mut rest = section;
    // The prefix: nothing is required of a table that is always empty, and then no base lies before the first entry of it.
    let (required, _) = integer(&mut rest, 8).ok_or(DecodeError::Malformed)?;
    let (_, base_flags) = integer(&mut rest, 7).ok_or(DecodeError::Malformed)?;
    if required != 0 || base_flags & 0x80 != 0 {
        return Err(DecodeError::Malformed);
    }
    let (mut fields, mut size) = (Vec::new(), 0_usize);
    while let Some(&first) = rest.first() {
        let field = field(&mut rest, first)?;
        size += field.name.len() + field.value.len() + FIELD_OVERHEAD;
        // guard: V-87-bomb
        if size > size_max {
            return Err(DecodeError::TooLarge);
        }
        fields.push(field);
    }
    Ok(fields)
}

/// Reads the field line that `rest` begins with, of which `first` is the first byte.
fn field<'a>(rest: &mut &'a [u8], first: u8) -> Result<Field<'a>, DecodeError> {
    const MALFORMED: DecodeError = DecodeError::Malformed;
    let of_table = |index: u64| {
        let index = usize::try_from(index).ok()?;
        STATIC.get(index)
    };
    let name = match first {
        // Indexed, in the static table or not.
        0x80.. => {
            let (index, flags) = integer(rest, 6).ok_or(MALFORMED)?;
            let entry = of_table(index).filter(|_| flags & 0x40 != 0);
            let &(name, value) = entry.ok_or(MALFORMED)?;
            return Ok(Field {
                name: Cow::Borrowed(name.as_bytes()),
                value: Cow::Borrowed(value.as_bytes()),
            });
        }
        // A literal value with a name of the static table or not.
        0x40..0x80 => {
            let (index, flags) = integer(rest, 4).ok_or(MALFORMED)?;
            let entry = of_table(index).filter(|_| flags & 0x10 != 0);
            Cow::Borrowed(entry.ok_or(MALFORMED)?.0.as_bytes())
        }
        0x20..0x40 => string(rest, 3)?,
        // What begins with less refers to the dynamic table.
        0..0x20 => return Err(MALFORMED),
    };
    Ok(Field {
        name,
        value: string(rest, 7)?,
    })
}

/// Reads an integer with a prefix of `prefix` bits (RFC 7541 §5.1), and the byte that it begins in.
fn integer(rest: &mut &[u8], prefix: u8) -> Option<(u64, u8)> {
    let (&first, mut bytes) = rest.split_first()?;
    let mask = 0xFF_u8 >> (8 - prefix);
    let mut value = u64::from(first & mask);
    if first & mask == mask {
        let mut shift = 0_u32;
        loop {
            let (&byte, after) = bytes.split_first()?;
            bytes = after;
            value = value.checked_add(u64::from(byte & 0x7F).checked_shl(shift)?)?;
            if value > NUMBER_MAX || shift > 56 {
                return None;
            }
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
    }
    *rest = bytes;
    Some((value, first))
}

/// Reads a string literal (RFC 7541 §5.2) whose length has a prefix of `prefix` bits, and before them the flag of Huffman coding.
/// A code has 5 bits at least, so that what is decoded is never twice as long as the section.
fn string<'a>(rest: &mut &'a [u8], prefix: u8) -> Result<Cow<'a, [u8]>, DecodeError> {
    let (len, flags) = integer(rest, prefix).ok_or(DecodeError::Malformed)?;
    let len = usize::try_from(len).map_err(|_| DecodeError::Malformed)?;
    let (bytes, after) = rest.split_at_checked(len).ok_or(DecodeError::Malformed)?;
    *rest = after;
    if flags >> prefix & 1 == 0 {
        return Ok(Cow::Borrowed(bytes));
    }
    let decoded = Octets::with_slice(bytes).get_huffman_decoded();
    decoded.map(Cow::Owned).map_err(|_| DecodeError::Malformed)
}

/// Encodes a field section. Names are in small letters.
#[must_use]
pub fn encode(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut section = vec![0, 0];
    for &(name, value) in fields {
        let entries = || STATIC.iter().zip(0_u64..);
        if let Some((_, index)) = entries().find(|(entry, _)| **entry == (name, value)) {
            put_integer(&mut section, 0xC0, 6, index);
            continue;
        }
        match entries().find(|((entry, _), _)| *entry == name) {
            Some((_, index)) => put_integer(&mut section, 0x50, 4, index),
            None => {
                put_integer(&mut section, 0x20, 3, name.len() as u64);
                section.extend_from_slice(name.as_bytes());
            }
        }
        put_integer(&mut section, 0, 7, value.len() as u64);
        section.extend_from_slice(value.as_bytes());
    }
    section
}

/// Appends an integer with a prefix of `prefix` bits, behind these `flags`.
fn put_integer(to: &mut Vec<u8>, flags: u8, prefix: u8, value: u64) {
    let mask = 0xFF_u8 >> (8 - prefix);
    if let Some(value) = u8::try_from(value).ok().filter(|&value| value < mask) {
        return to.push(flags | value);
    }
    to.push(flags | mask);
    let mut left = value - u64::from(mask);
    loop {
        let [.., low] = left.to_be_bytes();
        left >>= 7;
        match left {
            0 => return to.push(low & 0x7F),
            _ => to.push(low | 0x80),
        }
    }
}

#[cfg(test)]
mod tests;
