//! Socket options that the safe libraries do not offer.

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};

use rustix::io::Errno;

/// Returns the errno of the system call that has just failed.
pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Bytes of a C int.
const INT_LEN: libc::socklen_t = 4;
const _: () = assert!(size_of::<libc::c_int>() == INT_LEN as usize);

#[expect(unsafe_code, reason = "setsockopt with a C int")]
fn set_int(fd: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> Result<(), Errno> {
    // SAFETY: the pointer and the length describe `value`, which lives on this stack frame during the call; the
    // kernel only reads it. `fd` is open for as long as it is borrowed.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            INT_LEN,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(last_errno())
    }
}

#[expect(unsafe_code, reason = "getsockopt with a C int")]
fn int(fd: BorrowedFd<'_>, level: i32, name: i32) -> Result<i32, Errno> {
    let mut value: i32 = 0;
    let mut len = INT_LEN;
    // SAFETY: `len` says how many bytes `value` has, so the kernel writes no further; both live on this stack frame.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw mut value).cast(),
            &raw mut len,
        )
    };
    if result == 0 {
        Ok(value)
    } else {
        Err(last_errno())
    }
}

/// Has `bind` to port 0 leave the choice of the port to `connect`, which knows the other end: one port then serves as many connections as there
/// are other ends (`IP_BIND_ADDRESS_NO_PORT`, Linux 4.2).
///
/// # Errors
/// What `setsockopt` returns.
pub fn choose_port_at_connect(socket: impl AsFd) -> Result<(), Errno> {
    set_int(
        socket.as_fd(),
        libc::SOL_IP,
        libc::IP_BIND_ADDRESS_NO_PORT,
        1,
    )
}

/// Enables GRO: one message then holds many equal datagrams of one sender (Linux 5.0).
///
/// # Errors
/// What `setsockopt` returns.
pub fn enable_gro(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    set_int(fd, libc::SOL_UDP, libc::UDP_GRO, 1)
}

/// Has ICMP errors queued for reading instead of lost (`IP_RECVERR`, `IPV6_RECVERR`).
///
/// # Errors
/// What `setsockopt` returns.
pub fn enable_error_queue(fd: BorrowedFd<'_>, v6: bool) -> Result<(), Errno> {
    if v6 {
        set_int(fd, libc::SOL_IPV6, libc::IPV6_RECVERR, 1)
    } else {
        set_int(fd, libc::SOL_IP, libc::IP_RECVERR, 1)
    }
}

/// Sends with DF clear, in fragments where the path needs them.
///
/// IPv4 uses `OMIT` and not `DONT`: DF is clear with both, but `OMIT` ignores path MTU news for sending, so a forged
/// "fragmentation needed" can neither shrink our datagrams nor make GSO fail, and with `DONT` the kernel would not
/// queue that ICMP error, which RFC 8656 §11.5 wants relayed (`__udp4_lib_err`). An IPv6 router cannot fragment, so
/// there the path MTU must be honoured, and `DONT` does queue "packet too big".
///
/// # Errors
/// What `setsockopt` returns.
pub fn allow_fragments(fd: BorrowedFd<'_>, v6: bool) -> Result<(), Errno> {
    if v6 {
        set_int(fd, libc::SOL_IPV6, libc::IPV6_DONTFRAG, 0)?;
        set_int(
            fd,
            libc::SOL_IPV6,
            libc::IPV6_MTU_DISCOVER,
            libc::IPV6_PMTUDISC_DONT,
        )
    } else {
        set_int(
            fd,
            libc::SOL_IP,
            libc::IP_MTU_DISCOVER,
            libc::IP_PMTUDISC_OMIT,
        )
    }
}

/// Sends with DF set (IPv4) or without a fragment header (IPv6), until [`allow_fragments`].
///
/// # Errors
/// What `setsockopt` returns.
pub fn forbid_fragments(fd: BorrowedFd<'_>, v6: bool) -> Result<(), Errno> {
    if v6 {
        set_int(fd, libc::SOL_IPV6, libc::IPV6_DONTFRAG, 1)
    } else {
        set_int(
            fd,
            libc::SOL_IP,
            libc::IP_MTU_DISCOVER,
            libc::IP_PMTUDISC_PROBE,
        )
    }
}

/// Sets the receive buffer, beyond `net.core.rmem_max` where the process may. Returns what the kernel granted, in the
/// same unit (it reports and accounts the double).
///
/// # Errors
/// What `setsockopt` returns.
pub fn set_receive_buffer(fd: BorrowedFd<'_>, bytes: u32) -> Result<u32, Errno> {
    set_buffer(fd, bytes, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF)
}

/// Sets the send buffer, beyond `net.core.wmem_max` where the process may. Returns what the kernel granted.
///
/// # Errors
/// What `setsockopt` returns.
pub fn set_send_buffer(fd: BorrowedFd<'_>, bytes: u32) -> Result<u32, Errno> {
    set_buffer(fd, bytes, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)
}

fn set_buffer(fd: BorrowedFd<'_>, bytes: u32, force: i32, plain: i32) -> Result<u32, Errno> {
    let value = i32::try_from(bytes).unwrap_or(i32::MAX);
    if set_int(fd, libc::SOL_SOCKET, force, value).is_err() {
        set_int(fd, libc::SOL_SOCKET, plain, value)?;
    }
    Ok(u32::try_from(int(fd, libc::SOL_SOCKET, plain)? / 2).unwrap_or(0))
}

/// Returns the path MTU of a connected socket, bytes of the whole IP packet.
///
/// # Errors
/// What `getsockopt` returns.
pub fn path_mtu(fd: BorrowedFd<'_>, v6: bool) -> Result<u32, Errno> {
    let mtu = if v6 {
        int(fd, libc::SOL_IPV6, libc::IPV6_MTU)?
    } else {
        int(fd, libc::SOL_IP, libc::IP_MTU)?
    };
    u32::try_from(mtu).map_err(|_| Errno::INVAL)
}

/// The place of the drops among the numbers of `SO_MEMINFO` (`SK_MEMINFO_DROPS` of linux/sock_diag.h).
const MEMINFO_DROPS: usize = 8;
/// Bytes of these numbers up to that one.
const MEMINFO_LEN: libc::socklen_t = 36;
const _: () = assert!(size_of::<[u32; MEMINFO_DROPS + 1]>() == MEMINFO_LEN as usize);

/// Returns how many packets the kernel has dropped at a socket since that was opened: the receive queue was full, memory was short, a filter or a
/// checksum refused them. It wraps around (`SO_MEMINFO`, Linux 4.12).
///
/// # Errors
/// What `getsockopt` returns.
#[expect(unsafe_code, reason = "getsockopt with an array of u32")]
pub fn drops(fd: BorrowedFd<'_>) -> Result<u32, Errno> {
    let mut numbers = [0u32; MEMINFO_DROPS + 1];
    let mut len = MEMINFO_LEN;
    // SAFETY: `len` says how many bytes `numbers` has, so the kernel writes no further; both live on this stack frame.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            numbers.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    match result {
        0 if len == MEMINFO_LEN => Ok(numbers[MEMINFO_DROPS]),
        0 => Err(Errno::NOPROTOOPT),
        _ => Err(last_errno()),
    }
}

/// Turns the UDP checksums of what is sent off, with which the kernel refuses GSO (`EINVAL`).
///
/// # Errors
/// What `setsockopt` returns.
pub fn disable_checksums(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    set_int(fd, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1)
}
