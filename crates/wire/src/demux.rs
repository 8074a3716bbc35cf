//! What a datagram is, by its first byte.
//!
//! STUN, TURN channels, DTLS, RTP, ZRTP and QUIC may share one port. [RFC 7983 §7], updated by [RFC 9443 §3], divides the
//! first byte among them so that one comparison decides. The function is total: every byte has exactly one answer.
//!
//! STUN methods from 0x100 upward would start with 4 or more and are never seen by a server that demultiplexes; no such method
//! is registered.
//!
//! [RFC 7983 §7]: https://www.rfc-editor.org/rfc/rfc7983#section-7
//! [RFC 9443 §3]: https://www.rfc-editor.org/rfc/rfc9443#section-3

/// The protocol a first byte belongs to (RFC 9443 §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Demux {
    /// 0..=3: STUN and TURN messages.
    Stun,
    /// 16..=19: ZRTP.
    Zrtp,
    /// 20..=63: DTLS.
    Dtls,
    /// 64..=79: TURN ChannelData.
    ChannelData,
    /// 128..=191: RTP and RTCP.
    Rtp,
    /// 80..=127 and 192..=255: QUIC.
    Quic,
    /// 4..=15: nobody's; dropped.
    Reserved,
}

/// Classifies a datagram by its first byte (RFC 8656 §12, RFC 9443 §3).
#[must_use]
#[inline]
pub const fn classify(first: u8) -> Demux {
    match first {
        0..=3 => Demux::Stun,
        4..=15 => Demux::Reserved,
        16..=19 => Demux::Zrtp,
        20..=63 => Demux::Dtls,
        64..=79 => Demux::ChannelData,
        80..=127 => Demux::Quic,
        128..=191 => Demux::Rtp,
        192..=255 => Demux::Quic,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= TURN-080
    //= STUN-001
    #[test]
    fn gives_every_first_byte_the_answer_of_the_registry() {
        let ranges = [
            (0, 3, Demux::Stun),
            (4, 15, Demux::Reserved),
            (16, 19, Demux::Zrtp),
            (20, 63, Demux::Dtls),
            (64, 79, Demux::ChannelData),
            (80, 127, Demux::Quic),
            (128, 191, Demux::Rtp),
            (192, 255, Demux::Quic),
        ];
        let mut classified = 0;
        for (low, high, expected) in ranges {
            for first in low..=high {
                assert_eq!(classify(first), expected, "first byte {first}");
                classified += 1;
            }
        }
        assert_eq!(classified, 256);
    }
}
