//! What a client costs, and what a stranger costs: V-21 and the memory figures.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::thread;
use std::time::Instant;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use turnbuckle_wire::{Class, IntegrityKey, MessageWriter, Method, long_term_key_md5};

use crate::harness::{
    Canary, Client, Crowd, PASSWORD, REALM, Server, Site, USER, channel, message,
};
use crate::not_run::not_run;

/// Allocations held at once.
const ALLOCATIONS: u32 = 10_000;
/// User memory that one of them may cost, with a permission and a channel.
const BYTES_PER_ALLOCATION_MAX: u64 = 2 * 1024;
/// Requests from strangers, each from an address of its own, unless the environment's `TURNBUCKLE_STRANGERS` says otherwise.
const STRANGERS: u32 = 1_000_000;
/// What the heap's and the kernel's bookkeeping may move after a warm-up of the same kind.
const GROWTH_MAX: u64 = 256 * 1024;

fn relay(site: Site) -> Server {
    let relay_ip = format!("--relay-ip={}", site.ip(1));
    Server::start(site.server(), &[&relay_ip, "--allow-loopback-peers"])
}

#[test]
fn an_idle_allocation_with_permission_and_channel_costs_at_most_2_kib() {
    if !may_open(u64::from(ALLOCATIONS) + 500) {
        not_run(&format!(
            "the hard limit of open files is too low for {ALLOCATIONS} relay sockets"
        ));
        return;
    }
    let site = Site::new();
    let server = relay(site);
    let crowd = Crowd::new(server.address());
    // What is made once, whatever the number of allocations, is there after the first few.
    hold(&crowd, 0..100);
    let (memory, descriptors) = (server.user_memory(), server.descriptors());
    let start = Instant::now();
    hold(&crowd, 100..ALLOCATIONS);
    let allocations = u64::from(ALLOCATIONS - 100);
    // A socket to each.
    server.assert_descriptors(descriptors + usize::try_from(allocations).unwrap());
    let growth = server.user_memory().saturating_sub(memory);
    println!(
        "{} bytes of user memory per idle allocation ({growth} for {allocations}, made in {:.1} s)",
        growth / allocations,
        start.elapsed().as_secs_f64()
    );
    assert!(
        growth <= allocations * BYTES_PER_ALLOCATION_MAX,
        "{} bytes each",
        growth / allocations
    );
    // They are alive: the last one's channel carries data.
    let last = ALLOCATIONS - 1;
    let peer = Canary::at(channel_peer(last));
    crowd.send(last, &[0x40, 0, 0, 5, b'a', b'l', b'i', b'v', b'e']);
    // Binding by the same client comes to the same shard.
    for _ in 0..2 {
        crowd.exchange(
            last..ALLOCATIONS,
            |_, id| message(Class::Request, Method::BINDING, id, |_| {}),
            |_, answer| {
                answer.expect(200);
            },
        );
    }
    assert_eq!(peer.hits(), ["alive"]);
}

/// Makes an allocation, a permission and a channel for each client.
fn hold(crowd: &Crowd, clients: std::ops::Range<u32>) {
    let key = IntegrityKey::sha1(&long_term_key_md5(
        USER.as_bytes(),
        REALM.as_bytes(),
        PASSWORD.as_bytes(),
    ));
    let first = clients.start;
    let mut nonces = vec![Vec::new(); clients.len()];
    crowd.exchange(
        clients.clone(),
        |_, id| {
            message(Class::Request, Method::ALLOCATE, id, |writer| {
                writer.requested_transport(17);
            })
        },
        |client, answer| nonces[(client - first) as usize] = answer.expect(401).nonce(),
    );
    let request = |method, build: &dyn Fn(u32, &mut MessageWriter<'_>)| {
        crowd.exchange(
            clients.clone(),
            |client, id| {
                message(Class::Request, method, id, |writer| {
                    build(client, writer);
                    writer
                        .username(USER.as_bytes())
                        .realm(REALM.as_bytes())
                        .nonce(&nonces[(client - first) as usize]);
                    writer.integrity(&key);
                })
            },
            |_, answer| {
                answer.expect(200);
            },
        );
    };
    request(Method::ALLOCATE, &|_, writer| {
        writer.requested_transport(17);
    });
    request(Method::CREATE_PERMISSION, &|_, writer| {
        writer.xor_peer_address(SocketAddr::from(([127, 254, 0, 1], 9)));
    });
    request(Method::CHANNEL_BIND, &|client, writer| {
        let [high, low] = channel(0).to_be_bytes();
        writer.bytes(
            turnbuckle_wire::AttributeType::CHANNEL_NUMBER,
            &[high, low, 0, 0],
        );
        writer.xor_peer_address(channel_peer(client));
    });
}

/// Returns the peer of a client's channel, another one for each.
fn channel_peer(client: u32) -> SocketAddr {
    let [.., third, fourth] = client.to_be_bytes();
    SocketAddr::new(IpAddr::from([127, 253, third, fourth]), 9_000)
}

//= V-21
#[test]
fn a_million_strangers_leave_nothing_behind() {
    let strangers = std::env::var("TURNBUCKLE_STRANGERS");
    let strangers = strangers.map_or(STRANGERS, |count| count.parse().unwrap());
    let site = Site::new();
    let server = relay(site);
    warm_up(&server);
    let (memory, descriptors) = (server.user_memory(), server.descriptors());
    let start = Instant::now();
    let answers = flood(&server, 50_000..50_000 + strangers);
    let seconds = start.elapsed().as_secs_f64();
    let growth = server.user_memory().saturating_sub(memory);
    println!(
        "{strangers} requests in {seconds:.1} s, {answers} answers, user memory +{growth} bytes"
    );
    assert!(growth < GROWTH_MAX, "user memory grew by {growth} bytes");
    server.assert_descriptors(descriptors); // no socket was opened

    let start = Instant::now();
    let mut client = Client::new(site.ip(2), &server);
    client.allocate();
    println!(
        "a legitimate allocation took {:?} right afterwards",
        start.elapsed()
    );
    let accounting = server.stop();
    // On a busy machine a socket's buffer may overflow now and then.
    assert!(
        accounting.received >= u64::from(strangers) / 100 * 99,
        "they were heard: {accounting:#?}"
    );
}

//= V-50
#[test]
fn a_flood_of_junk_writes_no_lines() {
    let site = Site::new();
    let server = Server::start(site.server(), &["--verbose"]);
    let id = turnbuckle_wire::TransactionId::new([7; 12]);
    let junk = [
        message(Class::Success, Method::BINDING, id, |_| {}),
        message(Class::Indication, Method::SEND, id, |_| {}),
        message(Class::Request, Method::REFRESH, id, |_| {}),
        vec![0, 1, 0xFF, 0xFC, 0x21, 0x12, 0xA4, 0x42, 0, 0],
        vec![0x40, 0, 0xFF, 0xFF],
        vec![0xFF; 100],
    ];
    let stranger = UdpSocket::bind((site.ip(3), 0)).unwrap();
    let mut client = Client::new(site.ip(2), &server);
    for number in 0..20_000 {
        let _ = stranger.send_to(&junk[number % junk.len()], server.address());
        if number % 500 == 499 {
            client.settle(); // so that all of it is heard
        }
    }
    assert_eq!(server.lines_so_far(), [""; 0]);
    client.allocate();
    server.wait_for_line("new, realm=");
}

/// Sends one request from each client, of all the kinds that prove nothing, and counts the answers.
/// Has the relay touch all the memory that it keeps: each shard reads as many messages at once as it ever does.
fn warm_up(server: &Server) {
    let templates = forged_requests();
    let crowd = Crowd::new(server.address());
    server.while_stopped(|| {
        for client in 0..2_000 {
            crowd.send(client, &templates[client as usize % templates.len()]);
        }
    });
    flood(server, 0..50_000);
}

fn flood(server: &Server, clients: std::ops::Range<u32>) -> u64 {
    let half = clients.start + (clients.end - clients.start) / 2;
    let server = server.address();
    thread::scope(|scope| {
        let halves = [clients.start..half, half..clients.end];
        let threads = halves.map(|clients| scope.spawn(move || flood_from(server, clients)));
        threads
            .into_iter()
            .map(|thread| thread.join().expect("the flood ends"))
            .sum()
    })
}

fn flood_from(server: SocketAddr, clients: std::ops::Range<u32>) -> u64 {
    let templates = forged_requests();
    Crowd::new(server).flood(clients, |client, bytes| {
        bytes.extend_from_slice(&templates[client as usize % templates.len()]);
        // Transaction id, and with it the nonce and the integrity of the forged ones, differ each time.
        bytes[8..12].copy_from_slice(&client.to_be_bytes());
    })
}

/// Returns requests that prove nothing: without credentials, with made-up ones, with a user's name and garbage for integrity.
fn forged_requests() -> Vec<Vec<u8>> {
    let id = turnbuckle_wire::TransactionId::new([7; 12]);
    let garbage = IntegrityKey::sha1(b"garbage");
    let garbage_sha256 = IntegrityKey::sha256(b"garbage");
    let credentials = |writer: &mut MessageWriter<'_>, user: &str| {
        writer.username(user.as_bytes()).realm(REALM.as_bytes());
        writer.nonce(b"obMatJos2gAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA");
    };
    vec![
        message(Class::Request, Method::ALLOCATE, id, |_| {}),
        message(Class::Request, Method::ALLOCATE, id, |writer| {
            writer.requested_transport(17);
        }),
        message(Class::Request, Method::ALLOCATE, id, |writer| {
            writer.requested_transport(17).even_port(true);
            credentials(writer, USER);
            writer.integrity(&garbage);
        }),
        message(Class::Request, Method::ALLOCATE, id, |writer| {
            writer.requested_transport(17);
            credentials(writer, "1999999999:nobody");
            writer.integrity(&garbage_sha256);
        }),
        message(Class::Request, Method::REFRESH, id, |writer| {
            writer.lifetime(3600);
            credentials(writer, USER);
            writer.integrity(&garbage);
        }),
        message(Class::Request, Method::CREATE_PERMISSION, id, |writer| {
            writer.xor_peer_address(SocketAddr::from(([21, 0, 0, 9], 9)));
        }),
        message(Class::Request, Method::CHANNEL_BIND, id, |_| {}),
        message(Class::Request, Method::BINDING, id, |_| {}),
    ]
}

/// Raises the limit of open files, which the relay inherits, as far as it goes.
fn may_open(count: u64) -> bool {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("getrlimit");
    if hard < count && setrlimit(Resource::RLIMIT_NOFILE, count, count).is_err() {
        return false;
    }
    let hard = hard.max(count);
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok()
}
