//! What drivers can do with XDP programs (generic netlink, family `netdev`; linux/netdev.h, Linux 6.3).

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, sendto, socket_with,
};

const NETLINK_HEADER_LEN: usize = 16;
const GENERIC_HEADER_LEN: usize = 4;
/// `NLM_F_REQUEST`; `NLMSG_ERROR`.
const REQUEST: u16 = 1;
const ERROR: u16 = 2;
/// `GENL_ID_CTRL`, `CTRL_CMD_GETFAMILY`, `CTRL_ATTR_FAMILY_ID`, `CTRL_ATTR_FAMILY_NAME`.
const CONTROLLER: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// `NETDEV_CMD_DEV_GET`, `NETDEV_A_DEV_IFINDEX`, `NETDEV_A_DEV_XDP_FEATURES`.
const GET_DEVICE: u8 = 1;
const DEVICE_INDEX: u16 = 1;
const XDP_FEATURES: u16 = 3;

/// What a driver does with an XDP program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Features {
    /// It runs one, and sends what the program says by the same device (`NETDEV_XDP_ACT_BASIC`).
    pub(crate) is_native: bool,
    /// It has the program send by another device (`NETDEV_XDP_ACT_REDIRECT`).
    pub(crate) redirects: bool,
    /// It sends what other devices redirect (`NETDEV_XDP_ACT_NDO_XMIT`).
    pub(crate) is_target: bool,
}

/// Asks what the driver of the device with this index does.
///
/// # Errors
///
/// The kernel does not say: it is older than Linux 6.3, or there is no such device.
pub(crate) fn features(index: u32) -> io::Result<Features> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(netlink::GENERIC),
    )?;
    bind(&socket, &SocketAddrNetlink::new(0, 0))?;
    let family = ask(
        &socket,
        CONTROLLER,
        GET_FAMILY,
        (FAMILY_NAME, b"netdev\0"),
        FAMILY_ID,
    )?;
    let family = u16::try_from(family).map_err(io::Error::other)?;
    let index = (DEVICE_INDEX, &index.to_ne_bytes()[..]);
    let bits = ask(&socket, family, GET_DEVICE, index, XDP_FEATURES)?;
    Ok(Features {
        is_native: bits & 1 != 0,
        redirects: bits & 2 != 0,
        is_target: bits & 4 != 0,
    })
}

/// Sends a question with one attribute and returns the number that the wanted attribute of the answer has.
fn ask(
    socket: &OwnedFd,
    family: u16,
    command: u8,
    (kind, value): (u16, &[u8]),
    wanted: u16,
) -> io::Result<u64> {
    let len = |len: usize| u16::try_from(len).map_err(io::Error::other);
    let mut body = vec![command, 1, 0, 0];
    body.extend(len(4 + value.len())?.to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
    let mut message = u32::from(len(NETLINK_HEADER_LEN + body.len())?)
        .to_ne_bytes()
        .to_vec();
    message.extend(family.to_ne_bytes());
    message.extend(REQUEST.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    sendto(
        socket,
        &message,
        SendFlags::empty(),
        &SocketAddrNetlink::new(0, 0),
    )?;
    let mut answer = vec![0; 8192];
    let (len, _) = recv(socket, &mut answer[..], RecvFlags::empty())?;
    number_in(&answer[..len], wanted).ok_or_else(|| io::ErrorKind::Unsupported.into())
}

/// Returns the number that an attribute of an answer has, or `None` if there is none.
fn number_in(answer: &[u8], wanted: u16) -> Option<u64> {
    let short = |bytes: &[u8]| Some(u16::from_ne_bytes(bytes.first_chunk().copied()?));
    if short(answer.get(4..)?)? == ERROR {
        return None;
    }
    let mut rest = answer.get(NETLINK_HEADER_LEN + GENERIC_HEADER_LEN..)?;
    while let Some(len) = short(rest).map(usize::from) {
        let attribute = rest.get(4..len)?;
        if short(&rest[2..])? & 0x3FFF == wanted {
            let mut number = [0; 8];
            let part = &attribute[..attribute.len().min(8)];
            number[..part.len()].copy_from_slice(part);
            return Some(u64::from_le_bytes(number));
        }
        rest = rest.get(len.next_multiple_of(4)..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_found_behind_other_attributes_and_an_error_has_none() {
        let mut answer = vec![0; NETLINK_HEADER_LEN + GENERIC_HEADER_LEN];
        answer.extend([6, 0, 1, 0, 9, 9, 0, 0]);
        answer.extend([12, 0, 3, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(number_in(&answer, XDP_FEATURES), Some(7));
        assert_eq!(number_in(&answer, 1), Some(0x0909));
        assert_eq!(number_in(&answer, 2), None);
        for len in 0..answer.len() {
            let _ = number_in(&answer[..len], XDP_FEATURES);
        }
        answer[4] = 2;
        assert_eq!(number_in(&answer, XDP_FEATURES), None);
    }
}
