//! RFC 8489 §9.2.4, branch by branch, with real messages.

mod algorithms;
mod support;
mod threats;

use turnbuckle_wire::{AttributeType, Class, Message, MessageWriter, Method, TransactionId};

use self::support::*;
use super::*;
use crate::time::Time;

#[test]
fn challenges_a_request_without_integrity() {
    //= STUN-042
    //= STUN-044
    //= STUN-045
    //= STUN-046
    //= STUN-056
    //= STUN-088
    let mut server = Server::with_users();
    let rejection = server.send(&Request::first()).unwrap_err();
    assert_eq!(rejection.code, 401);
    let challenge = rejection.challenge.unwrap();
    assert_eq!(&*challenge.realm, "example.org");
    assert_eq!(
        challenge.password_algorithms,
        [PasswordAlgorithm::Sha256, PasswordAlgorithm::Md5],
        "MD5 comes last, for who knows nothing else"
    );
    assert_eq!(&challenge.nonce.as_bytes()[..13], b"obMatJos2wAAA");
    // Whatever else the request carries.
    let request = server.md5_request().without_integrity();
    assert_eq!(server.send(&request).unwrap_err().code, 401);
}

#[test]
fn accepts_a_user_by_every_algorithm_and_integrity_attribute() {
    let mut server = Server::with_users();
    for algorithm in [
        None,
        Some(PasswordAlgorithm::Md5),
        Some(PasswordAlgorithm::Sha256),
    ] {
        for integrity in [Integrity::Sha1, Integrity::Sha256] {
            let request = server.request(algorithm, integrity);
            let proof = server.send(&request).unwrap();
            assert_eq!(&*proof.user.name, "alice");
            assert_eq!(proof.algorithm, algorithm.unwrap_or(PasswordAlgorithm::Md5));
        }
    }
}

#[test]
fn answers_with_sha1_only_to_requests_that_say_nothing_about_algorithms() {
    //= STUN-054
    let mut server = Server::with_users();
    for integrity in [Integrity::Sha1, Integrity::Sha256] {
        let request = server.request(None, integrity);
        let proof = server.send(&request).unwrap();
        assert!(matches!(proof.response_key, Some(IntegrityKey::Sha1(_))));
        assert!(answer_verifies(
            &proof,
            &IntegrityKey::sha1(&md5_of("alice", "wonderland"))
        ));

        let request = server.request(Some(PasswordAlgorithm::Md5), integrity);
        let proof = server.send(&request).unwrap();
        assert!(matches!(proof.response_key, Some(IntegrityKey::Sha256(_))));
        assert!(answer_verifies(
            &proof,
            &IntegrityKey::sha256(&md5_of("alice", "wonderland"))
        ));

        let request = server.request(Some(PasswordAlgorithm::Sha256), integrity);
        let proof = server.send(&request).unwrap();
        let key = long_term_key_sha256(b"alice", b"example.org", b"wonderland");
        assert!(answer_verifies(&proof, &IntegrityKey::sha256(&key)));
    }
}

#[test]
fn answers_400_without_a_challenge_when_what_integrity_needs_is_missing() {
    //= STUN-047
    //= STUN-048
    let mut server = Server::with_users();
    let whole = server.md5_request();
    let bad = Rejection {
        code: 400,
        challenge: None,
        may_be_asked: false,
        why: Some(Refusal::CredentialsMalformed),
    };
    for request in [
        Request {
            username: None,
            ..whole.clone()
        },
        Request {
            realm: None,
            ..whole.clone()
        },
        Request {
            nonce: None,
            ..whole
        },
    ] {
        for integrity in [Integrity::Sha1, Integrity::Sha256] {
            let request = Request {
                integrity: Some(integrity),
                ..request.clone()
            };
            assert_eq!(server.send(&request).unwrap_err(), bad);
        }
    }
}

#[test]
fn answers_400_to_attributes_that_cannot_be_read() {
    //= STUN-074
    //= STUN-081
    //= STUN-082
    let mut server = Server::with_users();
    let whole = server.md5_request();
    for request in [
        Request {
            username: Some(vec![b'a'; 764]),
            ..whole.clone()
        },
        Request {
            realm: Some(vec![b'a'; 128]),
            ..whole.clone()
        },
        Request {
            nonce: Some(vec![b'a'; 128]),
            ..whole.clone()
        },
        Request {
            username: None,
            userhash: Some(vec![0; 31]),
            ..whole
        },
    ] {
        assert_eq!(server.send_raw(&request.bytes()).unwrap_err().code, 400);
    }
}

#[test]
fn answers_401_to_unknown_users_wrong_passwords_and_wrong_realms() {
    //= STUN-051
    //= STUN-052
    let mut server = Server::with_users();
    let whole = server.md5_request();
    let userhash = turnbuckle_wire::userhash(b"nobody", b"example.org").to_vec();
    for request in [
        Request {
            username: Some(b"nobody".to_vec()),
            ..whole.clone()
        },
        Request {
            username: None,
            userhash: Some(userhash),
            ..whole.clone()
        },
        Request {
            password: "looking-glass".into(),
            ..whole.clone()
        },
        Request {
            realm: Some(b"example.com".to_vec()),
            ..whole.clone()
        },
        Request {
            username: Some(vec![0xff, 0xfe]),
            ..whole.clone()
        },
        Request {
            username: Some(vec![]),
            ..whole
        },
    ] {
        for integrity in [Integrity::Sha1, Integrity::Sha256] {
            let request = Request {
                integrity: Some(integrity),
                ..request.clone()
            };
            let rejection = server.send(&request).unwrap_err();
            assert_eq!(rejection.code, 401);
            let challenge = rejection.challenge.unwrap();
            assert_eq!(&*challenge.realm, "example.org");
            assert_eq!(challenge.password_algorithms.len(), 2);
        }
    }
}

#[test]
fn answers_438_to_a_nonce_that_was_not_issued_before_the_user_is_looked_up() {
    //= V-22
    //= V-26
    let mut server = Server::with_users();
    let whole = Request {
        nonce: Some(b"deadbeefdeadbeefdeadbeef".to_vec()),
        ..server.md5_request()
    };
    let of_nobody = Request {
        username: Some(b"nobody".to_vec()),
        ..whole.clone()
    };
    let forged = Request {
        password: "looking-glass".into(),
        ..whole.clone()
    };
    for request in [whole, of_nobody, forged] {
        let rejection = server.send(&request).unwrap_err();
        assert_eq!(rejection.code, 438);
        assert!(!rejection.may_be_asked);
        let nonce = rejection.challenge.unwrap().nonce.as_bytes().to_vec();
        assert!(
            server
                .send(&Request {
                    nonce: Some(nonce),
                    username: Some(b"alice".to_vec()),
                    password: "wonderland".into(),
                    ..request
                })
                .is_ok()
        );
    }
}

#[test]
fn plain_nonces_have_16_characters_and_offer_nothing() {
    let mut config = users();
    config.dialect.plain_nonces = true;
    let mut server = Server::new(&config);
    let challenge = server
        .send(&Request::first())
        .unwrap_err()
        .challenge
        .unwrap();
    assert_eq!(challenge.nonce.as_bytes().len(), 16);
    assert!(challenge.password_algorithms.is_empty());
    let request = server.md5_request();
    assert!(server.send(&request).is_ok());
    for at in 0..16 {
        let mut changed = request.clone();
        changed.nonce.as_mut().unwrap()[at] ^= 1;
        assert_eq!(server.send(&changed).unwrap_err().code, 438, "{at}");
    }
    server.advance(600);
    assert_eq!(server.send(&request).unwrap_err().code, 438);
}

#[test]
fn a_password_counts_as_it_is_written_and_as_it_is_prepared() {
    //= STUN-074
    //= V-25
    let passwords = [
        ("cafe\u{301}", Some("caf\u{e9}")),
        ("two\u{a0}words", Some("two words")),
        ("two\u{3000}words", Some("two words")),
        ("\u{212b}ngstrom", Some("\u{c5}ngstrom")),
        ("\u{1112}\u{1161}\u{11ab}gul", None),
        ("soft\u{ad}hyphen", None),
        ("\u{1f468}\u{200d}\u{1f469}", None),
        ("tab\tbed", None),
    ];
    for (written, prepared) in passwords {
        let mut config = AuthConfig::new("example.org").unwrap();
        config.add_user("alice", written).unwrap();
        config.add_user("bob", "builder").unwrap();
        let mut server = Server::new(&config);
        let tried = [
            (written, true),
            (prepared.unwrap_or(written), true),
            ("cafe", false),
        ];
        for (password, is_good) in tried {
            for algorithm in [PasswordAlgorithm::Md5, PasswordAlgorithm::Sha256] {
                let request = Request {
                    password: password.into(),
                    ..server.request(Some(algorithm), Integrity::Sha1)
                };
                let proof = server.send(&request);
                assert_eq!(proof.is_ok(), is_good, "{password:?} {algorithm:?}");
                let of_another = Request {
                    username: Some(b"bob".to_vec()),
                    ..request
                };
                assert_eq!(server.send(&of_another).unwrap_err().code, 401);
            }
            let (now, realm) = (server.now, "example.org");
            let by_password =
                (server.authenticator).check_password(now, realm, "alice", password, false);
            assert_eq!(by_password.is_ok(), is_good, "{password:?}");
        }
    }
    let latin_1 = b"caf\xe9";
    let mut realm = Realm::new("example.org").unwrap();
    realm.add_user("alice", latin_1).unwrap();
    assert!(realm.has_user("alice"));
}

#[test]
fn a_changed_user_loses_the_password_that_was_written() {
    let mut realm = Realm::new("example.org").unwrap();
    realm.add_user("alice", "cafe\u{301}").unwrap();
    let mut shared = Realm::new("example.org").unwrap();
    shared.share_users(&realm);
    assert!(shared.written().has("alice", "example.org"));
    assert_eq!(realm.put_user_by_md5_key("alice", [7; 16]), Ok(true));
    assert!(!realm.written().has("alice", "example.org"));
    assert!(shared.remove_user("alice"));
    assert!(!shared.written().has("alice", "example.org"));
}

#[test]
fn a_shared_secret_counts_as_it_is_written_and_as_it_is_prepared() {
    let realm_of = |secret: &str| {
        let mut realm = Realm::new("example.org").unwrap();
        realm.add_rest_secret(secret.as_bytes()).unwrap();
        realm
    };
    let (decomposed, composed) = (realm_of("cafe\u{301}"), realm_of("caf\u{e9}"));
    assert_eq!(
        (decomposed.secrets().len(), composed.secrets().len()),
        (2, 1)
    );
    let mut secrets = decomposed.secrets().iter();
    assert!(secrets.any(|secret| secret.is_same_as(&composed.secrets()[0])));
}

#[test]
fn a_wrong_realm_is_a_mismatch_where_coturns_answers_are_wanted() {
    let mut config = users();
    config.dialect.wrong_realm_is_mismatch = true;
    let mut server = Server::new(&config);
    let whole = server.md5_request();
    for nonce in [whole.nonce.clone(), Some(b"never issued".to_vec())] {
        for (method, code) in [
            (Method::ALLOCATE, 437),
            (Method::REFRESH, 441),
            (Method::CREATE_PERMISSION, 441),
            (
                Method::CONNECTION_BIND,
                if nonce == whole.nonce { 401 } else { 438 },
            ),
        ] {
            let request = Request {
                method,
                nonce: nonce.clone(),
                realm: Some(b"example.com".to_vec()),
                ..whole.clone()
            };
            let rejection = server.send(&request).unwrap_err();
            assert_eq!(rejection.code, code, "{method:?}");
            assert_eq!(rejection.challenge.is_some(), matches!(code, 401 | 438));
        }
    }
}

#[test]
fn prefers_sha256_when_both_integrity_attributes_are_there() {
    //= STUN-052
    let mut server = Server::with_users();
    let request = server.md5_request();
    // A right MESSAGE-INTEGRITY followed by a wrong MESSAGE-INTEGRITY-SHA256.
    let key = IntegrityKey::sha1(&md5_of("alice", "wonderland"));
    let wrong = IntegrityKey::sha256(b"wrong");
    let bytes = request.write(|writer| {
        writer.integrity(&key).integrity(&wrong);
    });
    assert_eq!(server.send_raw(&bytes).unwrap_err().code, 401);
    let right = IntegrityKey::sha256(&md5_of("alice", "wonderland"));
    let bytes = request.write(|writer| {
        writer.integrity(&wrong_sha1()).integrity(&right);
    });
    assert!(server.send_raw(&bytes).is_ok());
}

#[test]
fn refuses_a_truncated_sha256_integrity() {
    //= STUN-077
    //= STUN-078
    let mut server = Server::with_users();
    let request = Request {
        integrity: Some(Integrity::Sha256),
        ..server.md5_request()
    };
    let bytes = request.bytes();
    // The integrity attribute is the last one: cut 16 bytes off its value.
    let mut cut = bytes[..bytes.len() - 16].to_vec();
    let at = bytes.len() - 34;
    cut[at..at + 2].copy_from_slice(&16_u16.to_be_bytes());
    let length = u16::try_from(cut.len() - 20).unwrap();
    cut[2..4].copy_from_slice(&length.to_be_bytes());
    assert!(Message::parse(&cut).unwrap().has_integrity_sha256());
    assert_eq!(server.send_raw(&cut).unwrap_err().code, 401);
    assert!(server.send_raw(&bytes).is_ok());
}

#[test]
fn answers_438_with_a_good_nonce_when_the_nonce_is_too_old() {
    //= STUN-053
    //= TURN-004
    let mut server = Server::with_users();
    let request = server.md5_request();
    server.advance(599);
    assert!(server.send(&request).is_ok());
    server.advance(1);
    let rejection = server.send(&request).unwrap_err();
    assert_eq!(rejection.code, 438);
    let challenge = rejection.challenge.unwrap();
    assert_eq!(&*challenge.realm, "example.org");
    assert_eq!(challenge.password_algorithms.len(), 2);
    let again = Request {
        nonce: Some(challenge.nonce.as_bytes().to_vec()),
        ..request
    };
    assert!(server.send(&again).is_ok());
}

#[test]
fn a_wrong_password_is_401_even_with_a_stale_nonce() {
    //= STUN-052
    let mut server = Server::with_users();
    let request = Request {
        password: "looking-glass".into(),
        ..server.md5_request()
    };
    server.advance(3600);
    assert_eq!(server.send(&request).unwrap_err().code, 401);
}

#[test]
fn finds_users_by_userhash() {
    //= STUN-075
    let mut server = Server::with_users();
    let userhash = turnbuckle_wire::userhash(b"alice", b"example.org").to_vec();
    let request = Request {
        username: None,
        userhash: Some(userhash),
        ..server.md5_request()
    };
    assert_eq!(&*server.send(&request).unwrap().user.name, "alice");
}

#[test]
fn asks_for_no_userhash_when_names_come_from_a_web_service() {
    //= STUN-045
    let mut config = users();
    config.add_rest_secret(b"secret").unwrap();
    let mut server = Server::new(&config);
    let challenge = server
        .send(&Request::first())
        .unwrap_err()
        .challenge
        .unwrap();
    assert_eq!(&challenge.nonce.as_bytes()[..13], b"obMatJos2gAAA");
}

#[test]
fn nobody_gets_in_without_users() {
    let mut server = Server::new(&AuthConfig::new("example.org").unwrap());
    for password in ["", "wonderland"] {
        let request = Request {
            password: password.into(),
            ..server.md5_request()
        };
        assert_eq!(server.send(&request).unwrap_err().code, 401);
        let request = Request {
            username: Some(vec![]),
            ..request
        };
        assert_eq!(server.send(&request).unwrap_err().code, 401);
    }
}

#[test]
fn nonces_survive_a_change_of_configuration() {
    //= V-22
    let mut server = Server::with_users();
    let request = server.md5_request();
    let mut config = users();
    config.add_user("carol", "mirror").unwrap();
    server
        .authenticator
        .reconfigure(&config, &mut server.random);
    assert!(server.send(&request).is_ok());
    // A change of what is offered makes a nonce worthless, and says so with 438.
    config.password_algorithms = PasswordAlgorithmChoice::Md5Only;
    server
        .authenticator
        .reconfigure(&config, &mut server.random);
    assert_eq!(server.send(&request).unwrap_err().code, 438);
}
