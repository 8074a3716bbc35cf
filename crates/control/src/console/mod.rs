//! coturn's console for scripts that use it: commands as text over TCP, after a password (`cli`; coturn inventory §1.12).
//!
//! Invariant: before the password is right nothing is answered but the question for it, and whoever guesses wrong five times is turned away for
//! half a minute. What changes anything has a line in the log before it happens; what cannot be logged is not done.

mod change;
mod conversation;
mod failures;
mod input;
mod pc;
mod sessions;
mod typed;

use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use turnbuckle_server::config::{Console as Settings, Secret};
use turnbuckle_server::handle::{Commands, LiveCounters};
use turnbuckle_users::is_password;

use self::failures::Failures;
use crate::limits::PAUSE;

/// Connections at a time. Others wait to be accepted.
const CONNECTIONS_MAX: usize = 16;

/// Connections at a time of those who have not given the password. Others are closed.
const STRANGERS_MAX: usize = 8;

/// A console that is listened on.
pub(crate) struct Listener {
    socket: StdListener,
    address: SocketAddr,
}

impl Listener {
    /// Binds the address of the console.
    ///
    /// # Errors
    ///
    /// The address cannot be bound.
    pub(crate) fn bind(settings: &Settings) -> Result<Self, String> {
        let address = SocketAddr::new(settings.address, settings.port);
        let bound = StdListener::bind(address);
        Self::of(bound.map_err(|error| format!("cli: cannot listen on TCP {address}: {error}"))?)
    }

    /// Goes on with a socket that is bound.
    ///
    /// # Errors
    ///
    /// It is no socket that can be listened on.
    pub(crate) fn of(socket: StdListener) -> Result<Self, String> {
        let ready = socket.set_nonblocking(true);
        let address = ready.and_then(|()| socket.local_addr());
        let address = address.map_err(|error| format!("cli: {error}"))?;
        Ok(Self { socket, address })
    }

    /// Returns the socket.
    pub(crate) fn socket(&self) -> &StdListener {
        &self.socket
    }

    /// Returns the address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

/// What all connections to a console share.
pub(crate) struct Console {
    counters: LiveCounters,
    commands: Commands,
    password: Option<Secret>,
    /// Sessions that one listing shows.
    sessions_max: AtomicU32,
    failures: Mutex<Failures>,
}

impl Console {
    pub(crate) fn new(settings: &Settings, counters: LiveCounters, commands: Commands) -> Self {
        Self {
            counters,
            commands,
            password: settings.password.clone(),
            sessions_max: AtomicU32::new(settings.sessions_max),
            failures: Mutex::default(),
        }
    }

    /// Serves for ever.
    pub(crate) async fn serve(self, listener: Listener) {
        // It fails only without a runtime.
        let Ok(listener) = TcpListener::from_std(listener.socket) else {
            return;
        };
        let console = Arc::new(self);
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let strangers = Arc::new(Semaphore::new(STRANGERS_MAX));
        loop {
            // It fails only when it is closed, which nobody does.
            let Ok(place) = Arc::clone(&places).acquire_owned().await else {
                return;
            };
            match listener.accept().await {
                Ok((stream, client)) => {
                    let stranger = Arc::clone(&strangers).try_acquire_owned();
                    // guard: V-16-console-locked-out
                    if console.failures().are_too_many(client.ip(), Instant::now()) {
                        continue;
                    }
                    if let Ok(stranger) = stranger {
                        let console = Arc::clone(&console);
                        tokio::spawn(async move {
                            // Whoever is gone has no use for the rest.
                            let _ =
                                conversation::converse(&console, stream, client, stranger).await;
                            drop(place);
                        });
                    }
                }
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    /// Returns whether a password is the console's.
    fn admits(&self, given: &str) -> bool {
        let password = self.password.as_ref();
        password.is_some_and(|password| is_password(password.expose(), given.as_bytes()))
    }

    fn sessions_max(&self) -> u64 {
        u64::from(self.sessions_max.load(Relaxed))
    }

    fn failures(&self) -> std::sync::MutexGuard<'_, Failures> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
