//! Lengths that lie, and what answers let slip (V-60 to V-66).

use std::io;

use turnbuckle_wire::{AttributeType, Class, Method};

use super::judge;
use crate::probe::Context;
use crate::probe::matrix::channel_data;
use crate::probe::report::Verdict;
use crate::probe::session::{Session, UDP, append, plain};

/// What length fields are set to.
const LENGTHS: [u16; 12] = [0, 1, 2, 3, 4, 5, 8, 0x00FF, 0x7FFF, 0xFFFC, 0xFFFE, 0xFFFF];

/// V-61: every length field at its extremes, every message cut off everywhere; the server has to go on.
pub(super) fn lengths(context: &Context) -> io::Result<Verdict> {
    let mut session = Session::udp(&context.target)?;
    let mut held = Session::udp(&context.target)?;
    let _ = held.allocate(UDP, |_| {});
    let mut wrong = Vec::new();
    let mut sent = 0;
    for message in messages(&held) {
        let mut wants: Vec<Vec<u8>> = (0..message.len())
            .map(|len| message.get(..len).unwrap_or_default().to_vec())
            .collect();
        for place in length_fields(&message) {
            for len in LENGTHS {
                let mut changed = message.clone();
                if let Some(field) = changed.get_mut(place..place + 2) {
                    field.copy_from_slice(&len.to_be_bytes());
                }
                let half = changed
                    .get(..changed.len() / 2)
                    .unwrap_or_default()
                    .to_vec();
                wants.extend([changed, half]);
            }
        }
        for (index, bytes) in wants.iter().enumerate() {
            // From a stranger, and from a client who has an allocation.
            session.send(bytes);
            held.send(bytes);
            sent += 2;
            if index % 64 == 63 && !session.is_answered() {
                wrong.push(format!(
                    "the server does not answer any more after {sent} datagrams"
                ));
                return Ok(judge("", &wrong));
            }
        }
    }
    if !session.is_answered() {
        wrong.push("the server does not answer any more".to_owned());
    }
    let _ = held.refresh(0);
    Ok(judge(
        format!("{sent} datagrams, and the server goes on"),
        &wrong,
    ))
}

/// One message of each kind.
fn messages(session: &Session<'_>) -> Vec<Vec<u8>> {
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

/// Where the length fields of a message are.
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

/// V-60: what was in the server's memory, where only zeros belong.
#[expect(clippy::unnecessary_wraps, reason = "attacks have one form")]
pub(super) fn dirty_padding(context: &Context) -> io::Result<Verdict> {
    let observed = context.target.observed.borrow();
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

/// V-65: SOFTWARE in an answer to a stranger.
#[expect(clippy::unnecessary_wraps, reason = "attacks have one form")]
pub(super) fn software(context: &Context) -> io::Result<Verdict> {
    let observed = context.target.observed.borrow();
    let told = observed
        .software
        .iter()
        .map(|software| format!("strangers are told {software:?}"));
    Ok(judge(
        "strangers are not told what the server is",
        &told.collect::<Vec<_>>(),
    ))
}

/// V-14: a redirection that nothing protects.
#[expect(clippy::unnecessary_wraps, reason = "attacks have one form")]
pub(super) fn redirections(context: &Context) -> io::Result<Verdict> {
    let count = context.target.observed.borrow().redirections;
    let wrong = match count {
        0 => Vec::new(),
        count => vec![format!("{count} answers to strangers are redirections")],
    };
    Ok(judge("none in this run", &wrong))
}
