//! What strangers and clients can use up (V-40 to V-54).

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use turnbuckle_wire::{Class, Method};

use super::authentication::refused;
use super::judge;
use crate::probe::Context;
use crate::probe::report::Verdict;
use crate::probe::session::{Answer, Session, UDP, plain};

const WAIT: Duration = Duration::from_millis(200);
/// Bare requests of one source.
const FLOOD: u32 = 30_000;
/// Times that ports are taken and given back.
const CYCLES: u32 = 500;
/// Permissions asked for on one allocation.
const PERMISSIONS: u32 = 4_000;
/// Connections that trickle, and how long a server may bear with them.
const TRICKLES: usize = 50;
const TRICKLE_DEADLINE: Duration = Duration::from_secs(35);
/// RFC 8656 §7.2 recommends an hour.
const LIFETIME_MAX: u32 = 3600;

/// V-40: requests that are smaller than their answers, many from one source.
pub(super) fn amplification(context: &Context) -> io::Result<Verdict> {
    let mut session = Session::udp(&context.target)?;
    let shapes = [
        Method::ALLOCATE,
        Method::REFRESH,
        Method::BINDING,
        Method::CREATE_PERMISSION,
        Method::CHANNEL_BIND,
        Method::CONNECT,
    ];
    let (mut sent, mut received) = (0, 0);
    let mut largest = (0.0, Method::BINDING);
    for method in shapes {
        let request = plain(Class::Request, method, |_| {});
        let answer = session
            .exchange(&request)
            .map_or(0, |answer| answer.0.len());
        let ratio = ratio(answer, request.len());
        if ratio > largest.0 {
            largest = (ratio, method);
        }
    }
    for number in 0..FLOOD {
        let index = number as usize % shapes.len();
        let request = plain(
            Class::Request,
            shapes.get(index).copied().unwrap_or(Method::BINDING),
            |_| {},
        );
        session.send(&request);
        sent += request.len();
        while let Some(answer) = session.receive(if number % 64 == 0 {
            Duration::from_micros(200)
        } else {
            Duration::from_nanos(1)
        }) {
            received += answer.len();
        }
    }
    while let Some(answer) = session.receive(WAIT) {
        received += answer.len();
    }
    let all = ratio(received, sent);
    let text = format!(
        "{received} bytes for {sent} of a flood: {all:.2}; one answer at most {:.1} ({:?})",
        largest.0, largest.1
    );
    let wrong = if all > 1.0 {
        vec![text.clone()]
    } else {
        Vec::new()
    };
    Ok(judge(text, &wrong))
}

#[expect(clippy::cast_precision_loss, reason = "byte counts of a short run")]
fn ratio(out: usize, of: usize) -> f64 {
    out as f64 / of.max(1) as f64
}

/// V-41: responses and indications that come to the server.
pub(super) fn reflection(context: &Context) -> io::Result<Verdict> {
    let mut session = Session::udp(&context.target)?;
    let methods = [
        Method::BINDING,
        Method::ALLOCATE,
        Method::REFRESH,
        Method::SEND,
        Method::DATA,
        Method::CREATE_PERMISSION,
    ];
    let mut sent = 0;
    for method in methods {
        for class in [Class::Success, Class::Error, Class::Indication] {
            session.send(&plain(class, method, |writer| {
                if class == Class::Error {
                    writer.error_code(401, "");
                }
            }));
            sent += 1;
        }
    }
    let mut wrong = Vec::new();
    while let Some(answer) = session.receive(WAIT) {
        wrong.push(format!(
            "{} bytes in answer to what asks nothing",
            answer.len()
        ));
    }
    Ok(judge(
        format!("silence to {sent} responses and indications"),
        &wrong,
    ))
}

/// V-42: a ClientHello without a cookie gets more than it brought.
pub(super) fn dtls(context: &Context) -> io::Result<Verdict> {
    let mut session = Session::udp(&context.target)?;
    let hello = client_hello();
    session.send(&hello);
    let mut received = 0;
    while let Some(answer) = session.receive(WAIT) {
        received += answer.len();
    }
    if received == 0 {
        return Ok(Verdict::NotTried("no DTLS is spoken".to_owned()));
    }
    let text = format!("{received} bytes for {}", hello.len());
    let wrong = if received > hello.len() {
        vec![text.clone()]
    } else {
        Vec::new()
    };
    Ok(judge(text, &wrong))
}

/// A ClientHello of DTLS 1.2 with one suite, no cookie and no extension (RFC 6347 §4.2.1).
fn client_hello() -> Vec<u8> {
    let mut body = vec![0xFE, 0xFD];
    body.extend([0x42; 32]);
    body.extend([0, 0]); // session id, cookie
    body.extend([0, 2, 0xC0, 0x2B, 1, 0]);
    let len = u8::try_from(body.len()).unwrap_or(u8::MAX);
    let handshake = [&[1, 0, 0, len, 0, 0, 0, 0, 0, 0, 0, len][..], &body].concat();
    let len = u8::try_from(handshake.len()).unwrap_or(u8::MAX);
    [
        &[22, 0xFE, 0xFF, 0, 0, 0, 0, 0, 0, 0, 0, 0, len][..],
        &handshake,
    ]
    .concat()
}

/// V-44: pairs of ports reserved and given back, until they are used up.
pub(super) fn reservations(context: &Context) -> io::Result<Verdict> {
    let mut refusals = 0;
    // Each time another client: servers may keep a 5-tuple to themselves for a while.
    for cycle in 0..CYCLES {
        let mut session = Session::udp(&context.target)?;
        let allocated = session.allocate(UDP, |writer| {
            writer.even_port(cycle % 2 == 0);
        });
        match allocated {
            Ok(_) => {
                let _ = session.refresh(0);
            }
            // Reservations last 30 seconds, so some may be waiting; ports without one must not run out.
            Err(_) => refusals += 1,
        }
    }
    let mut session = Session::udp(&context.target)?;
    let wrong = match session.allocate(UDP, |_| {}) {
        Ok(_) => Vec::new(),
        Err(code) => vec![format!(
            "after {CYCLES} times Allocate is answered with {code}"
        )],
    };
    let _ = session.refresh(0);
    Ok(judge(
        format!("{CYCLES} times, {refusals} refused; allocations go on"),
        &wrong,
    ))
}

/// V-45: as many permissions as one likes.
pub(super) fn permissions(context: &Context) -> io::Result<Verdict> {
    let mut session = Session::udp(&context.target)?;
    let mut allocated = session.allocate(UDP, |_| {});
    // A port that was used a moment ago may still be another client's to the server.
    for _ in 0..10 {
        if matches!(allocated, Err(437)) {
            session = Session::udp(&context.target)?;
            allocated = session.allocate(UDP, |_| {});
        }
    }
    if let Err(code) = allocated {
        return Ok(refused(code));
    }
    let peers: Vec<SocketAddr> = (0..PERMISSIONS)
        .map(|number| {
            let ip = Ipv4Addr::from_bits(u32::from(Ipv4Addr::new(21, 1, 0, 1)) + number);
            SocketAddr::new(ip.into(), 9)
        })
        .collect();
    let (mut granted, mut refused) = (0, 0);
    session.many(
        &peers,
        |session, peer| {
            session.signed(Method::CREATE_PERMISSION, |writer| {
                writer.xor_peer_address(*peer);
            })
        },
        |_, code| match code {
            200 => granted += 1,
            508 => refused += 1,
            _ => {}
        },
    );
    let _ = session.refresh(0);
    let mut wrong = Vec::new();
    if refused == 0 {
        wrong.push(format!(
            "{granted} permissions on one allocation, and no end"
        ));
    }
    if !session.is_answered() {
        wrong.push("the server does not answer any more".to_owned());
    }
    Ok(judge(format!("{granted} granted, then 508"), &wrong))
}

/// V-47: connections that begin a message and never end it.
pub(super) fn trickle(context: &Context) -> io::Result<Verdict> {
    if context.quick {
        return Ok(Verdict::NotTried("has to wait for deadlines".to_owned()));
    }
    let begun = plain(Class::Request, Method::ALLOCATE, |_| {});
    let mut open = Vec::new();
    for index in 0..TRICKLES {
        let Ok(mut stream) =
            TcpStream::connect_timeout(&context.target.server, Duration::from_secs(2))
        else {
            return Ok(Verdict::NotTried("nobody listens by TCP".to_owned()));
        };
        stream.set_nonblocking(true)?;
        let len = index % begun.len();
        let _ = stream.write_all(begun.get(..len).unwrap_or_default());
        open.push(stream);
    }
    let started = Instant::now();
    while !open.is_empty() && started.elapsed() < TRICKLE_DEADLINE {
        open.retain_mut(|stream| {
            matches!(stream.read(&mut [0; 64]), Err(error) if error.kind() == ErrorKind::WouldBlock)
        });
        std::thread::sleep(Duration::from_millis(100));
    }
    let seconds = started.elapsed().as_secs();
    let wrong = match open.len() {
        0 => Vec::new(),
        left => vec![format!(
            "{left} of {TRICKLES} connections are open after {seconds} s"
        )],
    };
    Ok(judge(
        format!("{TRICKLES} connections closed within {seconds} s"),
        &wrong,
    ))
}

/// V-49: PADDING (RFC 5780 §7.6) that a stranger asks for.
pub(super) fn padding(context: &Context) -> io::Result<Verdict> {
    let mut session = Session::udp(&context.target)?;
    let mut wrong = Vec::new();
    let mut texts = Vec::new();
    for len in [0, 64, 1000] {
        let request = plain(Class::Request, Method::BINDING, |writer| {
            writer.padding(len);
        });
        let answer = session
            .exchange(&request)
            .map_or(0, |answer| answer.0.len());
        texts.push(format!("{answer} for {}", request.len()));
        // A bare answer with its addresses is larger than a bare request; padding must not add to that.
        if answer > request.len() + 100 {
            wrong.push(format!("{answer} bytes for {}", request.len()));
        }
    }
    Ok(judge(format!("bytes: {}", texts.join(", ")), &wrong))
}

/// V-52: lifetimes at both ends.
pub(super) fn lifetimes(context: &Context) -> io::Result<Verdict> {
    let mut session = Session::udp(&context.target)?;
    if let Err(code) = session.allocate(UDP, |_| {}) {
        return Ok(refused(code));
    }
    let granted =
        |answer: Option<Answer>| answer.and_then(|answer| answer.message()?.lifetime().ok()?);
    let longest = granted(session.refresh(u32::MAX)).unwrap_or(0);
    let shortest = granted(session.refresh(1)).unwrap_or(0);
    let _ = session.refresh(0);
    let mut wrong = Vec::new();
    if longest > LIFETIME_MAX {
        wrong.push(format!("{longest} seconds are granted"));
    }
    Ok(judge(
        format!("4294967295 s become {longest}, 1 s becomes {shortest}"),
        &wrong,
    ))
}
