//! Measures what a table of many users costs: memory, and the CPU time to make it and to change one user of it.
//!
//! As on the thread that follows a database the settings before a change are kept until the next one, as shards may use them still.
//!
//! `cargo bench -p turnbuckle-engine --bench users -- [USERS]`; a million by default. Nothing is asserted.

#![expect(
    clippy::print_stdout,
    reason = "a measuring tool prints what it measured"
)]
#![expect(
    clippy::unwrap_used,
    reason = "a measuring tool stops where it cannot go on"
)]

use turnbuckle_engine::AuthConfig;

const REALM: &str = "example.org";
const CHANGES: usize = 10_000;

fn main() {
    // `cargo test --all-targets` starts benches too, without this argument: then only see that it runs.
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    let users = std::env::args().find_map(|argument| argument.parse().ok());
    let users: u64 = users.unwrap_or(if is_bench { 1_000_000 } else { 1_000 });
    let changes = if is_bench { CHANGES } else { 10 };
    let names: Vec<_> = (0..users)
        .map(|number| format!("user{number:07}"))
        .collect();
    let (before, began) = (resident_kib(), cpu_us());
    let mut config = AuthConfig::new(REALM).unwrap();
    config.add_users_by_md5_key(names.iter().map(|name| (name.as_str(), [7; 16])));
    let kib = resident_kib().saturating_sub(before);
    let each = kib * 1024 / users;
    let took = (cpu_us() - began) / 1_000;
    println!("{users} users: made in {took} ms of CPU, {kib} KiB, {each} bytes each");
    let mut previous = config.clone();
    let began = cpu_us();
    for change in 0..changes {
        let mut realm = config.realms().next().unwrap().clone();
        let name = &names[change * 7919 % names.len()];
        let key = (change as u128 + 1).to_be_bytes();
        assert_eq!(realm.put_user_by_md5_key(name, key), Ok(true));
        let mut next = config.clone();
        next.add_realm(realm);
        previous = std::mem::replace(&mut config, next);
    }
    let each = (cpu_us() - began) / changes as u64;
    let more = resident_kib().saturating_sub(before + kib);
    println!("{changes} changes of one user: {each} us of CPU each; {more} KiB more");
    drop(previous);
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    line.unwrap()
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap()
}

/// Returns the CPU time that the thread has taken.
fn cpu_us() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let ns: u64 = text.split_whitespace().next().unwrap().parse().unwrap();
    ns / 1_000
}
