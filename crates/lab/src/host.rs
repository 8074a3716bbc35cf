//! A host of the laboratory: a prefix that puts a command onto it, and a shell that stays open for small commands.
//!
//! Whether `ip netns exec …` or `ssh …` reaches the host makes no difference: the prefix starts `sh`, and what is to run arrives on its
//! standard input, so nothing is quoted twice. The shell that stays open answers questions (counters, signals) without starting the prefix
//! again, which over ssh costs a handshake and in a namespace a process that competes with what is measured.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::counters::Snapshot;
use crate::cpus::CpuList;
use crate::program::{Launch, Program};

/// Separates the answers of the open shell; nothing prints such a line by itself.
const END_MARK: &str = "@@turnbuckle-lab-end@@";

/// Where programs run and counters are read.
#[derive(Debug)]
pub(crate) struct Host {
    /// `load`, `relay` or `peer`.
    pub(crate) name: String,
    /// Words before every command; empty for this machine itself.
    pub(crate) prefix: Vec<String>,
    /// CPUs for the programs of this host.
    pub(crate) cpus: CpuList,
    shell: Mutex<Shell>,
}

#[derive(Debug)]
struct Shell {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Host {
    /// Opens the shell.
    pub(crate) fn new(name: &str, prefix: &[String], cpus: CpuList) -> Result<Self> {
        let mut child = command(prefix)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .with_context(|| format!("host {name}: cannot start `{} sh`", prefix.join(" ")))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("host {name}: the shell has no pipes");
        };
        let host = Self {
            name: name.to_owned(),
            prefix: prefix.to_vec(),
            cpus,
            shell: Mutex::new(Shell {
                child,
                input,
                output: BufReader::new(output),
            }),
        };
        host.run("true")
            .with_context(|| format!("host {name}: `{} sh` does not answer", prefix.join(" ")))?;
        Ok(host)
    }

    /// Runs a line of shell and returns what it prints.
    ///
    /// # Errors
    ///
    /// If the line ends with another status than 0; what it printed is part of the error.
    pub(crate) fn run(&self, line: &str) -> Result<String> {
        let (status, text) = self.answer(line)?;
        if status != "0" {
            bail!(
                "host {}: `{line}` ended with status {status}: {}",
                self.name,
                text.trim()
            );
        }
        Ok(text)
    }

    fn answer(&self, line: &str) -> Result<(String, String)> {
        let mut shell = self
            .shell
            .lock()
            .map_err(|_| anyhow::anyhow!("host {}: shell lost", self.name))?;
        // A subshell, so that `exit` and a failed redirection end the line, not the shell.
        writeln!(
            shell.input,
            "( {line}\n) </dev/null 2>&1; status=$?; echo; echo {END_MARK} $status"
        )
        .and_then(|()| shell.input.flush())
        .with_context(|| format!("host {}: shell is gone", self.name))?;
        let mut text = String::new();
        loop {
            let mut next = String::new();
            if shell.output.read_line(&mut next)? == 0 {
                bail!("host {}: shell ended in the middle of `{line}`", self.name);
            }
            if let Some(status) = next.strip_prefix(END_MARK) {
                let status = status.trim().to_owned();
                text.pop();
                return Ok((status, text));
            }
            text.push_str(&next);
        }
    }

    /// Starts a program on the CPUs of this host, or on those that `launch` names.
    pub(crate) fn start(&self, launch: &Launch<'_>) -> Result<Program> {
        Program::start(self, launch)
    }

    /// Reads the counters of the host, of the processes `pids` and of the kernel threads `kernel_threads`.
    pub(crate) fn snapshot(&self, pids: &[u32], kernel_threads: &[u32]) -> Result<Snapshot> {
        let before = Instant::now();
        let text = self.run(&Snapshot::command(pids, kernel_threads))?;
        Ok(Snapshot::parse(before + before.elapsed() / 2, &text))
    }

    /// Sends a signal; a process that is gone already is no failure.
    pub(crate) fn signal(&self, pid: u32, signal: &str) {
        let _ = self.run(&format!("kill -{signal} {pid} 2>/dev/null || true"));
    }

    /// Returns how many processors the host has.
    pub(crate) fn cpu_count(&self) -> Result<usize> {
        let text = self.run("nproc --all")?;
        text.trim()
            .parse()
            .with_context(|| format!("host {}: nproc says `{}`", self.name, text.trim()))
    }

    /// Waits until somebody takes connections at `port`, and by the same number of sockets for a while.
    pub(crate) fn wait_for_tcp_port(
        &self,
        port: u16,
        limit: Duration,
        alive: impl Fn() -> Result<()>,
    ) -> Result<()> {
        // State 0A is LISTEN.
        let line = format!(
            "cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | awk '$2 ~ /:{port:04X}$/ && $4 == \"0A\"' | wc -l"
        );
        self.wait_for_sockets(&line, "TCP", port, limit, alive)
    }

    /// Waits until `sockets` UDP sockets or more are bound to `port`, and their number stays the same for a while.
    ///
    /// The only sign of readiness that all servers share.
    pub(crate) fn wait_for_udp_port(
        &self,
        port: u16,
        limit: Duration,
        alive: impl Fn() -> Result<()>,
    ) -> Result<()> {
        let line = format!(
            "cat /proc/net/udp /proc/net/udp6 2>/dev/null | awk '$2 ~ /:{port:04X}$/' | wc -l"
        );
        self.wait_for_sockets(&line, "UDP", port, limit, alive)
    }

    /// Waits until the number that `line` prints is not 0 and has not changed for a while.
    fn wait_for_sockets(
        &self,
        line: &str,
        transport: &str,
        port: u16,
        limit: Duration,
        alive: impl Fn() -> Result<()>,
    ) -> Result<()> {
        let deadline = Instant::now() + limit;
        let mut bound = (0, Instant::now());
        loop {
            alive()?;
            let now: u32 = self.run(line)?.trim().parse().unwrap_or(0);
            if now != bound.0 {
                bound = (now, Instant::now());
            } else if now > 0 && bound.1.elapsed() >= Duration::from_millis(300) {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("nothing listens on {transport} port {port} after {limit:?}");
            }
            crate::interrupt::pause(Duration::from_millis(50))?;
        }
    }
}

/// Returns the command that reads shell lines on the host.
pub(crate) fn command(prefix: &[String]) -> Command {
    let mut words = prefix
        .iter()
        .map(String::as_str)
        // A session of its own: the terminal's Ctrl-C reaches only the runner, which ends its programs in order, and each program
        // has its own autogroup (see `Program::start`).
        .chain(["setsid", "-w", "sh"]);
    let mut command = Command::new(words.next().unwrap_or("sh"));
    command.args(words);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> Host {
        Host::new("here", &[], CpuList::all(1)).expect("a shell")
    }

    #[test]
    fn answers_with_what_a_line_prints_and_keeps_the_shell_for_the_next() {
        let host = here();
        assert_eq!(host.run("printf 'a b'").expect("an answer"), "a b");
        assert_eq!(
            host.run("echo one; echo two").expect("an answer"),
            "one\ntwo\n"
        );
        assert_eq!(host.run("true").expect("an answer"), "");
    }

    #[test]
    fn a_line_that_fails_is_an_error_with_its_output() {
        let host = here();
        let error = host.run("echo broken; exit 3").expect_err("a failure");
        assert!(error.to_string().contains("status 3: broken"), "{error}");
        assert!(host.run("true").is_ok(), "the shell survives");
    }

    #[test]
    fn a_prefix_that_does_not_start_is_named() {
        let error =
            Host::new("load", &["no-such-prefix".to_owned()], CpuList::all(1)).expect_err("none");
        assert!(format!("{error:#}").contains("no-such-prefix"), "{error:#}");
    }
}
