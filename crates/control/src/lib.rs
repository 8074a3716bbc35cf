//! What runs beside the relay: metrics for Prometheus, health, the watchdog of the service manager, what Redis is told of sessions, commands of an
//! operator by a Unix socket ([`api`]) or as coturn's console takes them ([`console`]). And the program that sends those commands, `turnbuckle ctl` ([`ctl`]).
//!
//! All of it is one thread with a runtime of its own ([`Controller`]). It reaches the relay by its handle alone, so no shard knows of it and none
//! waits for it. Without a listener, a socket and a watchdog there is no thread.
#![forbid(unsafe_code)]

mod api;
mod asking;
mod certificates;
mod console;
mod consumers;
mod coturn;
pub mod ctl;
mod exposition;
mod health;
mod host;
mod http;
mod limits;
mod listener;
mod own;
mod pages;
mod statsdb;
mod status;
mod tls;
mod traffic;
mod watchdog;

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use turnbuckle_server::config::{Config, Persona};
use turnbuckle_server::handle::{Commands, Control, Events, Handle, LiveCounters};

use self::api::Api;
use self::api::socket::{Socket, path_of};
use self::console::{Console, Listener as ConsoleListener};
use self::consumers::Consumers;
use self::exposition::{Exposition, Format};
use self::host::Hosts;
use self::listener::Listener;
use self::statsdb::Statsdb;
use self::status::StatusPage;
use self::traffic::Traffic;

/// Events that are taken from one shard before the runtime does something else.
const EVENTS_AT_ONCE: usize = 4096;

/// Time that a consumer has to hand on what is left when the relay has stopped.
const CLOSING: Duration = Duration::from_secs(2);

/// Attaches the control side that a configuration asks for.
pub struct Controller;

/// A control side that runs. It ends when this is dropped.
pub struct Running {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Control for Controller {
    type Attached = Option<Running>;

    fn wants_events(&self, config: &Config) -> bool {
        config.process.exporter.is_served() || config.process.statsdb.redis.is_some()
    }

    fn attach(
        self,
        config: &Config,
        handle: Handle,
        log: &mut dyn Write,
    ) -> Result<Option<Running>, String> {
        let exporter = &config.process.exporter;
        let listener = bind(config, log)?;
        let socket = bind_socket(config, log)?;
        let console = bind_console(config, log)?;
        let watchdog = watchdog::interval();
        let mut consumers = Consumers::default();
        let is_statsdb_up = Arc::new(AtomicBool::new(false));
        let statsdb = config.process.statsdb.redis.clone().map(|address| {
            // The log takes everything.
            let _ = writeln!(log, "sessions are told to redis-statsdb {address}");
            let inbox = consumers.add(statsdb::NAME);
            let (commands, is_up) = (handle.commands.clone(), Arc::clone(&is_statsdb_up));
            Statsdb::new(config, address, commands, inbox, is_up)
        });
        let is_idle = listener.is_none() && socket.is_none() && console.is_none();
        if is_idle && watchdog.is_none() && statsdb.is_none() {
            return Ok(None);
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(|error| format!("cannot start the control side: {error}"))?;
        let shared = Arc::new(Shared {
            counters: handle.counters,
            commands: handle.commands,
            events: Mutex::new(handle.events),
            traffic: Mutex::new(Traffic::new(exporter.labels_users)),
            consumers,
            is_statsdb_up: statsdb.is_some().then_some(is_statsdb_up),
            path: exporter.path.clone(),
            hosts: Hosts::of(config),
            page: StatusPage::of(config),
        });
        let console = console.map(|listener| {
            let (counters, commands) = (shared.counters.clone(), shared.commands.clone());
            let console = Console::new(&config.process.console, counters, commands);
            (console, listener)
        });
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("control".into());
        let thread = thread.spawn(move || {
            runtime.block_on(async {
                tokio::spawn(Arc::clone(&shared).follow_events());
                if let Some(interval) = watchdog {
                    tokio::spawn(watchdog::feed(shared.commands.clone(), interval));
                }
                if let Some(socket) = socket {
                    let (counters, commands) = (shared.counters.clone(), shared.commands.clone());
                    let api = Api::new(counters, commands, handle.upgraded);
                    tokio::spawn(api.serve(socket));
                }
                if let Some((console, listener)) = console {
                    tokio::spawn(console.serve(listener));
                }
                if let Some(listener) = listener {
                    tokio::spawn(listener.serve(Arc::clone(&shared)));
                }
                let statsdb = statsdb.map(|statsdb| {
                    let (end, ended) = oneshot::channel();
                    (end, tokio::spawn(statsdb.run(ended)))
                });
                // The sender is dropped without a word.
                let _ = stopped.await;
                while shared.take_events() {}
                if let Some((end, ended)) = statsdb {
                    drop(end);
                    // A server that hangs has had its time. The next start mends what is left there.
                    let _ = tokio::time::timeout(CLOSING, ended).await;
                }
            });
        });
        let thread = thread.map_err(|error| format!("cannot start the control side: {error}"))?;
        Ok(Some(Running {
            stop: Some(stop),
            thread: Some(thread),
        }))
    }
}

/// Binds the listener for metrics, if there is to be one.
///
/// # Errors
///
/// It cannot be bound. By the name of `turnserver` the relay serves without it, as coturn does.
fn bind(config: &Config, log: &mut dyn Write) -> Result<Option<Listener>, String> {
    let exporter = &config.process.exporter;
    if !exporter.is_served() {
        return Ok(None);
    }
    match tls::Tls::load(config).and_then(|tls| Listener::bind(exporter, tls)) {
        Ok(listener) => {
            // The log takes everything.
            let _ = writeln!(log, "metrics on {}{}", listener.url(), exporter.path);
            if exporter.has_page {
                let _ = writeln!(log, "status page on {}{}", listener.url(), status::PATH);
            }
            Ok(Some(listener))
        }
        Err(why) if config.persona == Persona::Turnserver => {
            let _ = writeln!(log, "error: {why}");
            Ok(None)
        }
        Err(why) => Err(why),
    }
}

/// Binds the console, if there is to be one.
///
/// # Errors
///
/// It cannot be bound. By the name of `turnserver` the relay serves without it, as coturn does.
fn bind_console(config: &Config, log: &mut dyn Write) -> Result<Option<ConsoleListener>, String> {
    let console = &config.process.console;
    if !console.is_on {
        return Ok(None);
    }
    match ConsoleListener::bind(console) {
        Ok(listener) => {
            // The log takes everything.
            let _ = writeln!(log, "console on {}", listener.address());
            Ok(Some(listener))
        }
        Err(why) if config.persona == Persona::Turnserver => {
            let _ = writeln!(log, "error: {why}");
            Ok(None)
        }
        Err(why) => Err(why),
    }
}

/// Binds the socket for commands, if there is to be one.
///
/// # Errors
///
/// The socket that the configuration names cannot be bound. By the name of `turnserver` the relay serves without it, and also where it is only
/// expected in a directory of the service manager's.
fn bind_socket(config: &Config, log: &mut dyn Write) -> Result<Option<Socket>, String> {
    let Some((path, is_named)) = path_of(&config.process.control_socket) else {
        return Ok(None);
    };
    match Socket::bind(&path) {
        Ok(socket) => {
            // The log takes everything.
            let _ = writeln!(log, "commands at {}", path.display());
            Ok(Some(socket))
        }
        Err(why) if is_named && config.persona == Persona::Turnbuckle => Err(why),
        Err(why) => {
            let _ = writeln!(log, "error: {why}");
            Ok(None)
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // If it panicked, its message is on standard error.
            let _ = thread.join();
        }
    }
}

/// What the tasks of the control side share.
struct Shared {
    counters: LiveCounters,
    commands: Commands,
    events: Mutex<Option<Events>>,
    traffic: Mutex<Traffic>,
    /// Who else is shown events.
    consumers: Consumers,
    /// Whether the Redis server is there that is told of sessions; `None` if there is to be none.
    is_statsdb_up: Option<Arc<AtomicBool>>,
    /// Where metrics are served.
    path: Box<str>,
    hosts: Hosts,
    page: Option<StatusPage>,
}

impl Shared {
    /// Returns all metrics as text.
    fn metrics(&self, format: Format) -> String {
        while self.take_events() {}
        let mut exposition = Exposition::new(format);
        let traffic = self.traffic.lock().unwrap_or_else(PoisonError::into_inner);
        coturn::write(&mut exposition, &self.counters, &traffic);
        let lost = self.events(|events| events.map_or(0, Events::lost));
        let lost: Vec<_> = std::iter::once(("metrics", lost))
            .chain(self.consumers.lost())
            .collect();
        own::write(&mut exposition, &self.counters, &traffic, &lost);
        if let Some(is_up) = &self.is_statsdb_up {
            own::write_statsdb(&mut exposition, is_up.load(Relaxed));
        }
        exposition.finish()
    }

    /// Adds up the usage that waiting events report, and shows the events to the other consumers. Returns whether more events may wait.
    fn take_events(&self) -> bool {
        self.events(|events| {
            let mut traffic = self.traffic.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(events) = events else {
                return false;
            };
            let has_more = events.take(EVENTS_AT_ONCE, |event| {
                traffic.add(&event);
                self.consumers.show(&event);
            });
            self.consumers.lost_at_shards(events.lost());
            has_more
        })
    }

    /// Takes events as soon as they come, so that their queues have room.
    async fn follow_events(self: Arc<Self>) {
        let arrival = Arc::new(Notify::new());
        let bell = Arc::clone(&arrival);
        self.events(|events| {
            if let Some(events) = events {
                events.on_arrival(move || bell.notify_one());
            }
        });
        loop {
            while self.take_events() {
                tokio::task::yield_now().await;
            }
            arrival.notified().await;
        }
    }

    fn events<T>(&self, with: impl FnOnce(Option<&Events>) -> T) -> T {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        with(events.as_ref())
    }
}
