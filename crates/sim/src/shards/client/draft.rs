//! What requests of clients are made of.

use std::net::SocketAddr;

use turnbuckle_wire::Method;

use crate::message::{Attribute, Draft};

/// Returns the peer that a request is about, and the channel.
pub(super) fn peer_of(draft: &Draft) -> Option<(SocketAddr, Option<u16>)> {
    let attributes = &draft.attributes;
    let peer = attributes.iter().find_map(|it| match it {
        Attribute::Peer(peer) => Some(*peer),
        _ => None,
    })?;
    let channel = attributes.iter().find_map(|it| match it {
        Attribute::Channel(number) => Some(*number),
        _ => None,
    });
    Some((peer, channel))
}

/// Returns the origin that requests for a realm name.
pub(in super::super) fn origin(realm: &str) -> String {
    format!("https://{realm}")
}

/// ORIGIN (draft-ietf-tram-stun-origin §5).
pub(super) const ORIGIN: u16 = 0x802F;

/// Returns whether who holds a token shows it in this request (RFC 7635 §9).
pub(super) fn shows_token(draft: &Draft) -> bool {
    matches!(draft.method, Method::ALLOCATE | Method::REFRESH)
}

/// ACCESS-TOKEN (RFC 7635 §6.2).
pub(super) const ACCESS_TOKEN: u16 = 0x001B;
/// CONNECTION-ID (RFC 6062 §6.2.1).
const CONNECTION_ID: u16 = 0x002A;

/// Makes a ConnectionBind request.
pub(super) fn bind(connection: u32) -> Draft {
    let id = connection.to_be_bytes().to_vec();
    Draft::request(Method::CONNECTION_BIND).with(Attribute::Raw(CONNECTION_ID, id))
}
