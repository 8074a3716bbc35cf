//! Holds coturn's wording for parts of the lines.

use std::net::IpAddr;
use std::sync::Arc;

use turnbuckle_engine::{Transport, User};
use turnbuckle_wire::Method;

use crate::log::request::{Answer, Path, Seal};
use crate::log::text::{self, name, socket};

/// Number of session numbers per thread. coturn's session numbers have eighteen digits, three of them for the thread.
const SESSIONS: u64 = 1_000_000_000_000_000;

/// Returns coturn's name of a session of a thread.
pub(super) fn title(shard: usize, number: u64) -> String {
    format!("session {shard:03}{:015}", number % SESSIONS)
}

/// Returns the line about the end of a session.
pub(super) fn closed(
    title: &str,
    user: &str,
    realm: &str,
    origin: &str,
    path: &Path,
    cause: &str,
) -> String {
    format!(
        "{title}: closed (2nd stage), user <{user}> realm <{realm}> origin <{origin}>, local {}, remote {}, reason: {cause}",
        path.server, path.client,
    )
}

/// Returns the line about the end of a connection.
pub(super) fn disconnected(title: &str, path: &Path, is_orderly: bool) -> String {
    let how = match is_orderly {
        true => "closed remotely",
        false => "disconnected:",
    };
    format!(
        "{title}: {} socket {how} {}",
        socket(path.transport),
        path.client
    )
}

/// Returns the cause that coturn prints when a session ends with its connection.
pub(super) fn disconnection(transport: Transport, is_broken: bool) -> String {
    let how = match is_broken {
        true => "socket buffer operation error (callback)",
        false => "connection closed by client (callback)",
    };
    format!("{} {how}", socket(transport))
}

/// Returns coturn's reason phrase. For some errors it depends on the method, and for 438 on whether the nonce is known.
pub(super) fn phrase(answer: &Answer, code: u16, is_known: bool) -> &str {
    if let Some(detail) = &answer.detail {
        return detail;
    }
    match (code, answer.method) {
        (403, Method::CHANNEL_BIND | Method::CONNECT | Method::CREATE_PERMISSION) => "Forbidden IP",
        (437, Method::ALLOCATE) => "Mismatched allocation: wrong transaction ID",
        (437, Method::REFRESH) => "Invalid allocation",
        (438, _) if is_known => "Stale nonce",
        (438, _) => "Wrong nonce",
        _ => text::phrase(code),
    }
}

/// Returns the end of a line about a session that TLS or DTLS protects.
pub(super) fn suffix(seal: Option<&Seal>) -> String {
    match seal {
        Some(seal) => format!(", cipher={}, method={}", seal.suite, seal.version),
        None => String::new(),
    }
}

/// Returns coturn's word for the address family at the beginning of a line.
pub(super) fn family(ip: IpAddr) -> &'static str {
    match ip {
        IpAddr::V4(_) => "IPv4.",
        IpAddr::V6(_) => "IPv6.",
    }
}

/// Returns realm and name of a user, escaped.
pub(super) fn names(user: &Arc<User>) -> (String, String) {
    (name(&user.realm), name(&user.name))
}
