//! Reasons for which datagrams are dropped. Each part that drops has a closed list of its own; the printed figures add up those of one name.

use turnbuckle_counters::{Counted as _, PerReason, counters, reasons};
use turnbuckle_engine::DropReason as EngineDrop;

reasons! {
    /// Reasons for which messages between shards are dropped.
    pub(crate) enum AcrossDrop {
        /// A message for another thread that had no room for it: a client that moved (RFC 8016).
        HandoverQueueFull = "handover_queue_full",
        /// The connection or socket it should go on at is closed, or the shard that it is for has ended.
        SocketClosed = "socket_closed",
        /// It is for a client that this shard cannot reach.
        SourceInvalid = "source_invalid",
    }
}

reasons! {
    /// Reasons for which the main thread counts a message as dropped.
    pub(crate) enum ControlDrop {
        /// A message that a thread had taken and was not done with when it failed.
        ShardFailed = "shard_failed",
    }
}

reasons! {
    /// Reasons for which the data path drops.
    pub(crate) enum DataPathDrop {
        /// A datagram too large to be sent.
        DatagramTooLarge = "datagram_too_large",
        /// The kernel had no room to send it.
        SendBufferFull = "send_buffer_full",
        /// The kernel refused to send it for another reason.
        SendFailed = "send_failed",
        /// The socket it should leave from is closed.
        SocketClosed = "socket_closed",
        /// Media for a client that reads its stream more slowly than it arrives; the oldest goes first.
        StreamCongested = "stream_congested",
        /// The kernel cut it off: it was larger than the receive buffer.
        Truncated = "truncated",
    }
}

reasons! {
    /// Reasons for which the front for DTLS drops.
    pub(crate) enum DtlsDrop {
        /// A message too large for a record.
        DatagramTooLarge = "datagram_too_large",
        /// A part of DTLS itself, not of what it carries, such as a handshake or an alert: its arrival was its whole purpose (RFC 6347 §4).
        Control = "dtls_control",
        /// A part of a DTLS handshake for which there is no room.
        Crowded = "dtls_crowded",
        /// Too many DTLS sessions of one address have said nothing yet.
        CrowdedAddress = "dtls_crowded_address",
        /// Not a DTLS record although its first byte says so, or one that claims more than it may (RFC 6347 §4.1).
        Malformed = "dtls_malformed",
        /// A DTLS record that belongs to no session and begins none (RFC 6347 §4.1.2.7).
        NoSession = "dtls_no_session",
        /// A DTLS record that does not prove itself, came a second time or before its keys (RFC 6347 §4.1.2).
        Rejected = "dtls_rejected",
        /// DTLS is not spoken there.
        ServiceDisabled = "service_disabled",
        /// The session it belongs to is closed.
        SocketClosed = "socket_closed",
        /// The source cannot be a client.
        SourceInvalid = "source_invalid",
    }
}

reasons! {
    /// Reasons for which the hub drops a message.
    pub(crate) enum HubDrop {
        /// A datagram too large to be framed towards the client.
        DatagramTooLarge = "datagram_too_large",
        /// An ICMP error that came to a listener.
        IcmpNotRelayed = "icmp_not_relayed",
        /// A channel message shorter than it claims (RFC 8656 §12.6).
        MalformedChannelData = "malformed_channel_data",
        /// A datagram at a bound tunnel from whom its client has no context for, so that it is not wanted.
        NoContext = "no_context",
        /// The first byte belongs to no protocol spoken here (RFC 7983 §7).
        ProtocolUnknown = "protocol_unknown",
        /// The service it belongs to is switched off.
        ServiceDisabled = "service_disabled",
        /// The socket or connection it should leave from is closed.
        SocketClosed = "socket_closed",
    }
}

reasons! {
    /// Reasons for which the front for QUIC drops.
    pub(crate) enum QuicDrop {
        /// A datagram of a bound tunnel of HTTP/3 without the address that its context wants, or to port 0.
        AddressMissing = "address_missing",
        /// A datagram of a connection, or a payload of a tunnel, of which more came than turns handle and than may wait. QUIC's congestion control has the sender slow down.
        Backlog = "quic_backlog",
        /// A datagram of QUIC itself, not of what it carries: its arrival was its whole purpose.
        Control = "quic_control",
        /// A capsule of a tunnel of HTTP/3 of a type that is not known, which is passed over (RFC 9297 §3.2).
        CapsuleUnknown = "capsule_unknown",
        /// A datagram of a tunnel of HTTP/3 with a context that nobody has registered (RFC 9298 §4).
        ContextUnknown = "context_unknown",
        /// Too many datagrams of QUIC that have proven nothing were waiting.
        Crowded = "quic_crowded",
        /// A datagram that QUIC has discarded: malformed, of no connection, or not authentic (RFC 9000 §5.2).
        Discarded = "quic_discarded",
        /// A payload from the target of a tunnel that no packet of QUIC is large enough for (RFC 9298 §6.1).
        DatagramTooLarge = "datagram_too_large",
        /// There are as many connections of QUIC as there may be.
        Full = "quic_full",
        /// A capsule or a datagram of HTTP/3 that breaks the rules; its tunnel or the connection is closed (RFC 9297 §2.1, §3.3).
        MalformedCapsule = "malformed_capsule",
        /// A datagram of HTTP/3 for a stream without an open tunnel, or a payload whose tunnel is not open for its client.
        NoTunnel = "no_tunnel",
        /// A payload from the target of a tunnel whose client takes no more in time.
        Queue = "quic_queue",
        /// It waited, or was about to be sent, when the relay ended.
        SocketClosed = "socket_closed",
        /// The source cannot be a client, or the connection id names a shard that there is not.
        SourceInvalid = "source_invalid",
        /// An answer to a source that proved nothing exceeded its budget.
        UnverifiedBudget = "unverified_budget",
    }
}

reasons! {
    /// Reasons for which the front for connections drops; most end the connection.
    pub(crate) enum StreamDrop {
        /// A datagram of a bound tunnel without the address that its context wants, or to port 0.
        AddressMissing = "address_missing",
        /// A capsule of a type that is not known, which is passed over (RFC 9297 §3.2).
        CapsuleUnknown = "capsule_unknown",
        /// A datagram with a context that nobody has registered (RFC 9298 §4).
        ContextUnknown = "context_unknown",
        /// A capsule that breaks the rules of its type; the connection is closed (RFC 9297 §3.3).
        MalformedCapsule = "malformed_capsule",
        /// A channel message whose claims contradict each other (RFC 8656 §12.6).
        MalformedChannelData = "malformed_channel_data",
        /// Not a STUN message although its first byte says so (RFC 8489 §6.3).
        MalformedStun = "malformed_stun",
        /// A message on a stream that claims more bytes than a message may have; the connection is closed (RFC 8656 §12.5).
        MessageTooLong = "message_too_long",
        /// The first byte belongs to no protocol spoken here (RFC 7983 §7).
        ProtocolUnknown = "protocol_unknown",
        /// The service it belongs to is switched off.
        ServiceDisabled = "service_disabled",
        /// The connection is closed.
        SocketClosed = "socket_closed",
    }
}

reasons! {
    /// Reasons for which the front for datagrams drops.
    pub(crate) enum UdpDrop {
        /// The first byte belongs to no protocol spoken here (RFC 7983 §7), or a proxy's header is not a good one.
        ProtocolUnknown = "protocol_unknown",
        /// The service it belongs to is switched off.
        ServiceDisabled = "service_disabled",
        /// The client cannot be reached any more.
        SocketClosed = "socket_closed",
    }
}

/// Declares who drops: the counters of each list, and the type that stands for any of their reasons.
macro_rules! droppers {
    ($($(#[doc = $doc:literal])+ $field:ident: $dropper:ident($reason:ty),)+) => {
        counters! {
            /// Datagrams that were not sent.
            pub(crate) struct DropCounters: "drops", "whoever drops" {
                $($(#[doc = $doc])+ pub(crate) $field: PerReason<$reason, { <$reason>::ALL.len() }> => Datagrams,)+
            }
        }

        /// The part that dropped a datagram, with its reason.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum DropReason {
            $($(#[doc = $doc])+ $dropper($reason),)+
        }

        $(impl From<$reason> for DropReason {
            #[inline]
            fn from(reason: $reason) -> Self {
                Self::$dropper(reason)
            }
        })+

        impl DropCounters {
            /// Counts `datagrams` under `reason`.
            #[inline]
            pub(super) fn add(&self, reason: DropReason, datagrams: u64) {
                match reason {
                    $(DropReason::$dropper(reason) => self.$field.of(reason).add(datagrams),)+
                }
            }
        }
    };
}

droppers! {
    /// By messages between shards.
    across: Across(AcrossDrop),
    /// By the main thread.
    control: Control(ControlDrop),
    /// By the data path.
    data_path: DataPath(DataPathDrop),
    /// By the front for DTLS.
    dtls: Dtls(DtlsDrop),
    /// By the engine: the rules of TURN.
    engine: Engine(EngineDrop),
    /// By the hub.
    hub: Hub(HubDrop),
    /// By the front for QUIC.
    quic: Quic(QuicDrop),
    /// By the front for connections.
    streams: Stream(StreamDrop),
    /// By the front for datagrams.
    udp: Udp(UdpDrop),
}

impl DropCounters {
    /// Returns the sum of all drops.
    pub(crate) fn total(&self) -> u64 {
        let mut total = 0;
        self.visit(&mut |sample| total += sample.value);
        total
    }

    /// Returns how many were dropped under each name by all parts together, in the order of the names.
    pub(crate) fn by_name(&self) -> Vec<(&'static str, u64)> {
        let mut by_name = std::collections::BTreeMap::new();
        self.visit(&mut |sample| {
            if let Some(label) = sample.label {
                *by_name.entry(label.name).or_default() += sample.value;
            }
        });
        by_name.into_iter().collect()
    }
}
