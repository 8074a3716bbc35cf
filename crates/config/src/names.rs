//! Looks up host names of a configuration within a bound of time.
//!
//! Each name is asked once, on a thread of its own, as the machine is configured to do it (`getaddrinfo` with /etc/hosts and nsswitch.conf). Such a
//! question cannot be taken back, so what has no answer in time is left to its thread.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, ToSocketAddrs as _};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time that all names of one configuration may take together.
const LOOKUPS_MAX: Duration = Duration::from_secs(5);

type Lookup = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;

/// Looks up names for one reading of a configuration. Copies share their answers and their time.
#[derive(Clone)]
pub struct Names {
    lookup: Arc<Lookup>,
    state: Arc<Mutex<State>>,
}

struct State {
    answers: BTreeMap<Box<str>, Result<Vec<IpAddr>, String>>,
    /// Time that is left.
    left: Duration,
    /// Threads whose answer did not come in time.
    late: Vec<JoinHandle<()>>,
}

impl Names {
    /// Asks the machine.
    pub(crate) fn of_machine() -> Self {
        Self::by(|name| {
            let found = (name, 0).to_socket_addrs()?;
            Ok(found.map(|address| address.ip()).collect())
        })
    }

    /// Asks `lookup`, for tests of other machines.
    pub fn by(lookup: impl Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync + 'static) -> Self {
        let state = State {
            answers: BTreeMap::new(),
            left: LOOKUPS_MAX,
            late: Vec::new(),
        };
        Self {
            lookup: Arc::new(lookup),
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// Returns the addresses of a host.
    ///
    /// # Errors
    ///
    /// The name is not known, or there was no answer in time.
    pub fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, String> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(answer) = state.answers.get(name) {
            return answer.clone();
        }
        let answer = self.ask(name, &mut state);
        state.answers.insert(name.into(), answer.clone());
        answer
    }

    fn ask(&self, name: &str, state: &mut State) -> Result<Vec<IpAddr>, String> {
        let too_late = || {
            let limit = LOOKUPS_MAX.as_secs();
            format!("no answer from the name servers within {limit} s for all names")
        };
        if state.left.is_zero() {
            return Err(too_late());
        }
        let (lookup, asked) = (Arc::clone(&self.lookup), name.to_owned());
        let (sender, answer) = sync_channel(1);
        let thread = std::thread::Builder::new().name("resolve".into());
        let thread = thread.spawn(move || {
            let _ = sender.send(lookup(&asked));
        });
        let thread = thread.map_err(|error| format!("cannot start a thread: {error}"))?;
        let begin = Instant::now();
        let answer = answer.recv_timeout(state.left);
        if matches!(answer, Err(RecvTimeoutError::Timeout)) {
            state.left = Duration::ZERO;
            state.late.push(thread);
            return Err(too_late());
        }
        state.left = state.left.saturating_sub(begin.elapsed());
        let _ = thread.join();
        match answer {
            Ok(answer) => answer.map_err(|error| error.to_string()),
            Err(_) => Err("the lookup failed".to_owned()),
        }
    }

    /// Waits for lookups that had no answer in time, for a process that must have no other threads. The system's resolver ends each of them.
    pub fn settle(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for thread in state.late.drain(..) {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Names")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn asks_each_name_once_and_keeps_failures_too() {
        let count = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&count);
        let names = Names::by(move |name| {
            counted.fetch_add(1, Ordering::Relaxed);
            match name {
                "here" => Ok(vec![[192, 0, 2, 1].into()]),
                _ => Err(io::Error::other("no such host")),
            }
        });
        for _ in 0..2 {
            assert_eq!(names.resolve("here").unwrap().len(), 1);
            assert_eq!(names.resolve("nowhere").unwrap_err(), "no such host");
        }
        assert_eq!(count.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn waits_for_all_silent_names_together_within_one_bound() {
        let gate = Arc::new(Mutex::new(()));
        let closed = gate.lock().unwrap();
        let waiting = Arc::clone(&gate);
        let names = Names::by(move |_| {
            drop(waiting.lock());
            Ok(Vec::new())
        });
        names.state.lock().unwrap().left = Duration::from_millis(1);
        for name in ["a", "b", "a"] {
            let error = names.resolve(name).unwrap_err();
            assert!(error.starts_with("no answer"), "{error}");
        }
        assert_eq!(
            names.state.lock().unwrap().late.len(),
            1,
            "the second is not asked"
        );
        drop(closed);
        names.settle();
        assert!(names.state.lock().unwrap().late.is_empty());
    }
}
