//! Nonces, credentials, integrity (V-20 to V-34); tickets are in `tickets.rs`.

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use turnbuckle_wire::{AttributeType, Class, Method, padding_len};

use crate::context::Context;
use crate::report::{Verdict, judge, refused};
use turnbuckle_client::Credentials;
use turnbuckle_client::Transport;
use turnbuckle_client::UDP;
use turnbuckle_client::blocking::{Answer, Session, append, code, plain};

/// Allocations whose ports are compared.
const PORTS: usize = 64;
/// Requests with a wrong integrity.
const FORGED: u32 = 5_000;
/// How long a client may wait for an allocation meanwhile.
const SERVICE_MAX: Duration = Duration::from_secs(2);

/// Looks for ports and nonces that follow from those before (V-20).
pub(super) fn randomness(context: &Context, over: Transport) -> io::Result<Verdict> {
    let mut sessions = Vec::new();
    let mut nonces = BTreeSet::new();
    let mut ports = Vec::new();
    for _ in 0..PORTS {
        let mut session = Session::over(&context.target, over)?;
        let Ok(answer) = session.allocate(UDP, |_| {}) else {
            break;
        };
        let relayed = answer
            .message()
            .and_then(|message| message.xor_relayed_address().ok()?);
        ports.extend(relayed.map(|address| i32::from(address.port())));
        nonces.insert(session.proof.nonce().to_vec());
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
    // All of them live at the same time: where most have another's port, sockets are shared (`multiplex-peer`), and everybody knows their ports.
    let distinct: BTreeSet<i32> = ports.iter().copied().collect();
    let are_shared = distinct.len() * 2 < ports.len();
    if neighbours * 4 > ports.len() && !are_shared {
        wrong.push(format!(
            "{neighbours} of {} ports are next to the one before",
            ports.len()
        ));
    }
    Ok(judge(format!("{} ports and nonces", ports.len()), &wrong))
}

/// Uses a nonce from another port (V-22).
pub(super) fn stolen_nonce(context: &Context, over: Transport) -> io::Result<Verdict> {
    let mut victim = Session::over(&context.target, over)?;
    victim.fetch_challenge();
    let mut thief = Session::over(&context.target, over)?;
    thief.proof = victim.proof.clone();
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

/// Tries to delete an allocation by a LIFETIME of zero behind the integrity attribute (V-23).
pub(super) fn trailing_attributes(context: &Context, over: Transport) -> io::Result<Verdict> {
    let mut session = Session::over(&context.target, over)?;
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

/// Tries to delete an allocation by the second of two LIFETIMEs (V-24).
pub(super) fn repeated_attributes(context: &Context, over: Transport) -> io::Result<Verdict> {
    let mut session = Session::over(&context.target, over)?;
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

/// How often both are asked while only one of them is answered: an answer that a busy server gives too late once is no difference.
const ENUMERATION_TRIES: usize = 3;

/// Compares the answers to an unknown user and to a wrong password (V-26).
pub(super) fn enumeration(context: &Context, over: Transport) -> io::Result<Verdict> {
    let ask = |name: &str| -> io::Result<Option<Answer>> {
        let mut session = Session::over(&context.target, over)?;
        session
            .proof
            .set_credentials(Credentials::user(name, "not the password"));
        Ok(session.request(Method::ALLOCATE, |writer| {
            writer.requested_transport(UDP);
        }))
    };
    let (mut known, mut unknown) = (None, None);
    for _ in 0..ENUMERATION_TRIES {
        known = ask(context.target.credentials.username())?;
        unknown = ask("nobody-of-this-name")?;
        if known.is_some() == unknown.is_some() {
            break;
        }
    }
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

/// Returns an answer without the parts that may differ: transaction id, NONCE, integrity, fingerprint.
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

/// Acts as a client that was made to believe that MD5 is all there is (V-27).
pub(super) fn bid_down(context: &Context, over: Transport) -> io::Result<Verdict> {
    let mut session = Session::over(&context.target, over)?;
    session.fetch_challenge();
    if session.proof.algorithms().is_empty() {
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

/// Tries to delete an allocation, and to permit a peer on it, as another user from its own 5-tuple (V-28).
pub(super) fn hijack(context: &Context, over: Transport) -> io::Result<Verdict> {
    let Some(other) = &context.other_user else {
        return Ok(Verdict::NotTried(
            "takes another user: --other-user".to_owned(),
        ));
    };
    let mut session = Session::over(&context.target, over)?;
    if let Err(code) = session.allocate(UDP, |_| {}) {
        return Ok(refused(code));
    }
    let owner = session.proof.credentials().clone();
    session.proof.set_credentials(other.clone());
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
    session.proof.set_credentials(owner);
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

/// Sends access tokens with false lengths (V-31).
pub(super) fn access_tokens(context: &Context, over: Transport) -> io::Result<Verdict> {
    let mut session = Session::over(&context.target, over)?;
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
        if let Some(answer) = session.receive(Duration::from_millis(1)) {
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

/// Uses a name of the "REST API" whose time is over (V-32).
pub(super) fn expired(context: &Context, over: Transport) -> io::Result<Verdict> {
    let Some(secret) = &context.secret else {
        return Ok(Verdict::NotTried(
            "takes the shared secret of time-limited users: --secret".to_owned(),
        ));
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |since| since.as_secs());
    let code_at = |expires| -> io::Result<u16> {
        let mut session = Session::over(&context.target, over)?;
        session
            .proof
            .set_credentials(Credentials::rest("probe", secret, expires, ':'));
        let allocated = session.allocate(UDP, |_| {});
        let _ = session.refresh(0);
        Ok(allocated.map_or_else(|code| code, |_| 200))
    };
    let (valid, ended, never) = (
        code_at(now + 600)?,
        code_at(now.saturating_sub(60))?,
        code_at(0)?,
    );
    if valid != 200 {
        return Ok(Verdict::NotTried(format!(
            "one that is valid is answered with {valid}"
        )));
    }
    let mut wrong = Vec::new();
    for (code, what) in [(ended, "a minute ago"), (never, "in 1970")] {
        if code == 200 {
            wrong.push(format!("what ended {what} is taken"));
        }
    }
    Ok(judge(format!("ended: {ended}, in 1970: {never}"), &wrong))
}

/// Claims another realm as a stranger, and checks that the server's stays the same (V-34).
pub(super) fn realm(context: &Context, over: Transport) -> io::Result<Verdict> {
    let realm_of = |session: &mut Session| {
        session.fetch_challenge();
        session.proof.realm().to_vec()
    };
    let before = realm_of(&mut Session::over(&context.target, over)?);
    let mut stranger = Session::over(&context.target, over)?;
    for _ in 0..20 {
        let claim = plain(Class::Request, Method::ALLOCATE, |writer| {
            writer
                .requested_transport(UDP)
                .bytes(AttributeType::ORIGIN, b"https://elsewhere.example")
                .username(b"nobody")
                .realm(b"elsewhere.example")
                .nonce(b"made up");
        });
        stranger.exchange(&claim);
    }
    let after = realm_of(&mut Session::over(&context.target, over)?);
    let own = realm_of(&mut stranger);
    let mut wrong = Vec::new();
    for (realm, whose) in [(after, "the next client's"), (own, "the stranger's next")] {
        if realm != before {
            let realm = String::from_utf8_lossy(&realm);
            wrong.push(format!("{whose} realm is {realm:?}"));
        }
    }
    let before = String::from_utf8_lossy(&before);
    Ok(judge(format!("{before:?} before and after"), &wrong))
}

/// Sends many requests with somebody's name and a wrong integrity, and then allocates as a client (V-21).
pub(super) fn forged_integrity(context: &Context, over: Transport) -> io::Result<Verdict> {
    let mut forger = Session::over(&context.target, over)?;
    let name = context.target.credentials.username();
    forger
        .proof
        .set_credentials(Credentials::user(name, "not the password"));
    forger.fetch_challenge();
    for number in 0..FORGED {
        let request = forger.signed(Method::ALLOCATE, |writer| {
            writer.requested_transport(UDP);
        });
        forger.send(&request);
        let wait = if number % 32 == 0 { 200 } else { 1 };
        while forger.receive(Duration::from_micros(wait)).is_some() {}
    }
    let begun = Instant::now();
    let mut session = Session::over(&context.target, over)?;
    let allocated = session.allocate(UDP, |_| {});
    let taken = begun.elapsed();
    let _ = session.refresh(0);
    let wrong = match allocated {
        Ok(_) if taken < SERVICE_MAX => Vec::new(),
        Ok(_) => vec![format!("a client waits {} ms", taken.as_millis())],
        Err(code) => vec![format!("a client's Allocate is answered with {code}")],
    };
    let text = format!(
        "{FORGED} forged, and a client is served in {} ms",
        taken.as_millis()
    );
    Ok(judge(text, &wrong))
}
