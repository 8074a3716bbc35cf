//! What RFC 9114, 9204 and 9297 ask of a server of HTTP/3 towards clients that break a rule, on the wire. `turnbuckle-masque` has each of these cases
//! in all its forms; here is one or a few of each, as a client's connection sees them.

use turnbuckle_quic::Closed;

use crate::harness::{QuicLink, Site, peer_socket};
use crate::http3::{RIGHT, frame, relay, relays, request, send_settings, status, tunnel};

/// Types of unidirectional streams (RFC 9114 §11.2.4, RFC 9204 §8.2).
const CONTROL: u8 = 0x00;
const PUSH: u8 = 0x01;
const ENCODER: u8 = 0x02;
const DECODER: u8 = 0x03;
/// Types of frames (RFC 9114 §11.2.1), and one that means nothing (§7.2.8).
const DATA: u8 = 0x00;
const HEADERS: u8 = 0x01;
const CANCEL_PUSH: u8 = 0x03;
const SETTINGS: u8 = 0x04;
const GOAWAY: u8 = 0x07;
const MAX_PUSH_ID: u8 = 0x0d;
const GREASE: u8 = 0x21;
/// Codes (RFC 9114 §8.1, RFC 9204 §8.3, RFC 9297 §5.2).
const STREAM_CREATION_ERROR: u64 = 0x0103;
const CLOSED_CRITICAL_STREAM: u64 = 0x0104;
const FRAME_UNEXPECTED: u64 = 0x0105;
const FRAME_ERROR: u64 = 0x0106;
const ID_ERROR: u64 = 0x0108;
const SETTINGS_ERROR: u64 = 0x0109;
const MISSING_SETTINGS: u64 = 0x010a;
const REQUEST_INCOMPLETE: u64 = 0x010d;
const QPACK_DECOMPRESSION_FAILED: u64 = 0x0200;
const QPACK_ENCODER_STREAM_ERROR: u64 = 0x0201;
const QPACK_DECODER_STREAM_ERROR: u64 = 0x0202;
const DATAGRAM_ERROR: u64 = 0x33;

/// What a client does.
enum Act {
    /// Opens a stream of its own, and begins it with these bytes.
    Uni(Vec<u8>),
    /// The same, and ends it.
    UniWhole(Vec<u8>),
    /// Opens the stream of a request, and begins it with these bytes.
    Request(Vec<u8>),
    /// The same, and ends it.
    RequestWhole(Vec<u8>),
    /// Sends a DATAGRAM frame.
    Datagram(Vec<u8>),
}

/// Returns a control stream from its beginning.
fn control(frames: &[Vec<u8>]) -> Act {
    Act::Uni([vec![CONTROL], frames.concat()].concat())
}

/// Returns a control stream that begins as it should.
fn behind_settings(frames: &[Vec<u8>]) -> Act {
    control(&[&[frame(SETTINGS, &[])], frames].concat())
}

fn act(link: &mut QuicLink, act: &Act) {
    match act {
        Act::Uni(bytes) => {
            link.open(false, bytes);
        }
        Act::UniWhole(bytes) => {
            let stream = link.open(false, bytes);
            link.finish(stream);
        }
        Act::Request(bytes) => {
            link.open(true, bytes);
        }
        Act::RequestWhole(bytes) => {
            let stream = link.open(true, bytes);
            link.finish(stream);
        }
        Act::Datagram(payload) => link.datagram(payload),
    }
}

//= H3-04
//= H3-05
//= H3-06
//= H3-07
//= H3-08
//= H3-09
//= H3-14
//= H3-15
//= H3-18
//= QPK-02
//= QPK-03
//= QPK-04
//= QPK-05
//= DGR-02
//= DGR-03
#[test]
fn a_connection_that_breaks_a_rule_of_http_3_is_closed_with_its_code() {
    let site = Site::new();
    let (server, tls) = relay(site, &[]);
    let bad_section = |section: &[u8]| vec![Act::Request(frame(HEADERS, section))];
    let cases: Vec<(Vec<Act>, u64)> = vec![
        (vec![control(&[frame(GREASE, &[])])], MISSING_SETTINGS),
        (vec![control(&[frame(GOAWAY, &[0])])], MISSING_SETTINGS),
        (
            vec![behind_settings(&[frame(SETTINGS, &[])])],
            FRAME_UNEXPECTED,
        ),
        (vec![behind_settings(&[frame(DATA, &[])])], FRAME_UNEXPECTED),
        (vec![behind_settings(&[frame(0x06, &[])])], FRAME_UNEXPECTED),
        (vec![Act::Request(frame(DATA, b"x"))], FRAME_UNEXPECTED),
        (vec![Act::Request(frame(SETTINGS, &[]))], FRAME_UNEXPECTED),
        (
            vec![control(&[frame(SETTINGS, &[0x33, 2])])],
            SETTINGS_ERROR,
        ),
        (
            vec![control(&[frame(SETTINGS, &[0x06, 1, 0x06, 1])])],
            SETTINGS_ERROR,
        ),
        (
            vec![control(&[frame(SETTINGS, &[0x02, 0])])],
            SETTINGS_ERROR,
        ),
        (vec![control(&[frame(SETTINGS, &[0x33])])], FRAME_ERROR),
        (
            vec![behind_settings(&[frame(GOAWAY, &[0, 0])])],
            FRAME_ERROR,
        ),
        (vec![Act::RequestWhole(vec![HEADERS, 5, 0])], FRAME_ERROR),
        (vec![behind_settings(&[frame(CANCEL_PUSH, &[0])])], ID_ERROR),
        (
            vec![behind_settings(&[
                frame(MAX_PUSH_ID, &[2]),
                frame(MAX_PUSH_ID, &[1]),
            ])],
            ID_ERROR,
        ),
        (
            vec![behind_settings(&[frame(GOAWAY, &[1]), frame(GOAWAY, &[2])])],
            ID_ERROR,
        ),
        (
            vec![behind_settings(&[]), behind_settings(&[])],
            STREAM_CREATION_ERROR,
        ),
        (vec![Act::Uni(vec![PUSH, 0])], STREAM_CREATION_ERROR),
        (
            vec![Act::UniWhole(
                [vec![CONTROL], frame(SETTINGS, &[])].concat(),
            )],
            CLOSED_CRITICAL_STREAM,
        ),
        (vec![Act::UniWhole(vec![ENCODER])], CLOSED_CRITICAL_STREAM),
        (bad_section(&[]), QPACK_DECOMPRESSION_FAILED),
        (bad_section(&[1, 0, 0x80]), QPACK_DECOMPRESSION_FAILED),
        (
            bad_section(&[0, 0, 0xff, 99 - 63]),
            QPACK_DECOMPRESSION_FAILED,
        ),
        (
            vec![Act::Uni(vec![ENCODER, 0x3f, 0xe1, 0x1f])],
            QPACK_ENCODER_STREAM_ERROR,
        ),
        (
            vec![Act::Uni(vec![DECODER, 0x80])],
            QPACK_DECODER_STREAM_ERROR,
        ),
        (vec![Act::Datagram(vec![])], DATAGRAM_ERROR),
        (vec![Act::Datagram(vec![0x40])], DATAGRAM_ERROR),
        (
            vec![Act::Datagram(vec![0xd0, 0, 0, 0, 0, 0, 0, 0])],
            DATAGRAM_ERROR,
        ),
    ];
    let count = cases.len() as u64;
    for (number, (acts, code)) in cases.into_iter().enumerate() {
        let mut link = QuicLink::connect(&tls, site.ip(3), server.address());
        for each in &acts {
            act(&mut link, each);
        }
        link.run_until(|seen| seen.closed.is_some());
        let closed = link.seen(|seen| seen.closed.clone());
        assert_eq!(closed, Some(Closed::Remote(code)), "case {number}");
    }
    assert_eq!(server.stop().closed_as("malformed"), count);
}

//= H3-16
//= H3-17
//= H3-19
//= H3-22
#[test]
fn what_is_wrong_with_one_stream_leaves_the_others() {
    let site = Site::new();
    let (server, tls) = relay(site, &[]);
    let peer = peer_socket(site.ip(9));
    let target = peer.local_addr().expect("bound");
    let mut link = QuicLink::connect(&tls, site.ip(3), server.address());
    send_settings(&mut link);
    let stream = tunnel(&mut link, target);
    // A stream of no type that is known, and a request with a frame before it that means nothing.
    link.open(false, &[0x40 | 0x01, 0x00, b'x']);
    let odd = [frame(GREASE, &[9; 70]), request(target, RIGHT)].concat();
    let beside = link.open(true, &odd);
    assert_eq!(status(&mut link, beside), 200);
    // A stream that ends before its request.
    let empty = link.open(true, &[]);
    link.finish(empty);
    link.run_until(|seen| seen.rejected == [REQUEST_INCOMPLETE]);
    // Fields that come to more than they may: 200 times the longest entry of the static table, in 400 bytes.
    let inflated = [&[0, 0][..], &[0xff, 85 - 63].repeat(200)].concat();
    let long = link.open(true, &frame(HEADERS, &inflated));
    assert_eq!(status(&mut link, long), 431);
    relays(&mut link, stream, &peer);
    relays(&mut link, beside, &peer);
    server.stop();
}
