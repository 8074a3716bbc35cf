//! Follows a database on a thread of its own, and asks it about single users.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep;
use turnbuckle_sys::priority::{BACKGROUND_NICE, run_in_batches};

use crate::asking::{self, Confirmation, Question, Questions};

use crate::connection::runtime;
use crate::database::Database;
use crate::driver::Driver;
use crate::error::DatabaseError;
use crate::records::{Answer, Changed, News, Records, Wanted};
use crate::source::Source;

/// How long the thread waits before it tries again, at first.
const RETRY_MIN: Duration = Duration::from_millis(250);

/// How long it waits at the longest.
const RETRY_MAX: Duration = Duration::from_secs(2);

/// What the thread tells.
#[derive(Debug)]
pub enum Notice<'a> {
    /// The database runs at these addresses. Told before the first connection, and when they change.
    Addresses(Vec<IpAddr>),
    /// What the database says to a question.
    Answer(Question, Result<Answer, Silence>),
    /// What is followed was said anew ([`Follower::follow`]). These rows were read last, before that; none, if none have been read.
    Asked(&'a Records),
    /// Rows have changed, or are read for the first time. These are all, and which of them are other than before.
    Records(Read<'a>, Changed),
    /// The database could be read, and nothing has changed. Not told while a driver rests from reading.
    Same(Read<'a>),
    /// The database cannot be read. It is tried again.
    Trouble(DatabaseError),
}

/// What a database holds.
#[derive(Debug, Clone, Copy)]
pub struct Read<'a> {
    /// All rows.
    pub records: &'a Records,
    /// When reading began. What was committed earlier is in the rows, but for what a database shows late ([`crate::CONFIRMED_AFTER`]). Where a part of
    /// the rows was read, it is the beginning of the last reading that left nothing out.
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
    /// It goes on, and reads the database within [`crate::CONFIRMED_AFTER`], the rest after another reading and the time of reading: an answer is used
    /// that reading has not shown.
    Confirm,
    /// It ends.
    End,
}

/// Which database is followed, and which of its rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Where the database is.
    pub source: Source,
    /// Which rows are read.
    pub wanted: Wanted,
}

/// A database that is followed until this is dropped.
#[derive(Debug)]
pub struct Follower {
    questions: Questions,
    target: watch::Sender<Target>,
    _stop: oneshot::Sender<()>,
}

impl Follower {
    /// Starts a thread that reads the database, tells `tell` of it, and goes on with whatever changes. `tell` runs on that thread.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub fn start(
        target: Target,
        tell: impl FnMut(Notice<'_>) -> Then + Send + 'static,
    ) -> std::io::Result<Self> {
        let runtime = runtime()?;
        let (stop, is_stopped) = oneshot::channel();
        let (questions, asked) = asking::channel();
        let (target, followed) = watch::channel(target);
        std::thread::Builder::new()
            .name("users".into())
            .spawn(move || {
                // A million rows that are read delay no thread that serves clients. Best effort: it goes on as other threads where a sandbox
                // forbids it.
                let _ = run_in_batches(BACKGROUND_NICE);
                runtime.block_on(async {
                    tokio::select! {
                        _ = is_stopped => {}
                        () = serve(&followed, asked, tell) => {}
                    }
                });
                // What hangs on a name server must not keep the thread.
                runtime.shutdown_background();
            })?;
        Ok(Self {
            questions,
            target,
            _stop: stop,
        })
    }

    /// Follows `target` from now on, which may be the same as before, and tells [`Notice::Asked`] in any case, also while the database is read or
    /// cannot be reached. Another target is read as a whole; what was read before stays until then.
    pub fn follow(&self, target: Target) {
        self.target.send_replace(target);
    }

    /// Returns what takes questions for the database.
    #[must_use]
    pub fn questions(&self) -> Questions {
        self.questions.clone()
    }
}

/// Follows and asks, until `tell` wants no more.
async fn serve(
    target: &watch::Receiver<Target>,
    asked: mpsc::Receiver<Question>,
    mut tell: impl FnMut(Notice<'_>) -> Then,
) {
    let confirmation = Confirmation::default();
    let records = RefCell::default();
    let tell = RefCell::new(|notice: Notice<'_>| {
        let then = tell(notice);
        if then == Then::Confirm {
            confirmation.want(Instant::now());
        }
        then != Then::End
    });
    // A question waits for no reading: it has a connection of its own. Nor does a target that is said anew.
    tokio::select! {
        () = follow(target.clone(), &confirmation, &records, (Database::connect, sleep), |notice| (tell.borrow_mut())(notice)) => {}
        () = asking::answer(target.clone(), asked, |notice| (tell.borrow_mut())(notice)) => {}
        () = say_anew(target.clone(), &records, |notice| (tell.borrow_mut())(notice)) => {}
    }
}

/// Tells what has been read whenever the target is said anew. Ends when `tell` returns false.
async fn say_anew(
    mut target: watch::Receiver<Target>,
    records: &RefCell<Rc<Records>>,
    mut tell: impl FnMut(Notice<'_>) -> bool,
) {
    while target.changed().await.is_ok() {
        let known = Rc::clone(&records.borrow());
        if !tell(Notice::Asked(&known)) {
            return;
        }
    }
}

/// Follows until `tell` wants no more. What is read is kept in `records`. `connect` reaches a database, and creates a file if it may; `sleep` waits
/// between attempts to reach one that is away.
async fn follow<D: Driver>(
    mut wished: watch::Receiver<Target>,
    confirmation: &Confirmation,
    records: &RefCell<Rc<Records>>,
    (connect, sleep): (
        impl AsyncFn(&Source, bool) -> Result<D, DatabaseError>,
        impl AsyncFn(Duration),
    ),
    mut tell: impl FnMut(Notice<'_>) -> bool,
) {
    let mut target = wished.borrow().clone();
    let mut addresses = Vec::new();
    let mut database = None;
    let mut retries = Retries::default();
    // A file that was there and is gone is waited for: an empty one in its place would be another database.
    let mut is_known = false;
    // When the last reading began that left nothing out.
    let mut whole_began = None;
    loop {
        let next = wished.borrow().clone();
        if next != target {
            is_known &= next.source == target.source;
            target = next;
            retries = Retries::default();
            database = None;
        }
        if database.is_none() {
            let found = target.source.addresses().await;
            // A name server that does not answer now takes nothing back.
            if !found.is_empty() && found != addresses {
                addresses.clone_from(&found);
                if !tell(Notice::Addresses(found)) {
                    return;
                }
            }
        }
        let began = Instant::now();
        let known = Rc::clone(&records.borrow());
        let looked = tokio::select! {
            looked = look(&target, &mut database, &connect, !is_known, &known) => looked,
            () = another(&mut wished, &target) => continue,
        };
        drop(known);
        match looked {
            Ok(news) => {
                let is_part = matches!(news, News::Part(_));
                let changed = Rc::make_mut(&mut records.borrow_mut()).take(news);
                let known = Rc::clone(&records.borrow());
                if !is_part {
                    whole_began = Some(began);
                }
                let read = Read {
                    records: &known,
                    began: whole_began.unwrap_or(began),
                };
                let notice = match changed {
                    _ if !is_known => Some(Notice::Records(read, Changed::Everything)),
                    Changed::Nothing if is_part => None,
                    Changed::Nothing => Some(Notice::Same(read)),
                    changed => Some(Notice::Records(read, changed)),
                };
                retries = Retries::default();
                is_known = true;
                confirmation.looked(began);
                if notice.is_some_and(|notice| !tell(notice)) {
                    return;
                }
                drop(known);
                if let Some(database) = &mut database {
                    tokio::select! {
                        () = database.await_change() => {}
                        () = confirmation.due() => {}
                        () = another(&mut wished, &target) => {}
                    }
                }
            }
            Err(error) => {
                database = None;
                if !tell(Notice::Trouble(error)) {
                    return;
                }
                tokio::select! {
                    () = sleep(retries.next_pause()) => {}
                    () = another(&mut wished, &target) => {}
                }
            }
        }
    }
}

/// Waits until another target than this is wished for.
async fn another(wished: &mut watch::Receiver<Target>, target: &Target) {
    let found = wished.wait_for(|wished| wished != target).await.is_ok();
    if !found {
        // Nobody says anything any more: the thread is about to end.
        std::future::pending::<()>().await;
    }
}

async fn look<D: Driver>(
    target: &Target,
    database: &mut Option<D>,
    connect: impl AsyncFn(&Source, bool) -> Result<D, DatabaseError>,
    may_create: bool,
    known: &Records,
) -> Result<News, DatabaseError> {
    let database = match database {
        Some(database) => database,
        None => database.insert(connect(&target.source, may_create).await?),
    };
    database.follow(&target.wanted, known).await
}

/// The pauses between attempts to reach a database that is away.
struct Retries {
    /// The longest that the next one may be.
    pause: Duration,
}

impl Default for Retries {
    fn default() -> Self {
        let pause = RETRY_MIN;
        Self { pause }
    }
}

impl Retries {
    fn next_pause(&mut self) -> Duration {
        let pause = jittered(self.pause);
        self.pause = (self.pause * 2).min(RETRY_MAX);
        pause
    }
}

/// Returns between half and all of `pause`, so that servers of one database do not come back to it at one moment.
fn jittered(pause: Duration) -> Duration {
    let mut byte = [0];
    // Without randomness they do.
    let _ = getrandom::fill(&mut byte);
    pause.mul_f64(1.0 - f64::from(byte[0]) / 512.0)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::path::Path;
    use std::sync::mpsc::channel;

    use super::*;
    use crate::change::{Change, Listed, Listing};
    use crate::records::Delta;
    use crate::records::tests::users;

    fn target(file: &Path) -> Target {
        Target {
            source: Source::Sqlite(file.to_owned()),
            wanted: Wanted {
                realm: "r".to_owned(),
                users: true,
                secrets: false,
                peers: false,
                realms: false,
                token_keys: false,
            },
        }
    }

    /// Follows a file in virtual time: no pause after a failure is waited for, and `slept` is told of each.
    fn follow_in_virtual_time(
        file: &Path,
        mut slept: impl FnMut(Duration),
        tell: impl FnMut(Notice<'_>) -> bool,
    ) {
        // Its other end lives on: nobody wishes for anything else.
        let (_other_end, target) = watch::channel(target(file));
        let (confirmation, records) = (Confirmation::default(), RefCell::default());
        let slept = RefCell::new(&mut slept);
        let sleep = async |pause| (slept.borrow_mut())(pause);
        let runtime = runtime().expect("set up");
        let how = (Database::connect, sleep);
        runtime.block_on(follow(target, &confirmation, &records, how, tell));
    }

    /// A database in which each look finds the next of these, and none after the last.
    struct Script(std::vec::IntoIter<News>);

    impl Driver for Script {
        async fn follow(&mut self, _: &Wanted, _: &Records) -> Result<News, DatabaseError> {
            let news = self.0.next();
            news.ok_or_else(|| DatabaseError::passing("script", "its end"))
        }

        async fn await_change(&mut self) {
            // So that no two looks begin at one moment.
            sleep(Duration::from_millis(1)).await;
        }

        async fn ask(&mut self, _: &str, _: &str) -> Result<Answer, DatabaseError> {
            Ok(Answer::default())
        }

        async fn change(&mut self, _: Change<'_>) -> Result<(), DatabaseError> {
            Ok(())
        }

        async fn list(
            &mut self,
            _: Listing,
            _: Option<&str>,
        ) -> Result<Vec<Listed>, DatabaseError> {
            Ok(Vec::new())
        }
    }

    /// Returns what is told of looks that find these, and when each reading is said to have begun.
    fn told(news: Vec<News>) -> Vec<(&'static str, Instant)> {
        let (_other_end, target) = watch::channel(target(Path::new("nowhere")));
        let (confirmation, records) = (Confirmation::default(), RefCell::default());
        let script = RefCell::new(Some(Script(news.into_iter())));
        let connect = async |_: &Source, _: bool| Ok(script.take().expect("one connection"));
        let mut told = Vec::new();
        let how = (connect, async |_| {});
        let following = follow(target, &confirmation, &records, how, |notice| {
            told.push(match notice {
                Notice::Records(read, Changed::Everything) => ("everything", read.began),
                Notice::Records(read, _) => ("some", read.began),
                Notice::Same(read) => ("same", read.began),
                Notice::Trouble(_) => return false,
                other => panic!("{other:?}"),
            });
            true
        });
        runtime().expect("set up").block_on(following);
        told
    }

    /// An answer was taken back that the database had given: a look in the rest between two readings passed for a reading which did not show it.
    #[test]
    fn a_look_that_reads_nothing_or_a_part_is_no_reading() {
        let read = |names| Delta {
            put: users(names),
            ..Delta::default()
        };
        let told = told(vec![
            News::Whole(Records::default()),
            News::not_yet(),
            News::Part(read(&[("alice", 1)])),
            News::Part(read(&[("alice", 1)])),
            News::Nothing,
            News::not_yet(),
            News::Delta(read(&[("bob", 2)])),
        ]);
        let (words, began): (Vec<_>, Vec<_>) = told.into_iter().unzip();
        assert_eq!(words, ["everything", "some", "same", "some"]);
        assert_eq!(
            began[1], began[0],
            "the first reading was the last whole one"
        );
        assert!(began[2] > began[1] && began[3] > began[2], "{began:?}");
    }

    /// Returns the pauses between so many attempts to read a file that cannot be made.
    fn pauses(attempts: usize) -> Vec<Duration> {
        let folder = tempfile::tempdir().expect("a directory");
        let (mut pauses, mut failures) = (Vec::new(), 0);
        follow_in_virtual_time(
            &folder.path().join("nothing/turndb"),
            |pause| pauses.push(pause),
            |notice| {
                assert!(matches!(notice, Notice::Trouble(_)), "{notice:?}");
                failures += 1;
                failures < attempts
            },
        );
        pauses
    }

    #[test]
    fn a_database_that_is_away_is_tried_again_after_a_quarter_of_a_second_and_then_up_to_two() {
        let pauses = pauses(700);
        assert_eq!(pauses.len(), 699);
        let mut longest = Duration::from_millis(250);
        for (attempt, &pause) in pauses.iter().enumerate() {
            assert!(
                pause > longest / 2 && pause <= longest,
                "{attempt}: {pause:?}, not up to {longest:?}"
            );
            longest = (longest * 2).min(Duration::from_secs(2));
        }
        // In ten minutes: often enough that a million rows are read within five seconds, and no oftener than every second.
        let in_ten_minutes = pauses.iter().scan(Duration::ZERO, |at, pause| {
            *at += *pause;
            (*at < Duration::from_secs(600)).then_some(())
        });
        assert!((300..=603).contains(&in_ten_minutes.count()));
    }

    #[test]
    fn servers_of_one_database_do_not_come_back_to_it_at_one_moment() {
        let (one, other) = (pauses(50), pauses(50));
        let equal = one.iter().zip(&other).filter(|(one, other)| one == other);
        assert!(equal.count() < 25, "{one:?}");
    }

    #[test]
    fn after_a_reading_the_next_failure_is_followed_by_a_short_pause_again() {
        let folder = tempfile::tempdir().expect("a directory");
        let folder = folder.path().join("later");
        let (mut pauses, mut failures) = (Vec::new(), 0);
        let is_read = Cell::new(false);
        follow_in_virtual_time(
            &folder.join("turndb"),
            |pause| {
                pauses.push((pause, is_read.get()));
                if pauses.len() == 10 {
                    std::fs::create_dir(&folder).expect("made");
                }
            },
            |notice| {
                if matches!(notice, Notice::Records(..)) {
                    is_read.set(true);
                    std::fs::remove_dir_all(&folder).expect("removed");
                } else {
                    failures += 1;
                }
                failures < 12
            },
        );
        let (before, after): (Vec<_>, Vec<_>) = pauses.into_iter().partition(|(_, read)| !read);
        assert_eq!((before.len(), after.len()), (10, 1));
        assert!(before[9].0 >= Duration::from_secs(1), "{before:?}");
        assert!(after[0].0 <= Duration::from_millis(250), "{after:?}");
    }

    #[test]
    fn the_thread_runs_in_batches_and_after_others() {
        let folder = tempfile::tempdir().expect("a directory");
        let target = target(&folder.path().join("turndb"));
        let (tell, heard) = channel();
        let follower = Follower::start(target, move |_| {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("Linux");
            let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
            let fields: Vec<_> = fields.map(str::to_owned).collect();
            // Nice value and policy: the fields 19 and 41, of which two stand before the name's end (proc_pid_stat(5)).
            let _ = tell.send((fields[16].clone(), fields[38].clone()));
            Then::End
        });
        let follower = follower.expect("a thread");
        let (nice, policy) = heard.recv().expect("it tells what it reads");
        drop(follower);
        assert_eq!(policy, "3", "SCHED_BATCH");
        assert!(nice.parse::<i32>().expect("a number") >= 10, "{nice}");
    }

    /// In virtual time no notice would come late; so this is the thread itself, and a file.
    #[test]
    fn what_is_said_anew_is_told_although_nothing_can_be_read_and_another_file_is_read() {
        let folder = tempfile::tempdir().expect("a directory");
        let [nothing, there] = ["nothing/turndb", "turndb"].map(|name| folder.path().join(name));
        let (tell, heard) = channel();
        let follower = Follower::start(target(&nothing), move |notice| {
            let word = match notice {
                Notice::Asked(_) => Some("asked"),
                Notice::Records(..) => Some("read"),
                _ => None,
            };
            if let Some(word) = word {
                let _ = tell.send(word);
            }
            Then::GoOn
        });
        let follower = follower.expect("a thread");
        let next = || heard.recv_timeout(Duration::from_secs(60)).expect("told");
        for _ in 0..2 {
            follower.follow(target(&nothing));
            assert_eq!(next(), "asked");
        }
        follower.follow(target(&there));
        let mut words = [next(), next()];
        words.sort_unstable();
        assert_eq!(words, ["asked", "read"]);
    }
}
