//! Getters for the attributes of RFC 8656 ([RFC 8656 §18]) and RFC 6062 ([RFC 6062 §6.2]).
//!
//! [RFC 8656 §18]: https://www.rfc-editor.org/rfc/rfc8656#section-18
//! [RFC 6062 §6.2]: https://www.rfc-editor.org/rfc/rfc6062#section-6.2

use super::array;
use crate::{
    AddressErrorCode, AddressFamily, AttributeError, AttributeType, Icmp, Message, address,
};
use core::net::SocketAddr;
use core::ops::Range;

impl<'a> Message<'a> {
    /// Returns CHANNEL-NUMBER as sent, in range or not; [`crate::ChannelNumber`] knows the range (RFC 8656 §18.1).
    ///
    /// # Errors
    ///
    /// A length other than 4.
    pub fn channel_number(&self) -> Result<Option<u16>, AttributeError> {
        let value = self.raw(AttributeType::CHANNEL_NUMBER).map(array);
        Ok(value
            .transpose()?
            .map(|[n0, n1, _rffu0, _rffu1]| u16::from_be_bytes([n0, n1])))
    }

    /// Returns LIFETIME in seconds (RFC 8656 §18.2).
    ///
    /// # Errors
    ///
    /// A length other than 4.
    pub fn lifetime(&self) -> Result<Option<u32>, AttributeError> {
        self.u32(AttributeType::LIFETIME)
    }

    /// Returns the first XOR-PEER-ADDRESS (RFC 8656 §18.3).
    ///
    /// # Errors
    ///
    /// A wrong length or an unknown family.
    pub fn xor_peer_address(&self) -> Result<Option<SocketAddr>, AttributeError> {
        self.xor_address(AttributeType::XOR_PEER_ADDRESS)
    }

    /// Returns every XOR-PEER-ADDRESS; CreatePermission may carry several (RFC 8656 §10.1).
    pub fn xor_peer_addresses(
        &self,
    ) -> impl Iterator<Item = Result<SocketAddr, AttributeError>> + use<'a> {
        self.every_xor_address(AttributeType::XOR_PEER_ADDRESS)
    }

    /// Returns DATA (RFC 8656 §18.4).
    #[must_use]
    pub fn data(&self) -> Option<&'a [u8]> {
        self.raw(AttributeType::DATA)
    }

    /// Returns where the value of DATA lies in the message, so that payload can be forwarded in place.
    #[must_use]
    pub fn data_range(&self) -> Option<Range<usize>> {
        self.raw_range(AttributeType::DATA)
    }

    /// Returns the first XOR-RELAYED-ADDRESS (RFC 8656 §18.5).
    ///
    /// # Errors
    ///
    /// A wrong length or an unknown family.
    pub fn xor_relayed_address(&self) -> Result<Option<SocketAddr>, AttributeError> {
        self.xor_address(AttributeType::XOR_RELAYED_ADDRESS)
    }

    /// Returns every XOR-RELAYED-ADDRESS; a dual allocation has one of each family (RFC 8656 §7.2).
    pub fn xor_relayed_addresses(
        &self,
    ) -> impl Iterator<Item = Result<SocketAddr, AttributeError>> + use<'a> {
        self.every_xor_address(AttributeType::XOR_RELAYED_ADDRESS)
    }

    /// Returns REQUESTED-ADDRESS-FAMILY (RFC 8656 §18.6).
    ///
    /// # Errors
    ///
    /// A length other than 4 or an unknown family.
    pub fn requested_address_family(&self) -> Result<Option<AddressFamily>, AttributeError> {
        self.family(AttributeType::REQUESTED_ADDRESS_FAMILY)
    }

    /// Returns ADDITIONAL-ADDRESS-FAMILY (RFC 8656 §18.11), or else what coturn's programs up to 4.6 send in its place.
    ///
    /// # Errors
    ///
    /// A length other than 4 or an unknown family.
    pub fn additional_address_family(&self) -> Result<Option<AddressFamily>, AttributeError> {
        match self.family(AttributeType::ADDITIONAL_ADDRESS_FAMILY) {
            Ok(None) => self.family(AttributeType::COTURN_ADDITIONAL_ADDRESS_FAMILY),
            family => family,
        }
    }

    /// Returns whether [`Self::additional_address_family`] is present, in whatever form.
    #[must_use]
    pub fn has_additional_address_family(&self) -> bool {
        self.contains(AttributeType::ADDITIONAL_ADDRESS_FAMILY)
            || self.contains(AttributeType::COTURN_ADDITIONAL_ADDRESS_FAMILY)
    }

    /// Returns EVEN-PORT: whether the next-higher port shall be reserved, the R bit (RFC 8656 §18.7).
    ///
    /// # Errors
    ///
    /// A length other than 1.
    pub fn even_port(&self) -> Result<Option<bool>, AttributeError> {
        let value = self.raw(AttributeType::EVEN_PORT).map(array);
        Ok(value.transpose()?.map(|[flags]| flags & 0x80 != 0))
    }

    /// Returns REQUESTED-TRANSPORT, an IP protocol number, 17 for UDP, 6 for TCP (RFC 8656 §18.8).
    ///
    /// # Errors
    ///
    /// A length other than 4.
    pub fn requested_transport(&self) -> Result<Option<u8>, AttributeError> {
        let value = self.raw(AttributeType::REQUESTED_TRANSPORT).map(array);
        Ok(value.transpose()?.map(|[protocol, _, _, _]| protocol))
    }

    /// Returns whether DONT-FRAGMENT is present (RFC 8656 §18.9).
    ///
    /// # Errors
    ///
    /// A value that is not empty.
    pub fn dont_fragment(&self) -> Result<bool, AttributeError> {
        match self.raw(AttributeType::DONT_FRAGMENT) {
            None => Ok(false),
            Some([]) => Ok(true),
            Some(_) => Err(AttributeError::Length),
        }
    }

    /// Returns RESERVATION-TOKEN (RFC 8656 §18.10).
    ///
    /// # Errors
    ///
    /// A length other than 8.
    pub fn reservation_token(&self) -> Result<Option<[u8; 8]>, AttributeError> {
        self.raw(AttributeType::RESERVATION_TOKEN)
            .map(array)
            .transpose()
    }

    /// Returns every ADDRESS-ERROR-CODE, one per family that was not allocated (RFC 8656 §18.12).
    pub fn address_error_codes(
        &self,
    ) -> impl Iterator<Item = Result<AddressErrorCode<'a>, AttributeError>> + use<'a> {
        self.every(AttributeType::ADDRESS_ERROR_CODE)
            .map(AddressErrorCode::parse)
    }

    /// Returns ICMP (RFC 8656 §18.13).
    ///
    /// # Errors
    ///
    /// A length other than 8.
    pub fn icmp(&self) -> Result<Option<Icmp>, AttributeError> {
        self.raw(AttributeType::ICMP).map(Icmp::parse).transpose()
    }

    /// Returns CONNECTION-ID (RFC 6062 §6.2.1).
    ///
    /// # Errors
    ///
    /// A length other than 4.
    pub fn connection_id(&self) -> Result<Option<u32>, AttributeError> {
        self.u32(AttributeType::CONNECTION_ID)
    }

    fn every_xor_address(
        &self,
        kind: AttributeType,
    ) -> impl Iterator<Item = Result<SocketAddr, AttributeError>> + use<'a> {
        let transaction_id = self.transaction_id();
        self.every(kind)
            .map(move |value| address::parse_xor(value, transaction_id))
    }

    fn family(&self, kind: AttributeType) -> Result<Option<AddressFamily>, AttributeError> {
        let value: Option<[u8; 4]> = self.raw(kind).map(array).transpose()?;
        value
            .map(|[family, _, _, _]| AddressFamily::try_from(family))
            .transpose()
    }

    fn u32(&self, kind: AttributeType) -> Result<Option<u32>, AttributeError> {
        let value = self.raw(kind).map(array).transpose()?;
        Ok(value.map(u32::from_be_bytes))
    }
}
