//! What those get who have proven nothing, and what is no packet of any connection.

use super::link::{INITIAL_LEN, Link, Space, random};
use super::wire::{frame, integers};
use super::{Context, Row, said, unable};
use crate::report::Verdict;

/// What a server may send to an address for each byte that came from it (RFC 9000 §8.1).
const AMPLIFICATION: usize = 3;
/// INVALID_TOKEN (RFC 9000 §20.1).
const INVALID_TOKEN: u64 = 0x0b;

pub(super) const ROWS: &[Row] = &[
    Row {
        rule: "RFC 9000 §6.1",
        what: "a version that nobody speaks is answered with those that are spoken",
        act: |context| {
            answered(context, &unknown_version(1200), |link| {
                match link.seen.has_version_negotiation {
                    true => Ok("Version Negotiation".to_owned()),
                    false => Err(format!("no Version Negotiation: {}", said(link))),
                }
            })
        },
    },
    Row {
        rule: "RFC 9000 §5.2.2",
        what: "one that is too short for it is not",
        act: |context| silence(context, &unknown_version(1199)),
    },
    Row {
        rule: "RFC 9000 §6.1",
        what: "Version Negotiation of a client is not answered",
        act: |context| {
            let mut bytes = unknown_version(1200);
            bytes[1..5].fill(0);
            silence(context, &bytes)
        },
    },
    Row {
        rule: "RFC 9000 §14.1",
        what: "an Initial packet in a datagram of 1199 bytes begins nothing",
        act: |context| match context.link() {
            Err(error) => unable(&error),
            Ok(mut link) => {
                let datagram = link.first_datagram(INITIAL_LEN - 1);
                begins_nothing(context, &mut link, &datagram)
            }
        },
    },
    Row {
        rule: "RFC 9000 §7.2",
        what: "an Initial packet to a connection id of 7 bytes begins nothing",
        act: |context| {
            let mut offer = context.offer.clone();
            offer.id_len = 7;
            match Link::new(context.server, &offer) {
                Err(error) => unable(&error),
                Ok(mut link) => {
                    let datagram = link.first_datagram(INITIAL_LEN);
                    begins_nothing(context, &mut link, &datagram)
                }
            }
        },
    },
    Row {
        rule: "RFC 9000 §8.1.3",
        what: "a token that the server did not make proves nothing",
        act: false_token,
    },
    Row {
        rule: "RFC 9000 §8.1.4",
        what: "the token of another address proves nothing",
        act: stolen_token,
    },
    Row {
        rule: "RFC 9000 §8.1",
        what: "who does not answer gets three bytes for one at most",
        act: amplification,
    },
    Row {
        rule: "RFC 9000 §10.3",
        what: "what answers a packet of no connection is shorter than it",
        act: resets,
    },
    Row {
        rule: "RFC 9000 §5.2",
        what: "noise of every length and first byte is answered with nothing longer",
        act: noise,
    },
    Row {
        rule: "RFC 9000 §14",
        what: "a datagram of 65,000 bytes harms nobody",
        act: |context| match context.connected() {
            Err(verdict) => verdict,
            Ok(mut link) => {
                let mut datagram = link.packet(Space::Application, &[1; 60_000], false, 0);
                datagram.extend(random(5_000));
                link.send_datagram(&datagram);
                alive(context, &mut link, "the connection goes on")
            }
        },
    },
    Row {
        rule: "RFC 9000 §5.2",
        what: "a packet to another connection id changes nothing for the connection",
        act: |context| match context.connected() {
            Err(verdict) => verdict,
            Ok(mut link) => {
                let other = random(link.remote_id.len());
                let own = std::mem::replace(&mut link.remote_id, other);
                for _ in 0..16 {
                    link.send(Space::Application, &integers([frame::HANDSHAKE_DONE]));
                }
                link.remote_id = own;
                alive(context, &mut link, "the connection goes on")
            }
        },
    },
    Row {
        rule: "RFC 9001 §5.3",
        what: "a packet that is not authentic changes nothing for the connection",
        act: |context| match context.connected() {
            Err(verdict) => verdict,
            Ok(mut link) => {
                let frames = integers([frame::HANDSHAKE_DONE]);
                let packet = link.packet(Space::Application, &frames, false, 0);
                for at in 1 + link.remote_id.len()..packet.len() {
                    let mut other = packet.clone();
                    other[at] ^= 0x10;
                    link.send_datagram(&other);
                }
                alive(context, &mut link, "the connection goes on")
            }
        },
    },
];

/// Makes a datagram of a version that nobody speaks.
fn unknown_version(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    bytes[..6].copy_from_slice(&[0xc0, 0xfa, 0xce, 0xb0, 0x0c, 8]);
    bytes[6..14].copy_from_slice(&random(8));
    bytes
}

/// Sends one datagram to which an answer is due, and judges what came.
fn answered(
    context: &Context,
    datagram: &[u8],
    judge: fn(&Link) -> Result<String, String>,
) -> Verdict {
    let mut link = match context.link() {
        Ok(link) => link,
        Err(error) => return unable(&error),
    };
    // What answers has the ids the other way round.
    let mut datagram = datagram.to_vec();
    datagram.splice(14..15 + 8, own_id(&link));
    link.send_datagram(&datagram);
    wait(&mut link, context, |link| link.seen.datagrams_in > 0);
    match judge(&link) {
        Ok(text) => Verdict::Held(text),
        Err(text) => Verdict::Failed(text),
    }
}

fn own_id(link: &Link) -> Vec<u8> {
    let mut id = vec![8];
    id.extend(&link.local_id);
    id
}

/// Waits without sending anything.
fn wait(link: &mut Link, context: &Context, done: fn(&Link) -> bool) {
    let deadline = std::time::Instant::now() + context.patience;
    while !done(link) && std::time::Instant::now() < deadline {
        link.listen();
    }
}

/// Sends one datagram that is not to be answered.
fn silence(context: &Context, datagram: &[u8]) -> Verdict {
    let mut link = match context.link() {
        Ok(link) => link,
        Err(error) => return unable(&error),
    };
    link.send_datagram(datagram);
    wait(&mut link, context, |link| link.seen.datagrams_in > 0);
    match link.seen.datagrams_in {
        0 => Verdict::Held("silence".to_owned()),
        _ => Verdict::Failed(format!("{} bytes came", link.seen.bytes_in)),
    }
}

/// Sends an Initial packet that must not begin a connection. A close is allowed.
fn begins_nothing(context: &Context, link: &mut Link, datagram: &[u8]) -> Verdict {
    link.send_datagram(datagram);
    wait(link, context, |link| link.seen.datagrams_in > 0);
    if link.seen.has_retry || link.has_handshake_keys() {
        return Verdict::Failed("it was taken".to_owned());
    }
    Verdict::Held(match link.seen.closed {
        Some(_) => said(link),
        None => "silence".to_owned(),
    })
}

fn false_token(context: &Context) -> Verdict {
    let mut offer = context.offer.clone();
    offer.token = random(64);
    let mut link = match Link::new(context.server, &offer) {
        Ok(link) => link,
        Err(error) => return unable(&error),
    };
    let datagram = link.first_datagram(INITIAL_LEN);
    link.send_datagram(&datagram);
    wait(&mut link, context, |_| false);
    judge_unproven(&link, datagram.len())
}

/// Judges what came for one datagram whose token proves nothing.
fn judge_unproven(link: &Link, sent: usize) -> Verdict {
    if link.seen.bytes_in > AMPLIFICATION * sent {
        return Verdict::Failed(format!("{} bytes for {sent}", link.seen.bytes_in));
    }
    match link.seen.closed {
        Some((INVALID_TOKEN, false)) => Verdict::Held("INVALID_TOKEN".to_owned()),
        Some(_) => Verdict::Failed(said(link)),
        None if link.seen.datagrams_in == 0 => Verdict::Held("silence".to_owned()),
        None => Verdict::Held(format!(
            "taken for one without a token: {} bytes for {sent}",
            link.seen.bytes_in
        )),
    }
}

fn stolen_token(context: &Context) -> Verdict {
    let mut owner = match context.link() {
        Ok(link) => link,
        Err(error) => return unable(&error),
    };
    owner.send_flights();
    owner.run_until(context.patience, |link| {
        link.seen.has_retry || link.has_handshake_keys()
    });
    if !owner.seen.has_retry {
        return Verdict::NotTried("the server asks for no proof".to_owned());
    }
    let datagram = owner.first_datagram(INITIAL_LEN);
    // Another port, which has the same part in a token as another address (RFC 9000 §8.1.4).
    let mut thief = match context.link() {
        Ok(link) => link,
        Err(error) => return unable(&error),
    };
    thief.take_place_of(&owner);
    thief.send_datagram(&datagram);
    wait(&mut thief, context, |_| false);
    judge_unproven(&thief, datagram.len())
}

fn amplification(context: &Context) -> Verdict {
    let mut link = match context.link() {
        Ok(link) => link,
        Err(error) => return unable(&error),
    };
    let datagram = link.first_datagram(INITIAL_LEN);
    link.send_datagram(&datagram);
    wait(&mut link, context, |_| false);
    let (received, sent) = (link.seen.bytes_in, datagram.len());
    match received <= AMPLIFICATION * sent {
        true => Verdict::Held(format!("{received} bytes for {sent}")),
        false => Verdict::Failed(format!("{received} bytes for {sent}")),
    }
}

/// Sends packets with a short header to ids that nobody has.
fn resets(context: &Context) -> Verdict {
    let link = match context.link() {
        Ok(link) => link,
        Err(error) => return unable(&error),
    };
    let lens = [21, 22, 30, 41, 42, 43, 60, 100, 400, 1200];
    longest_answers(context, &link, lens.map(|len| (0x40, len)))
}

fn noise(context: &Context) -> Verdict {
    let link = match context.link() {
        Ok(link) => link,
        Err(error) => return unable(&error),
    };
    let every = (0..=u8::MAX).flat_map(|first| (1..=24).map(move |len| (first, len)));
    // What STUN and DTLS answer is not QUIC's.
    longest_answers(context, &link, every.filter(|(first, _)| *first >= 64))
}

/// Sends random datagrams with these first bytes and lengths; none may be answered with as many bytes.
fn longest_answers(
    context: &Context,
    link: &Link,
    datagrams: impl IntoIterator<Item = (u8, usize)>,
) -> Verdict {
    let mut buffer = [0; 2048];
    let (mut answers, mut longest) = (0, 0);
    for (first, len) in datagrams {
        let mut bytes = random(len);
        bytes[0] = first;
        longest = longest.max(len);
        link.send_datagram(&bytes);
        if let Ok(came) = link.come_at_once(&mut buffer) {
            answers += 1;
            // It may be about an earlier one.
            if came >= longest {
                return Verdict::Failed(format!("{came} bytes for {longest}"));
            }
        }
    }
    context.still_serves(format!("{answers} shorter answers"))
}

/// Judges whether the connection still answers.
fn alive(context: &Context, link: &mut Link, text: &str) -> Verdict {
    match link.is_alive(context.patience) {
        true => Verdict::Held(text.to_owned()),
        false => Verdict::Failed(format!("the connection is gone: {}", said(link))),
    }
}
