//! How to use the relay, for somebody who just started it.

use std::net::SocketAddr;

use crate::config::Config;
use crate::host::is_private;
use crate::topics::authentication::StaticUser;

impl Config {
    /// Returns the lines to give to clients: `iceServers` with every URL that works, to paste. `secure_host` is a name that the
    /// certificate is for. A password is printed only if it was made up for this run.
    #[must_use]
    pub fn usage(&self, secure_host: Option<&str>) -> String {
        let urls = self.urls(secure_host);
        if urls.is_empty() {
            return String::new();
        }
        let users = &self.authentication.users;
        let generated = users.iter().find_map(generated_password);
        let (heading, credentials) = match (generated, users.first()) {
            _ if self.stun.stun_only => ("for clients:", None),
            (Some((user, password)), _) => (
                "no users are configured; this one is made up for this run. For clients:",
                Some((user, password)),
            ),
            (None, Some(user)) => (
                "for clients, with a user's own password:",
                Some((&*user.name, "…".to_owned())),
            ),
            (None, None) => (
                "for clients, each with credentials of its own:",
                Some(("…", "…".to_owned())),
            ),
        };
        let urls: Vec<_> = urls.iter().map(|url| literal(url)).collect();
        let credentials = credentials.map_or_else(String::new, |(user, password)| {
            format!(
                "    username: {},\n    credential: {},\n",
                literal(user),
                literal(&password)
            )
        });
        format!(
            "{heading}\n  iceServers: [{{\n    urls: [{}],\n{credentials}  }}]\n",
            urls.join(", ")
        )
    }

    /// Returns the URLs of all transports that are served, those that cost least first.
    fn urls(&self, secure_host: Option<&str>) -> Vec<String> {
        let Some(address) = self.reachable() else {
            return Vec::new();
        };
        let mut secure = address;
        secure.set_port(self.tls.port);
        let has_udp = self.addresses.udp;
        // A proxy may stand in front, and its address is not known here.
        let has_streams = self.protocols.proxies.port.is_none();
        let has_tcp = has_streams && self.addresses.tcp;
        let has_tls = has_streams && self.tls.files().is_some();
        let has_dtls = self.tls.dtls_files().is_some();
        let mut urls = Vec::new();
        for (is_served, is_secure, has_datagrams) in [
            (has_udp, false, true),
            (has_tcp, false, false),
            (has_tls, true, false),
            (has_dtls, true, true),
        ] {
            if is_served {
                let (at, host) = match is_secure {
                    true => (secure, secure_host),
                    false => (address, None),
                };
                let url = url(self.stun.stun_only, is_secure, (at, host), has_datagrams);
                // A STUN URI names no transport (RFC 7064 §3.1).
                if !urls.contains(&url) {
                    urls.push(url);
                }
            }
        }
        urls
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
fn url(
    is_stun: bool,
    is_secure: bool,
    (address, name): (SocketAddr, Option<&str>),
    has_datagrams: bool,
) -> String {
    let scheme = match (is_stun, is_secure) {
        (true, false) => "stun",
        (true, true) => "stuns",
        (false, false) => "turn",
        (false, true) => "turns",
    };
    let host = match (name, address) {
        (Some(name), _) => name.to_owned(),
        (None, SocketAddr::V4(v4)) => v4.ip().to_string(),
        (None, SocketAddr::V6(v6)) => format!("[{}]", v6.ip()),
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
