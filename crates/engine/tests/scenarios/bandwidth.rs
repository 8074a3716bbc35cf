//! The rate of one allocation, and what all rates may add up to.

use core::num::NonZeroU32;
use core::time::Duration;
use std::sync::Arc;

use turnbuckle_engine::{Bandwidth, Config, DropReason, Engine};
use turnbuckle_wire::Method;

use crate::support::*;

fn limited(rate: u32, capacity: Option<u32>) -> impl FnOnce(&mut Config) {
    move |config| {
        config.limits.bandwidth = Bandwidth {
            bytes_per_s: NonZeroU32::new(rate),
            capacity_bytes_per_s: capacity.and_then(NonZeroU32::new),
        }
    }
}

fn code_of_allocate(server: &mut Server, client: &mut Client) -> Option<u16> {
    let answer = server.ask(client, Method::ALLOCATE, |writer| {
        writer.requested_transport(17);
    });
    answer.code()
}

//= TURN-013
//= TURN-115
#[test]
fn data_beyond_the_rate_is_dropped_in_both_directions_and_in_every_framing() {
    let mut server = Server::with(limited(100, None));
    let mut client = server.client(CLIENT);
    let relayed = server.allocate(&mut client);
    server.bind(&mut client, 0x4000, PEER).success();

    // ten bytes each: a second's worth at once, then nothing
    let to_peer: Vec<_> = (0..12)
        .map(|_| server.channel_data(&client, 0x4000))
        .collect();
    assert!(to_peer[..10].iter().all(Result::is_ok));
    assert_eq!(to_peer[10..], [Err(DropReason::BandwidthExceeded); 2]);
    assert_eq!(
        server.send(&mut client, PEER, b"0123456789"),
        Err(DropReason::BandwidthExceeded),
        "indications and channels share the rate"
    );
    let to_client: Vec<_> = (0..12).map(|_| server.peer_data(relayed, PEER)).collect();
    assert!(to_client[..10].iter().all(Result::is_ok));
    assert_eq!(to_client[10..], [Err(DropReason::BandwidthExceeded); 2]);

    server.wait(Duration::from_millis(500));
    let to_peer = (0..12).map(|_| server.channel_data(&client, 0x4000));
    assert_eq!(to_peer.filter(Result::is_ok).count(), 5);
    // requests are no data
    server.refresh(&mut client, 600).success();
}

//= TURN-013
#[test]
fn a_train_is_cut_where_the_rate_ends() {
    let mut server = Server::with(limited(10_000, None));
    let mut client = server.client(CLIENT);
    let relayed = server.allocate(&mut client);
    server.bind(&mut client, 0x4000, PEER).success();
    let id = server.id(&client);
    let now = server.now.time;
    let route = server
        .engine
        .route_channel_data(now, id, 0x4000, 40, 40 * 500);
    assert_eq!(route.unwrap().datagrams, 19);
    let handle = server.socket_at(relayed).unwrap().handle;
    let peer = PEER.parse().unwrap();
    let route = server.engine.route_from_peer(now, handle, peer, 5, 5 * 500);
    assert_eq!(route.unwrap().datagrams, 5, "all of a train that fits");
}

#[test]
fn without_a_limit_everything_goes() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    server.allocate(&mut client);
    server.bind(&mut client, 0x4000, PEER).success();
    let id = server.id(&client);
    let now = server.now.time;
    for _ in 0..1_000 {
        let route = server
            .engine
            .route_channel_data(now, id, 0x4000, 64, 64_000);
        assert_eq!(route.unwrap().datagrams, 64);
    }
}

//= TURN-115
#[test]
fn the_capacity_is_shared_by_all_engines_and_the_last_gets_the_remainder() {
    let mut first = Server::with(limited(100, Some(250)));
    let mut second = Server::joining(Arc::clone(&first.config), Arc::clone(&first.commons), 2);
    let mut clients: Vec<Client> = (0..2)
        .map(|n| first.client(&format!("203.0.113.7:{}", 1 + n)))
        .collect();
    let mut last = second.client("203.0.113.8:1");
    let mut beyond = second.client("203.0.113.8:2");
    assert_eq!(code_of_allocate(&mut first, &mut clients[0]), None);
    assert_eq!(code_of_allocate(&mut second, &mut last), None);
    assert_eq!(code_of_allocate(&mut first, &mut clients[1]), None);
    assert_eq!(first.commons.bandwidth_reserved(), 250);
    assert_eq!(code_of_allocate(&mut second, &mut beyond), Some(486));
    assert_eq!(
        first.commons.quota_used_total(),
        3,
        "a refusal holds nothing"
    );

    // what was left is a rate like any other
    first.bind(&mut clients[1], 0x4000, PEER).success();
    let sent = (0..10).map(|_| first.channel_data(&clients[1], 0x4000));
    assert_eq!(sent.filter(Result::is_ok).count(), 5);

    second.refresh(&mut last, 0).success();
    assert_eq!(first.commons.bandwidth_reserved(), 150);
    assert_eq!(code_of_allocate(&mut second, &mut beyond), None);
    first.wait_s(601);
    second.wait_s(601);
    assert_eq!(first.commons.bandwidth_reserved(), 0);
    first.assert_nothing_is_held();
}

#[test]
fn a_rebuilt_engine_holds_to_the_same_rates() {
    let mut server = Server::with(limited(100, Some(150)));
    let mut client = server.client(CLIENT);
    let mut other = server.client("203.0.113.7:1");
    server.allocate(&mut client);
    server.allocate(&mut other);
    let commons = turnbuckle_engine::Commons::new(&server.config);
    let engine = Engine::rebuild(
        Arc::clone(&server.config),
        Arc::clone(&commons),
        server.random.clone(),
        server.now,
        listeners(),
        server.changes.clone(),
        |address| server.endpoint_at(address),
    );
    let mut rebuilt = Server::around(
        engine,
        Arc::clone(&server.config),
        commons,
        server.random.clone(),
    );
    rebuilt.now = server.now;
    assert_eq!(rebuilt.commons.bandwidth_reserved(), 150);
    rebuilt.challenge(&mut other);
    rebuilt.bind(&mut other, 0x4000, PEER).success();
    let sent = (0..10).map(|_| rebuilt.channel_data(&other, 0x4000));
    assert_eq!(sent.filter(Result::is_ok).count(), 5);
}
