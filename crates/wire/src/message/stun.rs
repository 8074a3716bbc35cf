//! Getters for the attributes of RFC 8489 ([RFC 8489 §14]).
//!
//! [RFC 8489 §14]: https://www.rfc-editor.org/rfc/rfc8489#section-14

use super::array;
use crate::{
    AttributeError, AttributeType, ErrorCode, IntegritySha256, Message, PasswordAlgorithm,
    PasswordAlgorithmEntry, PasswordAlgorithms, address, password_algorithm, text,
};
use core::net::SocketAddr;

impl<'a> Message<'a> {
    /// Returns MAPPED-ADDRESS (RFC 8489 §14.1).
    ///
    /// # Errors
    ///
    /// A wrong length or an unknown family.
    pub fn mapped_address(&self) -> Result<Option<SocketAddr>, AttributeError> {
        self.raw(AttributeType::MAPPED_ADDRESS)
            .map(address::parse)
            .transpose()
    }

    /// Returns XOR-MAPPED-ADDRESS (RFC 8489 §14.2).
    ///
    /// # Errors
    ///
    /// A wrong length or an unknown family.
    pub fn xor_mapped_address(&self) -> Result<Option<SocketAddr>, AttributeError> {
        self.xor_address(AttributeType::XOR_MAPPED_ADDRESS)
    }

    /// Returns USERNAME, at most 763 bytes (RFC 8489 §14.3).
    ///
    /// # Errors
    ///
    /// A longer value.
    pub fn username(&self) -> Result<Option<&'a [u8]>, AttributeError> {
        match self.raw(AttributeType::USERNAME) {
            Some(value) if value.len() > text::READ_LEN_MAX => Err(AttributeError::Length),
            value => Ok(value),
        }
    }

    /// Returns USERHASH (RFC 8489 §14.4).
    ///
    /// # Errors
    ///
    /// A length other than 32.
    pub fn userhash(&self) -> Result<Option<[u8; 32]>, AttributeError> {
        self.raw(AttributeType::USERHASH).map(array).transpose()
    }

    /// Returns MESSAGE-INTEGRITY-SHA256, not verified; [`Message::check_integrity`] verifies (RFC 8489 §14.6).
    ///
    /// # Errors
    ///
    /// A length that is not 16, 20, 24, 28 or 32.
    pub fn integrity_sha256(&self) -> Result<Option<IntegritySha256<'a>>, AttributeError> {
        self.raw(AttributeType::MESSAGE_INTEGRITY_SHA256)
            .map(IntegritySha256::parse)
            .transpose()
    }

    /// Returns ERROR-CODE (RFC 8489 §14.8).
    ///
    /// # Errors
    ///
    /// Fewer than four bytes, a code outside 300..=699, or a reason that is too long.
    pub fn error_code(&self) -> Result<Option<ErrorCode<'a>>, AttributeError> {
        self.raw(AttributeType::ERROR_CODE)
            .map(ErrorCode::parse)
            .transpose()
    }

    /// Returns REALM (RFC 8489 §14.9).
    ///
    /// # Errors
    ///
    /// 128 characters or more.
    pub fn realm(&self) -> Result<Option<&'a [u8]>, AttributeError> {
        self.text(AttributeType::REALM)
    }

    /// Returns NONCE (RFC 8489 §14.10).
    ///
    /// # Errors
    ///
    /// 128 characters or more.
    pub fn nonce(&self) -> Result<Option<&'a [u8]>, AttributeError> {
        self.text(AttributeType::NONCE)
    }

    /// Returns PASSWORD-ALGORITHMS (RFC 8489 §14.11).
    ///
    /// # Errors
    ///
    /// Entries that do not fill the value, or parameters where the algorithm has none.
    pub fn password_algorithms(&self) -> Result<Option<PasswordAlgorithms<'a>>, AttributeError> {
        self.raw(AttributeType::PASSWORD_ALGORITHMS)
            .map(PasswordAlgorithms::parse)
            .transpose()
    }

    /// Returns the algorithm named by PASSWORD-ALGORITHM (RFC 8489 §14.12).
    ///
    /// # Errors
    ///
    /// As [`Message::password_algorithm_entry`].
    pub fn password_algorithm(&self) -> Result<Option<PasswordAlgorithm>, AttributeError> {
        Ok(self
            .password_algorithm_entry()?
            .map(|entry| entry.algorithm))
    }

    /// Returns PASSWORD-ALGORITHM with its parameters (RFC 8489 §14.12).
    ///
    /// # Errors
    ///
    /// Not exactly one entry, or parameters where the algorithm has none.
    pub fn password_algorithm_entry(
        &self,
    ) -> Result<Option<PasswordAlgorithmEntry<'a>>, AttributeError> {
        self.raw(AttributeType::PASSWORD_ALGORITHM)
            .map(password_algorithm::parse_single)
            .transpose()
    }

    /// Returns UNKNOWN-ATTRIBUTES (RFC 8489 §14.13).
    ///
    /// # Errors
    ///
    /// An odd number of bytes.
    pub fn unknown_attributes(&self) -> Result<Option<UnknownAttributes<'a>>, AttributeError> {
        match self.raw(AttributeType::UNKNOWN_ATTRIBUTES) {
            Some(value) if value.len() & 1 != 0 => Err(AttributeError::Length),
            value => Ok(value.map(UnknownAttributes)),
        }
    }

    /// Returns SOFTWARE (RFC 8489 §14.14).
    ///
    /// # Errors
    ///
    /// 128 characters or more.
    pub fn software(&self) -> Result<Option<&'a [u8]>, AttributeError> {
        self.text(AttributeType::SOFTWARE)
    }

    /// Returns the first ALTERNATE-SERVER (RFC 8489 §14.15).
    ///
    /// # Errors
    ///
    /// A wrong length or an unknown family.
    pub fn alternate_server(&self) -> Result<Option<SocketAddr>, AttributeError> {
        self.raw(AttributeType::ALTERNATE_SERVER)
            .map(address::parse)
            .transpose()
    }

    /// Returns every ALTERNATE-SERVER; there may be one of each family (RFC 8489 §10).
    pub fn alternate_servers(
        &self,
    ) -> impl Iterator<Item = Result<SocketAddr, AttributeError>> + use<'a> {
        self.every(AttributeType::ALTERNATE_SERVER)
            .map(address::parse)
    }

    /// Returns ALTERNATE-DOMAIN (RFC 8489 §14.16).
    ///
    /// # Errors
    ///
    /// More than 255 bytes, or bytes that are not ASCII.
    pub fn alternate_domain(&self) -> Result<Option<&'a str>, AttributeError> {
        let Some(value) = self.raw(AttributeType::ALTERNATE_DOMAIN) else {
            return Ok(None);
        };
        if value.len() > text::DOMAIN_LEN_MAX {
            return Err(AttributeError::Length);
        }
        match core::str::from_utf8(value) {
            Ok(domain) if domain.is_ascii() => Ok(Some(domain)),
            _ => Err(AttributeError::Value),
        }
    }

    pub(super) fn xor_address(
        &self,
        kind: AttributeType,
    ) -> Result<Option<SocketAddr>, AttributeError> {
        self.raw(kind)
            .map(|value| address::parse_xor(value, self.transaction_id()))
            .transpose()
    }

    /// Returns the values of a type that may repeat.
    pub(super) fn every(&self, kind: AttributeType) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.attributes()
            .filter(move |attribute| attribute.kind == kind)
            .map(|attribute| attribute.value)
    }

    fn text(&self, kind: AttributeType) -> Result<Option<&'a [u8]>, AttributeError> {
        self.raw(kind).map(text::checked).transpose()
    }
}

/// The list of UNKNOWN-ATTRIBUTES.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownAttributes<'a>(&'a [u8]);

impl<'a> UnknownAttributes<'a> {
    /// Returns the types in order.
    pub fn iter(&self) -> impl Iterator<Item = AttributeType> + use<'a> {
        let (pairs, _) = self.0.as_chunks();
        pairs
            .iter()
            .map(|&pair| AttributeType::new(u16::from_be_bytes(pair)))
    }
}
