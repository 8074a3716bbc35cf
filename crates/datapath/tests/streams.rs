//! Connections: what comes in whole goes out whole, what does not fit is bounded, and every message is accounted for.
#![expect(clippy::unwrap_used, reason = "tests")]

mod common;
#[path = "../../turnbuckle/tests/not_run/mod.rs"]
mod not_run;

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{TEST_TIMEOUT, bind, free_for_listening, loopback, socket};
use not_run::not_run;
use turnbuckle_datapath::{
    AcceptStrategy, Accepted, Accepting, Admission, Backend, DatagramHandler, Datapath, EndpointId,
    EndpointKind, Listen, Received, Run, SendFailure, SendQueue, Settings, StreamEnd,
    StreamHandler, StreamId, StreamInput, StreamSettings, Taken, TurnHandler, allowed_cpus,
    pin_current_thread,
};

/// Length of the messages of these tests.
const LEN: usize = 8;

/// A protocol of messages of eight bytes, of which the first says what is wanted.
#[derive(Default)]
struct Eights {
    /// Where to forward messages that begin with `F`.
    peer: Option<(EndpointId, SocketAddr)>,
    /// Flips all bits of what leaves.
    is_sealed: bool,
    refuses: bool,
    /// Has all connections be strangers but that of this number.
    are_strangers_but: Option<usize>,
    streams: Vec<StreamId>,
    received: Vec<[u8; LEN]>,
    /// Messages sent towards connections, and those reported as failed, by cause.
    queued: u64,
    failed: [u64; SendFailure::ALL.len()],
    ends: Vec<StreamEnd>,
}

impl TurnHandler for Eights {}

impl DatagramHandler for Eights {
    fn received(&mut self, message: &Received<'_>, tx: &mut SendQueue) {
        // Whatever comes by datagram goes to the connection that came first.
        let stream = *self.streams.first().unwrap();
        self.queued += message.segment_count() as u64;
        tx.stream_forward(stream, message, common::whole(message), b"head", 3);
    }
}

impl StreamHandler for Eights {
    fn accepted(&mut self, stream: StreamId, accepted: &Accepted, tx: &mut SendQueue) -> Admission {
        assert_eq!(accepted.token, 77);
        assert!(accepted.remote.ip().is_loopback());
        if self.refuses {
            return Admission::Refused;
        }
        if self.is_sealed {
            tx.seal_stream(stream);
        }
        self.streams.push(stream);
        match self.are_strangers_but {
            Some(known) if known != self.streams.len() - 1 => Admission::Stranger,
            _ => Admission::Trusted,
        }
    }

    fn stream_received(&mut self, input: &mut StreamInput<'_>, tx: &mut SendQueue) -> Taken {
        let whole = input.bytes().len() / LEN;
        for index in 0..whole {
            let message: [u8; LEN] = input.bytes()[index * LEN..][..LEN].try_into().unwrap();
            self.received.push(message);
            match message[0] {
                b'A' => {
                    self.queued += 1;
                    tx.stream_reply(input.stream, &message);
                }
                b'C' => {
                    self.queued += 1;
                    tx.stream_reply(input.stream, b"goodbye.");
                    return Taken::Close;
                }
                b'R' => tx.stream_raw(input.stream, b"RAW"),
                _ => {}
            }
        }
        if let Some((endpoint, peer)) = self.peer
            && whole > 0
        {
            let run = Run {
                start: 1,
                stride: LEN,
                len: LEN - 1,
                last_len: LEN - 1,
                count: whole,
            };
            tx.forward(endpoint, peer, input, run, &[], 0);
        }
        Taken::AllBut([whole * LEN..input.bytes().len(), 0..0])
    }

    fn seal(&mut self, _: StreamId, plain: &[u8], sealed: &mut Vec<u8>) -> io::Result<()> {
        // One message at a time, or a client that takes a record for a message loses the second.
        assert!([8, 107, 1008].contains(&plain.len()), "{}", plain.len());
        sealed.extend(plain.iter().map(|byte| !byte));
        Ok(())
    }

    fn stream_failed(&mut self, _: StreamId, messages: u32, cause: SendFailure) {
        self.failed[cause.index()] += u64::from(messages);
    }

    fn stream_closed(&mut self, stream: StreamId, end: StreamEnd) {
        self.streams.retain(|&other| other != stream);
        self.ends.push(end);
    }
}

fn listening(settings: Settings, v6: bool) -> (Datapath, SocketAddr) {
    let mut datapath = Datapath::new(settings).unwrap();
    let listener = datapath
        .listen(Listen {
            address: loopback(v6),
            token: 77,
        })
        .unwrap();
    let address = datapath.listening_addr(listener).unwrap();
    assert_eq!(
        TcpStream::connect(address).unwrap_err().kind(),
        ErrorKind::ConnectionRefused,
        "nobody is admitted yet"
    );
    datapath.admit_connections(listener).unwrap();
    (datapath, address)
}

fn connect(address: SocketAddr) -> TcpStream {
    let client = TcpStream::connect(address).unwrap();
    client.set_nodelay(true).unwrap();
    client.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    client
}

/// Makes turns until `done`.
fn turn_until(
    datapath: &mut Datapath,
    handler: &mut Eights,
    mut done: impl FnMut(&Eights) -> bool,
) {
    let give_up = Instant::now() + TEST_TIMEOUT;
    while !done(handler) {
        assert!(Instant::now() < give_up, "it never came to pass");
        datapath
            .turn(Some(Duration::from_millis(20)), handler)
            .unwrap();
    }
}

fn read(client: &mut TcpStream, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    client.read_exact(&mut bytes).unwrap();
    bytes
}

#[test]
fn messages_arrive_whole_however_they_were_cut() {
    for v6 in [false, true] {
        let (mut datapath, address) = listening(Settings::default(), v6);
        let mut handler = Eights::default();
        let mut client = connect(address);
        let sent: Vec<[u8; LEN]> = (0..20_u8).map(|n| [n; LEN]).collect();
        let bytes = sent.concat();
        let mut rest = &bytes[..];
        // Pieces of 1, 2, 3 ... bytes end at every place of a message.
        for len in 1.. {
            let (now, later) = rest.split_at(len.min(rest.len()));
            if now.is_empty() {
                break;
            }
            client.write_all(now).unwrap();
            rest = later;
            let due = bytes.len() - rest.len();
            let counters = Arc::clone(datapath.counters());
            turn_until(&mut datapath, &mut handler, |_| {
                counters.stream.read_bytes.get() == due as u64
            });
        }
        assert_eq!(handler.received, sent);
        assert_eq!(datapath.counters().stream.read_bytes.get(), 160);
    }
}

#[test]
fn what_is_read_at_once_leaves_as_one_train() {
    let (mut datapath, address) = listening(Settings::default(), false);
    let (relay, _) = bind(&mut datapath, EndpointKind::Relay, loopback(false));
    let peer = socket(loopback(false));
    let mut handler = Eights {
        peer: Some((relay, peer.local_addr().unwrap())),
        ..Eights::default()
    };
    let mut client = connect(address);
    turn_until(&mut datapath, &mut handler, |it| !it.streams.is_empty());
    let bytes: Vec<u8> = (0..32_u8).flat_map(|n| [n; LEN]).collect();
    client.write_all(&bytes).unwrap();
    turn_until(&mut datapath, &mut handler, |it| it.received.len() == 32);
    let counters = &datapath.counters().send;
    if datapath_uses_gso() {
        assert_eq!(
            (counters.gso_sends.get(), counters.gso_datagrams.get()),
            (1, 32)
        );
    }
    let mut buffer = [0; 64];
    for n in 0..32 {
        let len = peer.recv(&mut buffer).unwrap();
        assert_eq!(buffer[..len], [n; LEN - 1]);
    }
}

/// Returns whether this kernel has trains at all.
fn datapath_uses_gso() -> bool {
    Backend::probe().0 == Backend::Gso
}

#[test]
fn relayed_data_and_replies_are_written_with_prefix_and_padding() {
    let (mut datapath, address) = listening(Settings::default(), false);
    let (_, entrance) = bind(&mut datapath, EndpointKind::Relay, loopback(false));
    let mut handler = Eights::default();
    let mut client = connect(address);
    turn_until(&mut datapath, &mut handler, |it| !it.streams.is_empty());
    let peer = socket(loopback(false));
    for n in 0..30_u8 {
        peer.send_to(&[n; 5], entrance).unwrap();
    }
    turn_until(&mut datapath, &mut handler, |it| it.queued == 30);
    client.write_all(b"Answer 1").unwrap();
    turn_until(&mut datapath, &mut handler, |it| it.queued == 31);
    for n in 0..30 {
        let expected = [&b"head"[..], &[n; 5], &[0; 3]].concat();
        assert_eq!(read(&mut client, 12), expected);
    }
    assert_eq!(read(&mut client, LEN), b"Answer 1");
    assert_eq!(datapath.counters().stream.messages.get(), 31);
}

/// Sends datagrams to `entrance` until `count` of them were queued for the connection.
fn flood(datapath: &mut Datapath, handler: &mut Eights, entrance: SocketAddr, count: u64) {
    let peer = socket(loopback(false));
    while handler.queued < count {
        let next = handler.queued + 1;
        let mut payload = [0; 1001];
        payload[..8].copy_from_slice(&next.to_be_bytes());
        peer.send_to(&payload, entrance).unwrap();
        turn_until(datapath, handler, |it| it.queued >= next);
    }
}

#[test]
fn towards_a_slow_reader_the_oldest_media_is_dropped_and_everything_is_accounted_for() {
    for is_sealed in [false, true] {
        let settings = Settings {
            streams: StreamSettings {
                media_max: 20 * 1008,
                ..StreamSettings::default()
            },
            ..Settings::default()
        };
        let (mut datapath, address) = listening(settings, false);
        let (_, entrance) = bind(&mut datapath, EndpointKind::Relay, loopback(false));
        let mut handler = Eights {
            is_sealed,
            ..Eights::default()
        };
        let mut client = connect(address);
        turn_until(&mut datapath, &mut handler, |it| !it.streams.is_empty());
        // More than the receive buffer of any client takes by default, so that most has to wait.
        flood(&mut datapath, &mut handler, entrance, 12_000);
        let dropped = handler.failed[SendFailure::BufferFull.index()];
        assert!(dropped > 0, "all of it went into the kernel");
        // A reply asked for now has to come.
        client.write_all(b"Answer 1").unwrap();
        turn_until(&mut datapath, &mut handler, |it| it.received.len() == 1);
        let counters = Arc::clone(datapath.counters());
        let reader = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let mut buffer = [0; 65536];
            let mut numbers = Vec::new();
            let mut answered = false;
            while !answered || *numbers.last().unwrap() != 12_000 {
                let len = client.read(&mut buffer).unwrap();
                assert!(len > 0);
                let flip = if is_sealed { 0xFF } else { 0 };
                bytes.extend(buffer[..len].iter().map(|byte| byte ^ flip));
                loop {
                    if bytes.starts_with(b"head") && bytes.len() >= 1008 {
                        numbers.push(u64::from_be_bytes(bytes[4..12].try_into().unwrap()));
                        bytes.drain(..1008);
                    } else if bytes.starts_with(b"Answer 1") {
                        answered = true;
                        bytes.drain(..8);
                    } else {
                        break;
                    }
                }
            }
            (numbers, client)
        });
        while !reader.is_finished() {
            datapath
                .turn(Some(Duration::from_millis(20)), &mut handler)
                .unwrap();
        }
        let (numbers, _client) = reader.join().unwrap();
        assert!(numbers.is_sorted(), "in order");
        assert_eq!(
            numbers.len() as u64 + dropped,
            12_000,
            "one way or the other"
        );
        let newest: Vec<u64> = (11_981..=12_000).collect();
        assert!(numbers.ends_with(&newest), "the newest are kept");
        assert_eq!(counters.stream.messages.get() + dropped, handler.queued);
        assert_eq!(handler.ends, []);
    }
}

#[test]
fn a_connection_whose_replies_nobody_reads_is_closed() {
    let (mut datapath, address) = listening(Settings::default(), false);
    let mut handler = Eights::default();
    let client = connect(address);
    client.set_nonblocking(true).unwrap();
    let mut client = client;
    let requests = b"Answer 1".repeat(8192);
    let give_up = Instant::now() + TEST_TIMEOUT;
    while handler.ends.is_empty() {
        assert!(Instant::now() < give_up, "it goes on for ever");
        let _ = client.write(&requests);
        datapath
            .turn(Some(Duration::from_millis(20)), &mut handler)
            .unwrap();
    }
    assert_eq!(handler.ends, [StreamEnd::Congested]);
    let sent = datapath.counters().stream.messages.get();
    let failed = handler.failed[SendFailure::Closed.index()];
    assert!(failed > 0);
    assert_eq!(sent + failed, handler.queued);
}

#[test]
fn raw_bytes_of_a_sealed_connection_come_first_and_as_they_are() {
    let (mut datapath, address) = listening(Settings::default(), false);
    let mut handler = Eights {
        is_sealed: true,
        ..Eights::default()
    };
    let mut client = connect(address);
    client.write_all(b"Answer 1R.......").unwrap();
    turn_until(&mut datapath, &mut handler, |it| it.received.len() == 2);
    assert_eq!(read(&mut client, 3), b"RAW");
    let sealed = read(&mut client, 8);
    assert_eq!(
        sealed.iter().map(|byte| !byte).collect::<Vec<_>>(),
        b"Answer 1"
    );
}

#[test]
fn a_connection_that_a_handler_closes_gets_its_last_reply() {
    let (mut datapath, address) = listening(Settings::default(), false);
    let mut handler = Eights::default();
    let mut client = connect(address);
    client.write_all(b"Close it").unwrap();
    turn_until(&mut datapath, &mut handler, |it| !it.ends.is_empty());
    assert_eq!(handler.ends, [StreamEnd::Local]);
    assert_eq!(read(&mut client, LEN), b"goodbye.");
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
}

#[test]
fn what_is_sent_to_a_connection_that_is_gone_is_reported() {
    let (mut datapath, address) = listening(Settings::default(), false);
    let mut handler = Eights::default();
    let client = connect(address);
    turn_until(&mut datapath, &mut handler, |it| !it.streams.is_empty());
    let stream = handler.streams[0];
    drop(client);
    turn_until(&mut datapath, &mut handler, |it| !it.ends.is_empty());
    assert_eq!(handler.ends, [StreamEnd::Remote]);
    datapath.send_queue().stream_reply(stream, b"too late");
    datapath.turn(Some(Duration::ZERO), &mut handler).unwrap();
    assert_eq!(handler.failed[SendFailure::Closed.index()], 1);
    // The next one has another name.
    let _client = connect(address);
    turn_until(&mut datapath, &mut handler, |it| !it.streams.is_empty());
    assert_ne!(handler.streams[0], stream);
    assert_eq!(handler.streams[0].index(), stream.index());
}

#[test]
fn refused_connections_are_closed_and_no_more_are_accepted_per_turn_than_allowed() {
    let settings = Settings {
        accepts_per_turn: 3,
        ..Settings::default()
    };
    let (mut datapath, address) = listening(settings, false);
    let mut handler = Eights::default();
    let clients: Vec<_> = (0..10).map(|_| connect(address)).collect();
    let mut turns = 0;
    while handler.streams.len() < 10 {
        let before = handler.streams.len();
        datapath.turn(Some(TEST_TIMEOUT), &mut handler).unwrap();
        assert!(handler.streams.len() - before <= 3);
        turns += 1;
    }
    assert!(turns >= 4);
    handler.refuses = true;
    let mut refused = connect(address);
    let counters = Arc::clone(datapath.counters());
    turn_until(&mut datapath, &mut handler, |_| {
        counters.stream.refused.get() == 1
    });
    assert_eq!(refused.read(&mut [0]).unwrap(), 0);
    let counters = &counters.stream;
    assert_eq!((counters.accepted.get(), counters.refused.get()), (10, 1));
    drop(clients);
}

#[test]
fn strangers_are_served_one_after_the_other_when_time_is_short_and_the_others_all_at_once() {
    const CLIENTS: usize = 6;
    let settings = Settings {
        strangers_slice: Duration::ZERO,
        ..Settings::default()
    };
    let (mut datapath, address) = listening(settings, false);
    let mut handler = Eights {
        are_strangers_but: Some(0),
        ..Eights::default()
    };
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| connect(address)).collect();
    while handler.streams.len() < CLIENTS {
        let before = handler.streams.len();
        datapath.turn(Some(TEST_TIMEOUT), &mut handler).unwrap();
        assert!(handler.streams.len() - before <= 2);
    }
    for (client, number) in clients.iter_mut().zip(b'0'..) {
        client.write_all(&[number; LEN]).unwrap();
    }
    while handler.received.len() < CLIENTS {
        let before = handler.received.len();
        datapath.turn(Some(TEST_TIMEOUT), &mut handler).unwrap();
        let of_strangers = handler.received[before..].iter().filter(|it| it[0] != b'0');
        assert!(of_strangers.count() <= 1);
    }
    // Whom the slice did not reach came before who was there again already.
    let order: Vec<u8> = handler.received.iter().map(|message| message[0]).collect();
    assert_eq!(order, *b"012345");
}

/// Notes whether what came by datagram had left when a connection was accepted in the same turn.
struct Doorman {
    exit: (EndpointId, SocketAddr),
    outside: std::net::UdpSocket,
    received: bool,
    had_left: Option<bool>,
}

impl TurnHandler for Doorman {
    fn turn_started(&mut self) {
        self.received = false;
    }
}

impl DatagramHandler for Doorman {
    fn received(&mut self, message: &Received<'_>, tx: &mut SendQueue) {
        self.received = true;
        let (exit, outside) = self.exit;
        tx.forward(exit, outside, message, common::whole(message), &[], 0);
    }
}

impl StreamHandler for Doorman {
    fn accepted(&mut self, _: StreamId, _: &Accepted, _: &mut SendQueue) -> Admission {
        if self.received {
            self.had_left = Some(self.outside.recv(&mut [0; 100]).is_ok());
        }
        Admission::Refused
    }
}

#[test]
fn nobody_is_accepted_before_the_media_of_the_turn_has_left() {
    let (mut datapath, address) = listening(Settings::default(), false);
    let (exit, entrance) = bind(&mut datapath, EndpointKind::Relay, loopback(false));
    let outside = socket(loopback(false));
    let mut doorman = Doorman {
        exit: (exit, outside.local_addr().unwrap()),
        outside,
        received: false,
        had_left: None,
    };
    let sender = socket(loopback(false));
    // Both wait before the turn begins, the connection first; unless the kernel has put off one of them.
    for _ in 0..1000 {
        let _client = connect(address);
        sender.send_to(b"media", entrance).unwrap();
        datapath.turn(Some(TEST_TIMEOUT), &mut doorman).unwrap();
        if doorman.had_left.is_some() {
            break;
        }
    }
    assert_eq!(doorman.had_left, Some(true));
}

#[test]
fn closing_all_connections_reports_what_they_still_had_to_send() {
    let (mut datapath, address) = listening(Settings::default(), false);
    let (_, entrance) = bind(&mut datapath, EndpointKind::Relay, loopback(false));
    let mut handler = Eights::default();
    let _client = connect(address);
    turn_until(&mut datapath, &mut handler, |it| !it.streams.is_empty());
    flood(&mut datapath, &mut handler, entrance, 12_000);
    datapath.close_streams(&mut handler);
    assert_eq!(handler.ends, [StreamEnd::Local]);
    let failed: u64 = handler.failed.iter().sum();
    assert!(handler.failed[SendFailure::Closed.index()] > 0);
    let sent = datapath.counters().stream.messages.get();
    assert_eq!(sent + failed, handler.queued);
}

#[test]
fn relaying_over_connections_allocates_nothing_once_warm() {
    for is_sealed in [false, true] {
        let (mut datapath, address) = listening(Settings::default(), false);
        let (relay, entrance) = bind(&mut datapath, EndpointKind::Relay, loopback(false));
        let peer = socket(loopback(false));
        let mut handler = Eights {
            is_sealed,
            peer: Some((relay, peer.local_addr().unwrap())),
            received: Vec::with_capacity(10_000),
            ..Eights::default()
        };
        let mut client = connect(address);
        turn_until(&mut datapath, &mut handler, |it| !it.streams.is_empty());
        let bytes = [b'x'; LEN * 16];
        let mut buffer = [0; 2048];
        let mut round = || {
            // One message is cut in two each time, so that something is kept.
            for part in [&bytes[..100], &bytes[100..]] {
                client.write_all(part).unwrap();
                let due = handler.received.len() + part.len() / LEN;
                turn_until(&mut datapath, &mut handler, |it| it.received.len() >= due);
            }
            for _ in 0..16 {
                peer.recv(&mut buffer).unwrap();
            }
            let due = handler.queued + 1;
            peer.send_to(&[7; 100], entrance).unwrap();
            turn_until(&mut datapath, &mut handler, |it| it.queued >= due);
            client.read_exact(&mut buffer[..107]).unwrap();
        };
        for _ in 0..20 {
            round();
        }
        let measured = allocation_counter::measure(|| {
            for _ in 0..100 {
                round();
            }
        });
        assert_eq!(measured.count_total, 0, "sealed {is_sealed}: {measured:?}");
    }
}

/// Makes two shards that listen at one address, in this order.
fn two_shards(strategy: AcceptStrategy) -> ([Datapath; 2], SocketAddr) {
    let settings = Settings {
        accepting: Accepting::new(strategy, 2).unwrap(),
        ..Settings::default()
    };
    let address = free_for_listening();
    let shards = [0, 1].map(|_| {
        let mut datapath = Datapath::new(settings.clone()).unwrap();
        let listener = datapath.listen(Listen { address, token: 77 }).unwrap();
        (datapath, listener)
    });
    let shards = shards.map(|(mut datapath, listener)| {
        datapath.admit_connections(listener).unwrap();
        datapath
    });
    (shards, address)
}

#[test]
fn every_strategy_gives_each_connection_to_one_shard() {
    for strategy in [
        AcceptStrategy::Cpu,
        AcceptStrategy::Exclusive,
        AcceptStrategy::Reuseport,
        AcceptStrategy::Shared,
    ] {
        let (mut shards, address) = two_shards(strategy);
        let mut handlers = [Eights::default(), Eights::default()];
        let clients: Vec<_> = (0..20)
            .map(|_| {
                let mut client = connect(address);
                client.write_all(b"Answer 1").unwrap();
                client
            })
            .collect();
        let deadline = Instant::now() + TEST_TIMEOUT;
        while handlers.iter().map(|it| it.received.len()).sum::<usize>() < 20 {
            assert!(Instant::now() < deadline, "{strategy:?}");
            for (shard, handler) in shards.iter_mut().zip(&mut handlers) {
                shard.turn(Some(Duration::from_millis(1)), handler).unwrap();
            }
        }
        for mut client in clients {
            assert_eq!(read(&mut client, LEN), b"Answer 1");
        }
        let accepted = shards
            .each_ref()
            .map(|it| it.counters().stream.accepted.get());
        assert_eq!(accepted.iter().sum::<u64>(), 20, "{strategy:?}");
    }
}

#[test]
fn connections_come_to_the_shard_of_the_cpu_on_which_they_arrive() {
    let steered = std::fs::read_to_string("/sys/class/net/lo/queues/rx-0/rps_cpus");
    if steered.is_ok_and(|cpus| cpus.trim().chars().any(|digit| !"0,".contains(digit))) {
        not_run("packets over loopback are moved to other CPUs (rps_cpus)");
        return;
    }
    let cpus = allowed_cpus().unwrap();
    let (mut shards, address) = two_shards(AcceptStrategy::Cpu);
    let mut handlers = [Eights::default(), Eights::default()];
    let mut clients = Vec::new();
    for place in 0..cpus.len() {
        // What a thread sends over loopback arrives on its own CPU.
        let client = std::thread::spawn(move || {
            pin_current_thread(place).unwrap();
            connect(address)
        });
        clients.push(client.join().unwrap());
        let own = place % 2;
        turn_until(&mut shards[own], &mut handlers[own], |it| {
            it.streams.len() > place / 2
        });
    }
    assert_eq!(handlers[0].streams.len(), cpus.len().div_ceil(2));
    assert_eq!(handlers[1].streams.len(), cpus.len() / 2);
}
