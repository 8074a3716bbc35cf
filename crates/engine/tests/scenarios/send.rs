//! Send indications and what comes back, RFC 8656 §11.

use turnbuckle_engine::DropReason;
use turnbuckle_wire::{AddressFamily, AttributeType, Class, Method};

use crate::support::*;

fn start() -> (Server, Client, core::net::SocketAddr) {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    let relayed = server.allocate(&mut client);
    server.permit(&mut client, PEER).success();
    (server, client, relayed)
}

//= TURN-015
//= TURN-068
//= TURN-072
#[test]
fn relays_exactly_the_data_of_the_indication() {
    let (mut server, mut client, relayed) = start();
    for data in [&b""[..], b"x", b"four", &[7; 1_200], &[9; 65_400]] {
        let mut bytes = Vec::new();
        let transaction = client.next_transaction();
        bytes.extend(message(
            Class::Indication,
            Method::SEND,
            transaction,
            |writer| {
                writer.xor_peer_address(PEER.parse().unwrap()).data(data);
            },
        ));
        let turnbuckle_engine::Outcome::Relay(route) = server.receive(client.tuple, &bytes) else {
            panic!()
        };
        assert_eq!(&bytes[route.data], data);
        assert_eq!(route.peer.address().to_string(), PEER);
        assert_eq!(Some(route.relay), server.endpoint_at(relayed));
        assert!(!route.dont_fragment);
    }
}

//= TURN-067
#[test]
fn drops_an_indication_without_peer_or_data() {
    let (mut server, mut client, _) = start();
    let peer = PEER.parse().unwrap();
    let no_data = server.indicate(&mut client, |writer| {
        writer.xor_peer_address(peer);
    });
    assert_eq!(no_data, Err(DropReason::IndicationMalformed));
    let no_peer = server.indicate(&mut client, |writer| {
        writer.data(b"x");
    });
    assert_eq!(no_peer, Err(DropReason::IndicationMalformed));
    let bad_peer = server.indicate(&mut client, |writer| {
        writer
            .bytes(AttributeType::XOR_PEER_ADDRESS, &[0, 1, 2])
            .data(b"x");
    });
    assert_eq!(bad_peer, Err(DropReason::IndicationMalformed));
    assert_eq!(
        server.send(&mut client, "93.184.216.20:0", b"x"),
        Err(DropReason::IndicationMalformed)
    );
}

//= V-24
//= STUN-071
#[test]
fn follows_the_first_of_repeated_attributes() {
    let (mut server, mut client, _) = start();
    let good = PEER.parse().unwrap();
    let evil = "93.184.216.99:1".parse().unwrap();
    let route = server.indicate(&mut client, |writer| {
        writer
            .xor_peer_address(good)
            .xor_peer_address(evil)
            .data(b"first")
            .data(b"second");
    });
    let route = route.unwrap();
    assert_eq!((route.peer.address(), route.data.len()), (good, 5));
    let route = server.indicate(&mut client, |writer| {
        writer
            .xor_peer_address(evil)
            .xor_peer_address(good)
            .data(b"x");
    });
    assert_eq!(route, Err(DropReason::NoPermission));
}

//= TURN-069
#[test]
fn passes_dont_fragment_on_or_drops_what_cannot_have_it() {
    let write = |writer: &mut turnbuckle_wire::MessageWriter<'_>| {
        writer
            .xor_peer_address(PEER.parse().unwrap())
            .data(b"x")
            .dont_fragment();
    };
    let (mut server, mut client, _) = start();
    assert!(server.indicate(&mut client, write).unwrap().dont_fragment);

    let mut server = Server::with(|config| config.relays.dont_fragment = false);
    let mut client = server.client(CLIENT);
    server.allocate(&mut client);
    server.permit(&mut client, PEER).success();
    assert_eq!(
        server.indicate(&mut client, write),
        Err(DropReason::FragmentationUnsupported)
    );
    assert!(server.send(&mut client, PEER, b"x").is_ok());
}

//= TURN-101
#[test]
fn ignores_dont_fragment_where_anything_is_ipv6() {
    let mut server = Server::start();
    for (remote, peer, has_df) in [
        (CLIENT, PEER, true),
        (CLIENT, PEER_V6, false),
        ("[2606:4700::7]:9", PEER, false),
        ("[2606:4700::7]:10", PEER_V6, false),
    ] {
        let remote = remote.replace(":50000", if peer == PEER { ":1" } else { ":2" });
        let mut client = server.client(&remote);
        let peer: core::net::SocketAddr = peer.parse().unwrap();
        let family = if peer.is_ipv4() {
            AddressFamily::V4
        } else {
            AddressFamily::V6
        };
        let answer = server.ask(&mut client, Method::ALLOCATE, |writer| {
            writer
                .requested_transport(17)
                .requested_address_family(family);
        });
        answer.success();
        server.permit(&mut client, &peer.to_string()).success();
        let route = server.indicate(&mut client, |writer| {
            writer.xor_peer_address(peer).data(b"x").dont_fragment();
        });
        assert_eq!(route.unwrap().dont_fragment, has_df, "{remote} to {peer}");
    }
}

//= TURN-071
//= TURN-070
#[test]
fn drops_what_is_not_permitted_or_forbidden() {
    let (mut server, mut client, _) = start();
    assert_eq!(
        server.send(&mut client, "93.184.216.99:1", b"x"),
        Err(DropReason::NoPermission)
    );
    assert_eq!(
        server.send(&mut client, "127.0.0.1:1", b"x"),
        Err(DropReason::PeerForbidden)
    );
    assert_eq!(
        server.send(&mut client, "[::ffff:127.0.0.1]:1", b"x"),
        Err(DropReason::PeerForbidden)
    );
    assert_eq!(
        server.send(&mut client, PEER_V6, b"x"),
        Err(DropReason::PeerFamilyMismatch)
    );
    assert_eq!(
        server.send(&mut client, "[::ffff:93.184.216.20]:1", b"x"),
        Err(DropReason::PeerForbidden),
        "the mapped form of a permitted address is no address of a peer"
    );
}

//= STUN-031
#[test]
fn drops_an_indication_with_an_unknown_required_attribute() {
    let (mut server, mut client, _) = start();
    for (kind, reason) in [
        (0x7FFF, Some(DropReason::UnknownAttribute)),
        (0x0003, Some(DropReason::UnknownAttribute)),
        (0xC001, None),
    ] {
        let route = server.indicate(&mut client, |writer| {
            writer
                .xor_peer_address(PEER.parse().unwrap())
                .data(b"x")
                .bytes(AttributeType::new(kind), &[1, 2, 3, 4]);
        });
        assert_eq!(route.err(), reason, "{kind:#x}");
    }
}

//= V-23
//= STUN-034
//= STUN-035
#[test]
fn sees_nothing_behind_an_integrity_attribute() {
    let (mut server, mut client, _) = start();
    let transaction = client.next_transaction();
    let mut bytes = message(Class::Indication, Method::SEND, transaction, |writer| {
        writer
            .xor_peer_address(PEER.parse().unwrap())
            .data(b"x")
            .integrity(&client.key);
    });
    let plain = message(Class::Indication, Method::SEND, transaction, |writer| {
        writer.dont_fragment();
    });
    bytes.extend(&plain[20..]);
    let length = u16::try_from(bytes.len() - 20).unwrap();
    bytes[2..4].copy_from_slice(&length.to_be_bytes());
    let turnbuckle_engine::Outcome::Relay(route) = server.receive(client.tuple, &bytes) else {
        panic!()
    };
    assert!(!route.dont_fragment);
}

//= TURN-073
#[test]
fn names_the_true_source_to_the_client() {
    let (mut server, _, relayed) = start();
    for peer in [PEER, "93.184.216.20:1", "93.184.216.20:65535"] {
        assert_eq!(
            server.peer_data(relayed, peer).unwrap().framing,
            data_indication(peer)
        );
    }
    // as a dual-stack socket would name it
    assert_eq!(
        server
            .peer_data(relayed, "[::ffff:93.184.216.20]:5")
            .unwrap()
            .framing,
        data_indication("93.184.216.20:5")
    );
}

//= TURN-073
#[test]
fn names_other_allocations_by_their_external_address() {
    let mut server = Server::with(|config| {
        config.relays.addresses[0].local = "10.0.0.1".parse().unwrap();
        config.relays.addresses[0].external = Some("93.184.1.1".parse().unwrap());
    });
    let mut client = server.client(CLIENT);
    let relayed = server.allocate(&mut client);
    let mut other = server.client("203.0.113.8:1");
    let other_relayed = server.allocate(&mut other);
    server
        .bind(&mut client, 0x4000, &other_relayed.to_string())
        .success();
    let route = server.channel_data(&client, 0x4000).unwrap();
    let local = core::net::SocketAddr::new("10.0.0.1".parse().unwrap(), other_relayed.port());
    assert_eq!(
        route.peer.address(),
        local,
        "the packet does not leave the machine"
    );
    let own_local = core::net::SocketAddr::new("10.0.0.1".parse().unwrap(), relayed.port());
    let socket = server.socket_at(own_local).unwrap();
    let back = server
        .engine
        .route_from_peer(server.now.time, socket.handle, local, 1, 1)
        .unwrap();
    assert_eq!(back.framing, channel(0x4000));
}
