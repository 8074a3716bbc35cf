//! The host's socket for a reserved port: a value that the engine stores and never reads.

use core::any::Any;
use core::fmt;

use crate::id::Endpoint;

/// The host's socket at a port that is reserved and not in use yet. Dropping it gives the port back to the host.
pub struct HeldPort(Box<dyn Any + Send>);

impl HeldPort {
    /// Wraps what the host has; dropping that must close the socket.
    pub fn new(socket: impl Any + Send) -> Self {
        Self(Box::new(socket))
    }

    /// Returns what the host put in; `None` if that was of another type.
    pub fn into_inner<S: Any>(self) -> Option<S> {
        self.0.downcast().ok().map(|socket| *socket)
    }
}

impl fmt::Debug for HeldPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HeldPort(..)")
    }
}

/// A relay socket that the host has opened.
#[derive(Debug)]
pub struct Opened {
    /// The host's name for it.
    pub endpoint: Endpoint,
    /// The socket at the next port, if that was to be held too.
    pub beside: Option<HeldPort>,
}

impl From<Endpoint> for Opened {
    /// Makes a relay socket without another one beside it.
    fn from(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            beside: None,
        }
    }
}
