//! V-14: clients that are sent to other servers, and a server that lets its clients go.

use turnbuckle_wire::{AttributeType, Class, Method};

use crate::harness::{Client, Server, Site, channel, peer_receives, peer_socket, plain};

//= V-14
//= STUN-061
//= STUN-062
#[test]
fn only_who_proved_who_it_is_is_sent_elsewhere_and_under_its_own_key() {
    let site = Site::new();
    let server = Server::start(
        site.server(),
        &[
            "--alternate-server=198.51.100.1:3478",
            "--alternate-server=[2001:db8::1]:3479",
        ],
    );
    let mut client = Client::new(site.ip(2), &server);
    let challenge = client.fetch_challenge();
    assert!(
        !challenge
            .message()
            .contains(AttributeType::ALTERNATE_SERVER)
    );
    let answer = client.allocate_with(|_| {}).expect(300);
    let message = answer.message();
    assert_eq!(message.check_integrity(&client.key()), Ok(()));
    let servers: Vec<String> = message
        .alternate_servers()
        .map(|server| server.unwrap().to_string())
        .collect();
    assert_eq!(servers, ["198.51.100.1:3478", "[2001:db8::1]:3479"]);
    client
        .exchange(&plain(Class::Request, Method::BINDING, |_| {}))
        .expect(200);

    let mut stranger = Client::other(site.ip(3), &server);
    stranger.password = "not it".to_owned();
    let refused = stranger.allocate_with(|_| {}).expect(401);
    assert!(!refused.message().contains(AttributeType::ALTERNATE_SERVER));
}

//= V-14
#[test]
fn a_client_that_comes_to_a_listed_address_is_served() {
    let site = Site::new();
    let relay_ip = format!("--relay-ip={}", site.ip(1));
    let server = Server::start(
        site.server(),
        &[&relay_ip, "--tcp-alternate-server=198.51.100.1"],
    );
    Client::over_tcp(&server).allocate_with(|_| {}).expect(300);
    Client::new(site.ip(2), &server).allocate();
}

#[test]
fn a_draining_server_serves_the_clients_it_has_and_ends_with_the_last() {
    let site = Site::new();
    let relay_ip = format!("--relay-ip={}", site.ip(1));
    let server = Server::start(site.server(), &[&relay_ip, "--allow-loopback-peers"]);
    let peer = peer_socket(site.ip(7));
    let mut old: Vec<Client> = (0..8).map(|_| Client::new(site.ip(2), &server)).collect();
    for client in &mut old {
        client.allocate();
        client
            .channel_bind(channel(0), peer.local_addr().unwrap())
            .expect(200);
    }
    server.drain();
    server.wait_for_line("draining");
    for _ in 0..8 {
        // whichever shard it comes to
        let mut new = Client::new(site.ip(3), &server);
        new.allocate_with(|_| {}).expect(403);
    }
    for client in &mut old {
        client.send_channel_data(channel(0), b"still here");
        assert_eq!(peer_receives(&peer).0, b"still here");
        client.refresh(0).expect(200);
    }
    server.assert_ends();
}
