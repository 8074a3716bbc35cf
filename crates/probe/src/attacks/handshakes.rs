//! Handshakes of TLS and DTLS that go wrong, stop halfway or never begin (V-42, V-48).

use std::io::{self, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use super::streams::wait_for_ends;
use crate::context::Context;
use crate::report::{Verdict, judge};
use turnbuckle_client::blocking::Session;
use turnbuckle_client::{Transport, blocking};

const WAIT: Duration = Duration::from_millis(200);
/// Hellos before a server counts as one that does not answer them.
const ATTEMPTS: u32 = 20;
/// Hellos without a cookie.
const HELLOS: u32 = 5_000;
/// Times that these are tried.
const FLOODS: u32 = 3;
/// How long a handshake may take meanwhile.
const HANDSHAKE_MAX: Duration = Duration::from_secs(1);
/// TLS handshakes that stop halfway.
const HALVES: usize = 48;
/// Types of handshake messages (RFC 6347 §4.3.2).
const SERVER_HELLO: u8 = 2;
const HELLO_VERIFY_REQUEST: u8 = 3;
/// Where a handshake message begins behind the header of its record, and its body behind both.
const MESSAGE: usize = 13;
const BODY: usize = MESSAGE + 12;

/// Returns a ClientHello of DTLS 1.2 with one suite and no extension (RFC 6347 §4.2.1).
fn hello(random: [u8; 32], cookie: &[u8]) -> Vec<u8> {
    let mut body = vec![0xFE, 0xFD];
    body.extend(random);
    body.push(0); // session id
    body.push(u8::try_from(cookie.len()).unwrap_or(u8::MAX));
    body.extend(cookie);
    body.extend([0, 2, 0xC0, 0x2B, 1, 0]);
    let second = u8::from(!cookie.is_empty());
    let len = u8::try_from(body.len()).unwrap_or(u8::MAX);
    let message = [&[1, 0, 0, len, 0, second, 0, 0, 0, 0, 0, len][..], &body].concat();
    let len = u8::try_from(message.len()).unwrap_or(u8::MAX);
    let record = [22, 0xFE, 0xFF, 0, 0, 0, 0, 0, 0, 0, second, 0, len];
    [&record[..], &message].concat()
}

/// Sends this datagram alone from a new port and returns the answers. Tries again from another port, since datagrams may be lost.
fn ask_as_strangers(server: SocketAddr, datagram: &[u8]) -> io::Result<Vec<Vec<u8>>> {
    for _ in 0..ATTEMPTS {
        let answers = ask(&blocking::udp(None, server)?, datagram);
        if !answers.is_empty() {
            return Ok(answers);
        }
    }
    Ok(Vec::new())
}

fn ask(socket: &UdpSocket, datagram: &[u8]) -> Vec<Vec<u8>> {
    let _ = socket.set_read_timeout(Some(WAIT));
    let _ = socket.send(datagram);
    let mut answers = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(len) = socket.recv(&mut buffer) {
        answers.push(buffer.get(..len).unwrap_or_default().to_vec());
    }
    answers
}

/// Sends a ClientHello without a cookie, and checks that the server answers with no more than it brought (V-42).
pub(super) fn before_a_cookie(context: &Context, over: Transport) -> io::Result<Verdict> {
    let hello = hello([0x42; 32], &[]);
    let answers = ask_as_strangers(context.target.address(over), &hello)?;
    let received: usize = answers.iter().map(Vec::len).sum();
    let text = format!("{received} bytes for {}", hello.len());
    let wrong = if received > hello.len() {
        vec![text.clone()]
    } else {
        Vec::new()
    };
    Ok(judge(text, &wrong))
}

/// Uses a cookie that was given to another port (V-42).
pub(super) fn stolen_cookie(context: &Context, over: Transport) -> io::Result<Verdict> {
    let server = context.target.address(over);
    let random = [0x43; 32];
    let cookie_in = |answer: &Vec<u8>| {
        let is_request = answer.get(MESSAGE) == Some(&HELLO_VERIFY_REQUEST);
        let len = usize::from(*answer.get(BODY + 2)?);
        let cookie = answer.get(BODY + 3..BODY + 3 + len)?;
        is_request.then(|| cookie.to_vec())
    };
    let answers = ask_as_strangers(server, &hello(random, &[]))?;
    let Some(cookie) = answers.iter().find_map(cookie_in) else {
        return Ok(judge("", &["no cookie is asked for".to_owned()]));
    };
    let answers = ask(&blocking::udp(None, server)?, &hello(random, &cookie));
    let is_taken = |answer: &Vec<u8>| {
        answer.first() == Some(&22) && answer.get(MESSAGE) == Some(&SERVER_HELLO)
    };
    let wrong = match answers.iter().any(is_taken) {
        true => vec!["it is taken".to_owned()],
        false => Vec::new(),
    };
    Ok(judge(
        format!("a cookie of {} bytes is of no use to others", cookie.len()),
        &wrong,
    ))
}

/// Sends hellos of many clients that never say more, and then comes as one that does (V-42). Once in a while its own is lost, and it waits a second before it
/// sends another; so it may try again.
pub(super) fn flood(context: &Context, over: Transport) -> io::Result<Verdict> {
    let mut verdict = flood_once(context, over)?;
    for _ in 1..FLOODS {
        if matches!(verdict, Verdict::Held(_)) {
            break;
        }
        verdict = flood_once(context, over)?;
    }
    Ok(verdict)
}

fn flood_once(context: &Context, over: Transport) -> io::Result<Verdict> {
    let socket = blocking::udp(None, context.target.address(over))?;
    socket.set_nonblocking(true)?;
    let mut buffer = [0; 4096];
    for number in 0..HELLOS {
        let mut random = [0; 32];
        let (first, _) = random.split_at_mut(4);
        first.copy_from_slice(&number.to_be_bytes());
        let _ = socket.send(&hello(random, &[]));
        while socket.recv(&mut buffer).is_ok() {}
        if number % 64 == 63 {
            std::thread::sleep(Duration::from_micros(500));
        }
    }
    let begun = Instant::now();
    let opened = Session::over(&context.target, over);
    let taken = begun.elapsed();
    let wrong = match opened {
        Ok(_) if taken < HANDSHAKE_MAX => Vec::new(),
        Ok(_) => vec![format!("a handshake takes {} ms", taken.as_millis())],
        Err(error) => vec![format!("no handshake: {error}")],
    };
    Ok(judge(
        format!(
            "{HELLOS} hellos, then a handshake in {} ms",
            taken.as_millis()
        ),
        &wrong,
    ))
}

/// Sends handshakes that are cut off, taken back, in records of one byte, or none at all, and checks that others are served (V-48).
pub(super) fn gone_wrong(context: &Context, over: Transport) -> io::Result<Verdict> {
    let hello = context.target.contexts.client_hello()?;
    let message = hello.get(5..).unwrap_or_default();
    let record = |len: u16, body: &[u8]| [&[22, 3, 1][..], &len.to_be_bytes(), body].concat();
    let crumbs: Vec<u8> = message
        .iter()
        .flat_map(|byte| record(1, &[*byte]))
        .collect();
    let close_notify = [21, 3, 1, 0, 2, 1, 0];
    let cases: [(&str, Vec<u8>); 7] = [
        (
            "half a hello",
            message
                .get(..40)
                .map_or_else(Vec::new, |half| record(0x0200, half)),
        ),
        ("a hello in records of one byte", crumbs),
        (
            "a hello that is taken back",
            [&hello[..], &close_notify].concat(),
        ),
        ("records without content", record(0, &[]).repeat(200)),
        ("a record of 65,535 bytes", record(0xFFFF, &[1; 20_000])),
        (
            "a handshake message of 16 MB",
            record(0x4000, &[&[1, 0xFF, 0xFF, 0xFF][..], &[0; 0x3FFC]].concat()).repeat(4),
        ),
        (
            "a hello of SSL 2",
            [&[0x80, 0x2E, 1, 3, 1, 0, 0x15, 0, 0, 0, 0x10][..], &[0; 37]].concat(),
        ),
    ];
    let mut wrong = Vec::new();
    let mut kept = Vec::new();
    for (what, bytes) in &cases {
        for _ in 0..10 {
            let mut stream = blocking::tcp(context.target.address(over))?;
            let _ = stream.write_all(bytes);
            kept.push(stream);
        }
        let beside = Session::over(&context.target, over);
        if !beside.is_ok_and(|mut session| session.is_answered()) {
            wrong.push(format!("nobody is served any more after {what}"));
            break;
        }
    }
    Ok(judge(
        format!("{} kinds, and others are served", cases.len()),
        &wrong,
    ))
}

/// Opens connections that begin a TLS handshake and never end it (V-48).
pub(super) fn half_open(context: &Context, over: Transport) -> io::Result<Verdict> {
    let hello = context.target.contexts.client_hello()?;
    let mut open = Vec::new();
    for index in 0..HALVES {
        let mut stream = blocking::tcp(context.target.address(over))?;
        let len = 1 + index * hello.len() / HALVES;
        let _ = stream.write_all(hello.get(..len).unwrap_or(&hello));
        open.push((false, stream));
    }
    wait_for_ends(open)
}
