//! What holds a program at a device, whichever process has loaded that program.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use turnbuckle_sys::links::run_instead;

/// The link of an XDP program to a device. The program runs, with its maps, for as long as a descriptor names the link.
#[derive(Debug)]
pub struct Attachment {
    device: u32,
    link: OwnedFd,
}

impl Attachment {
    /// Returns what a descriptor names, if that is the link of an XDP program to a device that is there. If not, the descriptor is closed.
    pub fn of(link: OwnedFd) -> Option<Self> {
        let number = link.as_raw_fd();
        let name = fs::read_link(format!("/proc/self/fd/{number}")).ok()?;
        // bpf_link_settle in kernel/bpf/syscall.c.
        if name.as_os_str() != "anon_inode:bpf_link" {
            return None;
        }
        let description = fs::read_to_string(format!("/proc/self/fdinfo/{number}")).ok()?;
        let device = device_of(&description)?;
        Some(Self { device, link })
    }

    /// Returns the index of the device.
    pub fn device(&self) -> u32 {
        self.device
    }

    /// Has the device run this program in place of the one that it runs.
    #[cfg_attr(
        not(all(feature = "xdp", target_arch = "x86_64")),
        expect(dead_code, reason = "there is no program")
    )]
    pub(super) fn run(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        run_instead(self.link.as_fd(), program)
    }
}

/// Returns the device that the description of a link names (`bpf_link_show_fdinfo` and `bpf_xdp_link_show_fdinfo` in Linux).
fn device_of(description: &str) -> Option<u32> {
    let value = |name: &str| {
        let mut lines = description.lines();
        lines.find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
    };
    let device = value("ifindex")?.parse().ok()?;
    // The index of a device that is gone is 0.
    (value("link_type") == Some("xdp") && device > 0).then_some(device)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn the_device_of_an_xdp_link_is_read_and_nothing_else_is_one() {
        let of_kind = |kind: &str, device: &str| {
            format!(
                "pos:\t0\nflags:\t02000002\nmnt_id:\t16\nino:\t1063\nlink_type:\t{kind}\nlink_id:\t7\n\
                 prog_tag:\t8c9bb5ee31ea5db5\nprog_id:\t42\nifindex:\t{device}\n"
            )
        };
        assert_eq!(device_of(&of_kind("xdp", "5")), Some(5));
        assert_eq!(device_of(&of_kind("xdp", "0")), None);
        assert_eq!(device_of(&of_kind("tcx", "5")), None);
        assert_eq!(device_of("pos:\t0\nflags:\t02\n"), None);
        let file = File::open("/proc/self/stat").unwrap();
        assert!(Attachment::of(file.into()).is_none());
    }
}
