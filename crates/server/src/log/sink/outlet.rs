//! Writes to one output on a thread of its own, so that the writer of a record never waits for its reader.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::entry::Entry;

/// Number of entries that may wait for a blocked output.
const ENTRIES_MAX: usize = 1024;

/// Longest wait for a blocked output when all records are to be written.
const PATIENCE: Duration = Duration::from_secs(2);

/// The sender to an output. Its thread ends when the last copy is dropped and all records are written.
#[derive(Clone)]
pub(super) struct Outlet(Arc<Handle>);

/// Ends the thread when the last copy of the sender is dropped.
struct Handle(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Counts the lines that all outputs have lost.
    lost: Arc<AtomicU64>,
}

#[derive(Default)]
struct State {
    entries: VecDeque<Arc<Entry>>,
    /// Records written or failed to be written.
    written: u64,
    /// Whether the output is writing a record now.
    is_writing: bool,
    /// Number of entries that found no room since the last one that did, and the last of them.
    lost: u64,
    last_lost: Option<Arc<Entry>>,
    is_closed: bool,
}

impl Outlet {
    /// Starts the thread, which hands each entry to `write`. What `write` fails for is counted in `lost`, as what finds no room is.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub(super) fn start(
        name: &str,
        lost: &Arc<AtomicU64>,
        write: impl FnMut(&Entry) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            lost: Arc::clone(lost),
        });
        std::thread::Builder::new().name(name.to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || shared.run(write)
        })?;
        Ok(Self(Arc::new(Handle(shared))))
    }

    /// Queues an entry, or counts it as lost. A notice with the number of lost entries precedes the next one that finds room.
    pub(super) fn put(&self, entry: &Arc<Entry>) {
        let shared = &self.0.0;
        let mut state = shared.lock();
        // The notice and the entry.
        let wanted = 1 + usize::from(state.lost > 0);
        if state.entries.len() + wanted > ENTRIES_MAX {
            state.lost += 1;
            state.last_lost = Some(Arc::clone(entry));
            shared.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        state.say_lost();
        state.entries.push_back(Arc::clone(entry));
        drop(state);
        shared.changed.notify_all();
    }

    /// Waits until everything is written, for as long as the output takes records.
    pub(super) fn settle(&self) {
        let shared = &self.0.0;
        let mut state = shared.lock();
        loop {
            if state.entries.len() < ENTRIES_MAX && state.lost > 0 {
                state.say_lost();
                shared.changed.notify_all();
            }
            if state.entries.is_empty() && !state.is_writing {
                return;
            }
            let before = state.written;
            let waited = shared
                .changed
                .wait_timeout_while(state, PATIENCE, |state| state.written == before);
            let (after, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            if timeout.timed_out() {
                return;
            }
            state = after;
        }
    }
}

impl State {
    /// Queues the notice about lost entries, if there are any.
    fn say_lost(&mut self) {
        if let Some(last) = self.last_lost.take() {
            let notice = last.about_lost(std::mem::take(&mut self.lost));
            self.entries.push_back(Arc::new(notice));
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes entries until the sender is gone.
    fn run(&self, mut write: impl FnMut(&Entry) -> io::Result<()>) {
        // Entries that could not be written since the last one that could.
        let mut failed = 0;
        while let Some(entry) = self.next() {
            let is_said = failed == 0 || write(&entry.about_lost(failed)).is_ok();
            if is_said {
                failed = 0;
            }
            if !is_said || write(&entry).is_err() {
                failed += 1;
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Notes that the last entry is written, and waits for the next one. Returns `None` when there will be none.
    fn next(&self) -> Option<Arc<Entry>> {
        let mut state = self.lock();
        if std::mem::take(&mut state.is_writing) {
            state.written += 1;
            self.changed.notify_all();
        }
        let waited = self
            .changed
            .wait_while(state, |state| state.entries.is_empty() && !state.is_closed);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        // As soon as the output has caught up half of it, and not with the next line alone: there may be none for hours.
        if state.entries.len() <= ENTRIES_MAX / 2 {
            state.say_lost();
        }
        let entry = state.entries.pop_front()?;
        state.is_writing = true;
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{channel, sync_channel};

    use super::*;
    use crate::log::sink::tests::entry;

    #[test]
    fn an_output_that_takes_nothing_costs_lines_that_are_counted_and_no_time() {
        let (written, lines) = channel();
        let (go_on, may_go_on) = sync_channel::<()>(0);
        let count = Arc::default();
        let outlet = Outlet::start("test", &count, move |entry| {
            // Takes nothing until told to; from then on everything.
            let _ = may_go_on.recv();
            written
                .send(entry.message.clone())
                .map_err(|_| io::ErrorKind::Other.into())
        });
        let outlet = outlet.expect("started");
        outlet.put(&entry("0"));
        // The first is with the output now, or still waits: then one more is lost.
        for number in 1..=ENTRIES_MAX + 10 {
            outlet.put(&entry(&number.to_string()));
        }
        outlet.settle(); // gives up
        drop(go_on);
        outlet.settle();
        let lines: Vec<String> = lines.try_iter().collect();
        let (notice, before) = lines.split_last().expect("lines");
        let lost = ENTRIES_MAX + 11 - before.len();
        assert!((10..=11).contains(&lost), "{lost}");
        assert_eq!(count.load(Ordering::Relaxed), lost as u64);
        assert_eq!(
            *notice,
            format!("{lost} lines before the next one were lost")
        );
        for (number, line) in before.iter().enumerate() {
            assert_eq!(*line, number.to_string());
        }
        outlet.put(&entry("after"));
        outlet.settle();
    }

    #[test]
    fn what_an_output_fails_to_write_is_counted_and_said_when_it_can_write_again() {
        let (written, lines) = channel();
        let count = Arc::default();
        let outlet = Outlet::start("test", &count, move |entry| {
            // Full until the third line has come.
            match entry.message.as_str() {
                "1" | "2" => Err(io::ErrorKind::StorageFull.into()),
                "1 lines before the next one were lost" => Err(io::ErrorKind::StorageFull.into()),
                line => written
                    .send(line.to_owned())
                    .map_err(|_| io::ErrorKind::Other.into()),
            }
        });
        let outlet = outlet.expect("started");
        for number in 0..4 {
            outlet.put(&entry(&number.to_string()));
        }
        outlet.settle();
        let lines: Vec<String> = lines.try_iter().collect();
        assert_eq!(lines, ["0", "2 lines before the next one were lost", "3"]);
        assert_eq!(count.load(Ordering::Relaxed), 2);
    }
}
