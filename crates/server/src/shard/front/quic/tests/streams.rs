//! Streams and connections as their clients see them.

use turnbuckle_masque::h3::Streams as _;
use turnbuckle_quic::{
    Application, Closed, Connection as QuicConnection, ConnectionName, Limits, Statistics, StreamId,
};

use super::pair::Pair;
use super::*;

/// A client that reads all it is sent, and counts it.
#[derive(Default)]
struct Reading {
    bytes: usize,
    is_connected: bool,
    is_told: Arc<std::sync::atomic::AtomicUsize>,
}

impl Application for Reading {
    fn connected(&mut self, _: &mut QuicConnection<'_>) {
        self.is_connected = true;
    }

    fn readable(&mut self, connection: &mut QuicConnection<'_>, stream: StreamId) {
        let _ = connection.read(stream, |part| self.bytes += part.len());
    }

    fn closed(&mut self, cause: Closed, _: &Statistics) {
        assert!(!matches!(cause, Closed::Local), "{cause:?}");
        self.is_told
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

#[test]
fn what_a_stream_took_in_part_goes_on_when_the_client_has_acknowledged_it() {
    let limits = Limits {
        stream_window: 4 << 20,
        window: 8 << 20,
        ..Limits::default()
    };
    let mut pair = Pair::new(hub(), limits);
    let name = pair.connect(Reading::default());
    let read = |pair: &mut Pair<Reading>| {
        pair.turn();
        let seen = pair.clients.with(pair.now(), name, |_, client| {
            (client.is_connected, client.bytes)
        });
        seen.expect("the connection lasts")
    };
    while !read(&mut pair).0 {}
    // Let the settings arrive before.
    for _ in 0..10 {
        read(&mut pair);
    }
    let before = read(&mut pair).1;
    // More than may be unacknowledged.
    let len = 3 * Limits::default().send_window as usize;
    let quic = pair.front.quic.as_mut().unwrap();
    let written = quic
        .endpoint
        .with(quic.now, ConnectionName::at(0), |connection, http| {
            let (_, mut below) = http.on(connection);
            let stream = below.open_uni().expect("a stream");
            below.write(stream, vec![1; len]);
            below.waiting_len(stream)
        });
    let waiting = written.expect("the connection");
    assert!((1..len).contains(&waiting), "{waiting}");
    let all = (0..1000).map(|_| read(&mut pair).1 - before);
    assert_eq!(all.max(), Some(len));
}

#[test]
fn all_clients_are_told_at_once_that_the_relay_ends() {
    let mut pair = Pair::new(hub(), Limits::default());
    let told = Arc::default();
    let connections = backlog::DATAGRAMS_BESIDE_CALLS + 20;
    let names: Vec<_> = (0..connections)
        .map(|_| {
            pair.connect(Reading {
                is_told: Arc::clone(&told),
                ..Reading::default()
            })
        })
        .collect();
    // How many handshakes a turn has time for is the machine's. Whoever has read something has shaken hands, and so has the front once it knows that.
    let has_read = |pair: &mut Pair<Reading>, name| {
        let read = pair
            .clients
            .with(pair.now(), name, |_, client| client.bytes > 0);
        read.expect("the connection lasts")
    };
    while !names.iter().all(|&name| has_read(&mut pair, name)) {
        pair.turn();
    }
    for _ in 0..10 {
        pair.turn();
    }
    assert_eq!(pair.front.connection_count(), connections);
    pair.has_calls = true;
    pair.turn();
    pair.front.stop(&mut pair.hub, &mut pair.tx);
    pair.arrive();
    let told = told.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(told, connections);
}
