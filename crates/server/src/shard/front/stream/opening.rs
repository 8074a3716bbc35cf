//! What a connection is, by its first bytes: TURN, TLS, HTTP, or a proxy's header.
//!
//! One port serves all of them. A record of a TLS handshake begins with 22 and a STUN message with 0 or 1 (RFC 7983 §7); a request of HTTP
//! begins with a method, whose letters could be the number of a channel, but nobody's first message is a channel's.

use crate::shard::front::proxy::{SIGNATURE_V1, SIGNATURE_V2};

/// The first byte of a TLS connection: a record of type handshake (RFC 8446 §5.1).
const TLS_HANDSHAKE: u8 = 22;

/// Methods of HTTP (RFC 9110 §9.3, RFC 5789), and what HTTP/2 begins with (RFC 9113 §3.4).
const METHODS: [&[u8]; 10] = [
    b"CONNECT ",
    b"DELETE ",
    b"GET ",
    b"HEAD ",
    b"OPTIONS ",
    b"PATCH ",
    b"POST ",
    b"PRI ",
    b"PUT ",
    b"TRACE ",
];

/// What the first bytes of a connection, or of what TLS protects, announce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// A request of HTTP.
    Http,
    /// More has to come.
    Incomplete,
    /// Messages of STUN or TURN, or nothing known; the messages' own rules decide.
    Messages,
    /// A PROXY protocol header.
    Proxy,
    /// A TLS handshake.
    Tls,
}

impl Opening {
    /// Looks at the first bytes.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let Some(&first) = bytes.first() else {
            return Self::Incomplete;
        };
        let begins = |words: &[&[u8]]| words.iter().any(|word| bytes.starts_with(word));
        let may_begin = |words: &[&[u8]]| words.iter().any(|word| word.starts_with(bytes));
        let signatures = [SIGNATURE_V1, SIGNATURE_V2];
        if first == TLS_HANDSHAKE {
            Self::Tls
        } else if begins(&METHODS) {
            Self::Http
        } else if begins(&signatures) {
            Self::Proxy
        } else if may_begin(&METHODS) || may_begin(&signatures) {
            Self::Incomplete
        } else {
            Self::Messages
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnbuckle_wire::{Demux, classify};

    #[test]
    fn the_first_bytes_tell_what_comes() {
        let known: [(&[u8], Opening); 9] = [
            (b"\x16\x03\x01", Opening::Tls),
            (b"\x00\x01\x00\x00", Opening::Messages),
            (b"\x40\x00\x00\x04", Opening::Messages),
            (b"GET / HTTP/1.1\r\n", Opening::Http),
            (b"PRI * HTTP/2.0\r\n", Opening::Http),
            (b"POST ", Opening::Http),
            (b"PROXY UNKNOWN\r\n", Opening::Proxy),
            (b"\r\n\r\n\0\r\nQUIT\n\x21", Opening::Proxy),
            (b"GETTY", Opening::Messages),
        ];
        for (bytes, opening) in known {
            assert_eq!(Opening::of(bytes), opening, "{bytes:?}");
        }
        for method in METHODS {
            for cut in 0..method.len() {
                assert_eq!(Opening::of(&method[..cut]), Opening::Incomplete);
            }
        }
    }

    //= MUX-01
    #[test]
    fn no_stun_message_has_to_wait_for_its_second_byte() {
        for first in (0..=u8::MAX).filter(|first| classify(*first) == Demux::Stun) {
            assert_eq!(Opening::of(&[first]), Opening::Messages);
        }
    }
}
