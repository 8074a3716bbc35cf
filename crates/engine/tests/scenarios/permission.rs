//! Permissions and CreatePermission, RFC 8656 §9 and §10.

use core::time::Duration;

use turnbuckle_engine::{Change, DropReason, InterfaceAddress};
use turnbuckle_wire::{AddressFamily, AttributeType, Method};

use crate::support::*;

fn start() -> (Server, Client, core::net::SocketAddr) {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    let relayed = server.allocate(&mut client);
    (server, client, relayed)
}

//= TURN-056
//= TURN-060
//= TURN-070
//= V-13
#[test]
fn a_permission_lasts_exactly_300_seconds() {
    let (mut server, mut client, relayed) = start();
    server.refresh(&mut client, 3_600).success();
    assert_eq!(
        server.peer_data(relayed, PEER),
        Err(DropReason::NoPermission)
    );
    assert_eq!(
        server.send(&mut client, PEER, b"x"),
        Err(DropReason::NoPermission)
    );
    server.permit(&mut client, PEER).success();
    server.oversleep(Duration::from_millis(299_900)); // no timer fires: the check itself is exact
    assert!(server.peer_data(relayed, PEER).is_ok());
    assert!(server.send(&mut client, PEER, b"x").is_ok());
    server.oversleep(Duration::from_millis(200));
    assert_eq!(
        server.peer_data(relayed, PEER),
        Err(DropReason::NoPermission),
        "and data has not renewed it"
    );
    assert_eq!(
        server.send(&mut client, PEER, b"x"),
        Err(DropReason::NoPermission)
    );
    // the same with timers
    server.permit(&mut client, PEER).success();
    server.take_changes();
    server.wait_s(301);
    assert_eq!(
        server.send(&mut client, PEER, b"x"),
        Err(DropReason::NoPermission)
    );
    let id = server.id(&client);
    let peer = PEER.parse::<core::net::SocketAddr>().unwrap().ip();
    let changes = server.take_changes();
    assert!(
        matches!(&changes[..], [Change::PermissionExpired { allocation, peer: ip }] if *allocation == id && *ip == peer),
        "{changes:?}"
    );
}

//= TURN-059
#[test]
fn create_permission_and_channel_bind_renew_a_permission() {
    let (mut server, mut client, relayed) = start();
    server.permit(&mut client, PEER).success();
    server.wait_s(200);
    server.bind(&mut client, 0x4000, PEER).success();
    server.wait_s(200);
    assert!(server.peer_data(relayed, PEER).is_ok());
    server.permit(&mut client, PEER).success();
    server.refresh(&mut client, 600).success();
    server.wait_s(299);
    assert!(server.peer_data(relayed, PEER).is_ok());
    server.wait_s(2);
    assert_eq!(
        server.peer_data(relayed, PEER),
        Err(DropReason::NoPermission),
        "a refresh renews no permission"
    );
}

//= TURN-057
//= TURN-066
//= V-13
#[test]
fn a_permission_is_for_an_address_whatever_the_port() {
    let (mut server, mut client, relayed) = start();
    server.permit(&mut client, "93.184.216.20:0").success();
    assert!(server.peer_data(relayed, "93.184.216.20:1").is_ok());
    assert!(server.peer_data(relayed, "93.184.216.20:65535").is_ok());
    assert!(server.send(&mut client, "93.184.216.20:9", b"x").is_ok());
    assert_eq!(
        server.peer_data(relayed, "93.184.216.21:1"),
        Err(DropReason::NoPermission)
    );
    assert_eq!(
        server.send(&mut client, "93.184.216.21:1", b"x"),
        Err(DropReason::NoPermission)
    );
}

//= TURN-058
//= V-13
#[test]
fn a_permission_belongs_to_one_allocation() {
    let (mut server, mut client, _) = start();
    let mut other = server.client("203.0.113.8:1");
    let other_relayed = server.allocate(&mut other);
    server.permit(&mut client, PEER).success();
    assert_eq!(
        server.peer_data(other_relayed, PEER),
        Err(DropReason::NoPermission)
    );
    assert_eq!(
        server.send(&mut other, PEER, b"x"),
        Err(DropReason::NoPermission)
    );
}

//= TURN-061
#[test]
fn answers_400_without_a_valid_address() {
    let (mut server, mut client, relayed) = start();
    let none = server.ask(&mut client, Method::CREATE_PERMISSION, |_| {});
    assert_eq!(none.code(), Some(400));
    for bad in [
        &[0, 1, 0, 0][..],
        &[0, 9, 0, 0, 1, 2, 3, 4],
        &[0, 2, 0, 0, 1, 2, 3, 4],
    ] {
        let answer = server.ask(&mut client, Method::CREATE_PERMISSION, |writer| {
            writer
                .xor_peer_address(PEER.parse().unwrap())
                .bytes(AttributeType::XOR_PEER_ADDRESS, bad);
        });
        assert_eq!(answer.code(), Some(400), "{bad:?}");
    }
    //= TURN-065
    assert_eq!(
        server.peer_data(relayed, PEER),
        Err(DropReason::NoPermission),
        "the good one was not installed either"
    );
}

//= TURN-063
//= TURN-064
//= TURN-065
#[test]
fn one_refused_address_refuses_the_request() {
    let (mut server, mut client, relayed) = start();
    for (bad, code) in [
        (PEER_V6, 443),
        ("127.0.0.1:1", 403),
        ("169.254.169.254:80", 403),
        ("[::ffff:127.0.0.1]:1", 443), // IPv6 as it stands in the message
    ] {
        for bad_first in [true, false] {
            let mut peers = [bad.parse().unwrap(), PEER.parse().unwrap()];
            if !bad_first {
                peers.reverse();
            }
            let answer = server.ask(&mut client, Method::CREATE_PERMISSION, |writer| {
                writer.xor_peer_address(peers[0]).xor_peer_address(peers[1]);
            });
            assert_eq!(answer.code(), Some(code), "{bad}");
            assert_eq!(
                server.peer_data(relayed, PEER),
                Err(DropReason::NoPermission)
            );
        }
    }
}

//= TURN-117
//= TURN-118
#[test]
fn teredo_and_6to4_are_no_peers() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    server.allocate_dual(&mut client);
    for peer in ["[2001:0:1::1]:5", "[2002:5db8:d814::1]:5"] {
        assert_eq!(server.permit(&mut client, peer).code(), Some(403), "{peer}");
        assert_eq!(
            server.bind(&mut client, 0x4000, peer).code(),
            Some(403),
            "{peer}"
        );
        let sent = server.send(&mut client, peer, b"x");
        assert_eq!(sent, Err(DropReason::PeerForbidden), "{peer}");
    }
}

//= V-03
//= TURN-063
#[test]
fn an_ipv4_mapped_peer_address_is_refused_on_every_path() {
    let mapped = "[::ffff:93.184.216.20]:5";
    for (family, code) in [(AddressFamily::V4, 443), (AddressFamily::V6, 403)] {
        let mut server = Server::start();
        let mut client = server.client(CLIENT);
        let answer = server.ask(&mut client, Method::ALLOCATE, |writer| {
            writer
                .requested_transport(17)
                .requested_address_family(family);
        });
        answer.success();
        let answers = [
            server.permit(&mut client, mapped).code(),
            server.bind(&mut client, 0x4000, mapped).code(),
        ];
        assert_eq!(answers, [Some(code); 2], "{family:?}");
        let sent = server.send(&mut client, mapped, b"x");
        assert_eq!(sent, Err(DropReason::PeerForbidden), "{family:?}");
    }
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    server.allocate_dual(&mut client);
    server.permit(&mut client, "93.184.216.20:5").success();
    assert_eq!(server.permit(&mut client, mapped).code(), Some(403));
    assert_eq!(server.bind(&mut client, 0x4000, mapped).code(), Some(403));
    let sent = server.send(&mut client, mapped, b"x");
    assert_eq!(
        sent,
        Err(DropReason::PeerForbidden),
        "though the IPv4 address is permitted"
    );
}

//= TURN-061
#[test]
fn several_addresses_are_permitted_at_once() {
    let (mut server, mut client, relayed) = start();
    let answer = server.ask(&mut client, Method::CREATE_PERMISSION, |writer| {
        for last in [9, 3, 7, 3, 9] {
            writer.xor_peer_address(([93, 184, 216, last], 1).into());
        }
    });
    answer.success();
    for last in [3, 7, 9] {
        assert!(
            server
                .peer_data(relayed, &format!("93.184.216.{last}:5"))
                .is_ok()
        );
    }
    let installed = server
        .take_changes()
        .iter()
        .filter(|c| matches!(c, Change::PermissionInstalled { .. }))
        .count();
    assert_eq!(installed, 3);
}

#[test]
fn a_permission_is_new_once() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    server.allocate(&mut client);
    let mut is_new = |number| {
        server.bind(&mut client, number, PEER).success();
        let changes = server.take_changes();
        let mut installed = changes.iter().filter_map(|change| match change {
            Change::PermissionInstalled { is_new, .. } => Some(*is_new),
            _ => None,
        });
        installed.next().expect("a permission")
    };
    assert!(is_new(0x4000));
    assert!(!is_new(0x4000));
}

//= TURN-062
//= V-45
#[test]
fn answers_508_beyond_the_limit_and_keeps_what_is_there() {
    let mut server = Server::with(|config| config.limits.permissions_per_allocation = 3);
    let mut client = server.client(CLIENT);
    let relayed = server.allocate(&mut client);
    let mut permit = |server: &mut Server, lasts: &[u8]| {
        let answer = server.ask(&mut client, Method::CREATE_PERMISSION, |writer| {
            for &last in lasts {
                writer.xor_peer_address(([93, 184, 216, last], 1).into());
            }
        });
        answer.code()
    };
    assert_eq!(permit(&mut server, &[1, 2]), None);
    assert_eq!(permit(&mut server, &[3, 4]), Some(508));
    assert_eq!(
        permit(&mut server, &[1, 2, 1, 2, 1, 2]),
        None,
        "renewing takes no room"
    );
    assert_eq!(permit(&mut server, &[1, 2, 3]), None);
    assert_eq!(permit(&mut server, &[1, 2, 3, 4]), Some(508));
    assert!(server.peer_data(relayed, "93.184.216.3:5").is_ok());
    // what has run out makes room, timers or not
    server.oversleep(Duration::from_secs(301));
    assert_eq!(permit(&mut server, &[4, 5, 6]), None);
}

#[test]
fn permissions_end_when_the_policy_comes_to_forbid_them() {
    let (mut server, mut client, relayed) = start();
    server.bind(&mut client, 0x4000, PEER).success();
    server.bind(&mut client, 0x4001, "93.184.200.1:9").success();
    server.take_changes();
    let interface = InterfaceAddress {
        ip: "93.184.216.20".parse().unwrap(),
        prefix_len: 24,
    };
    server
        .engine
        .set_host_addresses(server.now.time, vec![interface], &[]);
    server.pump();
    assert_eq!(server.take_changes().len(), 2);
    assert_eq!(
        server.channel_data(&client, 0x4000),
        Err(DropReason::ChannelNotBound)
    );
    assert_eq!(
        server.peer_data(relayed, PEER),
        Err(DropReason::NoPermission)
    );
    assert!(server.channel_data(&client, 0x4001).is_ok());
}

//= V-07
#[test]
fn own_listeners_are_no_peers_and_other_allocations_are() {
    let (mut server, mut client, relayed) = start();
    let mut other = server.client("203.0.113.8:1");
    let other_relayed = server.allocate(&mut other).to_string();
    assert_eq!(
        server.bind(&mut client, 0x4000, "192.0.2.1:3478").code(),
        Some(403)
    );
    assert_eq!(
        server.send(&mut client, "192.0.2.1:3478", b"x"),
        Err(DropReason::PeerForbidden)
    );
    server.permit(&mut client, &other_relayed).success();
    assert!(server.send(&mut client, &other_relayed, b"x").is_ok());
    assert_eq!(
        server.send(&mut client, "192.0.2.1:3478", b"x"),
        Err(DropReason::PeerForbidden),
        "permitted address or not"
    );
    server.permit(&mut other, &relayed.to_string()).success();
    assert!(server.peer_data(relayed, &other_relayed).is_ok());
}

//= V-07
#[test]
fn a_port_of_a_relay_address_is_a_peer_only_while_it_is_an_allocations() {
    let (mut server, mut client, _) = start();
    let mut other = server.client("203.0.113.8:1");
    let theirs = server.allocate(&mut other);
    let vacant = core::net::SocketAddr::new(theirs.ip(), theirs.port() ^ 1).to_string();
    let theirs = theirs.to_string();
    server.permit(&mut client, &vacant).success(); // for the address; the port plays no part
    assert_eq!(server.bind(&mut client, 0x4000, &vacant).code(), Some(403));
    assert_eq!(
        server.send(&mut client, &vacant, b"x"),
        Err(DropReason::PeerForbidden)
    );
    server.bind(&mut client, 0x4000, &theirs).success();
    assert!(server.channel_data(&client, 0x4000).is_ok());
    assert!(server.send(&mut client, &theirs, b"x").is_ok());
    // From now on the kernel may give the port to any other program.
    server.refresh(&mut other, 0).success();
    assert_eq!(
        server.channel_data(&client, 0x4000),
        Err(DropReason::PeerForbidden)
    );
    assert_eq!(
        server.send(&mut client, &theirs, b"x"),
        Err(DropReason::PeerForbidden)
    );
}

/// However many allocations there are, one call judges a bounded number of them, and the others let nothing through meanwhile.
//= V-07
#[test]
fn what_a_change_of_addresses_forbids_carries_nothing_before_it_is_judged() {
    let mut server = Server::with(|config| config.limits.timeouts_per_call = 2);
    let mut clients: Vec<_> = (1..=9)
        .map(|n| {
            let mut client = server.client(&format!("203.0.113.{n}:40000"));
            let relayed = server.allocate(&mut client);
            server.bind(&mut client, 0x4000, PEER).success();
            server.bind(&mut client, 0x4001, "93.184.200.1:9").success();
            (client, relayed)
        })
        .collect();
    server.take_changes();
    let interface = InterfaceAddress {
        ip: "93.184.216.20".parse().unwrap(),
        prefix_len: 24,
    };
    server
        .engine
        .set_host_addresses(server.now.time, vec![interface], &[]);
    server.pump();
    let ended = server.take_changes().len();
    assert!(ended <= 4, "two allocations in one call: {ended}");
    for (client, relayed) in &mut clients {
        assert!(server.channel_data(client, 0x4000).is_err());
        assert_eq!(
            server.peer_data(*relayed, PEER),
            Err(DropReason::NoPermission)
        );
        assert_eq!(
            server.send(client, PEER, b"x"),
            Err(DropReason::PeerForbidden)
        );
        assert!(server.channel_data(client, 0x4001).is_ok(), "another peer");
    }
    let mut calls = 0;
    while server
        .engine
        .next_timeout()
        .is_some_and(|at| at <= server.now.time)
    {
        server.engine.handle_timeout(server.now);
        server.pump();
        calls += 1;
        assert!(calls < 100, "it comes to an end");
    }
    assert_eq!(ended + server.take_changes().len(), 2 * clients.len());
}
