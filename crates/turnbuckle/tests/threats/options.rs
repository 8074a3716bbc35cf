//! coturn's options, each seen to act on the running server: one that is read and then forgotten would look the same to every
//! other test. Options that a row of threats is about are tried there.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, SystemTime};

use turnbuckle_wire::{AddressFamily, AttributeType, Class, Message, Method};

use crate::harness::{
    Answer, Authority, Client, Key, Server, Site, channel, peer_receives, peer_socket, plain,
    relayed,
};
use crate::legacy::{clients, start_with};
use crate::not_run::not_run;
use crate::ports::free_ports;
use crate::realms::eventually;
use crate::streams::start;

fn binding() -> Vec<u8> {
    plain(Class::Request, Method::BINDING, |_| {})
}

/// Starts a server with these options, and returns what it says to a Binding request.
fn binding_answer(options: &[&str]) -> Answer {
    let site = Site::new();
    let server = Server::start(site.server(), options);
    Client::new(site.ip(2), &server).exchange(&binding())
}

#[test]
fn binding_answers_have_what_the_options_ask_for_and_nothing_else() {
    type Claim = fn(&Message<'_>) -> bool;
    let claims: [(&str, Claim); 3] = [
        ("--fingerprint", |answer| answer.has_fingerprint()),
        ("--stun-backward-compatibility", |answer| {
            answer.mapped_address().unwrap() == answer.xor_mapped_address().unwrap()
        }),
        ("--secure-stun", |answer| {
            answer.class() == Class::Error && answer.contains(AttributeType::NONCE)
        }),
    ];
    for (option, holds) in claims {
        assert!(holds(&binding_answer(&[option]).message()), "{option}");
        assert!(!holds(&binding_answer(&[]).message()), "{option}");
    }
}

//= TURN-007
#[test]
fn clients_are_told_which_software_it_is_and_what_was_wrong_where_that_is_wanted() {
    for (options, software, reason) in [
        (&[][..], false, "Bad Request"),
        (&["--software-attribute"], true, "Bad Request"),
        (&["--no-software-attribute=false"], true, "Bad Request"),
        (
            &["--include-reason-string"],
            false,
            "Channel number out of range",
        ),
    ] {
        let site = Site::new();
        let server = Server::start(site.server(), options);
        let mut client = Client::new(site.ip(2), &server);
        let answer = client.allocate_with(|_| {}).expect(200);
        let said = answer.message().contains(AttributeType::SOFTWARE);
        assert_eq!(said, software, "{options:?}");
        let answer = client.refresh(600).expect(200);
        let said = answer.message().contains(AttributeType::SOFTWARE);
        assert_eq!(said, software, "{options:?}");
        let answer = client.channel_bind(1, site.server()).expect(400);
        let answer = answer.message();
        let phrase = answer.error_code().unwrap().unwrap().reason;
        let phrase = std::str::from_utf8(phrase).unwrap();
        assert_eq!(phrase, reason, "{options:?}");
    }
}

#[test]
fn binding_or_turn_requests_get_no_answer_where_the_other_is_all_that_is_served() {
    for option in ["--no-stun", "--stun-only"] {
        let site = Site::new();
        let server = Server::start(site.server(), &[option, "--relay-threads=1"]);
        let mut client = Client::new(site.ip(2), &server);
        let allocate = plain(Class::Request, Method::ALLOCATE, |_| {});
        let (served, ignored) = match option {
            "--no-stun" => (allocate, binding()),
            _ => (binding(), allocate),
        };
        for _ in 0..5 {
            client.send_raw(&ignored);
        }
        client.exchange(&served);
        assert!(client.has_received_nothing(), "{option}");
        assert_eq!(server.stop().dropped_as("service_disabled"), 5, "{option}");
    }
}

#[test]
fn who_does_not_ask_for_a_family_gets_the_one_of_the_options() {
    let v6 = IpAddr::from(Ipv6Addr::LOCALHOST);
    for (option, by_v4, by_v6) in [
        ("--allocation-default-address-family=ipv4", 4, 4),
        ("--allocation-default-address-family=ipv6", 6, 6),
        ("--allocation-default-address-family=keep", 4, 6),
        ("--keep-address-family", 4, 6),
    ] {
        let site = Site::new();
        let port = free_ports();
        let here = format!("--listening-ip={}", site.ip(1));
        let relays = [
            format!("--relay-ip={}", site.ip(1)),
            format!("--relay-ip={v6}"),
        ];
        let options = [option, &here, &relays[0], &relays[1]];
        let server = Server::start(SocketAddr::new(v6, port), &options);
        let at_v4 = SocketAddr::new(site.ip(1), port);
        for (mut client, version) in [
            (Client::at(site.ip(2), at_v4), by_v4),
            (Client::new(v6, &server), by_v6),
        ] {
            let answer = client.allocate_with(|_| {}).expect(200);
            let found = [(4, AddressFamily::V4), (6, AddressFamily::V6)];
            let found = found.map(|(number, family)| relayed(&answer, family).map(|_| number));
            assert_eq!(found.iter().flatten().collect::<Vec<_>>(), [&version]);
        }
    }
}

#[test]
fn the_data_path_and_the_shards_are_those_of_the_options() {
    for (options, expected) in [
        (&["--udp-recvmmsg=false"][..], "data path: single"),
        (&["--udp-gso=false"], "data path: mmsg"),
        (&["--relay-threads=3"], "3 shards"),
        (&["--udp-coalesce-us=0"], "no pause"),
        (&[], "pauses of at most 500 us before reading when busy\n"),
        (&["--udp-coalesce=cpu"], "500 us before reading\n"),
    ] {
        let site = Site::new();
        let server = Server::start(site.server(), options);
        let greeting = server.greeting();
        assert!(greeting.contains(expected), "{options:?}: {greeting}");
        Client::new(site.ip(2), &server).settle();
    }
}

/// `ss` prints what a socket was granted, which is twice what was asked for (socket(7)).
#[test]
fn listeners_have_buffers_of_the_size_that_is_asked_for() {
    let site = Site::new();
    let _server = Server::start(site.server(), &["--sock-buf-size=40000"]);
    let output = Command::new("ss")
        .args(["-uanmH", "src"])
        .arg(site.server().to_string())
        .output();
    let Ok(output) = output else {
        not_run("ss of iproute2 is not installed");
        return;
    };
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("rb80000,") && text.contains("tb80000,"),
        "{text}"
    );
}

#[test]
fn counters_of_batches_and_lines_about_requests_are_printed_where_they_are_wanted() {
    for (options, expected) in [
        (
            ["--udp-recvmmsg-log", "--statistics-interval=1"],
            "udp-recvmmsg: thread=",
        ),
        (
            ["--udp-sendmmsg-log", "--statistics-interval=1"],
            "udp-sendmmsg: thread=",
        ),
        (["--Verbose", "--verbose"], "ALLOCATE by UDP from"),
        (["--Verbose", "--log-binding"], "BINDING by UDP from"),
    ] {
        let site = Site::new();
        let server = Server::start(site.server(), &options);
        let mut client = Client::new(site.ip(2), &server);
        client.settle();
        client.allocate();
        server.wait_for_line(expected);
    }
}

#[test]
fn the_secret_the_separator_and_the_quota_of_its_users_count() {
    let site = Site::new();
    let options = [
        "--static-auth-secret=north",
        "--rest-api-separator=!",
        "--user-quota=1",
    ];
    let server = Server::start(site.server(), &options);
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap();
    let codes = [('!', 3600), (':', 3600), ('!', 7200)].map(|(separator, seconds)| {
        let mut client = Client::new(site.ip(2), &server);
        client.username = format!("{}{separator}carol", now.as_secs() + seconds);
        client.password = rest_password("north", &client.username);
        client.allocate_with(|_| {}).code()
    });
    // The third is the same person under a later expiry.
    assert_eq!(codes, [200, 401, 486]);
}

//= V-32
#[test]
fn a_call_outlives_its_credential_unless_the_key_says_otherwise() {
    let sites = [
        (&["--static-auth-secret=north"][..], 200),
        (
            &["--static-auth-secret=north", "--credential-expiry=request"],
            401,
        ),
    ]
    .map(|(options, code)| {
        let site = Site::new();
        let server = Server::start(site.server(), options);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let mut client = Client::new(site.ip(2), &server);
        client.username = format!("{}:carol", now.unwrap().as_secs() + 1);
        client.password = rest_password("north", &client.username);
        client.allocate();
        (site, server, client, code)
    });
    // The wall clock of another process has to pass the second that the name ends in.
    std::thread::sleep(Duration::from_millis(2_100));
    for (_site, server, mut client, code) in sites {
        assert_eq!(client.refresh(600).code(), code, "{:?}", server.address());
    }
}

/// Returns base64(HMAC-SHA1(secret, user name)).
pub(crate) fn rest_password(secret: &str, username: &str) -> String {
    let key = openssl::pkey::PKey::hmac(secret.as_bytes()).unwrap();
    let digest = openssl::hash::MessageDigest::sha1();
    let mut signer = openssl::sign::Signer::new(digest, &key).unwrap();
    signer.update(username.as_bytes()).unwrap();
    openssl::base64::encode_block(&signer.sign_to_vec().unwrap())
}

#[test]
fn third_party_authorization_names_the_server_and_origins_are_held_to() {
    let site = Site::new();
    let key = "--oauth-key=kid:MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
    let server = Server::start(
        site.server(),
        &["--oauth", key, "--server-name=blackdow.example"],
    );
    let challenge = Client::new(site.ip(2), &server).fetch_challenge();
    let named = challenge
        .message()
        .third_party_authorization()
        .map(<[u8]>::to_vec);
    assert_eq!(named.as_deref(), Some(&b"blackdow.example"[..]));
    drop(server);

    for (options, expected) in [(&["--check-origin-consistency"][..], 441), (&[], 200)] {
        let site = Site::new();
        let server = Server::start(site.server(), options);
        let mut client = Client::new(site.ip(2), &server);
        client.origin = b"https://example.org".to_vec();
        client.allocate();
        client.refresh(600).expect(200);
        client.origin = b"https://example.net".to_vec();
        client.refresh(600).expect(expected);
    }
}

#[test]
fn quotas_and_rates_that_are_given_away_are_refused_to_the_next() {
    for options in [
        &["--user-quota=2"][..],
        &["--total-quota=2"],
        &["--max-bps=1000", "--bps-capacity=1500"],
    ] {
        let site = Site::new();
        let server = Server::start(site.server(), options);
        let mut clients: Vec<_> = (0..3).map(|_| Client::new(site.ip(2), &server)).collect();
        let codes: Vec<_> = clients
            .iter_mut()
            .map(|client| client.allocate_with(|_| {}).code())
            .collect();
        assert_eq!(codes, [200, 200, 486], "{options:?}");
        clients[0].refresh(0).expect(200);
        clients[2].allocate_with(|_| {}).expect(200);
    }
}

#[test]
fn relay_ports_are_those_between_the_lowest_and_the_highest() {
    let site = Site::new();
    let options = ["--min-port=50001", "--max-port=50002"];
    let server = Server::start(site.server(), &options);
    let mut clients: Vec<_> = (0..3).map(|_| Client::new(site.ip(2), &server)).collect();
    let mut ports: Vec<_> = clients[..2]
        .iter_mut()
        .map(|client| client.allocate().port())
        .collect();
    ports.sort_unstable();
    assert_eq!(ports, [50001, 50002]);
    clients[2].allocate_with(|_| {}).expect(508);
}

#[test]
fn lifetimes_end_where_the_options_say() {
    let site = Site::new();
    let server = start(
        site,
        &[
            "--max-allocate-lifetime=1000",
            "--channel-lifetime=1",
            "--relay-threads=1",
        ],
    );
    let mut client = Client::new(site.ip(2), &server);
    client.allocate();
    assert_eq!(client.refresh(5000).expect(200).lifetime(), 1000);
    let peer = peer_socket(site.ip(7));
    let address = peer.local_addr().unwrap();
    let arrives = |client: &mut Client| {
        client.send_channel_data(channel(0), b"by channel");
        client.settle();
        peer.set_nonblocking(true).unwrap();
        peer.recv(&mut [0; 16]).is_ok()
    };
    // On a busy machine the channel may be gone before the first datagram comes.
    eventually("the channel", || {
        client.channel_bind(channel(0), address).expect(200);
        arrives(&mut client)
    });
    eventually("its end", || !arrives(&mut client));
    // The permission is there for longer.
    client.send_indication(address, b"by indication");
    peer.set_nonblocking(false).unwrap();
    assert_eq!(peer_receives(&peer).0, b"by indication");
    assert!(server.stop().dropped_as("channel_not_bound") > 0);
}

#[test]
fn each_transport_has_its_alternate_servers() {
    // Whom UDP, TCP, TLS and DTLS clients are sent to; 0 is nobody.
    for (options, expected) in [
        (&["--alternate-server=198.51.100.1:1"][..], [1, 1, 0, 0]),
        (&["--tls-alternate-server=198.51.100.1:2"], [0, 0, 2, 2]),
        (&["--udp-alternate-server=198.51.100.1:3"], [3, 0, 0, 3]),
        (&["--tcp-alternate-server=198.51.100.1:4"], [0, 4, 0, 0]),
        (
            &[
                "--alternate-server=198.51.100.1:1",
                "--udp-alternate-server=198.51.100.1:3",
            ],
            [3, 1, 0, 3],
        ),
    ] {
        let (site, authority) = (Site::new(), Authority::new());
        let server = start_with(site, &authority, options);
        let found = clients(site, &authority, &server).map(|mut client| {
            let answer = client.allocate_with(|_| {});
            let alternate = answer.message().alternate_server().unwrap();
            alternate.map_or(0, |address| address.port())
        });
        assert_eq!(found, expected, "{options:?}");
    }
}

#[test]
fn a_draining_server_ends_with_the_allocation_that_is_named_as_the_last_that_matters() {
    let site = Site::new();
    let server = Server::start(
        site.server(),
        &["--drain-min-allocations=1", "--relay-threads=1"],
    );
    let mut clients: Vec<_> = (0..3).map(|_| Client::new(site.ip(2), &server)).collect();
    for client in &mut clients {
        client.allocate();
    }
    server.drain();
    server.wait_for_line("draining");
    clients[0].refresh(0).expect(200);
    clients[1].refresh(600).expect(200);
    clients[1].refresh(0).expect(200);
    server.assert_ends();
}

#[test]
fn the_second_ports_of_discovery_are_those_of_the_options() {
    let (site, authority) = (Site::new(), Authority::new());
    let [certificate, key] = authority.options(Key::P256);
    let other = format!("--listening-ip={}", site.ip(2));
    let options = [
        &other,
        "--rfc5780",
        "--alt-listening-port=4001",
        "--alt-tls-listening-port=4002",
        &certificate,
        &key,
    ];
    let server = Server::start(site.server(), &options);
    let answer = Client::new(site.ip(3), &server).exchange(&binding());
    let told = answer.message().other_address().unwrap();
    assert_eq!(told, Some(SocketAddr::new(site.ip(2), 4001)));
    Client::at(site.ip(3), SocketAddr::new(site.ip(1), 4001)).settle();
    authority
        .client()
        .connect(SocketAddr::new(site.ip(1), 4002))
        .unwrap();
}

#[test]
fn what_is_switched_off_is_not_there() {
    for (option, has_tcp, has_tls) in [
        ("--no-tcp", false, true),
        ("--no-tls", true, false),
        ("--tls-listening-port=5350", true, false),
    ] {
        let (site, authority) = (Site::new(), Authority::new());
        let tls = SocketAddr::new(site.ip(1), 5349);
        let server = start_with(site, &authority, &[option]);
        let listens = |address| TcpStream::connect(address).is_ok();
        assert_eq!(listens(server.address()), has_tcp, "{option}");
        assert_eq!(listens(tls), has_tls, "{option}");
        Client::new(site.ip(2), &server).settle();
    }
}
