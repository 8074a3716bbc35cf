//! Transports between clients and servers.

use std::fmt;
use std::str::FromStr;

/// A transport between a client and the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Plain datagrams.
    Udp,
    /// A plain connection.
    Tcp,
    /// TLS over TCP.
    Tls,
    /// DTLS over UDP.
    Dtls,
}

impl Transport {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Udp, Self::Tcp, Self::Tls, Self::Dtls];

    /// Returns the name used in command lines and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Dtls => "dtls",
        }
    }

    /// Returns the name used in sentences.
    pub fn name(self) -> &'static str {
        match self {
            Self::Udp => "UDP",
            Self::Tcp => "TCP",
            Self::Tls => "TLS",
            Self::Dtls => "DTLS",
        }
    }

    /// Returns whether messages form a stream rather than datagrams, so that nothing is lost on the way to the server.
    pub fn is_stream(self) -> bool {
        matches!(self, Self::Tcp | Self::Tls)
    }

    /// Returns whether it begins with a handshake of TLS or DTLS.
    pub fn is_secure(self) -> bool {
        matches!(self, Self::Tls | Self::Dtls)
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Transport {
    type Err = String;

    /// Reads the name of a transport.
    ///
    /// # Errors
    /// The name is none of the four; says which are allowed.
    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|it| it.as_str() == text);
        found.ok_or_else(|| "allowed: udp, tcp, tls, dtls".to_owned())
    }
}
