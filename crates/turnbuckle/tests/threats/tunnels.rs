//! Tunnels of UDP in HTTP (CONNECT-UDP, RFC 9298) beside TURN: an operator sees and ends them, and a drain waits for them. That they lead nowhere
//! that TURN does not is in `probe`.

use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use turnbuckle_client::Credentials;
use turnbuckle_client::blocking::{Tunnel, tcp};

use crate::control::Steered;
use crate::harness::{PASSWORD, REALM, Server, Site, USER, peer_socket};

const WAIT: Duration = Duration::from_secs(20);

fn user() -> Credentials {
    Credentials::user(USER, PASSWORD)
}

/// A connection to the server's TURN port.
fn connect(server: &Server) -> Tunnel {
    Tunnel::new(tcp(server.address()).unwrap())
}

/// A tunnel of the user to `peer`.
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
