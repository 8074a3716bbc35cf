//! Nonces, credentials, integrity (V-20 to V-34).

use std::collections::BTreeSet;
use std::io;

use turnbuckle_wire::{AttributeType, Method, padding_len};

use super::judge;
use crate::client::Credentials;
use crate::probe::Context;
use crate::probe::report::Verdict;
use crate::probe::session::{Answer, Session, UDP, append, code};

/// Allocations whose ports are compared.
const PORTS: usize = 64;

/// V-20: ports and nonces that follow from those before.
pub(super) fn randomness(context: &Context) -> io::Result<Verdict> {
    let mut sessions = Vec::new();
    let mut nonces = BTreeSet::new();
    let mut ports = Vec::new();
    for _ in 0..PORTS {
        let mut session = Session::udp(&context.target)?;
        let Ok(answer) = session.allocate(UDP, |_| {}) else {
            break;
        };
        let relayed = answer
            .message()
            .and_then(|message| message.xor_relayed_address().ok()?);
        ports.extend(relayed.map(|address| i32::from(address.port())));
        nonces.insert(session.nonce().to_vec());
        sessions.push(session);
    }
    for session in &mut sessions {
        let _ = session.refresh(0);
    }
    if ports.len() < 8 {
        return Ok(Verdict::NotTried(format!(
            "only {} allocations could be had",
            ports.len()
        )));
    }
    let mut wrong = Vec::new();
    if nonces.len() < sessions.len() {
        wrong.push(format!(
            "{} nonces for {} clients",
            nonces.len(),
            sessions.len()
        ));
    }
    // Of ports chosen at random from a thousand or more, hardly two in a row are neighbours.
    let steps = ports
        .windows(2)
        .filter(|pair| matches!(pair, [one, other] if (one - other).abs() <= 2));
    let neighbours = steps.count();
    if neighbours * 4 > ports.len() {
        wrong.push(format!(
            "{neighbours} of {} ports are next to the one before",
            ports.len()
        ));
    }
    Ok(judge(format!("{} ports and nonces", ports.len()), &wrong))
}

/// V-22: a nonce used from another port.
pub(super) fn stolen_nonce(context: &Context) -> io::Result<Verdict> {
    let mut victim = Session::udp(&context.target)?;
    victim.fetch_challenge();
    let mut thief = Session::udp(&context.target)?;
    thief.impersonate(&victim);
    let request = thief.signed(Method::ALLOCATE, |writer| {
        writer.requested_transport(UDP);
    });
    let got = code(thief.exchange(&request).as_ref());
    if got == 200 {
        let _ = thief.refresh(0);
    }
    let wrong = match got {
        200 => vec!["it is taken".to_owned()],
        _ => Vec::new(),
    };
    Ok(judge(format!("answered with {got}"), &wrong))
}

/// V-23: a LIFETIME of zero behind the integrity attribute deletes the allocation.
pub(super) fn trailing_attributes(context: &Context) -> io::Result<Verdict> {
    let mut session = Session::udp(&context.target)?;
    if let Err(code) = session.allocate(UDP, |_| {}) {
        return Ok(refused(code));
    }
    let mut request = session.signed(Method::REFRESH, |writer| {
        writer.lifetime(600);
    });
    append(&mut request, AttributeType::LIFETIME, &[0; 4]);
    let first = session.exchange(&request);
    let alive = code(session.refresh(600).as_ref());
    let _ = session.refresh(0);
    let mut wrong = Vec::new();
    let lifetime = first
        .as_ref()
        .and_then(|answer| answer.message()?.lifetime().ok()?);
    if lifetime == Some(0) || alive != 200 {
        wrong.push("a LIFETIME that nothing protects deleted the allocation".to_owned());
    }
    Ok(judge(
        format!("Refresh with a trailing LIFETIME: {}", code(first.as_ref())),
        &wrong,
    ))
}

/// V-24: of two LIFETIMEs the second counts.
pub(super) fn repeated_attributes(context: &Context) -> io::Result<Verdict> {
    let mut session = Session::udp(&context.target)?;
    if let Err(code) = session.allocate(UDP, |_| {}) {
        return Ok(refused(code));
    }
    let answer = session.request(Method::REFRESH, |writer| {
        writer.lifetime(900).lifetime(0);
    });
    let alive = code(session.refresh(600).as_ref());
    let _ = session.refresh(0);
    let wrong = match alive {
        200 => Vec::new(),
        _ => vec!["the second of two LIFETIMEs counted".to_owned()],
    };
    Ok(judge(
        format!("Refresh with two LIFETIMEs: {}", code(answer.as_ref())),
        &wrong,
    ))
}

/// V-26: an unknown user and a wrong password are answered differently.
pub(super) fn enumeration(context: &Context) -> io::Result<Verdict> {
    let name = context.target.credentials.username();
    let answers = [
        Credentials::user(name, "not the password"),
        Credentials::user("nobody-of-this-name", "not the password"),
    ]
    .map(|credentials| -> io::Result<Option<Answer>> {
        let mut session = Session::udp(&context.target)?;
        session.credentials = credentials;
        Ok(session.request(Method::ALLOCATE, |writer| {
            writer.requested_transport(UDP);
        }))
    });
    let [known, unknown] = answers;
    let (known, unknown) = (known?, unknown?);
    let mut wrong = Vec::new();
    match (&known, &unknown) {
        (Some(known), Some(unknown)) if skeleton(known) == skeleton(unknown) => {}
        (None, None) => return Ok(Verdict::Held("neither is answered".to_owned())),
        _ => wrong.push(format!(
            "wrong password: {}, no such user: {}, or other attributes",
            code(known.as_ref()),
            code(unknown.as_ref())
        )),
    }
    Ok(judge(
        format!("both are answered with the same {}", code(known.as_ref())),
        &wrong,
    ))
}

/// An answer without what may differ: transaction id, NONCE, integrity, fingerprint.
fn skeleton(answer: &Answer) -> Vec<(u16, Vec<u8>)> {
    let blank = [
        AttributeType::NONCE,
        AttributeType::MESSAGE_INTEGRITY,
        AttributeType::MESSAGE_INTEGRITY_SHA256,
        AttributeType::FINGERPRINT,
    ];
    let mut parts = vec![(0, answer.0.get(..4).unwrap_or_default().to_vec())];
    let mut rest = answer.0.get(20..).unwrap_or_default();
    while let [k0, k1, l0, l1, tail @ ..] = rest {
        let kind = u16::from_be_bytes([*k0, *k1]);
        let len = usize::from(u16::from_be_bytes([*l0, *l1]));
        let padded = len + padding_len(len);
        let is_blank = blank.iter().any(|blank| blank.number() == kind);
        let value = if is_blank {
            &[]
        } else {
            tail.get(..padded).unwrap_or_default()
        };
        parts.push((kind, value.to_vec()));
        rest = tail.get(padded..).unwrap_or_default();
    }
    parts
}

/// V-27: a client that was made to believe that MD5 is all there is.
pub(super) fn bid_down(context: &Context) -> io::Result<Verdict> {
    let mut session = Session::udp(&context.target)?;
    session.fetch_challenge();
    if !session.is_offered_algorithms() {
        return Ok(Verdict::NotTried(
            "the server offers no PASSWORD-ALGORITHMS to take away".to_owned(),
        ));
    }
    session.bid_down();
    let request = session.signed(Method::ALLOCATE, |writer| {
        writer.requested_transport(UDP);
    });
    let got = code(session.exchange(&request).as_ref());
    let wrong = match got {
        200 => vec!["a list that the server did not send is taken".to_owned()],
        _ => Vec::new(),
    };
    Ok(judge(
        format!("a list that the server did not send: {got}"),
        &wrong,
    ))
}

/// V-28: another user deletes an allocation from its own 5-tuple.
pub(super) fn hijack(context: &Context) -> io::Result<Verdict> {
    let Some(other) = &context.other_user else {
        return Ok(Verdict::NotTried(
            "takes another user: --other-user".to_owned(),
        ));
    };
    let mut session = Session::udp(&context.target)?;
    if let Err(code) = session.allocate(UDP, |_| {}) {
        return Ok(refused(code));
    }
    let owner = session.credentials.clone();
    session.credentials = other.clone();
    session.fetch_challenge();
    let mut wrong = Vec::new();
    let mut codes = Vec::new();
    let peer = ([21, 0, 0, 9], 9).into();
    for method in [Method::REFRESH, Method::CREATE_PERMISSION] {
        let answer = session.request(method, |writer| {
            if method == Method::REFRESH {
                writer.lifetime(0);
            } else {
                writer.xor_peer_address(peer);
            }
        });
        let got = code(answer.as_ref());
        codes.push(got.to_string());
        if got == 200 {
            wrong.push(format!("{method:?} of another user is granted"));
        }
    }
    session.credentials = owner;
    session.fetch_challenge();
    if code(session.refresh(600).as_ref()) != 200 {
        wrong.push("the allocation is gone".to_owned());
    }
    let _ = session.refresh(0);
    Ok(judge(
        format!("answered with {}", codes.join(" and ")),
        &wrong,
    ))
}

/// V-30: tickets made up, changed, and stolen.
pub(super) fn forged_tickets(context: &Context) -> io::Result<Verdict> {
    let mut session = Session::udp(&context.target)?;
    let mut wrong = Vec::new();
    let mut codes = BTreeSet::new();
    for len in [1, 7, 16, 32, 48, 64, 100, 256, 1000] {
        let got = resume(&mut session, &vec![0xA5; len]);
        codes.insert(got);
        if got == 200 {
            wrong.push(format!("a ticket of {len} bytes is taken"));
        }
    }
    let mut owner = Session::udp(&context.target)?;
    let allocated = owner.allocate(UDP, |writer| {
        writer.mobility_ticket(&[]);
    });
    let ticket = allocated
        .ok()
        .and_then(|answer| Some(answer.message()?.mobility_ticket()?.to_vec()));
    let mut tried = "no tickets are given".to_owned();
    if let Some(ticket) = ticket {
        for place in 0..ticket.len() * 8 {
            let mut changed = ticket.clone();
            if let Some(byte) = changed.get_mut(place / 8) {
                *byte ^= 1 << (place % 8);
            }
            if resume(&mut session, &changed) == 200 {
                wrong.push(format!("a ticket with bit {place} changed is taken"));
            }
        }
        tried = format!("{} changed ones are refused", ticket.len() * 8);
        if let Some(other) = &context.other_user {
            let mut thief = Session::udp(&context.target)?;
            thief.credentials = other.clone();
            let got = resume(&mut thief, &ticket);
            tried += &format!(", a stolen one is answered with {got}");
            if got == 200 {
                wrong.push("a ticket is taken from another user".to_owned());
            }
        }
        if code(owner.refresh(600).as_ref()) != 200 {
            wrong.push("the allocation is gone".to_owned());
        }
    }
    let _ = owner.refresh(0);
    if !session.is_answered() {
        wrong.push("the server does not answer any more".to_owned());
    }
    Ok(judge(format!("made up: {codes:?}; {tried}"), &wrong))
}

/// Tries to go on with a ticket's allocation from another 5-tuple (RFC 8016 §3.2).
fn resume(session: &mut Session<'_>, ticket: &[u8]) -> u16 {
    let answer = session.request(Method::REFRESH, |writer| {
        writer.mobility_ticket(ticket);
    });
    code(answer.as_ref())
}

/// V-31: access tokens whose lengths lie.
pub(super) fn access_tokens(context: &Context) -> io::Result<Verdict> {
    let mut session = Session::udp(&context.target)?;
    session.fetch_challenge();
    let mut wrong = Vec::new();
    let mut codes = BTreeSet::new();
    for len in (0..64).chain([255, 256, 257, 511, 735, 1000, 1300]) {
        for claimed in [0, 1, 12, len, len + 1, 256, 0x7FFF, 0xFFFF] {
            let mut token = vec![0x5A; len];
            for (byte, value) in token
                .iter_mut()
                .zip(u16::try_from(claimed).unwrap_or(u16::MAX).to_be_bytes())
            {
                *byte = value;
            }
            let request = session.signed(Method::ALLOCATE, |writer| {
                writer.requested_transport(UDP);
                writer.bytes(AttributeType::ACCESS_TOKEN, &token);
            });
            session.send(&request);
        }
        if let Some(answer) = session.receive(std::time::Duration::from_millis(1)) {
            codes.insert(Answer(answer).code());
        }
        if !session.is_answered() {
            wrong.push(format!(
                "the server does not answer any more after a token of {len} bytes"
            ));
            break;
        }
    }
    let _ = session.refresh(0);
    Ok(judge(
        format!("answered with {codes:?}, and the server goes on"),
        &wrong,
    ))
}

/// Without an allocation there is nothing to attack.
pub(super) fn refused(code: u16) -> Verdict {
    Verdict::NotTried(format!("Allocate is answered with {code}"))
}
