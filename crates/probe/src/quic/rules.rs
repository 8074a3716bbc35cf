//! What a server closes a connection for: each row breaks one rule, and names the codes with which it may be answered.
//!
//! The rows are those that are known as the transport cases of h3spec.

use std::sync::Arc;

use rustls::client::Resumption;

use super::link::{Link, Offer, Space};
use super::wire::{STREAM_LENGTH, crypto, frame, integers, new_connection_id, put, stream};
use super::{Context, Row, said, unable};
use crate::report::Verdict;

const FLOW_CONTROL_ERROR: u64 = 0x03;
const STREAM_LIMIT_ERROR: u64 = 0x04;
const STREAM_STATE_ERROR: u64 = 0x05;
const FRAME_ENCODING_ERROR: u64 = 0x07;
const TRANSPORT_PARAMETER_ERROR: u64 = 0x08;
const PROTOCOL_VIOLATION: u64 = 0x0a;
/// Alerts of TLS (RFC 9001 §4.8).
const UNEXPECTED_MESSAGE: u64 = 0x0100 + 10;
const MISSING_EXTENSION: u64 = 0x0100 + 109;
const NO_APPLICATION_PROTOCOL: u64 = 0x0100 + 120;

/// Messages of TLS without a body to speak of (RFC 8446 §4).
const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];
const END_OF_EARLY_DATA: [u8; 4] = [5, 0, 0, 0];

/// Streams: the first one of the server that goes both ways, and the first ones each way that go one way.
const OF_SERVER: u64 = 1;
const ONE_WAY_OF_CLIENT: u64 = 2;
const ONE_WAY_OF_SERVER: u64 = 3;
/// One more than streams can be (RFC 9000 §4.6).
const TOO_MANY_STREAMS: u64 = (1 << 60) + 1;

pub(super) const ROWS: &[Row] = &[
    row("RFC 9000 §4.1", "a STREAM frame beyond the window", |it| {
        after(it, FLOW_CONTROL_ERROR, |_| stream(0, 1 << 40))
    }),
    row("RFC 9000 §7.3", "no initial_source_connection_id", |it| {
        offering(it, |offer| offer.names_source = false)
    }),
    row(
        "RFC 9000 §18.2",
        "original_destination_connection_id of a client",
        |it| offering(it, |offer| add(offer, 0x00, &[1; 8])),
    ),
    row("RFC 9000 §18.2", "preferred_address of a client", |it| {
        offering(it, |offer| add(offer, 0x0d, &preferred_address()))
    }),
    row(
        "RFC 9000 §18.2",
        "retry_source_connection_id of a client",
        |it| offering(it, |offer| add(offer, 0x10, &[1; 8])),
    ),
    row(
        "RFC 9000 §18.2",
        "stateless_reset_token of a client",
        |it| offering(it, |offer| add(offer, 0x02, &[1; 16])),
    ),
    row("RFC 9000 §18.2", "max_udp_payload_size below 1200", |it| {
        offering(it, |offer| add(offer, 0x03, &integers([1199])))
    }),
    row("RFC 9000 §18.2", "ack_delay_exponent above 20", |it| {
        offering(it, |offer| add(offer, 0x0a, &integers([21])))
    }),
    row("RFC 9000 §18.2", "max_ack_delay of 2^14", |it| {
        offering(it, |offer| add(offer, 0x0b, &integers([1 << 14])))
    }),
    row("RFC 9000 §12.4", "a frame of an unknown type", |it| {
        after(it, FRAME_ENCODING_ERROR, |_| integers([0x42]))
    }),
    row("RFC 9000 §12.4", "a packet without frames", |it| {
        after(it, PROTOCOL_VIOLATION, |_| Vec::new())
    }),
    row(
        "RFC 9000 §17.2",
        "reserved bits in an Initial packet",
        |it| {
            early(it, &[PROTOCOL_VIOLATION], |link| {
                link.send_with(Space::Initial, &integers([frame::PING]), true);
            })
        },
    ),
    row(
        "RFC 9000 §17.2",
        "reserved bits in a Handshake packet",
        |it| {
            early(it, &[PROTOCOL_VIOLATION], |link| {
                link.send_with(Space::Handshake, &integers([frame::PING]), true);
            })
        },
    ),
    row(
        "RFC 9000 §17.3.1",
        "reserved bits in a packet with a short header",
        |it| {
            later(it, &[PROTOCOL_VIOLATION], |link| {
                link.send_with(Space::Application, &integers([frame::PING]), true);
            })
        },
    ),
    row(
        "RFC 9000 §17.2.2",
        "PATH_CHALLENGE in an Initial packet",
        |it| {
            early(it, &[PROTOCOL_VIOLATION], |link| {
                link.send(Space::Initial, &challenge());
            })
        },
    ),
    row(
        "RFC 9000 §17.2.4",
        "PATH_CHALLENGE in a Handshake packet",
        |it| {
            early(it, &[PROTOCOL_VIOLATION], |link| {
                link.send(Space::Handshake, &challenge());
            })
        },
    ),
    row(
        "RFC 9000 §19.4",
        "RESET_STREAM for a stream that only the server sends on",
        |it| {
            after(it, STREAM_STATE_ERROR, |_| {
                integers([frame::RESET_STREAM, ONE_WAY_OF_SERVER, 0, 0])
            })
        },
    ),
    row(
        "RFC 9000 §19.5",
        "STOP_SENDING for a stream that the server has not begun",
        |it| {
            after(it, STREAM_STATE_ERROR, |_| {
                integers([frame::STOP_SENDING, OF_SERVER, 0])
            })
        },
    ),
    row("RFC 9000 §19.7", "NEW_TOKEN of a client", |it| {
        after(it, PROTOCOL_VIOLATION, |_| {
            integers([frame::NEW_TOKEN, 1, 1])
        })
    }),
    row(
        "RFC 9000 §19.8",
        "STREAM for a stream that the server has not begun",
        |it| after(it, STREAM_STATE_ERROR, |_| stream(OF_SERVER, 0)),
    ),
    row(
        "RFC 9000 §19.8",
        "STREAM for a stream that only the server sends on",
        |it| {
            after(it, STREAM_STATE_ERROR, |_| {
                let kind = frame::STREAM | STREAM_LENGTH;
                integers([kind, ONE_WAY_OF_SERVER, 0])
            })
        },
    ),
    row(
        "RFC 9000 §19.10",
        "MAX_STREAM_DATA for a stream that the server has not begun",
        |it| {
            after(it, STREAM_STATE_ERROR, |_| {
                integers([frame::MAX_STREAM_DATA, OF_SERVER, 1 << 20])
            })
        },
    ),
    row(
        "RFC 9000 §19.10",
        "MAX_STREAM_DATA for a stream that the server only receives on",
        |it| {
            after(it, STREAM_STATE_ERROR, |_| {
                integers([frame::MAX_STREAM_DATA, ONE_WAY_OF_CLIENT, 1 << 20])
            })
        },
    ),
    row("RFC 9000 §19.11", "MAX_STREAMS above 2^60", |it| {
        after(it, FRAME_ENCODING_ERROR, |_| {
            integers([frame::MAX_STREAMS, TOO_MANY_STREAMS])
        })
    }),
    row("RFC 9000 §19.14", "STREAMS_BLOCKED above 2^60", |it| {
        let codes = [STREAM_LIMIT_ERROR, FRAME_ENCODING_ERROR];
        later(it, &codes, |link| {
            let frames = integers([frame::STREAMS_BLOCKED, TOO_MANY_STREAMS]);
            link.send(Space::Application, &frames);
        })
    }),
    row(
        "RFC 9000 §19.15",
        "NEW_CONNECTION_ID with an id of no bytes",
        |it| after(it, FRAME_ENCODING_ERROR, |_| new_connection_id(1, 0, &[])),
    ),
    row(
        "RFC 9000 §19.15",
        "NEW_CONNECTION_ID that retires more than there is",
        |it| {
            after(it, FRAME_ENCODING_ERROR, |_| {
                new_connection_id(1, 2, &[1; 8])
            })
        },
    ),
    row("RFC 9000 §19.20", "HANDSHAKE_DONE of a client", |it| {
        after(it, PROTOCOL_VIOLATION, |_| {
            integers([frame::HANDSHAKE_DONE])
        })
    }),
    row("RFC 9001 §6", "KeyUpdate in a Handshake packet", |it| {
        early(it, &[UNEXPECTED_MESSAGE], |link| {
            send_message(link, Space::Handshake, &KEY_UPDATE);
        })
    }),
    row(
        "RFC 9001 §6",
        "KeyUpdate in a packet with a short header",
        |it| {
            later(it, &[UNEXPECTED_MESSAGE], |link| {
                send_message(link, Space::Application, &KEY_UPDATE);
            })
        },
    ),
    row(
        "RFC 9001 §8.1",
        "no protocol that the server speaks",
        |it| {
            refused(it, NO_APPLICATION_PROTOCOL, |offer| {
                let mut tls = (*offer.tls).clone();
                tls.alpn_protocols = vec![b"nobody speaks this".to_vec()];
                offer.tls = Arc::new(tls);
            })
        },
    ),
    row("RFC 9001 §8.2", "no transport parameters", |it| {
        refused(it, MISSING_EXTENSION, |offer| offer.has_parameters = false)
    }),
    row("RFC 9001 §8.3", "EndOfEarlyData", |it| {
        early(it, &[UNEXPECTED_MESSAGE], |link| {
            send_message(link, Space::Handshake, &END_OF_EARLY_DATA);
        })
    }),
    row(
        "RFC 9001 §8.3",
        "CRYPTO in a 0-RTT packet",
        crypto_in_early_data,
    ),
];

const fn row(rule: &'static str, what: &'static str, act: fn(&Context) -> Verdict) -> Row {
    Row { rule, what, act }
}

/// Returns the transport parameters of a client by the rules, but for its connection id.
pub(super) fn parameters() -> Vec<u8> {
    let values = [
        // max_idle_timeout, initial_max_data, and of streams of each kind.
        (0x01, 30_000),
        (0x04, 1 << 20),
        (0x05, 1 << 18),
        (0x06, 1 << 18),
        (0x07, 1 << 18),
        // initial_max_streams_bidi, _uni, active_connection_id_limit, max_datagram_frame_size.
        (0x08, 100),
        (0x09, 100),
        (0x0e, 8),
        (0x20, 65_535),
    ];
    values
        .into_iter()
        .flat_map(|(id, value)| {
            let value = integers([value]);
            [integers([id, value.len() as u64]), value].concat()
        })
        .collect()
}

fn add(offer: &mut Offer, id: u64, value: &[u8]) {
    put(&mut offer.parameters, id);
    put(&mut offer.parameters, value.len() as u64);
    offer.parameters.extend(value);
}

/// Returns an IPv4 and an IPv6 address with ports, a connection id and a reset token (RFC 9000 §18.2).
fn preferred_address() -> Vec<u8> {
    [
        &[192, 0, 2, 1, 1, 187][..],
        &[0; 18],
        &[4, 1, 2, 3, 4],
        &[9; 16],
    ]
    .concat()
}

fn challenge() -> Vec<u8> {
    let mut frames = integers([frame::PATH_CHALLENGE]);
    frames.extend([0x11; 8]);
    frames
}

/// Sends a message of TLS behind those that were sent.
fn send_message(link: &mut Link, space: Space, message: &[u8]) {
    let offset = link.crypto_offset(space);
    link.send(space, &crypto(offset, message));
}

/// Breaks a rule on a connection whose handshake is done.
fn later(context: &Context, codes: &[u64], act: impl FnOnce(&mut Link)) -> Verdict {
    match context.connected() {
        Err(verdict) => verdict,
        Ok(mut link) => {
            act(&mut link);
            close(context, &mut link, codes)
        }
    }
}

/// Breaks a rule by frames on such a connection.
fn after(context: &Context, code: u64, frames: fn(&Link) -> Vec<u8>) -> Verdict {
    later(context, &[code], |link| {
        let frames = frames(link);
        link.send(Space::Application, &frames);
    })
}

/// Breaks a rule when the server's first flight has come, and nothing has been sent that shows it.
fn early(context: &Context, codes: &[u64], act: impl FnOnce(&mut Link)) -> Verdict {
    let mut link = match context.link() {
        Ok(link) => link,
        Err(error) => return unable(&error),
    };
    if !link.shake_half(context.patience) {
        return Verdict::Failed(format!("no first flight: {}", said(&link)));
    }
    act(&mut link);
    close(context, &mut link, codes)
}

/// Begins with a wrong offer, of transport parameters.
fn offering(context: &Context, change: fn(&mut Offer)) -> Verdict {
    refused(context, TRANSPORT_PARAMETER_ERROR, change)
}

/// Begins with a wrong offer.
fn refused(context: &Context, code: u64, change: fn(&mut Offer)) -> Verdict {
    let mut offer = context.offer.clone();
    change(&mut offer);
    match Link::new(context.server, &offer) {
        Err(error) => unable(&error),
        Ok(mut link) => {
            // A server may judge what was offered when its own flight has been answered.
            link.shake(context.patience);
            close(context, &mut link, &[code])
        }
    }
}

/// Returns an offer that is made with a ticket from its second connection on, and early data with it.
pub(super) fn keeping_tickets(offer: &Offer) -> Offer {
    let mut tls = rustls::ClientConfig::clone(&offer.tls);
    tls.resumption = Resumption::in_memory_sessions(16);
    tls.enable_early_data = true;
    Offer {
        tls: Arc::new(tls),
        ..offer.clone()
    }
}

fn crypto_in_early_data(context: &Context) -> Verdict {
    let context = &Context {
        offer: keeping_tickets(&context.offer),
        ..*context
    };
    let mut first = match context.connected() {
        Err(verdict) => return verdict,
        Ok(link) => link,
    };
    // A ticket comes behind the handshake.
    first.is_alive(context.patience);
    drop(first);
    let mut link = match context.link() {
        Ok(link) => link,
        Err(error) => return unable(&error),
    };
    if !link.has_early_keys() {
        return Verdict::NotTried("the server takes no early data".to_owned());
    }
    link.send_flights();
    send_message(&mut link, Space::Early, &KEY_UPDATE);
    link.run_until(context.patience, |link| link.has_handshake_keys());
    send_message(&mut link, Space::Early, &KEY_UPDATE);
    close(context, &mut link, &[PROTOCOL_VIOLATION])
}

/// Waits for the close.
fn close(context: &Context, link: &mut Link, codes: &[u64]) -> Verdict {
    link.run_until(context.patience, |link| link.seen.closed.is_some());
    match link.seen.closed {
        Some((code, false)) if codes.contains(&code) => Verdict::Held(said(link)),
        _ => {
            let codes = codes.iter().map(|code| format!("{code:#06x}"));
            let codes: Vec<_> = codes.collect();
            Verdict::Failed(format!(
                "{}, and not with {}",
                said(link),
                codes.join(" or ")
            ))
        }
    }
}
