//! Mobility tickets (V-30, RFC 8016).

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use turnbuckle_wire::Method;

use crate::context::Context;
use crate::report::{Verdict, judge};
use turnbuckle_client::Transport;
use turnbuckle_client::UDP;
use turnbuckle_client::blocking::{Answer, Session, Target, code};

/// Addresses that an allocation is moved to one after the other.
const MOVES: usize = 100;

/// Uses tickets that are made up, changed, and stolen (V-30).
pub(super) fn forged(context: &Context, over: Transport) -> io::Result<Verdict> {
    let mut session = Session::over(&context.target, over)?;
    let mut wrong = Vec::new();
    let mut codes = BTreeSet::new();
    for len in [1, 7, 16, 32, 48, 64, 100, 256, 1000] {
        let got = resume(&mut session, &vec![0xA5; len]);
        codes.insert(got);
        if got == 200 {
            wrong.push(format!("a ticket of {len} bytes is taken"));
        }
    }
    let mut owner = Session::over(&context.target, over)?;
    let ticket = allocate(&mut owner);
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
            let mut thief = Session::over(&context.target, over)?;
            thief.proof.set_credentials(other.clone());
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
fn resume(session: &mut Session, ticket: &[u8]) -> u16 {
    code(resumed(session, ticket).as_ref())
}

fn resumed(session: &mut Session, ticket: &[u8]) -> Option<Answer> {
    session.request(Method::REFRESH, |writer| {
        writer.mobility_ticket(ticket);
    })
}

/// Allocates; the ticket, if one is given.
fn allocate(session: &mut Session) -> Option<Vec<u8>> {
    let allocated = session.allocate(UDP, |writer| {
        writer.mobility_ticket(&[]);
    });
    allocated.ok().as_ref().and_then(ticket)
}

/// Moves an allocation of `session` to another client by its ticket, and returns that client; `None` if no tickets are given.
pub(crate) fn moved(
    session: &mut Session,
    target: &Arc<Target>,
    over: Transport,
) -> io::Result<Option<(Session, Answer)>> {
    let Some(ticket) = allocate(session) else {
        let _ = session.refresh(0);
        return Ok(None);
    };
    let mut other = Session::over(target, over)?;
    let answer = resumed(&mut other, &ticket).filter(|answer| answer.code() == 200);
    Ok(answer.map(|answer| (other, answer)))
}

fn ticket(answer: &Answer) -> Option<Vec<u8>> {
    Some(answer.message()?.mobility_ticket()?.to_vec())
}

/// Moves an allocation again and again, and then uses its old tickets from elsewhere (V-30).
pub(super) fn used_again(context: &Context, over: Transport) -> io::Result<Verdict> {
    let mut owner = Session::over(&context.target, over)?;
    let Some(first) = allocate(&mut owner) else {
        let _ = owner.refresh(0);
        return Ok(Verdict::NotTried("no tickets are given".to_owned()));
    };
    let mut wrong = Vec::new();
    let mut used = vec![first];
    let mut places = vec![owner];
    for _ in 0..MOVES {
        let mut place = Session::over(&context.target, over)?;
        let Some(last) = used.last() else {
            break;
        };
        let answer = resumed(&mut place, last);
        let next = answer.as_ref().and_then(ticket);
        places.push(place);
        match next {
            Some(next) => used.push(next),
            None => {
                let code = code(answer.as_ref());
                wrong.push(format!("move {} is answered with {code}", used.len()));
                break;
            }
        }
    }
    let moves = used.len() - 1;
    let mut codes = BTreeSet::new();
    let mut thief = Session::over(&context.target, over)?;
    for (number, ticket) in used.iter().take(moves).enumerate() {
        let got = resume(&mut thief, ticket);
        codes.insert(got);
        if got == 200 {
            wrong.push(format!("ticket {number} is taken a second time"));
            break;
        }
    }
    // The last place has the allocation; when it ends it, nobody else has anything.
    let ended = places
        .pop()
        .map_or(0, |mut last| code(last.refresh(0).as_ref()));
    if ended != 200 {
        wrong.push(format!("the last place cannot end it: {ended}"));
    }
    let left = places.iter_mut().filter_map(|place| {
        let got = code(place.refresh(600).as_ref());
        let _ = place.refresh(0);
        (got == 200).then_some(())
    });
    let left = left.count();
    if left > 0 {
        wrong.push(format!("{left} places still have it after its end"));
    }
    Ok(judge(
        format!(
            "{moves} moves; used tickets are answered with {codes:?}, and the last place ends it for all"
        ),
        &wrong,
    ))
}
