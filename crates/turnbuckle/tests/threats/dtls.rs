//! V-42: clients that come by DTLS, what they leave behind before they have shown where they are, and what nobody else can do to them.

use std::net::SocketAddr;
use std::time::Instant;

use openssl::ssl::SslVersion;
use turnbuckle_wire::{Class, Method};

use crate::harness::{
    Authority, Client, Crowd, Dtls, DtlsLink, Key, Server, Site, plain, read_message_or_end,
};
use crate::streams::{relay_both_ways, start};

/// Hellos without a cookie, each from an address of its own, unless the environment's `TURNBUCKLE_STRANGERS` says otherwise.
const STRANGERS: u32 = 1_000_000;
/// Of clients that come after them.
const CLIENTS: usize = 100;
/// V-42's bound on what strangers may leave.
const GROWTH_MAX: u64 = 1 << 20;

/// Returns the port for DTLS of the relay of a site.
fn dtls_address(site: Site) -> SocketAddr {
    SocketAddr::new(site.server().ip(), 5349)
}

fn start_with(site: Site, certificate: &[String; 2], options: &[&str]) -> Server {
    let certificate: Vec<&str> = certificate.iter().map(String::as_str).collect();
    start(site, &[&["--dtls"], &certificate[..], options].concat())
}

fn client(dtls: &Dtls, site: Site, server: &Server) -> Client {
    Client::over_dtls(
        dtls.connect(site.ip(2), dtls_address(site)).unwrap(),
        server,
    )
}

//= TURN-009 DTLS-02 DTLS-04 MUX-03
#[test]
fn a_client_over_dtls_relays_both_ways_with_every_kind_of_key_on_both_ports() {
    for key in [Key::P256, Key::P384, Key::Rsa] {
        let site = Site::new();
        let authority = Authority::new();
        let server = start_with(site, &authority.options(key), &[]);
        assert!(
            server
                .greeting()
                .contains("listening on UDP, TCP, TLS and DTLS")
        );
        for address in [dtls_address(site), server.address()] {
            let session = authority
                .dtls_client()
                .connect(site.ip(2), address)
                .unwrap();
            assert_eq!(session.version(), Some(SslVersion::DTLS1_2));
            let mut client = Client::over_dtls(session, &server);
            relay_both_ways(&mut client, site.ip(9));
        }
        // Plain UDP is served beside it.
        relay_both_ways(&mut Client::new(site.ip(2), &server), site.ip(9));
    }
}

//= DTLS-06 DTLS-08
#[test]
fn a_million_hellos_leave_nothing_behind_and_get_less_than_they_sent() {
    let site = Site::new();
    let authority = Authority::new();
    let options = [
        "--relay-threads=1",
        "--max-dtls-sessions-without-allocation-per-address=200",
    ];
    let server = start_with(site, &authority.options(Key::P256), &options);
    let dtls = authority.dtls_client();
    let mut before = client(&dtls, site, &server);
    before.allocate();
    let hello = dtls.begin(site.ip(3), server.address()).send_client_hello();
    let strangers: u32 = std::env::var("TURNBUCKLE_STRANGERS")
        .map_or(STRANGERS, |count| count.parse().expect("a number"));
    let flood = |clients| {
        Crowd::new(server.address()).flood(clients, |number, bytes| {
            bytes.extend_from_slice(&hello);
            bytes[27..31].copy_from_slice(&number.to_be_bytes()); // in the random number
        })
    };
    flood(0..strangers.min(10_000));
    let (memory, descriptors) = (server.user_memory(), server.descriptors());
    let begun = Instant::now();
    let answers = flood(0..strangers);
    let seconds = begun.elapsed().as_secs_f64();
    let growth = server.user_memory().saturating_sub(memory);
    println!(
        "{strangers} hellos of {} bytes in {seconds:.1} s, {answers} answers, user memory +{growth} bytes",
        hello.len()
    );
    assert!(growth < GROWTH_MAX, "user memory grew by {growth} bytes");
    server.assert_descriptors(descriptors);
    let begun = Instant::now();
    let mut slowest = 0.0_f64;
    for _ in 0..CLIENTS {
        let began = Instant::now();
        dtls.connect(site.ip(2), dtls_address(site)).unwrap();
        slowest = slowest.max(began.elapsed().as_secs_f64());
    }
    println!(
        "{CLIENTS} handshakes in {:.3} s, the slowest took {slowest:.3} s",
        begun.elapsed().as_secs_f64()
    );
    before.refresh(600).expect(200);
    let accounting = server.stop();
    let begun = accounting.closed_as("crowded") + accounting.closed_as("handshake_late");
    assert_eq!(begun, 0, "no session was begun for a stranger");
    assert!(
        accounting.received >= u64::from(strangers) / 100 * 99,
        "they were heard: {accounting:#?}"
    );
}

#[test]
fn handshakes_that_stop_halfway_make_room_for_each_other_and_end_in_time() {
    let site = Site::new();
    let authority = Authority::new();
    let options = [
        "--relay-threads=1",
        "--max-dtls-sessions-without-allocation=20",
        "--stream-deadline=4",
    ];
    let server = start_with(site, &authority.options(Key::P256), &options);
    let dtls = authority.dtls_client();
    let mut before = client(&dtls, site, &server);
    relay_both_ways(&mut before, site.ip(9));
    let half: Vec<DtlsLink> = (0..200)
        .map(|_| {
            let mut half = dtls.begin(site.ip(3), dtls_address(site));
            half.say_second_hello();
            half
        })
        .collect();
    // Others get through all the same, and who was there before has noticed nothing.
    relay_both_ways(&mut client(&dtls, site, &server), site.ip(9));
    before.refresh(600).expect(200);
    std::thread::sleep(std::time::Duration::from_millis(4500));
    before.settle();
    drop(half);
    let accounting = server.stop();
    let ended = accounting.closed_as("crowded") + accounting.closed_as("handshake_late");
    assert_eq!(ended, 200, "{accounting:#?}");
    assert!(accounting.closed_as("crowded") >= 180, "{accounting:#?}");
    assert!(
        accounting.closed_as("handshake_late") > 0,
        "{accounting:#?}"
    );
}

#[test]
fn half_open_handshakes_of_one_address_are_limited_and_keep_nobody_else_out() {
    let site = Site::new();
    let authority = Authority::new();
    let options = [
        "--relay-threads=1",
        "--max-dtls-sessions-without-allocation=40",
        "--max-dtls-sessions-without-allocation-per-address=20",
    ];
    let server = start_with(site, &authority.options(Key::P256), &options);
    let dtls = authority.dtls_client();
    let half: Vec<DtlsLink> = (0..100)
        .map(|_| {
            let mut half = dtls.begin(site.ip(3), dtls_address(site));
            half.say_second_hello();
            half
        })
        .collect();
    relay_both_ways(&mut client(&dtls, site, &server), site.ip(9));
    drop(half);
    let accounting = server.stop();
    assert!(
        accounting.closed_as("crowded_address") >= 80,
        "{accounting:#?}"
    );
    assert_eq!(accounting.closed_as("crowded"), 0, "nobody else made room");
}

/// A Binding request proves nothing: sessions that say no more keep no new client out.
#[test]
fn sessions_held_by_messages_without_proof_make_room_for_a_client() {
    let site = Site::new();
    let authority = Authority::new();
    let options = ["--relay-threads=1", "--max-dtls-sessions=20"];
    let server = start_with(site, &authority.options(Key::P256), &options);
    let dtls = authority.dtls_client();
    let mut before = client(&dtls, site, &server);
    before.allocate();
    let held: Vec<Client> = (0..50)
        .map(|_| {
            let mut client = client(&dtls, site, &server);
            client.settle();
            client
        })
        .collect();
    relay_both_ways(&mut client(&dtls, site, &server), site.ip(9));
    before.refresh(600).expect(200);
    drop(held);
    let accounting = server.stop();
    assert!(accounting.closed_as("crowded") >= 30, "{accounting:#?}");
    assert_eq!(accounting.dropped_as("dtls_crowded"), 0, "{accounting:#?}");
}

/// On the client's own address even, which no attacker off the path has: what does not prove itself changes nothing.
#[test]
fn repeated_changed_and_invented_records_do_no_harm_and_are_counted() {
    let site = Site::new();
    let authority = Authority::new();
    let server = start_with(site, &authority.options(Key::P256), &["--relay-threads=1"]);
    let mut client = client(&authority.dtls_client(), site, &server);
    relay_both_ways(&mut client, site.ip(9));
    client.settle();
    let record = client.session().last_sent().to_vec();
    let mut rejected = 0;
    for _ in 0..10 {
        client.session().send_raw(&record).unwrap();
        rejected += 1;
    }
    for bit in (0..record.len() * 8).step_by(7).filter(|bit| bit / 8 != 0) {
        let mut changed = record.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        client.session().send_raw(&changed).unwrap();
        rejected += 1;
    }
    for len in (1..record.len()).step_by(5) {
        client.session().send_raw(&record[..len]).unwrap();
        rejected += 1;
    }
    client.settle();
    client.refresh(600).expect(200);
    // From an address without a session nothing of it means anything.
    let stranger = authority
        .dtls_client()
        .begin(site.ip(3), dtls_address(site));
    stranger.send_raw(&record).unwrap();
    stranger.send_raw(&record[..8]).unwrap();
    stranger.send_raw(&[0x16; 2000]).unwrap();
    client.settle();
    let accounting = server.stop();
    assert_eq!(
        accounting.dropped_as("dtls_rejected"),
        rejected,
        "{accounting:#?}"
    );
    assert_eq!(accounting.dropped_as("dtls_no_session"), 1);
    assert_eq!(accounting.dropped_as("dtls_malformed"), 2);
}

//= DTLS-03
#[test]
fn an_allocation_ends_with_its_session() {
    let site = Site::new();
    let authority = Authority::new();
    let server = start_with(site, &authority.options(Key::P256), &["--user-quota=1"]);
    let dtls = authority.dtls_client();
    for _ in 0..5 {
        let mut client = client(&dtls, site, &server);
        client.allocate();
        let refused = Client::over_dtls(
            dtls.connect(site.ip(3), dtls_address(site)).unwrap(),
            &server,
        )
        .allocate_with(|_| {});
        refused.expect(486);
        client.session().say_goodbye();
        assert_eq!(read_message_or_end(client.session()), None);
    }
    assert_eq!(server.stop().closed_as("remote"), 5);
}

#[test]
fn a_client_without_a_certificate_of_the_authority_is_refused_where_one_is_asked_for() {
    let site = Site::new();
    let (authority, other) = (Authority::new(), Authority::new());
    let asked = format!("--CA-file={}", authority.root_file().display());
    let server = start_with(site, &authority.options(Key::Rsa), &[&asked]);
    for refused in [authority.dtls_client(), authority.dtls_client_of(&other)] {
        assert!(refused.connect(site.ip(2), dtls_address(site)).is_err());
    }
    let known = authority.dtls_client_of(&authority);
    relay_both_ways(&mut client(&known, site, &server), site.ip(9));
    assert_eq!(server.stop().closed_as("handshake_failed"), 2);
}

#[test]
fn certificates_are_swapped_and_sessions_go_on() {
    let site = Site::new();
    let authority = Authority::new();
    let options = authority.options(Key::P256);
    let server = start_with(site, &options, &["--no-tls"]);
    let dtls = authority.dtls_client();
    let mut old = client(&dtls, site, &server);
    old.allocate();
    let first = old.session().shown().unwrap();
    for key in [Key::Rsa, Key::P384] {
        authority.options(key);
        server.reload_certificates();
        server.wait_for_line("certificates read again");
        let shown = dtls
            .connect(site.ip(2), dtls_address(site))
            .unwrap()
            .shown()
            .unwrap();
        assert_ne!(shown, first);
    }
    authority.write("key.pem", "not a key");
    server.reload_certificates();
    server.wait_for_line("warning: certificates not changed: pkey ");
    dtls.connect(site.ip(2), dtls_address(site)).unwrap();
    old.refresh(600).expect(200);
}

#[test]
fn without_plain_udp_there_is_dtls_alone() {
    let site = Site::new();
    let authority = Authority::new();
    let options = ["--no-udp", "--no-tcp", "--no-tls", "--relay-threads=1"];
    let server = start_with(site, &authority.options(Key::P256), &options);
    assert!(server.greeting().contains("listening on DTLS "));
    let mut client = client(&authority.dtls_client(), site, &server);
    relay_both_ways(&mut client, site.ip(9));
    let plain_client = authority
        .dtls_client()
        .begin(site.ip(3), dtls_address(site));
    plain_client
        .send_raw(&plain(Class::Request, Method::BINDING, |_| {}))
        .unwrap();
    client.settle();
    assert_eq!(server.stop().dropped_as("service_disabled"), 1);
}
