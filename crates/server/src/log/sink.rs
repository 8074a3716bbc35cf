//! Where lines end up: standard output, a file, syslog; with a time and a level before them where coturn has them.
//!
//! Lines come as text through [`Write`], whole or in parts. One record is one line: whoever writes a name into it has escaped it (V-73).

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::Instant;

use jiff::Zoned;

use crate::config::{Level, Log as Settings, Timestamps};

/// Longest record in bytes, as in coturn; the rest is left out.
const RECORD_LEN_MAX: usize = 1024;

/// The log of a server.
pub struct Sink {
    to_stdout: bool,
    file: Option<LogFile>,
    syslog: Option<Syslog>,
    level_min: Level,
    timestamps: Timestamps,
    started: Instant,
    /// A line that has begun.
    partial: Vec<u8>,
}

impl Sink {
    /// Opens what `settings` name. A file that cannot be opened where none was named is done without.
    ///
    /// # Errors
    ///
    /// The file that was named cannot be opened.
    pub fn open(settings: &Settings) -> io::Result<Self> {
        let file = match &settings.file {
            Some(path) => {
                let mut named = LogFile::new(path.clone(), settings.is_dated);
                named.follow()?;
                Some(named)
            }
            None if settings.usual_file => LogFile::usual(settings.is_dated),
            None => None,
        };
        Ok(Self {
            to_stdout: settings.to_stdout,
            file,
            syslog: settings.syslog.map(Syslog::new),
            level_min: settings.level_min,
            timestamps: settings.timestamps.clone(),
            started: Instant::now(),
            partial: Vec::new(),
        })
    }

    /// The file that lines go to now.
    #[must_use]
    pub fn path(&self) -> Option<PathBuf> {
        self.file.as_ref().map(LogFile::current)
    }

    fn record(&mut self, line: &[u8]) -> io::Result<()> {
        let line = String::from_utf8_lossy(line);
        let (level, message) = level(&line);
        if level < self.level_min {
            return Ok(());
        }
        let mut record = match &self.timestamps {
            Timestamps::None => line.clone().into_owned(),
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
        if let Some(syslog) = &mut self.syslog {
            syslog.send(level, message);
        }
        record.push('\n');
        if let Some(file) = &mut self.file {
            // A full disk must not end the relay; standard output still has the line.
            let _ = file
                .follow()
                .and_then(|file| file.write_all(record.as_bytes()));
        }
        if self.to_stdout {
            io::stdout().write_all(record.as_bytes())?;
        }
        Ok(())
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.partial.extend_from_slice(bytes);
        while let Some(end) = self.partial.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.partial.drain(..=end).collect();
            self.record(line.strip_suffix(b"\n").unwrap_or(&line))?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.to_stdout {
            io::stdout().flush()?;
        }
        Ok(())
    }
}

/// The level that a line is written with, and the line without the word that says so.
fn level(line: &str) -> (Level, &str) {
    for (prefix, level) in [("warning: ", Level::Warning), ("error: ", Level::Error)] {
        if let Some(message) = line.strip_prefix(prefix) {
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

/// A file that is begun anew each day, and again when something else has taken its place.
struct LogFile {
    base: PathBuf,
    is_dated: bool,
    open: Option<(PathBuf, File)>,
}

impl LogFile {
    fn new(base: PathBuf, is_dated: bool) -> Self {
        Self {
            base,
            is_dated,
            open: None,
        }
    }

    /// In the first of coturn's directories that can be written to.
    fn usual(is_dated: bool) -> Option<Self> {
        let name = match is_dated {
            true => format!("turn_{}.log", std::process::id()),
            false => "turn.log".to_owned(),
        };
        let places = ["/var/log/turnserver", "/var/log", "/var/tmp", "/tmp", "."];
        places.into_iter().find_map(|place| {
            let mut file = Self::new(PathBuf::from(place).join(&name), is_dated);
            file.follow().is_ok().then_some(file)
        })
    }

    /// The name with the date before its extension, unless there is to be none.
    fn current(&self) -> PathBuf {
        if !self.is_dated {
            return self.base.clone();
        }
        let stem = self.base.file_stem().unwrap_or_default().to_string_lossy();
        let extension = match self.base.extension() {
            Some(extension) => extension.to_string_lossy(),
            None => "log".into(),
        };
        let date = Zoned::now().date();
        self.base
            .with_file_name(format!("{stem}_{date}.{extension}"))
    }

    /// The file of today, opened again if it has been moved away or removed.
    fn follow(&mut self) -> io::Result<&mut File> {
        let path = self.current();
        let is_same = self.open.as_ref().is_some_and(|(known, file)| {
            let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
            let now = std::fs::metadata(&path).map(identity).ok();
            *known == path && now.is_some() && now == file.metadata().map(identity).ok()
        });
        if !is_same {
            let file = OpenOptions::new()
                .create(true)
                .append(true)
                .mode(0o640)
                .open(&path)?;
            self.open = Some((path, file));
        }
        match &mut self.open {
            Some((_, file)) => Ok(file),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }
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
