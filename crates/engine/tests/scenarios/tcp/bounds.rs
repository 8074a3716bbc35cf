//! What bounds connections with peers: rates, and what may wait.

use super::*;

#[test]
fn a_stream_beyond_the_allocations_rate_is_held_back_each_way_by_itself() {
    let (mut server, mut client, _) = allocated(Server::with(|config| {
        with_tcp(config);
        config.limits.bandwidth.bytes_per_s = core::num::NonZeroU32::new(10_000);
    }));
    let id = connect(&mut server, &mut client, PEER);
    let mut relayed = |way, bytes| server.engine.relayed(server.now, id, way, bytes);
    // a second's worth at once
    assert_eq!(relayed(Way::ToPeer, 10_000), None);
    let now = Time::from_secs(1_000);
    // then whatever was read counts, and is waited for
    let until = relayed(Way::ToPeer, 5_000);
    assert_eq!(until, Some(now + Duration::from_millis(500)));
    let until = relayed(Way::ToPeer, 30_000);
    assert_eq!(until, Some(now + Duration::from_millis(3_500)));
    assert_eq!(relayed(Way::ToClient, 10_000), None);
    server.oversleep(Duration::from_millis(3_500));
    let mut relayed = |way, bytes| server.engine.relayed(server.now, id, way, bytes);
    let until = relayed(Way::ToPeer, 1_000);
    assert_eq!(until, Some(now + Duration::from_millis(3_600)));
}

//= V-12
#[test]
fn a_user_that_scans_ports_runs_into_its_rate() {
    let (mut server, mut client, _) = allocated(with_limits(|tcp| {
        tcp.connects_per_user = Rate {
            burst: 20,
            per_s: 2,
        };
    }));
    let mut codes = Vec::new();
    for port in 2000..3000 {
        let peer = format!("93.184.216.20:{port}");
        let transaction = client.next_transaction();
        let request = client.request(Method::CONNECT, transaction, |writer| {
            writer.xor_peer_address(peer.parse().unwrap());
        });
        server.replies.clear();
        assert_eq!(server.receive(client.tuple, &request), Outcome::Done);
        if let Some(Wanted::Connect(id, ..)) = server.wanted.pop() {
            finish_connect(&mut server, id, false);
        }
        codes.push(server.only_reply_to(client.tuple).code());
        server.oversleep(Duration::from_millis(10));
    }
    let tried = codes.iter().filter(|code| **code == Some(447)).count();
    assert_eq!(
        tried,
        20 + 20 - 1,
        "a burst, and two a second for ten seconds"
    );
    assert_eq!(
        codes.iter().filter(|code| **code == Some(486)).count(),
        1000 - tried
    );
    // other users are not held up
    let mut bob = connection_of(&mut server, "bob", "builder", over(Transport::Tcp, 8));
    allocate_tcp(&mut server, &mut bob);
    begin_connect(&mut server, &mut bob, PEER);
}

//= V-12
//= V-46
#[test]
fn what_waits_is_bounded_for_each_allocation_and_each_user() {
    let (mut server, mut client, relayed) = allocated(with_limits(|tcp| {
        tcp.pending_per_allocation = 3;
        tcp.pending_per_user = 4;
        tcp.connections_per_allocation = 5;
    }));
    server.permit(&mut client, PEER);
    let peer = |port: u16| format!("93.184.216.20:{port}");
    let first = begin_connect(&mut server, &mut client, &peer(2000));
    let second = connect(&mut server, &mut client, &peer(2001));
    let third = accept(&mut server, relayed, &peer(2002)).unwrap();
    assert_eq!(
        accept(&mut server, relayed, &peer(2003)),
        Err(PeerEnd::TooMany)
    );
    assert_eq!(
        refused_connect(&mut server, &mut client, &peer(2003)),
        Some(508)
    );
    // what is bound does not wait
    for (id, connection) in [(second, 2), (third, 3)] {
        let mut data = alice(&mut server, connection);
        assert_eq!(bind(&mut server, &mut data, id).code(), None);
    }
    server.wanted.clear();
    begin_connect(&mut server, &mut client, &peer(2004));
    begin_connect(&mut server, &mut client, &peer(2005));
    assert_eq!(
        refused_connect(&mut server, &mut client, &peer(2006)),
        Some(508),
        "all an allocation may have"
    );
    // the user has three under way; a second allocation may add one
    let mut other = alice(&mut server, 9);
    allocate_tcp(&mut server, &mut other);
    begin_connect(&mut server, &mut other, &peer(2007));
    assert_eq!(
        refused_connect(&mut server, &mut other, &peer(2008)),
        Some(486)
    );
    finish_connect(&mut server, first, false);
    begin_connect(&mut server, &mut other, &peer(2008));
    assert_balanced(&server);
}

//= V-46
#[test]
fn a_flood_of_incoming_connections_leaves_a_bounded_number() {
    let (mut server, mut client, relayed) = started();
    server.permit(&mut client, PEER);
    for port in 1..10_000 {
        let _ = accept(&mut server, relayed, &format!("93.184.216.20:{port}"));
    }
    let limit = usize::from(TcpRelays::default().pending_per_allocation);
    assert_eq!(server.engine.statistics().peer_connections, limit);
    server.wait_s(31);
    assert_eq!(server.engine.statistics().peer_connections, 0);
    assert_balanced(&server);
}
