//! coturn's keys, channels and values.
//!
//! A name of a user or a realm stands in a key as it is, whatever it contains: it is an argument of its own, and nothing formats it again.

use std::net::SocketAddr;
use std::time::Duration;

use turnbuckle_server::handle::{ClientSide, Identity, Transport, Usage};
use turnbuckle_users::RedisWrite;

/// Matches the keys of all statuses.
pub(super) const STATUSES: &str = "turn/*/allocation/*/status";

/// Returns what the keys and channels of a session begin with.
pub(super) fn prefix(session: &Identity) -> String {
    let Identity {
        number,
        realm,
        user,
        ..
    } = session;
    match &**realm {
        "" => format!("turn/user/{user}/allocation/{number:018}"),
        realm => format!("turn/realm/{realm}/user/{user}/allocation/{number:018}"),
    }
}

/// Returns the key of a session's status.
pub(super) fn status_key(session: &Identity) -> Vec<u8> {
    format!("{}/status", prefix(session)).into_bytes()
}

/// Returns the number of the session that a key belongs to.
pub(super) fn number(key: &[u8]) -> Option<u64> {
    let key = key.strip_suffix(b"/status")?;
    let digits = &key[key.iter().rposition(|byte| *byte == b'/')? + 1..];
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Returns the value of a status; `verb` is `new` or `refreshed`.
pub(super) fn status(verb: &str, client: &ClientSide, lifetime: Duration) -> Vec<u8> {
    let kind = match client.transport {
        Transport::Udp => "UDP",
        Transport::Tcp => "TCP",
        Transport::Tls => "TLS/TCP",
        Transport::Dtls => "DTLS",
        Transport::Quic => "QUIC",
    };
    let seal = client.seal.as_ref();
    let (version, suite) = seal.map_or(("NONE", "NONE"), |seal| (seal.version, &seal.suite));
    let (seconds, local, remote) = (lifetime.as_secs(), client.server, client.address);
    format!(
        "{verb} lifetime={seconds}, type={kind}, local={local}, remote={remote}, ssl={version}, cipher={suite}"
    )
    .into_bytes()
}

/// Returns the server's address in the value of a status.
pub(super) fn local(status: &[u8]) -> Option<SocketAddr> {
    let status = std::str::from_utf8(status).ok()?;
    let (_, rest) = status.split_once(" local=")?;
    rest.split(',').next()?.parse().ok()
}

/// Returns the message that a session is over.
pub(super) fn deleted(key: Vec<u8>) -> RedisWrite {
    RedisWrite::Publish {
        channel: key,
        message: b"deleted".to_vec(),
    }
}

/// Returns the messages about what a session has relayed; `what` is `traffic` or `total_traffic`.
pub(super) fn traffic(session: &Identity, what: &str, usage: &Usage) -> [RedisWrite; 2] {
    let prefix = prefix(session);
    let sides = [
        ("", usage.client_received, usage.client_sent),
        ("/peer", usage.peer_received, usage.peer_sent),
    ];
    sides.map(|(side, received, sent)| RedisWrite::Publish {
        channel: format!("{prefix}/{what}{side}").into_bytes(),
        message: format!(
            "rcvp={}, rcvb={}, sentp={}, sentb={}",
            received.datagrams, received.bytes, sent.datagrams, sent.bytes
        )
        .into_bytes(),
    })
}
