//! TCP allocations (RFC 6062): who may have them, connections to peers and from them, and what ends them.

mod bind;
mod bounds;

use core::net::SocketAddr;
use core::time::Duration;
use std::sync::Arc;

use turnbuckle_engine::{
    Change, ClientTuple, Config, Connection, ConnectionId, DropReason, Handover, Outcome, PeerEnd,
    Rate, RelayProtocol, TcpRelays, Time, Transport, Way,
};
use turnbuckle_wire::{AddressFamily, AttributeType, Class, Method};

use crate::support::*;

const OTHER_PEER: &str = "93.184.216.21:7000";

fn with_tcp(config: &mut Config) {
    config.relays.tcp = Some(TcpRelays::default());
}

fn with_limits(change: impl FnOnce(&mut TcpRelays)) -> Server {
    let mut limits = TcpRelays::default();
    change(&mut limits);
    Server::with(|config| config.relays.tcp = Some(limits))
}

fn over(transport: Transport, connection: u32) -> ClientTuple {
    ClientTuple {
        transport,
        connection: Connection::new(connection, 0),
        ..tuple(CLIENT)
    }
}

/// Returns another connection of the same user, which knows a nonce.
fn connection_of(server: &mut Server, name: &str, password: &str, tuple: ClientTuple) -> Client {
    let mut client = server.client_of(name, password, &tuple.remote.to_string());
    client.tuple = tuple;
    client.transactions = u64::from(tuple.connection.place) << 40;
    client
}

fn alice(server: &mut Server, connection: u32) -> Client {
    connection_of(
        server,
        "alice",
        "wonderland",
        over(Transport::Tcp, connection),
    )
}

fn allocate_tcp(server: &mut Server, client: &mut Client) -> Answer {
    server.ask(client, Method::ALLOCATE, |writer| {
        writer.requested_transport(6);
    })
}

/// Returns a server with TCP relays, a client on its control connection, and the relayed transport address.
fn allocated(mut server: Server) -> (Server, Client, SocketAddr) {
    let mut client = alice(&mut server, 1);
    let answer = allocate_tcp(&mut server, &mut client);
    let relayed = answer.success().xor_relayed_address().unwrap().unwrap();
    server.take_changes();
    (server, client, relayed)
}

fn started() -> (Server, Client, SocketAddr) {
    allocated(Server::with(with_tcp))
}

/// Sends a Connect request that is not answered at once.
fn begin_connect(server: &mut Server, client: &mut Client, peer: &str) -> ConnectionId {
    let peer: SocketAddr = peer.parse().unwrap();
    let transaction = client.next_transaction();
    let request = client.request(Method::CONNECT, transaction, |writer| {
        writer.xor_peer_address(peer);
    });
    server.replies.clear();
    assert_eq!(server.receive(client.tuple, &request), Outcome::Done);
    assert!(server.replies.is_empty(), "answered when it is connected");
    match server.wanted.pop() {
        Some(Wanted::Connect(connection, _, to)) if to == peer => connection,
        other => panic!("wants {other:?}"),
    }
}

/// Sends a Connect request that is refused at once, and returns the code.
fn refused_connect(server: &mut Server, client: &mut Client, peer: &str) -> Option<u16> {
    let peer: SocketAddr = peer.parse().unwrap();
    let answer = server.ask(client, Method::CONNECT, |writer| {
        writer.xor_peer_address(peer);
    });
    assert_eq!(server.wanted, []);
    answer.code()
}

fn finish_connect(server: &mut Server, id: ConnectionId, is_connected: bool) {
    server.engine.peer_connected(server.now, id, is_connected);
    server.pump();
}

/// Connects and returns the CONNECTION-ID of the answer.
fn connect(server: &mut Server, client: &mut Client, peer: &str) -> ConnectionId {
    let id = begin_connect(server, client, peer);
    finish_connect(server, id, true);
    let answer = server.only_reply_to(client.tuple);
    assert_eq!(answer.message().check_integrity(&client.key), Ok(()));
    let sent = answer.success().connection_id().unwrap().unwrap();
    assert_eq!(sent, id.0);
    id
}

fn bind(server: &mut Server, client: &mut Client, id: ConnectionId) -> Answer {
    server.ask(client, Method::CONNECTION_BIND, |writer| {
        writer.connection_id(id.0);
    })
}

fn accept(server: &mut Server, relayed: SocketAddr, peer: &str) -> Result<ConnectionId, PeerEnd> {
    let handle = server.socket_at(relayed).unwrap().handle;
    server.replies.clear();
    let result = server
        .engine
        .accept_peer(server.now, handle, peer.parse().unwrap());
    server.pump();
    result
}

/// Fails unless every connection that was tried or came has ended under one reason, or is there.
fn assert_balanced(server: &Server) {
    let (attempts, ends) = server.engine.peer_ends();
    let live = server.engine.statistics().peer_connections as u64;
    assert_eq!(attempts, ends.iter().sum::<u64>() + live);
}

fn ended_by(server: &Server, cause: PeerEnd) -> u64 {
    server.engine.peer_ends().1[cause.index()]
}

//= TCP-01
#[test]
fn without_the_option_there_are_neither_tcp_allocations_nor_their_methods() {
    let mut server = Server::start();
    let mut client = alice(&mut server, 1);
    assert_eq!(allocate_tcp(&mut server, &mut client).code(), Some(442));
    for method in [Method::CONNECT, Method::CONNECTION_BIND] {
        let transaction = client.next_transaction();
        let request = client.request(method, transaction, |_| {});
        assert_eq!(
            server.receive(client.tuple, &request),
            Outcome::Dropped(DropReason::MethodUnknown)
        );
    }
}

//= TCP-01
//= TCP-02
#[test]
fn other_protocols_are_unsupported_and_udp_may_be_forbidden() {
    let mut server = Server::with(with_tcp);
    let mut client = alice(&mut server, 1);
    let answer = server.ask(&mut client, Method::ALLOCATE, |writer| {
        writer.requested_transport(132);
    });
    assert_eq!(answer.code(), Some(442));
    server.allocate(&mut client); // UDP goes on as before

    let mut server = Server::with(|config| {
        with_tcp(config);
        config.relays.udp = false;
    });
    let mut client = alice(&mut server, 1);
    let answer = server.ask(&mut client, Method::ALLOCATE, |writer| {
        writer.requested_transport(17);
    });
    assert_eq!(answer.code(), Some(403));
    assert_eq!(allocate_tcp(&mut server, &mut client).code(), None);
}

//= TCP-03
//= DTLS-07
#[test]
fn a_tcp_allocation_needs_a_client_that_comes_by_tcp_or_tls() {
    for (transport, code) in [
        (Transport::Udp, Some(400)),
        (Transport::Dtls, Some(400)),
        (Transport::Tcp, None),
        (Transport::Tls, None),
    ] {
        let mut server = Server::with(with_tcp);
        let mut client = server.client(CLIENT);
        client.tuple = over(transport, u32::from(transport.is_stream()));
        assert_eq!(allocate_tcp(&mut server, &mut client).code(), code);
    }
}

//= TCP-04
#[test]
fn what_is_for_datagrams_only_makes_the_request_a_bad_one() {
    let attributes: [(AttributeType, &[u8]); 4] = [
        (AttributeType::DONT_FRAGMENT, &[]),
        (AttributeType::EVEN_PORT, &[0]),
        (AttributeType::EVEN_PORT, &[0x80]),
        (AttributeType::RESERVATION_TOKEN, &[7; 8]),
    ];
    for (attribute, value) in attributes {
        let mut server = Server::with(with_tcp);
        let mut client = alice(&mut server, 1);
        let answer = server.ask(&mut client, Method::ALLOCATE, |writer| {
            writer.requested_transport(6).bytes(attribute, value);
        });
        assert_eq!(answer.code(), Some(400), "{attribute:?}");
        server.assert_nothing_is_held();
    }
}

//= TCP-05
//= TCP-06
#[test]
fn a_tcp_allocation_has_an_address_to_listen_on_and_no_token() {
    let mut server = Server::with(with_tcp);
    let mut client = alice(&mut server, 1);
    server.opens_at_once = false;
    let transaction = client.next_transaction();
    let request = client.request(Method::ALLOCATE, transaction, |writer| {
        writer.requested_transport(6);
    });
    assert_eq!(server.receive(client.tuple, &request), Outcome::Done);
    assert_eq!(server.protocols, [RelayProtocol::Tcp]);
    server.open_wishes();
    let answer = server.only_reply_to(client.tuple);
    let message = answer.success();
    assert!(!message.contains(AttributeType::RESERVATION_TOKEN));
    let relayed = message.xor_relayed_address().unwrap().unwrap();
    assert!(server.socket_at(relayed).is_some());
    assert!(
        matches!(&server.changes[..], [Change::Created(created)]
            if created.protocol == RelayProtocol::Tcp),
        "{:?}",
        server.changes
    );
    assert_eq!(server.refresh(&mut client, 0).code(), None);
    server.assert_nothing_is_held();
}

#[test]
fn an_allocation_of_both_families_connects_to_peers_of_both() {
    let mut server = Server::with(with_tcp);
    let mut client = alice(&mut server, 1);
    let answer = server.ask(&mut client, Method::ALLOCATE, |writer| {
        writer
            .requested_transport(6)
            .additional_address_family(AddressFamily::V6);
    });
    assert_eq!(answer.success().xor_relayed_addresses().count(), 2);
    connect(&mut server, &mut client, PEER);
    connect(&mut server, &mut client, PEER_V6);
    // one family of the two ends, with its connections and no others
    let answer = server.ask(&mut client, Method::REFRESH, |writer| {
        writer
            .lifetime(0)
            .requested_address_family(AddressFamily::V6);
    });
    assert_eq!(answer.code(), None);
    assert!(matches!(server.wanted[..], [Wanted::Close(_)]));
    assert_eq!(server.engine.statistics().peer_connections, 1);
    assert_eq!(ended_by(&server, PeerEnd::AllocationEnded), 1);
    server.wanted.clear();
    assert_eq!(
        refused_connect(&mut server, &mut client, PEER_V6),
        Some(443)
    );
}

#[test]
fn channels_and_send_indications_are_not_for_tcp_allocations() {
    let (mut server, mut client, _) = started();
    server.permit(&mut client, PEER);
    assert_eq!(server.bind(&mut client, 0x4000, PEER).code(), Some(403));
    assert_eq!(
        server.send(&mut client, PEER, b"x"),
        Err(DropReason::RelayIsStream)
    );
}

//= TCP-07
#[test]
fn connect_needs_an_allocation_of_the_same_user_that_is_a_tcp_one() {
    let mut server = Server::with(with_tcp);
    let mut client = alice(&mut server, 1);
    assert_eq!(refused_connect(&mut server, &mut client, PEER), Some(437));
    allocate_tcp(&mut server, &mut client);
    let mut bob = connection_of(&mut server, "bob", "builder", client.tuple);
    assert_eq!(refused_connect(&mut server, &mut bob, PEER), Some(441));
    let mut udp = alice(&mut server, 2);
    server.allocate(&mut udp);
    assert_eq!(refused_connect(&mut server, &mut udp, PEER), Some(403));
}

//= TCP-08
#[test]
fn a_second_connection_with_the_same_peer_is_refused_until_the_first_is_gone() {
    let (mut server, mut client, _) = started();
    let id = begin_connect(&mut server, &mut client, PEER);
    assert_eq!(refused_connect(&mut server, &mut client, PEER), Some(446));
    finish_connect(&mut server, id, true);
    assert_eq!(refused_connect(&mut server, &mut client, PEER), Some(446));
    let mut data = alice(&mut server, 2);
    assert_eq!(bind(&mut server, &mut data, id).code(), None);
    server.wanted.clear();
    assert_eq!(refused_connect(&mut server, &mut client, PEER), Some(446));
    // another port is another peer
    begin_connect(&mut server, &mut client, "93.184.216.20:7001");
    server.engine.peer_disconnected(id, PeerEnd::ClientClosed);
    begin_connect(&mut server, &mut client, PEER);
    assert_balanced(&server);
}

//= TCP-09
#[test]
fn connect_without_a_usable_peer_is_a_bad_request() {
    let (mut server, mut client, _) = started();
    let answer = server.ask(&mut client, Method::CONNECT, |_| {});
    assert_eq!(answer.code(), Some(400));
    let answer = server.ask(&mut client, Method::CONNECT, |writer| {
        writer.bytes(AttributeType::XOR_PEER_ADDRESS, &[0, 1, 2]);
    });
    assert_eq!(answer.code(), Some(400));
    assert_eq!(
        refused_connect(&mut server, &mut client, "93.184.216.20:0"),
        Some(400)
    );
}

//= TCP-10
//= V-01
//= V-07
//= V-10
//= V-12
#[test]
fn a_connect_request_waits_while_rules_for_peers_are_due() {
    let (mut server, mut client, _) = started();
    let mut next = config();
    with_tcp(&mut next);
    next.answers.are_peer_rules_due = true;
    server.engine.reconfigure(server.now.time, &next.into());
    let transaction = client.next_transaction();
    let request = client.request(Method::CONNECT, transaction, |writer| {
        writer.xor_peer_address(PEER.parse().unwrap());
    });
    let outcome = server.receive(client.tuple, &request);
    assert_eq!(outcome, Outcome::Dropped(DropReason::UsersDue));
    assert_eq!(server.wanted, []);
}

#[test]
fn connect_to_what_the_policy_forbids_or_a_port_outside_the_list_is_forbidden() {
    let (mut server, mut client, relayed) = started();
    for peer in [
        "127.0.0.1:7000",
        "0.0.0.0:7000",
        "10.0.0.1:7000",
        "169.254.169.254:8000",
        "192.0.2.1:3478",
        "224.0.0.1:7000",
        "93.184.216.20:22",
        "93.184.216.20:1023",
    ] {
        assert_eq!(
            refused_connect(&mut server, &mut client, peer),
            Some(403),
            "{peer}"
        );
    }
    // itself, and a port of its own range that nobody has, or that somebody has for UDP
    let own = relayed.to_string();
    assert_eq!(refused_connect(&mut server, &mut client, &own), Some(403));
    let free = SocketAddr::new(relayed.ip(), relayed.port() ^ 1).to_string();
    assert_eq!(refused_connect(&mut server, &mut client, &free), Some(403));
    let mut udp = server.client("203.0.113.9:1");
    let datagrams = server.allocate(&mut udp).to_string();
    assert_eq!(
        refused_connect(&mut server, &mut client, &datagrams),
        Some(403)
    );
    assert_eq!(server.engine.statistics().peer_connections, 0);
    // another TCP allocation can be reached
    let mut other = alice(&mut server, 5);
    let answer = allocate_tcp(&mut server, &mut other);
    let other = answer.success().xor_relayed_address().unwrap().unwrap();
    begin_connect(&mut server, &mut client, &other.to_string());
}

//= V-07
#[test]
fn datagrams_do_not_go_to_a_port_that_is_leased_for_tcp() {
    let (mut server, _, relayed) = started();
    let mut udp = server.client("203.0.113.9:1");
    server.allocate(&mut udp);
    let peer = relayed.to_string();
    server.permit(&mut udp, &peer);
    assert_eq!(
        server.send(&mut udp, &peer, b"x"),
        Err(DropReason::PeerForbidden)
    );
    assert_eq!(server.bind(&mut udp, 0x4000, &peer).code(), Some(403));
}

//= TCP-11
//= TCP-14
#[test]
fn the_connection_leaves_from_the_relayed_address_and_has_a_name_of_its_own() {
    let (mut server, mut client, relayed) = started();
    let transaction = client.next_transaction();
    let request = client.request(Method::CONNECT, transaction, |writer| {
        writer.xor_peer_address(PEER.parse().unwrap());
    });
    assert_eq!(server.receive(client.tuple, &request), Outcome::Done);
    let [Wanted::Connect(first, local, to)] = server.wanted[..] else {
        panic!("{:?}", server.wanted);
    };
    assert_eq!((local, to), (relayed, PEER.parse().unwrap()));
    server.wanted.clear();
    finish_connect(&mut server, first, true);
    let second = connect(&mut server, &mut client, OTHER_PEER);
    assert_ne!(first, second);
    assert_eq!(server.commons.peer_connections(), (2, 2));
}

//= TCP-12
#[test]
fn a_connection_that_fails_or_takes_30_seconds_is_answered_with_447() {
    let (mut server, mut client, _) = started();
    let id = begin_connect(&mut server, &mut client, PEER);
    finish_connect(&mut server, id, false);
    assert_eq!(server.only_reply_to(client.tuple).code(), Some(447));

    let id = begin_connect(&mut server, &mut client, PEER);
    server.wait(Duration::from_millis(29_999));
    assert!(server.replies.is_empty(), "at least 30 s");
    server.wait_s(1);
    assert_eq!(server.only_reply_to(client.tuple).code(), Some(447));
    assert_eq!(server.wanted, [Wanted::Close(id)]);
    // the host's answer comes too late
    finish_connect(&mut server, id, true);
    assert!(server.replies.is_empty());
    assert_eq!(ended_by(&server, PeerEnd::ConnectFailed), 1);
    assert_eq!(ended_by(&server, PeerEnd::ConnectTimeout), 1);
    assert_balanced(&server);
    assert_eq!(server.commons.peer_connections(), (0, 0));
}

#[test]
fn a_host_that_is_late_does_not_make_a_late_connection_a_good_one() {
    let (mut server, mut client, _) = started();
    let id = begin_connect(&mut server, &mut client, PEER);
    server.oversleep(Duration::from_secs(31));
    finish_connect(&mut server, id, true);
    assert_eq!(server.only_reply_to(client.tuple).code(), Some(447));
    assert_eq!(server.wanted, [Wanted::Close(id)]);
}

//= V-12
#[test]
fn masked_a_refusal_is_told_when_silence_would_be() {
    let (mut server, mut client, _) = allocated(with_limits(|tcp| tcp.mask_connect_errors = true));
    let refused = begin_connect(&mut server, &mut client, PEER);
    let silent = begin_connect(&mut server, &mut client, OTHER_PEER);
    finish_connect(&mut server, refused, false);
    assert!(server.replies.is_empty());
    // and it is not told by another way either
    assert_eq!(refused_connect(&mut server, &mut client, PEER), Some(446));
    server.wait(Duration::from_millis(29_999));
    assert!(server.replies.is_empty());
    server.wait_s(1);
    let codes: Vec<_> = server
        .replies
        .iter()
        .map(|(_, bytes)| Answer(bytes.clone()).code())
        .collect();
    assert_eq!(codes, [Some(447), Some(447)]);
    assert_eq!(server.wanted, [Wanted::Close(silent)]);
    assert_balanced(&server);
}

//= TCP-16
//= TCP-18
#[test]
fn a_permitted_peer_that_connects_is_announced_to_the_client() {
    let (mut server, mut client, relayed) = started();
    server.permit(&mut client, PEER);
    server.take_changes();
    // the port plays no part in a permission
    let peer = "93.184.216.20:40000";
    let id = accept(&mut server, relayed, peer).unwrap();
    let (to, bytes) = server.replies.pop().unwrap();
    assert_eq!(to, client.tuple);
    let indication = Answer(bytes);
    let message = indication.message();
    assert_eq!(
        (message.class(), message.method()),
        (Class::Indication, Method::CONNECTION_ATTEMPT)
    );
    assert_eq!(message.connection_id(), Ok(Some(id.0)));
    let sent = message.xor_peer_address().unwrap().unwrap();
    assert_eq!(sent, peer.parse().unwrap());
    assert!(
        matches!(server.changes[..], [Change::PeerConnected { connection, is_incoming: true, .. }]
            if connection == id)
    );
    assert_eq!(refused_connect(&mut server, &mut client, peer), Some(446));
    let mut data = alice(&mut server, 2);
    assert_eq!(bind(&mut server, &mut data, id).code(), None);
    assert_eq!(server.wanted, [Wanted::Join(id, data.tuple)]);
}

//= TCP-17
//= V-10
//= V-13
#[test]
fn a_peer_without_a_live_permission_is_turned_away_and_nobody_hears_of_it() {
    let (mut server, mut client, relayed) = started();
    let no = Err(PeerEnd::NoPermission);
    assert_eq!(accept(&mut server, relayed, PEER), no);
    server.permit(&mut client, PEER);
    assert_eq!(accept(&mut server, relayed, OTHER_PEER), no);
    server.oversleep(Duration::from_millis(299_900));
    assert!(accept(&mut server, relayed, PEER).is_ok());
    server.oversleep(Duration::from_millis(200));
    assert_eq!(accept(&mut server, relayed, "93.184.216.20:7001"), no);
    assert!(server.replies.is_empty());
    assert_eq!(ended_by(&server, PeerEnd::NoPermission), 3);
    assert_balanced(&server);
}

//= V-10
#[test]
fn a_peer_that_the_policy_forbids_by_now_is_turned_away_although_it_has_a_permission() {
    let (mut server, mut client, relayed) = started();
    server.permit(&mut client, PEER);
    let peer = PEER.parse::<SocketAddr>().unwrap().ip();
    let own = turnbuckle_engine::InterfaceAddress {
        ip: peer,
        prefix_len: 32,
    };
    let connected = connect(&mut server, &mut client, PEER);
    let connecting = begin_connect(&mut server, &mut client, "93.184.216.20:7001");
    server.replies.clear();
    server
        .engine
        .set_host_addresses(server.now.time, vec![own], &[]);
    server.pump();
    // what is there ends at once, and the request that was under way is answered
    assert_eq!(
        server.wanted,
        [Wanted::Close(connected), Wanted::Close(connecting)]
    );
    assert_eq!(server.only_reply_to(client.tuple).code(), Some(403));
    assert!(accept(&mut server, relayed, PEER).is_err());
    assert_balanced(&server);
}

//= TCP-24
//= TCP-26
#[test]
fn connections_end_with_their_allocation_however_it_ends() {
    for how in 0..3 {
        let (mut server, mut client, relayed) = started();
        server.permit(&mut client, OTHER_PEER);
        let bound = connect(&mut server, &mut client, PEER);
        let mut data = alice(&mut server, 2);
        bind(&mut server, &mut data, bound);
        server.wanted.clear();
        if how == 2 {
            server.wait_s(580); // so that what waits has not run out by itself
        }
        server.permit(&mut client, OTHER_PEER);
        let unbound = accept(&mut server, relayed, OTHER_PEER).unwrap();
        let connecting = begin_connect(&mut server, &mut client, "93.184.216.22:7000");
        server.replies.clear();
        server.take_changes();
        match how {
            0 => server.engine.disconnected(server.now, &client.tuple),
            1 => {
                let transaction = client.next_transaction();
                let request = client.request(Method::REFRESH, transaction, |writer| {
                    writer.lifetime(0);
                });
                assert_eq!(server.receive(client.tuple, &request), Outcome::Done);
            }
            _ => server.wait_s(25),
        }
        server.pump();
        let mut closed = server.wanted.clone();
        closed.sort_by_key(|wanted| format!("{wanted:?}"));
        let mut expected = [bound, unbound, connecting].map(Wanted::Close);
        expected.sort_by_key(|wanted| format!("{wanted:?}"));
        assert_eq!(closed, expected);
        // the request that was under way is answered all the same
        let (to, bytes) = &server.replies[0];
        assert_eq!(
            (*to, Answer(bytes.clone()).code()),
            (client.tuple, Some(437))
        );
        assert_eq!(server.replies.len(), if how == 1 { 2 } else { 1 });
        let changes = server.take_changes();
        assert!(matches!(changes.last(), Some(Change::Ended(_))));
        let ends = changes.iter().filter(|change| {
            matches!(change, Change::PeerDisconnected { cause, .. }
                if *cause == PeerEnd::AllocationEnded)
        });
        assert_eq!(ends.count(), 2, "{changes:?}");
        server.assert_nothing_is_held();
        assert_balanced(&server);
        // what the host says of them afterwards changes nothing
        server.engine.peer_disconnected(bound, PeerEnd::Failed);
        finish_connect(&mut server, connecting, true);
        assert!(server.take_changes().is_empty());
    }
}

//= TCP-25
#[test]
fn a_connection_that_is_gone_is_recorded_with_what_it_carried() {
    let (mut server, mut client, _) = started();
    let id = connect(&mut server, &mut client, PEER);
    let mut data = alice(&mut server, 2);
    bind(&mut server, &mut data, id);
    server.engine.relayed(server.now, id, Way::ToPeer, 100);
    server.engine.relayed(server.now, id, Way::ToPeer, 11);
    server.engine.relayed(server.now, id, Way::ToClient, 5);
    server.engine.peer_disconnected(id, PeerEnd::ClientClosed);
    server.pump();
    let changes = server.take_changes();
    assert!(
        matches!(
            changes[..],
            [
                Change::PeerConnected { is_incoming: false, .. },
                Change::PeerBound { .. },
                Change::PeerDisconnected { connection, cause: PeerEnd::ClientClosed, .. }
            ] if connection == id
        ),
        "{changes:?}"
    );
    assert_eq!(server.refresh(&mut client, 0).code(), None);
    let Some(Change::Ended(ended)) = server.changes.pop() else {
        panic!("the allocation ended");
    };
    let totals = ended.totals;
    assert_eq!(
        (totals.client_received.bytes, totals.peer_sent.bytes),
        (111, 111)
    );
    assert_eq!(
        (totals.peer_received.bytes, totals.client_sent.bytes),
        (5, 5)
    );
    assert_eq!(totals.client_received.datagrams, 2);
}

#[test]
fn a_draining_server_grants_no_tcp_allocation_and_connects_for_those_it_has() {
    let (mut server, mut client, relayed) = started();
    server.engine.drain();
    let mut other = connection_of(&mut server, "bob", "builder", over(Transport::Tcp, 9));
    assert_eq!(allocate_tcp(&mut server, &mut other).code(), Some(403));
    // who has an allocation was promised its service: connections end with it, and it ends in its time
    let id = connect(&mut server, &mut client, PEER);
    let mut data = alice(&mut server, 2);
    bind(&mut server, &mut data, id).success();
    server.permit(&mut client, "93.184.216.21:1").success();
    accept(&mut server, relayed, "93.184.216.21:7001").unwrap();
    assert_balanced(&server);
}
