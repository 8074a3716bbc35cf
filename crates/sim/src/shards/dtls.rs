//! A client's end of sessions that look like those of DTLS, and what strangers send in clients' names to end them. `simulation::clear` has the records.

use turnbuckle_server::simulation::clear::{
    ALERT, CLOSE_NOTIFY, FINISHED, PROOF_LEN, SERVER_HELLO, write_record,
};

use crate::queue::{MS, SECOND};
use crate::random::Seeded;
use crate::violation::{Coverage, Violation, ensure};

/// Kinds of records (RFC 6347 §4.3.1).
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;
/// Types of handshake messages (RFC 6347 §4.3.2).
const CLIENT_HELLO: u8 = 1;
const HELLO_VERIFY_REQUEST: u8 = 3;
/// How long a flight waits before it is sent again.
const REPEAT: u64 = 400 * MS;
/// How long nothing proves itself before the client begins anew.
const SILENCE: u64 = 10 * SECOND;
/// How long a session lasts at least without an allocation, and without a message of the client.
const LASTS: u64 = 60 * SECOND;
/// See [`LASTS`].
const SAYS: u64 = 5 * SECOND;

/// How far a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A hello is under way.
    Hello,
    /// What stands for a Finished is under way.
    Finished,
    Open,
}

/// A client's sessions at one address: one after the other.
#[derive(Debug)]
pub(super) struct Sessions {
    name: [u8; 32],
    cookie: Vec<u8>,
    state: State,
    /// When the last flight was sent.
    flight_at: Option<u64>,
    /// When something has proven itself last, or the session began.
    heard_at: u64,
    begun_at: u64,
    /// When the client has said something last, or the session began.
    said_at: u64,
    sent: u64,
    /// What proves that something is of an earlier session.
    former: Vec<[u8; PROOF_LEN]>,
    random: Seeded,
}

/// What was in a datagram.
#[derive(Debug, Default)]
pub(super) struct Opened {
    pub(super) messages: Vec<Vec<u8>>,
    /// What is sent in answer, as it is.
    pub(super) answers: Vec<Vec<u8>>,
    /// When the session began that the server has ended before its time.
    pub(super) ended: Option<u64>,
}

impl Sessions {
    /// Begins the first session.
    pub(super) fn new(now: u64, mut random: Seeded) -> Self {
        Self {
            name: drawn(&mut random),
            cookie: Vec::new(),
            state: State::Hello,
            flight_at: None,
            heard_at: now,
            begun_at: now,
            said_at: now,
            sent: 0,
            former: Vec::new(),
            random,
        }
    }

    /// Writes a message, or what the handshake needs before it, if that has not been sent just now: the message is forgotten then.
    pub(super) fn seal(&mut self, now: u64, message: &[u8]) -> Option<Vec<u8>> {
        if self.state == State::Open {
            self.said_at = now;
            return Some(self.record(APPLICATION_DATA, 1, [&self.proof(), message]));
        }
        if self.flight_at.is_some_and(|at| now < at + REPEAT) {
            return None;
        }
        self.flight_at = Some(now);
        Some(self.flight())
    }

    /// Begins another session if the client waits and nothing has proven itself for long. Returns since when there was the session that is over, if it
    /// was open.
    pub(super) fn begin_anew_if_silent(
        &mut self,
        now: u64,
        waits_since: Option<u64>,
    ) -> Option<u64> {
        let since = waits_since?.max(self.heard_at);
        if now < since + SILENCE {
            return None;
        }
        let was_open = self.state == State::Open;
        let begun_at = self.begun_at;
        self.begin_anew(now);
        was_open.then_some(begun_at)
    }

    /// Begins another session at the same address, as a client does that has been started anew (RFC 6347 §4.2.8).
    pub(super) fn begin_anew(&mut self, now: u64) {
        self.former.push(self.proof());
        self.name = drawn(&mut self.random);
        self.cookie.clear();
        (self.state, self.flight_at) = (State::Hello, None);
        (self.heard_at, self.begun_at, self.said_at) = (now, now, now);
    }

    /// Reads a datagram. What is of an earlier session is passed over; what is of nobody's this client has had must not come.
    pub(super) fn open(
        &mut self,
        now: u64,
        datagram: &[u8],
        coverage: &mut Coverage,
    ) -> Result<Opened, Violation> {
        let mut opened = Opened::default();
        let mut rest = datagram;
        while let Some((kind, epoch, fragment, behind)) = record(rest) {
            rest = behind;
            match (kind, epoch, fragment) {
                (HANDSHAKE, 0, [HELLO_VERIFY_REQUEST, message @ ..]) => {
                    // The rest of the header, a version and a length.
                    let cookie = message.get(11 + 2 + 1..).unwrap_or_default();
                    if self.state == State::Hello && self.cookie != cookie {
                        self.cookie = cookie.to_vec();
                        opened.answers.push(self.flight());
                    }
                }
                (HANDSHAKE, 0, [SERVER_HELLO, name @ ..]) => {
                    if self.is_of_this_one(name)? {
                        self.heard_at = now;
                        if self.state == State::Hello {
                            self.state = State::Finished;
                        }
                        if self.state == State::Finished {
                            opened.answers.push(self.flight());
                        }
                    }
                }
                (HANDSHAKE, 1, [FINISHED, name @ ..]) => {
                    if self.is_of_this_one(name)? && self.state != State::Open {
                        coverage.count("sessions", 0);
                        self.heard_at = now;
                        self.state = State::Open;
                    }
                }
                (APPLICATION_DATA, 1, fragment) => {
                    if self.is_of_this_one(fragment)? {
                        self.heard_at = now;
                        self.state = State::Open;
                        opened.messages.push(fragment[PROOF_LEN..].to_vec());
                    }
                }
                (ALERT, 1, fragment) => {
                    if self.is_of_this_one(fragment)? && fragment[PROOF_LEN..] == CLOSE_NOTIFY {
                        coverage.count("sessions ended by the server", 0);
                        let is_due = now >= self.begun_at + LASTS || now >= self.said_at + SAYS;
                        opened.ended = (!is_due).then_some(self.begun_at);
                        self.begin_anew(now);
                    }
                }
                _ => {
                    return Err(Violation::new("sessions", format!("a record of {kind}")));
                }
            }
        }
        ensure(rest.is_empty(), "sessions", || {
            format!("{} bytes are no record", rest.len())
        })?;
        Ok(opened)
    }

    /// Returns whether something proves that it is of this session; false if it is of an earlier one.
    fn is_of_this_one(&self, proof: &[u8]) -> Result<bool, Violation> {
        let proof = proof.first_chunk::<PROOF_LEN>();
        let is_former = proof.is_some_and(|it| self.former.contains(it));
        let is_this = proof == Some(&self.proof());
        ensure(is_this || is_former, "sessions", || {
            "a record of somebody else's session".to_owned()
        })?;
        Ok(is_this)
    }

    fn proof(&self) -> [u8; PROOF_LEN] {
        *self.name.first_chunk().unwrap_or(&[0; PROOF_LEN])
    }

    fn flight(&mut self) -> Vec<u8> {
        match self.state {
            State::Hello => {
                let body = hello(&self.name, &self.cookie);
                self.record(HANDSHAKE, 0, [&body, &[]])
            }
            State::Finished | State::Open => {
                let name = self.name;
                self.record(HANDSHAKE, 1, [&[FINISHED], &name])
            }
        }
    }

    fn record(&mut self, kind: u8, epoch: u16, parts: [&[u8]; 2]) -> Vec<u8> {
        self.sent += 1;
        let mut out = Vec::new();
        write_record(&mut out, kind, epoch, self.sent, parts);
        out
    }
}

/// Returns a hello that somebody sends in a client's name: without a cookie, or with one that he has not been given.
pub(super) fn forged_hello(random: &mut Seeded) -> Vec<u8> {
    let mut cookie = vec![0; if random.one_in(2) { 17 } else { 0 }];
    random.fill_bytes(&mut cookie);
    let body = hello(&drawn(random), &cookie);
    let mut out = Vec::new();
    write_record(&mut out, HANDSHAKE, 0, 0, [&body, &[]]);
    out
}

/// Returns a record that somebody sends in a client's name, without what proves that it is of the session.
pub(super) fn forged_record(random: &mut Seeded) -> Vec<u8> {
    let kind = [ALERT, APPLICATION_DATA, HANDSHAKE][random.index(3)];
    let mut out = Vec::new();
    let proof: [u8; 32] = drawn(random);
    write_record(&mut out, kind, 1, 99, [&proof[..PROOF_LEN], &CLOSE_NOTIFY]);
    out
}

/// Writes a ClientHello (RFC 6347 §4.2.1) with one suite, behind the header of its message.
fn hello(random: &[u8; 32], cookie: &[u8]) -> Vec<u8> {
    let mut body = vec![0xFE, 0xFD];
    body.extend(random);
    body.push(0); // session
    body.push(u8::try_from(cookie.len()).unwrap_or(0));
    body.extend(cookie);
    body.extend([0, 2, 0xC0, 0x2F, 1, 0]); // suites, compression
    let len = u32::try_from(body.len()).unwrap_or(0).to_be_bytes();
    let mut message = vec![CLIENT_HELLO];
    message.extend(&len[1..]);
    message.extend([0, 0, 0, 0, 0]); // the number of the message, where it begins
    message.extend(&len[1..]);
    message.extend(body);
    message
}

/// Returns the kind, the epoch and the fragment of the first record of a datagram, and what is behind it.
fn record(datagram: &[u8]) -> Option<(u8, u16, &[u8], &[u8])> {
    let (head, rest) = datagram.split_first_chunk::<13>()?;
    let len = usize::from(u16::from_be_bytes([head[11], head[12]]));
    let (fragment, behind) = rest.split_at_checked(len)?;
    Some((
        head[0],
        u16::from_be_bytes([head[3], head[4]]),
        fragment,
        behind,
    ))
}

fn drawn(random: &mut Seeded) -> [u8; 32] {
    let mut bytes = [0; 32];
    random.fill_bytes(&mut bytes);
    bytes
}
