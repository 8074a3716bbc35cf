//! The process that was started, which service managers, containers and shells watch: it stays when a keeper of another program has all the rest.
//!
//! Then it is no keeper any more. It passes signals on to the one that is, waits until nobody is left, and ends with that one's exit code.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};

use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, WaitOptions, WaitStatus, getpid, pidfd_open, pidfd_send_signal, wait,
};
use turnbuckle_sys::keeper::duplicate;
use turnbuckle_sys::mapped::Mapped;

/// Exit code of a process that was ended by a signal, as shells count.
pub(super) const SIGNALLED: u8 = 128;

/// Words of the page: number of the process that was started, and of the keeper.
const STARTED: usize = 0;
const KEEPER: usize = 1;
const COUNT: usize = 2;

/// Processes between the one that was started and a keeper, at most.
const GENERATIONS_MAX: usize = 16;

/// A page that all programs of one server share, one after the other.
pub(super) struct Main {
    pub(super) file: File,
    words: Arc<Mapped>,
}

impl Main {
    /// Makes the page of a server that was started as this process.
    pub(super) fn new() -> io::Result<Self> {
        let file = memfd_create("turnbuckle-main", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, (COUNT * size_of::<u64>()) as u64)?;
        let page = Self::of(file.into())?;
        page.set(STARTED, number_of_this_process());
        page.set(KEEPER, number_of_this_process());
        Ok(page)
    }

    /// Returns the page that another program has handed to this one.
    pub(super) fn of_other(descriptor: RawFd) -> io::Result<Self> {
        Self::of(duplicate(descriptor)?.into())
    }

    fn of(file: File) -> io::Result<Self> {
        let words = Arc::new(Mapped::new(&file, COUNT)?);
        Ok(Self { file, words })
    }

    /// Returns the number of the process that was started.
    pub(super) fn process(&self) -> u32 {
        self.get(STARTED)
    }

    /// Returns whether that is this process.
    pub(super) fn is_this_process(&self) -> bool {
        self.process() == std::process::id()
    }

    /// Returns the number of the keeper.
    pub(super) fn keeper(&self) -> u32 {
        self.get(KEEPER)
    }

    /// Has this process count as the one that was started, because that one has ended.
    pub(super) fn be_started(&self) {
        self.set(STARTED, number_of_this_process());
    }

    /// Names the keeper.
    pub(super) fn set_keeper(&self, number: u64) {
        self.set(KEEPER, number);
    }

    fn get(&self, word: usize) -> u32 {
        u32::try_from(self.words.words()[word].load(Acquire)).unwrap_or(0)
    }

    fn set(&self, word: usize, value: u64) {
        self.words.words()[word].store(value, Release);
    }

    /// Waits until no process of the server is left, and returns the exit code of the last keeper. All of them have this process as their parent in
    /// the end.
    ///
    /// # Errors
    ///
    /// Signals cannot be read.
    pub(super) fn stay(&self, signals: &SignalFd) -> io::Result<u8> {
        let mut code = 0;
        loop {
            let mut awaited = [PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
            while let Err(Errno::INTR) = poll(&mut awaited, None) {}
            while let Some(signal) = signals.read_signal()? {
                let number = i32::try_from(signal.ssi_signo).unwrap_or(0);
                if number != Signal::SIGCHLD as i32 {
                    self.pass_on(number);
                }
            }
            loop {
                match wait(WaitOptions::NOHANG) {
                    Ok(Some((process, status))) => {
                        if u32::try_from(process.as_raw_nonzero().get()) == Ok(self.keeper()) {
                            code = code_of(status);
                        }
                    }
                    Ok(None) => break,
                    Err(_) => return Ok(code),
                }
            }
        }
    }

    /// Passes a signal on to the keeper. One that is about to leave to another reads what came for it after it has named that one, so a signal
    /// reaches the one or the other: if there is another name after it was sent, it is sent to that one too.
    fn pass_on(&self, signal: i32) {
        let signal = rustix::process::Signal::from_named_raw(signal);
        let mut sent_to = None;
        loop {
            let keeper = self.keeper();
            if sent_to == Some(keeper) {
                return;
            }
            sent_to = Some(keeper);
            if let (Some(keeper), Some(signal)) = (descendant(keeper), signal) {
                // It may have ended meanwhile, which is seen next.
                let _ = pidfd_send_signal(&keeper, signal);
            }
        }
    }
}

/// Returns the process of a number if it comes from this one. The number is from memory that a relay writes too, which may have fewer rights: it is not to
/// choose whom this process signals. This process shares its descriptors with nobody once it has handed all over.
fn descendant(number: u32) -> Option<OwnedFd> {
    let own = getpid();
    let number = i32::try_from(number).ok().and_then(Pid::from_raw)?;
    let process = pidfd_open(number, PidfdFlags::empty()).ok()?;
    // What has this number now is what was opened, or that has ended, and a signal for it is nobody's.
    let mut ancestor = number;
    for _ in 0..GENERATIONS_MAX {
        ancestor = parent(ancestor)?;
        // guard: V-63-signalled
        if ancestor == own {
            return Some(process);
        }
    }
    None
}

/// Returns the process that another one is a child of (proc_pid_stat(5)).
fn parent(process: Pid) -> Option<Pid> {
    let status = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).ok()?;
    let (_, rest) = status.rsplit_once(')')?;
    Pid::from_raw(rest.split_whitespace().nth(1)?.parse().ok()?)
}

/// Returns the number of this process as a word.
pub(super) fn number_of_this_process() -> u64 {
    u64::from(std::process::id())
}

/// Returns the exit code that says how a process has ended.
pub(super) fn code_of(status: WaitStatus) -> u8 {
    let signal = status.terminating_signal();
    let signal = signal.map(|signal| SIGNALLED.saturating_add(u8::try_from(signal).unwrap_or(0)));
    let code = status
        .exit_status()
        .map(|code| u8::try_from(code).unwrap_or(1));
    signal.or(code).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn signals_go_to_no_process_that_does_not_come_from_this_one() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        assert!(descendant(child.id()).is_some());
        let parent = parent(getpid()).unwrap().as_raw_nonzero().get();
        for other in [1, parent.unsigned_abs()] {
            assert!(descendant(other).is_none(), "{other}");
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
