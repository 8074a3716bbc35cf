//! A blocking client that says what it is told to, be it right or not, by any transport, and remembers what came back.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use turnbuckle_wire::{
    AttributeType, Class, IntegrityKey, Message, MessageWriter, Method, PasswordAlgorithm,
    TransactionId, padding_len,
};

use super::link::{Contexts, Link, Transport};
use crate::client::Credentials;

/// How long an answer may take before the request is sent again, and how often it is sent.
const ANSWER_WAIT: Duration = Duration::from_millis(400);
const SENDS: u32 = 3;
/// Requests under way at once when there are many.
const WINDOW: usize = 32;
/// UDP and TCP, for REQUESTED-TRANSPORT.
pub(super) const UDP: u8 = 17;
pub(super) const TCP: u8 = 6;

/// The server that is tried, and who tries it.
pub(super) struct Target {
    pub(super) server: SocketAddr,
    /// Where TLS and DTLS are spoken.
    pub(super) tls_port: u16,
    pub(super) credentials: Credentials,
    pub(super) contexts: Contexts,
    observed: Mutex<Observed>,
}

impl Target {
    pub(super) fn new(
        server: SocketAddr,
        tls_port: u16,
        credentials: Credentials,
    ) -> io::Result<Self> {
        Ok(Self {
            server,
            tls_port,
            credentials,
            contexts: Contexts::new()?,
            observed: Mutex::default(),
        })
    }

    /// Where clients of a transport go to.
    pub(super) fn address(&self, transport: Transport) -> SocketAddr {
        match transport.is_secure() {
            true => SocketAddr::new(self.server.ip(), self.tls_port),
            false => self.server,
        }
    }

    fn open(&self, transport: Transport) -> io::Result<Link> {
        Link::open(&self.contexts, transport, self.address(transport))
    }

    /// What showed so far.
    pub(super) fn observed(&self) -> MutexGuard<'_, Observed> {
        self.observed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What showed in any answer, whatever it was to.
#[derive(Default)]
pub(super) struct Observed {
    /// Answers seen.
    pub(super) answers: u64,
    /// Attributes padded with something else than zero.
    pub(super) dirty_padding: Vec<u16>,
    /// SOFTWARE in an answer to somebody who had proved nothing.
    pub(super) software: Option<String>,
    /// Redirections of somebody who had proved nothing.
    pub(super) redirections: u64,
}

impl Observed {
    fn note(&mut self, bytes: &[u8], is_stranger: bool) {
        let Ok(message) = Message::parse(bytes) else {
            return;
        };
        self.answers += 1;
        if is_stranger {
            if let Ok(Some(software)) = message.software() {
                self.software = Some(String::from_utf8_lossy(software).into_owned());
            }
            let is_redirection =
                matches!(message.error_code(), Ok(Some(error)) if error.code == 300);
            self.redirections += u64::from(is_redirection);
        }
        let mut rest = bytes.get(20..).unwrap_or_default();
        while let [k0, k1, l0, l1, tail @ ..] = rest {
            let len = usize::from(u16::from_be_bytes([*l0, *l1]));
            let padded = len + padding_len(len);
            if tail
                .get(len..padded)
                .is_some_and(|padding| padding.iter().any(|byte| *byte != 0))
            {
                self.dirty_padding.push(u16::from_be_bytes([*k0, *k1]));
            }
            rest = tail.get(padded..).unwrap_or_default();
        }
    }
}

/// A response.
#[derive(Clone, Debug)]
pub(super) struct Answer(pub(super) Vec<u8>);

impl Answer {
    /// The error code; 200 for success, 0 for what is no response.
    pub(super) fn code(&self) -> u16 {
        match self
            .message()
            .map(|message| (message.class(), message.error_code()))
        {
            Some((Class::Success, _)) => 200,
            Some((Class::Error, Ok(Some(error)))) => error.code,
            _ => 0,
        }
    }

    pub(super) fn message(&self) -> Option<Message<'_>> {
        Message::parse(&self.0).ok()
    }
}

/// The code of an answer; 0 if there was none.
pub(super) fn code(answer: Option<&Answer>) -> u16 {
    answer.map_or(0, Answer::code)
}

/// One client on one socket.
pub(super) struct Session<'a> {
    target: &'a Target,
    pub(super) transport: Transport,
    link: Link,
    /// What came of a stream and is no whole message yet.
    unread: Vec<u8>,
    pub(super) credentials: Credentials,
    realm: Vec<u8>,
    nonce: Vec<u8>,
    /// PASSWORD-ALGORITHMS as it came.
    algorithms: Vec<u8>,
    algorithm: Option<PasswordAlgorithm>,
    key: Option<IntegrityKey>,
}

impl<'a> Session<'a> {
    /// A client by UDP, on a port of its own.
    pub(super) fn udp(target: &'a Target) -> io::Result<Self> {
        Self::over(target, Transport::Udp)
    }

    /// A client by TCP.
    pub(super) fn tcp(target: &'a Target) -> io::Result<Self> {
        Self::over(target, Transport::Tcp)
    }

    /// A client that comes by `transport`.
    pub(super) fn over(target: &'a Target, transport: Transport) -> io::Result<Self> {
        Ok(Self {
            target,
            transport,
            link: target.open(transport)?,
            unread: Vec::new(),
            credentials: target.credentials.clone(),
            realm: Vec::new(),
            nonce: Vec::new(),
            algorithms: Vec::new(),
            algorithm: None,
            key: None,
        })
    }

    /// Comes again, from another port; who it is stays.
    fn reconnect(&mut self) -> io::Result<()> {
        self.link = self.target.open(self.transport)?;
        self.unread.clear();
        Ok(())
    }

    /// Sends bytes as they are. A server that closed its end, or has no such port, shows in the answers that do not come.
    pub(super) fn send(&mut self, bytes: &[u8]) {
        let _ = self.link.send(bytes);
    }

    /// The next message, if one comes in time.
    pub(super) fn receive(&mut self, wait: Duration) -> Option<Vec<u8>> {
        let deadline = Instant::now() + wait;
        let mut buffer = [0; 65536];
        loop {
            if let Some(message) = first_message(&mut self.unread) {
                return Some(self.noted(message));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let bytes = match self.link.receive(&mut buffer, left) {
                Ok(0) if self.transport != Transport::Udp => return None,
                Ok(len) => buffer.get(..len).unwrap_or_default(),
                Err(error) if is_passing(&error) => continue,
                Err(_) => return None,
            };
            if !self.transport.is_stream() {
                return Some(self.noted(bytes.to_vec()));
            }
            self.unread.extend_from_slice(bytes);
        }
    }

    /// Whether the server has closed the connection, or does within `wait`; what else comes is thrown away.
    pub(super) fn is_closed(&mut self, wait: Duration) -> bool {
        let deadline = Instant::now() + wait;
        let mut buffer = [0; 4096];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            match self.link.receive(&mut buffer, left) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) if is_passing(&error) => {}
                Err(_) => return true,
            }
        }
    }

    fn noted(&self, message: Vec<u8>) -> Vec<u8> {
        let is_stranger = self.key.is_none();
        self.target.observed().note(&message, is_stranger);
        message
    }

    /// Sends a request and waits for its response.
    pub(super) fn exchange(&mut self, request: &[u8]) -> Option<Answer> {
        let wanted = request.get(8..20)?.to_vec();
        let sends = if self.transport.is_stream() { 1 } else { SENDS };
        for _ in 0..sends {
            self.send(request);
            let deadline = Instant::now() + ANSWER_WAIT * (SENDS + 1 - sends);
            while let Some(message) =
                self.receive(deadline.saturating_duration_since(Instant::now()))
            {
                let is_response = message.first().is_some_and(|first| *first < 4)
                    && message.get(8..20) == Some(&wanted);
                if is_response {
                    return Some(Answer(message));
                }
            }
        }
        None
    }

    /// Asks for a nonce, and takes the one that comes.
    pub(super) fn fetch_challenge(&mut self) -> Option<Answer> {
        let answer = self.exchange(&plain(Class::Request, Method::ALLOCATE, |writer| {
            writer.requested_transport(UDP);
        }))?;
        self.take_challenge(&answer);
        Some(answer)
    }

    /// Takes realm, nonce and algorithms of a challenge.
    pub(super) fn take_challenge(&mut self, answer: &Answer) {
        let Some(message) = answer.message() else {
            return;
        };
        let Ok(Some(nonce)) = message.nonce() else {
            return;
        };
        self.nonce = nonce.to_vec();
        if let Ok(Some(realm)) = message.realm() {
            self.realm = realm.to_vec();
        }
        self.algorithms.clear();
        self.algorithm = None;
        if let (Ok(Some(offered)), Some(raw)) = (
            message.password_algorithms(),
            message.raw(AttributeType::PASSWORD_ALGORITHMS),
        ) {
            self.algorithm = [PasswordAlgorithm::Sha256, PasswordAlgorithm::Md5]
                .into_iter()
                .find(|&algorithm| offered.contains(algorithm));
            self.algorithms = raw.to_vec();
        }
        self.key = Some(self.credentials.key(&self.realm, self.algorithm));
    }

    pub(super) fn realm(&self) -> &[u8] {
        &self.realm
    }

    pub(super) fn nonce(&self) -> &[u8] {
        &self.nonce
    }

    /// Whether the server offers a choice of algorithms.
    pub(super) fn is_offered_algorithms(&self) -> bool {
        !self.algorithms.is_empty()
    }

    /// Becomes whom another session is, nonce included.
    pub(super) fn impersonate(&mut self, other: &Self) {
        self.realm.clone_from(&other.realm);
        self.nonce.clone_from(&other.nonce);
        self.algorithms.clone_from(&other.algorithms);
        self.algorithm = other.algorithm;
        self.credentials = other.credentials.clone();
        self.key = Some(self.credentials.key(&self.realm, self.algorithm));
    }

    /// Pretends to have been offered MD5 alone.
    pub(super) fn bid_down(&mut self) {
        self.algorithm = Some(PasswordAlgorithm::Md5);
        self.algorithms = vec![0, 1, 0, 0];
        self.key = Some(self.credentials.key(&self.realm, self.algorithm));
    }

    /// A request with credentials.
    pub(super) fn signed(
        &self,
        method: Method,
        build: impl FnOnce(&mut MessageWriter<'_>),
    ) -> Vec<u8> {
        plain(Class::Request, method, |writer| {
            build(writer);
            let Some(key) = &self.key else {
                return;
            };
            writer
                .username(self.credentials.username().as_bytes())
                .realm(&self.realm)
                .nonce(&self.nonce);
            if let Some(algorithm) = self.algorithm {
                writer
                    .bytes(AttributeType::PASSWORD_ALGORITHMS, &self.algorithms)
                    .password_algorithm(algorithm);
            }
            writer.integrity(key);
        })
    }

    /// A request with credentials and its response, after a new challenge if that is what comes first.
    pub(super) fn request(
        &mut self,
        method: Method,
        build: impl Fn(&mut MessageWriter<'_>),
    ) -> Option<Answer> {
        if self.key.is_none() {
            self.fetch_challenge()?;
        }
        let answer = self.exchange(&self.signed(method, &build))?;
        if answer.code() != 438 {
            return Some(answer);
        }
        self.take_challenge(&answer);
        self.exchange(&self.signed(method, &build))
    }

    /// Allocates; the error code if it is refused, 0 if nothing comes.
    pub(super) fn allocate(
        &mut self,
        transport: u8,
        build: impl Fn(&mut MessageWriter<'_>),
    ) -> Result<Answer, u16> {
        let answer = self.request(Method::ALLOCATE, |writer| {
            writer.requested_transport(transport);
            build(writer);
        });
        match answer {
            Some(answer) if answer.code() == 200 => Ok(answer),
            other => Err(code(other.as_ref())),
        }
    }

    pub(super) fn refresh(&mut self, lifetime: u32) -> Option<Answer> {
        self.request(Method::REFRESH, |writer| {
            writer.lifetime(lifetime);
        })
    }

    /// Whether the server answers a Binding request.
    pub(super) fn is_answered(&mut self) -> bool {
        let request = || plain(Class::Request, Method::BINDING, |_| {});
        if self.exchange(&request()).is_some() {
            return true;
        }
        // A connection may be closed for what was sent on it before.
        self.transport.is_stream()
            && self.reconnect().is_ok()
            && self.exchange(&request()).is_some()
    }

    /// Has many requests answered, some at once. `done` is told the code of each, 0 where nothing came.
    pub(super) fn many<T>(
        &mut self,
        items: &[T],
        build: impl Fn(&Self, &T) -> Vec<u8>,
        mut done: impl FnMut(&T, u16),
    ) {
        struct Waiting {
            index: usize,
            bytes: Vec<u8>,
            sent: Instant,
            sends: u32,
        }
        let is_stream = self.transport.is_stream();
        let mut waiting: BTreeMap<Vec<u8>, Waiting> = BTreeMap::new();
        let mut next = 0;
        while next < items.len() || !waiting.is_empty() {
            while waiting.len() < WINDOW
                && let Some(item) = items.get(next)
            {
                let bytes = build(self, item);
                self.send(&bytes);
                let id = bytes.get(8..20).unwrap_or_default().to_vec();
                let sent = Instant::now();
                waiting.insert(
                    id,
                    Waiting {
                        index: next,
                        bytes,
                        sent,
                        sends: 1,
                    },
                );
                next += 1;
            }
            if let Some(message) = self.receive(Duration::from_millis(50)) {
                let id = message.get(8..20).unwrap_or_default();
                let Some(request) = waiting.remove(id) else {
                    continue;
                };
                let answer = Answer(message);
                let Some(item) = items.get(request.index) else {
                    continue;
                };
                if answer.code() == 438 && request.sends <= SENDS {
                    self.take_challenge(&answer);
                    let bytes = build(self, item);
                    self.send(&bytes);
                    let id = bytes.get(8..20).unwrap_or_default().to_vec();
                    let again = Waiting {
                        bytes,
                        sent: Instant::now(),
                        sends: request.sends + 1,
                        ..request
                    };
                    waiting.insert(id, again);
                } else {
                    done(item, answer.code());
                }
                continue;
            }
            let mut lost = Vec::new();
            for (id, request) in &mut waiting {
                if request.sent.elapsed() < ANSWER_WAIT {
                    continue;
                }
                if request.sends >= SENDS * if is_stream { 4 } else { 1 } {
                    lost.push(id.clone());
                    continue;
                }
                request.sends += 1;
                request.sent = Instant::now();
                if !is_stream {
                    let _ = self.link.send(&request.bytes);
                }
            }
            for id in lost {
                if let Some(item) = waiting
                    .remove(&id)
                    .and_then(|request| items.get(request.index))
                {
                    done(item, 0);
                }
            }
        }
    }
}

/// Whether a socket's error is only that nothing came, or that something sent before did not arrive.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock
            | ErrorKind::TimedOut
            | ErrorKind::Interrupted
            | ErrorKind::ConnectionRefused
    )
}

/// Takes the first whole message out of a stream's bytes (RFC 8489 §6.2.2, RFC 8656 §12.5).
fn first_message(unread: &mut Vec<u8>) -> Option<Vec<u8>> {
    let &[first, _, high, low, ..] = unread.as_slice() else {
        return None;
    };
    let len = usize::from(u16::from_be_bytes([high, low]));
    let whole = if first < 0x40 {
        20 + len
    } else {
        4 + len + padding_len(len)
    };
    (unread.len() >= whole).then(|| unread.drain(..whole).collect())
}

/// A message without credentials.
pub(super) fn plain(
    class: Class,
    method: Method,
    build: impl FnOnce(&mut MessageWriter<'_>),
) -> Vec<u8> {
    let mut bytes = vec![0; 65_600];
    let transaction = next_transaction_id();
    let mut writer = MessageWriter::new(&mut bytes, class, method, transaction);
    build(&mut writer);
    // What is too long for a message is none, and gets no answer.
    let len = writer.finish().unwrap_or(0);
    bytes.truncate(len);
    bytes
}

/// Appends an attribute wherever the message ends, be it behind the integrity attribute, and corrects the length field.
pub(super) fn append(message: &mut Vec<u8>, kind: AttributeType, value: &[u8]) {
    let len = u16::try_from(value.len()).unwrap_or(u16::MAX);
    message.extend_from_slice(&kind.number().to_be_bytes());
    message.extend_from_slice(&len.to_be_bytes());
    message.extend_from_slice(value);
    message.resize(message.len() + padding_len(value.len()), 0);
    let total = u16::try_from(message.len().saturating_sub(20)).unwrap_or(u16::MAX);
    if let Some(field) = message.get_mut(2..4) {
        field.copy_from_slice(&total.to_be_bytes());
    }
}

/// Different for every message of a run, and of runs side by side.
fn next_transaction_id() -> TransactionId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let mut bytes = [0; 12];
    let (process, number) = bytes.split_at_mut(4);
    process.copy_from_slice(&std::process::id().to_be_bytes());
    number.copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    TransactionId::new(bytes)
}
