//! Wire types that appear in this crate's interface.

/// The 96-bit transaction id of a STUN message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TransactionId(pub [u8; 12]);

/// A channel number, 0x4000 to 0x4FFF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelNumber(u16);

impl ChannelNumber {
    /// The number as it stands in a message.
    pub const fn get(self) -> u16 {
        self.0
    }
}
