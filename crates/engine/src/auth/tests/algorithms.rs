//! PASSWORD-ALGORITHMS and PASSWORD-ALGORITHM, in every combination.

use super::*;
use crate::credential::CredentialError;

const SHA256: PasswordAlgorithm = PasswordAlgorithm::Sha256;
const MD5: PasswordAlgorithm = PasswordAlgorithm::Md5;
const OTHER: PasswordAlgorithm = PasswordAlgorithm::Unknown(0x7777);

fn code(result: Result<Proof, Rejection>) -> u16 {
    result.map_or_else(|rejection| rejection.code, |_| 200)
}

#[test]
fn the_two_attributes_go_together_and_repeat_what_was_sent() {
    //= STUN-049
    //= STUN-050
    //= STUN-057
    //= V-27
    let mut server = Server::with_users();
    let sent = vec![SHA256, MD5];
    for (list, algorithm, expected) in [
        (None, None, 200),
        (Some(sent.clone()), Some(SHA256), 200),
        (Some(sent.clone()), Some(MD5), 200),
        // One without the other.
        (Some(sent.clone()), None, 400),
        (None, Some(SHA256), 400),
        (None, Some(MD5), 400),
        // Another list than was sent: shortened, reordered, extended, empty.
        (Some(vec![MD5]), Some(MD5), 400),
        (Some(vec![SHA256]), Some(SHA256), 400),
        (Some(vec![MD5, SHA256]), Some(SHA256), 400),
        (Some(vec![SHA256, MD5, OTHER]), Some(SHA256), 400),
        (Some(vec![]), Some(MD5), 400),
        // A choice that the list does not have.
        (Some(sent), Some(OTHER), 400),
    ] {
        for integrity in [Integrity::Sha1, Integrity::Sha256] {
            let request = Request {
                list: list.clone(),
                algorithm,
                ..server.request(None, integrity)
            };
            let result = server.send(&request);
            if let Err(rejection) = &result {
                assert_eq!(rejection.challenge.is_some(), rejection.code != 400);
            }
            assert_eq!(code(result), expected, "{list:?} {algorithm:?}");
        }
    }
}

#[test]
fn without_a_choice_of_algorithms_the_attributes_mean_nothing() {
    //= STUN-044
    //= STUN-050
    let mut config = users();
    config.password_algorithms = PasswordAlgorithmChoice::Md5Only;
    let mut server = Server::new(&config);
    let challenge = server
        .send(&Request::first())
        .unwrap_err()
        .challenge
        .unwrap();
    assert!(challenge.password_algorithms.is_empty());
    assert_eq!(&challenge.nonce.as_bytes()[..13], b"obMatJos2QAAA");
    let request = server_request(&mut server, None, None);
    assert!(server.send(&request).is_ok());
    // The nonce announced no choice, so what the client says about one is not looked at.
    let request = server_request(&mut server, Some(vec![MD5]), Some(MD5));
    let proof = server.send(&request).unwrap();
    assert!(matches!(proof.response_key, Some(IntegrityKey::Sha1(_))));
}

#[test]
fn md5_can_be_switched_off() {
    //= STUN-088
    //= V-27
    let mut config = users();
    config.password_algorithms = PasswordAlgorithmChoice::Sha256Only;
    let mut server = Server::new(&config);
    let challenge = server
        .send(&Request::first())
        .unwrap_err()
        .challenge
        .unwrap();
    assert_eq!(challenge.password_algorithms, [SHA256]);
    let request = server_request(&mut server, Some(vec![SHA256]), Some(SHA256));
    assert_eq!(server.send(&request).unwrap().algorithm, SHA256);
    let request = server_request(&mut server, None, None);
    assert_eq!(server.send(&request).unwrap_err().code, 401);
    let request = server_request(&mut server, Some(vec![SHA256, MD5]), Some(MD5));
    assert_eq!(server.send(&request).unwrap_err().code, 400);
}

#[test]
fn a_user_known_by_its_key_makes_md5_the_only_choice() {
    let mut config = users();
    config
        .add_user_by_md5_key("dave", md5_of("dave", "lister"))
        .unwrap();
    let mut server = Server::new(&config);
    let challenge = server
        .send(&Request::first())
        .unwrap_err()
        .challenge
        .unwrap();
    assert_eq!(challenge.password_algorithms, [MD5]);
    let dave = Request {
        username: Some(b"dave".to_vec()),
        key_name: "dave".into(),
        password: "lister".into(),
        ..server_request(&mut server, Some(vec![MD5]), Some(MD5))
    };
    assert_eq!(&*server.send(&dave).unwrap().user.name, "dave");
    assert_eq!(config.users_without_sha256().collect::<Vec<_>>(), ["dave"]);
}

fn server_request(
    server: &mut Server,
    list: Option<Vec<PasswordAlgorithm>>,
    algorithm: Option<PasswordAlgorithm>,
) -> Request {
    Request {
        list,
        algorithm,
        ..server.request(None, Integrity::Sha256)
    }
}

#[test]
fn users_are_configured_as_coturn_writes_them() {
    let mut config = AuthConfig::new(REALM).unwrap();
    config.add_user_text("alice:wonder:land").unwrap();
    config
        .add_user_text("dave:0x8493fbc53ba582fb4c044c456bdc40eb")
        .unwrap();
    for (text, error) in [
        ("erin", CredentialError::Form),
        ("erin:0x8493", CredentialError::Form),
        (
            "erin:0x8493fbc53ba582fb4c044c456bdc40eg",
            CredentialError::Form,
        ),
        (
            "erin:0x+493fbc53ba582fb4c044c456bdc40eb",
            CredentialError::Form,
        ),
        (":secret", CredentialError::Empty),
        ("erin:", CredentialError::Empty),
        ("alice:again", CredentialError::Duplicate),
        ("er\nin:secret", CredentialError::Prohibited),
    ] {
        assert_eq!(config.add_user_text(text), Err(error), "{text}");
    }
    let mut server = Server::new(&config);
    let alice = Request {
        password: "wonder:land".into(),
        ..server.md5_request()
    };
    assert!(server.send(&alice).is_ok());
}

#[test]
fn secrets_are_counted_and_not_empty() {
    let mut config = AuthConfig::new(REALM).unwrap();
    assert_eq!(config.add_rest_secret(b""), Err(CredentialError::Empty));
    assert!(!config.has_credentials());
    for _ in 0..AuthConfig::REST_SECRETS_MAX {
        config.add_rest_secret(b"north").unwrap();
    }
    assert!(config.has_credentials());
    assert_eq!(
        config.add_rest_secret(b"north"),
        Err(CredentialError::TooMany)
    );
}
