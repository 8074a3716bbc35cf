//! Clients that are sent elsewhere: 300 (Try Alternate) and draining.

use turnbuckle_engine::{Alternate, ClientTuple, Config, Connection, RelayAddress, Transport};
use turnbuckle_wire::{
    AttributeType, Class, IntegrityKey, Message, Method, PasswordAlgorithm, long_term_key_sha256,
};

use crate::support::*;

fn alternates(addresses: &[&str]) -> Vec<Alternate> {
    let alternate = |text: &&str| Alternate {
        address: text.parse().unwrap(),
        domain: None,
    };
    addresses.iter().map(alternate).collect()
}

fn redirecting(addresses: &[&str]) -> impl FnOnce(&mut Config) {
    let alternates = alternates(addresses);
    |config| config.redirection.udp = alternates
}

/// Returns every ALTERNATE-SERVER of a 300 answer, in order.
fn servers(answer: &Answer) -> Vec<String> {
    assert_eq!(answer.code(), Some(300));
    let servers = answer.message().alternate_servers();
    servers.map(|server| server.unwrap().to_string()).collect()
}

fn allocate(server: &mut Server, client: &mut Client) -> Answer {
    server.ask(client, Method::ALLOCATE, |writer| {
        writer.requested_transport(17);
    })
}

//= TURN-038
//= STUN-061
//= STUN-062
//= V-14
//= DISC-01
#[test]
fn an_authenticated_client_is_sent_to_another_server_under_its_own_key() {
    let mut server = Server::with(redirecting(&["198.51.100.1:3478"]));
    // challenged first: a request without integrity gets 401 and no address
    let mut client = server.client(CLIENT);
    let bare = bare(Method::ALLOCATE, client.next_transaction(), |writer| {
        writer.requested_transport(17);
    });
    let challenge = server.exchange(client.tuple, &bare);
    assert_eq!(challenge.code(), Some(401));
    assert!(
        !challenge
            .message()
            .contains(AttributeType::ALTERNATE_SERVER)
    );

    let answer = allocate(&mut server, &mut client); // checks MESSAGE-INTEGRITY
    assert_eq!(servers(&answer), ["198.51.100.1:3478"]);
    server.assert_nothing_is_held();
}

//= STUN-061
#[test]
fn a_wrong_password_learns_no_alternate_server() {
    let mut server = Server::with(redirecting(&["198.51.100.1:3478"]));
    let client = server.client_of("alice", "looking-glass", CLIENT);
    let mut transactions = client.clone();
    let request = client.request(
        Method::ALLOCATE,
        transactions.next_transaction(),
        |writer| {
            writer.requested_transport(17);
        },
    );
    let answer = server.exchange(client.tuple, &request);
    assert_eq!(answer.code(), Some(401));
    assert!(!answer.message().contains(AttributeType::ALTERNATE_SERVER));
}

//= STUN-066
#[test]
fn binding_is_never_redirected() {
    let mut server = Server::with(redirecting(&["198.51.100.1:3478"]));
    let mut client = server.client(CLIENT);
    let request = bare(Method::BINDING, client.next_transaction(), |_| {});
    server.exchange(client.tuple, &request).success();
}

#[test]
fn servers_take_turns_over_all_engines_and_one_listed_twice_gets_two_shares() {
    let list = [
        "198.51.100.1:3478",
        "198.51.100.2:3478",
        "198.51.100.2:3478",
    ];
    let mut first = Server::with(redirecting(&list));
    let mut second = Server::joining(first.config.clone(), first.commons.clone(), 2);
    let mut counts = [0; 2];
    for n in 0..30_u16 {
        let server = if n % 2 == 0 { &mut first } else { &mut second };
        let mut client = server.client(&format!("203.0.113.7:{}", 1 + n));
        let answer = allocate(server, &mut client);
        counts[usize::from(servers(&answer) == ["198.51.100.2:3478"])] += 1;
    }
    assert_eq!(counts, [10, 20]);
}

//= STUN-058
//= STUN-059
#[test]
fn the_first_server_is_of_the_clients_family_and_one_of_the_other_follows() {
    let list = ["198.51.100.1:3478", "[2001:db8:1::1]:3478"];
    let mut server = Server::with(redirecting(&list));
    let mut v4 = server.client(CLIENT);
    let mut v6 = server.client("[2001:db8:7::7]:50000");
    assert_eq!(servers(&allocate(&mut server, &mut v4)), list);
    assert_eq!(
        servers(&allocate(&mut server, &mut v6)),
        ["[2001:db8:1::1]:3478", "198.51.100.1:3478"]
    );
    // a client that no server is there for is served here
    let mut only_v6 = Server::with(redirecting(&["[2001:db8:1::1]:3478"]));
    let mut client = only_v6.client(CLIENT);
    only_v6.allocate(&mut client);
}

//= V-14
#[test]
fn a_listener_that_is_in_the_list_serves_by_its_own_and_by_its_public_address() {
    let mut server = Server::with(redirecting(&["192.0.2.1:3478", "198.51.100.1:3478"]));
    let mut client = server.client(CLIENT);
    server.allocate(&mut client);

    let mut server = Server::with(|config| {
        config.relays.addresses[0] = RelayAddress {
            local: config.relays.addresses[0].local,
            external: Some("198.51.100.9".parse().unwrap()),
        };
        config.redirection.udp = alternates(&["198.51.100.9:3478"]);
    });
    let mut client = server.client(CLIENT);
    server.allocate(&mut client);
}

#[test]
fn a_listener_that_redirects_nobody_serves_whoever_comes() {
    for (exempt, code) in [("192.0.2.1:3478", None), ("192.0.2.1:3479", Some(300))] {
        let mut server = Server::with(|config| {
            redirecting(&["198.51.100.1:3478"])(config);
            config.redirection.exempt = vec![exempt.parse().unwrap()];
        });
        let mut client = server.client(CLIENT);
        assert_eq!(allocate(&mut server, &mut client).code(), code);
    }
}

#[test]
fn each_transport_has_its_own_servers() {
    let mut server = Server::with(|config| {
        config.redirection.dtls = alternates(&["198.51.100.4:5349"]);
        config.redirection.tls = alternates(&["198.51.100.5:5349"]);
        config.redirection.tcp = alternates(&["198.51.100.6:3478"]);
    });
    for (transport, expected) in [
        (Transport::Dtls, "198.51.100.4:5349"),
        (Transport::Tls, "198.51.100.5:5349"),
        (Transport::Tcp, "198.51.100.6:3478"),
    ] {
        let mut client = server.client(CLIENT);
        client.tuple = ClientTuple {
            transport,
            connection: Connection::new(9, 0),
            ..client.tuple
        };
        assert_eq!(servers(&allocate(&mut server, &mut client)), [expected]);
    }
    let mut udp = server.client(CLIENT);
    server.allocate(&mut udp);
}

//= STUN-060
//= STUN-085
#[test]
fn a_tls_client_that_knows_rfc_8489_is_told_the_name_in_the_certificate() {
    let mut server = Server::with(|config| {
        config.redirection.tls = vec![Alternate {
            address: "198.51.100.5:5349".parse().unwrap(),
            domain: Some("turn2.example.org".into()),
        }];
    });
    let mut client = server.client(CLIENT);
    client.tuple.transport = Transport::Tls;
    let old = allocate(&mut server, &mut client);
    assert!(!old.message().contains(AttributeType::ALTERNATE_DOMAIN));

    let key = IntegrityKey::sha256(&long_term_key_sha256(
        b"alice",
        REALM.as_bytes(),
        b"wonderland",
    ));
    let request = message(
        Class::Request,
        Method::ALLOCATE,
        client.next_transaction(),
        |writer| {
            let offered = [PasswordAlgorithm::Sha256, PasswordAlgorithm::Md5];
            writer
                .requested_transport(17)
                .username(b"alice")
                .realm(REALM.as_bytes())
                .nonce(&client.nonce)
                .password_algorithms(&offered)
                .password_algorithm(PasswordAlgorithm::Sha256)
                .integrity(&key);
        },
    );
    let new = server.exchange(client.tuple, &request);
    assert_eq!(servers(&new), ["198.51.100.5:5349"]);
    let parsed = Message::parse(&new.0).unwrap();
    assert_eq!(parsed.check_integrity(&key), Ok(()));
    assert_eq!(parsed.alternate_domain(), Ok(Some("turn2.example.org")));
}

#[test]
fn who_has_an_allocation_is_not_redirected_when_its_request_comes_again() {
    let mut server = Server::with(|config| {
        config.redirection.tcp = alternates(&["198.51.100.6:3478"]);
    });
    let mut client = server.client(CLIENT);
    let transaction = client.next_transaction();
    let request = client.request(Method::ALLOCATE, transaction, |writer| {
        writer.requested_transport(17);
    });
    let first = server.exchange(client.tuple, &request);
    first.success();
    server.engine.drain();
    let again = server.exchange(client.tuple, &request);
    assert_eq!(
        again.success().xor_relayed_address(),
        first.success().xor_relayed_address()
    );
}

#[test]
fn a_draining_server_takes_no_new_client_and_keeps_those_it_has() {
    let mut server = Server::start();
    let mut old = server.client(CLIENT);
    let relayed = server.allocate(&mut old);
    server.permit(&mut old, PEER).success();
    server.engine.drain();

    let mut new = server.client("203.0.113.8:50000");
    assert_eq!(allocate(&mut server, &mut new).code(), Some(403));
    assert_eq!(server.commons.quota_used_total(), 1);
    server.wait_s(200);
    server.refresh(&mut old, 1200).success();
    server.permit(&mut old, PEER).success();
    server.peer_data(relayed, PEER).unwrap();
    server.refresh(&mut old, 0).success();
    server.assert_nothing_is_held();
}

/// A balancer without users, as coturn's.
//= V-14
#[test]
fn who_nobody_can_log_in_to_sends_strangers_elsewhere_within_their_budget() {
    let request = |client: &mut Client| {
        bare(Method::ALLOCATE, client.next_transaction(), |writer| {
            writer.requested_transport(17);
        })
    };
    let mut server = Server::with(|config| {
        redirecting(&["198.51.100.1:3478"])(config);
        config.auth = turnbuckle_engine::AuthConfig::new("example.org").unwrap();
        config.unverified.answers_per_s = Some(3);
    });
    let mut client = Server::start().client(CLIENT); // for its transactions
    let asked = request(&mut client);
    let answer = server.exchange(client.tuple, &asked);
    assert_eq!(servers(&answer), ["198.51.100.1:3478"]);
    assert!(asked.len() * 3 >= answer.message().as_bytes().len());
    let answered = (0..10)
        .filter(|_| {
            let asked = request(&mut client);
            server.receive(client.tuple, &asked) == turnbuckle_engine::Outcome::Done
        })
        .count();
    assert!(answered < 3, "{answered}");
    server.assert_nothing_is_held();

    // without servers to send them to, strangers are challenged
    let mut server = Server::with(|config| {
        config.auth = turnbuckle_engine::AuthConfig::new("example.org").unwrap();
    });
    let asked = request(&mut client);
    assert_eq!(server.exchange(client.tuple, &asked).code(), Some(401));
}
