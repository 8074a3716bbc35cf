//! What has become of the datagrams.

/// Why a datagram was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// Too many datagrams that have proven nothing were waiting.
    Crowded,
    /// No answer to an address that has proven nothing was left in the budget.
    Unaffordable,
    /// The connection id is of another shard.
    OtherShard,
    /// There are as many connections as there may be.
    Full,
    /// RFC 9000 has it discarded: no QUIC, too short, for no connection, or not authentic.
    Discarded,
    /// It waited when the endpoint was stopped.
    Stopped,
}

impl Dropped {
    /// All reasons.
    pub const ALL: [Self; 6] = [
        Self::Crowded,
        Self::Unaffordable,
        Self::OtherShard,
        Self::Full,
        Self::Discarded,
        Self::Stopped,
    ];

    /// Returns the name of the reason.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Crowded => "crowded",
            Self::Unaffordable => "unaffordable",
            Self::OtherShard => "other_shard",
            Self::Full => "full",
            Self::Discarded => "discarded",
            Self::Stopped => "stopped",
        }
    }
}

/// What has become of the datagrams that were handed in: `received` is the sum of `delivered`, `begun`, `answered`, all of `dropped`, and of what waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Datagrams handed in.
    pub received: u64,
    /// Datagrams that a connection took. Whether it could use them is in the connection's statistics.
    pub delivered: u64,
    /// Those of them in which DATAGRAM frames came.
    pub carrying: u64,
    /// Datagrams that began a connection.
    pub begun: u64,
    /// Datagrams that were answered without a connection: Retry, Version Negotiation, close, stateless reset.
    pub answered: u64,
    /// Datagrams dropped, in the order of [`Dropped::ALL`].
    pub dropped: [u64; Dropped::ALL.len()],
    /// Connections that ended by a panic.
    pub panicked: u64,
    /// Connections that ended because their handshake took too long.
    pub handshakes_late: u64,
}

impl Totals {
    /// Returns how many datagrams were dropped for this reason.
    pub const fn of(&self, reason: Dropped) -> u64 {
        self.dropped[reason as usize]
    }

    pub(crate) fn drop(&mut self, reason: Dropped) {
        self.dropped[reason as usize] += 1;
    }
}
