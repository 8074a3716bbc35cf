//! Channels and ChannelBind, RFC 8656 §12.

use core::net::SocketAddr;
use core::time::Duration;

use turnbuckle_engine::{Change, DropReason};
use turnbuckle_wire::{AttributeType, Method};

use crate::support::*;

fn start() -> (Server, Client, SocketAddr) {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    let relayed = server.allocate(&mut client);
    (server, client, relayed)
}

//= TURN-079
//= TURN-082
//= TURN-120
//= V-29
#[test]
fn takes_numbers_from_0x4000_to_0x4fff_only() {
    let (mut server, mut client, _) = start();
    for number in [0, 0x3FFF, 0x5000, 0x7FFF, 0x8000, 0xFFFF] {
        assert_eq!(
            server.bind(&mut client, number, PEER).code(),
            Some(400),
            "{number:#x}"
        );
        assert_eq!(
            server.channel_data(&client, number),
            Err(DropReason::ChannelReserved)
        );
    }
    assert_eq!(
        server.engine.statistics().channel_numbers_reserved,
        2,
        "legal once, counted now"
    );
    server
        .bind(&mut client, 0x4000, "93.184.216.20:1")
        .success();
    server
        .bind(&mut client, 0x4FFF, "93.184.216.20:2")
        .success();
}

//= TURN-082
#[test]
fn answers_400_when_an_attribute_is_missing_or_malformed() {
    let (mut server, mut client, _) = start();
    let peer = PEER.parse().unwrap();
    let answer = server.ask(&mut client, Method::CHANNEL_BIND, |writer| {
        writer.xor_peer_address(peer);
    });
    assert_eq!(answer.code(), Some(400));
    let answer = server.ask(&mut client, Method::CHANNEL_BIND, |writer| {
        writer.bytes(AttributeType::CHANNEL_NUMBER, &[0x40, 0, 0, 0]);
    });
    assert_eq!(answer.code(), Some(400));
    let answer = server.ask(&mut client, Method::CHANNEL_BIND, |writer| {
        writer
            .bytes(AttributeType::CHANNEL_NUMBER, &[0x40, 0])
            .xor_peer_address(peer);
    });
    assert_eq!(answer.code(), Some(400));
    assert_eq!(
        server.bind(&mut client, 0x4000, "93.184.216.20:0").code(),
        Some(400),
        "port 0 is no transport address"
    );
}

//= TURN-108
#[test]
fn ignores_the_reserved_bits_of_channel_number() {
    let (mut server, mut client, _) = start();
    let answer = server.ask(&mut client, Method::CHANNEL_BIND, |writer| {
        writer
            .bytes(AttributeType::CHANNEL_NUMBER, &[0x40, 0, 0xFF, 0xFF])
            .xor_peer_address(PEER.parse().unwrap());
    });
    answer.success();
    assert!(server.channel_data(&client, 0x4000).is_ok());
}

//= TURN-082
//= TURN-086
//= V-29
#[test]
fn a_number_has_one_peer_and_a_peer_one_number() {
    let (mut server, mut client, _) = start();
    server
        .bind(&mut client, 0x4000, "93.184.216.20:1")
        .success();
    server
        .bind(&mut client, 0x4001, "93.184.216.20:2")
        .success();
    assert_eq!(
        server.bind(&mut client, 0x4000, "93.184.216.20:3").code(),
        Some(400),
        "the number is bound"
    );
    assert_eq!(
        server.bind(&mut client, 0x4002, "93.184.216.20:1").code(),
        Some(400),
        "the peer is bound"
    );
    assert_eq!(
        server.bind(&mut client, 0x4000, "93.184.216.20:2").code(),
        Some(400),
        "both are, to others"
    );
    assert_eq!(
        server
            .bind(&mut client, 0x4001, "[::ffff:93.184.216.20]:1")
            .code(),
        Some(400),
        "in another spelling"
    );
    server
        .bind(&mut client, 0x4000, "93.184.216.20:1")
        .success();
    let route = server.channel_data(&client, 0x4000).unwrap();
    assert_eq!(route.peer.address().port(), 1, "nothing has changed");
}

//= TURN-087
//= V-29
#[test]
fn a_channel_belongs_to_one_allocation() {
    let (mut server, mut client, relayed) = start();
    let mut other = server.client("203.0.113.8:1");
    let other_relayed = server.allocate(&mut other);
    server.bind(&mut client, 0x4000, PEER).success();
    assert_eq!(
        server.channel_data(&other, 0x4000),
        Err(DropReason::ChannelNotBound)
    );
    server.bind(&mut other, 0x4000, "93.184.216.21:9").success();
    assert_eq!(
        server
            .channel_data(&client, 0x4000)
            .unwrap()
            .peer
            .address()
            .to_string(),
        PEER
    );
    assert_eq!(
        server.peer_data(relayed, PEER).unwrap().client,
        client.tuple
    );
    assert_eq!(
        server.peer_data(other_relayed, PEER),
        Err(DropReason::NoPermission)
    );
}

//= TURN-083
//= TURN-084
#[test]
fn answers_443_and_403_as_create_permission_does() {
    let (mut server, mut client, _) = start();
    assert_eq!(server.bind(&mut client, 0x4000, PEER_V6).code(), Some(443));
    assert_eq!(
        server.bind(&mut client, 0x4000, "127.0.0.1:80").code(),
        Some(403)
    );
    assert_eq!(
        server
            .bind(&mut client, 0x4000, "[::ffff:10.0.0.1]:80")
            .code(),
        Some(443)
    );
    server.bind(&mut client, 0x4000, PEER).success();
}

//= TURN-084
//= V-45
#[test]
fn answers_508_beyond_the_limits() {
    let mut server = Server::with(|config| {
        config.limits.channels_per_allocation = 2;
        config.limits.permissions_per_allocation = 3;
    });
    let mut client = server.client(CLIENT);
    server.allocate(&mut client);
    server.bind(&mut client, 0x4000, "93.184.216.1:1").success();
    server.bind(&mut client, 0x4001, "93.184.216.2:1").success();
    assert_eq!(
        server.bind(&mut client, 0x4002, "93.184.216.1:2").code(),
        Some(508)
    );
    server.bind(&mut client, 0x4001, "93.184.216.2:1").success();
    server.oversleep(Duration::from_secs(601));
    let mut client = server.client("203.0.113.8:1");
    server.allocate(&mut client);
    for last in 1..=3 {
        server
            .permit(&mut client, &format!("93.184.216.{last}:1"))
            .success();
    }
    assert_eq!(
        server.bind(&mut client, 0x4000, "93.184.216.4:1").code(),
        Some(508),
        "no room for its permission"
    );
    assert_eq!(
        server.channel_data(&client, 0x4000),
        Err(DropReason::ChannelNotBound)
    );
    server.bind(&mut client, 0x4000, "93.184.216.3:1").success();
}

//= TURN-081
//= TURN-092
#[test]
fn a_channel_lasts_exactly_600_seconds_and_data_does_not_renew_it() {
    let (mut server, mut client, relayed) = start();
    server.refresh(&mut client, 3_600).success();
    server.bind(&mut client, 0x4000, PEER).success();
    server.wait_s(299);
    assert!(server.channel_data(&client, 0x4000).is_ok());
    server.permit(&mut client, PEER).success();
    server.wait_s(290);
    assert!(server.channel_data(&client, 0x4000).is_ok());
    server.challenge(&mut client);
    server.permit(&mut client, PEER).success();
    server.oversleep(Duration::from_millis(10_900)); // 599.9 s
    assert!(server.channel_data(&client, 0x4000).is_ok());
    assert_eq!(
        server.peer_data(relayed, PEER).unwrap().framing,
        channel(0x4000)
    );
    server.oversleep(Duration::from_millis(200));
    assert_eq!(
        server.channel_data(&client, 0x4000),
        Err(DropReason::ChannelNotBound)
    );
    assert_eq!(
        server.peer_data(relayed, PEER).unwrap().framing,
        data_indication(PEER),
        "the permission is still there"
    );
    server.take_changes();
    server.wait_s(1);
    let changes = server.take_changes();
    assert!(
        matches!(&changes[..], [Change::ChannelExpired { number, .. }] if number.get() == 0x4000),
        "{changes:?}"
    );
    // and may then go to another peer
    server
        .bind(&mut client, 0x4000, "93.184.216.21:9")
        .success();
}

//= TURN-081
#[test]
fn binding_again_renews_a_channel() {
    let (mut server, mut client, _) = start();
    server.refresh(&mut client, 3_600).success();
    server.bind(&mut client, 0x4000, PEER).success();
    server.wait_s(500);
    server.bind(&mut client, 0x4000, PEER).success();
    server.wait_s(250);
    assert!(server.channel_data(&client, 0x4000).is_ok());
}

//= TURN-085
//= TURN-094
#[test]
fn an_expired_permission_stops_a_live_channel() {
    let (mut server, mut client, relayed) = start();
    server.bind(&mut client, 0x4000, PEER).success();
    assert!(
        server.peer_data(relayed, PEER).is_ok(),
        "binding has installed the permission"
    );
    server.oversleep(Duration::from_millis(300_100));
    assert_eq!(
        server.channel_data(&client, 0x4000),
        Err(DropReason::NoPermission),
        "before its timer has fired"
    );
    assert_eq!(
        server.peer_data(relayed, PEER),
        Err(DropReason::NoPermission)
    );
    server.wait_s(1);
    assert_eq!(
        server.channel_data(&client, 0x4000),
        Err(DropReason::NoPermission),
        "and after"
    );
    assert_eq!(
        server.peer_data(relayed, PEER),
        Err(DropReason::NoPermission)
    );
    server.permit(&mut client, PEER).success();
    assert!(
        server.channel_data(&client, 0x4000).is_ok(),
        "and a new permission starts it again"
    );
}

//= TURN-074
#[test]
fn a_bound_peer_is_never_framed_as_an_indication() {
    let (mut server, mut client, relayed) = start();
    server.permit(&mut client, PEER).success();
    assert_eq!(
        server.peer_data(relayed, PEER).unwrap().framing,
        data_indication(PEER)
    );
    server.bind(&mut client, 0x4005, PEER).success();
    assert_eq!(
        server.peer_data(relayed, PEER).unwrap().framing,
        channel(0x4005)
    );
    let same_ip = "93.184.216.20:7001";
    assert_eq!(
        server.peer_data(relayed, same_ip).unwrap().framing,
        data_indication(same_ip),
        "another port is another peer"
    );
}

//= TURN-091
#[test]
fn unbound_channels_are_dropped() {
    let (mut server, mut client, _) = start();
    assert_eq!(
        server.channel_data(&client, 0x4000),
        Err(DropReason::ChannelNotBound)
    );
    server.bind(&mut client, 0x4000, PEER).success();
    assert_eq!(
        server.channel_data(&client, 0x4001),
        Err(DropReason::ChannelNotBound)
    );
}

/// With few channels the peer is found by a scan, with many by an index; both have to find the same.
#[test]
fn many_channels_are_found_by_number_and_by_peer() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    let relayed = server.allocate(&mut client);
    let peer = |n: u16| format!("93.184.{}.{}:{}", 100 + n % 7, 1 + n % 50, 1_000 + n);
    for n in 0..300 {
        server
            .bind(&mut client, 0x4000 + (n * 37) % 0x1000, &peer(n))
            .success();
        if n % 50 == 0 || n < 20 {
            for m in 0..=n {
                let number = 0x4000 + (m * 37) % 0x1000;
                assert_eq!(
                    server
                        .channel_data(&client, number)
                        .unwrap()
                        .peer
                        .address()
                        .to_string(),
                    peer(m)
                );
                assert_eq!(
                    server.peer_data(relayed, &peer(m)).unwrap().framing,
                    channel(number)
                );
            }
        }
    }
    assert_eq!(
        server.bind(&mut client, 0x4FFE, &peer(123)).code(),
        Some(400),
        "its peer has another number"
    );
    server.refresh(&mut client, 3_600).success();
    server.wait_s(601);
    assert_eq!(
        server.channel_data(&client, 0x4000),
        Err(DropReason::ChannelNotBound)
    );
}

//= TURN-093
#[test]
fn an_empty_channel_message_is_relayed() {
    let (mut server, mut client, _) = start();
    server.bind(&mut client, 0x4000, PEER).success();
    let id = server.id(&client);
    assert!(
        server
            .engine
            .route_channel_data(server.now.time, id, 0x4000, 1, 0)
            .is_ok()
    );
}

//= TURN-120
#[test]
fn takes_the_numbers_of_rfc_5766_where_the_operator_says_so() {
    let mut server = Server::with(|config| config.relays.rfc5766_channel_numbers = true);
    let mut client = server.client(CLIENT);
    let relayed = server.allocate(&mut client);
    server.bind(&mut client, 0x7FFF, PEER).success();
    assert!(server.channel_data(&client, 0x7FFF).is_ok());
    assert!(matches!(
        server.peer_data(relayed, PEER).unwrap().framing,
        turnbuckle_engine::Framing::Channel(number) if number.get() == 0x7FFF
    ));
    assert_eq!(server.bind(&mut client, 0x8000, PEER).code(), Some(400));
}
