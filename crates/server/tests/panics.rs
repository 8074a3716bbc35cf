//! What is said about a panic waits for nobody.

use std::env;
use std::io::{PipeWriter, Read as _, Write as _};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

/// How long the process may take that has to end; how long it does take is not judged.
const TIMEOUT: Duration = Duration::from_secs(60);
const NOW: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// Set for the process that has the panic.
const PANICS: &str = "TURNBUCKLE_TEST_PANICS";

/// Runs the test of this name in a process of its own, which prints errors there. Returns its end, if it comes.
fn end_of_another(test: &str, errors: PipeWriter) -> Option<ExitStatus> {
    let mut command = Command::new(env::current_exe().expect("this program"));
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    command.env(PANICS, "1");
    command.stdout(Stdio::null()).stderr(errors);
    let mut child = command.spawn().expect("this program starts");
    let deadline = Instant::now() + TIMEOUT;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().expect("wait4") {
            return Some(status);
        }
        thread::sleep(Duration::from_millis(2));
    }
    child.kill().expect("it is there");
    child.wait().expect("wait4");
    None
}

/// Panics in a thread if this is the other process. Returns whether it is.
fn panics_if_another() -> bool {
    let is_another = env::var_os(PANICS).is_some();
    if is_another {
        turnbuckle_server::say_panics_at_once();
        let shard = thread::Builder::new().name("shard-7".to_owned());
        let thread = shard.spawn(|| panic!("nothing is left")).expect("a thread");
        assert!(thread.join().is_err());
    }
    is_another
}

#[test]
fn a_thread_that_panics_while_nobody_reads_standard_error_goes_on() {
    if panics_if_another() {
        return;
    }
    let (_reader, mut writer) = std::io::pipe().expect("a pipe");
    while poll(&mut [PollFd::new(&writer, PollFlags::OUT)], Some(&NOW)).expect("poll") > 0 {
        writer.write_all(&[b'.'; 4096]).expect("room for a page");
    }
    let name = "a_thread_that_panics_while_nobody_reads_standard_error_goes_on";
    let status = end_of_another(name, writer);
    assert!(status.is_some_and(|status| status.success()), "{status:?}");
}

#[test]
fn a_panic_is_described_by_thread_place_and_message() {
    if panics_if_another() {
        return;
    }
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let status = end_of_another("a_panic_is_described_by_thread_place_and_message", writer);
    assert!(status.is_some_and(|status| status.success()), "{status:?}");
    let mut said = String::new();
    reader.read_to_string(&mut said).expect("text");
    assert!(said.starts_with("thread 'shard-7' panicked at "), "{said}");
    assert!(said.contains("tests/panics.rs:"), "{said}");
    assert!(said.contains("nothing is left"), "{said}");
}
