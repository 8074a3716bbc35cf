//! V-25 and V-26: what an attacker learns from a refusal.

use std::time::{Duration, Instant};

use turnbuckle_wire::{AttributeType, Method};

use crate::harness::{Answer, Authority, Client, Mechanism, Server, Site, channel};
use crate::legacy::{clients, start_with};

/// How a request is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    User,
    Password,
    FirstByte,
    LastByte,
}

const ALL: [Wrong; 4] = [
    Wrong::User,
    Wrong::Password,
    Wrong::FirstByte,
    Wrong::LastByte,
];

fn relay(site: Site) -> Server {
    let relay_ip = format!("--relay-ip={}", site.ip(1));
    Server::start(site.server(), &[&relay_ip, "--allow-loopback-peers"])
}

/// Returns a request of `method` that is wrong in one way and right in all others. Unknown and known name have equal length.
fn wrong_request(client: &mut Client, method: Method, wrong: Wrong) -> Vec<u8> {
    let (username, password) = (client.username.clone(), client.password.clone());
    match wrong {
        Wrong::User => client.username = username.chars().rev().collect(),
        Wrong::Password => client.password.push('!'),
        Wrong::FirstByte | Wrong::LastByte => {}
    }
    let peer = std::net::SocketAddr::from(([127, 0, 0, 9], 9));
    let mut request = client.signed(method, |writer| {
        writer
            .requested_transport(17)
            .lifetime(600)
            .xor_peer_address(peer);
        writer.bytes(AttributeType::CHANNEL_NUMBER, &[0x40, 0, 0, 0]);
    });
    let mac_len = if client.mechanism == Mechanism::Md5 {
        20
    } else {
        32
    };
    let end = request.len();
    match wrong {
        Wrong::FirstByte => request[end - mac_len] ^= 1,
        Wrong::LastByte => request[end - 1] ^= 1,
        Wrong::User | Wrong::Password => {}
    }
    (client.username, client.password) = (username, password);
    request
}

//= V-25
//= V-26
//= STUN-051
//= STUN-052
#[test]
fn unknown_user_wrong_password_and_wrong_byte_get_the_same_answer() {
    for mechanism in [Mechanism::Md5, Mechanism::Sha256] {
        for has_allocation in [false, true] {
            let site = Site::new();
            let server = relay(site);
            let mut client = Client::new(site.ip(2), &server);
            client.fetch_challenge();
            client.mechanism = mechanism;
            if has_allocation {
                client.allocate();
            }
            let methods = [
                Method::ALLOCATE,
                Method::REFRESH,
                Method::CREATE_PERMISSION,
                Method::CHANNEL_BIND,
            ];
            for method in methods {
                let answers: Vec<Answer> = ALL
                    .map(|wrong| {
                        let request = wrong_request(&mut client, method, wrong);
                        client.exchange(&request).expect(401)
                    })
                    .into();
                for (answer, wrong) in answers.iter().zip(ALL) {
                    assert_eq!(
                        answer.skeleton(),
                        answers[0].skeleton(),
                        "{wrong:?}, {method:?}, {mechanism:?}"
                    );
                    assert_eq!(answer.0.len(), answers[0].0.len());
                    assert_eq!(answer.nonce().len(), answers[0].nonce().len());
                    assert!(
                        !answer.message().has_integrity_sha1()
                            && !answer.message().has_integrity_sha256()
                    );
                }
            }
            if has_allocation {
                client.refresh(600).expect(200);
                client.send_channel_data(channel(0), b"not bound");
            }
        }
    }
}

//= V-26
#[test]
fn another_users_wrong_password_says_the_same_as_no_such_user_on_a_live_allocation() {
    let site = Site::new();
    let server = relay(site);
    let mut owner = Client::new(site.ip(2), &server);
    owner.allocate();
    let mut attacker = owner.as_other_user();
    attacker.fetch_challenge();
    let [unknown, known] = [Wrong::User, Wrong::Password].map(|wrong| {
        let request = wrong_request(&mut attacker, Method::REFRESH, wrong);
        attacker.exchange(&request).expect(401).skeleton()
    });
    assert_eq!(unknown, known);
    owner.refresh(600).expect(200);
}

//= V-25
//= V-26
#[test]
fn reports_how_long_refusals_take() {
    // Timing on a shared machine proves nothing, so this prints and judges only that there is an answer.
    const HOSTS: u8 = 100;
    const ROUNDS_PER_HOST: u32 = 10;
    let site = Site::new();
    let server = relay(site);
    let mut times: [Vec<Duration>; 4] = Default::default();
    // Each address is told "no" only so often before the relay saves its breath (V-40).
    for host in 10..10 + HOSTS {
        let mut client = Client::new(site.ip(host), &server);
        client.fetch_challenge();
        for _ in 0..ROUNDS_PER_HOST {
            for (wrong, times) in ALL.into_iter().zip(&mut times) {
                let request = wrong_request(&mut client, Method::ALLOCATE, wrong);
                let start = Instant::now();
                client.exchange(&request).expect(401);
                times.push(start.elapsed());
            }
        }
    }
    let count = times[0].len();
    for (wrong, times) in ALL.into_iter().zip(&mut times) {
        times.sort_unstable();
        let (low, median, high) = (times[count / 4], times[count / 2], times[count * 3 / 4]);
        println!(
            "{wrong:?}: median {median:?}, quartiles {low:?} and {high:?} over {count} refusals"
        );
    }
}

/// Passwords are guessed no faster over a connection or a session than over plain UDP.
#[test]
fn refusals_are_limited_on_every_transport_and_who_is_known_does_not_notice() {
    const GUESSES: u32 = 100;
    let (site, authority) = (Site::new(), Authority::new());
    let limit = ["--unauthorized-ratelimit", "--unauthorized-ratelimit-rps=3"];
    for transport in 0..4 {
        let server = start_with(site, &authority, &limit);
        let client = clients(site, &authority, &server)
            .into_iter()
            .nth(transport);
        let mut client = client.unwrap();
        client.allocate();
        let right = std::mem::replace(&mut client.password, "a guess".to_owned());
        let guess = client.signed(Method::REFRESH, |_| {});
        client.password = right;
        for _ in 0..GUESSES {
            client.send_raw(&guess);
        }
        client.refresh(600).expect(200);
        let silent = server.stop().dropped_as("unverified_budget");
        assert!(
            (1..=GUESSES.into()).contains(&silent),
            "{transport}: {silent}"
        );
    }
}
