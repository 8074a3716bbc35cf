//! What one connection makes a server do very often.

use std::time::Instant;

use super::link::{Link, Space};
use super::wire::{frame, integers, new_connection_id};
use super::{Context, Row, said};
use crate::report::Verdict;

/// Bytes of frames in a packet.
const PACKET_LEN: usize = 1150;

pub(super) const ROWS: &[Row] = &[
    Row {
        rule: "RFC 9000 §21.9",
        what: "a flood of PATH_CHALLENGE",
        act: |context| {
            flood(context, |number, frames| {
                frames.extend(integers([frame::PATH_CHALLENGE]));
                frames.extend(number.to_be_bytes());
            })
        },
    },
    Row {
        rule: "RFC 9000 §19.15",
        what: "a flood of NEW_CONNECTION_ID, each of which retires those before it",
        act: |context| {
            flood(context, |number, frames| {
                let sequence = number + 1;
                frames.extend(new_connection_id(
                    sequence,
                    sequence,
                    &sequence.to_be_bytes(),
                ));
            })
        },
    },
    Row {
        rule: "RFC 9000 §21.9",
        what: "a flood of PING",
        act: |context| {
            flood(context, |_, frames| {
                frames.extend(integers([frame::PING]));
            })
        },
    },
];

/// Sends frames in as few packets as take them. Whoever else shakes hands meanwhile must be served in time, and so must everybody afterwards.
fn flood(context: &Context, frame: fn(u64, &mut Vec<u8>)) -> Verdict {
    let mut link = match context.connected() {
        Err(verdict) => return verdict,
        Ok(link) => link,
    };
    let (before, began) = (link.seen.bytes_in, Instant::now());
    let (mut bytes_out, mut packets) = (0, 0_u32);
    let mut frames = Vec::new();
    let mut next = 0;
    let half = u64::from(context.frames / 2);
    let mut is_served = None;
    while next < context.frames.into() && link.seen.closed.is_none() {
        frames.clear();
        while frames.len() < PACKET_LEN && next < context.frames.into() {
            frame(next, &mut frames);
            next += 1;
        }
        bytes_out += frames.len();
        packets += 1;
        link.send(Space::Application, &frames);
        // What comes is taken now and then, so that the sockets' buffers do not decide how far a flood gets.
        if packets.is_multiple_of(16) {
            drain(&mut link);
        }
        if is_served.is_none() && next > half {
            is_served = Some(context.connected().map(drop));
        }
    }
    drain(&mut link);
    if let Some(Err(verdict)) = is_served {
        return verdict;
    }
    let received = link.seen.bytes_in - before;
    context.still_serves(format!(
        "{next} frames in {packets} packets, {bytes_out} bytes, in {:.1} s; {received} bytes came back; {}",
        began.elapsed().as_secs_f64(),
        said(&link)
    ))
}

fn drain(link: &mut Link) {
    while link.take_at_once() {}
}
