//! What a client by HTTP/3 is answered whose user is not known.

use std::net::IpAddr;
use std::slice;
use std::sync::Mutex;

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use turnbuckle_engine::Endpoint as Socket;
use turnbuckle_masque::h3::{Client, Happened, asking};
use turnbuckle_masque::{BasicCredentials, Target};
use turnbuckle_quic::{Application, Bytes, Connection as QuicConnection, Limits, StreamId};

use super::pair::Pair;
use super::*;
use crate::shard::hub::tests::hub_with;
use crate::shard::hub::wanted::SocketDue;

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

/// Returns the status that a user is answered whom no table has.
fn status(are_users_due: bool) -> u16 {
    let hub = hub_with(|engine| engine.answers.are_users_due = are_users_due);
    let mut pair = Pair::new(hub, Limits::default());
    let name = pair.connect(Asking::default());
    for _ in 0..TURNS_MAX {
        pair.turn();
        let happened = pair
            .clients
            .with(pair.now(), name, |_, Asking(http)| http.poll());
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

/// A client that asks for tunnels when it is connected, each to a host for a user with a password.
struct ForSeveral {
    http: Client<()>,
    requests: Vec<(&'static str, String, String)>,
}

impl ForSeveral {
    fn new(requests: impl IntoIterator<Item = (&'static str, String, String)>) -> Self {
        Self {
            http: Client::default(),
            requests: requests.into_iter().collect(),
        }
    }
}

impl Application for ForSeveral {
    fn connected(&mut self, connection: &mut QuicConnection<'_>) {
        let Self { http, requests } = self;
        let control = connection.open_uni().unwrap();
        let mut bytes = Bytes::from(http.control());
        connection.write(control, &mut bytes).unwrap();
        for (host, name, password) in requests {
            let stream = connection.open().unwrap();
            http.asked(stream.to_u64(), ());
            let credentials = BasicCredentials::field(name, password);
            let request = asking("relay.example", &Target::path(host, 443), &credentials);
            let mut bytes = Bytes::from(request);
            connection.write(stream, &mut bytes).unwrap();
        }
    }

    fn readable(&mut self, connection: &mut QuicConnection<'_>, stream: StreamId) {
        let _ = connection.read(stream, |_| {});
    }
}

/// Opens the sockets that are wanted, and returns where the open tunnels lead, and whose they are.
fn opened(pair: &mut Pair<ForSeveral>) -> Vec<(IpAddr, String)> {
    let Pair { front, hub, tx, .. } = pair;
    hub.carry_out_commands(front, tx);
    while let Some(due) = hub.sockets_due.pop() {
        let SocketDue::Open(wish) = due else {
            panic!("nothing is closed");
        };
        let socket = Ok(Socket(7).into());
        hub.engine.relay_opened(hub.now, wish.request, socket);
    }
    let slots = 0..hub.engine.session_slots();
    let held = slots.filter_map(|slot| hub.engine.session_at(slot));
    let mut opened: Vec<_> = held
        .map(|held| (held.tunnel_to().unwrap().ip(), held.user().name.to_string()))
        .collect();
    opened.sort();
    opened
}

/// Makes turns until nothing more can come of what a client has asked for.
fn settle(pair: &mut Pair<ForSeveral>) {
    for _ in 0..TURNS_MAX {
        pair.turn();
        opened(pair);
    }
}

//= V-93
#[test]
fn each_tunnel_of_a_connection_is_that_of_the_name_that_it_was_asked_for_with() {
    let hub = hub_with(|engine| engine.auth.add_rest_secret(b"north").unwrap());
    let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, b"north");
    let hosts = ["93.184.216.20", "93.184.216.21"];
    let names = [9_000_000_001_u64, 9_000_000_002].map(|expiry| format!("{expiry}:dave"));
    let requests = hosts.into_iter().zip(&names).map(|(host, name)| {
        let password = STANDARD.encode(hmac::sign(&key, name.as_bytes()));
        (host, name.clone(), password)
    });
    let mut pair = Pair::new(hub, Limits::default());
    pair.connect(ForSeveral::new(requests));
    settle(&mut pair);
    let hosts = hosts.map(|host| host.parse().unwrap());
    let expected: Vec<(IpAddr, String)> = hosts.into_iter().zip(names).collect();
    assert_eq!(opened(&mut pair), expected);
}

#[test]
fn a_tunnel_whose_name_is_resolved_after_another_users_request_is_that_of_who_asked() {
    let hub = hub_with(|engine| engine.auth.add_user("c", "d").unwrap());
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock().unwrap();
    let behind = Arc::clone(&gate);
    let resolver = Resolver::by(1, move |_| {
        drop(behind.lock());
        Ok(vec![IpAddr::from([93, 184, 216, 21])])
    });
    let mut pair = Pair::with_resolver(hub, Limits::default(), resolver);
    let requests = [("peer.example", "a", "b"), ("93.184.216.20", "c", "d")];
    let requests = requests.map(|(host, name, password)| (host, name.into(), password.into()));
    pair.connect(ForSeveral::new(requests));
    settle(&mut pair);
    let direct = (IpAddr::from([93, 184, 216, 20]), "c".to_owned());
    let named = (IpAddr::from([93, 184, 216, 21]), "a".to_owned());
    assert_eq!(opened(&mut pair), slice::from_ref(&direct));
    drop(closed);
    // A thread resolves the name. The clock of both stands still meanwhile, so that the request does not wait too long.
    let (passed, begun) = (pair.passed, Instant::now());
    while opened(&mut pair).len() < 2 {
        assert!(begun.elapsed() < Duration::from_secs(60), "no answer");
        std::thread::yield_now();
        pair.turn();
        pair.passed = passed;
    }
    assert_eq!(opened(&mut pair), [direct, named]);
}
