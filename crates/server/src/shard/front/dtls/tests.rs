//! A shard's DTLS against OpenSSL's client, without sockets.

mod bounds;

use std::sync::LazyLock;
use std::time::Duration;

use openssl::pkey::PKey;
use openssl::ssl::{
    ErrorCode, Ssl, SslContext, SslMethod, SslOptions, SslStream, SslVerifyMode, SslVersion,
};
use openssl::x509::X509;
use proptest::prelude::*;

use super::*;
use crate::shard::book::{BookLimits, CrowdLimits};

const LISTENER: Endpoint = Endpoint(1);
const LIMITS: DtlsLimits = DtlsLimits {
    book: BookLimits {
        handshake: Duration::from_secs(5),
        first_message: Duration::from_secs(10),
        message: Duration::from_secs(10),
        idle: Duration::from_secs(60),
        unallocated: Duration::from_secs(600),
        crowd: CrowdLimits {
            total: 4,
            per_source: 2000,
        },
    },
    sessions: 6,
};

/// Returns limits of 100 sessions, and of `per_source` without an allocation from one source.
fn a_hundred(per_source: usize) -> DtlsLimits {
    let total = 100;
    DtlsLimits {
        book: BookLimits {
            crowd: CrowdLimits { total, per_source },
            ..LIMITS.book
        },
        sessions: 100,
    }
}

fn second(n: u64) -> Time {
    Time::from_secs(1000 + n)
}

fn address(port: u16) -> Address {
    Address {
        listener: LISTENER,
        client: SocketAddr::from(([198, 51, 100, 1], port)),
        proxy: None,
    }
}

/// A server's set and what a client has to trust for it.
static CONTEXTS: LazyLock<[(SslContext, X509); 2]> = LazyLock::new(|| {
    [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_RSA_SHA256].map(|algorithm| {
        let key = rcgen::KeyPair::generate_for(algorithm).unwrap();
        let params = rcgen::CertificateParams::new(vec!["relay.example.org".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let certificate = X509::from_der(certificate.der()).unwrap();
        let mut builder = context::base(&crate::config::Tls {
            cipher_suites: crate::config::CIPHER_SUITES.to_vec(),
            groups: crate::config::KEY_EXCHANGE_GROUPS.to_vec(),
            ..no_tls()
        })
        .unwrap();
        builder.set_certificate(&certificate).unwrap();
        let key = PKey::private_key_from_der(&key.serialize_der()).unwrap();
        builder.set_private_key(&key).unwrap();
        (builder.build(), certificate)
    })
});

fn no_tls() -> crate::config::Tls {
    crate::config::Tls {
        wanted: false,
        dtls_wanted: true,
        quic: crate::config::Quic::default(),
        port: 5349,
        certificate: None,
        key: None,
        key_password: None,
        client_authorities: None,
        only_tls13: false,
        cipher_suites: Vec::new(),
        groups: Vec::new(),
        alpn: crate::config::Alpn::default(),
    }
}

/// A shard's DTLS, and what became of the datagrams that it was given.
struct Server {
    dtls: Dtls,
    now: Time,
    plain: Plain,
    /// Who has an allocation.
    allocated: Vec<SocketAddr>,
}

impl Server {
    fn new(context: &SslContext) -> Self {
        Self::within(context, LIMITS)
    }

    fn within(context: &SslContext, limits: DtlsLimits) -> Self {
        let service = DtlsService {
            context: Arc::new(std::sync::RwLock::new(context.clone())),
            cookies: CookieKey::random(),
            limits,
        };
        let mut dtls = Dtls::new(service, Arc::default());
        dtls.add_listener(LISTENER, SocketAddr::from(([192, 0, 2, 1], 3478)));
        Self {
            dtls,
            now: second(0),
            plain: Plain::default(),
            allocated: Vec::new(),
        }
    }

    fn with_ecdsa() -> Self {
        Self::new(&CONTEXTS[0].0)
    }

    /// Returns what it answers to a datagram, work on handshakes included.
    fn hear(&mut self, from: Address, datagram: &[u8]) -> (Arrival, Vec<Vec<u8>>) {
        self.plain.clear();
        let arrival = self
            .dtls
            .received(self.now, from, datagram, &mut self.plain);
        let mut said: Vec<Vec<u8>> = self.dtls.written().map(<[u8]>::to_vec).collect();
        while self.dtls.has_work() {
            let allocated = &self.allocated;
            let worked = self.dtls.shake_hands(self.now, &mut self.plain, |client| {
                allocated.contains(&client.remote)
            });
            if let Some((to, _)) = worked {
                assert_eq!(to, from);
                said.extend(self.dtls.written().map(<[u8]>::to_vec));
            }
        }
        (arrival, said)
    }

    fn name(&self, of: Address) -> Connection {
        self.dtls.sessions.find(of).expect("a session")
    }

    fn seal(&mut self, to: Address, message: &[u8]) -> Vec<u8> {
        let name = self.name(to);
        self.dtls.begin();
        self.dtls.seal(name, [message, &[], &[]]).unwrap();
        self.dtls.sealed().unwrap().0.to_vec()
    }

    /// Lets time pass; returns those whose session has ended.
    fn wait_until(&mut self, now: Time) -> Vec<SocketAddr> {
        self.now = now;
        let mut budget = 10_000;
        let allocated = &self.allocated;
        let has_allocation = |client: &ClientTuple| allocated.contains(&client.remote);
        while self
            .dtls
            .pop_due(now, &mut budget, has_allocation)
            .is_some()
        {}
        std::iter::from_fn(|| self.dtls.pop_ended())
            .map(|client| client.remote)
            .collect()
    }
}

/// OpenSSL's client.
struct Client {
    tls: SslStream<Wire>,
    address: Address,
}

impl Client {
    fn trusting(authority: &X509, port: u16) -> Self {
        let mut builder = SslContext::builder(SslMethod::dtls_client()).unwrap();
        builder.set_options(SslOptions::NO_QUERY_MTU);
        builder.set_verify(SslVerifyMode::PEER);
        builder
            .cert_store_mut()
            .add_cert(authority.clone())
            .unwrap();
        Self::of(&builder.build(), port)
    }

    fn new(port: u16) -> Self {
        Self::trusting(&CONTEXTS[0].1, port)
    }

    fn of(context: &SslContext, port: u16) -> Self {
        let mut ssl = Ssl::new(context).unwrap();
        ssl.set_connect_state();
        ssl.set_mtu(1200).unwrap();
        Self {
            tls: SslStream::new(ssl, Wire::silent()).unwrap(),
            address: address(port),
        }
    }

    /// Returns what it says next.
    fn said(&mut self) -> Vec<Vec<u8>> {
        let _ = self.tls.do_handshake();
        let wire = self.tls.get_mut();
        let said = wire.datagrams().map(<[u8]>::to_vec).collect();
        wire.clear();
        said
    }

    fn hear(&mut self, datagram: &[u8]) {
        self.tls.get_mut().fill(datagram);
        let _ = self.tls.do_handshake();
    }

    fn read(&mut self, datagram: &[u8]) -> Option<Vec<u8>> {
        let mut room = [0; RECORD_LEN_MAX];
        self.tls.get_mut().fill(datagram);
        match self.tls.ssl_read(&mut room) {
            Ok(len) => Some(room[..len].to_vec()),
            Err(error) => {
                assert_eq!(error.code(), ErrorCode::WANT_READ);
                None
            }
        }
    }

    fn seal(&mut self, message: &[u8]) -> Vec<u8> {
        self.tls.ssl_write(message).unwrap();
        self.said().concat()
    }

    /// Shakes hands until nobody has anything to say.
    fn shake_hands(&mut self, server: &mut Server) {
        while !self.tls.ssl().is_init_finished() {
            let said = self.said();
            assert!(!said.is_empty(), "the handshake does not go on");
            for datagram in said {
                for answer in server.hear(self.address, &datagram).1 {
                    self.hear(&answer);
                }
            }
        }
    }

    /// Returns the second hello, with the cookie in it.
    fn hello_with_cookie(&mut self, server: &mut Server) -> Vec<u8> {
        let (arrival, answers) = server.hear(self.address, &self.said().concat());
        assert_eq!(arrival, Arrival::Answered);
        self.hear(&answers[0]);
        self.said().concat()
    }
}

fn messages(server: &Server) -> Vec<&[u8]> {
    let starts = std::iter::once(0).chain(server.plain.ends.iter().copied());
    let ranges = starts.zip(server.plain.ends.iter().copied());
    ranges
        .map(|(start, end)| &server.plain.bytes[start..end])
        .collect()
}

//= DTLS-02 STUN-016
#[test]
fn messages_go_both_ways_with_keys_of_either_kind() {
    for (context, authority) in &*CONTEXTS {
        let mut server = Server::new(context);
        let mut client = Client::trusting(authority, 1);
        client.shake_hands(&mut server);
        assert_eq!(client.tls.ssl().version2(), Some(SslVersion::DTLS1_2));
        let record = client.seal(b"to the server");
        let (arrival, _) = server.hear(client.address, &record);
        assert!(
            matches!(arrival, Arrival::Messages(from, 1) if from.remote == client.address.client)
        );
        assert_eq!(messages(&server), [b"to the server"]);
        let record = server.seal(client.address, b"to the client");
        assert_eq!(client.read(&record).unwrap(), b"to the client");
    }
}

//= DTLS-06 DTLS-08
#[test]
fn a_hello_without_a_valid_cookie_is_answered_with_less_and_leaves_nothing() {
    let mut server = Server::with_ecdsa();
    for port in 1..2000 {
        let mut client = Client::new(port);
        let hello = client.said().concat();
        for _ in 0..2 {
            let (arrival, answers) = server.hear(client.address, &hello);
            assert_eq!(arrival, Arrival::Answered);
            assert!(answers.len() == 1 && answers[0].len() < hello.len());
        }
        if port > 50 {
            continue;
        }
        // A cookie is another client's, or changed: it is as good as none.
        let mut client = Client::new(port);
        let with_cookie = client.hello_with_cookie(&mut server);
        let stranger = address(40_000 + port);
        assert_eq!(server.hear(stranger, &with_cookie).0, Arrival::Answered);
        let session_at = 13 + 12 + 2 + 32;
        assert_eq!(with_cookie[session_at], 0, "no session is named");
        let mut changed = with_cookie.clone();
        changed[session_at + 6] ^= 1;
        assert_eq!(server.hear(client.address, &changed).0, Arrival::Answered);
    }
    assert_eq!(server.dtls.sessions.names(), []);
    assert_eq!(server.dtls.next_timeout(), None);
}

/// Numbers of records go on from the client's, whose hello may have been sent more than once: some clients drop a number that they have
/// seen (RFC 6347 §4.2.1).
#[test]
fn a_client_that_repeated_its_hello_sees_no_record_number_twice() {
    let mut server = Server::with_ecdsa();
    let mut client = Client::new(1);
    let mut hello = client.said().concat();
    let mut seen = Vec::new();
    let mut answers = Vec::new();
    for number in 0..4 {
        hello[10] = number;
        answers = server.hear(client.address, &hello).1;
        seen.push(Record::first(&answers[0]).unwrap().0.sequence);
    }
    client.hear(&answers[0]);
    let mut hello = client.said().concat();
    hello[10] = 4;
    for answer in server.hear(client.address, &hello).1 {
        let mut rest = &answer[..];
        while let Some((record, behind)) = Record::first(rest) {
            assert_eq!(record.epoch, 0);
            seen.push(record.sequence);
            rest = behind;
        }
        client.hear(&answer);
    }
    let expected: Vec<_> = (0..seen.len() as u64).collect();
    assert_eq!(seen, expected);
    client.shake_hands(&mut server);
}

#[test]
fn a_record_counts_once_and_only_if_it_is_genuine() {
    let mut server = Server::with_ecdsa();
    let mut client = Client::new(1);
    client.shake_hands(&mut server);
    let rejected = Arrival::Dropped(DtlsDrop::Rejected);
    let [first, second] = [b"first", b"other"].map(|message| client.seal(message));
    for at in [3, 5, 10, 13, 20, second.len() - 1] {
        let mut changed = second.clone();
        changed[at] ^= 1;
        assert_eq!(server.hear(client.address, &changed).0, rejected, "{at}");
    }
    // The order of arrival does not matter (RFC 6347 §4.1.2.6).
    for record in [&second, &first] {
        assert!(matches!(
            server.hear(client.address, record).0,
            Arrival::Messages(_, 1)
        ));
        for _ in 0..3 {
            assert_eq!(server.hear(client.address, record), (rejected, Vec::new()));
        }
    }
    let cut = &client.seal(b"cut")[..20];
    let malformed = Arrival::Dropped(DtlsDrop::Rejected);
    assert_eq!(server.hear(client.address, cut).0, malformed);
    // The session has survived all of it.
    let record = client.seal(b"third");
    assert!(matches!(
        server.hear(client.address, &record).0,
        Arrival::Messages(_, 1)
    ));
}

#[test]
fn records_in_one_datagram_are_all_read() {
    let mut server = Server::with_ecdsa();
    let mut client = Client::new(1);
    client.shake_hands(&mut server);
    let records = [&b"one"[..], b"three", b"five"].map(|message| client.seal(message));
    let (arrival, _) = server.hear(client.address, &records.concat());
    assert!(matches!(arrival, Arrival::Messages(_, 3)));
    assert_eq!(messages(&server), [&b"one"[..], b"three", b"five"]);
}

#[test]
fn a_record_from_another_address_belongs_to_nobody() {
    let mut server = Server::with_ecdsa();
    let mut client = Client::new(1);
    client.shake_hands(&mut server);
    let record = client.seal(b"moved");
    let elsewhere = server.hear(address(2), &record).0;
    assert_eq!(elsewhere, Arrival::Dropped(DtlsDrop::NoSession));
    assert!(matches!(
        server.hear(client.address, &record).0,
        Arrival::Messages(_, 1)
    ));
}

/// RFC 6347 §4.2.8.
#[test]
fn a_client_that_begins_anew_takes_the_place_of_the_old_one_once_it_has_a_cookie() {
    let mut server = Server::with_ecdsa();
    let mut client = Client::new(1);
    let hello = client.hello_with_cookie(&mut server);
    server.hear(client.address, &hello);
    let name = server.name(client.address);
    // The same hello again belongs to the session it began, before and after the handshake.
    assert_eq!(server.hear(client.address, &hello).0, Arrival::Control);
    let mut client = Client::new(1);
    client.shake_hands(&mut server);
    assert_ne!(server.name(client.address), name);
    let name = server.name(client.address);
    let mut next = Client::new(1);
    let first = next.said().concat();
    assert_eq!(server.hear(next.address, &first).0, Arrival::Answered);
    assert_eq!(server.name(next.address), name, "anybody can send a hello");
    let record = client.seal(b"still here");
    assert!(matches!(
        server.hear(client.address, &record).0,
        Arrival::Messages(..)
    ));
    let mut next = Client::new(1);
    next.shake_hands(&mut server);
    assert_ne!(server.name(next.address), name);
    let ended: Vec<_> = std::iter::from_fn(|| server.dtls.pop_ended()).collect();
    assert_eq!(ended.len(), 2);
    assert!(ended.iter().any(|client| client.connection == name));
}

/// OpenSSL's own clock decides when a flight is sent again: a second after it was.
//= DTLS-01
#[test]
fn a_lost_flight_is_sent_again() {
    let mut server = Server::with_ecdsa();
    let mut client = Client::new(1);
    let hello = client.hello_with_cookie(&mut server);
    let (_, lost) = server.hear(client.address, &hello);
    assert!(!lost.is_empty());
    let mut again = Vec::new();
    while again.is_empty() {
        std::thread::sleep(Duration::from_millis(50));
        let name = server.name(client.address);
        let entry = server.dtls.sessions.get_mut(name).unwrap();
        server.dtls.wire.clear();
        assert_eq!(
            entry.session.retransmit(server.now, &mut server.dtls.wire),
            Progress::Open
        );
        again.extend(server.dtls.written().map(<[u8]>::to_vec));
    }
    for datagram in again {
        client.hear(&datagram);
    }
    client.shake_hands(&mut server);
}

#[test]
fn a_goodbye_is_answered_and_ends_the_session() {
    let mut server = Server::with_ecdsa();
    let mut client = Client::new(1);
    client.shake_hands(&mut server);
    let _ = client.tls.shutdown();
    let goodbye = client.said().concat();
    let (arrival, answers) = server.hear(client.address, &goodbye);
    assert_eq!((arrival, answers.len()), (Arrival::Control, 1));
    assert_eq!(
        server.dtls.pop_ended().unwrap().remote,
        client.address.client
    );
    assert_eq!(server.dtls.names(), []);
    let late = server.hear(client.address, &goodbye).0;
    assert_eq!(late, Arrival::Dropped(DtlsDrop::NoSession));
}

#[test]
fn a_message_longer_than_a_record_is_refused_and_the_session_goes_on() {
    let mut server = Server::with_ecdsa();
    let mut client = Client::new(1);
    client.shake_hands(&mut server);
    let name = server.name(client.address);
    let long = vec![7; RECORD_LEN_MAX + 1];
    let refused = server.dtls.seal(name, [&long, &[], &[]]);
    assert_eq!(refused, Err(DtlsDrop::DatagramTooLarge));
    let record = server.seal(client.address, &long[1..]);
    assert_eq!(client.read(&record).unwrap(), &long[1..]);
}

/// M5: OpenSSL keeps a buffer for each record that it has no keys for yet.
#[test]
fn records_that_come_before_their_keys_are_not_kept() {
    let mut server = Server::with_ecdsa();
    let mut client = Client::new(1);
    let hello = client.hello_with_cookie(&mut server);
    server.hear(client.address, &hello);
    let name = server.name(client.address);
    let protected = |sequence| [22, 0xFE, 0xFD, 0, 1, 0, 0, 0, 0, 0, sequence, 0, 2, 7, 7];
    let control = |arrival: Arrival| arrival == Arrival::Control;
    let taken = (1..40).filter(|sequence| {
        let datagram = protected(*sequence);
        control(server.hear(client.address, &datagram).0)
    });
    assert_eq!(taken.count(), 2);
    // Nor several of one datagram; what is in front of them is taken.
    let many: Vec<u8> = (41..60).flat_map(protected).collect();
    let rejected = Arrival::Dropped(DtlsDrop::Rejected);
    assert_eq!(server.hear(client.address, &many).0, rejected);
    let part = server
        .dtls
        .sessions
        .admit(name, &[&hello[..], &many].concat())
        .unwrap()
        .len();
    assert_eq!(part, hello.len());
}

/// A Finished that overtakes what is in front of it is kept all the same, and the handshake goes on without a pause.
#[test]
fn a_finished_may_overtake_the_rest_of_its_flight() {
    let mut server = Server::with_ecdsa();
    let mut client = Client::new(1);
    let hello = client.hello_with_cookie(&mut server);
    for answer in server.hear(client.address, &hello).1 {
        client.hear(&answer);
    }
    let flight = client.said().concat();
    let (front, early) = hello::before_protected(&flight, 0);
    assert!(early == 0 && front.len() < flight.len());
    let front = front.to_vec();
    server.hear(client.address, &flight[front.len()..]);
    for answer in server.hear(client.address, &front).1 {
        client.hear(&answer);
    }
    assert!(client.tls.ssl().is_init_finished());
    assert_eq!(
        server.dtls.sessions.handshake_budget(),
        crate::shard::book::HANDSHAKE_BUDGET
    );
}

proptest! {
    /// What a client says with flipped bits, cut or doubled, before, during and after the handshake: an arrival, never a panic.
    #[test]
    fn changed_datagrams_do_no_harm(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>()), 0..12),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut server = Server::with_ecdsa();
        let mut client = Client::new(1);
        let mut step = 0;
        for _ in 0..8 {
            let mut said = client.said();
            if client.tls.ssl().is_init_finished() {
                said.push(client.seal(b"a message"));
            }
            for datagram in said {
                let mut changed = datagram.clone();
                for (which, at, change) in &changes {
                    if which.index(8) == step {
                        let at = at.index(changed.len());
                        changed[at] ^= change;
                    }
                }
                let len = if step == cut.index(16) { cut.index(changed.len()) } else { changed.len() };
                server.hear(client.address, &changed[..len]);
                for answer in server.hear(client.address, &datagram).1 {
                    client.hear(&answer);
                }
                step += 1;
            }
        }
    }

    #[test]
    fn noise_that_looks_like_dtls_begins_nothing(
        first in 20_u8..64,
        epoch in 0_u8..2,
        rest in prop::collection::vec(any::<u8>(), 0..200),
        is_framed in any::<bool>(),
    ) {
        let mut datagram = vec![first];
        if is_framed {
            let len = u8::try_from(rest.len()).unwrap();
            datagram.extend([0xFE, 0xFD, 0, epoch, 0, 0, 0, 0, 0, 0, 0, len]);
        }
        datagram.extend(&rest);
        let mut server = Server::with_ecdsa();
        let (arrival, answers) = server.hear(address(1), &datagram);
        prop_assert!(matches!(
            arrival,
            Arrival::Answered | Arrival::Dropped(DtlsDrop::Malformed | DtlsDrop::NoSession)
        ));
        prop_assert!(answers.concat().len() < datagram.len());
        prop_assert_eq!(server.dtls.names(), []);
    }
}
