//! A burst that comes while the relay does not run, from a peer to a fresh relay socket: nothing of it is lost.

use std::net::UdpSocket;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use turnbuckle_client::Credentials;
use turnbuckle_client::blocking::{Tunnel, tcp};

use crate::harness::{Client, Inbound, PASSWORD, Server, Site, USER, channel, peer_socket};
use crate::not_run::not_run;

/// Datagrams at once: the first picture of a video, several times over.
const BURST: u16 = 256;
const LEN: usize = 1200;
const WAIT: Duration = Duration::from_secs(20);

fn payload(number: u16) -> Vec<u8> {
    let mut payload = vec![0; LEN];
    payload[..2].copy_from_slice(&number.to_be_bytes());
    payload
}

/// Starts a relay; `None` where the system does not let it have the buffers.
fn relay(site: Site, options: &[&str]) -> Option<Server> {
    let options = [&["--allow-loopback-peers"], options].concat();
    let server = Server::start(site.server(), &options);
    let is_short = server
        .greeting()
        .contains("relay sockets get receive buffers of");
    if is_short {
        not_run("net.core.rmem_max is below what a burst takes");
        return None;
    }
    Some(server)
}

/// Lets a client's socket hold the burst too.
fn enlarge(socket: &UdpSocket) {
    let bytes = 4 << 20;
    setsockopt(socket, sockopt::RcvBufForce, &bytes)
        .or_else(|_| setsockopt(socket, sockopt::RcvBuf, &bytes))
        .unwrap();
}

/// Sends the burst from a peer to a relayed transport address while the relay does not run.
fn burst(server: &Server, peer: &UdpSocket, relayed: std::net::SocketAddr) {
    server.while_stopped(|| {
        for number in 0..BURST {
            peer.send_to(&payload(number), relayed).unwrap();
        }
    });
}

#[test]
fn a_fresh_allocation_loses_nothing_of_256_datagrams_at_once() {
    let site = Site::new();
    let relay_ip = format!("--relay-ip={}", site.ip(1));
    let shared = [&relay_ip, "--multiplex-peer", "--relay-threads=1"];
    for options in [&[][..], &shared] {
        let Some(server) = relay(site, options) else {
            return;
        };
        let socket = UdpSocket::bind((site.ip(3), 0)).unwrap();
        enlarge(&socket);
        let mut client = Client::on_socket(socket, &server);
        let relayed = client.allocate();
        let peer = peer_socket(site.ip(7));
        let address = peer.local_addr().unwrap();
        client.channel_bind(channel(0), address).expect(200);
        burst(&server, &peer, relayed);
        for number in 0..BURST {
            let expected = Inbound::Channel {
                number: channel(0),
                data: payload(number),
            };
            assert!(client.receive() == expected, "{number}, {options:?}");
        }
        server.stop();
    }
}

#[test]
fn a_fresh_tunnel_loses_nothing_of_256_datagrams_at_once() {
    let site = Site::new();
    let Some(server) = relay(site, &["--masque=plain"]) else {
        return;
    };
    let peer = peer_socket(site.ip(7));
    let address = peer.local_addr().unwrap();
    let mut tunnel = Tunnel::new(tcp(server.address()).unwrap());
    let target = (&*address.ip().to_string(), address.port());
    let user = Credentials::user(USER, PASSWORD);
    // What comes with the request says to the peer where the tunnel is.
    let answer = tunnel.ask("relay", target, &user, b"here").unwrap();
    assert!(answer.is_open, "{answer:?}");
    let (_, relayed) = peer.recv_from(&mut [0; 16]).unwrap();
    burst(&server, &peer, relayed);
    for number in 0..BURST {
        let received = tunnel.receive(WAIT).unwrap();
        assert!(received == Some(payload(number)), "{number}");
    }
    server.stop();
}
