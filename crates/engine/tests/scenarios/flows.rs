//! What may be relayed without asking the engine.

use core::num::NonZeroU32;

use turnbuckle_engine::{Bandwidth, Connection, Flow};

use crate::support::*;

fn flows(server: &Server, client: &Client) -> Vec<Flow> {
    let mut flows = Vec::new();
    let id = server.id(client);
    server
        .engine
        .flows(server.now.time, id, |flow| flows.push(flow));
    flows
}

#[test]
fn a_channel_of_a_direct_client_is_a_flow_until_its_permission_ends() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    let relayed = server.allocate(&mut client);
    server.bind(&mut client, 0x4000, PEER).success();
    let flows = flows(&server, &client);
    let [flow] = &flows[..] else {
        panic!("{flows:?}");
    };
    assert_eq!(flow.channel.get(), 0x4000);
    assert_eq!((flow.client, flow.relay), (client.tuple.remote, relayed));
    assert_eq!(flow.peer.address(), PEER.parse().unwrap());
    assert_eq!(flow.meter, None);
    let permission = core::time::Duration::from_secs(300);
    assert_eq!(flow.expires, server.now.time + permission);
}

#[test]
fn a_channel_of_a_client_behind_a_proxy_is_no_flow() {
    let mut server = Server::start();
    let mut proxied = server.client(CLIENT);
    proxied.tuple.connection = Connection::new(1, 0);
    server.allocate(&mut proxied);
    server.bind(&mut proxied, 0x4000, PEER).success();
    assert_eq!(flows(&server, &proxied), []);
}

#[test]
fn a_channel_is_no_flow_if_only_the_engine_can_charge_its_allocations_rate() {
    let mut server = Server::with(|config| {
        config.limits.bandwidth = Bandwidth {
            bytes_per_s: NonZeroU32::new(1000),
            capacity_bytes_per_s: None,
        };
    });
    let mut client = server.client(CLIENT);
    server.allocate(&mut client);
    server.bind(&mut client, 0x4000, PEER).success();
    assert_eq!(flows(&server, &client), []);
}
