//! A program that is tried before it gets anything: the keeper starts it as a child that has the records and no socket, and waits for what it says.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, PipeReader, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::io::ioctl_fionbio;
use serde_json::Value;
use turnbuckle_sys::keeper::{FileIdentity, hand_on, start_only};

use super::handed;
use super::kept::Kept;
use super::upgrade::{Tried, Upgrade};
use crate::config::{Config, Persona};
use crate::process::{owner, path_of_descriptor};

/// Name of the subcommand that a program is tried with. One that does not know it refuses its command line, and touches nothing.
pub(super) const SUBCOMMAND: &str = "adopts";

/// What a program calls itself that is tried.
const NAME: &str = "turnbuckle";

/// Bytes of what a program says that are looked at.
const SAID_LEN_MAX: u64 = 64 << 10;

/// Characters of what a program says that has refused, for the operator.
const QUOTED_LEN_MAX: usize = 1000;

/// A program of the operator's choice. What was tried is what is started, or nothing is: its processes open it themselves, by its path, because the relay
/// could put another file in the place of any descriptor of this process, which may have more rights.
pub(super) struct Program {
    pub(super) path: PathBuf,
    file: FileIdentity,
    /// A number that is free in the program's process.
    place: OwnedFd,
}

/// A program that is being tried.
pub(super) struct Trial {
    pub(super) program: Program,
    pub(super) upgrade: Upgrade,
    pub(super) number: u64,
    child: Killed,
    said: PipeReader,
    deadline: Instant,
}

/// A child that is killed when this is dropped.
struct Killed(Child);

impl Program {
    /// Opens what an upgrade names, or what is now where the running program was found.
    ///
    /// # Errors
    ///
    /// There is no such program, or the relay may not choose it; in words.
    pub(super) fn open(upgrade: &Upgrade, usual: &Path, config: &Config) -> Result<Self, String> {
        let process = &config.process;
        let is_other_user = process.user.is_some() || process.group.is_some();
        // guard: V-63-program
        if upgrade.program.is_some() && is_other_user {
            return Err(
                "with proc-user or proc-group no program can be named: the relay, which hears the \
                 network, must not choose what the keeper runs with more rights"
                    .to_owned(),
            );
        }
        let path = upgrade.program.clone().unwrap_or_else(|| usual.to_owned());
        let named = |error: io::Error| format!("{}: {error}", path.display());
        if let Some(relay) = owner(process) {
            is_out_of_reach(&path, relay).map_err(named)?;
        }
        let file = fs::metadata(&path).map_err(named)?;
        let place = File::open("/dev/null").map_err(named)?;
        Ok(Self {
            file: FileIdentity::of(&file),
            place: place.into(),
            path,
        })
    }

    /// Returns a command that starts it under a name.
    ///
    /// # Errors
    ///
    /// Its path is none.
    pub(super) fn command(&self, name: OsString) -> io::Result<Command> {
        let place = self.number();
        let mut command = Command::new(path_of_descriptor(place));
        command.arg0(name);
        start_only(&mut command, &self.path, self.file, place)?;
        Ok(command)
    }

    /// Returns the number that the program has in its process.
    fn number(&self) -> RawFd {
        self.place.as_raw_fd()
    }
}

/// Checks that a user cannot change what a path names.
fn is_out_of_reach(path: &Path, (user, group): (u32, u32)) -> io::Result<()> {
    /// Bits of `st_mode`: who else may write, and that in a directory only a file's owner may take it away.
    const GROUP_MAY: u32 = 0o020;
    const OTHERS_MAY: u32 = 0o002;
    const STICKY: u32 = 0o1000;

    let path = fs::canonicalize(path)?;
    for (depth, part) in path.ancestors().enumerate() {
        let found = fs::metadata(part)?;
        let is_shared = depth > 0 && found.mode() & STICKY != 0;
        let may_write =
            found.mode() & OTHERS_MAY != 0 || found.mode() & GROUP_MAY != 0 && found.gid() == group;
        if found.uid() == user || may_write && !is_shared {
            return Err(io::Error::other(format!(
                "{} can be changed by the user that the relay runs as (proc-user, proc-group), who \
                 must not choose what the keeper runs with more rights; make it root's and writable \
                 by root alone",
                part.display()
            )));
        }
    }
    Ok(())
}

impl Trial {
    /// Starts a program that says whether it could take over.
    ///
    /// # Errors
    ///
    /// It cannot be started; in words.
    pub(super) fn begin(
        kept: &Kept,
        config: &Config,
        program: Program,
        upgrade: Upgrade,
        number: u64,
    ) -> Result<Self, String> {
        let started = || -> io::Result<_> {
            let list = handed::write(kept, number, None)?;
            let (said, words) = io::pipe()?;
            ioctl_fionbio(&said, true)?;
            let mut command = program.command(NAME.into())?;
            command.arg(SUBCOMMAND).arg(list.as_raw_fd().to_string());
            if config.persona == Persona::Turnserver {
                command.arg("turnserver");
            }
            command.args(env::args_os().skip(1));
            command.stdin(Stdio::null());
            command.stdout(words.try_clone()?).stderr(words);
            let mut descriptors = handed::named(kept);
            // An interpreter opens a script by the descriptor's path.
            descriptors.extend([list.as_raw_fd(), program.number()]);
            hand_on(&mut command, descriptors);
            Ok((command.spawn()?, said))
        };
        let (child, said) = started().map_err(|error| {
            let path = program.path.display();
            format!("{path} cannot be started: {error}")
        })?;
        Ok(Self {
            child: Killed(child),
            said,
            number,
            deadline: Instant::now() + upgrade.within,
            program,
            upgrade,
        })
    }

    /// Returns how long to wait until the trial is over at the latest.
    pub(super) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Returns what has come of it, if it is over.
    pub(super) fn outcome(&mut self) -> Option<Result<Tried, String>> {
        let path = self.program.path.display();
        let status = match self.child.0.try_wait() {
            Ok(Some(status)) => status,
            Ok(None) if self.left().is_zero() => {
                let within = self.upgrade.within.as_secs_f32();
                return Some(Err(format!(
                    "{path} has not said within {within} s whether it can take over"
                )));
            }
            Ok(None) => return None,
            Err(error) => return Some(Err(error.to_string())),
        };
        let mut said = Vec::new();
        // It ends with an error where another process still has the other end.
        let _ = (&self.said).take(SAID_LEN_MAX).read_to_end(&mut said);
        let said = String::from_utf8_lossy(&said);
        let mut lines = said.lines().rev();
        let verdict = lines.find_map(|line| {
            let verdict: Value = serde_json::from_str(line).ok()?;
            verdict["adopts"].is_boolean().then_some(verdict)
        });
        let number = |verdict: &Value, name: &str| verdict[name].as_u64().unwrap_or(0);
        Some(match verdict {
            Some(verdict) if verdict["adopts"] == true && status.success() => Ok(Tried {
                number: self.number,
                program: path.to_string(),
                version: verdict["version"].as_str().unwrap_or("?").to_owned(),
                allocations: number(&verdict, "allocations"),
                waiting: number(&verdict, "waiting"),
                ending: number(&verdict, "ending"),
            }),
            Some(verdict) => {
                let why = verdict["why"].as_str().unwrap_or("it does not say why");
                Err(format!("{path} cannot take over: {why}"))
            }
            None => {
                let quoted: String = said.trim().chars().take(QUOTED_LEN_MAX).collect();
                let separator = if quoted.is_empty() { "" } else { ": " };
                Err(format!(
                    "{path} does not say whether it can take over, and ended with {status}{separator}{quoted}"
                ))
            }
        })
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        // It has ended, or is to.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use turnbuckle_sys::keeper::replace;

    use super::*;
    use crate::configured::configured;

    fn upgrade() -> Upgrade {
        Upgrade {
            program: None,
            within: Duration::ZERO,
            is_dry_run: false,
        }
    }

    #[test]
    fn a_file_that_a_relay_puts_in_the_place_of_the_program_is_not_run() {
        let config = configured(&[]);
        let program = Program::open(&upgrade(), Path::new("/bin/echo"), &config).unwrap();
        // As a process does that shares the table.
        let other = File::open("/bin/false").unwrap();
        replace(program.place.as_fd(), other.as_fd()).unwrap();
        let mut command = program.command("echo".into()).unwrap();
        let ran = command.arg("the program").output().unwrap();
        assert_eq!(ran.stdout, b"the program\n");
    }

    #[test]
    fn a_program_that_is_another_file_by_now_is_not_run() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program");
        fs::copy("/bin/true", &path).unwrap();
        let program = Program::open(&upgrade(), &path, &configured(&[])).unwrap();
        assert!(program.command("x".into()).unwrap().status().is_ok());
        let next = directory.path().join("next");
        fs::copy("/bin/false", &next).unwrap();
        fs::rename(next, &path).unwrap();
        let refused = program.command("x".into()).unwrap().status();
        assert!(refused.is_err(), "{refused:?}");
    }

    #[test]
    fn a_program_is_refused_that_the_user_of_the_relay_can_change() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program");
        fs::copy("/bin/true", &path).unwrap();
        let set_mode = |path: &Path, mode| {
            let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
            fs::set_permissions(path, permissions).unwrap();
        };
        let own = (rustix::process::geteuid(), rustix::process::getegid());
        let (own_user, own_group) = (own.0.as_raw(), own.1.as_raw());
        let (user, group) = (own_user + 1, own_group + 1);
        let check = |user, group| is_out_of_reach(&path, (user, group)).is_ok();
        assert!(check(user, group));
        assert!(!check(own_user, group), "its owner");
        set_mode(&path, 0o775);
        assert!(check(user, group));
        assert!(!check(user, own_group), "its group");
        set_mode(&path, 0o757);
        assert!(!check(user, group), "anybody");
        set_mode(&path, 0o755);
        set_mode(directory.path(), 0o777);
        assert!(!check(user, group), "its directory");
        set_mode(directory.path(), 0o1777);
        assert!(check(user, group));
    }
}
