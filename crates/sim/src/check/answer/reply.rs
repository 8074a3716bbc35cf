//! What an answer says, whatever it is to.

use turnbuckle_wire::{Class, Message, Method};

use crate::violation::Violation;

pub(super) fn parse_reply(bytes: &[u8]) -> Result<Message<'_>, Violation> {
    Message::parse(bytes)
        .map_err(|error| Violation::new("I8", format!("an answer that is {error}")))
}

/// Returns the error code of an answer, 0 for success.
pub(super) fn code_of(reply: &Message<'_>) -> Result<u16, Violation> {
    match (reply.class(), reply.error_code()) {
        (Class::Success, Ok(None)) => Ok(0),
        (Class::Error, Ok(Some(error))) => Ok(error.code),
        (class, code) => Err(Violation::new(
            "I8",
            format!("{class:?} with code {code:?}"),
        )),
    }
}

/// Returns the name under which answers are counted.
pub(super) fn method_name(method: Method) -> &'static str {
    match method {
        Method::BINDING => "Binding",
        Method::ALLOCATE => "Allocate",
        Method::REFRESH => "Refresh",
        Method::CREATE_PERMISSION => "CreatePermission",
        Method::CHANNEL_BIND => "ChannelBind",
        _ => "other method",
    }
}
