//! The client of the tests: it panics when the relay does not do as it should, and keeps what comes besides responses.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use turnbuckle_client::blocking::{
    Datagrams, Link, Received, Retransmission, Session, dtls, plain,
};
use turnbuckle_client::{Credentials, Proof, UDP};
use turnbuckle_wire::{
    AddressFamily, AttributeType, ChannelData, ChannelNumber, Class, Demux, Icmp, IntegrityKey,
    Message, MessageWriter, Method, PasswordAlgorithm, classify, padding_len,
};

use super::server::{OTHER_USER, PASSWORD, REALM, USER};
use super::{Answer, DtlsLink, Server, StreamLink};

/// How long to wait for data that must come.
const PEER_TIMEOUT: Duration = Duration::from_secs(20);
/// RFC 8489 §6.2.1 starts at 500 ms; on one host nothing is lost unless a buffer overflows.
const TIMEOUT: Retransmission = Retransmission {
    wait: Duration::from_millis(500),
    sends: 40,
};

/// How the client proves who it is (RFC 8489 §9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mechanism {
    /// MESSAGE-INTEGRITY with a key made by MD5, as clients of RFC 5389 do.
    Md5,
    /// PASSWORD-ALGORITHM and MESSAGE-INTEGRITY-SHA256.
    Sha256,
}

/// What came that is no response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Inbound {
    Attempt { peer: SocketAddr, connection: u32 },
    Channel { number: u16, data: Vec<u8> },
    Data { peer: SocketAddr, data: Vec<u8> },
    Icmp { peer: SocketAddr, icmp: Icmp },
}

/// What the server's last 401 or 438 said.
#[derive(Clone)]
struct Challenge {
    nonce: Vec<u8>,
    /// The value of PASSWORD-ALGORITHMS.
    algorithms: Option<Vec<u8>>,
}

/// One client: one socket, one user.
pub(crate) struct Client {
    session: Session,
    server: SocketAddr,
    pub(crate) username: String,
    pub(crate) password: String,
    pub(crate) realm: String,
    /// The ORIGIN of its requests; none if empty.
    pub(crate) origin: Vec<u8>,
    pub(crate) mechanism: Mechanism,
    challenge: Option<Challenge>,
    inbox: VecDeque<Inbound>,
}

impl Client {
    /// Returns a client of the user [`USER`] at `address`, on a port of its own.
    pub(crate) fn new(address: IpAddr, server: &Server) -> Self {
        Self::of(USER, address, server.address())
    }

    /// Returns a client of the user [`OTHER_USER`].
    pub(crate) fn other(address: IpAddr, server: &Server) -> Self {
        Self::of(OTHER_USER, address, server.address())
    }

    /// Returns a client of the user [`USER`] at `address` that talks to another listener than the first.
    pub(crate) fn at(address: IpAddr, server: SocketAddr) -> Self {
        Self::of(USER, address, server)
    }

    fn of(username: &str, address: IpAddr, server: SocketAddr) -> Self {
        let socket = UdpSocket::bind((address, 0)).expect("an address of this host");
        Self::on(username, Link::Udp(Datagrams::new(socket, server)), server)
    }

    /// Returns a client of the user [`USER`] on a socket that somebody else uses too.
    pub(crate) fn on_socket(socket: UdpSocket, server: &Server) -> Self {
        let link = Link::Udp(Datagrams::new(socket, server.address()));
        Self::on(USER, link, server.address())
    }

    /// Returns a client of the user [`USER`] on a stream that is connected to `server`.
    pub(crate) fn on_stream(stream: StreamLink, server: &Server) -> Self {
        Self::on(USER, Link::Stream(stream.0), server.address())
    }

    /// Returns a client of the user [`USER`] with a DTLS session with `server`.
    pub(crate) fn over_dtls(session: DtlsLink, server: &Server) -> Self {
        Self::on(USER, Link::Dtls(Box::new(session.0)), server.address())
    }

    /// Returns its DTLS session.
    pub(crate) fn session(&mut self) -> &mut dtls::DtlsSession {
        match &mut self.session.link {
            Link::Dtls(session) => session,
            Link::Stream(_) | Link::Udp(_) => panic!("not a DTLS client"),
        }
    }

    /// Puts this in front of each datagram from now on, as a proxy does.
    pub(crate) fn put_first(&mut self, prefix: &[u8]) {
        match &mut self.session.link {
            Link::Udp(datagrams) => datagrams.prefix = prefix.to_vec(),
            Link::Dtls(session) => session.put_first(prefix),
            Link::Stream(_) => panic!("a stream has no datagrams"),
        }
    }

    /// Returns a client of the user [`USER`] that comes by TCP.
    pub(crate) fn over_tcp(server: &Server) -> Self {
        Self::on_stream(StreamLink::tcp(server.address()), server)
    }

    fn on(username: &str, link: Link, server: SocketAddr) -> Self {
        let credentials = Credentials::user(username, PASSWORD);
        let mut session = Session::on(link, Proof::new(credentials));
        session.retransmission = TIMEOUT;
        Self {
            session,
            server,
            username: username.to_owned(),
            password: PASSWORD.to_owned(),
            realm: REALM.to_owned(),
            origin: Vec::new(),
            mechanism: Mechanism::Md5,
            challenge: None,
            inbox: VecDeque::new(),
        }
    }

    /// Returns a client on the same socket as another user, who has to fetch a nonce first: what an attacker on the client's 5-tuple is.
    pub(crate) fn as_other_user(&self) -> Self {
        let socket = self.socket().try_clone().expect("dup");
        let link = Link::Udp(Datagrams::new(socket, self.server));
        Self {
            mechanism: self.mechanism,
            ..Self::on(OTHER_USER, link, self.server)
        }
    }

    fn socket(&self) -> &UdpSocket {
        let Link::Udp(datagrams) = &self.session.link else {
            panic!("not a UDP client")
        };
        datagrams.socket()
    }

    /// Returns what carries the client's messages.
    pub(crate) fn into_stream(self) -> StreamLink {
        let Link::Stream(stream) = self.session.link else {
            panic!("not a stream")
        };
        StreamLink(stream)
    }

    /// Returns whom it talks to.
    pub(crate) fn server(&self) -> SocketAddr {
        self.server
    }

    /// Returns where a client's UDP socket is.
    pub(crate) fn local_address(&self) -> SocketAddr {
        self.socket().local_addr().expect("bound")
    }

    // Requests.

    /// Sends an authenticated request, to which `build` adds what the method needs, and returns the answer.
    pub(crate) fn request(
        &mut self,
        method: Method,
        build: impl Fn(&mut MessageWriter<'_>),
    ) -> Answer {
        if self.challenge.is_none() {
            self.fetch_challenge();
        }
        let mut answer = self.exchange(&self.signed(method, &build));
        if answer.code() == 438 {
            self.take_challenge(&answer);
            answer = self.exchange(&self.signed(method, &build));
        }
        if answer.code() == 200 {
            answer
                .message()
                .check_integrity(&self.key())
                .expect("a success is signed with the user's key");
        }
        answer
    }

    /// Returns the bytes of an authenticated request under the present challenge.
    pub(crate) fn signed(&self, method: Method, build: impl Fn(&mut MessageWriter<'_>)) -> Vec<u8> {
        let challenge = self.challenge.clone().expect("a nonce was fetched");
        plain(Class::Request, method, |writer| {
            build(writer);
            self.write_origin(writer);
            self.proof(&challenge).sign(writer);
        })
    }

    fn write_origin(&self, writer: &mut MessageWriter<'_>) {
        if !self.origin.is_empty() {
            writer.origin(&self.origin);
        }
    }

    /// Returns what it signs with: whatever the test says it is, under the relay's last challenge.
    fn proof(&self, challenge: &Challenge) -> Proof {
        let choice = (self.mechanism == Mechanism::Sha256).then(|| {
            let offered = challenge.algorithms.as_deref();
            let offered = offered.expect("the server offers algorithms");
            (PasswordAlgorithm::Sha256, offered)
        });
        let realm = self.realm.as_bytes();
        Proof::claimed(self.credentials(), realm, &challenge.nonce, choice)
    }

    fn credentials(&self) -> Credentials {
        Credentials::user(&self.username, &self.password)
    }

    /// Returns the user's key under the mechanism.
    pub(crate) fn key(&self) -> IntegrityKey {
        let algorithm = match self.mechanism {
            Mechanism::Md5 => None,
            Mechanism::Sha256 => Some(PasswordAlgorithm::Sha256),
        };
        self.credentials().key(self.realm.as_bytes(), algorithm)
    }

    /// Remembers the nonce of a 401 or 438.
    pub(crate) fn take_challenge(&mut self, answer: &Answer) {
        let message = answer.message();
        let algorithms = message.raw(AttributeType::PASSWORD_ALGORITHMS);
        self.challenge = Some(Challenge {
            nonce: answer.nonce(),
            algorithms: algorithms.map(<[u8]>::to_vec),
        });
    }

    /// Asks for a nonce without credentials.
    pub(crate) fn fetch_challenge(&mut self) -> Answer {
        let answer = self
            .exchange(&plain(Class::Request, Method::ALLOCATE, |writer| {
                writer.requested_transport(17);
                self.write_origin(writer);
            }))
            .expect(401);
        self.take_challenge(&answer);
        answer
    }

    /// Returns the nonce in use.
    pub(crate) fn nonce(&self) -> Vec<u8> {
        self.challenge.clone().expect("a nonce was fetched").nonce
    }

    /// Uses this nonce from now on.
    pub(crate) fn set_nonce(&mut self, nonce: &[u8]) {
        self.challenge
            .get_or_insert(Challenge {
                nonce: Vec::new(),
                algorithms: None,
            })
            .nonce = nonce.to_vec();
    }

    /// Allocates and returns the answer.
    pub(crate) fn allocate_with(&mut self, build: impl Fn(&mut MessageWriter<'_>)) -> Answer {
        self.request(Method::ALLOCATE, |writer| {
            writer.requested_transport(UDP);
            build(writer);
        })
    }

    /// Makes an IPv4 allocation; returns its relayed transport address.
    #[track_caller]
    pub(crate) fn allocate(&mut self) -> SocketAddr {
        let answer = self.allocate_with(|_| {}).expect(200);
        relayed(&answer, AddressFamily::V4).expect("an IPv4 relayed address")
    }

    pub(crate) fn refresh(&mut self, lifetime_s: u32) -> Answer {
        self.request(Method::REFRESH, |writer| {
            writer.lifetime(lifetime_s);
        })
    }

    pub(crate) fn create_permission(&mut self, peers: &[SocketAddr]) -> Answer {
        self.request(Method::CREATE_PERMISSION, |writer| {
            for &peer in peers {
                writer.xor_peer_address(peer);
            }
        })
    }

    /// Sends a ChannelBind request; the number may be one that no channel can have.
    pub(crate) fn channel_bind(&mut self, number: u16, peer: SocketAddr) -> Answer {
        let [high, low] = number.to_be_bytes();
        self.request(Method::CHANNEL_BIND, |writer| {
            writer.bytes(AttributeType::CHANNEL_NUMBER, &[high, low, 0, 0]);
            writer.xor_peer_address(peer);
        })
    }

    // Data.

    pub(crate) fn send_indication(&mut self, peer: SocketAddr, data: &[u8]) {
        self.send_raw(&plain(Class::Indication, Method::SEND, |writer| {
            writer.xor_peer_address(peer).data(data);
        }));
    }

    pub(crate) fn send_channel_data(&mut self, number: u16, data: &[u8]) {
        let mut bytes = number.to_be_bytes().to_vec();
        bytes.extend_from_slice(
            &u16::try_from(data.len())
                .expect("a short datagram")
                .to_be_bytes(),
        );
        bytes.extend_from_slice(data);
        if self.session.link.is_stream() {
            bytes.resize(bytes.len() + padding_len(data.len()), 0); // RFC 8656 §12.5
        }
        self.send_raw(&bytes);
    }

    pub(crate) fn send_raw(&mut self, bytes: &[u8]) {
        let sent = self.session.link.send(bytes);
        sent.expect("the relay takes it");
    }

    /// Returns what comes next that is no response.
    #[track_caller]
    pub(crate) fn receive(&mut self) -> Inbound {
        let deadline = Instant::now() + PEER_TIMEOUT;
        loop {
            if let Some(inbound) = self.inbox.pop_front() {
                return inbound;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.session.link.receive(left) {
                Ok(Received::Message(message)) => self.inbox.extend(inbound(&message)),
                Ok(Received::Nothing) => panic!("nothing came from the relay"),
                Ok(Received::End) => panic!("the relay closed the connection"),
                Err(error) => panic!("client socket: {error}"),
            }
        }
    }

    /// Returns what has come to a UDP client so far that is no response.
    pub(crate) fn arrived(&mut self) -> Vec<Inbound> {
        let socket = self.socket().try_clone().expect("dup");
        socket.set_nonblocking(true).expect("fcntl");
        let mut buffer = [0; 65536];
        while let Ok(len) = socket.recv(&mut buffer) {
            self.inbox.extend(inbound(&buffer[..len]));
        }
        socket.set_nonblocking(false).expect("fcntl");
        self.inbox.drain(..).collect()
    }

    /// Makes sure that the relay is through with everything sent so far, by anyone, to this client's shard, and that what it
    /// sent in consequence has arrived.
    ///
    /// Datagrams reach a socket on the same host before `send` returns, each answer comes from another turn of the relay, and a turn
    /// reads every socket that has something; but of a relay socket that was quiet it reads one datagram, and four times as many as
    /// the time before while more wait: 1, 1, 4, 16, 64, more than any test sends to a socket before. One more turn sends what the
    /// last one queued.
    pub(crate) fn settle(&mut self) {
        for _ in 0..6 {
            self.exchange(&plain(Class::Request, Method::BINDING, |_| {}))
                .expect(200);
        }
    }

    /// Returns whether nothing at all has come to a UDP client, answers included.
    pub(crate) fn has_received_nothing(&self) -> bool {
        let socket = self.socket();
        socket.set_nonblocking(true).expect("fcntl");
        socket.recv(&mut [0; 1]).is_err()
    }

    /// Forgets data that came so far.
    pub(crate) fn forget_data(&mut self) {
        self.inbox.clear();
    }

    /// Fails if anything but responses has come, or comes while the relay settles.
    #[track_caller]
    pub(crate) fn assert_silent(&mut self) {
        self.settle();
        assert!(self.inbox.is_empty(), "the relay sent {:?}", self.inbox);
    }

    /// Sends a request once. Returns whether it is answered with `code`: whatever is answered at all is before the answer to
    /// `probe`, which is sent behind it.
    pub(crate) fn answers(&mut self, request: &[u8], code: u16, probe: &[u8]) -> bool {
        self.send_raw(request);
        let mut is_answered = false;
        let answer = self.session.exchange_hearing(probe, |other| {
            let is_its = other.get(8..20) == request.get(8..20);
            is_answered |= is_its && Answer(other).code() == code;
        });
        assert!(answer.is_some(), "the probe is answered");
        is_answered
    }

    /// Sends a request and waits for the response with its transaction id.
    #[track_caller]
    pub(crate) fn exchange(&mut self, request: &[u8]) -> Answer {
        let Self { session, inbox, .. } = self;
        let answer = session.exchange_hearing(request, |other| inbox.extend(inbound(&other)));
        match answer {
            Some(answer) => Answer(answer.0),
            None => panic!("no answer to {:?}", Message::parse(request)),
        }
    }
}

/// Returns what a message says that is no response.
fn inbound(bytes: &[u8]) -> Option<Inbound> {
    let protocol = match bytes[0] {
        80..=127 => Demux::ChannelData, // RFC 5766's numbers
        first => classify(first),
    };
    match protocol {
        Demux::ChannelData => {
            let message = ChannelData::parse_datagram(bytes).expect("well formed");
            Some(Inbound::Channel {
                number: message.number,
                data: message.data.to_vec(),
            })
        }
        Demux::Stun => {
            let message = Message::parse(bytes).expect("well formed");
            if message.class() != Class::Indication {
                return None;
            }
            let peer = message
                .xor_peer_address()
                .expect("well formed")
                .expect("a peer");
            if message.method() == Method::CONNECTION_ATTEMPT {
                let connection = message.connection_id().expect("well formed");
                let connection = connection.expect("a connection");
                return Some(Inbound::Attempt { peer, connection });
            }
            assert_eq!(message.method(), Method::DATA);
            Some(match message.icmp().expect("well formed") {
                Some(icmp) => Inbound::Icmp { peer, icmp },
                None => Inbound::Data {
                    peer,
                    data: message.data().expect("DATA").to_vec(),
                },
            })
        }
        other => panic!("the relay sent {other:?}"),
    }
}

/// Returns the relayed transport address of a family in an Allocate success.
pub(crate) fn relayed(answer: &Answer, family: AddressFamily) -> Option<SocketAddr> {
    answer
        .message()
        .xor_relayed_addresses()
        .map(|address| address.expect("well formed"))
        .find(|address| AddressFamily::of(address.ip()) == family)
}

/// Returns a channel number as a client would count them.
pub(crate) fn channel(index: u16) -> u16 {
    ChannelNumber::MIN.get() + index
}

/// Returns a peer's socket.
pub(crate) fn peer_socket(address: IpAddr) -> UdpSocket {
    let socket = UdpSocket::bind((address, 0)).expect("an address of this host");
    socket
        .set_read_timeout(Some(PEER_TIMEOUT))
        .expect("a timeout");
    socket
}

/// Returns what a peer receives next, and from where.
#[track_caller]
pub(crate) fn peer_receives(socket: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    let mut buffer = [0; 65536];
    let received = loop {
        match socket.recv_from(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => break other,
        }
    };
    let (len, from) = received.expect("the relay sends something");
    (buffer[..len].to_vec(), from)
}
