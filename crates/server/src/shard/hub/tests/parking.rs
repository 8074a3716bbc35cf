//! Requests that wait until the user database has been asked about their user.

use std::sync::Mutex;
use std::time::Duration;

use turnbuckle_engine::{Asks, AuthConfig, Config};
use turnbuckle_wire::{IntegrityKey, long_term_key_md5};

use super::*;
use crate::counters::Accounting;

const REALM: &str = "example.org";

/// A hub with a database that answers when it is told to, and clients by every transport.
struct Fixture {
    hub: Hub,
    config: Config,
    front: Noted,
    tx: SendQueue,
    /// The numbers of the requests that were asked for.
    asked: Arc<Mutex<Vec<u32>>>,
    bounds: SharedBounds,
    transactions: u32,
}

fn fixture() -> Fixture {
    let mut auth = AuthConfig::new(REALM).unwrap();
    auth.asks = Asks::Users;
    let config = Config {
        auth,
        ..Config::default()
    };
    let commons = Commons::new(&config);
    let mut hub = hub();
    hub.engine = Engine::new(Arc::new(config.clone()), commons, Randomness::of_system());
    hub.engine
        .add_listener(LISTENER, SocketAddr::from(([192, 0, 2, 1], 3478)));
    let asked = Arc::<Mutex<Vec<u32>>>::default();
    let bounds = SharedBounds::default();
    let noted = Arc::clone(&asked);
    let asker = Asker::new(
        move |question| {
            noted.lock().unwrap().push(asking::of_tag(question.tag).1);
            true
        },
        bounds.clone(),
    );
    hub.parking.connect(3, Some(asker));
    Fixture {
        hub,
        config,
        front: Noted {
            transports: &[
                Transport::Dtls,
                Transport::Tcp,
                Transport::Tls,
                Transport::Udp,
            ],
            answered: Vec::new(),
            answers: Vec::new(),
        },
        tx: SendQueue::new(1),
        asked,
        bounds,
        transactions: 0,
    }
}

fn udp(host: u16) -> ClientTuple {
    let [high, low] = host.to_be_bytes();
    ClientTuple::udp(LISTENER, SocketAddr::from(([198, 51, high, low], 4000)))
}

fn tcp() -> ClientTuple {
    ClientTuple {
        transport: Transport::Tcp,
        connection: name::connection(7),
        ..udp(1)
    }
}

impl Fixture {
    /// Writes a request of alice, whose password is `password`, or without credentials.
    fn request(&mut self, method: Method, proof: Option<(&[u8], &str)>) -> Vec<u8> {
        self.transactions += 1;
        let mut buffer = [0; 512];
        let mut transaction = [0; 12];
        transaction[..4].copy_from_slice(&self.transactions.to_be_bytes());
        let transaction = TransactionId::from(transaction);
        let mut writer = MessageWriter::new(&mut buffer, Class::Request, method, transaction);
        // Longer than the shortest first request of a client.
        writer.software("of a test");
        if let Some((nonce, password)) = proof {
            let key = long_term_key_md5(b"alice", REALM.as_bytes(), password.as_bytes());
            writer
                .username(b"alice")
                .realm(REALM.as_bytes())
                .nonce(nonce)
                .integrity(&IntegrityKey::sha1(&key));
        }
        let len = writer.finish().unwrap();
        buffer[..len].to_vec()
    }

    fn receive(&mut self, client: ClientTuple, datagram: &[u8]) {
        self.hub.counters.datagrams.client_in.add(1);
        let staged = self.tx.stage(datagram);
        let Self { hub, front, tx, .. } = self;
        hub.control(client, datagram, &staged, 0, front, tx);
    }

    /// Gets a nonce and asks for a Refresh with this password. Returns the request.
    fn refresh(&mut self, client: ClientTuple, password: &str) -> Vec<u8> {
        let first = self.request(Method::REFRESH, None);
        self.receive(client, &first);
        let challenge = self.front.answers.pop().expect("a challenge");
        self.front.answered.pop();
        let challenge = turnbuckle_wire::Message::parse(&challenge).unwrap();
        let nonce = challenge.nonce().unwrap().expect("a nonce").to_vec();
        let request = self.request(Method::REFRESH, Some((&nonce, password)));
        self.receive(client, &request);
        request
    }

    /// Has time pass and the shard take a turn.
    fn pass(&mut self, ms: u64) {
        self.hub.now.time = self.hub.now.time + Duration::from_millis(ms);
        let Self { hub, front, tx, .. } = self;
        hub.finish_parked(front, tx);
    }

    /// Has the database answer what was asked first.
    fn answer(&mut self, result: AskResult) {
        let number = self.asked.lock().unwrap().remove(0);
        self.bounds.ended(self.hub.now.time, result);
        self.hub
            .parking
            .answered(self.hub.now.time, Answered { number, result });
    }

    /// Adds alice to the settings, as the answer does that knows her.
    fn add_alice(&mut self) {
        let key = long_term_key_md5(b"alice", REALM.as_bytes(), b"wonderland");
        self.config.auth.add_user_by_md5_key("alice", key).unwrap();
        let now = self.hub.now.time;
        self.hub
            .engine
            .reconfigure(now, &self.config.clone().into());
    }

    /// Returns the error codes that were answered.
    fn codes(&self) -> Vec<u16> {
        let code = |answer: &[u8]| {
            let message = turnbuckle_wire::Message::parse(answer).unwrap();
            message.error_code().unwrap().map_or(0, |error| error.code)
        };
        self.front
            .answers
            .iter()
            .map(|answer| code(answer))
            .collect()
    }

    fn dropped(&self, reason: &str) -> u64 {
        Accounting::of([&*self.hub.counters]).dropped(reason)
    }

    fn asks(&self, result: AskResult) -> u64 {
        self.hub.counters.asks.asks.of(result).get()
    }

    fn parked(&self) -> u64 {
        self.hub.counters.asks.parked.get()
    }
}

#[test]
fn a_user_who_is_new_is_served_at_the_first_request_once_the_database_has_answered() {
    let mut fixture = fixture();
    let request = fixture.refresh(udp(1), "wonderland");
    assert_eq!((fixture.codes(), fixture.parked()), (vec![], 1));
    // The client does not wait, and sends the same again.
    fixture.receive(udp(1), &request);
    assert_eq!(fixture.dropped("request_in_progress"), 1);
    fixture.add_alice();
    fixture.answer(AskResult::Found);
    fixture.pass(10);
    // She has no allocation to refresh; that she is told so shows that she is known.
    assert_eq!((fixture.codes(), fixture.parked()), (vec![437], 0));
    fixture.pass(1000);
    assert_eq!(fixture.codes(), [437], "once");
    assert_eq!(fixture.asks(AskResult::Found), 1);
    assert!(fixture.asked.lock().unwrap().is_empty(), "one question");
}

#[test]
fn who_stays_unknown_is_refused_after_the_answer_and_not_asked_for_again_at_once() {
    let mut fixture = fixture();
    fixture.refresh(udp(1), "looking-glass");
    fixture.answer(AskResult::Vain);
    fixture.pass(10);
    assert_eq!(fixture.codes(), [401]);
    fixture.refresh(udp(1), "looking-glass");
    assert_eq!(fixture.codes(), [401, 401], "at once");
    assert_eq!(fixture.asks(AskResult::VainBefore), 1);
    fixture.pass(2000);
    fixture.refresh(udp(1), "looking-glass");
    assert_eq!(fixture.parked(), 1);
}

#[test]
fn an_answer_leaves_at_a_multiple_of_ten_milliseconds_after_its_request() {
    for (taken_ms, leaves_ms) in [(1, 10), (9, 10), (10, 10), (11, 20), (299, 300)] {
        let mut fixture = fixture();
        fixture.refresh(udp(1), "looking-glass");
        fixture.pass(taken_ms);
        fixture.answer(AskResult::Vain);
        let due = fixture.hub.next_timeout().expect("a timer");
        let wait = due.since(fixture.hub.now.time);
        assert_eq!(wait, Duration::from_millis(leaves_ms - taken_ms));
        if leaves_ms > taken_ms {
            fixture.pass(leaves_ms - taken_ms - 1);
            assert_eq!(fixture.codes(), [0; 0], "{taken_ms}");
            fixture.pass(1);
        } else {
            fixture.pass(0);
        }
        assert_eq!(fixture.codes(), [401], "{taken_ms}");
    }
}

#[test]
fn a_request_waits_300_ms_at_the_longest() {
    let mut fixture = fixture();
    fixture.refresh(udp(1), "wonderland");
    fixture.pass(299);
    assert_eq!(fixture.codes(), [0; 0]);
    fixture.pass(1);
    assert_eq!(fixture.codes(), [401]);
    assert_eq!(fixture.asks(AskResult::Late), 1);
    fixture.add_alice();
    fixture.answer(AskResult::Found);
    fixture.pass(1000);
    assert_eq!(fixture.codes(), [401], "it was answered once");
}

#[test]
fn the_answers_of_a_connection_leave_in_the_order_of_its_requests() {
    let (mut fixture, client) = (fixture(), tcp());
    fixture.refresh(client, "wonderland");
    assert_eq!(fixture.parked(), 1);
    let binding = fixture.request(Method::BINDING, None);
    fixture.receive(client, &binding);
    assert_eq!(fixture.codes(), [401, 0], "what waited is answered before");
    assert_eq!(fixture.parked(), 0);
    // Datagrams have no order.
    fixture.refresh(udp(2), "wonderland");
    let binding = fixture.request(Method::BINDING, None);
    fixture.receive(udp(2), &binding);
    assert_eq!((fixture.codes(), fixture.parked()), (vec![401, 0, 0], 1));
}

#[test]
fn what_waits_is_counted_and_dropped_with_its_connection_or_its_shard() {
    let (mut fixture, client) = (fixture(), tcp());
    fixture.refresh(client, "wonderland");
    fixture.refresh(udp(2), "wonderland");
    let sum = |fixture: &Fixture| {
        let sum = Accounting::of([&*fixture.hub.counters]);
        sum.total_in() - sum.total_drops()
    };
    assert_eq!((sum(&fixture), fixture.parked()), (4, 2));
    fixture.hub.disconnected(&client, true);
    assert_eq!((sum(&fixture), fixture.parked()), (3, 1));
    fixture.hub.stop();
    assert_eq!((sum(&fixture), fixture.parked()), (2, 0), "two challenges");
    assert_eq!(fixture.dropped("socket_closed"), 2);
}

#[test]
fn a_request_of_a_connection_waits_until_users_are_read_and_a_datagram_is_sent_again() {
    let mut fixture = fixture();
    fixture.config.answers.are_users_due = true;
    fixture.hub.parking.connect(3, None);
    let now = fixture.hub.now.time;
    let due = Arc::new(fixture.config.clone());
    fixture.hub.engine.reconfigure(now, &due);
    fixture.refresh(udp(2), "wonderland");
    assert_eq!((fixture.dropped("users_due"), fixture.parked()), (1, 0));
    fixture.refresh(tcp(), "wonderland");
    for _ in 0..20 {
        fixture.pass(300);
        assert_eq!((fixture.dropped("users_due"), fixture.parked()), (1, 1));
    }
    fixture.config.answers.are_users_due = false;
    fixture.add_alice();
    fixture.pass(300);
    assert_eq!((fixture.codes(), fixture.parked()), (vec![437], 0));
    let asks = [AskResult::Late, AskResult::Found, AskResult::LimitedRoom];
    assert_eq!(asks.map(|asked| fixture.asks(asked)), [0; 3], "nobody");
}

#[test]
fn the_next_request_of_a_connection_ends_the_wait_for_users() {
    let (mut fixture, client) = (fixture(), tcp());
    fixture.config.answers.are_users_due = true;
    fixture.hub.parking.connect(3, None);
    let now = fixture.hub.now.time;
    let due = Arc::new(fixture.config.clone());
    fixture.hub.engine.reconfigure(now, &due);
    fixture.refresh(client, "wonderland");
    let binding = fixture.request(Method::BINDING, None);
    fixture.receive(client, &binding);
    assert_eq!((fixture.codes(), fixture.parked()), (vec![0], 0));
    assert_eq!(fixture.dropped("users_due"), 1);
}

#[test]
fn beyond_512_requests_none_waits() {
    let mut fixture = fixture();
    let mut host = 0;
    for _ in 0..3 {
        for _ in 0..500 {
            host += 1;
            fixture.refresh(udp(host), "wonderland");
            // Another one may be asked although no answer has come here yet.
            fixture.bounds.ended(fixture.hub.now.time, AskResult::Found);
        }
        fixture.pass(90);
    }
    assert_eq!(fixture.parked(), 512);
    assert!(fixture.asks(AskResult::LimitedRoom) > 0);
}

#[test]
fn a_request_longer_than_1500_bytes_does_not_wait() {
    let mut fixture = fixture();
    let question = turnbuckle_engine::Question {
        realm: REALM.into(),
        name: "alice".into(),
    };
    let now = fixture.hub.now.time;
    let mut park = |len| {
        let (client, question) = (udp(1), question.clone());
        fixture
            .hub
            .parking
            .park(now, client, Some(&vec![0; len]), question)
    };
    assert!(park(1500));
    assert!(!park(1501));
}
