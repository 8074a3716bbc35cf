//! TLS for clients: certificates, and sessions that know no sockets.

mod certificates;
mod session;

pub(crate) use certificates::{Certificates, CurrentTls, current};
pub(crate) use session::Session;
