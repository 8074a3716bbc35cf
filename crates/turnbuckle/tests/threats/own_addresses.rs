//! V-07: the relay's own addresses as peers.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};

use crate::harness::{Authority, Canary, Client, Inbound, Key, Server, World, channel};

/// Tries every path to a port that is nobody's allocation; all of them must be closed.
fn refused_on_every_path(client: &mut Client, peer: SocketAddr) {
    // A permission is for an address whatever the port (RFC 8656 §9), and allocations may reach each other, so there may be one.
    client.create_permission(&[SocketAddr::new(peer.ip(), 0)]);
    client.create_permission(&[peer]);
    client.channel_bind(channel(9), peer).expect(403);
    client.send_indication(peer, format!("Send indication to {peer}").as_bytes());
    client.send_channel_data(channel(9), format!("ChannelData to {peer}").as_bytes());
}

//= V-07
#[test]
fn refuses_its_own_listener_and_every_other_service_of_the_host() {
    let Some(_world) = World::enter() else { return };
    let [relay_v4, relay_v6] = World::RELAYS;
    let options = [
        relay_v4,
        relay_v6,
        "--external-ip=30.0.0.1/20.0.0.1",
        "--allowed-peer-ip=10.0.0.0/8",
    ];
    let server = Server::start(World::server(), &options);
    // A service of the host's that is bound to everything, beside the relay.
    let canary = Canary::everywhere(World::SERVICE_PORT);
    let mut client = Client::new(World::client(1), &server);
    client
        .allocate_with(|writer| {
            writer.additional_address_family(turnbuckle_wire::AddressFamily::V6);
        })
        .expect(200);
    let own: [IpAddr; 6] = [
        [20, 0, 0, 1].into(),  // listener and relay address
        [30, 0, 0, 1].into(),  // what the world calls it
        [10, 77, 0, 1].into(), // another interface, though its network is allowed
        "2a00:20::1".parse().unwrap(),
        "::ffff:20.0.0.1".parse().unwrap(),
        "::ffff:30.0.0.1".parse().unwrap(),
    ];
    for ip in own {
        for port in [3478, canary.port(), 1] {
            refused_on_every_path(&mut client, SocketAddr::new(ip, port));
        }
    }
    client.settle();
    canary.assert_silent();
    // Data does flow to a neighbour in the same allowed range.
    let neighbour = SocketAddr::new([10, 78, 0, 2].into(), canary.port());
    client.create_permission(&[neighbour]).expect(200);
    client.send_indication(neighbour, b"neighbour");
    client.settle();
    assert_eq!(canary.hits(), ["neighbour"]);
}

//= V-07
/// There is no console, no page and no metrics unless they are asked for, and then they are exactly where they were asked for.
//= V-16
#[test]
fn listens_where_its_greeting_says_and_nowhere_else() {
    let Some(_world) = World::enter() else {
        return;
    };
    let authority = Authority::new();
    let [certificate, key] = authority.options(Key::P256);
    let doors = ["--no-tcp-relay=false", "--dtls", &certificate, &key];
    let options = [&World::RELAYS[..], &doors].concat();
    let server = Server::start(World::server(), &options);
    // This thread's namespace is the server's, and nobody else is in it.
    let ports = |table: &str, state: &str| {
        let text = std::fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap();
        let bound = text.lines().skip(1).filter_map(|line| {
            let mut fields = line.split_whitespace().skip(1);
            let local = fields.next()?;
            let is_bound = fields.nth(1)? == state;
            let (_, port) = local.rsplit_once(':')?;
            is_bound.then(|| u16::from_str_radix(port, 16).unwrap())
        });
        bound.collect::<std::collections::BTreeSet<_>>()
    };
    let (listening, unconnected) = ("0A", "07"); // proc_net_tcp(5)
    assert_eq!(ports("tcp", listening), [3478, 5349].into());
    assert_eq!(ports("udp", unconnected), [3478, 5349].into());
    let nothing_of_ipv6 = || {
        for table in ["tcp6", "udp6"] {
            assert_eq!(ports(table, listening), [].into());
            assert_eq!(ports(table, unconnected), [].into());
        }
    };
    nothing_of_ipv6();
    drop(server);
    let metrics = ["--prometheus", "--prometheus-port=9642"];
    let server = Server::start(World::server(), &[&options[..], &metrics].concat());
    assert_eq!(ports("tcp", listening), [3478, 5349, 9642].into());
    assert_eq!(ports("udp", unconnected), [3478, 5349].into());
    nothing_of_ipv6();
    drop(server);
    // Nobody comes to the console from elsewhere, or to the metrics.
    let console = ["--cli", "--cli-password=x", "--cli-port=5767"];
    let options = [&options[..], &metrics, &console].concat();
    let server = Server::start(World::server(), &options);
    assert_eq!(ports("tcp", listening), [3478, 5349, 5767, 9642].into());
    assert_eq!(ports("udp", unconnected), [3478, 5349].into());
    nothing_of_ipv6();
    for port in [5767, 9642] {
        let from_elsewhere = TcpStream::connect((World::server().ip(), port));
        assert!(from_elsewhere.is_err(), "{port}");
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    }
    drop(server);
}

#[test]
fn refuses_ports_of_its_relay_address_that_are_no_allocation() {
    // The ports of relayed addresses overlap those the kernel gives to anybody's sockets: a resolver's, say.
    let Some(_world) = World::enter() else { return };
    let server = Server::start(
        World::server(),
        &["--relay-ip=20.0.0.1", "--external-ip=30.0.0.1/20.0.0.1"],
    );
    let canaries = [
        Canary::at(SocketAddr::new([0, 0, 0, 0].into(), 50_000)),
        Canary::at(SocketAddr::new([20, 0, 0, 1].into(), 50_001)),
    ];
    let mut client = Client::new(World::client(1), &server);
    client.allocate();
    for canary in &canaries {
        let peer = SocketAddr::new([30, 0, 0, 1].into(), canary.port());
        client.create_permission(&[peer]);
        client.channel_bind(channel(canary.port() - 50_000), peer);
        client.send_indication(peer, b"Send indication");
        client.send_channel_data(channel(canary.port() - 50_000), b"ChannelData");
    }
    client.settle();
    canaries.iter().for_each(Canary::assert_silent);
}

//= V-07
#[test]
fn relays_between_its_own_allocations() {
    let Some(_world) = World::enter() else { return };
    let server = Server::start(World::server(), &["--relay-ip=20.0.0.1"]);
    data_flows_between_two_allocations(&server);
    let accounting = server.stop();
    assert_eq!(accounting.dropped, 0, "{accounting:#?}");
}

//= V-07
#[test]
fn relays_between_its_own_allocations_behind_an_external_address() {
    let Some(_world) = World::enter() else { return };
    let server = Server::start(
        World::server(),
        &["--relay-ip=20.0.0.1", "--external-ip=30.0.0.1/20.0.0.1"],
    );
    // Whoever answers at the external address is not this relay: no packet may go there.
    let world_outside = Canary::at(SocketAddr::new([30, 0, 0, 1].into(), 0));
    data_flows_between_two_allocations(&server);
    world_outside.assert_silent();
}

fn data_flows_between_two_allocations(server: &Server) {
    let (mut one, mut two) = (
        Client::new(World::client(1), server),
        Client::new(World::client(2), server),
    );
    let (at_one, at_two) = (one.allocate(), two.allocate());
    one.create_permission(&[at_two]).expect(200);
    two.channel_bind(channel(0), at_one).expect(200);
    one.send_indication(at_two, b"from one");
    assert_eq!(
        two.receive(),
        Inbound::Channel {
            number: channel(0),
            data: b"from one".to_vec()
        }
    );
    two.send_channel_data(channel(0), b"from two");
    assert_eq!(
        one.receive(),
        Inbound::Data {
            peer: at_two,
            data: b"from two".to_vec()
        }
    );
}
