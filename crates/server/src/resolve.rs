//! Resolves names of tunnels' targets, on threads of its own, by what the machine is configured with.
//!
//! Invariant: no shard waits here. A shard that has a question is told at once when there is no room for it; the answer comes to its
//! [`Replies`], and wakes it. What is asked of the machine cannot be taken back, so a shard stops waiting by itself.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, ToSocketAddrs as _};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use turnbuckle_datapath::{StreamId, Waker};

/// Threads that resolve names.
const THREADS: usize = 2;
/// Questions that may wait for a thread.
const QUEUE: usize = 256;
/// Questions of one user that may be under way.
const PER_USER_MAX: u32 = 8;
/// How long a shard waits for an answer.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(5);

/// What a name is resolved by.
type Lookup = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;

/// Takes questions of all shards.
#[derive(Clone)]
pub(crate) struct Resolver {
    queue: SyncSender<Question>,
    under_way: Arc<Mutex<BTreeMap<Box<str>, u32>>>,
}

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

    /// Takes the answers that have come.
    pub(crate) fn take(&self) -> Vec<Answer> {
        std::mem::take(&mut *lock(&self.answers))
    }
}

impl Resolver {
    /// Starts the threads. They end with the last handle.
    ///
    /// # Errors
    ///
    /// A thread cannot be started.
    pub(crate) fn start() -> io::Result<Self> {
        Self::start_with(Arc::new(|name: &str| {
            let addresses = (name, 0).to_socket_addrs()?;
            Ok(addresses.map(|address| address.ip()).collect())
        }))
    }

    /// Returns one that has no threads, and no room for a question.
    pub(crate) fn without_room() -> Self {
        Self {
            queue: sync_channel(0).0,
            under_way: Arc::default(),
        }
    }

    /// Starts the threads with another way to resolve a name than that of the machine.
    pub(crate) fn start_with(lookup: Arc<Lookup>) -> io::Result<Self> {
        let (queue, questions) = sync_channel(QUEUE);
        let questions = Arc::new(Mutex::new(questions));
        let resolver = Self {
            queue,
            under_way: Arc::default(),
        };
        for _ in 0..THREADS {
            let (questions, lookup) = (Arc::clone(&questions), Arc::clone(&lookup));
            let under_way = Arc::clone(&resolver.under_way);
            std::thread::Builder::new()
                .name("resolve".into())
                .spawn(move || {
                    while let Some(question) = next(&questions) {
                        answer(question, &*lookup, &under_way);
                    }
                })?;
        }
        Ok(resolver)
    }

    /// Puts a question. Returns whether there was room for it.
    pub(crate) fn ask(&self, question: Question) -> bool {
        let mut under_way = lock(&self.under_way);
        let count = under_way.entry(question.user.clone()).or_default();
        // guard: V-90-user
        if *count >= PER_USER_MAX {
            return false;
        }
        *count += 1;
        let user = question.user.clone();
        let is_put = self.queue.try_send(question).is_ok();
        if !is_put {
            forget(&mut under_way, &user);
        }
        is_put
    }
}

fn next(questions: &Mutex<Receiver<Question>>) -> Option<Question> {
    lock(questions).recv().ok()
}

fn answer(question: Question, lookup: &Lookup, under_way: &Mutex<BTreeMap<Box<str>, u32>>) {
    // What the machine says of a name that does not exist, and that it could not ask, is the same to a client.
    let addresses = lookup(&question.name).unwrap_or_default();
    let Question {
        user,
        stream,
        number,
        replies,
        ..
    } = question;
    forget(&mut lock(under_way), &user);
    lock(&replies.answers).push(Answer {
        stream,
        number,
        addresses,
    });
    replies.waker.wake();
}

fn forget(under_way: &mut BTreeMap<Box<str>, u32>, user: &str) {
    if let Some(count) = under_way.get_mut(user) {
        *count -= 1;
        if *count == 0 {
            under_way.remove(user);
        }
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
        while answers.len() < count {
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
            let resolver = Resolver::start_with(Arc::new(move |_: &str| match fails {
                false => Ok(addresses.clone()),
                true => Err(io::Error::other("no such name")),
            }));
            assert!(resolver.unwrap().ask(question("alice", 7, &replies)));
            let answer = answers(&replies, 1).remove(0);
            assert_eq!((answer.stream, answer.number), (StreamId::from_u32(3), 7));
            assert_eq!(answer.addresses.is_empty(), fails);
        }
    }

    #[test]
    fn a_user_has_eight_questions_under_way_and_leaves_room_to_others() {
        let gate = Arc::new(Mutex::new(()));
        let closed = gate.lock().unwrap();
        let replies = Replies::new(Waker::flag());
        let resolver = Resolver::start_with(Arc::new({
            let gate = Arc::clone(&gate);
            move |_: &str| {
                drop(lock(&gate));
                Ok(Vec::new())
            }
        }))
        .unwrap();
        for number in 0..8 {
            assert!(resolver.ask(question("alice", number, &replies)));
        }
        assert!(!resolver.ask(question("alice", 8, &replies)));
        assert!(resolver.ask(question("bob", 9, &replies)));
        drop(closed);
        assert_eq!(answers(&replies, 9).len(), 9);
        assert!(resolver.ask(question("alice", 10, &replies)));
        answers(&replies, 1);
        assert!(lock(&resolver.under_way).is_empty());
    }
}
