//! Tunnels of UDP in HTTP at one shard: who waits for the user database, and what comes before a tunnel is open.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpStream, UdpSocket};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use turnbuckle_engine::Asks;
use turnbuckle_users::Question;

use super::several::{REALM, Several, Turns as _};
use crate::asking::{Answered, AskResult, Asker, SharedBounds, of_tag};

/// A connection that asks for tunnels.
struct Client {
    stream: TcpStream,
    came: Vec<u8>,
    /// Held, so that no ICMP error ends the tunnel.
    target: UdpSocket,
}

impl Client {
    fn new(shards: &Several) -> Self {
        let stream = shards.stream(0);
        stream.set_nonblocking(true).unwrap();
        let came = Vec::new();
        let target = UdpSocket::bind((shards.peer_ip(), 0)).unwrap();
        Self {
            stream,
            came,
            target,
        }
    }

    /// Asks for a tunnel to its target.
    fn ask(&mut self, (user, password): (&str, &str), more: &[u8]) {
        let pair = STANDARD.encode(format!("{user}:{password}"));
        let target = self.target.local_addr().unwrap();
        let (ip, port) = (target.ip(), target.port());
        let head = format!(
            "GET /.well-known/masque/udp/{ip}/{port}/ HTTP/1.1\r\nHost: relay\r\n\
             Connection: Upgrade\r\nUpgrade: connect-udp\r\nAuthorization: Basic {pair}\r\n\r\n"
        );
        let bytes = [head.as_bytes(), more].concat();
        self.stream.write_all(&bytes).unwrap();
    }

    /// Reads what has come. Returns whether the connection is at its end.
    fn read(&mut self) -> bool {
        let mut buffer = [0; 4096];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return true,
                Ok(len) => self.came.extend_from_slice(&buffer[..len]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(_) => return true,
            }
        }
    }

    /// Returns the status of the next answer, which is taken out.
    fn status(&mut self) -> Option<u16> {
        self.read();
        let end = self.came.windows(4).position(|it| it == b"\r\n\r\n")?;
        let head: Vec<u8> = self.came.drain(..end + 4).collect();
        let status = head.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
        String::from_utf8_lossy(status).parse().ok()
    }
}

/// Starts a shard whose users a database may have, and returns the questions that it has been asked too.
fn asking() -> (Several, Arc<Mutex<Vec<Question>>>, SharedBounds) {
    let mut shards = Several::start(1, &["--masque=plain"]);
    shards.reconfigure(|engine| engine.auth.asks = Asks::Users);
    let asked = Arc::<Mutex<Vec<Question>>>::default();
    let (noted, bounds) = (Arc::clone(&asked), SharedBounds::default());
    let put = move |question| {
        noted.lock().unwrap().push(question);
        true
    };
    shards.ask(0, Asker::new(put, bounds.clone()));
    (shards, asked, bounds)
}

/// Has the database answer what was asked first.
fn answer(
    shards: &mut Several,
    asked: &Mutex<Vec<Question>>,
    bounds: &SharedBounds,
    result: AskResult,
) {
    let (_, number) = of_tag(asked.lock().unwrap().remove(0).tag);
    bounds.ended(turnbuckle_engine::Time::ZERO, result);
    shards.answered(0, Answered { number, result });
}

//= V-54
#[test]
fn who_asks_for_a_tunnel_and_is_unknown_waits_for_the_user_database_once() {
    let (mut shards, asked, bounds) = asking();
    let mut client = Client::new(&shards);
    client.ask(("carol", "singer"), &[0, 2, 0, 7]);
    shards.until(|| (asked.lock().unwrap().len() == 1).then_some(()));
    {
        let asked = asked.lock().unwrap();
        assert_eq!((&*asked[0].realm, &*asked[0].name), (REALM, "carol"));
    }
    assert_eq!(client.status(), None, "she waits");
    assert_eq!(
        shards.accounting().get("parked", None),
        0,
        "it is not in yet"
    );
    shards.reconfigure(|engine| {
        engine.auth.add_user("carol", "singer").unwrap();
    });
    answer(&mut shards, &asked, &bounds, AskResult::Found);
    assert_eq!(shards.until(|| client.status()), 101);
    // What came meanwhile goes to the target.
    shards.until_sent_to_peers(1);

    // Who stays unknown is refused after the answer. The next answer is wrong as well, and at once.
    let mut client = Client::new(&shards);
    client.ask(("mallory", "wrong"), &[]);
    shards.until(|| (asked.lock().unwrap().len() == 1).then_some(()));
    answer(&mut shards, &asked, &bounds, AskResult::Vain);
    assert_eq!(shards.until(|| client.status()), 407);
    client.ask(("mallory", "wrong"), &[]);
    assert_eq!(shards.until(|| client.status()), 407);
    assert!(asked.lock().unwrap().is_empty(), "one question");

    // One that goes away while it waits leaves nothing behind.
    let mut gone = Client::new(&shards);
    gone.ask(("dave", "x"), &[]);
    shards.until(|| (asked.lock().unwrap().len() == 1).then_some(()));
    drop(gone);
    shards.settle();
    answer(&mut shards, &asked, &bounds, AskResult::Vain);
    shards.settle();
    // Capsules behind a request that is refused late are nobody's.
    let mut client = Client::new(&shards);
    client.ask(("eve", "x"), &[0, 2, 0, 7]);
    shards.until(|| (asked.lock().unwrap().len() == 1).then_some(()));
    answer(&mut shards, &asked, &bounds, AskResult::Vain);
    assert_eq!(shards.until(|| client.status()), 407);
    shards.until(|| client.read().then_some(()));
    shards.settle();
    let accounting = shards.accounting();
    let gone = accounting.total_out() + accounting.total_drops();
    assert_eq!(accounting.total_in(), gone);
}

#[test]
fn who_asks_for_a_tunnel_while_users_are_read_is_not_told_that_he_is_unknown() {
    let mut shards = Several::start(1, &["--masque=plain"]);
    shards.reconfigure(|engine| engine.answers.are_users_due = true);
    let mut client = Client::new(&shards);
    client.ask(("carol", "singer"), &[]);
    assert_eq!(shards.until(|| client.status()), 503);
    shards.until(|| client.read().then_some(()));
    shards.reconfigure(|engine| {
        engine.answers.are_users_due = false;
        engine.auth.add_user("carol", "singer").unwrap();
    });
    let mut client = Client::new(&shards);
    client.ask(("carol", "singer"), &[]);
    assert_eq!(shards.until(|| client.status()), 101);
    let mut client = Client::new(&shards);
    client.ask(("mallory", "wrong"), &[]);
    assert_eq!(shards.until(|| client.status()), 407);
}

//= V-92
#[test]
fn more_than_16_kib_before_the_tunnel_is_open_ends_the_connection() {
    let capsules = |bytes: usize| {
        let capsule = [&[0, 0x44, 0x01, 0][..], &[7; 1024]].concat();
        capsule.repeat(bytes / capsule.len())
    };
    // As long as the database takes, the tunnel is not open.
    for (bytes, is_kept) in [(16 * 1024, true), (18 * 1024, false)] {
        let (mut shards, asked, bounds) = asking();
        let mut client = Client::new(&shards);
        client.ask(("carol", "singer"), &[]);
        shards.until(|| (asked.lock().unwrap().len() == 1).then_some(()));
        client.stream.write_all(&capsules(bytes)).unwrap();
        shards.settle();
        shards.reconfigure(|engine| {
            engine.auth.add_user("carol", "singer").unwrap();
        });
        answer(&mut shards, &asked, &bounds, AskResult::Found);
        match is_kept {
            true => {
                assert_eq!(shards.until(|| client.status()), 101);
                shards.until_sent_to_peers(15);
            }
            false => {
                shards.until(|| client.read().then_some(()));
                assert!(client.came.is_empty(), "{:?}", client.came);
                assert_eq!(shards.accounting().dropped("message_too_long"), 1);
            }
        }
    }
}
