//! Opening and closing relay sockets, of either protocol.

use std::io;

use turnbuckle_datapath::Sockets;
use turnbuckle_engine::{Endpoint, Opened, RelayOpenError, RelayProtocol};

use super::{tcp, udp};
use crate::shard::hub::wanted::Wish;
use crate::shard::name::{self, SocketName};

/// Opens what is wished for: both sockets of a pair, or neither. With `forbids_fragments` nothing leaves it in fragments.
pub(in crate::shard) fn open(
    wish: Wish,
    forbids_fragments: bool,
    sockets: &mut impl Sockets,
) -> Result<Opened, RelayOpenError> {
    let Wish {
        address,
        handle,
        held,
        reserves_next,
        ..
    } = wish;
    let opened = match wish.protocol {
        RelayProtocol::Tcp => tcp::listen(address, handle, sockets).map(Opened::from),
        RelayProtocol::Udp => udp::bind(address, handle, reserves_next, held, sockets),
    };
    let opened = opened.map_err(|error| open_error(&error))?;
    // guard: tunnel-unfragmented
    if forbids_fragments {
        sockets.forbid_fragments(name::datagrams(opened.endpoint));
    }
    Ok(opened)
}

/// Closes the socket of a relayed transport address.
pub(in crate::shard) fn close(endpoint: Endpoint, sockets: &mut impl Sockets) {
    match SocketName::of(endpoint) {
        SocketName::Datagrams(endpoint) => sockets.close(endpoint),
        SocketName::PeerListener(listener) => sockets.close_listener(listener),
        SocketName::ClientListener(_) => {} // no relay
    }
}

/// Returns what the engine should think of a socket that could not be opened.
fn open_error(error: &io::Error) -> RelayOpenError {
    match error.kind() {
        io::ErrorKind::AddrInUse => RelayOpenError::AddressInUse,
        io::ErrorKind::OutOfMemory => RelayOpenError::OutOfResources,
        // EMFILE and ENFILE have no kind of their own.
        _ if matches!(error.raw_os_error(), Some(23 | 24)) => RelayOpenError::OutOfResources,
        _ => RelayOpenError::Other,
    }
}
