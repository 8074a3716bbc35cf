//! How to use the relay, for somebody who just started it.

use std::fmt::Write as _;
use std::net::SocketAddr;

use super::settings::{Config, Credential};

/// The `turn:` URL of the relay and an `RTCPeerConnection` made with it, for the first user that has a password. Contains that password. Nothing if
/// there is no such user.
#[must_use]
pub fn welcome(config: &Config) -> Option<String> {
    let (user, password) =
        config
            .authentication
            .users
            .iter()
            .find_map(|user| match &user.credential {
                Credential::Password(secret) => {
                    Some((user, String::from_utf8_lossy(secret.expose()).into_owned()))
                }
                Credential::Md5Key(_) => None,
            })?;
    let url = turn_url(reachable(config)?);
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        "{url}\n  user {user}, password {password}, realm {realm}\n\n\
         new RTCPeerConnection({{\n  iceServers: [{{ urls: {url_literal}, username: {user_literal}, credential: {password_literal} }}],\n  \
         iceTransportPolicy: \"relay\",\n}})\n",
        user = user.name.escape_debug(),
        password = password.escape_debug(),
        realm = config.authentication.realm.escape_debug(),
        url_literal = literal(&url),
        user_literal = literal(&user.name),
        password_literal = literal(&password),
    );
    Some(text)
}

/// RFC 7065: IPv6 addresses in brackets, the default port left out.
fn turn_url(address: SocketAddr) -> String {
    let host = match address {
        SocketAddr::V4(v4) => v4.ip().to_string(),
        SocketAddr::V6(v6) => format!("[{}]", v6.ip()),
    };
    let port = if address.port() == 3478 {
        String::new()
    } else {
        format!(":{}", address.port())
    };
    format!("turn:{host}{port}?transport=udp")
}

/// The listener that clients elsewhere most likely reach, as they see it.
fn reachable(config: &Config) -> Option<SocketAddr> {
    let listeners = &config.addresses.listeners;
    let outward = listeners.iter().find(|address| !address.ip().is_loopback());
    let chosen = outward.or_else(|| listeners.first())?;
    Some(SocketAddr::new(
        config.addresses.public(chosen.ip()),
        chosen.port(),
    ))
}

/// `text` as a JavaScript string. JSON's escapes are JavaScript's since ECMAScript 2019.
fn literal(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
