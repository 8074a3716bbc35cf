//! ChannelData: four bytes of header before relayed payload ([RFC 8656 §12.4]).
//!
//! The invariant: [`ChannelNumber`] holds only numbers a channel may have, 0x4000 to 0x4FFF unless somebody asked for the
//! range of RFC 5766 by name. What a datagram *claims* stays a raw number until somebody looks it up.
//!
//! [RFC 8656 §12.4]: https://www.rfc-editor.org/rfc/rfc8656#section-12.4

use crate::ChannelDataError;
use core::fmt;

/// A channel number that may be bound: 0x4000..=0x4FFF (RFC 8656 §12), or up to 0x7FFF by [`Self::from_rfc5766`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelNumber(u16);

impl ChannelNumber {
    /// The lowest channel number.
    pub const MIN: Self = Self(0x4000);
    /// The highest channel number; RFC 5766 allowed more, RFC 8656 reserves them.
    pub const MAX: Self = Self(0x4FFF);

    /// The highest channel number of RFC 5766, whose clients choose from 0x4000..=0x7FFF.
    pub const MAX_RFC5766: Self = Self(0x7FFF);

    /// Takes a number in the wider range of RFC 5766 §11, for a server whose operator still admits such clients.
    ///
    /// # Errors
    ///
    /// [`InvalidChannelNumber`] outside 0x4000..=0x7FFF.
    #[inline]
    pub const fn from_rfc5766(number: u16) -> Result<Self, InvalidChannelNumber> {
        if Self::MIN.0 <= number && number <= Self::MAX_RFC5766.0 {
            Ok(Self(number))
        } else {
            Err(InvalidChannelNumber(number))
        }
    }

    /// Returns the number as it stands on the wire.
    #[must_use]
    #[inline]
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl TryFrom<u16> for ChannelNumber {
    type Error = InvalidChannelNumber;

    #[inline]
    fn try_from(number: u16) -> Result<Self, InvalidChannelNumber> {
        // guard: V-29-range
        if (Self::MIN.0..=Self::MAX.0).contains(&number) {
            Ok(Self(number))
        } else {
            Err(InvalidChannelNumber(number))
        }
    }
}

/// A number outside 0x4000..=0x4FFF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidChannelNumber(pub u16);

impl fmt::Display for InvalidChannelNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:04x} is not a channel number", self.0)
    }
}

impl core::error::Error for InvalidChannelNumber {}

/// A ChannelData message, borrowed from the datagram it came in (RFC 8656 §12.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelData<'a> {
    /// The number claimed by the sender, not checked against any range.
    pub number: u16,
    /// The payload, without the padding that a datagram may carry behind it.
    pub data: &'a [u8],
}

impl<'a> ChannelData<'a> {
    /// Bytes before the payload.
    pub const HEADER_LEN: usize = 4;

    /// Reads a datagram that [`crate::classify`] called ChannelData. Bytes behind the claimed length are ignored: over
    /// UDP padding is allowed and never required (RFC 8656 §12.5).
    ///
    /// # Errors
    ///
    /// [`ChannelDataError`] when header or payload is cut short; the caller drops the datagram silently
    /// (RFC 8656 §12.6).
    #[inline]
    pub fn parse_datagram(datagram: &'a [u8]) -> Result<Self, ChannelDataError> {
        let Some((&[n0, n1, l0, l1], rest)) = datagram.split_first_chunk() else {
            return Err(ChannelDataError::TruncatedHeader);
        };
        let len = usize::from(u16::from_be_bytes([l0, l1]));
        let Some(data) = rest.get(..len) else {
            return Err(ChannelDataError::TruncatedData);
        };
        Ok(Self {
            number: u16::from_be_bytes([n0, n1]),
            data,
        })
    }

    /// Returns the header for `len` bytes of payload.
    #[must_use]
    #[inline]
    pub const fn header(number: ChannelNumber, len: u16) -> [u8; 4] {
        let [n0, n1] = number.0.to_be_bytes();
        let [l0, l1] = len.to_be_bytes();
        [n0, n1, l0, l1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= TURN-079
    #[test]
    fn the_range_of_rfc_5766_has_to_be_asked_for() {
        for number in 0..=u16::MAX {
            let valid = (0x4000..=0x7FFF).contains(&number);
            assert_eq!(ChannelNumber::from_rfc5766(number).is_ok(), valid);
        }
        assert!(ChannelNumber::try_from(0x5000).is_err());
    }

    #[test]
    fn accepts_channel_numbers_from_0x4000_to_0x4fff_only() {
        for number in 0..=u16::MAX {
            let valid = (0x4000..=0x4FFF).contains(&number);
            assert_eq!(ChannelNumber::try_from(number).is_ok(), valid);
        }
    }

    //= TURN-089
    #[test]
    fn reads_payload_with_and_without_padding() {
        let mut datagram = [0xEE; 12];
        datagram[..4].copy_from_slice(&ChannelData::header(ChannelNumber(0x4001), 5));
        for end in 9..=12 {
            let message = ChannelData::parse_datagram(&datagram[..end]).unwrap();
            assert_eq!(message.number, 0x4001);
            assert_eq!(message.data, &datagram[4..9]);
        }
    }

    //= TURN-090
    #[test]
    fn refuses_a_datagram_shorter_than_its_claim() {
        let datagram = [0x40, 0x00, 0x00, 0x02, 0xAA, 0xBB];
        for end in 0..4 {
            assert_eq!(
                ChannelData::parse_datagram(&datagram[..end]),
                Err(ChannelDataError::TruncatedHeader)
            );
        }
        for end in 4..6 {
            assert_eq!(
                ChannelData::parse_datagram(&datagram[..end]),
                Err(ChannelDataError::TruncatedData)
            );
        }
        assert!(ChannelData::parse_datagram(&datagram).is_ok());
    }

    //= TURN-093
    #[test]
    fn reads_empty_payload() {
        let message = ChannelData::parse_datagram(&[0x4F, 0xFF, 0, 0]).unwrap();
        assert_eq!((message.number, message.data), (0x4FFF, &[][..]));
    }
}
