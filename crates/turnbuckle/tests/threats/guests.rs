//! `no-auth`: who is served without credentials, and that nobody else is.

use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use turnbuckle_wire::{AddressFamily, AttributeType, Class, Message, MessageWriter, Method};

use crate::harness::{
    Answer, Client, Server, Site, StreamLink, channel, connect_from, peer_receives, peer_socket,
    plain, relayed,
};

/// The first channel number, as CHANNEL-NUMBER holds it.
const NUMBER: [u8; 4] = [0x40, 0, 0, 0];

/// Starts a relay that serves the address ending in 7 without credentials, and the users of the harness from everywhere.
fn relay(site: Site) -> Server {
    let relay_ip = format!("--relay-ip={}", site.ip(1));
    let guests = format!("--guest-source={}", site.ip(7));
    Server::start(
        site.server(),
        &[&relay_ip, "--allow-loopback-peers", "--no-auth", &guests],
    )
}

/// Sends a request without credentials.
fn ask(client: &mut Client, method: Method, build: impl Fn(&mut MessageWriter<'_>)) -> Answer {
    client.exchange(&plain(Class::Request, method, |writer| build(writer)))
}

fn allocate(client: &mut Client) -> Answer {
    ask(client, Method::ALLOCATE, |writer| {
        writer.requested_transport(17);
    })
}

fn has_integrity(answer: &Answer) -> bool {
    let message: Message<'_> = answer.message();
    message.has_integrity_sha1() || message.has_integrity_sha256()
}

//= V-21
#[test]
fn who_is_not_in_the_networks_of_guests_is_served_nothing_without_credentials() {
    let site = Site::new();
    let server = relay(site);
    for outside in [2, 6, 8] {
        let mut client = Client::new(site.ip(outside), &server);
        allocate(&mut client).expect(401);
        // What an attacker would send who does not read the answers.
        let peer = SocketAddr::new(site.ip(4), 9);
        for method in [
            Method::REFRESH,
            Method::CREATE_PERMISSION,
            Method::CHANNEL_BIND,
        ] {
            let answer = ask(&mut client, method, |writer| {
                writer.lifetime(600).xor_peer_address(peer);
                writer.bytes(AttributeType::CHANNEL_NUMBER, &NUMBER);
            });
            answer.expect(401);
        }
        let stream = StreamLink::new(connect_from(site.ip(outside), server.address()));
        let mut client = Client::on_stream(stream, &server);
        allocate(&mut client).expect(401);
    }
    // With credentials everybody is.
    let mut user = Client::new(site.ip(2), &server);
    user.allocate();
}

#[test]
fn a_guest_relays_both_ways_and_its_answers_are_signed_with_nothing() {
    let site = Site::new();
    let server = relay(site);
    let mut guest = Client::new(site.ip(7), &server);
    let peer = peer_socket(site.ip(4));
    let peer_address = peer.local_addr().unwrap();
    let answer = allocate(&mut guest).expect(200);
    assert!(!has_integrity(&answer));
    let relay = relayed(&answer, AddressFamily::V4).expect("a relayed address");
    let answer = ask(&mut guest, Method::CHANNEL_BIND, |writer| {
        writer.xor_peer_address(peer_address);
        writer.bytes(AttributeType::CHANNEL_NUMBER, &NUMBER);
    });
    assert!(!has_integrity(&answer.expect(200)));
    guest.send_channel_data(channel(0), b"to the peer");
    assert_eq!(peer_receives(&peer), (b"to the peer".to_vec(), relay));
    let answer = ask(&mut guest, Method::REFRESH, |writer| {
        writer.lifetime(0);
    });
    answer.expect(200);
    allocate(&mut Client::new(site.ip(7), &server)).expect(200);
}

/// Has a client prove who it is although nobody asks it to: an old nonce gets it a new one.
fn log_in(client: &mut Client) {
    client.set_nonce(&[b'x'; 28]);
    let request = client.signed(Method::REFRESH, |writer| {
        writer.lifetime(600);
    });
    let answer = client.exchange(&request).expect(438);
    client.take_challenge(&answer);
}

//= V-28
#[test]
fn a_guest_gets_at_no_users_allocation_and_a_user_at_no_guests() {
    let site = Site::new();
    let server = relay(site);
    let mut user = Client::new(site.ip(7), &server);
    log_in(&mut user);
    let request = user.signed(Method::ALLOCATE, |writer| {
        writer.requested_transport(17);
    });
    assert!(has_integrity(&user.exchange(&request).expect(200)));
    let end = |writer: &mut MessageWriter<'_>| {
        writer.lifetime(0);
    };
    ask(&mut user, Method::REFRESH, end).expect(441);
    user.refresh(0).expect(200);
    let mut guest = Client::new(site.ip(7), &server);
    allocate(&mut guest).expect(200);
    log_in(&mut guest);
    guest.refresh(0).expect(441);
    ask(&mut guest, Method::REFRESH, end).expect(200);
}

//= V-21
#[test]
fn turnserver_passes_over_no_auth_where_strangers_could_reach_it_and_names_the_key_that_helps() {
    let site = Site::new();
    let check = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_turnbuckle"))
            .args(["check", "-n", "--json"])
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let refused = check(&["--no-auth", "--listening-ip=127.0.0.1"]);
    assert!(refused.contains("guest-source"), "{refused}");
    // As `turnserver`, on a private address, the source decides.
    let listening = format!("-L{}", site.ip(1));
    let run = |more: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let out = std::fs::File::create(folder.path().join("out")).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_turnbuckle"))
            .arg0("turnserver")
            .args(["-n", "-z", "-m1", "--no-tls", "--pidfile=", "-lstdout"])
            .arg(&listening)
            .args(more)
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let text = || std::fs::read_to_string(folder.path().join("out")).unwrap_or_default();
        crate::realms::eventually("the start", || text().contains(" ready\n"));
        let mut client = Client::at(site.ip(2), site.server());
        let code = allocate(&mut client).code();
        child.kill().unwrap();
        child.wait().unwrap();
        (code, text())
    };
    let (code, text) = run(&[]);
    assert_eq!(code, 200, "{text}");
    let (code, text) = run(&["-X198.51.100.9"]);
    assert_eq!(code, 401, "{text}");
    let line = text.lines().find(|line| line.contains("no-auth"));
    let line = line.expect("a line about it");
    assert!(
        line.contains(" ERROR ") && line.contains("guest-source"),
        "{line}"
    );
}
