//! Replies and commands that wait for the host, in order, in buffers that are used again.

use core::net::SocketAddr;

use turnbuckle_wire::{Message, WriteError};

use crate::command::{Command, TunnelTarget};
use crate::held::HeldPort;
use crate::id::{
    AllocationId, ClientTuple, ConnectionId, Endpoint, RelayHandle, RelayProtocol, RelayRequest,
};
use crate::policy::AllowedPeer;
use crate::ports::PortLease;
use crate::refusal::Refusal;
use crate::request::REPLY_LEN_MAX;
use crate::tunnel_end::TunnelEnd;

#[derive(Debug, Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    queue: Vec<Queued>,
}

#[derive(Debug)]
enum Queued {
    ClosePeer(ConnectionId),
    CloseRelay(Endpoint),
    Connect {
        connection: ConnectionId,
        local: SocketAddr,
        peer: AllowedPeer,
    },
    Join {
        connection: ConnectionId,
        client: ClientTuple,
    },
    OpenRelay {
        request: RelayRequest,
        address: SocketAddr,
        protocol: RelayProtocol,
        reserves_next: bool,
        held: Option<HeldPort>,
    },
    Reply {
        to: ClientTuple,
        len: usize,
        why: Option<Refusal>,
    },
    TunnelEnded {
        client: ClientTuple,
        cause: TunnelEnd,
    },
    TunnelOpened {
        tunnel: AllocationId,
        client: ClientTuple,
        target: TunnelTarget,
    },
}

impl Outbox {
    /// Returns whether another reply fits below `bytes_max`.
    pub(crate) fn has_room(&self, bytes_max: usize) -> bool {
        self.bytes.len() + REPLY_LEN_MAX <= bytes_max
    }

    /// Queues the reply that `write` writes and returns its length, 0 for one that could not be written.
    pub(crate) fn reply(
        &mut self,
        to: ClientTuple,
        write: impl FnOnce(&mut [u8]) -> Result<usize, WriteError>,
    ) -> usize {
        self.reply_within(REPLY_LEN_MAX, to, write)
    }

    /// Queues a reply as [`Outbox::reply`] does, of at most `len_max` bytes.
    pub(crate) fn reply_within(
        &mut self,
        len_max: usize,
        to: ClientTuple,
        write: impl FnOnce(&mut [u8]) -> Result<usize, WriteError>,
    ) -> usize {
        let start = self.bytes.len();
        self.bytes.resize(start + len_max, 0);
        let len = write(&mut self.bytes[start..]).unwrap_or(0);
        debug_assert!(len > 0, "every reply fits, and its texts are valid");
        self.bytes.truncate(start + len);
        if len > 0 {
            self.queue.push(Queued::Reply { to, len, why: None });
        }
        len
    }

    /// Notes why a request is refused, beside the reply that was queued last.
    pub(crate) fn explain(&mut self, refusal: Option<Refusal>) {
        if let Some(Queued::Reply { why, .. }) = self.queue.last_mut() {
            *why = refusal;
        }
    }

    /// Takes back the reply that was queued last. Returns its error code, if it is an error.
    pub(crate) fn take_back(&mut self) -> Option<u16> {
        let &Queued::Reply { len, .. } = self.queue.last()? else {
            return None;
        };
        let start = self.bytes.len() - len;
        let message = Message::parse(self.bytes.get(start..)?).ok();
        let error = message.and_then(|message| message.error_code().ok()?);
        let code = error.map(|error| error.code);
        self.bytes.truncate(start);
        self.queue.pop();
        code
    }

    pub(crate) fn open_relay(
        &mut self,
        request: RelayRequest,
        lease: &PortLease,
        sibling: Option<&PortLease>,
        held: Option<HeldPort>,
    ) {
        // guard: V-44-held
        let reserves_next = sibling.is_some();
        self.queue.push(Queued::OpenRelay {
            request,
            address: lease.local(),
            protocol: lease.protocol(),
            reserves_next,
            held,
        });
    }

    pub(crate) fn connect(
        &mut self,
        connection: ConnectionId,
        local: SocketAddr,
        peer: AllowedPeer,
    ) {
        self.queue.push(Queued::Connect {
            connection,
            local,
            peer,
        });
    }

    pub(crate) fn join(&mut self, connection: ConnectionId, client: ClientTuple) {
        self.queue.push(Queued::Join { connection, client });
    }

    pub(crate) fn close_peer(&mut self, connection: ConnectionId) {
        self.queue.push(Queued::ClosePeer(connection));
    }

    pub(crate) fn close_relay(&mut self, endpoint: Endpoint) {
        self.queue.push(Queued::CloseRelay(endpoint));
    }

    pub(crate) fn tunnel_ended(&mut self, client: ClientTuple, cause: TunnelEnd) {
        self.queue.push(Queued::TunnelEnded { client, cause });
    }

    pub(crate) fn tunnel_opened(
        &mut self,
        tunnel: AllocationId,
        client: ClientTuple,
        target: TunnelTarget,
    ) {
        self.queue.push(Queued::TunnelOpened {
            tunnel,
            client,
            target,
        });
    }

    /// Passes everything on, oldest first.
    pub(crate) fn drain(&mut self, mut handle: impl FnMut(Command<'_>)) {
        let mut start = 0;
        for queued in self.queue.drain(..) {
            handle(match queued {
                Queued::CloseRelay(endpoint) => Command::CloseRelay { endpoint },
                Queued::ClosePeer(connection) => Command::ClosePeer { connection },
                Queued::Connect {
                    connection,
                    local,
                    peer,
                } => Command::Connect {
                    connection,
                    local,
                    peer,
                },
                Queued::Join { connection, client } => Command::Join { connection, client },
                Queued::OpenRelay {
                    request,
                    address,
                    protocol,
                    reserves_next,
                    held,
                } => {
                    let handle: RelayHandle = request.handle;
                    Command::OpenRelay {
                        request,
                        address,
                        handle,
                        protocol,
                        reserves_next,
                        held,
                    }
                }
                Queued::TunnelEnded { client, cause } => Command::TunnelEnded { client, cause },
                Queued::TunnelOpened {
                    tunnel,
                    client,
                    target,
                } => Command::TunnelOpened {
                    tunnel,
                    client,
                    target,
                },
                Queued::Reply { to, len, why } => {
                    let bytes = &self.bytes[start..start + len];
                    start += len;
                    Command::Reply { to, bytes, why }
                }
            });
        }
        self.bytes.clear();
    }
}
