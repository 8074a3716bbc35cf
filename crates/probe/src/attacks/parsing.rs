//! Invalid length fields, and information that answers leak (V-60 to V-66).

use std::io;

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use turnbuckle_wire::{AttributeType, Class, Method};

use crate::context::Context;
use crate::matrix::channel_data;
use crate::report::{Verdict, judge};
use turnbuckle_client::Transport;
use turnbuckle_client::UDP;
use turnbuckle_client::blocking::{Session, append, plain};

/// One in this many invalid messages is sent on a connection.
const STREAM_STRIDE: usize = 16;
/// Datagrams of random bytes; a fiftieth as many are sent on connections.
const NOISE: usize = 10_000;
/// The values that length fields are set to.
const LENGTHS: [u16; 12] = [0, 1, 2, 3, 4, 5, 8, 0x00FF, 0x7FFF, 0xFFFC, 0xFFFE, 0xFFFF];

/// Sends messages with every length field at its extremes, and cut off everywhere; the server has to go on (V-61).
pub(super) fn lengths(context: &Context, over: Transport) -> io::Result<Verdict> {
    let mut held = Session::over(&context.target, over)?;
    let _ = held.allocate(UDP, |_| {});
    let all = messages(&held)
        .into_iter()
        .flat_map(|message| with_false_lengths(&message));
    let verdict = if over.is_stream() {
        // Each may end its connection, so each has one.
        batter(context, over, all.step_by(STREAM_STRIDE))?
    } else {
        let (mut sent, mut wrong) = (0, Vec::new());
        let mut session = Session::over(&context.target, over)?;
        for bytes in all {
            // From a stranger, and from a client who has an allocation.
            session.send(&bytes);
            held.send(&bytes);
            sent += 2;
            if sent % 128 == 0 && !session.is_answered() {
                wrong.push(gone(sent));
                break;
            }
        }
        if wrong.is_empty() && !session.is_answered() {
            wrong.push(gone(sent));
        }
        judge(format!("{sent} datagrams, and the server goes on"), &wrong)
    };
    let _ = held.refresh(0);
    Ok(verdict)
}

/// Sends bytes without sense, each kind of message among their beginnings (V-63).
pub(super) fn noise(context: &Context, over: Transport) -> io::Result<Verdict> {
    let mut random = SmallRng::seed_from_u64(63);
    let count = if over.is_stream() { NOISE / 50 } else { NOISE };
    let all = (0..count).map(|_| {
        let len = random.random_range(1..1400);
        let mut bytes = vec![0; len];
        random.fill(&mut bytes[..]);
        // Half of them with the cookie of STUN, without which most end early.
        if let (true, Some(cookie)) = (random.random(), bytes.get_mut(4..8)) {
            cookie.copy_from_slice(&[0x21, 0x12, 0xA4, 0x42]);
        }
        bytes
    });
    if over.is_stream() {
        return batter(context, over, all);
    }
    let mut session = Session::over(&context.target, over)?;
    for (number, bytes) in all.enumerate() {
        session.send(&bytes);
        if number % 64 == 63 && !session.is_answered() {
            return Ok(judge("", &[gone(number)]));
        }
    }
    Ok(judge(
        format!("{count} datagrams, and the server goes on"),
        &[],
    ))
}

/// Sends each on a connection of its own; another one is answered all the while.
fn batter(
    context: &Context,
    over: Transport,
    all: impl Iterator<Item = Vec<u8>>,
) -> io::Result<Verdict> {
    let mut beside = Session::over(&context.target, over)?;
    let mut sent = 0;
    for bytes in all {
        let Ok(mut session) = Session::over(&context.target, over) else {
            return Ok(judge("", &[gone(sent)]));
        };
        session.send(&bytes);
        sent += 1;
        if sent % 32 == 0 && !beside.is_answered() {
            return Ok(judge("", &[gone(sent)]));
        }
    }
    let wrong = if beside.is_answered() {
        Vec::new()
    } else {
        vec![gone(sent)]
    };
    Ok(judge(
        format!("{sent} connections, and the server goes on"),
        &wrong,
    ))
}

fn gone(sent: usize) -> String {
    format!("the server does not answer any more after {sent} of them")
}

/// Returns a message truncated at every length, and with every length field at its extremes, whole and by half.
fn with_false_lengths(message: &[u8]) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = (0..message.len())
        .map(|len| message.get(..len).unwrap_or_default().to_vec())
        .collect();
    for place in length_fields(message) {
        for len in LENGTHS {
            let mut changed = message.to_vec();
            if let Some(field) = changed.get_mut(place..place + 2) {
                field.copy_from_slice(&len.to_be_bytes());
            }
            let half = changed
                .get(..changed.len() / 2)
                .unwrap_or_default()
                .to_vec();
            all.extend([changed, half]);
        }
    }
    all
}

/// Returns one message of each kind.
fn messages(session: &Session) -> Vec<Vec<u8>> {
    let peer = ([21, 0, 0, 9], 9).into();
    let mut every = plain(Class::Request, Method::ALLOCATE, |_| {});
    for number in (0x0001..0x0040).chain(0x8000..0x8040) {
        append(&mut every, AttributeType::new(number), &[1; 9]);
    }
    vec![
        plain(Class::Request, Method::BINDING, |writer| {
            writer.software("probe").fingerprint();
        }),
        session.signed(Method::CREATE_PERMISSION, |writer| {
            writer.xor_peer_address(peer);
        }),
        plain(Class::Indication, Method::SEND, |writer| {
            writer.xor_peer_address(peer).data(&[7; 21]);
        }),
        channel_data(0x4000, &[7; 21]),
        every,
    ]
}

/// Returns the positions of a message's length fields.
fn length_fields(message: &[u8]) -> Vec<usize> {
    let mut places = vec![2];
    if message.first().is_none_or(|first| *first >= 0x40) {
        return places;
    }
    let mut start = 20;
    while let Some(&[high, low]) = message.get(start + 2..start + 4) {
        places.push(start + 2);
        let len = usize::from(u16::from_be_bytes([high, low]));
        start += 4 + len.next_multiple_of(4);
    }
    places
}

/// Looks in the padding of answers, where only zeros belong, for what was in the server's memory (V-60).
#[expect(clippy::unnecessary_wraps, reason = "attacks have one form")]
pub(super) fn dirty_padding(context: &Context, _: Transport) -> io::Result<Verdict> {
    let observed = context.target.observed();
    let wrong: Vec<String> = observed
        .dirty_padding
        .iter()
        .map(|kind| format!("attribute 0x{kind:04X} is padded with something"))
        .collect();
    Ok(judge(
        format!("zeros in all {} answers of this run", observed.answers),
        &wrong,
    ))
}

/// Looks for SOFTWARE in answers to strangers (V-65).
#[expect(clippy::unnecessary_wraps, reason = "attacks have one form")]
pub(super) fn software(context: &Context, _: Transport) -> io::Result<Verdict> {
    let observed = context.target.observed();
    let told = observed
        .software
        .iter()
        .map(|software| format!("strangers are told {software:?}"));
    Ok(judge(
        "strangers are not told what the server is",
        &told.collect::<Vec<_>>(),
    ))
}

/// Looks for redirections that nothing protects (V-14).
#[expect(clippy::unnecessary_wraps, reason = "attacks have one form")]
pub(super) fn redirections(context: &Context, _: Transport) -> io::Result<Verdict> {
    let count = context.target.observed().redirections;
    let wrong = match count {
        0 => Vec::new(),
        count => vec![format!("{count} answers to strangers are redirections")],
    };
    Ok(judge("none in this run", &wrong))
}
