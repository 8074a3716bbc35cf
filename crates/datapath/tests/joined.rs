//! Two connections that are joined: made, held, relayed, ended, and moved from one data path to another.
#![expect(clippy::unwrap_used, clippy::unwrap_in_result, reason = "tests")]

mod common;

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use common::{TEST_TIMEOUT, free_for_listening, loopback};
use turnbuckle_datapath::{
    Accepted, Admission, DatagramHandler, Datapath, DetachedStream, Listen, Received, SendFailure,
    SendQueue, Settings, Sockets, StreamEnd, StreamHandler, StreamId, StreamInput,
    StreamListenerId, Taken, TurnHandler,
};

const CLIENTS: u64 = 1;
const PEERS: u64 = 2;

/// What a test wants done when a turn ends.
enum Wish {
    Adopt(DetachedStream),
    Close(StreamId),
    CloseListener(StreamListenerId),
    Connect(SocketAddr, SocketAddr),
    Detach(StreamId),
    HoldBack(StreamId, bool),
    Join(StreamId, StreamId),
    Listen(SocketAddr),
    Reply(StreamId, &'static [u8]),
    Seal(StreamId),
}

/// Relays between connections that are joined, and forgets what others send.
#[derive(Default)]
struct Pairs {
    clients: Vec<StreamId>,
    peers: Vec<StreamId>,
    joined: Vec<(StreamId, StreamId)>,
    connected: Vec<Result<StreamId, ErrorKind>>,
    listener: Option<io::Result<StreamListenerId>>,
    detached: Option<DetachedStream>,
    wishes: Vec<Wish>,
    /// Is held back as soon as anything is received.
    held_back_next: Option<StreamId>,
    received: usize,
    ended: Vec<StreamId>,
    ends: Vec<(StreamId, StreamEnd)>,
    failures: Vec<(StreamId, u32)>,
}

impl Pairs {
    fn partner(&self, stream: StreamId) -> Option<StreamId> {
        let found = self.joined.iter();
        let mut both = found.flat_map(|&(one, other)| [(one, other), (other, one)]);
        both.find(|&(one, _)| one == stream).map(|(_, other)| other)
    }
}

impl TurnHandler for Pairs {
    fn turn_ended(&mut self, tx: &mut SendQueue, sockets: &mut impl Sockets) {
        for wish in std::mem::take(&mut self.wishes) {
            match wish {
                Wish::Adopt(stream) => self.clients.push(sockets.adopt(stream).unwrap()),
                Wish::Close(stream) => tx.close_stream(stream),
                Wish::CloseListener(listener) => sockets.close_listener(listener),
                Wish::Connect(local, remote) => {
                    if let Err(error) = sockets.connect(local, remote) {
                        self.connected.push(Err(error.kind()));
                    }
                }
                Wish::Detach(stream) => self.detached = sockets.detach(stream),
                Wish::HoldBack(stream, is_held_back) => {
                    tx.hold_back_stream(stream, is_held_back);
                }
                Wish::Join(one, other) => {
                    self.joined.push((one, other));
                    tx.join_streams(one, other);
                }
                Wish::Reply(stream, bytes) => tx.stream_reply(stream, bytes),
                Wish::Seal(stream) => tx.seal_stream(stream),
                Wish::Listen(address) => {
                    let token = PEERS;
                    self.listener = Some(sockets.listen_for_peers(Listen { address, token }));
                }
            }
        }
    }
}

impl DatagramHandler for Pairs {
    fn received(&mut self, _: &Received<'_>, _: &mut SendQueue) {}
}

impl StreamHandler for Pairs {
    fn accepted(&mut self, stream: StreamId, accepted: &Accepted, _: &mut SendQueue) -> Admission {
        match accepted.token {
            CLIENTS => self.clients.push(stream),
            _ => self.peers.push(stream),
        }
        Admission::Trusted
    }

    fn connected(&mut self, stream: StreamId, result: io::Result<()>, _: &mut SendQueue) {
        self.connected
            .push(result.map(|()| stream).map_err(|error| error.kind()));
    }

    fn stream_received(&mut self, input: &mut StreamInput<'_>, tx: &mut SendQueue) -> Taken {
        let len = input.bytes().len();
        self.received += len;
        if let Some(stream) = self.held_back_next.take() {
            tx.hold_back_stream(stream, true);
        }
        if let Some(partner) = self.partner(input.stream) {
            tx.stream_relay(partner, input, 0..len);
        }
        Taken::ALL
    }

    fn stream_ended(&mut self, stream: StreamId) {
        self.ended.push(stream);
    }

    fn seal(&mut self, _: StreamId, plain: &[u8], sealed: &mut Vec<u8>) -> io::Result<()> {
        sealed.extend(plain.iter().map(|byte| !byte));
        Ok(())
    }

    fn stream_failed(&mut self, stream: StreamId, messages: u32, _: SendFailure) {
        self.failures.push((stream, messages));
    }

    fn stream_closed(&mut self, stream: StreamId, end: StreamEnd) {
        self.ends.push((stream, end));
    }
}

/// A data path, where its clients connect, and its relay's address.
struct Scene {
    datapath: Datapath,
    clients: SocketAddr,
    relay: SocketAddr,
    pairs: Pairs,
}

impl Scene {
    fn new() -> Self {
        let mut datapath = Datapath::new(Settings::default()).unwrap();
        let address = loopback(false);
        let token = CLIENTS;
        let listener = datapath.listen(Listen { address, token }).unwrap();
        datapath.admit_connections(listener).unwrap();
        let clients = datapath.listening_addr(listener).unwrap();
        let mut scene = Self {
            datapath,
            clients,
            relay: free_for_listening(),
            pairs: Pairs::default(),
        };
        scene.wish(Wish::Listen(scene.relay));
        assert!(matches!(scene.pairs.listener, Some(Ok(_))));
        scene
    }

    fn turn(&mut self) {
        let timeout = Some(Duration::from_millis(5));
        self.datapath.turn(timeout, &mut self.pairs).unwrap();
    }

    /// Makes turns until `is_done`.
    fn until(&mut self, is_done: impl Fn(&Pairs) -> bool) {
        let deadline = Instant::now() + TEST_TIMEOUT;
        while !is_done(&self.pairs) {
            assert!(Instant::now() < deadline, "it does not come to that");
            self.turn();
        }
    }

    fn wish(&mut self, wish: Wish) {
        self.pairs.wishes.push(wish);
        self.until(|pairs| pairs.wishes.is_empty());
    }

    /// Returns a connection of a client, from both sides.
    fn client(&mut self) -> (TcpStream, StreamId) {
        let client = patient(TcpStream::connect(self.clients).unwrap());
        let before = self.pairs.clients.len();
        self.until(|pairs| pairs.clients.len() > before);
        (client, *self.pairs.clients.last().unwrap())
    }

    /// Returns a peer that connected to the relay, from both sides.
    fn incoming(&mut self) -> (TcpStream, StreamId) {
        let peer = patient(TcpStream::connect(self.relay).unwrap());
        let before = self.pairs.peers.len();
        self.until(|pairs| pairs.peers.len() > before);
        (peer, *self.pairs.peers.last().unwrap())
    }

    /// Returns a client and a peer that are joined.
    fn joined(&mut self) -> [(TcpStream, StreamId); 2] {
        let (client, peer) = (self.client(), self.incoming());
        self.wish(Wish::Join(client.1, peer.1));
        [client, peer]
    }

    /// Reads so many bytes, making turns.
    fn read(&mut self, from: &mut TcpStream, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let mut read = 0;
        from.set_nonblocking(true).unwrap();
        let deadline = Instant::now() + TEST_TIMEOUT;
        while read < len {
            assert!(Instant::now() < deadline, "{read} of {len}");
            match from.read(&mut bytes[read..]) {
                Ok(0) => panic!("ended after {read} of {len}"),
                Ok(more) => read += more,
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.turn(),
                Err(error) => panic!("{error}"),
            }
        }
        from.set_nonblocking(false).unwrap();
        bytes
    }

    /// Returns how the other side's stream ends, making turns.
    fn end(&mut self, from: &mut TcpStream) -> Result<usize, ErrorKind> {
        from.set_nonblocking(true).unwrap();
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            assert!(Instant::now() < deadline, "it does not end");
            match from.read(&mut [0; 100]) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.turn(),
                other => return other.map_err(|error| error.kind()),
            }
        }
    }
}

fn patient(stream: TcpStream) -> TcpStream {
    stream.set_nodelay(true).unwrap();
    stream
}

#[test]
fn a_connection_leaves_from_the_address_that_is_listened_on_and_a_refused_one_says_so() {
    let mut scene = Scene::new();
    let peer = TcpListener::bind(loopback(false)).unwrap();
    scene.wish(Wish::Connect(scene.relay, peer.local_addr().unwrap()));
    let (accepted, from) = peer.accept().unwrap();
    assert_eq!(from, scene.relay);
    scene.until(|pairs| pairs.connected.len() == 1);
    let stream = scene.pairs.connected[0].unwrap();
    // the listener goes on beside it
    scene.incoming();
    scene.wish(Wish::Connect(scene.relay, free_for_listening()));
    scene.until(|pairs| pairs.connected.len() == 2);
    assert_eq!(scene.pairs.connected[1], Err(ErrorKind::ConnectionRefused));
    // and one that resets before it is joined is known to be gone
    rustix::net::sockopt::set_socket_linger(&accepted, Some(Duration::ZERO)).unwrap();
    drop(accepted);
    scene.until(|pairs| !pairs.ends.is_empty());
    assert_eq!(scene.pairs.ends, [(stream, StreamEnd::Failed)]);
}

#[test]
fn nothing_is_read_from_a_peer_before_it_is_joined_and_then_everything() {
    let mut scene = Scene::new();
    let (mut client, client_id) = scene.client();
    let (mut peer, peer_id) = scene.incoming();
    peer.write_all(b"early").unwrap();
    for _ in 0..20 {
        scene.turn();
    }
    assert_eq!(scene.pairs.received, 0);
    scene.wish(Wish::Join(client_id, peer_id));
    assert_eq!(scene.read(&mut client, 5), b"early");
    client.write_all(b"late").unwrap();
    assert_eq!(scene.read(&mut peer, 4), b"late");
    // a listener that is closed leaves its connections alone
    let Some(Ok(listener)) = scene.pairs.listener.take() else {
        panic!("listening")
    };
    scene.wish(Wish::CloseListener(listener));
    assert!(TcpStream::connect(scene.relay).is_err());
    client.write_all(b"more").unwrap();
    assert_eq!(scene.read(&mut peer, 4), b"more");
}

#[test]
fn one_side_is_not_read_while_the_other_takes_nothing_and_nothing_is_lost() {
    const LEN: usize = 100 << 20;
    let mut scene = Scene::new();
    let [(mut client, _), (mut peer, _)] = scene.joined();
    client.set_nonblocking(true).unwrap();
    let mut sent = 0_usize;
    let mut idle = 0;
    let chunk: Vec<u8> = (0..=250_u8).cycle().take(251 * 500).collect();
    while sent < LEN && idle < 100 {
        match client.write(&chunk[sent % 251..]) {
            Ok(len) => (sent, idle) = (sent + len, 0),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                idle += 1;
                scene.turn();
            }
        }
    }
    assert!(sent < LEN, "the sender has to wait");
    client.shutdown(Shutdown::Write).unwrap();
    let received = scene.read(&mut peer, sent);
    let is_whole = received
        .iter()
        .zip((0..=250_u8).cycle())
        .all(|(&byte, expected)| byte == expected);
    assert!(is_whole, "in order");
    assert_eq!(scene.end(&mut peer), Ok(0));
}

#[test]
fn what_is_held_back_is_not_read_until_it_is_wanted_again() {
    let mut scene = Scene::new();
    let [(mut client, client_id), (mut peer, _)] = scene.joined();
    scene.wish(Wish::HoldBack(client_id, true));
    client.write_all(b"waits").unwrap();
    peer.write_all(b"goes").unwrap();
    assert_eq!(scene.read(&mut client, 4), b"goes");
    assert_eq!(scene.pairs.received, 4);
    scene.wish(Wish::HoldBack(client_id, false));
    assert_eq!(scene.read(&mut peer, 5), b"waits");
}

/// Writes as much as there is room for, and returns how much.
fn fill(stream: &mut TcpStream) -> usize {
    stream.set_nonblocking(true).unwrap();
    let mut written = 0;
    loop {
        match stream.write(&[7; 65_536]) {
            Ok(len) => written += len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return written,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn what_is_held_back_while_others_fill_a_turn_still_gets_what_is_sent_to_it() {
    /// More than there is room for between two flushes.
    const OTHERS: usize = 100;
    let mut scene = Scene::new();
    let mut others: Vec<_> = (0..OTHERS).map(|_| scene.joined()).collect();
    let [(mut client, client_id), (mut peer, _)] = scene.joined();
    let (mut sent, mut stalled) = (0, 0);
    while stalled < 20 {
        let before = scene.pairs.received;
        sent += fill(&mut peer);
        // Each change has what waits be tried once more.
        scene.wish(Wish::HoldBack(client_id, false));
        stalled = match scene.pairs.received == before {
            true => stalled + 1,
            false => 0,
        };
    }
    for [(other, _), _] in &mut others {
        assert!(fill(other) > 48 * 1024);
    }
    // The last of the turn's events, behind a flush.
    fill(&mut client);
    scene.pairs.held_back_next = Some(client_id);
    scene.turn();
    assert!(scene.pairs.held_back_next.is_none());
    let relayed = peer.read(&mut [0]).map_err(|error| error.kind());
    assert_eq!(relayed, Err(ErrorKind::WouldBlock), "held back in time");
    assert_eq!(scene.read(&mut client, sent), vec![7; sent]);
}

#[test]
fn an_end_is_passed_on_after_the_bytes_and_both_are_closed_when_both_have_ended() {
    let mut scene = Scene::new();
    let [(mut client, client_id), (mut peer, peer_id)] = scene.joined();
    client.write_all(b"last").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(scene.read(&mut peer, 4), b"last");
    assert_eq!(scene.end(&mut peer), Ok(0));
    assert_eq!(scene.pairs.ended, [client_id]);
    assert!(scene.pairs.ends.is_empty());
    peer.write_all(b"answer").unwrap();
    peer.shutdown(Shutdown::Write).unwrap();
    assert_eq!(scene.read(&mut client, 6), b"answer");
    assert_eq!(scene.end(&mut client), Ok(0));
    scene.until(|pairs| pairs.ends.len() == 2);
    assert_eq!(scene.pairs.ended, [client_id, peer_id]);
    let mut ends = scene.pairs.ends.clone();
    ends.sort_unstable_by_key(|(stream, _)| *stream);
    let mut expected = [client_id, peer_id].map(|stream| (stream, StreamEnd::Finished));
    expected.sort_unstable_by_key(|(stream, _)| *stream);
    assert_eq!(ends, expected);
}

#[test]
fn a_reset_is_passed_on_as_one_also_while_the_connection_is_not_read() {
    for is_held_back in [false, true] {
        let mut scene = Scene::new();
        let [(mut client, client_id), (peer, peer_id)] = scene.joined();
        if is_held_back {
            scene.wish(Wish::HoldBack(peer_id, true));
        }
        rustix::net::sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
        drop(peer);
        for _ in 0..10 {
            scene.turn();
        }
        if is_held_back {
            assert!(scene.pairs.ends.is_empty(), "found out when it is read");
            scene.wish(Wish::HoldBack(peer_id, false));
        }
        assert_eq!(scene.end(&mut client), Err(ErrorKind::ConnectionReset));
        let streams: Vec<_> = scene.pairs.ends.iter().map(|(stream, _)| *stream).collect();
        assert_eq!(streams, [peer_id, client_id]);
    }
}

#[test]
fn a_connection_moves_to_another_data_path_with_what_it_has_sent() {
    let (mut from, mut to) = (Scene::new(), Scene::new());
    let (mut client, stream) = from.client();
    from.wish(Wish::Detach(stream));
    client.write_all(b"on the way").unwrap();
    for _ in 0..10 {
        from.turn();
    }
    assert_eq!(from.pairs.received, 0, "it is not there any more");
    let detached = from.pairs.detached.take().unwrap();
    to.wish(Wish::Adopt(detached));
    let adopted = *to.pairs.clients.last().unwrap();
    to.until(|pairs| pairs.received == 10);
    let (mut peer, peer_id) = to.incoming();
    to.wish(Wish::Join(adopted, peer_id));
    client.write_all(b"arrived").unwrap();
    assert_eq!(to.read(&mut peer, 7), b"arrived");
}

#[test]
fn a_connection_that_is_sealed_stays_so_where_it_moves() {
    let (mut from, mut to) = (Scene::new(), Scene::new());
    let (mut client, stream) = from.client();
    from.wish(Wish::Reply(stream, b"plain"));
    assert_eq!(from.read(&mut client, 5), b"plain");
    from.wish(Wish::Seal(stream));
    from.wish(Wish::Reply(stream, b"sealed"));
    assert_eq!(from.read(&mut client, 6), b"sealed".map(|byte| !byte));
    from.wish(Wish::Detach(stream));
    to.wish(Wish::Adopt(from.pairs.detached.take().unwrap()));
    let adopted = *to.pairs.clients.last().unwrap();
    to.wish(Wish::Reply(adopted, b"moved"));
    assert_eq!(to.read(&mut client, 5), b"moved".map(|byte| !byte));
}

#[test]
fn what_comes_on_a_connection_that_is_held_back_waits_until_it_is_read_again() {
    let mut scene = Scene::new();
    let (mut client, stream) = scene.client();
    scene.wish(Wish::HoldBack(stream, true));
    client.write_all(b"later").unwrap();
    for _ in 0..10 {
        scene.turn();
    }
    assert_eq!(scene.pairs.received, 0);
    scene.wish(Wish::HoldBack(stream, false));
    scene.until(|pairs| pairs.received == 5);
}

#[test]
fn answers_that_wait_when_joined_connections_end_are_given_up_and_relayed_bytes_are_no_messages() {
    for (is_sealed, closed) in [(false, 0), (false, 1), (true, 1)] {
        // On a busy machine the kernel may find room on the way to the client after all; but not each time.
        let has_waited = (0..20).any(|_| {
            let mut scene = Scene::new();
            let [(mut unread, client), (mut peer, peer_side)] = scene.joined();
            if is_sealed {
                scene.wish(Wish::Seal(client));
            }
            // Until nothing more finds room on the way to the client, who reads nothing.
            peer.set_nonblocking(true).unwrap();
            let mut stalled = 0;
            while stalled < 20 {
                let before = scene.pairs.received;
                let _ = peer.write(&[1; 65_536]);
                scene.turn();
                stalled = if scene.pairs.received == before {
                    stalled + 1
                } else {
                    0
                };
            }
            scene.wish(Wish::Reply(client, b"answer"));
            assert_eq!(scene.pairs.failures, []);
            scene.wish(Wish::Close([client, peer_side][closed]));
            scene.until(|pairs| pairs.ends.len() == 2);
            let context = format!("sealed: {is_sealed}, closed: {closed}");
            if scene.pairs.failures == [(client, 1)] {
                return true;
            }
            assert_eq!(scene.pairs.failures, [], "{context}");
            // Then it has left, and comes last.
            let mut all = Vec::new();
            unread.read_to_end(&mut all).unwrap();
            let answer = b"answer".map(|byte| if is_sealed { !byte } else { byte });
            assert!(all.ends_with(&answer), "{context}");
            false
        });
        assert!(has_waited, "sealed: {is_sealed}, closed: {closed}");
    }
}
