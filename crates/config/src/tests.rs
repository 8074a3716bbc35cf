//! Whole configurations, read for a machine that is the same everywhere.

use std::ffi::OsString;
use std::io;
use std::net::IpAddr;
use std::num::NonZeroU16;

use super::*;

mod guests;
mod keys;
mod listeners;
mod random;
mod reload;
mod right;
mod texts;
mod turnserver;
mod wrong;

/// Returns a machine with two public addresses, one private one and loopback. It knows a few host names, and its random bytes are all the same.
pub(super) fn machine() -> Machine {
    let addresses = ["127.0.0.1", "203.0.113.5", "10.1.2.3", "::1", "2001:db8::5"];
    Machine {
        addresses: addresses
            .iter()
            .map(|text| text.parse().expect("an address"))
            .collect(),
        interfaces: [("lo", 0), ("eth0", 1), ("eth1", 2), ("lo", 3), ("eth0", 4)]
            .map(|(name, index)| {
                (
                    name.to_owned(),
                    addresses[index].parse().expect("an address"),
                )
            })
            .to_vec(),
        processors: NonZeroU16::new(4).expect("not zero"),
        usual_database: None,
        domain: Some("example.net".to_owned()),
        names: Names::by(|name| match name {
            "localhost" => Ok(vec![
                IpAddr::from(std::net::Ipv6Addr::LOCALHOST),
                IpAddr::from([127, 0, 0, 1]),
            ]),
            "turn2.example.org" => Ok(vec![IpAddr::from([203, 0, 113, 6])]),
            "relay.example.net" => Ok(vec![IpAddr::from([203, 0, 113, 5])]),
            "both.example.net" => Ok(vec![
                IpAddr::from([198, 51, 100, 7]),
                "2001:db8::7".parse().expect("an address"),
            ]),
            _ => Err(io::Error::other("no such host")),
        }),
        fill_random: |buffer| {
            buffer.fill(0xA5);
            Ok(())
        },
    }
}

pub(super) fn command_line(arguments: &[&str]) -> Result<Box<Loaded>, Problems> {
    match load(arguments.iter().map(OsString::from), &machine())? {
        Request::Run(loaded) => Ok(loaded),
        other => panic!("asked for {other:?}"),
    }
}

pub(super) fn file(content: &str) -> Result<Loaded, Problems> {
    from_text("t.conf", content.as_bytes(), &machine())
}

//= TURN-010
//= NAT-02
#[test]
fn serves_without_any_configuration() {
    let loaded = command_line(&[]).expect("accepted");
    let config = loaded.config;
    assert_eq!(config.addresses.listeners.len(), 5);
    let listeners = &config.addresses.listeners;
    assert!(listeners.iter().all(|address| address.port() == 3478));
    assert_eq!(config.tls.port, 5349);
    let relays: Vec<String> = config
        .addresses
        .relays
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        relays,
        ["203.0.113.5", "2001:db8::5"],
        "private addresses only where there is no public one"
    );
    assert_eq!(config.datapath.shards.get(), 4);
    let [user] = config.authentication.users.as_slice() else {
        panic!("one user")
    };
    assert!(user.is_generated);
    assert!(
        matches!(&user.credential, Credential::Password(secret) if secret.expose().len() == 20)
    );
}

#[test]
fn command_line_overrides_file_and_repeatable_keys_add_up() {
    let path =
        std::env::temp_dir().join(format!("turnbuckle-override-{}.conf", std::process::id()));
    std::fs::write(
        &path,
        "min-port=50000\nmax-port=50100\nuser=alice:one\nrealm=example.org\n",
    )
    .expect("written");
    let name = path.to_str().expect("UTF-8");
    let loaded = command_line(&["-c", name, "--min-port", "50050", "-u", "bob:two"]);
    std::fs::remove_file(&path).expect("removed");
    let config = loaded.expect("accepted").config;
    assert_eq!(config.addresses.relay_ports.min.get(), 50050);
    assert_eq!(config.addresses.relay_ports.max.get(), 50100);
    let names: Vec<&str> = config
        .authentication
        .users
        .iter()
        .map(|user| &*user.name)
        .collect();
    assert_eq!(names, ["alice", "bob"]);
}

#[test]
fn reports_everything_that_is_wrong_at_once_in_the_order_of_lines() {
    let problems = file("listening-port=0\nreelm=x\n# fine\nmin-port=5000000000\nno-auth\n")
        .expect_err("refused");
    let text = problems.to_string();
    let places: Vec<&str> = text
        .lines()
        .map(|line| line.split(": ").next().unwrap_or_default())
        .collect();
    assert_eq!(places, ["t.conf:1", "t.conf:2", "t.conf:4", "t.conf:5"]);
    assert!(text.contains("did you mean `realm`?"), "{text}");
}
