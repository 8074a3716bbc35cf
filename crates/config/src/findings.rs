//! Findings while a configuration is read: where keys were written, what is wrong, and what an operator should know.

use std::collections::BTreeMap;

use crate::persona::Persona;
use crate::problem::{Note, Origin, Problem};

/// Keys whose contradictions are errors for `turnserver` too.
const FATAL_TOGETHER: [&str; 5] = ["listening-ip", "max-port", "min-port", "no-udp", "relay-ip"];

/// The findings so far.
pub(crate) struct Findings {
    pub(crate) persona: Persona,
    /// The server runs, and goes on with what it has if anything is wrong.
    pub(crate) is_reload: bool,
    /// Where each key was written, by the table's name for it. Keys that were not written are absent.
    pub(crate) origins: BTreeMap<&'static str, Vec<Origin>>,
    pub(crate) problems: Vec<Problem>,
    pub(crate) notes: Vec<Note>,
}

impl Findings {
    pub(crate) fn new(persona: Persona) -> Self {
        Self {
            persona,
            is_reload: false,
            origins: BTreeMap::new(),
            problems: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Returns whether the server runs as `turnserver`, which tolerates what coturn tolerates.
    pub(crate) fn is_lenient(&self) -> bool {
        self.persona == Persona::Turnserver
    }

    /// Returns where `key` was last written; the command line if it was not.
    pub(crate) fn origin(&self, key: &str) -> Origin {
        self.last(key).unwrap_or(Origin::CommandLine)
    }

    pub(crate) fn is_given(&self, key: &str) -> bool {
        self.origins.contains_key(key)
    }

    /// Records a problem of `key` at the place where it was last written. For `turnserver`, one that coturn tolerates is only a note.
    pub(crate) fn problem(&mut self, key: &str, message: impl Into<String>) {
        let is_command = self.last(key) == Some(Origin::Command);
        if self.is_lenient() && !is_command && !FATAL_TOGETHER.contains(&key) {
            self.note(key, message);
            return;
        }
        let origin = self.origin(key);
        self.problems.push(Problem::new(&origin, key, message));
    }

    /// Records that a file which `key` names cannot be read. `turnserver` tolerates it at a start alone.
    pub(crate) fn unreadable(&mut self, key: &str, message: impl Into<String>) {
        if !self.is_reload {
            return self.problem(key, message);
        }
        let origin = self.origin(key);
        self.problems.push(Problem::new(&origin, key, message));
    }

    /// Records a problem with a value written at `origin`. For `turnserver`, which starts as coturn does, it is a note that says what is
    /// done `instead`.
    pub(crate) fn misfit(
        &mut self,
        origin: &Origin,
        key: &str,
        message: impl Into<String>,
        instead: &str,
    ) {
        let problem = Problem::new(origin, key, message);
        match self.persona {
            Persona::Turnbuckle => self.problems.push(problem),
            Persona::Turnserver if *origin == Origin::Command => self.problems.push(problem),
            Persona::Turnserver => self.notes.push(Note::of(problem.hint(instead))),
        }
    }

    /// Records a problem of `key` as [`Self::problem`] does. The note of `turnserver` is about an error.
    pub(crate) fn grave_problem(&mut self, key: &str, message: impl Into<String>) {
        self.problem(key, message);
        self.raise();
    }

    /// Says that the last note of `turnserver` is about an error.
    pub(crate) fn raise(&mut self) {
        if self.is_lenient()
            && let Some(note) = self.notes.last_mut()
        {
            note.is_error = true;
        }
    }

    /// Notes something about `key`, at the place where it was last written.
    pub(crate) fn note(&mut self, key: &str, text: impl Into<String>) {
        let origin = self.last(key);
        self.notes.push(Note {
            is_error: false,
            origin,
            key: key.to_owned(),
            text: text.into(),
        });
    }

    fn last(&self, key: &str) -> Option<Origin> {
        self.origins.get(key)?.last().cloned()
    }
}
