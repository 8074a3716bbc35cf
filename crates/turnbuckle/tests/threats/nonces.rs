//! V-22 and V-27: old nonces, foreign nonces, replayed requests, and clients talked into the weaker mechanism.

use std::time::Duration;

use turnbuckle_wire::{AttributeType, Class, Method, PasswordAlgorithm};

use crate::harness::{
    Answer, Client, Inbound, Mechanism, Server, Site, channel, peer_receives, peer_socket, plain,
};

fn relay(site: Site, options: &[&str]) -> Server {
    let relay_ip = format!("--relay-ip={}", site.ip(1));
    let options: Vec<&str> = [relay_ip.as_str(), "--allow-loopback-peers"]
        .into_iter()
        .chain(options.iter().copied())
        .collect();
    Server::start(site.server(), &options)
}

/// Sends an Allocate request under `nonce`, once.
fn allocate_under(client: &mut Client, nonce: &[u8]) -> Answer {
    client.set_nonce(nonce);
    let request = client.signed(Method::ALLOCATE, |writer| {
        writer.requested_transport(17);
    });
    client.exchange(&request)
}

/// Fails unless the answer is a 438 that carries all that is needed to go on: a nonce that works.
fn refused_as_stale_and_helped(client: &mut Client, answer: &Answer) {
    assert_eq!(answer.code(), 438, "{answer:?}");
    let message = answer.message();
    assert!(message.realm().unwrap().is_some() && message.password_algorithms().unwrap().is_some());
    client.take_challenge(answer);
    client.allocate();
}

//= V-22
//= STUN-043
//= STUN-086
#[test]
fn a_nonce_is_of_no_use_to_another_address_or_port() {
    let site = Site::new();
    let server = relay(site, &[]);
    let mut victim = Client::new(site.ip(2), &server);
    victim.fetch_challenge();
    for host in [2, 3] {
        let mut thief = Client::new(site.ip(host), &server);
        thief.fetch_challenge(); // for PASSWORD-ALGORITHMS, which a thief could read too
        let answer = allocate_under(&mut thief, &victim.nonce());
        refused_as_stale_and_helped(&mut thief, &answer);
    }
    victim.allocate();
}

//= V-22
//= STUN-053
//= STUN-086
#[test]
fn a_nonce_grows_old() {
    let site = Site::new();
    let server = relay(site, &["--stale-nonce=1"]);
    let mut client = Client::new(site.ip(2), &server);
    client.fetch_challenge();
    let nonce = client.nonce();
    // The time bucket that the nonce is stamped with may be as long as its life, and one more is tolerated.
    std::thread::sleep(Duration::from_millis(2_300));
    let answer = allocate_under(&mut client, &nonce);
    refused_as_stale_and_helped(&mut client, &answer);
}

//= V-22
#[test]
fn no_nonce_with_one_bit_changed_is_taken() {
    let site = Site::new();
    let server = relay(site, &[]);
    let mut tried = 0;
    // Each address is told "no" only so often before the relay saves its breath (V-40), so each tries one byte.
    for index in 0..28 {
        let host = 10 + u8::try_from(index).unwrap();
        let mut client = Client::new(site.ip(host), &server);
        client.fetch_challenge();
        let nonce = client.nonce();
        assert_eq!(nonce.len(), 28);
        for bit in 0..7 {
            let mut changed = nonce.clone();
            changed[index] ^= 1 << bit;
            let answer = allocate_under(&mut client, &changed);
            assert_eq!(
                answer.code(),
                438,
                "byte {index}, bit {bit} of {}",
                String::from_utf8_lossy(&nonce)
            );
            tried += 1;
        }
        let cut = allocate_under(&mut client, &nonce[..index]);
        assert_eq!(cut.code(), 438, "cut to {index} bytes");
        allocate_under(&mut client, &nonce).expect(200);
    }
    println!("{tried} changed nonces refused");
}

//= V-22
#[test]
fn a_nonce_outlives_the_process_only_where_a_secret_is_configured() {
    let site = Site::new();
    let secret = "--stateless-nonce-secret=correct horse battery staple";
    for (options, expected) in [(&[][..], 438), (&[secret][..], 200)] {
        let server = relay(site, options);
        let mut client = Client::new(site.ip(2), &server);
        client.fetch_challenge();
        let nonce = client.nonce();
        drop(server);
        let _server = relay(site, options);
        assert_eq!(
            allocate_under(&mut client, &nonce).code(),
            expected,
            "with {options:?}"
        );
    }
}

//= V-22
//= STUN-086
#[test]
fn a_replayed_deletion_does_not_hit_the_next_allocation() {
    let site = Site::new();
    let server = relay(site, &[]);
    let mut client = Client::new(site.ip(2), &server);
    client.allocate();
    let deletion = client.signed(Method::REFRESH, |writer| {
        writer.lifetime(0);
    });
    client.exchange(&deletion).expect(200);
    // A retransmission right away is that of a client which missed the answer (TURN-053).
    let again = client.exchange(&deletion).code();
    assert!([200, 437].contains(&again), "answered {again}");
    let peer = peer_socket(site.ip(7));
    client.allocate();
    client
        .channel_bind(channel(0), peer.local_addr().unwrap())
        .expect(200);
    client.exchange(&deletion);
    client.send_channel_data(channel(0), b"still there");
    assert_eq!(peer_receives(&peer).0, b"still there");
    client.refresh(600).expect(200);
}

//= V-22
#[test]
fn a_replayed_allocation_does_not_revive() {
    let site = Site::new();
    let server = relay(site, &["--user-quota=1"]);
    let mut client = Client::new(site.ip(2), &server);
    client.fetch_challenge();
    let creation = client.signed(Method::ALLOCATE, |writer| {
        writer.requested_transport(17);
    });
    client.exchange(&creation).expect(200);
    client.refresh(0).expect(200);
    client.exchange(&creation);
    // The quota of one is free if and only if nothing was allocated by the replay.
    let mut next = Client::new(site.ip(3), &server);
    next.allocate();
    client.refresh(600).expect(437);
}

//= V-27
//= STUN-044
//= STUN-054
#[test]
fn sha256_is_offered_first_and_works() {
    let site = Site::new();
    let server = relay(site, &[]);
    let mut client = Client::new(site.ip(2), &server);
    let challenge = client.fetch_challenge();
    let offered = challenge.message().password_algorithms().unwrap().unwrap();
    let offered: Vec<_> = offered.iter().map(|entry| entry.algorithm).collect();
    assert_eq!(offered, [PasswordAlgorithm::Sha256, PasswordAlgorithm::Md5]);
    client.mechanism = Mechanism::Sha256;
    let relayed = client.allocate();
    let peer = peer_socket(site.ip(7));
    client
        .create_permission(&[peer.local_addr().unwrap()])
        .expect(200);
    peer.send_to(b"in", relayed).unwrap();
    assert!(matches!(client.receive(), Inbound::Data { .. }));
}

//= V-27
//= STUN-050
//= STUN-057
#[test]
fn a_client_whose_offer_was_tampered_with_is_never_let_in() {
    let site = Site::new();
    let server = relay(site, &[]);
    let mut client = Client::new(site.ip(2), &server);
    let challenge = client.fetch_challenge();
    let offered = challenge
        .message()
        .raw(AttributeType::PASSWORD_ALGORITHMS)
        .unwrap()
        .to_vec();
    let nonce = client.nonce();
    let md5_only = [0, 1, 0, 0];
    let sha256_only = [0, 2, 0, 0];
    let reversed = [&md5_only[..], &sha256_only[..]].concat();
    let choices = [PasswordAlgorithm::Md5, PasswordAlgorithm::Sha256];
    // What the man in the middle left of the offer, and what the client then chose.
    let lists = [
        None,
        Some(&md5_only[..]),
        Some(&sha256_only[..]),
        Some(&reversed[..]),
    ];
    for list in lists {
        for choice in choices {
            for mechanism in [Mechanism::Md5, Mechanism::Sha256] {
                let answer = offer(&mut client, mechanism, &nonce, list, Some(choice));
                assert_eq!(
                    answer.code(),
                    400,
                    "list {list:?}, choice {choice:?}, integrity {mechanism:?}"
                );
            }
        }
    }
    // The whole list, and no choice.
    offer(&mut client, Mechanism::Sha256, &nonce, Some(&offered), None).expect(400);
    // The bits in the nonce that say there is a list, cleared: the nonce is covered by its own check.
    let mut bidden_down = nonce.clone();
    bidden_down[9..13].copy_from_slice(b"AAAA");
    offer(&mut client, Mechanism::Md5, &bidden_down, None, None).expect(438);
    // The whole cookie gone, as from a server of RFC 5389.
    offer(&mut client, Mechanism::Md5, &nonce[13..], None, None).expect(438);
    client.refresh(600).expect(437);
}

//= V-27
#[test]
fn integrity_has_to_be_of_the_chosen_algorithm() {
    let site = Site::new();
    let server = relay(site, &[]);
    let mut client = Client::new(site.ip(2), &server);
    let challenge = client.fetch_challenge();
    let offered = challenge
        .message()
        .raw(AttributeType::PASSWORD_ALGORITHMS)
        .unwrap()
        .to_vec();
    let nonce = client.nonce();
    // SHA-256 promised, MESSAGE-INTEGRITY with the MD5 key delivered.
    let answer = offer(
        &mut client,
        Mechanism::Md5,
        &nonce,
        Some(&offered),
        Some(PasswordAlgorithm::Sha256),
    );
    assert!([400, 401].contains(&answer.code()), "{answer:?}");
    client.refresh(600).expect(437);
}

/// Sends an Allocate request with this list, choice and integrity.
fn offer(
    client: &mut Client,
    mechanism: Mechanism,
    nonce: &[u8],
    list: Option<&[u8]>,
    choice: Option<PasswordAlgorithm>,
) -> Answer {
    client.mechanism = mechanism;
    let key = client.key();
    client.mechanism = Mechanism::Md5;
    let request = plain(Class::Request, Method::ALLOCATE, |writer| {
        writer.requested_transport(17);
        writer
            .username(client.username.as_bytes())
            .realm(crate::harness::REALM.as_bytes())
            .nonce(nonce);
        if let Some(list) = list {
            writer.bytes(AttributeType::PASSWORD_ALGORITHMS, list);
        }
        if let Some(choice) = choice {
            writer.password_algorithm(choice);
        }
        writer.integrity(&key);
    });
    client.exchange(&request)
}
