//! Writers for the attributes of RFC 8656 ([RFC 8656 §18]) and RFC 6062 ([RFC 6062 §6.2]).
//!
//! [RFC 8656 §18]: https://www.rfc-editor.org/rfc/rfc8656#section-18
//! [RFC 6062 §6.2]: https://www.rfc-editor.org/rfc/rfc6062#section-6.2

use super::MessageWriter;
use crate::{AddressFamily, AttributeType, ChannelNumber, Icmp, WriteError};
use core::net::SocketAddr;

impl MessageWriter<'_> {
    /// Appends CHANNEL-NUMBER (RFC 8656 §18.1).
    pub fn channel_number(&mut self, number: ChannelNumber) -> &mut Self {
        let [n0, n1] = number.get().to_be_bytes();
        self.bytes(AttributeType::CHANNEL_NUMBER, &[n0, n1, 0, 0])
    }

    /// Appends LIFETIME in seconds (RFC 8656 §18.2).
    pub fn lifetime(&mut self, seconds: u32) -> &mut Self {
        self.u32(AttributeType::LIFETIME, seconds)
    }

    /// Appends XOR-PEER-ADDRESS (RFC 8656 §18.3).
    pub fn xor_peer_address(&mut self, address: SocketAddr) -> &mut Self {
        self.xor_address(AttributeType::XOR_PEER_ADDRESS, address)
    }

    /// Appends DATA (RFC 8656 §18.4).
    pub fn data(&mut self, data: &[u8]) -> &mut Self {
        self.bytes(AttributeType::DATA, data)
    }

    /// Appends XOR-RELAYED-ADDRESS (RFC 8656 §18.5).
    pub fn xor_relayed_address(&mut self, address: SocketAddr) -> &mut Self {
        self.xor_address(AttributeType::XOR_RELAYED_ADDRESS, address)
    }

    /// Appends REQUESTED-ADDRESS-FAMILY (RFC 8656 §18.6).
    pub fn requested_address_family(&mut self, family: AddressFamily) -> &mut Self {
        self.bytes(
            AttributeType::REQUESTED_ADDRESS_FAMILY,
            &[family.number(), 0, 0, 0],
        )
    }

    /// Appends ADDITIONAL-ADDRESS-FAMILY (RFC 8656 §18.11).
    pub fn additional_address_family(&mut self, family: AddressFamily) -> &mut Self {
        self.bytes(
            AttributeType::ADDITIONAL_ADDRESS_FAMILY,
            &[family.number(), 0, 0, 0],
        )
    }

    /// Appends EVEN-PORT with its R bit (RFC 8656 §18.7).
    pub fn even_port(&mut self, reserve_next: bool) -> &mut Self {
        self.bytes(
            AttributeType::EVEN_PORT,
            &[if reserve_next { 0x80 } else { 0 }],
        )
    }

    /// Appends REQUESTED-TRANSPORT with an IP protocol number (RFC 8656 §18.8).
    pub fn requested_transport(&mut self, protocol: u8) -> &mut Self {
        self.bytes(AttributeType::REQUESTED_TRANSPORT, &[protocol, 0, 0, 0])
    }

    /// Appends DONT-FRAGMENT (RFC 8656 §18.9).
    pub fn dont_fragment(&mut self) -> &mut Self {
        self.flag(AttributeType::DONT_FRAGMENT)
    }

    /// Appends RESERVATION-TOKEN (RFC 8656 §18.10).
    pub fn reservation_token(&mut self, token: [u8; 8]) -> &mut Self {
        self.bytes(AttributeType::RESERVATION_TOKEN, &token)
    }

    /// Appends ADDRESS-ERROR-CODE; the code in 300..=699 (RFC 8656 §18.12).
    pub fn address_error_code(
        &mut self,
        family: AddressFamily,
        code: u16,
        reason: &str,
    ) -> &mut Self {
        self.code_and_reason(
            AttributeType::ADDRESS_ERROR_CODE,
            family.number(),
            code,
            reason,
        )
    }

    /// Appends ICMP; the type in seven bits and the code in nine (RFC 8656 §18.13).
    pub fn icmp(&mut self, icmp: Icmp) -> &mut Self {
        match icmp.encode() {
            Some(value) => self.bytes(AttributeType::ICMP, &value),
            None => self.fail(WriteError::Value),
        }
    }

    /// Appends CONNECTION-ID (RFC 6062 §6.2.1).
    pub fn connection_id(&mut self, id: u32) -> &mut Self {
        self.u32(AttributeType::CONNECTION_ID, id)
    }
}
