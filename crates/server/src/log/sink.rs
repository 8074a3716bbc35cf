//! Writes lines to standard output, a file or syslog. Time and level precede a line where coturn prints them.
//!
//! Lines come as text through [`Write`], whole or in parts. One record is one line, because the writer of a line escapes names in it (V-73).
//! Standard output and the file have a thread each. So a blocked output, a full pipe for example, stops neither the server nor the other output.

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

/// The log of a server. Queued records are written when it is dropped, unless an output is blocked.
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
    /// Opens the outputs that `settings` name. If the settings name no file and the default one cannot be opened, the log has no file. An opened
    /// file is given to the user that `process` will run as.
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
            syslog: settings
                .syslog
                .is_used
                .then(|| Syslog::new(settings.syslog.facility)),
            level_min: settings.level_min,
            style,
            partial: Vec::new(),
        })
    }

    /// Returns the path of the file that lines are written to now.
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
        // The file comes first, because it may write a line to standard output.
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

/// Holds what precedes a message in a record.
#[derive(Clone)]
struct Style {
    timestamps: Timestamps,
    started: Instant,
}

impl Style {
    /// Returns the style that prints the level only.
    #[cfg(test)]
    fn bare() -> Self {
        Self {
            timestamps: Timestamps::None,
            started: Instant::now(),
        }
    }

    /// Returns the whole record with its line end, cut at the longest length.
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

/// Returns the word for a level, for records without a time.
fn prefix(level: Level) -> &'static str {
    match level {
        Level::Debug | Level::Info => "",
        Level::Warning => "warning: ",
        Level::Error => "error: ",
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

/// Returns the time of day in coturn's format. Its `%f` stands for milliseconds.
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
