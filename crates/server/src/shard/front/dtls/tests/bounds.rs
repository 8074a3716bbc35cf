//! What bounds sessions and handshakes: how many, how long, and in how much memory.

use super::*;

/// Begins a session of a client at `from` that says no more.
fn begin(server: &mut Server, from: ([u8; 4], u16)) -> Arrival {
    let mut client = Client::new(from.1);
    client.address.client = from.into();
    let hello = client.hello_with_cookie(server);
    server.hear(client.address, &hello).0
}

/// H3: a message that anybody can send holds no place; an allocation does.
#[test]
fn the_oldest_session_without_an_allocation_makes_room_and_no_more_begin_than_allowed() {
    let mut server = Server::with_ecdsa();
    for port in 1..=3 {
        let mut client = Client::new(port);
        client.shake_hands(&mut server);
        let record = client.seal(b"anything");
        server.hear(client.address, &record);
    }
    let here = [198, 51, 100, 1];
    server.allocated = vec![(here, 1).into(), (here, 2).into()];
    for port in 11..=30 {
        assert_eq!(begin(&mut server, (here, port)), Arrival::Control);
    }
    let gone: Vec<_> = std::iter::from_fn(|| server.dtls.pop_ended()).collect();
    assert_eq!(gone.len(), 17);
    let left = |server: &Server| -> Vec<_> {
        let is_there = |port: &u16| server.dtls.sessions.find(address(*port)).is_some();
        (1..=50).filter(is_there).collect()
    };
    assert_eq!(left(&server), [1, 2, 27, 28, 29, 30]);
    // With as many sessions as there may be, none begins unless one without an allocation goes.
    let all = [1, 2, 27, 28, 29, 30];
    server.allocated = all.map(|port| (here, port).into()).to_vec();
    assert_eq!(begin(&mut server, (here, 31)), Arrival::Control);
    assert_eq!(left(&server), all);
    let crowded = Arrival::Dropped(DtlsDrop::Crowded);
    assert_eq!(begin(&mut server, (here, 32)), crowded);
}

/// M6: who holds one place keeps it, however fast others come.
#[test]
fn a_slow_handshake_outlasts_a_flood_of_others() {
    let mut server = Server::with_ecdsa();
    let slow = ([203, 0, 113, 7], 1);
    begin(&mut server, slow);
    for port in 1..=100 {
        begin(&mut server, ([198, 51, 100, 1], port));
        begin(&mut server, ([198, 51, 100, 2], port));
    }
    let slow = Address {
        client: slow.into(),
        ..address(1)
    };
    assert!(server.dtls.sessions.find(slow).is_some());
    assert_eq!(server.dtls.sessions.unallocated_count(), 4);
}

/// H3: a Binding request now and then does not keep a session for ever.
#[test]
fn without_an_allocation_a_session_ends_however_much_it_says() {
    let mut server = Server::with_ecdsa();
    let mut client = Client::new(1);
    client.shake_hands(&mut server);
    let name = server.name(client.address);
    let mut last = None;
    for n in (0..2000).step_by(50) {
        if !server.wait_until(second(n)).is_empty() {
            last = Some(n);
            break;
        }
        let has_allocation = (500..1000).contains(&n);
        server.allocated = vec![client.address.client; usize::from(has_allocation)];
        let record = client.seal(b"anything");
        server.hear(client.address, &record);
        server.dtls.allocated(second(n), name, has_allocation);
    }
    assert_eq!(last, Some(1600), "600 s after it had an allocation");
}

#[test]
fn half_open_handshakes_of_one_address_keep_nobody_else_out() {
    let mut server = Server::within(&CONTEXTS[0].0, a_hundred(2));
    let (here, there) = ([198, 51, 100, 1], [198, 51, 100, 2]);
    begin(&mut server, (there, 1));
    for port in 1..=10 {
        assert_eq!(begin(&mut server, (here, port)), Arrival::Control);
    }
    let ended: Vec<_> = std::iter::from_fn(|| server.dtls.pop_ended()).collect();
    let ports: Vec<_> = ended.iter().map(|client| client.remote.port()).collect();
    assert_eq!(
        ports,
        [8, 7, 6, 5, 4, 3, 2, 1],
        "its own, the last one first"
    );
    assert!(
        ended
            .iter()
            .all(|client| client.remote.ip() == std::net::IpAddr::from(here))
    );
    assert_eq!(server.dtls.sessions.unallocated_count(), 3);
    server.wait_until(second(6));
    assert_eq!(server.dtls.sessions.unallocated_count(), 0);
}

#[test]
fn sessions_that_do_not_go_on_end_in_time() {
    let mut server = Server::with_ecdsa();
    let mut half = Client::new(1);
    let hello = half.hello_with_cookie(&mut server);
    server.hear(half.address, &hello);
    let mut silent = Client::new(2);
    silent.shake_hands(&mut server);
    let mut idle = Client::new(3);
    idle.shake_hands(&mut server);
    server.hear(idle.address, &idle.seal(b"once"));
    // Repetitions win no time.
    server.now = second(4);
    server.hear(half.address, &hello);
    assert!(server.wait_until(second(4)).is_empty());
    assert_eq!(server.wait_until(second(6)), [half.address.client]);
    assert!(server.wait_until(second(9)).is_empty());
    assert_eq!(server.wait_until(second(11)), [silent.address.client]);
    server.hear(idle.address, &idle.seal(b"twice"));
    assert!(server.wait_until(second(70)).is_empty());
    assert_eq!(server.wait_until(second(140)), [idle.address.client]);
    assert_eq!(server.dtls.names(), []);
}

#[test]
fn a_handshake_takes_no_more_than_it_may() {
    let mut server = Server::with_ecdsa();
    let mut client = Client::new(1);
    let hello = client.hello_with_cookie(&mut server);
    let mut long = hello.clone();
    long[14] = 1; // the message claims 64 KiB more than it has
    let malformed = Arrival::Dropped(DtlsDrop::Malformed);
    assert_eq!(server.hear(client.address, &long).0, malformed);
    server.hear(client.address, &hello);
    assert_eq!(server.hear(client.address, &long).0, malformed);
    let data = [
        &[APPLICATION_DATA, 0xFE, 0xFD, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9][..],
        &[7; 9],
    ]
    .concat();
    let rejected = Arrival::Dropped(DtlsDrop::Rejected);
    assert_eq!(server.hear(client.address, &data).0, rejected);
    let taken = (0..200)
        .filter(|_| server.hear(client.address, &hello).0 == Arrival::Control)
        .count();
    assert!(
        taken <= sessions::HANDSHAKE_DATAGRAMS_MAX as usize,
        "{taken}"
    );
}

#[test]
fn handshakes_that_wait_are_bounded_and_a_client_waits_once() {
    let mut server = Server::with_ecdsa();
    let mut plain = Plain::default();
    let mut hellos = Vec::new();
    for number in 0..1100_u16 {
        let mut client = Client::new(number + 1);
        let [_, network] = (number / 60).to_be_bytes();
        client.address.client.set_ip([198, 51, 100, network].into());
        let hello = client.hello_with_cookie(&mut server);
        for _ in 0..2 {
            hellos.push((client.address, hello.clone()));
        }
    }
    let arrivals: Vec<_> = hellos
        .iter()
        .map(|(from, hello)| server.dtls.received(server.now, *from, hello, &mut plain))
        .collect();
    let dropped = |reason| {
        let is_dropped = |arrival: &&Arrival| **arrival == Arrival::Dropped(reason);
        arrivals.iter().filter(is_dropped).count()
    };
    assert_eq!(server.dtls.waiting.len(), WAITING_MAX);
    assert_eq!(dropped(DtlsDrop::Crowded), 2 * (1100 - WAITING_MAX));
    while server.dtls.has_work() {
        server.dtls.shake_hands(server.now, &mut plain, |_| false);
    }
    assert_eq!(
        (server.dtls.waiting_bytes, server.dtls.beginning.len()),
        (0, 0)
    );
    assert_eq!(server.dtls.names().len(), LIMITS.book.crowd.total);
    assert_eq!(
        server.dtls.waiting_sources.count([198, 51, 100, 0].into()),
        0
    );
}

#[test]
fn one_address_does_not_fill_the_queue_of_handshakes() {
    let mut server = Server::with_ecdsa();
    let mut plain = Plain::default();
    let hellos = [1_u8, 2].map(|host| -> Vec<_> {
        (1..=WAITING_PER_SOURCE_MAX + 20)
            .map(|port| {
                let mut client = Client::new(u16::try_from(port).unwrap());
                client.address.client.set_ip([198, 51, 100, host].into());
                let hello = client.hello_with_cookie(&mut server);
                (client.address, hello)
            })
            .collect()
    });
    let arrivals = hellos.map(|hellos| {
        let hellos = hellos.iter();
        let arrivals =
            hellos.map(|(from, hello)| server.dtls.received(server.now, *from, hello, &mut plain));
        let crowded = Arrival::Dropped(DtlsDrop::CrowdedAddress);
        arrivals.filter(|arrival| *arrival == crowded).count()
    });
    assert_eq!(arrivals, [20, 20]);
}

/// M5: what handshakes may claim is bounded for the shard, each has a share, and all comes back.
#[test]
fn handshakes_share_a_budget_of_memory_and_give_it_back() {
    let mut server = Server::within(&CONTEXTS[0].0, a_hundred(100));
    // A first fragment of a message of `len` bytes.
    let claim = |kind: u8, sequence: u8, len: u16| {
        let [high, low] = len.to_be_bytes();
        let message = [kind, 0, high, low, 0, sequence, 0, 0, 0, 0, 0, 1, 7];
        [
            &[22, 0xFE, 0xFD, 0, 0, 0, 0, 0, 0, 0, 9, 0, 13][..],
            &message,
        ]
        .concat()
    };
    let mut taken = 0;
    for port in 1..=60 {
        begin(&mut server, ([198, 51, 100, 1], port));
        for sequence in 2..=6 {
            let chain = claim(11, sequence, 32 * 1024);
            let arrival = server
                .dtls
                .sessions
                .admit(server.name(address(port)), &chain);
            taken += usize::from(arrival.is_ok());
            assert!(matches!(arrival, Ok(_) | Err(DtlsDrop::Crowded)));
        }
    }
    assert!((130..=140).contains(&taken), "{taken} chains of 32 KiB");
    let small = claim(16, 2, 100);
    begin(&mut server, ([198, 51, 100, 2], 1));
    let other = Address {
        client: ([198, 51, 100, 2], 1).into(),
        ..address(1)
    };
    assert_eq!(server.hear(other, &small).0, Arrival::Control, "its share");
    let malformed = Arrival::Dropped(DtlsDrop::Malformed);
    assert_eq!(server.hear(other, &claim(16, 2, 5000)).0, malformed);
    assert_eq!(server.hear(other, &claim(11, 9, 100)).0, malformed);
    assert_eq!(server.hear(other, &claim(1, 2, 9000)).0, malformed);
    server.wait_until(second(20));
    assert_eq!(server.dtls.names(), []);
    assert_eq!(
        server.dtls.sessions.handshake_budget(),
        crate::shard::book::HANDSHAKE_BUDGET
    );
}
