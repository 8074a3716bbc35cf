//! Escapes text that clients choose, and holds coturn's phrases for error codes.

use std::fmt::Write as _;

use turnbuckle_engine::Transport;

/// Longest name in a line, in bytes as written: coturn cuts a record at 1024, and what stands behind a name has to be within.
const NAME_LEN_MAX: usize = 255;

/// Returns a name as it is printed between `<` and `>` in a line. Characters that could end the line, end the field or move the cursor of a
/// terminal are escaped. A name that is too long is cut (V-73). Ordinary names are unchanged, apostrophes included.
pub(crate) fn name(text: &str) -> String {
    let mut written = String::new();
    for character in text.chars() {
        let start = written.len();
        // Writing to a string does not fail.
        let _ = match character {
            '\'' | '"' => write!(written, "{character}"),
            '<' | '>' => write!(written, "{}", character.escape_unicode()),
            _ => write!(written, "{}", character.escape_debug()),
        };
        if written.len() > NAME_LEN_MAX - 3 {
            written.truncate(start);
            written.push_str("...");
            break;
        }
    }
    written
}

/// Returns text with everything escaped that is not printable, and the backslash.
pub(super) fn printable(text: &str) -> String {
    let mut written = String::new();
    for character in text.chars() {
        match character {
            '\'' | '"' => written.push(character),
            _ => written.extend(character.escape_debug()),
        }
    }
    written
}

/// Returns a name as it is printed in a line, from bytes that should be UTF-8.
pub(crate) fn name_of_bytes(bytes: &[u8]) -> String {
    name(&String::from_utf8_lossy(bytes))
}

/// Returns coturn's name of a transport.
pub(super) fn socket(transport: Transport) -> &'static str {
    match transport {
        Transport::Dtls => "DTLS",
        Transport::Quic => "QUIC",
        Transport::Tcp => "TCP",
        Transport::Tls => "TLS/TCP",
        Transport::Udp => "UDP",
    }
}

/// Returns coturn's phrase for an error code.
pub(super) fn phrase(code: u16) -> &'static str {
    match code {
        300 => "Try Alternate",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Mobility Forbidden",
        420 => "Unknown Attribute",
        437 => "Allocation Mismatch",
        438 => "Stale Nonce",
        440 => "Address Family not Supported",
        441 => "Wrong Credentials",
        442 => "Unsupported Transport Protocol",
        443 => "Peer Address Family Mismatch",
        446 => "Connection Already Exists",
        447 => "Connection Timeout or Failure",
        486 => "Allocation Quota Reached",
        500 => "Server Error",
        508 => "Insufficient Capacity",
        _ => "Unknown error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each control character, and what could be taken for the rest of the line.
    #[test]
    fn names_stay_within_their_field_and_their_line() {
        //= V-73
        let controls: String = (0..0x20u8).chain([0x7f]).map(char::from).collect();
        let others = "\u{80}\u{85}\u{9b}\u{202e}\u{2066}\u{2028}\u{feff}";
        let written = name(&format!("{controls}{others}"));
        assert!(
            written.bytes().all(|byte| (0x20..0x7f).contains(&byte)),
            "{written}"
        );
        let forged =
            name("a> realm <b>: incoming packet message processed, error 401: Unauthorized");
        assert!(!forged.contains(['<', '>']), "{forged}");
        assert_eq!(name("o'brien\\"), "o'brien\\\\");
        assert_eq!(name("zoë:1700000000"), "zoë:1700000000");
    }

    #[test]
    fn a_long_name_leaves_room_for_what_follows() {
        for long in ["x".repeat(600), "\u{1b}".repeat(508), "ü".repeat(300)] {
            let written = name(&long);
            assert!(
                written.len() <= NAME_LEN_MAX && written.ends_with("..."),
                "{written}"
            );
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_written_all_the_same() {
        assert_eq!(name_of_bytes(&[0xff, b'a', b'\n']), "\u{fffd}a\\n");
    }
}
