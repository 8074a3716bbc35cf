//! A program on a host: started on its CPUs, its events read, ended when dropped.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::cpus::CpuList;
use crate::host::{Host, command};
use crate::interrupt;

/// Lines of output that are kept to say why a program failed, and what a server accounted for at its end.
const LINES_KEPT: usize = 100;

/// What to start.
#[derive(Debug)]
pub(crate) struct Launch<'a> {
    /// In messages.
    pub(crate) title: &'a str,
    pub(crate) words: &'a [String],
    pub(crate) cpus: &'a CpuList,
    pub(crate) weight: Weight,
}

/// What a program weighs against others that want the same CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weight {
    /// More than whatever else runs on the machine.
    Measured,
    /// As much as anything else: it may not hold up the instruments that watch what it does to others.
    Disturbance,
}

impl Weight {
    /// Returns it as `/proc/self/autogroup` takes it.
    fn nice(self) -> i8 {
        match self {
            Self::Measured => -10,
            Self::Disturbance => 0,
        }
    }
}

impl Launch<'_> {
    /// Returns the shell lines that start it.
    ///
    /// The scheduler weighs sessions (autogroups), not processes, against each other where `sched_autogroup_enabled` is set: without the
    /// first line another session's build takes half of the server's CPU whatever its nice value. Descriptors: a relay socket each.
    ///
    /// Beside the program a *watcher* waits for the end of the shell's input, which is that of the runner, however it ends, and of the
    /// connection to a real machine; then it kills the program with all that it started (its process group; `setsid` began one). The
    /// braces have the shell read all lines before the watcher can take them for input.
    pub(crate) fn script(&self) -> String {
        format!(
            "{{\n\
             {{ echo {} >/proc/self/autogroup; }} 2>/dev/null\n\
             ulimit -n 100000 2>/dev/null || ulimit -n \"$(ulimit -H -n)\"\n\
             exec 3<&0\n\
             ( ( cat <&3; kill -KILL 0 ) >/dev/null 2>&1 & )\n\
             echo \"@@pid $$\"\n\
             exec taskset -c {} {} </dev/null 3<&-\n\
             }}\n",
            self.weight.nice(),
            self.cpus,
            shell_words::join(self.words),
        )
    }
}

type Lines = Arc<Mutex<VecDeque<String>>>;

/// A running program; killed when dropped.
#[derive(Debug)]
pub(crate) struct Program {
    title: String,
    /// On its host.
    pub(crate) pid: u32,
    child: Mutex<Child>,
    /// Its end kills what runs.
    leash: Option<ChildStdin>,
    events: Receiver<Value>,
    lines: Lines,
    readers: Vec<thread::JoinHandle<()>>,
}

/// How long what was killed may take to be gone.
const KILL_LIMIT: Duration = Duration::from_secs(5);

impl Drop for Program {
    fn drop(&mut self) {
        self.leash.take();
        let _ = self.wait(KILL_LIMIT);
        // By now this is what reaches the host, and nothing runs there any more.
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl Program {
    pub(crate) fn start(host: &Host, launch: &Launch<'_>) -> Result<Self> {
        let title = format!("{} on {}", launch.title, host.name);
        let mut child = command(&host.prefix)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {title}"))?;
        let mut leash = child.stdin.take().context("no pipe")?;
        leash
            .write_all(launch.script().as_bytes())
            .with_context(|| format!("cannot start {title}"))?;
        let (Some(output), Some(errors)) = (child.stdout.take(), child.stderr.take()) else {
            bail!("{title}: no pipes");
        };
        let (sender, events) = channel();
        let lines = Lines::default();
        let (pid_sender, pid) = channel();
        let readers = vec![
            read_lines(output, Arc::clone(&lines), move |line| {
                if let Some(pid) = line.strip_prefix("@@pid ") {
                    let _ = pid_sender.send(pid.trim().parse::<u32>());
                    return false;
                }
                let event = line
                    .starts_with('{')
                    .then(|| serde_json::from_str::<Value>(line));
                if let Some(Ok(event)) = event {
                    let _ = sender.send(event);
                    return false;
                }
                true
            }),
            read_lines(errors, Arc::clone(&lines), |_| true),
        ];
        let pid = pid
            .recv_timeout(Duration::from_secs(30))
            .ok()
            .and_then(Result::ok);
        let mut program = Self {
            title,
            pid: 0,
            child: Mutex::new(child),
            leash: Some(leash),
            events,
            lines,
            readers,
        };
        let Some(pid) = pid else {
            bail!("{} did not start: {}", program.title, program.output());
        };
        program.pid = pid;
        Ok(program)
    }

    /// Fails with the program's output if it has ended.
    pub(crate) fn check_alive(&self) -> Result<()> {
        let status = self
            .child
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .try_wait()?;
        if let Some(status) = status {
            self.read_to_the_end();
            bail!("{} ended ({status}): {}", self.title, self.output());
        }
        Ok(())
    }

    /// Waits for the last lines of a program that has ended; not for long, because something it started may hold its output open.
    fn read_to_the_end(&self) {
        let deadline = Instant::now() + Duration::from_secs(2);
        while !self.readers.iter().all(thread::JoinHandle::is_finished) && Instant::now() < deadline
        {
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the event of this name; earlier ones are skipped.
    pub(crate) fn event(&self, name: &str, limit: Duration) -> Result<Value> {
        let deadline = Instant::now() + limit;
        loop {
            interrupt::check()?;
            match self.events.recv_timeout(Duration::from_millis(50)) {
                Ok(event) if event.get("event").and_then(Value::as_str) == Some(name) => {
                    return Ok(event);
                }
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    self.read_to_the_end();
                    bail!(
                        "{} ended without the event `{name}`: {}",
                        self.title,
                        self.output()
                    );
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() > deadline => {
                    bail!(
                        "{}: no event `{name}` within {limit:?}: {}",
                        self.title,
                        self.output()
                    );
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Waits until it has ended, as far as that takes no longer than `limit`.
    fn wait(&self, limit: Duration) -> std::io::Result<bool> {
        let deadline = Instant::now() + limit;
        loop {
            let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
            if child.try_wait()?.is_some() {
                return Ok(true);
            }
            drop(child);
            if Instant::now() > deadline {
                return Ok(false);
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Asks for its end by `signal` and returns the last lines it printed; killed after `limit`.
    ///
    /// What it started and left behind is killed in any case.
    pub(crate) fn stop(mut self, host: &Host, signal: &str, limit: Duration) -> Result<String> {
        host.signal(self.pid, signal);
        self.wait(limit)?;
        self.leash.take();
        self.wait(KILL_LIMIT)?;
        self.read_to_the_end();
        Ok(self.output())
    }

    /// Returns the last lines it printed.
    pub(crate) fn output(&self) -> String {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join("\n")
    }
}

/// Hands each line to `is_text` and keeps those that it takes for text.
fn read_lines(
    source: impl Read + Send + 'static,
    lines: Lines,
    is_text: impl Fn(&str) -> bool + Send + 'static,
) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut source = BufReader::new(source);
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            match source.read_until(b'\n', &mut bytes) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            let line = String::from_utf8_lossy(&bytes);
            let line = line.trim_end();
            if is_text(line) {
                let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
                if lines.len() == LINES_KEPT {
                    lines.pop_front();
                }
                lines.push_back(line.to_owned());
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(script: &str) -> (Host, Program) {
        let host = Host::new("here", &[], CpuList::all(1)).expect("a shell");
        let words = ["sh", "-c", script].map(str::to_owned);
        let program = host
            .start(&Launch {
                title: "double",
                words: &words,
                cpus: &CpuList::all(1),
                weight: Weight::Measured,
            })
            .expect("a program");
        (host, program)
    }

    const LIMIT: Duration = Duration::from_secs(20);

    #[test]
    fn reads_events_in_order_and_keeps_other_lines() {
        let (host, program) = start(
            r#"echo hello; echo '{"event":"ready","n":1}'; echo bye >&2; echo '{"event":"result","n":2}'; exec sleep 60"#,
        );
        assert_eq!(program.event("result", LIMIT).expect("an event")["n"], 2);
        let output = program.stop(&host, "TERM", LIMIT).expect("an end");
        assert!(
            output.contains("hello") && output.contains("bye"),
            "{output}"
        );
    }

    #[test]
    fn a_program_that_ends_early_is_an_error_with_its_output() {
        let (_host, program) = start("echo no such option >&2; exit 2");
        let error = program.event("ready", LIMIT).expect_err("an error");
        assert!(error.to_string().contains("no such option"), "{error}");
    }

    #[test]
    fn dropping_kills() {
        let (host, program) = start("echo '{\"event\":\"ready\"}'; exec sleep 600");
        program.event("ready", LIMIT).expect("an event");
        let pid = program.pid;
        assert!(host.run(&format!("kill -0 {pid}")).is_ok());
        drop(program);
        assert!(host.run(&format!("kill -0 {pid} 2>/dev/null")).is_err());
    }

    #[test]
    fn what_a_program_leaves_behind_ends_with_it() {
        let (host, program) = start(
            r#"sleep 600 & echo "{\"event\":\"ready\",\"pid\":$!}"; trap 'exit 0' TERM; while :; do sleep 0.01; done"#,
        );
        let left = program.event("ready", LIMIT).expect("an event")["pid"].clone();
        program.stop(&host, "TERM", LIMIT).expect("an end");
        let is_gone = || {
            // Whoever inherits it may take its time to notice its end.
            host.run(&format!(
                "grep -q '^State:.Z' /proc/{left}/status || ! kill -0 {left}"
            ))
            .is_ok()
        };
        let deadline = Instant::now() + LIMIT;
        while !is_gone() {
            assert!(Instant::now() < deadline, "{left} is still there");
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_program_that_stays_does_not_hold_its_stop_up() {
        let (host, program) = start(
            r#"trap '' TERM; setsid sleep 600 & echo "{\"event\":\"ready\",\"pid\":$!}"; while :; do sleep 0.01; done"#,
        );
        let left = program.event("ready", LIMIT).expect("an event")["pid"].clone();
        let pid = program.pid;
        // Not even what has left the group and holds the output open does.
        program
            .stop(&host, "TERM", Duration::from_millis(100))
            .expect("an end");
        assert!(host.run(&format!("kill -0 {pid} 2>/dev/null")).is_err());
        host.run(&format!("kill -KILL {left}"))
            .expect("it is there");
    }

    #[test]
    fn arguments_arrive_as_they_are() {
        let host = Host::new("here", &[], CpuList::all(1)).expect("a shell");
        let words = ["printf", "%s|", "a b", "$HOME", "it's", "*"].map(str::to_owned);
        let program = host
            .start(&Launch {
                title: "double",
                words: &words,
                cpus: &CpuList::all(1),
                weight: Weight::Measured,
            })
            .expect("a program");
        let output = program.stop(&host, "CONT", LIMIT).expect("an end");
        assert_eq!(output, "a b|$HOME|it's|*|");
    }
}
