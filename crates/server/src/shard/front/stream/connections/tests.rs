use super::*;
use crate::shard::book::{CrowdLimits, HANDSHAKE_BUDGET, HANDSHAKE_SHARE};
use std::time::Duration;
use turnbuckle_engine::ConnectionId;

const LISTENER: Endpoint = Endpoint(1);
const LIMITS: BookLimits = BookLimits {
    handshake: Duration::from_secs(5),
    first_message: Duration::from_secs(10),
    message: Duration::from_secs(10),
    idle: Duration::from_secs(60),
    unallocated: Duration::from_secs(600),
    crowd: CrowdLimits {
        total: 4096,
        per_source: 1024,
    },
};

fn remote(port: u16) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], port))
}

fn second(n: u64) -> Time {
    Time::from_secs(1000 + n)
}

/// Returns what is closed at `now`.
fn closed(
    connections: &mut Connections,
    now: Time,
    has_allocation: bool,
) -> Vec<(StreamId, CloseReason)> {
    let mut budget = 10_000;
    std::iter::from_fn(|| {
        let id = connections.pop_due(now, &mut budget, |_| has_allocation)?;
        let connection = connections.remove(id)?;
        Some((id, connection.closing?))
    })
    .collect()
}

fn one() -> (Connections, StreamId) {
    let mut connections = Connections::new(LIMITS);
    let id = StreamId::from_u32(3);
    connections.add(second(0), id, LISTENER, remote(1), Awaited::Transport);
    (connections, id)
}

//= MUX-07
#[test]
fn a_client_that_says_nothing_is_closed_after_ten_seconds() {
    let (mut connections, id) = one();
    // Bytes alone do not help, only messages do (V-47).
    for n in 0..9 {
        connections.progressed(second(n), id, false, true);
        assert_eq!(closed(&mut connections, second(n), false), []);
    }
    assert_eq!(
        closed(&mut connections, second(11), false),
        [(id, CloseReason::FirstMessageLate)]
    );
}

#[test]
fn a_message_that_is_not_completed_closes_after_ten_seconds_even_with_an_allocation() {
    let (mut connections, id) = one();
    connections.progressed(second(1), id, true, false);
    assert_eq!(closed(&mut connections, second(40), true), []);
    connections.progressed(second(41), id, false, true);
    connections.progressed(second(49), id, false, true);
    assert_eq!(closed(&mut connections, second(50), true), []);
    assert_eq!(
        closed(&mut connections, second(52), true),
        [(id, CloseReason::MessageLate)]
    );
}

#[test]
fn messages_that_go_on_keep_a_connection_open_although_each_reading_ends_in_the_middle_of_one() {
    let (mut connections, id) = one();
    for n in 0..600 {
        connections.progressed(second(n), id, true, true);
        assert_eq!(closed(&mut connections, second(n), false), []);
    }
}

//= STUN-008
#[test]
fn without_an_allocation_a_connection_may_be_idle_for_a_minute_and_with_one_for_ever() {
    let (mut connections, id) = one();
    connections.progressed(second(1), id, true, false);
    assert_eq!(closed(&mut connections, second(60), false), []);
    assert_eq!(closed(&mut connections, second(90), true), []);
    assert_eq!(closed(&mut connections, second(5000), true), []);
    assert_eq!(
        closed(&mut connections, second(5100), false),
        [(id, CloseReason::Idle)]
    );
}

//= TCP-25
#[test]
fn a_data_connection_may_be_idle_for_ever_until_one_side_has_ended_what_it_sends() {
    let (mut connections, id) = one();
    connections.progressed(second(1), id, true, false);
    let joined = Joined {
        peer: StreamId::from_u32(9),
        connection: ConnectionId(7),
        ended: None,
    };
    assert!(connections.join(id, joined));
    assert_eq!(connections.book.crowd_len(), 0);
    for n in [90, 5_000, 1_000_000] {
        assert_eq!(closed(&mut connections, second(n), false), []);
    }
    connections.half_closed(second(1_000_000), id, PeerEnd::PeerClosed);
    connections.half_closed(second(1_000_001), id, PeerEnd::ClientClosed);
    // bytes of the other way put it off
    for n in 1_000_001..1_000_200 {
        let joined = connections.get_mut(id).unwrap().joined.as_mut().unwrap();
        assert_eq!(joined.ended.unwrap().0, PeerEnd::PeerClosed, "the first");
        joined.progressed(second(n));
        assert_eq!(closed(&mut connections, second(n), false), []);
    }
    assert_eq!(
        closed(&mut connections, second(1_000_262), false),
        [(id, CloseReason::Stalled)]
    );
}

/// Makes a table of at most `total` connections, and of `per_source` from one source.
fn crowded(total: usize, per_source: usize) -> Connections {
    Connections::new(BookLimits {
        crowd: CrowdLimits { total, per_source },
        ..LIMITS
    })
}

fn at(text: &str) -> SocketAddr {
    SocketAddr::new(text.parse().unwrap(), 1)
}

/// Takes connection `n` in. Returns the one that made room, which is gone.
fn arrive(connections: &mut Connections, n: u32, remote: SocketAddr) -> Option<u32> {
    let displaced = connections.make_room(Some(remote.ip()), |_| false);
    let id = StreamId::from_u32(n);
    connections.add(second(0), id, LISTENER, remote, Awaited::Transport);
    let gone = connections.remove(displaced?)?;
    assert!(matches!(
        gone.closing,
        Some(CloseReason::Crowded | CloseReason::CrowdedAddress)
    ));
    Some(gone.id.to_u32())
}

/// H3: a message that anybody can send frees nobody from the limits.
#[test]
fn a_message_without_proof_holds_no_place() {
    let mut connections = crowded(3, 100);
    let crowd = at("192.0.2.1");
    for n in 0..3 {
        assert_eq!(arrive(&mut connections, n, crowd), None);
        let id = StreamId::from_u32(n);
        let client = connections.get(id).unwrap().client;
        connections.allocated(second(1), &client, false);
        connections.progressed(second(1), id, true, false);
    }
    for n in 3..9 {
        assert_eq!(arrive(&mut connections, n, crowd), Some(n - 3));
    }
    assert_eq!(connections.book.crowd_len(), 3);
}

/// H3: twenty bytes now and then do not keep a connection for ever.
#[test]
fn without_an_allocation_a_connection_ends_however_much_it_says() {
    let (mut connections, id) = one();
    let speak = |connections: &mut Connections, n, has_allocation| {
        if let Some(client) = connections.get(id).map(|it| it.client) {
            connections.allocated(second(n), &client, has_allocation);
        }
        connections.progressed(second(n), id, true, false);
        closed(connections, second(n), has_allocation)
    };
    for n in (0..600).step_by(50) {
        assert_eq!(speak(&mut connections, n, false), []);
    }
    // With an allocation there is no end, and the time begins anew when it is gone.
    for n in (600..5000).step_by(50) {
        assert_eq!(speak(&mut connections, n, true), []);
    }
    for n in (5000..5600).step_by(50) {
        assert_eq!(speak(&mut connections, n, false), []);
    }
    assert_eq!(
        speak(&mut connections, 5602, false),
        [(id, CloseReason::Unallocated)]
    );
}

/// M6: who holds one place keeps it, however fast others come.
#[test]
fn a_slow_client_outlasts_a_flood_of_connections() {
    let mut connections = crowded(100, 1000);
    let slow = StreamId::from_u32(0);
    assert_eq!(arrive(&mut connections, 0, at("203.0.113.7")), None);
    for n in 1..20_000_u32 {
        let from = SocketAddr::from(([192, 0, 2, u8::try_from(n % 4).unwrap()], 1));
        // As the data path does, a place is used again.
        let place = n % 100 + 1;
        connections.remove(StreamId::from_u32(place));
        arrive(&mut connections, place, from);
    }
    assert!(connections.get(slow).is_some_and(|it| it.closing.is_none()));
}

#[test]
fn a_client_with_an_allocation_is_not_displaced_even_if_nobody_has_noted_it_yet() {
    let mut connections = crowded(2, 100);
    let from = at("192.0.2.1");
    for n in 0..2 {
        arrive(&mut connections, n, from);
    }
    let first = connections.get(StreamId::from_u32(0)).unwrap().client;
    let displaced = connections.make_room(Some(from.ip()), |client| *client == first);
    assert_eq!(displaced, None, "there is room as soon as it is noted");
    assert_eq!(connections.book.crowd_len(), 1);
    arrive(&mut connections, 2, from);
    assert_eq!(arrive(&mut connections, 3, from), Some(1));
    // Without its allocation it counts again.
    connections.allocated(second(9), &first, false);
    assert_eq!(connections.book.crowd_len(), 3);
}

#[test]
fn connections_of_one_address_do_not_keep_others_out() {
    let mut connections = crowded(100, 2);
    let (here, other) = (at("192.0.2.1"), at("192.0.2.2"));
    for n in 0..2 {
        assert_eq!(arrive(&mut connections, n, here), None);
    }
    assert_eq!(arrive(&mut connections, 2, other), None);
    assert_eq!(arrive(&mut connections, 3, at("::ffff:192.0.2.1")), Some(0));
    for n in [1, 3, 2] {
        connections.remove(StreamId::from_u32(n));
    }
    assert_eq!(connections.book.crowd_len(), 0);
    // Of IPv6 the first 64 bits count; a proxy's connections count for whom it speaks.
    let mut gone = Vec::new();
    for (n, host) in [(3, "2001:db8::1"), (4, "2001:db8::2"), (5, "2001:db8::3")] {
        assert_eq!(connections.make_room(None, |_| false), None);
        let id = StreamId::from_u32(n);
        connections.add(second(0), id, LISTENER, other, Awaited::Header);
        gone.extend(connections.introduce(id, at(host), |_| false));
    }
    assert_eq!(gone, [StreamId::from_u32(3)]);
    assert_eq!(connections.book.displaced_by(Some(other.ip()), false), None);
    let next = connections.make_room(Some(at("2001:db8:0:1::1").ip()), |_| false);
    assert_eq!(next, None);
}

/// M5: what handshakes keep waiting is bounded for the shard, and each connection has a share that nobody takes from it.
#[test]
fn handshakes_share_a_budget_and_give_it_back() {
    let mut connections = crowded(4096, 4096);
    let mut taken = 0;
    for n in 0..1000 {
        arrive(&mut connections, n, at("192.0.2.1"));
        let id = StreamId::from_u32(n);
        assert!(connections.keep_of_handshake(id, HANDSHAKE_SHARE));
        for _ in 0..2 {
            taken += usize::from(connections.keep_of_handshake(id, 4 * HANDSHAKE_SHARE));
        }
    }
    assert_eq!(taken / 2, HANDSHAKE_BUDGET / (3 * HANDSHAKE_SHARE));
    let first = StreamId::from_u32(0);
    connections.remove(first);
    connections.keep_of_handshake(StreamId::from_u32(1), 0);
    connections.handshake_done(second(1), StreamId::from_u32(2));
    for n in 3..1000 {
        connections.remove(StreamId::from_u32(n));
    }
    assert_eq!(connections.book.handshake_budget(), HANDSHAKE_BUDGET);
}
