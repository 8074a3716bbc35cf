//! Bound tunnels by HTTP/3 (draft-ietf-masque-connect-udp-listen): requests, contexts, and what goes by them.

use std::net::SocketAddr;

use proptest::prelude::*;
use turnbuckle_masque::bind::CONTEXTS_MAX;
use turnbuckle_masque::h3::{Code, Event, NotSent, Way};
use turnbuckle_masque::{Granted, Host};
use turnbuckle_wire::Varint;

use crate::world::{CONTROL, FIELDS, World, control, frame, request, varint};

const PEER: &str = "192.0.2.6:443";
/// The address in registrations and in datagrams of the uncompressed context.
const PEER_BYTES: &[u8] = b"\x04\xC0\x00\x02\x06\x01\xBB";

fn asked(path: &'static str, bind: Option<&'static str>) -> Vec<u8> {
    let mut fields = FIELDS.to_vec();
    fields[3].1 = path;
    fields.extend(bind.map(|value| ("connect-udp-bind", value)));
    request(&fields)
}

fn granted() -> Granted {
    let addresses = ["198.51.100.1:50000", "[2001:db8::1]:50001"];
    Granted::Bound {
        addresses: addresses.map(|it| it.parse().unwrap()).to_vec(),
    }
}

/// Returns a world whose connection has granted bound tunnel 7 on stream 0, by DATAGRAM frames or by capsules.
fn bound(takes_datagrams: bool) -> World {
    let mut world = World::with_settings(&[0x33, u8::from(takes_datagrams)]);
    world.receive(0, &asked("/.well-known/masque/udp/%2A/%2A/", Some("?1")));
    world.grant_as(0, 7, granted());
    world
}

fn assign(context: u64, what: &[u8]) -> Vec<u8> {
    frame(0, &frame(0x11, &[&varint(context), what].concat()))
}

/// Returns what has been sent on the stream behind the answer.
fn said(world: &World) -> Vec<u8> {
    let bytes = world.sent(0).bytes;
    let (len, len_len) = Varint::read(&bytes[1..]).unwrap();
    bytes[1 + len_len + usize::try_from(len).unwrap()..].to_vec()
}

fn judge(world: &mut World, context: u64, is_allowed: bool) {
    let World { server, below, .. } = world;
    server.judged(below, 0, context, is_allowed);
}

//= BIND-01
#[test]
fn a_bound_tunnel_is_asked_for_with_asterisks_and_granted_with_its_addresses() {
    let world = bound(true);
    let [Event::Asked { asked, .. }] = &world.events[..] else {
        panic!("{:?}", world.events)
    };
    assert_eq!(asked.target.host, Host::Any);
    let expected = [
        ":status: 200",
        "capsule-protocol: ?1",
        "proxy-status: relay",
        "connect-udp-bind: ?1",
        "proxy-public-address: \"198.51.100.1:50000\", \"[2001:db8::1]:50001\"",
    ];
    assert_eq!(world.answer(0), expected);
    for bind in [None, Some("?0"), Some("?1, ?1")] {
        let mut world = World::with_settings(&[]);
        world.receive(0, &self::asked("/.well-known/masque/udp/*/*/", bind));
        assert!(world.answer(0)[0].ends_with("400"), "{bind:?}");
    }
    for path in [
        "/.well-known/masque/udp/*/443/",
        "/.well-known/masque/udp/192.0.2.6/*/",
    ] {
        let mut world = World::with_settings(&[]);
        world.receive(0, &self::asked(path, Some("?1")));
        assert!(world.answer(0)[0].ends_with("400"), "{path}");
    }
}

//= BIND-02
//= BIND-04
#[test]
fn datagrams_go_where_their_context_says_and_come_in_the_one_of_their_sender() {
    let mut world = bound(true);
    world.receive(0, &assign(2, &[0]));
    assert_eq!(said(&world), frame(0, &[0x12, 1, 2]));
    world.receive(0, &assign(4, PEER_BYTES));
    let registered = Event::Registered {
        stream: 0,
        tunnel: 7,
        context: 4,
        peer: PEER.parse().unwrap(),
    };
    assert_eq!(world.events.last(), Some(&registered));
    judge(&mut world, 4, true);
    let both = [frame(0, &[0x12, 1, 2]), frame(0, &[0x12, 1, 4])];
    assert_eq!(said(&world), both.concat());
    world.datagram(&[&[0, 2], PEER_BYTES, b"by address"].concat());
    world.datagram(b"\0\x04by context");
    let by_stream = frame(0, &[&[2], PEER_BYTES, b"in a capsule"].concat());
    world.receive(0, &frame(0, &by_stream));
    let expected: [&[u8]; 3] = [b"by address", b"by context", b"in a capsule"];
    assert_eq!(world.payloads_of(7), expected);
    let to: SocketAddr = PEER.parse().unwrap();
    assert!(world.payloads.iter().all(|it| it.to == Some(to)));
    assert_eq!(world.send_from(0, PEER, b"a"), Ok(Way::Frame));
    assert_eq!(world.send_from(0, "192.0.2.6:444", b"b"), Ok(Way::Frame));
    let other = b"\0\x02\x04\xC0\x00\x02\x06\x01\xBCb";
    assert_eq!(world.below.datagrams, [&b"\0\x04a"[..], other]);
    assert_eq!(world.dropped, turnbuckle_masque::h3::Dropped::default());
}

//= BIND-06
#[test]
fn without_an_uncompressed_context_nobody_but_the_registered_is_heard() {
    let mut world = bound(false);
    assert_eq!(world.send_from(0, PEER, b"a"), Err(NotSent::Unwanted));
    world.receive(0, &assign(2, &[0]));
    world.receive(0, &assign(4, PEER_BYTES));
    judge(&mut world, 4, true);
    world.receive(0, &frame(0, &[0x13, 1, 2]));
    let before = said(&world).len();
    let stranger = world.send_from(0, "192.0.2.6:444", b"b");
    assert_eq!(stranger, Err(NotSent::Unwanted));
    assert!(!world.server.wants(0, "192.0.2.6:444".parse().unwrap()));
    assert_eq!(world.send_from(0, PEER, b"a"), Ok(Way::Capsule));
    assert_eq!(said(&world)[before..], frame(0, &frame(0, b"\x04a")));
}

//= V-91
//= UDPX-15
#[test]
fn a_context_that_the_client_has_not_registered_carries_nothing() {
    let mut world = bound(true);
    world.receive(0, &assign(4, PEER_BYTES));
    judge(&mut world, 4, false);
    assert_eq!(said(&world), frame(0, &[0x13, 1, 4]));
    for context in [0, 1, 2, 3, 4, 5, 0x20] {
        world.datagram(&[0, context, b'x']);
    }
    assert_eq!(world.dropped.context_unknown, 7);
    world.receive(0, &assign(6, &[0]));
    world.datagram(b"\0\x06\x04\xC0");
    assert_eq!(world.dropped.no_address, 1);
    assert!(world.payloads.is_empty());
    assert!(world.sent(0).aborted.is_none());
}

//= BIND-03
//= UDPX-25
//= V-92
#[test]
fn a_registration_that_breaks_a_rule_ends_its_tunnel() {
    for wrong in [
        assign(0, &[0]),
        assign(3, &[0]),
        assign(2, &[0]),
        assign(4, &[0]),
        assign(4, &[5, 1, 2, 3, 4, 0, 1]),
        frame(0, &[0x12, 1, 2]),
        frame(0, &[0x13, 1, 0]),
        frame(0, &[0x11, 0]),
        // Heads alone: what they announce is not waited for.
        frame(0, &[&[0x11][..], &varint(30)].concat()),
        frame(0, &[&[0][..], &varint(70_000)].concat()),
    ] {
        let mut world = bound(true);
        world.receive(0, &assign(2, &[0]));
        world.receive(0, &wrong);
        assert_eq!(
            world.sent(0).aborted,
            Some(Code::MESSAGE_ERROR),
            "{wrong:?}"
        );
        assert_eq!(world.dropped.malformed, 1);
        let ended = Event::Ended {
            stream: 0,
            tunnel: Some(7),
        };
        assert_eq!(world.events.last(), Some(&ended));
    }
}

//= V-87
#[test]
fn who_reads_no_answers_to_its_registrations_loses_its_tunnel() {
    let mut world = bound(true);
    world.below.waiting_len = 65_536 - 3;
    world.receive(0, &assign(2, &[0]));
    assert!(world.sent(0).aborted.is_none());
    world.below.waiting_len += 1;
    world.receive(0, &assign(4, PEER_BYTES));
    judge(&mut world, 4, true);
    assert_eq!(world.sent(0).aborted, Some(Code::EXCESSIVE_LOAD));
}

//= V-87
#[test]
fn registrations_beyond_the_bound_are_refused_one_by_one() {
    let mut world = bound(true);
    for number in 0..=CONTEXTS_MAX as u64 {
        let port = u16::try_from(number + 1).unwrap().to_be_bytes();
        let what = [&PEER_BYTES[..5], &port].concat();
        world.receive(0, &assign(2 + 2 * number, &what));
    }
    let registered = world.events.len() - 1;
    assert_eq!(registered, CONTEXTS_MAX);
    let last = 2 + 2 * CONTEXTS_MAX as u64;
    let closed = [&[0x13, 2][..], &varint(last)].concat();
    assert_eq!(said(&world), frame(0, &closed));
}

#[test]
fn answers_to_registrations_come_behind_the_answer_that_waits_for_settings() {
    let mut world = World::new();
    world.receive(0, &asked("/.well-known/masque/udp/*/*/", Some("?1")));
    world.receive(0, &assign(2, &[0]));
    world.datagram(&[&[0, 2], PEER_BYTES, b"early"].concat());
    world.grant_as(0, 7, granted());
    assert_eq!(world.sent(0).bytes, b"");
    assert_eq!(world.payloads_of(7), [b"early"]);
    world.receive(CONTROL, &control(&frame(4, &[0x33, 1])));
    assert_eq!(world.answer(0)[0], ":status: 200");
    assert_eq!(said(&world), frame(0, &[0x12, 1, 2]));
}

proptest! {
    #[test]
    fn capsules_of_a_bound_tunnel_mean_the_same_in_any_pieces(
        capsules in prop::collection::vec(
            (
                prop_oneof![Just(0_u64), Just(0x11), Just(0x13), Just(0x40)],
                prop_oneof![
                    Just(vec![2, 0]),
                    Just([&[4], PEER_BYTES].concat()),
                    Just(vec![4]),
                    Just([&[2], PEER_BYTES, b"payload"].concat()),
                    prop::collection::vec(any::<u8>(), 0..12),
                ],
            ),
            1..12,
        ),
        piece in 1_usize..9,
    ) {
        let bytes: Vec<u8> = capsules.iter().flat_map(|(kind, value)| frame(*kind, value)).collect();
        let data = frame(0, &bytes);
        let (mut at_once, mut in_pieces) = (bound(true), bound(true));
        at_once.receive(0, &data);
        for part in data.chunks(piece) {
            in_pieces.receive(0, part);
        }
        prop_assert_eq!(at_once.sent(0).aborted, in_pieces.sent(0).aborted);
        prop_assert_eq!(at_once.payloads, in_pieces.payloads);
        prop_assert_eq!(at_once.dropped, in_pieces.dropped);
        prop_assert_eq!(at_once.events, in_pieces.events);
    }
}
