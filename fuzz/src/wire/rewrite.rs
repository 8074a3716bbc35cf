//! Every attribute through its own getter and its own writer method.

use super::ID;
use turnbuckle_wire::{
    AttributeType, ChannelNumber, Class, Message, MessageWriter, Method, WriteError,
};

/// Reads the single attribute of a message with its own getter, writes the value with its own method, and reads it again.
pub(super) fn read_and_rewrite(message: &Message<'_>) {
    let mut buf = vec![0xEE; message.as_bytes().len() + 8];
    let mut writer = MessageWriter::new(&mut buf, Class::Request, Method::ALLOCATE, ID);
    if write_what_is_read(message, &mut writer).is_none() {
        return;
    }
    let len = match writer.finish() {
        Ok(len) => len,
        // senders have narrower limits than receivers (RFC 8489 §14.3)
        Err(error) => {
            assert_eq!(error, WriteError::Value);
            return;
        }
    };
    let again = Message::parse(&buf[..len]).expect("our own message parses");
    let mut second = vec![0x11; len];
    let mut writer = MessageWriter::new(&mut second, Class::Request, Method::ALLOCATE, ID);
    write_what_is_read(&again, &mut writer).expect("what was written is read");
    assert_eq!(writer.finish(), Ok(len));
    assert_eq!(second, buf[..len]);
}

/// Writes the first attribute as it is read. Returns `None` if no typed getter returns a value.
fn write_what_is_read(message: &Message<'_>, writer: &mut MessageWriter<'_>) -> Option<()> {
    let kind = message.attributes().next()?.kind;
    match kind {
        AttributeType::MAPPED_ADDRESS => {
            writer.mapped_address(message.mapped_address().ok()??);
        }
        AttributeType::XOR_MAPPED_ADDRESS => {
            writer.xor_mapped_address(message.xor_mapped_address().ok()??);
        }
        AttributeType::XOR_PEER_ADDRESS => {
            writer.xor_peer_address(message.xor_peer_address().ok()??);
        }
        AttributeType::XOR_RELAYED_ADDRESS => {
            writer.xor_relayed_address(message.xor_relayed_address().ok()??);
        }
        AttributeType::ALTERNATE_SERVER => {
            writer.alternate_server(message.alternate_server().ok()??);
        }
        AttributeType::RESPONSE_ORIGIN => {
            writer.response_origin(message.response_origin().ok()??);
        }
        AttributeType::OTHER_ADDRESS => {
            writer.other_address(message.other_address().ok()??);
        }
        AttributeType::USERNAME => {
            writer.username(message.username().ok()??);
        }
        AttributeType::USERHASH => {
            writer.userhash(&message.userhash().ok()??);
        }
        AttributeType::REALM => {
            writer.realm(message.realm().ok()??);
        }
        AttributeType::NONCE => {
            writer.nonce(message.nonce().ok()??);
        }
        AttributeType::SOFTWARE => {
            writer.software(core::str::from_utf8(message.software().ok()??).ok()?);
        }
        AttributeType::ERROR_CODE => {
            let error = message.error_code().ok()??;
            writer.error_code(error.code, core::str::from_utf8(error.reason).ok()?);
        }
        AttributeType::ADDRESS_ERROR_CODE => {
            let error = message.address_error_codes().next()?.ok()?;
            let reason = core::str::from_utf8(error.reason).ok()?;
            writer.address_error_code(error.family, error.code, reason);
        }
        AttributeType::UNKNOWN_ATTRIBUTES => {
            let types: Vec<_> = message.unknown_attributes().ok()??.iter().collect();
            writer.unknown_attributes(types.into_iter());
        }
        AttributeType::PASSWORD_ALGORITHM => {
            writer.password_algorithm_entry(message.password_algorithm_entry().ok()??);
        }
        AttributeType::PASSWORD_ALGORITHMS => {
            let algorithms = message.password_algorithms().ok()??;
            let algorithms: Vec<_> = algorithms.iter().map(|entry| entry.algorithm).collect();
            writer.password_algorithms(&algorithms);
        }
        AttributeType::ALTERNATE_DOMAIN => {
            writer.alternate_domain(message.alternate_domain().ok()??);
        }
        AttributeType::CHANNEL_NUMBER => {
            let number = message.channel_number().ok()??;
            writer.channel_number(ChannelNumber::try_from(number).ok()?);
        }
        AttributeType::LIFETIME => {
            writer.lifetime(message.lifetime().ok()??);
        }
        AttributeType::DATA => {
            writer.data(message.data()?);
        }
        AttributeType::REQUESTED_ADDRESS_FAMILY => {
            writer.requested_address_family(message.requested_address_family().ok()??);
        }
        AttributeType::ADDITIONAL_ADDRESS_FAMILY => {
            writer.additional_address_family(message.additional_address_family().ok()??);
        }
        AttributeType::EVEN_PORT => {
            writer.even_port(message.even_port().ok()??);
        }
        AttributeType::REQUESTED_TRANSPORT => {
            writer.requested_transport(message.requested_transport().ok()??);
        }
        AttributeType::DONT_FRAGMENT => {
            if !message.dont_fragment().ok()? {
                return None;
            }
            writer.dont_fragment();
        }
        AttributeType::RESERVATION_TOKEN => {
            writer.reservation_token(message.reservation_token().ok()??);
        }
        AttributeType::ICMP => {
            writer.icmp(message.icmp().ok()??);
        }
        AttributeType::CONNECTION_ID => {
            writer.connection_id(message.connection_id().ok()??);
        }
        AttributeType::CHANGE_REQUEST => {
            writer.change_request(message.change_request().ok()??);
        }
        AttributeType::RESPONSE_PORT => {
            writer.response_port(message.response_port().ok()??);
        }
        AttributeType::PADDING => {
            writer.padding(message.padding()?.len());
        }
        AttributeType::THIRD_PARTY_AUTHORIZATION => {
            writer.third_party_authorization(message.third_party_authorization()?);
        }
        AttributeType::ACCESS_TOKEN => {
            writer.access_token(message.access_token().ok()??);
        }
        AttributeType::MOBILITY_TICKET => {
            writer.mobility_ticket(message.mobility_ticket()?);
        }
        AttributeType::ORIGIN => {
            writer.origin(message.origin()?);
        }
        _ => return None,
    }
    Some(())
}
