//! V-10, V-12, V-46: TCP relays (RFC 6062), with real connections on both sides.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use turnbuckle_wire::{AddressFamily, AttributeType, Method};

use crate::harness::{
    Answer, Authority, Client, Inbound, Key, OTHER_USER, Server, Site, StreamLink, connect,
    connect_from, relayed,
};
use crate::streams::start;

const TCP_RELAYS: &str = "--no-tcp-relay=false";
/// TCP over IPv4 (RFC 6062 §4.1).
const TCP: u8 = 6;
const TIMEOUT: Duration = Duration::from_secs(60);

/// A relay, a client with a TCP allocation, and where peers of it listen.
struct Scene {
    site: Site,
    server: Server,
    control: Client,
    relayed: SocketAddr,
}

impl Scene {
    fn new(options: &[&str]) -> Self {
        let site = Site::new();
        let server = start(site, &[&[TCP_RELAYS], options].concat());
        let mut control = Client::over_tcp(&server);
        let relayed = allocate(&mut control);
        Self {
            site,
            server,
            control,
            relayed,
        }
    }

    fn peer(&self) -> TcpListener {
        TcpListener::bind((self.site.ip(9), 0)).unwrap()
    }

    /// Returns a client data connection and the peer's end of the other one.
    fn joined(&mut self) -> (TcpStream, TcpStream) {
        let peer = self.peer();
        let id = connected(&mut self.control, peer.local_addr().unwrap());
        let (accepted, from) = peer.accept().unwrap();
        assert_eq!(from, self.relayed, "it comes from the relayed address");
        (self.bound(id), settled(accepted))
    }

    /// Opens a connection that is bound, to a peer that has sent nothing yet.
    fn bound(&self, id: u32) -> TcpStream {
        let (socket, early) = self.bound_with(id);
        assert_eq!(early, b"");
        socket
    }

    /// Opens a connection that is bound, and returns what of the stream came with the answer too.
    fn bound_with(&self, id: u32) -> (TcpStream, Vec<u8>) {
        let socket = connect(self.server.address());
        let link = StreamLink::new(socket.try_clone().unwrap());
        let early = bind(&self.server, link, id).into_unread();
        (settled(socket), early)
    }
}

fn settled(socket: TcpStream) -> TcpStream {
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket
}

fn allocate(client: &mut Client) -> SocketAddr {
    let answer = client.request(Method::ALLOCATE, |writer| {
        writer.requested_transport(TCP);
    });
    relayed(&answer.expect(200), AddressFamily::V4).unwrap()
}

fn try_connect(control: &mut Client, peer: SocketAddr) -> Answer {
    control.request(Method::CONNECT, |writer| {
        writer.xor_peer_address(peer);
    })
}

fn connected(control: &mut Client, peer: SocketAddr) -> u32 {
    let answer = try_connect(control, peer).expect(200);
    answer.message().connection_id().unwrap().unwrap()
}

/// Binds a new connection and returns what carries it.
fn bind(server: &Server, link: StreamLink, id: u32) -> StreamLink {
    let mut client = Client::on_stream(link, server);
    client
        .request(Method::CONNECTION_BIND, |writer| {
            writer.connection_id(id);
        })
        .expect(200);
    client.into_stream()
}

/// Sends back what a connection receives until its end, in a thread.
fn echo(mut peer: TcpStream) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut buffer = [0; 30_000];
        loop {
            match peer.read(&mut buffer).unwrap() {
                0 => return peer.shutdown(Shutdown::Write).unwrap(),
                len => peer.write_all(&buffer[..len]).unwrap(),
            }
        }
    })
}

/// Returns so many bytes that are not the same everywhere.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 % 251).to_le_bytes()[0]).collect()
}

fn read_exactly(socket: &mut TcpStream, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    socket.read_exact(&mut bytes).unwrap();
    bytes
}

/// Returns what is left of a stream.
fn rest_of(socket: &mut TcpStream) -> Result<Vec<u8>, ErrorKind> {
    let mut bytes = Vec::new();
    match socket.read_to_end(&mut bytes) {
        Ok(_) => Ok(bytes),
        Err(error) => Err(error.kind()),
    }
}

//= TCP-11
//= TCP-14
//= TCP-23
//= TCP-25
#[test]
fn bytes_go_both_ways_whole_and_in_order_whichever_shard_the_bind_comes_to() {
    let mut scene = Scene::new(&["--relay-threads=4"]);
    let sent = pattern(3_000_000);
    let mut ids = Vec::new();
    for _ in 0..16 {
        let peer = scene.peer();
        let id = connected(&mut scene.control, peer.local_addr().unwrap());
        assert!(!ids.contains(&id));
        ids.push(id);
        let echo = echo(peer.accept().unwrap().0);
        let mut socket = scene.bound(id);
        let mut back = socket.try_clone().unwrap();
        let sent = sent.clone();
        let expected = sent.clone();
        let writer = thread::spawn(move || {
            socket.write_all(&sent).unwrap();
            socket.shutdown(Shutdown::Write).unwrap();
        });
        assert!(rest_of(&mut back) == Ok(expected), "the same bytes");
        writer.join().unwrap();
        echo.join().unwrap();
    }
    assert_eq!(scene.control.refresh(0).code(), 200);
    let accounts = scene.server.stop();
    // of 16 connections on 4 shards not all come to the one that has the allocation
    assert!(accounts.closed_as("moved") > 0, "{accounts:?}");
}

//= TCP-23
#[test]
fn what_came_with_the_bind_or_before_it_is_relayed_in_front_of_the_rest() {
    let mut scene = Scene::new(&["--relay-threads=4"]);
    for _ in 0..16 {
        let peer = scene.peer();
        let id = connected(&mut scene.control, peer.local_addr().unwrap());
        let mut peer = settled(peer.accept().unwrap().0);
        peer.write_all(b"early").unwrap();
        let socket = connect(scene.server.address());
        let mut link = StreamLink::new(socket.try_clone().unwrap());
        let mut client = Client::on_stream(StreamLink::new(socket), &scene.server);
        client.fetch_challenge();
        let mut bytes = client.signed(Method::CONNECTION_BIND, |writer| {
            writer.connection_id(id);
        });
        bytes.extend_from_slice(b"at once, ");
        link.write(&bytes);
        link.write(b"and later");
        assert_eq!(read_exactly(&mut peer, 18), b"at once, and later");
        let answer = Answer(link.read_message().unwrap());
        assert_eq!(answer.code(), 200);
        peer.shutdown(Shutdown::Write).unwrap();
        assert_eq!(link.read_to_close(), b"early");
    }
}

//= TCP-16
//= TCP-17
//= TCP-18
//= V-13
#[test]
fn peers_with_a_permission_reach_the_client_and_others_are_turned_away() {
    let mut scene = Scene::new(&[]);
    let mut stranger = settled(TcpStream::connect(scene.relayed).unwrap());
    assert!(
        matches!(rest_of(&mut stranger), Ok(bytes) if bytes.is_empty())
            || stranger.peer_addr().is_err(),
        "closed at once"
    );
    let peer_ip = scene.site.ip(9);
    let permitted = SocketAddr::new(peer_ip, 9);
    scene.control.create_permission(&[permitted]).expect(200);
    scene.control.assert_silent();
    let mut peer = settled(connect_from(peer_ip, scene.relayed));
    peer.write_all(b"knock knock").unwrap();
    let Inbound::Attempt {
        peer: from,
        connection,
    } = scene.control.receive()
    else {
        panic!("an indication of the attempt");
    };
    assert_eq!(from, peer.local_addr().unwrap());
    let (mut data, mut early) = scene.bound_with(connection);
    let rest = read_exactly(&mut data, 11 - early.len());
    early.extend_from_slice(&rest);
    assert_eq!(early, b"knock knock");
    data.write_all(b"who is there").unwrap();
    assert_eq!(read_exactly(&mut peer, 12), b"who is there");
}

//= TCP-25
//= TCP-27
#[test]
fn the_end_of_a_stream_is_passed_on_as_that_and_a_reset_as_a_reset() {
    let mut scene = Scene::new(&[]);
    for client_first in [true, false] {
        let (client, peer) = scene.joined();
        let (mut first, mut second) = if client_first {
            (client, peer)
        } else {
            (peer, client)
        };
        first.write_all(b"last words").unwrap();
        first.shutdown(Shutdown::Write).unwrap();
        assert_eq!(rest_of(&mut second).unwrap(), b"last words");
        // and the other way goes on
        second.write_all(b"still here").unwrap();
        assert_eq!(read_exactly(&mut first, 10), b"still here");
        drop(second);
        assert_eq!(rest_of(&mut first).unwrap(), b"");
    }
    for client_first in [true, false] {
        let (client, peer) = scene.joined();
        let (mut first, mut second) = if client_first {
            (client, peer)
        } else {
            (peer, client)
        };
        first.write_all(b"x").unwrap();
        read_exactly(&mut second, 1);
        rustix::net::sockopt::set_socket_linger(&first, Some(Duration::ZERO)).unwrap();
        drop(first);
        assert_eq!(rest_of(&mut second), Err(ErrorKind::ConnectionReset));
    }
}

//= TCP-24
//= TCP-26
#[test]
fn connections_end_with_the_allocation_and_with_the_control_connection() {
    for released in [true, false] {
        let mut scene = Scene::new(&[]);
        let (mut client, mut peer) = scene.joined();
        let waiting = scene.peer();
        let id = connected(&mut scene.control, waiting.local_addr().unwrap());
        let mut waiting = settled(waiting.accept().unwrap().0);
        if released {
            scene.control.refresh(0).expect(200);
        } else {
            scene.control = Client::over_tcp(&scene.server);
        }
        for end in [&mut client, &mut peer, &mut waiting] {
            assert_eq!(rest_of(end).unwrap_or_default(), b"");
        }
        let mut late = Client::over_tcp(&scene.server);
        late.request(Method::CONNECTION_BIND, |writer| {
            writer.connection_id(id);
        })
        .expect(400);
        assert!(TcpStream::connect(scene.relayed).is_err(), "nobody listens");
    }
}

//= TCP-23
//= TCP-27
#[test]
fn a_client_over_tls_has_tls_data_connections() {
    let authority = Authority::new();
    let options = authority.options(Key::P256);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let site = Site::new();
    let server = start(
        site,
        &[&[TCP_RELAYS, "--relay-threads=4"], &options[..]].concat(),
    );
    let tls = authority.client();
    let mut control = Client::on_stream(tls.link(server.address()), &server);
    allocate(&mut control);
    let sent = pattern(400_000);
    for _ in 0..12 {
        let peer = TcpListener::bind((site.ip(9), 0)).unwrap();
        let id = connected(&mut control, peer.local_addr().unwrap());
        let mut peer = settled(peer.accept().unwrap().0);
        peer.write_all(b"early").unwrap();
        let mut link = bind(&server, tls.link(server.address()), id);
        let from_peer = sent.clone();
        let from_client = sent.clone();
        let other = thread::spawn(move || {
            peer.write_all(&from_peer).unwrap();
            assert!(read_exactly(&mut peer, from_client.len()) == from_client);
            peer.shutdown(Shutdown::Write).unwrap();
            assert_eq!(rest_of(&mut peer).unwrap_or_default(), b"");
        });
        for piece in sent.chunks(10_000) {
            link.write(piece);
        }
        let received = link.read_to_close();
        assert_eq!(&received[..5], b"early");
        assert!(received[5..] == sent, "the same bytes");
        drop(link);
        other.join().unwrap();
    }
}

/// Writes until nothing is taken any more and returns how much was.
fn fill(socket: &mut TcpStream, len_max: usize) -> usize {
    socket
        .set_write_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    let chunk = pattern(251 * 1000);
    let mut sent = 0;
    while sent < len_max {
        match socket.write(&chunk[sent % 251..]) {
            Ok(len) => sent += len,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                break;
            }
            Err(error) => panic!("{error}"),
        }
    }
    sent
}

//= V-46
//= TCP-13
#[test]
fn whoever_sends_faster_than_the_other_side_reads_has_to_wait_and_nothing_is_lost() {
    const LEN: usize = 1 << 30;
    let mut scene = Scene::new(&["--relay-threads=1"]);
    let memory = scene.server.user_memory();
    for unbound in [true, false] {
        let peer = scene.peer();
        let id = connected(&mut scene.control, peer.local_addr().unwrap());
        let mut peer = settled(peer.accept().unwrap().0);
        let mut client = (!unbound).then(|| scene.bound(id));
        let sent = fill(&mut peer, LEN);
        assert!(sent < LEN / 10, "{sent} of {LEN} bytes were taken");
        let held = scene.server.user_memory().saturating_sub(memory);
        println!("{sent} bytes wait with the kernels, {held} with the relay");
        assert!(
            held < 2 << 20,
            "{held} bytes are held for a reader that does not read"
        );
        // the other shard's client is not held up, and what waits arrives
        scene.control.refresh(600).expect(200);
        peer.shutdown(Shutdown::Write).unwrap();
        let (mut client, mut received) = match client.take() {
            Some(client) => (client, Vec::new()),
            None => scene.bound_with(id),
        };
        received.extend(rest_of(&mut client).unwrap());
        assert_eq!(received.len(), sent);
        assert!(received == pattern(sent), "in order");
    }
    // and a peer that does not read holds back the client
    let (mut client, mut peer) = scene.joined();
    let sent = fill(&mut client, LEN);
    assert!(sent < LEN / 10, "{sent} of {LEN} bytes were taken");
    let held = scene.server.user_memory().saturating_sub(memory);
    assert!(held < 2 << 20, "{held} bytes are held");
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(rest_of(&mut peer).unwrap().len(), sent);
}

#[test]
fn the_rate_of_an_allocation_holds_for_its_streams_and_nothing_of_them_is_lost() {
    const RATE: usize = 100_000;
    let mut scene = Scene::new(&["--max-bps=100000"]);
    let (client, peer) = scene.joined();
    for (mut from, mut to) in [
        (client.try_clone().unwrap(), peer.try_clone().unwrap()),
        (peer, client),
    ] {
        let started = Instant::now();
        let sent = pattern(3 * RATE);
        let expected = sent.clone();
        let writer = thread::spawn(move || {
            from.write_all(&sent).unwrap();
            from.shutdown(Shutdown::Write).unwrap();
        });
        assert!(rest_of(&mut to).unwrap() == expected, "all of it");
        writer.join().unwrap();
        // A second's worth at once and what one reading brings; the rest takes its time.
        assert!(started.elapsed() >= Duration::from_millis(1400));
    }
}

//= TCP-12
//= TCP-08
#[test]
fn a_peer_that_refuses_is_told_as_447_and_one_that_is_connected_as_446() {
    let mut scene = Scene::new(&[]);
    // Bound, so that nobody else gets it, and nobody listens there.
    let closed = connect_from(scene.site.ip(9), scene.server.address());
    try_connect(&mut scene.control, closed.local_addr().unwrap()).expect(447);
    let peer = scene.peer();
    let address = peer.local_addr().unwrap();
    connected(&mut scene.control, address);
    try_connect(&mut scene.control, address).expect(446);
}

//= TCP-10
//= V-01
//= V-10
//= V-12
#[test]
fn no_connection_is_made_to_whom_the_policy_or_the_ports_forbid() {
    // without --allow-loopback-peers
    let site = Site::new();
    let server = Server::start(site.server(), &[TCP_RELAYS]);
    let mut control = Client::over_tcp(&server);
    allocate(&mut control);
    let canary = TcpListener::bind((site.ip(9), 0)).unwrap();
    canary.set_nonblocking(true).unwrap();
    let port = canary.local_addr().unwrap().port();
    let mapped = format!("[::ffff:{}]:{port}", site.ip(9)).parse().unwrap();
    for (peer, code) in [
        (canary.local_addr().unwrap(), 403),
        // The family of its form, which the allocation does not have.
        (mapped, 443),
        (SocketAddr::new("0.0.0.0".parse().unwrap(), port), 403),
    ] {
        try_connect(&mut control, peer).expect(code);
    }
    assert_eq!(
        canary.accept().unwrap_err().kind(),
        ErrorKind::WouldBlock,
        "nobody came"
    );
    drop(server);
    let mut scene = Scene::new(&[]);
    let privileged = SocketAddr::new(scene.site.ip(9), 1023);
    try_connect(&mut scene.control, privileged).expect(403);
}

//= TCP-01
//= TCP-03
//= TCP-20
#[test]
fn tcp_relays_are_for_clients_over_streams_and_off_until_they_are_switched_on() {
    let site = Site::new();
    let server = start(site, &[]);
    let mut client = Client::over_tcp(&server);
    client
        .request(Method::ALLOCATE, |writer| {
            writer.requested_transport(TCP);
        })
        .expect(442);
    drop(server);
    let scene = Scene::new(&[]);
    let mut client = Client::new(scene.site.ip(2), &scene.server);
    client
        .request(Method::ALLOCATE, |writer| {
            writer.requested_transport(TCP);
        })
        .expect(400);
    client
        .request(Method::CONNECTION_BIND, |writer| {
            writer.connection_id(1);
        })
        .expect(400);
}

//= TCP-02
//= TCP-04
//= TCP-05
//= TCP-06
//= TCP-07
//= TCP-09
//= TCP-21
//= TCP-22
#[test]
fn requests_that_do_not_fit_are_answered_as_the_rfc_says() {
    let mut scene = Scene::new(&["--no-udp-relay"]);
    let peer = scene.peer();
    let address = peer.local_addr().unwrap();
    let mut other = Client::over_tcp(&scene.server);
    other.allocate_with(|_| {}).expect(403);
    for attribute in [
        AttributeType::EVEN_PORT,
        AttributeType::RESERVATION_TOKEN,
        AttributeType::DONT_FRAGMENT,
    ] {
        let value: &[u8] = match attribute {
            AttributeType::EVEN_PORT => &[0x80],
            AttributeType::RESERVATION_TOKEN => &[1; 8],
            _ => &[],
        };
        other
            .request(Method::ALLOCATE, |writer| {
                writer.requested_transport(TCP).bytes(attribute, value);
            })
            .expect(400);
    }
    try_connect(&mut other, address).expect(437);
    let answer = other.request(Method::ALLOCATE, |writer| {
        writer.requested_transport(TCP);
    });
    let answer = answer.expect(200);
    assert!(!answer.message().contains(AttributeType::RESERVATION_TOKEN));
    let relayed = relayed(&answer, AddressFamily::V4).unwrap();
    TcpStream::connect(relayed).expect("the relay listens there");
    scene.control.request(Method::CONNECT, |_| {}).expect(400);

    let id = connected(&mut scene.control, address);
    let bind = |client: &mut Client, id: Option<u32>| {
        let answer = client.request(Method::CONNECTION_BIND, |writer| {
            if let Some(id) = id {
                writer.connection_id(id);
            }
        });
        answer.code()
    };
    let mut mallory = Client::over_tcp(&scene.server);
    mallory.username = OTHER_USER.to_owned();
    assert_eq!(bind(&mut mallory, Some(id)), 441);
    let mut data = Client::over_tcp(&scene.server);
    assert_eq!(bind(&mut data, None), 400);
    assert_eq!(bind(&mut data, Some(id ^ 1)), 400);
    assert_eq!(
        bind(&mut scene.control, Some(id)),
        400,
        "a control connection stays one"
    );
    assert_eq!(bind(&mut data, Some(id)), 200);
    let mut late = Client::over_tcp(&scene.server);
    assert_eq!(bind(&mut late, Some(id)), 400, "it is bound");
}

//= V-12
#[test]
fn a_scan_of_a_thousand_ports_ends_at_the_users_rate() {
    let mut scene = Scene::new(&["--max-connects-per-second=1"]);
    let started = Instant::now();
    let mut codes = Vec::new();
    for port in 20_000..21_000 {
        let answer = try_connect(&mut scene.control, SocketAddr::new(scene.site.ip(9), port));
        codes.push(answer.code());
    }
    let tried = codes.iter().filter(|code| **code != 486).count();
    let allowed = 10 + started.elapsed().as_secs() + 1;
    assert!(tried as u64 <= allowed, "{tried} ports were tried");
    assert!(tried >= 10, "a burst is allowed");
}

/// Fails if the other side goes on, or says anything.
fn assert_ended(mut connection: &TcpStream) {
    connection.set_read_timeout(Some(TIMEOUT)).unwrap();
    match connection.read(&mut [0]) {
        Ok(len) => assert_eq!(len, 0),
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
}

//= V-46
#[test]
fn a_thousand_peers_that_knock_leave_room_for_the_client() {
    let mut scene = Scene::new(&[]);
    let peer_ip = scene.site.ip(9);
    let permitted = SocketAddr::new(peer_ip, 9);
    scene.control.create_permission(&[permitted]).expect(200);
    let peers: Vec<_> = (0..1000)
        .filter_map(|_| TcpStream::connect(scene.relayed).ok())
        .chain((0..200).map(|_| connect_from(peer_ip, scene.relayed)))
        .collect();
    // The relay takes them in their order, and closes at once those that may not stay.
    for peer in &peers[..1000] {
        assert_ended(peer);
    }
    let deadline = Instant::now() + TIMEOUT;
    for peer in &peers[1000..] {
        peer.set_nonblocking(true).unwrap();
    }
    let has_ended = |mut peer: &TcpStream| match peer.read(&mut [0]) {
        Err(error) => error.kind() != ErrorKind::WouldBlock,
        Ok(len) => len == 0,
    };
    while peers[1000..].iter().filter(|peer| has_ended(peer)).count() < 100 {
        assert!(Instant::now() < deadline, "they stay");
        scene.control.settle();
    }
    drop(peers);
    let accounts = {
        scene.control.refresh(0).expect(200);
        scene.server.stop()
    };
    assert_eq!(accounts.peers_ended_by("no_permission"), 1000);
    assert!(accounts.peers_ended_by("too_many") >= 100, "{accounts:?}");
}
