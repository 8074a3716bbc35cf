//! Network interfaces that sockets belong to.

use std::io;

use socket2::{Domain, Socket, Type};

/// Binds a socket to an interface, if one is given. To be called before the socket has an address.
///
/// # Errors
/// There is no such interface, or the process may not (before Linux 5.7 it takes `CAP_NET_RAW`).
pub(crate) fn bind_device(socket: &Socket, device: Option<&str>) -> io::Result<()> {
    let Some(device) = device else {
        return Ok(());
    };
    socket
        .bind_device(Some(device.as_bytes()))
        .map_err(|error| {
            io::Error::new(
                error.kind(),
                format!(
                    "cannot bind to interface {}: {error}",
                    device.escape_debug()
                ),
            )
        })
}

/// Returns whether sockets can belong to this interface.
///
/// # Errors
/// There is no such interface, or the process may not bind to it.
pub fn probe_device(device: &str) -> io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    bind_device(&socket, Some(device))
}
