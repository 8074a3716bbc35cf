//! Binding requests that find out what stands between this host and a STUN server, and their answers (RFC 5780).
//!
//! A request may leave from one port and its answer be awaited at another. It is sent again while there is no answer, as
//! RFC 8489 §6.2.1 says, because one lost datagram must not be taken for a filter.

pub(crate) mod report;

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use turnbuckle_wire::{ChangeRequest, Class, Message, MessageWriter, Method, TransactionId};

use crate::stop::Stop;

/// How long the first request waits for its answer; each further one twice as long as the one before (RFC 8489 §6.2.1).
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// How often a wait looks up whether the program is to end.
const LOOK_UP: Duration = Duration::from_millis(100);
/// Length of the PADDING asked for, as in coturn's programs: an Ethernet frame.
const PADDING_LEN: usize = 1500;
/// Longest datagram.
const DATAGRAM_LEN_MAX: usize = 65_507;

/// A UDP port of this host.
#[derive(Debug)]
pub(crate) struct Port {
    socket: UdpSocket,
    /// Where it is.
    pub(crate) local: SocketAddr,
}

/// What a Binding request asks for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ask {
    /// From where the answer shall come.
    pub(crate) change: Option<ChangeRequest>,
    /// To which port of the address that the server sees the answer shall go.
    pub(crate) response_port: Option<u16>,
    /// That request and answer be longer than a frame.
    pub(crate) is_padded: bool,
}

/// What a server saw, and where it says that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reflection {
    /// The address in the clear, which an application-level gateway may have changed.
    pub(crate) mapped: Option<SocketAddr>,
    /// The address that the request came from.
    pub(crate) xor_mapped: SocketAddr,
    /// Where the answer left from.
    pub(crate) origin: Option<SocketAddr>,
    /// Where the server listens besides.
    pub(crate) other: Option<SocketAddr>,
    /// From the last request to its answer.
    pub(crate) delay: Duration,
}

/// Why there is no reflection.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A signal asked for the end.
    Ended,
    /// The host could not send or receive.
    Io(io::Error),
    /// The server's answer has no address in it.
    NoAddress,
    /// The server's answer is an error.
    Refused(u16, String),
    /// No answer.
    Timeout,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended => f.write_str("ended by a signal"),
            Self::Io(error) => error.fmt(f),
            Self::NoAddress => f.write_str("Not received mapped address attribute."),
            Self::Refused(code, reason) => write!(f, "The response is an error {code} ({reason})"),
            Self::Timeout => f.write_str("STUN receive timeout.."),
        }
    }
}

impl Port {
    /// Binds `port`, 0 for any, of `local` or else of the address from which datagrams to `server` leave.
    ///
    /// # Errors
    /// The host has no such address, or no way to `server`, or somebody has the port.
    pub(crate) fn open(local: Option<IpAddr>, port: u16, server: SocketAddr) -> io::Result<Self> {
        let any = match server {
            SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
            SocketAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
        };
        let ip = match local {
            Some(ip) => ip,
            None => {
                // A socket with a destination tells the address; the one that is kept has none, to hear from everywhere.
                let route = UdpSocket::bind((any, 0))?;
                route.connect(server)?;
                route.local_addr()?.ip()
            }
        };
        let socket = UdpSocket::bind((ip, port))?;
        let local = socket.local_addr()?;
        Ok(Self { socket, local })
    }

    /// Asks `server` and awaits the answer here.
    ///
    /// # Errors
    /// As [`Port::ask_for`].
    pub(crate) fn ask(
        &self,
        server: SocketAddr,
        ask: &Ask,
        timeout: Duration,
        stop: &Stop,
    ) -> Result<Reflection, Failure> {
        self.ask_for(self, server, ask, timeout, stop)
    }

    /// Asks `server` from here and awaits the answer at `receiver`.
    ///
    /// # Errors
    /// What came instead of a reflection, or that nothing came within `timeout`.
    pub(crate) fn ask_for(
        &self,
        receiver: &Self,
        server: SocketAddr,
        ask: &Ask,
        timeout: Duration,
        stop: &Stop,
    ) -> Result<Reflection, Failure> {
        let transaction = transaction_id()?;
        let request = request(transaction, ask);
        let mut buffer = vec![0; DATAGRAM_LEN_MAX];
        let end = Instant::now() + timeout;
        let mut wait = FIRST_WAIT;
        while Instant::now() < end {
            let sent = Instant::now();
            let sending = self.socket.send_to(&request, server);
            sending.map_err(Failure::Io)?;
            let until = end.min(sent + wait);
            wait *= 2;
            while let Some(bytes) = receiver.receive(&mut buffer, until, stop)? {
                let Some(message) = message_of(bytes, transaction) else {
                    continue;
                };
                match message.class() {
                    Class::Success => return reflection(&message, sent.elapsed()),
                    Class::Error => return Err(refusal(&message)),
                    Class::Request | Class::Indication => {}
                }
            }
        }
        Err(Failure::Timeout)
    }

    /// Sends a Binding request to `mapped`, from where it should come to `receiver`, and waits for it there.
    ///
    /// # Errors
    /// It did not come within `timeout`.
    pub(crate) fn knock(
        &self,
        receiver: &Self,
        mapped: SocketAddr,
        ask: &Ask,
        timeout: Duration,
    ) -> Result<(), Failure> {
        let transaction = transaction_id()?;
        let mut buffer = vec![0; DATAGRAM_LEN_MAX];
        let sending = self.socket.send_to(&request(transaction, ask), mapped);
        sending.map_err(Failure::Io)?;
        let until = Instant::now() + timeout;
        while let Some(bytes) = receiver.receive(&mut buffer, until, &Stop::default())? {
            let message = message_of(bytes, transaction);
            if message.is_some_and(|message| message.class() == Class::Request) {
                return Ok(());
            }
        }
        Err(Failure::Timeout)
    }

    /// Receives the next datagram; `None` when it is `until`.
    fn receive<'b>(
        &self,
        buffer: &'b mut [u8],
        until: Instant,
        stop: &Stop,
    ) -> Result<Option<&'b [u8]>, Failure> {
        loop {
            if stop.is_ended() {
                return Err(Failure::Ended);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let setting = self.socket.set_read_timeout(Some(left.min(LOOK_UP)));
            setting.map_err(Failure::Io)?;
            match self.socket.recv(buffer) {
                Ok(len) => return Ok(buffer.get(..len)),
                Err(error) if is_passing(&error) => {}
                Err(error) => return Err(Failure::Io(error)),
            }
        }
    }
}

/// Returns whether waiting goes on: nothing came yet, or an ICMP error of an earlier datagram.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock
            | io::ErrorKind::TimedOut
            | io::ErrorKind::Interrupted
            | io::ErrorKind::ConnectionRefused
    )
}

fn transaction_id() -> Result<TransactionId, Failure> {
    let mut bytes = [0; 12];
    let filled = getrandom::fill(&mut bytes);
    filled.map_err(|error| Failure::Io(io::Error::other(error.to_string())))?;
    Ok(TransactionId::new(bytes))
}

fn request(transaction: TransactionId, ask: &Ask) -> Vec<u8> {
    let mut bytes = vec![0; 64 + PADDING_LEN];
    let mut writer = MessageWriter::new(&mut bytes, Class::Request, Method::BINDING, transaction);
    if let Some(port) = ask.response_port {
        writer.response_port(port);
    }
    if let Some(change) = ask.change {
        writer.change_request(change);
    }
    if ask.is_padded {
        writer.padding(PADDING_LEN);
    }
    // Cannot fail: the buffer has room for all of it.
    let len = writer.finish().unwrap_or_default();
    bytes.truncate(len);
    bytes
}

/// Returns the message in `bytes`, if it belongs to this transaction.
fn message_of(bytes: &[u8], transaction: TransactionId) -> Option<Message<'_>> {
    let message = Message::parse(bytes).ok()?;
    let is_ours = message.transaction_id() == transaction && message.method() == Method::BINDING;
    is_ours.then_some(message)
}

fn reflection(message: &Message<'_>, delay: Duration) -> Result<Reflection, Failure> {
    let mapped = message.mapped_address().ok().flatten();
    let xor_mapped = message.xor_mapped_address().ok().flatten();
    Ok(Reflection {
        mapped,
        xor_mapped: xor_mapped.or(mapped).ok_or(Failure::NoAddress)?,
        origin: message.response_origin().ok().flatten(),
        other: message.other_address().ok().flatten(),
        delay,
    })
}

fn refusal(message: &Message<'_>) -> Failure {
    let (code, given) = match message.error_code() {
        Ok(Some(error)) => (error.code, String::from_utf8_lossy(error.reason)),
        _ => (0, "".into()),
    };
    // Servers leave it out for strangers.
    let reason = match (code, &*given) {
        (420, "") => "Unknown Attribute",
        (401, "") => "Unauthorized",
        (400, "") => "Bad Request",
        _ => &given,
    };
    Failure::Refused(code, reason.to_owned())
}
