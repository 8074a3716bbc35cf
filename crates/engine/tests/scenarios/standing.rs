//! What holds of every answer, and which mechanisms there are not.

use turnbuckle_engine::{AuthConfig, DropReason, Fingerprint, Outcome, Transport};
use turnbuckle_wire::{
    AddressFamily, AttributeType, Class, IntegrityKey, Method, TransactionId, long_term_key_md5,
};

use crate::support::*;

const ID: TransactionId = TransactionId::new(*b"standing----");
/// Datagram payload that every IPv4 host takes: 576 bytes less the headers of IP and UDP (RFC 8489 §6.1).
const SMALLEST_PATH: usize = 548;

/// With everything that can make an answer long, one to a request that fits the smallest path fits it as well.
//= STUN-006
#[test]
fn no_answer_is_too_long_for_a_path_that_its_request_came_by() {
    let realm = "r".repeat(127);
    let mut server = Server::with(|config| {
        config.auth = AuthConfig::new(&realm).unwrap();
        config.auth.add_user("alice", "wonderland").unwrap();
        config.answers.fingerprint = Fingerprint::Always;
        config.answers.software = Some("S".repeat(60).into());
        config.answers.detailed_reasons = true;
        config.binding.mapped_address = true;
    });
    let mut longest = 0;
    let mut check = |answer: &Answer| {
        assert!(answer.0.len() <= SMALLEST_PATH, "{}", answer.0.len());
        longest = longest.max(answer.0.len());
    };
    let remote = "[2001:db8::77]:50000";
    let challenge = server.exchange(tuple(remote), &first_request(ID));
    check(&challenge);
    let key = IntegrityKey::sha1(&long_term_key_md5(
        b"alice",
        realm.as_bytes(),
        b"wonderland",
    ));
    let nonce = challenge.message().nonce().unwrap().unwrap().to_vec();
    let mut number = 0;
    let mut signed = |method, fill: bool| {
        number += 1;
        let mut id = *b"standing----";
        id[11] = number;
        bare(method, TransactionId::new(id), |writer| {
            if method == Method::ALLOCATE {
                writer.requested_transport(17);
                if !fill {
                    writer.additional_address_family(AddressFamily::V6);
                }
            }
            if fill {
                for kind in 0..60 {
                    writer.flag(AttributeType::new(0x7000 + kind));
                }
            }
            writer
                .username(b"alice")
                .realm(realm.as_bytes())
                .nonce(&nonce)
                .integrity(&key);
        })
    };
    for method in [Method::ALLOCATE, Method::REFRESH, Method::CHANNEL_BIND] {
        let request = signed(method, true);
        assert!(request.len() <= SMALLEST_PATH, "{}", request.len());
        let answer = server.exchange(tuple(remote), &request);
        assert_eq!(answer.code(), Some(420));
        check(&answer);
    }
    let answer = server.exchange(tuple(remote), &signed(Method::ALLOCATE, false));
    assert_eq!(answer.success().xor_relayed_addresses().count(), 2);
    check(&answer);
    for method in [Method::CREATE_PERMISSION, Method::CHANNEL_BIND] {
        check(&server.exchange(tuple(remote), &signed(method, false)));
    }
    let mut unknown = bare(Method::BINDING, ID, |writer| {
        for kind in 0..132 {
            writer.flag(AttributeType::new(0x7000 + kind));
        }
    });
    assert_eq!(unknown.len(), SMALLEST_PATH);
    check(&server.exchange(tuple(remote), &unknown));
    unknown = bare(Method::BINDING, ID, |_| {});
    check(&server.exchange(tuple(remote), &unknown));
    assert!(longest > 300, "{longest}: something was long");
}

/// TURN takes the long-term mechanism alone. Short-term credentials, which have neither realm nor nonce, are those of nobody, also where the name and
/// the key are a user's; so what RFC 8489 §9.1 says of answers holds for none.
//= STUN-036
//= STUN-037
//= STUN-038
//= STUN-039
#[test]
fn short_term_credentials_are_not_offered() {
    let mut server = Server::with(|config| config.binding.secure_stun = true);
    for (name, password) in [("alice", "wonderland"), ("alice", "wrong"), ("nobody", "x")] {
        for method in [Method::BINDING, Method::ALLOCATE, Method::REFRESH] {
            for key in [
                IntegrityKey::sha1(password.as_bytes()),
                IntegrityKey::sha256(password.as_bytes()),
            ] {
                let request = bare(method, ID, |writer| {
                    writer.username(name.as_bytes()).integrity(&key);
                });
                let answer = server.exchange(tuple(CLIENT), &request);
                assert_eq!(answer.code(), Some(400), "{method:?} by {name}");
                let message = answer.message();
                assert!(!message.has_integrity_sha1() && !message.has_integrity_sha256());
                assert!(!message.contains(AttributeType::USERNAME));
            }
        }
        // An indication is judged by no credentials at all.
        let indication = message(Class::Indication, Method::SEND, ID, |writer| {
            writer
                .xor_peer_address(PEER.parse().unwrap())
                .data(b"data")
                .username(name.as_bytes())
                .integrity(&IntegrityKey::sha1(password.as_bytes()));
        });
        let outcome = server.receive(tuple(CLIENT), &indication);
        assert_eq!(outcome, Outcome::Dropped(DropReason::NoAllocation));
        assert_eq!(server.replies.len(), 0);
    }
    server.assert_nothing_is_held();
}

/// The same name and password in another realm are somebody else's.
//= TURN-003
#[test]
fn credentials_are_those_of_the_servers_realm_alone() {
    let mut server = Server::start();
    let client = server.client(CLIENT);
    for realm in ["example.com", "EXAMPLE.ORG", "example.org ", ""] {
        let key = IntegrityKey::sha1(&long_term_key_md5(
            b"alice",
            realm.as_bytes(),
            b"wonderland",
        ));
        for named in [realm, REALM] {
            let request = bare(Method::ALLOCATE, ID, |writer| {
                writer
                    .requested_transport(17)
                    .username(b"alice")
                    .realm(named.as_bytes())
                    .nonce(&client.nonce)
                    .integrity(&key);
            });
            let answer = server.exchange(client.tuple, &request);
            assert!(
                matches!(answer.code(), Some(400 | 401)),
                "{realm:?} as {named:?}"
            );
        }
    }
    server.assert_nothing_is_held();
}

//= STUN-063 DTLS-05
#[test]
fn classic_stun_over_dtls_is_an_error() {
    let mut server = Server::start();
    let mut from = tuple(CLIENT);
    from.transport = Transport::Dtls;
    let classic = |kind: u16, attributes: &[u8]| {
        let mut bytes = kind.to_be_bytes().to_vec();
        bytes.extend(u16::try_from(attributes.len()).unwrap().to_be_bytes());
        bytes.extend(*b"sixteen-bytes-id");
        bytes.extend(attributes);
        bytes
    };
    // Binding, and RFC 3489's Shared Secret.
    for kind in [0x0001, 0x0002] {
        assert_eq!(server.receive(from, &classic(kind, &[])), Outcome::Done);
        let (to, answer) = server.replies.pop().unwrap();
        assert_eq!(to, from);
        let mut expected = classic(kind | 0x0110, &[0, 9, 0, 4, 0, 0, 5, 0]);
        assert_eq!(answer, expected);
        // Indications, responses, lengths that are wrong: silence.
        for ignored in [kind | 0x0010, kind | 0x0100, kind | 0x0110] {
            let outcome = server.receive(from, &classic(ignored, &[]));
            assert_eq!(outcome, Outcome::Dropped(DropReason::MalformedStun));
        }
        expected.truncate(24);
        expected[0] = 0;
        expected[1] = 1;
        let outcome = server.receive(from, &expected);
        assert_eq!(outcome, Outcome::Dropped(DropReason::MalformedStun));
        // Elsewhere it is no message at all.
        let outcome = server.receive(tuple(CLIENT), &classic(kind, &[]));
        assert_eq!(outcome, Outcome::Dropped(DropReason::MalformedStun));
    }
    assert_eq!(server.replies, []);
}
