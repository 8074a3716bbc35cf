//! Peers by UDP: the socket of a relayed transport address, and the port that may be reserved beside it (RFC 8656 §7.2).

use std::io;
use std::net::SocketAddr;

use turnbuckle_datapath::{Bind, EndpointKind, HeldSocket, IcmpError, Sockets};
use turnbuckle_engine::{HeldPort, Opened, RelayHandle};

use crate::shard::name::{self, Token};

/// Binds the socket, `held` until now or not, and holds the next port if that is to be reserved.
pub(super) fn bind(
    address: SocketAddr,
    handle: RelayHandle,
    reserves_next: bool,
    held: Option<HeldPort>,
    sockets: &mut impl Sockets,
) -> io::Result<Opened> {
    let next = SocketAddr::new(address.ip(), address.port().saturating_add(1));
    let beside = reserves_next.then(|| sockets.hold(next)).transpose()?;
    let token = Token::Relay(handle).to_u64();
    let endpoint = match held.and_then(HeldPort::into_inner::<HeldSocket>) {
        Some(held) => sockets.bind_held(held, token)?,
        None => sockets.bind(Bind {
            address,
            kind: EndpointKind::Relay,
            token,
        })?,
    };
    Ok(Opened {
        endpoint: name::endpoint(endpoint),
        beside: beside.map(HeldPort::new),
    })
}

/// Says the data path's error in the engine's words.
pub(in crate::shard) fn icmp_error(error: IcmpError) -> turnbuckle_engine::IcmpError {
    let IcmpError {
        peer,
        kind,
        code,
        mtu,
        v6,
    } = error;
    turnbuckle_engine::IcmpError {
        peer,
        kind,
        code,
        mtu,
        v6,
    }
}
