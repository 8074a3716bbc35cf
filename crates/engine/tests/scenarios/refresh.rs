//! Refresh, RFC 8656 §8.

use core::time::Duration;

use turnbuckle_engine::{Change, DropReason, EndCause};
use turnbuckle_wire::{AddressFamily, AttributeType, Method};

use crate::support::*;

//= TURN-046
//= TURN-052
//= V-52
#[test]
fn clamps_the_lifetime_as_allocate_does() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    server.allocate(&mut client);
    for (asked, granted) in [
        (1, 600),
        (600, 600),
        (1_000, 1_000),
        (3_600, 3_600),
        (u32::MAX, 3_600),
    ] {
        assert_eq!(
            server.refresh(&mut client, asked).lifetime(),
            granted,
            "{asked}"
        );
    }
    let answer = server.ask(&mut client, Method::REFRESH, |_| {});
    assert_eq!(answer.lifetime(), 600, "nothing asked for is the default");
}

//= TURN-052
//= TURN-055
#[test]
fn ends_an_allocation_on_request() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    let relayed = server.allocate(&mut client);
    server.bind(&mut client, 0x4000, PEER).success();
    assert_eq!(server.refresh(&mut client, 0).lifetime(), 0);
    assert_eq!(
        server.channel_data(&client, 0x4000),
        Err(DropReason::NoAllocation)
    );
    assert_eq!(server.socket_at(relayed), None, "it is closed");
    server.assert_nothing_is_held();
    // nothing of it is in the next one
    server.allocate(&mut client);
    assert_eq!(
        server.channel_data(&client, 0x4000),
        Err(DropReason::ChannelNotBound)
    );
}

//= TURN-019
//= TURN-055
#[test]
fn an_allocation_ends_exactly_when_its_time_is_over() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    let relayed = server.allocate(&mut client);
    server.wait(Duration::from_millis(599_000));
    server.bind(&mut client, 0x4000, PEER).success();
    server.oversleep(Duration::from_millis(999)); // the timers do not fire
    assert!(server.channel_data(&client, 0x4000).is_ok());
    assert!(server.peer_data(relayed, PEER).is_ok());
    assert!(server.send(&mut client, PEER, b"x").is_ok());
    server.oversleep(Duration::from_millis(2));
    assert_eq!(
        server.channel_data(&client, 0x4000),
        Err(DropReason::NoAllocation)
    );
    assert_eq!(
        server.peer_data(relayed, PEER),
        Err(DropReason::RelayClosed)
    );
    assert_eq!(
        server.send(&mut client, PEER, b"x"),
        Err(DropReason::NoAllocation)
    );
    server.challenge(&mut client);
    assert_eq!(server.refresh(&mut client, 600).code(), Some(437));
    let ended = server
        .take_changes()
        .into_iter()
        .rev()
        .find_map(|change| match change {
            Change::Ended(ended) => Some(ended),
            _ => None,
        });
    assert_eq!(ended.unwrap().cause, EndCause::Expired);
    server.assert_nothing_is_held();
}

#[test]
fn timers_end_an_allocation_within_a_second() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    server.allocate(&mut client);
    server.wait_s(599);
    assert_eq!(server.sockets.len(), 1);
    server.wait_s(2);
    server.assert_nothing_is_held();
    assert_eq!(server.engine.next_timeout(), None);
}

#[test]
fn a_refreshed_allocation_lives_on() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    server.allocate(&mut client);
    for _ in 0..10 {
        server.wait_s(599);
        server.challenge(&mut client);
        server.refresh(&mut client, 600).success();
    }
    // a shorter lifetime is a new lifetime
    server.refresh(&mut client, 3_600).success();
    server.refresh(&mut client, 600).success();
    server.wait_s(602);
    server.assert_nothing_is_held();
}

//= TURN-006
//= TURN-053
#[test]
fn answers_437_without_an_allocation() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    assert_eq!(server.refresh(&mut client, 0).code(), Some(437));
    assert_eq!(server.refresh(&mut client, 600).code(), Some(437));
    assert_eq!(server.permit(&mut client, PEER).code(), Some(437));
    assert_eq!(server.bind(&mut client, 0x4000, PEER).code(), Some(437));
    assert_eq!(
        server.send(&mut client, PEER, b"x"),
        Err(DropReason::NoAllocation)
    );
    assert_eq!(
        server.channel_data(&client, 0x4000),
        Err(DropReason::NoAllocation)
    );
}

//= TURN-051
#[test]
fn answers_443_for_a_family_that_is_not_held() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    server.allocate(&mut client);
    for lifetime in [0, 600] {
        let answer = server.ask(&mut client, Method::REFRESH, |writer| {
            writer
                .lifetime(lifetime)
                .requested_address_family(AddressFamily::V6);
        });
        assert_eq!(answer.code(), Some(443));
        let answer = server.ask(&mut client, Method::REFRESH, |writer| {
            writer
                .lifetime(lifetime)
                .bytes(AttributeType::REQUESTED_ADDRESS_FAMILY, &[7, 0, 0, 0]);
        });
        assert_eq!(answer.code(), Some(443));
    }
    let answer = server.ask(&mut client, Method::REFRESH, |writer| {
        writer.bytes(AttributeType::REQUESTED_ADDRESS_FAMILY, &[1, 0]);
    });
    assert_eq!(answer.code(), Some(400));
    let answer = server.ask(&mut client, Method::REFRESH, |writer| {
        writer
            .lifetime(0)
            .requested_address_family(AddressFamily::V4);
    });
    assert_eq!(answer.lifetime(), 0, "the only family is the allocation");
    server.assert_nothing_is_held();
}

//= TURN-054
#[test]
fn ending_one_family_leaves_the_other_as_it_is() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    let [v4, v6] = server.allocate_dual(&mut client);
    server.bind(&mut client, 0x4000, PEER).success();
    server.bind(&mut client, 0x4001, PEER_V6).success();
    server.take_changes();
    let answer = server.ask(&mut client, Method::REFRESH, |writer| {
        writer
            .lifetime(0)
            .requested_address_family(AddressFamily::V4);
    });
    assert_eq!(answer.lifetime(), 0);
    let id = server.id(&client);
    let changes = server.take_changes();
    assert!(
        matches!(&changes[..], [Change::FamilyEnded { allocation, .. }] if *allocation == id),
        "{changes:?}"
    );

    assert!(server.socket_at(v4).is_none());
    assert_eq!(
        server.channel_data(&client, 0x4000),
        Err(DropReason::ChannelNotBound)
    );
    assert_eq!(
        server.send(&mut client, PEER, b"x"),
        Err(DropReason::PeerFamilyMismatch)
    );
    assert_eq!(server.permit(&mut client, PEER).code(), Some(443));
    assert_eq!(server.bind(&mut client, 0x4000, PEER).code(), Some(443));

    assert!(server.channel_data(&client, 0x4001).is_ok());
    assert_eq!(
        server.peer_data(v6, PEER_V6).unwrap().framing,
        channel(0x4001)
    );
    // and nothing of the ended one is left to end later
    server.take_changes();
    server.wait_s(301);
    let changes = server.take_changes();
    assert!(
        matches!(&changes[..], [Change::PermissionExpired { peer, .. }] if peer.is_ipv6()),
        "{changes:?}"
    );
    server.refresh(&mut client, 0).success();
    server.assert_nothing_is_held();
}

//= TURN-054
//= TURN-055
#[test]
fn each_family_has_its_own_lifetime() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    let [v4, v6] = server.allocate_dual(&mut client);
    let answer = server.ask(&mut client, Method::REFRESH, |writer| {
        writer
            .lifetime(2_000)
            .requested_address_family(AddressFamily::V6);
    });
    assert_eq!(answer.lifetime(), 2_000);
    server.wait_s(601);
    assert!(server.socket_at(v4).is_none() && server.socket_at(v6).is_some());
    server.challenge(&mut client);
    server.permit(&mut client, PEER_V6).success();
    assert!(server.peer_data(v6, PEER_V6).is_ok());
    server.wait_s(1_400);
    server.assert_nothing_is_held();
}

#[test]
fn totals_of_an_allocation_are_reported_when_it_ends() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    let relayed = server.allocate(&mut client);
    server.bind(&mut client, 0x4000, PEER).success();
    let id = server.id(&client);
    let socket = server.socket_at(relayed).unwrap();
    let now = server.now.time;
    server
        .engine
        .route_channel_data(now, id, 0x4000, 3, 300)
        .unwrap();
    server
        .engine
        .route_channel_data(now, id, 0x4001, 2, 20)
        .unwrap_err(); // received and not sent
    server
        .engine
        .route_from_peer(now, socket.handle, PEER.parse().unwrap(), 5, 500)
        .unwrap();
    server
        .engine
        .route_from_peer(now, socket.handle, "93.184.216.20:1".parse().unwrap(), 1, 7)
        .unwrap();
    server
        .engine
        .route_from_peer(
            now,
            socket.handle,
            "93.184.216.21:1".parse().unwrap(),
            4,
            40,
        )
        .unwrap_err();
    server.send(&mut client, PEER, b"hello").unwrap();
    server.refresh(&mut client, 0).success();
    let totals = server
        .take_changes()
        .into_iter()
        .find_map(|change| match change {
            Change::Ended(ended) => Some(ended.totals),
            _ => None,
        });
    let totals = totals.unwrap();
    assert_eq!(
        (
            totals.client_received.datagrams,
            totals.client_received.bytes
        ),
        (6, 312 + 28 + 5)
    );
    assert_eq!(
        (totals.peer_sent.datagrams, totals.peer_sent.bytes),
        (4, 305)
    );
    assert_eq!(
        (totals.peer_received.datagrams, totals.peer_received.bytes),
        (10, 547)
    );
    assert_eq!(
        (totals.client_sent.datagrams, totals.client_sent.bytes),
        (6, 520 + 7)
    );
}
