//! V-63: the processes that keep a relay's sockets: where there can be none, when the relay crashes again and again, and when both are gone.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};

use crate::harness::{Call, Server, Site, tick};
use crate::not_run::not_run;
use crate::survival::{Processes, TIMEOUT, await_end, pause, relay, send};

/// What becomes a program that sees nothing of processes, as in some sandboxes: a keeper cannot tell which descriptors are open, nor that it has one
/// thread.
const BLINDED: [&str; 5] = [
    "unshare",
    "--mount",
    "sh",
    "-c",
    "mount -t tmpfs none /proc && exec \"$0\" \"$@\"",
];

/// Why a relay has no keeper there.
const WHY: &str = "/proc/self/status: No such file or directory (os error 2)";

#[test]
fn where_there_can_be_no_keeper_auto_serves_without_and_says_why_and_on_refuses() {
    if !geteuid().is_root() {
        return not_run("another /proc takes root");
    }
    let site = Site::new();
    let server = automatic(site, &BLINDED);
    let greeting = server.greeting();
    let said: Vec<_> = greeting
        .lines()
        .filter(|line| line.contains("survive"))
        .collect();
    assert_eq!(said, [format!("survive: off, because {WHY}")], "{greeting}");
    let mut calls = [Call::new(site, &server)];
    await_passed(&mut calls);
    server.stop();

    let refused = Command::new(BLINDED[0])
        .args(&BLINDED[1..])
        .arg(env!("CARGO_BIN_EXE_turnbuckle"))
        .args(["serve", "--user=a:b", "--realm=r", "--survive=on"])
        .arg(format!("--listening-ip={}", site.ip(1)))
        .stdin(Stdio::null())
        .output()
        .expect("it runs");
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(said.trim(), format!("turnbuckle: survive: {WHY}"));
}

#[test]
fn where_there_can_be_a_keeper_auto_has_one() {
    let site = Site::new();
    let server = automatic(site, &[]);
    let mut processes = Processes::of(&server);
    let mut calls = [Call::new(site, &server)];
    processes.kill_relay(&server, &mut || tick(&mut calls));
    await_passed(&mut calls);
    server.stop_kept(processes.keeper);
}

/// Starts a relay that survives if it can, and that a command becomes.
fn automatic(site: Site, command: &[&str]) -> Server {
    let relay_ip = format!("--relay-ip={}", site.ip(1));
    let options = [&relay_ip, "--allow-loopback-peers", "--survive=auto"];
    Server::start_by(command, site.server(), &options, &[])
}

#[test]
fn where_no_process_can_be_made_for_a_while_calls_wait_and_go_on() {
    if !geteuid().is_root() {
        return not_run("a user of its own takes root");
    }
    let site = Site::new();
    // The limit is on the processes and threads of a user, and is not root's.
    let user = 1_000_000_000 + std::process::id();
    let become_it = [
        "setpriv".to_owned(),
        format!("--reuid={user}"),
        format!("--regid={user}"),
        "--clear-groups".to_owned(),
    ];
    let as_user = become_it.each_ref().map(String::as_str);
    let server = automatic(site, &as_user);
    let mut processes = Processes::of(&server);
    let mut calls = [Call::new(site, &server)];
    let spares = |processes: &Processes| {
        let mut spares = children(processes.keeper);
        spares.retain(|&child| child != processes.relay);
        spares
    };
    limit(&as_user, processes.keeper, Some(1));
    let first = spares(&processes)[0];
    send(first, Signal::SIGKILL);
    await_end(first);
    await_passed(&mut calls);
    limit(&as_user, processes.keeper, None);
    let deadline = Instant::now() + TIMEOUT;
    while spares(&processes).is_empty() {
        assert!(Instant::now() < deadline, "there is no spare");
        tick(&mut calls);
    }
    // First there can be no process, then none with threads. Each is tried for longer than the pause between two attempts.
    for most in [1, 4] {
        limit(&as_user, processes.keeper, Some(most));
        if most == 1 {
            send(processes.relay, Signal::SIGKILL);
        }
        std::thread::sleep(Duration::from_millis(2500));
    }
    limit(&as_user, processes.keeper, None);
    processes.await_relay(&server, &mut || tick(&mut calls));
    await_passed(&mut calls);
    calls[0].client.refresh(600).expect(200);
    server.stop_kept(processes.keeper);
}

/// Bounds how many processes and threads there may be of the user of a process when it makes another one; as many as there could be without a number.
/// The user's own program does it, because root may lack the right to.
fn limit(as_user: &[&str], process: i32, most: Option<u32>) {
    let limits = fs::read_to_string(format!("/proc/{process}/limits")).expect("it is there");
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max processes"));
    let hard = line.and_then(|line| line.split_whitespace().nth(3));
    let most = most.map(|most| most.to_string());
    let soft = most.as_deref().or(hard).expect("a limit");
    let set = Command::new(as_user[0])
        .args(&as_user[1..])
        .arg("prlimit")
        .arg(format!("--pid={process}"))
        .arg(format!("--nproc={soft}:"))
        .status();
    assert!(set.expect("it runs").success());
}

#[test]
fn after_the_third_crash_there_is_no_next_relay_and_the_exit_code_says_how_it_ended() {
    let site = Site::new();
    let server = relay(site, &[]);
    let mut processes = Processes::of(&server);
    let mut calls = [Call::new(site, &server)];
    for _ in 0..2 {
        crash(processes.relay);
        let said = processes.await_relay(&server, &mut || tick(&mut calls));
        let died = "survive: the relay was ended by signal 11; the next one takes over its calls";
        assert!(said.iter().any(|line| line == died), "{said:#?}");
        await_passed(&mut calls);
    }
    let all = children(processes.keeper);
    assert_eq!(all.len(), 2, "relay and spare");
    crash(processes.relay);
    let (code, said) = server.crashed();
    assert_eq!(code, Some(128 + 11));
    assert_eq!(said, ["survive: the relay was ended by signal 11"]);
    all.into_iter().for_each(await_end);
}

/// Has a process end as by a mistake in its memory. The first such signal may be taken for one that comes again: Rust's handler, which looks for the
/// end of the stack, lets go of the signal and has the instruction tried anew.
fn crash(process: i32) {
    let deadline = Instant::now() + TIMEOUT;
    let is_there = || {
        let status = fs::read_to_string(format!("/proc/{process}/stat"));
        status.is_ok_and(|status| !status.contains(") Z "))
    };
    while is_there() {
        assert!(Instant::now() < deadline, "it does not crash");
        // It may have ended meanwhile.
        let _ = kill(Pid::from_raw(process), Signal::SIGSEGV);
        pause();
    }
}

#[test]
fn a_relay_whose_keepers_are_killed_at_once_goes_on_and_says_so() {
    let site = Site::new();
    let server = relay(site, &[]);
    let processes = Processes::of(&server);
    let mut calls = [Call::new(site, &server)];
    let mut spares = children(processes.keeper);
    spares.retain(|&child| child != processes.relay);
    let [spare] = spares[..] else {
        panic!("one spare: {spares:?}");
    };
    // It sees nothing of the keeper's end.
    send(spare, Signal::SIGSTOP);
    send(processes.keeper, Signal::SIGKILL);
    send(spare, Signal::SIGKILL);
    let alone = "error: survive: the keeper has ended, and there is none any more: calls end with \
                 this process";
    let deadline = Instant::now() + TIMEOUT;
    while !server.lines_so_far().iter().any(|line| line == alone) {
        assert!(Instant::now() < deadline, "it is not said");
        tick(&mut calls);
    }
    await_passed(&mut calls);
    calls[0].client.refresh(0).expect(200);
    server.stop_kept(processes.relay);
}

/// Returns the processes that a process has made and that have not ended (proc_pid_stat(5)).
fn children(process: i32) -> Vec<i32> {
    let all = fs::read_dir("/proc").expect("it is there");
    let numbers = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_child = |number: &i32| {
        let stat = fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
        let fields = stat.rsplit_once(") ").map(|(_, fields)| fields);
        let mut fields = fields.unwrap_or_default().split(' ');
        fields.next() != Some("Z") && fields.next() == Some(&process.to_string())
    };
    numbers.filter(is_child).collect()
}

/// Waits until something that is sent from now on has arrived, both ways.
fn await_passed(calls: &mut [Call]) {
    let sent = calls[0].sent;
    let deadline = Instant::now() + TIMEOUT;
    while !calls.iter().all(|call| call.has_passed(sent)) {
        assert!(Instant::now() < deadline, "a call has ended");
        tick(calls);
    }
}
