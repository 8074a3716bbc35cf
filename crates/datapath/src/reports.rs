//! Reports to a handler: why a datagram was not sent, why a connection ended, which features the kernel lacks.

use std::fmt;
use std::io;
use std::net::SocketAddr;

/// Why a connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamEnd {
    /// Its control messages exceeded the limit of what may wait.
    Congested,
    /// The other side closed it.
    Remote,
    /// The socket reported an error, such as a reset.
    Failed,
    /// Both sides of two joined connections have ended what they sent, and all of it has arrived.
    Finished,
    /// This side closed it.
    Local,
}

/// An ICMP or ICMPv6 error about a datagram sent earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpError {
    /// Destination of that datagram.
    pub peer: SocketAddr,
    /// ICMP type.
    pub kind: u8,
    /// ICMP code.
    pub code: u8,
    /// Next-hop MTU for "fragmentation needed" and "packet too big", else 0.
    pub mtu: u32,
    /// Whether it is ICMPv6.
    pub v6: bool,
}

turnbuckle_counters::reasons! {
    /// Why datagrams could not be sent.
    pub enum SendFailure {
        /// The socket's send buffer or the device queue was full.
        BufferFull = "buffer_full",
        /// The endpoint was closed, or never existed.
        Closed = "closed",
        /// Larger than UDP or the path allows for a datagram that must not be fragmented.
        MessageTooLong = "message_too_long",
        /// A local firewall or a missing right.
        NotPermitted = "not_permitted",
        /// Anything else.
        Other = "other",
        /// No route, or a pending ICMP error that came again.
        Unreachable = "unreachable",
    }
}

impl fmt::Display for SendFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A kernel feature that turned out missing and is not tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warning {
    /// GRO is not available on a socket; datagrams arrive one per message.
    GroUnavailable {
        /// The socket.
        local: SocketAddr,
        /// The error number.
        errno: i32,
    },
    /// GSO failed on a socket where the datagrams alone went through; it sends them one by one from now on.
    GsoDisabled {
        /// The socket.
        local: SocketAddr,
        /// The error number.
        errno: i32,
    },
    /// `recvmmsg` is not available in this process.
    RecvmmsgUnavailable {
        /// The error number.
        errno: i32,
    },
    /// `sendmmsg` is not available in this process.
    SendmmsgUnavailable {
        /// The error number.
        errno: i32,
    },
    /// A program that chooses the socket for a datagram was refused; the hash of the addresses does.
    SteeringUnavailable {
        /// The socket.
        local: SocketAddr,
        /// The error number.
        errno: i32,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = |errno: i32| io::Error::from_raw_os_error(errno);
        match *self {
            Self::GroUnavailable { local, errno } => {
                write!(
                    f,
                    "UDP GRO is not available on {local}, receiving single datagrams: {}",
                    reason(errno)
                )
            }
            Self::GsoDisabled { local, errno } => {
                write!(
                    f,
                    "UDP GSO failed on {local} and is off for this socket: {}",
                    reason(errno)
                )
            }
            Self::RecvmmsgUnavailable { errno } => {
                write!(
                    f,
                    "recvmmsg is not available, receiving one message per call: {}",
                    reason(errno)
                )
            }
            Self::SendmmsgUnavailable { errno } => {
                write!(
                    f,
                    "sendmmsg is not available, sending one message per call: {}",
                    reason(errno)
                )
            }
            Self::SteeringUnavailable { local, errno } => {
                write!(
                    f,
                    "datagrams to {local} are not steered by connection id, and handed over where needed: {}",
                    reason(errno)
                )
            }
        }
    }
}
