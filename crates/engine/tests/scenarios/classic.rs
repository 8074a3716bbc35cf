//! Classic STUN (RFC 3489): Binding requests without magic cookie, where that is switched on.

use core::net::SocketAddr;

use turnbuckle_engine::{
    Alternates, Config, Discovery, DropReason, Endpoint, Outcome, Rate, Service, Transport,
    UnverifiedLimits,
};
use turnbuckle_wire::Method;

use crate::support::*;

const ID: [u8; 16] = *b"sixteen-bytes-id";
const HERE: &str = "192.0.2.1:3478";
const ELSEWHERE: &str = "192.0.2.2:3479";

fn server(change: impl FnOnce(&mut Config)) -> Server {
    Server::with(|config| {
        config.binding.rfc3489_binding = true;
        change(config);
    })
}

/// Makes a server with sockets on another address and another port.
fn server_of_two_addresses() -> Server {
    let mut server = server(|_| {});
    for (n, local) in (2..).zip(["192.0.2.1:3479", "192.0.2.2:3478", ELSEWHERE]) {
        server
            .engine
            .add_listener(Endpoint(10 + n), local.parse().unwrap());
    }
    let discovery = Discovery {
        origin: HERE.parse().unwrap(),
        other: ELSEWHERE.parse().unwrap(),
        alternates: Some(Alternates {
            change_ip: Endpoint(13),
            change_port: Endpoint(12),
            change_both: Endpoint(14),
        }),
    };
    server.engine.set_discovery(LISTENER, discovery);
    server
}

fn message(kind: u16, attributes: &[u8]) -> Vec<u8> {
    let mut bytes = kind.to_be_bytes().to_vec();
    bytes.extend(u16::try_from(attributes.len()).unwrap().to_be_bytes());
    bytes.extend(ID);
    bytes.extend(attributes);
    bytes
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = kind.to_be_bytes().to_vec();
    bytes.extend(u16::try_from(value.len()).unwrap().to_be_bytes());
    bytes.extend(value);
    bytes
}

fn address(kind: u16, address: &str) -> Vec<u8> {
    let SocketAddr::V4(address) = address.parse().unwrap() else {
        panic!("RFC 3489 knows IPv4 only");
    };
    let mut value = vec![0, 1];
    value.extend(address.port().to_be_bytes());
    value.extend(address.ip().octets());
    attribute(kind, &value)
}

fn change(flags: u8) -> Vec<u8> {
    attribute(0x0003, &[0, 0, 0, flags])
}

fn error(number: u8, attributes: &[u8]) -> Vec<u8> {
    let code = attribute(0x0009, &[0, 0, 4, number]);
    message(0x0111, &[&code, attributes].concat())
}

/// Returns the only answer to a request with these attributes, and where it goes and leaves from.
fn ask(server: &mut Server, attributes: &[u8]) -> (Endpoint, SocketAddr, Vec<u8>) {
    let request = message(0x0001, attributes);
    assert_eq!(server.receive(tuple(CLIENT), &request), Outcome::Done);
    let replies = core::mem::take(&mut server.replies);
    let [(to, bytes)] = &replies[..] else {
        panic!("exactly one reply, not {}", replies.len())
    };
    (to.listener, to.remote, bytes.clone())
}

fn dropped(server: &mut Server, bytes: &[u8]) -> DropReason {
    match server.receive(tuple(CLIENT), bytes) {
        Outcome::Dropped(reason) => reason,
        other => panic!("{other:?}"),
    }
}

//= STUN-068
#[test]
fn a_client_learns_its_address_only_where_classic_stun_is_switched_on() {
    let mut with = server(|_| {});
    let (from, to, answer) = ask(&mut with, &[]);
    assert_eq!((from, to), (LISTENER, CLIENT.parse().unwrap()));
    let addresses = [address(0x0001, CLIENT), address(0x0004, HERE)].concat();
    assert_eq!(answer, message(0x0101, &addresses));
    let mut without = Server::start();
    assert_eq!(
        dropped(&mut without, &message(0x0001, &[])),
        DropReason::MalformedStun
    );
    let mut stun_is_off = server(|config| config.service = Service::TurnOnly);
    assert_eq!(
        dropped(&mut stun_is_off, &message(0x0001, &[])),
        DropReason::ServiceDisabled
    );
}

#[test]
fn the_answer_leaves_from_where_change_request_asks() {
    let mut server = server_of_two_addresses();
    for (flags, endpoint, source) in [
        (0, LISTENER, HERE),
        (2, Endpoint(12), "192.0.2.1:3479"),
        (4, Endpoint(13), "192.0.2.2:3478"),
        (6, Endpoint(14), ELSEWHERE),
    ] {
        let (from, to, answer) = ask(&mut server, &change(flags));
        assert_eq!((from, to), (endpoint, CLIENT.parse().unwrap()));
        let addresses = [
            address(0x0001, CLIENT),
            address(0x0004, source),
            address(0x0005, ELSEWHERE),
        ];
        assert_eq!(answer, message(0x0101, &addresses.concat()));
    }
}

//= V-41
#[test]
fn an_answer_goes_to_the_address_of_its_request_and_nowhere_else() {
    let mut server = server_of_two_addresses();
    let (from, to, answer) = ask(&mut server, &address(0x0002, "203.0.113.7:9"));
    assert_eq!((from, to), (LISTENER, "203.0.113.7:9".parse().unwrap()));
    let addresses = [
        address(0x0001, CLIENT),
        address(0x0004, HERE),
        address(0x0005, ELSEWHERE),
        address(0x000B, CLIENT),
    ];
    assert_eq!(answer, message(0x0101, &addresses.concat()));

    let refused = error(20, &attribute(0x000A, &[0, 2, 0, 2]));
    for victim in ["203.0.113.8:9", "203.0.113.7:0"] {
        let (from, to, answer) = ask(&mut server, &address(0x0002, victim));
        assert_eq!((from, to), (LISTENER, CLIENT.parse().unwrap()));
        assert_eq!(answer, refused);
    }
    let mut alone = self::server(|_| {});
    let (_, to, answer) = ask(&mut alone, &address(0x0002, "203.0.113.7:9"));
    assert_eq!(to, CLIENT.parse().unwrap());
    assert_eq!(answer, refused, "one port is all there is");
}

#[test]
fn what_is_not_understood_is_listed() {
    let mut server = server(|_| {});
    let (.., answer) = ask(&mut server, &change(4));
    assert_eq!(answer, error(20, &attribute(0x000A, &[0, 3, 0, 3])));
    let unknown = [
        attribute(0x7001, &[]),
        attribute(0x8001, b"free"),
        attribute(0x7002, b"text"),
    ];
    let (.., answer) = ask(&mut server, &unknown.concat());
    let listed = attribute(0x000A, &[0x70, 1, 0x70, 2]);
    assert_eq!(answer, error(20, &listed));
    let (.., answer) = ask(&mut server, &attribute(0x7001, &[]).repeat(100));
    assert_eq!(answer.len(), 20 + 8 + 4 + 16, "eight of them");
}

#[test]
fn nobody_has_a_shared_secret() {
    let mut server = server(|_| {});
    let (name, integrity) = (attribute(0x0006, b"name"), attribute(0x0008, &[7; 20]));
    for (attributes, number) in [([&name[..], &integrity], 30), ([&[], &integrity], 32)] {
        let (.., answer) = ask(&mut server, &attributes.concat());
        assert_eq!(answer, error(number, &[]));
    }
    let (.., answer) = ask(&mut server, &name);
    assert_eq!(answer[..2], [1, 1], "a name alone is for others to judge");
}

#[test]
fn what_is_no_classic_binding_request_is_dropped() {
    let mut server = server_of_two_addresses();
    for bytes in [
        message(0x0002, &[]),
        message(0x0003, &[]),
        message(0x0101, &[]),
        message(0x0011, &[]),
        message(0x0001, &[0, 3, 0, 8, 0, 0, 0, 0]),
        message(0x0001, &[0, 3, 0]),
        message(0x0001, &attribute(0x0003, b"")),
        message(0x0001, &attribute(0x0003, b"eight by")),
        message(0x0001, &attribute(0x0002, b"four")),
        message(0x0001, &attribute(0x7001, b"tw")),
        message(0x0001, &[])[..19].to_vec(),
        [message(0x0001, &[]), vec![0; 4]].concat(),
    ] {
        assert_eq!(
            dropped(&mut server, &bytes),
            DropReason::MalformedStun,
            "{bytes:?}"
        );
    }
    // IPv6 came later, and connections have framing of their own
    let request = message(0x0001, &[]);
    let v6 = server.receive(tuple("[2001:db8::7]:5"), &request);
    assert_eq!(v6, Outcome::Dropped(DropReason::SourceInvalid));
    for transport in [Transport::Tcp, Transport::Tls] {
        let mut from = tuple(CLIENT);
        from.transport = transport;
        let outcome = server.receive(from, &request);
        assert_eq!(outcome, Outcome::Dropped(DropReason::MalformedStun));
    }
    // an own listener would take the answer for a message (V-41)
    let looped = server.receive(tuple(ELSEWHERE), &request);
    assert_eq!(looped, Outcome::Dropped(DropReason::SourceInvalid));
    assert_eq!(server.replies, []);
}

//= V-40
#[test]
fn the_budget_for_strangers_counts_classic_answers_too() {
    let mut server = server(|config| {
        config.unverified = UnverifiedLimits {
            excess: Rate {
                burst: 100,
                per_s: 1,
            },
            ..UnverifiedLimits::default()
        };
    });
    let request = message(0x0001, &[]);
    let answered = (0..10)
        .filter(|_| server.receive(tuple(CLIENT), &request) == Outcome::Done)
        .count();
    // 44 bytes for 20
    assert_eq!(answered, 4);
    let bare = bare(Method::BINDING, [1; 12].into(), |_| {});
    assert_eq!(server.receive(tuple("203.0.113.8:5"), &bare), Outcome::Done);
}
