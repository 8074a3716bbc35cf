//! Where a server is.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};

/// The port of TURN by UDP and TCP (RFC 8656 §3.1).
const PORT: u16 = 3478;

/// Returns the address of a server, looked up if it is a name; port 3478 unless one is given.
///
/// # Errors
/// The text is no address and no name that can be looked up; says what is allowed.
pub fn server_address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(ip) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Ok((ip, PORT).into());
    }
    let with_port = if text.contains(':') {
        text.to_owned()
    } else {
        format!("{text}:{PORT}")
    };
    let mut addresses = with_port.to_socket_addrs().map_err(|error| {
        format!("{error}; allowed: an address or a name, with or without a port")
    })?;
    addresses
        .next()
        .ok_or_else(|| "the name has no address".to_owned())
}
