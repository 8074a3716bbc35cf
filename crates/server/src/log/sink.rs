//! Where lines end up: standard output, a file, syslog; with a time and a level before them where coturn has them.
//!
//! Lines come as text through [`Write`], whole or in parts. One record is one line: whoever writes a name into it has escaped it (V-73).
//! Standard output and the file have a thread each, so that one that takes nothing, a full pipe say, stops neither the server nor the other one.

mod file;
mod outlet;

use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::Instant;

use jiff::Zoned;

use self::file::{LogFile, Place};
use self::outlet::Outlet;
use crate::config::{Level, Log as Settings, Process, Timestamps};
use crate::process;

/// Longest record in bytes, as in coturn; the rest is left out.
const RECORD_LEN_MAX: usize = 1024;

/// The log of a server. What waits to be written is written when it is dropped, unless an output takes nothing.
pub struct Sink {
    stdout: Option<Outlet>,
    file: Option<(Place, Outlet)>,
    syslog: Option<Syslog>,
    level_min: Level,
    style: Style,
    /// A line that has begun.
    partial: Vec<u8>,
}

impl Sink {
    /// Opens what `settings` name. A file that cannot be opened where none was named is done without. One that is opened is given to the user
    /// that `process` is to become.
    ///
    /// # Errors
    ///
    /// The file that was named cannot be opened, or a thread cannot be started.
    pub fn open(settings: &Settings, process: &Process) -> io::Result<Self> {
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
        let style = Style {
            timestamps: settings.timestamps.clone(),
            started: Instant::now(),
        };
        let stdout = match settings.to_stdout {
            true => Some(Outlet::start("log-stdout", style.clone(), |record| {
                io::stdout().write_all(record.as_bytes())
            })?),
            false => None,
        };
        let file = match file {
            Some(mut file) => {
                let place = file.place().clone();
                let (file_style, other) = (style.clone(), stdout.clone());
                let outlet = Outlet::start("log-file", style.clone(), move |record| {
                    file.write(record, &file_style, other.as_ref())
                })?;
                Some((place, outlet))
            }
            None => None,
        };
        Ok(Self {
            stdout,
            file,
            syslog: settings.syslog.map(Syslog::new),
            level_min: settings.level_min,
            style,
            partial: Vec::new(),
        })
    }

    /// The file that lines go to now.
    #[must_use]
    pub fn path(&self) -> Option<PathBuf> {
        self.file.as_ref().map(|(place, _)| place.current())
    }

    fn record(&mut self, line: &[u8]) {
        let line = String::from_utf8_lossy(line);
        let (level, message) = level(&line);
        if level < self.level_min {
            return;
        }
        if let Some(syslog) = &mut self.syslog {
            syslog.send(level, message);
        }
        let record = self.style.record(level, message);
        if let Some((_, file)) = &self.file {
            file.put(&record);
        }
        if let Some(stdout) = &self.stdout {
            stdout.put(&record);
        }
    }

    fn settle(&self) {
        // The file first: it may have something to say on standard output.
        if let Some((_, file)) = &self.file {
            file.settle();
        }
        if let Some(stdout) = &self.stdout {
            stdout.settle();
        }
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

    /// Waits until everything is written, unless an output takes nothing.
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

/// What stands before a message in a record.
#[derive(Clone)]
struct Style {
    timestamps: Timestamps,
    started: Instant,
}

impl Style {
    /// Nothing but the level.
    #[cfg(test)]
    fn bare() -> Self {
        Self {
            timestamps: Timestamps::None,
            started: Instant::now(),
        }
    }

    /// The whole record with its end, cut where it is too long.
    fn record(&self, level: Level, message: &str) -> String {
        let mut record = match &self.timestamps {
            Timestamps::None => format!("{}{message}", prefix(level)),
            Timestamps::Elapsed => {
                let elapsed = self.started.elapsed().as_secs();
                format!("{elapsed}: {} {message}", level.name())
            }
            Timestamps::Format(format) => {
                format!("{} {} {message}", stamp(format), level.name())
            }
        };
        let mut end = record.len().min(RECORD_LEN_MAX);
        while !record.is_char_boundary(end) {
            end -= 1;
        }
        record.truncate(end);
        record.push('\n');
        record
    }
}

/// The word that says a level where there is no time.
fn prefix(level: Level) -> &'static str {
    match level {
        Level::Debug | Level::Info => "",
        Level::Warning => "warning: ",
        Level::Error => "error: ",
    }
}

/// The level that a line is written with, and the line without the word that says so.
fn level(line: &str) -> (Level, &str) {
    for level in [Level::Warning, Level::Error] {
        if let Some(message) = line.strip_prefix(prefix(level)) {
            return (level, message);
        }
    }
    (Level::Info, line)
}

/// The time of day in coturn's format, whose `%f` is milliseconds.
fn stamp(format: &str) -> String {
    let format = format.replace("%f", "%3f");
    jiff::fmt::strtime::format(format, &Zoned::now()).unwrap_or_else(|_| Zoned::now().to_string())
}

/// The system's log, by its socket (RFC 3164's form, which every syslog daemon reads there).
struct Syslog {
    facility: u8,
    socket: Option<UnixDatagram>,
}

impl Syslog {
    fn new(facility: u8) -> Self {
        Self {
            facility,
            socket: None,
        }
    }

    /// Sends the message, or loses it while no daemon listens: the relay does not wait for one.
    fn send(&mut self, level: Level, message: &str) {
        let severity = match level {
            Level::Error => 3,
            Level::Warning => 4,
            Level::Info => 6,
            Level::Debug => 7,
        };
        let priority = self.facility * 8 + severity;
        let pid = std::process::id();
        let record = format!("<{priority}>turnserver[{pid}]: {message}");
        let is_sent = |socket: &UnixDatagram| socket.send(record.as_bytes()).is_ok();
        if self.socket.as_ref().is_some_and(is_sent) {
            return;
        }
        // The daemon may have been started again: its socket is another one then.
        self.socket = UnixDatagram::unbound().ok().filter(|socket| {
            socket.set_nonblocking(true).is_ok() && socket.connect("/dev/log").is_ok()
        });
        if let Some(socket) = &self.socket {
            is_sent(socket);
        }
    }
}

#[cfg(test)]
mod tests;
