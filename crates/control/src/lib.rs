//! What runs beside the relay: metrics for Prometheus, health, the watchdog of the service manager, what Redis is told of sessions, commands of an
//! operator by a Unix socket ([`api`]) or as coturn's console takes them ([`console`]). And the program that sends those commands, `turnbuckle ctl` ([`ctl`]).
//!
//! All of it is one thread with a runtime of its own ([`Controller`]). It reaches the relay by its handle alone, so no shard knows of it and none
//! waits for it; it runs in batches, so that a shard has the CPU when both want it. Without a listener, a socket and a watchdog there is no thread. A reload changes what is served ([`served`]); what is added up of
//! sessions stays ([`shared`]).
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
mod history;
mod host;
mod http;
mod limits;
mod listener;
mod own;
mod pages;
mod served;
mod shared;
mod statsdb;
mod status;
mod tasks;
mod tls;
mod traffic;
mod watchdog;

use std::io::Write;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use turnbuckle_server::config::{Config, Persona};
use turnbuckle_server::handle::{Attached, Control, Events, Handle};
use turnbuckle_sys::priority::{BACKGROUND_NICE, run_in_batches};

use self::api::socket::{Socket, path_of};
pub use self::served::Next;
use self::served::Served;
use self::shared::Shared;
use self::tasks::{Order, Tasks};

/// Attaches the control side that a configuration asks for.
pub struct Controller;

/// A control side that runs. It ends when this is dropped.
pub struct Running {
    shared: Arc<Shared>,
    /// What is served now.
    served: Served,
    /// The thread and how it is told what to serve; `None` as long as there is nothing to do.
    thread: Option<(UnboundedSender<Order>, JoinHandle<()>)>,
}

impl Control for Controller {
    type Attached = Running;

    fn attach(
        self,
        config: &Config,
        handle: Handle,
        log: &mut dyn Write,
    ) -> Result<Running, String> {
        let socket = bind_socket(config, log)?;
        let labels_users = config.process.exporter.labels_users;
        let shared = Shared::new(handle.counters, handle.commands, labels_users);
        let mut running = Running {
            shared: Arc::new(shared),
            served: Served::default(),
            thread: None,
        };
        let mut next = running.served.next(config, is_without(config.persona))?;
        if let Some(interval) = watchdog::interval() {
            next.orders.push(Order::Feed(interval));
        }
        if let Some(socket) = socket {
            next.orders.push(Order::Api(socket, handle.upgraded));
        }
        running.go_on(next, handle.events, log)?;
        Ok(running)
    }
}

/// Returns whether a relay serves without what cannot be bound, as coturn does.
fn is_without(persona: Persona) -> bool {
    persona == Persona::Turnserver
}

impl Attached for Running {
    type Next = Next;

    fn wants_events(config: &Config) -> bool {
        config.process.exporter.is_served() || config.process.statsdb.redis.is_some()
    }

    fn prepare(&self, config: &Config) -> Result<Next, String> {
        self.served.next(config, false)
    }

    fn take(&mut self, next: Next, events: Option<Events>, log: &mut dyn Write) {
        if let Err(why) = self.go_on(next, events, log) {
            // The log takes everything.
            let _ = writeln!(log, "error: {why}");
        }
    }
}

impl Running {
    /// Has the thread serve this, and starts it if there is none and it has something to do.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    fn go_on(
        &mut self,
        next: Next,
        events: Option<Events>,
        log: &mut dyn Write,
    ) -> Result<(), String> {
        for line in &next.lines {
            // The log takes everything.
            let _ = writeln!(log, "{line}");
        }
        self.shared.set_labels(next.served.labels_users());
        self.shared.certificates.set_files(next.certificates);
        self.served = next.served;
        if let Some(events) = events {
            self.shared.set_events(events);
        } else if next.orders.is_empty() {
            return Ok(());
        }
        let orders = match &self.thread {
            Some((orders, _)) => orders,
            None => &self.thread.insert(start(&self.shared)?).0,
        };
        for order in next.orders {
            // The thread ends after the sender.
            let _ = orders.send(order);
        }
        // A second time does nothing.
        let _ = orders.send(Order::FollowEvents);
        Ok(())
    }
}

/// Starts the thread, which carries out orders until their sender is dropped.
fn start(shared: &Arc<Shared>) -> Result<(UnboundedSender<Order>, JoinHandle<()>), String> {
    let failed = |error: std::io::Error| format!("cannot start the control side: {error}");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(failed)?;
    let (sender, orders) = unbounded_channel();
    let shared = Arc::clone(shared);
    let thread = std::thread::Builder::new().name("control".into());
    let thread = thread.spawn(move || {
        // Best effort: it goes on as other threads where a sandbox forbids it.
        let _ = run_in_batches(BACKGROUND_NICE);
        runtime.block_on(Tasks::default().run(shared, orders));
    });
    Ok((sender, thread.map_err(failed)?))
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
        if let Some((orders, thread)) = self.thread.take() {
            drop(orders);
            // If it panicked, its message is on standard error.
            let _ = thread.join();
        }
    }
}
