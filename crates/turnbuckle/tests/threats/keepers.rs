//! V-63: the processes that keep a relay's sockets: where there can be none.

use std::process::{Command, Stdio};
use std::time::Instant;

use nix::unistd::geteuid;

use crate::harness::{Call, Server, Site, tick};
use crate::not_run::not_run;
use crate::survival::{Processes, TIMEOUT};

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

/// A relay that survives if it can, and that a command becomes.
fn automatic(site: Site, command: &[&str]) -> Server {
    let relay_ip = format!("--relay-ip={}", site.ip(1));
    let options = [&relay_ip, "--allow-loopback-peers", "--survive=auto"];
    Server::start_by(command, site.server(), &options, &[])
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
