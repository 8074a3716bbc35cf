//! Getters for the attributes of NAT discovery ([RFC 5780 §7]), third-party authorization ([RFC 7635 §6]), mobility
//! ([RFC 8016 §3]) and of the ORIGIN draft.
//!
//! [RFC 5780 §7]: https://www.rfc-editor.org/rfc/rfc5780#section-7
//! [RFC 7635 §6]: https://www.rfc-editor.org/rfc/rfc7635#section-6
//! [RFC 8016 §3]: https://www.rfc-editor.org/rfc/rfc8016#section-3

use super::array;
use crate::{AccessToken, AttributeError, AttributeType, Message, address};
use core::net::SocketAddr;

/// From where a Binding response shall be sent (RFC 5780 §7.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ChangeRequest {
    /// From the server's other IP address.
    pub change_ip: bool,
    /// From the server's other port.
    pub change_port: bool,
}

impl<'a> Message<'a> {
    /// Returns CHANGE-REQUEST (RFC 5780 §7.2).
    ///
    /// # Errors
    ///
    /// A length other than 4.
    pub fn change_request(&self) -> Result<Option<ChangeRequest>, AttributeError> {
        let value = self.raw(AttributeType::CHANGE_REQUEST).map(array);
        Ok(value.transpose()?.map(|[_, _, _, flags]| ChangeRequest {
            change_ip: flags & 0x04 != 0,
            change_port: flags & 0x02 != 0,
        }))
    }

    /// Returns RESPONSE-ORIGIN (RFC 5780 §7.3).
    ///
    /// # Errors
    ///
    /// A wrong length or an unknown family.
    pub fn response_origin(&self) -> Result<Option<SocketAddr>, AttributeError> {
        self.raw(AttributeType::RESPONSE_ORIGIN)
            .map(address::parse)
            .transpose()
    }

    /// Returns OTHER-ADDRESS (RFC 5780 §7.4).
    ///
    /// # Errors
    ///
    /// A wrong length or an unknown family.
    pub fn other_address(&self) -> Result<Option<SocketAddr>, AttributeError> {
        self.raw(AttributeType::OTHER_ADDRESS)
            .map(address::parse)
            .transpose()
    }

    /// Returns RESPONSE-PORT. The two bytes of padding count as value for some senders and not for others; both are read
    /// (RFC 5780 §7.5).
    ///
    /// # Errors
    ///
    /// A length other than 2 and 4.
    pub fn response_port(&self) -> Result<Option<u16>, AttributeError> {
        match self.raw(AttributeType::RESPONSE_PORT) {
            None => Ok(None),
            Some(&([p0, p1] | [p0, p1, _, _])) => Ok(Some(u16::from_be_bytes([p0, p1]))),
            Some(_) => Err(AttributeError::Length),
        }
    }

    /// Returns the free-form value of PADDING (RFC 5780 §7.6).
    #[must_use]
    pub fn padding(&self) -> Option<&'a [u8]> {
        self.raw(AttributeType::PADDING)
    }

    /// Returns THIRD-PARTY-AUTHORIZATION, the name of the STUN server (RFC 7635 §6.1).
    #[must_use]
    pub fn third_party_authorization(&self) -> Option<&'a [u8]> {
        self.raw(AttributeType::THIRD_PARTY_AUTHORIZATION)
    }

    /// Returns ACCESS-TOKEN (RFC 7635 §6.2).
    ///
    /// # Errors
    ///
    /// A value shorter than the nonce it claims.
    pub fn access_token(&self) -> Result<Option<AccessToken<'a>>, AttributeError> {
        self.raw(AttributeType::ACCESS_TOKEN)
            .map(AccessToken::parse)
            .transpose()
    }

    /// Returns MOBILITY-TICKET; empty in an Allocate request that asks for one (RFC 8016 §3.1).
    #[must_use]
    pub fn mobility_ticket(&self) -> Option<&'a [u8]> {
        self.raw(AttributeType::MOBILITY_TICKET)
    }

    /// Returns the first ORIGIN (draft-ietf-tram-stun-origin §5).
    #[must_use]
    pub fn origin(&self) -> Option<&'a [u8]> {
        self.raw(AttributeType::ORIGIN)
    }
}
