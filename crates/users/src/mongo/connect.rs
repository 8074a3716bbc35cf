//! Connections to MongoDB, what their errors mean, and for how long an answer is waited for.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mongodb::error::{Error, ErrorKind, WriteFailure};
use mongodb::event::EventHandler;
use mongodb::event::sdam::SdamEvent;
use mongodb::options::{ClientOptions, ServerAddress, Tls};
use mongodb::{Client, Database};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::words::MongoSource;
use crate::error::DatabaseError;
use crate::tls::is_refused;

/// How long a connection may take, and how long the server may be silent, where nothing else is said.
const USUAL_MAX: Duration = Duration::from_secs(5);

/// Errors of the server that stay until somebody mends something: no right, no login, a login of another kind.
const PERMANENT_CODES: [i32; 3] = [13, 18, 334];

/// A database whose server is watched.
pub(super) struct Link {
    pub(super) source: MongoSource,
    pub(super) database: Database,
    failures: Arc<Failures>,
    limit: Duration,
}

/// The servers that cannot be reached. The driver would wait in silence until one of them can.
struct Failures {
    host_count: usize,
    error_by_host: Mutex<BTreeMap<String, Error>>,
    changed: Notify,
}

impl Failures {
    fn errors(&self) -> MutexGuard<'_, BTreeMap<String, Error>> {
        self.error_by_host
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, event: SdamEvent) {
        match event {
            SdamEvent::ServerHeartbeatFailed(failed) => {
                let host = failed.server_address.to_string();
                self.errors().insert(host, failed.failure);
                self.changed.notify_one();
            }
            SdamEvent::ServerHeartbeatSucceeded(succeeded) => {
                self.errors().remove(&succeeded.server_address.to_string());
            }
            _ => {}
        }
    }

    /// Returns why the first server cannot be reached, if none can.
    fn of_all(&self) -> Option<Error> {
        let errors = self.errors();
        let is_all = errors.len() >= self.host_count;
        errors.values().next().filter(|_| is_all).cloned()
    }

    /// Waits until no server can be reached. Returns why the first of them cannot.
    async fn everywhere(&self) -> Error {
        loop {
            let changed = self.changed.notified();
            if let Some(error) = self.of_all() {
                return error;
            }
            changed.await;
        }
    }
}

impl Link {
    /// Prepares a connection, which is made when it is used.
    pub(super) async fn open(source: &MongoSource) -> Result<Self, DatabaseError> {
        let wrong = |error: Error| said(source, USUAL_MAX, &error);
        let mut options = options(source).await?;
        let limit = options.server_selection_timeout.unwrap_or(USUAL_MAX);
        options.server_selection_timeout = Some(limit);
        options.connect_timeout.get_or_insert(USUAL_MAX);
        let failures = Arc::new(Failures {
            host_count: options.hosts.len(),
            error_by_host: Mutex::default(),
            changed: Notify::new(),
        });
        let heard = Arc::clone(&failures);
        options.sdam_event_handler = Some(EventHandler::callback(move |event| heard.take(event)));
        let client = Client::with_options(options).map_err(wrong)?;
        Ok(Self {
            source: source.clone(),
            database: client.database(&source.database),
            failures,
            limit,
        })
    }

    /// Returns an error of the driver in our words.
    pub(super) fn said(&self, error: &Error) -> DatabaseError {
        said(&self.source, self.limit, error)
    }

    /// Waits for an answer, within the time that the server may be silent, and no longer than any server can be reached.
    pub(super) async fn within<T>(
        &self,
        answer: impl IntoFuture<Output = Result<T, Error>>,
    ) -> Result<T, DatabaseError> {
        let answered = tokio::select! {
            biased;
            answered = timeout(self.limit, answer) => answered,
            error = self.failures.everywhere() => Ok(Err(error)),
        };
        match answered {
            Ok(answer) => answer.map_err(|error| self.said(&error)),
            Err(_) => Err(silent(&self.source, self.limit)),
        }
    }
}

/// Returns the hosts of a source; where it leaves them to a name server, those that it gives.
pub(crate) async fn hosts(source: &MongoSource) -> Vec<String> {
    if !source.hosts().is_empty() {
        return source.hosts();
    }
    let options = options(source).await;
    let hosts = options.into_iter().flat_map(|options| options.hosts);
    hosts
        .filter_map(|host| match host {
            ServerAddress::Tcp { host, .. } => Some(host),
            _ => None,
        })
        .collect()
}

async fn options(source: &MongoSource) -> Result<ClientOptions, DatabaseError> {
    let uri = String::from_utf8_lossy(source.uri.expose()).into_owned();
    let mut options = match timeout(USUAL_MAX, ClientOptions::parse(uri)).await {
        Ok(options) => options.map_err(|error| said(source, USUAL_MAX, &error))?,
        Err(_) => return Err(silent(source, USUAL_MAX)),
    };
    if let (Some(Tls::Enabled(tls)), Some(any_name)) = (&mut options.tls, source.any_name) {
        tls.allow_invalid_hostnames = Some(any_name);
    }
    // As for coturn's driver: one host without the name of a set is itself meant, and not those whom it knows.
    let is_one = options.hosts.len() == 1 && !source.hosts().is_empty();
    if is_one && options.repl_set_name.is_none() && options.load_balanced != Some(true) {
        options.direct_connection.get_or_insert(true);
    }
    Ok(options)
}

/// Returns an error in words that hold no value of a document and nothing of the URI that is secret.
fn said(source: &MongoSource, limit: Duration, error: &Error) -> DatabaseError {
    match &*error.kind {
        ErrorKind::Authentication { .. } => {
            DatabaseError::permanent(source, "the server does not let the user in")
        }
        ErrorKind::InvalidTlsConfig { message, .. } => {
            DatabaseError::permanent(source, format!("TLS: {message}"))
        }
        ErrorKind::InvalidArgument { message, .. } => DatabaseError::permanent(source, message),
        ErrorKind::IncompatibleServer { message, .. } => DatabaseError::permanent(source, message),
        ErrorKind::Io(failure) if failure.kind() == std::io::ErrorKind::TimedOut => {
            silent(source, limit)
        }
        ErrorKind::Io(failure) => match is_refused(failure.as_ref()) {
            true => DatabaseError::permanent(source, format!("TLS: {failure}")),
            false => DatabaseError::passing(source, failure),
        },
        ErrorKind::ServerSelection { .. } => silent(source, limit),
        ErrorKind::DnsResolve { message, .. } => DatabaseError::passing(source, message),
        ErrorKind::Command(failure) => coded(source, failure.code, &failure.code_name),
        ErrorKind::Write(WriteFailure::WriteError(failure)) => {
            let name = failure.code_name.as_deref().unwrap_or_default();
            coded(source, failure.code, name)
        }
        ErrorKind::ConnectionPoolCleared { .. } => {
            DatabaseError::passing(source, "the connection is lost")
        }
        _ => DatabaseError::passing(source, "the server's answer is not understood"),
    }
}

/// Names an error of the server by its code, and leaves out its text, which may repeat what it was sent.
fn coded(source: &MongoSource, code: i32, name: &str) -> DatabaseError {
    let what = format!(
        "the server answers with error {code} ({})",
        name.escape_debug()
    );
    match PERMANENT_CODES.contains(&code) {
        true => DatabaseError::permanent(source, what),
        false => DatabaseError::passing(source, what),
    }
}

fn silent(source: &MongoSource, limit: Duration) -> DatabaseError {
    DatabaseError::passing(source, format!("no answer within {} s", limit.as_secs()))
}
