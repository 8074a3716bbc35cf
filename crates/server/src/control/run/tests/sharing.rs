//! What the next relay is told of addresses where another process listens too.

use rustix::net::{AddressFamily, SocketType, bind, socket, sockopt};

use super::*;
use crate::config::load_turnserver;

/// Returns the port of another process, which shares it.
fn shared_by_another(address: SocketAddr) -> UdpSocket {
    let other = socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
    sockopt::set_socket_reuseport(&other, true).unwrap();
    bind(&other, &address).unwrap();
    other.into()
}

#[test]
fn a_relay_leaves_behind_at_which_of_its_addresses_another_process_listens_too() {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let [own, shared] = [14, 15].map(|host| {
        let ip = [127, 64 | high & 3 | host << 2, middle, low];
        SocketAddr::from((ip, 3478))
    });
    let _other = shared_by_another(shared);
    let arguments = [
        // A file that is not there keeps out whatever configuration the machine has.
        "-c/nowhere/turnserver.conf".to_owned(),
        format!("--listening-ip={}", own.ip()),
        format!("--listening-ip={}", shared.ip()),
        format!("--realm={REALM}"),
        format!("--user=alice:{PASSWORD}"),
        "--relay-threads=2".to_owned(),
        "--no-tcp".to_owned(),
        "--no-tls".to_owned(),
        "--no-dtls".to_owned(),
    ];
    let machine = Machine {
        // And so does the user database that an installed coturn has.
        usual_database: None,
        ..Machine::discover().unwrap()
    };
    let Ok(Wish::Run(loaded)) = load_turnserver(arguments.map(OsString::from), &machine) else {
        panic!("a whole configuration");
    };
    let mut config = loaded.config;
    let (events, _inbox) = events::channel();
    let (outlets, _session_events) = Events::channel(2);
    let mut survival = Survival::alone(&config);
    let mut out = Unread::default();
    let started = start(
        &mut config,
        Some(&mut survival),
        None,
        &events,
        &outlets,
        &mut out,
    );
    let relay = started.unwrap();
    relay.leave_listeners(Some(&survival), &mut out);
    assert_eq!(survival.left(), [(own, false), (shared, true)]);
    relay.shards.stop();
    let printed = String::from_utf8(out.0).unwrap();
    let warning = format!("another process listens on UDP {shared} too");
    assert!(printed.contains(&warning), "{printed}");
}
