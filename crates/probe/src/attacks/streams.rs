//! Connections that send slowly or nothing (V-47), and other services on the server's host (V-16).

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use turnbuckle_wire::{Class, Method};

use crate::context::Context;
use crate::report::{Verdict, judge};
use turnbuckle_client::blocking::{Session, plain};
use turnbuckle_client::{Transport, blocking};

/// Connections of each kind, and how long a server may bear with them.
const CONNECTIONS: usize = 48;
const DEADLINE: Duration = Duration::from_secs(35);
/// How long a console may take to say something.
const WAIT: Duration = Duration::from_millis(300);
/// Where TURN servers have had consoles, pages and metrics: coturn's telnet console, its pages, its metrics.
const CONSOLES: [u16; 3] = [5766, 8080, 9641];

/// Opens connections that begin a message and never end it: cut off, longer than it will ever be, or HTTP that goes on a byte a second (V-47).
pub(super) fn trickle(context: &Context, over: Transport) -> io::Result<Verdict> {
    let message = plain(Class::Request, Method::ALLOCATE, |_| {});
    let mut long = message.clone();
    if let Some(len) = long.get_mut(2..4) {
        len.copy_from_slice(&65_532_u16.to_be_bytes());
    }
    let mut open = Vec::new();
    for index in 0..CONNECTIONS {
        let Ok(mut stream) = blocking::tcp(context.target.address(over)) else {
            return Ok(Verdict::NotTried("nobody listens".to_owned()));
        };
        let _ = match index % 4 {
            0 => stream.write_all(message.get(..index % message.len()).unwrap_or_default()),
            1 => stream.write_all(&long),
            2 => stream.write_all(&[0x40, 0, 0xFF, 0xFF, 0]),
            _ => stream.write_all(b"GET / HT"),
        };
        open.push((index % 4 != 0, stream));
    }
    wait_for_ends(open)
}

/// Opens connections that have agreed on keys and say nothing (V-47).
pub(super) fn silence(context: &Context, over: Transport) -> io::Result<Verdict> {
    let mut sessions = Vec::new();
    for _ in 0..CONNECTIONS {
        sessions.push(Session::over(&context.target, over)?);
    }
    let started = Instant::now();
    sessions.retain_mut(|session| {
        let left = DEADLINE.saturating_sub(started.elapsed());
        !session.is_closed(left)
    });
    Ok(verdict(sessions.len(), started))
}

/// Waits until the server has closed all; those marked say a byte a second.
pub(super) fn wait_for_ends(mut open: Vec<(bool, TcpStream)>) -> io::Result<Verdict> {
    for (_, stream) in &open {
        stream.set_nonblocking(true)?;
    }
    let started = Instant::now();
    let mut said = 0;
    while !open.is_empty() && started.elapsed() < DEADLINE {
        if said < started.elapsed().as_secs() {
            said += 1;
            for (_, stream) in open.iter_mut().filter(|(goes_on, _)| *goes_on) {
                let _ = stream.write_all(&[0]);
            }
        }
        open.retain_mut(|(_, stream)| {
            loop {
                match stream.read(&mut [0; 4096]) {
                    Ok(len) if len > 0 => {}
                    Ok(_) => break false,
                    Err(error) => break error.kind() == ErrorKind::WouldBlock,
                }
            }
        });
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(verdict(open.len(), started))
}

fn verdict(left: usize, started: Instant) -> Verdict {
    let seconds = started.elapsed().as_secs();
    let wrong = match left {
        0 => Vec::new(),
        left => vec![format!(
            "{left} of {CONNECTIONS} connections are open after {seconds} s"
        )],
    };
    judge(
        format!("{CONNECTIONS} connections closed within {seconds} s"),
        &wrong,
    )
}

/// Looks for telnet, pages and metrics, on ports of their own and on those of TURN (V-16).
pub(super) fn consoles(context: &Context, over: Transport) -> io::Result<Verdict> {
    let mut wrong = Vec::new();
    let turn = context.target.address(over);
    let consoles = CONSOLES.map(|port| SocketAddr::new(turn.ip(), port));
    for address in consoles.into_iter().chain([turn]) {
        let Ok(mut stream) = blocking::tcp(address) else {
            continue;
        };
        stream.set_read_timeout(Some(WAIT))?;
        let mut answer = [0; 512];
        let mut len = 0;
        if address != turn {
            // A console greets first; a page needs a request.
            len = stream.read(&mut answer).unwrap_or(0);
        }
        if len == 0 {
            let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: relay\r\n\r\n");
            len = stream.read(&mut answer).unwrap_or(0);
        }
        let answer = String::from_utf8_lossy(answer.get(..len).unwrap_or_default()).into_owned();
        let is_page = answer.starts_with("HTTP/1.1 2") || answer.starts_with("HTTP/1.0 2");
        if is_page || (address != turn && len > 0) {
            let line = answer.lines().next().unwrap_or_default();
            wrong.push(format!("port {} says {line:?}", address.port()));
        }
    }
    let ports = CONSOLES.map(|port| port.to_string()).join(", ");
    Ok(judge(
        format!("nobody speaks on ports {ports}; no page on the port of TURN"),
        &wrong,
    ))
}
