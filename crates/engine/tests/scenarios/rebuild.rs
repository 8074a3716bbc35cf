//! An engine made again from its changes behaves as the one that made them.

use core::net::SocketAddr;
use std::sync::Arc;

use turnbuckle_engine::{
    Change, Commons, Config, Connection, DropReason, EndCause, Endpoint, Engine, RelayAddress,
};
use turnbuckle_wire::{MessageWriter, Method};

use crate::support::*;

/// Makes a second server from the changes of the first, with the same sockets.
pub(crate) fn rebuild(server: &Server, history: &[Change]) -> Server {
    rebuild_with(server, history, Arc::clone(&server.config), |address| {
        server.endpoint_at(address)
    })
}

/// The same with a configuration, and with sockets where `endpoint_of` has one.
pub(crate) fn rebuild_with(
    server: &Server,
    history: &[Change],
    config: Arc<Config>,
    endpoint_of: impl FnMut(SocketAddr) -> Option<Endpoint>,
) -> Server {
    let commons = Commons::new(&config);
    let random = Seeded::new(1);
    let engine = Engine::rebuild(
        Arc::clone(&config),
        Arc::clone(&commons),
        random.clone(),
        server.now,
        listeners(),
        history.iter().cloned(),
        endpoint_of,
    );
    let mut rebuilt = Server::around(engine, config, commons, random);
    rebuilt.now = server.now;
    rebuilt.sockets = server.sockets.clone();
    rebuilt.skip_endpoints(server);
    rebuilt.pump();
    rebuilt
}

#[test]
fn ends_that_came_while_nobody_was_there_are_found() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    server.allocate(&mut client);
    server.bind(&mut client, 0x4000, PEER).success();
    let history = server.take_changes();
    server.oversleep(core::time::Duration::from_secs(400));
    let mut rebuilt = rebuild(&server, &history);
    assert_eq!(
        rebuilt.channel_data(&client, 0x4000),
        Err(DropReason::NoPermission)
    );
    rebuilt.wait_s(0);
    assert!(matches!(
        &rebuilt.take_changes()[..],
        [Change::PermissionExpired { .. }]
    ));
    rebuilt.wait_s(300);
    rebuilt.assert_nothing_is_held();
}

#[test]
fn an_allocation_without_its_socket_listener_or_port_is_lost_and_reported() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    server.allocate(&mut client);
    let id = server.id(&client);
    let history = server.take_changes();

    let assert_lost = |mut rebuilt: Server| {
        let changes = rebuilt.take_changes();
        assert!(
            matches!(&changes[..], [Change::Ended(ended)] if ended.allocation == id && ended.cause == EndCause::Lost),
            "{changes:?}"
        );
        rebuilt
    };
    let mut rebuilt = assert_lost(rebuild_with(
        &server,
        &history,
        Arc::clone(&server.config),
        |_| None,
    ));
    rebuilt.sockets.clear();
    rebuilt.assert_nothing_is_held();
    let mut fresh = rebuilt.client(CLIENT);
    fresh.transactions += 10; // the one that made the lost allocation must not work again
    rebuilt.allocate(&mut fresh);
    assert_ne!(rebuilt.id(&fresh), id, "its name is not used again");

    let mut other_ports = (*server.config).clone();
    other_ports.relays.ports = 40_000..=40_001;
    let rebuilt = assert_lost(rebuild_with(
        &server,
        &history,
        Arc::new(other_ports),
        |address| server.endpoint_at(address),
    ));
    rebuilt.assert_nothing_is_held(); // its socket was closed
}

/// Returns a relay address behind a NAT that maps it one to one.
fn mapped(local: &str, external: &str) -> RelayAddress {
    RelayAddress {
        local: local.parse().unwrap(),
        external: Some(external.parse().unwrap()),
    }
}

#[test]
fn calls_go_on_at_an_address_that_new_ones_do_not_get_any_more() {
    let before = mapped("10.0.0.1", "93.184.1.1");
    let mut server = Server::with(|config| config.relays.addresses = vec![before]);
    let mut one = server.client(CLIENT);
    let mut other = server.client("203.0.113.8:1");
    let relayed = server.allocate(&mut one);
    let to_other = server.allocate(&mut other).to_string();
    server.bind(&mut one, 0x4000, &to_other).success();
    let history = server.take_changes();

    let mut config = (*server.config).clone();
    let now = mapped("10.0.0.2", "93.184.1.2");
    config.relays.addresses = vec![now];
    config.relays.former = vec![before];
    let mut rebuilt = rebuild_with(&server, &history, Arc::new(config), |address| {
        server.endpoint_at(address)
    });
    assert!(rebuilt.take_changes().is_empty(), "none is lost");
    let route = rebuilt.channel_data(&one, 0x4000).unwrap();
    let local = SocketAddr::new(before.local, to_other.parse::<SocketAddr>().unwrap().port());
    assert_eq!(route.peer.address(), local, "it stays on the machine");
    // What else is at that address is the server's own, as before.
    for own in ["10.0.0.1:80", "93.184.1.1:80"] {
        assert_eq!(rebuilt.bind(&mut one, 0x4001, own).code(), Some(403));
    }
    rebuilt.permit(&mut one, &to_other).success();
    let free = SocketAddr::new(relayed.ip(), u16::MAX);
    assert!(![relayed.to_string(), to_other].contains(&free.to_string()));
    let sent = rebuilt.send(&mut one, &free.to_string(), b"data");
    assert_eq!(sent, Err(DropReason::PeerForbidden));

    for client in 1..=20 {
        let mut new = rebuilt.client(&format!("203.0.113.9:{client}"));
        let relayed = rebuilt.allocate(&mut new);
        assert_eq!(Some(relayed.ip()), now.external);
        rebuilt.refresh(&mut new, 0).success();
    }
    rebuilt.refresh(&mut one, 0).success();
    rebuilt.refresh(&mut other, 0).success();
    rebuilt.assert_nothing_is_held();
}

#[test]
fn a_family_that_only_calls_of_before_have_is_not_supported() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    server.allocate(&mut client);
    let history = server.take_changes();
    let mut config = (*server.config).clone();
    config.relays.former = config.relays.addresses.drain(..1).collect();
    let mut rebuilt = rebuild_with(&server, &history, Arc::new(config), |address| {
        server.endpoint_at(address)
    });
    rebuilt.refresh(&mut client, 600).success();
    let mut new = rebuilt.client("203.0.113.8:1");
    let answer = rebuilt.ask(&mut new, Method::ALLOCATE, |writer| {
        writer.requested_transport(17);
    });
    assert_eq!(answer.code(), Some(440));
}

/// The simulator lost an allocation in a restart and then played back the request that had created it.
//= V-22
#[test]
fn the_request_behind_a_lost_allocation_does_not_create_another() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    let transaction = client.next_transaction();
    let allocate = client.request(Method::ALLOCATE, transaction, |writer| {
        writer.requested_transport(17);
    });
    server.exchange(client.tuple, &allocate).success();
    let history = server.take_changes();
    let config = Arc::clone(&server.config);
    let mut rebuilt = rebuild_with(&server, &history, config, |_| None);
    rebuilt.sockets.clear();
    let challenged = rebuilt.client(CLIENT);
    let again = challenged.request(Method::ALLOCATE, transaction, |writer| {
        writer.requested_transport(17);
    });
    assert_eq!(rebuilt.exchange(client.tuple, &again).code(), Some(437));
    rebuilt.assert_nothing_is_held();
}

#[test]
fn totals_go_on_from_the_last_refresh() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    server.allocate(&mut client);
    server.bind(&mut client, 0x4000, PEER).success();
    server.channel_data(&client, 0x4000).unwrap();
    server.refresh(&mut client, 600).success();
    let history = server.take_changes();
    let mut rebuilt = rebuild(&server, &history);
    rebuilt.channel_data(&client, 0x4000).unwrap();
    let mut client = rebuilt.client(CLIENT);
    client.transactions += 10;
    rebuilt.refresh(&mut client, 0).success();
    let totals = rebuilt
        .take_changes()
        .into_iter()
        .find_map(|change| match change {
            Change::Ended(ended) => Some(ended.totals),
            _ => None,
        });
    assert_eq!(totals.unwrap().peer_sent.datagrams, 2);
}

#[test]
fn a_lost_allocation_ends_with_the_totals_of_the_last_refresh() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    server.allocate(&mut client);
    server.bind(&mut client, 0x4000, PEER).success();
    server.channel_data(&client, 0x4000).unwrap();
    server.refresh(&mut client, 600).success();
    let history = server.take_changes();
    let config = Arc::clone(&server.config);
    let changes = rebuild_with(&server, &history, config, |_| None).take_changes();
    assert!(
        matches!(&changes[..], [Change::Ended(ended)] if ended.totals.peer_sent.datagrams == 1),
        "{changes:?}"
    );
}

#[test]
fn engines_of_one_server_are_rebuilt_in_any_order() {
    for first_first in [true, false] {
        let mut first = Server::start();
        let mut second = Server::joining(Arc::clone(&first.config), Arc::clone(&first.commons), 2);
        let mut alice = first.client(CLIENT);
        let answer = first.ask(&mut alice, Method::ALLOCATE, |writer| {
            writer.requested_transport(17).even_port(true);
        });
        let token = answer.success().reservation_token().unwrap().unwrap();
        let mut bob = second.client_of("bob", "builder", "203.0.113.8:1");
        let answer = second.ask(&mut bob, Method::ALLOCATE, |writer| {
            writer.requested_transport(17).reservation_token(token);
        });
        answer.success();
        let histories = [first.take_changes(), second.take_changes()];
        let commons = Commons::new(&first.config);
        let make = |server: &Server, history: &[Change], seed| {
            let engine = Engine::rebuild(
                Arc::clone(&server.config),
                Arc::clone(&commons),
                Seeded::new(seed),
                server.now,
                listeners(),
                history.iter().cloned(),
                |address| server.endpoint_at(address),
            );
            assert_eq!(engine.statistics().allocations, 1);
            engine
        };
        let _engines = if first_first {
            [
                make(&first, &histories[0], 1),
                make(&second, &histories[1], 2),
            ]
        } else {
            [
                make(&second, &histories[1], 2),
                make(&first, &histories[0], 1),
            ]
        };
        assert_eq!(commons.reserved_ports(), 0, "the token has been used");
        let leased: u32 = commons.ports().map(|(_, counts)| counts.leased).sum();
        assert_eq!(leased, 2);
        assert_eq!(commons.quota_used_total(), 2);
    }
}

//= V-22
#[test]
fn finished_transactions_and_used_names_stay_so() {
    let mut server = Server::with(|config| {
        let key = turnbuckle_engine::NonceKey::from_secret(b"the same for both");
        config.auth.nonce_key = Some(key);
    });
    let mut client = server.client(CLIENT);
    let transaction = client.next_transaction();
    let allocate = client.request(Method::ALLOCATE, transaction, |writer| {
        writer.requested_transport(17);
    });
    server.exchange(client.tuple, &allocate).success();
    let id = server.id(&client);
    let transaction = client.next_transaction();
    let release = client.request(Method::REFRESH, transaction, |writer| {
        writer.lifetime(0);
    });
    server.exchange(client.tuple, &release).success();
    let mut rebuilt = rebuild(&server, &server.changes);
    let code = rebuilt.exchange(client.tuple, &allocate).code();
    assert_eq!(code, Some(437), "it has ended");
    rebuilt.allocate(&mut client);
    assert_ne!(rebuilt.id(&client), id);
    let code = rebuilt.exchange(client.tuple, &release).code();
    assert_eq!(code, Some(437), "it was about another allocation");
}

#[test]
fn what_had_expired_does_not_expire_again() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    server.allocate(&mut client);
    server.refresh(&mut client, 3_600).success();
    server.bind(&mut client, 0x4000, PEER).success();
    server.wait_s(602);
    let history = server.take_changes();
    assert!(matches!(
        history.last(),
        Some(Change::ChannelExpired { .. })
    ));
    let mut rebuilt = rebuild(&server, &history);
    rebuilt.wait_s(10);
    assert_eq!(rebuilt.take_changes().len(), 0);
}

#[test]
fn what_the_policy_has_come_to_forbid_is_not_carried_over() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    server.allocate(&mut client);
    server.bind(&mut client, 0x4000, PEER).success();
    server.permit(&mut client, "93.184.216.21:9").success();
    let history = server.take_changes();
    let mut stricter = (*server.config).clone();
    stricter.policy.rules.push(turnbuckle_engine::Rule {
        action: turnbuckle_engine::Action::Deny,
        range: "93.184.216.20".parse().unwrap(),
    });
    let mut rebuilt = rebuild_with(&server, &history, Arc::new(stricter), |address| {
        server.endpoint_at(address)
    });
    assert_eq!(
        rebuilt.channel_data(&client, 0x4000),
        Err(DropReason::ChannelNotBound)
    );
    let relayed = rebuilt.sockets.values().next().unwrap().address;
    assert_eq!(
        rebuilt.peer_data(relayed, PEER),
        Err(DropReason::NoPermission)
    );
    assert!(rebuilt.peer_data(relayed, "93.184.216.21:9").is_ok());
    assert_eq!(rebuilt.take_changes().len(), 2, "and it is reported");
}

#[test]
fn a_token_that_was_redeemed_is_spent_after_a_rebuild_too() {
    let mut server = Server::start();
    let mut alice = server.client(CLIENT);
    let answer = server.ask(&mut alice, Method::ALLOCATE, |writer| {
        writer.requested_transport(17).even_port(true);
    });
    let token = answer.success().reservation_token().unwrap().unwrap();
    let mut bob = server.client_of("bob", "builder", "203.0.113.8:1");
    let redeem = |writer: &mut MessageWriter<'_>| {
        writer.requested_transport(17).reservation_token(token);
    };
    server.ask(&mut bob, Method::ALLOCATE, redeem).success();
    // The port is free again long before the reservation would have ended.
    server.ask(&mut bob, Method::REFRESH, |writer| {
        writer.lifetime(0);
    });
    let history = server.take_changes();
    let commons = Commons::new(&server.config);
    let _engine = Engine::rebuild(
        Arc::clone(&server.config),
        Arc::clone(&commons),
        Seeded::new(1),
        server.now,
        listeners(),
        history,
        |address| server.endpoint_at(address),
    );
    assert_eq!(commons.reserved_ports(), 0);
    let leased: u32 = commons.ports().map(|(_, counts)| counts.leased).sum();
    assert_eq!(leased, 1, "alice's");
}

//= V-43
#[test]
fn a_reservation_is_charged_to_its_user_after_a_rebuild_too() {
    let mut server = Server::start();
    let mut alice = server.client(CLIENT);
    let answer = server.ask(&mut alice, Method::ALLOCATE, |writer| {
        writer.requested_transport(17).even_port(true);
    });
    let token = answer.success().reservation_token().unwrap().unwrap();
    let history = server.take_changes();
    let mut after = rebuild(&server, &history);
    let charged = |server: &Server| {
        let of = |name| server.commons.quota_used(REALM, name);
        [of("alice"), of("bob")]
    };
    assert_eq!(charged(&after), [2, 0]);
    let mut bob = after.client_of("bob", "builder", "203.0.113.8:1");
    let redeem = |writer: &mut MessageWriter<'_>| {
        writer.requested_transport(17).reservation_token(token);
    };
    after.ask(&mut bob, Method::ALLOCATE, redeem).success();
    assert_eq!(charged(&after), [1, 1]);
}

//= TURN-026
//= V-22
#[test]
fn a_token_stays_spent_although_nothing_is_left_of_who_redeemed_it_but_that_it_ended() {
    let mut server = Server::start();
    let mut alice = server.client(CLIENT);
    let answer = server.ask(&mut alice, Method::ALLOCATE, |writer| {
        writer.requested_transport(17).even_port(true);
    });
    let token = answer.success().reservation_token().unwrap().unwrap();
    let mut bob = server.client_of("bob", "builder", "203.0.113.8:1");
    let redeem = |writer: &mut MessageWriter<'_>| {
        writer.requested_transport(17).reservation_token(token);
    };
    server.ask(&mut bob, Method::ALLOCATE, redeem).success();
    server.refresh(&mut bob, 0).success();
    let mut history = server.take_changes();
    let ended = history.iter().find_map(|change| match change {
        Change::Ended(ended) => Some(ended.allocation),
        _ => None,
    });
    history.retain(|change| match change {
        Change::Created(created) => Some(created.allocation) != ended,
        _ => true,
    });
    let mut after = rebuild(&server, &history);
    assert_eq!(after.commons.reserved_ports(), 0);
    after.challenge(&mut bob);
    let answer = after.ask(&mut bob, Method::ALLOCATE, redeem);
    assert_eq!(answer.code(), Some(508));
}

#[test]
fn a_client_behind_a_proxy_comes_back_as_one_and_its_data_goes_nowhere_else() {
    let mut server = Server::start();
    let mut proxied = server.client(CLIENT);
    proxied.tuple.connection = Connection::new(1, 0);
    let relayed = server.allocate(&mut proxied);
    server.permit(&mut proxied, PEER).success();
    let history = server.take_changes();
    let mut after = rebuild(&server, &history);
    let route = after.peer_data(relayed, PEER).unwrap();
    assert_eq!(route.client, proxied.tuple);
    assert_eq!(after.engine.client(&tuple(CLIENT)), None);
    // and the end of it is on record for that client, not for who sends from the address itself
    server.refresh(&mut proxied, 0).success();
    let ends = server.take_changes();
    assert!(ends.iter().any(|change| matches!(change,
        Change::Ended(ended) if ended.path.connection == proxied.tuple.connection)));
}
