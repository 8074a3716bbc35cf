//! The registry ([RFC 8489 §18.3]): every attribute type this codec knows, in one table.
//!
//! The table gives each type a *slot*, the place where [`crate::Message`] remembers its first occurrence. A
//! type without a slot is unknown, and if it is comprehension-required, a request that carries it gets 420.
//!
//! [RFC 8489 §18.3]: https://www.rfc-editor.org/rfc/rfc8489#section-18.3

use core::fmt;

/// An attribute type (RFC 8489 §14).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttributeType(u16);

impl AttributeType {
    /// Returns the type with this number.
    #[must_use]
    pub const fn new(number: u16) -> Self {
        Self(number)
    }

    /// Returns the number as it stands on the wire.
    #[must_use]
    pub const fn number(self) -> u16 {
        self.0
    }

    /// Returns whether a receiver that does not know the type must refuse the request: below 0x8000 (RFC 8489 §14).
    #[must_use]
    pub const fn is_comprehension_required(self) -> bool {
        self.0 < 0x8000
    }

    /// Returns whether this codec knows the type.
    #[must_use]
    pub const fn is_known(self) -> bool {
        slot_of(self) != UNKNOWN
    }
}

impl fmt::Debug for AttributeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "AttributeType(0x{:04x})", self.0),
        }
    }
}

/// Marker of a table entry without a slot.
pub(crate) const UNKNOWN: u8 = u8::MAX;

/// Number of slots.
pub(crate) const SLOT_COUNT: usize = KnownAttributeTypes::ALL.len();

const _: () = assert!(SLOT_COUNT < UNKNOWN as usize);

/// All known types lie in 0x0000..=0x003F or 0x8000..=0x803F, so seven bits find the slot.
const SLOT_BY_INDEX: [u8; 128] = {
    let mut table = [UNKNOWN; 128];
    let mut slot = 0;
    while slot < SLOT_COUNT {
        #[expect(clippy::indexing_slicing, reason = "evaluated by the compiler")]
        let number = KnownAttributeTypes::ALL[slot].0;
        assert!(number & !0x803F == 0, "type outside the table");
        #[expect(
            clippy::indexing_slicing,
            clippy::cast_possible_truncation,
            reason = "evaluated by the compiler, the slot count is asserted above"
        )]
        {
            assert!(table[table_index(number)] == UNKNOWN, "type listed twice");
            table[table_index(number)] = slot as u8;
        }
        slot += 1;
    }
    table
};

const fn table_index(number: u16) -> usize {
    ((number & 0x3F) | (number >> 15) << 6) as usize
}

/// Returns the slot of a type, or [`UNKNOWN`].
#[inline]
pub(crate) const fn slot_of(kind: AttributeType) -> u8 {
    if kind.0 & !0x803F != 0 {
        return UNKNOWN;
    }
    #[expect(
        clippy::indexing_slicing,
        reason = "an index of seven bits into 128 entries; `get` is not const"
    )]
    SLOT_BY_INDEX[table_index(kind.0)]
}

/// The list behind the registry.
#[derive(Clone, Copy, Debug)]
pub struct KnownAttributeTypes;

macro_rules! registry {
    ($($(#[doc = $doc:literal])* $name:ident = $number:literal $text:literal;)*) => {
        impl AttributeType {
            $($(#[doc = $doc])* pub const $name: Self = Self($number);)*

            /// Returns the name the defining document uses, if the type is known.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some($text),)*
                    _ => None,
                }
            }
        }

        impl KnownAttributeTypes {
            /// Every type this codec knows, in order of number.
            pub const ALL: &'static [AttributeType] = &[$(AttributeType::$name,)*];
        }
    };
}

registry! {
    /// MAPPED-ADDRESS (RFC 8489 §14.1).
    MAPPED_ADDRESS = 0x0001 "MAPPED-ADDRESS";
    /// CHANGE-REQUEST (RFC 5780 §7.2).
    CHANGE_REQUEST = 0x0003 "CHANGE-REQUEST";
    /// USERNAME (RFC 8489 §14.3).
    USERNAME = 0x0006 "USERNAME";
    /// MESSAGE-INTEGRITY (RFC 8489 §14.5).
    MESSAGE_INTEGRITY = 0x0008 "MESSAGE-INTEGRITY";
    /// ERROR-CODE (RFC 8489 §14.8).
    ERROR_CODE = 0x0009 "ERROR-CODE";
    /// UNKNOWN-ATTRIBUTES (RFC 8489 §14.13).
    UNKNOWN_ATTRIBUTES = 0x000A "UNKNOWN-ATTRIBUTES";
    /// CHANNEL-NUMBER (RFC 8656 §18.1).
    CHANNEL_NUMBER = 0x000C "CHANNEL-NUMBER";
    /// LIFETIME (RFC 8656 §18.2).
    LIFETIME = 0x000D "LIFETIME";
    /// XOR-PEER-ADDRESS (RFC 8656 §18.3).
    XOR_PEER_ADDRESS = 0x0012 "XOR-PEER-ADDRESS";
    /// DATA (RFC 8656 §18.4).
    DATA = 0x0013 "DATA";
    /// REALM (RFC 8489 §14.9).
    REALM = 0x0014 "REALM";
    /// NONCE (RFC 8489 §14.10).
    NONCE = 0x0015 "NONCE";
    /// XOR-RELAYED-ADDRESS (RFC 8656 §18.5).
    XOR_RELAYED_ADDRESS = 0x0016 "XOR-RELAYED-ADDRESS";
    /// REQUESTED-ADDRESS-FAMILY (RFC 8656 §18.6).
    REQUESTED_ADDRESS_FAMILY = 0x0017 "REQUESTED-ADDRESS-FAMILY";
    /// EVEN-PORT (RFC 8656 §18.7).
    EVEN_PORT = 0x0018 "EVEN-PORT";
    /// REQUESTED-TRANSPORT (RFC 8656 §18.8).
    REQUESTED_TRANSPORT = 0x0019 "REQUESTED-TRANSPORT";
    /// DONT-FRAGMENT (RFC 8656 §18.9).
    DONT_FRAGMENT = 0x001A "DONT-FRAGMENT";
    /// ACCESS-TOKEN (RFC 7635 §6.2).
    ACCESS_TOKEN = 0x001B "ACCESS-TOKEN";
    /// MESSAGE-INTEGRITY-SHA256 (RFC 8489 §14.6).
    MESSAGE_INTEGRITY_SHA256 = 0x001C "MESSAGE-INTEGRITY-SHA256";
    /// PASSWORD-ALGORITHM (RFC 8489 §14.12).
    PASSWORD_ALGORITHM = 0x001D "PASSWORD-ALGORITHM";
    /// USERHASH (RFC 8489 §14.4).
    USERHASH = 0x001E "USERHASH";
    /// XOR-MAPPED-ADDRESS (RFC 8489 §14.2).
    XOR_MAPPED_ADDRESS = 0x0020 "XOR-MAPPED-ADDRESS";
    /// RESERVATION-TOKEN (RFC 8656 §18.10).
    RESERVATION_TOKEN = 0x0022 "RESERVATION-TOKEN";
    /// PADDING (RFC 5780 §7.6).
    PADDING = 0x0026 "PADDING";
    /// RESPONSE-PORT (RFC 5780 §7.5).
    RESPONSE_PORT = 0x0027 "RESPONSE-PORT";
    /// CONNECTION-ID (RFC 6062 §6.2.1).
    CONNECTION_ID = 0x002A "CONNECTION-ID";
    /// ADDITIONAL-ADDRESS-FAMILY (RFC 8656 §18.11).
    ADDITIONAL_ADDRESS_FAMILY = 0x8000 "ADDITIONAL-ADDRESS-FAMILY";
    /// ADDRESS-ERROR-CODE (RFC 8656 §18.12).
    ADDRESS_ERROR_CODE = 0x8001 "ADDRESS-ERROR-CODE";
    /// PASSWORD-ALGORITHMS (RFC 8489 §14.11).
    PASSWORD_ALGORITHMS = 0x8002 "PASSWORD-ALGORITHMS";
    /// ALTERNATE-DOMAIN (RFC 8489 §14.16).
    ALTERNATE_DOMAIN = 0x8003 "ALTERNATE-DOMAIN";
    /// ICMP (RFC 8656 §18.13).
    ICMP = 0x8004 "ICMP";
    /// SOFTWARE (RFC 8489 §14.14).
    SOFTWARE = 0x8022 "SOFTWARE";
    /// ALTERNATE-SERVER (RFC 8489 §14.15).
    ALTERNATE_SERVER = 0x8023 "ALTERNATE-SERVER";
    /// FINGERPRINT (RFC 8489 §14.7).
    FINGERPRINT = 0x8028 "FINGERPRINT";
    /// RESPONSE-ORIGIN (RFC 5780 §7.3).
    RESPONSE_ORIGIN = 0x802B "RESPONSE-ORIGIN";
    /// OTHER-ADDRESS (RFC 5780 §7.4).
    OTHER_ADDRESS = 0x802C "OTHER-ADDRESS";
    /// THIRD-PARTY-AUTHORIZATION (RFC 7635 §6.1).
    THIRD_PARTY_AUTHORIZATION = 0x802E "THIRD-PARTY-AUTHORIZATION";
    /// ORIGIN (draft-ietf-tram-stun-origin §5).
    ORIGIN = 0x802F "ORIGIN";
    /// MOBILITY-TICKET (RFC 8016 §4).
    MOBILITY_TICKET = 0x8030 "MOBILITY-TICKET";
    /// ADDITIONAL-ADDRESS-FAMILY under the number, never assigned, by which coturn's programs up to 4.6 call it.
    COTURN_ADDITIONAL_ADDRESS_FAMILY = 0x8032 "ADDITIONAL-ADDRESS-FAMILY (coturn)";
}
