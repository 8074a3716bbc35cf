//! By what the clients of a load reach the server.

use std::fmt;
use std::str::FromStr;

use turnbuckle_client::Transport;

/// By what clients reach the server, and what they speak with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// TURN, by this transport.
    Turn(Transport),
    /// Tunnels of UDP in HTTP/3 (RFC 9298).
    Masque,
}

impl Reach {
    pub(crate) const UDP: Self = Self::Turn(Transport::Udp);
    pub(crate) const ALL: [Self; 5] = [
        Self::UDP,
        Self::Turn(Transport::Tcp),
        Self::Turn(Transport::Tls),
        Self::Turn(Transport::Dtls),
        Self::Masque,
    ];

    /// Returns the name used in command lines and JSON.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Turn(transport) => transport.as_str(),
            Self::Masque => "masque",
        }
    }

    /// Returns whether messages form a stream rather than datagrams, so that nothing is lost on the way to the server.
    pub(crate) fn is_stream(self) -> bool {
        matches!(self, Self::Turn(transport) if transport.is_stream())
    }

    /// Returns whether the server shows a certificate.
    pub(crate) fn is_secure(self) -> bool {
        match self {
            Self::Turn(transport) => transport.is_secure(),
            Self::Masque => true,
        }
    }
}

impl From<Transport> for Reach {
    fn from(transport: Transport) -> Self {
        Self::Turn(transport)
    }
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Reach {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|it| it.as_str() == text);
        found.ok_or_else(|| format!("allowed: {}", Self::ALL.map(Self::as_str).join(", ")))
    }
}
