//! Writers for the attributes of RFC 8489 ([RFC 8489 §14]).
//!
//! [RFC 8489 §14]: https://www.rfc-editor.org/rfc/rfc8489#section-14

use super::MessageWriter;
use crate::{
    AttributeType, PasswordAlgorithm, PasswordAlgorithmEntry, WriteError, error_code, padding_len,
    text,
};
use core::net::SocketAddr;

impl MessageWriter<'_> {
    /// Appends MAPPED-ADDRESS (RFC 8489 §14.1).
    pub fn mapped_address(&mut self, address: SocketAddr) -> &mut Self {
        self.address(AttributeType::MAPPED_ADDRESS, address)
    }

    /// Appends XOR-MAPPED-ADDRESS (RFC 8489 §14.2).
    pub fn xor_mapped_address(&mut self, address: SocketAddr) -> &mut Self {
        self.xor_address(AttributeType::XOR_MAPPED_ADDRESS, address)
    }

    /// Appends USERNAME, fewer than 509 bytes (RFC 8489 §14.3).
    pub fn username(&mut self, username: &[u8]) -> &mut Self {
        if username.len() > text::USERNAME_WRITE_LEN_MAX {
            return self.fail(WriteError::Value);
        }
        self.bytes(AttributeType::USERNAME, username)
    }

    /// Appends USERHASH (RFC 8489 §14.4).
    pub fn userhash(&mut self, userhash: &[u8; 32]) -> &mut Self {
        self.bytes(AttributeType::USERHASH, userhash)
    }

    /// Appends ERROR-CODE; the code in 300..=699 (RFC 8489 §14.8).
    pub fn error_code(&mut self, code: u16, reason: &str) -> &mut Self {
        self.code_and_reason(AttributeType::ERROR_CODE, 0, code, reason)
    }

    /// Appends REALM (RFC 8489 §14.9).
    pub fn realm(&mut self, realm: &[u8]) -> &mut Self {
        self.text(AttributeType::REALM, realm)
    }

    /// Appends NONCE (RFC 8489 §14.10).
    pub fn nonce(&mut self, nonce: &[u8]) -> &mut Self {
        self.text(AttributeType::NONCE, nonce)
    }

    /// Appends PASSWORD-ALGORITHMS, without parameters (RFC 8489 §14.11).
    pub fn password_algorithms(&mut self, algorithms: &[PasswordAlgorithm]) -> &mut Self {
        let len = algorithms.len().saturating_mul(4);
        if let Some(area) = self.reserve(AttributeType::PASSWORD_ALGORITHMS, len) {
            for (entry, algorithm) in area.as_chunks_mut().0.iter_mut().zip(algorithms) {
                let [a0, a1] = algorithm.number().to_be_bytes();
                *entry = [a0, a1, 0, 0];
            }
        }
        self
    }

    /// Appends PASSWORD-ALGORITHM, without parameters (RFC 8489 §14.12).
    pub fn password_algorithm(&mut self, algorithm: PasswordAlgorithm) -> &mut Self {
        self.password_algorithm_entry(PasswordAlgorithmEntry {
            algorithm,
            parameters: &[],
        })
    }

    /// Appends PASSWORD-ALGORITHM with parameters, which the value pads to a multiple of four (RFC 8489 §14.12).
    pub fn password_algorithm_entry(&mut self, entry: PasswordAlgorithmEntry<'_>) -> &mut Self {
        let parameters = entry.parameters;
        let Ok(parameters_len) = u16::try_from(parameters.len()) else {
            return self.fail(WriteError::Value);
        };
        let len = parameters
            .len()
            .saturating_add(padding_len(parameters.len()))
            .saturating_add(4);
        if let Some(area) = self.reserve(AttributeType::PASSWORD_ALGORITHM, len) {
            area.fill(0);
            if let Some(([a0, a1, l0, l1], rest)) = area.split_first_chunk_mut() {
                [*a0, *a1] = entry.algorithm.number().to_be_bytes();
                [*l0, *l1] = parameters_len.to_be_bytes();
                if let Some(rest) = rest.get_mut(..parameters.len()) {
                    rest.copy_from_slice(parameters);
                }
            }
        }
        self
    }

    /// Appends UNKNOWN-ATTRIBUTES. The iterator is read twice, to count and to write (RFC 8489 §14.13).
    pub fn unknown_attributes(
        &mut self,
        types: impl Iterator<Item = AttributeType> + Clone,
    ) -> &mut Self {
        let len = types.clone().count().saturating_mul(2);
        if let Some(area) = self.reserve(AttributeType::UNKNOWN_ATTRIBUTES, len) {
            area.fill(0);
            for (pair, kind) in area.as_chunks_mut().0.iter_mut().zip(types) {
                *pair = kind.number().to_be_bytes();
            }
        }
        self
    }

    /// Appends SOFTWARE (RFC 8489 §14.14).
    pub fn software(&mut self, software: &str) -> &mut Self {
        self.text(AttributeType::SOFTWARE, software.as_bytes())
    }

    /// Appends ALTERNATE-SERVER (RFC 8489 §14.15).
    pub fn alternate_server(&mut self, address: SocketAddr) -> &mut Self {
        self.address(AttributeType::ALTERNATE_SERVER, address)
    }

    /// Appends ALTERNATE-DOMAIN, at most 255 ASCII characters (RFC 8489 §14.16).
    pub fn alternate_domain(&mut self, domain: &str) -> &mut Self {
        if domain.len() > text::DOMAIN_LEN_MAX || !domain.is_ascii() {
            return self.fail(WriteError::Value);
        }
        self.bytes(AttributeType::ALTERNATE_DOMAIN, domain.as_bytes())
    }

    fn text(&mut self, kind: AttributeType, value: &[u8]) -> &mut Self {
        if value.len() > text::WRITE_LEN_MAX || !text::is_short(value) {
            return self.fail(WriteError::Value);
        }
        self.bytes(kind, value)
    }

    /// Appends ERROR-CODE or ADDRESS-ERROR-CODE, which differ in the first byte.
    pub(super) fn code_and_reason(
        &mut self,
        kind: AttributeType,
        first: u8,
        code: u16,
        reason: &str,
    ) -> &mut Self {
        let reason = reason.as_bytes();
        let Some([class, number]) = error_code::class_and_number(code) else {
            return self.fail(WriteError::Value);
        };
        if reason.len() > text::WRITE_LEN_MAX || !text::is_short(reason) {
            return self.fail(WriteError::Value);
        }
        if let Some(area) = self.reserve(kind, reason.len().saturating_add(4))
            && let Some((head, rest)) = area.split_first_chunk_mut()
        {
            *head = [first, 0, class, number];
            rest.copy_from_slice(reason);
        }
        self
    }
}
