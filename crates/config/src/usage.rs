//! How to use the relay, for somebody who just started it.

use std::net::SocketAddr;

use crate::config::Config;
use crate::host::is_private;
use crate::topics::authentication::StaticUser;

impl Config {
    /// Returns the URL by which clients reach the relay, one line. If a user was made up for this run, also its password and an `RTCPeerConnection` made with
    /// it: the only place where a password is printed, and it is one that nobody configured.
    #[must_use]
    pub fn usage(&self) -> String {
        let Some(url) = self.url() else {
            return String::new();
        };
        let generated = self
            .authentication
            .users
            .iter()
            .find_map(generated_password);
        let Some((user, password)) = generated else {
            return format!("clients use {url}\n");
        };
        format!(
            "no users are configured; this one is made up for this run:\n  \
             {url}  user {user}  password {password}  realm {realm}\n  \
             new RTCPeerConnection({{\n    iceServers: [{{ urls: {url_literal}, username: {user_literal}, credential: {password_literal} }}],\n    \
             iceTransportPolicy: \"relay\",\n  }})\n",
            realm = self.authentication.realm,
            url_literal = literal(&url),
            user_literal = literal(user),
            password_literal = literal(&password),
        )
    }

    /// Returns the URL of the transport that costs least among those that are served.
    fn url(&self) -> Option<String> {
        let (is_secure, has_datagrams) = match (self.addresses.udp, self.addresses.tcp) {
            (true, _) => (false, true),
            // Connections come by way of proxies, whose address nobody knows here.
            (false, _) if self.protocols.proxies.port.is_some() => return None,
            (false, true) => (false, false),
            (false, false) => (true, self.tls.files().is_none()),
        };
        let mut address = self.reachable()?;
        if is_secure {
            address.set_port(self.tls.port);
        }
        Some(url(self.stun.stun_only, is_secure, address, has_datagrams))
    }

    /// Returns the listener that clients elsewhere most likely reach, as they see it: IPv4 and the public side of a translator first, loopback last.
    fn reachable(&self) -> Option<SocketAddr> {
        let listeners = &self.addresses.listeners;
        let seen = |address: &SocketAddr| {
            SocketAddr::new(self.addresses.public(address.ip()), address.port())
        };
        listeners.iter().map(seen).min_by_key(|address| {
            (
                address.ip().is_loopback(),
                is_private(address.ip()),
                address.is_ipv6(),
            )
        })
    }
}

fn generated_password(user: &StaticUser) -> Option<(&str, String)> {
    let password = user.made_up_password()?;
    let text = String::from_utf8_lossy(password.expose()).into_owned();
    Some((&user.name, text))
}

/// Returns a URI by RFC 7064 and RFC 7065: IPv6 addresses in brackets, the default port left out, a transport for TURN only.
fn url(is_stun: bool, is_secure: bool, address: SocketAddr, has_datagrams: bool) -> String {
    let scheme = match (is_stun, is_secure) {
        (true, false) => "stun",
        (true, true) => "stuns",
        (false, false) => "turn",
        (false, true) => "turns",
    };
    let host = match address {
        SocketAddr::V4(v4) => v4.ip().to_string(),
        SocketAddr::V6(v6) => format!("[{}]", v6.ip()),
    };
    let usual_port = if is_secure { 5349 } else { 3478 };
    let port = if address.port() == usual_port {
        String::new()
    } else {
        format!(":{}", address.port())
    };
    let transport = match (is_stun, has_datagrams) {
        (true, _) => "",
        (false, true) => "?transport=udp",
        (false, false) => "?transport=tcp",
    };
    format!("{scheme}:{host}{port}{transport}")
}

/// Returns `text` as a JavaScript string. JSON's escapes are JavaScript's since ECMAScript 2019.
fn literal(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
