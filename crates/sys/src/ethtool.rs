//! Settings of network devices (`ethtool`, ioctl `SIOCETHTOOL`, linux/ethtool.h).

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

use crate::sockopt::last_errno;

/// `ETHTOOL_GGRO`: whether datagrams of one flow that arrive together are joined.
const GET_GRO: u32 = 0x2b;
const SIOCETHTOOL: libc::Ioctl = 0x8946;

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// Returns whether the kernel joins datagrams of one flow that arrive at `device`, asked through any `socket`.
///
/// # Errors
/// What `ioctl` returns; `InvalidInput` for a name that no device can have.
#[expect(unsafe_code, reason = "ioctl with a structure")]
pub fn joins_datagrams(socket: impl AsFd, device: &str) -> io::Result<bool> {
    let mut value = Value {
        command: GET_GRO,
        data: 0,
    };
    // SAFETY: all zeros are a valid `ifreq`: numbers, and a null pointer in a union.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let name = device.as_bytes();
    // The last byte stays zero.
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, &byte) in request.ifr_name.iter_mut().zip(name) {
        *to = byte.cast_signed();
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: `request` and the `value` that it points at live until the call returns, which writes the four bytes of `data` at most. The descriptor
    // is open for as long as it is borrowed.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    match result {
        0 => Ok(value.data != 0),
        _ => Err(last_errno().into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_says_whether_it_joins_datagrams_and_one_that_is_not_there_says_nothing() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(joins_datagrams(&socket, "lo").is_ok());
        assert!(joins_datagrams(&socket, "no-such-device").is_err());
        assert!(joins_datagrams(&socket, "a-name-longer-than-any-device-has").is_err());
    }
}
