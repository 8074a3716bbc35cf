//! STUN Binding and what holds for every STUN message, RFC 8489.

use turnbuckle_engine::{ClientTuple, DropReason, Fingerprint, Outcome, Service, UnverifiedLimits};
use turnbuckle_wire::{AttributeType, Class, Method, TransactionId};

use crate::support::*;

const ID: TransactionId = TransactionId::new(*b"transaction!");

fn binding(write: impl FnOnce(&mut turnbuckle_wire::MessageWriter<'_>)) -> Vec<u8> {
    bare(Method::BINDING, ID, write)
}

//= STUN-003
//= STUN-029
//= STUN-030
//= STUN-064
//= STUN-066
#[test]
fn answers_a_binding_request_with_the_address_it_saw() {
    let mut server = Server::start();
    for remote in [CLIENT, "[2606:4700::7]:9"] {
        let answer = server.exchange(tuple(remote), &binding(|_| {}));
        let message = answer.success();
        assert_eq!(message.method(), Method::BINDING);
        assert_eq!(message.transaction_id(), ID);
        assert_eq!(
            message.xor_mapped_address().unwrap().unwrap().to_string(),
            remote
        );
        assert_eq!(message.attributes().count(), 1, "and with nothing else");
        assert_eq!(answer.0.len(), if remote == CLIENT { 32 } else { 44 });
    }
    server.assert_nothing_is_held();
}

#[test]
fn adds_mapped_address_when_configured() {
    let mut server = Server::with(|config| config.binding.mapped_address = true);
    let answer = server.exchange(tuple(CLIENT), &binding(|_| {}));
    assert_eq!(
        answer
            .success()
            .mapped_address()
            .unwrap()
            .unwrap()
            .to_string(),
        CLIENT
    );
    assert_eq!(
        answer
            .success()
            .xor_mapped_address()
            .unwrap()
            .unwrap()
            .to_string(),
        CLIENT
    );
}

//= STUN-019
//= STUN-020
#[test]
fn tolerates_what_ice_agents_send() {
    let mut server = Server::start();
    let request = binding(|writer| {
        writer
            .username(b"abcd:efgh")
            .u32(AttributeType::new(0x0024), 1_845_501_695) // PRIORITY
            .flag(AttributeType::new(0x0025)) // USE-CANDIDATE
            .bytes(AttributeType::new(0x802A), &[1; 8]) // ICE-CONTROLLING
            .bytes(AttributeType::new(0xC057), &[0, 1, 0, 10])
            .lifetime(5)
            .integrity(&turnbuckle_wire::IntegrityKey::sha1(
                b"a key only the peer knows",
            ))
            .fingerprint();
    });
    let answer = server.exchange(tuple(CLIENT), &request);
    assert_eq!(
        answer
            .success()
            .xor_mapped_address()
            .unwrap()
            .unwrap()
            .to_string(),
        CLIENT
    );
    assert!(!answer.success().has_integrity_sha1());
    assert!(answer.success().has_fingerprint());
}

//= STUN-021
//= STUN-022
//= STUN-026
#[test]
fn answers_420_and_lists_every_unknown_required_attribute() {
    let mut server = Server::start();
    let request = binding(|writer| {
        for kind in [0x7FFE, 0x0003, 0x9999, 0x0026, 0x0027, 0x7FFF, 0x0022] {
            writer.bytes(AttributeType::new(kind), &[0; 8]);
        }
    });
    let answer = server.exchange(tuple(CLIENT), &request);
    assert_eq!(answer.code(), Some(420));
    let unknown: Vec<_> = answer
        .message()
        .unknown_attributes()
        .unwrap()
        .unwrap()
        .iter()
        .map(AttributeType::number)
        .collect();
    assert_eq!(
        unknown,
        [0x7FFE, 0x0003, 0x0026, 0x0027, 0x7FFF],
        "RFC 5780's are not served; RESERVATION-TOKEN is known and unexpected"
    );
}

//= STUN-021
//= STUN-022
//= STUN-027
#[test]
fn answers_420_to_turn_requests_after_authentication() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    for method in [
        Method::ALLOCATE,
        Method::REFRESH,
        Method::CREATE_PERMISSION,
        Method::CHANNEL_BIND,
    ] {
        let answer = server.ask(&mut client, method, |writer| {
            writer
                .requested_transport(17)
                .bytes(AttributeType::new(0x7ABC), &[])
                .bytes(AttributeType::ACCESS_TOKEN, &[0; 4]);
        });
        assert_eq!(answer.code(), Some(420));
        let unknown: Vec<_> = answer
            .message()
            .unknown_attributes()
            .unwrap()
            .unwrap()
            .iter()
            .collect();
        assert_eq!(
            unknown,
            [AttributeType::new(0x7ABC), AttributeType::ACCESS_TOKEN]
        );
    }
    // the codec knows what this server does not serve: relaying over TCP (RFC 6062)
    let answer = server.ask(&mut client, Method::REFRESH, |writer| {
        writer.connection_id(1);
    });
    assert_eq!(answer.code(), Some(420));
    let unauthenticated = bare(Method::ALLOCATE, ID, |writer| {
        writer.requested_transport(17);
        writer.bytes(AttributeType::new(0x7ABC), &[]);
    });
    assert_eq!(
        server.exchange(client.tuple, &unauthenticated).code(),
        Some(401)
    );
    server.assert_nothing_is_held();
}

//= STUN-022
#[test]
fn answers_a_request_of_nothing_but_unknown_attributes() {
    let mut server = Server::start();
    let request = binding(|writer| {
        for n in 0..10_000 {
            writer.flag(AttributeType::new(0x7000 + n % 0x1000));
        }
    });
    let answer = server.exchange(tuple(CLIENT), &request);
    assert_eq!(answer.code(), Some(420));
    assert!(
        answer.0.len() <= 1_232,
        "STUN-006: no larger than any path takes"
    );
}

//= STUN-018
//= STUN-067
//= STUN-079
#[test]
fn mirrors_fingerprint_or_always_sends_it() {
    for (setting, request_has, answer_has) in [
        (Fingerprint::Mirror, false, false),
        (Fingerprint::Mirror, true, true),
        (Fingerprint::Always, false, true),
        (Fingerprint::Always, true, true),
    ] {
        let mut server = Server::with(|config| config.answers.fingerprint = setting);
        let request = binding(|writer| {
            if request_has {
                writer.fingerprint();
            }
        });
        assert_eq!(
            server
                .exchange(tuple(CLIENT), &request)
                .success()
                .has_fingerprint(),
            answer_has
        );
        let request = bare(Method::ALLOCATE, ID, |writer| {
            if request_has {
                writer.fingerprint();
            }
        });
        assert_eq!(
            server
                .exchange(tuple(CLIENT), &request)
                .message()
                .has_fingerprint(),
            answer_has
        );
    }
    let mut server = Server::start();
    let mut wrong = binding(|writer| {
        writer.fingerprint();
    });
    let last = wrong.len() - 1;
    wrong[last] ^= 1;
    assert_eq!(
        server.receive(tuple(CLIENT), &wrong),
        Outcome::Dropped(DropReason::FingerprintMismatch)
    );
    assert!(server.replies.is_empty());
}

//= STUN-017
//= STUN-031
//= STUN-032
//= TURN-114
//= V-41
#[test]
fn drops_every_pair_of_class_and_method_that_is_not_answered() {
    let mut server = Server::start();
    let method = |number| Method::new(number).unwrap();
    let all = (0..=0xFFF).map(method);
    for method in all {
        for class in [
            Class::Request,
            Class::Indication,
            Class::Success,
            Class::Error,
        ] {
            let bytes = message(class, method, ID, |_| {});
            let outcome = server.receive(tuple(CLIENT), &bytes);
            let is_request_method = [
                Method::BINDING,
                Method::ALLOCATE,
                Method::REFRESH,
                Method::CREATE_PERMISSION,
                Method::CHANNEL_BIND,
            ]
            .contains(&method);
            let is_indication_method = [Method::SEND, Method::DATA].contains(&method);
            let expected = match class {
                _ if !is_request_method && !is_indication_method => {
                    Outcome::Dropped(DropReason::MethodUnknown)
                }
                Class::Success | Class::Error => Outcome::Dropped(DropReason::ResponseUnexpected),
                Class::Request if is_request_method => Outcome::Done,
                Class::Indication if method == Method::BINDING => {
                    Outcome::Dropped(DropReason::KeepAlive)
                }
                Class::Indication if method == Method::SEND => {
                    Outcome::Dropped(DropReason::NoAllocation)
                }
                _ => Outcome::Dropped(DropReason::ClassUnexpected),
            };
            assert_eq!(outcome, expected, "{class:?} {method:?}");
            assert_eq!(server.replies.len(), usize::from(outcome == Outcome::Done));
            server.replies.clear();
        }
    }
    server.assert_nothing_is_held();
}

//= STUN-001
//= STUN-002
//= STUN-004
//= STUN-017
//= STUN-068
//= TURN-014
#[test]
fn drops_what_is_no_stun_message() {
    let mut server = Server::start();
    let good = binding(|writer| {
        writer.lifetime(1);
    });
    let mut bad: Vec<Vec<u8>> = (0..good.len()).map(|len| good[..len].to_vec()).collect();
    for (index, value) in [
        (0, 0x40),
        (0, 0x80),
        (3, 7),
        (3, 4),
        (3, 12),
        (4, 0),
        (7, 0),
        (22, 0xFF),
        (23, 5),
    ] {
        let mut message = good.clone();
        message[index] = value;
        bad.push(message);
    }
    let mut longer = good.clone();
    longer.push(0);
    bad.push(longer);
    for bytes in bad {
        assert_eq!(
            server.receive(tuple(CLIENT), &bytes),
            Outcome::Dropped(DropReason::MalformedStun),
            "{bytes:x?}"
        );
    }
    assert!(server.replies.is_empty());
    server.exchange(tuple(CLIENT), &good).success();
}

//= V-41
#[test]
fn never_answers_itself_or_nobody() {
    let mut server = Server::start();
    for remote in [
        "192.0.2.1:3478",
        "[2001:db8::1]:3478",
        "203.0.113.7:0",
        "0.0.0.0:5",
        "255.255.255.255:5",
        "224.0.0.1:5",
        "[ff02::1]:5",
        "[::]:5",
    ] {
        for method in [Method::BINDING, Method::ALLOCATE] {
            let outcome = server.receive(tuple(remote), &bare(method, ID, |_| {}));
            assert_eq!(
                outcome,
                Outcome::Dropped(DropReason::SourceInvalid),
                "{remote}"
            );
        }
    }
    assert!(server.replies.is_empty());
}

#[test]
fn serves_only_what_is_switched_on() {
    for (service, stun, turn) in [
        (Service::StunAndTurn, true, true),
        (Service::StunOnly, true, false),
        (Service::TurnOnly, false, true),
    ] {
        let mut server = Server::with(|config| config.service = service);
        for (method, served) in [
            (Method::BINDING, stun),
            (Method::ALLOCATE, turn),
            (Method::REFRESH, turn),
        ] {
            let outcome = server.receive(tuple(CLIENT), &bare(method, ID, |_| {}));
            let expected = if served {
                Outcome::Done
            } else {
                Outcome::Dropped(DropReason::ServiceDisabled)
            };
            assert_eq!(outcome, expected, "{service:?} {method:?}");
        }
    }
}

#[test]
fn secure_stun_asks_for_credentials() {
    let mut server = Server::with(|config| config.binding.secure_stun = true);
    let answer = server.exchange(tuple(CLIENT), &binding(|_| {}));
    assert_eq!(answer.code(), Some(401));
    let mut client = server.client(CLIENT);
    let answer = server.ask(&mut client, Method::BINDING, |_| {});
    assert_eq!(
        answer
            .success()
            .xor_mapped_address()
            .unwrap()
            .unwrap()
            .to_string(),
        CLIENT
    );
    client.key = turnbuckle_wire::IntegrityKey::sha1(b"wrong");
    let transaction = client.next_transaction();
    let request = client.request(Method::BINDING, transaction, |_| {});
    assert_eq!(server.exchange(client.tuple, &request).code(), Some(401));
}

//= STUN-028
//= STUN-087
//= V-65
//= V-40
#[test]
fn tells_strangers_neither_software_nor_reasons() {
    let mut server = Server::with(|config| config.answers.software = Some("Turnbuckle".into()));
    let mut client = server.client(CLIENT);
    for request in [
        binding(|_| {}),
        first_request(ID),
        binding(|w| {
            w.flag(AttributeType::new(0x7FFF));
        }),
    ] {
        let answer = server.exchange(client.tuple, &request);
        assert_eq!(answer.message().software().unwrap(), None);
        let reason = answer
            .message()
            .error_code()
            .unwrap()
            .map_or(&b""[..], |error| error.reason);
        assert_eq!(reason, b"");
    }
    let success = server.ask(&mut client, Method::ALLOCATE, |writer| {
        writer.requested_transport(17);
    });
    assert_eq!(
        success.success().software().unwrap(),
        Some(&b"Turnbuckle"[..])
    );
    let refused = server.ask(&mut client, Method::CREATE_PERMISSION, |_| {});
    assert_eq!(
        refused.message().software().unwrap(),
        Some(&b"Turnbuckle"[..])
    );
    assert_eq!(
        refused.message().error_code().unwrap().unwrap().reason,
        b"Bad Request"
    );

    let mut server = Server::with(|config| {
        config.answers.software = Some("Turnbuckle".into());
        config.answers.software_to_unverified = true;
        config.answers.detailed_reasons = true;
    });
    // with room for it in three times its bytes
    let long = bare(Method::ALLOCATE, ID, |writer| {
        writer.requested_transport(17).software(&"c".repeat(60));
    });
    let answer = server.exchange(tuple(CLIENT), &long);
    assert_eq!(
        answer.message().software().unwrap(),
        Some(&b"Turnbuckle"[..])
    );
    assert_eq!(
        answer.message().error_code().unwrap().unwrap().reason,
        b"Unauthenticated"
    );
}

//= V-40
#[test]
fn sends_a_stranger_no_more_than_its_budget() {
    let mut server = Server::start();
    let requests = [
        binding(|_| {}),
        first_request(ID),
        bare(Method::REFRESH, ID, |writer| {
            writer.lifetime(600);
        }),
    ];
    let (mut received, mut sent, mut dropped) = (0, 0, 0_u64);
    for n in 0..30_000 {
        let request = &requests[n % 3];
        received += request.len();
        // one address, any port
        let from = tuple(&format!("203.0.113.7:{}", 1 + n % 60_000));
        match server.receive(from, request) {
            Outcome::Done => {}
            Outcome::Dropped(DropReason::UnverifiedBudget) => dropped += 1,
            other => panic!("{other:?}"),
        }
        sent += server
            .replies
            .drain(..)
            .map(|(_, bytes)| bytes.len())
            .sum::<usize>();
    }
    assert!(sent < received, "{sent} bytes for {received}");
    let burst = UnverifiedLimits::default().bytes.burst;
    assert!(sent <= usize::try_from(burst).unwrap(), "{sent}");
    assert!(dropped > 28_000, "{dropped}");
    // another source is not concerned
    server
        .exchange(tuple("203.0.113.99:5"), &requests[0])
        .success();
    server.wait_s(60);
    server.exchange(tuple(CLIENT), &requests[0]).success();
}

/// Refusing before an answer is made must not refuse who can prove itself.
//= V-40
#[test]
fn a_client_with_a_fresh_nonce_is_served_although_its_address_used_up_its_budget() {
    let mut server = Server::start();
    let mut client = server.client("203.0.113.7:9");
    server.allocate(&mut client);
    let request = first_request(ID);
    let exhaust = |server: &mut Server| {
        let flood = (0..3_000).map(|port| tuple(&format!("203.0.113.7:{}", 1_000 + port)));
        let outcomes: Vec<Outcome> = flood.map(|from| server.receive(from, &request)).collect();
        server.replies.clear();
        assert_eq!(
            outcomes.last(),
            Some(&Outcome::Dropped(DropReason::UnverifiedBudget))
        );
    };
    exhaust(&mut server);
    assert_eq!(server.refresh(&mut client, 900).lifetime(), 900);

    // What ran out cannot become a proof, and gets no answer at all until the budget drains.
    server.wait_s(3_601);
    exhaust(&mut server);
    let stale = client.request(Method::REFRESH, ID, |_| {});
    let outcome = server.receive(client.tuple, &stale);
    assert_eq!(outcome, Outcome::Dropped(DropReason::UnverifiedBudget));
}

#[test]
fn a_full_queue_of_replies_drops_requests_and_does_nothing_else() {
    let mut server = Server::with(|config| config.limits.reply_queue_bytes = 4_000);
    let mut client = server.client(CLIENT);
    let mut outcomes = Vec::new();
    for _ in 0..200 {
        // the host does not drain
        outcomes.push(
            server
                .engine
                .handle_stun(server.now, client.tuple, &binding(|_| {})),
        );
    }
    let full = Outcome::Dropped(DropReason::ReplyQueueFull);
    assert_eq!(outcomes[0], Outcome::Done);
    assert_eq!(outcomes[199], full);
    let transaction = client.next_transaction();
    let request = client.request(Method::ALLOCATE, transaction, |writer| {
        writer.requested_transport(17);
    });
    assert_eq!(
        server
            .engine
            .handle_stun(server.now, client.tuple, &request),
        full
    );
    server.pump();
    assert_eq!(
        server.replies.len(),
        outcomes
            .iter()
            .filter(|outcome| **outcome == Outcome::Done)
            .count()
    );
    server.assert_nothing_is_held();
    server.allocate(&mut client);
}

//= MUX-01
#[test]
fn the_listener_is_part_of_the_client() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    server.allocate(&mut client);
    let elsewhere = ClientTuple {
        listener: LISTENER_V6,
        ..client.tuple
    };
    assert!(server.engine.client(&client.tuple).is_some());
    assert!(server.engine.client(&elsewhere).is_none());
}
