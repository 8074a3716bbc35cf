//! Why a datagram went nowhere: one closed list for the whole relay.
//!
//! Every datagram that is received ends as relayed, answered, or dropped under exactly one of these, so that the sums
//! on both sides of the relay can be compared to the last datagram.

macro_rules! drop_reasons {
    ($($(#[$doc:meta])+ $name:ident = $label:literal,)+) => {
        /// Why a datagram was neither relayed nor answered. The label is a metric's label.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum DropReason {
            $($(#[$doc])+ $name,)+
        }

        impl DropReason {
            /// All reasons, in the order of [`DropReason::index`].
            pub const ALL: [Self; [$($label),+].len()] = [$(Self::$name),+];

            /// The metric label: lower case with underscores, the same for ever.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $label,)+
                }
            }
        }
    };
}

drop_reasons! {
    /// Data beyond the rate of its allocation (RFC 8656 §5).
    BandwidthExceeded = "bandwidth_exceeded",
    /// A channel message for a number that is not bound, or no longer (RFC 8656 §12.6).
    ChannelNotBound = "channel_not_bound",
    /// A channel message whose number lies in the reserved range 0x5000 to 0x7FFF (RFC 8656 §12).
    ChannelReserved = "channel_reserved",
    /// A request or indication for a class its method does not have (RFC 8656 §17).
    ClassUnexpected = "class_unexpected",
    /// Data for a client whose connection is gone and who has not come back yet (RFC 8016).
    ClientAway = "client_away",
    /// A datagram too large to be framed towards the client.
    DatagramTooLarge = "datagram_too_large",
    /// A part of DTLS itself, not of what it carries, such as a handshake or an alert: its arrival was its whole purpose (RFC 6347 §4).
    DtlsControl = "dtls_control",
    /// A part of a DTLS handshake for which there is no room.
    DtlsCrowded = "dtls_crowded",
    /// Too many DTLS sessions of one address have said nothing yet.
    DtlsCrowdedAddress = "dtls_crowded_address",
    /// Not a DTLS record although its first byte says so, or one that claims more than it may (RFC 6347 §4.1).
    DtlsMalformed = "dtls_malformed",
    /// A DTLS record that belongs to no session and begins none (RFC 6347 §4.1.2.7).
    DtlsNoSession = "dtls_no_session",
    /// A DTLS record that does not prove itself, came a second time or before its keys (RFC 6347 §4.1.2).
    DtlsRejected = "dtls_rejected",
    /// FINGERPRINT does not match (RFC 8489 §6.3).
    FingerprintMismatch = "fingerprint_mismatch",
    /// A Send indication asks for DF and the host cannot set it (RFC 8656 §11.2).
    FragmentationUnsupported = "fragmentation_unsupported",
    /// A message for another thread that had no room for it: a client that moved (RFC 8016).
    HandoverQueueFull = "handover_queue_full",
    /// An ICMP error from outside an allocation's relayed addresses and permissions, or of a type that is not relayed (RFC 8656 §11.5).
    IcmpNotRelayed = "icmp_not_relayed",
    /// An indication without an attribute it must have, or with a malformed one (RFC 8656 §11.2).
    IndicationMalformed = "indication_malformed",
    /// A Binding indication: its arrival was its whole purpose (RFC 8489 §2).
    KeepAlive = "keep_alive",
    /// A channel message shorter than it claims (RFC 8656 §12.6).
    MalformedChannelData = "malformed_channel_data",
    /// Not a STUN message although its first byte says so (RFC 8489 §6.3).
    MalformedStun = "malformed_stun",
    /// A message on a stream that claims more bytes than a message may have; the connection is closed (RFC 8656 §12.5).
    MessageTooLong = "message_too_long",
    /// A method this server does not know (RFC 8489 §6.3).
    MethodUnknown = "method_unknown",
    /// An indication or channel message from a client without an allocation (RFC 8656 §5).
    NoAllocation = "no_allocation",
    /// No live permission for the peer (RFC 8656 §9).
    NoPermission = "no_permission",
    /// The policy denies the peer (RFC 8656 §11.2).
    PeerForbidden = "peer_forbidden",
    /// The peer's address family is not one of the allocation's (RFC 8656 §11.2).
    PeerFamilyMismatch = "peer_family_mismatch",
    /// The first byte belongs to no protocol spoken here (RFC 7983 §7).
    ProtocolUnknown = "protocol_unknown",
    /// A datagram at a relay socket whose allocation has ended.
    RelayClosed = "relay_closed",
    /// A Send indication on an allocation whose relayed transport address is a TCP one (RFC 6062 §4.5).
    RelayIsStream = "relay_is_stream",
    /// No room in the queue of replies.
    ReplyQueueFull = "reply_queue_full",
    /// A retransmission of a request whose answer is being prepared; that one answer serves both (RFC 8489 §6.3.1).
    RequestInProgress = "request_in_progress",
    /// A success or error response: this server has no transaction it could belong to (RFC 8489 §6.3.3).
    ResponseUnexpected = "response_unexpected",
    /// The kernel had no room to send it.
    SendBufferFull = "send_buffer_full",
    /// The kernel refused to send it for another reason.
    SendFailed = "send_failed",
    /// The service it belongs to is switched off.
    ServiceDisabled = "service_disabled",
    /// A message that a thread had taken and was not done with when it failed.
    ShardFailed = "shard_failed",
    /// The socket it should leave from is closed.
    SocketClosed = "socket_closed",
    /// The source cannot be a client: its address is unspecified, multicast, or its port zero.
    SourceInvalid = "source_invalid",
    /// Media for a client that reads its stream more slowly than it arrives; the oldest goes first.
    StreamCongested = "stream_congested",
    /// The kernel cut it off: it was larger than the receive buffer.
    Truncated = "truncated",
    /// An indication with a comprehension-required attribute that is not known (RFC 8489 §6.3.2).
    UnknownAttribute = "unknown_attribute",
    /// The budget of bytes for sources that proved nothing is used up (V-40).
    UnverifiedBudget = "unverified_budget",
}

impl DropReason {
    /// The position in [`DropReason::ALL`], for a table of counters.
    pub const fn index(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_own_index_and_label() {
        for (index, reason) in DropReason::ALL.into_iter().enumerate() {
            assert_eq!(reason.index(), index);
            let same = DropReason::ALL
                .into_iter()
                .filter(|other| other.as_str() == reason.as_str());
            assert_eq!(same.count(), 1, "{reason:?}");
        }
    }
}
