//! How a shard serves clients, as far as that may change while it runs and the engine does not know it.

use std::time::Duration;

use turnbuckle_datapath::CoalescePolicy;
use turnbuckle_engine::AddressRange;

use super::book::BookLimits;
use super::front::dtls::DtlsLimits;
use super::front::stream::HttpService;
use crate::log::Lines;

/// Settings that a shard takes over at the end of a turn. Clients that are there already keep their places, also where there may be fewer now.
#[derive(Clone, Debug)]
pub(crate) struct Serving {
    /// Of connections.
    pub(crate) streams: BookLimits,
    /// Of sessions of DTLS, and, but for their number, of connections of QUIC.
    pub(crate) datagrams: DtlsLimits,
    /// Source addresses whose connections begin with a header of the PROXY protocol: connections to come.
    pub(crate) proxies: Vec<AddressRange>,
    /// Source addresses whose datagrams begin with one, each from now on.
    pub(crate) datagram_proxies: Vec<AddressRange>,
    pub(crate) http: HttpService,
    pub(crate) log: Logged,
    /// When the data path pauses, and for how long at most.
    pub(crate) coalesce: (CoalescePolicy, Duration),
}

/// What is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Logged {
    /// Lines about sessions.
    pub(crate) wanted: Lines,
    /// Lines about requests too, under our own name (`Verbose`).
    pub(crate) requests: bool,
    /// Whether each session that ends has a summary.
    pub(crate) summaries: bool,
    /// Whether responses to unauthenticated requests are limited for each source (`unauthorized-ratelimit`).
    pub(crate) limits_answers: bool,
    /// Whether coturn's line about the first challenge is written, which it has no reason to write with `stateless-nonce=false`.
    pub(crate) stateless_nonces: bool,
}

impl Logged {
    /// Of sessions and requests nothing is logged.
    pub(crate) const NOTHING: Self = Self {
        wanted: Lines {
            sessions: false,
            binding: false,
        },
        requests: false,
        summaries: false,
        limits_answers: false,
        stateless_nonces: false,
    };
}
