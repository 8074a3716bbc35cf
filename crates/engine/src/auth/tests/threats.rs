//! What an attacker tries.

use super::*;

/// Returns the answer as bytes, but for the nonce.
fn answer(rejection: Rejection) -> Vec<u8> {
    let mut buffer = vec![0; 512];
    let id = TransactionId::new([7; 12]);
    let mut writer = MessageWriter::new(&mut buffer, Class::Error, Method::ALLOCATE, id);
    writer.error_code(rejection.code, "");
    if let Some(challenge) = rejection.challenge {
        writer.realm(challenge.realm.as_bytes());
        writer.bytes(AttributeType::NONCE, &[b'n'; Nonce::LEN]);
        writer.password_algorithms(challenge.password_algorithms);
        assert_eq!(challenge.nonce.as_bytes().len(), Nonce::LEN);
    }
    let len = writer.finish().unwrap();
    buffer.truncate(len);
    buffer
}

#[test]
fn an_unknown_user_and_a_wrong_password_get_the_same_bytes() {
    //= V-26
    let mut config = users();
    config.add_rest_secret(b"north").unwrap();
    for mut server in [Server::with_users(), Server::new(&config)] {
        let whole = server.md5_request();
        let mut send = |request: Request| answer(server.send(&request).unwrap_err());
        let wrong = send(Request {
            password: "looking-glass".into(),
            ..whole.clone()
        });
        let hash = |name: &[u8]| Some(turnbuckle_wire::userhash(name, REALM.as_bytes()).to_vec());
        for request in [
            Request {
                username: Some(b"nobody".to_vec()),
                ..whole.clone()
            },
            Request {
                username: Some(b"1700000000:expired".to_vec()),
                ..whole.clone()
            },
            Request {
                username: Some(b"1900000000:forged".to_vec()),
                ..whole.clone()
            },
            Request {
                username: None,
                userhash: hash(b"nobody"),
                ..whole.clone()
            },
            Request {
                username: None,
                userhash: hash(b"alice"),
                password: "x".into(),
                ..whole.clone()
            },
            Request {
                realm: Some(b"elsewhere".to_vec()),
                ..whole.clone()
            },
        ] {
            assert_eq!(send(request), wrong);
        }
        assert_eq!(
            answer(server.send(&Request::first()).unwrap_err()),
            wrong,
            "and so does no user at all"
        );
    }
}

#[test]
fn a_challenge_is_short() {
    //= V-40
    let mut server = Server::with_users();
    let answer = answer(server.send(&Request::first()).unwrap_err());
    assert_eq!(
        answer.len(),
        20 + 8 + 16 + 32 + 12,
        "header, code, realm of 11, nonce, algorithms"
    );
}

#[test]
fn a_captured_request_is_worth_nothing_from_elsewhere() {
    //= STUN-043
    //= V-22
    let mut server = Server::with_users();
    let captured = server.md5_request().bytes();
    assert!(server.send_raw(&captured).is_ok());
    let home = server.client;
    for client in [
        "198.51.100.7:40001",
        "198.51.100.8:40000",
        "[2606:4700::7]:40000",
    ] {
        server.client = client.parse().unwrap();
        let rejection = server.send_raw(&captured).unwrap_err();
        assert_eq!(rejection.code, 438, "{client}");
        let fresh = rejection.challenge.unwrap().nonce.as_bytes().to_vec();
        let retried = Request {
            nonce: Some(fresh),
            ..server.md5_request()
        };
        assert!(
            server.send(&retried).is_ok(),
            "the nonce in a 438 is good: {client}"
        );
    }
    server.client = home;
    server.listener = "203.0.113.1:3479".parse().unwrap();
    assert_eq!(server.send_raw(&captured).unwrap_err().code, 438);
}

#[test]
fn nonces_of_two_clients_differ_and_so_do_two_of_one_client() {
    //= STUN-043
    //= V-20
    let mut server = Server::with_users();
    let mut seen = std::collections::HashSet::new();
    for port in 40000..40100 {
        server.client.set_port(port);
        for _ in 0..10 {
            assert!(seen.insert(server.nonce()));
        }
    }
}

#[test]
fn a_stripped_list_is_never_a_success() {
    //= STUN-057
    //= V-27
    let mut server = Server::with_users();
    let whole = server.request(Some(PasswordAlgorithm::Sha256), Integrity::Sha256);
    let key = long_term_key_sha256(b"alice", REALM.as_bytes(), b"wonderland");
    let sign = |request: &Request| {
        request.write(|writer| {
            writer.integrity(&IntegrityKey::sha256(&key));
        })
    };
    assert!(server.send_raw(&sign(&whole)).is_ok());
    let no_list = Request {
        list: None,
        ..whole.clone()
    };
    let no_choice = Request {
        algorithm: None,
        ..whole.clone()
    };
    let neither = Request {
        list: None,
        algorithm: None,
        ..whole
    };
    assert_eq!(server.send_raw(&sign(&no_list)).unwrap_err().code, 400);
    assert_eq!(server.send_raw(&sign(&no_choice)).unwrap_err().code, 400);
    assert_eq!(
        server.send_raw(&sign(&neither)).unwrap_err().code,
        401,
        "not the MD5 key"
    );
}

#[test]
fn a_nonce_that_announces_less_than_was_sent_is_never_a_success() {
    //= V-27
    // The attacker on the path clears the feature bits in the challenge, so that the client falls back to MD5 and USERNAME.
    let mut server = Server::with_users();
    for cookie in [
        &b"obMatJos2AAAA"[..],
        b"obMatJos2QAAA",
        b"obMatJos2gAAA",
        b"",
    ] {
        let mut request = server.md5_request();
        let nonce = request.nonce.take().unwrap();
        request.nonce = Some([cookie, &nonce[13..]].concat());
        assert_eq!(
            server.send(&request).unwrap_err().code,
            438,
            "{}",
            cookie.escape_ascii()
        );
    }
}

#[test]
fn an_expired_credential_is_refused_as_the_policy_says() {
    //= V-32
    for (check, refresh) in [
        (CredentialExpiry::Request, false),
        (CredentialExpiry::Allocation, true),
    ] {
        let mut config = AuthConfig::new(REALM).unwrap();
        config.add_rest_secret(b"north").unwrap();
        config.credential_expiry = check;
        let mut server = Server::new(&config);
        let allocate = rest_request(&mut server, Method::ALLOCATE);
        let proof = server.send(&allocate).unwrap();
        assert_eq!(proof.user.expires_unix_s, Some(START + 600));
        server.advance(601);
        let allocate = rest_request(&mut server, Method::ALLOCATE);
        assert_eq!(server.send(&allocate).unwrap_err().code, 401);
        for method in [
            Method::REFRESH,
            Method::CREATE_PERMISSION,
            Method::CHANNEL_BIND,
        ] {
            let request = rest_request(&mut server, method);
            assert_eq!(
                server.send(&request).is_ok(),
                refresh,
                "{check:?} {method:?}"
            );
        }
    }
}

#[test]
fn setting_the_clock_back_revives_nothing() {
    //= V-32
    let mut config = AuthConfig::new(REALM).unwrap();
    config.add_rest_secret(b"north").unwrap();
    let mut server = Server::new(&config);
    server.advance(601);
    let request = rest_request(&mut server, Method::ALLOCATE);
    assert_eq!(server.send(&request).unwrap_err().code, 401);
    server.now.unix_s -= 3600;
    let request = rest_request(&mut server, Method::ALLOCATE);
    assert_eq!(server.send(&request).unwrap_err().code, 401);

    // What is good stays good for the time it has, going by the monotonic clock.
    let mut server = Server::new(&config);
    let request = rest_request(&mut server, Method::ALLOCATE);
    assert!(server.send(&request).is_ok());
    server.now.unix_s -= 3600;
    for (seconds, is_good) in [(600, true), (1, false)] {
        for _ in 0..seconds * 10 {
            server.now.time = server.now.time + Duration::from_millis(100);
            let _ = server.send(&Request::first());
        }
        let request = rest_request(&mut server, Method::ALLOCATE);
        assert_eq!(server.send(&request).is_ok(), is_good);
    }
}

#[test]
fn a_clock_set_back_does_not_freshen_a_nonce() {
    //= V-22
    let mut server = Server::with_users();
    let request = server.md5_request();
    server.advance(600);
    assert_eq!(server.send(&request).unwrap_err().code, 438);
    server.now.unix_s -= 600;
    assert_eq!(server.send(&request).unwrap_err().code, 438);
}

/// Returns a request with a credential that ends 600 s after the start.
fn rest_request(server: &mut Server, method: Method) -> Request {
    Request {
        method,
        username: Some(b"1800000600:alice".to_vec()),
        key_name: "1800000600:alice".into(),
        password: "8ZET7dsUGGXZ8WEDxmkDf0cN13Y=".into(),
        ..server.md5_request()
    }
}

#[test]
fn rejected_requests_leave_nothing_behind() {
    //= V-21
    let mut config = users();
    config.add_rest_secret(b"north").unwrap();
    let mut server = Server::new(&config);
    let whole = server.md5_request();
    for number in 0..2_000 {
        let name = format!("{}:{number}", START + 600);
        let request = Request {
            username: Some(name.into_bytes()),
            ..whole.clone()
        };
        assert_eq!(server.send(&request).unwrap_err().code, 401);
    }
    assert_eq!(server.authenticator.credentials.recent_len(), 0);
}

#[test]
fn attributes_behind_the_integrity_attribute_are_not_seen() {
    //= STUN-034
    //= STUN-035
    //= V-23
    let mut server = Server::with_users();
    let whole = server.md5_request();
    let key = IntegrityKey::sha1(&md5_of("alice", "wonderland"));
    let nameless = Request {
        username: None,
        ..whole
    };
    let mut bytes = nameless.write(|writer| {
        writer.integrity(&key);
    });
    bytes.extend_from_slice(b"\x00\x06\x00\x05alice\0\0\0");
    let length = u16::try_from(bytes.len() - 20).unwrap();
    bytes[2..4].copy_from_slice(&length.to_be_bytes());
    assert_eq!(server.send_raw(&bytes).unwrap_err().code, 400);
}

#[test]
fn the_first_of_two_usernames_counts() {
    //= STUN-071
    //= V-24
    let mut server = Server::with_users();
    let whole = server.md5_request();
    let key = IntegrityKey::sha1(&md5_of("alice", "wonderland"));
    let bytes = whole.write(|writer| {
        writer.username(b"bob").integrity(&key);
    });
    assert_eq!(&*server.send_raw(&bytes).unwrap().user.name, "alice");
}

#[test]
fn secrets_do_not_show_in_debug_output() {
    //= V-74
    //= TURN-017
    let mut config = users();
    config.add_rest_secret(b"northern-light").unwrap();
    config.nonce_key = Some(NonceKey::from_secret(b"northern-light"));
    let printed = format!("{config:?}");
    for secret in ["wonderland", "builder", "northern-light"] {
        assert!(!printed.contains(secret), "{printed}");
    }
    let mut server = Server::with_users();
    let request = server.md5_request();
    let printed = format!("{:?}", server.send(&request).unwrap());
    assert!(!printed.contains("wonderland"), "{printed}");
}
