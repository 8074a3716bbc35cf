//! Follows a database on a thread of its own.

use std::net::IpAddr;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::connection::runtime;
use crate::database::Database;
use crate::driver::Driver as _;
use crate::error::DatabaseError;
use crate::records::{News, Records, Wanted};
use crate::source::Source;

/// How long the thread waits before it tries again, at first.
const RETRY_MIN: Duration = Duration::from_millis(250);

/// How long it waits at the longest.
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Lower than that of threads that serve clients: a million rows that are read delay none of them.
const NICE: i32 = 10;

/// What the thread tells.
#[derive(Debug)]
pub enum Notice<'a> {
    /// The database runs at these addresses. Told before the first connection, and when they change.
    Addresses(Vec<IpAddr>),
    /// Rows have changed, or are read for the first time. These are all.
    Records(&'a Records),
    /// The database could be read, and nothing has changed.
    Same,
    /// The database cannot be read. It is tried again.
    Trouble(DatabaseError),
}

/// A database that is followed until this is dropped.
#[derive(Debug)]
pub struct Follower {
    _stop: oneshot::Sender<()>,
}

impl Follower {
    /// Starts a thread that reads the database, tells `tell` of it, and goes on with whatever changes. `tell` runs on that thread; once it
    /// returns false the thread ends.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub fn start(
        source: Source,
        wanted: Wanted,
        tell: impl FnMut(Notice<'_>) -> bool + Send + 'static,
    ) -> std::io::Result<Self> {
        let runtime = runtime()?;
        let (stop, is_stopped) = oneshot::channel();
        std::thread::Builder::new()
            .name("users".into())
            .spawn(move || {
                // Best effort: the priority of a thread can be lowered by anybody.
                let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
                runtime.block_on(async {
                    tokio::select! {
                        _ = is_stopped => {}
                        () = follow(&source, &wanted, tell) => {}
                    }
                });
                // What hangs on a name server must not keep the thread.
                runtime.shutdown_background();
            })?;
        Ok(Self { _stop: stop })
    }
}

async fn follow(source: &Source, wanted: &Wanted, mut tell: impl FnMut(Notice<'_>) -> bool) {
    let mut addresses = Vec::new();
    let mut records = Records::default();
    let mut database = None;
    let mut pause = RETRY_MIN;
    // A file that was there and is gone is waited for: an empty one in its place would be another database.
    let mut is_known = false;
    loop {
        if database.is_none() {
            let found = source.addresses().await;
            // A name server that does not answer now takes nothing back.
            if !found.is_empty() && found != addresses {
                addresses.clone_from(&found);
                if !tell(Notice::Addresses(found)) {
                    return;
                }
            }
        }
        match look(source, wanted, &mut database, !is_known, &records).await {
            Ok(news) => {
                let has_changed = records.take(news);
                let notice = match has_changed || !is_known {
                    true => Notice::Records(&records),
                    false => Notice::Same,
                };
                pause = RETRY_MIN;
                is_known = true;
                if !tell(notice) {
                    return;
                }
                if let Some(database) = &mut database {
                    database.await_change().await;
                }
            }
            Err(error) => {
                database = None;
                if !tell(Notice::Trouble(error)) {
                    return;
                }
                tokio::time::sleep(jittered(pause)).await;
                pause = (pause * 2).min(RETRY_MAX);
            }
        }
    }
}

async fn look(
    source: &Source,
    wanted: &Wanted,
    database: &mut Option<Database>,
    may_create: bool,
    known: &Records,
) -> Result<News, DatabaseError> {
    let database = match database {
        Some(database) => database,
        None => database.insert(Database::connect(source, may_create).await?),
    };
    database.follow(wanted, known).await
}

/// Returns between half and all of `pause`, so that servers of one database do not come back to it at one moment.
fn jittered(pause: Duration) -> Duration {
    let mut byte = [0];
    // Without randomness they do.
    let _ = getrandom::fill(&mut byte);
    pause.mul_f64(1.0 - f64::from(byte[0]) / 512.0)
}
