//! Which names a request may give as its Host.
//!
//! A page of any site can send requests to any address, and by changing its own name's address it may read the answers too (DNS rebinding). The
//! browser then gives the page's name as Host, which is none of ours.

use std::net::IpAddr;

use turnbuckle_server::config::{Config, Persona};

/// What a request for another name is told.
pub(crate) const NOT_OURS: &str =
    "this server does not go by that name; give it in `prometheus-host`";

/// The names that this server goes by.
pub(crate) struct Hosts {
    /// In lower case.
    names: Vec<String>,
    /// Whether any name is good, as with coturn.
    admits_all: bool,
}

impl Hosts {
    /// Returns the names that a configuration gives. By the name of `turnserver` every name is good, unless some are given or the listener is one of
    /// the loopback interface, which nobody reaches by another name.
    pub(crate) fn of(config: &Config) -> Self {
        let exporter = &config.process.exporter;
        let is_local = exporter.address.is_some_and(|ip| ip.is_loopback());
        let is_coturn = config.persona == Persona::Turnserver;
        Self {
            names: exporter
                .hosts
                .iter()
                .map(|name| name.to_ascii_lowercase())
                .collect(),
            admits_all: is_coturn && exporter.hosts.is_empty() && !is_local,
        }
    }

    /// Returns whether a request with this Host is answered.
    pub(crate) fn admit(&self, host: &str) -> bool {
        self.admits_all || self.is_ours(host)
    }

    /// Returns whether a request with this Host is for this server: an IP address, `localhost`, or one of its names, with a port or without.
    pub(crate) fn is_ours(&self, host: &str) -> bool {
        let name = match host.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or(rest),
            None => match host.rsplit_once(':') {
                Some((name, _)) => name,
                None => host,
            },
        };
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        name.parse::<IpAddr>().is_ok() || name == "localhost" || self.names.contains(&name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_for_a_name_that_is_not_ours_is_not_for_us() {
        let hosts = Hosts {
            names: vec!["turn.example.org".to_owned()],
            admits_all: false,
        };
        for good in [
            "127.0.0.1:9641",
            "192.0.2.1",
            "[::1]:9641",
            "[2001:db8::1]",
            "localhost",
            "LOCALHOST:9641",
            "turn.example.org:9641",
            "Turn.Example.Org.",
        ] {
            assert!(hosts.admit(good), "{good}");
        }
        for bad in [
            "",
            "evil.example",
            "evil.example:9641",
            "127.0.0.1.evil.example",
            "localhost.evil.example:9641",
            "[evil.example]:9641",
            "xturn.example.org",
        ] {
            assert!(!hosts.admit(bad), "{bad}");
        }
    }
}
