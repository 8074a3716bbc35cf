//! A client's connection: against this crate's server, and against servers that break rules.

use std::net::SocketAddr;

use bytes::Bytes;
use turnbuckle_masque::Host;
use turnbuckle_masque::h3::{Client, Code, Event, Happened, asking_bound};

use crate::world::{CONTROL, DECODER, World, capsule, control, frame, request};

const USER: (&str, &str) = ("alice", "secret");
/// The server's control stream.
const OF_SERVER: u64 = 3;

fn target() -> SocketAddr {
    "[2001:db8::6]:443".parse().unwrap()
}

/// Returns a client that has asked for tunnel 7 on stream 0.
fn asking() -> Client<u32> {
    let mut client = Client::default();
    client.ask(0, 7, "example.org", target(), USER);
    client
}

#[test]
fn the_server_understands_what_the_client_asks_and_the_client_the_answer() {
    for piece in [1, 3, 1000] {
        let mut world = World::new();
        let mut client = Client::default();
        assert_eq!(client.serves(), None);
        for part in world.sent(OF_SERVER).bytes.chunks(piece) {
            client.received(OF_SERVER, part).unwrap();
        }
        assert_eq!(client.serves(), Some(true));
        world.receive(CONTROL, &client.control());
        world.receive(0, &client.ask(0, 7, "example.org", target(), USER));
        let [Event::Asked { asked, .. }] = &world.events[..] else {
            panic!("{:?}", world.events)
        };
        assert_eq!(&*asked.authority, "example.org");
        assert_eq!(asked.target.port, 443);
        let credentials = asked.credentials.as_ref().unwrap();
        assert_eq!((&*credentials.name, &*credentials.password), USER);
        // What comes before the answer is for no open tunnel.
        let early = Bytes::from_static(b"\0\0early");
        assert_eq!(client.datagram(&early), Ok(None));
        assert_eq!(client.unclaimed(), 1);
        world.grant(0, 9);
        for part in world.sent(0).bytes.chunks(piece) {
            assert_eq!(client.poll(), None);
            client.received(0, part).unwrap();
        }
        assert_eq!(client.poll(), Some(Happened::Opened(7)));
        let up = [&Client::<u32>::datagram_head(0)[..], b"up"].concat();
        world.datagram(&up);
        assert_eq!(world.payloads_of(9), [b"up"]);
        world.send(0, b"down").unwrap();
        let down = client.datagram(&world.below.datagrams[0]);
        assert_eq!(down, Ok(Some((7, Bytes::from_static(b"down")))));
        // Capsules are passed over.
        client
            .received(0, &frame(0, &capsule(b"in the stream")))
            .unwrap();
        client.ended(0).unwrap();
        assert_eq!(client.poll(), Some(Happened::Ended(7)));
        assert_eq!(world.below.closed, None);
    }
}

#[test]
fn a_bound_tunnel_is_asked_for_and_its_capsules_are_kept_for_whoever_wants_them() {
    let mut world = World::new();
    let mut client = Client::keeping_capsules();
    client.asked(0, 7);
    world.receive(0, &asking_bound("example.org", "Basic YWxpY2U6c2VjcmV0"));
    let [Event::Asked { asked, .. }] = &world.events[..] else {
        panic!("{:?}", world.events)
    };
    assert_eq!(asked.target.host, Host::Any);
    assert_eq!(client.capsules(0), Some(&mut Vec::new()));
    let opened = request(&[(":status", "200")]);
    let capsules = capsule(b"in the stream");
    for part in [&opened[..], &Client::<u32>::in_stream(&capsules)]
        .concat()
        .chunks(3)
    {
        client.received(0, part).unwrap();
    }
    assert_eq!(client.poll(), Some(Happened::Opened(7)));
    assert_eq!(client.capsules(0), Some(&mut capsules.clone()));
    // Who does not want them keeps nothing.
    let mut client = asking();
    client
        .received(
            0,
            &[&opened[..], &Client::<u32>::in_stream(&capsules)].concat(),
        )
        .unwrap();
    assert_eq!(client.capsules(0), Some(&mut Vec::new()));
}

#[test]
fn a_refusal_has_its_status_and_interim_answers_are_passed_over() {
    let mut client = asking();
    client.received(0, &request(&[(":status", "103")])).unwrap();
    assert_eq!(client.poll(), None);
    client.received(0, &request(&[(":status", "407")])).unwrap();
    assert_eq!(client.poll(), Some(Happened::Refused(7, 407)));
    client.ended(0).unwrap();
    assert_eq!(client.poll(), None);
}

#[test]
fn a_server_without_extended_connect_or_datagrams_opens_no_tunnels() {
    for (settings, serves) in [
        (&[][..], false),
        (&[8, 1], false),
        (&[0x33, 1], false),
        (&[8, 1, 0x33, 0], false),
        (&[8, 1, 0x33, 1], true),
    ] {
        let mut client = asking();
        let bytes = control(&frame(4, settings));
        client.received(OF_SERVER, &bytes).unwrap();
        assert_eq!(client.serves(), Some(serves), "{settings:?}");
    }
}

#[test]
fn what_a_server_must_not_do_ends_the_connection() {
    let opened = request(&[(":status", "200")]);
    for (stream, bytes, code) in [
        (0, frame(0, b"content"), Code::FRAME_UNEXPECTED),
        (0, frame(4, &[]), Code::FRAME_UNEXPECTED),
        (0, [&opened[..], &opened].concat(), Code::FRAME_UNEXPECTED),
        (0, request(&[("status", "200")]), Code::MESSAGE_ERROR),
        (0, request(&[(":status", "+20")]), Code::MESSAGE_ERROR),
        (0, frame(1, &[0xFF; 8]), Code::QPACK_DECOMPRESSION_FAILED),
        (0, vec![1, 0x80, 1, 0, 0], Code::EXCESSIVE_LOAD),
        (1, vec![0], Code::STREAM_CREATION_ERROR),
        (OF_SERVER, control(&frame(7, &[0])), Code::MISSING_SETTINGS),
    ] {
        let mut client = asking();
        let violation = client.received(stream, &bytes).unwrap_err();
        assert_eq!(violation.code, code, "{stream} {bytes:?}");
    }
    let mut client = asking();
    client.received(0, &opened).unwrap();
    for datagram in [&b""[..], b"\0", b"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\0"] {
        let violation = client.datagram(&Bytes::copy_from_slice(datagram));
        assert_eq!(violation.unwrap_err().code, Code::DATAGRAM_ERROR);
    }
    client.received(DECODER + 1, &[3]).unwrap();
    let violation = client.ended(DECODER + 1).unwrap_err();
    assert_eq!(violation.code, Code::CLOSED_CRITICAL_STREAM);
}
