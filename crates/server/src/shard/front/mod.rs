//! The fronts reach clients, with one module for each transport.
//!
//! A front finds where the messages of its clients begin and end, and sends bytes back to them. It hands each received message to the hub
//! ([`Hub::message`](super::hub::Hub::message), [`Hub::train`](super::hub::Hub::train), [`Hub::control`](super::hub::Hub::control)), and the hub
//! reaches its clients through [`Front`], which is all that it knows of them. No front names another one: [`all`] alone has them side by side. A
//! new front is a module here with a type that implements [`Front`], and a field and an arm in `all.rs`.

use std::net::SocketAddr;

use turnbuckle_datapath::{Received, Run, SendQueue, StreamId};
use turnbuckle_engine::{AllocationId, ClientTuple, Transport, TunnelEnd, TunnelTarget};

use super::peer::tcp::table::Joined;
use crate::log::Seal;

pub(crate) mod all;
pub(crate) mod dtls;
pub(crate) mod proxy;
pub(crate) mod quic;
pub(crate) mod stream;
mod tunnels;
pub(crate) mod udp;

/// A client and where it is reached: a proxy may stand in front of it.
#[derive(Clone, Copy, Debug)]
pub(in crate::shard) struct Destination {
    pub(in crate::shard) client: ClientTuple,
    pub(in crate::shard) remote: SocketAddr,
}

/// The framing of each payload of a run: a header before it, and a number of zero bytes after it.
#[derive(Clone, Copy, Debug)]
pub(in crate::shard) struct Wrapping<'a> {
    pub(in crate::shard) header: &'a [u8],
    pub(in crate::shard) padding: u8,
}

/// What has become of a tunnel.
#[derive(Clone, Copy, Debug)]
pub(in crate::shard) enum TunnelEvent {
    /// It has ended, or was never open.
    Ended(TunnelEnd),
    /// It is open, to whom this says.
    Opened {
        tunnel: AllocationId,
        target: TunnelTarget,
    },
    /// The user database has been asked about who wants it, or has had its time.
    UserAsked,
}

/// Reaches the clients of one transport, or of all of them.
///
/// Invariant: what is handed over is counted once, as queued towards clients or under the reason to drop it.
pub(in crate::shard) trait Front {
    /// Returns whether clients by this transport are reached here.
    fn serves(&self, transport: Transport) -> bool;

    /// Returns whether a client belongs to this shard. A client whose connection is closed does not, even if another one uses its place in the
    /// table.
    fn has_client(&self, client: &ClientTuple) -> bool;

    /// Returns where data for a client with this allocation goes. Returns `None` if that is not known any more.
    fn data_address(&self, client: &ClientTuple, _: AllocationId) -> Option<SocketAddr> {
        Some(client.remote)
    }

    /// Queues a run of relayed payloads of `message`.
    fn forward(
        &mut self,
        to: Destination,
        message: &Received<'_>,
        run: Run,
        wrapping: Wrapping<'_>,
        tx: &mut SendQueue,
    );

    /// Queues an answer.
    fn reply(&mut self, to: ClientTuple, answer: &[u8], tx: &mut SendQueue);

    /// Queues a message that another shard has for a client, an answer or relayed data.
    fn pass_on(&mut self, to: ClientTuple, message: &[u8], tx: &mut SendQueue) {
        self.reply(to, message, tx);
    }

    /// Returns whether the client of a bound tunnel wants what comes from this address.
    fn wants(&mut self, _: &ClientTuple, _: SocketAddr) -> bool {
        false
    }

    /// Queues a run of payloads that the peer of a client's tunnel has sent, in the form that the tunnel has; a bound one has to know from whom.
    /// Returns whether it has been counted, as queued or dropped: a front without tunnels takes none.
    fn forward_tunnelled(
        &mut self,
        _: Destination,
        _: &Received<'_>,
        _: Run,
        _: Option<SocketAddr>,
        _: &mut SendQueue,
    ) -> bool {
        false
    }

    /// Takes note of what has become of a client's tunnel.
    fn tunnel_changed(&mut self, _: &ClientTuple, _: TunnelEvent, _: &mut SendQueue) {}

    /// Returns cipher suite and version that protect a client.
    fn protection(&self, _: &ClientTuple) -> Option<Seal> {
        None
    }

    /// Notes that a client's connection is about to go to another shard, and returns it; `None` if there is none. It is not read any more.
    fn leave(&mut self, _: &ClientTuple, _: &mut SendQueue) -> Option<StreamId> {
        None
    }

    /// Notes that a client's connection is joined with a peer's from now on, and returns it; `None` if there is none.
    fn join(&mut self, _: &ClientTuple, _: Joined) -> Option<StreamId> {
        None
    }
}
