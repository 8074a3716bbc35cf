//! Bytes to views and back: STUN (RFC 8489), TURN (RFC 8656) and ChannelData; capsules and HTTP datagrams (RFC 9297, RFC 9298).
//!
//! This crate is the only place of the relay that knows what a message looks like on the wire. It
//! reads untrusted bytes and never takes a decision about them.
//!
//! **The one invariant:** no input can make this crate panic or allocate, and no getter returns what a message
//! carries behind its integrity attribute, because nobody vouched for it. [`Message::parse`] walks the attributes once;
//! whatever it returns has been checked for its structure, so every getter afterwards is a lookup.
//!
//! How to read it, in the order a datagram meets it:
//!
//! 1. [`classify`] looks at the first byte (RFC 9443).
//! 2. [`ChannelData::parse_datagram`] or [`Message::parse`] takes the whole datagram.
//! 3. Getters of [`Message`] return attribute values, grouped by the document that defines them:
//!    `message/stun.rs`, `message/turn.rs`, `message/extension.rs`. A getter returns `Ok(None)` for an attribute that
//!    is absent and `Err` for one that is present and malformed, so that the caller can tell "as if it were not
//!    there" from "answer 400".
//! 4. [`Message::check_integrity`] compares the HMAC under an [`IntegrityKey`].
//! 5. [`MessageWriter`] writes the answer into the caller's buffer, with a method beside each getter.
//!    [`data_indication_header`] is its fixed form for relayed payload.
//!
//! For UDP proxying in HTTP: [`CapsuleHeader::parse`] reads what a stream of capsules begins with, [`Varint`] the numbers in it, and
//! [`datagram_capsule_header`] writes what precedes relayed payload.
//!
//! [`AttributeType`] and its registry (`attribute.rs`) is the one list of what the codec knows; a type missing there is
//! "unknown" in the sense of RFC 8489 §6.3.1.
//!
//! Addresses are [`core::net::SocketAddr`] exactly as written on the wire: an IPv4-mapped IPv6 address stays one. Their
//! canonical form, and every question of policy, is the engine's.

#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

mod address;
mod attribute;
mod capsule;
mod channel_data;
mod data_indication;
mod demux;
mod error;
mod error_code;
mod fingerprint;
mod header;
mod http_datagram;
mod icmp;
mod integrity;
mod message;
mod password_algorithm;
mod text;
mod token;
mod varint;
mod writer;

pub use address::AddressFamily;
pub use attribute::{AttributeType, KnownAttributeTypes};
pub use capsule::CapsuleHeader;
pub use channel_data::{ChannelData, ChannelNumber, InvalidChannelNumber};
pub use data_indication::{DATA_INDICATION_HEADER_MAX, data_indication_header};
pub use demux::{Demux, classify};
pub use error::{AttributeError, ChannelDataError, IntegrityError, ParseError, WriteError};
pub use error_code::{AddressErrorCode, ErrorCode};
pub use header::{Class, HEADER_LEN, MAGIC_COOKIE, Method, TransactionId, padding_len};
pub use http_datagram::{
    DATAGRAM_CAPSULE_HEADER_MAX, UDP_CONTEXT, UDP_PAYLOAD_MAX, datagram_capsule_header,
};
pub use icmp::Icmp;
pub use integrity::{
    IntegrityKey, IntegritySha256, Sha1Key, Sha256Key, long_term_key_md5, long_term_key_sha256,
    userhash,
};
pub use message::{Attribute, Attributes, ChangeRequest, Message, UnknownAttributes};
pub use password_algorithm::{PasswordAlgorithm, PasswordAlgorithmEntry, PasswordAlgorithms};
pub use token::AccessToken;
pub use varint::Varint;
pub use writer::MessageWriter;
