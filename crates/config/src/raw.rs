//! Lines of files that are not UTF-8, as text that can be turned back into their bytes.

/// Stands for byte 0 of a line that is not UTF-8: the first of 256 private-use characters.
const RAW: u32 = 0x0010_FF00;

/// Returns a line as text, from which [`bytes_of`] makes the same bytes again: coturn's files have passwords in Latin-1 too.
pub(crate) fn text_of(line: &[u8]) -> String {
    let mut text = String::with_capacity(line.len());
    for chunk in line.utf8_chunks() {
        text.push_str(chunk.valid());
        let raw = chunk.invalid().iter();
        text.extend(raw.filter_map(|byte| char::from_u32(RAW + u32::from(*byte))));
    }
    text
}

/// Returns the bytes that a value was written in.
pub(crate) fn bytes_of(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    for character in text.chars() {
        match u32::from(character).checked_sub(RAW).map(u8::try_from) {
            Some(Ok(raw)) => bytes.push(raw),
            _ => bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_turned_back_into_the_bytes_of_the_line() {
        for line in [
            &b"user=a:caf\xe9"[..],
            "user=a:caf\u{e9}\u{1f468}".as_bytes(),
            b"\x80\xff",
        ] {
            assert_eq!(bytes_of(&text_of(line)), line);
        }
    }
}
