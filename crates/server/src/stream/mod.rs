//! Clients that come by TCP or TLS: where their messages end, and how long they may take.

mod connections;
mod frame;
mod http;
mod opening;
mod peers;

use crate::proxy::Proxies;
use crate::tls::CurrentTls;

pub(crate) use connections::{Awaited, Connections, Joined, StreamLimits};
pub(crate) use frame::{Frame, STRANGER_LEN_MAX};
pub(crate) use http::{HttpService, Reply};
pub(crate) use opening::Opening;
pub(crate) use peers::Peers;

/// What a shard needs to know to serve connections.
#[derive(Clone)]
pub(crate) struct StreamService {
    pub(crate) limits: StreamLimits,
    /// Certificates for connections that begin with a TLS handshake; `None` refuses them.
    pub(crate) tls: Option<CurrentTls>,
    /// Whether connections may do without TLS.
    pub(crate) serves_plain: bool,
    /// Who says for whom it speaks, by datagrams too.
    pub(crate) proxies: Proxies,
    pub(crate) http: HttpService,
}
