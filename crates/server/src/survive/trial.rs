//! A program that is tried before it gets anything: the keeper starts it as a child that has the records and no socket, and waits for what it says.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, PipeReader, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::io::ioctl_fionbio;
use serde_json::Value;
use turnbuckle_sys::keeper::hand_on;

use super::handed;
use super::kept::Kept;
use super::upgrade::{Tried, Upgrade};
use crate::config::{Config, Persona};
use crate::process::path_of_descriptor;

/// Name of the subcommand that a program is tried with. One that does not know it refuses its command line, and touches nothing.
pub(super) const SUBCOMMAND: &str = "adopts";

/// What a program calls itself that is tried.
const NAME: &str = "turnbuckle";

/// Bytes of what a program says that are looked at.
const SAID_LEN_MAX: u64 = 64 << 10;

/// Characters of what a program says that has refused, for the operator.
const QUOTED_LEN_MAX: usize = 1000;

/// A program of the operator's choice, open, so that what was tried is what is started.
pub(super) struct Program {
    pub(super) path: PathBuf,
    pub(super) file: File,
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
        match File::open(&path) {
            Ok(file) => Ok(Self { path, file }),
            Err(error) => Err(format!("{}: {error}", path.display())),
        }
    }

    /// Returns a command that starts it under a name.
    pub(super) fn command(&self, name: OsString) -> Command {
        let mut command = Command::new(path_of_descriptor(self.file.as_raw_fd()));
        command.arg0(name);
        command
    }
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
            let mut command = program.command(NAME.into());
            command.arg(SUBCOMMAND).arg(list.as_raw_fd().to_string());
            if config.persona == Persona::Turnserver {
                command.arg("turnserver");
            }
            command.args(env::args_os().skip(1));
            command.stdin(Stdio::null());
            command.stdout(words.try_clone()?).stderr(words);
            let mut descriptors = handed::named(kept);
            // An interpreter opens a script by the descriptor's path.
            descriptors.extend([list.as_raw_fd(), program.file.as_raw_fd()]);
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
