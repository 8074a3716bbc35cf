//! Resources that strangers and clients can exhaust (V-40 to V-52); streams and handshakes are in files of their own.

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use turnbuckle_wire::{AttributeType, Class, Method};

use crate::context::Context;
use crate::report::{Verdict, judge, refused};
use turnbuckle_client::Transport;
use turnbuckle_client::UDP;
use turnbuckle_client::blocking::{Answer, Session, code, plain};

const WAIT: Duration = Duration::from_millis(200);
/// Bare requests of one source.
const FLOOD: u32 = 30_000;
/// Bytes that a header alone, which is no client's request, gets for each of its own.
const FACTOR_MAX: f64 = 3.0;
/// Times that ports are taken and given back; a tenth where each takes a connection.
const CYCLES: u32 = 500;
/// Seconds after which all reservations have been given back or have run out.
const GIVEN_BACK_S: u32 = 90;
/// Permissions requested on one allocation.
const PERMISSIONS: u32 = 4_000;
/// Allocations tried beyond a quota.
const BEYOND: usize = 10;
/// RFC 8656 §7.2 recommends an hour.
const LIFETIME_MAX: u32 = 3600;

/// Sends many short requests from one source, and compares their bytes with those of the answers (V-40).
pub(super) fn amplification(context: &Context, over: Transport) -> io::Result<Verdict> {
    let mut session = Session::over(&context.target, over)?;
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
    let mut is_too_much = false;
    for method in shapes {
        let request = plain(Class::Request, method, |_| {});
        let answer = session
            .exchange(&request)
            .map_or(0, |answer| answer.0.len());
        let ratio = ratio(answer, request.len());
        if ratio > largest.0 {
            largest = (ratio, method);
        }
        // the addresses of behaviour discovery (RFC 5780) have their place in a Binding answer
        is_too_much |= ratio > FACTOR_MAX && method != Method::BINDING;
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
    let wrong = if all > 1.0 || is_too_much {
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

/// Sends responses and indications to the server (V-41).
pub(super) fn reflection(context: &Context, over: Transport) -> io::Result<Verdict> {
    let mut session = Session::over(&context.target, over)?;
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

/// Reserves pairs of ports and gives them back, so often that they would be used up (V-44).
pub(super) fn reservations(context: &Context, over: Transport) -> io::Result<Verdict> {
    let mut refusals = 0;
    let cycles = if over == Transport::Udp {
        CYCLES
    } else {
        CYCLES / 10
    };
    let mut tokens = Vec::new();
    // Each time another client: servers may keep a 5-tuple to themselves for a while.
    for cycle in 0..cycles {
        let mut session = Session::over(&context.target, over)?;
        let allocated = session.allocate(UDP, |writer| {
            writer.even_port(cycle % 2 == 0);
        });
        match allocated {
            Ok(answer) => {
                let message = answer.message();
                tokens.extend(message.and_then(|message| message.reservation_token().ok()?));
                let _ = session.refresh(0);
            }
            // Reservations last 30 seconds and may count for the quota, so some may be waiting; ports without one must not run out.
            Err(_) => refusals += 1,
        }
    }
    let mut wrong = Vec::new();
    let mut session = Session::over(&context.target, over)?;
    match session.allocate(UDP, |_| {}) {
        // Reservations that count for the quota have used it up.
        Ok(_) | Err(486) => {}
        Err(code) => wrong.push(format!(
            "after {cycles} times Allocate is answered with {code}"
        )),
    }
    let _ = session.refresh(0);
    let reserved = tokens.len();
    for token in tokens {
        let mut session = Session::over(&context.target, over)?;
        let redeemed = session.allocate(UDP, |writer| {
            writer.bytes(AttributeType::RESERVATION_TOKEN, &token);
        });
        if redeemed.is_ok() {
            let _ = session.refresh(0);
        }
    }
    let mut session = Session::over(&context.target, over)?;
    let mut allocated = session.allocate(UDP, |_| {});
    // The same attack by another transport, with the same user, may not have given back what it reserved.
    for _ in 0..GIVEN_BACK_S {
        if !matches!(allocated, Err(486)) {
            break;
        }
        std::thread::sleep(Duration::from_secs(1));
        session = Session::over(&context.target, over)?;
        allocated = session.allocate(UDP, |_| {});
    }
    if let Err(code) = allocated {
        wrong.push(format!(
            "after {reserved} reservations were given back Allocate is answered with {code}"
        ));
    }
    let _ = session.refresh(0);
    Ok(judge(
        format!(
            "{cycles} times, {refusals} refused, {reserved} reserved and given back; allocations go on"
        ),
        &wrong,
    ))
}

/// Asks for more permissions on one allocation than a server should grant (V-45).
pub(super) fn permissions(context: &Context, over: Transport) -> io::Result<Verdict> {
    let mut session = Session::over(&context.target, over)?;
    let mut allocated = session.allocate(UDP, |_| {});
    // A port that was used a moment ago may still be another client's to the server.
    for _ in 0..10 {
        if matches!(allocated, Err(437)) {
            session = Session::over(&context.target, over)?;
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

/// Asks for PADDING (RFC 5780 §7.6) as a stranger (V-49).
pub(super) fn padding(context: &Context, over: Transport) -> io::Result<Verdict> {
    let mut session = Session::over(&context.target, over)?;
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

/// Asks for the longest lifetime and for one of a second (V-52).
pub(super) fn lifetimes(context: &Context, over: Transport) -> io::Result<Verdict> {
    let mut session = Session::over(&context.target, over)?;
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

/// Asks for more allocations than a user may have, for each of them twice (V-43).
pub(super) fn quota(context: &Context, over: Transport) -> io::Result<Verdict> {
    over_quota(context, &[over])
}

/// Asks for more allocations than a user may have by every transport in turn (V-33).
pub(super) fn quota_of_all(context: &Context, _: Transport) -> io::Result<Verdict> {
    over_quota(context, &context.transports)
}

fn over_quota(context: &Context, transports: &[Transport]) -> io::Result<Verdict> {
    let Some(quota) = context.quota else {
        return Ok(Verdict::NotTried(
            "takes the number of allocations that a user may have: --quota".to_owned(),
        ));
    };
    let mut wrong = Vec::new();
    // The second time shows that what was given back can be had again, and no more.
    for time in ["", ", the second time"] {
        let mut sessions = Vec::new();
        let (mut granted, mut others) = (0, BTreeSet::new());
        let coming = transports.iter().cycle().take(quota + BEYOND);
        for over in coming {
            let mut session = Session::over(&context.target, *over)?;
            session.fetch_challenge();
            let request = session.signed(Method::ALLOCATE, |writer| {
                writer.requested_transport(UDP);
            });
            // As if the first answer had been lost.
            session.send(&request);
            match code(session.exchange(&request).as_ref()) {
                200 => granted += 1,
                other => {
                    others.insert(other);
                }
            }
            sessions.push(session);
        }
        for session in &mut sessions {
            let _ = session.refresh(0);
        }
        if granted != quota {
            wrong.push(format!("{granted} allocations are granted{time}"));
        }
        if others.iter().any(|code| *code != 486) {
            wrong.push(format!("the others are answered with {others:?}{time}"));
        }
    }
    let tried = quota + BEYOND;
    Ok(judge(
        format!("{quota} of {tried}, the others 486; and again"),
        &wrong,
    ))
}
