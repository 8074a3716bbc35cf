//! Streams that break a rule: what ends a request, and what ends the connection.

use super::*;

/// Fails unless what a client sends on one stream of a new connection closes that with this code, whether it comes at once or byte by byte.
fn closes(stream: u64, bytes: &[u8], code: Code) {
    let mut byte_by_byte = World::new();
    let mut at_once = World::new();
    at_once.receive(stream, bytes);
    for byte in bytes {
        byte_by_byte.receive(stream, &[*byte]);
    }
    for world in [at_once, byte_by_byte] {
        assert_eq!(world.below.closed, Some(code), "{stream}: {bytes:02x?}");
    }
}

//= H3-04
//= H3-05
//= H3-06
//= H3-07
//= H3-08
//= H3-09
#[test]
fn a_control_stream_that_breaks_a_rule_ends_the_connection() {
    let settings = frame(4, &[]);
    let behind = |frame: Vec<u8>| control(&[&settings[..], &frame].concat());
    closes(CONTROL, &control(&frame(0x21, &[])), Code::MISSING_SETTINGS);
    closes(CONTROL, &control(&frame(7, &[0])), Code::MISSING_SETTINGS);
    closes(CONTROL, &behind(settings.clone()), Code::FRAME_UNEXPECTED);
    for kind in [0, 1, 5, 2, 6, 8, 9] {
        closes(CONTROL, &behind(frame(kind, &[])), Code::FRAME_UNEXPECTED);
    }
    for payload in [
        &[0x33, 2][..],
        &[0x08, 2],
        &[0x06, 1, 0x06, 1],
        &[0x00, 0],
        &[0x02, 0],
        &[0x03, 0],
        &[0x04, 0],
        &[0x05, 0],
    ] {
        closes(CONTROL, &control(&frame(4, payload)), Code::SETTINGS_ERROR);
    }
    for payload in [&[0x33][..], &[0x40], &[0x06, 0x40]] {
        closes(CONTROL, &control(&frame(4, payload)), Code::FRAME_ERROR);
    }
    // GOAWAY, MAX_PUSH_ID and CANCEL_PUSH have one number each.
    for kind in [7, 0xd, 3] {
        closes(CONTROL, &behind(frame(kind, &[])), Code::FRAME_ERROR);
        closes(CONTROL, &behind(frame(kind, &[0, 0])), Code::FRAME_ERROR);
    }
    closes(CONTROL, &behind(frame(3, &[0])), Code::ID_ERROR);
    closes(
        CONTROL,
        &behind([frame(0xd, &[2]), frame(0xd, &[1])].concat()),
        Code::ID_ERROR,
    );
    closes(
        CONTROL,
        &behind([frame(7, &[1]), frame(7, &[2])].concat()),
        Code::ID_ERROR,
    );
    let endless = [&varint(4)[..], &varint(1 << 40)].concat();
    closes(CONTROL, &control(&endless), Code::EXCESSIVE_LOAD);
    // What is not known is passed over.
    let mut world = World::new();
    world.receive(
        CONTROL,
        &behind([frame(0x21, &[7; 900]), frame(0xF0700, b"u=1")].concat()),
    );
    world.receive(
        CONTROL,
        &[frame(0xd, &[1]), frame(7, &[5]), frame(7, &[5])].concat(),
    );
    assert_eq!(world.below.closed, None);
}

//= H3-14
//= H3-15
//= QPK-05
#[test]
fn a_stream_of_the_clients_that_must_not_be_there_or_ends_ends_the_connection() {
    closes(2, &[1, 0], Code::STREAM_CREATION_ERROR);
    for (kind, frames) in [(0, frame(4, &[])), (2, vec![]), (3, vec![])] {
        let stream = [&[kind][..], &frames].concat();
        for how in 0..3 {
            let mut world = World::new();
            world.receive(2, &stream);
            assert_eq!(world.below.closed, None);
            let code = match how {
                0 => {
                    world.receive(6, &[kind]);
                    Code::STREAM_CREATION_ERROR
                }
                1 => {
                    world.finish(2);
                    Code::CLOSED_CRITICAL_STREAM
                }
                _ => {
                    world.abandon(2);
                    Code::CLOSED_CRITICAL_STREAM
                }
            };
            assert_eq!(world.below.closed, Some(code), "type {kind}, {how}");
        }
    }
    closes(
        ENCODER,
        &[2, 0x3F, 0xE1, 0x1F],
        Code::QPACK_ENCODER_STREAM_ERROR,
    );
    closes(
        ENCODER,
        &[2, 0xC0, 1, b'a'],
        Code::QPACK_ENCODER_STREAM_ERROR,
    );
    closes(DECODER, &[3, 0x80], Code::QPACK_DECODER_STREAM_ERROR);
    closes(DECODER, &[3, 0x01], Code::QPACK_DECODER_STREAM_ERROR);
    let mut world = World::new();
    world.abandon(3);
    let closed = world.below.closed;
    assert_eq!(
        closed,
        Some(Code::CLOSED_CRITICAL_STREAM),
        "ours is critical too"
    );
}

//= H3-16
#[test]
fn a_stream_of_a_type_that_is_not_known_is_not_read() {
    let mut world = World::new();
    let kind = varint(0x1f * 7 + 0x21);
    world.receive(2, &kind[..1]);
    assert_eq!(world.sent(2).stopped, None);
    world.receive(2, &[&kind[1..], &[0; 5000]].concat());
    assert_eq!(world.sent(2).stopped, Some(Code::STREAM_CREATION_ERROR));
    world.finish(6);
    assert_eq!(world.below.closed, None, "a stream may end before its type");
}

//= H3-05
//= H3-18
//= H3-19
//= QPK-02
#[test]
fn a_stream_of_a_request_that_breaks_a_rule_of_frames_ends_the_connection() {
    closes(0, &frame(0, b"x"), Code::FRAME_UNEXPECTED);
    for kind in [2, 3, 4, 5, 6, 7, 8, 9, 0xd] {
        closes(0, &frame(kind, &[0]), Code::FRAME_UNEXPECTED);
        let behind = [request(&FIELDS), frame(kind, &[0])].concat();
        closes(0, &behind, Code::FRAME_UNEXPECTED);
    }
    let twice = request(&FIELDS).repeat(2);
    closes(0, &twice, Code::FRAME_UNEXPECTED);
    closes(0, &frame(1, &[]), Code::QPACK_DECOMPRESSION_FAILED);
    closes(
        0,
        &frame(1, &[0, 0, 0x80]),
        Code::QPACK_DECOMPRESSION_FAILED,
    );
    for bytes in [&[1][..], &[1, 5, 0], &[0x21, 3, 0]] {
        let mut world = World::new();
        world.receive(0, bytes);
        world.finish(0);
        assert_eq!(world.below.closed, Some(Code::FRAME_ERROR), "{bytes:?}");
    }
    // What is not known may stand before the fields and behind them.
    let mut world = World::with_settings(&[]);
    let odd = frame(0x21, &[9; 70]);
    world.receive(0, &[&odd[..], &request(&FIELDS), &odd].concat());
    assert!(matches!(world.events[..], [Event::Asked { .. }]));
}

//= H3-22
#[test]
fn a_stream_that_ends_too_early_is_no_request() {
    for bytes in [&[][..], &frame(0x21, &[])] {
        let mut world = World::with_settings(&[]);
        world.receive(0, bytes);
        world.finish(0);
        assert_eq!(world.sent(0).aborted, Some(Code::REQUEST_INCOMPLETE));
        assert_eq!(world.below.closed, None);
    }
    let mut world = World::with_settings(&[]);
    world.receive(0, &request(&FIELDS));
    world.finish(0);
    assert_eq!(world.sent(0).aborted, Some(Code::REQUEST_CANCELLED));
    world.grant(0, 7);
    assert_eq!(world.sent(0).bytes, b"", "nobody is there");
}

//= V-87
//= H3-17
#[test]
fn what_is_too_long_is_answered_431_and_nothing_of_it_is_kept() {
    let endless = [&varint(1)[..], &varint(1 << 40)].concat();
    let inflated = frame(1, &[&[0, 0][..], &[0xFF, 85 - 63].repeat(200)].concat());
    for bytes in [endless, inflated] {
        let mut world = World::with_settings(&[]);
        world.receive(0, &bytes);
        world.receive(0, &[0; 1000]);
        assert_eq!(world.answer(0)[0], ":status: 431");
        assert_eq!(world.sent(0).stopped, Some(Code::NO_ERROR));
        assert_eq!(world.below.closed, None);
    }
}

//= V-87
#[test]
fn frames_that_nothing_follows_from_end_the_connection_when_there_are_too_many() {
    let flood = |world: &mut World, stream, bytes: &[u8], begins: &[u8]| {
        world.receive(stream, begins);
        world.receive(stream, &bytes.repeat(1000));
        assert_eq!(world.below.closed, None, "{bytes:?}");
        world.receive(stream, &bytes.repeat(100));
        assert_eq!(world.below.closed, Some(Code::EXCESSIVE_LOAD), "{bytes:?}");
    };
    flood(&mut World::with_tunnel(true), 0, &frame(0, &[]), &[]);
    flood(&mut World::with_tunnel(true), 0, &frame(0x21, &[]), &[]);
    flood(
        &mut World::with_settings(&[]),
        CONTROL,
        &frame(0x21, b"x"),
        &[],
    );
    flood(&mut World::with_settings(&[]), ENCODER, &[0x20], &[2]);
    flood(&mut World::with_settings(&[]), DECODER, &[0x44], &[3]);
    let mut world = World::with_settings(&[]);
    for number in 0..1100 {
        world.receive(4 * number + 6, &[0x21]);
    }
    assert_eq!(world.below.closed, Some(Code::EXCESSIVE_LOAD), "streams");
    // Frames that carry something make up for it.
    let mut world = World::with_tunnel(true);
    let both = [frame(0, &[]), frame(0, &capsule(b"x"))].concat();
    world.receive(0, &both.repeat(5000));
    assert_eq!(world.below.closed, None);
    assert_eq!(world.payloads_of(7).len(), 5000);
}
