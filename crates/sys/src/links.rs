//! Links between programs of the kernel and what they are attached to (`bpf(2)`, linux/bpf.h).

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use crate::sockopt::last_errno;

/// `BPF_LINK_UPDATE` of `enum bpf_cmd`.
const BPF_LINK_UPDATE: libc::c_int = 29;

/// The member `link_update` of `union bpf_attr`. Members that are not there are zero to the kernel.
#[repr(C)]
struct LinkUpdate {
    link: u32,
    new_program: u32,
    flags: u32,
    old_program: u32,
}

/// Has a link run another program from now on, in place of the one that it runs. Each frame is one program's.
///
/// # Errors
/// What `bpf` returns: `EINVAL` if the first descriptor is no link or the second one no program of its kind.
#[expect(unsafe_code, reason = "bpf")]
pub fn run_instead(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let number = |descriptor: BorrowedFd<'_>| {
        u32::try_from(descriptor.as_raw_fd()).map_err(io::Error::other)
    };
    let update = LinkUpdate {
        link: number(link)?,
        new_program: number(program)?,
        flags: 0,
        old_program: 0,
    };
    // SAFETY: the kernel reads as many bytes as it is told, which are those of `update`, and both descriptors are open for as long as they are borrowed.
    let done = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_LINK_UPDATE,
            &raw const update,
            size_of::<LinkUpdate>(),
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(last_errno().into()),
    }
}
