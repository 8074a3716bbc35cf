//! Well-formed messages that make no sense.

use std::net::{Ipv6Addr, SocketAddr};

use turnbuckle_wire::{AddressFamily, AttributeType, ChannelNumber, Class, MessageWriter, Method};

use super::{
    Act, Check, Context, Holder, Miss, NO_ANSWER, Outcome, SUCCESS, answer_to, is_one_of, parsed,
    wrong,
};
use turnbuckle_client::Credentials;
use turnbuckle_client::blocking::{Answer, Session, code, plain};
use turnbuckle_client::{TCP, UDP};

/// A comprehension-required and a comprehension-optional attribute that nobody has defined.
const UNKNOWN_REQUIRED: AttributeType = AttributeType::new(0x7ffe);
const UNKNOWN_OPTIONAL: AttributeType = AttributeType::new(0xfffe);
/// IANA keeps it for experiments.
const NO_PROTOCOL: u8 = 253;

/// A server without reservations, or with one address family, may say so.
const REFUSED_TOKEN: &[u16] = &[508];
const BAD: &[u16] = &[400];
const MISMATCH: &[u16] = &[437];
const OTHER_FAMILY: &[u16] = &[443];
const SILENCE: &[u16] = &[NO_ANSWER];

#[rustfmt::skip]
pub(super) const CHECKS: [Check; 61] = [
    // Who asks.
    Check::new("Allocate without credentials", "RFC 8489 §9.2.4", &[], Act::Dialog(without_credentials)),
    Check::new("Allocate with another password", "RFC 8489 §9.2.4", &[], Act::Dialog(another_password)),
    Check::new("Allocate of nobody's name", "RFC 8489 §9.2.4", &[], Act::Dialog(nobody)),
    Check::new("Allocate with an invented nonce", "RFC 8489 §9.2.4", &[], Act::Dialog(invented_nonce)),
    Check::new("MESSAGE-INTEGRITY without USERNAME", "RFC 8489 §9.2.4", BAD, Act::Dialog(integrity_alone)),
    Check::new("MESSAGE-INTEGRITY of other bytes", "RFC 8489 §9.2.4", &[], Act::Dialog(forged_integrity)),
    Check::new("Refresh without credentials", "RFC 8489 §9.2.4", &[], Act::Dialog(refresh_without_credentials)),
    // Attributes.
    Check::new("an unknown attribute that must be understood", "RFC 8489 §6.3.1", &[], Act::Dialog(unknown_required)),
    Check::new("an unknown attribute that need not be understood", "RFC 8489 §14", &[SUCCESS], Act::Allocate(|writer| {
        writer.requested_transport(UDP).bytes(UNKNOWN_OPTIONAL, b"whatever");
    })),
    Check::new("Binding request with an unknown attribute that must be understood", "RFC 8489 §6.3.1", &[420], Act::Bytes(|| {
        plain(Class::Request, Method::BINDING, |writer| { writer.flag(UNKNOWN_REQUIRED); })
    })),
    Check::new("Binding indication", "RFC 8489 §6.3.2", SILENCE, Act::Bytes(|| plain(Class::Indication, Method::BINDING, |_| {}))),
    Check::new("Binding success response that nobody asked for", "RFC 8489 §6.3.3", SILENCE, Act::Bytes(|| {
        plain(Class::Success, Method::BINDING, |writer| { writer.xor_mapped_address(([192, 0, 2, 1], 9).into()); })
    })),
    Check::new("Binding error response that nobody asked for", "RFC 8489 §6.3.4", SILENCE, Act::Bytes(|| {
        plain(Class::Error, Method::BINDING, |writer| { writer.error_code(400, "Bad Request"); })
    })),
    Check::new("a method that does not exist", "RFC 8489 §6.3", &[NO_ANSWER, 400, 401], Act::Dialog(unknown_method)),
    // Allocate.
    Check::new("Allocate without REQUESTED-TRANSPORT", "RFC 8656 §7.2", BAD, Act::Allocate(|_| {})),
    Check::new("REQUESTED-TRANSPORT of an unknown protocol", "RFC 8656 §7.2", &[442], Act::Allocate(|writer| {
        writer.requested_transport(NO_PROTOCOL);
    })),
    // 442: a server that relays no TCP.
    Check::new("a TCP allocation by UDP", "RFC 6062 §5.1", &[400, 442], Act::Allocate(|writer| { writer.requested_transport(TCP); })),
    Check::new("RESERVATION-TOKEN that was never given", "RFC 8656 §7.2", REFUSED_TOKEN, Act::Allocate(|writer| {
        writer.requested_transport(UDP).reservation_token(*b"nowhere!");
    })),
    Check::new("RESERVATION-TOKEN and EVEN-PORT", "RFC 8656 §7.2", BAD, Act::Allocate(|writer| {
        writer.requested_transport(UDP).reservation_token(*b"nowhere!").even_port(false);
    })),
    Check::new("RESERVATION-TOKEN and REQUESTED-ADDRESS-FAMILY", "RFC 8656 §7.2", BAD, Act::Allocate(|writer| {
        writer.requested_transport(UDP).reservation_token(*b"nowhere!").requested_address_family(AddressFamily::V4);
    })),
    Check::new("RESERVATION-TOKEN and ADDITIONAL-ADDRESS-FAMILY", "RFC 8656 §7.2", BAD, Act::Allocate(|writer| {
        writer.requested_transport(UDP).reservation_token(*b"nowhere!").additional_address_family(AddressFamily::V6);
    })),
    Check::new("REQUESTED-ADDRESS-FAMILY and ADDITIONAL-ADDRESS-FAMILY", "RFC 8656 §7.2", BAD, Act::Allocate(|writer| {
        writer.requested_transport(UDP).requested_address_family(AddressFamily::V4).additional_address_family(AddressFamily::V6);
    })),
    Check::new("ADDITIONAL-ADDRESS-FAMILY of IPv4", "RFC 8656 §7.2", BAD, Act::Allocate(|writer| {
        writer.requested_transport(UDP).additional_address_family(AddressFamily::V4);
    })),
    Check::new("ADDITIONAL-ADDRESS-FAMILY and EVEN-PORT that reserves", "RFC 8656 §7.2", BAD, Act::Allocate(|writer| {
        writer.requested_transport(UDP).additional_address_family(AddressFamily::V6).even_port(true);
    })),
    Check::new("REQUESTED-ADDRESS-FAMILY of no family", "RFC 8656 §7.2", &[400, 440], Act::Allocate(|writer| {
        writer.requested_transport(UDP).bytes(AttributeType::REQUESTED_ADDRESS_FAMILY, &[9, 0, 0, 0]);
    })),
    Check::new("DONT-FRAGMENT", "RFC 8656 §7.2", &[SUCCESS, 420], Act::Allocate(|writer| {
        writer.requested_transport(UDP).dont_fragment();
    })),
    Check::new("MOBILITY-TICKET in Allocate that is not empty", "RFC 8016 §3.1.2", &[SUCCESS, 400, 405], Act::Allocate(|writer| {
        writer.requested_transport(UDP).mobility_ticket(b"a ticket from nowhere");
    })),
    Check::new("a second Allocate on the same 5-tuple", "RFC 8656 §7.2", MISMATCH, Act::Holder(Method::ALLOCATE, |writer, _| {
        writer.requested_transport(UDP);
    })),
    Check::new("a repeated Allocate", "RFC 8656 §7.2", &[], Act::Dialog(repeated_allocate)),
    Check::new("EVEN-PORT", "RFC 8656 §7.2", &[], Act::Dialog(even_port)),
    Check::new("EVEN-PORT that reserves, and its RESERVATION-TOKEN twice", "RFC 8656 §7.2", &[], Act::Dialog(reservation)),
    Check::new("LIFETIME of a second", "RFC 8656 §7.2", &[], Act::Dialog(short_lifetime)),
    Check::new("LIFETIME of 136 years", "RFC 8656 §7.2", &[], Act::Dialog(long_lifetime)),
    // Refresh.
    Check::new("Refresh without an allocation", "RFC 8656 §5", MISMATCH, Act::Stranger(Method::REFRESH, |_, _| {})),
    Check::new("Refresh of the other address family", "RFC 8656 §8.2", OTHER_FAMILY, Act::Holder(Method::REFRESH, |writer, _| {
        writer.requested_address_family(AddressFamily::V6);
    })),
    Check::new("Refresh after the end", "RFC 8656 §8.2", &[], Act::Dialog(refresh_after_end)),
    Check::new("MOBILITY-TICKET from nowhere", "RFC 8016 §3.2.2", &[400, 405, 437], Act::Stranger(Method::REFRESH, |writer, _| {
        writer.mobility_ticket(b"a ticket from nowhere");
    })),
    // CreatePermission.
    Check::new("CreatePermission without an allocation", "RFC 8656 §5", MISMATCH, Act::Stranger(Method::CREATE_PERMISSION, |writer, peer| {
        writer.xor_peer_address(peer);
    })),
    Check::new("CreatePermission without a peer", "RFC 8656 §10.2", BAD, Act::Holder(Method::CREATE_PERMISSION, |_, _| {})),
    Check::new("CreatePermission for the other address family", "RFC 8656 §10.2", OTHER_FAMILY, Act::Holder(Method::CREATE_PERMISSION, |writer, _| {
        writer.xor_peer_address(v6_peer());
    })),
    // ChannelBind.
    Check::new("ChannelBind without an allocation", "RFC 8656 §5", MISMATCH, Act::Stranger(Method::CHANNEL_BIND, |writer, peer| {
        channel(writer, 0x4000).xor_peer_address(peer);
    })),
    Check::new("ChannelBind without a channel", "RFC 8656 §12.2", BAD, Act::HolderWithPeer(Method::CHANNEL_BIND, |writer, peer| {
        writer.xor_peer_address(peer);
    })),
    Check::new("ChannelBind without a peer", "RFC 8656 §12.2", BAD, Act::Holder(Method::CHANNEL_BIND, |writer, _| {
        channel(writer, 0x4000);
    })),
    Check::new("ChannelBind of channel 0x3fff", "RFC 8656 §12.2", BAD, Act::HolderWithPeer(Method::CHANNEL_BIND, |writer, peer| {
        channel(writer, 0x3fff).xor_peer_address(peer);
    })),
    Check::new("ChannelBind of channel 0x5000", "RFC 8656 §12.2", BAD, Act::HolderWithPeer(Method::CHANNEL_BIND, |writer, peer| {
        channel(writer, 0x5000).xor_peer_address(peer);
    })),
    Check::new("ChannelBind of channel 0xffff", "RFC 8656 §12.2", BAD, Act::HolderWithPeer(Method::CHANNEL_BIND, |writer, peer| {
        channel(writer, 0xffff).xor_peer_address(peer);
    })),
    Check::new("ChannelBind for the other address family", "RFC 8656 §12.2", OTHER_FAMILY, Act::Holder(Method::CHANNEL_BIND, |writer, _| {
        channel(writer, 0x4000).xor_peer_address(v6_peer());
    })),
    Check::new("ChannelBind twice, a channel's second peer, a peer's second channel", "RFC 8656 §12.2", &[], Act::Dialog(conflicting_channels)),
    // Indications and what else is never answered.
    Check::new("Send indication without a peer", "RFC 8656 §11.2", SILENCE, Act::Spoiled(|_| {
        plain(Class::Indication, Method::SEND, |writer| { writer.data(b"to whom?"); })
    })),
    Check::new("Send indication without data", "RFC 8656 §11.2", SILENCE, Act::Spoiled(|_| {
        plain(Class::Indication, Method::SEND, |writer| { writer.xor_peer_address(([192, 0, 2, 1], 9).into()); })
    })),
    Check::new("Send indication without a permission", "RFC 8656 §11.2", SILENCE, Act::Spoiled(|_| {
        plain(Class::Indication, Method::SEND, |writer| { writer.xor_peer_address(([192, 0, 2, 1], 9).into()).data(b"hello"); })
    })),
    Check::new("Data indication from a client", "RFC 8656 §5", SILENCE, Act::Spoiled(|_| {
        plain(Class::Indication, Method::DATA, |writer| { writer.xor_peer_address(([192, 0, 2, 1], 9).into()).data(b"hello"); })
    })),
    Check::new("ChannelData on a channel that is not bound", "RFC 8656 §12.6", SILENCE, Act::Spoiled(|_| {
        vec![0x4f, 0xff, 0, 4, 1, 2, 3, 4]
    })),
    Check::new("ChannelData without an allocation", "RFC 8656 §12.6", SILENCE, Act::Bytes(|| vec![0x40, 0, 0, 4, 1, 2, 3, 4])),
    // TCP relays.
    Check::new("Connect on a UDP allocation", "RFC 6062 §5.2", &[NO_ANSWER, 400, 403, 437, 442], Act::Holder(Method::CONNECT, |writer, peer| {
        writer.xor_peer_address(peer);
    })),
    Check::new("Connect without a peer", "RFC 6062 §5.2", BAD, Act::TcpHolder(Method::CONNECT, |_, _| {})),
    Check::new("Connect for the other address family", "RFC 6062 §5.2", &[400, 403, 443], Act::TcpHolder(Method::CONNECT, |writer, _| {
        writer.xor_peer_address(v6_peer());
    })),
    Check::new("ConnectionBind of an unknown connection", "RFC 6062 §5.4", BAD, Act::Dialog(unknown_connection)),
    Check::new("ConnectionBind without a connection", "RFC 6062 §5.4", BAD, Act::Dialog(no_connection)),
    Check::new("DONT-FRAGMENT for a TCP allocation", "RFC 6062 §5.1", BAD, Act::Dialog(tcp_dont_fragment)),
    Check::new("EVEN-PORT for a TCP allocation", "RFC 6062 §5.1", BAD, Act::Dialog(tcp_even_port)),
];

fn v6_peer() -> SocketAddr {
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), 9).into()
}

/// Appends CHANNEL-NUMBER, in range or not.
fn channel<'w, 'b>(writer: &'w mut MessageWriter<'b>, number: u16) -> &'w mut MessageWriter<'b> {
    let [high, low] = number.to_be_bytes();
    writer.bytes(AttributeType::CHANNEL_NUMBER, &[high, low, 0, 0])
}

/// Checks that an answer is a 401 or 438, whichever is `right`, with what the next try needs.
fn is_challenge(answer: Option<&Answer>, right: u16) -> Outcome {
    is_one_of(code(answer), &[right])?;
    let Some(answer) = answer else {
        return Ok(());
    };
    let message = parsed(answer)?;
    match (message.realm(), message.nonce()) {
        (Ok(Some(_)), Ok(Some(_))) => Ok(()),
        _ => wrong(format!("{right} without REALM and NONCE")),
    }
}

fn without_credentials(context: &Context) -> Outcome {
    let mut session = Session::udp(&context.target)?;
    is_challenge(session.fetch_challenge().as_ref(), 401)
}

fn refresh_without_credentials(context: &Context) -> Outcome {
    let mut session = context.allocated()?;
    let request = plain(Class::Request, Method::REFRESH, |writer| {
        writer.lifetime(600);
    });
    is_challenge(session.exchange(&request).as_ref(), 401)
}

fn refused_as(context: &Context, credentials: Credentials) -> Outcome {
    let mut session = Session::udp(&context.target)?;
    session.proof.set_credentials(credentials);
    let answer = session.request(Method::ALLOCATE, |writer| {
        writer.requested_transport(UDP);
    });
    is_challenge(answer.as_ref(), 401)
}

fn another_password(context: &Context) -> Outcome {
    let name = context.target.credentials.username();
    refused_as(context, Credentials::user(name, "certainly not this one"))
}

fn nobody(context: &Context) -> Outcome {
    refused_as(
        context,
        Credentials::user("nobody-has-this-name", "nor this"),
    )
}

fn invented_nonce(context: &Context) -> Outcome {
    let mut session = Session::udp(&context.target)?;
    let Some(challenge) = session.fetch_challenge() else {
        return wrong("no answer");
    };
    let message = parsed(&challenge)?;
    let Ok(Some(realm)) = message.realm() else {
        return wrong("the challenge has no REALM");
    };
    let invented = plain(Class::Error, Method::ALLOCATE, |writer| {
        writer
            .error_code(401, "")
            .realm(realm)
            .nonce(b"invented by the client");
    });
    session.take_challenge(&Answer(invented));
    let request = session.signed(Method::ALLOCATE, |writer| {
        writer.requested_transport(UDP);
    });
    is_challenge(session.exchange(&request).as_ref(), 438)
}

fn integrity_alone(context: &Context) -> Outcome {
    let mut session = Session::udp(&context.target)?;
    let request = plain(Class::Request, Method::ALLOCATE, |writer| {
        writer
            .requested_transport(UDP)
            .bytes(AttributeType::MESSAGE_INTEGRITY, &[0x5a; 20]);
    });
    let answer = session.exchange(&request);
    is_one_of(code(answer.as_ref()), BAD)
}

fn forged_integrity(context: &Context) -> Outcome {
    let mut session = Session::udp(&context.target)?;
    session.fetch_challenge();
    let mut request = session.signed(Method::ALLOCATE, |writer| {
        writer.requested_transport(UDP);
    });
    if let Some(last) = request.last_mut() {
        *last ^= 1;
    }
    is_challenge(session.exchange(&request).as_ref(), 401)
}

fn unknown_required(context: &Context) -> Outcome {
    let mut session = Session::udp(&context.target)?;
    let answer = session.request(Method::ALLOCATE, |writer| {
        writer
            .requested_transport(UDP)
            .bytes(UNKNOWN_REQUIRED, b"what?");
    });
    is_one_of(code(answer.as_ref()), &[420])?;
    let Some(answer) = answer else { return Ok(()) };
    let message = parsed(&answer)?;
    match message.unknown_attributes() {
        Ok(Some(list)) if list.iter().eq([UNKNOWN_REQUIRED]) => Ok(()),
        _ => wrong("420 whose UNKNOWN-ATTRIBUTES does not name it"),
    }
}

fn unknown_method(context: &Context) -> Outcome {
    let Some(method) = Method::new(0x0f0) else {
        return Ok(());
    };
    let mut session = Session::udp(&context.target)?;
    let answer = answer_to(&mut session, &plain(Class::Request, method, |_| {}))?;
    is_one_of(answer, &[NO_ANSWER, 400, 401])
}

fn repeated_allocate(context: &Context) -> Outcome {
    let mut session = Session::udp(&context.target)?;
    session.fetch_challenge();
    let request = session.signed(Method::ALLOCATE, |writer| {
        writer.requested_transport(UDP);
    });
    let first = session.exchange(&request);
    let second = session.exchange(&request);
    let _held = Holder(session);
    let (Some(first), Some(second)) = (first, second) else {
        return wrong("no answer");
    };
    is_one_of(first.code(), &[SUCCESS])?;
    is_one_of(second.code(), &[SUCCESS])?;
    let (first, second) = (parsed(&first)?, parsed(&second)?);
    if first.xor_relayed_address() == second.xor_relayed_address() {
        Ok(())
    } else {
        wrong("the repetition got another relayed address")
    }
}

fn even_port(context: &Context) -> Outcome {
    let (_held, answer) = context.allocated_with(|writer| {
        writer.even_port(false);
    })?;
    match parsed(&answer)?.xor_relayed_address() {
        Ok(Some(relayed)) if relayed.port().is_multiple_of(2) => Ok(()),
        _ => wrong("the relayed address has no even port"),
    }
}

fn reservation(context: &Context) -> Outcome {
    let (_held, answer) = context.allocated_with(|writer| {
        writer.even_port(true);
    })?;
    let first = parsed(&answer)?;
    let (Ok(Some(relayed)), Ok(Some(token))) =
        (first.xor_relayed_address(), first.reservation_token())
    else {
        return wrong("no RESERVATION-TOKEN");
    };
    let (_next, answer) = context.allocated_with(|writer| {
        writer.reservation_token(token);
    })?;
    match parsed(&answer)?.xor_relayed_address() {
        Ok(Some(next)) if next.port() == relayed.port() + 1 => {}
        _ => return wrong("the token did not lead to the port that was reserved"),
    }
    let mut third = Session::udp(&context.target)?;
    match third.allocate(UDP, |writer| {
        writer.reservation_token(token);
    }) {
        Ok(_) => {
            drop(Holder(third));
            wrong("the token was good twice")
        }
        Err(code) => is_one_of(code, REFUSED_TOKEN),
    }
}

fn lifetime_for(context: &Context, seconds: u32) -> Result<u32, Miss> {
    let (_held, answer) = context.allocated_with(|writer| {
        writer.lifetime(seconds);
    })?;
    match parsed(&answer)?.lifetime() {
        Ok(Some(lifetime)) => Ok(lifetime),
        _ => wrong("no LIFETIME"),
    }
}

/// Checks that a client that asks for less than the default lifetime gets no less than the default, whatever that is.
fn short_lifetime(context: &Context) -> Outcome {
    let (_held, answer) = context.allocated_with(|_| {})?;
    let default = parsed(&answer)?.lifetime();
    let given = lifetime_for(context, 1)?;
    match default {
        Ok(Some(default)) if given >= default => Ok(()),
        _ => wrong(format!("{given} s, less than the default")),
    }
}

fn long_lifetime(context: &Context) -> Outcome {
    // A day, where the RFC recommends an hour.
    match lifetime_for(context, u32::MAX)? {
        given @ 86_401.. => wrong(format!("{given} s")),
        _ => Ok(()),
    }
}

fn refresh_after_end(context: &Context) -> Outcome {
    let mut session = context.allocated()?;
    is_one_of(code(session.refresh(0).as_ref()), &[SUCCESS])?;
    is_one_of(code(session.refresh(600).as_ref()), MISMATCH)
}

fn conflicting_channels(context: &Context) -> Outcome {
    let peer = context.allowed_peer()?;
    let other = SocketAddr::new(peer.ip(), peer.port() ^ 1);
    let mut session = context.allocated()?;
    let mut bind = |number: u16, to: SocketAddr| {
        let answer = session.request(Method::CHANNEL_BIND, |writer| {
            channel(writer, number).xor_peer_address(to);
        });
        code(answer.as_ref())
    };
    let first = ChannelNumber::MIN.get();
    is_one_of(bind(first, peer), &[SUCCESS])?;
    is_one_of(bind(first, peer), &[SUCCESS])?;
    is_one_of(bind(first, other), BAD)?;
    is_one_of(bind(first + 1, peer), BAD)
}

/// Checks that ConnectionBind with these attributes is refused on a second connection of a client with a TCP allocation.
fn connection_bind(context: &Context, build: fn(&mut MessageWriter<'_>)) -> Outcome {
    let _holder = context.tcp_allocated()?;
    let mut data = Session::tcp(&context.target)?;
    let answer = data.request(Method::CONNECTION_BIND, build);
    is_one_of(code(answer.as_ref()), BAD)
}

fn unknown_connection(context: &Context) -> Outcome {
    connection_bind(context, |writer| {
        writer.connection_id(0x5eed_5eed);
    })
}

fn no_connection(context: &Context) -> Outcome {
    connection_bind(context, |_| {})
}

/// Checks that a TCP allocation with these attributes is refused.
fn tcp_allocate(context: &Context, build: fn(&mut MessageWriter<'_>)) -> Outcome {
    drop(context.tcp_allocated()?);
    let mut session = Session::tcp(&context.target)?;
    match session.allocate(TCP, build) {
        Ok(_) => wrong("success, not 400"),
        Err(code) => is_one_of(code, BAD),
    }
}

fn tcp_dont_fragment(context: &Context) -> Outcome {
    tcp_allocate(context, |writer| {
        writer.dont_fragment();
    })
}

fn tcp_even_port(context: &Context) -> Outcome {
    tcp_allocate(context, |writer| {
        writer.even_port(false);
    })
}
