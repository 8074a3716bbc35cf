//! Writes lines to standard output, a file, syslog and the journal, in the form that is wanted.
//!
//! Lines come as text through [`Write`], whole or in parts. One record is one line, because the writer of a line escapes names in it (V-73).
//! Each output has a thread. So a blocked output, a full pipe for example, stops neither the server nor the other outputs.

mod entry;
mod file;
mod format;
mod outlet;
mod system;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use jiff::Timestamp;

use self::entry::Entry;
use self::file::{LogFile, Place};
use self::format::{Format, Header, prefix};
use self::outlet::Outlet;
use self::system::{JOURNAL, Journal, SYSLOG, Syslog};
use super::{Output, Summary};
use crate::config::{Config, Level, Log as Settings, Persona, Process};
use crate::process;

/// The log of a server. Queued records are written when it is dropped, unless an output is blocked.
pub struct Sink {
    outputs: Outputs,
    level_min: Level,
    started: Instant,
    /// Counts the lines that all outputs have lost.
    lost: Arc<AtomicU64>,
    /// A line that has begun.
    partial: Vec<u8>,
}

/// Where lines go. Each output ends when this is dropped and its records are written.
pub struct Outputs {
    stdout: Option<Outlet>,
    file: Option<(Place, Outlet)>,
    /// Syslog and the journal.
    system: Vec<Outlet>,
}

impl Outputs {
    fn open(
        settings: &Settings,
        process: &Process,
        persona: Persona,
        lost: &Arc<AtomicU64>,
    ) -> io::Result<Self> {
        let owner = process::owner(process);
        let file = match &settings.file {
            Some(path) => {
                let place = Place {
                    base: path.clone(),
                    is_dated: settings.is_dated,
                };
                Some(LogFile::open(place, owner)?)
            }
            None if settings.usual_file => LogFile::usual(settings.is_dated, owner),
            None => None,
        };
        let program = match persona {
            Persona::Turnbuckle => "turnbuckle",
            Persona::Turnserver => "turnserver",
        };
        let header = Header::new(settings.syslog.facility, program);
        let format = Format::new(&settings.form, header.clone());
        let stdout = match settings.to_stdout {
            true => Some(Outlet::start("log-stdout", lost, {
                let format = format.clone();
                move |entry| match format.record(entry) {
                    Some(record) => io::stdout().write_all(format!("{record}\n").as_bytes()),
                    None => Ok(()),
                }
            })?),
            false => None,
        };
        let file = match file {
            Some(mut file) => {
                let place = file.place().clone();
                let (format, other) = (format.clone(), stdout.clone());
                let outlet = Outlet::start("log-file", lost, move |entry| {
                    file.write(entry, &format, other.as_ref())
                })?;
                Some((place, outlet))
            }
            None => None,
        };
        let mut system = Vec::new();
        if settings.syslog.is_used {
            let mut syslog = Syslog::new(SYSLOG, header.clone(), format);
            let write = move |entry: &Entry| syslog.send(entry);
            system.push(Outlet::start("log-syslog", lost, write)?);
        }
        if settings.syslog.is_journal_used {
            let mut journal = Journal::new(JOURNAL, header);
            let write = move |entry: &Entry| journal.send(entry);
            system.push(Outlet::start("log-journal", lost, write)?);
        }
        Ok(Self {
            stdout,
            file,
            system,
        })
    }

    /// Returns all outputs. The file comes first, because it may write a line to standard output.
    fn all(&self) -> impl Iterator<Item = &Outlet> {
        let file = self.file.iter().map(|(_, file)| file);
        file.chain(&self.stdout).chain(&self.system)
    }
}

impl Sink {
    /// Says why the outputs that `settings` name could not be opened, and what to do.
    #[must_use]
    pub fn why_not(settings: &Settings, error: &io::Error) -> String {
        let file = settings.file.as_deref().unwrap_or_else(|| Path::new(""));
        format!(
            "log-file {}: cannot be opened: {error}; its directory has to be there, and the relay's user needs to be allowed to \
             write to it",
            file.display()
        )
    }

    /// Opens the outputs that `settings` name. If the settings name no file and the default one cannot be opened, the log has no file. An opened
    /// file is given to the user that `process` will run as. The system's logs know the program by the name of `persona`.
    ///
    /// # Errors
    ///
    /// The file that was named cannot be opened, or a thread cannot be started.
    pub fn open(settings: &Settings, process: &Process, persona: Persona) -> io::Result<Self> {
        let lost = Arc::default();
        Ok(Self {
            outputs: Outputs::open(settings, process, persona, &lost)?,
            level_min: settings.level_min,
            started: Instant::now(),
            lost,
            partial: Vec::new(),
        })
    }

    /// Returns the path of the file that lines are written to now.
    #[must_use]
    pub fn path(&self) -> Option<PathBuf> {
        self.outputs.file.as_ref().map(|(place, _)| place.current())
    }

    fn record(&self, line: &[u8]) {
        let line = String::from_utf8_lossy(line);
        let (level, message) = level(&line);
        self.put(level, message.to_owned(), None);
    }

    fn put(&self, level: Level, message: String, session: Option<Summary>) {
        if level < self.level_min {
            return;
        }
        let entry = Arc::new(Entry {
            level,
            message,
            time: Timestamp::now(),
            elapsed: self.started.elapsed(),
            session,
        });
        for outlet in self.outputs.all() {
            outlet.put(&entry);
        }
    }

    fn settle(&self) {
        for outlet in self.outputs.all() {
            outlet.settle();
        }
    }
}

impl Output for Sink {
    type Next = Outputs;

    fn prepare(&self, config: &Config) -> Result<Outputs, String> {
        let (settings, process) = (&config.log, &config.process);
        let opened = Outputs::open(settings, process, config.persona, &self.lost);
        opened.map_err(|error| Self::why_not(settings, &error))
    }

    fn take(&mut self, next: Outputs) {
        self.outputs = next;
    }

    fn session_ended(&mut self, summary: Summary) {
        self.put(Level::Info, summary.message(), Some(summary));
    }

    fn set_level(&mut self, level: Level) {
        self.level_min = level;
    }

    fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.partial.extend_from_slice(bytes);
        while let Some(end) = self.partial.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.partial.drain(..=end).collect();
            self.record(line.strip_suffix(b"\n").unwrap_or(&line));
        }
        Ok(bytes.len())
    }

    /// Waits until everything is written, unless an output is blocked.
    fn flush(&mut self) -> io::Result<()> {
        self.settle();
        Ok(())
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.settle();
    }
}

/// Returns the level of a line, and the line without the word that names the level.
fn level(line: &str) -> (Level, &str) {
    for level in [Level::Warning, Level::Error] {
        if let Some(message) = line.strip_prefix(prefix(level)) {
            return (level, message);
        }
    }
    (Level::Info, line)
}

#[cfg(test)]
mod tests;
