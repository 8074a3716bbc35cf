//! Tunnels of UDP in HTTP (CONNECT-UDP, RFC 9298) beside TURN: an operator sees and ends them, and a drain waits for them. What leaves them is packets
//! of the relay's own making, none of them in fragments. That they lead nowhere that TURN does not is in `probe`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use turnbuckle_client::Credentials;
use turnbuckle_client::blocking::{Tunnel, tcp};

use crate::control::Steered;
use crate::harness::{
    Authority, Key, Namespace, PASSWORD, QuicLink, REALM, Server, Site, Tap, USER, World,
    peer_receives, peer_socket, send_marked,
};
use crate::http3;
use crate::quic::{fragments_made, thread_file};

const WAIT: Duration = Duration::from_secs(20);
/// CE (RFC 3168 §5).
const CONGESTION_EXPERIENCED: u8 = 3;

fn user() -> Credentials {
    Credentials::user(USER, PASSWORD)
}

/// Opens a connection to the server's TURN port.
fn connect(server: &Server) -> Tunnel {
    Tunnel::new(tcp(server.address()).unwrap())
}

/// Opens a tunnel of the user to `peer`.
fn tunnel(server: &Server, peer: SocketAddr) -> Tunnel {
    let mut tunnel = connect(server);
    let (host, port) = (peer.ip().to_string(), peer.port());
    let answer = tunnel.ask("relay", (&host, port), &user(), &[]);
    let answer = answer.unwrap();
    assert!(answer.is_open, "{answer:?}");
    tunnel
}

/// Sends a datagram through the tunnel and one back.
fn exchange(tunnel: &mut Tunnel, peer: &UdpSocket) {
    tunnel.send(b"there").unwrap();
    let mut buffer = [0; 64];
    let (len, relay) = peer.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..len], b"there");
    peer.send_to(b"and back", relay).unwrap();
    let back = tunnel.receive(WAIT).unwrap();
    assert_eq!(back.as_deref(), Some(&b"and back"[..]));
}

/// Where the relay is that has a router before its peer.
const ROUTED: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 9, 1, 1)), 3478);

//= UDPX-09
#[test]
fn a_payload_that_the_path_to_the_target_does_not_take_is_lost_and_not_sent_in_fragments() {
    // Else the router would get two datagrams in one buffer, and drop both for the sake of one.
    let Some(relays) = Namespace::enter(
        "link set lo up
         link add s0 type veth peer name s1
         ethtool -K s0 tx-udp-segmentation off
         address add 10.9.1.1/24 dev s0
         link set s0 up
         route add default via 10.9.1.2",
    ) else {
        return;
    };
    let options = ["--masque=plain", "--allowed-peer-ip=10.9.2.0/24"];
    let server = Server::start(ROUTED, &options);
    let host = thread_file("net/snmp");
    let mut tunnel = connect(&server);
    let script = format!(
        "link set lo up
         sysctl ipv4/ip_forward 1
         -n {} link set s1 netns HERE
         address add 10.9.1.2/24 dev s1
         link set s1 up
         link add r0 mtu 1300 type veth peer name r1 mtu 1300
         address add 10.9.2.2/24 dev r0
         link set r0 up",
        relays.name()
    );
    let routers = Namespace::enter(&script).expect("root");
    let router = thread_file("net/snmp");
    let script = format!(
        "link set lo up
         -n {} link set r1 netns HERE
         address add 10.9.2.1/24 dev r1
         link set r1 up
         route add default via 10.9.2.2",
        routers.name()
    );
    let peers = Namespace::enter(&script).expect("root");
    let peer = peer_socket(IpAddr::from([10, 9, 2, 1]));
    let port = peer.local_addr().unwrap().port();
    let answer = tunnel.ask("relay", ("10.9.2.1", port), &user(), &[]);
    assert!(answer.unwrap().is_open);
    // 1,300 bytes without the headers of IP and UDP are the most that the router passes on; behind that the router refuses it, and behind 1,472 the
    // relay's own host.
    for (len, arrives) in [(1272, true), (1273, false), (1472, false), (1473, false)] {
        let payload = vec![b'x'; len];
        tunnel.send(&payload).unwrap();
        if arrives {
            assert_eq!(peer_receives(&peer).0, payload);
        }
        // What comes next is what was sent next: the tunnel is there, and what was too long is lost.
        exchange(&mut tunnel, &peer);
    }
    drop((peers, routers));
    let made = [host, router].map(fragments_made);
    assert_eq!(
        made,
        [0, 0],
        "neither the relay nor a router makes fragments"
    );
    server.stop();
}

//= UDPX-22
#[test]
fn marks_of_congestion_are_carried_neither_to_the_target_nor_back() {
    let Some(_world) = World::enter() else {
        return;
    };
    let authority = Authority::new();
    let certificate = authority.options(Key::P256);
    let certificate: Vec<&str> = certificate.iter().map(String::as_str).collect();
    let own = [&World::RELAYS[..], &["--quic", "--masque=tls"]].concat();
    let server = Server::start(World::server(), &[&own[..], &certificate].concat());
    let mut tls = authority.client();
    tls.alpn = vec![b"h3"];
    let peer = peer_socket(World::client(9));
    let target = peer.local_addr().unwrap();
    let mut link = QuicLink::connect(&tls, World::client(3), server.address());
    http3::send_settings(&mut link);
    let stream = http3::tunnel(&mut link, target);
    http3::relays(&mut link, stream, &peer);
    let client = link.socket().local_addr().unwrap();
    let tap = Tap::open();

    // Congestion Experienced, on the way of the client's packets.
    setsockopt(
        &link.socket(),
        sockopt::Ipv4Tos,
        &CONGESTION_EXPERIENCED.into(),
    )
    .unwrap();
    link.datagram(&[0, 0, b'u', b'p']);
    let (payload, relayed) = link.run_until_heard(&peer);
    assert_eq!(payload, b"up");
    let marked = tap.next(client, server.address());
    assert_eq!(marked.traffic_class, CONGESTION_EXPERIENCED);
    assert_eq!(tap.next(relayed, target).traffic_class, 0, "Not-ECT");

    let before = link.seen(|seen| seen.datagrams.len());
    link.run_for(Duration::from_millis(100));
    tap.skip();
    send_marked(target, relayed, b"down");
    link.run_until(|seen| seen.datagrams.len() > before);
    tap.next(target, relayed).assert_marked();
    let carried = tap.next(server.address(), client);
    assert_eq!(carried.traffic_class, 0, "Not-ECT");
    server.stop();
}

#[test]
fn a_drain_waits_for_tunnels() {
    let site = Site::new();
    let server = Server::start(site.server(), &["--masque=plain", "--allow-loopback-peers"]);
    let peer = peer_socket(site.ip(7));
    let mut tunnel = tunnel(&server, peer.local_addr().unwrap());
    exchange(&mut tunnel, &peer);
    server.drain();
    server.wait_for_line("draining: no new allocations; ends when 0 of 1 are left");
    // The first count is made at once, and the next one after a second.
    thread::sleep(Duration::from_millis(1500));
    exchange(&mut tunnel, &peer);
    let refused = connect(&server).ask("relay", ("192.0.2.9", 9), &user(), &[]);
    assert_eq!(refused.unwrap().status, 503);
    drop(tunnel);
    server.wait_for_line("drained, 0 allocations and tunnels left");
    server.assert_ends();
}

#[test]
fn tunnels_are_sessions_that_an_operator_lists_and_ends() {
    let site = Site::new();
    let steered = Steered::start(site, &["--masque=plain", "--allow-loopback-peers"]);
    let peer = peer_socket(site.ip(7));
    let address = peer.local_addr().unwrap();
    let mut tunnels = [(); 3].map(|()| tunnel(&steered.server, address));
    for tunnel in &mut tunnels {
        exchange(tunnel, &peer);
    }
    let filter = format!("--peer={}", address.ip());
    let sessions = steered.sessions(&[&filter]);
    assert_eq!(sessions.len(), 3);
    for session in &sessions {
        assert_eq!(session["user"], USER);
        assert_eq!(session["realm"], REALM);
        assert_eq!(session["transport"], "TCP");
        assert_eq!(session["tunnel_to"], address.to_string());
        let usage = &session["usage"];
        for (side, bytes) in [
            ("client_received", 5),
            ("peer_sent", 5),
            ("client_sent", 8),
            ("peer_received", 8),
        ] {
            assert_eq!(usage[side]["bytes"], bytes, "{side}");
            assert_eq!(usage[side]["datagrams"], 1, "{side}");
        }
        assert!((120..=130).contains(&session["expires_in_s"].as_u64().unwrap()));
    }
    let top = steered.ctl(&["top", "--json"]).expect(0).json();
    assert_eq!(top[0]["sessions"].as_array().unwrap().len(), 3);
    let info = steered.ctl(&["info", "--json"]).expect(0).json();
    assert_eq!(
        (&info[0]["allocations"], &info[0]["tunnels"]),
        (&0.into(), &3.into())
    );

    // Ended one by one, and by a filter.
    let first = sessions[0]["session"].as_str().unwrap();
    steered.ctl(&["end", first]).expect(0);
    let is_closed = |tunnel: &mut Tunnel| tunnel.is_closed(Duration::from_millis(500));
    let closed = tunnels
        .iter_mut()
        .filter_map(|it| is_closed(it).then_some(()));
    assert_eq!(closed.count(), 1);
    steered.ctl(&["end", &filter]).expect(0);
    assert!(tunnels.iter_mut().all(|tunnel| tunnel.is_closed(WAIT)));
    assert!(steered.sessions(&[]).is_empty());
    let accounting = steered.server.stop();
    assert_eq!(accounting.closed_as("tunnel_ended"), 3);
}
