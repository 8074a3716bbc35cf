//! Writers for the attributes of NAT discovery ([RFC 5780 §7]), third-party authorization ([RFC 7635 §6]), mobility
//! ([RFC 8016 §3]) and of the ORIGIN draft.
//!
//! [RFC 5780 §7]: https://www.rfc-editor.org/rfc/rfc5780#section-7
//! [RFC 7635 §6]: https://www.rfc-editor.org/rfc/rfc7635#section-6
//! [RFC 8016 §3]: https://www.rfc-editor.org/rfc/rfc8016#section-3

use super::MessageWriter;
use crate::{AccessToken, AttributeType, ChangeRequest, WriteError};
use core::net::SocketAddr;

impl MessageWriter<'_> {
    /// Appends CHANGE-REQUEST (RFC 5780 §7.2).
    pub fn change_request(&mut self, change: ChangeRequest) -> &mut Self {
        let flags = u8::from(change.change_ip) << 2 | u8::from(change.change_port) << 1;
        self.bytes(AttributeType::CHANGE_REQUEST, &[0, 0, 0, flags])
    }

    /// Appends RESPONSE-ORIGIN (RFC 5780 §7.3).
    pub fn response_origin(&mut self, address: SocketAddr) -> &mut Self {
        self.address(AttributeType::RESPONSE_ORIGIN, address)
    }

    /// Appends OTHER-ADDRESS (RFC 5780 §7.4).
    pub fn other_address(&mut self, address: SocketAddr) -> &mut Self {
        self.address(AttributeType::OTHER_ADDRESS, address)
    }

    /// Appends RESPONSE-PORT (RFC 5780 §7.5).
    pub fn response_port(&mut self, port: u16) -> &mut Self {
        self.u16(AttributeType::RESPONSE_PORT, port)
    }

    /// Appends PADDING of `len` zero bytes (RFC 5780 §7.6).
    pub fn padding(&mut self, len: usize) -> &mut Self {
        if let Some(area) = self.reserve(AttributeType::PADDING, len) {
            area.fill(0);
        }
        self
    }

    /// Appends THIRD-PARTY-AUTHORIZATION with the name of this server (RFC 7635 §6.1).
    pub fn third_party_authorization(&mut self, server_name: &[u8]) -> &mut Self {
        self.bytes(AttributeType::THIRD_PARTY_AUTHORIZATION, server_name)
    }

    /// Appends ACCESS-TOKEN (RFC 7635 §6.2).
    pub fn access_token(&mut self, token: AccessToken<'_>) -> &mut Self {
        let (nonce, block) = (token.nonce, token.encrypted_block);
        let Ok(nonce_len) = u16::try_from(nonce.len()) else {
            return self.fail(WriteError::Value);
        };
        let len = nonce.len().saturating_add(block.len()).saturating_add(2);
        if let Some(area) = self.reserve(AttributeType::ACCESS_TOKEN, len)
            && let Some((head, rest)) = area.split_first_chunk_mut()
            && let Some((nonce_area, block_area)) = rest.split_at_mut_checked(nonce.len())
        {
            *head = nonce_len.to_be_bytes();
            nonce_area.copy_from_slice(nonce);
            block_area.copy_from_slice(block);
        }
        self
    }

    /// Appends MOBILITY-TICKET (RFC 8016 §3).
    pub fn mobility_ticket(&mut self, ticket: &[u8]) -> &mut Self {
        self.bytes(AttributeType::MOBILITY_TICKET, ticket)
    }

    /// Appends ORIGIN (draft-ietf-tram-stun-origin §5).
    pub fn origin(&mut self, origin: &[u8]) -> &mut Self {
        self.bytes(AttributeType::ORIGIN, origin)
    }
}
