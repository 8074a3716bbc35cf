//! Presents the process to the system: in the background, with its number in a file, as another user, known to systemd.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::env;
use std::fs::{self, OpenOptions};
use std::io::{self, BufRead as _, BufReader, IoSlice, Write};
use std::os::fd::RawFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::os::unix::process::CommandExt as _;
use std::panic;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::unistd::{
    Gid, Group, Uid, User, getegid, geteuid, getresgid, getresuid, setgid, setgroups, setuid,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::ReadWriteFlags;
use rustix::stdio::stderr;
use rustix::time::Timespec;

use crate::config::{Persona, Process};
use crate::links;

/// Set for a process that was started to be in the background.
const DETACHED: &str = "TURNBUCKLE_DETACHED";

/// Where `pwritev2(2)` writes to the place that the file is at.
const CURRENT: u64 = u64::MAX;

/// The line by which such a process says on its standard output that it serves.
const READY: &str = "ready";

/// Starts this program again in a session of its own if `daemon` is given, waits until it serves, and returns the exit code to end with. In that other
/// process, and without `daemon`, returns nothing: there the server is to be run.
///
/// # Errors
///
/// The program cannot be started again.
pub fn detach(process: &Process) -> io::Result<Option<u8>> {
    if !process.is_daemon {
        return Ok(None);
    }
    if env::var_os(DETACHED).is_some() {
        // Fails where the process leads a session already, which is what it is to do.
        let _ = rustix::process::setsid();
        return Ok(None);
    }
    let mut words = env::args_os();
    let mut child = Command::new(env::current_exe()?)
        .arg0(words.next().unwrap_or_default())
        .args(words)
        .env(DETACHED, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    if let Some(lines) = child.stdout.take() {
        for line in BufReader::new(lines).lines() {
            let line = line?;
            if line == READY {
                return Ok(Some(0));
            }
            let _ = writeln!(io::stdout(), "{line}");
        }
    }
    let code = child
        .wait()?
        .code()
        .and_then(|code| u8::try_from(code).ok());
    Ok(Some(code.unwrap_or(u8::MAX)))
}

/// The process as it is once it serves; what has to go with it goes when this is dropped.
pub(crate) struct Settled {
    pid_file: Option<PathBuf>,
}

impl Settled {
    /// Writes the file with the number of the `main` process, which signals are sent to, and becomes the user. To be called when all sockets are open and none hears anything yet.
    ///
    /// # Errors
    ///
    /// There is no such user or group, the process may not become it, or a file that was named cannot be written.
    pub(crate) fn new(
        process: &Process,
        main: u32,
        persona: Persona,
        out: &mut impl Write,
    ) -> Result<Self, String> {
        let pid_file = match &process.pid_file {
            Some(path) => write_pid_file(path, main, persona, out)?,
            None => None,
        };
        let settled = Self { pid_file };
        become_user(process)?;
        Ok(settled)
    }

    /// Tells systemd that it serves, and lets go of the terminal.
    ///
    /// # Errors
    ///
    /// The terminal cannot be let go of.
    pub(crate) fn announce(&self, process: &Process, out: &mut impl Write) -> Result<(), String> {
        notify("READY=1");
        if process.is_daemon {
            // What was said so far is for the terminal too.
            let _ = out.flush();
            leave_terminal().map_err(|error| format!("daemon: {error}"))?;
        }
        Ok(())
    }
}

impl Drop for Settled {
    fn drop(&mut self) {
        notify("STOPPING=1");
        if let Some(path) = &self.pid_file {
            // Perhaps as a user who may not remove it: then the next start finds the number of a process that is gone.
            let _ = fs::remove_file(path);
        }
    }
}

/// Writes the number, and returns the file that was written, if it is one to remove again.
pub(crate) fn write_pid_file(
    path: &Path,
    number: u32,
    persona: Persona,
    out: &mut impl Write,
) -> Result<Option<PathBuf>, String> {
    let mut places = vec![path.to_owned()];
    if let (Persona::Turnserver, Some(name)) = (persona, path.file_name()) {
        places.extend(["/var/spool", "/var", "."].map(|place| Path::new(place).join(name)));
    }
    let mut first_error = None;
    for place in places {
        match write_pid(&place, number) {
            Ok(is_file) => {
                let _ = writeln!(out, "pid file created: {}", place.display());
                return Ok(is_file.then_some(place));
            }
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    let error = first_error
        .map(|error| error.to_string())
        .unwrap_or_default();
    let what = format!("cannot write pidfile {}: {error}", path.display());
    match persona {
        Persona::Turnbuckle => Err(what),
        Persona::Turnserver => {
            let _ = writeln!(out, "warning: {what}");
            Ok(None)
        }
    }
}

/// Writes the number; tells whether it went into a file, not into a device.
fn write_pid(path: &Path, number: u32) -> io::Result<bool> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o644);
    let mut file = links::open(&options, path)?;
    writeln!(file, "{number}")?;
    Ok(file.metadata()?.is_file())
}

/// Becomes the user and group that are named. What the process is already, it need not be allowed to become: a service manager that has started it as
/// that user may forbid these calls altogether.
fn become_user(process: &Process) -> Result<(), String> {
    let (user, group) = identity(process)?;
    let refused = |what: &str, error: nix::errno::Errno| format!("{what}: {error}");
    let user = user.filter(|&user| !is_user(user));
    let new_group = group.filter(|&group| !is_group(group));
    // Groups first: a user who is not root may not change them any more. The C library changes every thread of the process.
    if group.is_some() {
        let left = setgroups(&[]).map_err(|error| refused("proc-group", error));
        // Who stays the same keeps what he was started with. Somebody else must not have it.
        if user.is_some() || new_group.is_some() {
            left?;
        }
    }
    if let Some(group) = new_group {
        setgid(group).map_err(|error| refused("proc-group", error))?;
    }
    if let Some(user) = user {
        setuid(user).map_err(|error| refused("proc-user", error))?;
    }
    Ok(())
}

/// Returns whether this is the user of the process, with no other one to go back to.
fn is_user(user: Uid) -> bool {
    getresuid().is_ok_and(|ids| [ids.real, ids.effective, ids.saved] == [user; 3])
}

/// Returns whether this is the group of the process, with no other one to go back to.
fn is_group(group: Gid) -> bool {
    getresgid().is_ok_and(|ids| [ids.real, ids.effective, ids.saved] == [group; 3])
}

/// Returns the path of a descriptor of this process.
pub(crate) fn path_of_descriptor(descriptor: RawFd) -> String {
    format!("/proc/self/fd/{descriptor}")
}

/// Returns whether there is whom the process is to become.
///
/// # Errors
///
/// There is no such user or group.
pub(crate) fn exists(process: &Process) -> Result<(), String> {
    identity(process).map(drop)
}

/// Returns whom the process is to become.
fn identity(process: &Process) -> Result<(Option<Uid>, Option<Gid>), String> {
    let unknown = |what: &str, name: &str| format!("{what}: there is no `{}`", name.escape_debug());
    let refused = |what: &str, error: nix::errno::Errno| format!("{what}: {error}");
    let user = match process.user.as_deref() {
        Some(name) => {
            let found = User::from_name(name).map_err(|error| refused("proc-user", error))?;
            Some(found.ok_or_else(|| unknown("proc-user", name))?)
        }
        None => None,
    };
    let group = match process.group.as_deref() {
        Some(name) => {
            let found = Group::from_name(name).map_err(|error| refused("proc-group", error))?;
            Some(found.ok_or_else(|| unknown("proc-group", name))?.gid)
        }
        None => user.as_ref().map(|user| user.gid),
    };
    Ok((user.map(|user| user.uid), group))
}

/// Returns the user and group of the files that the process is to write to once it is another user; nothing where it stays the same, or becomes one that there
/// is not, which [`Settled::new`] refuses.
pub(crate) fn owner(process: &Process) -> Option<(u32, u32)> {
    let (user, group) = identity(process).ok()?;
    (user.is_some() || group.is_some()).then(|| {
        let user = user.unwrap_or_else(geteuid);
        let group = group.unwrap_or_else(getegid);
        (user.as_raw(), group.as_raw())
    })
}

/// Tells the process that waits in [`detach`] that it need not wait any longer, and has no terminal from here on.
fn leave_terminal() -> io::Result<()> {
    // Not by Rust's standard output: whoever writes a line to it may hold its lock.
    rustix::io::write(rustix::stdio::stdout(), format!("{READY}\n").as_bytes())?;
    let null = OpenOptions::new().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

/// Writes to standard error what its reader need not be waited for to take (`pwritev2(2)`, `RWF_NOWAIT`). Otherwise it is lost: who calls this has
/// calls to keep, and a pipe that is full may stay so. A file may take the time that its disk takes.
pub(crate) fn say_at_once(text: &str) {
    let mut others = [PollFd::from_borrowed_fd(stderr(), PollFlags::OUT)];
    let text = text.as_bytes();
    let has_taken = rustix::io::pwritev2(
        stderr(),
        &[IoSlice::new(text)],
        CURRENT,
        ReadWriteFlags::NOWAIT,
    );
    // Most files and terminals do not know the flag, nor do pipes before Linux 6.4.
    if has_taken.is_err() && poll(&mut others, Some(&Timespec::default())).is_ok_and(|any| any > 0)
    {
        let _ = rustix::io::write(stderr(), text);
    }
}

/// Has panics from here on described on standard error as Rust does it, but never waits for a reader of that: the thread may have calls to keep.
pub fn say_panics_at_once() {
    panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("<unnamed>");
        let mut text = format!("thread '{name}' {panic}\n");
        let trace = Backtrace::capture();
        if trace.status() == BacktraceStatus::Captured {
            text += &format!("{trace}\n");
        }
        // guard: V-63-panic-unread
        say_at_once(&text);
    }));
}

/// Tells the service manager, if there is one that wants to know (`sd_notify`'s protocol).
pub fn notify(state: &str) {
    let Some(path) = env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let address = match path.as_encoded_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    // A manager that is gone has nothing to wait for.
    if let (Ok(address), Ok(socket)) = (address, UnixDatagram::unbound()) {
        let _ = socket.send_to_addr(state.as_bytes(), &address);
    }
}
