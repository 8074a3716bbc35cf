//! What a client by HTTP/3 is answered whose user is not known.

use turnbuckle_masque::h3::{Client, Happened};
use turnbuckle_quic::{Application, Bytes, Connection as QuicConnection, Limits, StreamId};

use super::pair::Pair;
use super::*;
use crate::shard::hub::tests::hub_with;

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
