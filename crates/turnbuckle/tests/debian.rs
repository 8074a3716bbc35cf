//! Debian's coturn package with our binary in the place of its own: its unit's command and its init script's, with its configuration as installed.
//!
//! In a mount namespace the binary stands at /usr/bin/turnserver, in a network namespace nobody else has the ports.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};

mod not_run;

use not_run::not_run;

const UNIT: &str = "/lib/systemd/system/coturn.service";
const INIT_SCRIPT: &str = "/etc/init.d/coturn";

/// What makes the namespaces ready, before the command itself.
const PREPARE: &str = "set -e
mount --bind \"$BINARY\" /usr/bin/turnserver
mount -t tmpfs tmpfs /run
ip link set lo up
ip address add 192.0.2.9/24 dev lo
";

/// Returns why these tests cannot be run here, if they cannot.
fn obstacle() -> Option<String> {
    for file in [UNIT, INIT_SCRIPT, "/etc/turnserver.conf"] {
        if !Path::new(file).exists() {
            return Some(format!("{file} is not there"));
        }
    }
    if !geteuid().is_root() {
        return Some("namespaces need root".to_owned());
    }
    let tried = namespaces("mount -t tmpfs tmpfs /run && ip link set lo up")
        .status()
        .map(|status| status.success());
    match tried {
        Ok(true) => None,
        Ok(false) => Some("namespaces cannot be had here".to_owned()),
        Err(error) => Some(format!("unshare: {error}")),
    }
}

fn namespaces(script: &str) -> Command {
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--net", "sh", "-c", script])
        .env("BINARY", env!("CARGO_BIN_EXE_turnbuckle"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// Returns the value of a line of the unit.
fn unit_value(key: &str) -> String {
    let unit = fs::read_to_string(UNIT).expect("a unit");
    let mut lines = unit.lines();
    let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    value
        .unwrap_or_else(|| panic!("no {key} in {UNIT}"))
        .to_owned()
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Ended already unless the test failed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn signal(process: u32, signal: Signal) {
    let process = Pid::from_raw(process.try_into().expect("a process"));
    kill(process, signal).expect("signalled");
}

fn status_of(process: u32) -> String {
    fs::read_to_string(format!("/proc/{process}/status")).expect("it runs")
}

#[test]
fn the_command_of_debians_unit_starts_it_as_it_is() {
    if let Some(why) = obstacle() {
        not_run(&why);
        return;
    }
    let folder = tempfile::tempdir().expect("a directory");
    let everybody = |mode| fs::Permissions::from_mode(mode);
    fs::set_permissions(folder.path(), everybody(0o755)).expect("set");
    let socket = folder.path().join("notify");
    let manager = UnixDatagram::bind(&socket).expect("bound");
    fs::set_permissions(&socket, everybody(0o777)).expect("set");
    manager
        .set_read_timeout(Some(Duration::from_secs(30)))
        .expect("set");
    let told = || {
        let mut state = [0; 64];
        let len = manager.recv(&mut state).expect("told");
        String::from_utf8_lossy(&state[..len]).into_owned()
    };

    assert_eq!(unit_value("Type"), "notify");
    let (user, group) = (unit_value("User"), unit_value("Group"));
    let start = unit_value("ExecStart");
    let script =
        format!("{PREPARE}exec setpriv --reuid {user} --regid {group} --clear-groups {start}");
    let child = namespaces(&script)
        .env("NOTIFY_SOCKET", &socket)
        .spawn()
        .expect("it starts");
    let mut server = Running(child);
    assert_eq!(told(), "READY=1");
    let status = status_of(server.0.id());
    assert!(status.starts_with("Name:\tturnserver\n"), "{status}");
    assert!(!status.contains("Uid:\t0\t"), "{status}");
    signal(server.0.id(), Signal::SIGTERM);
    assert_eq!(told(), "STOPPING=1");
    assert!(server.0.wait().expect("ended").success());
}

#[test]
fn the_arguments_of_debians_init_script_start_a_daemon_that_it_finds_again() {
    if let Some(why) = obstacle() {
        not_run(&why);
        return;
    }
    let text = fs::read_to_string(INIT_SCRIPT).expect("a script");
    let arguments = text
        .lines()
        .find_map(|line| line.strip_prefix("DAEMON_ARGS=\""))
        .and_then(|rest| rest.split('"').next())
        .expect("arguments");
    let folder = tempfile::tempdir().expect("a directory");
    let pid_file = folder.path().join("pid");
    // start-stop-daemon finds it by the number in the file and by its name.
    let script = format!(
        "{PREPARE}/usr/bin/turnserver {arguments}
         cp /run/turnserver.pid '{0}.new' && mv '{0}.new' '{0}'
         start-stop-daemon --stop --quiet --retry=TERM/20 --pidfile /run/turnserver.pid --name turnserver",
        pid_file.display()
    );
    let mut server = Running(namespaces(&script).spawn().expect("it starts"));
    assert!(
        server.0.wait().expect("ended").success(),
        "it serves, goes to the background, and is stopped by its name"
    );
    let number = fs::read_to_string(&pid_file).expect("a number");
    let process: u32 = number.trim().parse().expect("a number");
    let deadline = Instant::now() + Duration::from_secs(20);
    let is_gone = || {
        let stat = fs::read_to_string(format!("/proc/{process}/stat"));
        stat.is_err() || stat.is_ok_and(|stat| stat.contains(") Z "))
    };
    while !is_gone() {
        assert!(Instant::now() < deadline, "it is still there");
        std::thread::sleep(Duration::from_millis(20));
    }
}
