//! Effects of many strangers on others: whether calls go on, whether new clients get in, whether slow ones do (V-42, V-47, V-48).
//!
//! The command line gives the number of strangers, their source addresses and the duration. Traffic goes to the named server alone.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use openssl::ssl::SslStream;
use turnbuckle_wire::{ChannelNumber, Class, Method};

use crate::context::Context;
use crate::report::{Verdict, judge, refused};
use turnbuckle_client::UDP;
use turnbuckle_client::blocking::{Answer, Link, Session, Stream, code, plain};
use turnbuckle_client::{Transport, blocking};

/// How long strangers wait for a connection, or for a response.
const WAIT: Duration = Duration::from_millis(500);
/// How often a stranger that holds a place says something.
const KEEPALIVE: Duration = Duration::from_secs(50);
/// Strangers of one thread that may fail in a row before no more are tried.
const FAILURES_MAX: u32 = 3;
/// Between two datagrams of a call, and between two new clients.
const CALL_INTERVAL: Duration = Duration::from_millis(10);
const CLIENT_INTERVAL: Duration = Duration::from_millis(250);
/// How long a slow client takes for its hello.
const SLOW: Duration = Duration::from_millis(1500);
const CHANNEL: ChannelNumber = ChannelNumber::MIN;

/// Returns the source addresses of strangers: those that were given, or `None` for the kernel's choice.
fn sources(context: &Context) -> Vec<Option<IpAddr>> {
    match context.strangers.sources.is_empty() {
        true => vec![None],
        false => context
            .strangers
            .sources
            .iter()
            .copied()
            .map(Some)
            .collect(),
    }
}

/// Returns how many strangers each source has.
fn share(context: &Context) -> usize {
    context.strangers.count.div_ceil(sources(context).len())
}

/// Runs `attack` once for each source, each in a thread of its own, and `meanwhile` until it returns; the attacks end then.
fn during<T>(
    context: &Context,
    attack: impl Fn(Option<IpAddr>, &AtomicBool) + Sync,
    meanwhile: impl FnOnce() -> T,
) -> T {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for source in sources(context) {
            let (attack, is_over) = (&attack, &is_over);
            scope.spawn(move || attack(source, is_over));
        }
        let result = meanwhile();
        is_over.store(true, Ordering::Relaxed);
        result
    })
}

/// Opens connections that are silent first, then each send a ClientHello, and go; a call goes on meanwhile, and loses what takes a second (V-47).
pub(super) fn hellos(context: &Context, over: Transport) -> io::Result<Verdict> {
    let mut call = match Call::begin(context)? {
        Ok(call) => call,
        Err(verdict) => return Ok(verdict),
    };
    let quiet = call.go_on(context.strangers.time);
    let server = context.target.address(over);
    let hello = context.target.contexts.client_hello()?;
    let said = AtomicU64::new(0);
    let attack = |source: Option<IpAddr>, is_over: &AtomicBool| {
        while !is_over.load(Ordering::Relaxed) {
            let silent: Vec<_> = (0..share(context))
                .take_while(|_| !is_over.load(Ordering::Relaxed))
                .map_while(|_| blocking::tcp_from(source, server, WAIT).ok())
                .collect();
            for mut stream in silent {
                said.fetch_add(
                    u64::from(stream.write_all(&hello).is_ok()),
                    Ordering::Relaxed,
                );
                reset(stream);
            }
        }
    };
    let attacked = during(context, attack, || call.go_on(context.strangers.time));
    call.end();
    let text = format!(
        "{} hellos; a call lost {} of {} datagrams and took {:.1} ms at the 99th percentile, {:.1} ms before",
        said.into_inner(),
        attacked.lost,
        attacked.sent,
        millis(attacked.p99),
        millis(quiet.p99),
    );
    // How slow a call may become is for who knows what else keeps the machine busy to judge.
    let is_bad = attacked.lost > quiet.lost;
    Ok(judge(text.clone(), &vec![text; usize::from(is_bad)]))
}

/// Opens connections, or sessions of DTLS, that say one Binding request a minute and hold what places they get; new clients come meanwhile (V-42, V-47).
pub(super) fn held(context: &Context, over: Transport) -> io::Result<Verdict> {
    let (answered, begun) = (AtomicU64::new(0), AtomicU64::new(0));
    let attack = |source: Option<IpAddr>, is_over: &AtomicBool| {
        let mut held = Vec::new();
        let mut failures = 0;
        for _ in 0..share(context) {
            if failures == FAILURES_MAX || is_over.load(Ordering::Relaxed) {
                break;
            }
            match stranger(context, over, source) {
                Ok(link) => {
                    failures = 0;
                    held.push(link);
                    answered.fetch_add(1, Ordering::Relaxed);
                }
                Err(_) => failures += 1,
            }
        }
        begun.fetch_add(1, Ordering::Relaxed);
        let mut due = Instant::now() + KEEPALIVE;
        while !is_over.load(Ordering::Relaxed) {
            if Instant::now() >= due {
                due += KEEPALIVE;
                held.retain_mut(|link| link.send(&binding()).is_ok());
            }
            thread::sleep(CALL_INTERVAL);
        }
    };
    let source_count = u64::try_from(sources(context).len()).unwrap_or(1);
    let (clients, wrong) = during(context, attack, || {
        // Until all are there, or no more get in.
        let timeout = Instant::now() + 4 * context.strangers.time;
        while begun.load(Ordering::Relaxed) < source_count && Instant::now() < timeout {
            thread::sleep(CALL_INTERVAL);
        }
        new_clients(context, over)
    });
    let text = format!(
        "{} strangers were answered; then {clients} clients allocated",
        answered.into_inner()
    );
    Ok(judge(text, &wrong))
}

/// Has clients allocate for as long as an attack lasts, by UDP and by `over` in turn. Returns how many did, and what went wrong.
fn new_clients(context: &Context, over: Transport) -> (u32, Vec<String>) {
    let until = Instant::now() + context.strangers.time;
    let (mut clients, mut wrong) = (0, Vec::new());
    while Instant::now() < until {
        for by in [Transport::Udp, over] {
            if !context.speaks(by) {
                continue;
            }
            let allocated = Session::over(&context.target, by).map(|mut session| {
                let allocated = session.allocate(UDP, |_| {}).map(|_| ());
                let _ = session.refresh(0);
                allocated
            });
            match allocated {
                Ok(Ok(())) => clients += 1,
                Ok(Err(0)) => wrong.push(format!("no answer to an Allocate by {}", by.name())),
                Ok(Err(code)) => wrong.push(format!("{code} to an Allocate by {}", by.name())),
                Err(error) => wrong.push(format!("no way in by {}: {error}", by.name())),
            }
        }
        thread::sleep(CLIENT_INTERVAL);
    }
    (clients, wrong)
}

/// Opens connections at the rate of a flood, while a client takes its time for a handshake of TLS (V-48).
pub(super) fn slow_client(context: &Context, over: Transport) -> io::Result<Verdict> {
    if context.strangers.sources.is_empty() {
        let why = "without --source the flood and the client have one address";
        return Ok(Verdict::NotTried(why.to_owned()));
    }
    let server = context.target.address(over);
    let came = AtomicU64::new(0);
    let rate = context.strangers.flood_rate
        / u32::try_from(context.strangers.sources.len())
            .unwrap_or(1)
            .max(1);
    let interval = Duration::from_secs(1) / rate.max(1);
    let attack = |source: Option<IpAddr>, is_over: &AtomicBool| {
        let mut open = VecDeque::new();
        let mut due = Instant::now();
        while !is_over.load(Ordering::Relaxed) {
            let now = Instant::now();
            if now < due {
                thread::sleep(due - now);
            }
            due = due.max(now) + interval;
            if let Ok(stream) = blocking::tcp_from(source, server, WAIT) {
                came.fetch_add(1, Ordering::Relaxed);
                open.push_back(stream);
            }
            if open.len() > share(context)
                && let Some(oldest) = open.pop_front()
            {
                reset(oldest);
            }
        }
        open.into_iter().for_each(reset);
    };
    let began = Instant::now();
    let (served, wrong) = during(context, attack, || {
        let until = Instant::now() + context.strangers.time;
        let (mut served, mut wrong) = (0, Vec::new());
        while Instant::now() < until {
            match be_slow(context, over) {
                Ok(()) => served += 1,
                Err(error) => wrong.push(format!("a slow client is not served: {error}")),
            }
        }
        (served, wrong)
    });
    let (came, seconds) = (came.into_inner(), began.elapsed().as_secs().max(1));
    let text = format!(
        "{served} slow clients were served while {} connections a second came",
        came / seconds
    );
    Ok(judge(text, &wrong))
}

/// Completes a TLS handshake, with a pause in the middle of the ClientHello, and sends a Binding request.
fn be_slow(context: &Context, over: Transport) -> io::Result<()> {
    let stream = blocking::tcp(context.target.address(over))?;
    stream.set_read_timeout(Some(SLOW * 2))?;
    let ssl = context.target.contexts.tls_client()?;
    let carrier = Slow {
        stream,
        is_late: true,
    };
    let mut tls = SslStream::new(ssl, carrier).map_err(io::Error::other)?;
    tls.do_handshake().map_err(io::Error::other)?;
    tls.write_all(&binding())?;
    match tls.read(&mut [0; 512])? {
        0 => Err(ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

/// A connection whose first bytes come in two parts.
#[derive(Debug)]
struct Slow {
    stream: TcpStream,
    is_late: bool,
}

impl Read for Slow {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.read(buffer)
    }
}

impl Write for Slow {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if std::mem::take(&mut self.is_late) {
            let (first, second) = bytes.split_at(bytes.len() / 2);
            self.stream.write_all(first)?;
            thread::sleep(SLOW);
            self.stream.write_all(second)?;
            return Ok(bytes.len());
        }
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Connects from `source` without credentials, has a Binding request answered, and keeps the connection open.
fn stranger(context: &Context, over: Transport, source: Option<IpAddr>) -> io::Result<Link> {
    let server = context.target.address(over);
    let mut link = match over {
        Transport::Dtls => {
            let session = blocking::dtls_from(&context.target.contexts, source, server)?;
            Link::Dtls(Box::new(session))
        }
        _ => Link::Stream(Stream::new(blocking::tcp_from(source, server, WAIT)?)),
    };
    link.send(&binding())?;
    match link.receive(WAIT)? {
        blocking::Received::Message(_) => Ok(link),
        blocking::Received::Nothing => Err(ErrorKind::TimedOut.into()),
        blocking::Received::End => Err(ErrorKind::UnexpectedEof.into()),
    }
}

fn binding() -> Vec<u8> {
    plain(Class::Request, Method::BINDING, |_| {})
}

/// Closes a connection so that nothing of it stays on this side.
fn reset(stream: TcpStream) {
    let _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
    drop(stream);
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// Two clients that have a call through the server: each has an allocation, and one's datagrams come out at the other.
struct Call {
    caller: Session,
    called: Session,
}

/// What became of a call's datagrams.
struct Received {
    sent: u32,
    lost: u32,
    p99: Duration,
}

impl Call {
    /// Begins a call by UDP.
    fn begin(context: &Context) -> io::Result<Result<Self, Verdict>> {
        let mut call = Self {
            caller: Session::udp(&context.target)?,
            called: Session::udp(&context.target)?,
        };
        let mut relayed = Vec::new();
        for session in [&mut call.caller, &mut call.called] {
            match session.allocate(UDP, |_| {}) {
                Ok(answer) => relayed.extend(relayed_address(&answer)),
                Err(code) => return Ok(Err(refused(code))),
            }
        }
        let &[ours, theirs] = &relayed[..] else {
            return Ok(Err(Verdict::NotTried("no relayed address".to_owned())));
        };
        let mut refusal = None;
        for (session, peer) in [(&mut call.caller, theirs), (&mut call.called, ours)] {
            let bound = session.request(Method::CHANNEL_BIND, |writer| {
                writer.channel_number(CHANNEL).xor_peer_address(peer);
            });
            let code = code(bound.as_ref());
            if code != 200 {
                refusal = Some(code);
            }
        }
        let Some(code) = refusal else {
            return Ok(Ok(call));
        };
        call.end();
        let why = format!("a channel to the other client's relayed address: {code}");
        Ok(Err(Verdict::NotTried(why)))
    }

    /// Goes on for some time, a datagram after the other.
    fn go_on(&mut self, time: Duration) -> Received {
        let until = Instant::now() + time;
        let (mut times, mut lost) = (Vec::new(), 0);
        let mut number = 0_u32;
        while Instant::now() < until {
            let began = Instant::now();
            number += 1;
            let [high, low] = CHANNEL.get().to_be_bytes();
            let message = [&[high, low, 0, 4][..], &number.to_be_bytes()].concat();
            self.caller.send(&message);
            let is_heard = loop {
                let left = Duration::from_secs(1).saturating_sub(began.elapsed());
                match self.called.receive(left) {
                    Some(heard) if heard == message => break true,
                    Some(_) => {} // one that was given up
                    None => break false,
                }
            };
            match is_heard {
                true => times.push(began.elapsed()),
                false => lost += 1,
            }
            thread::sleep(CALL_INTERVAL.saturating_sub(began.elapsed()));
        }
        times.sort_unstable();
        let index = times.len() * 99 / 100;
        Received {
            sent: number,
            lost,
            p99: times.get(index).copied().unwrap_or_default(),
        }
    }

    fn end(mut self) {
        for session in [&mut self.caller, &mut self.called] {
            let _ = session.refresh(0);
        }
    }
}

/// Returns the relayed address in the answer to an Allocate.
fn relayed_address(answer: &Answer) -> Option<SocketAddr> {
    answer.message()?.xor_relayed_address().ok()?
}
