//! Processes that share one table of descriptors, so that sockets outlive the process that opened them.
//!
//! The table belongs to all of them (`CLONE_FILES`): a descriptor that one opens or closes is open or closed for all, under the same number. When one
//! of them ends, even by SIGKILL, its descriptors stay open in the others, with all that waits in them.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::ptr::null_mut;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, waitpid};

use crate::sockopt::last_errno;

/// What `PR_GET_TID_ADDRESS` (linux/prctl.h) is called; it takes CONFIG_CHECKPOINT_RESTORE.
const PR_GET_TID_ADDRESS: libc::c_int = 40;

/// What the kernel says of this process and of its threads, with which a sandbox may not come.
const STATUS: &str = "/proc/self/status";
const THREADS: &str = "/proc/self/task";

/// Links of [`THREADS`] in a process of one thread: two, and one for each thread (`proc_task_getattr` in Linux).
const LINKS_OF_ONE_THREAD: u64 = 3;

/// The numbers of descriptors that the keepers have for themselves. While other processes share the table, a keeper opens no further one, and closes
/// none of these.
#[derive(Debug)]
pub struct Keeper {
    own: Vec<RawFd>,
}

/// Which of two processes goes on.
#[derive(Debug)]
pub enum Side {
    /// The one that was there; this is the other's number.
    Parent(Pid),
    /// The new one.
    Child(Inherited),
}

/// What other processes have left in the table, for the one process that is to take it.
#[derive(Debug)]
pub struct Inherited {
    own: Vec<RawFd>,
}

impl Keeper {
    /// Notes which descriptors are open. Those of `left` are not its own: they are for the first process that it makes ([`Inherited`]).
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn new(left: &[RawFd]) -> io::Result<Self> {
        let mut own = open_descriptors()?;
        own.retain(|number| !left.contains(number));
        Ok(Self { own })
    }

    /// Returns what other processes have left in the table, for this process: all of them have ended, and it makes none any more.
    pub fn inherit(&self) -> Inherited {
        Inherited {
            own: self.own.clone(),
        }
    }

    /// Makes a second process of this one, with a copy of its memory and with the same table of descriptors. It sees SIGCHLD when that one ends.
    ///
    /// The new process is like one that `fork(3)` made, except that handlers of `pthread_atfork` do not run: no library of this program
    /// registers one before the first thread.
    ///
    /// # Errors
    /// There are other threads; the kernel does not tell where the C library keeps the number of the thread; or what `clone` returns.
    #[expect(unsafe_code, reason = "clone")]
    pub fn clone_process(&self) -> io::Result<Side> {
        // Looked at by name: no descriptor is opened.
        let threads = fs::metadata(THREADS).map_err(|error| named(THREADS, &error))?;
        if threads.nlink() != LINKS_OF_ONE_THREAD {
            return Err(io::Error::other("there are other threads"));
        }
        let thread = number_of_this_thread()?;
        let flags = libc::CLONE_FILES
            | libc::CLONE_CHILD_SETTID
            | libc::CLONE_CHILD_CLEARTID
            | libc::SIGCHLD;
        let none = null_mut::<libc::c_void>();
        // The order of the last two differs between architectures (clone(2)).
        #[cfg(any(target_arch = "x86_64", target_arch = "riscv64"))]
        let (fourth, fifth) = (thread.cast::<libc::c_void>(), none);
        #[cfg(not(any(target_arch = "x86_64", target_arch = "riscv64")))]
        let (fourth, fifth) = (none, thread.cast::<libc::c_void>());
        // SAFETY: without CLONE_VM the new process has a copy of all memory and runs on its copy of this stack. There is one thread, so no lock is
        // held by a thread that the copy lacks. The kernel writes the new process's number to where the C library keeps that of its first
        // thread, in the copy, as `fork(3)` has it do.
        let pid = unsafe {
            libc::syscall(
                libc::SYS_clone,
                libc::c_long::from(flags),
                none,
                none,
                fourth,
                fifth,
            )
        };
        match i32::try_from(pid).ok() {
            Some(0) => Ok(Side::Child(Inherited {
                own: self.own.clone(),
            })),
            Some(pid) if pid > 0 => {
                let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidData)?;
                Ok(Side::Parent(pid))
            }
            _ => Err(named("clone", &last_errno().into())),
        }
    }
}

impl Inherited {
    /// Takes all descriptors that earlier processes have left open. Those that are dropped are closed for every process of the table.
    ///
    /// To be called before this process opens a descriptor.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    #[expect(unsafe_code, reason = "descriptors that no value owns")]
    pub fn take(self) -> io::Result<Vec<OwnedFd>> {
        let left = open_descriptors()?.into_iter();
        let left = left.filter(|number| !self.own.contains(number));
        Ok(left
            .map(|number| {
                // SAFETY: the descriptor is open, and no value owns it: the memory of this process is a copy of the keeper's, which owns those in
                // `own` alone, and the process that opened this one is gone. `take` consumes what entitles to it.
                unsafe { OwnedFd::from_raw_fd(number) }
            })
            .collect())
    }
}

/// Returns the numbers of all open descriptors but those of standard input, output and error.
///
/// # Errors
/// `/proc` cannot be read.
pub fn beside_standard() -> io::Result<Vec<RawFd>> {
    let mut numbers = open_descriptors()?;
    numbers.retain(|&number| number > libc::STDERR_FILENO);
    Ok(numbers)
}

/// Has the program that `command` starts have these descriptors too, under the same numbers. In this process nothing changes.
#[expect(unsafe_code, reason = "what runs between fork and exec")]
pub fn hand_on(command: &mut Command, descriptors: Vec<RawFd>) {
    let hand_on = move || {
        for &number in &descriptors {
            // SAFETY: the call changes a flag of a descriptor in the new process's own table. One that is not open is an error, which is not looked at.
            unsafe { libc::fcntl(number, libc::F_SETFD, 0) };
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes system calls alone, which `fcntl` may be there (signal-safety(7)), and allocates nothing. The
    // descriptors are those of the copy of the table that `fork` has made.
    unsafe { command.pre_exec(hand_on) };
}

/// Returns another descriptor of what this number names, with the rights that it was opened with: not more, as another opening of its path in `/proc`
/// might have.
///
/// # Errors
/// What `fcntl` returns; `EBADF` for a number that is not open.
#[expect(unsafe_code, reason = "a descriptor that no value owns")]
pub fn duplicate(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the call reads no memory. What the number names stays open.
    let duplicate = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, libc::STDERR_FILENO + 1) };
    match duplicate {
        -1 => Err(last_errno().into()),
        // SAFETY: the descriptor is new, so no other value owns it.
        number => Ok(unsafe { OwnedFd::from_raw_fd(number) }),
    }
}

/// What a file is, whatever its name comes to mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    device: u64,
    inode: u64,
    len: u64,
    /// A change of the contents or of the owner is one of this time, which only the kernel sets.
    changed: (i64, i64),
}

impl FileIdentity {
    /// Returns that of a file.
    pub fn of(file: &fs::Metadata) -> Self {
        Self {
            device: file.dev(),
            inode: file.ino(),
            len: file.size(),
            changed: (file.ctime(), file.ctime_nsec()),
        }
    }
}

/// Has `command` start this file, whatever its program is, and nothing else. The new process opens it by its path, looks at what it is, and keeps it under
/// the number of `place`, all in a table of descriptors of its own: what another process puts there is not started.
///
/// # Errors
/// The path has a zero byte. The command fails to start if what the path names is another file by then.
#[expect(unsafe_code, reason = "what runs between fork and exec")]
pub fn start_only(
    command: &mut Command,
    path: &Path,
    file: FileIdentity,
    place: RawFd,
) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let open = move || {
        let opened = rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let found = rustix::fs::fstat(&opened)?;
        let found = FileIdentity {
            device: found.st_dev,
            inode: found.st_ino,
            len: found.st_size.unsigned_abs(),
            changed: (found.st_ctime, found.st_ctime_nsec.cast_signed()),
        };
        if found != file {
            return Err(Errno::STALE.into());
        }
        // SAFETY: the call changes the new process's own table. What `place` names there is a copy that nothing in it owns.
        match unsafe { libc::dup2(opened.as_raw_fd(), place) } {
            -1 => Err(last_errno().into()),
            _ => Ok(()),
        }
    };
    // SAFETY: between fork and exec the closure makes system calls alone and allocates nothing: the path is made, and errors are numbers.
    unsafe { command.pre_exec(open) };
    Ok(())
}

/// Has another process do something, which has a copy of this one's memory and of its table of descriptors, and waits for its end. What it opens no other
/// process can reach.
///
/// To be called by a process of one thread.
///
/// # Errors
/// There can be no such process; or it has failed, with the number of its error.
#[expect(unsafe_code, reason = "fork and _exit")]
pub fn apart(action: impl FnOnce() -> Result<(), Errno>) -> io::Result<()> {
    // SAFETY: the caller has one thread, so no lock is held by a thread that the copy lacks. The copy ends by `_exit`, which runs nothing that the
    // caller has registered for its own end.
    let number = unsafe { libc::fork() };
    if number == 0 {
        let code = action().err().map_or(0, Errno::raw_os_error);
        // SAFETY: the call ends the process.
        unsafe { libc::_exit(code) };
    }
    let Some(process) = Pid::from_raw(number).filter(|_| number > 0) else {
        return Err(last_errno().into());
    };
    let status = loop {
        match waitpid(Some(process), WaitOptions::empty()) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(status) => break status,
        }
    };
    match status.and_then(|(_, status)| status.exit_status()) {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(code)),
        None => Err(io::Error::other("it was ended by a signal")),
    }
}

/// Makes a descriptor that stays open name what another one names, for every process of the table (`dup3(2)`).
///
/// # Errors
/// What `dup3` returns.
#[expect(unsafe_code, reason = "dup3 to a number")]
pub fn replace(place: BorrowedFd<'_>, by: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: both are open for as long as they are borrowed. The number of `place` is open before and after, so whoever owns it owns it still.
    match unsafe { libc::dup3(by.as_raw_fd(), place.as_raw_fd(), libc::O_CLOEXEC) } {
        -1 => Err(last_errno().into()),
        _ => Ok(()),
    }
}

/// Returns where the C library keeps the number of the calling thread, which is the first one.
#[expect(unsafe_code, reason = "prctl, and what it points at")]
fn number_of_this_thread() -> io::Result<*mut libc::pid_t> {
    let mut address: *mut libc::pid_t = null_mut();
    // SAFETY: the call writes one pointer to the variable that it is given.
    let done = unsafe { libc::prctl(PR_GET_TID_ADDRESS, &raw mut address) };
    if done != 0 {
        return Err(named("PR_GET_TID_ADDRESS", &last_errno().into()));
    }
    let mismatch = || io::Error::other("the number of the thread is not where it should be");
    if address.is_null() {
        return Err(mismatch());
    }
    // SAFETY: the C library gave the kernel this address of a field of its own, which lives as long as the thread (set_tid_address(2)).
    let number = unsafe { address.read() };
    let own = rustix::thread::gettid().as_raw_nonzero().get();
    (number == own).then_some(address).ok_or_else(mismatch)
}

/// Returns the numbers of all open descriptors.
///
/// The kernel says how many places the table has, and each is looked at. For a list of `/proc/self/fd` it would make an inode of each descriptor.
fn open_descriptors() -> io::Result<Vec<RawFd>> {
    // proc_pid_status(5). The descriptor that this is read by is closed by the time that the places are looked at.
    let status = fs::read_to_string(STATUS).map_err(|error| named(STATUS, &error))?;
    let size = status
        .lines()
        .find_map(|line| line.strip_prefix("FDSize:")?.trim().parse().ok())
        .ok_or(io::ErrorKind::InvalidData)?;
    Ok((0..size).filter(|&number| is_open(number)).collect())
}

#[expect(unsafe_code, reason = "fcntl of a number")]
fn is_open(number: RawFd) -> bool {
    // SAFETY: the call reads the flags of a descriptor, if there is one of this number, and changes nothing.
    unsafe { libc::fcntl(number, libc::F_GETFD) != -1 }
}

/// Names what an error is about: whoever reads it has to know what a kernel or a sandbox is to allow.
fn named(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}
