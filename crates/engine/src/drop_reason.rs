//! The reasons why the engine drops a datagram. The code that carries datagrams to and from the engine has reasons of its own.
//!
//! Every datagram that the engine gets is relayed, answered, or dropped under exactly one of these reasons. So the sums on both
//! sides of the relay can be compared to the last datagram.

turnbuckle_counters::reasons! {
    /// The reason why a datagram was neither relayed nor answered. The label is a metric's label.
    pub enum DropReason {
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
        /// FINGERPRINT does not match (RFC 8489 §6.3).
        FingerprintMismatch = "fingerprint_mismatch",
        /// A Send indication asks for DF and the host cannot set it (RFC 8656 §11.2).
        FragmentationUnsupported = "fragmentation_unsupported",
        /// An ICMP error that has ended a tunnel: its peer cannot be reached (RFC 9298 §3.1).
        IcmpEndsTunnel = "icmp_ends_tunnel",
        /// An ICMP error from outside an allocation's relayed addresses and permissions, or of a type that is not relayed (RFC 8656 §11.5).
        IcmpNotRelayed = "icmp_not_relayed",
        /// An indication without an attribute it must have, or with a malformed one (RFC 8656 §11.2).
        IndicationMalformed = "indication_malformed",
        /// A Binding indication: its arrival was its whole purpose (RFC 8489 §2).
        KeepAlive = "keep_alive",
        /// Not a STUN message although its first byte says so (RFC 8489 §6.3).
        MalformedStun = "malformed_stun",
        /// A method this server does not know (RFC 8489 §6.3).
        MethodUnknown = "method_unknown",
        /// An indication or channel message from a client without an allocation (RFC 8656 §5).
        NoAllocation = "no_allocation",
        /// No live permission for the peer (RFC 8656 §9).
        NoPermission = "no_permission",
        /// Data for a tunnel that is not open, or not any more.
        NoTunnel = "no_tunnel",
        /// The policy denies the peer (RFC 8656 §11.2).
        PeerForbidden = "peer_forbidden",
        /// The peer's address family is not one of the allocation's (RFC 8656 §11.2).
        PeerFamilyMismatch = "peer_family_mismatch",
        /// A Send indication to a peer beyond those that an allocation may have on shared relay sockets.
        PeerLimit = "peer_limit",
        /// A Send indication to a peer that another allocation has on the same shared relay socket.
        PeerTaken = "peer_taken",
        /// A datagram at a shared relay socket from a peer that no allocation has.
        PeerUnclaimed = "peer_unclaimed",
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
        /// The service it belongs to is switched off.
        ServiceDisabled = "service_disabled",
        /// The source cannot be a client: its address is unspecified, multicast, or its port zero.
        SourceInvalid = "source_invalid",
        /// A datagram at a tunnel's relay socket from another address or port than the tunnel's peer has (RFC 9298 §3.1).
        TunnelSource = "tunnel_source",
        /// An indication with a comprehension-required attribute that is not known (RFC 8489 §6.3.2).
        UnknownAttribute = "unknown_attribute",
        /// The budget of bytes for sources that proved nothing is used up (V-40).
        UnverifiedBudget = "unverified_budget",
        /// A request that would be refused for its user or key while users of allocations that were taken over are not known yet, or that names
        /// a peer without a permission while rules for peers are not known yet.
        UsersDue = "users_due",
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
