//! Settings of network devices (`ethtool`, ioctl `SIOCETHTOOL`, linux/ethtool.h).

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

use crate::sockopt::last_errno;

/// `ETHTOOL_GDRVINFO`: who drives the device.
const GET_DRIVER: u32 = 0x03;
/// `ETHTOOL_GRINGPARAM`: how many packets wait at it.
const GET_RINGS: u32 = 0x10;
/// `ETHTOOL_GGRO`: whether datagrams of one flow that arrive together are joined.
const GET_GRO: u32 = 0x2b;
const SIOCETHTOOL: libc::Ioctl = 0x8946;

/// A structure that begins with the number of the command, and that the kernel fills: plain numbers, as long as it says.
///
/// # Safety
///
/// The kernel writes no more bytes for the command than the structure has, and any bytes are a value of it.
#[expect(unsafe_code, reason = "what the kernel may write is promised")]
unsafe trait Answer {}

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    version: [u8; 32],
    firmware: [u8; 32],
    bus: [u8; 32],
    erom: [u8; 32],
    reserved: [u8; 12],
    counts: [u32; 5],
}

/// `struct ethtool_ringparam`.
#[repr(C)]
struct RingParameters {
    command: u32,
    receive_max: u32,
    receive_mini_max: u32,
    receive_jumbo_max: u32,
    send_max: u32,
    receive: u32,
    receive_mini: u32,
    receive_jumbo: u32,
    send: u32,
}

// SAFETY: `ETHTOOL_GGRO` is answered with a `struct ethtool_value`, `ETHTOOL_GDRVINFO` with a `struct ethtool_drvinfo`, `ETHTOOL_GRINGPARAM` with a
// `struct ethtool_ringparam`, each copied as a whole (net/ethtool/ioctl.c); these have the same members. All members are numbers.
#[expect(unsafe_code, reason = "see above")]
unsafe impl Answer for Value {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "see above")]
unsafe impl Answer for DriverInfo {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "see above")]
unsafe impl Answer for RingParameters {}

/// How many packets a device keeps each way, and may keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rings {
    /// Packets that arrive.
    pub receive: u32,
    /// The most of these.
    pub receive_max: u32,
    /// Packets that leave.
    pub send: u32,
    /// The most of these.
    pub send_max: u32,
}

/// Returns whether the kernel joins datagrams of one flow that arrive at `device`, asked through any `socket`.
///
/// # Errors
/// What `ioctl` returns; `InvalidInput` for a name that no device can have.
pub fn joins_datagrams(socket: impl AsFd, device: &str) -> io::Result<bool> {
    let mut value = Value {
        command: GET_GRO,
        data: 0,
    };
    ask(socket, device, &mut value)?;
    Ok(value.data != 0)
}

/// Returns the name of the driver of `device`, asked through any `socket`.
///
/// # Errors
/// As for [`joins_datagrams`].
pub fn driver(socket: impl AsFd, device: &str) -> io::Result<String> {
    let mut info = DriverInfo {
        command: GET_DRIVER,
        driver: [0; 32],
        version: [0; 32],
        firmware: [0; 32],
        bus: [0; 32],
        erom: [0; 32],
        reserved: [0; 12],
        counts: [0; 5],
    };
    ask(socket, device, &mut info)?;
    let name = info.driver.split(|&byte| byte == 0).next();
    Ok(String::from_utf8_lossy(name.unwrap_or_default()).into_owned())
}

/// Returns the rings of `device`, asked through any `socket`.
///
/// # Errors
/// As for [`joins_datagrams`]; `EOPNOTSUPP` for a device without rings.
pub fn rings(socket: impl AsFd, device: &str) -> io::Result<Rings> {
    let mut parameters = RingParameters {
        command: GET_RINGS,
        receive_max: 0,
        receive_mini_max: 0,
        receive_jumbo_max: 0,
        send_max: 0,
        receive: 0,
        receive_mini: 0,
        receive_jumbo: 0,
        send: 0,
    };
    ask(socket, device, &mut parameters)?;
    Ok(Rings {
        receive: parameters.receive,
        receive_max: parameters.receive_max,
        send: parameters.send,
        send_max: parameters.send_max,
    })
}

/// Has the kernel answer the command that `answer` begins with.
#[expect(unsafe_code, reason = "ioctl with a structure")]
fn ask(socket: impl AsFd, device: &str, answer: &mut impl Answer) -> io::Result<()> {
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
    request.ifr_ifru.ifru_data = std::ptr::from_mut(answer).cast();
    // SAFETY: `request` and the `answer` that it points at live until the call returns, which writes no more than `answer` has (`Answer`). The
    // descriptor is open for as long as it is borrowed.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    match result {
        0 => Ok(()),
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
        for name in ["no-such-device", "a-name-longer-than-any-device-has"] {
            assert!(joins_datagrams(&socket, name).is_err());
            assert!(driver(&socket, name).is_err());
            assert!(rings(&socket, name).is_err());
        }
    }
}
