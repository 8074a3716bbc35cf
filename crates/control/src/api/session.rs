//! A session as JSON.

use serde_json::{Value, json};
use turnbuckle_server::handle::{Session, Traffic};

/// Returns a session as an object. Its number is a text of eighteen digits, as in the log: programs that read JSON hold no such number exactly.
pub(crate) fn object(session: &Session) -> Value {
    let traffic =
        |traffic: &Traffic| json!({ "datagrams": traffic.datagrams, "bytes": traffic.bytes });
    let client = &session.client;
    let seal = client.seal.as_ref();
    let relays = session.relays.iter();
    let relays = relays.map(|relay| json!({ "local": relay.local, "external": relay.external }));
    json!({
        "session": format!("{:018}", session.number),
        "realm": session.realm,
        "user": session.user,
        "client": client.address,
        "server": client.server,
        "transport": client.transport.as_str(),
        "tls": seal.map(|seal| json!({ "version": seal.version, "cipher": seal.suite })),
        "relays": relays.collect::<Vec<_>>(),
        "relay_protocol": session.protocol.as_str(),
        "tunnel_to": session.peers.tunnel_to,
        "age_s": session.time.age.as_secs(),
        "expires_in_s": session.time.expires_in.as_secs(),
        "max_bps": session.peers.bytes_per_s,
        "is_mobile": session.is_mobile,
        "peers": session.peers.allowed,
        "usage": {
            "client_received": traffic(&session.usage.client_received),
            "client_sent": traffic(&session.usage.client_sent),
            "peer_received": traffic(&session.usage.peer_received),
            "peer_sent": traffic(&session.usage.peer_sent),
        },
    })
}
