//! Moves a client's connection to the shard that has the allocation (RFC 6062 §5.4). Socket, TLS session and the bytes read behind the request move
//! together. The connection leaves one turn after the request, when everything that was queued for it has been sent.

use turnbuckle_datapath::{DetachedStream, StreamId};
use turnbuckle_engine::{ClientTuple, Handover};

use crate::shard::front::stream::tls::TlsSession;

/// A connection on its way between shards.
pub(crate) struct MovedConnection {
    pub(in crate::shard) stream: DetachedStream,
    pub(in crate::shard) client: ClientTuple,
    pub(in crate::shard) tls: Option<Box<TlsSession>>,
    pub(in crate::shard) handover: Box<Handover>,
    /// Bytes that were received behind the request.
    pub(in crate::shard) rest: Vec<u8>,
}

/// A connection that is about to leave for another shard.
pub(in crate::shard) struct LeavingConnection {
    pub(in crate::shard) stream: StreamId,
    pub(in crate::shard) handover: Box<Handover>,
    pub(in crate::shard) rest: Vec<u8>,
}
