//! Why a tunnel is refused: the status of the answer, and what Proxy-Status says of it (RFC 9209, RFC 9298 §3.1).

/// Why there is no tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The request is malformed (RFC 9298 §3, §3.2).
    BadRequest,
    /// The user has as many connections or tunnels as it may have.
    Crowded,
    /// The relay takes no new clients.
    Draining,
    /// The name of the target has no address, or there is no such name.
    DnsError,
    /// The name of the target was not resolved in time.
    DnsTimeout,
    /// The head of the request is longer than it may be.
    HeadTooLarge,
    /// The relay has no port, no socket or no rate left, or too much to do.
    NoCapacity,
    /// The request is for something else than a tunnel.
    NotFound,
    /// This server does not offer the requested protocol (RFC 9220 §3), or relaying is switched off.
    NotServed,
    /// The policy forbids the target.
    Prohibited,
    /// The client's address has failed to prove who it is more often than is answered.
    TooManyAttempts,
    /// The relay has no address of the target's family.
    Unroutable,
    /// There are no credentials, or wrong ones.
    Unauthorized,
    /// Whether the credentials are wrong, or the target forbidden, is not known yet, because users or rules are still being read.
    UsersDue,
}

impl Refusal {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::BadRequest,
        Self::Crowded,
        Self::Draining,
        Self::DnsError,
        Self::DnsTimeout,
        Self::HeadTooLarge,
        Self::NoCapacity,
        Self::NotFound,
        Self::NotServed,
        Self::Prohibited,
        Self::TooManyAttempts,
        Self::Unroutable,
        Self::Unauthorized,
        Self::UsersDue,
    ];

    /// Returns the status code.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::Prohibited => 403,
            Self::NotFound => 404,
            Self::Unauthorized => 407,
            Self::Crowded | Self::TooManyAttempts => 429,
            Self::HeadTooLarge => 431,
            Self::NotServed => 501,
            Self::DnsError | Self::Unroutable => 502,
            Self::Draining | Self::NoCapacity | Self::UsersDue => 503,
            Self::DnsTimeout => 504,
        }
    }

    /// Returns the reason phrase of the status code.
    #[must_use]
    pub const fn phrase(self) -> &'static str {
        match self {
            Self::BadRequest => "Bad Request",
            Self::Prohibited => "Forbidden",
            Self::Unauthorized => "Proxy Authentication Required",
            Self::NotFound => "Not Found",
            Self::NotServed => "Not Implemented",
            Self::Crowded | Self::TooManyAttempts => "Too Many Requests",
            Self::HeadTooLarge => "Request Header Fields Too Large",
            Self::DnsError | Self::Unroutable => "Bad Gateway",
            Self::Draining | Self::NoCapacity | Self::UsersDue => "Service Unavailable",
            Self::DnsTimeout => "Gateway Timeout",
        }
    }

    /// Returns the type of error that Proxy-Status names (RFC 9209 §2.3); `None` where the fault is the request's, and nothing is said to whom
    /// has proven nothing.
    #[must_use]
    pub const fn proxy_error(self) -> Option<&'static str> {
        match self {
            Self::BadRequest
            | Self::HeadTooLarge
            | Self::NotFound
            | Self::NotServed
            | Self::TooManyAttempts
            | Self::Unauthorized
            | Self::UsersDue => None,
            Self::Crowded | Self::Draining | Self::NoCapacity => Some("connection_limit_reached"),
            Self::DnsError => Some("dns_error"),
            Self::DnsTimeout => Some("dns_timeout"),
            Self::Prohibited => Some("destination_ip_prohibited"),
            Self::Unroutable => Some("destination_ip_unroutable"),
        }
    }
}
