//! Opens the files that the server writes, as root perhaps, and follows no link that another user may have put in their place.

use std::fs::{File, OpenOptions, symlink_metadata};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use nix::unistd::geteuid;
use rustix::fs::OFlags;
use rustix::io::Errno;

/// Opens a file. A symbolic link at `path` is followed only if it belongs to root, as those below `/dev` do, or to this process's user.
///
/// # Errors
///
/// Those of opening it, and a link of another user.
pub(crate) fn open(options: &OpenOptions, path: &Path) -> io::Result<File> {
    let mut unfollowed = options.clone();
    unfollowed.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    match unfollowed.open(path) {
        Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {}
        opened => return opened,
    }
    let owner = symlink_metadata(path)?.uid();
    if owner == 0 || owner == geteuid().as_raw() {
        return options.open(path);
    }
    Err(io::Error::other(format!(
        "it is a symbolic link of another user (uid {owner}); name the file itself, or make the link as root"
    )))
}
