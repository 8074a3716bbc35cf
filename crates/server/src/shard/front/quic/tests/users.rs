//! What a client by HTTP/3 is answered whose user is not known.

use std::net::IpAddr;

use rustls::{ClientConfig, RootCertStore};
use turnbuckle_datapath::Memory;
use turnbuckle_masque::h3::{Client, Happened};
use turnbuckle_quic::{
    Application, Bytes, Connection as QuicConnection, Endpoint, Limits, Outlet, Path, Strangers,
    StreamId, Via, WallClock,
};

use super::*;
use crate::shard::hub::tests::hub_with;

const CLIENT: ([u8; 4], u16) = ([198, 51, 100, 7], 4000);
/// Turns of client and front that an answer may take.
const TURNS_MAX: usize = 50;

/// A client that asks for one tunnel when it is connected.
#[derive(Default)]
struct Asking(Client<()>);

impl Application for Asking {
    fn connected(&mut self, connection: &mut QuicConnection<'_>) {
        let Self(http) = self;
        let control = connection.open_uni().unwrap();
        let mut bytes = Bytes::from(http.control());
        connection.write(control, &mut bytes).unwrap();
        let stream = connection.open().unwrap();
        let target = SocketAddr::from(([203, 0, 113, 1], 443));
        let user = ("carol", "singer");
        let request = http.ask(stream.to_u64(), (), "relay.example", target, user);
        let mut bytes = Bytes::from(request);
        connection.write(stream, &mut bytes).unwrap();
    }

    fn readable(&mut self, connection: &mut QuicConnection<'_>, stream: StreamId) {
        let mut bytes = Vec::new();
        let _ = connection.read(stream, |part| bytes.extend_from_slice(part));
        self.0.received(stream.to_u64(), &bytes).unwrap();
    }
}

/// A client takes whoever answers.
struct Everybody;

impl Strangers for Everybody {
    fn has_time(&mut self) -> bool {
        true
    }

    fn admits(&mut self, _: IpAddr, _: usize, _: usize) -> bool {
        false
    }
}

/// What the client sends.
#[derive(Default)]
struct Wire(Vec<(Vec<u8>, usize)>);

impl Outlet for Wire {
    fn buffer(&mut self) -> Vec<u8> {
        Vec::new()
    }

    fn send(&mut self, _: Via, _: SocketAddr, bytes: Vec<u8>, segment: usize) {
        if !bytes.is_empty() {
            self.0.push((bytes, segment));
        }
    }
}

/// What is received is not forwarded here.
#[derive(Clone, Copy)]
struct Nothing;

impl<'a> Memory<'a> for Nothing {
    fn slot(self, _: u32) -> &'a [u8] {
        &[]
    }

    fn streams(self) -> &'a [u8] {
        &[]
    }
}

/// Returns the status that a user is answered whom no table has.
fn status(are_users_due: bool) -> u16 {
    let mut hub = hub_with(|engine| engine.answers.are_users_due = are_users_due);
    let counters = Arc::clone(&hub.counters);
    let resolver = Some(Resolver::start().unwrap());
    let (mut front, _, certificate) = front_with(resolver, &counters);
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let settings = Settings {
        keys: Keys::new(&[7; 32]),
        shard: 0,
        seed: [1; 32],
        wall_clock: WallClock::default(),
        path: Path::default(),
        limits: Limits::default(),
    };
    let mut client = Endpoint::new(settings, |_| unreachable!("a client"));
    let server = SocketAddr::from(([192, 0, 2, 1], 3478));
    let (begun, tls) = (Instant::now(), Arc::new(tls));
    let name = client.connect(begun, tls, server, "relay.example", Asking::default());
    let name = name.unwrap();
    let mut tx = SendQueue::new(64);
    for turn in 0..TURNS_MAX {
        // The clock of both goes by turns, so that nothing that is late elsewhere is late here.
        let passed = Duration::from_millis(turn as u64);
        let now = begun + passed;
        client.handle_timeouts(now);
        let mut sent = Wire::default();
        client.transmit(now, &mut sent);
        front.turn_started(Time::ZERO + passed, false);
        for (bytes, segment) in &sent.0 {
            let from = from(CLIENT.0, CLIENT.1);
            front.received(from, Sight::All, (bytes, *segment), 0, &mut hub);
        }
        front.work(&mut hub, &mut tx);
        front.flush(&mut hub, &mut tx);
        for datagram in tx.datagrams(Nothing) {
            let bytes = datagram.parts.concat();
            let via = Via::default();
            client.handle(now, server, via, &bytes, bytes.len(), &mut Everybody);
        }
        tx.clear();
        let happened = client.with(now, name, |_, Asking(http)| http.poll());
        match happened.expect("the connection lasts") {
            Some(Happened::Refused((), status)) => return status,
            Some(other) => panic!("{other:?}"),
            None => {}
        }
    }
    panic!("no answer");
}

#[test]
fn who_asks_by_http3_while_users_are_read_is_not_told_that_he_is_unknown() {
    assert_eq!([true, false].map(status), [503, 407]);
}
