use super::*;
use proptest::prelude::*;

use ContextCapsule::{Ack, Assign, Close};

fn varint(number: u64) -> Vec<u8> {
    Varint::new(number).unwrap().as_bytes().to_vec()
}

/// Returns the value of a capsule that registers a context.
fn value(context: u64, peer: Option<SocketAddr>) -> Vec<u8> {
    let mut bytes = varint(context);
    match peer {
        Some(peer) => address::put(&mut bytes, peer),
        None => bytes.push(0),
    }
    bytes
}

fn peer(number: u16) -> SocketAddr {
    SocketAddr::new([192, 0, 2, 6].into(), number)
}

/// Returns contexts with one that is registered.
fn with(context: u64, peer: Option<SocketAddr>) -> Contexts {
    let mut contexts = Contexts::default();
    assign(&mut contexts, context, peer).unwrap();
    contexts
}

fn assign(
    contexts: &mut Contexts,
    context: u64,
    peer: Option<SocketAddr>,
) -> Result<Vec<u8>, Malformed> {
    Ok(match contexts.received(Assign, &value(context, peer))? {
        Answer::None => panic!("an answer"),
        Answer::Capsule(capsule) => capsule,
        Answer::Judge { context, .. } => contexts.judged(context, true).unwrap(),
    })
}

//= BIND-02
//= BIND-05
#[test]
fn a_compressed_context_stands_for_its_address_both_ways() {
    let mut contexts = Contexts::default();
    let judge = contexts
        .received(Assign, &value(4, Some(peer(443))))
        .unwrap();
    let expected = Answer::Judge {
        context: 4,
        peer: peer(443),
    };
    assert_eq!(judge, expected);
    assert_eq!(contexts.judged(4, true), Some(vec![0x12, 1, 4]));
    assert_eq!(contexts.read(&[4, 7, 7]), Ok((peer(443), 1)));
    assert_eq!(contexts.head(peer(443)).unwrap().as_bytes(), [4]);
    assert_eq!(contexts.head(peer(444)), None);
    assert!(contexts.wants(peer(443)) && !contexts.wants(peer(444)));
    assert_eq!(contexts.received(Close, &[4]), Ok(Answer::None));
    assert_eq!(contexts.read(&[4, 7, 7]), Err(Unread::UnknownContext));
    assert!(!contexts.wants(peer(443)));
    assert_eq!(contexts.judged(4, true), None, "the verdict comes late");
}

//= BIND-04
#[test]
fn in_the_uncompressed_context_each_datagram_has_its_address() {
    let mut contexts = with(2, None);
    assert_eq!(
        contexts.read(b"\x02\x04\xC0\x00\x02\x06\x01\xBBxy"),
        Ok((peer(443), 8))
    );
    let v6: SocketAddr = "[2001:db8::6]:443".parse().unwrap();
    let head = contexts.head(v6).unwrap();
    assert_eq!(contexts.read(head.as_bytes()), Ok((v6, 20)));
    for short in [
        &b"\x02"[..],
        b"\x02\x04\xC0\x00\x02\x06\x01",
        b"\x02\x05\xC0\x00\x02\x06\x01\xBB",
    ] {
        assert_eq!(contexts.read(short), Err(Unread::Address), "{short:?}");
    }
    // No datagram can be sent to port 0.
    assert_eq!(
        contexts.read(b"\x02\x04\xC0\x00\x02\x06\x00\x00"),
        Err(Unread::Address)
    );
    // A context of its own goes first.
    assign(&mut contexts, 6, Some(peer(443))).unwrap();
    assert_eq!(contexts.head(peer(443)).unwrap().as_bytes(), [6]);
    contexts.received(Close, &[2]).unwrap();
    assert!(contexts.wants(peer(443)) && !contexts.wants(peer(444)));
}

//= BIND-01
//= BIND-03
//= V-91
#[test]
fn what_breaks_a_rule_of_registrations_is_malformed() {
    let v4 = value(8, Some(peer(1)));
    let malformed = [
        (Assign, value(0, None)),
        (Assign, value(3, None)),
        (Assign, value(3, Some(peer(9)))),
        (Assign, value(2, Some(peer(9)))),
        (Assign, value(6, None)),
        (Assign, value(6, Some(peer(443)))),
        (Assign, vec![]),
        (Assign, vec![8]),
        (Assign, vec![8, 1]),
        (Assign, vec![8, 0, 0]),
        (Assign, vec![0x40]),
        (Assign, v4[..v4.len() - 1].to_vec()),
        (Assign, [&v4[..], &[0]].concat()),
        (Ack, vec![2]),
        (Ack, vec![1]),
        (Close, vec![0]),
        (Close, vec![1]),
        (Close, vec![]),
        (Close, vec![2, 0]),
    ];
    for (kind, value) in malformed {
        let mut contexts = with(2, None);
        assign(&mut contexts, 4, Some(peer(443))).unwrap();
        let read = contexts.received(kind, &value);
        assert_eq!(read, Err(Malformed::Registration), "{kind:?} {value:?}");
    }
    // A registration that is over is as if it had not been, and one that never was may be closed.
    let mut contexts = with(2, None);
    for context in [2, 1000] {
        let close = contexts.received(Close, &varint(context));
        assert_eq!(close, Ok(Answer::None));
    }
    assign(&mut contexts, 4, None).unwrap();
}

//= V-87
#[test]
fn a_client_has_so_many_contexts_and_no_more() {
    let mut contexts = with(2, None);
    let more = |number: u64| {
        (
            4 + 2 * number,
            Some(peer(u16::try_from(number).unwrap() + 1)),
        )
    };
    for number in 0..CONTEXTS_MAX as u64 - 1 {
        let (context, peer) = more(number);
        let answer = assign(&mut contexts, context, peer).unwrap();
        assert_eq!(answer[0], 0x12, "{number}");
    }
    let (context, last) = more(CONTEXTS_MAX as u64);
    let closed = [&[0x13, 2][..], &varint(context)].concat();
    assert_eq!(assign(&mut contexts, context, last).unwrap(), closed);
    let datagram = [&varint(context)[..], b"x"].concat();
    assert_eq!(contexts.read(&datagram), Err(Unread::UnknownContext));
    contexts.received(Close, &[2]).unwrap();
    assert_eq!(assign(&mut contexts, context, last).unwrap()[0], 0x12);
}

//= V-89
#[test]
fn an_address_that_is_forbidden_has_no_context() {
    let mut contexts = Contexts::default();
    contexts
        .received(Assign, &value(2, Some(peer(443))))
        .unwrap();
    assert_eq!(contexts.judged(2, false), Some(vec![0x13, 1, 2]));
    assert_eq!(contexts.read(&[2, 7]), Err(Unread::UnknownContext));
    assert_eq!(contexts.head(peer(443)), None);
}

//= UDPX-16
//= UDPX-25
#[test]
fn a_datagram_that_ends_before_its_context_or_is_too_long_ends_the_stream() {
    let contexts = with(2, Some(peer(443)));
    for (datagram, why) in [
        (vec![], Malformed::NoContext),
        (vec![0x40], Malformed::NoContext),
        (vec![2; UDP_PAYLOAD_MAX + 2], Malformed::TooLong),
    ] {
        assert_eq!(contexts.read(&datagram), Err(Unread::Malformed(why)));
    }
    assert_eq!(
        contexts.read(&vec![2; UDP_PAYLOAD_MAX + 1]),
        Ok((peer(443), 1))
    );
    // RFC 9298's own context does not exist here.
    assert_eq!(contexts.read(&[0, 7]), Err(Unread::UnknownContext));
}

/// Returns what a client may send: mostly what makes sense, for few contexts and addresses.
fn any_capsule() -> impl Strategy<Value = (ContextCapsule, Vec<u8>)> {
    let kind = prop_oneof![6 => Just(Assign), 2 => Just(Close), 1 => Just(Ack)];
    let context = 0_u64..12;
    let peer = prop::option::of((1_u16..5).prop_map(peer));
    let sensible = (kind, context, peer).prop_map(|(kind, context, peer)| match kind {
        Assign => (kind, value(context, peer)),
        Ack | Close => (kind, varint(context)),
    });
    let any = prop::collection::vec(any::<u8>(), 0..24).prop_map(|value| (Assign, value));
    prop_oneof![9 => sensible, 1 => any]
}

proptest! {
    #[test]
    fn whatever_is_registered_an_address_has_one_context_and_what_has_one_reads_back(
        capsules in prop::collection::vec((any_capsule(), any::<bool>()), 0..60),
    ) {
        let mut contexts = Contexts::default();
        for ((kind, value), is_allowed) in capsules {
            if let Ok(Answer::Judge { context, .. }) = contexts.received(kind, &value) {
                contexts.judged(context, is_allowed);
            }
            let addresses = contexts.by_id.values().flatten().count();
            prop_assert_eq!(addresses, contexts.by_peer.len());
            let uncompressed = contexts.by_id.values().filter(|it| it.is_none()).count();
            prop_assert_eq!(uncompressed, usize::from(contexts.uncompressed.is_some()));
            for port in 1..5 {
                let source = peer(port);
                let head = contexts.head(source);
                prop_assert_eq!(head.is_some(), contexts.wants(source));
                if let Some(head) = head {
                    let bytes = [head.as_bytes(), b"x"].concat();
                    prop_assert_eq!(contexts.read(&bytes), Ok((source, bytes.len() - 1)));
                }
            }
        }
    }
}

#[test]
fn what_a_client_writes_is_read_as_it_was_meant() {
    let v6 = "[2001:db8::1]:9".parse().unwrap();
    for peer in [None, Some(peer(443)), Some(v6)] {
        let bytes = super::assign(300, peer);
        let header = CapsuleHeader::parse(&bytes).unwrap();
        let rest = &bytes[header.len..];
        assert_eq!((header.kind, header.value_len), (0x11, rest.len() as u64));
        assert_eq!(rest, value(300, peer));
    }
    let contexts = with(2, None);
    let head = addressed(2, peer(443));
    let datagram = [head.as_bytes(), b"there"].concat();
    let start = head.as_bytes().len();
    assert_eq!(contexts.read(&datagram), Ok((peer(443), start)));
}
