//! Follows a database on a thread of its own, and asks it about single users.

use std::cell::RefCell;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

use crate::asking::{self, Confirmation, Question, Questions};

use crate::connection::runtime;
use crate::database::Database;
use crate::driver::Driver as _;
use crate::error::DatabaseError;
use crate::records::{Answer, Changed, News, Records, Wanted};
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
    /// What the database says to a question.
    Answer(Question, Result<Answer, Silence>),
    /// Rows have changed, or are read for the first time. These are all, and which of them are other than before.
    Records(Read<'a>, Changed),
    /// The database could be read, and nothing has changed.
    Same(Read<'a>),
    /// The database cannot be read. It is tried again.
    Trouble(DatabaseError),
}

/// What a database holds.
#[derive(Debug, Clone, Copy)]
pub struct Read<'a> {
    /// All rows.
    pub records: &'a Records,
    /// When reading began. What was committed earlier is in the rows, but for what a database shows late ([`crate::CONFIRMED_AFTER`]).
    pub began: Instant,
}

/// Why a question has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Silence {
    /// The database cannot be reached, or does not answer in time.
    Away,
    /// It has waited behind a question that the database did not answer.
    Behind,
    /// The database is there and does not take this question.
    Refused,
}

/// What becomes of the thread after a notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// It goes on.
    GoOn,
    /// It goes on, and reads the database within [`crate::CONFIRMED_AFTER`] and the time of reading: an answer is used that reading has not shown.
    Confirm,
    /// It ends.
    End,
}

/// A database that is followed until this is dropped.
#[derive(Debug)]
pub struct Follower {
    questions: Questions,
    _stop: oneshot::Sender<()>,
}

impl Follower {
    /// Starts a thread that reads the database, tells `tell` of it, and goes on with whatever changes. `tell` runs on that thread.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub fn start(
        source: Source,
        wanted: Wanted,
        tell: impl FnMut(Notice<'_>) -> Then + Send + 'static,
    ) -> std::io::Result<Self> {
        let runtime = runtime()?;
        let (stop, is_stopped) = oneshot::channel();
        let (questions, asked) = asking::channel();
        std::thread::Builder::new()
            .name("users".into())
            .spawn(move || {
                // Best effort: the priority of a thread can be lowered by anybody.
                let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
                runtime.block_on(async {
                    tokio::select! {
                        _ = is_stopped => {}
                        () = serve(&source, &wanted, asked, tell) => {}
                    }
                });
                // What hangs on a name server must not keep the thread.
                runtime.shutdown_background();
            })?;
        Ok(Self {
            questions,
            _stop: stop,
        })
    }

    /// Returns what takes questions for the database.
    #[must_use]
    pub fn questions(&self) -> Questions {
        self.questions.clone()
    }
}

/// Follows and asks, until `tell` wants no more.
async fn serve(
    source: &Source,
    wanted: &Wanted,
    asked: mpsc::Receiver<Question>,
    mut tell: impl FnMut(Notice<'_>) -> Then,
) {
    let confirmation = Confirmation::default();
    let tell = RefCell::new(|notice: Notice<'_>| {
        let then = tell(notice);
        if then == Then::Confirm {
            confirmation.want(Instant::now());
        }
        then != Then::End
    });
    // A question waits for no reading: it has a connection of its own.
    tokio::select! {
        () = follow(source, wanted, &confirmation, |notice| (tell.borrow_mut())(notice)) => {}
        () = asking::answer(source, asked, |notice| (tell.borrow_mut())(notice)) => {}
    }
}

async fn follow(
    source: &Source,
    wanted: &Wanted,
    confirmation: &Confirmation,
    mut tell: impl FnMut(Notice<'_>) -> bool,
) {
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
        let began = Instant::now();
        match look(source, wanted, &mut database, !is_known, &records).await {
            Ok(news) => {
                let changed = records.take(news);
                let read = Read {
                    records: &records,
                    began,
                };
                let notice = match changed {
                    _ if !is_known => Notice::Records(read, Changed::Everything),
                    Changed::Nothing => Notice::Same(read),
                    changed => Notice::Records(read, changed),
                };
                pause = RETRY_MIN;
                is_known = true;
                confirmation.read(began);
                if !tell(notice) {
                    return;
                }
                if let Some(database) = &mut database {
                    tokio::select! {
                        () = database.await_change() => {}
                        () = confirmation.due() => {}
                    }
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
