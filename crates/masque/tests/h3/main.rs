//! HTTP/3 over vectors of bytes: what a client says, in one piece and byte by byte, and what it is answered.

#![expect(
    clippy::unwrap_used,
    clippy::unwrap_in_result,
    reason = "a test that cannot go on ends"
)]

mod bound;
mod broken;
mod client;
mod world;

use proptest::prelude::*;
use turnbuckle_masque::Refusal;
use turnbuckle_masque::h3::{Code, Event, NotSent, Server, Way};

use world::{CONTROL, DECODER, ENCODER, FIELDS, World, capsule, control, frame, request, varint};

/// Returns the request with one field replaced, left out where the value is `-`, or added.
fn with(name: &str, value: &'static str) -> Vec<(&'static str, &'static str)> {
    let mut fields = FIELDS.to_vec();
    if let Some(field) = fields.iter_mut().find(|(it, _)| *it == name) {
        field.1 = value;
    }
    fields.retain(|&(_, value)| value != "-");
    fields
}

fn and(more: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
    [&FIELDS[..], more].concat()
}

//= UDPX-01
//= UDPX-12
//= UDPX-13
//= H3-01
//= H3-20
#[test]
fn a_tunnel_is_asked_for_granted_and_carries_both_ways_whatever_the_pieces() {
    let settings = control(&frame(4, &[0x33, 1]));
    let asked = request(&FIELDS);
    let data = frame(
        0,
        &[capsule(b"one"), capsule(b""), capsule(b"three")].concat(),
    );
    for piece in [1, 2, 3, 7, 1000] {
        let mut world = World::new();
        for part in settings.chunks(piece) {
            world.receive(CONTROL, part);
        }
        for part in asked.chunks(piece) {
            assert!(world.events.is_empty());
            world.receive(0, part);
        }
        let [Event::Asked { stream: 0, asked }] = &world.events[..] else {
            panic!("{:?}", world.events)
        };
        assert_eq!(asked.target.port, 443);
        assert_eq!(world.sent(0).bytes, b"", "the host has not answered");
        world.grant(0, 7);
        let expected = [
            ":status: 200",
            "capsule-protocol: ?1",
            "proxy-status: relay; next-hop=\"192.0.2.6\"",
        ];
        assert_eq!(world.answer(0), expected);
        for part in data.chunks(piece) {
            world.receive(0, part);
        }
        world.datagram(b"\0\0four");
        let came = [&b"one"[..], b"", b"three", b"four"];
        assert_eq!(world.payloads_of(7), came, "in pieces of {piece}");
        world.send(0, b"down").unwrap();
        assert_eq!(world.below.datagrams, [&b"\0\0down"[..]]);
        world.finish(0);
        let ended = Event::Ended {
            stream: 0,
            tunnel: Some(7),
        };
        assert_eq!(world.events.last(), Some(&ended));
        let sent = world.sent(0);
        assert!(sent.is_finished && sent.aborted.is_none());
        assert_eq!(world.below.closed, None);
    }
}

//= H3-02
//= H3-20
//= DGR-03
#[test]
fn this_side_says_what_it_is_able_to_do_first_of_all() {
    let world = World::new();
    // The type of the stream, then SETTINGS: 16 KiB of fields, no dynamic table, no blocked streams, extended CONNECT, datagrams.
    let expected = [0, 4, 13, 6, 0x80, 0, 0x40, 0, 1, 0, 7, 0, 8, 1, 0x33, 1];
    assert_eq!(world.sent(3).bytes, expected);
}

//= DGR-04
//= H3-03
#[test]
fn a_tunnel_is_granted_once_the_client_has_said_what_it_takes() {
    for takes in [false, true] {
        let mut world = World::new();
        world.receive(0, &request(&FIELDS));
        world.grant(0, 7);
        assert_eq!(world.sent(0).bytes, b"", "no settings, no answer");
        let early = world.send(0, b"early");
        assert_eq!(early, Err(NotSent::NoTunnel));
        world.receive(CONTROL, &control(&frame(4, &[0x33, u8::from(takes)])));
        assert_eq!(world.answer(0)[0], ":status: 200");
        let answer_len = world.sent(0).bytes.len();
        world.send(0, b"down").unwrap();
        let in_stream = world.sent(0).bytes[answer_len..].to_vec();
        match takes {
            true => assert_eq!((in_stream.len(), world.below.datagrams.len()), (0, 1)),
            false => {
                assert_eq!(in_stream, frame(0, &capsule(b"down")));
                assert!(world.below.datagrams.is_empty());
            }
        }
    }
    // Who says so without the transport parameter of RFC 9221 gets capsules too.
    let mut world = World::new();
    world.below.takes_datagrams = false;
    world.receive(CONTROL, &control(&frame(4, &[0x33, 1])));
    world.receive(0, &request(&FIELDS));
    world.grant(0, 7);
    world.send(0, b"down").unwrap();
    assert!(world.below.datagrams.is_empty());
}

#[test]
fn a_client_that_does_not_read_its_capsules_loses_them() {
    let mut world = World::with_tunnel(false);
    world.below.waiting_len = 65_000;
    let sent = world.send(0, &[0; 536]);
    assert_eq!(sent, Ok(Way::Capsule));
    let sent = world.send(0, &[0; 537]);
    assert_eq!(sent, Err(NotSent::Congested));
}

//= UDPX-12
//= H3-10
//= H3-11
//= H3-12
//= H3-13
//= V-92
#[test]
fn a_request_that_is_malformed_ends_its_stream_and_no_other() {
    for fields in [
        with(":method", "-"),
        with(":method", "GET"),
        with(":scheme", "-"),
        with(":scheme", ""),
        with(":path", "-"),
        with(":path", ""),
        with(":authority", "-"),
        with(":authority", ""),
        and(&[(":path", "/")]),
        and(&[(":status", "200")]),
        [&[("x", "y")][..], &FIELDS].concat(),
        and(&[("X", "y")]),
        and(&[("", "y")]),
        and(&[("a b", "y")]),
        and(&[("x", " y")]),
        and(&[("x", "y\r\nz")]),
        and(&[("x", "\0")]),
        and(&[("connection", "close")]),
        and(&[("keep-alive", "1")]),
        and(&[("proxy-connection", "close")]),
        and(&[("transfer-encoding", "chunked")]),
        and(&[("upgrade", "connect-udp")]),
        and(&[("te", "gzip")]),
        and(&[("host", "example.com")]),
        and(&[("host", "example.org"), ("host", "example.org")]),
        and(&[("content-length", "0")]),
        and(&[("content-type", "text/plain")]),
        and(&[
            ("authorization", "Basic YTpi"),
            ("authorization", "Basic YTpi"),
        ]),
        with(":protocol", "-"),
        vec![(":method", "GET"), (":scheme", "https"), (":path", "/")],
    ] {
        let mut world = World::with_settings(&[]);
        world.receive(0, &request(&fields));
        assert_eq!(
            world.sent(0).aborted,
            Some(Code::MESSAGE_ERROR),
            "{fields:?}"
        );
        let ended = Event::Ended {
            stream: 0,
            tunnel: None,
        };
        assert_eq!(world.events, [ended], "{fields:?}");
        assert_eq!(world.below.closed, None);
        world.receive(4, &request(&FIELDS));
        assert!(matches!(world.events[1], Event::Asked { stream: 4, .. }));
    }
}

//= UDPX-02
//= H3-21
#[test]
fn a_request_that_is_not_served_is_answered_why() {
    let path = |path| with(":path", path);
    for (fields, status) in [
        (path("/"), 404),
        (path("/.well-known/masque/udp/192.0.2.6/0/"), 400),
        (path("/.well-known/masque/udp/2001:db8::1/443/"), 400),
        (path("/.well-known/masque/udp/a%2/443/"), 400),
        (path("/.well-known/masque/udp//443/"), 400),
        (with(":protocol", "connect-ip"), 501),
        (
            vec![(":method", "CONNECT"), (":authority", "example.org:443")],
            501,
        ),
        (
            vec![
                (":method", "GET"),
                (":scheme", "https"),
                (":path", "/"),
                ("host", "a"),
            ],
            404,
        ),
    ] {
        let mut world = World::with_settings(&[]);
        world.receive(0, &request(&fields));
        assert_eq!(
            world.answer(0)[0],
            format!(":status: {status}"),
            "{fields:?}"
        );
        let sent = world.sent(0);
        assert!(sent.is_finished, "{fields:?}");
        assert_eq!(sent.stopped, Some(Code::NO_ERROR), "{fields:?}");
        assert!(world.events.is_empty(), "{fields:?}");
    }
}

//= UDPX-04
#[test]
fn a_refusal_has_its_status_and_says_why_to_whom_has_proven_something() {
    for refusal in Refusal::ALL {
        let mut world = World::with_settings(&[]);
        world.receive(0, &request(&FIELDS));
        world
            .server
            .refuse(&mut world.below, 0, refusal, "exa\"mp\r\nle");
        let answer = world.answer(0);
        let has = |field: &str| answer.iter().any(|it| it.starts_with(field));
        assert!(has(&format!(":status: {}", refusal.status())));
        assert!(!has("capsule-protocol"), "RFC 9297 §3.4");
        assert_eq!(
            has("proxy-status: relay; error="),
            refusal.proxy_error().is_some()
        );
        let challenge = "proxy-authenticate: Basic realm=\"exa\\\"mple\", charset=\"UTF-8\"";
        assert_eq!(has(challenge), refusal == Refusal::Unauthorized);
        assert!(world.sent(0).is_finished);
    }
}

#[test]
fn credentials_are_read_from_either_field() {
    for name in ["authorization", "proxy-authorization"] {
        let mut world = World::with_settings(&[]);
        world.receive(0, &request(&and(&[(name, "Basic YTpi")])));
        let [Event::Asked { asked, .. }] = &world.events[..] else {
            panic!("{:?}", world.events)
        };
        assert_eq!(&*asked.credentials.as_ref().unwrap().name, "a");
    }
}

//= V-88
#[test]
fn a_client_has_a_hundred_requests_without_a_tunnel() {
    let mut world = World::with_settings(&[]);
    for number in 0..100 {
        world.receive(4 * number, &request(&FIELDS));
        match number % 2 {
            0 => world.abandon(4 * number),
            _ => world
                .server
                .refuse(&mut world.below, 4 * number, Refusal::Unauthorized, ""),
        }
    }
    assert_eq!(world.below.closed, None);
    world.receive(400, &[]);
    assert_eq!(world.below.closed, Some(Code::EXCESSIVE_LOAD));
    let mut world = World::with_settings(&[]);
    for number in 0..300 {
        world.receive(4 * number, &request(&FIELDS));
        if number % 50 == 0 {
            world.grant(4 * number, 7);
        }
        world.abandon(4 * number);
    }
    assert_eq!(
        world.below.closed, None,
        "each tunnel counts for the next hundred"
    );
}

//= UDPX-15
//= UDPX-24
//= DGR-01
//= DGR-02
//= V-92
#[test]
fn a_datagram_is_for_the_tunnel_of_its_stream_or_for_nobody() {
    let mut world = World::with_tunnel(true);
    world.receive(4, &request(&FIELDS));
    world.grant(4, 8);
    world.datagram(b"\x00\x00a");
    world.datagram(b"\x40\x01\x40\x00b");
    world.datagram(b"\x00\x02another context");
    world.datagram(b"\x02\x00no such stream yet");
    world.receive(8, &request(&FIELDS)[..5]);
    world.datagram(b"\x02\x00no request yet");
    world.finish(0);
    world.datagram(b"\x00\x00the stream is over");
    assert_eq!(world.payloads_of(7), [b"a"]);
    assert_eq!(world.payloads_of(8), [b"b"]);
    assert_eq!(
        (world.dropped.no_tunnel, world.dropped.context_unknown),
        (3, 1)
    );
    // Without a context it ends its tunnel.
    world.datagram(b"\x01");
    assert_eq!(world.sent(4).aborted, Some(Code::DATAGRAM_ERROR));
    let ended = Event::Ended {
        stream: 4,
        tunnel: Some(8),
    };
    assert_eq!(world.events.last(), Some(&ended));
    assert_eq!(world.below.closed, None);
    for wrong in [&[][..], &[0x40], &[0xD0, 0, 0, 0, 0, 0, 0, 0]] {
        let mut world = World::with_tunnel(true);
        world.datagram(wrong);
        assert_eq!(world.below.closed, Some(Code::DATAGRAM_ERROR), "{wrong:?}");
        assert_eq!(world.dropped.malformed, 1);
    }
}

//= UDPX-17
//= UDPX-18
//= V-92
#[test]
fn little_is_kept_for_a_tunnel_that_is_not_open() {
    let mut world = World::with_settings(&[0x33, 1]);
    world.receive(0, &request(&FIELDS));
    for number in 0..9 {
        world.datagram(&[0, 0, number]);
    }
    world.receive(0, &frame(0, &capsule(b"in the stream")));
    assert_eq!(world.dropped.no_tunnel, 1, "eight are kept");
    world.grant(0, 7);
    assert_eq!(world.payloads_of(7).len(), 9);
    assert_eq!(
        world.payloads_of(7)[0],
        b"in the stream",
        "capsules come first"
    );
    // All of a connection have 16 KiB together, and what is kept is given back.
    for begin in [0, 100] {
        let mut streams: Vec<u64> = (begin + 4..begin + 24).map(|number| number * 4).collect();
        for &stream in &streams {
            world.receive(stream, &request(&FIELDS));
            world.datagram(&[&varint(stream / 4)[..], &[0; 1000]].concat());
        }
        let dropped = world.dropped.no_tunnel;
        assert_eq!(dropped, if begin == 0 { 5 } else { 26 });
        let last = streams.pop().unwrap();
        world.receive(last, &frame(0, &[0; 600]));
        assert_eq!(world.sent(last).aborted, Some(Code::EXCESSIVE_LOAD));
        for stream in streams {
            world.abandon(stream);
        }
        world.receive(300 + 4 * begin, &request(&FIELDS));
        world.grant(300 + 4 * begin, 9);
    }
}

//= UDPX-16
//= UDPX-25
//= UDPX-26
//= V-92
#[test]
fn a_malformed_capsule_ends_its_tunnel_and_an_unknown_one_is_passed_over() {
    let too_long = [&varint(0)[..], &varint(65_529), &[0]].concat();
    for wrong in [frame(0, &[]), frame(0, &[0x40]), too_long] {
        let mut world = World::with_tunnel(true);
        world.receive(0, &frame(0, &capsule(b"before")));
        world.receive(0, &frame(0, &wrong));
        assert_eq!(
            world.sent(0).aborted,
            Some(Code::MESSAGE_ERROR),
            "{wrong:?}"
        );
        assert_eq!(world.payloads_of(7), [b"before"]);
        assert_eq!(world.dropped.malformed, 1);
        let ended = Event::Ended {
            stream: 0,
            tunnel: Some(7),
        };
        assert_eq!(world.events.last(), Some(&ended));
        assert_eq!(world.below.closed, None);
    }
    let mut world = World::with_tunnel(true);
    let odd = [
        frame(0x1234, &[1; 3000]),
        frame(0, &[2, 1, 1]),
        capsule(b"known"),
    ]
    .concat();
    for part in odd.chunks(500) {
        world.receive(0, &frame(0, part));
    }
    assert_eq!(world.payloads_of(7), [b"known"]);
    assert_eq!(
        (world.dropped.capsule_unknown, world.dropped.context_unknown),
        (1, 1)
    );
    // A capsule that has begun and does not end is malformed (RFC 9297 §3.3).
    world.receive(0, &frame(0, &capsule(b"half")[..4]));
    world.finish(0);
    assert_eq!(world.sent(0).aborted, Some(Code::MESSAGE_ERROR));
}

//= H3-23
#[test]
fn who_goes_away_takes_no_further_requests_and_keeps_those_that_there_are() {
    let mut world = World::with_tunnel(true);
    let before = world.sent(3).bytes.len();
    world.server.go_away(&mut world.below);
    world.server.go_away(&mut world.below);
    assert_eq!(world.sent(3).bytes[before..], frame(7, &[4]));
    world.receive(4, &request(&FIELDS));
    assert_eq!(world.sent(4).aborted, Some(Code::REQUEST_REJECTED));
    world.datagram(b"\0\0still");
    assert_eq!(world.payloads_of(7), [b"still"]);
}

#[test]
fn where_nothing_is_served_each_request_is_rejected_unseen() {
    let mut world = World::new();
    world.server = Server::rejecting();
    world.below.sent.clear();
    world.server.connected(&mut world.below);
    assert_eq!(world.sent(7).bytes, [0, 4, 5, 6, 0x80, 0, 0x40, 0]);
    world.receive(0, &request(&FIELDS));
    assert_eq!(world.sent(0).aborted, Some(Code::REQUEST_REJECTED));
    assert!(world.events.is_empty());
}

//= UDPX-06
//= UDPX-07
#[test]
fn a_tunnel_that_ends_ends_its_stream_and_the_other_way_round() {
    let mut world = World::with_tunnel(true);
    world.server.end(&mut world.below, 0);
    let sent = world.sent(0);
    assert!(sent.is_finished && sent.stopped == Some(Code::NO_ERROR));
    assert_eq!(world.send(0, b"x"), Err(NotSent::NoTunnel));
    let mut world = World::with_tunnel(true);
    world.abandon(0);
    let ended = Event::Ended {
        stream: 0,
        tunnel: Some(7),
    };
    assert_eq!(world.events.last(), Some(&ended));
    assert_eq!(world.sent(0).aborted, Some(Code::REQUEST_CANCELLED));
}

proptest! {
    //= V-87
    #[test]
    fn whatever_comes_makes_the_same_of_itself_in_any_pieces(
        streams in prop::collection::vec((0_u64..4, prop::collection::vec(any::<u8>(), 0..80)), 1..8),
        piece in 1_usize..20,
    ) {
        let (mut at_once, mut in_pieces) = (World::with_tunnel(true), World::with_tunnel(true));
        for (number, bytes) in &streams {
            let stream = [0, 4, 6, 10][usize::try_from(*number).unwrap()];
            at_once.receive(stream, bytes);
            for part in bytes.chunks(piece) {
                in_pieces.receive(stream, part);
            }
        }
        prop_assert_eq!(at_once.below.closed, in_pieces.below.closed);
        prop_assert_eq!(at_once.payloads, in_pieces.payloads);
        prop_assert_eq!(at_once.dropped, in_pieces.dropped);
        prop_assert_eq!(at_once.events, in_pieces.events);
    }
}
