//! The long-term mechanism as the engine uses it, RFC 8489 §9.2 and RFC 8656 §5. What a proof takes is tested beside `auth.rs`.

use core::time::Duration;

use turnbuckle_engine::{Asks, CredentialExpiry, DropReason, Outcome};
use turnbuckle_wire::{
    AttributeType, ChannelNumber, IntegrityKey, Message, Method, PasswordAlgorithm, TransactionId,
    long_term_key_md5, long_term_key_sha256,
};

use crate::support::*;

const ID: TransactionId = TransactionId::new(*b"transaction!");
const METHODS: [Method; 4] = [
    Method::ALLOCATE,
    Method::REFRESH,
    Method::CREATE_PERMISSION,
    Method::CHANNEL_BIND,
];

//= STUN-042
//= STUN-044
//= STUN-046
//= TURN-004
//= TURN-020
//= TURN-021
#[test]
fn challenges_every_turn_request_without_integrity() {
    let mut server = Server::start();
    for method in METHODS {
        let answer = server.exchange(
            tuple(CLIENT),
            &bare(method, ID, |w| {
                w.requested_transport(17);
            }),
        );
        assert_eq!(answer.code(), Some(401));
        let message = answer.message();
        assert_eq!(message.method(), method);
        assert_eq!(message.transaction_id(), ID);
        assert_eq!(message.realm().unwrap(), Some(REALM.as_bytes()));
        assert!(message.nonce().unwrap().is_some());
        assert!(message.password_algorithms().unwrap().is_some());
        for absent in [AttributeType::USERNAME, AttributeType::USERHASH] {
            assert!(!message.contains(absent));
        }
        assert!(!message.has_integrity_sha1() && !message.has_integrity_sha256());
    }
}

//= STUN-047
//= STUN-048
#[test]
fn answers_400_without_credentials_beside_integrity() {
    let mut server = Server::start();
    let client = server.client(CLIENT);
    let request = bare(Method::ALLOCATE, ID, |writer| {
        writer
            .requested_transport(17)
            .username(b"alice")
            .realm(REALM.as_bytes())
            .integrity(&client.key);
    });
    let answer = server.exchange(client.tuple, &request);
    assert_eq!(answer.code(), Some(400));
    for absent in [
        AttributeType::USERNAME,
        AttributeType::USERHASH,
        AttributeType::NONCE,
        AttributeType::REALM,
    ] {
        assert!(!answer.message().contains(absent));
    }
}

//= STUN-051
//= STUN-052
//= V-26
#[test]
fn answers_wrong_names_and_wrong_passwords_alike() {
    let mut server = Server::start();
    let client = server.client(CLIENT);
    let mut answers = Vec::new();
    for (name, password) in [
        ("alice", "wrong"),
        ("mallory", "wonderland"),
        ("bob", "wonderland"),
    ] {
        let key = IntegrityKey::sha1(&long_term_key_md5(
            name.as_bytes(),
            REALM.as_bytes(),
            password.as_bytes(),
        ));
        let impostor = Client {
            name: name.into(),
            key,
            ..client.clone()
        };
        for method in METHODS {
            let answer = server.exchange(client.tuple, &impostor.request(method, ID, |_| {}));
            assert_eq!(answer.code(), Some(401));
            answers.push(answer.0.len());
        }
    }
    answers.dedup();
    assert_eq!(answers.len(), 1, "same length for all");
    server.assert_nothing_is_held();
}

//= STUN-043
//= STUN-053
//= V-22
#[test]
fn a_nonce_is_good_for_one_client_and_for_its_time() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    for remote in ["203.0.113.7:50001", "203.0.113.8:50000"] {
        let request = client.request(Method::ALLOCATE, ID, |_| {});
        let answer = server.exchange(tuple(remote), &request);
        assert_eq!(answer.code(), Some(438), "{remote}");
        assert!(
            answer
                .message()
                .nonce()
                .unwrap()
                .is_some_and(|nonce| nonce != client.nonce)
        );
    }
    server.allocate(&mut client);
    server.wait_s(3_700);
    let request = client.request(Method::REFRESH, ID, |_| {});
    assert_eq!(server.exchange(client.tuple, &request).code(), Some(438));
    server.challenge(&mut client);
    assert_eq!(server.refresh(&mut client, 600).code(), Some(437));
}

//= STUN-049
//= STUN-050
//= STUN-054
//= STUN-057
#[test]
fn answers_in_the_integrity_of_the_algorithm_chosen() {
    let mut server = Server::start();
    let client = server.client(CLIENT);
    let key = long_term_key_sha256(b"alice", REALM.as_bytes(), b"wonderland");
    let key = IntegrityKey::sha256(&key);
    let offered = [PasswordAlgorithm::Sha256, PasswordAlgorithm::Md5];
    let write = |list: &[PasswordAlgorithm]| {
        bare(Method::ALLOCATE, ID, |writer| {
            writer
                .requested_transport(17)
                .username(b"alice")
                .realm(REALM.as_bytes())
                .nonce(&client.nonce)
                .password_algorithms(list)
                .password_algorithm(PasswordAlgorithm::Sha256)
                .integrity(&key);
        })
    };
    //= V-27
    let answer = server.exchange(client.tuple, &write(&offered[..1]));
    assert_eq!(answer.code(), Some(400), "not the list that was sent");
    let answer = server.exchange(client.tuple, &write(&offered));
    answer.success();
    assert!(answer.message().has_integrity_sha256() && !answer.message().has_integrity_sha1());
    assert_eq!(answer.message().check_integrity(&key), Ok(()));
}

//= TURN-005
//= V-28
#[test]
fn answers_441_to_another_user_on_a_live_allocation() {
    let mut server = Server::start();
    let mut alice = server.client(CLIENT);
    let relayed = server.allocate(&mut alice);
    server.bind(&mut alice, 0x4000, PEER).success();
    let mut bob = server.client_of("bob", "builder", CLIENT);
    for _ in 0..9 {
        bob.next_transaction(); // not those of alice
    }
    assert_eq!(server.refresh(&mut bob, 0).code(), Some(441));
    assert_eq!(server.refresh(&mut bob, 600).code(), Some(441));
    assert_eq!(server.permit(&mut bob, "93.184.216.99:1").code(), Some(441));
    assert_eq!(
        server.bind(&mut bob, 0x4001, "93.184.216.99:1").code(),
        Some(441)
    );
    assert_eq!(server.bind(&mut bob, 0x4000, PEER).code(), Some(441));
    assert!(server.channel_data(&alice, 0x4000).is_ok());
    assert_eq!(
        server.peer_data(relayed, "93.184.216.99:1"),
        Err(DropReason::NoPermission)
    );
    assert_eq!(
        server.channel_data(&alice, 0x4001),
        Err(DropReason::ChannelNotBound)
    );
}

//= STUN-034
//= V-23
#[test]
fn attributes_behind_integrity_have_no_effect() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    server.allocate(&mut client);
    let transaction = client.next_transaction();
    let mut request = client.request(Method::REFRESH, transaction, |writer| {
        writer.lifetime(1_000);
    });
    let tail = bare(Method::REFRESH, transaction, |writer| {
        writer
            .lifetime(0)
            .xor_peer_address(PEER.parse().unwrap())
            .flag(AttributeType::new(0x7FFF));
    });
    request.extend(&tail[20..]);
    let length = u16::try_from(request.len() - 20).unwrap();
    request[2..4].copy_from_slice(&length.to_be_bytes());
    assert_eq!(server.exchange(client.tuple, &request).lifetime(), 1_000);
}

//= V-24
#[test]
fn repeated_attributes_of_a_request_count_once() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    server.allocate(&mut client);
    let answer = server.ask(&mut client, Method::REFRESH, |writer| {
        writer.lifetime(1_000).lifetime(0);
    });
    assert_eq!(answer.lifetime(), 1_000);
    let answer = server.ask(&mut client, Method::REFRESH, |writer| {
        writer.lifetime(0).lifetime(1_000);
    });
    assert_eq!(answer.lifetime(), 0);
}

//= V-21
#[test]
fn keeps_nothing_of_requests_that_prove_nothing() {
    let mut server = Server::start();
    let client = server.client(CLIENT);
    for n in 0..2_000_u32 {
        let from = tuple(&format!("100.64.{}.{}:{}", n / 250, 1 + n % 250, 1 + n));
        let garbage = bare(Method::ALLOCATE, ID, |writer| {
            writer
                .requested_transport(17)
                .even_port(true)
                .username(b"alice")
                .realm(REALM.as_bytes())
                .nonce(&client.nonce);
            writer.integrity(&IntegrityKey::sha1(&n.to_be_bytes()));
        });
        for request in [
            garbage,
            first_request(ID),
            bare(Method::REFRESH, ID, |writer| {
                writer.lifetime(0);
            }),
        ] {
            assert_ne!(
                server.receive(from, &request),
                Outcome::Dropped(DropReason::NoAllocation)
            );
        }
    }
    assert!(
        server
            .replies
            .iter()
            .all(|(_, bytes)| matches!(Answer(bytes.clone()).code(), Some(400 | 401 | 438)))
    );
    assert_eq!(server.engine.next_timeout(), None);
    assert!(server.take_changes().is_empty());
    assert_eq!(server.commons.reserved_ports(), 0);
    server.assert_nothing_is_held();
}

/// Returns a time-limited credential of the TURN REST API: name `expiry:id`, password base64(HMAC-SHA1(secret, name)).
pub(crate) fn rest(expiry_unix_s: u64, id: &str) -> (String, String) {
    use base64::Engine as _;
    use hmac::{KeyInit as _, Mac as _};
    let name = format!("{expiry_unix_s}:{id}");
    let mut mac = hmac::Hmac::<sha1::Sha1>::new_from_slice(b"north").unwrap();
    mac.update(name.as_bytes());
    (
        name,
        base64::engine::general_purpose::STANDARD.encode(mac.finalize().into_bytes()),
    )
}

//= TURN-037
//= V-33
//= V-43
#[test]
fn counts_the_quota_of_time_limited_users_by_their_id() {
    let mut server = Server::with(|config| {
        config.auth.add_rest_secret(b"north").unwrap();
        config.limits.user_quota = Some(2);
    });
    let now = server.now.unix_s;
    let mut codes = Vec::new();
    for n in 0..4 {
        let (name, password) = rest(now + 1_000 + n, if n == 3 { "dave" } else { "carol" });
        let mut client = server.client_of(&name, &password, &format!("203.0.113.{}:9", 10 + n));
        let answer = server.ask(&mut client, Method::ALLOCATE, |writer| {
            writer.requested_transport(17);
        });
        codes.push(answer.code());
    }
    assert_eq!(codes, [None, None, Some(486), None]);
    assert_eq!(
        (
            server.commons.quota_used(REALM, "carol"),
            server.commons.quota_used(REALM, "dave")
        ),
        (2, 1)
    );
}

//= V-32
#[test]
fn an_expired_credential_makes_no_allocation_and_is_refreshed_by_the_policy() {
    for (expiry, code) in [
        (None, None),
        (Some(CredentialExpiry::Allocation), None),
        (Some(CredentialExpiry::Request), Some(401)),
    ] {
        let mut server = Server::with(|config| {
            config.auth.add_rest_secret(b"north").unwrap();
            config.auth.credential_expiry = expiry.unwrap_or(config.auth.credential_expiry);
        });
        let (name, password) = rest(server.now.unix_s + 100, "carol");
        let mut client = server.client_of(&name, &password, CLIENT);
        server.allocate(&mut client);
        let granted = server.refresh(&mut client, 600).lifetime();
        let expected = if code.is_none() { 600 } else { 101 };
        assert_eq!(granted, expected, "{expiry:?}");
        server.wait_s(100);
        server.refresh(&mut client, 0).success();
        server.allocate(&mut client);
        server.oversleep(Duration::from_secs(1));
        for lifetime in [None, Some(600), Some(0)] {
            for method in [
                Method::CREATE_PERMISSION,
                Method::CHANNEL_BIND,
                Method::REFRESH,
            ] {
                let transaction = client.next_transaction();
                let request = client.request(method, transaction, |writer| {
                    if method != Method::REFRESH {
                        writer.xor_peer_address(PEER.parse().unwrap());
                    }
                    if method == Method::CHANNEL_BIND {
                        writer.channel_number(ChannelNumber::MIN);
                    }
                    if let Some(lifetime) = lifetime.filter(|_| method == Method::REFRESH) {
                        writer.lifetime(lifetime);
                    }
                });
                let answer = server.exchange(client.tuple, &request);
                assert_eq!(answer.code(), code, "{expiry:?} {method:?} {lifetime:?}");
            }
        }
        let nonce = server.client("203.0.113.8:5").nonce;
        let mut late = Client {
            tuple: tuple("203.0.113.8:5"),
            nonce,
            ..client
        };
        let transaction = late.next_transaction();
        let request = late.request(Method::ALLOCATE, transaction, |writer| {
            writer.requested_transport(17);
        });
        assert_eq!(server.receive(late.tuple, &request), Outcome::Done);
        assert_eq!(server.only_reply_to(late.tuple).code(), Some(401));
    }
}

/// Returns a Refresh request of `name`, whose nonce was given out to `nonce_of`.
fn refresh(server: &mut Server, name: &str, password: &str, nonce_of: &str) -> Vec<u8> {
    let nonce = server.client(nonce_of).nonce;
    let key = long_term_key_md5(name.as_bytes(), REALM.as_bytes(), password.as_bytes());
    bare(Method::REFRESH, ID, |writer| {
        writer
            .username(name.as_bytes())
            .realm(REALM.as_bytes())
            .nonce(&nonce)
            .integrity(&IntegrityKey::sha1(&key));
    })
}

#[test]
fn asks_about_an_unknown_name_and_a_wrong_password_alike_and_once() {
    let mut server = Server::with(|config| config.auth.asks = Asks::Users);
    for (name, password) in [("alice", "wrong"), ("mallory", "wonderland")] {
        let request = refresh(&mut server, name, password, CLIENT);
        let asked = server.receive(tuple(CLIENT), &request);
        let Outcome::Ask(question) = asked else {
            panic!("{asked:?}");
        };
        assert_eq!((&*question.realm, &*question.name), (REALM, name));
        assert!(server.replies.is_empty(), "nothing is answered yet");
        let finally = (server.engine).handle_finally(server.now, tuple(CLIENT), &request);
        assert_eq!(finally, Outcome::Done);
        server.pump();
        let (_, answer) = server.replies.pop().expect("one answer");
        assert_eq!(
            Message::parse(&answer)
                .unwrap()
                .error_code()
                .unwrap()
                .unwrap()
                .code,
            401
        );
    }
}

#[test]
fn asks_nobody_who_has_not_proven_the_address_or_is_known_or_names_nobody_whom_a_database_may_have()
{
    let mut server = Server::with(|config| config.auth.asks = Asks::Users);
    let requests = [
        (
            "a nonce of another address",
            refresh(&mut server, "mallory", "m", "203.0.113.8:50000"),
        ),
        (
            "who is known",
            refresh(&mut server, "alice", "wonderland", CLIENT),
        ),
        (
            "a control character",
            refresh(&mut server, "mal\0lory", "m", CLIENT),
        ),
        ("no credentials", bare(Method::REFRESH, ID, |_| {})),
    ];
    for (what, request) in requests {
        let outcome = server.receive(tuple(CLIENT), &request);
        assert_eq!(outcome, Outcome::Done, "{what}");
    }
    let mut server = Server::start();
    let request = refresh(&mut server, "mallory", "m", CLIENT);
    let outcome = server.receive(tuple(CLIENT), &request);
    assert_eq!(outcome, Outcome::Done, "there is no database");
}

#[test]
fn offers_md5_alone_where_a_database_is_asked_about_users() {
    for (asks, offered) in [
        (Asks::Users, &[PasswordAlgorithm::Md5][..]),
        (
            Asks::Secrets,
            &[PasswordAlgorithm::Sha256, PasswordAlgorithm::Md5][..],
        ),
    ] {
        let mut server = Server::with(|config| config.auth.asks = asks);
        let request = bare(Method::ALLOCATE, ID, |writer| {
            writer.requested_transport(17);
        });
        let answer = server.exchange(tuple(CLIENT), &request);
        let list = answer.message().password_algorithms().unwrap().unwrap();
        let list: Vec<_> = list.iter().map(|entry| entry.algorithm).collect();
        assert_eq!(list, offered);
    }
}
