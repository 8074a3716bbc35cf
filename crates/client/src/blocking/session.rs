//! One client on one transport to a server.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use turnbuckle_wire::{Class, MessageWriter, Method, PasswordAlgorithm};

use super::link::Link;
use super::message::{Answer, code, plain};
use super::received::Received;
use super::target::Target;
use crate::plan::UDP;
use crate::proof::Proof;
use crate::transport::Transport;

/// Requests under way at once when there are many.
const WINDOW: usize = 32;

/// How long an answer may take before the request is sent again, and how often it is sent.
#[derive(Clone, Copy, Debug)]
pub struct Retransmission {
    /// After so long it is sent again.
    pub wait: Duration,
    /// How often it is sent, at least once.
    pub sends: u32,
}

impl Default for Retransmission {
    fn default() -> Self {
        Self {
            wait: Duration::from_millis(400),
            sends: 3,
        }
    }
}

/// One client on one socket.
pub struct Session {
    /// The target and the transport, if known, for opening the link again.
    target: Option<(Arc<Target>, Transport)>,
    /// What carries its messages.
    pub link: Link,
    /// Its identity.
    pub proof: Proof,
    /// How long it waits.
    pub retransmission: Retransmission,
    random: SmallRng,
}

impl Session {
    /// Returns a client on an open transport to a server.
    pub fn on(link: Link, proof: Proof) -> Self {
        Self {
            target: None,
            link,
            proof,
            retransmission: Retransmission::default(),
            random: SmallRng::seed_from_u64(RandomState::new().hash_one("session")),
        }
    }

    /// Opens a client's transport by UDP, on a port of its own.
    ///
    /// # Errors
    /// What the system says.
    pub fn udp(target: &Arc<Target>) -> io::Result<Self> {
        Self::over(target, Transport::Udp)
    }

    /// Opens a client's transport by TCP.
    ///
    /// # Errors
    /// What the system says.
    pub fn tcp(target: &Arc<Target>) -> io::Result<Self> {
        Self::over(target, Transport::Tcp)
    }

    /// Opens a client's transport, which is `transport`.
    ///
    /// # Errors
    /// Those of [`Link::open`].
    pub fn over(target: &Arc<Target>, transport: Transport) -> io::Result<Self> {
        let link = target.open(transport)?;
        Ok(Self {
            target: Some((Arc::clone(target), transport)),
            ..Self::on(link, Proof::new(target.credentials.clone()))
        })
    }

    /// Opens the transport again from another port, with the same identity.
    fn reconnect(&mut self) -> io::Result<()> {
        if let Some((target, transport)) = &self.target {
            self.link = target.open(*transport)?;
        }
        Ok(())
    }

    /// Sends bytes as they are. If the server closed the connection, or has no such port, only the missing answers show it.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.link.send(bytes);
    }

    /// Returns the next message, if one comes in time.
    pub fn receive(&mut self, wait: Duration) -> Option<Vec<u8>> {
        let Ok(Received::Message(message)) = self.link.receive(wait) else {
            return None;
        };
        if let Some((target, _)) = &self.target {
            target.observed().note(&message, !self.proof.has_key());
        }
        Some(message)
    }

    /// Returns whether the server has closed the connection, or does within `wait`. Anything else that arrives is discarded.
    pub fn is_closed(&mut self, wait: Duration) -> bool {
        self.link.is_closed(wait)
    }

    /// Sends a request and waits for its response. Other messages are discarded.
    pub fn exchange(&mut self, request: &[u8]) -> Option<Answer> {
        self.exchange_hearing(request, |_| {})
    }

    /// Sends a request and waits for its response. Other messages are passed to `other`.
    pub fn exchange_hearing(
        &mut self,
        request: &[u8],
        mut other: impl FnMut(Vec<u8>),
    ) -> Option<Answer> {
        let wanted = request.get(8..20)?.to_vec();
        let Retransmission { wait, sends } = self.retransmission;
        // Nothing is lost on a stream, so nothing is sent twice (RFC 8489 §6.2.2).
        let (wait, sends) = match self.link.is_stream() {
            true => (wait * sends, 1),
            false => (wait, sends),
        };
        for _ in 0..sends {
            self.send(request);
            let deadline = Instant::now() + wait;
            while let Some(message) =
                self.receive(deadline.saturating_duration_since(Instant::now()))
            {
                let is_response = message.first().is_some_and(|first| *first < 4)
                    && message.get(8..20) == Some(&wanted);
                if is_response {
                    return Some(Answer(message));
                }
                other(message);
            }
        }
        None
    }

    /// Requests a nonce, and uses it from now on.
    pub fn fetch_challenge(&mut self) -> Option<Answer> {
        let answer = self.exchange(&plain(Class::Request, Method::ALLOCATE, |writer| {
            writer.requested_transport(UDP);
        }))?;
        self.take_challenge(&answer);
        Some(answer)
    }

    /// Takes realm, nonce and algorithms of a challenge.
    pub fn take_challenge(&mut self, answer: &Answer) {
        if let Some(message) = answer.message() {
            self.proof.take(&message, &mut self.random);
        }
    }

    /// Behaves as if the server had offered another list of algorithms than it did, with MD5 as the choice: MD5 alone, or if that is what the server
    /// offered, a stronger algorithm besides.
    pub fn bid_down(&mut self) {
        const MD5_ALONE: &[u8] = &[0, 1, 0, 0];
        const SHA256_AND_MD5: &[u8] = &[0, 2, 0, 0, 0, 1, 0, 0];
        let proof = &self.proof;
        let claimed = if proof.algorithms() == MD5_ALONE {
            SHA256_AND_MD5
        } else {
            MD5_ALONE
        };
        let (realm, nonce) = (proof.realm().to_vec(), proof.nonce().to_vec());
        let choice = Some((PasswordAlgorithm::Md5, claimed));
        self.proof = Proof::claimed(proof.credentials().clone(), &realm, &nonce, choice);
    }

    /// Returns a request with credentials.
    pub fn signed(&self, method: Method, build: impl FnOnce(&mut MessageWriter<'_>)) -> Vec<u8> {
        plain(Class::Request, method, |writer| {
            build(writer);
            self.proof.sign(writer);
        })
    }

    /// Sends a request with credentials and returns its response. Fetches a challenge first if there was none.
    /// Repeats the request once if its nonce is stale (438).
    pub fn request(
        &mut self,
        method: Method,
        build: impl Fn(&mut MessageWriter<'_>),
    ) -> Option<Answer> {
        if !self.proof.has_key() {
            self.fetch_challenge()?;
        }
        let answer = self.exchange(&self.signed(method, &build))?;
        if answer.code() != 438 {
            return Some(answer);
        }
        self.take_challenge(&answer);
        self.exchange(&self.signed(method, &build))
    }

    /// Allocates.
    ///
    /// # Errors
    /// The error code if it is refused, 0 if nothing comes.
    pub fn allocate(
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

    /// Refreshes the allocation; a lifetime of zero seconds deletes it.
    pub fn refresh(&mut self, lifetime: u32) -> Option<Answer> {
        self.request(Method::REFRESH, |writer| {
            writer.lifetime(lifetime);
        })
    }

    /// Returns whether the server answers a Binding request.
    pub fn is_answered(&mut self) -> bool {
        let request = || plain(Class::Request, Method::BINDING, |_| {});
        if self.exchange(&request()).is_some() {
            return true;
        }
        // A connection may be closed for what was sent on it before.
        self.link.is_stream() && self.reconnect().is_ok() && self.exchange(&request()).is_some()
    }

    /// Sends many requests, some of them concurrently. Calls `done` with the code of each response, 0 if none came.
    pub fn many<T>(
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
        let is_stream = self.link.is_stream();
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
                if answer.code() == 438 && request.sends <= self.retransmission.sends {
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
                if request.sent.elapsed() < self.retransmission.wait {
                    continue;
                }
                if request.sends >= self.retransmission.sends * if is_stream { 4 } else { 1 } {
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

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{SocketAddr, TcpListener, UdpSocket};
    use std::thread;

    use turnbuckle_wire::{AttributeType, Message};

    use super::super::stream::{Stream, tcp};
    use super::*;
    use crate::credentials::Credentials;

    /// Returns a server's message with the transaction of `request`.
    fn to(request: &[u8], class: Class, build: impl FnOnce(&mut MessageWriter<'_>)) -> Vec<u8> {
        let request = Message::parse(request).unwrap();
        let mut bytes = vec![0; 512];
        let transaction = request.transaction_id();
        let mut writer = MessageWriter::new(&mut bytes, class, request.method(), transaction);
        build(&mut writer);
        let len = writer.finish().unwrap();
        bytes.truncate(len);
        bytes
    }

    fn challenge(request: &[u8], code: u16, nonce: &[u8]) -> Vec<u8> {
        to(request, Class::Error, |writer| {
            writer
                .error_code(code, "")
                .realm(b"example.org")
                .nonce(nonce)
                .password_algorithms(&[PasswordAlgorithm::Sha256]);
        })
    }

    fn target(server: SocketAddr) -> Arc<Target> {
        let user = Credentials::user("alice", "secret");
        Arc::new(Target::new(server, 5349, user).unwrap())
    }

    #[test]
    fn a_datagram_that_is_not_answered_is_sent_again_and_what_comes_besides_is_handed_on() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let server = UdpSocket::bind(any).unwrap();
            let mut session = Session::udp(&target(server.local_addr().unwrap())).unwrap();
            session.retransmission = Retransmission {
                wait: Duration::from_millis(20),
                sends: 1_000,
            };
            let answering = thread::spawn(move || {
                let mut buffer = [0; 1500];
                let (first, _) = server.recv_from(&mut buffer).unwrap();
                let first = buffer[..first].to_vec();
                let (again, from) = server.recv_from(&mut buffer).unwrap();
                assert_eq!(buffer[..again], first);
                server.send_to(b"@\0\0\x04data", from).unwrap();
                let answer = to(&first, Class::Success, |_| {});
                server.send_to(&answer, from).unwrap();
            });
            let request = plain(Class::Request, Method::BINDING, |_| {});
            let mut besides = Vec::new();
            let answer = session.exchange_hearing(&request, |message| besides.push(message));
            assert_eq!(code(answer.as_ref()), 200);
            assert_eq!(besides, [b"@\0\0\x04data"]);
            answering.join().unwrap();
        }
    }

    #[test]
    fn a_request_is_signed_for_a_challenge_and_once_more_for_a_new_nonce() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap();
        let answering = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut answers = stream.try_clone().unwrap();
            let mut next = || {
                let mut header = [0; 20];
                stream.read_exact(&mut header).unwrap();
                let len = usize::from(u16::from_be_bytes([header[2], header[3]]));
                let mut rest = vec![0; len];
                stream.read_exact(&mut rest).unwrap();
                [&header[..], &rest].concat()
            };
            let unsigned = next();
            assert!(!Message::parse(&unsigned).unwrap().has_integrity_sha1());
            let answer = challenge(&unsigned, 401, b"first");
            // In two parts: a stream has no messages.
            answers.write_all(&answer[..7]).unwrap();
            answers.write_all(&answer[7..]).unwrap();
            let stale = next();
            answers
                .write_all(&challenge(&stale, 438, b"second"))
                .unwrap();
            let fresh = next();
            for (signed, nonce) in [(&stale, b"first".as_slice()), (&fresh, b"second")] {
                let message = Message::parse(signed).unwrap();
                let user = Credentials::user("alice", "secret");
                let key = user.key(b"example.org", Some(PasswordAlgorithm::Sha256));
                assert_eq!(message.check_integrity(&key), Ok(()));
                assert_eq!(message.nonce(), Ok(Some(nonce)));
                assert!(message.raw(AttributeType::PASSWORD_ALGORITHMS).is_some());
            }
            answers
                .write_all(&to(&fresh, Class::Success, |_| {}))
                .unwrap();
        });
        let mut session = Session::tcp(&target(server)).unwrap();
        assert!(session.allocate(UDP, |_| {}).is_ok());
        answering.join().unwrap();
        assert!(session.is_closed(Duration::from_secs(20)));
    }

    #[test]
    fn who_was_offered_a_choice_can_pretend_to_have_been_offered_less() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let link = Link::Stream(Stream::new(tcp(listener.local_addr().unwrap()).unwrap()));
        let mut session = Session::on(link, Proof::new(Credentials::user("alice", "secret")));
        let request = plain(Class::Request, Method::ALLOCATE, |_| {});
        session.take_challenge(&Answer(challenge(&request, 401, b"nonce")));
        session.bid_down();
        let signed = session.signed(Method::ALLOCATE, |_| {});
        let message = Message::parse(&signed).unwrap();
        assert_eq!(
            message.raw(AttributeType::PASSWORD_ALGORITHMS),
            Some(&[0, 1, 0, 0][..])
        );
        assert_eq!(message.nonce(), Ok(Some(b"nonce".as_slice())));
        assert_eq!(message.realm(), Ok(Some(b"example.org".as_slice())));
    }
}
