//! Resolves names of tunnels' targets, on threads of its own, by what the machine is configured with.
//!
//! One question of a user is resolved at a time, and users take turns, so silent name servers keep only the users waiting who ask for their names.
//!
//! Invariant: no shard waits here. A shard that has a question is told at once when there is no room for it; the answer comes to its
//! [`Replies`], and wakes it. What is asked of the machine cannot be taken back, so a shard stops waiting by itself.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, ToSocketAddrs as _};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use turnbuckle_datapath::{StreamId, Waker};

/// Threads that resolve names, and so users whose names may wait for silent servers at a time.
const THREADS_MAX: usize = 32;
/// Questions that may wait for a thread.
const QUEUE: usize = 256;
/// Questions of one user that may be under way.
const PER_USER_MAX: usize = 8;
/// How long a shard waits for an answer.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(5);

/// What a name is resolved by.
type Lookup = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;

/// Takes questions of all shards.
#[derive(Clone)]
pub(crate) struct Resolver {
    line: Arc<Line>,
    /// The threads end with the last handle.
    _open: Arc<Open>,
}

/// What handles and threads share.
struct Line {
    waiting: Mutex<Waiting>,
    has_work: Condvar,
    lookup: Box<Lookup>,
    threads_max: usize,
}

/// The questions.
#[derive(Default)]
struct Waiting {
    /// The questions of each user that has any. The first one is being resolved if the user is not in `turns`.
    of_user: BTreeMap<Box<str>, VecDeque<Asked>>,
    /// The users whose next question waits for a thread, in the order of their turns.
    turns: VecDeque<Box<str>>,
    count: usize,
    threads: usize,
    idle: usize,
    is_closed: bool,
}

/// A question, and when its shard has stopped waiting for the answer.
struct Asked {
    question: Question,
    until: Instant,
}

/// Ends the threads when dropped.
struct Open(Arc<Line>);

/// A name to be resolved.
pub(crate) struct Question {
    pub(crate) name: Box<str>,
    /// Whose question it is.
    pub(crate) user: Box<str>,
    /// The connection that waits, and the number of its request.
    pub(crate) stream: StreamId,
    pub(crate) number: u64,
    pub(crate) replies: Arc<Replies>,
}

/// The addresses of a name; none if it has none.
pub(crate) struct Answer {
    pub(crate) stream: StreamId,
    pub(crate) number: u64,
    pub(crate) addresses: Vec<IpAddr>,
}

/// The answers for one shard.
pub(crate) struct Replies {
    answers: Mutex<Vec<Answer>>,
    waker: Waker,
}

impl Replies {
    pub(crate) fn new(waker: Waker) -> Arc<Self> {
        Arc::new(Self {
            answers: Mutex::default(),
            waker,
        })
    }

    fn put(&self, answer: Answer) {
        lock(&self.answers).push(answer);
        self.waker.wake();
    }

    /// Takes the answers that have come.
    pub(crate) fn take(&self) -> Vec<Answer> {
        std::mem::take(&mut *lock(&self.answers))
    }
}

impl Resolver {
    /// Returns one that asks the machine. It starts threads as it needs them.
    pub(crate) fn of_machine() -> Self {
        Self::by(THREADS_MAX, |name| {
            let addresses = (name, 0).to_socket_addrs()?;
            Ok(addresses.map(|address| address.ip()).collect())
        })
    }

    /// Returns one that has no threads, and no room for a question.
    pub(crate) fn without_room() -> Self {
        Self::by(0, |_| Ok(Vec::new()))
    }

    /// Returns one that resolves a name in another way than the machine does, with at most `threads_max` threads.
    pub(crate) fn by(
        threads_max: usize,
        lookup: impl Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync + 'static,
    ) -> Self {
        let line = Arc::new(Line {
            waiting: Mutex::default(),
            has_work: Condvar::new(),
            lookup: Box::new(lookup),
            threads_max,
        });
        Self {
            _open: Arc::new(Open(Arc::clone(&line))),
            line,
        }
    }

    /// Puts a question. Returns whether there was room for it.
    pub(crate) fn ask(&self, question: Question) -> bool {
        let line = &self.line;
        let waiting = &mut *lock(&line.waiting);
        let is_crowded = |questions: &VecDeque<_>| questions.len() >= PER_USER_MAX;
        // guard: V-90-user
        if waiting.of_user.get(&question.user).is_some_and(is_crowded) {
            return false;
        }
        if waiting.count >= QUEUE {
            return false;
        }
        // One thread for each waiting user. If none can be started, the running ones serve the queue.
        let is_next = !waiting.of_user.contains_key(&question.user);
        let is_short = waiting.idle <= waiting.turns.len();
        if is_next && is_short && waiting.threads < line.threads_max {
            let own = Arc::clone(line);
            let thread = std::thread::Builder::new().name("resolve".into());
            if thread.spawn(move || own.work()).is_ok() {
                waiting.threads += 1;
            }
        }
        if waiting.threads == 0 {
            return false;
        }
        waiting.count += 1;
        let user = question.user.clone();
        let questions = waiting.of_user.entry(user.clone()).or_default();
        questions.push_back(Asked {
            question,
            until: Instant::now() + WAIT_MAX,
        });
        // guard: V-90-turn
        if is_next {
            waiting.turns.push_back(user);
            line.has_work.notify_one();
        }
        true
    }
}

impl Line {
    /// Resolves one name after the other, of each user in turn, until there is no handle.
    fn work(&self) {
        let mut waiting = lock(&self.waiting);
        while !waiting.is_closed {
            let Some(user) = waiting.turns.pop_front() else {
                waiting.idle += 1;
                let woken = self.has_work.wait(waiting);
                waiting = woken.unwrap_or_else(PoisonError::into_inner);
                waiting.idle -= 1;
                continue;
            };
            let questions = waiting.of_user.get(&user);
            let first = questions.and_then(|questions| questions.front());
            let name = first
                .filter(|asked| Instant::now() < asked.until)
                .map(|asked| asked.question.name.clone());
            drop(waiting);
            // Nobody waits for what is too late. What the machine says of a name that does not exist, and that it could not ask, is the same to a
            // client.
            let found = name.map(|name| (self.lookup)(&name));
            let addresses = found.and_then(Result::ok).unwrap_or_default();
            waiting = lock(&self.waiting);
            waiting.answered(user, addresses);
        }
    }
}

impl Waiting {
    /// Answers the first question of a user, who gets in line again if there are more.
    fn answered(&mut self, user: Box<str>, addresses: Vec<IpAddr>) {
        let Some(questions) = self.of_user.get_mut(&user) else {
            return;
        };
        if let Some(Asked { question, .. }) = questions.pop_front() {
            self.count -= 1;
            question.replies.put(Answer {
                stream: question.stream,
                number: question.number,
                addresses,
            });
        }
        match questions.is_empty() {
            true => drop(self.of_user.remove(&user)),
            // The thread that calls this takes the next one in line.
            false => self.turns.push_back(user),
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        lock(&self.0.waiting).is_closed = true;
        self.0.has_work.notify_all();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(user: &str, number: u64, replies: &Arc<Replies>) -> Question {
        Question {
            name: "a.example".into(),
            user: user.into(),
            stream: StreamId::from_u32(3),
            number,
            replies: Arc::clone(replies),
        }
    }

    fn answers(replies: &Replies, count: usize) -> Vec<Answer> {
        let mut answers = Vec::new();
        let begun = Instant::now();
        while answers.len() < count {
            assert!(begun.elapsed() < Duration::from_secs(20), "no answer");
            answers.extend(replies.take());
            std::thread::yield_now();
        }
        answers
    }

    #[test]
    fn an_answer_has_the_addresses_in_their_order_and_a_failure_none() {
        let addresses: Vec<IpAddr> = vec![[192, 0, 2, 1].into(), [192, 0, 2, 2].into()];
        let replies = Replies::new(Waker::flag());
        for fails in [false, true] {
            let addresses = addresses.clone();
            let resolver = Resolver::by(1, move |_| match fails {
                false => Ok(addresses.clone()),
                true => Err(io::Error::other("no such name")),
            });
            assert!(resolver.ask(question("alice", 7, &replies)));
            let answer = answers(&replies, 1).remove(0);
            assert_eq!((answer.stream, answer.number), (StreamId::from_u32(3), 7));
            assert_eq!(answer.addresses.is_empty(), fails);
        }
    }

    /// Returns a resolver whose lookups of `silent` wait until what is returned too is dropped.
    fn with_silent_names(gate: &Arc<Mutex<()>>) -> Resolver {
        let gate = Arc::clone(gate);
        Resolver::by(2, move |name| {
            if name == "silent" {
                drop(lock(&gate));
            }
            Ok(Vec::new())
        })
    }

    fn asked(name: &str, user: &str, number: u64, replies: &Arc<Replies>) -> Question {
        Question {
            name: name.into(),
            ..question(user, number, replies)
        }
    }

    #[test]
    fn a_user_has_eight_questions_under_way_and_leaves_room_to_others() {
        let gate = Arc::new(Mutex::new(()));
        let closed = gate.lock().unwrap();
        let replies = Replies::new(Waker::flag());
        let resolver = with_silent_names(&gate);
        for number in 0..8 {
            assert!(resolver.ask(asked("silent", "alice", number, &replies)));
        }
        assert!(!resolver.ask(asked("silent", "alice", 8, &replies)));
        // The second thread is not alice's too.
        for number in 9..12 {
            assert!(resolver.ask(question("bob", number, &replies)));
        }
        let numbers: Vec<u64> = answers(&replies, 3).iter().map(|it| it.number).collect();
        assert_eq!(numbers, [9, 10, 11]);
        drop(closed);
        assert_eq!(answers(&replies, 8).len(), 8);
        assert!(resolver.ask(question("alice", 12, &replies)));
        answers(&replies, 1);
        let waiting = lock(&resolver.line.waiting);
        assert!(waiting.of_user.is_empty() && waiting.turns.is_empty() && waiting.count == 0);
    }

    #[test]
    fn a_question_that_is_too_late_is_not_looked_up() {
        let gate = Arc::new(Mutex::new(()));
        let closed = gate.lock().unwrap();
        let (sender, looked_up) = std::sync::mpsc::channel();
        let waiting = Arc::clone(&gate);
        let resolver = Resolver::by(1, move |name| {
            sender.send(name.to_owned()).unwrap();
            drop(lock(&waiting));
            Ok(vec![[192, 0, 2, 1].into()])
        });
        let replies = Replies::new(Waker::flag());
        for (number, name) in ["first", "late", "last"].into_iter().enumerate() {
            assert!(resolver.ask(asked(name, "alice", number as u64, &replies)));
        }
        assert_eq!(looked_up.recv().unwrap(), "first");
        let late = Instant::now();
        lock(&resolver.line.waiting)
            .of_user
            .get_mut("alice")
            .unwrap()[1]
            .until = late;
        drop(closed);
        let found = answers(&replies, 3);
        let counts: Vec<usize> = found.iter().map(|it| it.addresses.len()).collect();
        assert_eq!(counts, [1, 0, 1]);
        assert_eq!(looked_up.recv().unwrap(), "last");
    }

    #[test]
    fn threads_end_with_the_last_handle() {
        let lookup = Arc::new(());
        let held = Arc::clone(&lookup);
        let resolver = Resolver::by(2, move |_| {
            let _ = &held;
            Ok(Vec::new())
        });
        let replies = Replies::new(Waker::flag());
        assert!(resolver.ask(question("alice", 1, &replies)));
        answers(&replies, 1);
        drop(resolver);
        while Arc::strong_count(&lookup) > 1 {
            std::thread::yield_now();
        }
    }
}
