//! An engine whose host has failed leaves what its allocations have to the one that is made from its changes.

use core::num::NonZeroU32;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use turnbuckle_engine::{Belongings, DropReason, Endpoint, Engine, NonceKey};
use turnbuckle_wire::Method;

use crate::support::*;

type Sockets = BTreeMap<Endpoint, Socket>;

/// What a host has that has failed.
struct Failed {
    server: Server,
    belongings: Belongings,
}

impl Failed {
    /// Fails with these changes on record, on these sockets. What they do not say has happened in the turn that failed.
    fn new(mut server: Server, recorded: usize, sockets: &Sockets) -> Self {
        server.changes.truncate(recorded);
        server.sockets.clone_from(sockets);
        let (config, commons) = (Arc::clone(&server.config), Arc::clone(&server.commons));
        let nobody = Engine::new(config, commons, Seeded::new(2));
        let engine = core::mem::replace(&mut server.engine, nobody);
        Self {
            server,
            belongings: engine.leave(),
        }
    }

    /// Makes the next engine.
    fn restore(self) -> Server {
        let Self {
            mut server,
            belongings,
        } = self;
        for (endpoint, local) in listeners() {
            server.engine.add_listener(endpoint, local);
        }
        let changes = server.take_changes();
        let Server {
            engine,
            sockets,
            now,
            ..
        } = &mut server;
        engine.restore(*now, changes, belongings, |address, _| {
            let found = sockets.iter().find(|(_, it)| it.address == address);
            found.map(|(endpoint, _)| *endpoint)
        });
        server.pump();
        server
    }
}

fn leased(server: &Server) -> u32 {
    server.commons.ports().map(|(_, ports)| ports.leased).sum()
}

#[test]
fn ports_and_quota_are_taken_at_every_moment_until_the_next_engine_has_them() {
    let mut server = Server::with(|config| {
        config.limits.user_quota = Some(1);
        config.auth.nonce_key = Some(NonceKey::from_secret(b"that of all shards"));
    });
    let mut client = server.client(CLIENT);
    let [v4, v6] = server.allocate_dual(&mut client);
    server.bind(&mut client, 0x4000, PEER).success();
    let (recorded, sockets) = (server.changes.len(), server.sockets.clone());
    let mut other = Server::joining(Arc::clone(&server.config), Arc::clone(&server.commons), 3);
    let failed = Failed::new(server, recorded, &sockets);
    assert_eq!(leased(&failed.server), 2);
    let mut second = other.client("203.0.113.9:1");
    let answer = other.ask(&mut second, Method::ALLOCATE, |writer| {
        writer.requested_transport(17);
    });
    assert_eq!(answer.code(), Some(486), "nobody takes the unit meanwhile");
    let mut server = failed.restore();
    assert_eq!(leased(&server), 2);
    assert_eq!(server.commons.quota_used_total(), 1);
    assert!(server.endpoint_at(v4).is_some() && server.endpoint_at(v6).is_some());
    assert!(server.channel_data(&client, 0x4000).is_ok());
    server.refresh(&mut client, 0).success();
    server.assert_nothing_is_held();
}

//= V-43
#[test]
fn a_rate_that_is_used_up_is_used_up_for_the_next_engine_too() {
    let mut server = Server::with(|config| {
        config.limits.bandwidth.bytes_per_s = NonZeroU32::new(100);
        config.limits.bandwidth.capacity_bytes_per_s = NonZeroU32::new(150);
    });
    let mut client = server.client(CLIENT);
    server.allocate(&mut client);
    server.bind(&mut client, 0x4000, PEER).success();
    while server.channel_data(&client, 0x4000).is_ok() {}
    let (recorded, sockets) = (server.changes.len(), server.sockets.clone());
    let mut server = Failed::new(server, recorded, &sockets).restore();
    assert_eq!(server.commons.bandwidth_reserved(), 100);
    assert_eq!(
        server.channel_data(&client, 0x4000),
        Err(DropReason::BandwidthExceeded)
    );
    server.wait(Duration::from_secs(1));
    assert!(server.channel_data(&client, 0x4000).is_ok());
}

#[test]
fn what_is_not_on_record_is_not_granted_and_what_has_not_ended_on_record_is_there() {
    let mut server = Server::with(|config| {
        config.auth.nonce_key = Some(NonceKey::from_secret(b"that of all shards"));
    });
    let mut stays = server.client(CLIENT);
    let mut ends = server.client("203.0.113.7:2");
    server.allocate(&mut stays);
    let relayed = server.allocate(&mut ends);
    let (recorded, sockets) = (server.changes.len(), server.sockets.clone());
    // In the turn that fails:
    server.permit(&mut stays, PEER).success();
    server.bind(&mut stays, 0x4000, PEER).success();
    server.refresh(&mut ends, 0).success();
    let mut begins = server.client_of("bob", "builder", "203.0.113.8:1");
    server.allocate(&mut begins);
    let mut server = Failed::new(server, recorded, &sockets).restore();
    assert_eq!(
        server.channel_data(&stays, 0x4000),
        Err(DropReason::ChannelNotBound)
    );
    assert_eq!(server.refresh(&mut begins, 600).code(), Some(437));
    assert!(server.endpoint_at(relayed).is_some());
    assert_eq!((leased(&server), server.commons.quota_used_total()), (2, 2));
    // Their clients repeat what was not answered.
    server.refresh(&mut ends, 0).success();
    server.allocate(&mut begins);
    server.permit(&mut stays, PEER).success();
    server.refresh(&mut stays, 0).success();
    server.refresh(&mut begins, 0).success();
    server.assert_nothing_is_held();
}

/// Has a client of a new server reserve a port. Returns the server, how much is on record then, the port in use, and the token.
fn reserved() -> (Server, usize, u16, [u8; 8]) {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    let answer = server.ask(&mut client, Method::ALLOCATE, |writer| {
        writer.requested_transport(17).even_port(true);
    });
    let message = answer.success();
    let relayed = message.xor_relayed_address().unwrap().unwrap();
    let token = message.reservation_token().unwrap().unwrap();
    let recorded = server.changes.len();
    (server, recorded, relayed.port(), token)
}

fn redeem(server: &mut Server, remote: &str, token: [u8; 8]) -> Answer {
    let mut client = server.client(remote);
    server.ask(&mut client, Method::ALLOCATE, |writer| {
        writer.requested_transport(17).reservation_token(token);
    })
}

#[test]
fn a_reserved_port_waits_for_its_token_and_ends_when_it_would_have() {
    for is_redeemed in [true, false] {
        let (server, recorded, port, token) = reserved();
        let sockets = server.sockets.clone();
        let mut server = Failed::new(server, recorded, &sockets).restore();
        assert_eq!(server.commons.reserved_ports(), 1);
        if is_redeemed {
            let answer = redeem(&mut server, "203.0.113.9:1", token);
            let relayed = answer.success().xor_relayed_address().unwrap().unwrap();
            assert_eq!(relayed.port(), port + 1);
        }
        server.wait_s(61);
        assert_eq!(server.commons.reserved_ports(), 0);
        assert_eq!(leased(&server), 1 + u32::from(is_redeemed));
    }
}

//= TURN-042
#[test]
fn a_token_that_another_engine_has_redeemed_does_not_work_again() {
    let (server, recorded, _, token) = reserved();
    let mut other = Server::joining(Arc::clone(&server.config), Arc::clone(&server.commons), 3);
    let mut client = other.client("203.0.113.9:1");
    other
        .ask(&mut client, Method::ALLOCATE, |writer| {
            writer.requested_transport(17).reservation_token(token);
        })
        .success();
    other.refresh(&mut client, 0).success();
    let sockets = server.sockets.clone();
    let mut server = Failed::new(server, recorded, &sockets).restore();
    assert_eq!(server.commons.reserved_ports(), 0);
    let answer = redeem(&mut server, "203.0.113.9:2", token);
    assert_eq!(answer.code(), Some(508));
}
