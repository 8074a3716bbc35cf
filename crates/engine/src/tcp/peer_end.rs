//! How peer data connections end.

turnbuckle_counters::reasons! {
    /// The reason why a peer data connection ended or was never made. Every connection that was tried or came in ends under exactly
    /// one of these.
    pub enum PeerEnd {
        /// Its allocation ended (RFC 6062 §5.5).
        AllocationEnded = "allocation_ended",
        /// No ConnectionBind came in time (RFC 6062 §5.2, §5.3).
        BindTimeout = "bind_timeout",
        /// The client closed its side.
        ClientClosed = "client_closed",
        /// The peer could not be connected to (RFC 6062 §5.2).
        ConnectFailed = "connect_failed",
        /// The peer did not answer in time (RFC 6062 §5.2).
        ConnectTimeout = "connect_timeout",
        /// It came from a peer that a connection exists with.
        Duplicate = "duplicate",
        /// An error of either connection, such as a reset.
        Failed = "failed",
        /// It came from a peer without a permission (RFC 6062 §5.3).
        NoPermission = "no_permission",
        /// The peer closed its side.
        PeerClosed = "peer_closed",
        /// The policy denies the peer.
        PeerForbidden = "peer_forbidden",
        /// It came after the end of the allocation.
        RelayClosed = "relay_closed",
        /// It came when there was no room to tell the client.
        ReplyQueueFull = "reply_queue_full",
        /// One side had closed, and the other did not in time.
        Stalled = "stalled",
        /// The relay ended.
        Stopped = "stopped",
        /// It came when the allocation had as many as it may have (V-46).
        TooMany = "too_many",
    }
}
