//! Messages of a client that may misbehave, and the answers to them.

use std::sync::atomic::{AtomicU64, Ordering};

use turnbuckle_wire::{
    AttributeType, Class, Message, MessageWriter, Method, TransactionId, padding_len,
};

/// A response, as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer(pub Vec<u8>);

impl Answer {
    /// Returns the error code; 200 for success, 0 for what is no response.
    pub fn code(&self) -> u16 {
        match self
            .message()
            .map(|message| (message.class(), message.error_code()))
        {
            Some((Class::Success, _)) => 200,
            Some((Class::Error, Ok(Some(error)))) => error.code,
            _ => 0,
        }
    }

    /// Returns the message; `None` if it is none.
    pub fn message(&self) -> Option<Message<'_>> {
        Message::parse(&self.0).ok()
    }
}

/// Returns the code of an answer; 0 if there was none.
pub fn code(answer: Option<&Answer>) -> u16 {
    answer.map_or(0, Answer::code)
}

/// Returns a message without credentials; nothing if `build` makes it longer than a message can be.
pub fn plain(class: Class, method: Method, build: impl FnOnce(&mut MessageWriter<'_>)) -> Vec<u8> {
    let mut bytes = vec![0; 65_600];
    let transaction = next_transaction_id();
    let mut writer = MessageWriter::new(&mut bytes, class, method, transaction);
    build(&mut writer);
    // What is too long for a message is none, and gets no answer.
    let len = writer.finish().unwrap_or(0);
    bytes.truncate(len);
    bytes
}

/// Appends an attribute wherever the message ends, be it behind the integrity attribute, and corrects the length field.
pub fn append(message: &mut Vec<u8>, kind: AttributeType, value: &[u8]) {
    let len = u16::try_from(value.len()).unwrap_or(u16::MAX);
    message.extend_from_slice(&kind.number().to_be_bytes());
    message.extend_from_slice(&len.to_be_bytes());
    message.extend_from_slice(value);
    message.resize(message.len() + padding_len(value.len()), 0);
    let total = u16::try_from(message.len().saturating_sub(20)).unwrap_or(u16::MAX);
    if let Some(field) = message.get_mut(2..4) {
        field.copy_from_slice(&total.to_be_bytes());
    }
}

/// Takes the first whole message out of a stream's bytes (RFC 8489 §6.2.2, RFC 8656 §12.5).
pub(super) fn first_message(unread: &mut Vec<u8>) -> Option<Vec<u8>> {
    let &[first, _, high, low, ..] = unread.as_slice() else {
        return None;
    };
    let len = usize::from(u16::from_be_bytes([high, low]));
    let whole = if first < 0x40 {
        20 + len
    } else {
        4 + len + padding_len(len)
    };
    (unread.len() >= whole).then(|| unread.drain(..whole).collect())
}

/// Returns an id that differs for every message of a run, and of runs side by side.
fn next_transaction_id() -> TransactionId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let mut bytes = [0; 12];
    let (process, number) = bytes.split_at_mut(4);
    process.copy_from_slice(&std::process::id().to_be_bytes());
    number.copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    TransactionId::new(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_cut_into_messages_by_their_own_account() {
        let request = plain(Class::Request, Method::BINDING, |_| {});
        // Of five bytes and three of padding (RFC 8656 §12.5).
        let data = [0x40, 0, 0, 5, 1, 2, 3, 4, 5, 0, 0, 0];
        let mut unread = [&request[..], &data, &request[..19]].concat();
        assert_eq!(first_message(&mut unread), Some(request.clone()));
        assert_eq!(first_message(&mut unread), Some(data.to_vec()));
        assert_eq!(first_message(&mut unread), None);
        unread.push(request[19]);
        assert_eq!(first_message(&mut unread), Some(request));
        assert_eq!(first_message(&mut unread), None);
    }

    #[test]
    fn an_attribute_appended_behind_the_end_is_part_of_the_message() {
        let mut message = plain(Class::Request, Method::BINDING, |_| {});
        append(&mut message, AttributeType::SOFTWARE, b"abc");
        let parsed = Message::parse(&message).unwrap();
        assert_eq!(parsed.software(), Ok(Some(&b"abc"[..])));
    }
}
