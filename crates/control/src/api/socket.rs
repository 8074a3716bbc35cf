//! The Unix socket at which commands come: who may connect is a matter of its file alone.

use std::env;
use std::fs;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, chmod, fchmod, open};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen};
use turnbuckle_server::config::ControlSocket;

/// Rights of the file: owner and group connect, others do not.
const MODE: Mode = Mode::from_raw_mode(0o660);

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 32;

/// A socket that is listened on. Its file is removed when this is dropped.
pub(crate) struct Socket {
    pub(crate) listener: UnixListener,
    pub(crate) path: PathBuf,
    /// Device and inode of the file.
    identity: (u64, u64),
}

/// Returns the path that `wanted` stands for, and whether the configuration names it.
pub(crate) fn path_of(wanted: &ControlSocket) -> Option<(PathBuf, bool)> {
    match wanted {
        ControlSocket::Nowhere => None,
        ControlSocket::At(path) => Some((path.clone(), true)),
        ControlSocket::InRuntimeDirectory => {
            let directory = runtime_directory()?;
            Some((directory.join(ControlSocket::NAME), false))
        }
    }
}

/// Returns the first of the directories that the service manager has made for this process (systemd.exec(5), `RUNTIME_DIRECTORY`).
pub(crate) fn runtime_directory() -> Option<PathBuf> {
    let directories = env::var_os("RUNTIME_DIRECTORY")?;
    let first = env::split_paths(&directories).next()?;
    first.is_absolute().then_some(first)
}

impl Socket {
    /// Listens at `path`. A socket file that nobody listens at any more is replaced.
    ///
    /// # Errors
    ///
    /// Somebody listens there, the file is none of a socket, or the socket cannot be made.
    pub(crate) fn bind(path: &Path) -> Result<Self, String> {
        let failed = |error: &io::Error| {
            let path = path.display();
            format!("control-socket: cannot listen at {path}: {error}")
        };
        make_way(path).map_err(|error| failed(&error))?;
        Self::make(path).map_err(|error| failed(&error))
    }

    fn make(path: &Path) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // The file gets these rights when it is made, less the umask (unix_bind_bsd in the kernel's net/unix/af_unix.c): it is open to others at no
        // moment.
        fchmod(&socket, MODE)?;
        bind(&socket, &SocketAddrUnix::new(path)?)?;
        set_mode(path)?;
        listen(&socket, BACKLOG)?;
        let file = fs::symlink_metadata(path)?;
        Ok(Self {
            listener: UnixListener::from(socket),
            path: path.to_owned(),
            identity: (file.dev(), file.ino()),
        })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Another process may have put its own there by now.
        let is_ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|file| (file.dev(), file.ino()) == self.identity);
        if is_ours {
            // A process that may not remove it leaves a file that nobody listens at.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Gives the socket file its rights whatever the umask was. In a folder of somebody else the file may be another one by now, or a link to one.
fn set_mode(path: &Path) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = fs::File::from(open(path, flags, Mode::empty())?);
    if !file.metadata()?.file_type().is_socket() {
        return Err(io::Error::other(
            "another file has taken the socket's place; use a folder that only its owner writes to",
        ));
    }
    // What is open by name alone is changed through its entry there (proc_pid_fd(5)).
    Ok(chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), MODE)?)
}

/// Removes a socket file that a process has left behind.
fn make_way(path: &Path) -> io::Result<()> {
    let file = match fs::symlink_metadata(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !file.file_type().is_socket() {
        return Err(io::Error::other("a file is there that is no socket"));
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(io::Error::other("another process listens there")),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_socket_is_for_owner_and_group_and_goes_with_its_server() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        let socket = Socket::bind(&path).unwrap();
        let mode = fs::symlink_metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn a_link_in_the_sockets_place_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let (file, link) = (
            directory.path().join("other"),
            directory.path().join("link"),
        );
        fs::write(&file, "precious").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        for path in [&file, &link] {
            assert!(set_mode(path).is_err());
        }
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_socket_left_behind_is_replaced_and_one_in_use_or_another_file_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        drop(UnixListener::bind(&path).unwrap()); // leaves its file
        let socket = Socket::bind(&path).unwrap();
        let refused = Socket::bind(&path).err().unwrap();
        assert!(
            refused.contains("another process listens there"),
            "{refused}"
        );
        // Whoever takes the path over keeps it.
        fs::remove_file(&path).unwrap();
        let other = UnixListener::bind(&path).unwrap();
        drop(socket);
        assert!(path.exists());
        drop(other);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "precious").unwrap();
        let refused = Socket::bind(&path).err().unwrap();
        assert!(refused.contains("no socket"), "{refused}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }
}
