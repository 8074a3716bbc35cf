//! V-46, V-47: clients that come by TCP, honest ones and others.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::time::{Duration, Instant};

use turnbuckle_wire::{Class, Method};

use crate::harness::{
    Client, Inbound, Server, Site, StreamLink, channel, connect, connect_from, peer_receives,
    peer_socket, plain,
};

const LOOPBACK: &str = "--allow-loopback-peers";

/// Starts a relay that peers on this host may be reached through.
pub(crate) fn start(site: Site, options: &[&str]) -> Server {
    Server::start(site.server(), &[&[LOOPBACK], options].concat())
}

fn peer_of(site: Site) -> (std::net::UdpSocket, SocketAddr) {
    let peer = peer_socket(site.ip(9));
    let address = peer.local_addr().unwrap();
    (peer, address)
}

/// Allocates, and relays both ways by indications and by a channel.
pub(crate) fn relay_both_ways(client: &mut Client, peer_ip: IpAddr) {
    let peer = peer_socket(peer_ip);
    let address = peer.local_addr().unwrap();
    client.allocate();
    client.create_permission(&[address]).expect(200);
    for len in [0, 1, 2, 3, 4, 100, 1400, 9000] {
        let data = vec![7; len];
        client.send_indication(address, &data);
        let (received, relayed) = peer_receives(&peer);
        assert_eq!(received, data);
        peer.send_to(&data, relayed).unwrap();
        assert_eq!(
            client.receive(),
            Inbound::Data {
                peer: address,
                data
            }
        );
    }
    let number = channel(3);
    client.channel_bind(number, address).expect(200);
    for len in [0, 1, 2, 3, 4, 100, 1400, 9000] {
        let data = vec![9; len];
        client.send_channel_data(number, &data);
        let (received, relayed) = peer_receives(&peer);
        assert_eq!(received, data);
        peer.send_to(&data, relayed).unwrap();
        assert_eq!(client.receive(), Inbound::Channel { number, data });
    }
}

//= STUN-065
//= STUN-030
//= TURN-009
//= TURN-088
#[test]
fn a_client_over_tcp_relays_both_ways() {
    let site = Site::new();
    let server = start(site, &[]);
    let mut client = Client::over_tcp(&server);
    relay_both_ways(&mut client, site.ip(9));
    client.refresh(0).expect(200);
}

//= TURN-088
//= STUN-007
#[test]
fn many_channel_messages_of_one_segment_all_arrive_whole_and_in_order() {
    let site = Site::new();
    let server = start(site, &[]);
    let (peer, address) = peer_of(site);
    let mut client = Client::over_tcp(&server);
    client.allocate();
    let number = channel(0);
    client.channel_bind(number, address).expect(200);
    // Runs of one length, and a shorter one at the end of each, cut across by what one write takes.
    for round in 0..20_u8 {
        let mut bytes = Vec::new();
        for n in 0..40_u8 {
            let len = if n % 8 == 7 { 30 } else { 101 };
            bytes.extend_from_slice(&number.to_be_bytes());
            bytes.extend_from_slice(&u16::to_be_bytes(len));
            let mut data = vec![n; usize::from(len)];
            data[1] = round;
            bytes.extend_from_slice(&data);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        for piece in bytes.chunks(1500) {
            client.send_raw(piece);
        }
        for n in 0..40 {
            let (data, _) = peer_receives(&peer);
            assert_eq!(data.len(), if n % 8 == 7 { 30 } else { 101 });
            assert_eq!((data[0], data[1]), (n, round));
        }
    }
}

//= STUN-029
//= STUN-030
#[test]
fn a_binding_answer_names_the_connections_own_address_and_comes_back_on_it() {
    let site = Site::new();
    let server = start(site, &[]);
    let mut connection = connect(server.address());
    connection
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    // Byte by byte, as a slow network may deliver it (RFC 8489 §6.2.2).
    let request = plain(Class::Request, Method::BINDING, |_| {});
    for byte in &request {
        connection.write_all(&[*byte]).unwrap();
    }
    let mut answer = [0; 1024];
    let len = connection.read(&mut answer).unwrap();
    let answer = turnbuckle_wire::Message::parse(&answer[..len]).unwrap();
    assert_eq!(
        answer.xor_mapped_address().unwrap(),
        Some(connection.local_addr().unwrap())
    );
}

//= TCP-26
#[test]
fn an_allocation_ends_with_its_connection() {
    let site = Site::new();
    let server = start(site, &["--user-quota=1"]);
    let mut client = Client::over_tcp(&server);
    client.allocate();
    Client::over_tcp(&server).allocate_with(|_| {}).expect(486);
    drop(client);
    // The quota is free again as soon as the relay has seen the end of the connection.
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let answer = Client::over_tcp(&server).allocate_with(|_| {});
        if answer.code() == 200 {
            break;
        }
        assert!(Instant::now() < deadline, "{answer:?}");
        answer.expect(486);
    }
}

/// V-47: what cannot become a message ends the connection at once, and is counted.
//= MUX-07
#[test]
fn what_is_no_message_closes_the_connection_and_is_counted() {
    let site = Site::new();
    let server = start(site, &[]);
    let inputs: [(&[u8], &str); 6] = [
        (b"GET /index.html HTTP/1.1\r\n\r\n", "message_too_long"),
        (b"\x80\x60rtp", "protocol_unknown"),
        (b"\x05socks", "protocol_unknown"),
        (b"\x00\x01\x00\x03\x21\x12\xA4\x42", "malformed_stun"),
        (b"\x00\x01\x00\x00\x00\x00\x00\x00", "malformed_stun"),
        (b"\x00\x01\xFF\xFC\x21\x12\xA4\x42", "message_too_long"),
    ];
    for (input, _) in inputs {
        let mut link = StreamLink::tcp(server.address());
        // Behind a good request, whose answer comes all the same.
        let request = plain(Class::Request, Method::BINDING, |_| {});
        link.write(&[&request, input].concat());
        let answer = link.read_to_close();
        assert!(answer.starts_with(&[1, 1]), "{input:?}: {answer:?}");
    }
    let accounting = server.stop();
    for (_, reason) in inputs {
        let expected = inputs.iter().filter(|(_, other)| *other == reason).count();
        assert_eq!(accounting.dropped_as(reason), expected as u64, "{reason}");
    }
    assert_eq!(accounting.closed_as("malformed"), 6);
}

/// V-47: a connection that trickles, or says nothing, is closed by its deadline, and takes little memory until then.
#[test]
fn connections_that_trickle_are_closed_by_the_deadline_and_take_little_memory() {
    const CONNECTIONS: usize = 1000;
    let site = Site::new();
    // The kernel does not spread them evenly over the shards, each of which has its part of the limit.
    let options = [
        "--stream-deadline=4",
        "--max-connections-without-allocation-per-address=4096",
    ];
    let server = start(site, &options);
    let before = server.user_memory();
    let begun = plain(Class::Request, Method::BINDING, |_| {});
    let started = Instant::now();
    let mut connections: Vec<_> = (0..CONNECTIONS)
        .map(|n| {
            let mut connection = connect(server.address());
            connection.write_all(&begun[..n % 19]).unwrap();
            connection
        })
        .collect();
    // One more byte each later on, which makes the message no more complete.
    for connection in &mut connections {
        let _ = connection.write_all(&[0]);
    }
    let mut canary = Client::over_tcp(&server);
    canary.settle();
    if started.elapsed() < Duration::from_secs(3) {
        let taken = server.user_memory().saturating_sub(before) / CONNECTIONS as u64;
        println!("{taken} bytes a connection");
        assert!(taken < 8192, "{taken} bytes a connection");
    }
    for mut connection in connections {
        connection
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let end = connection.read(&mut [0; 100]);
        assert!(
            matches!(&end, Ok(0))
                || end
                    .as_ref()
                    .is_err_and(|it| it.kind() == ErrorKind::ConnectionReset),
            "{end:?}"
        );
    }
    drop(canary);
    let accounting = server.stop();
    let late = accounting.closed_as("first_message_late");
    let malformed = accounting.closed_as("malformed");
    assert_eq!(late + malformed, CONNECTIONS as u64);
    assert!(late > 0);
}

#[test]
fn a_message_that_stops_half_way_closes_even_a_connection_with_an_allocation() {
    let site = Site::new();
    let server = start(site, &["--stream-deadline=4"]);
    let mut client = Client::over_tcp(&server);
    client.allocate();
    client.send_raw(b"\x40\x00\xFF\xFFthe rest never comes");
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut other = Client::over_tcp(&server);
    other.settle();
    while server.descriptors_of_tcp() > 1 {
        assert!(Instant::now() < deadline, "it stays open");
        other.settle();
    }
    assert_eq!(server.stop().closed_as("message_late"), 1);
}

/// Connections that find no descriptor wait in the kernel, and none is lost when there are descriptors again.
#[test]
fn connections_beyond_the_limit_of_descriptors_are_served_when_it_is_lifted() {
    const ROOM: usize = 5;
    const CLIENTS: usize = 40;
    for accept in ["reuseport", "exclusive", "shared"] {
        let site = Site::new();
        let server = start(site, &[&format!("--accept={accept}")]);
        let limit = server.descriptors() + ROOM;
        server.limit_descriptors(Some(limit));
        let mut clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let mut client = StreamLink::tcp(server.address());
                client.write(&plain(Class::Request, Method::BINDING, |_| {}));
                client
            })
            .collect();
        let deadline = Instant::now() + Duration::from_secs(20);
        while server.descriptors() < limit {
            assert!(Instant::now() < deadline, "the limit is not reached");
        }
        server.limit_descriptors(None);
        for client in &mut clients {
            let answer = client.read_message().expect("an answer");
            assert!(answer.starts_with(&[1, 1]));
        }
        server.assert_descriptors(limit - ROOM + CLIENTS);
        drop(clients);
        while server.descriptors_of_tcp() > 0 {
            assert!(Instant::now() < deadline, "they stay open");
        }
        let accounting = server.stop();
        assert_eq!(accounting.closed_as("remote"), CLIENTS as u64, "{accept}");
    }
}

/// Returns a connection from `ip` that has sent a message which proves nothing, and has its answer.
fn unproven(ip: IpAddr, server: &Server) -> StreamLink {
    let mut link = StreamLink::new(connect_from(ip, server.address()));
    link.write(&plain(Class::Request, Method::BINDING, |_| {}));
    assert!(link.read_message().unwrap().starts_with(&[1, 1]));
    link
}

/// One address cannot take the places of all others, and what it begins last it has.
#[test]
fn connections_of_one_address_are_limited_and_keep_nobody_else_out() {
    let site = Site::new();
    let server = start(
        site,
        &[
            "--max-connections-without-allocation-per-address=10",
            "--relay-threads=1",
        ],
    );
    let mut crowd: Vec<_> = (0..30).map(|_| unproven(site.ip(5), &server)).collect();
    for displaced in &mut crowd[..20] {
        assert!(displaced.read_to_close().is_empty());
    }
    unproven(site.ip(6), &server);
    let last = crowd.last_mut().unwrap();
    last.write(&plain(Class::Request, Method::BINDING, |_| {}));
    assert!(last.read_message().unwrap().starts_with(&[1, 1]));
    drop(crowd);
    assert_eq!(server.stop().closed_as("crowded_address"), 20);
}

/// Connections without an allocation, silent or not: however many there are, a client gets in.
//= STUN-011
#[test]
fn connections_without_an_allocation_make_room_for_a_client() {
    for speaks in [false, true] {
        let site = Site::new();
        let options = [
            "--max-connections-without-allocation=50",
            "--relay-threads=1",
        ];
        let server = start(site, &options);
        let mut held: Vec<_> = (0..500).map(|_| connect(server.address())).collect();
        let mut client = Client::over_tcp(&server);
        client.allocate();
        if speaks {
            drop(held);
            let held: Vec<_> = (0..500).map(|_| unproven(site.ip(5), &server)).collect();
            assert!(server.descriptors_of_tcp() <= 51);
            drop(held);
        } else {
            held.clear();
        }
        client.refresh(600).expect(200);
        relay_both_ways(&mut Client::over_tcp(&server), site.ip(9));
        let accounting = server.stop();
        let closed = accounting.closed_as("crowded");
        assert!(closed >= 440, "{accounting:?}");
    }
}

/// A client that takes its time for a message keeps its place, however many come meanwhile from elsewhere.
#[test]
fn a_flood_of_connections_does_not_displace_a_slow_client() {
    let site = Site::new();
    let options = [
        "--max-connections-without-allocation=20",
        "--relay-threads=1",
    ];
    let server = start(site, &options);
    let request = plain(Class::Request, Method::BINDING, |_| {});
    let mut slow = StreamLink::new(connect_from(site.ip(6), server.address()));
    slow.write(&request[..10]);
    let crowd: Vec<_> = (0..200_u8)
        .map(|n| connect_from(site.ip(20 + n % 4), server.address()))
        .collect();
    unproven(site.ip(5), &server); // all have been accepted
    slow.write(&request[10..]);
    assert!(slow.read_message().unwrap().starts_with(&[1, 1]));
    drop(crowd);
    assert!(server.stop().closed_as("crowded") >= 180);
}

#[test]
fn a_connection_without_an_allocation_ends_in_time_however_much_it_says() {
    let site = Site::new();
    let server = start(site, &["--max-time-without-allocation=3"]);
    let mut client = Client::over_tcp(&server);
    client.allocate();
    let begun = Instant::now();
    let mut connection = connect(server.address());
    let request = plain(Class::Request, Method::BINDING, |_| {});
    let is_open = |connection: &mut std::net::TcpStream| {
        connection.write_all(&request).is_ok()
            && connection.read(&mut [0; 1024]).is_ok_and(|len| len > 0)
    };
    while is_open(&mut connection) {
        assert!(begun.elapsed() < Duration::from_secs(30), "it stays open");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(begun.elapsed() >= Duration::from_secs(3));
    client.refresh(600).expect(200);
    assert_eq!(server.stop().closed_as("without_allocation"), 1);
}

//= STUN-008
#[test]
fn a_connection_without_an_allocation_is_closed_when_it_is_idle_and_one_with_an_allocation_is_not()
{
    let site = Site::new();
    let server = start(site, &["--max-allocate-timeout=4"]);
    let mut client = Client::over_tcp(&server);
    client.allocate();
    let mut idle = StreamLink::tcp(server.address());
    idle.write(&plain(Class::Request, Method::BINDING, |_| {}));
    let answer = idle.read_to_close();
    assert!(answer.starts_with(&[1, 1]));
    client.refresh(600).expect(200);
    assert_eq!(server.stop().closed_as("idle"), 1);
}

/// V-46: who does not read loses media, oldest first, and nobody else does; memory stays within the bound.
#[test]
fn a_client_that_does_not_read_costs_a_bounded_buffer_and_nobody_else_anything() {
    const DATAGRAMS: u64 = 20_000;
    const PAYLOAD: usize = 1000;
    let site = Site::new();
    let server = start(site, &["--relay-threads=1"]);
    let (peer, address) = peer_of(site);
    let mut slow = Client::over_tcp(&server);
    let relayed = slow.allocate();
    slow.channel_bind(channel(0), address).expect(200);
    let (healthy_peer, healthy_address) = peer_of(site);
    let mut healthy = Client::over_tcp(&server);
    let healthy_relayed = healthy.allocate();
    healthy
        .channel_bind(channel(0), healthy_address)
        .expect(200);
    let before = server.user_memory();
    for n in 0..DATAGRAMS {
        let mut data = vec![0; PAYLOAD];
        data[..8].copy_from_slice(&n.to_be_bytes());
        peer.send_to(&data, relayed).unwrap();
        if n % 20 == 0 {
            // Keeps the relay's small receive buffer from running over, and has its own messages come back.
            healthy_peer
                .send_to(&n.to_be_bytes(), healthy_relayed)
                .unwrap();
            let expected = Inbound::Channel {
                number: channel(0),
                data: n.to_be_bytes().to_vec(),
            };
            assert_eq!(healthy.receive(), expected);
        }
    }
    let taken = server.user_memory().saturating_sub(before);
    println!("{taken} bytes for {} of media", DATAGRAMS * PAYLOAD as u64);
    assert!(taken < 2 << 20, "{taken} bytes");
    // The client wakes up, and its newest messages are there.
    let mut numbers = Vec::new();
    while numbers.last() != Some(&(DATAGRAMS - 1)) {
        let Inbound::Channel { data, .. } = slow.receive() else {
            panic!("channel messages only")
        };
        numbers.push(u64::from_be_bytes(data[..8].try_into().unwrap()));
    }
    assert!(numbers.is_sorted());
    slow.refresh(600).expect(200);
    let accounting = server.stop();
    let lost = DATAGRAMS - numbers.len() as u64;
    assert!(lost > 0, "the client was never slow");
    assert!(accounting.dropped_as("stream_congested") > 0);
    assert!(accounting.dropped_as("stream_congested") <= lost);
}

/// A client that asks and asks and never reads the answers is closed.
#[test]
fn a_client_that_does_not_read_its_answers_is_closed() {
    let site = Site::new();
    let server = start(site, &[]);
    let mut connection = connect(server.address());
    let request = plain(Class::Request, Method::BINDING, |_| {}).repeat(1000);
    let deadline = Instant::now() + Duration::from_secs(30);
    connection
        .set_write_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    // Ends with a reset: write_all reports it, or a timeout as long as the relay has not got that far.
    while !matches!(connection.write_all(&request), Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
    {
        assert!(Instant::now() < deadline, "it goes on for ever");
    }
    assert_eq!(server.stop().closed_as("congested"), 1);
}

//= STUN-009
#[test]
fn the_client_may_close_its_side_as_soon_as_it_has_asked() {
    let site = Site::new();
    let server = start(site, &[]);
    let mut connection = connect(server.address());
    let request = plain(Class::Request, Method::BINDING, |_| {});
    let count = 300;
    connection.write_all(&request.repeat(count)).unwrap();
    connection.shutdown(Shutdown::Write).unwrap();
    let mut answers = Vec::new();
    connection.read_to_end(&mut answers).unwrap();
    let mut rest = &answers[..];
    for number in 0..count {
        assert!(rest.starts_with(&[1, 1]), "{number} of {count} answers");
        let len = 20 + usize::from(u16::from_be_bytes([rest[2], rest[3]]));
        rest = &rest[len..];
    }
    assert!(rest.is_empty());
    // Nor does the end of what a connection had close it while there are requests on it.
    let mut client = Client::over_tcp(&server);
    client.allocate();
    client.refresh(0).expect(200);
    client.exchange(&request).expect(200);
    client.allocate();
}

#[test]
fn transports_can_be_switched_off() {
    let site = Site::new();
    let server = start(site, &["--no-udp"]);
    assert!(server.greeting().contains("listening on TCP "));
    let mut client = Client::over_tcp(&server);
    relay_both_ways(&mut client, site.ip(9));
    let site = Site::new();
    let server = start(site, &["--no-tcp"]);
    assert!(server.greeting().contains("listening on UDP "));
    let refused = std::net::TcpStream::connect(server.address()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}
