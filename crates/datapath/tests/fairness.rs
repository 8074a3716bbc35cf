//! Who is served in a turn in which more is ready than it takes. Turns are counted, not time.
#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use common::{LISTENER, TEST_TIMEOUT, bind, loopback, socket};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use turnbuckle_datapath::{
    Accepted, Admission, Backend, DatagramHandler, Datapath, EndpointKind, Listen, Received,
    SendQueue, Settings, StreamEnd, StreamHandler, StreamId, StreamInput, Taken, TurnHandler,
    pin_current_thread,
};

/// Counts what it is shown in a turn.
#[derive(Default)]
struct Counting {
    /// Whether connections prove themselves by what they send.
    believes: bool,
    proven: Vec<StreamId>,
    datagrams: usize,
    inputs: usize,
    /// The tokens of the listeners at which connections were accepted.
    accepted: Vec<u64>,
    /// Connections that have ended since the start.
    closed: usize,
}

impl TurnHandler for Counting {
    fn turn_started(&mut self) {
        self.datagrams = 0;
        self.inputs = 0;
        self.accepted.clear();
    }
}

impl DatagramHandler for Counting {
    fn received(&mut self, message: &Received<'_>, _: &mut SendQueue) {
        self.datagrams += message.segment_count();
    }
}

impl StreamHandler for Counting {
    fn accepted(&mut self, _: StreamId, accepted: &Accepted, _: &mut SendQueue) -> Admission {
        self.accepted.push(accepted.token);
        Admission::Stranger
    }

    fn stream_closed(&mut self, _: StreamId, _: StreamEnd) {
        self.closed += 1;
    }

    fn stream_received(&mut self, input: &mut StreamInput<'_>, tx: &mut SendQueue) -> Taken {
        self.inputs += 1;
        if self.believes && !self.proven.contains(&input.stream) {
            self.proven.push(input.stream);
            tx.prove_stream(input.stream);
        }
        Taken::ALL
    }
}

/// Returns when everything that this thread has sent has arrived: what comes by loopback comes in order on the CPU where it was
/// sent, but the kernel may put it off when it is busy.
fn settle() {
    let own = socket(loopback(false));
    own.send_to(b"last", own.local_addr().unwrap()).unwrap();
    own.recv(&mut [0; 4]).unwrap();
}

fn turn(datapath: &mut Datapath, handler: &mut Counting) {
    settle();
    datapath.turn(Some(TEST_TIMEOUT), handler).unwrap();
}

/// Makes a turn when everything that this thread has sent has arrived, and does not wait if there is nothing to be done.
fn turn_if_ready(datapath: &mut Datapath, handler: &mut Counting) {
    settle();
    datapath.turn(Some(Duration::ZERO), handler).unwrap();
}

fn listen(datapath: &mut Datapath, token: u64) -> SocketAddr {
    let address = loopback(false);
    let listener = datapath.listen(Listen { address, token }).unwrap();
    datapath.admit_connections(listener).unwrap();
    datapath.listening_addr(listener).unwrap()
}

/// Accepts `count` connections.
fn connections(datapath: &mut Datapath, handler: &mut Counting, count: usize) -> Vec<TcpStream> {
    let wanted = u64::try_from(count * 2 + 500).unwrap();
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < wanted) {
        let maximum = limit.maximum.map(|maximum| maximum.max(wanted));
        let current = Some(wanted);
        setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    }
    let address = listen(datapath, 0);
    let clients = (0..count).map(|_| {
        let client = TcpStream::connect(address).unwrap();
        turn(datapath, handler);
        client
    });
    let clients: Vec<_> = clients.collect();
    let counters = Arc::clone(datapath.counters());
    while counters.stream.accepted.get() < u64::try_from(count).unwrap() {
        turn(datapath, handler);
    }
    clients
}

#[test]
fn a_datagram_waits_for_no_stranger_however_many_are_ready() {
    pin_current_thread(0).unwrap();
    let settings = Settings {
        strangers_slice: Duration::ZERO,
        ..Settings::default()
    };
    let mut datapath = Datapath::new(settings).unwrap();
    let (_, entrance) = bind(&mut datapath, LISTENER, loopback(false));
    let mut handler = Counting::default();
    let mut clients = connections(&mut datapath, &mut handler, 2000);
    for client in &mut clients {
        client.write_all(b"hello").unwrap();
    }
    let friend = socket(loopback(false));
    for _ in 0..20 {
        friend.send_to(b"media", entrance).unwrap();
        turn(&mut datapath, &mut handler);
        assert_eq!((handler.datagrams, handler.inputs), (1, 1));
    }
}

//= V-47
#[test]
fn nothing_is_read_of_a_stranger_that_has_reset_its_connection() {
    pin_current_thread(0).unwrap();
    let mut datapath = Datapath::new(Settings::default()).unwrap();
    let mut handler = Counting::default();
    let mut clients = connections(&mut datapath, &mut handler, 3);
    let last = clients.pop().unwrap();
    for mut client in clients {
        client.write_all(b"hello").unwrap();
        rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
    }
    for inputs in [0, 0, 1, 0] {
        if inputs == 1 {
            (&last).write_all(b"hello").unwrap();
        }
        turn_if_ready(&mut datapath, &mut handler);
        assert_eq!(handler.inputs, inputs);
    }
    assert_eq!(handler.closed, 2, "they are gone");
}

#[test]
fn a_connection_that_has_proven_itself_waits_for_no_stranger() {
    pin_current_thread(0).unwrap();
    let settings = Settings {
        strangers_slice: Duration::ZERO,
        ..Settings::default()
    };
    let mut datapath = Datapath::new(settings).unwrap();
    let mut handler = Counting {
        believes: true,
        ..Counting::default()
    };
    let mut clients = connections(&mut datapath, &mut handler, 600);
    clients[0].write_all(b"hello").unwrap();
    while handler.proven.is_empty() {
        turn(&mut datapath, &mut handler);
    }
    handler.believes = false;
    let (friend, strangers) = clients.split_first_mut().unwrap();
    for stranger in strangers {
        stranger.write_all(b"hello").unwrap();
    }
    for _ in 0..20 {
        friend.write_all(b"media").unwrap();
        turn(&mut datapath, &mut handler);
        assert_eq!(handler.inputs, 2, "the friend and one stranger");
    }
}

#[test]
fn what_clients_send_is_read_in_each_turn_however_many_relays_are_ready() {
    pin_current_thread(0).unwrap();
    for backend in common::BACKENDS {
        let settings = Settings {
            backend,
            ..Settings::default()
        };
        let mut datapath = Datapath::new(settings).unwrap();
        let mut relays: Vec<(UdpSocket, SocketAddr)> = Vec::new();
        for _ in 0..400 {
            let (_, address) = bind(&mut datapath, EndpointKind::Relay, loopback(false));
            relays.push((socket(loopback(false)), address));
        }
        let (_, entrance) = bind(&mut datapath, LISTENER, loopback(false));
        let mut handler = Counting::default();
        let client = socket(loopback(false));
        for (peer, address) in &relays {
            peer.send_to(b"peer", *address).unwrap();
        }
        for _ in 0..200 {
            client.send_to(b"client", entrance).unwrap();
        }
        turn(&mut datapath, &mut handler);
        // As many readiness events as a turn takes, and all of the clients.
        assert!(
            (200 + 255..=200 + 256).contains(&handler.datagrams),
            "{backend}: {}",
            handler.datagrams
        );
        turn(&mut datapath, &mut handler);
        assert!(handler.datagrams >= 144, "{backend}: {}", handler.datagrams);
    }
}

#[test]
fn a_flood_of_clients_takes_a_bounded_part_of_a_turn() {
    pin_current_thread(0).unwrap();
    let settings = Settings {
        backend: Backend::Mmsg,
        ..Settings::default()
    };
    let mut datapath = Datapath::new(settings).unwrap();
    let (_, entrance) = bind(&mut datapath, LISTENER, loopback(false));
    let client = socket(loopback(false));
    for _ in 0..1000 {
        client.send_to(b"client", entrance).unwrap();
    }
    let mut handler = Counting::default();
    turn(&mut datapath, &mut handler);
    assert_eq!(handler.datagrams, 256);
}

#[test]
fn past_its_slice_a_turn_accepts_at_one_listener_and_the_next_at_another() {
    pin_current_thread(0).unwrap();
    const LISTENERS: u64 = 20;
    let settings = Settings {
        strangers_slice: Duration::ZERO,
        ..Settings::default()
    };
    let mut datapath = Datapath::new(settings).unwrap();
    let mut clients = Vec::new();
    for token in 0..LISTENERS {
        let address = listen(&mut datapath, token);
        clients.extend((0..2).map(|_| TcpStream::connect(address).unwrap()));
    }
    let mut handler = Counting::default();
    let mut served = Vec::new();
    for _ in 0..LISTENERS {
        turn(&mut datapath, &mut handler);
        assert_eq!(handler.accepted.len(), 2);
        assert_eq!(handler.accepted[0], handler.accepted[1]);
        served.push(handler.accepted[0]);
    }
    served.sort_unstable();
    assert_eq!(served, (0..LISTENERS).collect::<Vec<_>>());
}

#[test]
fn a_listener_that_is_not_admitted_yet_keeps_nobody_busy() {
    pin_current_thread(0).unwrap();
    let mut datapath = Datapath::new(Settings::default()).unwrap();
    let address = loopback(false);
    let listener = datapath.listen(Listen { address, token: 0 }).unwrap();
    let mut handler = Counting::default();
    for _ in 0..3 {
        datapath.turn(Some(Duration::ZERO), &mut handler).unwrap();
    }
    assert_eq!(datapath.counters().stream.accept_failures.get(), 0);
    datapath.admit_connections(listener).unwrap();
    let address = datapath.listening_addr(listener).unwrap();
    let _client = TcpStream::connect(address).unwrap();
    turn(&mut datapath, &mut handler);
    assert_eq!(handler.accepted, [0]);
}

/// Takes ten bytes in a turn, or waits for a whole hundred.
#[derive(Default)]
struct Sipping {
    waits: bool,
    inputs: usize,
    taken: usize,
}

impl TurnHandler for Sipping {}

impl DatagramHandler for Sipping {
    fn received(&mut self, _: &Received<'_>, _: &mut SendQueue) {}
}

impl StreamHandler for Sipping {
    fn accepted(&mut self, _: StreamId, _: &Accepted, _: &mut SendQueue) -> Admission {
        Admission::Trusted
    }

    fn stream_received(&mut self, input: &mut StreamInput<'_>, _: &mut SendQueue) -> Taken {
        let len = input.bytes().len();
        self.inputs += 1;
        let taken = match self.waits {
            true => len / 100 * 100,
            false => len.min(10),
        };
        self.taken += taken;
        if self.waits {
            input.await_len(100);
        } else if taken < len {
            input.cut();
        }
        Taken::AllBut([taken..len, 0..0])
    }
}

/// Returns a connection that was accepted and has sent `bytes`.
fn sipping(datapath: &mut Datapath, handler: &mut Sipping, bytes: &[u8]) -> TcpStream {
    let address = listen(datapath, 0);
    let mut client = TcpStream::connect(address).unwrap();
    client.set_nodelay(true).unwrap();
    datapath.turn(Some(TEST_TIMEOUT), handler).unwrap();
    client.write_all(bytes).unwrap();
    settle();
    client
}

#[test]
fn what_a_turn_leaves_of_a_connection_comes_in_the_next_ones_though_nothing_else_does() {
    pin_current_thread(0).unwrap();
    let mut datapath = Datapath::new(Settings::default()).unwrap();
    let mut handler = Sipping::default();
    let _client = sipping(&mut datapath, &mut handler, &[7; 95]);
    for turn in 1..=10 {
        datapath.turn(Some(TEST_TIMEOUT), &mut handler).unwrap();
        assert_eq!((handler.inputs, handler.taken), (turn, (turn * 10).min(95)));
    }
    // And then nothing keeps it busy.
    datapath.turn(Some(Duration::ZERO), &mut handler).unwrap();
    assert_eq!(handler.inputs, 10);
}

#[test]
fn a_message_that_comes_byte_by_byte_is_shown_when_it_is_whole() {
    pin_current_thread(0).unwrap();
    let mut datapath = Datapath::new(Settings::default()).unwrap();
    let mut handler = Sipping {
        waits: true,
        ..Sipping::default()
    };
    let mut client = sipping(&mut datapath, &mut handler, b"x");
    for sent in 1..=200 {
        datapath.turn(Some(TEST_TIMEOUT), &mut handler).unwrap();
        // The first byte of all has to be shown, and after that each whole message.
        let whole = sent / 100;
        assert_eq!((handler.inputs, handler.taken), (1 + whole, whole * 100));
        client.write_all(b"x").unwrap();
        settle();
    }
}
