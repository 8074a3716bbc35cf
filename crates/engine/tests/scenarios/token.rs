//! Third-party authorization (RFC 7635): tokens of an authorization server.

mod connections;

use core::time::Duration;
use std::sync::Arc;

use aes_gcm::aead::{AeadInOut as _, KeyInit as _};
use aes_gcm::{Aes128Gcm, Aes256Gcm};
use turnbuckle_engine::{
    ClientTuple, Commons, Config, Connection, ConnectionId, Engine, Outcome, RealmLimits,
    TcpRelays, ThirdParties, TicketKey, TokenCipher, Transport,
};
use turnbuckle_wire::{AccessToken, AttributeType, IntegrityKey, MessageWriter, Method};

use crate::support::*;

const SERVER_NAME: &str = "turn.example.org";
const KID: &str = "north";
const KEY: [u8; 32] = [0x4B; 32];

fn authorizing(config: &mut Config) {
    let mut third_parties = ThirdParties::new(SERVER_NAME).unwrap();
    third_parties
        .add_key(KID, TokenCipher::Aes256Gcm, &KEY, None, None)
        .unwrap();
    config.auth.third_parties = Some(third_parties);
}

/// What an authorization server makes.
#[derive(Clone)]
struct Token {
    mac_key: [u8; 20],
    /// Seconds since 1970.
    issued_s: u64,
    lifetime_s: u32,
    server_name: &'static str,
    key: [u8; 32],
    /// The length it says `mac_key` has.
    key_len: u16,
}

impl Token {
    fn new(server: &Server) -> Self {
        Self {
            mac_key: [0x11; 20],
            issued_s: server.now.unix_s,
            lifetime_s: 3600,
            server_name: SERVER_NAME,
            key: KEY,
            key_len: 20,
        }
    }

    /// Seals the token, and returns the nonce and the sealed block.
    fn seal(&self) -> ([u8; 12], Vec<u8>) {
        let nonce = [9; 12];
        let mut content = self.key_len.to_be_bytes().to_vec();
        content.extend_from_slice(&self.mac_key);
        content.extend_from_slice(&(self.issued_s << 16).to_be_bytes());
        content.extend_from_slice(&self.lifetime_s.to_be_bytes());
        let tag = Aes256Gcm::new(&self.key.into())
            .encrypt_inout_detached(
                &nonce.into(),
                self.server_name.as_bytes(),
                content.as_mut_slice().into(),
            )
            .unwrap();
        content.extend_from_slice(&tag);
        (nonce, content)
    }

    fn integrity_key(&self) -> IntegrityKey {
        IntegrityKey::sha1(&self.mac_key)
    }

    fn write(&self, writer: &mut MessageWriter<'_>) {
        let (nonce, block) = self.seal();
        writer.access_token(AccessToken {
            nonce: &nonce,
            encrypted_block: &block,
        });
    }
}

/// Returns a client that has been challenged and holds a token.
fn holder(server: &mut Server, token: &Token, remote: &str) -> Client {
    let mut client = server.client_of(KID, "no password", remote);
    client.key = token.integrity_key();
    client
}

fn allocate(server: &mut Server, client: &mut Client, token: &Token) -> Answer {
    server.ask(client, Method::ALLOCATE, |writer| {
        writer.requested_transport(17);
        token.write(writer);
    })
}

/// Returns the code of an Allocate request's answer that may not be signed.
fn code_of(
    server: &mut Server,
    client: &mut Client,
    write: impl Fn(&mut MessageWriter<'_>),
) -> Option<u16> {
    let transaction = client.next_transaction();
    let request = client.request(Method::ALLOCATE, transaction, |writer| {
        writer.requested_transport(17);
        write(writer);
    });
    server.exchange(client.tuple, &request).code()
}

//= OAU-16
#[test]
fn a_challenge_names_the_server_if_tokens_are_taken() {
    for (expected, mut server) in [
        (None, Server::start()),
        (Some(SERVER_NAME.as_bytes()), Server::with(authorizing)),
    ] {
        let mut client = server.client(CLIENT);
        let bare = first_request(client.next_transaction());
        let answer = server.exchange(client.tuple, &bare);
        assert_eq!(answer.message().third_party_authorization(), expected);
    }
}

//= OAU-01
//= OAU-04
//= OAU-05
//= OAU-06
//= OAU-07
//= OAU-11
//= OAU-15
//= TURN-021
#[test]
fn who_holds_a_token_needs_no_password_and_shows_it_in_allocate_and_refresh_only() {
    let mut server = Server::with(authorizing);
    let token = Token::new(&server);
    let mut client = holder(&mut server, &token, CLIENT);
    allocate(&mut server, &mut client, &token).success(); // `ask` checks the answer's integrity by mac_key
    server.permit(&mut client, PEER).success();
    server.bind(&mut client, 0x4000, PEER).success();
    server
        .ask(&mut client, Method::REFRESH, |writer| token.write(writer))
        .success();
    // the same token, another allocation
    let mut second = holder(&mut server, &token, "203.0.113.7:50001");
    allocate(&mut server, &mut second, &token).success();
    assert_eq!(server.commons.quota_used(REALM, KID), 2);
    // first-party users are there as before
    let mut alice = server.client("203.0.113.9:1");
    server.allocate(&mut alice);
}

//= OAU-17
#[test]
fn neither_answers_nor_changes_show_the_key_of_a_token() {
    let mut server = Server::with(authorizing);
    let mut token = Token::new(&server);
    token.mac_key = *b"session-key-20-bytes";
    let mut client = holder(&mut server, &token, CLIENT);
    let answers = [
        allocate(&mut server, &mut client, &token),
        server.permit(&mut client, PEER),
        server.ask(&mut client, Method::REFRESH, |writer| token.write(writer)),
    ];
    for Answer(bytes) in answers {
        for part in token.mac_key.windows(8) {
            assert!(!bytes.windows(8).any(|shown| shown == part));
        }
    }
    let text = format!("{:?} {:?}", server.take_changes(), server.config);
    for part in token.mac_key.windows(8) {
        let numbers = format!("{part:?}");
        assert!(!text.contains(str::from_utf8(part).unwrap()));
        assert!(!text.contains(numbers.trim_matches(['[', ']'])));
    }
}

#[test]
fn a_client_that_takes_sixteen_bytes_of_the_key_is_understood_and_answered_alike() {
    let mut server = Server::with(authorizing);
    let token = Token::new(&server);
    let mut client = holder(&mut server, &token, CLIENT);
    client.key = IntegrityKey::sha1(&token.mac_key[..16]);
    allocate(&mut server, &mut client, &token).success();
    server.permit(&mut client, PEER).success();
    client.key = IntegrityKey::sha1(&token.mac_key[..15]);
    let code = code_of(&mut server, &mut client, |writer| token.write(writer));
    assert_eq!(code, Some(401));
}

#[test]
fn aes_128_is_taken_where_the_key_is_for_it_and_a_short_key_is_filled_up() {
    let mut server = Server::with(|config| {
        let mut third_parties = ThirdParties::new(SERVER_NAME).unwrap();
        third_parties
            .add_key(KID, TokenCipher::Aes128Gcm, b"carleon", None, None)
            .unwrap();
        config.auth.third_parties = Some(third_parties);
    });
    let token = Token::new(&server);
    let mut client = holder(&mut server, &token, CLIENT);
    let mut key = [0; 16];
    key[..7].copy_from_slice(b"carleon");
    let mut content = 20_u16.to_be_bytes().to_vec();
    content.extend_from_slice(&token.mac_key);
    content.extend_from_slice(&(token.issued_s << 16).to_be_bytes());
    content.extend_from_slice(&3600_u32.to_be_bytes());
    let nonce = [3; 12];
    let tag = Aes128Gcm::new(&key.into())
        .encrypt_inout_detached(
            &nonce.into(),
            SERVER_NAME.as_bytes(),
            content.as_mut_slice().into(),
        )
        .unwrap();
    content.extend_from_slice(&tag);
    let code = code_of(&mut server, &mut client, |writer| {
        writer.access_token(AccessToken {
            nonce: &nonce,
            encrypted_block: &content,
        });
    });
    assert_eq!(code, None);
}

#[test]
fn a_new_token_may_come_under_the_name_of_another_key_and_is_charged_as_the_first_was() {
    let mut server = Server::with(|config| {
        authorizing(config);
        let third_parties = config.auth.third_parties.as_mut().unwrap();
        third_parties
            .add_key("union", TokenCipher::Aes256Gcm, &KEY, None, None)
            .unwrap();
    });
    let token = Token::new(&server);
    let mut client = holder(&mut server, &token, CLIENT);
    allocate(&mut server, &mut client, &token).success();
    client.name = "union".to_owned();
    server
        .ask(&mut client, Method::REFRESH, |writer| token.write(writer))
        .success();
    server.permit(&mut client, PEER).success();
    assert_eq!(
        (
            server.commons.quota_used(REALM, KID),
            server.commons.quota_used(REALM, "union")
        ),
        (1, 0)
    );
    // somebody with a password is somebody else
    let mut alice = server.client(CLIENT);
    assert_eq!(server.refresh(&mut alice, 0).code(), Some(441));
    server.refresh(&mut client, 0).success();
    server.assert_nothing_is_held();
}

#[test]
fn a_key_may_put_its_clients_into_a_realm_and_takes_no_tokens_when_it_is_gone() {
    const UNION: &str = "union.gov";
    let config = |config: &mut Config, has_key: bool| {
        let mut third_parties = ThirdParties::new(SERVER_NAME).unwrap();
        if has_key {
            third_parties
                .add_key(KID, TokenCipher::Aes256Gcm, &KEY, None, Some(UNION))
                .unwrap();
        }
        config.auth.third_parties = Some(third_parties);
        let limits = RealmLimits {
            user_quota: Some(1),
            ..RealmLimits::default()
        };
        config.realms.limits.insert(UNION.into(), limits);
    };
    let mut server = Server::with(|given| config(given, true));
    let token = Token::new(&server);
    let mut client = holder(&mut server, &token, CLIENT);
    allocate(&mut server, &mut client, &token).success();
    assert_eq!(server.commons.quota_used(UNION, KID), 1);
    assert_eq!(server.commons.quota_used(REALM, KID), 0);
    let mut second = holder(&mut server, &token, "203.0.113.7:50001");
    let refused = allocate(&mut server, &mut second, &token);
    assert_eq!(refused.code(), Some(486), "the quota of that realm");
    let mut next = crate::support::config();
    config(&mut next, false);
    server.engine.reconfigure(server.now.time, &next.into());
    let code = code_of(&mut server, &mut second, |writer| token.write(writer));
    assert_eq!(code, Some(401));
    // who was let in stays until the token ends
    server.permit(&mut client, PEER).success();
}

//= OAU-08
//= OAU-10
#[test]
fn a_token_that_is_not_authentic_or_not_the_senders_is_answered_401() {
    let mut server = Server::with(authorizing);
    let good = Token::new(&server);
    let wrong = [
        Token {
            key: [1; 32],
            ..good.clone()
        },
        Token {
            server_name: "other.example.org",
            ..good.clone()
        },
        Token {
            key_len: 19,
            ..good.clone()
        },
        Token {
            key_len: 0xFFFF,
            ..good.clone()
        },
    ];
    for token in wrong {
        let mut client = holder(&mut server, &token, CLIENT);
        let code = code_of(&mut server, &mut client, |writer| token.write(writer));
        assert_eq!(code, Some(401));
    }
    // the token is good, and whoever shows it does not know the key inside
    let mut thief = holder(&mut server, &good, CLIENT);
    thief.key = IntegrityKey::sha1(&[0x22; 20]);
    let code = code_of(&mut server, &mut thief, |writer| good.write(writer));
    assert_eq!(code, Some(401));
    let mut stranger = server.client_of("south", "no password", CLIENT);
    stranger.key = good.integrity_key();
    let code = code_of(&mut server, &mut stranger, |writer| good.write(writer));
    assert_eq!(code, Some(401), "nobody has a key of that name");
    server.assert_nothing_is_held();
}

//= V-31
#[test]
fn every_truncation_every_length_and_every_changed_bit_is_answered_401() {
    let mut server = Server::with(authorizing);
    let token = Token::new(&server);
    let mut client = holder(&mut server, &token, CLIENT);
    let (nonce, block) = token.seal();
    let value = [&12_u16.to_be_bytes()[..], &nonce, &block].concat();
    let mut refused = |value: &[u8]| {
        server.challenge_if_stale(&mut client);
        let code = code_of(&mut server, &mut client, |writer| {
            writer.bytes(AttributeType::ACCESS_TOKEN, value);
        });
        assert_eq!(code, Some(401));
        server.wait(Duration::from_millis(20));
    };
    for len in 0..value.len() {
        refused(&value[..len]);
    }
    for bit in 0..value.len() * 8 {
        let mut changed = value.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        refused(&changed);
    }
    for nonce_len in (0..=u16::MAX).filter(|&len| len != 12).step_by(31) {
        let mut changed = value.clone();
        changed[..2].copy_from_slice(&nonce_len.to_be_bytes());
        refused(&changed);
    }
    refused(&[value, vec![0; 900]].concat());
    server.assert_nothing_is_held();
}

//= OAU-09
#[test]
fn a_token_is_good_for_its_lifetime_and_five_seconds_before_and_after() {
    let mut server = Server::with(authorizing);
    let now_s = server.now.unix_s;
    let mut port = 50_000;
    let mut good = |issued_s: u64, lifetime_s: u32| {
        let token = Token {
            issued_s,
            lifetime_s,
            ..Token::new(&server)
        };
        port += 1;
        let mut client = holder(&mut server, &token, &format!("203.0.113.7:{port}"));
        code_of(&mut server, &mut client, |writer| token.write(writer))
    };
    assert_eq!(good(now_s - 604, 600), None);
    assert_eq!(good(now_s - 605, 600), Some(401));
    assert_eq!(good(now_s + 604, 600), None);
    assert_eq!(good(now_s + 605, 600), Some(401));
    assert_eq!(good(u64::MAX >> 16, u32::MAX), Some(401));
}

//= OAU-13
//= OAU-14
#[test]
fn an_allocation_is_not_granted_longer_than_its_token() {
    let mut server = Server::with(authorizing);
    let token = Token {
        issued_s: server.now.unix_s - 100,
        lifetime_s: 300,
        ..Token::new(&server)
    };
    let mut client = holder(&mut server, &token, CLIENT);
    assert_eq!(allocate(&mut server, &mut client, &token).lifetime(), 205);
    server.wait_s(100);
    let answer = server.ask(&mut client, Method::REFRESH, |writer| {
        writer.lifetime(3600);
        token.write(writer);
    });
    assert_eq!(answer.lifetime(), 105);
    // a new token of the same authorization server goes on, and its key is the client's from then on
    let next = Token {
        mac_key: [0x33; 20],
        issued_s: server.now.unix_s,
        lifetime_s: 900,
        ..token
    };
    client.key = next.integrity_key();
    let answer = server.ask(&mut client, Method::REFRESH, |writer| {
        writer.lifetime(3600);
        next.write(writer);
    });
    assert_eq!(
        answer.lifetime(),
        900,
        "not the five seconds more that it is good for"
    );
    server.permit(&mut client, PEER).success();
    // also in an engine made from the changes
    let commons = Commons::new(&server.config);
    let engine = Engine::rebuild(
        Arc::clone(&server.config),
        Arc::clone(&commons),
        server.random.clone(),
        server.now,
        listeners(),
        server.changes.clone(),
        |address| server.endpoint_at(address),
    );
    let mut rebuilt = Server::around(
        engine,
        Arc::clone(&server.config),
        commons,
        server.random.clone(),
    );
    rebuilt.now = server.now;
    rebuilt.challenge(&mut client);
    rebuilt.permit(&mut client, PEER).success();
}

#[test]
fn without_a_token_a_session_is_good_as_long_as_the_token_it_began_with() {
    let mut server = Server::with(authorizing);
    let token = Token {
        lifetime_s: 60,
        ..Token::new(&server)
    };
    let mut client = holder(&mut server, &token, CLIENT);
    allocate(&mut server, &mut client, &token).success();
    server.wait_s(59);
    // What is left of the five seconds that it is good for beyond its lifetime counts too.
    assert_eq!(server.refresh(&mut client, 600).lifetime(), 6);
    server.wait_s(1);
    server.permit(&mut client, PEER).success();
    server.oversleep(Duration::from_secs(6));
    let transaction = client.next_transaction();
    let request = client.request(Method::CREATE_PERMISSION, transaction, |writer| {
        writer.xor_peer_address(PEER.parse().unwrap());
    });
    assert_eq!(server.exchange(client.tuple, &request).code(), Some(401));
}

//= OAU-12
#[test]
fn a_token_nobody_asked_for_is_an_unknown_attribute() {
    let mut server = Server::start();
    let token = Token::new(&server);
    let mut alice = server.client(CLIENT);
    let answer = allocate(&mut server, &mut alice, &token);
    assert_eq!(answer.code(), Some(420));
    let unknown = answer.message().unknown_attributes().unwrap().unwrap();
    assert!(
        unknown
            .iter()
            .any(|kind| kind == AttributeType::ACCESS_TOKEN)
    );
}

//= V-30
#[test]
fn another_holder_of_a_token_of_the_same_authorization_server_cannot_take_an_allocation_over() {
    let mut server = Server::with(|config| {
        authorizing(config);
        config.mobility.key = Some(TicketKey::from_secret(b"a secret of this test"));
    });
    let token = Token::new(&server);
    let mut client = holder(&mut server, &token, CLIENT);
    let answer = server.ask(&mut client, Method::ALLOCATE, |writer| {
        writer.requested_transport(17).mobility_ticket(b"");
        token.write(writer);
    });
    let ticket = answer.success().mobility_ticket().unwrap().to_vec();
    let others = Token {
        mac_key: [0x77; 20],
        ..token.clone()
    };
    let mut thief = holder(&mut server, &others, "198.18.0.9:40000");
    let answer = server.ask(&mut thief, Method::REFRESH, |writer| {
        writer.mobility_ticket(&ticket);
        others.write(writer);
    });
    assert_eq!(answer.code(), Some(441));
    let mut moved = holder(&mut server, &token, "198.18.0.9:40001");
    let answer = server.ask(&mut moved, Method::REFRESH, |writer| {
        writer.mobility_ticket(&ticket);
        token.write(writer);
    });
    answer.success();
}

#[test]
fn keys_are_checked_when_they_are_added() {
    assert!(ThirdParties::new("").is_err());
    assert!(ThirdParties::new(&"x".repeat(256)).is_err());
    let mut third_parties = ThirdParties::new("x").unwrap();
    assert!(
        third_parties
            .add_key("", TokenCipher::Aes256Gcm, b"k", None, None)
            .is_err()
    );
    assert!(
        third_parties
            .add_key("k", TokenCipher::Aes256Gcm, b"", None, None)
            .is_err()
    );
    third_parties
        .add_key("k", TokenCipher::Aes256Gcm, b"key", None, None)
        .unwrap();
    assert!(
        third_parties
            .add_key("k", TokenCipher::Aes256Gcm, b"key", None, None)
            .is_err()
    );
    assert!(
        !format!("{third_parties:?}").contains("107"),
        "no key in a log"
    );
}

#[test]
fn a_key_of_the_authorization_server_ends_when_it_is_said_to() {
    let mut server = Server::with(|config| {
        let mut third_parties = ThirdParties::new(SERVER_NAME).unwrap();
        third_parties
            .add_key(KID, TokenCipher::Aes256Gcm, &KEY, Some(1_800_000_100), None)
            .unwrap();
        third_parties
            .add_key("ever", TokenCipher::Aes256Gcm, &KEY, Some(u64::MAX), None)
            .unwrap();
        config.auth.third_parties = Some(third_parties);
    });
    let token = Token::new(&server);
    let mut client = holder(&mut server, &token, CLIENT);
    server.wait_s(104);
    let code = code_of(&mut server, &mut client, |writer| token.write(writer));
    assert_eq!(code, None);
    server.wait_s(1);
    let mut late = holder(&mut server, &token, "203.0.113.9:9");
    let code = code_of(&mut server, &mut late, |writer| token.write(writer));
    assert_eq!(code, Some(401));
    late.name = "ever".to_owned();
    allocate(&mut server, &mut late, &token).success();
}

//= V-28
//= OAU-06
#[test]
fn another_holder_of_a_token_on_a_5_tuple_that_is_used_again_has_no_part_in_the_allocation() {
    let mut server = Server::with(authorizing);
    let token = Token::new(&server);
    let mut client = holder(&mut server, &token, CLIENT);
    let transaction = client.next_transaction();
    let allocate = |client: &Client, token: &Token| {
        client.request(Method::ALLOCATE, transaction, |writer| {
            writer.requested_transport(17);
            token.write(writer);
        })
    };
    let request = allocate(&client, &token);
    server.exchange(client.tuple, &request).success();
    let others = Token {
        mac_key: [0x77; 20],
        ..token.clone()
    };
    let mut other = holder(&mut server, &others, CLIENT);
    let answer = server.ask(&mut other, Method::CREATE_PERMISSION, |writer| {
        writer.xor_peer_address(PEER.parse().unwrap());
        others.write(writer);
    });
    assert_eq!(answer.code(), Some(441));
    let request = allocate(&other, &others);
    assert_eq!(server.exchange(other.tuple, &request).code(), Some(437));
    server.permit(&mut client, PEER).success();
}

//= V-31
//= V-32
#[test]
fn a_clock_that_is_set_back_makes_no_token_last_longer() {
    let mut server = Server::with(authorizing);
    let token = Token {
        lifetime_s: 1_000,
        ..Token::new(&server)
    };
    let mut client = holder(&mut server, &token, CLIENT);
    server.now.unix_s -= 600;
    let answer = server.ask(&mut client, Method::ALLOCATE, |writer| {
        writer.requested_transport(17).lifetime(3600);
        token.write(writer);
    });
    assert_eq!(answer.lifetime(), 1_000);
    let answer = server.ask(&mut client, Method::REFRESH, |writer| {
        writer.lifetime(3600);
    });
    assert_eq!(answer.lifetime(), 1_000);
}

//= V-31
#[test]
fn a_token_proves_nothing_in_the_second_in_which_it_ends() {
    let mut server = Server::with(authorizing);
    let token = Token {
        lifetime_s: 60,
        ..Token::new(&server)
    };
    let mut client = holder(&mut server, &token, CLIENT);
    allocate(&mut server, &mut client, &token).success();
    server.wait_s(59);
    server.refresh(&mut client, 600).success();
    server.oversleep(Duration::from_secs(5));
    server.permit(&mut client, PEER).success();
    server.oversleep(Duration::from_secs(1));
    let transaction = client.next_transaction();
    let request = client.request(Method::CREATE_PERMISSION, transaction, |writer| {
        writer.xor_peer_address(PEER.parse().unwrap());
    });
    assert_eq!(server.exchange(client.tuple, &request).code(), Some(401));
}
