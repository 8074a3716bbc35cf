//! Several realms on one server, told apart by ORIGIN (draft-ietf-tram-stun-origin).

use core::num::NonZeroU32;

use turnbuckle_engine::{
    Action, AuthConfig, Change, Config, DropReason, Realm, RealmLimits, Rule, TicketKey,
};
use turnbuckle_wire::{IntegrityKey, Method, long_term_key_md5};

use crate::support::*;

const OTHER: &str = "crinna.org";
const ORIGIN: &[u8] = b"https://crinna.org";
const OTHER_CLIENT: &str = "203.0.113.9:9";

/// Adds a second realm with another Alice, whose password is another.
fn two_realms(config: &mut Config) {
    let mut realm = Realm::new(OTHER).unwrap();
    realm.add_user("alice", "sword").unwrap();
    realm.add_user("whirrun", "sword").unwrap();
    config.auth.add_realm(realm);
    config
        .auth
        .add_origin("https://Crinna.org/", OTHER)
        .unwrap();
}

/// Returns a client of the second realm that knows its way already but for the nonce.
fn stranger(name: &str, remote: &str) -> Client {
    let key = long_term_key_md5(name.as_bytes(), OTHER.as_bytes(), b"sword");
    Client {
        tuple: tuple(remote),
        name: name.into(),
        realm: OTHER.into(),
        key: IntegrityKey::sha1(&key),
        nonce: Vec::new(),
        challenged: turnbuckle_engine::Time::ZERO,
        transactions: 7 << 32,
    }
}

/// Returns the realm of the challenge that a request with this ORIGIN gets, and the nonce.
fn challenge(server: &mut Server, client: &mut Client, origin: &[u8]) -> (String, Vec<u8>) {
    let request = bare(Method::ALLOCATE, client.next_transaction(), |writer| {
        writer.requested_transport(17);
        if !origin.is_empty() {
            writer.origin(origin);
        }
    });
    let answer = server.exchange(client.tuple, &request);
    assert_eq!(answer.code(), Some(401));
    let message = answer.message();
    let realm = message.realm().unwrap().unwrap();
    let nonce = message.nonce().unwrap().unwrap();
    (String::from_utf8(realm.to_vec()).unwrap(), nonce.to_vec())
}

/// Returns a client of the second realm that has been challenged there.
fn of_other_realm(server: &mut Server, name: &str, remote: &str) -> Client {
    let mut client = stranger(name, remote);
    let (realm, nonce) = challenge(server, &mut client, ORIGIN);
    assert_eq!(realm, OTHER);
    client.nonce = nonce;
    client
}

/// Returns the code of the answer to an Allocate request, which need not be signed.
fn code_of(server: &mut Server, client: &mut Client, origin: &[u8]) -> Option<u16> {
    let transaction = client.next_transaction();
    let request = client.request(Method::ALLOCATE, transaction, |writer| {
        writer.requested_transport(17);
        if !origin.is_empty() {
            writer.origin(origin);
        }
    });
    server.exchange(client.tuple, &request).code()
}

#[test]
fn the_origin_of_a_request_chooses_the_realm_it_is_challenged_in() {
    let mut server = Server::with(two_realms);
    for (origin, realm) in [
        (&b""[..], REALM),
        (ORIGIN, OTHER),
        (b"HTTPS://crinna.org:443", OTHER),
        (b"http://crinna.org", REALM),
        (b"https://example.net https://crinna.org", OTHER),
        (b"\xff", REALM),
    ] {
        let mut client = stranger("whirrun", OTHER_CLIENT);
        assert_eq!(challenge(&mut server, &mut client, origin).0, realm);
    }
}

#[test]
fn who_is_a_user_in_one_realm_is_none_in_another() {
    //= V-26
    let mut server = Server::with(two_realms);
    let mut whirrun = of_other_realm(&mut server, "whirrun", OTHER_CLIENT);
    assert_eq!(code_of(&mut server, &mut whirrun, ORIGIN), None);
    let mut alice = of_other_realm(&mut server, "alice", "203.0.113.9:10");
    assert_eq!(code_of(&mut server, &mut alice, ORIGIN), None);
    // the other way round: bob is one of the first realm alone, and its Alice has another password
    for (name, password) in [("bob", "builder"), ("alice", "wonderland")] {
        let mut client = of_other_realm(&mut server, name, "203.0.113.9:11");
        let key = long_term_key_md5(name.as_bytes(), OTHER.as_bytes(), password.as_bytes());
        client.key = IntegrityKey::sha1(&key);
        assert_eq!(code_of(&mut server, &mut client, ORIGIN), Some(401));
    }
    let mut first = server.client_of("whirrun", "sword", "203.0.113.9:12");
    assert_eq!(code_of(&mut server, &mut first, b""), Some(401));
}

#[test]
fn a_nonce_is_good_in_the_realm_it_was_given_in() {
    let mut server = Server::with(two_realms);
    let mut client = stranger("whirrun", OTHER_CLIENT);
    client.nonce = challenge(&mut server, &mut client, b"").1;
    assert_eq!(code_of(&mut server, &mut client, ORIGIN), Some(438));
    let mut alice = server.client(CLIENT);
    alice.nonce = challenge(&mut server, &mut alice, ORIGIN).1;
    assert_eq!(code_of(&mut server, &mut alice, b""), Some(438));
}

#[test]
fn a_request_of_another_origin_than_its_realm_is_refused() {
    let mut server = Server::with(two_realms);
    let mut alice = server.client(CLIENT);
    assert_eq!(code_of(&mut server, &mut alice, ORIGIN), Some(438));
    alice.nonce = challenge(&mut server, &mut alice, ORIGIN).1;
    assert_eq!(code_of(&mut server, &mut alice, ORIGIN), Some(401));
    alice.nonce = challenge(&mut server, &mut alice, b"").1;
    assert_eq!(code_of(&mut server, &mut alice, b""), None);
}

#[test]
fn what_a_stranger_says_of_realms_changes_nothing_for_the_client_at_that_address() {
    //= V-34
    let mut server = Server::with(two_realms);
    let mut alice = server.client(CLIENT);
    // spoofed: the same 5-tuple, another origin, before the client has proved anything
    let mut spoofer = stranger("whirrun", CLIENT);
    assert_eq!(challenge(&mut server, &mut spoofer, ORIGIN).0, OTHER);
    server.allocate(&mut alice);
    // and after: the session has its realm
    assert_eq!(challenge(&mut server, &mut spoofer, ORIGIN).0, REALM);
    let answer = server.ask(&mut alice, Method::REFRESH, |writer| {
        writer.origin(ORIGIN);
    });
    answer.success();
    let mut whirrun = of_other_realm(&mut server, "whirrun", OTHER_CLIENT);
    assert_eq!(code_of(&mut server, &mut whirrun, ORIGIN), None);
    assert_eq!(challenge(&mut server, &mut whirrun, b"").0, OTHER);
}

#[test]
fn a_session_goes_on_without_its_origin() {
    let mut server = Server::with(|config| {
        two_realms(config);
        config.mobility.key = Some(TicketKey::from_secret(b"north"));
    });
    let mut client = of_other_realm(&mut server, "whirrun", OTHER_CLIENT);
    let answer = server.ask(&mut client, Method::ALLOCATE, |writer| {
        writer
            .requested_transport(17)
            .origin(ORIGIN)
            .mobility_ticket(&[]);
    });
    let ticket = answer.success().mobility_ticket().unwrap().to_vec();
    server.permit(&mut client, PEER).success();
    server.bind(&mut client, 0x4000, PEER).success();
    // from another address there is no session yet: the realm is the one that the request names
    client.tuple = tuple("203.0.113.10:9");
    let transaction = client.next_transaction();
    let request = client.request(Method::REFRESH, transaction, |writer| {
        writer.mobility_ticket(&ticket);
    });
    let stale = server.exchange(client.tuple, &request);
    assert_eq!(stale.code(), Some(438));
    let message = stale.message();
    assert_eq!(message.realm().unwrap(), Some(OTHER.as_bytes()));
    client.nonce = message.nonce().unwrap().unwrap().to_vec();
    let answer = server.ask(&mut client, Method::REFRESH, |writer| {
        writer.mobility_ticket(&ticket);
    });
    answer.success();
}

#[test]
fn quotas_and_rates_are_those_of_the_realm() {
    let mut server = Server::with(|config| {
        two_realms(config);
        config.limits.total_quota = Some(2);
        let limits = RealmLimits {
            user_quota: Some(1),
            total_quota: None,
            bytes_per_s: NonZeroU32::new(1_000),
        };
        config.realms.limits.insert(OTHER.into(), limits);
    });
    let mut first = of_other_realm(&mut server, "alice", "203.0.113.9:1");
    assert_eq!(code_of(&mut server, &mut first, ORIGIN), None);
    let mut again = of_other_realm(&mut server, "alice", "203.0.113.9:2");
    assert_eq!(code_of(&mut server, &mut again, ORIGIN), Some(486));
    let mut whirrun = of_other_realm(&mut server, "whirrun", "203.0.113.9:3");
    assert_eq!(code_of(&mut server, &mut whirrun, ORIGIN), None);
    assert_eq!(server.commons.quota_used(OTHER, "alice"), 1);
    assert_eq!(server.commons.quota_used(REALM, "alice"), 0);

    let mut clients: Vec<Client> = (0..3)
        .map(|n| server.client(&format!("203.0.113.7:{}", 50_000 + n)))
        .collect();
    let codes: Vec<_> = clients
        .iter_mut()
        .map(|client| code_of(&mut server, client, b""))
        .collect();
    assert_eq!(codes, [None, None, Some(486)], "the usual bounds");

    for client in [&mut clients[0], &mut first] {
        server.permit(client, PEER).success();
        assert!(server.send(client, PEER, &[0; 900]).is_ok());
    }
    assert!(server.send(&mut clients[0], PEER, &[0; 900]).is_ok());
    assert_eq!(
        server.send(&mut first, PEER, &[0; 900]),
        Err(DropReason::BandwidthExceeded)
    );
    for client in [&mut first, &mut whirrun] {
        server.refresh(client, 0).success();
    }
    assert_eq!(server.commons.quota_used(OTHER, "alice"), 0);
    assert_eq!(server.commons.quota_used_total(), 2);
}

#[test]
fn peer_rules_are_those_of_the_realm() {
    let deny = |range: &str| Rule {
        action: Action::Deny,
        range: range.parse().unwrap(),
    };
    let second_peer = "93.184.216.21:7000";
    let mut server = Server::with(|config| {
        two_realms(config);
        let mut policy = config.policy.clone();
        policy.rules.push(deny("93.184.216.20"));
        config.realms.policies.insert(OTHER.into(), policy);
    });
    let mut alice = server.client(CLIENT);
    server.allocate(&mut alice);
    let mut whirrun = of_other_realm(&mut server, "whirrun", OTHER_CLIENT);
    assert_eq!(code_of(&mut server, &mut whirrun, ORIGIN), None);
    server.permit(&mut alice, PEER).success();
    server.bind(&mut alice, 0x4000, PEER).success();
    assert_eq!(server.permit(&mut whirrun, PEER).code(), Some(403));
    assert_eq!(server.bind(&mut whirrun, 0x4000, PEER).code(), Some(403));
    assert_eq!(
        server.send(&mut whirrun, PEER, b"x"),
        Err(DropReason::PeerForbidden)
    );
    server.permit(&mut whirrun, second_peer).success();
    // the server's own addresses are nobody's peers in any realm (V-07)
    let own = server.permit(&mut whirrun, "192.0.2.1:3478");
    assert_eq!(own.code(), Some(403));

    // and when they change
    let mut next = config();
    two_realms(&mut next);
    let mut policy = next.policy.clone();
    policy.rules.push(deny("93.184.216.21"));
    next.realms.policies.insert(OTHER.into(), policy);
    server.engine.reconfigure(server.now.time, &next.into());
    assert!(server.send(&mut alice, PEER, b"x").is_ok());
    assert_eq!(
        server.send(&mut whirrun, second_peer, b"x"),
        Err(DropReason::PeerForbidden)
    );
    server.permit(&mut whirrun, PEER).success();
}

#[test]
fn a_realm_that_is_gone_has_no_users_any_more() {
    let mut server = Server::with(two_realms);
    let mut whirrun = of_other_realm(&mut server, "whirrun", OTHER_CLIENT);
    assert_eq!(code_of(&mut server, &mut whirrun, ORIGIN), None);
    server.engine.reconfigure(server.now.time, &config().into());
    let transaction = whirrun.next_transaction();
    let request = whirrun.request(Method::REFRESH, transaction, |writer| {
        writer.origin(ORIGIN);
    });
    let answer = server.exchange(whirrun.tuple, &request);
    assert_eq!(answer.code(), Some(438), "the nonce was one of that realm");
    let message = answer.message();
    assert_eq!(message.realm().unwrap(), Some(REALM.as_bytes()));
}

#[test]
fn a_realm_offers_what_all_its_users_can_do() {
    let mut server = Server::with(|config| {
        let mut realm = Realm::new(OTHER).unwrap();
        realm.add_user_by_md5_key("whirrun", [7; 16]).unwrap();
        config.auth.add_realm(realm);
        config.auth.add_origin("https://crinna.org", OTHER).unwrap();
    });
    for (origin, algorithms) in [(ORIGIN, 1), (&b""[..], 2)] {
        let mut client = stranger("whirrun", OTHER_CLIENT);
        let request = bare(Method::ALLOCATE, client.next_transaction(), |writer| {
            writer.requested_transport(17);
            writer.origin(origin);
        });
        let answer = server.exchange(client.tuple, &request);
        let message = answer.message();
        let offered = message.password_algorithms().unwrap().unwrap();
        assert_eq!(offered.as_bytes().len(), 4 * algorithms);
    }
}

#[test]
fn where_origins_are_checked_a_session_has_the_one_it_began_with() {
    let mut server = Server::with(|config| {
        two_realms(config);
        config.relays.check_origin = true;
    });
    let mut whirrun = of_other_realm(&mut server, "whirrun", OTHER_CLIENT);
    assert_eq!(code_of(&mut server, &mut whirrun, ORIGIN), None);
    let mut alice = server.client(CLIENT);
    server.allocate(&mut alice);
    let written: [(&[&[u8]], _); 5] = [
        (&[ORIGIN], [None, Some(441)]),
        (&[b"HTTPS://CRINNA.ORG:443"], [None, Some(441)]),
        (&[b"http://elsewhere", ORIGIN], [None, Some(441)]),
        (&[b"http://elsewhere"], [Some(441); 2]),
        (&[], [Some(441), None]),
    ];
    for (origins, codes) in written {
        for (client, code) in [&mut whirrun, &mut alice].into_iter().zip(codes) {
            let peer = PEER.parse().unwrap();
            let answer = server.ask(client, Method::CREATE_PERMISSION, |writer| {
                writer.xor_peer_address(peer);
                for origin in origins {
                    writer.origin(origin);
                }
            });
            assert_eq!(answer.code(), code, "{origins:?}");
        }
    }
    // it is among what an engine is rebuilt from
    let changes = server.take_changes();
    let created = changes.iter().filter_map(|change| match change {
        Change::Created(created) => Some(
            created
                .brought
                .origin
                .map(|origin| origin.as_bytes().to_vec()),
        ),
        _ => None,
    });
    let origins: Vec<_> = created.collect();
    assert_eq!(origins, [Some(b"https://crinna.org:443".to_vec()), None]);
}

#[test]
fn an_origin_belongs_to_a_realm_that_there_is() {
    let mut auth = AuthConfig::new(REALM).unwrap();
    assert!(auth.add_origin("https://example.org", REALM).is_ok());
    assert!(auth.add_origin("https://crinna.org", OTHER).is_err());
    assert!(auth.add_origin("", REALM).is_err());
    auth.add_realm(Realm::new(OTHER).unwrap());
    auth.add_realm(Realm::new("a.first").unwrap());
    assert!(auth.add_origin("https://crinna.org", OTHER).is_ok());
    let names: Vec<&str> = auth.realms().map(Realm::name).collect();
    assert_eq!(names, [REALM, "a.first", OTHER]);
}
