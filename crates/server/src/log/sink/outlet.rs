//! Writes to one output on a thread of its own, so that the writer of a record never waits for its reader.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Style;
use crate::config::Level;

/// Number of records that may wait for a blocked output.
const RECORDS_MAX: usize = 1024;

/// Longest wait for a blocked output when all records are to be written.
const PATIENCE: Duration = Duration::from_secs(2);

/// The sender to an output. Its thread ends when the last copy is dropped and all records are written.
#[derive(Clone)]
pub(super) struct Outlet(Arc<Handle>);

/// Ends the thread when the last copy of the sender is dropped.
struct Handle {
    shared: Arc<Shared>,
    style: Style,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    records: VecDeque<String>,
    /// Records written or failed to be written.
    written: u64,
    /// Whether the output is writing a record now.
    is_writing: bool,
    /// Number of records that found no room since the last one that did.
    lost: u64,
    is_closed: bool,
}

impl Outlet {
    /// Starts the thread, which hands each record to `write`. Errors of `write` are ignored, because there is no place to report them.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub(super) fn start(
        name: &str,
        style: Style,
        mut write: impl FnMut(&str) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        std::thread::Builder::new().name(name.to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || {
                while let Some(record) = shared.next() {
                    let _ = write(&record);
                }
            }
        })?;
        Ok(Self(Arc::new(Handle { shared, style })))
    }

    /// Queues a record, or counts it as lost. A notice with the number of lost records precedes the next one that finds room.
    pub(super) fn put(&self, record: &str) {
        let mut state = self.0.shared.lock();
        // The notice and the record.
        let wanted = 1 + usize::from(state.lost > 0);
        if state.records.len() + wanted > RECORDS_MAX {
            state.lost += 1;
            return;
        }
        self.say_lost(&mut state);
        state.records.push_back(record.to_owned());
        drop(state);
        self.0.shared.changed.notify_all();
    }

    /// Waits until everything is written, for as long as the output takes records.
    pub(super) fn settle(&self) {
        let shared = &self.0.shared;
        let mut state = shared.lock();
        loop {
            if state.records.len() < RECORDS_MAX && state.lost > 0 {
                self.say_lost(&mut state);
                shared.changed.notify_all();
            }
            if state.records.is_empty() && !state.is_writing {
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

    fn say_lost(&self, state: &mut State) {
        if state.lost > 0 {
            let text = format!("{} lines before the next one were lost", state.lost);
            let notice = self.0.style.record(Level::Warning, &text);
            state.lost = 0;
            state.records.push_back(notice);
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the last record is written, and waits for the next one. Returns `None` when there will be none.
    fn next(&self) -> Option<String> {
        let mut state = self.lock();
        if std::mem::take(&mut state.is_writing) {
            state.written += 1;
            self.changed.notify_all();
        }
        let waited = self
            .changed
            .wait_while(state, |state| state.records.is_empty() && !state.is_closed);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        let record = state.records.pop_front()?;
        state.is_writing = true;
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{channel, sync_channel};

    use super::*;

    #[test]
    fn an_output_that_takes_nothing_costs_lines_that_are_counted_and_no_time() {
        let (written, lines) = channel();
        let (go_on, may_go_on) = sync_channel::<()>(0);
        let outlet = Outlet::start("test", Style::bare(), move |record| {
            // Takes nothing until told to; from then on everything.
            let _ = may_go_on.recv();
            written
                .send(record.to_owned())
                .map_err(|_| io::ErrorKind::Other.into())
        });
        let outlet = outlet.expect("started");
        outlet.put("0\n");
        // The first is with the output now, or still waits: then one more is lost.
        for number in 1..=RECORDS_MAX + 10 {
            outlet.put(&format!("{number}\n"));
        }
        outlet.settle(); // gives up
        drop(go_on);
        outlet.settle();
        let lines: Vec<String> = lines.try_iter().collect();
        let (notice, before) = lines.split_last().expect("lines");
        let lost = RECORDS_MAX + 11 - before.len();
        assert!((10..=11).contains(&lost), "{lost}");
        assert_eq!(
            *notice,
            format!("warning: {lost} lines before the next one were lost\n")
        );
        for (number, line) in before.iter().enumerate() {
            assert_eq!(*line, format!("{number}\n"));
        }
        outlet.put("after\n");
        outlet.settle();
    }
}
