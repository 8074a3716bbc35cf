//! Why the relay could not start or had to stop.

use std::fmt;
use std::io;

/// Why the relay could not start or had to stop.
#[derive(Debug)]
pub struct ServeError {
    what: String,
    hint: Option<&'static str>,
}

impl ServeError {
    pub(super) fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            hint: None,
        }
    }

    pub(super) fn from_io(error: &io::Error) -> Self {
        let hint = match error.kind() {
            io::ErrorKind::AddrInUse => Some("another process listens there; `ss -lntup` names it"),
            io::ErrorKind::AddrNotAvailable => {
                Some("the address is not one of this machine's; `ip address` lists them")
            }
            io::ErrorKind::PermissionDenied => {
                Some("ports below 1024 need root or the capability CAP_NET_BIND_SERVICE")
            }
            _ => None,
        };
        Self {
            what: error.to_string(),
            hint,
        }
    }
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        match self.hint {
            Some(hint) => write!(f, " ({hint})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ServeError {}
