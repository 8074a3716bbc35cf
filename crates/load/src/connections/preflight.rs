//! What would be measured instead of connections: too few ports, and ports in TIME-WAIT.
//!
//! The side that closes first keeps its port for a minute (TIME-WAIT). When a client has used half of its ports, `connect` searches for a
//! free one at several times the price of a connection; when all are used it fails with EADDRNOTAVAIL.

use std::fs;
use std::net::Ipv4Addr;

use serde_json::{Map, Value};

use super::worker::Close;

/// `TCP_TIMEWAIT_LEN`, seconds.
const TIME_WAIT: u64 = 60;

/// What the kernel of this network namespace has set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Host {
    /// First and last local port.
    pub(super) ports: (u64, u64),
    /// `tcp_tw_reuse`: 0 never, 1 always, 2 on loopback.
    pub(super) reuse: u64,
    /// `tcp_max_tw_buckets`.
    pub(super) time_wait_max: u64,
    /// Sockets in TIME-WAIT now.
    pub(super) time_wait_now: u64,
}

impl Host {
    /// Reads them; what cannot be read counts as the kernel's default.
    pub(super) fn read() -> Self {
        let numbers = |name: &str| -> Vec<u64> {
            fs::read_to_string(format!("/proc/sys/net/ipv4/{name}"))
                .unwrap_or_default()
                .split_ascii_whitespace()
                .filter_map(|word| word.parse().ok())
                .collect()
        };
        let first = |name: &str, default: u64| numbers(name).first().copied().unwrap_or(default);
        let ports = match numbers("ip_local_port_range")[..] {
            [first, last] => (first, last),
            _ => (32_768, 60_999),
        };
        let sockets = fs::read_to_string("/proc/net/sockstat").unwrap_or_default();
        Self {
            ports,
            reuse: first("tcp_tw_reuse", 2),
            time_wait_max: first("tcp_max_tw_buckets", 262_144),
            time_wait_now: sockets
                .lines()
                .find_map(|line| line.strip_prefix("TCP:"))
                .and_then(|line| {
                    let mut words = line
                        .split_ascii_whitespace()
                        .skip_while(|&word| word != "tw");
                    words.nth(1)?.parse().ok()
                })
                .unwrap_or(0),
        }
    }
}

/// What a run is to do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan<'a> {
    pub(super) close: Close,
    pub(super) addresses: &'a [Ipv4Addr],
    /// Addresses to connect from, 0 for the kernel's choice of one.
    pub(super) sources: u64,
    /// Connections at a time.
    pub(super) in_flight: u64,
    pub(super) seconds: f64,
}

impl Plan<'_> {
    /// Returns the number of local ports towards all addresses.
    fn ports(&self, host: &Host) -> u64 {
        let (first, last) = host.ports;
        (last + 1).saturating_sub(first) * self.addresses.len() as u64 * self.sources.max(1)
    }
}

/// Returns sentences about what should be known before a run.
pub(super) fn warnings(host: Host, plan: &Plan<'_>) -> Vec<String> {
    let &Plan {
        close,
        addresses,
        in_flight,
        seconds,
        ..
    } = plan;
    let (first, last) = host.ports;
    let ports = plan.ports(&host);
    let mut warnings = Vec::new();
    if in_flight * 2 > ports {
        warnings.push(format!(
            "{in_flight} connections at a time, but ports {first} to {last} towards {} address(es) give {ports}: the search for a free port \
             will be measured. Give more -4 or --source, or widen net.ipv4.ip_local_port_range",
            addresses.len()
        ));
    }
    if close == Close::Fin && host.time_wait_max > 0 {
        let loops = addresses.iter().all(Ipv4Addr::is_loopback);
        let reuses = host.reuse == 1 || host.reuse == 2 && loops;
        let rate = if reuses { ports / 2 } else { ports / TIME_WAIT };
        // Without reuse a short run can live on the ports that are free at its start.
        let limit = if reuses {
            rate as f64
        } else {
            (ports as f64 / seconds.max(0.001)).max(rate as f64)
        };
        let why = if reuses {
            "a port may be used again after a second"
        } else {
            "a port is used again after a minute"
        };
        warnings.push(format!(
            "closing by FIN leaves this side in TIME-WAIT: {why}, so above about {limit:.0} connections per second this run measures the search \
             for a free port{}. Use --close rst, more -4 or --source, a wider net.ipv4.ip_local_port_range, or net.ipv4.tcp_max_tw_buckets=0 in a \
             network namespace of its own",
            if reuses { "" } else { ", and when all are taken connects fail with EADDRNOTAVAIL" },
        ));
    }
    if host.time_wait_now * 4 > ports {
        warnings.push(format!(
            "{} sockets are in TIME-WAIT already, and there are {ports} ports",
            host.time_wait_now
        ));
    }
    warnings
}

/// Explains the errors that came, if ports ran out.
pub(super) fn hint(host: Host, plan: &Plan<'_>, errors: &Map<String, Value>) -> Option<String> {
    let count = errors.get("EADDRNOTAVAIL")?;
    let (first, last) = host.ports;
    Some(format!(
        "EADDRNOTAVAIL {count} times: every port from {first} to {last} was taken towards every address, {} in all{}. What was measured is how soon ports \
         become free, or the addresses given by --source are not this host's",
        plan.ports(&host),
        if plan.close == Close::Fin {
            ", most of them in TIME-WAIT, which --close rst avoids"
        } else {
            ""
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warnings(
        host: Host,
        close: Close,
        addresses: &[Ipv4Addr],
        in_flight: u64,
        seconds: f64,
    ) -> Vec<String> {
        let plan = Plan {
            close,
            addresses,
            sources: 0,
            in_flight,
            seconds,
        };
        super::warnings(host, &plan)
    }

    const DEFAULT: Host = Host {
        ports: (32_768, 60_999),
        reuse: 2,
        time_wait_max: 262_144,
        time_wait_now: 0,
    };
    const LOOPBACK: &[Ipv4Addr] = &[Ipv4Addr::LOCALHOST];

    #[test]
    fn the_original_commands_are_warned_of_the_port_allocator() {
        let warnings = warnings(DEFAULT, Close::Fin, LOOPBACK, 64, 10.0);
        assert_eq!(warnings.len(), 1);
        assert!(warnings[0].contains("about 14116 "), "{warnings:?}");
    }

    #[test]
    fn resets_on_a_fresh_host_need_no_warning() {
        assert!(warnings(DEFAULT, Close::Rst, LOOPBACK, 64, 10.0).is_empty());
    }

    #[test]
    fn a_host_without_time_wait_needs_no_warning() {
        let host = Host {
            time_wait_max: 0,
            ..DEFAULT
        };
        assert!(warnings(host, Close::Fin, LOOPBACK, 64, 10.0).is_empty());
    }

    #[test]
    fn few_ports_are_warned_of() {
        let host = Host {
            ports: (40_000, 40_099),
            ..DEFAULT
        };
        let warnings = warnings(host, Close::Rst, LOOPBACK, 64, 10.0);
        assert!(warnings[0].contains("give 100"), "{warnings:?}");
    }

    #[test]
    fn ports_that_are_taken_already_are_warned_of() {
        let host = Host {
            time_wait_now: 20_000,
            ..DEFAULT
        };
        let warnings = warnings(host, Close::Rst, LOOPBACK, 64, 10.0);
        assert!(warnings[0].contains("20000 sockets"), "{warnings:?}");
    }

    #[test]
    fn off_loopback_a_port_waits_for_a_minute() {
        let far = [Ipv4Addr::new(10, 0, 0, 49)];
        let warnings = warnings(DEFAULT, Close::Fin, &far, 64, 100.0);
        assert!(warnings[0].contains("about 470 "), "{warnings:?}");
        assert!(warnings[0].contains("EADDRNOTAVAIL"), "{warnings:?}");
    }

    #[test]
    fn each_address_to_connect_from_has_ports_of_its_own() {
        let plan = Plan {
            close: Close::Fin,
            addresses: &[Ipv4Addr::new(10, 0, 0, 49)],
            sources: 4,
            in_flight: 64,
            seconds: 100.0,
        };
        let warnings = super::warnings(DEFAULT, &plan);
        assert!(warnings[0].contains("about 1882 "), "{warnings:?}");
    }

    #[test]
    fn ports_that_ran_out_are_explained() {
        let plan = Plan {
            close: Close::Fin,
            addresses: LOOPBACK,
            sources: 0,
            in_flight: 1,
            seconds: 1.0,
        };
        assert_eq!(hint(DEFAULT, &plan, &Map::new()), None);
        let errors = Map::from_iter([("EADDRNOTAVAIL".to_owned(), 7.into())]);
        let hint = hint(DEFAULT, &plan, &errors).unwrap();
        assert!(
            hint.contains("EADDRNOTAVAIL 7 times") && hint.contains("28232 in all"),
            "{hint}"
        );
    }
}
