//! Questions about single users: what takes them, and the task that puts them to the database.
//!
//! Invariant: a question is answered within [`ASK_MAX`], and a database that does not answer costs one such wait, not one for each question.

use std::cell::Cell;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc, watch};

use crate::database::Database;
use crate::driver::Driver as _;
use crate::follow::{Notice, Silence, Target};
use crate::records::Answer;
use crate::source::Source;

/// Questions that may wait for the database.
pub const QUESTIONS_MAX: usize = 64;

/// How long the database has for an answer, a connection included.
const ASK_MAX: Duration = Duration::from_millis(300);

/// A row that was committed so long before reading began is read: MySQL says in whole seconds when a table has changed.
pub const CONFIRMED_AFTER: Duration = Duration::from_secs(2);

/// Asks about one user of a realm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The realm.
    pub realm: String,
    /// The username.
    pub name: String,
    /// Whatever the answer is to be known by.
    pub tag: u64,
}

/// Takes questions from any thread.
#[derive(Debug, Clone)]
pub struct Questions(mpsc::Sender<Question>);

impl Questions {
    /// Has a question put to the database. Returns false, and asks nothing, if [`QUESTIONS_MAX`] wait already or the database is not followed
    /// any more.
    #[must_use]
    pub fn ask(&self, question: Question) -> bool {
        self.0.try_send(question).is_ok()
    }
}

pub(crate) fn channel() -> (Questions, mpsc::Receiver<Question>) {
    let (questions, asked) = mpsc::channel(QUESTIONS_MAX);
    (Questions(questions), asked)
}

/// Says when the database has to be read so that an answer which is in use is confirmed or taken back.
#[derive(Default)]
pub(crate) struct Confirmation {
    /// The time of the last such answer.
    since: Cell<Option<Instant>>,
    wanted: Notify,
}

impl Confirmation {
    /// Notes an answer of this moment.
    pub(crate) fn want(&self, now: Instant) {
        self.since.set(Some(now));
        self.wanted.notify_one();
    }

    /// Notes that the database was looked at, beginning at this moment. A driver that rests from reading looks again by itself when it has rested.
    pub(crate) fn looked(&self, began: Instant) {
        let is_late = |since: Instant| began.saturating_duration_since(since) >= CONFIRMED_AFTER;
        if self.since.get().is_some_and(is_late) {
            self.since.set(None);
        }
    }

    /// Waits until the database has to be read.
    pub(crate) async fn due(&self) {
        loop {
            match self.since.get() {
                Some(since) => {
                    return tokio::time::sleep_until((since + CONFIRMED_AFTER).into()).await;
                }
                None => self.wanted.notified().await,
            }
        }
    }
}

/// Puts questions to the database, one after the other and on a connection of their own, and tells the answers. Ends when `tell` returns false.
pub(crate) async fn answer(
    mut target: watch::Receiver<Target>,
    mut asked: mpsc::Receiver<Question>,
    mut tell: impl FnMut(Notice<'_>) -> bool,
) {
    let mut database = None;
    let mut source = target.borrow_and_update().source.clone();
    loop {
        let question = tokio::select! {
            biased;
            () = elsewhere(&mut target, &source) => {
                source = target.borrow_and_update().source.clone();
                database = None;
                continue;
            }
            question = next(&source, &mut database, &mut asked) => question,
        };
        let Some(question) = question else { return };
        let answer = tokio::time::timeout(ASK_MAX, ask(&source, &mut database, &question)).await;
        let answer = answer.unwrap_or(Err(Silence::Away));
        let is_away = answer == Err(Silence::Away);
        if is_away {
            database = None;
        }
        if !tell(Notice::Answer(question, answer)) {
            return;
        }
        // Whoever waits behind a database that hangs would wait as long again.
        while is_away && let Ok(question) = asked.try_recv() {
            if !tell(Notice::Answer(question, Err(Silence::Behind))) {
                return;
            }
        }
    }
}

/// Waits until another database than `source` is to be asked.
async fn elsewhere(target: &mut watch::Receiver<Target>, source: &Source) {
    if target
        .wait_for(|target| target.source != *source)
        .await
        .is_err()
    {
        std::future::pending().await
    }
}

/// Waits for a question. A connection is made before one comes, if it can be: making one takes longer than asking.
async fn next(
    source: &Source,
    kept: &mut Option<Database>,
    asked: &mut mpsc::Receiver<Question>,
) -> Option<Question> {
    if kept.is_none() {
        tokio::select! {
            biased;
            question = asked.recv() => return question,
            connected = Database::connect(source, false) => *kept = connected.ok(),
        }
    }
    asked.recv().await
}

/// Puts one question. A connection that has failed is made anew once: it may have been idle for too long. If the question fails again although
/// the database lets itself be connected to, it is the question that it does not take.
async fn ask(
    source: &Source,
    kept: &mut Option<Database>,
    question: &Question,
) -> Result<Answer, Silence> {
    let Question { realm, name, .. } = question;
    if let Some(database) = kept {
        match database.ask(realm, name).await {
            Ok(answer) => return Ok(answer),
            Err(_) => *kept = None,
        }
    }
    let connected = Database::connect(source, false).await;
    let database = kept.insert(connected.map_err(|_| Silence::Away)?);
    match database.ask(realm, name).await {
        Ok(answer) => Ok(answer),
        Err(_) => {
            *kept = None;
            Err(Silence::Refused)
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn an_answer_in_use_is_confirmed_by_a_reading_that_began_two_seconds_later() {
        let began = Instant::now();
        let confirmation = Confirmation::default();
        let at = |seconds| began + Duration::from_secs(seconds);
        let is_due = |confirmation: &Confirmation| confirmation.since.get().is_some();
        confirmation.want(at(10));
        for too_early in [9, 11] {
            confirmation.looked(at(too_early));
            assert!(is_due(&confirmation), "{too_early}");
        }
        confirmation.looked(at(12));
        assert!(!is_due(&confirmation));
        let due = confirmation.due().now_or_never();
        assert!(due.is_none(), "nothing is to be confirmed");
    }

    #[test]
    fn beyond_64_questions_none_is_taken() {
        let (questions, _asked) = channel();
        let taken = (0..100).filter(|&tag| {
            questions.ask(Question {
                realm: "r".into(),
                name: "alice".into(),
                tag,
            })
        });
        assert_eq!(taken.count(), QUESTIONS_MAX);
    }
}
