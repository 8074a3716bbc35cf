//! V-30 and V-01: clients that move (RFC 8016), to other threads and transports too, and tickets in wrong hands.

use std::net::{SocketAddr, UdpSocket};

use turnbuckle_wire::Method;

use crate::harness::{
    Answer, Canary, Client, Inbound, Server, Site, channel, peer_receives, peer_socket,
};

fn relay(site: Site, options: &[&str]) -> Server {
    let relay_ip = format!("--relay-ip={}", site.ip(1));
    let own = [
        &relay_ip,
        "--mobility",
        "--allow-loopback-peers",
        "--relay-threads=4",
    ];
    Server::start(site.server(), &[&own[..], options].concat())
}

fn ticket(answer: &Answer) -> Vec<u8> {
    let message = answer.message();
    message.mobility_ticket().expect("a ticket").to_vec()
}

/// Allocates with a ticket and binds a channel to `peer`.
pub(crate) fn begin(client: &mut Client, peer: &UdpSocket) -> (SocketAddr, Vec<u8>) {
    let answer = client
        .allocate_with(|writer| {
            writer.mobility_ticket(b"");
        })
        .expect(200);
    client
        .channel_bind(channel(0), peer.local_addr().unwrap())
        .expect(200);
    let relayed = answer.message().xor_relayed_address().unwrap().unwrap();
    (relayed, ticket(&answer))
}

pub(crate) fn resume(client: &mut Client, ticket: &[u8]) -> Answer {
    client.request(Method::REFRESH, |writer| {
        writer.mobility_ticket(ticket);
    })
}

/// Sends data from the client, and back.
pub(crate) fn exchange(client: &mut Client, peer: &UdpSocket, relayed: SocketAddr, text: &str) {
    client.send_channel_data(channel(0), text.as_bytes());
    assert_eq!(peer_receives(peer), (text.as_bytes().to_vec(), relayed));
    peer.send_to(text.as_bytes(), relayed).unwrap();
    assert_eq!(
        client.receive(),
        Inbound::Channel {
            number: channel(0),
            data: text.as_bytes().to_vec()
        }
    );
}

//= MOB-06
//= MOB-11
//= MOB-12
//= MOB-13
#[test]
fn a_client_moves_from_thread_to_thread_and_from_transport_to_transport() {
    let site = Site::new();
    let server = relay(site, &["--user-quota=1"]);
    let peer = peer_socket(site.ip(7));
    let mut client = Client::new(site.ip(2), &server);
    let (relayed, mut last) = begin(&mut client, &peer);
    for n in 0..24 {
        // the kernel spreads new 5-tuples over four threads
        let mut moved = match n % 2 {
            0 => Client::over_tcp(&server),
            _ => Client::new(site.ip(3 + n), &server),
        };
        let answer = resume(&mut moved, &last).expect(200);
        last = ticket(&answer);
        // both paths until data comes on the new one
        exchange(&mut client, &peer, relayed, &format!("old {n}"));
        exchange(&mut moved, &peer, relayed, &format!("new {n}"));
        moved
            .create_permission(&[peer.local_addr().unwrap()])
            .expect(200);
        // nothing is taken on the path that is left
        if n % 2 == 0 {
            client.refresh(600).expect(437);
        }
        client = moved;
    }
    let mut other = Client::new(site.ip(40), &server);
    other.allocate_with(|_| {}).expect(486);
    client.refresh(0).expect(200);
    other.allocate_with(|_| {}).expect(200);
}

//= V-30
#[test]
fn a_client_whose_connection_breaks_comes_back_to_what_it_had() {
    let site = Site::new();
    let server = relay(site, &["--user-quota=1"]);
    let peer = peer_socket(site.ip(7));
    let mut client = Client::over_tcp(&server);
    let (relayed, mut last) = begin(&mut client, &peer);
    for n in 0..8 {
        drop(client);
        client = Client::over_tcp(&server);
        last = ticket(&resume(&mut client, &last).expect(200));
        exchange(&mut client, &peer, relayed, &format!("after {n}"));
    }
    client.allocate_with(|_| {}).expect(437);
}

//= V-30
//= V-28
#[test]
fn a_stolen_ticket_is_refused_to_another_user_and_a_forged_one_to_everybody() {
    let site = Site::new();
    let server = relay(site, &[]);
    let peer = peer_socket(site.ip(7));
    let mut client = Client::new(site.ip(2), &server);
    let (relayed, good) = begin(&mut client, &peer);
    for n in 0..6 {
        let mut thief = Client::other(site.ip(10 + n), &server);
        resume(&mut thief, &good).expect(441);
    }
    let mut moved = Client::new(site.ip(3), &server);
    for bit in 0..good.len() * 8 {
        let mut forged = good.clone();
        forged[bit / 8] ^= 1 << (bit % 8);
        resume(&mut moved, &forged).expect(400);
    }
    exchange(&mut client, &peer, relayed, "the owner's");
    resume(&mut moved, &good).expect(200);
    resume(&mut Client::new(site.ip(4), &server), &good).expect(400);
}

//= V-01
//= V-10
#[test]
fn a_resumed_allocation_reaches_no_peer_that_is_forbidden() {
    let site = Site::new();
    let relay_ip = format!("--relay-ip={}", site.ip(1));
    let server = Server::start(
        site.server(),
        &[&relay_ip, "--mobility", "--relay-threads=4"],
    );
    let canary = Canary::at(SocketAddr::new(site.ip(8), 0));
    let forbidden = SocketAddr::new(site.ip(8), canary.port());
    let mut client = Client::new(site.ip(2), &server);
    let answer = client
        .allocate_with(|writer| {
            writer.mobility_ticket(b"");
        })
        .expect(200);
    let mut last = ticket(&answer);
    for n in 0..6 {
        let mut moved = Client::new(site.ip(20 + n), &server);
        last = ticket(&resume(&mut moved, &last).expect(200));
        moved.create_permission(&[forbidden]).expect(403);
        moved.channel_bind(channel(0), forbidden).expect(403);
        moved.send_indication(forbidden, b"canary");
        moved.send_channel_data(channel(0), b"canary");
        moved.settle();
    }
    canary.assert_silent();
}
