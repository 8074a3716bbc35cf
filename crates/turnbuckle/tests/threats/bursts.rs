//! A burst that comes while the relay does not run: nothing of it is lost at a fresh relay socket, and what does not fit into a socket is counted.

use std::net::{SocketAddr, UdpSocket};
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
fn burst(server: &Server, peer: &UdpSocket, relayed: SocketAddr) {
    server.while_stopped(|| {
        for number in 0..BURST {
            peer.send_to(&payload(number), relayed).unwrap();
        }
    });
}

/// Opens a tunnel to a peer, and returns what the peer sends back to.
fn tunnel(server: &Server, peer: &UdpSocket) -> (Tunnel, SocketAddr) {
    let address = peer.local_addr().unwrap();
    let mut tunnel = Tunnel::new(tcp(server.address()).unwrap());
    let target = (&*address.ip().to_string(), address.port());
    let user = Credentials::user(USER, PASSWORD);
    let answer = tunnel.ask("relay", target, &user, b"here").unwrap();
    assert!(answer.is_open, "{answer:?}");
    let (_, relayed) = peer.recv_from(&mut [0; 16]).unwrap();
    (tunnel, relayed)
}

/// Returns what the kernel says that it has dropped at the sockets of a port, the last column of proc_pid_net(5).
fn dropped_by_kernel(server: &Server, port: u16) -> u64 {
    let table = std::fs::read_to_string(format!("/proc/{}/net/udp", server.id())).unwrap();
    let port = format!(":{port:04X}");
    let columns = table.lines().map(|line| line.split_whitespace());
    let of_port =
        columns.filter(|columns| columns.clone().nth(1).is_some_and(|it| it.ends_with(&port)));
    of_port
        .map(|columns| columns.last().unwrap().parse::<u64>().unwrap())
        .sum()
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
    let (mut tunnel, relayed) = tunnel(&server, &peer);
    burst(&server, &peer, relayed);
    for number in 0..BURST {
        let received = tunnel.receive(WAIT).unwrap();
        assert!(received == Some(payload(number)), "{number}");
    }
    server.stop();
}

#[test]
fn the_accounts_have_what_the_kernel_has_dropped_at_each_kind_of_socket() {
    let site = Site::new();
    let relay_ip = format!("--relay-ip={}", site.ip(1));
    let options = [
        "--allow-loopback-peers",
        "--masque=plain",
        "--sock-buf-size=65536",
        &relay_ip,
    ];
    let shared = [&options[..], &["--multiplex-peer", "--relay-threads=1"]].concat();
    for (options, kinds) in [
        (&options[..], ["listener", "relay", "tunnel"]),
        (&shared, ["listener", "shared_relay", "tunnel"]),
    ] {
        let server = Server::start(site.server(), options);
        let mut client = Client::new(site.ip(3), &server);
        let relayed = client.allocate();
        let peer = peer_socket(site.ip(7));
        client
            .create_permission(&[peer.local_addr().unwrap()])
            .expect(200);
        let (tunnel, tunnelled) = tunnel(&server, &peer);
        let stranger = peer_socket(site.ip(8));
        let floods = [
            (&stranger, server.address()),
            (&peer, relayed),
            (&peer, tunnelled),
        ];
        server.while_stopped(|| {
            for (from, to) in floods {
                for number in 0..2000 {
                    from.send_to(&payload(number), to).unwrap();
                }
            }
        });
        let by_kernel = floods.map(|(_, to)| dropped_by_kernel(&server, to.port()));
        // What was lost at a socket is counted when it closes, too.
        client.refresh(0).expect(200);
        drop(tunnel);
        let accounts = server.stop();
        for (kind, dropped) in kinds.into_iter().zip(by_kernel) {
            assert!(dropped > 0, "{kind}");
            assert_eq!(
                accounts.socket_drops[kind], dropped,
                "{kind}: {accounts:#?}"
            );
        }
    }
}
