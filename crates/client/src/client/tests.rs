//! The client under virtual time, against answers made by hand.

use turnbuckle_wire::{ChannelNumber, IntegrityKey, PasswordAlgorithm};

use super::*;
use crate::Credentials;

const USER: &str = "alice";
const PASSWORD: &str = "secret";
const REALM: &[u8] = b"example.org";

fn peer() -> SocketAddr {
    "192.0.2.7:3480".parse().unwrap()
}

fn relayed() -> SocketAddr {
    "203.0.113.1:50000".parse().unwrap()
}

fn client(path: Option<Path>) -> Client {
    let plan = Plan {
        peer: path.map(|path| (peer(), path)),
        ..Plan::new(Credentials::user(USER, PASSWORD))
    };
    Client::new(Arc::new(plan), 1)
}

fn channel() -> Path {
    Path::Channel(ChannelNumber::try_from(0x4000).unwrap())
}

/// Returns what the client sends now; panics if it has nothing to send.
fn request(client: &mut Client, now: Nanos) -> Vec<u8> {
    let (bytes, event) = client.poll_transmit(now);
    assert_eq!(event, None);
    bytes.expect("a request").to_vec()
}

/// Returns an answer to `request`, with MESSAGE-INTEGRITY of the right key unless it is a challenge.
fn answer(
    request: &[u8],
    class: Class,
    attributes: impl Fn(&mut MessageWriter<'_>),
    key: Option<&IntegrityKey>,
) -> Vec<u8> {
    let request = Message::parse(request).unwrap();
    let mut bytes = vec![0; 512];
    let mut writer = MessageWriter::new(
        &mut bytes,
        class,
        request.method(),
        request.transaction_id(),
    );
    attributes(&mut writer);
    if let Some(key) = key {
        writer.integrity(key);
    }
    let len = writer.finish().unwrap();
    bytes.truncate(len);
    bytes
}

fn key() -> IntegrityKey {
    IntegrityKey::sha1(&turnbuckle_wire::long_term_key_md5(
        USER.as_bytes(),
        REALM,
        PASSWORD.as_bytes(),
    ))
}

fn challenge(request: &[u8], code: u16, nonce: &[u8]) -> Vec<u8> {
    let attributes = |writer: &mut MessageWriter<'_>| {
        writer.error_code(code, "").realm(REALM).nonce(nonce);
    };
    answer(request, Class::Error, attributes, None)
}

fn granted(request: &[u8], lifetime: u32) -> Vec<u8> {
    let attributes = |writer: &mut MessageWriter<'_>| {
        writer.xor_relayed_address(relayed()).lifetime(lifetime);
    };
    answer(request, Class::Success, attributes, Some(&key()))
}

fn done(request: &[u8]) -> Vec<u8> {
    answer(request, Class::Success, |_| {}, Some(&key()))
}

fn hand(client: &mut Client, now: Nanos, bytes: &[u8]) -> Option<Event> {
    client.handle(now, &Message::parse(bytes).unwrap())
}

fn method(bytes: &[u8]) -> Method {
    Message::parse(bytes).unwrap().method()
}

/// Returns a client whose channel is bound, at time 0.
fn ready(path: Path, lifetime: u32) -> Client {
    let mut client = client(Some(path));
    client.start(0);
    let first = request(&mut client, 0);
    assert_eq!(hand(&mut client, 0, &challenge(&first, 401, b"n1")), None);
    let second = request(&mut client, 0);
    assert_eq!(hand(&mut client, 0, &granted(&second, lifetime)), None);
    let third = request(&mut client, 0);
    assert_eq!(hand(&mut client, 0, &done(&third)), Some(Event::Ready));
    client
}

#[test]
fn an_allocation_begins_without_credentials_and_goes_on_with_them() {
    let mut client = client(Some(channel()));
    client.start(0);
    let first = request(&mut client, 0);
    let message = Message::parse(&first).unwrap();
    assert_eq!(message.requested_transport(), Ok(Some(17)));
    assert!(!message.has_integrity_sha1());
    hand(&mut client, 0, &challenge(&first, 401, b"n1"));
    let second = request(&mut client, 0);
    let message = Message::parse(&second).unwrap();
    assert_eq!(message.nonce(), Ok(Some(&b"n1"[..])));
    assert_eq!(message.check_integrity(&key()), Ok(()));
    hand(&mut client, 0, &granted(&second, 600));
    assert_eq!(client.relayed(), Some(relayed()));
    let third = request(&mut client, 0);
    let message = Message::parse(&third).unwrap();
    assert_eq!(message.method(), Method::CHANNEL_BIND);
    assert_eq!(message.channel_number(), Ok(Some(0x4000)));
    assert_eq!(message.xor_peer_address(), Ok(Some(peer())));
    assert!(!client.is_ready());
    assert_eq!(hand(&mut client, 0, &done(&third)), Some(Event::Ready));
    assert!(client.is_ready());
}

#[test]
fn an_allocation_without_a_peer_is_ready_at_once() {
    let mut client = client(None);
    client.start(0);
    let first = request(&mut client, 0);
    hand(&mut client, 0, &challenge(&first, 401, b"n1"));
    let second = request(&mut client, 0);
    assert_eq!(
        hand(&mut client, 0, &granted(&second, 600)),
        Some(Event::Ready)
    );
}

#[test]
fn a_peer_that_becomes_known_later_gets_its_channel_then() {
    let mut client = client(None);
    client.start(0);
    let first = request(&mut client, 0);
    hand(&mut client, 0, &challenge(&first, 401, b"n1"));
    let second = request(&mut client, 0);
    hand(&mut client, 0, &granted(&second, 600));
    client.open(SECOND, peer(), channel());
    assert!(!client.is_ready());
    assert_eq!(client.peer(), Some((peer(), channel())));
    let third = request(&mut client, SECOND);
    let message = Message::parse(&third).unwrap();
    assert_eq!(message.method(), Method::CHANNEL_BIND);
    assert_eq!(message.xor_peer_address(), Ok(Some(peer())));
    assert_eq!(hand(&mut client, SECOND, &done(&third)), Some(Event::Ready));
    assert!(client.is_ready());
}

#[test]
fn dont_fragment_is_asked_for_where_it_is_wanted() {
    for dont_fragment in [false, true] {
        let mut client = client(None);
        let mut plan = Plan::clone(&client.plan);
        plan.terms.dont_fragment = dont_fragment;
        client.plan = Arc::new(plan);
        client.start(0);
        let first = request(&mut client, 0);
        let message = Message::parse(&first).unwrap();
        assert_eq!(message.dont_fragment(), Ok(dont_fragment));
    }
}

#[test]
fn a_server_that_offers_sha_256_gets_it() {
    let mut client = client(None);
    client.start(0);
    let first = request(&mut client, 0);
    let offer = |writer: &mut MessageWriter<'_>| {
        writer
            .error_code(401, "")
            .realm(REALM)
            .nonce(b"n1")
            .password_algorithms(&[PasswordAlgorithm::Md5, PasswordAlgorithm::Sha256]);
    };
    let challenge = answer(&first, Class::Error, offer, None);
    hand(&mut client, 0, &challenge);
    let second = request(&mut client, 0);
    let message = Message::parse(&second).unwrap();
    assert_eq!(
        message.password_algorithm(),
        Ok(Some(PasswordAlgorithm::Sha256))
    );
    assert_eq!(
        message.raw(AttributeType::PASSWORD_ALGORITHMS),
        Message::parse(&challenge)
            .unwrap()
            .raw(AttributeType::PASSWORD_ALGORITHMS)
    );
    let key = IntegrityKey::sha256(&turnbuckle_wire::long_term_key_sha256(
        USER.as_bytes(),
        REALM,
        PASSWORD.as_bytes(),
    ));
    assert_eq!(message.check_integrity(&key), Ok(()));
}

// RFC 8489 §6.2.1
#[test]
fn an_unanswered_request_is_repeated_seven_times_and_given_up() {
    let mut client = client(None);
    client.start(0);
    let first = request(&mut client, 0);
    let mut times = vec![0];
    let event = loop {
        let now = client.next_timeout().unwrap();
        let (bytes, event) = client.poll_transmit(now);
        match bytes {
            Some(bytes) => assert_eq!(bytes, first),
            None => break (now, event),
        }
        times.push(now / 1_000_000);
        assert_eq!(client.poll_transmit(now).0, None, "once each time");
    };
    assert_eq!(times, [0, 500, 1_500, 3_500, 7_500, 15_500, 31_500]);
    let failed = Some(Event::Failed(Failure::Timeout));
    assert_eq!(event, (39_500_000_000, failed));
    assert_eq!(client.next_timeout(), None);
}

// RFC 8489 §6.2.2
#[test]
fn over_a_connection_a_request_is_sent_once() {
    let plan = Plan {
        is_reliable: true,
        ..(*client(None).plan).clone()
    };
    let mut client = Client::new(Arc::new(plan), 1);
    client.start(0);
    request(&mut client, 0);
    let end = client.next_timeout().unwrap();
    assert_eq!(end, 39_500_000_000);
    assert_eq!(client.poll_transmit(end - 1), (None, None));
    let failed = Some(Event::Failed(Failure::Timeout));
    assert_eq!(client.poll_transmit(end), (None, failed));
}

#[test]
fn a_late_or_doubled_answer_changes_nothing() {
    let mut client = client(None);
    client.start(0);
    let first = request(&mut client, 0);
    let challenged = challenge(&first, 401, b"n1");
    hand(&mut client, 0, &challenged);
    let second = request(&mut client, 0);
    assert_eq!(hand(&mut client, 0, &challenged), None);
    assert_eq!(client.poll_transmit(0).0, None);
    assert_eq!(
        hand(&mut client, 0, &granted(&second, 600)),
        Some(Event::Ready)
    );
    assert_eq!(hand(&mut client, 0, &granted(&second, 600)), None);
}

#[test]
fn an_answer_that_the_server_cannot_have_written_is_refused() {
    let mut client = client(None);
    client.start(0);
    let first = request(&mut client, 0);
    hand(&mut client, 0, &challenge(&first, 401, b"n1"));
    let second = request(&mut client, 0);
    let mut forged = granted(&second, 600);
    *forged.last_mut().unwrap() ^= 1;
    let failed = Some(Event::Failed(Failure::BadAnswer));
    assert_eq!(hand(&mut client, 0, &forged), failed);
}

#[test]
fn a_wrong_password_is_not_tried_twice() {
    let mut client = client(None);
    client.start(0);
    let first = request(&mut client, 0);
    hand(&mut client, 0, &challenge(&first, 401, b"n1"));
    let second = request(&mut client, 0);
    let refused = Some(Event::Failed(Failure::Refused(401)));
    assert_eq!(
        hand(&mut client, 0, &challenge(&second, 401, b"n2")),
        refused
    );
}

#[test]
fn a_stale_nonce_is_replaced_but_not_for_ever() {
    let mut client = ready(channel(), 600);
    let mut now = client.next_timeout().unwrap();
    for round in 0..CHALLENGES_MAX {
        let stale = request(&mut client, now);
        let nonce = [b'a', round.to_le_bytes()[0]];
        assert_eq!(
            hand(&mut client, now, &challenge(&stale, 438, &nonce)),
            None
        );
        now += 1;
        let again = Message::parse(&stale).unwrap().method();
        assert_eq!(again, Method::CHANNEL_BIND);
    }
    let last = request(&mut client, now);
    let refused = Some(Event::Failed(Failure::Refused(438)));
    assert_eq!(
        hand(&mut client, now, &challenge(&last, 438, b"z")),
        refused
    );
}

#[test]
fn everything_is_refreshed_before_it_ends() {
    for (path, expected) in [
        (channel(), Method::CHANNEL_BIND),
        (Path::Indications, Method::CREATE_PERMISSION),
    ] {
        let mut client = ready(path, 600);
        let (mut path_at, mut refresh_at) = (0, 0);
        let hour = 3_600 * SECOND;
        loop {
            let now = client.next_timeout().unwrap();
            if now > hour {
                break;
            }
            let bytes = request(&mut client, now);
            if method(&bytes) == Method::REFRESH {
                assert!(now - refresh_at < 600 * SECOND);
                refresh_at = now;
                hand(&mut client, now, &granted(&bytes, 600));
            } else {
                assert_eq!(method(&bytes), expected);
                assert!(now - path_at < 300 * SECOND);
                path_at = now;
                hand(&mut client, now, &done(&bytes));
            }
        }
        assert!(hour - path_at < 300 * SECOND && hour - refresh_at < 600 * SECOND);
    }
}

#[test]
fn a_release_waits_for_the_request_under_way() {
    let mut client = ready(channel(), 600);
    let now = client.next_timeout().unwrap();
    let bind = request(&mut client, now);
    client.release(now);
    assert_eq!(client.poll_transmit(now).0, None);
    hand(&mut client, now, &done(&bind));
    let release = request(&mut client, now);
    let message = Message::parse(&release).unwrap();
    assert_eq!(
        (message.method(), message.lifetime()),
        (Method::REFRESH, Ok(Some(0)))
    );
    assert_eq!(
        hand(&mut client, now, &done(&release)),
        Some(Event::Released)
    );
    assert_eq!(client.next_timeout(), None);
}

#[test]
fn an_allocation_that_is_gone_already_is_released() {
    let mut client = ready(channel(), 600);
    client.release(0);
    let release = request(&mut client, 0);
    let gone = |writer: &mut MessageWriter<'_>| {
        writer.error_code(437, "");
    };
    let answer = answer(&release, Class::Error, gone, Some(&key()));
    assert_eq!(hand(&mut client, 0, &answer), Some(Event::Released));
}

#[test]
fn a_refusal_says_its_code() {
    let mut client = client(None);
    client.start(0);
    let first = request(&mut client, 0);
    let full = |writer: &mut MessageWriter<'_>| {
        writer.error_code(486, "");
    };
    let answer = answer(&first, Class::Error, full, None);
    let refused = Some(Event::Failed(Failure::Refused(486)));
    assert_eq!(hand(&mut client, 0, &answer), refused);
    assert_eq!(client.next_timeout(), None);
}

fn client_of(plan: impl FnOnce(&mut Plan)) -> Client {
    let mut of = client(Some(channel())).plan.as_ref().clone();
    plan(&mut of);
    Client::new(Arc::new(of), 1)
}

/// Answers the client's Allocate with these attributes, and returns what came of it.
fn allocated(client: &mut Client, attributes: impl Fn(&mut MessageWriter<'_>)) -> Option<Event> {
    client.start(0);
    let first = request(client, 0);
    hand(client, 0, &challenge(&first, 401, b"n1"));
    let second = request(client, 0);
    hand(
        client,
        0,
        &answer(&second, Class::Success, attributes, Some(&key())),
    )
}

#[test]
fn a_ticket_takes_the_allocation_to_another_address_and_is_replaced() {
    let mut here = client_of(|plan| plan.terms.mobility = true);
    let granted = |ticket: &'static [u8]| {
        move |writer: &mut MessageWriter<'_>| {
            let writer = writer.xor_relayed_address(relayed()).lifetime(600);
            writer.mobility_ticket(ticket);
        }
    };
    assert_eq!(allocated(&mut here, granted(b"first")), None);
    let bind = request(&mut here, 0);
    assert_eq!(hand(&mut here, 0, &done(&bind)), Some(Event::Ready));
    let ticket = here.ticket().unwrap().to_vec();
    assert_eq!(ticket, b"first");

    let mut there = here.successor(&ticket, 2);
    there.start(SECOND);
    let moved = request(&mut there, SECOND);
    let message = Message::parse(&moved).unwrap();
    assert_eq!(message.method(), Method::REFRESH);
    assert_eq!(message.mobility_ticket(), Some(&b"first"[..]));
    assert_eq!(message.check_integrity(&key()), Ok(()));
    // A nonce may be good at one address only.
    assert_eq!(
        hand(&mut there, SECOND, &challenge(&moved, 438, b"n2")),
        None
    );
    let again = request(&mut there, SECOND);
    let message = Message::parse(&again).unwrap();
    assert_eq!(message.mobility_ticket(), Some(&b"first"[..]));
    let response = answer(&again, Class::Success, granted(b"second"), Some(&key()));
    assert_eq!(hand(&mut there, SECOND, &response), Some(Event::Ready));
    assert_eq!(there.ticket(), Some(&b"second"[..]));
    assert_eq!(there.relayed(), Some(relayed()));
    assert_eq!(there.peer(), here.peer());
    // Later refreshes come from where the client is, and have no ticket.
    there.release(2 * SECOND);
    let last = request(&mut there, 2 * SECOND);
    assert_eq!(Message::parse(&last).unwrap().mobility_ticket(), None);
}

#[test]
fn a_stale_ticket_is_refused_as_the_server_says() {
    let mut here = client_of(|plan| plan.terms.mobility = true);
    allocated(&mut here, |writer| {
        let writer = writer.xor_relayed_address(relayed()).lifetime(600);
        writer.mobility_ticket(b"ticket");
    });
    let mut there = here.successor(b"an older ticket", 2);
    there.start(0);
    let bytes = request(&mut there, 0);
    let refused = answer(
        &bytes,
        Class::Error,
        |writer| {
            writer.error_code(437, "");
        },
        Some(&key()),
    );
    let failed = Some(Event::Failed(Failure::Refused(437)));
    assert_eq!(hand(&mut there, 0, &refused), failed);
}

#[test]
fn an_allocation_without_the_ticket_that_was_asked_for_is_a_failure() {
    let mut client = client_of(|plan| plan.terms.mobility = true);
    let event = allocated(&mut client, |writer| {
        writer.xor_relayed_address(relayed()).lifetime(600);
    });
    assert_eq!(event, Some(Event::Failed(Failure::NoTicket)));
}

fn second_relayed() -> SocketAddr {
    "[2001:db8::1]:50000".parse().unwrap()
}

fn second_peer() -> SocketAddr {
    "[2001:db8::7]:3480".parse().unwrap()
}

#[test]
fn both_addresses_of_a_dual_allocation_get_a_way_to_their_peer_and_keep_it() {
    let other = Path::Channel(ChannelNumber::try_from(0x4001).unwrap());
    let mut client = client_of(|plan| {
        plan.terms.is_dual = true;
        plan.second_peer = Some((second_peer(), other));
    });
    // In the order that the RFC leaves open.
    let event = allocated(&mut client, |writer| {
        let writer = writer.xor_relayed_address(second_relayed());
        writer.xor_relayed_address(relayed()).lifetime(3_600);
    });
    assert_eq!(event, None);
    assert_eq!(client.relayed(), Some(relayed()));
    assert_eq!(client.relayed_second(), Some(second_relayed()));
    for now in [0, CHANNEL_EVERY, 2 * CHANNEL_EVERY] {
        let mut bound = Vec::new();
        while let (Some(bytes), None) = client.poll_transmit(now) {
            let bytes = bytes.to_vec();
            let message = Message::parse(&bytes).unwrap();
            let number = message.channel_number().unwrap().unwrap();
            bound.push((number, message.xor_peer_address().unwrap().unwrap()));
            let event = hand(&mut client, now, &done(&bytes));
            assert_eq!(event.is_some(), now == 0 && bound.len() == 2);
        }
        assert_eq!(bound, [(0x4001, second_peer()), (0x4000, peer())]);
    }
}

#[test]
fn a_companion_is_named_beside_the_peer_before_the_channel_is_bound() {
    let companion = SocketAddr::new(peer().ip(), peer().port() + 1);
    let mut client = client_of(|plan| plan.companion = Some(companion));
    allocated(&mut client, |writer| {
        writer.xor_relayed_address(relayed()).lifetime(600);
    });
    let mut named = Vec::new();
    while let (Some(bytes), None) = client.poll_transmit(0) {
        let bytes = bytes.to_vec();
        let message = Message::parse(&bytes).unwrap();
        let peers: Vec<_> = message.xor_peer_addresses().flatten().collect();
        named.push((message.method(), peers));
        hand(&mut client, 0, &done(&bytes));
    }
    let expected = [
        (Method::CREATE_PERMISSION, vec![peer(), companion]),
        (Method::CHANNEL_BIND, vec![peer()]),
    ];
    assert_eq!(named, expected);
}

#[test]
fn one_address_where_two_were_asked_for_is_a_failure_with_the_servers_reason() {
    let mut client = client_of(|plan| plan.terms.is_dual = true);
    let event = allocated(&mut client, |writer| {
        let writer = writer.xor_relayed_address(relayed()).lifetime(600);
        writer.address_error_code(AddressFamily::V6, 508, "");
    });
    assert_eq!(event, Some(Event::Failed(Failure::Refused(508))));
}

#[test]
fn two_addresses_are_asked_for_in_the_rfcs_words_and_in_those_of_old_coturns() {
    let mut client = client_of(|plan| plan.terms.is_dual = true);
    client.start(0);
    let request = request(&mut client, 0);
    let message = Message::parse(&request).unwrap();
    for kind in [
        AttributeType::ADDITIONAL_ADDRESS_FAMILY,
        AttributeType::COTURN_ADDITIONAL_ADDRESS_FAMILY,
    ] {
        assert_eq!(message.raw(kind), Some(&[2, 0, 0, 0][..]), "{kind:?}");
    }
}

#[test]
fn a_tcp_relay_is_a_connection_to_the_peer_and_another_one_to_the_server() {
    let mut client = client_of(|plan| {
        plan.terms.relay = Relay::Tcp;
        plan.peer = Some((peer(), Path::Connection));
        plan.is_reliable = true;
    });
    client.start(0);
    let first = request(&mut client, 0);
    let message = Message::parse(&first).unwrap();
    assert_eq!(message.requested_transport(), Ok(Some(6)));
    hand(&mut client, 0, &challenge(&first, 401, b"n1"));
    let second = request(&mut client, 0);
    hand(&mut client, 0, &granted(&second, 600));
    let connect = request(&mut client, 0);
    let message = Message::parse(&connect).unwrap();
    assert_eq!(message.method(), Method::CONNECT);
    assert_eq!(message.xor_peer_address(), Ok(Some(peer())));
    let connected = |writer: &mut MessageWriter<'_>| {
        writer.connection_id(77);
    };
    let response = answer(&connect, Class::Success, connected, Some(&key()));
    assert_eq!(hand(&mut client, 0, &response), Some(Event::Ready));
    assert_eq!(client.connection(), Some(77));

    let (transaction, bind) = client.connection_bind(77);
    let message = Message::parse(&bind).unwrap();
    assert_eq!(message.transaction_id(), transaction);
    assert_eq!(message.connection_id(), Ok(Some(77)));
    assert_eq!(message.check_integrity(&key()), Ok(()));
    let stale = challenge(&bind, 438, b"n2");
    let stale = Message::parse(&stale).unwrap();
    assert_eq!(client.connection_bound(&stale), Ok(None));
    let (_, bind) = client.connection_bind(77);
    assert_eq!(Message::parse(&bind).unwrap().nonce(), Ok(Some(&b"n2"[..])));
    let bound = done(&bind);
    let bound = Message::parse(&bound).unwrap();
    assert_eq!(client.connection_bound(&bound), Ok(Some(())));
    // The connection needs no more than the allocation.
    assert_eq!(client.next_timeout(), Some(540 * SECOND));
}

#[test]
fn who_asks_often_asks_for_all_there_is_in_turn() {
    let mut client = client_of(|plan| plan.asks_often = true);
    allocated(&mut client, |writer| {
        writer.xor_relayed_address(relayed()).lifetime(600);
    });
    let mut methods = Vec::new();
    for round in 0..6 {
        let now = round * OFTEN;
        let bytes = request(&mut client, now);
        methods.push(method(&bytes));
        let answer = match method(&bytes) {
            Method::REFRESH => granted(&bytes, 600),
            _ => done(&bytes),
        };
        assert_eq!(hand(&mut client, now, &answer).is_some(), round == 0);
        assert_eq!(client.poll_transmit(now), (None, None));
    }
    let round = [
        Method::CHANNEL_BIND,
        Method::CREATE_PERMISSION,
        Method::REFRESH,
    ];
    assert_eq!(methods, [round, round].concat());
}

#[test]
fn without_permissions_an_allocation_is_ready_at_once_and_origin_is_in_every_request() {
    let mut client = client_of(|plan| {
        plan.peer = Some((peer(), Path::Indications));
        plan.asks_for_no_permission = true;
        plan.origin = Some("https://example.org".to_owned());
    });
    let event = allocated(&mut client, |writer| {
        writer.xor_relayed_address(relayed()).lifetime(600);
    });
    assert_eq!(event, Some(Event::Ready));
    assert_eq!(client.next_timeout(), Some(540 * SECOND));
    client.release(0);
    let last = request(&mut client, 0);
    let message = Message::parse(&last).unwrap();
    assert_eq!(message.origin(), Some(&b"https://example.org"[..]));
}
