//! What the engine wants done when a connection is closed during a flush.

use turnbuckle_engine::{Action, Now, Rule, TcpRelays};
use turnbuckle_wire::{IntegrityKey, Message, long_term_key_md5};

use super::*;

/// A hub with TCP relays, and clients by TCP.
struct Fixture {
    hub: Hub,
    config: EngineConfig,
    front: Noted,
    tx: SendQueue,
}

fn tcp(number: u32) -> ClientTuple {
    let remote = SocketAddr::from(([198, 51, 100, 7], 4000));
    ClientTuple {
        transport: Transport::Tcp,
        connection: name::connection(number),
        ..ClientTuple::udp(LISTENER, remote)
    }
}

fn fixture() -> Fixture {
    let mut config = EngineConfig::default();
    let mut hub = hub_with(|engine| {
        engine.relays.tcp = Some(TcpRelays::default());
        config = engine.clone();
    });
    hub.counters = Arc::default();
    Fixture {
        hub,
        config,
        front: Noted {
            transports: &[Transport::Tcp],
            answered: Vec::new(),
            answers: Vec::new(),
        },
        tx: SendQueue::new(1),
    }
}

impl Fixture {
    fn receive(&mut self, client: ClientTuple, message: &[u8]) {
        let staged = self.tx.stage(message);
        let Self { hub, front, tx, .. } = self;
        hub.control(client, message, &staged, 0, front, tx);
    }

    /// Sends a request of this number, with credentials if there is a nonce.
    fn request(
        &mut self,
        client: ClientTuple,
        (method, number): (Method, u8),
        nonce: Option<&[u8]>,
        attributes: impl FnOnce(&mut MessageWriter<'_>),
    ) {
        let mut buffer = [0; 512];
        let transaction = TransactionId::from([number; 12]);
        let mut writer = MessageWriter::new(&mut buffer, Class::Request, method, transaction);
        attributes(&mut writer);
        if let Some(nonce) = nonce {
            let key = long_term_key_md5(b"a", b"example.org", b"b");
            writer
                .username(b"a")
                .realm(b"example.org")
                .nonce(nonce)
                .integrity(&IntegrityKey::sha1(&key));
        }
        let len = writer.finish().unwrap();
        self.receive(client, &buffer[..len]);
    }

    /// Takes the only answer, which is for `client`, and returns its error code, 200 for success, and its nonce.
    fn answer(&mut self, client: ClientTuple) -> (u16, Vec<u8>) {
        assert_eq!(std::mem::take(&mut self.front.answered), [client]);
        let answer = self.front.answers.pop().unwrap();
        let answer = Message::parse(&answer).unwrap();
        let code = match answer.class() {
            Class::Success => 200,
            _ => answer.error_code().unwrap().unwrap().code,
        };
        let nonce = answer.nonce().unwrap().unwrap_or_default();
        (code, nonce.to_vec())
    }

    /// Returns a nonce of a client who has a TCP relay.
    fn allocate(&mut self, client: ClientTuple) -> Vec<u8> {
        let tcp = |writer: &mut MessageWriter<'_>| {
            writer.requested_transport(6);
        };
        self.request(client, (Method::ALLOCATE, 1), None, tcp);
        let (code, nonce) = self.answer(client);
        assert_eq!(code, 401);
        self.request(client, (Method::ALLOCATE, 2), Some(&nonce), tcp);
        let Self { hub, front, tx, .. } = self;
        let Some(SocketDue::Open(wish)) = hub.sockets_due.pop() else {
            panic!("wants no relay socket");
        };
        let opened = Ok(Endpoint(7).into());
        hub.engine.relay_opened(hub.now, wish.request, opened);
        hub.carry_out_commands(front, tx);
        assert_eq!(self.answer(client).0, 200);
        nonce
    }
}

#[test]
fn whose_peer_is_forbidden_is_told_so_although_the_connection_of_another_is_closed_first() {
    let mut fixture = fixture();
    let (client, other) = (tcp(1), tcp(2));
    let nonce = fixture.allocate(client);
    let peer = SocketAddr::from(([93, 184, 216, 20], 7000));
    fixture.request(client, (Method::CONNECT, 3), Some(&nonce), |writer| {
        writer.xor_peer_address(peer);
    });
    let due = fixture.hub.sockets_due.pop();
    assert!(matches!(due, Some(SocketDue::Connect { .. })));
    assert!(fixture.front.answered.is_empty());

    let mut next = fixture.config.clone();
    next.policy.rules.push(Rule {
        action: Action::Deny,
        range: "93.184.216.20".parse().unwrap(),
    });
    let Now { time, .. } = fixture.hub.now;
    fixture.hub.engine.reconfigure(time, &Arc::new(next));
    fixture.hub.disconnected(&other, true);
    fixture.hub.carry_out_after_flush(&other);
    assert!(fixture.hub.next_timeout().is_some_and(|due| due <= time));
    let Fixture { hub, front, tx, .. } = &mut fixture;
    hub.carry_out_rest(front, tx);
    assert_eq!(fixture.answer(client).0, 403);
    let due = fixture.hub.sockets_due.pop();
    assert!(matches!(due, Some(SocketDue::ClosePeer(_))));
}

#[test]
fn what_was_to_be_said_on_a_connection_that_is_closed_is_counted_as_lost() {
    let mut fixture = fixture();
    let client = tcp(1);
    let nonce = fixture.allocate(client);
    fixture.request(client, (Method::CONNECT, 3), Some(&nonce), |writer| {
        writer.xor_peer_address(SocketAddr::from(([93, 184, 216, 20], 7000)));
    });
    fixture.hub.disconnected(&client, true);
    fixture.hub.carry_out_after_flush(&client);
    let Fixture { hub, front, tx, .. } = &mut fixture;
    hub.carry_out_rest(front, tx);
    assert!(front.answered.is_empty());
    assert_eq!(hub.counters.datagrams.client_out.get(), 0);
    let counted = crate::counters::Accounting::of([&*hub.counters]);
    assert_eq!(counted.dropped("socket_closed"), 1);
}
