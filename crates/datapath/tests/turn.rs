//! Waiting, waking, opening and closing.
#![expect(clippy::unwrap_used, reason = "handlers of tests")]

mod common;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use common::{BACKENDS, Deaf, Echo, LISTENER, bind, datapath, loopback, socket, whole};
use turnbuckle_datapath::{
    Backend, Bind, CoalescePolicy, DatagramHandler, Datapath, EndpointId, EndpointKind, HeldSocket,
    Received, SendQueue, Settings, Sockets, StreamHandler, TurnHandler,
};

#[test]
fn a_waker_ends_the_wait() {
    let mut datapath = datapath(Backend::Gso);
    let waker = datapath.waker();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        waker.wake();
    });
    datapath.turn(None, &mut Deaf).unwrap();
    thread.join().unwrap();
    // A wake-up before the wait is not lost, and several are one.
    datapath.waker().wake();
    datapath.waker().wake();
    datapath.turn(None, &mut Deaf).unwrap();
    let start = Instant::now();
    datapath
        .turn(Some(Duration::from_millis(30)), &mut Deaf)
        .unwrap();
    assert!(start.elapsed() >= Duration::from_millis(29));
}

#[test]
fn a_timeout_ends_the_wait_and_an_earlier_one_stays() {
    let mut datapath = datapath(Backend::Gso);
    let client = socket(loopback(false));
    let (_, address) = bind(&mut datapath, LISTENER, loopback(false));
    client.send_to(b"x", address).unwrap();
    // This turn ends because of the datagram; its timer goes on.
    datapath
        .turn(Some(Duration::from_millis(100)), &mut Deaf)
        .unwrap();
    let start = Instant::now();
    datapath
        .turn(Some(Duration::from_secs(3600)), &mut Deaf)
        .unwrap();
    assert!(
        start.elapsed() < Duration::from_secs(60),
        "the first timer was forgotten"
    );
    // And the next one is not cut short by it.
    let start = Instant::now();
    datapath
        .turn(Some(Duration::from_millis(50)), &mut Deaf)
        .unwrap();
    assert!(start.elapsed() >= Duration::from_millis(49));
    // No time at all: no wait.
    datapath.turn(Some(Duration::ZERO), &mut Deaf).unwrap();
}

/// Opens a relay socket for the first message and answers from it; closes it in the same turn.
#[derive(Default)]
struct Opener {
    answer: Option<(SocketAddr, Vec<u8>)>,
    opened: Option<(EndpointId, SocketAddr)>,
}

impl TurnHandler for Opener {
    fn turn_ended(&mut self, tx: &mut SendQueue, sockets: &mut impl Sockets) {
        if let Some((to, bytes)) = self.answer.take() {
            let bind = Bind {
                address: loopback(false),
                kind: EndpointKind::Relay,
                token: 1,
            };
            let endpoint = sockets.bind(bind).unwrap();
            self.opened = Some((endpoint, sockets.local_addr(endpoint).unwrap()));
            tx.reply(endpoint, to, &bytes);
            sockets.close(endpoint);
        }
    }
}

impl DatagramHandler for Opener {
    fn received(&mut self, message: &Received<'_>, _: &mut SendQueue) {
        self.answer = Some((message.remote, message.bytes.to_vec()));
    }
}

impl StreamHandler for Opener {}

#[test]
fn what_is_queued_for_a_socket_leaves_before_it_closes() {
    for backend in BACKENDS {
        let mut datapath = datapath(backend);
        let (_, address) = bind(&mut datapath, LISTENER, loopback(false));
        let client = socket(loopback(false));
        client.send_to(b"open", address).unwrap();
        let mut opener = Opener::default();
        datapath
            .turn(Some(common::TEST_TIMEOUT), &mut opener)
            .unwrap();
        let (endpoint, local) = opener.opened.unwrap();
        let mut buffer = [0; 10];
        assert_eq!(client.recv_from(&mut buffer).unwrap(), (4, local));
        assert_eq!(datapath.local_addr(endpoint), None);
    }
}

#[test]
fn an_address_in_use_is_an_error_unless_shared() {
    let mut datapath = datapath(Backend::Gso);
    let shared = EndpointKind::Listener { reuseport: true };
    let (_, address) = bind(&mut datapath, shared, loopback(false));
    assert!(
        datapath
            .bind(Bind {
                address,
                kind: shared,
                token: 0
            })
            .is_ok()
    );
    let error = datapath
        .bind(Bind {
            address,
            kind: LISTENER,
            token: 0,
        })
        .unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
}

/// Holds a port in its first turn, takes in what it is given, and notes what comes.
#[derive(Default)]
struct Holder {
    to_hold: Option<SocketAddr>,
    held: Option<HeldSocket>,
    to_take: Option<HeldSocket>,
    seen: Vec<Vec<u8>>,
}

impl TurnHandler for Holder {
    fn turn_ended(&mut self, _: &mut SendQueue, sockets: &mut impl Sockets) {
        if let Some(address) = self.to_hold.take() {
            self.held = Some(sockets.hold(address).unwrap());
        }
        if let Some(held) = self.to_take.take() {
            sockets.bind_held(held, 7).unwrap();
        }
    }
}

impl DatagramHandler for Holder {
    fn received(&mut self, message: &Received<'_>, _: &mut SendQueue) {
        assert_eq!(message.token, 7);
        self.seen.push(message.bytes.to_vec());
    }
}

impl StreamHandler for Holder {}

#[test]
fn a_held_port_is_nobody_elses_and_what_comes_before_it_is_taken_in_is_never_shown() {
    let address = SocketAddr::from(([127, 93, 44, 1], 40_001));
    let is_free = || std::net::UdpSocket::bind(address).is_ok();
    let peer = socket(loopback(false));
    for backend in BACKENDS {
        let [mut first, mut second] = [datapath(backend), datapath(backend)];
        let mut holder = Holder {
            to_hold: Some(address),
            ..Holder::default()
        };
        first.turn(Some(Duration::ZERO), &mut holder).unwrap();
        assert!(!is_free(), "{backend}");
        peer.send_to(b"too early", address).unwrap();
        let mut taker = Holder {
            to_take: holder.held.take(),
            ..Holder::default()
        };
        second.turn(Some(Duration::ZERO), &mut taker).unwrap();
        peer.send_to(b"in time", address).unwrap();
        common::receive(&mut second, &mut taker, 1);
        assert_eq!(taker.seen, [b"in time"], "{backend}");
        drop(second);
        assert!(is_free(), "{backend}");

        holder.to_hold = Some(address);
        first.turn(Some(Duration::ZERO), &mut holder).unwrap();
        assert!(!is_free(), "{backend}");
        drop(holder);
        assert!(is_free(), "given up, {backend}");
    }
}

#[test]
fn listeners_of_two_shards_share_the_clients_of_one_address() {
    let shared = EndpointKind::Listener { reuseport: true };
    let mut shards = [datapath(Backend::Gso), datapath(Backend::Gso)];
    let (first, address) = bind(&mut shards[0], shared, loopback(false));
    let clients: Vec<_> = (0..64).map(|_| socket(loopback(false))).collect();
    // Nothing is received before the group is complete: the second member takes over half of the clients.
    clients[0].send_to(b"early", address).unwrap();
    let (second, _) = bind(&mut shards[1], shared, address);
    for (shard, listener) in shards.iter_mut().zip([first, second]) {
        shard.admit_clients(listener).unwrap();
        shard.admit_clients(listener).unwrap();
    }
    for client in &clients {
        client.send_to(b"x", address).unwrap();
    }
    let mut turn = || {
        shards.each_mut().map(|shard| {
            shard.turn(Some(Duration::ZERO), &mut Echo).unwrap();
            shard.counters().receive.datagrams.get()
        })
    };
    let give_up = Instant::now() + common::TEST_TIMEOUT;
    while turn().iter().sum::<u64>() < 64 {
        assert!(Instant::now() < give_up, "{:?} of 64 datagrams", turn());
    }
    let received = turn();
    assert_eq!(received.iter().sum::<u64>(), 64, "without the early one");
    assert!(received.iter().all(|count| *count > 0), "{received:?}");
}

#[test]
fn ipv6_sockets_do_not_take_ipv4() {
    let mut datapath = datapath(Backend::Gso);
    let (_, v6) = bind(&mut datapath, LISTENER, SocketAddr::from(([0; 8], 0)));
    let v4 = SocketAddr::from(([127, 0, 0, 1], v6.port()));
    // Free for IPv4, because the IPv6 socket is for IPv6 only.
    assert!(
        datapath
            .bind(Bind {
                address: v4,
                kind: LISTENER,
                token: 0
            })
            .is_ok()
    );
}

#[test]
fn what_is_queued_between_turns_leaves_with_the_next() {
    let mut datapath = datapath(Backend::Mmsg);
    let (endpoint, _) = bind(&mut datapath, LISTENER, loopback(false));
    let client = socket(loopback(false));
    datapath
        .send_queue()
        .send(endpoint, client.local_addr().unwrap(), &[1, 2, 3, 4, 5], 2);
    datapath.turn(Some(Duration::ZERO), &mut Deaf).unwrap();
    let mut buffer = [0; 10];
    for expected in [&[1, 2][..], &[3, 4], &[5]] {
        let len = client.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..len], expected);
    }
}

#[test]
fn a_busy_shard_pauses_to_gather_and_says_so() {
    struct Sink;
    impl TurnHandler for Sink {}

    impl DatagramHandler for Sink {
        fn received(&mut self, message: &Received<'_>, _: &mut SendQueue) {
            assert_eq!(whole(message).count, 1);
        }
    }

    impl StreamHandler for Sink {}
    let coalesce = Duration::from_millis(5);
    let settings = Settings {
        backend: Backend::Mmsg,
        coalesce,
        coalesce_policy: CoalescePolicy::Cpu,
        ..Settings::default()
    };
    let mut datapath = Datapath::new(settings).unwrap();
    let (_, address) = bind(&mut datapath, LISTENER, loopback(false));
    let client = socket(loopback(false));
    let counters = datapath.counters().clone();
    // 3,200 datagrams a second fill a pause of 5 ms; this sends far more, in batches that are not full.
    for _ in 0..10_000 {
        for _ in 0..30 {
            client.send_to(b"x", address).unwrap();
        }
        datapath
            .turn(Some(common::TEST_TIMEOUT), &mut Sink)
            .unwrap();
        if counters.pace.sleeps.get() >= 3 {
            break;
        }
    }
    assert!(counters.pace.sleeps.get() >= 3);
    assert!(counters.pace.asleep_ns.get() > 0);
    // When traffic ends it blocks again, after eight empty pauses: the timer, not the pauses, ends this turn.
    datapath.turn(Some(Duration::ZERO), &mut Sink).unwrap();
    datapath
        .turn(Some(Duration::from_millis(200)), &mut Sink)
        .unwrap();
    assert!(counters.pace.sleeps.get() <= 3 + 16);
}

#[test]
fn a_flooded_shard_does_not_pause() {
    let settings = Settings {
        backend: Backend::Mmsg,
        batch: 16,
        coalesce: Duration::from_millis(5),
        coalesce_policy: CoalescePolicy::Cpu,
        ..Settings::default()
    };
    let mut datapath = Datapath::new(settings).unwrap();
    let (_, address) = bind(&mut datapath, LISTENER, loopback(false));
    let client = socket(loopback(false));
    // Always more waiting than one turn takes.
    for _ in 0..100 {
        for _ in 0..300 {
            client.send_to(b"x", address).unwrap();
        }
        datapath
            .turn(Some(common::TEST_TIMEOUT), &mut Deaf)
            .unwrap();
    }
    let counters = datapath.counters();
    assert_eq!(
        (counters.receive.datagrams.get(), counters.pace.sleeps.get()),
        (25_600, 0)
    );
}

/// Sends once, from the socket it is told.
struct Once(Option<EndpointId>, SocketAddr);

impl TurnHandler for Once {
    fn turn_ended(&mut self, tx: &mut SendQueue, _: &mut impl Sockets) {
        if let Some(endpoint) = self.0.take() {
            tx.send(endpoint, self.1, b"abcdef", 2);
        }
    }
}

impl DatagramHandler for Once {
    fn received(&mut self, _: &Received<'_>, _: &mut SendQueue) {
        panic!("what arrives is for the data path that bound the socket");
    }
}

impl StreamHandler for Once {}

#[test]
fn a_socket_is_sent_from_by_one_thread_and_read_by_another() {
    for backend in BACKENDS {
        let (mut reader, mut sender) = (datapath(backend), datapath(backend));
        let far = socket(loopback(false));
        let (endpoint, address) = bind(&mut reader, LISTENER, loopback(false));
        let shared = reader.share(endpoint).unwrap();
        let adopted = sender.adopt(shared, 0).unwrap();
        let to = far.local_addr().unwrap();
        let mut once = Once(Some(adopted), to);
        sender.turn(Some(Duration::ZERO), &mut once).unwrap();
        for expected in [b"ab", b"cd", b"ef"] {
            let mut buffer = [0; 10];
            let (len, from) = far.recv_from(&mut buffer).unwrap();
            assert_eq!((&buffer[..len], from), (&expected[..], address));
        }
        far.send_to(b"back", address).unwrap();
        sender.turn(Some(Duration::ZERO), &mut once).unwrap();
        let mut echo = Echo;
        reader
            .turn(Some(Duration::from_secs(5)), &mut echo)
            .unwrap();
        assert_eq!(far.recv_from(&mut [0; 10]).unwrap(), (4, address));
        // The name outlives the socket of the reader, not of the sender.
        reader.close(endpoint);
        assert!(reader.share(endpoint).is_err());
    }
}

/// Sends everything back, and notes what has left when.
struct Announcer {
    client: std::net::UdpSocket,
    queued: usize,
    /// How many were queued when it was last told that what is queued leaves.
    on_record: usize,
    left: usize,
    flushes: usize,
}

impl Announcer {
    fn look(&mut self) {
        while self.client.recv(&mut [0; 16]).is_ok() {
            self.left += 1;
        }
        assert!(self.left <= self.on_record, "{} left", self.left);
    }
}

impl TurnHandler for Announcer {
    fn before_flush(&mut self) {
        self.look();
        self.on_record = self.queued;
        self.flushes += 1;
    }
}

impl DatagramHandler for Announcer {
    fn received(&mut self, message: &Received<'_>, tx: &mut SendQueue) {
        self.look();
        tx.reply(message.endpoint, message.remote, message.bytes);
        self.queued += 1;
    }
}

impl StreamHandler for Announcer {}

#[test]
fn nothing_leaves_before_the_handler_was_told_that_it_will() {
    let settings = Settings {
        // A turn flushes before each message but the first.
        slots: 1,
        ..Settings::default()
    };
    let mut datapath = Datapath::new(settings).unwrap();
    let (_, address) = bind(&mut datapath, LISTENER, loopback(false));
    let client = socket(loopback(false));
    for _ in 0..3 {
        client.send_to(b"answer me", address).unwrap();
    }
    client.set_nonblocking(true).unwrap();
    let mut announcer = Announcer {
        client,
        queued: 0,
        on_record: 0,
        left: 0,
        flushes: 0,
    };
    while announcer.queued < 3 {
        datapath.turn(None, &mut announcer).unwrap();
    }
    announcer.look();
    assert_eq!(announcer.left, 3);
}

/// Sends everything back, and looks at a turn's end whether that has come.
struct Early {
    client: std::net::UdpSocket,
    wants_it: bool,
    has_come: Option<bool>,
}

impl TurnHandler for Early {
    fn flushes_before_end(&self) -> bool {
        self.wants_it
    }

    fn turn_ended(&mut self, _: &mut SendQueue, _: &mut impl Sockets) {
        self.has_come = Some(self.client.recv(&mut [0; 16]).is_ok());
    }
}

impl DatagramHandler for Early {
    fn received(&mut self, message: &Received<'_>, tx: &mut SendQueue) {
        tx.reply(message.endpoint, message.remote, message.bytes);
    }
}

impl StreamHandler for Early {}

#[test]
fn what_is_queued_leaves_before_the_end_of_a_turn_if_the_handler_has_much_to_do_there() {
    for wants_it in [false, true] {
        let mut datapath = Datapath::new(Settings::default()).unwrap();
        let (_, address) = bind(&mut datapath, LISTENER, loopback(false));
        let client = socket(loopback(false));
        client.send_to(b"answer me", address).unwrap();
        client.set_nonblocking(true).unwrap();
        let mut early = Early {
            client,
            wants_it,
            has_come: None,
        };
        datapath.turn(None, &mut early).unwrap();
        assert_eq!(early.has_come, Some(wants_it));
        assert_eq!(early.client.recv(&mut [0; 16]).is_ok(), !wants_it);
    }
}

#[test]
fn a_turn_in_which_nothing_is_sent_ends_as_others_do() {
    let mut datapath = Datapath::new(Settings::default()).unwrap();
    let (_, address) = bind(&mut datapath, LISTENER, loopback(false));
    let client = socket(loopback(false));
    client.connect(address).unwrap();
    client.set_nonblocking(true).unwrap();
    let mut announcer = Announcer {
        client,
        queued: 0,
        on_record: 0,
        left: 0,
        flushes: 0,
    };
    datapath.turn(Some(Duration::ZERO), &mut announcer).unwrap();
    assert_eq!((announcer.queued, announcer.flushes), (0, 1));
}
