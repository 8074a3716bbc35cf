//! What a configuration has the control side serve, and what of it another configuration changes.
//!
//! Invariant: what can go wrong, a port that is taken for example, goes wrong before anything changes. What is the same as before goes on as it is:
//! a console keeps its visitors, and Redis is not told anew.

use std::collections::HashSet;
use std::net::TcpListener;
use std::path::PathBuf;

use turnbuckle_server::config::{Config, Console as ConsoleSettings, Exporter, Tls as TlsSettings};
use turnbuckle_users::RedisAddress;

use crate::console::Listener as ConsoleListener;
use crate::host::Hosts;
use crate::listener::{Listener, Site};
use crate::status::{self, StatusPage};
use crate::tasks::Order;
use crate::tls::Tls;

/// What is served.
#[derive(Default)]
pub(crate) struct Served {
    metrics: Option<(Metrics, TcpListener)>,
    console: Option<(ConsoleSettings, TcpListener)>,
    statsdb: Option<RedisAddress>,
}

/// What metrics, and what is beside them, are served by.
#[derive(Clone, PartialEq, Eq)]
struct Metrics {
    exporter: Exporter,
    /// Certificates of the relay: the page shows them, and the listener may have no other.
    tls: TlsSettings,
}

/// What is to be served next.
pub struct Next {
    pub(crate) served: Served,
    /// What the thread has to do for it.
    pub(crate) orders: Vec<Order>,
    /// What the log says of it.
    pub(crate) lines: Vec<String>,
    /// The files of the certificates that clients of the relay are shown.
    pub(crate) certificates: Vec<PathBuf>,
}

impl Served {
    /// Returns whether traffic is told apart by user.
    pub(crate) fn labels_users(&self) -> bool {
        let metrics = self.metrics.as_ref();
        metrics.is_some_and(|(metrics, _)| metrics.exporter.labels_users)
    }

    /// Opens and reads what a configuration has beyond this. With `is_without` the log tells what cannot be bound, and there is none.
    ///
    /// # Errors
    ///
    /// What cannot be opened or read.
    pub(crate) fn next(&self, config: &Config, is_without: bool) -> Result<Next, String> {
        let mut next = Next {
            served: Self::default(),
            orders: Vec::new(),
            lines: Vec::new(),
            certificates: certificates(config),
        };
        let metrics = self.metrics(config, &mut next);
        let collector = is_without.then(|| collector(config, &metrics));
        next.served.metrics = match metrics {
            Err(why) if is_without => {
                next.lines.push(format!("error: {why}"));
                None
            }
            metrics => metrics?,
        };
        next.lines.extend(collector.map(str::to_owned));
        next.served.console = match self.console(config, &mut next) {
            Err(why) if is_without => {
                next.lines.push(format!("error: {why}"));
                None
            }
            console => console?,
        };
        next.served
            .statsdb
            .clone_from(&config.process.statsdb.redis);
        if next.served.statsdb != self.statsdb {
            if let Some(address) = &next.served.statsdb {
                let line = format!("sessions are told to redis-statsdb {address}");
                next.lines.push(line);
            }
            let listeners = config.datagram_listeners().into_iter();
            let listeners: HashSet<_> = listeners.chain(config.stream_listeners()).collect();
            let address = next.served.statsdb.clone();
            next.orders
                .push(Order::Statsdb(address.map(|it| (it, listeners))));
        }
        Ok(next)
    }

    fn metrics(
        &self,
        config: &Config,
        next: &mut Next,
    ) -> Result<Option<(Metrics, TcpListener)>, String> {
        let exporter = &config.process.exporter;
        let before = self.metrics.as_ref();
        if !exporter.is_served() {
            if before.is_some() {
                next.orders.push(Order::Metrics(None));
            }
            return Ok(None);
        }
        let metrics = Metrics {
            exporter: exporter.clone(),
            tls: config.tls.clone(),
        };
        let tls = Tls::load(config)?;
        let is_secure = tls.is_some();
        let place = |exporter: &Exporter| (exporter.address, exporter.port);
        let bound = before.filter(|(it, _)| place(&it.exporter) == place(exporter));
        let listener = match bound {
            Some((_, socket)) => Listener::of(share(socket)?, tls)?,
            None => Listener::bind(exporter, tls)?,
        };
        let socket = share(listener.socket())?;
        if before.is_none_or(|(before, _)| *before != metrics) {
            let url = listener.url();
            next.lines
                .push(format!("metrics on {url}{}", exporter.path));
            if exporter.has_page {
                next.lines
                    .push(format!("status page on {url}{}", status::PATH));
            }
            let site = Site {
                path: exporter.path.clone(),
                hosts: Hosts::of(config),
                page: exporter.has_page.then(|| StatusPage::new(is_secure)),
            };
            next.orders.push(Order::Metrics(Some((listener, site))));
        }
        Ok(Some((metrics, socket)))
    }

    fn console(
        &self,
        config: &Config,
        next: &mut Next,
    ) -> Result<Option<(ConsoleSettings, TcpListener)>, String> {
        let settings = &config.process.console;
        let before = self.console.as_ref();
        if !settings.is_on {
            if before.is_some() {
                next.orders.push(Order::Console(None));
            }
            return Ok(None);
        }
        let place = |settings: &ConsoleSettings| (settings.address, settings.port);
        let bound = before.filter(|(it, _)| place(it) == place(settings));
        let listener = match bound {
            Some((_, socket)) => ConsoleListener::of(share(socket)?)?,
            None => ConsoleListener::bind(settings)?,
        };
        let socket = share(listener.socket())?;
        if before.is_none_or(|(before, _)| before != settings) {
            next.lines
                .push(format!("console on {}", listener.address()));
            let order = Order::Console(Some((listener, settings.clone())));
            next.orders.push(order);
        }
        Ok(Some((settings.clone(), socket)))
    }
}

/// Returns another descriptor of a listener.
fn share(socket: &TcpListener) -> Result<TcpListener, String> {
    let shared = socket.try_clone();
    shared.map_err(|error| format!("cannot go on with a listener: {error}"))
}

/// Returns the files of the relay's certificates.
fn certificates(config: &Config) -> Vec<PathBuf> {
    let tls = &config.tls;
    let files = [tls.files(), tls.dtls_files(), tls.quic_files()];
    let mut certificates: Vec<PathBuf> = Vec::new();
    for (certificate, _) in files.into_iter().flatten() {
        if !certificates.iter().any(|known| known == certificate) {
            certificates.push(certificate.to_owned());
        }
    }
    certificates
}

/// Returns coturn's line about what became of the metrics, which scripts wait for.
fn collector<T>(config: &Config, metrics: &Result<Option<T>, String>) -> &'static str {
    match metrics {
        Ok(Some(_)) => "prometheus collector started successfully",
        Ok(None) => "prometheus collector disabled, not started",
        Err(_) if config.process.exporter.has_tls => {
            "error: prometheus TLS: could not read certificate or key, or could not listen"
        }
        Err(_) => "error: could not start prometheus collector",
    }
}
