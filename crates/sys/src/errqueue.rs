//! The socket error queue (`MSG_ERRQUEUE`): ICMP errors about datagrams sent from a socket.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use rustix::io::Errno;

use crate::address::RawAddress;
use crate::cmsg::messages;
use crate::sockopt::last_errno;

/// Errors reported by ICMP and ICMPv6; others (local ones, timestamps) are not for the handler.
const ORIGIN_ICMP: u8 = 2;
const ORIGIN_ICMP6: u8 = 3;
/// An extended error with the offender's address, and the packet information that some kernels add.
const CONTROL_LEN: usize = 256;

/// One entry of the queue, read from an ICMP or ICMPv6 message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuedError {
    /// Where the datagram that caused the error was going.
    pub destination: SocketAddr,
    /// ICMP type.
    pub kind: u8,
    /// ICMP code.
    pub code: u8,
    /// The next hop's MTU for "fragmentation needed" and "packet too big".
    pub info: u32,
    /// Whether it was ICMPv6.
    pub v6: bool,
}

#[repr(C, align(8))]
struct Control([u8; CONTROL_LEN]);

/// Takes one entry off the queue. `Ok(None)`: an entry that did not come from ICMP.
///
/// # Errors
/// What `recvmsg` returns; `EAGAIN` when the queue is empty.
#[expect(unsafe_code, reason = "recvmsg with MSG_ERRQUEUE")]
pub fn read(fd: BorrowedFd<'_>) -> Result<Option<QueuedError>, Errno> {
    let mut name = RawAddress::EMPTY;
    let mut control = Control([0; CONTROL_LEN]);
    // The returned payload, the start of our own datagram, is of no use.
    let mut payload = [0_u8; 1];
    let mut vector = libc::iovec {
        iov_base: payload.as_mut_ptr().cast(),
        iov_len: payload.len(),
    };
    // SAFETY: all-zero bytes are a valid `msghdr`: null pointers with zero lengths.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = name.as_mut_ptr().cast();
    message.msg_namelen = RawAddress::CAPACITY;
    message.msg_iov = &raw mut vector;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL_LEN;
    // SAFETY: `message` points at a name, a buffer and a control area of this stack frame with their true lengths.
    let len = unsafe {
        libc::recvmsg(
            fd.as_raw_fd(),
            &raw mut message,
            libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT,
        )
    };
    if len < 0 {
        return Err(last_errno());
    }
    name.set_len(message.msg_namelen);
    let control_len = message.msg_controllen.min(CONTROL_LEN);
    Ok(name
        .decode()
        .and_then(|destination| parse(destination, &control.0[..control_len])))
}

/// Finds the `sock_extended_err` among the control messages: errno 4, origin 1, type 1, code 1, padding 1, info 4 bytes.
fn parse(destination: SocketAddr, control: &[u8]) -> Option<QueuedError> {
    messages(control).find_map(|(level, kind, data)| {
        let extended = (level == libc::SOL_IP && kind == libc::IP_RECVERR)
            || (level == libc::SOL_IPV6 && kind == libc::IPV6_RECVERR);
        let &[_, _, _, _, origin, kind, code, _, i0, i1, i2, i3, ..] = data else {
            return None;
        };
        (extended && matches!(origin, ORIGIN_ICMP | ORIGIN_ICMP6)).then_some(QueuedError {
            destination,
            kind,
            code,
            info: u32::from_ne_bytes([i0, i1, i2, i3]),
            v6: origin == ORIGIN_ICMP6,
        })
    })
}
